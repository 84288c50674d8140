//! Processes of fq that live beside a test, are stopped and killed by it, and never outlive it.
//!
//! A test waits for what it wants to see with [`until`] and never for time to pass. What has to be so before something else is done
//! is waited for too: that a task *is running* says only that its worker has started it, not how far it has come.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::Room;

/// No condition that a test waits for takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);
/// From one look at a condition to the next.
const PACE: Duration = Duration::from_millis(30);
/// So long a process that is told to end may take before it is killed.
const FAREWELL: Duration = Duration::from_secs(10);

/// Limits under which everything is looked at often, but no worker is given up or gives up while a test runs.
pub(crate) const QUICK: &str = r#"{"poll_ms":100,"idle_poll_ms":200,"grace_ms":500,"backoff_ms":[50,200],"visible_ms":500,
    "beat_ms":1000,"self_fence_ms":300000,"suspect_ms":300000,"lease_ms":310000,"takeover_ms":2000}"#;

/// Limits under which silence is found out within seconds. A machine that keeps a process from its beats for six seconds would make
/// it give up.
pub(crate) const SHORT_LEASE: &str = r#"{"poll_ms":100,"idle_poll_ms":200,"grace_ms":300,"backoff_ms":[50,200],"beat_ms":300,
    "self_fence_ms":6000,"suspect_ms":2000,"lease_ms":7000,"takeover_ms":3000}"#;

/// What a look can come to: a condition that holds or not, or something that is there or not.
pub(crate) trait Look {
    /// What is known once it has come true.
    type Seen;

    /// That, if it has.
    fn seen(self) -> Option<Self::Seen>;
}

impl Look for bool {
    type Seen = ();

    fn seen(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Seen = T;

    fn seen(self) -> Self {
        self
    }
}

/// Looks again and again until it comes true.
#[track_caller]
pub(crate) fn until<L: Look>(what: &str, look: impl FnMut() -> L) -> L::Seen {
    until_or(what, look, String::new)
}

/// As [`until`]; `report` says more if it never comes true.
#[track_caller]
fn until_or<L: Look>(what: &str, mut look: impl FnMut() -> L, report: impl FnOnce() -> String) -> L::Seen {
    let start = Instant::now();
    loop {
        if let Some(seen) = look().seen() {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", report());
        std::thread::sleep(PACE);
    }
}

/// A room whose processes all end with it.
pub(crate) struct Stage {
    room: Room,
    count: std::cell::Cell<u32>,
}

impl std::ops::Deref for Stage {
    type Target = Room;

    fn deref(&self) -> &Room {
        &self.room
    }
}

impl Stage {
    /// A new queue with these limits.
    pub(crate) fn new(limits: &str) -> Self {
        let stage = Self::around(Room::with_queue());
        stage.set_limits(limits);
        stage
    }

    /// A room that is there already.
    pub(crate) fn around(room: Room) -> Self {
        Self { room, count: std::cell::Cell::new(0) }
    }

    /// Writes the limits of the queue.
    pub(crate) fn set_limits(&self, limits: &str) {
        std::fs::write(self.queue().join("limits.json"), limits).expect("limits can be written");
    }

    /// Starts a command; what it says goes to a file in the room.
    pub(crate) fn live(&self, mut command: Command) -> Live {
        self.count.set(self.count.get() + 1);
        let log = self.path(format!("log.{}", self.count.get()));
        let file = std::fs::File::create(&log).expect("a log can be made");
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file).stdin(Stdio::null());
        Live { child: command.spawn().expect("a process can be started"), log, worker: None }
    }

    /// Starts `fq ARGS`.
    pub(crate) fn start(&self, args: &[&str]) -> Live {
        self.live(self.fq(args).command())
    }

    /// Starts `fq worker ARGS` and waits until it runs, or has run: with little to do it may be gone by then.
    pub(crate) fn worker(&self, args: &[&str]) -> Live {
        let mut live = self.start(&[&["worker"], args].concat());
        self.until("a worker has begun", || live.said().contains("runs tasks on") || live.ended().is_some());
        live.worker = children(live.keeper()).into_iter().find(|&pid| is_fq(pid));
        live
    }

    /// Looks again and again until it comes true. Fails with all that there is to know if that does not happen.
    #[track_caller]
    pub(crate) fn until<L: Look>(&self, what: &str, look: impl FnMut() -> L) -> L::Seen {
        until_or(what, look, || self.report())
    }

    /// Waits until so many tasks are in this state.
    #[track_caller]
    pub(crate) fn until_count(&self, state: &str, n: u64) {
        self.until(&format!("{n} tasks {state}"), || self.count(state) == n);
    }

    /// How many tasks are in this state.
    pub(crate) fn count(&self, state: &str) -> u64 {
        self.fq(["status", "--json"]).succeeds().json()["tasks"][state].as_u64().expect("a number")
    }

    /// Waits for the end of `live` and returns its exit code; -1 if a signal ended it.
    #[track_caller]
    pub(crate) fn end_of(&self, live: &mut Live) -> i32 {
        self.until("a process ends", || live.ended())
    }

    /// Waits for the end of `live` and asserts its exit code.
    #[track_caller]
    pub(crate) fn exits(&self, live: &mut Live, code: i32) {
        let found = self.end_of(live);
        assert_eq!(found, code, "it said:\n{}", live.said());
    }

    /// `fq show ID --json`.
    pub(crate) fn show(&self, id: &str) -> Value {
        self.fq(["show", id, "--json"]).run().json()
    }

    /// Its attempts, as `outcome` words.
    pub(crate) fn outcomes(&self, id: &str) -> Vec<String> {
        let shown = self.show(id);
        let attempts = shown["attempts"].as_array().cloned().unwrap_or_default();
        attempts.iter().map(|a| a["outcome"].as_str().unwrap_or("?").to_owned()).collect()
    }

    /// What a task wrote.
    pub(crate) fn logs(&self, id: &str) -> Vec<u8> {
        self.fq(["logs", id]).succeeds().stdout
    }

    /// The complete lines of a file in the room; none if it is not there.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| Some(line.strip_suffix('\n')?.to_owned())).collect()
    }

    /// All processes that were started for this queue: its own, and those of its tasks.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut mark = b"FQ_DIR=".to_vec();
        mark.extend(std::os::unix::ffi::OsStrExt::as_bytes(self.queue().as_os_str()));
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&b| b == 0).any(|variable| variable == mark) && is_alive(*pid)
        })
        .collect()
    }

    /// Asserts that nothing of this queue runs any more, and that nothing in it is broken.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        self.until("no process is left", || self.processes().is_empty());
        let queue = fq::queue::Queue::open(&self.queue()).expect("the queue opens");
        let report = fq::check::check(queue.fs.as_ref(), true, &mut |_| {});
        assert!(report.is_sound(), "{:#?}\n{}", report.problems, self.report());
    }

    fn report(&self) -> String {
        let mut text = String::new();
        for args in [&["status"][..], &["list"], &["workers", "--all"]] {
            let said = self.fq(args).run();
            let _ = write!(text, "$ fq {}\n{}{}", args.join(" "), said.stdout_text(), said.stderr);
        }
        for n in 1..=self.count.get() {
            let log = std::fs::read(self.path(format!("log.{n}"))).unwrap_or_default();
            let _ = write!(text, "log.{n}:\n{}", String::from_utf8_lossy(&log));
        }
        text
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for pid in self.processes() {
            send(pid, Signal::KILL);
        }
    }
}

/// A process that a test has started. Dropping it ends it.
pub(crate) struct Live {
    child: Child,
    log: PathBuf,
    worker: Option<u32>,
}

impl Live {
    /// The process itself, which of a worker is the keeper.
    pub(crate) fn keeper(&self) -> u32 {
        self.child.id()
    }

    /// The worker proper.
    pub(crate) fn worker(&self) -> u32 {
        self.worker.expect("it was started as a worker that stays")
    }

    /// What it has said.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit code if it has ended; -1 if a signal ended it.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("a child can be waited for").map(|status| status.code().unwrap_or(-1))
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.keeper(), signal);
    }

    /// Kills keeper and worker at once, so that neither can clean up after the other.
    pub(crate) fn kill_both(&mut self) {
        // A stopped one does nothing when the other ends.
        send(self.worker(), Signal::STOP);
        send(self.keeper(), Signal::KILL);
        send(self.worker(), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let start = Instant::now();
        if !std::thread::panicking() {
            self.signal(Signal::TERM);
            while start.elapsed() < FAREWELL && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(PACE);
            }
        }
        // A zombie would look like a process that still ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal; a process that is gone is no error.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether a process runs, is stopped or sleeps, and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_fq(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == std::path::Path::new(super::FQ))
}
