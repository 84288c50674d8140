//! A worker in a process of its own, with its keeper outside and, unless told otherwise, a master on a thread beside it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{Chance, Clock, HostChance, HostClock};
use crate::decision::Reader;
use crate::fs::outside::HostOutside;
use crate::fs::{Fs, FsError, Watch, read_up_to};
use crate::keeper::Link;
use crate::master::{Halt, Hint};
use crate::process::{Caught, Host, HostProcess, Signals, ThisHost, WorkerCgroup, groups_of};
use crate::protocol::frame;
use crate::protocol::id::{Nonce, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{Limits, Request, Requeue, Trust, from_document};
use crate::queue::{Queue, QueueError};
use crate::schedule;
use crate::state::State;
use crate::store::Store;
use crate::worker::{Exit, Hand, Options, Worker, World};

use super::MasterThread;

/// What `fq worker` is told.
#[derive(Debug, Clone)]
pub struct WorkerSetup {
    /// CPUs for tasks.
    pub cpus: u32,
    /// Memory for tasks in bytes; 0 if it does not say.
    pub mem: u64,
    /// Whose tasks it runs besides those of its own user.
    pub trusted: Vec<u32>,
    /// And the members of this group.
    pub trusted_group: Option<u32>,
    /// Stands for no election.
    pub no_master: bool,
    /// Ends after one task.
    pub once: bool,
    /// Ends when no task of the queue can make progress any more.
    pub until_empty: bool,
    /// Ends after so long without work.
    pub idle_timeout: Option<Duration>,
    /// Hands its work back after this span.
    pub lifetime: Option<Duration>,
    /// The environment that tasks get, before fq's own variables.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where scratch directories are made.
    pub scratch: PathBuf,
    /// The `fq` program.
    pub bin: PathBuf,
}

/// A worker that could not start or go on.
#[derive(Debug)]
pub enum WorkerFailure {
    /// The queue's files refuse what a worker needs to begin; nobody will use what there is of it.
    Files(FsError),
    /// The limits cannot be read.
    Limits(QueueError),
    /// The master beside it can neither lead nor follow any further.
    Queue(Halt),
    /// The host refuses what a worker needs.
    Host(String),
}

impl std::fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Files(error) => error.fmt(f),
            Self::Limits(error) => error.fmt(f),
            Self::Queue(halt) => halt.fmt(f),
            Self::Host(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for WorkerFailure {}

/// Runs a worker incarnation on the calling thread until it is over. `link` leads to its keeper; `say` gets what a person may
/// want to read.
///
/// # Errors
/// When the worker could not begin, or the host refuses what it needs.
pub fn run_worker(
    queue: &Arc<Queue>,
    setup: &WorkerSetup,
    link: Option<&Link>,
    keeper: Option<crate::process::Identity>,
    say: impl Fn(&str) + Clone + Send + 'static,
) -> Result<Exit, WorkerFailure> {
    let broken = |what: &str, e: std::io::Error| WorkerFailure::Host(format!("{what}: {e}"));
    let host = ThisHost::new().map_err(|e| broken("cannot tell who this process is", e))?;
    let me = host.me();
    let wid = WorkerId::new(&me.host, Nonce(HostChance.bits()));
    let limits = queue.limits().map_err(WorkerFailure::Limits)?;
    let signals = Signals::catch().map_err(|e| broken("cannot catch signals", e))?;
    let mut process = HostProcess::new()
        .map_err(|e| broken("cannot watch processes", e))?
        .sole()
        .with_cgroup(WorkerCgroup::create(wid.as_str()));
    process.watch_fd(signals).map_err(|e| broken("cannot watch for signals", e))?;
    if let Some(link) = link {
        // It becomes ready when the keeper is gone, and stays so.
        process.watch_once(link.fd()).map_err(|e| broken("cannot watch the keeper", e))?;
        link.limit(Limits::span(limits.self_fence_ms)).map_err(|e| broken("cannot reach the keeper", e))?;
    }
    let kind = queue.fs.mount().kind.clone();
    let options = Options {
        wid: wid.clone(),
        queue: queue.file.id,
        limits: limits.clone(),
        cpus: setup.cpus.max(1),
        mem: setup.mem,
        trust: Trust { uid: me.uid, gid: setup.trusted_group.or(queue.file.gid), uids: setup.trusted.clone() },
        keeper,
        mark_sync: !kind.is_local(),
        env: setup.env.clone(),
        dir: queue.root().to_owned(),
        bin: setup.bin.clone(),
        once: setup.once,
        until_empty: setup.until_empty,
        idle_timeout: setup.idle_timeout,
        lifetime: setup.lifetime,
    };
    let scratch = Scratch::make(&setup.scratch, &wid).map_err(|e| broken("cannot make a scratch directory", e))?;
    let members = Members::default();
    let mut store = Store::new(queue.fs.as_ref(), &HostChance, &limits, wid.clone());
    let mut outside = HostOutside::new(scratch.dir.clone());
    let mut progress = Progress::new(say.clone());
    let mut can_progress = || progress.ask(queue.fs.as_ref(), Some(&wid));
    let is_member = |uid, gid| members.has(uid, gid);
    let mut proved = |at| {
        if let Some(link) = link {
            link.beat(at);
        }
    };
    macro_rules! world {
        () => {
            World {
                fs: queue.fs.as_ref(),
                clock: &HostClock,
                chance: &HostChance,
                process: &mut process,
                host: &host,
                store: &mut store,
                outside: &mut outside,
                is_member: &is_member,
                can_progress: &mut can_progress,
                proved: &mut proved,
            }
        };
    }
    let mut worker = Worker::start(&mut world!(), options).map_err(|e| WorkerFailure::Files(e.0))?;
    if let (Some(link), Some(fd)) = (link, worker.lock().and_then(crate::fs::LockGuard::raw_fd)) {
        share_lock(link, fd).map_err(|e| broken("cannot share the lock with the keeper", e))?;
    }
    say(&format!("worker {wid} runs tasks on {} CPUs", setup.cpus.max(1)));
    let master = if setup.no_master {
        None
    } else {
        let master_host = ThisHost::new().map_err(|e| broken("cannot tell who this process is", e))?;
        Some(
            MasterThread::start(queue.clone(), wid.clone(), master_host, say.clone())
                .map_err(|e| broken("cannot start a thread", e))?,
        )
    };
    let hinted = Arc::new(AtomicBool::new(false));
    let _watch = kind.is_local().then(|| {
        let (flag, waker) = (hinted.clone(), process.waker());
        Watch::new(&[queue.fs.full_path(&layout::mailbox(&wid))], move |_| {
            flag.store(true, Ordering::Release);
            waker.wake();
        })
    });
    let (mut is_paused, mut is_leaving) = (false, false);
    let exit = loop {
        let step = worker.step(&mut world!());
        if worker.paused().is_some() != is_paused {
            is_paused = !is_paused;
            match worker.paused() {
                Some(why) => say(&format!("pauses until the queue takes what it writes: {why}")),
                None => say("goes on"),
            }
        }
        if let Some(exit) = step.over {
            break exit;
        }
        if worker.is_draining() && !is_leaving {
            is_leaving = true;
            link.into_iter().for_each(Link::leaving);
        }
        if link.is_some_and(Link::keeper_gone) {
            worker.lose_keeper(&mut world!());
        }
        let wait = step.next.saturating_sub(HostClock.boot());
        process.wait(Some(wait.min(Duration::from_secs(5))));
        if hinted.swap(false, Ordering::AcqRel) {
            worker.hint();
        }
        for signal in signals.take() {
            match signal {
                Caught::Usr1 => {
                    say("finishes what runs and ends (SIGUSR1)");
                    worker.drain(Hand::Finish, Requeue::Drained, "it was asked to finish (SIGUSR1)");
                }
                other => {
                    say("hands its work back and ends");
                    worker.drain(Hand::Back, Requeue::Drained, &format!("it was asked to end ({other:?})"));
                }
            }
        }
        if let Some(why) = master.as_ref().and_then(MasterThread::halted) {
            worker.drain(Hand::Back, Requeue::Drained, &format!("the queue cannot be led any further: {why}"));
        }
    };
    if let Some(link) = link {
        link.bye();
    }
    if let Some(master) = master {
        // What this worker said last is worth a decision before its own master gives up leading.
        master.hint(Hint::Journal(wid.clone()));
        let halted = master.halted();
        master.stop(Duration::from_secs(5));
        if let Some(why) = halted {
            return Err(WorkerFailure::Queue(why));
        }
    }
    Ok(exit)
}

#[expect(unsafe_code, reason = "a lock guard hands its descriptor out as a number, for the simulator has none")]
fn share_lock(link: &Link, fd: i32) -> std::io::Result<()> {
    // SAFETY: the guard, which lives as long as the worker, keeps the descriptor open.
    link.lock_fd(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A directory for scratch files that goes with the worker.
struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    fn make(parent: &Path, wid: &WorkerId) -> std::io::Result<Self> {
        let dir = HostOutside::make_scratch(parent, wid.as_str())?;
        Ok(Self { dir })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        HostOutside::remove_scratch(&self.dir);
    }
}

/// Group memberships, asked once per user.
#[derive(Default)]
struct Members(RefCell<BTreeMap<u32, Vec<u32>>>);

impl Members {
    fn has(&self, uid: u32, gid: u32) -> bool {
        let mut known = self.0.borrow_mut();
        known.entry(uid).or_insert_with(|| groups_of(uid).unwrap_or_default()).contains(&gid)
    }
}

/// Answers whether any task of the queue can still make progress, for `--until-empty`.
pub(super) struct Progress {
    reader: Option<Reader>,
    said: bool,
    say: Box<dyn Fn(&str)>,
}

impl Progress {
    pub(super) fn new(say: impl Fn(&str) + 'static) -> Self {
        Self { reader: None, said: false, say: Box::new(say) }
    }

    /// Whether there is progress, or will be once `me` is admitted; whoever runs nothing itself waits for the first worker. `None`
    /// if the queue cannot be read at the moment.
    pub(super) fn ask(&mut self, fs: &dyn Fs, me: Option<&WorkerId>) -> Option<bool> {
        let reader = match &mut self.reader {
            Some(reader) => {
                reader.refresh(fs).ok()?;
                reader
            }
            none => none.insert(Reader::open(fs).ok()?),
        };
        let state = reader.state();
        let one_comes = match me {
            Some(me) => !state.workers.contains_key(me),
            None => state.live_workers().next().is_none(),
        };
        let goes_on = state.can_progress(&|job| one_comes || has_worker(state, job))
            || has_unknown_jobs(fs, state)
            || has_open_requests(fs, state);
        if !goes_on && !self.said {
            self.said = true;
            for (id, job) in state.queue().filter(|(_, job)| !has_worker(state, job)) {
                let needs = &job.spec.needs;
                (self.say)(&format!(
                    "job {id} is left: no worker can run it ({} CPUs, user {})",
                    needs.cpus, job.spec.uid
                ));
            }
        }
        Some(goes_on)
    }
}

fn has_worker(state: &State, job: &crate::state::Job) -> bool {
    state.live_workers().any(|(_, worker)| schedule::unfit(job, worker).is_none())
}

/// Whether a request is there that no master has answered: it may make something run again.
fn has_open_requests(fs: &dyn Fs, state: &State) -> bool {
    let Ok(entries) = fs.list(layout::CONTROL.as_ref()) else { return true };
    let open = entries.iter().filter_map(|e| layout::parse_request(&e.name)).filter(|id| !state.answered.contains(id));
    // One that is torn or malformed is never answered.
    open.map(|id| (id, read_up_to(fs, &layout::request(id), 4 << 20)))
        .any(|(id, bytes)| bytes.is_ok_and(|bytes| from_document::<Request>(&bytes).is_ok_and(|r| r.id == id)))
}

/// Whether a whole manifest is there that no master has taken in.
fn has_unknown_jobs(fs: &dyn Fs, state: &State) -> bool {
    let Ok(buckets) = fs.list(layout::JOBS.as_ref()) else { return true };
    let mut names: Vec<String> = buckets.into_iter().map(|e| e.name).filter(|n| !n.starts_with('.')).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.iter().rev().take(2).any(|bucket| {
        let Ok(entries) = fs.list(&Path::new(layout::JOBS).join(bucket)) else { return true };
        entries.iter().filter_map(|e| layout::parse_job(&e.name)).filter(|id| !state.knows(*id)).any(|id| {
            // One that is torn may never be finished, and a person sees it in `fq status`.
            read_up_to(fs, &layout::job(id), 16 << 20).is_ok_and(|bytes| frame::open_document(&bytes).is_some())
        })
    })
}

/// The environment of this process as tasks are to get it: without what belongs to the keeper.
pub fn own_environment() -> Vec<(Vec<u8>, Vec<u8>)> {
    std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
}
