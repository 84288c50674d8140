//! A queue whose workers, keepers and masters are killed, stopped and told to end at random while it works; and what must hold in
//! the end all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fq::client::logs;
use fq::client::view;
use fq::decision::{self, Reader};
use fq::process::Stream;
use fq::protocol::id::TaskId;
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::{Departure, Limits};
use fq::queue::Queue;
use fq::state::WorkerStatus;
use rustix::process::{Pid, Signal};

/// How long the rest may take once nothing is hurt any more.
const PATIENCE: Duration = Duration::from_secs(300);
/// From one look at the processes to the next.
const TICK: Duration = Duration::from_millis(50);
/// From one look at the queue to the next.
const LOOK: Duration = Duration::from_millis(500);

/// What to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How many tasks, at least 20.
    pub(crate) tasks: u64,
    /// How many workers, of two CPUs each.
    pub(crate) workers: usize,
    /// How many processes that only lead.
    pub(crate) masters: usize,
    /// The tasks are long enough to keep the workers busy for about this time, and hurt they are only during it.
    pub(crate) seconds: u64,
    /// Decides what is hurt, how and when, as far as a test decides over processes.
    pub(crate) seed: u64,
    /// An absent or empty directory.
    pub(crate) dir: PathBuf,
    /// The program.
    pub(crate) fq: PathBuf,
}

/// Short enough that a pause of seconds is longer than the lease.
fn limits() -> Limits {
    let limits = Limits {
        beat_ms: 500,
        self_fence_ms: 3000,
        grace_ms: 500,
        suspect_ms: 2000,
        lease_ms: 6000,
        takeover_ms: 3000,
        poll_ms: 200,
        idle_poll_ms: 500,
        backoff_ms: (50, 500),
        // That somebody is hit again and again is what this is about.
        crash_limit: 1000,
        snapshot_every: 50,
        ..Limits::default()
    };
    assert_eq!(limits.check(), Ok(()));
    limits
}

/// What was done, and what came of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    worker_kills: u32,
    keeper_kills: u32,
    kills_of_both: u32,
    kills_of_all: u32,
    master_kills: u32,
    stops: u32,
    terms: u32,
    starts: u32,
    tasks: usize,
    attempts: usize,
    executions: usize,
    lost_attempts: usize,
    requeued_attempts: usize,
    workers_seen: usize,
    workers_lost: usize,
    reigns: u64,
    decisions: u64,
    bytes: u64,
    seconds: u64,
}

impl Tally {
    /// How often somebody was hurt.
    fn hurt(&self) -> u32 {
        let kills = self.worker_kills + self.keeper_kills + self.kills_of_both + self.kills_of_all + self.master_kills;
        kills + self.stops + self.terms
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "hurt:      {} workers, {} keepers, {} of both, {} times all, {} masters killed; {} stopped; {} told to end; {} started",
            self.worker_kills,
            self.keeper_kills,
            self.kills_of_both,
            self.kills_of_all,
            self.master_kills,
            self.stops,
            self.terms,
            self.starts
        )?;
        writeln!(
            f,
            "tasks:     {} done with {} attempts: {} executed, {} lost, {} requeued; {} bytes of results",
            self.tasks, self.attempts, self.executions, self.lost_attempts, self.requeued_attempts, self.bytes
        )?;
        writeln!(
            f,
            "queue:     {} workers, {} of them lost; {} reigns; {} decisions; {} s",
            self.workers_seen, self.workers_lost, self.reigns, self.decisions, self.seconds
        )?;
        f.write_str(
            "invariants: every task done; exactly one accepted result each, with the right bytes; no attempt executed twice; \
             one token; queue sound in every byte; no process left; no worker left early; nothing panicked; no human step",
        )
    }
}

/// Runs `plan`. Fails with what does not hold.
pub(crate) fn run(plan: &Plan, say: &dyn Fn(&str)) -> Result<Tally, String> {
    // Processes are known by the whole paths of their program and their queue.
    fs::create_dir_all(&plan.dir).map_err(|e| format!("cannot make `{}`: {e}", plan.dir.display()))?;
    let whole = |path: &Path| fs::canonicalize(path).map_err(|e| format!("`{}`: {e}", path.display()));
    let plan = &Plan { dir: whole(&plan.dir)?, fq: whole(&plan.fq)?, ..plan.clone() };
    let mut chaos = Chaos::new(plan)?;
    let outcome = chaos.play(say).and_then(|()| chaos.judge());
    chaos.end_all();
    outcome.map(|()| chaos.tally.clone()).map_err(|why| format!("seed {}: {why}\n{}", plan.seed, chaos.tally))
}

/// The kinds of tasks: each has its job or jobs, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small,
    Kilobytes,
    Large,
    FailsFirst,
    After,
}

impl Kind {
    /// How many of a hundred.
    const SHARES: [(Self, u64); 5] =
        [(Self::Small, 40), (Self::Kilobytes, 20), (Self::Large, 10), (Self::FailsFirst, 15), (Self::After, 15)];

    fn len(self) -> usize {
        match self {
            Self::Kilobytes => 10_240,
            Self::Large => 300_000,
            _ => 100,
        }
    }

    fn expected(self, id: TaskId) -> Vec<u8> {
        let line = format!("{id} says {self:?}\n");
        line.bytes().cycle().take(self.len()).collect()
    }

    fn script(self, side: &Path, span: Duration) -> String {
        let side = side.display();
        let fails = if self == Self::FailsFirst {
            format!("mkdir {side}/$FQ_JOB_ID 2>/dev/null && exit 3; ")
        } else {
            String::new()
        };
        format!(
            "echo \"$FQ_JOB_ID $FQ_ATTEMPT\" >> {side}/runs; {fails}sleep {:.2}; yes \"$FQ_JOB_ID says {self:?}\" | head -c {}",
            span.as_secs_f64(),
            self.len()
        )
    }
}

/// A place for a process, which is started again when it has ended.
struct Slot {
    is_master: bool,
    child: Option<Child>,
    /// The worker proper below a keeper.
    worker: Option<u32>,
    stopped_until: Option<Instant>,
    start_at: Instant,
    told_to_end: bool,
}

struct Chaos<'a> {
    plan: &'a Plan,
    random: u64,
    slots: Vec<Slot>,
    jobs: Vec<Kind>,
    tally: Tally,
    begun: Instant,
}

impl<'a> Chaos<'a> {
    fn new(plan: &'a Plan) -> Result<Self, String> {
        for dir in ["side", "tmp", "log"] {
            fs::create_dir_all(plan.dir.join(dir)).map_err(|e| format!("cannot make `{dir}`: {e}"))?;
        }
        let now = Instant::now();
        let slot = |n| Slot {
            is_master: n >= plan.workers,
            child: None,
            worker: None,
            stopped_until: None,
            start_at: now,
            told_to_end: false,
        };
        let slots = (0..plan.workers + plan.masters).map(slot).collect();
        let chaos =
            Self { plan, random: plan.seed, slots, jobs: Vec::new(), tally: Tally::default(), begun: Instant::now() };
        chaos.fq(&["init"])?;
        fs::write(chaos.queue().join("limits.json"), fq::queue::limits_text(&limits())).map_err(|e| e.to_string())?;
        Ok(chaos)
    }

    fn queue(&self) -> PathBuf {
        self.plan.dir.join("q")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.plan.fq);
        command.env("FQ_DIR", self.queue()).env("TMPDIR", self.plan.dir.join("tmp")).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end and returns what it printed.
    fn fq(&self, args: &[&str]) -> Result<Vec<u8>, String> {
        let output = self.command().args(args).output().map_err(|e| format!("cannot start fq: {e}"))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("fq {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Splitmix64: the next of a sequence that the seed decides.
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    /// Submits the tasks of a kind; those of the last depend on two jobs before it.
    fn submit(&mut self, kind: Kind, share: u64) -> Result<(), String> {
        let count = (self.plan.tasks * share / 100).max(1);
        let busy_ms = self.plan.seconds * 1000 * self.plan.workers as u64 * 2;
        let span = Duration::from_millis(busy_ms / self.plan.tasks * 6 / 10);
        let script = kind.script(&self.plan.dir.join("side"), span);
        let array = format!("0-{}", count - 1);
        let mut args = vec!["submit", "-a", &array, "--wrap", &script];
        match kind {
            Kind::FailsFirst => args.extend(["--retries", "3"]),
            Kind::After => args.extend(["-d", "afterok:1:4"]),
            _ => {}
        }
        self.fq(&args)?;
        self.jobs.push(kind);
        Ok(())
    }

    /// Submits everything, lets the processes work and hurts them until all tasks have ended and all processes too.
    fn play(&mut self, say: &dyn Fn(&str)) -> Result<(), String> {
        let queue = Queue::open(&self.queue()).map_err(|e| e.to_string())?;
        let mut reader = Reader::open(queue.fs.as_ref()).map_err(|e| e.to_string())?;
        let calm = self.begun + Duration::from_secs(self.plan.seconds);
        let (mut hurt_at, mut look_at, mut say_at) = (self.begun, self.begun, self.begun);
        for (kind, share) in Kind::SHARES {
            self.submit(kind, share)?;
        }
        loop {
            let now = Instant::now();
            let mut is_over = false;
            if now >= look_at {
                look_at = now + LOOK;
                reader.refresh(queue.fs.as_ref()).map_err(|e| format!("the chain: {e}"))?;
                let counts = reader.state().counts();
                is_over = reader.state().jobs.len() == self.jobs.len() && counts.all_ended();
                if now >= say_at || is_over {
                    say_at = now + Duration::from_secs(5);
                    let (ended, all) = (counts.ended(), counts.total());
                    say(&format!("{:3} s: {ended} of {all} tasks ended", self.begun.elapsed().as_secs()));
                }
            }
            if is_over {
                break;
            }
            if now > calm + PATIENCE {
                let status = self.fq(&["status"])?;
                return Err(format!("not all tasks have ended:\n{}", String::from_utf8_lossy(&status)));
            }
            self.attend(now, false)?;
            if now < calm && now >= hurt_at {
                hurt_at = now + self.millis(400, 1600);
                self.hurt(now);
            }
            std::thread::sleep(TICK);
        }
        self.tally.seconds = self.begun.elapsed().as_secs();
        self.wait_for_ends()
    }

    /// Nobody is told to end: all see that the queue is empty.
    fn wait_for_ends(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while self.slots.iter().any(|slot| slot.child.is_some()) || !self.processes().is_empty() {
            self.attend(Instant::now(), true)?;
            if begun.elapsed() > PATIENCE {
                return Err(format!("processes are left: {:?}", self.processes()));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Takes note of ends, starts and wakes what is due.
    fn attend(&mut self, now: Instant, is_over: bool) -> Result<(), String> {
        for at in 0..self.slots.len() {
            let delay = self.millis(300, 2000);
            let slot = &mut self.slots[at];
            if slot.stopped_until.is_some_and(|until| now >= until || is_over) {
                slot.stopped_until = None;
                for pid in slot.pids() {
                    send(pid, Signal::CONT);
                }
            }
            if let Some(child) = &mut slot.child {
                if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                    let left_early = status.code() == Some(0) && !slot.told_to_end && !is_over;
                    slot.child = None;
                    slot.worker = None;
                    slot.told_to_end = false;
                    slot.stopped_until = None;
                    slot.start_at = now + delay;
                    // It may have seen the end before we did.
                    if left_early && !self.all_ended()? {
                        return Err("a process left although there was work".into());
                    }
                } else if slot.worker.is_none() && !slot.is_master {
                    slot.worker = worker_of(child.id(), &self.plan.fq);
                }
            } else if now >= slot.start_at && !is_over {
                self.start(at)?;
            }
        }
        Ok(())
    }

    fn all_ended(&self) -> Result<bool, String> {
        let queue = Queue::open(&self.queue()).map_err(|e| e.to_string())?;
        let reader = Reader::open(queue.fs.as_ref()).map_err(|e| format!("the chain: {e}"))?;
        Ok(reader.state().counts().all_ended())
    }

    fn start(&mut self, at: usize) -> Result<(), String> {
        self.tally.starts += 1;
        let log = self.plan.dir.join("log").join(format!("{:04}", self.tally.starts));
        let file = File::create(log).map_err(|e| e.to_string())?;
        let mut command = self.command();
        if self.slots[at].is_master {
            command.args(["master", "--until-empty"]);
        } else {
            command.args(["worker", "-c", "2", "--until-empty"]);
        }
        command.stdout(file.try_clone().map_err(|e| e.to_string())?).stderr(file);
        self.slots[at].child = Some(command.spawn().map_err(|e| e.to_string())?);
        Ok(())
    }

    /// Does something bad to somebody.
    fn hurt(&mut self, now: Instant) {
        let dice = self.below(100);
        let is_master = matches!(dice, 70..=84);
        let alive: Vec<usize> =
            (0..self.slots.len()).filter(|&i| self.slots[i].is_master == is_master && self.slots[i].is_up()).collect();
        if alive.is_empty() {
            return;
        }
        let at = alive[self.below(alive.len() as u64) as usize];
        let pause = self.millis(500, 10_000);
        let slot = &mut self.slots[at];
        match dice {
            0..=14 => {
                self.tally.worker_kills += 1;
                slot.worker.into_iter().for_each(|pid| send(pid, Signal::KILL));
            }
            15..=27 => {
                self.tally.keeper_kills += 1;
                slot.child.iter().for_each(|child| send(child.id(), Signal::KILL));
            }
            28..=42 => {
                self.tally.kills_of_both += 1;
                slot.kill();
            }
            43..=54 => {
                self.tally.stops += 1;
                slot.stopped_until = Some(now + pause);
                slot.pids().into_iter().for_each(|pid| send(pid, Signal::STOP));
            }
            55..=60 => {
                self.tally.stops += 1;
                slot.stopped_until = Some(now + pause);
                slot.worker.into_iter().for_each(|pid| send(pid, Signal::STOP));
            }
            61..=69 => {
                self.tally.terms += 1;
                slot.told_to_end = true;
                slot.child.iter().for_each(|child| send(child.id(), Signal::TERM));
            }
            70..=78 => {
                self.tally.master_kills += 1;
                slot.kill();
            }
            79..=84 => {
                self.tally.stops += 1;
                slot.stopped_until = Some(now + pause);
                slot.pids().into_iter().for_each(|pid| send(pid, Signal::STOP));
            }
            85..=88 => {
                self.tally.kills_of_all += 1;
                self.slots.iter_mut().for_each(Slot::kill);
            }
            _ => {}
        }
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

    fn end_all(&mut self) {
        self.slots.iter_mut().for_each(Slot::kill);
        for pid in self.processes() {
            send(pid, Signal::KILL);
        }
    }

    /// Compares what there is in the end with what must be.
    fn judge(&mut self) -> Result<(), String> {
        let queue = Queue::open(&self.queue()).map_err(|e| e.to_string())?;
        let fs = queue.fs.as_ref();
        let reader = Reader::open(fs).map_err(|e| format!("the chain: {e}"))?;
        let state = reader.state();
        let mut executed: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        let runs = fs::read_to_string(self.plan.dir.join("side/runs")).map_err(|e| e.to_string())?;
        for line in runs.lines() {
            self.tally.executions += 1;
            let (task, attempt) = line.split_once(' ').ok_or("a line of `runs` is cut")?;
            let attempt = attempt.parse().map_err(|_| "a line of `runs` is cut")?;
            if !executed.entry(task.to_owned()).or_default().insert(attempt) {
                return Err(format!("attempt {attempt} of {task} was executed twice"));
            }
        }
        for (job, &kind) in state.jobs.values().zip(&self.jobs) {
            for (position, task) in (0..).zip(&job.tasks) {
                let id = job.task_id(position);
                if task.state != TaskState::Done {
                    return Err(format!("{id} is {}", task.state.word()));
                }
                let records = view::attempt_records(job, position);
                let done = records.iter().filter(|record| record.how == "done").count();
                let last = records.last().filter(|record| record.how == "done" && done == 1);
                let last = last.ok_or_else(|| format!("{id} has {done} accepted results: {records:?}"))?;
                if !executed.get(&id.to_string()).is_some_and(|attempts| attempts.contains(&last.attempt)) {
                    return Err(format!("attempt {} of {id} was accepted and never executed", last.attempt));
                }
                let output = logs::locate(fs, state, job, position, last, Stream::Stdout);
                let mut bytes = Vec::new();
                logs::copy(fs, &output, &mut 0, &mut |more| bytes.extend_from_slice(more))
                    .map_err(|e| format!("the result of {id}: {e}"))?;
                if bytes != kind.expected(id) {
                    return Err(format!("the result of {id} has {} bytes, and wrong ones", bytes.len()));
                }
                self.tally.tasks += 1;
                self.tally.bytes += bytes.len() as u64;
                self.tally.attempts += records.len();
                self.tally.lost_attempts += records.iter().filter(|record| record.how == "lost").count();
                self.tally.requeued_attempts += records.iter().filter(|record| record.how == "requeued").count();
            }
            // The program says the same as the library.
            let id = job.task_id(0);
            if self.fq(&["result", &id.to_string()])? != kind.expected(id) {
                return Err(format!("`fq result {id}` prints wrong bytes"));
            }
        }
        let hurt = self.tally.hurt();
        if u64::from(hurt) < self.plan.seconds / 5 {
            return Err(format!("only {hurt} times was anybody hurt: that proves nothing"));
        }
        self.tally.workers_seen = state.workers.len();
        let is_lost = |status: &WorkerStatus| matches!(status, WorkerStatus::Gone(Departure::Lost, _));
        self.tally.workers_lost = state.workers.values().filter(|worker| is_lost(&worker.status)).count();
        (self.tally.reigns, self.tally.decisions) = (state.term, state.at.generation);
        if !matches!(decision::look(fs), Ok(decision::Look::Alone(id)) if id == state.at) {
            return Err("the token is not alone, or not where the chain ends".into());
        }
        let report = fq::check::check(fs, true, &mut |_| {});
        if !report.is_sound() {
            return Err(format!("the queue is not sound: {:#?}", report.problems));
        }
        self.look_for_panics()
    }

    fn look_for_panics(&self) -> Result<(), String> {
        for n in 1..=self.tally.starts {
            let log = self.plan.dir.join("log").join(format!("{n:04}"));
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("panicked") {
                return Err(format!("a process panicked:\n{text}"));
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Whether it runs and may be hurt.
    fn is_up(&self) -> bool {
        let is_whole = self.is_master || self.worker.is_some();
        self.child.is_some() && is_whole && self.stopped_until.is_none() && !self.told_to_end
    }

    fn pids(&self) -> Vec<u32> {
        self.child.iter().map(Child::id).chain(self.worker).collect()
    }

    /// Kills all of it at once: stopped first, nobody cleans up after anybody.
    fn kill(&mut self) {
        for signal in [Signal::STOP, Signal::KILL] {
            self.pids().into_iter().for_each(|pid| send(pid, signal));
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has ended meanwhile has been hurt enough.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The worker proper that a keeper has started, once it is there.
fn worker_of(keeper: u32, fq: &Path) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.into_iter().find(|pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == fq))
}
