//! The state of a queue: what all decisions up to one of them add up to.
//!
//! Pure: [`State::apply`] is a function of the state and one operation, so every process that has read the same decisions has
//! the same state, and a snapshot is only a shortcut.
//!
//! Invariants:
//! - Attempt numbers are issued by [`Message::Run`] only and grow by one per task; an attempt is with one worker.
//! - An end is accepted once, only of the attempt that was issued last, and only from the worker that it was issued to while
//!   that worker is not gone. A final state is left by a retry only.
//! - Messages to a worker are numbered 1, 2, 3 …; those not acknowledged are kept whole.
//! - An operation that contradicts the state is an error ([`Absurd`]) and means a damaged queue or a bug, never a user's mistake.

mod apply;
mod depend;
mod snapshot;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use snapshot::{decode_snapshot, encode_snapshot};

use crate::process::Identity;
use crate::protocol::id::{AttemptId, DecisionId, JobId, Nonce, Ranges, Target, TaskId, WorkerId};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Admit, Departure, Ingest, Limits, Message, Outcome, SnapshotRef};

/// What all decisions up to [`State::at`] add up to.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The newest decision taken into account.
    pub at: DecisionId,
    /// The newest term; 0 before the first.
    pub term: u64,
    /// Who leads, unless the last one abdicated.
    pub master: Option<Leader>,
    /// The limits in force.
    pub limits: Limits,
    /// All jobs that are kept.
    pub jobs: BTreeMap<JobId, Job>,
    /// Numbers that are other names of jobs.
    pub aliases: BTreeMap<JobId, JobId>,
    /// Numbers under which no runnable job is bound, and why.
    pub rejected: BTreeMap<JobId, String>,
    /// What was cancelled before its job was taken in, with the reasons.
    pub doomed: BTreeMap<JobId, Vec<(Target, String)>>,
    /// Numbers of jobs that were pruned.
    pub pruned: Ranges,
    /// Submission nonces.
    pub subs: BTreeMap<Nonce, JobId>,
    /// Keys by owner.
    pub keys: BTreeMap<(u32, String), JobId>,
    /// All worker incarnations that a kept job may refer to.
    pub workers: BTreeMap<WorkerId, Worker>,
    /// Requests that were answered and whose files may still be there.
    pub answered: BTreeSet<Nonce>,
    /// The two newest snapshots, the newest last.
    pub snapshots: Vec<SnapshotRef>,
    /// Quarantined files by the decision that ordered it.
    pub trash: BTreeMap<DecisionId, Vec<String>>,
    /// Ids of workers by their number; kept in step with `workers`.
    numbers: BTreeMap<u32, WorkerId>,
    /// Jobs with ready tasks, best first.
    queue: BTreeSet<(Reverse<i32>, JobId)>,
    /// Tasks that wait out a back-off after a failure.
    delayed: BTreeSet<(JobId, u32)>,
    /// Jobs by the job that they depend on.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
}

/// A master's reign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Who.
    pub w: WorkerId,
    /// Its process.
    pub identity: Identity,
    /// Its `lead` decision.
    pub lead: DecisionId,
}

/// A job and its tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// As it was taken in.
    pub spec: Ingest,
    /// Its tasks, by position: the n-th index of an array.
    pub tasks: Vec<Task>,
    /// How many tasks are in each state.
    pub counts: Counts,
    /// Dependencies that are not fulfilled yet, by their position in `spec.needs.after`.
    pub unmet: BTreeSet<u32>,
    /// Positions of ready tasks.
    pub ready: BTreeSet<u32>,
    /// Why tasks are held, cancelled, aborted or failed, by position; the reason of all is under `u32::MAX`.
    pub notes: BTreeMap<u32, String>,
    /// Attempts before the current one, by position.
    pub past: BTreeMap<u32, Vec<Past>>,
    /// Ends that were measured, and the milliseconds that they took together.
    pub measured: (u64, u64),
    /// Numbers of the workers on which set-up failed.
    pub setup_on: BTreeSet<u32>,
}

/// A task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Its state.
    pub state: TaskState,
    /// The number of the last attempt; 0 before the first.
    pub attempt: u32,
    /// Failures since the submission or the last retry.
    pub failures: u32,
    /// Losses of its worker since then.
    pub losses: u32,
    /// Set-up failures since then.
    pub setups: u32,
    /// The number of the worker that has or had the last attempt.
    pub worker: u32,
    /// The message that issued the last attempt.
    pub m: u64,
    /// The journal line with the end of the last attempt; 0 if it has not ended that way.
    pub line: u64,
    /// Whether a person wants it ended.
    pub cancelling: bool,
}

impl Task {
    const fn new(state: TaskState) -> Self {
        Self { state, attempt: 0, failures: 0, losses: 0, setups: 0, worker: 0, m: 0, line: 0, cancelling: false }
    }
}

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Its number.
    pub attempt: u32,
    /// The number of its worker.
    pub worker: u32,
    /// The journal line with its end; 0 if there is none.
    pub line: u64,
    /// How it ended: `failed`, `lost`, `requeued`, `released`, `setup`, `refused`, `cancelled`.
    pub how: String,
}

/// How many tasks are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([u64; 9]);

impl Counts {
    /// How many are in `state`.
    pub fn of(&self, state: TaskState) -> u64 {
        self.0[state as usize]
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        TaskState::ALL.iter().filter(|s| s.is_final()).map(|&s| self.of(s)).sum()
    }

    /// Whether all have ended.
    pub fn all_ended(&self) -> bool {
        self.ended() == self.total()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a += b;
        }
    }

    fn step(&mut self, from: Option<TaskState>, to: TaskState) {
        if let Some(from) = from {
            self.0[from as usize] -= 1;
        }
        self.0[to as usize] += 1;
    }
}

/// A worker incarnation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number, by which tasks refer to it.
    pub no: u32,
    /// As it was admitted.
    pub admit: Admit,
    /// Whether it gets work.
    pub status: WorkerStatus,
    /// The number of the last message sent to it.
    pub sent: u64,
    /// The number of the last message that it took.
    pub got: u64,
    /// Messages that it has not taken yet, with the decisions that issued them.
    #[serde(with = "pairs")]
    pub outbox: BTreeMap<u64, (DecisionId, Message)>,
    /// Decisions that issued bundles of which attempts are out, by message number.
    #[serde(with = "pairs")]
    pub bundles: BTreeMap<u64, DecisionId>,
    /// The last line of its journal that was taken into account.
    pub seq: u64,
    /// Attempts that it has: job and position, and the attempt number.
    #[serde(with = "pairs")]
    pub out: BTreeMap<(JobId, u32), u32>,
    /// Tasks whose set-up failed on it in a row.
    pub setup_row: BTreeSet<(JobId, u32)>,
    /// Owners whose tasks it refuses.
    pub refuses: BTreeSet<u32>,
}

/// Whether a worker gets work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
    /// It does.
    Active,
    /// Not at the moment, for this reason.
    Paused(String),
    /// Not any more.
    Draining,
    /// Not until a person looks: set-up failed too often in a row.
    Quarantined,
    /// This incarnation is over.
    Gone(Departure, String),
}

/// Maps with keys that are no strings, as lists of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// An operation that contradicts the state: the decisions are damaged or were written by a faulty program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absurd(pub String);

impl fmt::Display for Absurd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a decision contradicts those before it: {}", self.0)
    }
}

impl std::error::Error for Absurd {}

impl State {
    /// The state of a new queue, at its first decision.
    pub fn new(first: DecisionId) -> Self {
        Self {
            at: first,
            term: 0,
            master: None,
            limits: Limits::default(),
            jobs: BTreeMap::new(),
            aliases: BTreeMap::new(),
            rejected: BTreeMap::new(),
            doomed: BTreeMap::new(),
            pruned: Ranges::default(),
            subs: BTreeMap::new(),
            keys: BTreeMap::new(),
            workers: BTreeMap::new(),
            answered: BTreeSet::new(),
            snapshots: Vec::new(),
            trash: BTreeMap::new(),
            numbers: BTreeMap::new(),
            queue: BTreeSet::new(),
            delayed: BTreeSet::new(),
            dependents: BTreeMap::new(),
        }
    }

    /// The job under `id`, which may be an alias.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(self.aliases.get(&id).unwrap_or(&id))
    }

    /// Whether `id` is bound to something known: a job, an alias, a rejected manifest or a pruned job.
    pub fn knows(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
            || self.aliases.contains_key(&id)
            || self.rejected.contains_key(&id)
            || self.pruned.contains(id.0)
    }

    /// The task `id` and its position in its job.
    pub fn task(&self, id: TaskId) -> Option<(u32, &Task)> {
        let job = self.job(id.job)?;
        let at = job.position(id.index)?;
        Some((at, job.tasks.get(at as usize)?))
    }

    /// The worker with number `no`.
    pub fn worker_no(&self, no: u32) -> Option<(&WorkerId, &Worker)> {
        let id = self.numbers.get(&no)?;
        Some((id, self.workers.get(id)?))
    }

    /// The numbers of the workers that have or had an attempt of a kept job.
    pub fn workers_in_use(&self) -> BTreeSet<u32> {
        let of = |job: &Job| {
            let past = job.past.values().flatten().map(|past| past.worker);
            job.tasks.iter().map(|task| task.worker).chain(past).collect::<BTreeSet<u32>>()
        };
        self.jobs.values().flat_map(of).collect()
    }

    /// Which ends in the journals still matter. Walks all tasks once.
    pub fn wanted_ends(&self) -> WantedEnds<'_> {
        WantedEnds { state: self, lines: self.lines_in_use() }
    }

    /// The lines with ends that kept jobs refer to, by worker, sorted.
    fn lines_in_use(&self) -> BTreeMap<WorkerId, Vec<u64>> {
        let mut found: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for job in self.jobs.values() {
            let past = job.past.values().flatten().map(|past| (past.worker, past.line));
            for (no, line) in job.tasks.iter().map(|task| (task.worker, task.line)).chain(past) {
                if line > 0 {
                    found.entry(no).or_default().push(line);
                }
            }
        }
        let named = found.into_iter().filter_map(|(no, mut lines)| {
            lines.sort_unstable();
            lines.dedup();
            self.numbers.get(&no).map(|w| (w.clone(), lines))
        });
        named.collect()
    }

    /// Jobs that unfinished jobs depend on.
    pub fn jobs_in_demand(&self) -> BTreeSet<JobId> {
        let unfinished = self.jobs.values().filter(|job| !job.counts.all_ended());
        let targets = unfinished.flat_map(|job| job.spec.needs.after.iter().map(|dependency| dependency.target.job));
        targets.map(|id| *self.aliases.get(&id).unwrap_or(&id)).collect()
    }

    /// Jobs that have ready tasks, the best first: by priority, then by number.
    pub fn queue(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.queue.iter().filter_map(|&(_, id)| Some((id, self.jobs.get(&id)?)))
    }

    /// Tasks that wait out a back-off: job, position, and the failures so far.
    pub fn delayed(&self) -> impl Iterator<Item = (JobId, u32, u32)> {
        self.delayed
            .iter()
            .filter_map(|&(job, at)| Some((job, at, self.jobs.get(&job)?.tasks.get(at as usize)?.failures)))
    }

    /// Workers that are not gone.
    pub fn live_workers(&self) -> impl Iterator<Item = (&WorkerId, &Worker)> {
        self.workers.iter().filter(|(_, w)| !matches!(w.status, WorkerStatus::Gone(..)))
    }

    /// The counts over all jobs.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.jobs.values().for_each(|job| sum.add(&job.counts));
        sum
    }

    /// The tasks of `target` that exist, as job and positions.
    pub fn expand(&self, target: &Target) -> Option<(JobId, Vec<u32>)> {
        let id = *self.aliases.get(&target.job).unwrap_or(&target.job);
        let job = self.jobs.get(&id)?;
        let all = 0..u32::try_from(job.tasks.len()).unwrap_or(u32::MAX);
        let positions = match &target.indices {
            None => all.collect(),
            Some(set) => set.iter().filter_map(|index| job.position(Some(index))).collect(),
        };
        Some((id, positions))
    }

    /// Whether any task can still make progress without a person: one that is out, or one that is ready and for which `can_run`
    /// says that some worker could run it.
    ///
    /// What waits while there is no such task waits for something held, for a number that is not taken in, or for itself.
    pub fn can_progress(&self, can_run: &dyn Fn(&Job) -> bool) -> bool {
        self.jobs.values().any(|job| job.out_count() > 0 || (!job.ready.is_empty() && can_run(job)))
    }
}

impl Job {
    /// The position of the task with `index`; `None` if there is none.
    pub fn position(&self, index: Option<u64>) -> Option<u32> {
        match (&self.spec.array, index) {
            (None, None) => Some(0),
            (Some(set), Some(index)) => set.position(index).and_then(|p| u32::try_from(p).ok()),
            _ => None,
        }
    }

    /// The id of the task at `position`.
    pub fn task_id(&self, position: u32) -> TaskId {
        let index = self.spec.array.as_ref().and_then(|set| set.nth(u64::from(position)));
        TaskId { job: self.spec.job, index }
    }

    /// The id of an attempt of the task at `position`.
    pub fn attempt_id(&self, position: u32, number: u32) -> AttemptId {
        AttemptId { task: self.task_id(position), number }
    }

    /// Why the task at `position` is in its state, if there is something to say.
    pub fn note(&self, position: u32) -> Option<&str> {
        let of_all = || {
            let state = self.tasks.get(position as usize)?.state;
            let stands = matches!(state, TaskState::Held | TaskState::Cancelled | TaskState::Aborted);
            self.notes.get(&u32::MAX).filter(|_| stands)
        };
        self.notes.get(&position).or_else(of_all).map(String::as_str)
    }

    /// The state of the job as a whole: running if anything is out, then what keeps it from ending, then the worst end.
    pub fn state(&self) -> TaskState {
        let has = |state| self.counts.of(state) > 0;
        let open = [TaskState::Running, TaskState::Issued, TaskState::Ready, TaskState::Waiting, TaskState::Held];
        let ended = [TaskState::Failed, TaskState::Aborted, TaskState::Cancelled];
        match open.into_iter().chain(ended).find(|&state| has(state)) {
            Some(TaskState::Issued) => TaskState::Ready,
            Some(state) => state,
            None => TaskState::Done,
        }
    }

    /// The mean run time of its tasks in milliseconds, if any has ended.
    pub fn mean_ms(&self) -> Option<u64> {
        self.measured.1.checked_div(self.measured.0)
    }

    /// How many of its attempts are with workers.
    pub fn out_count(&self) -> u64 {
        self.counts.of(TaskState::Issued) + self.counts.of(TaskState::Running)
    }
}

impl Worker {
    /// Whether it may get new work.
    pub fn is_active(&self) -> bool {
        self.status == WorkerStatus::Active
    }

    /// Whether the incarnation is over.
    pub fn is_gone(&self) -> bool {
        matches!(self.status, WorkerStatus::Gone(..))
    }
}

/// Which ends in the journals of workers still matter; of the others, nobody needs the values.
#[derive(Debug, Clone)]
pub struct WantedEnds<'a> {
    state: &'a State,
    /// Sorted lines by worker.
    lines: BTreeMap<WorkerId, Vec<u64>>,
}

impl WantedEnds<'_> {
    /// The lines of the journal of `w` with ends that kept jobs refer to, sorted. They must be there.
    pub fn lines_of(&self, w: &WorkerId) -> &[u64] {
        self.lines.get(w).map_or(&[], Vec::as_slice)
    }

    /// The workers with such lines.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.lines.keys()
    }

    /// Whether the end of an attempt at `job` in line `seq` is referred to, or may be accepted yet: nothing more is accepted of a
    /// worker that is gone, and of one that is not known yet, anything may be that is not forgotten.
    pub fn wants(&self, w: &WorkerId, seq: u64, job: JobId) -> bool {
        self.lines_of(w).binary_search(&seq).is_ok()
            || match self.state.workers.get(w) {
                Some(worker) => !worker.is_gone() && seq > worker.seq,
                None => !self.state.pruned.contains(job.0),
            }
    }

    /// Whether all that matters of the journal of `w` has been named by [`WantedEnds::lines_of`].
    pub fn is_settled(&self, w: &WorkerId) -> bool {
        self.state.workers.get(w).is_some_and(Worker::is_gone)
    }
}

/// The word for a past attempt, from its outcome.
fn past_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Ran(crate::process::Status::Exit(0)) => "done",
        Outcome::Ran(_) => "failed",
        Outcome::Timeout(_) => "timeout",
        Outcome::Oom(_) => "out-of-memory",
        Outcome::Setup(_) => "setup",
        Outcome::Cancelled(_) => "cancelled",
        Outcome::Requeue(_) => "requeued",
        Outcome::Refused(_) => "refused",
    }
}

#[cfg(test)]
mod tests;
