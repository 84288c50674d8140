//! A worker step by step, in a world where every time, child and error is the test's own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::fs::memory::MemoryFs;
use crate::fs::outside::Sink;
use crate::fs::{Call, Counting, Entry, Faulty, ReadFile, Rule, Space, Stat, WriteFile};
use crate::keeper;
use crate::process::{Child, End, Event, Group, Launch, Liveness, SetupFailure, Started, Status, Stream, Usage};
use crate::protocol::digest::Digest;
use crate::protocol::id::{DecisionId, JobId, Ranges, TaskId};
use crate::protocol::record::{Bytes, Command, EndLine, Manifest, Needs, Outcome, Ref};
use crate::store;

type TestFs = Counting<Faulty<SlowFs>>;

#[derive(Default)]
struct TestClock(AtomicU64);

impl TestClock {
    fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn boot(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.load(Ordering::SeqCst)
    }
}

/// Files in memory, some of which take their time.
#[derive(Default)]
struct SlowFs {
    memory: MemoryFs,
    pace: Arc<Pace>,
}

/// How long calls last.
#[derive(Default)]
struct Pace {
    clock: Arc<TestClock>,
    /// A call, a part of the paths, milliseconds.
    slow: Mutex<Vec<(Call, &'static str, u64)>>,
}

impl Pace {
    fn pass(&self, call: Call, path: &Path) {
        let slow = self.slow.lock().unwrap_or_else(|e| panic!("{e}"));
        let matches = |(c, part, _): &&(Call, &str, u64)| *c == call && path.to_string_lossy().contains(part);
        self.clock.pass(slow.iter().filter(matches).map(|(_, _, ms)| ms).sum());
    }
}

impl std::ops::Deref for SlowFs {
    type Target = MemoryFs;

    fn deref(&self) -> &MemoryFs {
        &self.memory
    }
}

impl Fs for SlowFs {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>, FsError> {
        self.memory.list(dir)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>, FsError> {
        let file = self.memory.open(path)?;
        Ok(Box::new(SlowFile { file, path: path.to_owned(), pace: self.pace.clone() }))
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>, FsError> {
        let file = self.memory.create(path, mode)?;
        Ok(Box::new(SlowFile { file, path: path.to_owned(), pace: self.pace.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FsError> {
        self.memory.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> Result<(), FsError> {
        self.memory.unlink(path)
    }

    fn mkdir(&self, dir: &Path) -> Result<(), FsError> {
        self.memory.mkdir(dir)
    }

    fn rmdir(&self, dir: &Path) -> Result<(), FsError> {
        self.memory.rmdir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), FsError> {
        self.memory.sync_dir(dir)
    }

    fn drops_names(&self) -> bool {
        self.memory.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        self.memory.lock(path, limit)
    }

    fn space(&self) -> Result<Space, FsError> {
        self.memory.space()
    }
}

struct SlowFile<T: ?Sized> {
    path: PathBuf,
    pace: Arc<Pace>,
    file: Box<T>,
}

impl ReadFile for SlowFile<dyn ReadFile> {
    fn stat(&self) -> Result<Stat, FsError> {
        self.file.stat()
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, FsError> {
        self.pace.pass(Call::Read, &self.path);
        self.file.read_at(buffer, offset)
    }

    fn sync(&self) -> Result<(), FsError> {
        self.file.sync()
    }
}

impl WriteFile for SlowFile<dyn WriteFile> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.pace.pass(Call::Write, &self.path);
        self.file.write(bytes)
    }

    fn sync(&mut self) -> Result<(), FsError> {
        self.pace.pass(Call::Sync, &self.path);
        self.file.sync()
    }

    fn close(self: Box<Self>) -> Result<(), FsError> {
        self.file.close()
    }
}

#[derive(Default)]
struct TestChance(AtomicU64);

impl Chance for TestChance {
    fn bits(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst)
    }
}

/// Children that do what the test says, when it says so.
#[derive(Default)]
struct TestProcess {
    count: u64,
    launches: Vec<Launch>,
    signals: Vec<(Child, Signal)>,
    events: Vec<Event>,
    dies_of: Option<Signal>,
}

impl Process for TestProcess {
    fn start(&mut self, launch: &Launch) -> Result<Started, SetupFailure> {
        self.count += 1;
        self.launches.push(launch.clone());
        let group = Group { pid: 100 + self.count as u32, ticks: 1, token: launch.token.clone() };
        Ok(Started { child: Child(self.count), group })
    }

    fn poll(&mut self, output_max: usize) -> Vec<Event> {
        if output_max == 0 { Vec::new() } else { std::mem::take(&mut self.events) }
    }

    fn signal(&mut self, child: Child, signal: Signal) {
        self.signals.push((child, signal));
        if self.dies_of == Some(signal) {
            let number = if signal == Signal::Term { 15 } else { 9 };
            self.end(child.0, Status::Signal(number));
        }
    }
}

impl TestProcess {
    fn print(&mut self, child: u64, bytes: &[u8]) {
        self.events.push(Event::Output { child: Child(child), stream: Stream::Stdout, bytes: bytes.to_vec() });
    }

    fn end(&mut self, child: u64, status: Status) {
        let end = End {
            status,
            out_of_memory: false,
            leftovers: 0,
            elapsed: Duration::from_secs(1),
            usage: Usage::default(),
        };
        self.events.push(Event::Ended { child: Child(child), end });
    }
}

struct TestHost;

impl Host for TestHost {
    fn me(&self) -> Identity {
        Identity { host: "n1".into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 0 }
    }

    fn liveness(&self, _who: &Identity) -> Liveness {
        Liveness::Unknown
    }

    fn end_leftovers(&self, _groups: &[Group]) -> usize {
        0
    }
}

#[derive(Default)]
struct TestOutside {
    files: BTreeMap<PathBuf, Vec<u8>>,
    dirs: Vec<PathBuf>,
    clock: Arc<TestClock>,
    /// How long each piece of a file takes.
    piece_ms: u64,
}

impl Outside for TestOutside {
    fn make_dir(&mut self, name: &str) -> io::Result<PathBuf> {
        let dir = Path::new("/tmp/w").join(name);
        self.dirs.push(dir.clone());
        Ok(dir)
    }

    fn make_file(
        &mut self,
        path: &Path,
        _mode: u32,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.publish(path, fill)
    }

    fn remove_dir(&mut self, dir: &Path) {
        self.dirs.retain(|known| known != dir);
    }

    fn publish(&mut self, path: &Path, fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut bytes = Vec::new();
        fill(&mut |piece| {
            self.clock.pass(self.piece_ms);
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.files.insert(path.to_owned(), bytes);
        Ok(())
    }
}

/// One worker and its world.
struct Bench<'a> {
    fs: &'a TestFs,
    clock: Arc<TestClock>,
    chance: &'a TestChance,
    process: TestProcess,
    outside: TestOutside,
    store: Store<'a>,
    can_progress: Option<bool>,
    worker: Option<Worker>,
    mail_count: u64,
    keeper: TestKeeper,
}

/// What a keeper would make of the signs of life that it hears of.
#[derive(Default)]
struct TestKeeper {
    beat_ms: u64,
    beats: u32,
    self_fence: Duration,
    /// The worker would have been ended.
    has_fenced: bool,
}

impl TestKeeper {
    /// Looks at what it has heard so far, at the moment when something new may come.
    fn look(&mut self, now: Duration) {
        self.has_fenced |= keeper::is_overdue(self.beat_ms, false, now, self.self_fence);
    }
}

fn wid() -> WorkerId {
    WorkerId::new("n1", Nonce(7))
}

fn fresh() -> (TestFs, TestChance) {
    let slow = SlowFs::default();
    for dir in layout::DIRECTORIES {
        assert_eq!(slow.mkdir(dir.as_ref()), Ok(()));
    }
    for byte in 0..=255 {
        assert_eq!(slow.mkdir(&Path::new(layout::OBJECTS).join(format!("{byte:02x}"))), Ok(()));
    }
    (Counting::new(Faulty::new(slow)), TestChance::default())
}

fn options() -> Options {
    Options {
        wid: wid(),
        queue: Nonce(1),
        limits: Limits::default(),
        cpus: 2,
        mem: 0,
        trust: Trust { uid: 0, gid: None, uids: vec![1001] },
        keeper: None,
        mark_sync: false,
        env: vec![(b"PATH".to_vec(), b"/bin".to_vec())],
        dir: "/q".into(),
        bin: "/bin/fq".into(),
        once: false,
        until_empty: false,
        idle_timeout: None,
        lifetime: None,
    }
}

fn manifest(array: &str) -> Manifest {
    Manifest {
        fq: "job".into(),
        version: CURRENT,
        job: JobId(7),
        sub: Nonce(3),
        name: "sweep".into(),
        command: Command::Argv(vec!["run".into(), "--in={}".into()]),
        cwd: "/home/u".into(),
        env: vec![("A".into(), "1".into())],
        array: array.parse::<Ranges>().ok().filter(|set| !set.is_empty()),
        entries: None,
        stdin: None,
        stdout: None,
        stderr: None,
        needs: Needs::default(),
        user: "u".into(),
        host: "login".into(),
        at_ms: 0,
    }
}

fn attempt(index: u64) -> AttemptId {
    AttemptId { task: TaskId { job: JobId(7), index: Some(index) }, number: 1 }
}

impl<'a> Bench<'a> {
    fn new(fs: &'a TestFs, chance: &'a TestChance, options: Options) -> Self {
        let mut bench = Self::idle(fs, chance, &options);
        let worker = bench.with(|world| Worker::start(world, options)).unwrap_or_else(|e| panic!("{e}"));
        bench.worker = Some(worker);
        bench
    }

    /// One without a worker.
    fn idle(fs: &'a TestFs, chance: &'a TestChance, options: &Options) -> Self {
        let store = Store::new(fs, chance, &options.limits, wid());
        let clock = fs.inner().inner().pace.clock.clone();
        let self_fence = Limits::span(options.limits.self_fence_ms);
        let bench = Self {
            fs,
            clock: clock.clone(),
            chance,
            process: TestProcess::default(),
            outside: TestOutside { clock, ..TestOutside::default() },
            store,
            can_progress: Some(true),
            worker: None,
            mail_count: 0,
            keeper: TestKeeper { self_fence, ..TestKeeper::default() },
        };
        bench.clock.0.store(1_000_000, Ordering::SeqCst);
        bench
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut World<'_, 'a>) -> T) -> T {
        let answer = self.can_progress;
        let (clock, keeper) = (self.clock.clone(), &mut self.keeper);
        act(&mut World {
            fs: self.fs,
            clock: &*self.clock,
            chance: self.chance,
            process: &mut self.process,
            host: &TestHost,
            store: &mut self.store,
            outside: &mut self.outside,
            is_member: &|_, _| false,
            can_progress: &mut || answer,
            proved: &mut |at| {
                keeper.look(clock.boot());
                keeper.beats += 1;
                keeper.beat_ms = keeper.beat_ms.max(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
            },
        })
    }

    fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().unwrap_or_else(|| panic!("there is a worker"))
    }

    fn step(&mut self) -> Step {
        let Some(mut worker) = self.worker.take() else { panic!("there is a worker") };
        let step = self.with(|world| worker.step(world));
        self.keeper.look(self.clock.boot());
        self.worker = Some(worker);
        step
    }

    /// Steps whenever the worker wants to, for `ms`, and at the end of it.
    fn run(&mut self, ms: u64) -> Option<Exit> {
        let until = self.clock.0.load(Ordering::SeqCst) + ms;
        loop {
            let step = self.step();
            let now = self.clock.0.load(Ordering::SeqCst);
            if step.over.is_some() || now >= until {
                return step.over;
            }
            let next = u64::try_from(step.next.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
            self.clock.0.store(next.clamp(now, until), Ordering::SeqCst);
        }
    }

    /// Lets each `call` to paths with `part` take `ms`.
    fn slow(&self, call: Call, part: &'static str, ms: u64) {
        let mut slow = self.fs.inner().inner().pace.slow.lock().unwrap_or_else(|e| panic!("{e}"));
        slow.push((call, part, ms));
    }

    /// Runs for a minute, in which a copy takes many times the self-fence time; its signs of life go on.
    #[track_caller]
    fn outlasts(&mut self) {
        let (start, beats) = (self.clock.boot(), self.keeper.beats);
        assert_eq!(self.run(60_000), None);
        let span = self.clock.boot().saturating_sub(start);
        assert!(span > 4 * self.keeper.self_fence, "it took only {span:?}");
        assert!(!self.keeper.has_fenced, "the keeper would have ended the worker");
        assert!(self.keeper.beats - beats > 20, "{} beats in {span:?}", self.keeper.beats - beats);
        assert_eq!(self.process.signals, []);
    }

    fn rule(&self, rule: Rule) {
        self.fs.inner().add(rule);
    }

    /// Fills the disk: nothing can be created or written.
    fn fill_disk(&self) {
        self.rule(Rule::new(Call::Write, libc::ENOSPC));
        self.rule(Rule::new(Call::Create, libc::ENOSPC));
    }

    fn submit(&mut self, manifest: &Manifest) -> (Digest, Vec<u8>) {
        let bytes = to_document(manifest);
        self.fs.inner().inner().put(&layout::job(manifest.job), &bytes);
        (Digest::of(&bytes), bytes)
    }

    fn mail(&mut self, msg: Message) -> Mail {
        self.mail_count += 1;
        let m = self.mail_count;
        Mail {
            fq: "mail".into(),
            version: CURRENT,
            w: wid(),
            m,
            by: DecisionId { generation: m, nonce: Nonce(m) },
            msg,
        }
    }

    fn post(&mut self, msg: Message) {
        let mail = self.mail(msg);
        self.deliver(&mail);
    }

    fn deliver(&mut self, mail: &Mail) {
        self.fs.inner().inner().put(&layout::message(&mail.w, mail.m, mail.by), &to_document(mail));
        self.worker().hint();
    }

    /// Submits an array job and gives the worker these of its tasks.
    fn give(&mut self, manifest: &Manifest, tasks: &str) {
        let (sha, _) = self.submit(manifest);
        self.post(Message::Run(vec![item(sha, tasks)]));
    }

    /// All lines that another host would find after a power loss of this one.
    fn durable(&self) -> Vec<Line> {
        let memory = MemoryFs::clone(self.fs.inner().inner());
        memory.lose_power();
        self.lines()
    }

    fn lines(&self) -> Vec<Line> {
        let memory = self.fs.inner().inner();
        let news = journal::Tail::new(wid()).finish(memory).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(news.damaged, None);
        news.lines.into_iter().map(|(_, line)| line).collect()
    }

    fn ends(&self) -> Vec<EndLine> {
        self.lines().into_iter().filter_map(|line| if let Line::End(end) = line { Some(*end) } else { None }).collect()
    }

    fn released(&self) -> Vec<(Vec<AttemptId>, Requeue)> {
        let all = self.lines().into_iter();
        all.filter_map(|line| if let Line::Released { a, why } = line { Some((a, why)) } else { None }).collect()
    }
}

fn item(sha: Digest, tasks: &str) -> RunItem {
    RunItem { job: JobId(7), sha, uid: 0, tasks: tasks.parse().ok(), attempt: 1 }
}

/// A keeper tries again and again.
#[test]
fn a_worker_that_cannot_begin_leaves_nothing_behind() {
    for (call, part) in
        [(Call::Write, "store/log"), (Call::Sync, "store/log"), (Call::Create, "lock"), (Call::Mkdir, "log")]
    {
        let (fs, chance) = fresh();
        let before = fs.inner().inner().files();
        fs.inner().add(Rule::new(call, libc::ENOSPC).on(part));
        let mut bench = Bench::idle(&fs, &chance, &options());
        assert!(bench.with(|world| Worker::start(world, options())).is_err_and(|e| e.0.may_pass()));
        assert_eq!(fs.inner().inner().files(), before, "{call:?} {part}");
        assert_eq!(fs.list(layout::WORKERS.as_ref()), Ok(Vec::new()), "{call:?} {part}");
        assert_eq!(fs.list(layout::JOURNALS.as_ref()), Ok(Vec::new()), "{call:?} {part}");
    }
}

#[test]
fn no_task_starts_before_its_claim_is_durable() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.rule(Rule::new(Call::Sync, libc::EIO).on("store/log"));
    bench.give(&manifest("0-9"), "0-9");
    bench.run(5_000);
    assert_eq!(bench.process.count, 0);
    bench.fs.inner().heal();
    bench.run(40_000);
    assert_eq!(bench.process.count, 2, "as many as there are CPUs");
    assert!(bench.durable().iter().any(|line| matches!(line, Line::Claim { m: 1, .. })));
}

#[test]
fn tasks_get_their_arguments_and_variables() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let entries = Ref::Inline { bytes: Bytes::from("a\nb c\n") };
    bench.give(&Manifest { entries: Some(entries), ..manifest("3,5") }, "5");
    bench.run(100);
    let launch = &bench.process.launches[0];
    assert_eq!(launch.argv, [b"run".to_vec(), b"--in=b c".to_vec()]);
    let value = |name: &str| {
        let found = launch.env.iter().find(|(n, _)| n == name.as_bytes());
        found.map(|(_, v)| String::from_utf8_lossy(v).into_owned()).unwrap_or_default()
    };
    for (name, expected) in [
        ("PATH", "/bin"),
        ("A", "1"),
        ("FQ_DIR", "/q"),
        ("FQ_JOB_ID", "7_5"),
        ("FQ_ARRAY_JOB_ID", "7"),
        ("FQ_ARRAY_TASK_ID", "5"),
        ("FQ_ARRAY_TASK_COUNT", "2"),
        ("FQ_ARRAY_TASK_MIN", "3"),
        ("FQ_ARRAY_TASK_STEP", "2"),
        ("FQ_ENTRY", "b c"),
        ("FQ_ATTEMPT", "1"),
        ("FQ_TMP", "/tmp/w/7_5.1"),
        ("FQ_ATTEMPT_TOKEN", launch.token.as_str()),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[test]
fn an_ended_task_is_reported_with_its_output_and_leaves_nothing_behind() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&Manifest { stdout: Some("out/%x-%a.txt".into()), ..manifest("0-9") }, "3");
    bench.run(100);
    bench.process.print(1, b"hello");
    bench.run(2_000);
    let live = layout::output(&wid(), attempt(3), Stream::Stdout);
    assert_eq!(fs.inner().inner().get(&live).as_deref(), Some(&b"hello"[..]), "old output can be read by all");
    bench.process.end(1, Status::Exit(0));
    bench.run(200);
    let ends = bench.ends();
    assert_eq!(ends.len(), 1);
    assert_eq!((ends[0].a, &ends[0].how), (attempt(3), &Outcome::Ran(Status::Exit(0))));
    assert_eq!(ends[0].out, Ref::Inline { bytes: "hello".into() });
    assert_eq!(bench.outside.files.get(Path::new("/home/u/out/sweep-3.txt")).map(Vec::as_slice), Some(&b"hello"[..]));
    assert_eq!(fs.inner().inner().get(&live), None);
    assert!(bench.outside.dirs.is_empty());
}

#[test]
fn ends_of_one_step_share_one_sync() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 8, ..options() });
    bench.give(&manifest("0-7"), "0-7");
    bench.run(100);
    assert_eq!(bench.process.count, 8);
    let syncs = fs.counts().of(Call::Sync);
    for child in 1..=8 {
        bench.process.end(child, Status::Exit(0));
    }
    bench.run(200);
    assert_eq!(bench.ends().len(), 8);
    assert_eq!(fs.counts().of(Call::Sync), syncs + 1);
}

#[test]
fn a_withdrawal_behind_a_gap_is_not_overtaken_by_its_bundle() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let (sha, _) = bench.submit(&manifest("0-9"));
    let run = bench.mail(Message::Run(vec![item(sha, "0")]));
    let withdraw = bench.mail(Message::Withdraw { attempts: vec![attempt(0)], kill: false });
    bench.deliver(&withdraw);
    bench.run(3_000);
    assert!(bench.lines().iter().all(|line| !matches!(line, Line::Got { .. })), "message 2 waits for message 1");
    bench.deliver(&run);
    bench.run(3_000);
    assert_eq!(bench.process.count, 0);
    assert_eq!(bench.released(), [(vec![attempt(0)], Requeue::Withdrawn)]);
}

#[test]
fn what_is_withdrawn_before_it_starts_never_starts() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 1, ..options() });
    bench.give(&manifest("0-9"), "0-2");
    bench.run(100);
    bench.post(Message::Withdraw { attempts: vec![attempt(1)], kill: false });
    bench.run(100);
    bench.process.end(1, Status::Exit(0));
    bench.run(1_000);
    bench.process.end(2, Status::Exit(0));
    bench.run(1_000);
    let mut ended: Vec<AttemptId> = bench.ends().iter().map(|end| end.a).collect();
    ended.sort_unstable();
    assert_eq!(ended, [attempt(0), attempt(2)]);
}

#[test]
fn a_cancelled_task_gets_term_and_then_kill() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.process.dies_of = Some(Signal::Kill);
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.post(Message::Withdraw { attempts: vec![attempt(0)], kill: true });
    bench.run(9_000);
    assert_eq!(bench.process.signals, [(Child(1), Signal::Term)]);
    bench.run(2_000);
    assert_eq!(bench.process.signals, [(Child(1), Signal::Term), (Child(1), Signal::Kill)]);
    assert_eq!(bench.ends()[0].how, Outcome::Cancelled(Status::Signal(9)));
}

#[test]
fn a_task_over_its_time_limit_gets_term_and_then_kill() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.process.dies_of = Some(Signal::Kill);
    bench.give(&Manifest { needs: Needs { time_ms: 60_000, ..Needs::default() }, ..manifest("0-9") }, "0");
    bench.run(59_000);
    assert_eq!(bench.process.signals, []);
    bench.run(2_000);
    assert_eq!(bench.process.signals, [(Child(1), Signal::Term)]);
    bench.run(10_000);
    assert_eq!(bench.ends()[0].how, Outcome::Timeout(Status::Signal(9)));
}

#[test]
fn a_full_disk_pauses_the_worker_and_the_result_is_whole_afterwards() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 1, ..options() });
    bench.give(&manifest("0-9"), "0-1");
    bench.run(100);
    let text: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    bench.process.print(1, &text[..10_000]);
    bench.run(100);
    bench.fill_disk();
    bench.process.print(1, &text[10_000..100_000]);
    bench.run(100);
    assert!(bench.worker().paused().is_some());
    bench.process.print(1, &text[100_000..]);
    bench.process.end(1, Status::Exit(0));
    bench.run(30_000);
    assert_eq!(bench.process.count, 1, "nothing new is started");
    bench.fs.inner().heal();
    bench.run(40_000);
    assert_eq!(bench.worker().paused(), None);
    let ends = bench.ends();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].how, Outcome::Ran(Status::Exit(0)));
    assert_eq!(store::read(&fs, &ends[0].out).ok(), Some(text));
    assert_eq!(bench.process.count, 2, "work goes on");
    let lines = bench.lines();
    let at = |wanted: fn(&Line) -> bool| lines.iter().position(wanted);
    assert!(at(|line| matches!(line, Line::Pause { .. })) < at(|line| matches!(line, Line::Resume)));
}

#[test]
fn a_worker_that_is_to_end_on_a_full_disk_does_not_wait_for_ever() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.fill_disk();
    bench.process.print(1, &[b'x'; 10_000]);
    bench.process.end(1, Status::Exit(0));
    bench.run(100);
    bench.worker().drain(Hand::Back, Requeue::Drained, "it is told to");
    let over = bench.run(60_000);
    assert_eq!(over.map(|exit| exit.code), Some(EXIT_STUCK));
    assert_eq!(bench.ends(), [], "nothing is claimed that is not there");
}

#[test]
fn outputs_that_cannot_be_stored_are_given_up_where_the_journal_can_be_written() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.fs.inner().add(Rule::new(Call::Create, libc::ENOSPC).on("store/packs"));
    bench.process.print(1, &[b'x'; 10_000]);
    bench.process.end(1, Status::Exit(0));
    bench.run(100);
    bench.worker().drain(Hand::Back, Requeue::Walltime, "its lifetime is over");
    let over = bench.run(60_000);
    assert_eq!(over.map(|exit| exit.code), Some(0));
    assert_eq!(bench.ends()[0].how, Outcome::Requeue(Requeue::Walltime));
}

#[test]
fn a_large_output_becomes_a_loose_object() {
    let (fs, chance) = fresh();
    let limits = Limits { pack_item_max: 100_000, ..Limits::default() };
    let mut bench = Bench::new(&fs, &chance, Options { limits, ..options() });
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    let mut all = Vec::new();
    for i in 0..40_u8 {
        let piece = vec![i; 10_000];
        bench.process.print(1, &piece);
        bench.run(10);
        all.extend(piece);
    }
    bench.process.end(1, Status::Exit(0));
    bench.run(200);
    let out = &bench.ends()[0].out;
    assert!(matches!(out, Ref::Loose { len: 400_000, .. }), "{out:?}");
    assert_eq!(store::read(&fs, out).ok(), Some(all));
}

/// Enough for many pieces, whatever the size of a piece.
const HUGE: usize = 40 << 20;

/// A worker whose only task has written a huge output and ended.
fn with_huge_output<'a>(fs: &'a TestFs, chance: &'a TestChance, manifest: &Manifest, limits: Limits) -> Bench<'a> {
    let mut bench = Bench::new(fs, chance, Options { limits, ..options() });
    bench.give(manifest, "0");
    bench.run(100);
    bench.process.print(1, &vec![b'x'; HUGE]);
    bench.run(100);
    bench.process.end(1, Status::Exit(0));
    bench
}

#[test]
fn signs_of_life_go_on_while_a_large_output_is_stored() {
    for (call, part) in [(Call::Read, "out/"), (Call::Write, "objects")] {
        let (fs, chance) = fresh();
        let mut bench = with_huge_output(&fs, &chance, &manifest("0-9"), Limits::default());
        bench.slow(call, part, 10_000);
        bench.outlasts();
        assert_eq!(bench.ends()[0].out.len(), HUGE as u64);
    }
}

#[test]
fn signs_of_life_go_on_while_small_outputs_are_stored() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 64, ..options() });
    bench.give(&manifest("0-99"), "0-63");
    bench.run(100);
    for child in 1..=64 {
        bench.process.print(child, &[b'x'; 10_000]);
    }
    bench.run(100);
    bench.slow(Call::Read, "out/", 10_000);
    for child in 1..=64 {
        bench.process.end(child, Status::Exit(0));
    }
    bench.outlasts();
    assert_eq!(bench.ends().len(), 64);
}

#[test]
fn signs_of_life_go_on_while_output_is_published() {
    let (fs, chance) = fresh();
    let wanted = Manifest { stdout: Some("out".into()), stderr: Some("err".into()), ..manifest("0-9") };
    let mut bench = with_huge_output(&fs, &chance, &wanted, Limits::default());
    bench.outside.piece_ms = 10_000;
    bench.outlasts();
    assert_eq!(bench.outside.files.get(Path::new("/home/u/out")).map(Vec::len), Some(HUGE));
    assert_eq!(bench.ends()[0].notes, [""; 0]);
}

#[test]
fn signs_of_life_go_on_while_output_waits_to_be_spilled() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 64, ..options() });
    bench.give(&manifest("0-99"), "0-63");
    bench.run(100);
    bench.slow(Call::Write, "out/", 10_000);
    for child in 1..=64 {
        bench.process.print(child, b"x");
    }
    bench.outlasts();
}

#[test]
fn signs_of_life_go_on_while_input_and_script_are_brought() {
    let huge = |fs: &TestFs, chance: &TestChance| {
        store::put_loose(fs, chance, &vec![b'x'; HUGE]).unwrap_or_else(|e| panic!("{e}"))
    };
    let wants = [("stdin", true), ("stdin", false), ("script", true), ("script", false), ("entries", true)];
    for (what, is_source_slow) in wants {
        let (fs, chance) = fresh();
        let mut bench = Bench::new(&fs, &chance, options());
        let (huge, plain) = (huge(&fs, &chance), manifest("0-9"));
        let wanted = match what {
            "stdin" => Manifest { stdin: Some(huge), ..plain },
            "entries" => Manifest { entries: Some(huge), array: None, ..plain },
            _ => Manifest { command: Command::Script { name: "s".into(), bytes: huge, args: Vec::new() }, ..plain },
        };
        bench.give(&wanted, "0");
        if is_source_slow {
            bench.slow(Call::Read, "objects", 13_000);
        } else {
            bench.outside.piece_ms = 13_000;
        }
        bench.outlasts();
        assert_eq!(bench.process.count, 1, "{what}: {:?}", bench.ends());
    }
}

#[test]
fn a_time_limit_begins_when_the_task_does() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let stdin = store::put_loose(&fs, &chance, &vec![b'x'; HUGE]).ok();
    let needs = Needs { time_ms: 100_000, ..Needs::default() };
    bench.give(&Manifest { stdin, needs, ..manifest("0-9") }, "0");
    bench.slow(Call::Read, "objects", 13_000);
    bench.outlasts();
    assert_eq!(bench.process.count, 1);
    bench.run(90_000);
    assert_eq!(bench.process.signals, []);
    bench.run(20_000);
    assert_eq!(bench.process.signals.first(), Some(&(Child(1), Signal::Term)));
}

#[test]
fn nothing_is_published_once_the_lease_is_over() {
    let (fs, chance) = fresh();
    let wanted = Manifest { stdout: Some("out".into()), ..manifest("0-9") };
    let mut bench = with_huge_output(&fs, &chance, &wanted, Limits::default());
    bench.outside.piece_ms = 10_000;
    bench.rule(Rule::new(Call::Sync, libc::EIO).on("store/log"));
    let exit = bench.run(60_000).or_else(|| bench.run(1_000));
    assert_eq!(exit.map(|exit| exit.code), Some(EXIT_FENCED));
    assert!(bench.outside.files.is_empty());
    assert!(bench.clock.boot() < Duration::from_secs(1_000 + 200), "the copy ends with the lease");
    let tries = fs.counts().of(Call::Create);
    assert!(tries < 60, "{tries} segments were tried");
}

/// An observer may have read a line long before its sync succeeds, and counts silence from then.
#[test]
fn the_lease_is_proved_by_lines_that_nobody_has_read_before() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.rule(Rule::new(Call::Sync, libc::EIO).on("store/log"));
    bench.run(60_000);
    let before = bench.lines().len();
    bench.fs.inner().heal();
    let beats = bench.keeper.beats;
    while bench.keeper.beats == beats {
        bench.run(1_000);
    }
    let news = &bench.lines()[before..];
    assert!(matches!(news.first(), Some(Line::Beat { .. })), "{news:?}");
}

#[test]
fn a_worker_whose_keeper_is_gone_waits_for_its_tasks_without_hurry() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&manifest("0-9"), "0-1");
    bench.run(100);
    let calls = fs.counts();
    let mut steps = 0;
    let exit = loop {
        let Some(mut worker) = bench.worker.take() else { panic!("there is a worker") };
        bench.with(|world| worker.lose_keeper(world));
        bench.worker = Some(worker);
        let step = bench.step();
        steps += 1;
        if step.over.is_some() {
            break step.over;
        }
        bench.clock.pass(u64::try_from(step.next.saturating_sub(bench.clock.boot()).as_millis()).unwrap_or(0).max(1));
    };
    assert_eq!(
        exit.map(|exit| exit.code),
        Some(EXIT_FENCED),
        "its tasks cannot be ended, and it does not wait for ever"
    );
    assert!(steps <= 60, "{steps} steps");
    assert_eq!(bench.process.signals, [(Child(1), Signal::Kill), (Child(2), Signal::Kill)], "once each");
    assert_eq!((fs.counts() - calls).total(), 0);
}

#[test]
fn output_that_the_file_system_lost_makes_no_result() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.process.print(1, &[b'x'; 10_000]);
    bench.run(100);
    fs.inner().inner().tamper(&layout::output(&wid(), attempt(0), Stream::Stdout), |bytes| bytes[5] = 0);
    bench.process.end(1, Status::Exit(0));
    bench.run(200);
    assert_eq!(bench.ends()[0].how, Outcome::Requeue(Requeue::Storage));
}

#[test]
fn a_worker_that_cannot_write_for_its_self_fence_time_ends_its_tasks() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.process.dies_of = Some(Signal::Kill);
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    bench.rule(Rule::new(Call::Sync, libc::EIO));
    assert_eq!(bench.run(100_000), None);
    assert_eq!(bench.process.signals, []);
    let exit = bench.run(21_000);
    assert_eq!(exit.map(|exit| exit.code), Some(EXIT_FENCED));
    assert_eq!(bench.process.signals, [(Child(1), Signal::Kill)]);
}

#[test]
fn a_worker_that_was_declared_lost_writes_nothing_more() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.process.dies_of = Some(Signal::Kill);
    bench.give(&manifest("0-9"), "0");
    bench.run(100);
    let before = bench.lines();
    bench.post(Message::Fence);
    assert_eq!(bench.run(10_000).map(|exit| exit.code), Some(EXIT_FENCED));
    assert_eq!(bench.lines(), before);
}

#[test]
fn an_idle_worker_stays_within_its_budget_of_calls() {
    let (fs, chance) = fresh();
    let before = fs.counts().total();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.run(300_000);
    let first = fs.counts().total() - before;
    assert!(first <= 300, "{first} calls in the first five minutes");
    let before = fs.counts().total();
    bench.run(3_600_000);
    let later = fs.counts().total() - before;
    assert!(later <= 720, "{later} calls in an hour");
    assert!(later >= 240, "beats go on");
}

#[test]
fn a_manifest_of_somebody_else_is_refused() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let (sha, _) = bench.submit(&manifest("0-9"));
    // The message says 1001, whom this worker trusts; the file belongs to 0.
    bench.post(Message::Run(vec![RunItem { uid: 1001, ..item(sha, "0") }]));
    bench.run(200);
    assert_eq!(bench.process.count, 0);
    assert!(matches!(bench.ends()[0].how, Outcome::Refused(_)));
}

#[test]
fn a_manifest_that_was_changed_is_refused() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let (sha, _) = bench.submit(&manifest("0-9"));
    bench.submit(&Manifest { command: Command::Shell("evil".into()), ..manifest("0-9") });
    bench.post(Message::Run(vec![item(sha, "0-1")]));
    bench.run(200);
    assert_eq!(bench.process.count, 0);
    assert_eq!(bench.ends().len(), 2);
}

#[test]
fn a_manifest_that_is_not_visible_yet_is_waited_for() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let sha = Digest::of(&to_document(&manifest("0-9")));
    bench.post(Message::Run(vec![item(sha, "0")]));
    bench.run(60_000);
    assert!(bench.ends().is_empty());
    bench.submit(&manifest("0-9"));
    bench.run(2_000);
    assert_eq!(bench.process.count, 1);
}

#[test]
fn a_manifest_that_never_appears_is_a_failure_to_set_up() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    bench.post(Message::Run(vec![item(Digest::of(b"x"), "0")]));
    bench.run(100_000);
    assert!(matches!(bench.ends()[0].how, Outcome::Setup(_)));
}

#[test]
fn handing_back_releases_what_waits_and_requeues_what_runs() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 1, ..options() });
    bench.process.dies_of = Some(Signal::Term);
    bench.give(&manifest("0-9"), "0-2");
    bench.run(100);
    bench.worker().drain(Hand::Back, Requeue::Drained, "told to end");
    let exit = bench.run(5_000);
    assert_eq!(exit, Some(Exit { code: 0, why: "told to end".into() }));
    assert_eq!(bench.released(), [(vec![attempt(1), attempt(2)], Requeue::Drained)]);
    assert_eq!(bench.ends()[0].how, Outcome::Requeue(Requeue::Drained));
    assert!(matches!(bench.durable().last(), Some(Line::Bye { .. } | Line::Mark { .. })));
    assert!(fs.inner().inner().get(&layout::bye(&wid())).is_some());
}

#[test]
fn finishing_lets_running_tasks_end_by_themselves() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { cpus: 1, ..options() });
    bench.give(&manifest("0-9"), "0-1");
    bench.run(100);
    bench.post(Message::Drain);
    assert_eq!(bench.run(60_000), None);
    assert_eq!(bench.process.signals, []);
    bench.process.end(1, Status::Exit(3));
    assert_eq!(bench.run(1_000).map(|exit| exit.code), Some(0));
    assert_eq!(bench.ends()[0].how, Outcome::Ran(Status::Exit(3)));
}

#[test]
fn a_worker_for_one_task_gives_the_others_back() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { once: true, ..options() });
    bench.give(&manifest("0-9"), "0-1");
    bench.run(100);
    bench.process.end(1, Status::Exit(0));
    assert_eq!(bench.run(1_000).map(|exit| exit.code), Some(0));
    assert_eq!(bench.process.count, 1);
    assert_eq!(bench.released(), [(vec![attempt(1)], Requeue::Drained)]);
}

#[test]
fn an_empty_queue_ends_the_worker_only_when_nothing_can_progress() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { until_empty: true, ..options() });
    assert_eq!(bench.run(60_000), None);
    bench.can_progress = None;
    assert_eq!(bench.run(60_000), None);
    bench.can_progress = Some(false);
    assert_eq!(bench.run(5_000).map(|exit| exit.code), Some(0));
}

#[test]
fn a_worker_at_the_end_of_its_lifetime_hands_back() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, Options { lifetime: Some(Duration::from_secs(100)), ..options() });
    bench.process.dies_of = Some(Signal::Term);
    bench.give(&manifest("0-9"), "0");
    assert_eq!(bench.run(99_000), None);
    assert_eq!(bench.run(5_000).map(|exit| exit.code), Some(0));
    assert_eq!(bench.ends()[0].how, Outcome::Requeue(Requeue::Walltime));
}

#[test]
fn two_messages_with_one_number_drain_the_worker() {
    let (fs, chance) = fresh();
    let mut bench = Bench::new(&fs, &chance, options());
    let mail = bench.mail(Message::Drain);
    bench.deliver(&mail);
    bench.deliver(&Mail { by: DecisionId { generation: 1, nonce: Nonce(99) }, ..mail });
    let exit = bench.run(5_000);
    assert!(exit.is_some_and(|exit| exit.why.contains("forked")));
}

/// How old its newest sign of life is when a worker hears that it is durable, where a sync takes 15 s: an observer may have read the
/// line all that while.
fn age_of_a_slow_sign_of_life(mutant: Option<Mutant>) -> Duration {
    let play = || {
        let (fs, chance) = fresh();
        let mut bench = Bench::new(&fs, &chance, options());
        bench.run(1_000);
        bench.slow(Call::Sync, "store/log", 15_000);
        let beats = bench.keeper.beats;
        while bench.keeper.beats == beats {
            let step = bench.step();
            bench.clock.pass(u64::from(step.over.is_none() && bench.keeper.beats == beats) * 10);
        }
        bench.clock.boot().saturating_sub(Duration::from_millis(bench.keeper.beat_ms))
    };
    mutant.map_or_else(play, |mutant| mutant::with(mutant, play))
}

#[test]
fn a_lease_counts_from_before_a_line_was_written_however_long_its_sync_takes() {
    assert!(age_of_a_slow_sign_of_life(None) >= Duration::from_secs(15));
    assert!(age_of_a_slow_sign_of_life(Some(Mutant::LateProof)) < Duration::from_secs(15), "the test shows nothing");
}
