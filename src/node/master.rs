//! A master on a thread of its own.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::{Clock, HostChance, HostClock};
use crate::fs::{Fs, Watch};
use crate::master::{Chore, Env, Halt, Hint, Master, Options, Report};
use crate::process::{HostProcess, Signals, ThisHost};
use crate::protocol::id::WorkerId;
use crate::protocol::layout;
use crate::queue::Queue;
use crate::view;

use super::Janitor;
use super::worker::Progress;

/// What a master's thread is told.
enum Told {
    Hint(Hint),
    Report(Report),
    /// Give up leading in order and end.
    Stop,
}

/// A running master.
#[derive(Debug)]
pub struct MasterThread {
    sender: Sender<Told>,
    thread: Option<JoinHandle<()>>,
    halt: Arc<Mutex<Option<Halt>>>,
}

impl MasterThread {
    /// Starts a master as `me` on `queue`. `say` gets what a person may want to read.
    pub fn start(
        queue: Arc<Queue>,
        me: WorkerId,
        host: ThisHost,
        say: impl Fn(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let halt = Arc::new(Mutex::new(None));
        let (hints, halted) = (sender.clone(), halt.clone());
        let thread = std::thread::Builder::new().name("master".into()).spawn(move || {
            let lead = AssertUnwindSafe(|| run(&queue, me, &host, &receiver, hints, &say));
            // Without this the process would live on, and nobody would lead.
            let over = std::panic::catch_unwind(lead)
                .unwrap_or_else(|_| Some(Halt::Internal("the thread of the master panicked".into())));
            if let (Some(why), Ok(mut slot)) = (over, halted.lock()) {
                *slot = Some(why);
            }
        })?;
        Ok(Self { sender, thread: Some(thread), halt })
    }

    /// Why the master stopped for good, if it did; a panic is one of the reasons.
    pub fn halted(&self) -> Option<Halt> {
        self.halt.lock().ok().and_then(|slot| slot.clone())
    }

    /// Tells the master to look at once.
    pub fn hint(&self, hint: Hint) {
        let _ = self.sender.send(Told::Hint(hint));
    }

    /// Lets the master give up leading in order, and waits for that at most `patience`.
    pub fn stop(mut self, patience: Duration) {
        let _ = self.sender.send(Told::Stop);
        let Some(thread) = self.thread.take() else { return };
        let (done, wait) = mpsc::channel();
        let _ = std::thread::Builder::new().name("master-end".into()).spawn(move || {
            let _ = thread.join();
            let _ = done.send(());
        });
        let _ = wait.recv_timeout(patience);
    }
}

/// Runs a master until a signal asks it to end or, with `until_empty`, no task of the queue can make progress any more;
/// `fq master` is little more.
///
/// # Errors
/// Why the queue cannot be led or followed any further.
pub fn run_master(
    queue: &Arc<Queue>,
    me: WorkerId,
    host: &ThisHost,
    until_empty: bool,
    say: impl Fn(&str) + Clone + Send + 'static,
) -> Result<(), MasterFailure> {
    let broken = |e: std::io::Error| MasterFailure::Host(e.to_string());
    let signals = Signals::catch().map_err(broken)?;
    let mut waits = HostProcess::new().map_err(broken)?;
    waits.watch_fd(signals).map_err(broken)?;
    let thread = MasterThread::start(queue.clone(), me, host.clone(), say.clone()).map_err(broken)?;
    let mut progress = Progress::new(say);
    let mut ask_at = HostClock.boot() + Duration::from_secs(1);
    loop {
        waits.wait(Some(Duration::from_millis(500)));
        let is_told = !signals.take().is_empty();
        if let Some(halt) = thread.halted() {
            return Err(MasterFailure::Queue(halt));
        }
        let now = HostClock.boot();
        let is_empty = until_empty && now >= ask_at && {
            ask_at = now + Duration::from_secs(1);
            progress.ask(queue.fs.as_ref(), None) == Some(false)
        };
        if is_told || is_empty {
            thread.stop(Duration::from_secs(10));
            return Ok(());
        }
    }
}

/// Why `fq master` ends.
#[derive(Debug)]
pub enum MasterFailure {
    /// The queue cannot be led.
    Queue(Halt),
    /// The host refuses what a master needs.
    Host(String),
}

impl std::fmt::Display for MasterFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queue(halt) => halt.fmt(f),
            Self::Host(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for MasterFailure {}

fn run(
    queue: &Arc<Queue>,
    me: WorkerId,
    host: &ThisHost,
    told: &Receiver<Told>,
    hints: Sender<Told>,
    say: &dyn Fn(&str),
) -> Option<Halt> {
    let mut turn = Turn::new(queue, me, hints);
    loop {
        let next = match turn.step(queue, host, say) {
            Ok(next) => next,
            Err(why) => return Some(why),
        };
        let wait = next.saturating_sub(HostClock.boot());
        let mut first = match told.recv_timeout(wait) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => Some(Told::Stop),
        };
        while let Some(message) = first {
            match message {
                Told::Hint(hint) => turn.master.hint(&hint),
                Told::Report(report) => turn.master.report(report),
                Told::Stop => {
                    let _ = turn.step(queue, host, say);
                    turn.end(queue, host);
                    return None;
                }
            }
            first = told.try_recv().ok();
        }
    }
}

/// A master with its janitor and, while it leads on a local file system, its watches.
struct Turn {
    master: Master,
    janitor: Option<Janitor>,
    hints: Sender<Told>,
    watch: Option<Watch>,
    watched: std::collections::BTreeSet<WorkerId>,
    view: Arc<Mutex<view::Writer>>,
}

impl Turn {
    fn new(queue: &Arc<Queue>, me: WorkerId, hints: Sender<Told>) -> Self {
        let options = Options { me, nudges: !queue.fs.mount().kind.is_local() };
        let master = Master::new(queue.file.clone(), options, HostClock.boot());
        let janitor = Janitor::start(queue.fs.clone()).ok();
        let watched = std::collections::BTreeSet::new();
        Self { master, janitor, hints, watch: None, watched, view: Arc::default() }
    }

    fn step(&mut self, queue: &Queue, host: &ThisHost, say: &dyn Fn(&str)) -> Result<Duration, Halt> {
        let env = env(queue, host);
        let step = self.master.step(env);
        for note in &step.notes {
            say(note);
        }
        if let Some(why) = step.halt {
            return Err(why);
        }
        if let Some(janitor) = &self.janitor {
            janitor.remove(step.removals);
            for chore in step.chores {
                self.hand_over(janitor, chore);
            }
        }
        self.keep_watch(queue);
        Ok(step.next)
    }

    fn end(mut self, queue: &Queue, host: &ThisHost) {
        let has_led = self.master.leads();
        for _ in 0..10 {
            if self.master.abdicate(env(queue, host)) {
                break;
            }
        }
        if let Some(janitor) = self.janitor.take() {
            if has_led {
                // Perhaps nobody leads for a long time: people see how it ended.
                self.hand_over(&janitor, Chore::Render);
            }
            janitor.finish(Duration::from_secs(2));
        }
    }

    fn hand_over(&self, janitor: &Janitor, chore: Chore) {
        let Some(state) = self.master.state().cloned() else { return };
        if chore == Chore::Render {
            let view = self.view.clone();
            janitor.perform(move |fs| {
                if let Ok(mut view) = view.lock() {
                    view.write(fs, &HostChance, &state, HostClock.wall_ms());
                }
            });
            return;
        }
        let reports = self.hints.clone();
        janitor.perform(move |fs| {
            if let Some(report) = chore.perform(fs, &state) {
                let _ = reports.send(Told::Report(report));
            }
        });
    }

    /// Watches what a leader looks at, for as long as it leads.
    fn keep_watch(&mut self, queue: &Queue) {
        if !queue.fs.mount().kind.is_local() {
            return;
        }
        if !self.master.leads() {
            self.watch = None;
            self.watched.clear();
            return;
        }
        if self.watch.is_none() {
            let dirs = [layout::JOBS, layout::CONTROL, layout::WORKERS];
            let newest = newest_bucket(queue.fs.as_ref());
            let paths: Vec<PathBuf> =
                dirs.iter().map(PathBuf::from).chain(newest).map(|dir| queue.fs.full_path(&dir)).collect();
            let hints = self.hints.clone();
            self.watch = Watch::new(&paths, move |paths| {
                for hint in what_changed(paths) {
                    let _ = hints.send(Told::Hint(hint));
                }
            });
        }
        let Some(state) = self.master.state() else { return };
        let new: Vec<WorkerId> =
            state.live_workers().map(|(w, _)| w).filter(|w| !self.watched.contains(*w)).cloned().collect();
        if let Some(watch) = &mut self.watch {
            for w in new {
                watch.add(&queue.fs.full_path(&layout::journal(&w)));
                let _ = self.hints.send(Told::Hint(Hint::Journal(w.clone())));
                self.watched.insert(w);
            }
        }
    }
}

fn env<'a>(queue: &'a Queue, host: &'a ThisHost) -> Env<'a> {
    Env { fs: queue.fs.as_ref(), clock: &HostClock, chance: &HostChance, host }
}

fn newest_bucket(fs: &dyn Fs) -> Option<PathBuf> {
    let names = fs.list(layout::JOBS.as_ref()).ok()?;
    let newest = names.into_iter().map(|e| e.name).max_by_key(|name| (name.len(), name.clone()))?;
    Some(Path::new(layout::JOBS).join(newest))
}

/// The hints that changed paths stand for. Paths that say nothing wake everything.
fn what_changed(paths: &[PathBuf]) -> Vec<Hint> {
    let mut hints = Vec::new();
    for path in paths {
        let text = path.to_string_lossy();
        let parent = path.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let hint = match parent.as_deref().map(str::parse::<WorkerId>) {
            Some(Ok(w)) => Some(Hint::Journal(w)),
            _ if text.contains("/.t-") || text.contains("/.nudge-") => None,
            _ if parent.as_deref() == Some(layout::CONTROL) => Some(Hint::Control),
            _ if parent.as_deref() == Some(layout::WORKERS) => Some(Hint::Workers),
            _ => Some(Hint::Jobs),
        };
        hints.extend(hint);
    }
    if paths.is_empty() {
        hints.extend([Hint::Jobs, Hint::Control, Hint::Workers]);
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Chance;
    use crate::protocol::id::Nonce;
    use crate::queue::{self, InitOptions};

    /// In real life: a library that panics where the kernel refuses a watch. The process went on as if somebody led.
    #[test]
    fn a_master_that_panics_is_known_to_have_stopped() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("q");
        queue::init(&root, &InitOptions::default()).expect("a queue");
        let queue = Arc::new(Queue::open(&root).expect("a queue"));
        let host = ThisHost::new().expect("a host");
        let me = WorkerId::new("a", Nonce(HostChance.bits()));
        let master = MasterThread::start(queue, me, host, |_| panic!("it begins to lead")).expect("a thread");
        let look = |_| {
            let halt = master.halted();
            if halt.is_none() {
                std::thread::sleep(Duration::from_millis(10));
            }
            halt
        };
        let halt = (0..12_000).find_map(look).expect("it is known within minutes");
        assert!(matches!(halt, Halt::Internal(_)), "{halt}");
    }

    #[test]
    fn changed_paths_become_hints() {
        let hint = |path: &str| what_changed(&[PathBuf::from(path)]);
        let w: WorkerId = "a~0000000000000001".parse().expect("a worker id");
        assert_eq!(hint("/q/store/log/a~0000000000000001/000001.jsonl"), [Hint::Journal(w)]);
        assert_eq!(hint("/q/jobs/000/7.json"), [Hint::Jobs]);
        assert_eq!(hint("/q/control/0000000000000001.json"), [Hint::Control]);
        assert_eq!(hint("/q/workers/a~0000000000000001"), [Hint::Workers]);
        assert_eq!(hint("/q/control/.t-1"), []);
        assert_eq!(what_changed(&[]).len(), 3);
    }
}
