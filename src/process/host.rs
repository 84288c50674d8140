//! The real child processes: one set of descriptors, one `poll`, no thread per task.
//!
//! Invariants:
//! - The leader of a group is reaped only after its group was sent `SIGKILL`, so that the group's number cannot have been given
//!   to others meanwhile.
//! - This process is a subreaper: what a task leaves behind becomes our child, whatever it did to its group and session. Such an
//!   adopted child is tied to a task by its group or the token in its environment.
//! - After a task's tree is gone its pipes are read for exactly what they then held, so that nobody can prolong the end.
//! - A memory limit is enforced by a control group or not at all: `RLIMIT_AS` and `RLIMIT_DATA` limit other things than the
//!   memory that a task uses, and break programs that reserve much and touch little.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::{Access, AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};

use super::cgroup::{OutOfMemory, TaskCgroup, WorkerCgroup};
use super::sys::{self, Reaped};
use super::tree::{self, Sent, Stat, Token};
use super::{Child, End, Event, Group, Launch, Process, SetupFailure, Signal, Started, Status, Stdin, Step, Stream};
use crate::clock::{Clock, HostClock};
use crate::protocol::errno;

/// The most that is read from one pipe before the next one gets its turn.
const CHUNK_BYTES: usize = 1 << 16;
/// What the pipes of a task can hold where the system allows it. Users may have 64 MiB in larger pipes, all processes together.
const PIPE_BYTES: usize = 1 << 18;
/// With more tasks than this, pipes stay at the system's default size, so that the allowance is not used up.
const LARGE_PIPES_TASKS_MAX: usize = 48;
/// How often adopted children are looked for while tasks run and none ends.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait at most where a child's end cannot be polled, because the kernel has no pidfds.
const NO_PIDFD_INTERVAL: Duration = Duration::from_millis(20);
/// How often, and after what pause, a program that is being written is tried again.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// So many reads of one pipe may fail before its descriptor counts as broken, and what is left in it as lost.
const PIPE_FAILURES_MAX: u32 = 100;
/// Where programs are looked up if the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The child processes of this process.
///
/// Dropping it sends `SIGKILL` to all that still runs, without waiting for it.
#[derive(Debug)]
pub struct HostProcess {
    tasks: BTreeMap<Child, Task>,
    next_child: u64,
    waker: Waker,
    watched: Vec<OwnedFd>,
    /// Descriptors that become ready once and for ever.
    watched_once: Vec<OwnedFd>,
    /// Whether all children of this process are started or left behind by this value's tasks.
    sole: bool,
    cgroup: Option<WorkerCgroup>,
    out_of_memory: OutOfMemory,
    /// Descendants outside of their task's group that were met and are not reaped yet, by pid.
    strays: HashMap<u32, Stray>,
    /// Processes that were sent `SIGKILL`, to be told when they end.
    dying: Vec<OwnedFd>,
    swept_at: Duration,
    /// Sweeps in a row that left something alive, for pacing.
    sweeps_vain: u32,
    /// Whether the last [`Process::poll`] took output at all.
    output_wanted: bool,
    /// Where the round over the pipes begins next time.
    turn: usize,
    buffer: Box<[u8]>,
}

/// What is known of one child.
#[derive(Debug)]
struct Task {
    group: Group,
    pidfd: Option<OwnedFd>,
    pipes: [Option<Pipe>; 2],
    started: Duration,
    cgroup: Option<TaskCgroup>,
    /// We sent `SIGKILL`, so that one is no sign of want of memory.
    kill_sent: bool,
    /// Set when the leader has ended.
    exit: Option<Exit>,
}

/// The reading end of an output.
#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    /// Bytes still to be read, once the tree is gone.
    left: Option<usize>,
    /// Reads that failed.
    failures: u32,
}

/// The end of a leader, kept until its tree and its output are done.
#[derive(Debug)]
struct Exit {
    reaped: Reaped,
    elapsed: Duration,
    out_of_memory: bool,
    leftovers: u32,
    tree_gone: bool,
}

/// A descendant that is, or will be, adopted by this process. Remembered because a process that is ending has no environment any
/// more, by which it could be recognised.
#[derive(Debug)]
struct Stray {
    ticks: u64,
    /// The task that it belongs to, once that is known.
    owner: Option<Child>,
    /// The tasks that there were when it was first seen: one of those left it behind.
    suspects: Vec<Child>,
    kill_sent: bool,
    /// It belongs to another user and cannot be ended.
    is_denied: bool,
    /// How often it was looked at in vain, because it had no environment.
    unclear: u32,
}

/// Wakes a [`HostProcess::wait`] from another thread.
#[derive(Debug, Clone)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Arc::new(event) })
    }

    /// Ends the current wait, or the next one if there is none now.
    pub fn wake(&self) {
        // Only fails when the counter is full, and then it wakes anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl HostProcess {
    /// Prepares to run children, and makes this process the one that adopts what they leave behind.
    pub fn new() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self {
            tasks: BTreeMap::new(),
            next_child: 1,
            waker: Waker::new()?,
            watched: Vec::new(),
            watched_once: Vec::new(),
            sole: false,
            cgroup: None,
            out_of_memory: OutOfMemory::watch(),
            strays: HashMap::new(),
            dying: Vec::new(),
            swept_at: Duration::ZERO,
            sweeps_vain: 0,
            output_wanted: true,
            turn: 0,
            buffer: vec![0; CHUNK_BYTES].into_boxed_slice(),
        })
    }

    /// Says that nothing else in this process starts children. Then also strays that cleared their environment are ended, as
    /// soon as no task runs that may have left them.
    #[must_use]
    pub fn sole(mut self) -> Self {
        self.sole = true;
        self
    }

    /// Enforces [`Launch::mem_max`] by groups below `cgroup`.
    #[must_use]
    pub fn with_cgroup(mut self, cgroup: Option<WorkerCgroup>) -> Self {
        self.cgroup = cgroup;
        self
    }

    /// Whether memory limits are enforced, not only accounted.
    pub fn limits_memory(&self) -> bool {
        self.cgroup.is_some()
    }

    /// Hands out what ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Lets [`HostProcess::wait`] also return when `fd` is readable or closed by its other side, until that is consumed.
    pub fn watch_fd(&mut self, fd: impl AsFd) -> io::Result<()> {
        self.watched.push(fd.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Lets [`HostProcess::wait`] return when `fd` becomes ready for the first time, and forgets it then: for the end of another
    /// process, which would otherwise end every further wait at once.
    pub fn watch_once(&mut self, fd: impl AsFd) -> io::Result<()> {
        self.watched_once.push(fd.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Counts the children whose end was not reported yet.
    pub fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Blocks until there is something for [`Process::poll`], somebody called [`Waker::wake`], a watched descriptor is ready, a
    /// signal came, or `timeout` is over; false only in the last case. While children run it also returns about every second, so
    /// that what they left behind is reaped.
    ///
    /// After a `poll(0)` output does not count, so that a caller who cannot take any is not kept busy.
    pub fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let pace = self.pace();
        let is_paced = pace.is_some_and(|pace| timeout.is_none_or(|timeout| pace < timeout));
        let timeout = if is_paced { pace } else { timeout };
        let mut fds = vec![PollFd::new(&self.waker.event, PollFlags::IN)];
        fds.extend(self.watched_once.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.dying.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        for task in self.tasks.values() {
            if let (Some(pidfd), None) = (&task.pidfd, &task.exit) {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
            }
            if self.output_wanted {
                fds.extend(task.pipes.iter().flatten().map(|pipe| PollFd::new(&pipe.fd, PollFlags::IN)));
            }
        }
        let outcome = rustix::event::poll(&mut fds, timeout.map(timespec).as_ref());
        let mut are_waiting = fds[1..].iter().map(|fd| fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        self.watched_once.retain(|_| are_waiting.next().unwrap_or(true));
        self.waker.reset();
        // An error is an interruption by a signal, or a passing want of memory: let the caller have a look.
        outcome != Ok(0) || is_paced
    }

    /// How long a wait may be at most, where an end might come without making a descriptor ready.
    fn pace(&self) -> Option<Duration> {
        let without_pidfd = self.tasks.values().any(|task| task.exit.is_none() && task.pidfd.is_none());
        let lingering = self.tasks.values().any(|task| task.exit.as_ref().is_some_and(|exit| !exit.tree_gone));
        // A leftover in an uninterruptible call of a hung file system may need long: ask less and less often.
        let lingering = lingering.then(|| Duration::from_millis(2 << self.sweeps_vain.min(7)));
        let running = (!self.tasks.is_empty()).then_some(SWEEP_INTERVAL);
        [without_pidfd.then_some(NO_PIDFD_INTERVAL), lingering, running].into_iter().flatten().min()
    }

    /// Reaps the leaders that have ended.
    fn find_ends(&mut self) {
        let now = HostClock.boot();
        let mut any = false;
        for child in self.leaders_ended() {
            let Some(task) = self.tasks.get_mut(&child) else { continue };
            // The zombie keeps the number from being used again until it is reaped.
            signal_group(task.group.pid, rustix::process::Signal::KILL);
            let mut leftovers = 0;
            if let Some(cgroup) = &task.cgroup {
                leftovers = cgroup.members();
                if leftovers > 0 {
                    cgroup.end();
                }
            }
            let reaped = match sys::reap(task.group.pid) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => continue,
                // Somebody else took the status, or SIGCHLD is ignored; all that is known is that it is gone.
                Err(_) => Reaped { status: Status::Exit(255), usage: super::Usage::default() },
            };
            let killed = reaped.status == Status::Signal(libc::SIGKILL) && !task.kill_sent;
            let out_of_memory = match &task.cgroup {
                Some(cgroup) => cgroup.ran_out_of_memory(),
                None => false,
            } || (killed && self.out_of_memory.happened());
            let elapsed = now.saturating_sub(task.started);
            task.pidfd = None;
            task.exit = Some(Exit { reaped, elapsed, out_of_memory, leftovers, tree_gone: false });
            any = true;
        }
        let lingering = self.tasks.values().any(|task| task.exit.as_ref().is_some_and(|exit| !exit.tree_gone));
        let due = !self.tasks.is_empty() && now.saturating_sub(self.swept_at) >= SWEEP_INTERVAL;
        if any {
            self.sweeps_vain = 0;
        }
        if lingering || due {
            self.swept_at = now;
            self.sweep();
        }
    }

    /// Lists the children whose leader is a zombie now.
    fn leaders_ended(&self) -> Vec<Child> {
        let running = || self.tasks.iter().filter(|(_, task)| task.exit.is_none());
        let polled: Vec<(Child, &OwnedFd)> =
            running().filter_map(|(&child, task)| Some((child, task.pidfd.as_ref()?))).collect();
        let mut fds: Vec<PollFd<'_>> = polled.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        let ready = poll_now(&mut fds);
        let polled = polled.iter().zip(ready).filter(|(_, ready)| *ready).map(|((child, _), _)| *child);
        let asked =
            running().filter(|(_, task)| task.pidfd.is_none() && is_zombie(task.group.pid)).map(|(&child, _)| child);
        polled.chain(asked).collect()
    }

    /// Reaps adopted children, ends those that ended tasks left behind, and finds out which trees are gone.
    fn sweep(&mut self) {
        const PASSES_MAX: usize = 16;
        self.dying.clear();
        for _ in 0..PASSES_MAX {
            let mut changed = false;
            let leaders: HashSet<u32> =
                self.tasks.values().filter(|task| task.exit.is_none()).map(|task| task.group.pid).collect();
            let children = tree::children(std::process::id());
            for pid in children.into_iter().filter(|pid| !leaders.contains(pid)) {
                changed |= self.attend(pid);
            }
            if !changed {
                break;
            }
        }
        let mut busy = HashSet::new();
        self.strays.retain(|&pid, stray| {
            let now = Stat::of(pid).filter(|now| now.ticks == stray.ticks);
            if now.is_some_and(|now| now.is_alive()) && !stray.is_denied {
                busy.extend(stray.owner);
                if stray.owner.is_none() && may_become_clear(pid, stray.unclear) {
                    busy.extend(&stray.suspects);
                }
            }
            now.is_some()
        });
        for (child, task) in &mut self.tasks {
            let Some(exit) = task.exit.as_mut().filter(|exit| !exit.tree_gone) else { continue };
            let cgroup_gone = task.cgroup.as_ref().is_none_or(|cgroup| !cgroup.is_populated());
            if busy.contains(child) || !cgroup_gone || group_exists(task.group.pid) {
                continue;
            }
            exit.tree_gone = true;
            for pipe in task.pipes.iter_mut().flatten() {
                let held = rustix::io::ioctl_fionread(&pipe.fd).unwrap_or(0);
                pipe.left = Some(usize::try_from(held).unwrap_or(usize::MAX));
            }
        }
        self.sweeps_vain = self.sweeps_vain.saturating_add(1);
    }

    /// Does what is due for the adopted child `pid`; true if that may have changed who else is there.
    fn attend(&mut self, pid: u32) -> bool {
        let Some(stat) = Stat::of(pid) else { return false };
        let owner = self.owner(&stat);
        if !stat.is_alive() {
            return (owner.is_some() || self.sole) && self.reap_stray(&stat, owner);
        }
        let is_over = |child: &Child| self.tasks.get(child).is_none_or(|task| task.exit.is_some());
        let owner = match owner {
            Some(owner) if is_over(&owner) => Some(owner),
            None if self.sole => {
                let suspects = self.strays.get(&pid).map_or(&[][..], |stray| &stray.suspects);
                if !suspects.iter().all(is_over) {
                    return false;
                }
                suspects.iter().find(|child| self.tasks.contains_key(child)).copied()
            }
            _ => return false,
        };
        let mut changed = false;
        for victim in std::iter::once(stat).chain(tree::descendants(&[pid])) {
            changed |= self.end_stray(&victim, owner);
        }
        changed
    }

    /// Takes the status of an adopted child that has ended.
    fn reap_stray(&mut self, stat: &Stat, owner: Option<Child>) -> bool {
        let Ok(Some(reaped)) = sys::reap(stat.pid) else { return false };
        let was_counted = self.strays.remove(&stat.pid).is_some_and(|stray| stray.kill_sent);
        // One that ended by `SIGKILL` unless it was sent one before was ended together with its group.
        if reaped.status == Status::Signal(libc::SIGKILL) && !was_counted {
            self.count_leftover(owner);
        }
        true
    }

    /// Ends a process that a task left behind; true if that is news.
    fn end_stray(&mut self, victim: &Stat, owner: Option<Child>) -> bool {
        let sent = tree::end(victim);
        let stray = self.stray(victim);
        stray.owner = stray.owner.or(owner);
        stray.is_denied = matches!(sent, Sent::Denied);
        match sent {
            Sent::Gone => true,
            Sent::Denied => false,
            Sent::Yes(pidfd) => {
                let is_new = !std::mem::replace(&mut stray.kill_sent, true);
                self.dying.extend(pidfd);
                if is_new {
                    self.count_leftover(owner);
                }
                is_new
            }
        }
    }

    fn count_leftover(&mut self, owner: Option<Child>) {
        let task = owner.and_then(|owner| self.tasks.get_mut(&owner)).filter(|task| !task.kill_sent);
        if let Some(exit) = task.and_then(|task| task.exit.as_mut()) {
            exit.leftovers += 1;
        }
    }

    /// What is remembered of a process.
    fn stray(&mut self, stat: &Stat) -> &mut Stray {
        let suspects = || self.tasks.keys().copied().collect();
        let new = || Stray {
            ticks: stat.ticks,
            owner: None,
            suspects: suspects(),
            kill_sent: false,
            is_denied: false,
            unclear: 0,
        };
        let stray = self.strays.entry(stat.pid).or_insert_with(new);
        if stray.ticks != stat.ticks {
            *stray = new();
        }
        stray
    }

    /// Finds the task that an adopted child belongs to.
    fn owner(&mut self, stat: &Stat) -> Option<Child> {
        let known = self.stray(stat).owner;
        let by_group = || self.tasks.iter().find(|(_, task)| task.group.pid == stat.group).map(|(&child, _)| child);
        if let Some(owner) = known.or_else(by_group) {
            self.stray(stat).owner = Some(owner);
            return Some(owner);
        }
        let token = Token::of(stat.pid);
        let by_token = |token: &[u8]| self.tasks.iter().find(|(_, task)| task.group.token.as_bytes() == token);
        let owner = if let Token::Is(token) = &token { by_token(token).map(|(&child, _)| child) } else { None };
        let stray = self.stray(stat);
        stray.owner = owner;
        stray.unclear = if token == Token::Unclear { stray.unclear + 1 } else { 0 };
        owner
    }

    /// Reads output, a piece from each pipe in turn, at most `output_max` bytes in all.
    fn drain(&mut self, output_max: usize, events: &mut Vec<Event>) {
        let mut open = self.readable();
        if open.is_empty() {
            return;
        }
        self.turn = (self.turn + 1) % open.len();
        open.rotate_left(self.turn);
        let mut budget = output_max;
        while budget > 0 && !open.is_empty() {
            open.retain(|&(child, stream)| {
                if budget == 0 {
                    return true;
                }
                let slot = self.tasks.get_mut(&child).map(|task| &mut task.pipes[index(stream)]);
                let Some(slot) = slot else { return false };
                let (bytes, goes_on) = read_pipe(slot, &mut self.buffer, budget);
                budget -= bytes.len();
                if !bytes.is_empty() {
                    events.push(Event::Output { child, stream, bytes });
                }
                goes_on
            });
        }
    }

    /// Lists the pipes that are worth a look.
    fn readable(&self) -> Vec<(Child, Stream)> {
        let mut names = Vec::new();
        let mut fds = Vec::new();
        for (&child, task) in &self.tasks {
            for (pipe, stream) in task.pipes.iter().zip([Stream::Stdout, Stream::Stderr]) {
                if let Some(pipe) = pipe {
                    names.push((child, stream, pipe.left.is_some()));
                    fds.push(PollFd::new(&pipe.fd, PollFlags::IN));
                }
            }
        }
        let ready = poll_now(&mut fds);
        let chosen = names.into_iter().zip(ready).filter(|((_, _, is_last), ready)| *ready || *is_last);
        chosen.map(|((child, stream, _), _)| (child, stream)).collect()
    }

    /// Reports the children whose tree is gone and whose output is read.
    fn report_ends(&mut self, events: &mut Vec<Event>) {
        for task in self.tasks.values_mut() {
            for slot in &mut task.pipes {
                if slot.as_ref().is_some_and(|pipe| pipe.left == Some(0)) {
                    *slot = None;
                }
            }
        }
        let is_done = |task: &Task| {
            task.exit.as_ref().is_some_and(|exit| exit.tree_gone) && task.pipes.iter().all(Option::is_none)
        };
        let done: Vec<Child> = self.tasks.iter().filter(|(_, task)| is_done(task)).map(|(&child, _)| child).collect();
        for child in done {
            let Some(task) = self.tasks.remove(&child) else { continue };
            let Some(exit) = task.exit else { continue };
            let end = End {
                status: exit.reaped.status,
                out_of_memory: exit.out_of_memory || task.cgroup.as_ref().is_some_and(TaskCgroup::ran_out_of_memory),
                leftovers: exit.leftovers,
                elapsed: exit.elapsed,
                usage: exit.reaped.usage,
            };
            events.push(Event::Ended { child, end });
        }
    }
}

impl Process for HostProcess {
    fn start(&mut self, launch: &Launch) -> Result<Started, SetupFailure> {
        let plan = Plan::new(launch)?;
        let stdin = open_stdin(&launch.stdin, &plan.cwd)?;
        let program = plan.program.as_os_str().as_bytes();
        let fork = |errno: Errno| failure(Step::Fork, errno, program);
        let (out, out_of_child) = self.pipe().map_err(fork)?;
        let (err, err_of_child) = self.pipe().map_err(fork)?;
        let files = Files { stdin, out: out_of_child, err: err_of_child };
        let number = self.next_child;
        let limit = launch.mem_max.and_then(|max| self.cgroup.as_ref()?.limited(number, max));

        let started = HostClock.boot();
        let pid = plan.spawn(launch, &files)?;
        drop(files);
        let cgroup = limit.filter(|limit| limit.adopt(pid));
        // Not reaped yet, so both name the child just started.
        let ticks = Stat::of(pid).map_or(0, |stat| stat.ticks);
        let pidfd = to_pid(pid).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());

        self.next_child += 1;
        let child = Child(number);
        let group = Group { pid, ticks, token: launch.token.clone() };
        let pipes = [out, err].map(|fd| Some(Pipe { fd, left: None, failures: 0 }));
        let task = Task { group: group.clone(), pidfd, pipes, started, cgroup, kill_sent: false, exit: None };
        self.tasks.insert(child, task);
        Ok(Started { child, group })
    }

    fn poll(&mut self, output_max: usize) -> Vec<Event> {
        self.output_wanted = output_max > 0;
        let mut events = Vec::new();
        self.find_ends();
        self.drain(output_max, &mut events);
        self.report_ends(&mut events);
        events
    }

    fn signal(&mut self, child: Child, signal: Signal) {
        let Some(task) = self.tasks.get_mut(&child).filter(|task| task.exit.is_none()) else { return };
        let number = match signal {
            Signal::Term => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        task.kill_sent |= signal == Signal::Kill;
        let leader = task.group.pid;
        let leaders: HashSet<u32> = self.tasks.values().map(|task| task.group.pid).collect();
        // Found first: when their parents are gone, strays are harder to find.
        let mut roots = vec![leader];
        let mut strays = Vec::new();
        for stat in tree::children(std::process::id()).into_iter().filter_map(Stat::of) {
            if !leaders.contains(&stat.pid) && stat.is_alive() && self.owner(&stat) == Some(child) {
                roots.push(stat.pid);
                strays.push(stat);
            }
        }
        strays.extend(tree::descendants(&roots));
        // Signalled first: a leader that waits for a stray would go on, and perhaps end well, if that one ended before.
        send_and_continue(|signal| signal_group(leader, signal), number);
        for stray in &strays {
            // It may have left the group since it was found, just before the group's signal.
            let is_in_group = Stat::of(stray.pid).is_some_and(|now| now.group == leader);
            if is_in_group && signal != Signal::Kill {
                continue;
            }
            let known = self.stray(stray);
            known.owner = Some(child);
            known.kill_sent |= signal == Signal::Kill;
            send_and_continue(|signal| drop(tree::send(stray, signal)), number);
        }
        let cgroup = self.tasks.get(&child).and_then(|task| task.cgroup.as_ref());
        if let (Some(cgroup), Signal::Kill) = (cgroup, signal) {
            cgroup.end();
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let running: Vec<Child> = self.tasks.keys().copied().collect();
        for child in running {
            self.signal(child, Signal::Kill);
        }
    }
}

impl HostProcess {
    /// Makes the pipe of one output: our end, which never blocks, and the child's.
    fn pipe(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        if self.tasks.len() < LARGE_PIPES_TASKS_MAX {
            // Refused when the user's allowance is used up; the usual size will do.
            let _ = rustix::pipe::fcntl_setpipe_size(&ours, PIPE_BYTES);
        }
        Ok((ours, theirs))
    }
}

/// Starts the worker proper of a keeper, in a process group of its own, with `fd` inherited and its number in the environment
/// as `variable`. Returns its pid.
///
/// For a process with a single thread: a child started by another one meanwhile would inherit the descriptor too.
pub(crate) fn start_worker(argv: &[OsString], variable: &str, fd: OwnedFd) -> io::Result<u32> {
    let Some((program, arguments)) = argv.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    rustix::io::fcntl_setfd(&fd, FdFlags::empty())?;
    let number = fd.as_raw_fd().to_string();
    let mut command = Command::new(program);
    command.args(arguments).env(variable, number).process_group(0);
    let child = command.spawn()?;
    drop(fd);
    Ok(child.id())
}

/// A launch that was checked as far as it can be before there is a process.
struct Plan {
    /// Absolute.
    program: PathBuf,
    /// Absolute.
    cwd: PathBuf,
}

impl Plan {
    fn new(launch: &Launch) -> Result<Self, SetupFailure> {
        let name = launch.argv.first().map(Vec::as_slice).unwrap_or_default();
        let has_nul = |bytes: &Vec<u8>| bytes.contains(&0);
        if launch.argv.is_empty() || launch.argv.iter().any(has_nul) {
            return Err(failure(Step::Exec, Errno::INVAL, name));
        }
        let unusable = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            name.is_empty() || name.contains(&b'=') || has_nul(name) || has_nul(value)
        };
        if let Some((name, _)) = launch.env.iter().find(unusable) {
            return Err(failure(Step::Env, Errno::INVAL, name));
        }
        let typed_cwd = launch.cwd.as_os_str().as_bytes();
        let cwd = std::path::absolute(&launch.cwd).map_err(|_| failure(Step::Chdir, Errno::NOENT, typed_cwd))?;
        check_cwd(&cwd)?;
        let program = find_program(name, &launch.env, &cwd).map_err(|errno| failure(Step::Exec, errno, name))?;
        Ok(Self { program, cwd })
    }

    /// Starts the process and returns its pid. On return the program runs, and the child's descriptors are closed here.
    fn spawn(&self, launch: &Launch, files: &Files) -> Result<u32, SetupFailure> {
        let arguments = || launch.argv.iter().skip(1).map(|argument| OsStr::from_bytes(argument));
        let mut command = Command::new(&self.program);
        command.arg0(OsStr::from_bytes(&launch.argv[0])).args(arguments());
        let error = match self.run(command, launch, files) {
            Ok(pid) => return Ok(pid),
            Err(error) => error,
        };
        if error != Errno::NOEXEC || !looks_like_a_script(&self.program) {
            return Err(self.blame(launch, error));
        }
        // A script without an interpreter line is for the shell, as in every shell.
        let mut shell = Command::new("/bin/sh");
        shell.arg(&self.program).args(arguments());
        self.run(shell, launch, files).map_err(|error| self.blame(launch, error))
    }

    /// Runs `command` in the way of all launches: nothing here makes the standard library leave `posix_spawn`.
    fn run(&self, mut command: Command, launch: &Launch, files: &Files) -> Result<u32, Errno> {
        let env = launch.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value)));
        command.env_clear().envs(env).current_dir(&self.cwd).process_group(0);
        let copy = |fd: &OwnedFd| fd.try_clone().map(Stdio::from).map_err(|error| errno_of(&error));
        command.stdin(files.stdin.as_ref().map_or_else(|| Ok(Stdio::null()), copy)?);
        command.stdout(copy(&files.out)?).stderr(copy(&files.err)?);
        let mut tries = 0;
        loop {
            match command.spawn() {
                Ok(child) => return Ok(child.id()),
                // Somebody is still writing the program: often a child of another thread that has not come to its exec yet.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) && tries < BUSY_TRIES => {
                    tries += 1;
                    let _ = rustix::event::poll(&mut [], Some(&timespec(BUSY_PAUSE)));
                }
                Err(error) => return Err(errno_of(&error)),
            }
        }
    }

    /// Says which step a failed spawn was in: the system tells only an error number.
    fn blame(&self, launch: &Launch, error: Errno) -> SetupFailure {
        let name = &launch.argv[0];
        match error {
            Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => failure(Step::Fork, error, name),
            Errno::TOOBIG => too_big(launch),
            _ => {
                // The directory may have gone since it was checked.
                if let Err(failure) = check_cwd(&self.cwd) {
                    return failure;
                }
                let interpreter = (error == Errno::NOENT).then(|| interpreter_of(&self.program)).flatten();
                failure(Step::Exec, error, interpreter.as_ref().unwrap_or(name))
            }
        }
    }
}

/// The child's side of its standard descriptors.
struct Files {
    /// `None` is `/dev/null`.
    stdin: Option<OwnedFd>,
    out: OwnedFd,
    err: OwnedFd,
}

/// Says whether the environment or the arguments are too large, and which of them most.
fn too_big(launch: &Launch) -> SetupFailure {
    let largest = launch.env.iter().max_by_key(|(name, value)| name.len() + value.len());
    let env_bytes: usize = launch.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let argv_bytes: usize = launch.argv.iter().map(|argument| argument.len() + 1).sum();
    match largest {
        Some((name, _)) if env_bytes >= argv_bytes => failure(Step::Env, Errno::TOOBIG, name),
        _ => failure(Step::Exec, Errno::TOOBIG, &launch.argv[0]),
    }
}

/// Checks that `cwd` can be changed to.
fn check_cwd(cwd: &Path) -> Result<(), SetupFailure> {
    let check = rustix::fs::stat(cwd).and_then(|stat| {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        rustix::fs::accessat(CWD, cwd, Access::EXEC_OK, AtFlags::EACCESS)
    });
    check.map_err(|errno| failure(Step::Chdir, errno, cwd.as_os_str().as_bytes()))
}

/// Finds the program `name` as a shell would, with the `PATH` of the child's environment.
fn find_program(name: &[u8], env: &[(Vec<u8>, Vec<u8>)], cwd: &Path) -> Result<PathBuf, Errno> {
    if name.is_empty() {
        return Err(Errno::NOENT);
    }
    if name.contains(&b'/') {
        let path = cwd.join(OsStr::from_bytes(name));
        return check_program(&path).map(|()| path);
    }
    let path = env.iter().rev().find(|(name, _)| name == b"PATH").map_or(DEFAULT_PATH, |(_, value)| value);
    // An empty element is the working directory.
    let candidates =
        path.split(|&byte| byte == b':').map(|dir| cwd.join(OsStr::from_bytes(dir)).join(OsStr::from_bytes(name)));
    first_program(candidates, check_program)
}

/// Returns the first that passes `check`. If none does, says why: that one could not be looked at is no sign that it is not there.
fn first_program(
    candidates: impl Iterator<Item = PathBuf>,
    check: impl Fn(&Path) -> Result<(), Errno>,
) -> Result<PathBuf, Errno> {
    let mut why = Errno::NOENT;
    for candidate in candidates {
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {}
            Err(Errno::ACCESS) if why != Errno::NOENT => {}
            Err(errno) => why = errno,
        }
    }
    Err(why)
}

/// Checks that `path` is a file that we may execute.
fn check_program(path: &Path) -> Result<(), Errno> {
    let stat = rustix::fs::stat(path)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
}

/// Reads the first bytes of a program, to see what kind it is.
fn first_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = [0; 256];
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let count = file.and_then(|file| rustix::io::read(file, &mut bytes)).unwrap_or(0);
    bytes[..count].to_vec()
}

/// Whether a file that the kernel cannot execute is text.
fn looks_like_a_script(path: &Path) -> bool {
    let bytes = first_bytes(path);
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    !line.contains(&0)
}

/// The interpreter that the first line of a script names: where that is missing, it is what was "not found".
fn interpreter_of(path: &Path) -> Option<Vec<u8>> {
    let bytes = first_bytes(path);
    let line = bytes.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()).map(<[u8]>::to_vec)
}

/// Opens what the child reads; `None` is `/dev/null`.
fn open_stdin(stdin: &Stdin, cwd: &Path) -> Result<Option<OwnedFd>, SetupFailure> {
    match stdin {
        Stdin::Null => Ok(None),
        Stdin::Bytes(bytes) if bytes.is_empty() => Ok(None),
        Stdin::Bytes(bytes) => {
            in_memory(bytes).map(Some).map_err(|errno| failure(Step::Stdin, errno, b"(the bytes given)"))
        }
        Stdin::File(path) => open_input(&cwd.join(path))
            .map(Some)
            .map_err(|errno| failure(Step::Stdin, errno, path.as_os_str().as_bytes())),
    }
}

/// Opens a file for reading; a pipe nobody writes to does not make us wait.
fn open_input(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Directory {
        return Err(Errno::ISDIR);
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Puts `bytes` into a file without a name, which nobody can change any more.
fn in_memory(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create("fq-stdin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Reads once from a pipe, closing it at its end; the bytes, and whether another look may bring more now.
fn read_pipe(slot: &mut Option<Pipe>, buffer: &mut [u8], budget: usize) -> (Vec<u8>, bool) {
    let Some(pipe) = slot else { return (Vec::new(), false) };
    let wanted = buffer.len().min(budget).min(pipe.left.unwrap_or(usize::MAX));
    if wanted == 0 {
        return (Vec::new(), false);
    }
    match rustix::io::read(&pipe.fd, &mut buffer[..wanted]) {
        Ok(count) if count > 0 => {
            if let Some(left) = &mut pipe.left {
                *left -= count;
            }
            // Pages of a pipe may be partly filled, so that a short read does not mean that it is empty.
            (buffer[..count].to_vec(), true)
        }
        Err(Errno::INTR) => (Vec::new(), true),
        Err(Errno::AGAIN) if pipe.left.is_none() => (Vec::new(), false),
        // What the task wrote is still there: to take this for its end would cut the output short and call it whole.
        Err(errno) if errno != Errno::AGAIN && pipe.failures < PIPE_FAILURES_MAX => {
            pipe.failures += 1;
            (Vec::new(), false)
        }
        // The end, or nothing more where no more is awaited, or a broken descriptor.
        _ => {
            *slot = None;
            (Vec::new(), false)
        }
    }
}

fn failure(step: Step, errno: Errno, path: &[u8]) -> SetupFailure {
    let path = String::from_utf8_lossy(path).into_owned();
    SetupFailure { step, errno: errno::name(errno.raw_os_error()), path }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

fn to_pid(pid: u32) -> Option<Pid> {
    // 1 is never ours, and as a group it would mean everybody.
    i32::try_from(pid).ok().filter(|&pid| pid > 1).and_then(Pid::from_raw)
}

/// Whether one more look may tell what a process without an environment belongs to: the second look always, and further ones
/// as long as it has no arguments either, but not for ever.
fn may_become_clear(pid: u32, looks: u32) -> bool {
    const LOOKS_MAX: u32 = 20;
    looks == 1 || (1..LOOKS_MAX).contains(&looks) && tree::is_in_transition(pid)
}

/// Sends a signal to all of a group; one that is gone is no error.
fn signal_group(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = to_pid(pid) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Sends a signal, and lets a stopped process go on so that it can act on it.
fn send_and_continue(send: impl Fn(rustix::process::Signal), signal: rustix::process::Signal) {
    send(signal);
    if signal != rustix::process::Signal::KILL {
        send(rustix::process::Signal::CONT);
    }
}

/// Whether a group has members that we may signal, zombies included.
fn group_exists(pid: u32) -> bool {
    to_pid(pid).is_some_and(|pid| rustix::process::test_kill_process_group(pid).is_ok())
}

/// Whether our child `pid` has ended, without taking its status.
fn is_zombie(pid: u32) -> bool {
    let Some(pid) = to_pid(pid) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None) | Err(Errno::INTR))
}

/// Asks which descriptors are ready now.
fn poll_now(fds: &mut [PollFd<'_>]) -> Vec<bool> {
    if fds.is_empty() {
        return Vec::new();
    }
    // After an interruption nothing is marked; the next call will see it.
    let _ = rustix::event::poll(fds, Some(&timespec(Duration::ZERO)));
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: span.subsec_nanos().into() }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// One launch, put together by a chain of calls.
    struct Case(Launch);

    fn run(words: &[&[u8]]) -> Case {
        let token = format!("host-{:?}-{:?}", std::thread::current().id(), HostClock.boot());
        let env = vec![
            (b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()),
            (b"FQ_ATTEMPT_TOKEN".to_vec(), token.clone().into_bytes()),
        ];
        let argv = words.iter().map(|word| word.to_vec()).collect();
        Case(Launch { argv, env, cwd: PathBuf::from("/"), stdin: Stdin::Null, mem_max: None, token })
    }

    fn sh(script: &str) -> Case {
        run(&[b"sh", b"-c", script.as_bytes()])
    }

    /// What came of it.
    #[derive(Debug)]
    struct Outcome {
        out: Vec<u8>,
        err: Vec<u8>,
        end: End,
    }

    impl Case {
        fn env(mut self, name: &[u8], value: &[u8]) -> Self {
            self.0.env.push((name.to_vec(), value.to_vec()));
            self
        }

        fn cwd(mut self, cwd: &Path) -> Self {
            cwd.clone_into(&mut self.0.cwd);
            self
        }

        fn stdin(mut self, stdin: Stdin) -> Self {
            self.0.stdin = stdin;
            self
        }

        fn outcome(self) -> Outcome {
            let mut process = HostProcess::new().unwrap();
            let child = process.start(&self.0).unwrap().child;
            outcome(&mut process, child)
        }

        fn failure(self) -> (Step, String, String) {
            let mut process = HostProcess::new().unwrap();
            let failure = process.start(&self.0).unwrap_err();
            assert_eq!(process.count(), 0);
            (failure.step, failure.errno, failure.path)
        }
    }

    /// Waits until `done` says so of the events that come.
    fn collect(process: &mut HostProcess, mut done: impl FnMut(Event) -> bool) {
        let deadline = HostClock.boot() + Duration::from_secs(60);
        loop {
            for event in process.poll(1 << 20) {
                if done(event) {
                    return;
                }
            }
            assert!(HostClock.boot() < deadline, "nothing more comes: {process:?}");
            process.wait(Some(Duration::from_secs(5)));
        }
    }

    fn outcome(process: &mut HostProcess, wanted: Child) -> Outcome {
        let (mut out, mut err, mut ended) = (Vec::new(), Vec::new(), None);
        collect(process, |event| {
            match event {
                Event::Output { child, stream, bytes } => {
                    assert_eq!(child, wanted);
                    assert!(!bytes.is_empty());
                    let all = if stream == Stream::Stdout { &mut out } else { &mut err };
                    all.extend(bytes);
                }
                Event::Ended { child, end } => {
                    assert_eq!(child, wanted);
                    ended = Some(end);
                }
            }
            ended.is_some()
        });
        Outcome { out, err, end: ended.unwrap() }
    }

    /// Waits until the child has written a whole line, and returns it.
    fn line(process: &mut HostProcess) -> String {
        let mut text = Vec::new();
        collect(process, |event| {
            if let Event::Output { bytes, .. } = event {
                text.extend(bytes);
            }
            text.ends_with(b"\n")
        });
        String::from_utf8(text).unwrap().trim().to_owned()
    }

    fn is_running(pid: &str) -> bool {
        Stat::of(pid.parse().unwrap()).is_some_and(|stat| stat.is_alive())
    }

    #[test]
    fn an_exit_code_is_not_a_signal() {
        let end = sh("exit 143").outcome().end;
        assert_eq!((end.status, end.leftovers, end.out_of_memory), (Status::Exit(143), 0, false));
    }

    #[test]
    fn a_signal_is_not_an_exit_code() {
        assert_eq!(sh("kill -15 $$").outcome().end.status, Status::Signal(15));
    }

    #[test]
    fn the_two_outputs_are_kept_apart() {
        let outcome = sh("echo one; echo two >&2").outcome();
        assert_eq!((outcome.out.as_slice(), outcome.err.as_slice()), (&b"one\n"[..], &b"two\n"[..]));
    }

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(run(&[b"fq-no-such"]).failure(), (Step::Exec, "ENOENT".into(), "fq-no-such".into()));
        assert_eq!(run(&[b"/no/such"]).failure(), (Step::Exec, "ENOENT".into(), "/no/such".into()));
    }

    /// In real life: a node that has lost the mount with the program. Taken for "not found" it would be the user's fault for ever.
    #[test]
    fn a_program_that_cannot_be_looked_at_is_not_called_missing() {
        let search = |answers: &[Result<(), Errno>]| {
            let names = (0..answers.len()).map(|n| PathBuf::from(n.to_string()));
            first_program(names, |path| answers[path.to_str().unwrap().parse::<usize>().unwrap()])
        };
        assert_eq!(search(&[Err(Errno::NOENT), Err(Errno::NOTDIR)]), Err(Errno::NOENT));
        assert_eq!(search(&[Err(Errno::ACCESS), Err(Errno::NOENT)]), Err(Errno::ACCESS));
        assert_eq!(search(&[Err(Errno::IO), Err(Errno::NOENT)]), Err(Errno::IO));
        assert_eq!(search(&[Err(Errno::ACCESS), Err(Errno::STALE), Err(Errno::ACCESS)]), Err(Errno::STALE));
        assert_eq!(search(&[Err(Errno::IO), Ok(())]), Ok(PathBuf::from("1")));
    }

    #[test]
    fn a_read_that_fails_takes_nothing_from_the_output() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"whole").unwrap();
        // A directory cannot be read; then the pipe takes its place.
        let fd = rustix::fs::open(c"/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut slot = Some(Pipe { fd, left: Some(5), failures: 0 });
        assert_eq!(read_pipe(&mut slot, &mut [0; 64], 64), (vec![], false));
        slot = slot.map(|pipe| Pipe { fd: reader, ..pipe });
        assert_eq!(read_pipe(&mut slot, &mut [0; 64], 64), (b"whole".to_vec(), true));
    }

    #[test]
    fn a_pipe_that_never_can_be_read_is_given_up() {
        let fd = rustix::fs::open(c"/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut slot = Some(Pipe { fd, left: None, failures: 0 });
        for _ in 0..=PIPE_FAILURES_MAX {
            assert!(slot.is_some());
            read_pipe(&mut slot, &mut [0; 64], 64);
        }
        assert!(slot.is_none());
    }

    #[test]
    fn a_program_without_the_right_to_execute_is_denied() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tool"), "#!/bin/sh\n").unwrap();
        let failure = run(&[b"./tool"]).cwd(dir.path()).failure();
        assert_eq!(failure, (Step::Exec, "EACCES".into(), "./tool".into()));
        let failure = run(&[b"tool"]).env(b"PATH", dir.path().as_os_str().as_bytes()).failure();
        assert_eq!(failure, (Step::Exec, "EACCES".into(), "tool".into()));
        assert_eq!(run(&[b"/usr"]).failure(), (Step::Exec, "EACCES".into(), "/usr".into()));
    }

    fn tool(dir: &Path, text: &str) {
        let path = dir.join("tool");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_script_without_interpreter_line_is_run_by_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        tool(dir.path(), "echo \"$1-$2\"\n");
        let outcome = run(&[b"./tool", b"a b", b"c"]).cwd(dir.path()).outcome();
        assert_eq!(outcome.out, b"a b-c\n");
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let dir = tempfile::tempdir().unwrap();
        tool(dir.path(), "#! /no/such/shell -x\n");
        let failure = run(&[b"./tool"]).cwd(dir.path()).failure();
        assert_eq!(failure, (Step::Exec, "ENOENT".into(), "/no/such/shell".into()));
    }

    #[test]
    fn a_broken_binary_is_not_given_to_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        tool(dir.path(), "\u{0}\u{1}\n");
        assert_eq!(run(&[b"./tool"]).cwd(dir.path()).failure(), (Step::Exec, "ENOEXEC".into(), "./tool".into()));
    }

    #[test]
    fn a_missing_working_directory_is_named() {
        let failure = sh("true").cwd(Path::new("/no/such/dir")).failure();
        assert_eq!(failure, (Step::Chdir, "ENOENT".into(), "/no/such/dir".into()));
        let failure = sh("true").cwd(Path::new("/etc/passwd")).failure();
        assert_eq!(failure, (Step::Chdir, "ENOTDIR".into(), "/etc/passwd".into()));
    }

    #[test]
    fn a_missing_standard_input_is_named() {
        let failure = sh("true").stdin(Stdin::File("no-such".into())).failure();
        assert_eq!(failure, (Step::Stdin, "ENOENT".into(), "no-such".into()));
        let failure = sh("true").stdin(Stdin::File("/usr".into())).failure();
        assert_eq!(failure, (Step::Stdin, "EISDIR".into(), "/usr".into()));
    }

    #[test]
    fn a_link_is_not_followed_for_standard_input() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("in")).unwrap();
        let failure = sh("cat").cwd(dir.path()).stdin(Stdin::File("in".into())).failure();
        assert_eq!(failure, (Step::Stdin, "ELOOP".into(), "in".into()));
    }

    #[test]
    fn an_environment_that_is_too_large_is_named() {
        let failure = sh("true").env(b"BIG", &vec![b'x'; 200_000]).failure();
        assert_eq!(failure, (Step::Env, "E2BIG".into(), "BIG".into()));
    }

    #[test]
    fn arguments_that_are_too_large_are_no_fault_of_the_environment() {
        let failure = run(&[b"true", &vec![b'x'; 200_000]]).failure();
        assert_eq!(failure, (Step::Exec, "E2BIG".into(), "true".into()));
    }

    #[test]
    fn a_nul_byte_in_the_environment_is_refused() {
        assert_eq!(sh("true").env(b"BAD", b"a\0b").failure(), (Step::Env, "EINVAL".into(), "BAD".into()));
    }

    #[test]
    fn arguments_go_through_byte_for_byte() {
        let long = vec![b'l'; 100 << 10];
        let words: [&[u8]; 5] = [b"printf", b"%s|", b"\xff\xfe\x80", b"two\nlines\n", &long];
        let outcome = run(&words).outcome();
        let expected = [b"\xff\xfe\x80|two\nlines\n|".as_slice(), &long, b"|"].concat();
        assert!(outcome.out == expected, "{} bytes", outcome.out.len());
    }

    #[test]
    fn the_environment_goes_through_byte_for_byte() {
        let outcome = run(&[b"printenv", b"RAW"]).env(b"RAW", b"\xc3\x28\n=x").outcome();
        assert_eq!(outcome.out, b"\xc3\x28\n=x\n");
    }

    #[test]
    fn the_environment_is_exactly_the_given_one() {
        let case = run(&[b"env"]);
        let mut expected: Vec<String> = case
            .0
            .env
            .iter()
            .map(|(n, v)| format!("{}={}", String::from_utf8_lossy(n), String::from_utf8_lossy(v)))
            .collect();
        let out = String::from_utf8(case.outcome().out).unwrap();
        let mut lines: Vec<String> = out.lines().map(str::to_owned).collect();
        expected.sort();
        lines.sort();
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_pipes_of_other_tasks_are_not_inherited() {
        let mut process = HostProcess::new().unwrap();
        let first = process.start(&sh("exec sleep 1000").0).unwrap();
        let link = |pid: &str, fd: i32| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        let pipe = link(&first.group.pid.to_string(), 1);
        let ours = process.tasks[&first.child].pipes[0].as_ref().unwrap().fd.as_raw_fd();
        assert_eq!(link("self", ours), pipe);
        process.start(&sh("echo $(ls -l /proc/self/fd)").0).unwrap();
        let seen = line(&mut process);
        assert!(seen.contains("pipe:") && !seen.contains(pipe.to_str().unwrap()), "{seen}");
        process.signal(first.child, Signal::Kill);
    }

    #[test]
    fn bytes_given_as_standard_input_come_back() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let outcome = run(&[b"cat"]).stdin(Stdin::Bytes(bytes.clone().into())).outcome();
        assert!(outcome.out == bytes, "{} bytes", outcome.out.len());
    }

    #[test]
    fn standard_input_is_empty_unless_given() {
        assert_eq!(run(&[b"cat"]).outcome().out, b"");
        assert_eq!(run(&[b"cat"]).stdin(Stdin::Bytes(Arc::from(&b""[..]))).outcome().out, b"");
    }

    #[test]
    fn much_output_is_read_in_bounded_pieces() {
        const ASKED: usize = 300_000;
        const TOTAL: usize = 100 << 20;
        let mut process = HostProcess::new().unwrap();
        let words: [&[u8]; 4] = [b"head", b"-c", b"104857600", b"/dev/zero"];
        process.start(&run(&words).0).unwrap();
        let (mut total, mut is_over) = (0, false);
        while !is_over {
            let events = process.poll(ASKED);
            let mut got = 0;
            for event in events {
                match event {
                    Event::Output { bytes, .. } => got += bytes.len(),
                    Event::Ended { end, .. } => {
                        assert_eq!(end.status, Status::Exit(0));
                        is_over = true;
                    }
                }
            }
            assert!(got <= ASKED);
            total += got;
            assert!(is_over || process.wait(Some(Duration::from_secs(60))), "stuck after {total} bytes");
        }
        assert_eq!(total, TOTAL);
    }

    /// A daemon that keeps the outputs open and writes for ever is the classic way to hang a batch system.
    #[test]
    fn a_daemon_left_behind_does_not_outlive_its_task() {
        let mut process = HostProcess::new().unwrap();
        let script = "setsid sh -c 'echo $$; while :; do echo noise >&2; done' & \
                      while [ ! -e done ]; do sleep 0.01; done";
        let dir = tempfile::tempdir().unwrap();
        let child = process.start(&sh(script).cwd(dir.path()).0).unwrap().child;
        let mut pid = Vec::new();
        collect(&mut process, |event| {
            if let Event::Output { stream: Stream::Stdout, bytes, .. } = event {
                pid.extend(bytes);
            }
            pid.ends_with(b"\n")
        });
        std::fs::write(dir.path().join("done"), "").unwrap();
        let outcome = outcome(&mut process, child);
        assert_eq!((outcome.end.status, outcome.end.leftovers), (Status::Exit(0), 1));
        assert!(!is_running(String::from_utf8(pid).unwrap().trim()));
    }

    #[test]
    fn members_of_the_group_left_behind_are_ended() {
        let outcome = sh("sleep 1000 & sleep 1000 & echo $!").outcome();
        assert_eq!(outcome.end.leftovers, 2);
        assert!(!is_running(String::from_utf8(outcome.out).unwrap().trim()));
    }

    #[test]
    fn what_ended_by_itself_is_no_leftover() {
        let outcome = sh("true & true & sleep 0.001 & wait; exec true").outcome();
        assert_eq!((outcome.end.status, outcome.end.leftovers), (Status::Exit(0), 0));
    }

    /// Where it cannot be told which task a stray is from, it may live as long as one of the suspects.
    #[test]
    fn another_task_and_its_daemon_are_spared() {
        let mut process = HostProcess::new().unwrap();
        let lasting = process.start(&sh("setsid sleep 1000 & echo $!; sleep 1000").0).unwrap();
        let daemon = line(&mut process);
        let short = process.start(&sh("setsid sleep 1000 & exit 3").0).unwrap();
        assert_eq!(outcome(&mut process, short.child).end.leftovers, 1);
        assert!(is_running(&daemon));
        process.signal(lasting.child, Signal::Kill);
        assert_eq!(outcome(&mut process, lasting.child).end.status, Status::Signal(9));
        assert!(!is_running(&daemon));
    }

    /// Not a test of its own: with `sole` all children of the process count, so it needs one to itself.
    #[test]
    #[ignore = "started by `a_daemon_without_environment_is_ended_when_nobody_else_can_own_it`"]
    fn role_of_a_sole_owner() {
        let mut process = HostProcess::new().unwrap().sole();
        let script = "env -i setsid sh -c 'echo $$; exec sleep 1000' & read -r _ < ready";
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("ready");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let child = process.start(&sh(script).cwd(dir.path()).0).unwrap().child;
        let daemon = line(&mut process);
        std::fs::write(fifo, "\n").unwrap();
        let end = outcome(&mut process, child).end;
        assert_eq!((end.status, end.leftovers), (Status::Exit(0), 1));
        assert!(!is_running(&daemon));
    }

    #[test]
    fn a_daemon_without_environment_is_ended_when_nobody_else_can_own_it() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let words = ["--exact", "process::host::tests::role_of_a_sole_owner", "--ignored"];
        let output = command.args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn kill_reaches_grandchildren_in_other_sessions() {
        let mut process = HostProcess::new().unwrap();
        let child = process
            .start(&sh("setsid sh -c 'trap \"\" TERM; echo $$; sleep 1000; sleep 1000' & wait").0)
            .unwrap()
            .child;
        let grandchild = line(&mut process);
        assert!(is_running(&grandchild));
        process.signal(child, Signal::Kill);
        assert_eq!(outcome(&mut process, child).end.status, Status::Signal(9));
        assert!(!is_running(&grandchild));
    }

    #[test]
    fn term_reaches_grandchildren_who_may_answer() {
        let mut process = HostProcess::new().unwrap();
        let script = "trap 'wait; exit 7' TERM; \
                      setsid sh -c 'trap \"echo bye; exit 0\" TERM; echo ready; while :; do sleep 0.01; done' & \
                      wait";
        let child = process.start(&sh(script).0).unwrap().child;
        assert_eq!(line(&mut process), "ready");
        process.signal(child, Signal::Term);
        let outcome = outcome(&mut process, child);
        assert_eq!((outcome.out.as_slice(), outcome.end.status), (&b"bye\n"[..], Status::Exit(7)));
    }

    #[test]
    fn a_stopped_task_can_be_terminated() {
        let mut process = HostProcess::new().unwrap();
        let started = process.start(&sh("echo ready; kill -STOP $$; sleep 1000").0).unwrap();
        assert_eq!(line(&mut process), "ready");
        process.signal(started.child, Signal::Term);
        assert_eq!(outcome(&mut process, started.child).end.status, Status::Signal(15));
    }

    #[test]
    fn signalling_a_child_that_has_ended_is_no_error() {
        let mut process = HostProcess::new().unwrap();
        let child = process.start(&sh("true").0).unwrap().child;
        outcome(&mut process, child);
        process.signal(child, Signal::Kill);
    }

    #[test]
    fn two_hundred_children_are_each_reported_once() {
        let mut process = HostProcess::new().unwrap();
        let mut waiting: HashSet<Child> = (0..200).map(|_| process.start(&run(&[b"true"]).0).unwrap().child).collect();
        collect(&mut process, |event| {
            if let Event::Ended { child, end } = event {
                assert_eq!(end.status, Status::Exit(0));
                assert!(waiting.remove(&child), "reported twice");
            }
            waiting.is_empty()
        });
        assert_eq!(process.poll(1 << 20), []);
        assert_eq!(process.count(), 0);
    }

    #[test]
    fn without_pidfds_ends_are_noticed_too() {
        let mut process = HostProcess::new().unwrap();
        let child = process.start(&sh("echo hi; exit 4").0).unwrap().child;
        process.tasks.get_mut(&child).unwrap().pidfd = None;
        let outcome = outcome(&mut process, child);
        assert_eq!((outcome.out.as_slice(), outcome.end.status), (&b"hi\n"[..], Status::Exit(4)));
    }

    #[test]
    fn usage_is_that_of_the_child() {
        let end = sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").outcome().end;
        assert!(end.usage.rss_kib_max > 0 && end.usage.user_ms + end.usage.sys_ms > 0);
        assert!(end.elapsed > Duration::ZERO);
    }

    #[test]
    fn output_that_is_not_wanted_does_not_wake() {
        let mut process = HostProcess::new().unwrap();
        let child = process.start(&sh("echo hi; exec sleep 1000").0).unwrap().child;
        assert!(process.wait(Some(Duration::from_secs(60))));
        assert_eq!(process.poll(0), []);
        assert!(!process.wait(Some(Duration::from_millis(1))));
        assert_eq!(line(&mut process), "hi");
        process.signal(child, Signal::Kill);
    }

    #[test]
    fn a_waker_ends_the_wait_from_another_thread() {
        let mut process = HostProcess::new().unwrap();
        let waker = process.waker();
        std::thread::spawn(move || waker.wake());
        assert!(process.wait(Some(Duration::from_secs(60))));
        assert!(!process.wait(Some(Duration::ZERO)));
    }

    #[test]
    fn a_watched_descriptor_ends_the_wait() {
        let mut process = HostProcess::new().unwrap();
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        process.watch_fd(&ours).unwrap();
        assert!(!process.wait(Some(Duration::ZERO)));
        drop(theirs);
        assert!(process.wait(Some(Duration::from_secs(60))));
    }

    #[test]
    fn a_descriptor_that_stays_ready_ends_one_wait_only() {
        let mut process = HostProcess::new().unwrap();
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (others, _kept) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        process.watch_once(&others).unwrap();
        process.watch_once(&ours).unwrap();
        assert!(!process.wait(Some(Duration::ZERO)));
        drop(theirs);
        let ends = (0..1000).filter(|_| process.wait(Some(Duration::ZERO))).count();
        assert_eq!(ends, 1);
        assert_eq!(process.watched_once.len(), 1, "the other one is watched still");
    }
}
