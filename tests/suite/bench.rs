//! Master, worker and client in one process, step by step, on files in a temporary directory: for counting what they do, and for
//! faults that no real disk shows on demand.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fq::client::submit;
use fq::clock::{Chance, Clock, HostChance};
use fq::decision::Reader;
use fq::fs::outside::HostOutside;
use fq::fs::{Counting, Faulty, Fs, HostFs, HostOptions};
use fq::master::{Env, Halt, Hint, Master};
use fq::process::{Host, HostProcess, Liveness, ThisHost};
use fq::protocol::id::{JobId, Nonce, WorkerId};
use fq::protocol::record::{Bytes, Command, Limits, Manifest, Needs, QueueFile, Trust};
use fq::protocol::version::CURRENT;
use fq::queue::{self, InitOptions};
use fq::state::State;
use fq::store::Store;
use fq::worker::{Exit, Options, Worker, World};

use crate::support::Room;

/// Files whose calls are counted and may be made to fail.
pub(crate) type Files = Counting<Faulty<HostFs>>;

/// Time that moves only when it is told to.
pub(crate) struct Hand(AtomicU64);

impl Clock for Hand {
    fn boot(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.load(Ordering::SeqCst) / 1000
    }
}

impl Hand {
    /// Moves on to `at`, never back.
    pub(crate) fn reach(&self, at: Duration) {
        self.0.fetch_max(u64::try_from(at.as_micros()).expect("not so late"), Ordering::SeqCst);
    }
}

/// The same, shared by all parts of a bench.
pub(crate) struct Bench {
    room: Room,
    /// What masters see.
    pub(crate) master_fs: Files,
    /// What workers see.
    pub(crate) worker_fs: Files,
    /// What clients see.
    pub(crate) client_fs: Files,
    /// The time of all.
    pub(crate) clock: Hand,
    /// What `FQ` says.
    pub(crate) file: QueueFile,
    /// The limits in force.
    pub(crate) limits: Limits,
    host: ThisHost,
}

/// A host of which nobody can say more than that it is another one.
pub(crate) struct Elsewhere(fq::process::Identity);

impl Host for Elsewhere {
    fn me(&self) -> fq::process::Identity {
        self.0.clone()
    }

    fn liveness(&self, _who: &fq::process::Identity) -> Liveness {
        Liveness::Unknown
    }

    fn end_leftovers(&self, _groups: &[fq::process::Group]) -> usize {
        0
    }
}

impl Bench {
    /// A new queue with `limits`.
    pub(crate) fn new(limits: Limits) -> Self {
        let room = Room::new();
        let options = InitOptions { limits: Some(limits.clone()), ..InitOptions::default() };
        let file = queue::init(&room.queue(), &options).expect("a queue can be made").file;
        let open = || {
            let host = HostFs::open(&room.queue(), HostOptions::default()).expect("the queue can be opened");
            Counting::new(Faulty::new(host))
        };
        let (master_fs, worker_fs, client_fs) = (open(), open(), open());
        let host = ThisHost::new().expect("this host is known");
        Self { room, master_fs, worker_fs, client_fs, clock: Hand(AtomicU64::new(1_000_000_000)), file, limits, host }
    }

    /// The queue's directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.room.queue()
    }

    /// This host.
    pub(crate) fn here(&self) -> &dyn Host {
        &self.host
    }

    /// Another host for a master.
    pub(crate) fn elsewhere(&self) -> Elsewhere {
        let mut me = self.host.me();
        me.host = "elsewhere".into();
        me.boot_id = "another".into();
        Elsewhere(me)
    }

    /// Submits `sh -c text`.
    pub(crate) fn submit(&self, text: &str) -> JobId {
        let mut manifest = Manifest {
            fq: "job".into(),
            version: CURRENT,
            job: JobId(0),
            sub: Nonce(HostChance.bits()),
            name: "one".into(),
            command: Command::Shell(Bytes(text.into())),
            cwd: Bytes("/".into()),
            env: Vec::new(),
            array: None,
            entries: None,
            stdin: None,
            stdout: None,
            stderr: None,
            needs: Needs::default(),
            user: "u".into(),
            host: "h".into(),
            at_ms: 0,
        };
        submit::bind(&self.client_fs, 0o600, &mut manifest).expect("it can be submitted")
    }

    /// The state that the decisions tell.
    pub(crate) fn state(&self) -> State {
        let plain = HostFs::open(&self.dir(), HostOptions::default()).expect("the queue can be opened");
        Reader::open(&plain).expect("the decisions can be read").state().clone()
    }
}

/// A master of a bench.
pub(crate) struct Boss<'a> {
    bench: &'a Bench,
    fs: &'a Files,
    master: Master,
    host: &'a dyn Host,
    view: fq::view::Writer,
    /// When its next step is due.
    pub(crate) due: Duration,
    /// What it said.
    pub(crate) notes: Vec<String>,
    /// Why it stopped.
    pub(crate) halt: Option<Halt>,
}

impl<'a> Boss<'a> {
    /// One as `me` on this host.
    pub(crate) fn new(bench: &'a Bench, me: WorkerId) -> Self {
        Self::with(bench, &bench.master_fs, me, &bench.host)
    }

    /// One on another host.
    pub(crate) fn on(bench: &'a Bench, me: WorkerId, host: &'a dyn Host) -> Self {
        Self::with(bench, &bench.master_fs, me, host)
    }

    /// One in the process of a worker, whose calls count as those of the worker.
    pub(crate) fn beside(bench: &'a Bench, me: WorkerId) -> Self {
        Self::with(bench, &bench.worker_fs, me, &bench.host)
    }

    fn with(bench: &'a Bench, fs: &'a Files, me: WorkerId, host: &'a dyn Host) -> Self {
        let options = fq::master::Options { me, nudges: false };
        let master = Master::new(bench.file.clone(), options, bench.clock.boot());
        let (view, due) = (fq::view::Writer::default(), bench.clock.boot());
        Self { bench, fs, master, host, view, due, notes: Vec::new(), halt: None }
    }

    /// One step and the removals that follow it; the view is rendered if `with_view`.
    pub(crate) fn step(&mut self, with_view: bool) {
        let bench = self.bench;
        let env = Env { fs: self.fs, clock: &bench.clock, chance: &HostChance, host: self.host };
        let step = self.master.step(env);
        for file in step.removals {
            let _ = self.fs.unlink(&file);
        }
        if with_view && step.chores.contains(&fq::master::Chore::Render) {
            self.render();
        }
        self.notes.extend(step.notes);
        self.halt = self.halt.take().or(step.halt);
        self.due = step.next;
    }

    /// Renders the view of what it knows.
    pub(crate) fn render(&mut self) {
        if let Some(state) = self.master.state() {
            self.view.write(self.fs, &HostChance, state, self.bench.clock.wall_ms());
        }
    }

    /// Lets it know where something has changed.
    pub(crate) fn hint(&mut self, hint: &Hint) {
        self.master.hint(hint);
        self.due = Duration::ZERO;
    }

    /// Whether it leads.
    pub(crate) fn leads(&self) -> bool {
        self.master.leads()
    }
}

/// A worker of a bench, with real children.
pub(crate) struct Hireling<'a> {
    bench: &'a Bench,
    worker: Worker,
    process: HostProcess,
    store: Store<'a>,
    outside: HostOutside,
    _scratch: tempfile::TempDir,
    /// Its id.
    pub(crate) wid: WorkerId,
    /// When its next step is due.
    pub(crate) due: Duration,
    /// How it ended.
    pub(crate) over: Option<Exit>,
}

macro_rules! world {
    ($bench:expr, $process:expr, $store:expr, $outside:expr) => {
        World {
            fs: &$bench.worker_fs,
            clock: &$bench.clock,
            chance: &HostChance,
            process: $process,
            host: &$bench.host,
            store: $store,
            outside: $outside,
            is_member: &|_, _| false,
            can_progress: &mut || Some(true),
            proved: &mut |_| {},
        }
    };
}

impl<'a> Hireling<'a> {
    /// Starts a worker with one CPU.
    pub(crate) fn start(bench: &'a Bench) -> Self {
        let wid = WorkerId::new("here", Nonce(HostChance.bits()));
        let options = Options {
            wid: wid.clone(),
            queue: bench.file.id,
            limits: bench.limits.clone(),
            cpus: 1,
            mem: 0,
            trust: Trust { uid: bench.host.me().uid, gid: None, uids: Vec::new() },
            keeper: None,
            mark_sync: false,
            env: vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())],
            dir: bench.dir(),
            bin: "/bin/false".into(),
            once: false,
            until_empty: false,
            idle_timeout: None,
            lifetime: None,
        };
        let scratch = tempfile::tempdir().expect("a temporary directory can be made");
        let mut outside = HostOutside::new(scratch.path().to_owned());
        let mut process = HostProcess::new().expect("processes can be watched");
        let mut store = Store::new(&bench.worker_fs, &HostChance, &bench.limits, wid.clone());
        let worker = Worker::start(&mut world!(bench, &mut process, &mut store, &mut outside), options);
        let worker = worker.expect("the worker can start");
        Self { bench, worker, process, store, outside, _scratch: scratch, wid, due: Duration::ZERO, over: None }
    }

    /// One step.
    pub(crate) fn step(&mut self) {
        let mut world = world!(self.bench, &mut self.process, &mut self.store, &mut self.outside);
        let step = self.worker.step(&mut world);
        self.due = step.next;
        self.over = step.over;
    }

    /// Lets it know that something may have come.
    pub(crate) fn hint(&mut self) {
        self.worker.hint();
        self.due = Duration::ZERO;
    }

    /// Whether it pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.worker.paused().is_some()
    }

    /// How many attempts it has.
    pub(crate) fn load(&self) -> usize {
        self.worker.load()
    }

    /// Waits a moment for news of its children.
    pub(crate) fn wait(&mut self) {
        self.process.wait(Some(Duration::from_millis(20)));
    }
}
