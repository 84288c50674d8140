//! The processes of a rehearsal: the loops that stand around the real step functions, as threads and signals do in a real one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::client::request;
use crate::client::submit::{self, BindError};
use crate::clock::{Chance, Clock};
use crate::decision::{ChainError, Reader};
use crate::fs::Fs;
use crate::fs::outside::{Outside, Sink};
use crate::master::{self, Chore, Halt, Master, Report};
use crate::process::{Child, Event, Group, Host, Identity, Launch, Liveness, Process, SetupFailure, Signal, Started};
use crate::protocol::id::{JobId, Nonce, TaskId, WorkerId};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Action, HeadStyle, Limits, QueueFile, Requeue, Trust};
use crate::queue;
use crate::sim::profile::Commit;
use crate::sim::{SimEnv, SimProcess};
use crate::state::State;
use crate::store::Store;
use crate::view;
use crate::worker::{Hand, Options, Worker, World};

use super::script::Part;

/// What the processes of a rehearsal share outside the queue: descriptors between keeper and worker, the user's notes and files.
#[derive(Default)]
pub(super) struct Desk {
    /// What keeper and worker of a host tell each other.
    links: [RefCell<Link>; 2],
    /// The user's files.
    pub(super) files: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    /// The numbers of the parts that were submitted.
    pub(super) numbers: RefCell<Vec<JobId>>,
    /// Requests that were made, by part and position.
    asked: RefCell<BTreeMap<(usize, usize), Nonce>>,
    /// Whether the user has done everything.
    pub(super) is_submitted: Cell<bool>,
    /// How long after an end in order a worker or master is started again; not at all if there is nothing.
    pub(super) pause: Cell<Option<Duration>>,
    /// Why masters stopped for good.
    pub(super) halts: RefCell<Vec<String>>,
    /// The ends of tasks that were reported to the user as final.
    pub(super) reported: RefCell<BTreeMap<TaskId, TaskState>>,
    /// What was reported and is no longer so.
    pub(super) revoked: RefCell<Vec<String>>,
}

#[derive(Default)]
struct Link {
    keeper: Option<Identity>,
    worker: Option<Identity>,
    /// The newest durable sign of life, on the boot clock.
    proved: Duration,
    /// What was started and not seen to end.
    groups: BTreeMap<u64, Group>,
    /// The keeper has ended everything: the worker gets no further.
    is_over: bool,
}

/// What makes one rehearsal differ from another.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) limits: Limits,
    pub(super) head_style: HeadStyle,
    pub(super) nudges: bool,
    pub(super) mark_sync: bool,
    /// How long workers live.
    pub(super) lifetime: Option<Duration>,
    /// How the file system keeps its word: whether halts after a roll-back are to be expected.
    pub(super) commit: Commit,
}

fn queue_file(env: &SimEnv) -> QueueFile {
    loop {
        match queue::read_file(env.fs(), Path::new("q")) {
            Ok(file) => return file,
            Err(_) => env.sleep(Duration::from_secs(1)),
        }
    }
}

// --- master -----------------------------------------------------------------------------------------------------------------

type Chores = Rc<RefCell<VecDeque<Todo>>>;
type Reports = Rc<RefCell<Vec<Report>>>;

enum Todo {
    Remove(PathBuf),
    Do(Chore, Box<State>),
}

/// A process that only leads.
pub(super) fn master(env: &SimEnv, desk: &Rc<Desk>, setup: &Setup) {
    let me = WorkerId::new(&env.host().me().host, Nonce(env.chance().bits()));
    if lead(env, desk, setup, me).is_some() {
        // As a batch system or a person would.
        env.sleep(Duration::from_secs(5));
        env.exit();
    }
    start_again_later(env, desk);
}

/// After an end in order: whether and when it is started again.
fn start_again_later(env: &SimEnv, desk: &Desk) {
    if let Some(pause) = desk.pause.get() {
        env.sleep(pause);
        env.exit();
    }
}

/// Runs a master with its janitor until it is asked to end, or stops for good.
fn lead(env: &SimEnv, desk: &Rc<Desk>, setup: &Setup, me: WorkerId) -> Option<Halt> {
    let world = master::Env { fs: env.fs(), clock: env.clock(), chance: env.chance(), host: env.host() };
    let file = queue_file(env);
    let options = master::Options { me, nudges: setup.nudges };
    let mut master = Master::new(file, options, env.clock().boot());
    let chores = Chores::default();
    let reports = Reports::default();
    let (given, told) = (chores.clone(), reports.clone());
    env.spawn_thread("janitor", move |env| janitor(env, &given, &told));
    loop {
        for report in reports.take() {
            master.report(report);
        }
        let step = master.step(world);
        for note in &step.notes {
            env.note(note);
        }
        if let Some(halt) = step.halt {
            env.note(&halt.to_string());
            let is_expected = match &halt {
                Halt::Chain(ChainError::RolledBack { .. } | ChainError::Missing { .. }) => {
                    setup.commit != Commit::Server
                }
                Halt::Chain(ChainError::NoHead) => setup.commit == Commit::Later,
                _ => false,
            };
            assert!(is_expected, "{halt}");
            desk.halts.borrow_mut().push(halt.to_string());
            return Some(halt);
        }
        let mut chores = chores.borrow_mut();
        chores.extend(step.removals.into_iter().map(Todo::Remove));
        if let Some(state) = master.state() {
            chores.extend(step.chores.into_iter().map(|chore| Todo::Do(chore, Box::new(state.clone()))));
        }
        drop(chores);
        if env.should_stop() && master.abdicate(world) {
            return None;
        }
        env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
    }
}

/// Does what masters leave to it, without hurry.
fn janitor(env: &SimEnv, chores: &Chores, reports: &Reports) {
    while !env.should_stop() {
        let next = chores.borrow_mut().pop_front();
        match next {
            None => env.sleep(Duration::from_secs(1)),
            Some(Todo::Remove(path)) => {
                let _ = env.fs().unlink(&path);
            }
            Some(Todo::Do(Chore::Render, state)) => view::write(env.fs(), env.chance(), &state, env.clock().wall_ms()),
            Some(Todo::Do(chore, state)) => {
                let report = chore.perform(env.fs(), &state);
                reports.borrow_mut().extend(report);
            }
        }
    }
}

// --- worker and keeper ------------------------------------------------------------------------------------------------------

/// The keeper of host `at`: ends what its worker leaves, and what a worker runs that is not heard of for its self-fence time.
/// It never touches the queue.
pub(super) fn keeper(env: &SimEnv, desk: &Desk, at: usize, self_fence: Duration) {
    let link = &desk.links[at];
    link.borrow_mut().keeper = Some(env.host().me());
    loop {
        env.sleep(Duration::from_millis(200));
        let now = env.clock().boot();
        let mut link = link.borrow_mut();
        let Some(worker) = link.worker.clone() else { continue };
        let is_gone = env.host().liveness(&worker) == Liveness::Gone;
        if is_gone || now >= link.proved + self_fence {
            let groups: Vec<Group> = std::mem::take(&mut link.groups).into_values().collect();
            env.host().end_leftovers(&groups);
            link.is_over = true;
            if is_gone {
                link.worker = None;
            }
        }
    }
}

/// One worker incarnation on host `at`, with a master beside it.
pub(super) fn worker(env: &SimEnv, desk: &Rc<Desk>, at: usize, setup: &Setup) {
    let link = &desk.links[at];
    let me = env.host().me();
    let keeper = loop {
        let keeper = link.borrow().keeper.clone();
        match keeper.filter(|k| link.borrow().worker.is_none() && env.host().liveness(k) == Liveness::Alive) {
            Some(keeper) => break keeper,
            None => env.sleep(Duration::from_millis(200)),
        }
        let is_free = link.borrow().worker.as_ref().is_none_or(|w| w.boot_id != me.boot_id);
        if is_free {
            link.borrow_mut().worker = None;
        }
    };
    let file = queue_file(env);
    let wid = WorkerId::new(&me.host, Nonce(env.chance().bits()));
    let now = env.clock().boot();
    *link.borrow_mut() = Link {
        keeper: Some(keeper.clone()),
        worker: Some(me.clone()),
        proved: now,
        groups: BTreeMap::new(),
        is_over: false,
    };
    let options = Options {
        wid: wid.clone(),
        queue: file.id,
        limits: setup.limits.clone(),
        cpus: 2,
        mem: 0,
        trust: Trust { uid: me.uid, ..Trust::default() },
        keeper: Some(keeper.clone()),
        mark_sync: setup.mark_sync,
        env: Vec::new(),
        dir: "/q".into(),
        bin: "fq".into(),
        once: false,
        until_empty: false,
        idle_timeout: None,
        lifetime: setup.lifetime,
    };
    let mut store = Store::new(env.fs(), env.chance(), &setup.limits, wid.clone());
    let mut process = Kept { process: env.process(), desk, at };
    let mut outside = Files { desk };
    macro_rules! world {
        () => {
            World {
                fs: env.fs(),
                clock: env.clock(),
                chance: env.chance(),
                process: &mut process,
                host: env.host(),
                store: &mut store,
                outside: &mut outside,
                is_member: &|_, _| false,
                can_progress: &mut || Some(true),
                proved: &mut |at| link.borrow_mut().proved = at,
            }
        };
    }
    let mut worker = match Worker::start(&mut world!(), options) {
        Ok(worker) => worker,
        Err(error) => {
            env.note(&error.to_string());
            env.sleep(Duration::from_secs(2));
            return env.exit();
        }
    };
    let halted = Rc::new(Cell::new(false));
    let (flag, desk_too, setup_too) = (halted.clone(), desk.clone(), setup.clone());
    env.spawn_thread("master", move |env| flag.set(lead(env, &desk_too, &setup_too, wid).is_some()));
    let exit = loop {
        let step = worker.step(&mut world!());
        if let Some(exit) = step.over {
            break exit;
        }
        if link.borrow().is_over {
            return env.exit();
        }
        if env.host().liveness(&keeper) != Liveness::Alive {
            worker.lose_keeper(&mut world!());
        }
        if env.should_stop() || halted.get() {
            worker.drain(Hand::Back, Requeue::Drained, "it was asked to end");
        }
        let now = env.clock().boot();
        env.sleep_until_or_child(step.next.clamp(now + Duration::from_millis(1), now + Duration::from_secs(5)));
    };
    env.note(&format!("worker is over: {}", exit.why));
    if env.should_stop() {
        // Its master gives up leading first.
        env.sleep(Duration::from_secs(2));
        return start_again_later(env, desk);
    }
    env.exit();
}

/// Children of which the keeper knows.
struct Kept<'a> {
    process: SimProcess,
    desk: &'a Desk,
    at: usize,
}

impl Process for Kept<'_> {
    fn start(&mut self, launch: &Launch) -> Result<Started, SetupFailure> {
        let started = self.process.start(launch)?;
        self.desk.links[self.at].borrow_mut().groups.insert(started.child.0, started.group.clone());
        Ok(started)
    }

    fn poll(&mut self, output_max: usize) -> Vec<Event> {
        let events = self.process.poll(output_max);
        for event in &events {
            if let Event::Ended { child, .. } = event {
                self.desk.links[self.at].borrow_mut().groups.remove(&child.0);
            }
        }
        events
    }

    fn signal(&mut self, child: Child, signal: Signal) {
        self.process.signal(child, signal);
    }
}

/// The user's files, which never fail: they are not what is rehearsed.
struct Files<'a> {
    desk: &'a Desk,
}

impl Outside for Files<'_> {
    fn make_dir(&mut self, name: &str) -> io::Result<PathBuf> {
        Ok(Path::new("/tmp").join(name))
    }

    fn make_file(
        &mut self,
        path: &Path,
        _mode: u32,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.publish(path, fill)
    }

    fn remove_dir(&mut self, _dir: &Path) {}

    fn publish(&mut self, path: &Path, fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut bytes = Vec::new();
        fill(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.desk.files.borrow_mut().insert(path.to_owned(), bytes);
        Ok(())
    }
}

// --- client -----------------------------------------------------------------------------------------------------------------

/// Submits all parts in order and asks for what is to be asked. Started again, it goes on where its notes end.
///
/// `collects`: asks in the end for what nobody needs to be collected.
pub(super) fn client(env: &SimEnv, desk: &Desk, parts: &[Part], collects: bool) {
    let pause = || env.sleep(Duration::from_secs(1));
    for (i, part) in parts.iter().enumerate() {
        if i >= desk.numbers.borrow().len() {
            let mut manifest = part.manifest(&desk.numbers.borrow());
            let job = loop {
                match submit::bind(env.fs(), 0o600, &mut manifest) {
                    Ok(job) => break job,
                    Err(error @ (BindError::Refused(_) | BindError::InDoubt { .. })) => env.note(&error.to_string()),
                    Err(error) => panic!("{error}"),
                }
                pause();
            };
            env.note(&format!("submitted {} as {job}", part.name));
            desk.numbers.borrow_mut().push(job);
        }
        for (n, (after, asks)) in part.asks.iter().enumerate() {
            if desk.asked.borrow().contains_key(&(i, n)) {
                continue;
            }
            env.sleep(*after);
            let id = ask(env, &asks.of(desk.numbers.borrow()[i]));
            desk.asked.borrow_mut().insert((i, n), id);
        }
        env.sleep(Duration::from_millis(env.chance().bits() % 400));
    }
    if collects {
        ask(env, &Action::Collect { keep_ms: None });
    }
    desk.is_submitted.set(true);
}

/// Follows the decisions as `fq wait` does, and reports what has ended once it is settled.
pub(super) fn onlooker(env: &SimEnv, desk: &Desk) {
    let mut reader: Option<Reader> = None;
    loop {
        env.sleep(Duration::from_millis(1_500));
        let looked = match &mut reader {
            Some(reader) => reader.refresh(env.fs()).map(|_| ()),
            none => Reader::open(env.fs()).map(|opened| *none = Some(opened)),
        };
        let Some(current) = reader.as_ref().filter(|_| looked.is_ok()) else {
            if looked.is_err_and(|error| !error.may_pass()) {
                reader = None;
            }
            continue;
        };
        if current.settle(env.fs()).is_err() {
            reader = None;
            continue;
        }
        let (state, mut reported) = (current.state(), desk.reported.borrow_mut());
        for (at, old) in reported.iter() {
            // A job that was collected is not heard of any more.
            let new = state.task(*at).map(|(_, task)| task.state);
            if new.is_some_and(|new| new != *old) {
                desk.revoked.borrow_mut().push(format!("{at} was reported as {old} and is {new:?} in {}", state.at));
            }
        }
        for job in state.jobs.values() {
            let ended = job.tasks.iter().enumerate().filter(|(_, task)| task.state.is_final());
            reported.extend(ended.map(|(at, task)| (job.task_id(at as u32), task.state)));
        }
    }
}

/// An operator who asks for everything to be collected that has ended.
pub(super) fn collect_all(env: &SimEnv) {
    ask(env, &Action::Collect { keep_ms: Some(0) });
}

/// Sends a request, again and again until it is there.
fn ask(env: &SimEnv, action: &Action) -> Nonce {
    loop {
        match request::send(env.fs(), env.clock(), env.chance(), 0o600, "u", action) {
            Ok(id) => return id,
            Err(error) => env.note(&error.to_string()),
        }
        env.sleep(Duration::from_secs(1));
    }
}
