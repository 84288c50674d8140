//! The twenty tasks of a point, and what must have become of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fq::client::logs;
use fq::client::view::{self, AttemptRecord};
use fq::decision::{self, Reader};
use fq::process::{Status, Stream};
use fq::protocol::id::TaskId;
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::{Limits, Outcome};
use fq::queue::Queue;
use fq::state::{Job, State};

/// Limits under which a point takes seconds, and nobody is given up because the machine is busy.
pub(crate) fn limits() -> Limits {
    let limits = Limits {
        beat_ms: 500,
        self_fence_ms: 30_000,
        grace_ms: 300,
        suspect_ms: 2000,
        lease_ms: 31_000,
        takeover_ms: 1000,
        visible_ms: 1000,
        poll_ms: 100,
        idle_poll_ms: 200,
        backoff_ms: (50, 200),
        // That somebody is hit is what this is about.
        crash_limit: 1000,
        setup_limit: 1000,
        // Some results stand in the journal, some in packs, and one is an object of its own.
        inline_max: 1024,
        pack_item_max: 65_536,
        // Journals have several segments, the chain has snapshots.
        segment_max: 4096,
        snapshot_every: 8,
        ..Limits::default()
    };
    assert_eq!(limits.check(), Ok(()));
    limits
}

/// A job: what it is about, how many tasks it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reaches its time limit.
    TimesOut,
    /// Prints a line.
    Small,
    /// Prints what goes to a pack.
    Kilobytes,
    /// Prints more than a pack takes.
    Large,
    /// Fails at its first attempt.
    FailsFirst,
    /// Kills itself.
    KillsItself,
    /// Runs after the two that print most.
    After,
}

/// The jobs, numbered from 1.
pub(crate) const JOBS: [(Kind, u32); 7] = [
    (Kind::TimesOut, 1),
    (Kind::Small, 11),
    (Kind::Kilobytes, 3),
    (Kind::Large, 1),
    (Kind::FailsFirst, 1),
    (Kind::KillsItself, 1),
    (Kind::After, 2),
];

impl Kind {
    /// The arguments of `fq submit`.
    pub(crate) fn submission(self, count: u32) -> Vec<String> {
        let mut words = vec!["submit".to_owned()];
        if count > 1 {
            words.extend(["-a".into(), format!("0-{}", count - 1)]);
        }
        words.extend(match self {
            Self::TimesOut => vec!["-t".into(), "1s".into()],
            Self::FailsFirst => vec!["--retries".into(), "1".into()],
            Self::After => vec!["-d".into(), "afterok:3:4".into()],
            _ => Vec::new(),
        });
        let act = match self {
            Self::TimesOut => "exec sleep 1000".to_owned(),
            Self::KillsItself => "kill -9 $$".to_owned(),
            Self::FailsFirst => format!("[ \"$FQ_ATTEMPT\" = 1 ] && exit 3; {}", self.prints()),
            _ => self.prints(),
        };
        words.extend(["--wrap".into(), format!("echo \"$FQ_JOB_ID $FQ_ATTEMPT\" >> \"$FQ_DIR/../runs\"; {act}")]);
        words
    }

    fn len(self) -> usize {
        match self {
            Self::Kilobytes => 10_240,
            Self::Large => 300_000,
            _ => 100,
        }
    }

    fn prints(self) -> String {
        format!("yes \"$FQ_JOB_ID says {self:?}\" | head -c {}", self.len())
    }

    fn expected(self, id: TaskId) -> Vec<u8> {
        format!("{id} says {self:?}\n").bytes().cycle().take(self.len()).collect()
    }

    fn end(self) -> TaskState {
        if matches!(self, Self::TimesOut | Self::KillsItself) { TaskState::Failed } else { TaskState::Done }
    }

    fn is_right_end(self, how: &Outcome) -> bool {
        match self {
            Self::TimesOut => matches!(how, Outcome::Timeout(_)),
            Self::KillsItself => *how == Outcome::Ran(Status::Signal(9)),
            _ => *how == Outcome::Ran(Status::Exit(0)),
        }
    }
}

/// Compares what there is in the end with what must be; `dir` holds the queue and what the tasks have written down.
pub(crate) fn judge(dir: &Path) -> Result<(), String> {
    let queue = Queue::open(&dir.join("q")).map_err(|e| e.to_string())?;
    let fs = queue.fs.as_ref();
    let reader = Reader::open(fs).map_err(|e| format!("the chain: {e}"))?;
    let state = reader.state();
    let executed = executions(dir)?;
    if state.jobs.len() != JOBS.len() {
        return Err(format!("{} jobs instead of {}", state.jobs.len(), JOBS.len()));
    }
    for (job, (kind, count)) in state.jobs.values().zip(JOBS) {
        if job.tasks.len() != count as usize {
            return Err(format!("{kind:?} has {} tasks instead of {count}", job.tasks.len()));
        }
        for position in 0..count {
            judge_task(&queue, state, job, position, kind, &executed)
                .map_err(|why| format!("{} ({kind:?}): {why}", job.task_id(position)))?;
        }
    }
    if !matches!(decision::look(fs), Ok(decision::Look::Alone(id)) if id == state.at) {
        return Err("the token is not alone, or not where the chain ends".into());
    }
    let report = fq::check::check(fs, true, &mut |_| {});
    if !report.is_sound() {
        return Err(format!("the queue is not sound: {:#?}", report.problems));
    }
    Ok(())
}

/// Which attempts were executed, by task.
fn executions(dir: &Path) -> Result<BTreeMap<String, BTreeSet<u32>>, String> {
    let mut executed: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let runs = std::fs::read_to_string(dir.join("runs")).map_err(|e| format!("`runs`: {e}"))?;
    for line in runs.lines() {
        let cut = || format!("a line of `runs` is cut: {line}");
        let (task, attempt) = line.split_once(' ').ok_or_else(cut)?;
        let attempt = attempt.parse().map_err(|_| cut())?;
        if !executed.entry(task.to_owned()).or_default().insert(attempt) {
            return Err(format!("attempt {attempt} of {task} was executed twice"));
        }
    }
    Ok(executed)
}

fn judge_task(
    queue: &Queue,
    state: &State,
    job: &Job,
    position: u32,
    kind: Kind,
    executed: &BTreeMap<String, BTreeSet<u32>>,
) -> Result<(), String> {
    let fs = queue.fs.as_ref();
    let task = job.tasks.get(position as usize).ok_or("it is not there")?;
    if task.state != kind.end() {
        return Err(format!("it is {}: {:?}", task.state.word(), view::attempt_records(job, position)));
    }
    let records = view::attempt_records(job, position);
    let outcome = |record: &AttemptRecord| view::end_line(fs, state, record).map(|end| end.how);
    let right: Vec<&AttemptRecord> =
        records.iter().filter(|record| outcome(record).is_some_and(|how| kind.is_right_end(&how))).collect();
    let last = records.last();
    let accepted = match right[..] {
        [one] if last == Some(one) => one,
        _ => return Err(format!("not exactly one accepted end, and that the last: {records:?}")),
    };
    let allowed = |record: &AttemptRecord| match outcome(record) {
        // One without a line was lost.
        None | Some(Outcome::Requeue(_) | Outcome::Setup(_)) => true,
        Some(Outcome::Ran(Status::Exit(3))) => kind == Kind::FailsFirst && record.attempt == 1,
        Some(_) => false,
    };
    if let Some(odd) = records.iter().find(|record| *record != accepted && !allowed(record)) {
        return Err(format!("attempt {} ended in a way it cannot have: {records:?}", odd.attempt));
    }
    let id = job.task_id(position);
    if !executed.get(&id.to_string()).is_some_and(|attempts| attempts.contains(&accepted.attempt)) {
        return Err(format!("attempt {} was accepted and never executed", accepted.attempt));
    }
    if kind.end() != TaskState::Done {
        return Ok(());
    }
    let output = logs::locate(fs, state, job, position, accepted, Stream::Stdout);
    let mut bytes = Vec::new();
    logs::copy(fs, &output, &mut 0, &mut |more| bytes.extend_from_slice(more))
        .map_err(|e| format!("its result: {e}"))?;
    if bytes != kind.expected(id) {
        return Err(format!("its result has {} bytes, and wrong ones", bytes.len()));
    }
    Ok(())
}
