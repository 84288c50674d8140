//! The keeper: the process that `fq worker` is at first. It starts the worker proper, outlives it, and lets go of the worker's
//! lock only when the worker and every process of its jobs are gone. After a worker that lost its right to go on it starts a new
//! one, with pauses that grow.
//!
//! Invariants:
//! - The keeper never touches the file system, so a hung mount cannot hold it up.
//! - A lock handed over by [`Link::lock_fd`] is one open file description in two processes: it is free when both have let go.
//! - The keeper lets go after nothing is left below it that it can end. It is a subreaper, so nothing gets out from below it.
//! - If the keeper dies, the worker learns it by the end of the [`Link`], ends its jobs and then itself.
//! - A beat is never lost and never blocks: it adds to a counter in the kernel, however long the keeper does not run.
//! - A new worker begins only when nothing of the one before is left and its lock was let go.
//! - Only a worker that was fenced has a successor, and only if nobody had told it to end.
//!
//! The two are joined by a pair of local sockets and a counter; nothing else in the system can reach either.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::clock::{Chance, Clock, HostClock};
use crate::fs::{Call, FsError};
use crate::process::{self, Reaped, Sent, Signals, Status};

/// The variable that names the worker's end of the link.
const VARIABLE: &str = "FQ_KEEPER_FD";

/// The exit code of a worker that lost its right to go on, by its own judgement or because its beats stopped.
pub const EXIT_SELF_FENCED: i32 = 4;

/// The first and the longest pause before a new worker begins.
pub const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A worker that was there for so long has left the trouble of the one before behind: pauses begin anew.
const CALM: Duration = Duration::from_secs(600);
/// How often the keeper looks again where nothing tells it.
const PACE: Duration = Duration::from_millis(100);
/// The longest wait while beats are awaited: waits do not count the time of a suspended host, beats do.
const FENCE_PACE: Duration = Duration::from_secs(1);

/// From keeper to worker, with the counter of beats.
const HELLO: &[u8] = b"hello";
/// From worker to keeper, before the first beat, with milliseconds: the age of the newest beat at which the worker is ended.
const LIMIT: &[u8] = b"limit";
/// From worker to keeper, with the descriptor of a lock.
const LOCK: &[u8] = b"lock";
/// From worker to keeper: it cannot begin, for a reason that may pass.
const NOT_YET: &[u8] = b"not yet";
/// From worker to keeper: it was told to end, and is not to be replaced.
const LEAVING: &[u8] = b"leaving";
/// From worker to keeper: its end has begun.
const BYE: &[u8] = b"bye";

/// What a keeper is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperOptions {
    /// The worker's program, usually the path of this very executable, and its arguments. Never empty.
    pub worker_argv: Vec<OsString>,
    /// The first and the longest pause before a new worker begins, usually [`BACKOFF`].
    pub backoff: (Duration, Duration),
    /// From this boot time on no new worker begins.
    pub until: Option<Duration>,
}

/// A new worker is to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// Why.
    pub why: Why,
    /// After which pause.
    pub pause: Duration,
}

/// Why a new worker is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The one before gave no sign of life for so long, and was ended.
    Silent(Duration),
    /// The one before ended because it had no right to go on, and has said so.
    Fenced,
    /// The one before could not begin, for a reason that may pass, and has said which.
    NotYet,
}

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Silent(limit) => {
                write!(
                    f,
                    "the worker gave no sign of life for {} s and was ended with all of its tasks",
                    limit.as_secs()
                )?;
            }
            Why::Fenced => f.write_str("the worker lost its right to go on and was ended with all of its tasks")?,
            Why::NotYet => f.write_str("no worker can begin yet")?,
        }
        let what = if self.why == Why::NotYet {
            "the next try is"
        } else {
            "the queue gives them out again; a new worker begins"
        };
        write!(f, "; {what} in {} s", self.pause.as_secs_f32().ceil())
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The last worker ended with this exit code.
    Worker(i32),
    /// The keeper was told to end between two workers.
    Asked,
    /// Between two workers no new one was to begin any more.
    Late,
}

/// Starts a worker and watches over it until it and all of its processes are gone, then over its successor as long as there is
/// to be one.
///
/// A worker has a successor if it was fenced, unless it was told to end, or could not begin after one that was. `again` is told
/// of each before the pause, when nothing of the one before is left, and may prepare what the next one needs.
///
/// A worker ended by signal n gives 128+n, one whose beats stopped [`EXIT_SELF_FENCED`]. `SIGTERM`, `SIGINT`, `SIGHUP` and
/// `SIGUSR1` are passed on; between two workers each of them is the end. The worker is in a process group of its own, so that a
/// key pressed at the terminal reaches it once.
///
/// Processes that took on another user's rights cannot be ended and are not waited for. To be called in a process that has no
/// other children and a single thread. Fails only if a worker could not be started, or `again` fails.
pub fn run(
    options: &KeeperOptions,
    chance: &dyn Chance,
    again: &mut dyn FnMut(&Again) -> io::Result<()>,
) -> io::Result<Over> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = Signals::catch()?;
    let mut pause = options.backoff.0;
    let mut is_first = true;
    loop {
        let begun = HostClock.boot();
        let ended = match Keeper::start(&options.worker_argv) {
            Ok(keeper) => keeper.outlive(signals),
            Err(error) if !is_first && may_pass(&error) => Ended { may_pass: true, ..Ended::default() },
            Err(error) => return Err(error),
        };
        let why = match ended.judge(is_first) {
            Next::Over(over) => return Ok(over),
            Next::Again(why) => why,
        };
        if HostClock.boot().saturating_sub(begun) >= CALM {
            pause = options.backoff.0;
        }
        let news = Again { why, pause: chance.jitter(pause) };
        again(&news)?;
        if let Some(over) = rest(news.pause, options.until, signals) {
            return Ok(over);
        }
        pause = (pause * 2).min(options.backoff.1);
        is_first = false;
    }
}

/// Waits between two workers; says what ends that for good.
fn rest(pause: Duration, until: Option<Duration>, signals: Signals) -> Option<Over> {
    let end = HostClock.boot() + pause;
    loop {
        if !signals.take().is_empty() {
            return Some(Over::Asked);
        }
        let now = HostClock.boot();
        if until.is_some_and(|until| now >= until) {
            return Some(Over::Late);
        }
        if now >= end {
            return None;
        }
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        let pace = FENCE_PACE.min(end.min(until.unwrap_or(end)).saturating_sub(now));
        // Interrupted or not: everything is looked at afterwards.
        let _ = rustix::event::poll(&mut fds, Some(&timespec(pace)));
    }
}

/// Whether what kept a process from being started may pass by itself: the program may lie on the storage that is in trouble.
fn may_pass(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| FsError::new(Call::Open, Path::new(""), errno).may_pass())
}

/// How a worker ended, as its keeper has seen it.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    code: i32,
    /// It was ended because it gave no sign of life for so long.
    silent: Option<Duration>,
    /// It had begun: it gave at least one beat.
    has_begun: bool,
    /// It said that it could not begin for a reason that may pass.
    may_pass: bool,
    /// It was told to end.
    is_asked: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Over(Over),
    Again(Why),
}

impl Ended {
    fn judge(self, is_first: bool) -> Next {
        let had_trouble = !is_first && !self.has_begun;
        match self.silent {
            _ if self.is_asked && had_trouble => Next::Over(Over::Asked),
            _ if self.is_asked => Next::Over(Over::Worker(self.code)),
            Some(limit) => Next::Again(Why::Silent(limit)),
            None if self.code == EXIT_SELF_FENCED => Next::Again(Why::Fenced),
            None if had_trouble && self.may_pass => Next::Again(Why::NotYet),
            None => Next::Over(Over::Worker(self.code)),
        }
    }
}

/// The keeper's state.
#[expect(clippy::struct_excessive_bools, reason = "each is something that it has learnt")]
#[derive(Debug)]
struct Keeper {
    worker: u32,
    pidfd: Option<OwnedFd>,
    socket: OwnedFd,
    /// Whether the worker still has its end of the socket.
    is_linked: bool,
    beats: OwnedFd,
    /// Boot time of the newest durable beat in milliseconds; 0 before the first.
    beat_ms: u64,
    /// The age of the newest beat at which the worker is ended.
    limit: Duration,
    has_bye: bool,
    may_pass: bool,
    is_asked: bool,
    is_fenced: bool,
    locks: Vec<OwnedFd>,
}

impl Keeper {
    fn start(worker_argv: &[OsString]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let beats = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        send(&socket, HELLO, Some(beats.as_fd()))?;
        let worker = process::start_worker(worker_argv, VARIABLE, theirs)?;
        let pidfd = to_pid(worker).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self {
            worker,
            pidfd,
            socket,
            is_linked: true,
            beats,
            beat_ms: 0,
            limit: Duration::MAX,
            has_bye: false,
            may_pass: false,
            is_asked: false,
            is_fenced: false,
            locks: Vec::new(),
        })
    }

    /// Watches over the worker until nothing of it is left, and lets go of its lock.
    fn outlive(mut self, signals: Signals) -> Ended {
        let reaped = self.watch(signals);
        // It may have handed over its lock with its last breath.
        self.read_link();
        self.read_beats();
        end_all(None);
        self.is_asked |= !signals.take().is_empty();
        let code = match reaped.map(|reaped| reaped.status) {
            _ if self.is_fenced => EXIT_SELF_FENCED,
            Some(Status::Exit(code)) => code,
            Some(Status::Signal(number)) => 128 + number,
            None => 255,
        };
        Ended {
            code,
            silent: self.is_fenced.then_some(self.limit),
            has_begun: self.beat_ms > 0,
            may_pass: self.may_pass,
            is_asked: self.is_asked,
        }
    }

    /// Watches until the worker has ended, and ends it if it stops giving signs of life.
    fn watch(&mut self, signals: Signals) -> Option<Reaped> {
        loop {
            match process::reap(self.worker) {
                Ok(Some(reaped)) => return Some(reaped),
                Ok(None) => {}
                Err(_) => return None,
            }
            for signal in signals.take() {
                self.is_asked = true;
                if let (Some(pid), Some(signal)) = (to_pid(self.worker), Signal::from_named_raw(signal.number())) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
            self.read_link();
            self.read_beats();
            self.is_fenced |= is_overdue(self.beat_ms, self.has_bye, HostClock.boot(), self.limit);
            if self.is_fenced {
                // Also the jobs at once: a worker that hangs in the file system may not die for long.
                end_all(Some(self.worker));
                continue;
            }
            self.wait(signals);
        }
    }

    fn wait(&self, signals: Signals) {
        let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
        if self.is_linked {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        fds.extend(self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let pace = if self.pidfd.is_none() { PACE } else { FENCE_PACE };
        // Interrupted or not: everything is looked at afterwards.
        let _ = rustix::event::poll(&mut fds, Some(&timespec(pace)));
    }

    fn read_link(&mut self) {
        while self.is_linked {
            match receive(&self.socket) {
                Ok(Some((text, fd))) => self.hear(&text, fd),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => self.is_linked = false,
            }
        }
    }

    fn hear(&mut self, text: &[u8], fd: Option<OwnedFd>) {
        match text {
            LOCK => self.locks.extend(fd),
            NOT_YET => self.may_pass = true,
            LEAVING => self.is_asked = true,
            BYE => self.has_bye = true,
            _ => {
                let ms = text.strip_prefix(LIMIT).and_then(|ms| ms.try_into().ok()).map(u64::from_ne_bytes);
                self.limit = ms.map_or(self.limit, Duration::from_millis);
            }
        }
    }

    fn read_beats(&mut self) {
        self.beat_ms += count_of(&self.beats);
    }
}

/// Whether the worker must be ended: it has given beats, does not end in order, and the newest is too old.
pub(crate) fn is_overdue(beat_ms: u64, has_bye: bool, now: Duration, self_fence: Duration) -> bool {
    beat_ms > 0 && !has_bye && now.saturating_sub(Duration::from_millis(beat_ms)) > self_fence
}

/// Ends everything below this process, again and again, until nothing is left that can be ended. With `worker`, that child's
/// status is left to the caller, and this is over when the worker has ended too.
fn end_all(worker: Option<u32>) {
    let me = std::process::id();
    let mut denied = BTreeSet::new();
    loop {
        let mut dying = Vec::new();
        let mut is_left = false;
        for stat in process::descendants(&[me]) {
            match process::end(&stat) {
                Sent::Yes(pidfd) => {
                    dying.extend(pidfd);
                    is_left = true;
                }
                // New ones may have come while we looked.
                Sent::Gone => is_left = true,
                Sent::Denied => {
                    denied.insert(stat.pid);
                }
            }
        }
        for pid in process::children(me).into_iter().filter(|&pid| Some(pid) != worker) {
            // Each reaped parent may have left us its children.
            is_left |= matches!(process::reap(pid), Ok(Some(_))) || !(denied.contains(&pid));
        }
        if !is_left {
            return;
        }
        let mut fds: Vec<PollFd<'_>> = dying.iter().take(1).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let pace = if fds.is_empty() { Duration::from_millis(1) } else { PACE };
        let _ = rustix::event::poll(&mut fds, Some(&timespec(pace)));
    }
}

/// The worker's end of what joins it to its keeper.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    beats: OwnedFd,
    /// The sum of what was added to the counter.
    beat_ms: AtomicU64,
}

impl Link {
    /// Takes the link that the keeper left in the environment, and removes it from there; `None` in a process that was not
    /// started by a keeper. To be called once, first of all, before there are threads or other descriptors.
    pub fn from_env() -> Option<Self> {
        let text = process::take_variable(VARIABLE)?;
        let socket = process::adopt_fd(text.to_str()?.parse().ok()?)?;
        let is_ours = rustix::net::sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && rustix::net::sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        if !is_ours {
            return None;
        }
        match receive(&socket) {
            Ok(Some((text, Some(beats)))) if text == HELLO => Some(Self { socket, beats, beat_ms: AtomicU64::new(0) }),
            _ => None,
        }
    }

    /// Asks the keeper to end the worker and its jobs as soon as the newest beat is older than `self_fence` on the boot clock. To
    /// be said before the first beat; before that nothing is ended. Fails if the keeper is gone.
    pub fn limit(&self, self_fence: Duration) -> io::Result<()> {
        let ms = u64::try_from(self_fence.as_millis()).unwrap_or(u64::MAX);
        send(&self.socket, &[LIMIT, &ms.to_ne_bytes()].concat(), None).map_err(io::Error::from)
    }

    /// Says that a beat written at boot time `boot` is durable. Never blocks; an older time than before changes nothing.
    pub fn beat(&self, boot: Duration) {
        let now = u64::try_from(boot.as_millis()).unwrap_or(u64::MAX);
        let before = self.beat_ms.fetch_max(now, Ordering::SeqCst);
        if now > before {
            // The counter holds more milliseconds than there will be.
            let _ = rustix::io::write(&self.beats, &(now - before).to_ne_bytes());
        }
    }

    /// Says that the worker cannot begin, for a reason that may pass: where one was fenced before, another try is worth it.
    pub fn not_yet(&self) {
        let _ = send(&self.socket, NOT_YET, None);
    }

    /// Says that the worker was told to end: whatever becomes of it, it is not to be replaced.
    pub fn leaving(&self) {
        let _ = send(&self.socket, LEAVING, None);
    }

    /// Says that the worker ends by itself, so that missing beats no longer mean anything.
    pub fn bye(&self) {
        // If the keeper is gone there is nobody to tell.
        let _ = send(&self.socket, BYE, None);
    }

    /// Shares the lock that `lock` holds with the keeper. When this returns the lock outlives this process until the keeper has
    /// ended everything below it. Fails if the keeper is gone.
    pub fn lock_fd(&self, lock: impl AsFd) -> io::Result<()> {
        send(&self.socket, LOCK, Some(lock.as_fd())).map_err(io::Error::from)
    }

    /// Whether the keeper has died: then the jobs must be ended, and this process.
    pub fn keeper_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO)));
        fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// A descriptor that becomes readable when the keeper dies.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends one message, with a descriptor if there is one.
fn send(socket: &OwnedFd, text: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds
        && !control.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(Errno::NOBUFS);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What a message says, and the descriptor that came with it.
type Message = (Vec<u8>, Option<OwnedFd>);

/// Receives one message without waiting; `None` when the other side is gone.
fn receive(socket: &OwnedFd) -> Result<Option<Message>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 16];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags)?.bytes;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.next().and_then(|mut fds| fds.next());
    Ok((count > 0).then(|| (text[..count].to_vec(), fd)))
}

/// Takes what a counter has counted.
fn count_of(counter: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(counter, &mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: span.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    //! Keeper and worker are this test program, started again to play a role. A role ends by `exit`, so that the test framework
    //! around it says nothing.

    use std::fs::File;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use fs2::FileExt;

    use super::*;
    use crate::clock::HostChance;
    use crate::process::{Caught, HostProcess, Launch, Process, Stdin};

    #[test]
    fn beats_decide_only_after_the_first_and_before_the_end() {
        let (now, limit) = (Duration::from_secs(1000), Duration::from_secs(120));
        assert!(!is_overdue(0, false, now, limit));
        assert!(!is_overdue(880_000, false, now, limit));
        assert!(is_overdue(879_999, false, now, limit));
        assert!(!is_overdue(879_999, true, now, limit));
    }

    /// Not a test of its own: what the program does when a test below starts it again.
    #[test]
    #[ignore = "started by the other tests"]
    fn role() {
        let Some(dir) = std::env::var_os("FQ_TEST_ROLE_DIR").map(PathBuf::from) else { return };
        let code = match Link::from_env() {
            None => keeper(&dir),
            Some(link) => worker(&link, &dir),
        };
        std::process::exit(code);
    }

    /// Says when a new worker is to begin, and ends with the code of the last one, or 100 where there was none.
    fn keeper(dir: &Path) -> i32 {
        let pause = if behaviour(dir) == "be fenced for long" { 1_000_000 } else { 1 };
        let backoff = (Duration::from_millis(pause), Duration::from_millis(pause * 4));
        let options = KeeperOptions { worker_argv: role_argv(), backoff, until: None };
        let over = run(&options, &HostChance, &mut |again| writeln!(io::stdout(), "again: {:?}", again.why));
        match over.unwrap() {
            Over::Worker(code) => code,
            Over::Asked | Over::Late => 100,
        }
    }

    fn behaviour(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("behaviour")).unwrap()
    }

    /// Counts the workers that began, this one included.
    fn number(dir: &Path) -> usize {
        let mut file = File::options().append(true).create(true).open(dir.join("begun")).unwrap();
        file.write_all(b"x").unwrap();
        std::fs::read(dir.join("begun")).unwrap().len()
    }

    fn role_argv() -> Vec<OsString> {
        let program = std::env::current_exe().unwrap().into_os_string();
        let words = ["--exact", "keeper::tests::role", "--ignored", "--nocapture"];
        std::iter::once(program).chain(words.map(OsString::from)).collect()
    }

    /// Takes the lock, starts a job with a daemon, says so, and does what `behaviour` says. The second worker cannot begin, the
    /// third one takes the lock and ends.
    fn worker(link: &Link, dir: &Path) -> i32 {
        let signals = Signals::catch().unwrap();
        let number = number(dir);
        if number == 2 {
            link.not_yet();
            return 75;
        }
        link.limit(Duration::from_secs(60)).unwrap();
        let lock = File::options().read(true).write(true).open(dir.join("lock")).unwrap();
        FileExt::try_lock_exclusive(&lock).unwrap();
        link.lock_fd(&lock).unwrap();
        if number == 3 {
            link.beat(HostClock.boot());
            return 7;
        }
        let mut process = HostProcess::new().unwrap();
        let argv = ["/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"].map(|word| word.as_bytes().to_vec());
        let launch = Launch {
            argv: argv.to_vec(),
            env: vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())],
            cwd: PathBuf::from("/"),
            stdin: Stdin::Null,
            mem_max: None,
            token: "keeper".into(),
        };
        let started = process.start(&launch).unwrap();
        process.watch_fd(link.fd()).unwrap();
        process.watch_fd(signals).unwrap();
        while process::descendants(&[started.group.pid]).is_empty() {
            process.wait(Some(Duration::from_millis(1)));
        }
        let daemon = process::descendants(&[started.group.pid])[0].pid;
        let line = format!("ready {} {} {daemon}\n", std::process::id(), started.group.pid);
        io::stdout().write_all(line.as_bytes()).unwrap();
        match behaviour(dir).as_str() {
            "exit" => std::process::exit(7),
            "hang" => link.beat(Duration::from_millis(1)),
            "leave and hang" => {
                link.leaving();
                link.beat(Duration::from_millis(1));
            }
            "be fenced" | "be fenced for long" => {
                link.beat(HostClock.boot());
                std::process::exit(EXIT_SELF_FENCED);
            }
            "beat" => link.beat(HostClock.boot()),
            _ => {}
        }
        loop {
            process.wait(Some(Duration::from_secs(60)));
            if signals.take().contains(&Caught::Usr1) {
                link.bye();
                std::process::exit(9);
            }
            if link.keeper_gone() {
                std::fs::write(dir.join("keeper-gone"), "").unwrap();
                drop(process);
                std::process::exit(10);
            }
        }
    }

    /// A keeper whose worker has taken its lock and has a job with a daemon.
    struct Scene {
        dir: tempfile::TempDir,
        keeper: Child,
        output: BufReader<ChildStdout>,
        worker: u32,
        job: [u32; 2],
    }

    impl Scene {
        fn new(behaviour: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            File::create(dir.path().join("lock")).unwrap();
            std::fs::write(dir.path().join("behaviour"), behaviour).unwrap();
            let argv = role_argv();
            let mut command = Command::new(&argv[0]);
            command.args(&argv[1..]).env("FQ_TEST_ROLE_DIR", dir.path()).stdout(Stdio::piped());
            let mut keeper = command.spawn().unwrap();
            let mut output = BufReader::new(keeper.stdout.take().unwrap());
            let mut line = String::new();
            let pids = loop {
                line.clear();
                assert!(output.read_line(&mut line).unwrap() > 0, "the worker did not come up");
                // The test framework may have begun the line.
                if let Some((_, pids)) = line.split_once("ready ") {
                    break pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>();
                }
            };
            Self { dir, keeper, output, worker: pids[0], job: [pids[1], pids[2]] }
        }

        fn lock_is_free(&self) -> bool {
            let lock = File::options().read(true).write(true).open(self.dir.path().join("lock")).unwrap();
            FileExt::try_lock_exclusive(&lock).is_ok()
        }

        fn send(pid: u32, signal: Signal) {
            rustix::process::kill_process(to_pid(pid).unwrap(), signal).unwrap();
        }

        /// Waits for the keeper's end, and for that of all others who hold its output.
        fn end(&mut self) -> Option<i32> {
            self.end_with_news().0
        }

        /// The same; also returns why new workers were to begin.
        fn end_with_news(&mut self) -> (Option<i32>, Vec<String>) {
            let code = self.keeper.wait().unwrap().code();
            let mut text = String::new();
            self.output.read_to_string(&mut text).unwrap();
            (code, text.lines().filter_map(|line| line.strip_prefix("again: ")).map(str::to_owned).collect())
        }

        fn is_over(&self) -> bool {
            let mut pids = self.job.into_iter().chain([self.worker]);
            self.lock_is_free() && pids.all(|pid| !process::is_alive(pid))
        }
    }

    #[test]
    fn a_killed_worker_leaves_no_process_and_no_lock() {
        let mut scene = Scene::new("wait");
        assert!(!scene.lock_is_free());
        Scene::send(scene.worker, Signal::KILL);
        assert_eq!(scene.end(), Some(137));
        assert!(scene.is_over());
    }

    #[test]
    fn the_exit_code_of_the_worker_is_passed_on_after_its_daemons_are_ended() {
        let mut scene = Scene::new("exit");
        assert_eq!(scene.end(), Some(7));
        assert!(scene.is_over());
    }

    #[test]
    fn signals_are_passed_on() {
        let mut scene = Scene::new("beat");
        Scene::send(scene.keeper.id(), Signal::USR1);
        assert_eq!(scene.end(), Some(9));
        assert!(scene.is_over());
    }

    #[test]
    fn a_worker_whose_beats_stopped_is_ended_with_its_jobs() {
        let mut scene = Scene::new("leave and hang");
        assert_eq!(scene.end_with_news(), (Some(EXIT_SELF_FENCED), Vec::new()));
        assert!(scene.is_over());
    }

    /// The third worker would not get the lock if anything of the first were left.
    #[test]
    fn a_fenced_worker_has_a_successor_when_everything_of_it_is_gone() {
        for (behaviour, why) in [("hang", "Silent(60s)"), ("be fenced", "Fenced")] {
            let mut scene = Scene::new(behaviour);
            assert_eq!(scene.end_with_news(), (Some(7), vec![why.to_owned(), "NotYet".to_owned()]));
            assert!(scene.is_over());
        }
    }

    #[test]
    fn between_two_workers_a_signal_is_the_end() {
        let mut scene = Scene::new("be fenced for long");
        let mut line = String::new();
        while !line.contains("again") {
            line.clear();
            assert!(scene.output.read_line(&mut line).unwrap() > 0, "nothing was to begin again");
        }
        Scene::send(scene.keeper.id(), Signal::USR1);
        assert_eq!(scene.end(), Some(100));
        assert!(scene.is_over());
    }

    #[test]
    fn between_two_workers_the_time_for_new_ones_may_run_out() {
        let now = HostClock.boot();
        let signals = Signals::catch().unwrap();
        assert_eq!(rest(Duration::from_secs(1000), Some(now), signals), Some(Over::Late));
        assert_eq!(rest(Duration::ZERO, Some(now + Duration::from_secs(1000)), signals), None);
    }

    #[test]
    fn only_a_fenced_worker_that_nobody_told_to_end_has_a_successor() {
        let begun = Ended { has_begun: true, ..Ended::default() };
        let over = |code| Next::Over(Over::Worker(code));
        for is_first in [true, false] {
            assert_eq!(begun.judge(is_first), over(0));
            assert_eq!(Ended { code: 137, ..begun }.judge(is_first), over(137), "killed");
            assert_eq!(Ended { code: 75, may_pass: true, ..begun }.judge(is_first), over(75), "it had begun");
            assert_eq!(Ended { code: 4, ..begun }.judge(is_first), Next::Again(Why::Fenced));
            assert_eq!(Ended { code: 4, is_asked: true, ..begun }.judge(is_first), over(4));
            let limit = Duration::from_secs(120);
            let silent = Ended { code: 4, silent: Some(limit), ..begun };
            assert_eq!(silent.judge(is_first), Next::Again(Why::Silent(limit)));
            assert_eq!(Ended { is_asked: true, ..silent }.judge(is_first), over(4));
        }
        let not_yet = Ended { code: 75, may_pass: true, ..Ended::default() };
        assert_eq!(not_yet.judge(true), over(75), "the first one tells its caller");
        assert_eq!(not_yet.judge(false), Next::Again(Why::NotYet));
        assert_eq!(Ended { is_asked: true, ..not_yet }.judge(false), Next::Over(Over::Asked));
        assert_eq!(Ended { may_pass: false, ..not_yet }.judge(false), over(75));
    }

    /// The job is the worker's to end; whatever escapes it then, nobody else on this host may be hurt.
    #[test]
    fn a_worker_learns_that_its_keeper_was_killed() {
        let mut scene = Scene::new("wait");
        Scene::send(scene.keeper.id(), Signal::KILL);
        assert_eq!(scene.end(), None);
        assert!(scene.dir.path().join("keeper-gone").exists());
        assert!(scene.lock_is_free());
    }

    #[test]
    fn without_a_keeper_there_is_no_link() {
        assert!(Link::from_env().is_none());
    }
}
