//! Collecting beside a live run: workers whose values go to packs and loose objects, masters with a janitor's thread, and a person
//! who asks for a collection again and again.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::fs::{EntryKind, Fs, FsError};
use crate::journal;
use crate::protocol::id::AttemptId;
use crate::protocol::record::{Action, Request};
use crate::rehearsal::truth::Truth;
use crate::store::{self, Store, inventory};

/// Small enough that most values leave the journal, some in packs, some as loose objects.
fn limits() -> Limits {
    Limits { gc_wait_ms: 5_000, inline_max: 16, pack_item_max: 120, pack_max: 1_000, ..super::limits() }
}

/// Every `mkdir` below the trash.
type Made = Arc<Mutex<Vec<PathBuf>>>;

/// What masters have said, the newest last, for the message of a failure.
type Said = Rc<RefCell<Vec<String>>>;

/// A file system that writes down which trash directories are made through it.
struct Noting<'a> {
    fs: &'a dyn Fs,
    made: Made,
}

impl Fs for Noting<'_> {
    fn list(&self, dir: &Path) -> crate::fs::Result<Vec<crate::fs::Entry>> {
        self.fs.list(dir)
    }
    fn open(&self, path: &Path) -> crate::fs::Result<Box<dyn crate::fs::ReadFile>> {
        self.fs.open(path)
    }
    fn create(&self, path: &Path, mode: u32) -> crate::fs::Result<Box<dyn crate::fs::WriteFile>> {
        self.fs.create(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> crate::fs::Result<()> {
        self.fs.rename(from, to)
    }
    fn unlink(&self, path: &Path) -> crate::fs::Result<()> {
        self.fs.unlink(path)
    }
    fn mkdir(&self, dir: &Path) -> crate::fs::Result<()> {
        if dir.starts_with(layout::TRASH) {
            self.made.lock().expect("no panic").push(dir.to_owned());
        }
        self.fs.mkdir(dir)
    }
    fn rmdir(&self, dir: &Path) -> crate::fs::Result<()> {
        self.fs.rmdir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> crate::fs::Result<()> {
        self.fs.sync_dir(dir)
    }
    fn drops_names(&self) -> bool {
        self.fs.drops_names()
    }
    fn lock(&self, path: &Path, limit: Duration) -> crate::fs::Locked {
        self.fs.lock(path, limit)
    }
    fn space(&self) -> crate::fs::Result<crate::fs::Space> {
        self.fs.space()
    }
}

/// What a master hands to its janitor and hears back.
#[derive(Default)]
struct Between {
    chores: VecDeque<(Chore, State)>,
    removals: Vec<PathBuf>,
    reports: Vec<Report>,
}

fn master(env: &SimEnv, made: &Made, said: &Said) {
    let fs = Noting { fs: env.fs(), made: made.clone() };
    let world = Env { fs: &fs, clock: env.clock(), chance: env.chance(), host: env.host() };
    let file = loop {
        match queue::read_file(env.fs(), Path::new("q")) {
            Ok(file) => break file,
            Err(_) => env.sleep(secs(1)),
        }
    };
    let me = WorkerId::new(&env.host().me().host, Nonce(env.chance().bits()));
    let mut master = Master::new(file, Options { me, nudges: true }, env.clock().boot());
    let between = Rc::new(RefCell::new(Between::default()));
    let other = between.clone();
    env.spawn_thread("janitor", move |env| {
        loop {
            let removals = std::mem::take(&mut other.borrow_mut().removals);
            for path in removals {
                let _ = env.fs().unlink(&path);
            }
            let chore = other.borrow_mut().chores.pop_front();
            if let Some((chore, state)) = chore {
                let report = chore.perform(env.fs(), &state);
                other.borrow_mut().reports.extend(report);
            } else {
                env.sleep(Duration::from_millis(100));
            }
        }
    });
    loop {
        let reports = std::mem::take(&mut between.borrow_mut().reports);
        for report in reports {
            master.report(report);
        }
        let step = master.step(world);
        for note in &step.notes {
            said.borrow_mut().push(format!("{} {note}", env.clock().boot().as_secs()));
        }
        if let Some(halt) = step.halt {
            panic!("{halt}");
        }
        let mut shared = between.borrow_mut();
        shared.removals.extend(step.removals);
        if let Some(state) = master.state() {
            shared.chores.extend(step.chores.into_iter().map(|chore| (chore, state.clone())));
        }
        drop(shared);
        let soon = env.clock().boot() + Duration::from_millis(200);
        env.sleep_until(step.next.clamp(env.clock().boot() + Duration::from_millis(1), soon));
    }
}

/// What the task of an attempt prints: one of a few values, so that a value is often put again while it is being collected.
fn output(a: AttemptId) -> Vec<u8> {
    let kind = a.task.job.0 % 7;
    format!("value {kind} ").repeat(2 + 8 * usize::try_from(kind).unwrap_or(0)).into_bytes()
}

/// As the worker of the other tests, but what its tasks print goes to the store, along with things that nobody ever refers to.
fn worker(env: &SimEnv, wastes: bool) {
    loop {
        let _ = incarnation(env, wastes);
        env.sleep(secs(1));
    }
}

fn incarnation(env: &SimEnv, wastes: bool) -> Result<(), FsError> {
    let queue = loop {
        match queue::read_file(env.fs(), Path::new("q")) {
            Ok(file) => break file.id,
            Err(_) => env.sleep(secs(1)),
        }
    };
    let limits = limits();
    let me = env.host().me();
    let wid = WorkerId::new(&me.host, Nonce(env.chance().bits()));
    let mut journal = prepare(env, &wid, queue, &me, &limits)?;
    let mut store = Store::new(env.fs(), env.chance(), &limits, wid.clone());
    let mut mailbox = Receiver::new(wid);
    let mut lease = crate::lease::OwnLease::new(&limits, env.clock().boot());
    let mut k = 0;
    let mut revoked = BTreeSet::new();
    let mut todo: VecDeque<(AttemptId, u64)> = VecDeque::new();
    loop {
        let before = env.clock().boot();
        if lease.is_over(before) {
            return Ok(());
        }
        for mail in mailbox.poll(env.fs()).unwrap_or_default() {
            match mail.msg {
                Message::Run(items) => {
                    journal.append(&Line::Claim { m: mail.m, by: mail.by });
                    todo.extend(items.iter().flat_map(crate::protocol::record::RunItem::attempts).map(|a| (a, mail.m)));
                }
                Message::Withdraw { attempts, .. } => {
                    journal.append(&Line::Got { m: mail.m, by: mail.by });
                    revoked.extend(attempts);
                }
                Message::Drain => {
                    journal.append(&Line::Got { m: mail.m, by: mail.by });
                }
                Message::Fence => return Ok(()),
            }
        }
        while let Some((a, m)) = todo.pop_front() {
            if revoked.contains(&a) {
                journal.append(&Line::Released { a: vec![a], why: Requeue::Withdrawn });
                continue;
            }
            if wastes {
                let _ = store.put(format!("nobody wants what {a} left behind {}", "x".repeat(120)).as_bytes());
            }
            let Ok(out) = store.put(&output(a)) else {
                todo.push_front((a, m));
                break;
            };
            journal.append(&Line::End(Box::new(EndLine {
                a,
                m,
                how: How::Ran(Status::Exit(0)),
                out,
                err: Ref::default(),
                usage: crate::process::Usage::default(),
                ms: 10,
                leftovers: 0,
                notes: Vec::new(),
                start_ms: 0,
                end_ms: env.clock().wall_ms(),
            })));
        }
        if lease.is_beat_due(before) {
            k += 1;
            journal.append(&Line::Beat { k, free: 1 });
        }
        if journal.is_dirty() && journal.flush(env.fs()).is_ok() {
            lease.prove(before, secs(1));
        }
        env.sleep(Duration::from_millis(200 + env.chance().bits() % 300));
    }
}

/// Asks for a collection every now and then.
fn collector(env: &SimEnv, keep_ms: Option<u64>) {
    loop {
        env.sleep(Duration::from_millis(5_000 + env.chance().bits() % 20_000));
        let id = Nonce(env.chance().bits());
        let action = Action::Collect { keep_ms };
        let request = Request {
            fq: "request".into(),
            version: CURRENT,
            id,
            action,
            user: "u".into(),
            at_ms: env.clock().wall_ms(),
        };
        let _ = put_new(env.fs(), &layout::request(id), &to_document(&request), 0o644);
    }
}

struct Yard {
    desk: Desk,
    made: Made,
    said: Said,
}

impl Yard {
    fn new(seed: u64, profile: Profile, keep_ms: Option<u64>, workers: usize) -> Self {
        let mut cluster = Cluster::new(seed, profile);
        let hosts = vec![cluster.add_host("a"), cluster.add_host("b")];
        let options = InitOptions { limits: Some(limits()), ..InitOptions::default() };
        cluster.spawn(hosts[0], "init", move |env| {
            queue::init_on(env.fs(), env.chance(), env.clock(), Path::new("q"), env.host().me().uid, &options)
                .expect("a queue");
        });
        cluster.run_to_end(secs(600)).unwrap_or_else(|e| panic!("{e}"));
        let mut yard = Self { desk: Desk { cluster, hosts }, made: Made::default(), said: Said::default() };
        for (i, host) in yard.desk.hosts.clone().into_iter().enumerate() {
            let (made, said) = (yard.made.clone(), yard.said.clone());
            yard.desk
                .cluster
                .spawn_service(host, &format!("master-{i}"), secs(3), move |env| master(env, &made, &said));
        }
        for (i, host) in yard.desk.hosts.clone().into_iter().take(workers).enumerate() {
            let wastes = workers > 1;
            yard.desk.cluster.spawn_service(host, &format!("worker-{i}"), secs(3), move |env| worker(env, wastes));
        }
        let host = yard.desk.hosts[1];
        yard.desk.cluster.spawn_service(host, "collector", secs(3), move |env| collector(env, keep_ms));
        yard
    }

    fn run_for(&mut self, span: Duration) {
        self.desk.cluster.run_for(span).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Lets `look` look at the files at the end of everything.
    fn look<R: 'static>(&mut self, look: impl Fn(&dyn Fs) -> R + 'static) -> R {
        let found = Rc::new(RefCell::new(None));
        let slot = found.clone();
        let host = self.desk.hosts[0];
        self.desk.cluster.spawn(host, "looker", move |env| *slot.borrow_mut() = Some(look(env.fs())));
        let limit = self.desk.cluster.now() + secs(3_600);
        let is_there = found.clone();
        let came = self.desk.cluster.run_until(|_| is_there.borrow().is_some(), limit);
        assert!(came.unwrap_or_else(|e| panic!("{e}")));
        let answer = found.borrow_mut().take();
        answer.expect("was there")
    }

    /// Checks that every accepted end of a kept job has its bytes; returns how many there are.
    fn verify_all(&mut self) -> usize {
        let state = self.desk.state();
        let seed = self.desk.cluster.seed();
        self.look(move |fs| {
            let mut count = 0;
            for (id, job) in &state.jobs {
                for task in job.tasks.iter().filter(|task| task.line > 0) {
                    let (w, _) = state.worker_no(task.worker).expect("a known worker");
                    let line = journal::read_line(fs, w, task.line).expect("a journal");
                    let Some(Line::End(end)) = line else {
                        panic!("seed {seed}: job {id}: {w} {} is {line:?}", task.line)
                    };
                    assert_eq!(store::read(fs, &end.out), Ok(output(end.a)), "seed {seed}: job {id}");
                    count += 1;
                }
            }
            count
        })
    }

    /// Store files that nothing needs; those in the trash as well.
    fn waste(&mut self) -> BTreeSet<String> {
        let state = self.desk.state();
        // As it is on the server: an NFS client may be shown for ever what was removed within the tick of its look.
        self.desk.cluster.view(|view| {
            let found = crate::gc::survey(&Truth::now(view), &state, &mut || {}).expect("a survey");
            let inventory::Inventory { objects, packs, temps, trash, .. } = found.inventory;
            let files = objects.iter().map(ToString::to_string).chain(packs);
            let is_mine =
                |file: &String| layout::parse_pack(file).is_some_and(|(creator, _)| found.living.contains(&creator));
            let roots = found.needed.roots;
            let idle = files.filter(|file| !roots.need(file) && !is_mine(file));
            let temps = temps.into_iter().map(|path| path.display().to_string());
            idle.chain(temps).chain(trash.keys().map(ToString::to_string)).collect()
        })
    }

    fn count_files(&mut self) -> usize {
        fn count(fs: &dyn Fs, dir: &Path) -> usize {
            let names = fs.list(dir).expect("a listing");
            let each = names.iter().map(|entry| match entry.kind {
                EntryKind::Dir => count(fs, &dir.join(&entry.name)),
                _ => 1,
            });
            each.sum()
        }
        self.look(|fs| count(fs, Path::new("")))
    }
}

fn collects_beside_a_run(seed: u64, keep_ms: Option<u64>) {
    let profiles = [Profile::local, Profile::nfs3, Profile::nfs41, Profile::ceph];
    let mut yard = Yard::new(seed, profiles[usize::try_from(seed % 4).unwrap_or(0)](), keep_ms, 2);
    yard.desk.cluster.plan_faults(&FaultBudget::mixed(secs(150)));
    yard.desk.submit(25);
    for _ in 0..4 {
        yard.run_for(secs(100));
    }
    yard.desk.cluster.quiet();
    let is_over = |state: &State| {
        let taken = state.jobs.len() as u64 + state.pruned.len();
        taken >= 25 && state.jobs.values().all(|job| job.counts.all_ended())
    };
    for _ in 0..100 {
        yard.run_for(secs(20));
        if is_over(&yard.desk.state()) {
            break;
        }
    }
    assert!(is_over(&yard.desk.state()), "seed {seed}");
    if keep_ms.is_none() {
        assert_eq!(yard.verify_all(), 25, "seed {seed}");
    }
    // Two rounds and a purge after the last worker is gone that had faults.
    let mut waste = BTreeSet::new();
    for _ in 0..30 {
        yard.run_for(secs(60));
        waste = yard.waste();
        if waste.is_empty() {
            break;
        }
    }
    assert!(waste.is_empty(), "seed {seed}: {waste:?}\n{}", yard.said.borrow().join("\n"));
    if keep_ms.is_none() {
        assert_eq!(yard.verify_all(), 25, "seed {seed}");
    }
    let mut made = yard.made.lock().expect("no panic").clone();
    let count = made.len();
    made.sort();
    made.dedup();
    assert_eq!(made.len(), count, "seed {seed}: a trash directory was made twice");
    assert!(count > 0, "seed {seed}: nothing was collected");
}

#[test]
fn no_accepted_result_loses_its_bytes_and_all_waste_goes_under_every_kind_of_fault() {
    for seed in 500..516 {
        collects_beside_a_run(seed, None);
    }
}

#[test]
fn jobs_are_forgotten_and_their_values_go_under_every_kind_of_fault() {
    for seed in 600..608 {
        collects_beside_a_run(seed, Some(20_000));
    }
}

#[test]
fn a_single_job_in_a_warm_queue_leaves_at_most_four_files() {
    let mut yard = Yard::new(7, Profile::local(), None, 1);
    let warm_up = |yard: &mut Yard, count: u64, first: u64| {
        let host = yard.desk.hosts[1];
        yard.desk.cluster.spawn(host, "client", move |env| {
            for n in first..first + count {
                submit(env, n).expect("submitted");
                env.sleep(Duration::from_millis(300));
            }
        });
        yard.run_for(secs(600));
    };
    warm_up(&mut yard, 40, 1);
    let before = yard.count_files();
    warm_up(&mut yard, 200, 100);
    let done = yard.desk.state().counts().of(TaskState::Done);
    assert_eq!(done, 240);
    let after = yard.count_files();
    assert!(after <= before + 4 * 200, "{} files more for 200 jobs", after - before);
    assert!(after <= before + 200 + 100, "one manifest each, and little else: {} files more", after - before);
}
