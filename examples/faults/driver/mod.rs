//! One run of twenty tasks in which one call of one process fails or kills it: what is started, hit, started again and compared.

pub(crate) mod fault;
mod scene;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fq::clock::HostChance;
use fq::decision::Reader;
use fq::keeper::{self, KeeperOptions, Over};
use fq::queue::Queue;
use rustix::process::{Pid, Signal};

use fault::{Effect, Fault, Met, Order, Role, counts};

/// How long anything may take that is bound to happen, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(240);
/// From one look at the processes to the next.
const TICK: Duration = Duration::from_millis(20);
/// From one look at the queue to the next.
const LOOK: Duration = Duration::from_millis(200);

/// The code of a process that was killed, or of a keeper whose worker was.
pub(crate) const KILLED: i32 = 137;

/// The code of a process that `strace` has ended, with SIGALRM, before it was executed: its watching half did not come in time.
const UNWATCHED: i32 = 142;
/// How often that may happen in a row.
const TRIES: u32 = 10;

/// Names the worker's program and arguments to a process that is to play the keeper, separated by [`SEPARATOR`].
const KEEPER_VARIABLE: &str = "FAULTS_KEEPER";
const SEPARATOR: u8 = 0x1f;

/// The programs.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// `fq`.
    pub(crate) fq: PathBuf,
    /// What calls [`play_keeper`] first of all.
    pub(crate) keeper: Vec<OsString>,
}

/// Executes a program whose first words are left out at all times but the first: a worker that succeeds the one that was hit is not.
const FIRST_ONLY: &str = r#"n=$1; shift; if [ -e "$0" ]; then shift "$n"; else : > "$0"; fi; exec "$@""#;

/// What a run came to that ended as it must.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Whether the fault happened.
    pub(crate) met: Met,
    /// With which codes processes ended before all was done, so that they were started again; a signal n counts as 128+n.
    pub(crate) ends: Vec<i32>,
    /// How often each call was made, in a run that was only recorded.
    pub(crate) counts: BTreeMap<String, u64>,
}

/// Plays the keeper of a worker if that is what this process was started for, and returns its exit code.
///
/// It is the keeper of `fq worker`, except that the worker's program is told: so that `strace` can stand before it.
pub(crate) fn play_keeper() -> Option<i32> {
    let words = std::env::var_os(KEEPER_VARIABLE)?.into_vec();
    let worker_argv = words.split(|&b| b == SEPARATOR).map(|word| OsString::from_vec(word.to_vec())).collect();
    let options = KeeperOptions { worker_argv, backoff: keeper::BACKOFF, until: None };
    let over = keeper::run(&options, &HostChance, &mut |_| Ok(()));
    Some(match over {
        Ok(Over::Worker(code)) => code,
        Ok(Over::Asked | Over::Late) => 0,
        Err(_) => 255,
    })
}

/// Whether faults can be injected here.
pub(crate) fn has_strace() -> bool {
    let asked =
        Command::new("strace").args(["-qq", "-D", "-f", "-e", "inject=close:retval=0:when=1000", "true"]).output();
    asked.is_ok_and(|output| output.status.success())
}

/// Whether processes can be hidden from each other here.
fn has_unshare() -> bool {
    let asked = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "--kill-child", "true"]).output();
    asked.is_ok_and(|output| output.status.success())
}

/// Runs the tasks in `dir`, which is made, with one fault. Fails with what does not hold in the end, and leaves `dir` as it is then.
pub(crate) fn hit(tools: &Tools, fault: &Fault, dir: &Path) -> Result<Outcome, String> {
    run(tools, fault.role, &Order::Hit(fault), dir)
}

/// Runs the tasks without any fault and counts the calls of `role`.
pub(crate) fn record(tools: &Tools, role: Role, calls: &[&str], dir: &Path) -> Result<Outcome, String> {
    run(tools, role, &Order::Record(calls), dir)
}

/// Runs it, again if `strace` did not come to watch in the time that it gives itself on a busy machine.
fn run(tools: &Tools, role: Role, order: &Order<'_>, dir: &Path) -> Result<Outcome, String> {
    for _ in 0..TRIES {
        let outcome = run_once(tools, role, order, dir)?;
        if !outcome.ends.contains(&UNWATCHED) {
            return Ok(outcome);
        }
    }
    Err("strace never comes to watch".into())
}

fn run_once(tools: &Tools, role: Role, order: &Order<'_>, dir: &Path) -> Result<Outcome, String> {
    let mut play = Play::new(tools, role, order, dir)?;
    let result = play.act().and_then(|()| scene::judge(&play.dir)).and_then(|()| play.look_for_panics());
    play.end_all();
    let trace = fs::read_to_string(play.trace()).unwrap_or_default();
    let met = match order {
        Order::Hit(fault) if fault.effect == Effect::Kill && play.ends.contains(&KILLED) => Met::Call,
        Order::Hit(fault) if fault.effect != Effect::Kill => Met::of(fault, &trace),
        _ => Met::Nothing,
    };
    if met != Met::Kernel {
        let ends = &play.ends;
        result.map_err(|why| format!("{why}\nended before: {ends:?}"))?;
    }
    let counts = if matches!(order, Order::Record(_)) { counts(&trace) } else { BTreeMap::new() };
    let outcome = Outcome { met, ends: play.ends.clone(), counts };
    drop(play);
    // What cannot be removed does no harm to the next point.
    let _ = fs::remove_dir_all(dir);
    Ok(outcome)
}

/// A process of the play, and whether it is of the role that is hit.
#[derive(Debug)]
struct Actor {
    is_hit: bool,
    child: Option<Child>,
}

struct Play<'a> {
    tools: &'a Tools,
    role: Role,
    order: &'a Order<'a>,
    dir: PathBuf,
    actors: [Actor; 2],
    /// The process beside a janitor.
    strace: Option<Child>,
    starts: u32,
    ends: Vec<i32>,
    /// Whether the worker is still to be killed in the middle, so that somebody looks at its lock.
    hurts_worker: bool,
    /// Whether the worker beside a master is in a process namespace of its own, so that its lock and its silence are all there is.
    is_apart: bool,
}

impl<'a> Play<'a> {
    fn new(tools: &'a Tools, role: Role, order: &'a Order<'a>, dir: &Path) -> Result<Self, String> {
        for name in ["", "tmp"] {
            fs::create_dir_all(dir.join(name)).map_err(|e| format!("cannot make `{}`: {e}", dir.display()))?;
        }
        // Processes are known by the whole path of their queue.
        let dir = fs::canonicalize(dir).map_err(|e| format!("`{}`: {e}", dir.display()))?;
        let actor = |is_hit| Actor { is_hit, child: None };
        let tries_locks = matches!(order, Order::Hit(fault) if fault.call == "flock" && fault.effect != Effect::Kill);
        let play = Self {
            tools,
            role,
            order,
            dir,
            actors: [actor(false), actor(true)],
            strace: None,
            starts: 0,
            ends: Vec::new(),
            hurts_worker: tries_locks,
            is_apart: tries_locks && role == Role::Master && has_unshare(),
        };
        play.fq(["init"])?;
        fs::write(play.queue().join("limits.json"), fq::queue::limits_text(&scene::limits()))
            .map_err(|e| e.to_string())?;
        Ok(play)
    }

    fn queue(&self) -> PathBuf {
        self.dir.join("q")
    }

    fn trace(&self) -> PathBuf {
        self.dir.join("trace")
    }

    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command.env("FQ_DIR", self.queue()).env("TMPDIR", self.dir.join("tmp")).current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end and returns what it printed.
    fn fq<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Vec<u8>, String> {
        let output = self.command(self.tools.fq.as_os_str()).args(args).output();
        let output = output.map_err(|e| format!("cannot start fq: {e}"))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("fq: {}", String::from_utf8_lossy(&output.stderr)))
    }

    fn submit(&self) -> Result<(), String> {
        for (kind, count) in scene::JOBS {
            self.fq(kind.submission(count))?;
        }
        Ok(())
    }

    /// Works the queue until all tasks and all processes have ended.
    fn act(&mut self) -> Result<(), String> {
        if self.role == Role::Janitor {
            // It is met before it has anything to do.
            self.start(1, true)?;
            self.submit()?;
        } else {
            self.submit()?;
            self.start(1, true)?;
        }
        if self.role != Role::Leader {
            self.start(0, false)?;
        }
        let queue = Queue::open(&self.queue()).map_err(|e| e.to_string())?;
        let mut reader = Reader::open(queue.fs.as_ref()).map_err(|e| format!("the chain: {e}"))?;
        let (begun, mut look_at) = (Instant::now(), Instant::now());
        let mut is_over = false;
        while self.actors.iter().any(|actor| actor.child.is_some()) || !is_over {
            if !is_over && Instant::now() >= look_at {
                look_at = Instant::now() + LOOK;
                reader.refresh(queue.fs.as_ref()).map_err(|e| format!("the chain: {e}"))?;
                let state = reader.state();
                is_over = state.jobs.len() == scene::JOBS.len() && state.counts().all_ended();
            }
            let left_early = self.attend(is_over)?;
            if left_early && !is_over {
                // It may have seen the end before we did.
                reader.refresh(queue.fs.as_ref()).map_err(|e| format!("the chain: {e}"))?;
                is_over = reader.state().counts().all_ended();
                if !is_over {
                    return Err("a process left although there was work".into());
                }
            }
            if begun.elapsed() > PATIENCE {
                let status = self.fq(["status"])?;
                return Err(format!("it does not come to an end:\n{}", String::from_utf8_lossy(&status)));
            }
            std::thread::sleep(TICK);
        }
        while !self.processes().is_empty() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("processes are left: {:?}", self.processes()));
            }
            if let Some(strace) = &mut self.strace {
                let _ = strace.try_wait();
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Takes note of ends and starts again whoever has died; true if somebody left in order.
    fn attend(&mut self, is_over: bool) -> Result<bool, String> {
        if self.hurts_worker && self.executions() >= 4 {
            self.hurts_worker = false;
            self.kill_worker();
        }
        let mut left = false;
        for at in 0..self.actors.len() {
            let Some(child) = &mut self.actors[at].child else { continue };
            let Some(status) = child.try_wait().map_err(|e| e.to_string())? else { continue };
            self.actors[at].child = None;
            let code = code_of(status);
            if code == 0 {
                left = true;
                continue;
            }
            self.ends.push(code);
            let is_due = self.actors[at].is_hit || matches!(self.order, Order::Hit(fault) if fault.call == "flock");
            if !is_due {
                return Err(format!("the process beside it ended with {code}"));
            }
            if !is_over {
                self.start(at, false)?;
            }
        }
        Ok(left)
    }

    /// How many attempts have begun.
    fn executions(&self) -> usize {
        fs::read_to_string(self.dir.join("runs")).map_or(0, |runs| runs.lines().count())
    }

    /// Kills the worker and its keeper at once, so that neither can clean up after the other.
    fn kill_worker(&mut self) {
        let at = usize::from(self.role.is_of_worker());
        let Some(keeper) = self.actors[at].child.as_ref().map(Child::id) else { return };
        let mut pids = vec![keeper];
        let mut at = 0;
        while let Some(&pid) = pids.get(at) {
            // The tasks are left alone, as is what injects faults.
            pids.extend(children(pid).into_iter().filter(|&pid| self.is_fq(pid)));
            at += 1;
        }
        for signal in [Signal::STOP, Signal::KILL] {
            for &pid in &pids {
                send(pid, signal);
            }
        }
    }

    fn is_fq(&self, pid: u32) -> bool {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.tools.fq)
    }

    fn start(&mut self, at: usize, is_traced: bool) -> Result<(), String> {
        self.starts += 1;
        let log = self.dir.join(format!("log.{}", self.starts));
        let file = File::create(log).map_err(|e| e.to_string())?;
        let is_worker = self.actors[at].is_hit == self.role.is_of_worker();
        let args: &[&str] = match self.role {
            Role::Leader => &["worker", "-c", "2", "--until-empty"],
            _ if is_worker => &["worker", "-c", "2", "--until-empty", "--no-master"],
            _ => &["master", "--until-empty"],
        };
        let mut words: Vec<OsString> = vec![self.tools.fq.clone().into()];
        words.extend(args.iter().map(Into::into));
        if is_worker && !is_traced && self.is_apart {
            // Its processes are as unknown to the master as those of another host.
            let mut apart: Vec<OsString> =
                ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"].map(OsString::from).into();
            apart.append(&mut words);
            words = apart;
        }
        if is_traced && self.role != Role::Janitor {
            let mut traced: Vec<OsString> = ["strace", "-D", "-f", "-b", "execve"].map(OsString::from).into();
            traced.extend(self.order.arguments(&self.trace()));
            if self.role.has_keeper() {
                let count = traced.len().to_string();
                let once = ["sh", "-c", FIRST_ONLY].map(OsString::from);
                traced.splice(0..0, once.into_iter().chain([self.dir.join("hit").into(), count.into()]));
            }
            traced.append(&mut words);
            words = traced;
        }
        let is_below_keeper = is_traced && self.role.has_keeper();
        let mut command = if is_below_keeper {
            let mut command = self.command(&self.tools.keeper[0]);
            let joined = words.join(OsStr::from_bytes(&[SEPARATOR]));
            command.args(&self.tools.keeper[1..]).env(KEEPER_VARIABLE, joined);
            command
        } else {
            let mut command = self.command(&words[0]);
            command.args(&words[1..]);
            command
        };
        command.stdout(file.try_clone().map_err(|e| e.to_string())?).stderr(file);
        let child = command.spawn().map_err(|e| format!("cannot start {words:?}: {e}"))?;
        let pid = child.id();
        self.actors[at].child = Some(child);
        if is_traced && self.role == Role::Janitor {
            self.meet_janitor(pid)?;
        }
        Ok(())
    }

    /// Lets `strace` watch the janitor's thread of process `pid`.
    fn meet_janitor(&mut self, pid: u32) -> Result<(), String> {
        let begun = Instant::now();
        let thread = loop {
            if let Some(thread) = thread_named(pid, "janitor") {
                break thread;
            }
            if begun.elapsed() > PATIENCE {
                return Err("there is no janitor".into());
            }
            std::thread::sleep(TICK);
        };
        let mut command = self.command(OsStr::new("strace"));
        command.args(["-p", &thread.to_string()]).args(self.order.arguments(&self.trace()));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.strace = Some(command.spawn().map_err(|e| format!("cannot start strace: {e}"))?);
        let status = format!("/proc/{pid}/task/{thread}/status");
        let is_met = || {
            let text = fs::read_to_string(&status).unwrap_or_default();
            text.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
        };
        while !is_met() {
            if begun.elapsed() > PATIENCE {
                return Err("strace cannot watch the janitor".into());
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// All processes that were started for this queue.
    fn processes(&self) -> Vec<u32> {
        let mut mark = b"FQ_DIR=".to_vec();
        mark.extend(self.queue().as_os_str().as_bytes());
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            environment.split(|&b| b == 0).any(|variable| variable == mark) && !stat.contains(") Z ")
        })
        .collect()
    }

    fn look_for_panics(&self) -> Result<(), String> {
        for n in 1..=self.starts {
            let text = fs::read_to_string(self.dir.join(format!("log.{n}"))).unwrap_or_default();
            if text.contains("panicked") {
                return Err(format!("a process panicked:\n{text}"));
            }
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for pid in self.processes() {
            send(pid, Signal::KILL);
        }
        for child in self.actors.iter_mut().filter_map(|actor| actor.child.as_mut()).chain(&mut self.strace) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn code_of(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|n| 128 + n)).unwrap_or(255)
}

fn thread_named(pid: u32, name: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.into_iter().find(|thread: &u32| {
        fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    })
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that is gone needs no signal.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
