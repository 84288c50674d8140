//! What a person or script is told about a queue: a pure function of the decisions, and a few looks at what they refer to.
//!
//! The structs here are the documented JSON of the commands (`schema` 1) and what their text is printed from.
//!
//! Invariants:
//! - What a state is, is said by the decisions alone; manifests that no master has taken in yet count as waiting.
//! - Details of an attempt come from the one journal line that its decision names. A line that is gone makes members `null`,
//!   never an error.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::beacon;
use crate::fs::{self, Fs, FsError};
use crate::journal;
use crate::process::{Status, Usage};
use crate::protocol::id::{JobId, Ranges, Target, TaskId};
use crate::protocol::layout;
use crate::protocol::lifecycle::{self, TaskState};
use crate::protocol::record::{
    After, BadRecord, Bytes, Command, Departure, EndLine, Line, Manifest, Needs, Outcome, from_document,
};
use crate::schedule;
use crate::state::{Counts, Job, State, Task, Worker, WorkerStatus};

use super::submit::MANIFEST_BYTES_MAX;

/// The version of the JSON shapes.
pub const SCHEMA: u32 = 1;

/// A manifest that no master has taken in yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The number under which it lies.
    pub job: JobId,
    /// The owner of its file, once it could be opened.
    pub uid: Option<u32>,
    /// What it says, or why that cannot be told.
    pub manifest: Result<Manifest, String>,
}

/// Finds the manifests that `state` does not know, by number. One that is torn or unreadable is listed as such.
pub fn pending(fs: &dyn Fs, state: &State) -> Result<Vec<Pending>, FsError> {
    let jobs = Path::new(layout::JOBS);
    let mut found = Vec::new();
    for bucket in fs.list(jobs)? {
        let names = match fs.list(&jobs.join(&bucket.name)) {
            Ok(names) => names,
            Err(error) if error.not_found() || error.kind == fs::ErrorKind::Planted => continue,
            Err(error) => return Err(error),
        };
        let ids = names.iter().filter_map(|entry| layout::parse_job(&entry.name));
        found.extend(ids.filter(|&id| !state.knows(id)));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|job| read_pending(fs, job)).collect())
}

fn read_pending(fs: &dyn Fs, job: JobId) -> Pending {
    let path = layout::job(job);
    let uid = fs.open(&path).and_then(|file| file.stat()).map(|stat| stat.uid).ok();
    let manifest = read_manifest(fs, job).map_err(|error| match error {
        Unread::Fs(error) => error.to_string(),
        Unread::Record(BadRecord::Torn) => "cut short or not finished yet".into(),
        Unread::Record(error) => error.to_string(),
    });
    Pending { job, uid, manifest }
}

/// Why a manifest cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// A file operation failed.
    Fs(FsError),
    /// Its content is not as it should be.
    Record(BadRecord),
}

/// Reads the manifest of `job`.
pub fn read_manifest(fs: &dyn Fs, job: JobId) -> Result<Manifest, Unread> {
    let bytes = fs::read_up_to(fs, &layout::job(job), MANIFEST_BYTES_MAX).map_err(Unread::Fs)?;
    from_document(&bytes).map_err(Unread::Record)
}

/// How many tasks are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "each is named after its state")]
pub struct TaskCounts {
    pub waiting: u64,
    pub ready: u64,
    pub running: u64,
    pub done: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub aborted: u64,
    pub held: u64,
}

impl TaskCounts {
    /// Counts `n` tasks in `state`. An issued task is ready: nobody knows yet that it runs.
    pub fn add(&mut self, state: TaskState, n: u64) {
        *match state {
            TaskState::Waiting => &mut self.waiting,
            TaskState::Ready | TaskState::Issued => &mut self.ready,
            TaskState::Running => &mut self.running,
            TaskState::Done => &mut self.done,
            TaskState::Failed => &mut self.failed,
            TaskState::Cancelled => &mut self.cancelled,
            TaskState::Aborted => &mut self.aborted,
            TaskState::Held => &mut self.held,
        } += n;
    }

    /// The states and their counts, in the order in which they are shown.
    pub fn list(&self) -> [(&'static str, u64); 8] {
        [
            ("waiting", self.waiting),
            ("ready", self.ready),
            ("running", self.running),
            ("done", self.done),
            ("failed", self.failed),
            ("cancelled", self.cancelled),
            ("aborted", self.aborted),
            ("held", self.held),
        ]
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.list().iter().map(|(_, n)| n).sum()
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        self.done + self.failed + self.cancelled + self.aborted
    }

    fn sum(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.ready += other.ready;
        self.running += other.running;
        self.done += other.done;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.aborted += other.aborted;
        self.held += other.held;
    }
}

impl From<&Counts> for TaskCounts {
    fn from(counts: &Counts) -> Self {
        let mut sum = Self::default();
        for state in TaskState::ALL {
            sum.add(state, counts.of(state));
        }
        sum
    }
}

/// `fq status --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueStatus {
    /// Always 1.
    pub schema: u32,
    /// All tasks.
    pub tasks: TaskCounts,
    /// The jobs, by number.
    pub jobs: Vec<JobStatus>,
    /// Numbers under which nothing lies that can be run, and manifests that are not whole yet.
    pub unreadable: Vec<Unreadable>,
    /// Worker incarnations.
    pub workers: WorkerCounts,
    /// Who leads, if anybody does.
    pub master: Option<MasterStatus>,
    /// What keeps the queue from going on at the moment, such as a full disk.
    pub trouble: Vec<String>,
    /// The newest decision.
    pub head: String,
}

/// So much free space is as good as none: what waits to be written is often larger.
const BYTES_FREE_MIN: u64 = 64 << 10;
/// A decision, a message and a segment of a journal, each under a name of its own.
const INODES_FREE_MIN: u64 = 4;

/// What keeps the queue from going on at the moment: no free space as this host sees it, and what the master says about itself.
///
/// A worker that cannot write cannot say so in its journal either; this is how people learn why all stand still.
pub fn trouble(fs: &dyn Fs, state: &State) -> Vec<String> {
    let mut trouble = Vec::new();
    if let Ok(space) = fs.space() {
        if space.bytes_free < BYTES_FREE_MIN {
            let free = space.bytes_free;
            trouble
                .push(format!("the file system is full ({free} bytes are left): workers pause until there is space"));
        }
        if space.inodes_free < INODES_FREE_MIN {
            trouble.push("the file system is full (no inodes are left): workers pause until files are removed".into());
        }
    }
    let said = state.master.as_ref().and_then(|leader| beacon::trouble(fs, state.term, leader.lead));
    trouble.extend(said.map(|why| format!("the master cannot work: {why}")));
    trouble
}

/// One job in `fq status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobStatus {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Its state: that of a task, chosen by what keeps the job from ending, then by the worst end.
    pub state: &'static str,
    /// Its tasks.
    pub tasks: TaskCounts,
    /// Whether a master has taken it in.
    pub taken_in: bool,
}

/// A number under which no job can be run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// The number.
    pub id: JobId,
    /// Why.
    pub why: String,
}

/// Worker incarnations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct WorkerCounts {
    /// Not known to be over.
    pub alive: u64,
    /// Declared lost.
    pub lost: u64,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MasterStatus {
    /// The incarnation.
    pub id: String,
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its term.
    pub term: u64,
    /// Wall time of the newest decision, milliseconds since 1970, by the clock of its master.
    pub decided_at_ms: u64,
}

/// Sums up the queue, or the jobs that `only` names.
pub fn status(state: &State, pending: &[Pending], only: &[Target], decided_at_ms: u64) -> QueueStatus {
    let wanted = |id: JobId| {
        only.is_empty() || only.iter().any(|target| *state.aliases.get(&target.job).unwrap_or(&target.job) == id)
    };
    let mut jobs: BTreeMap<JobId, JobStatus> = BTreeMap::new();
    for (&id, job) in state.jobs.iter().filter(|(id, _)| wanted(**id)) {
        let (name, tasks) = (job.spec.name.clone(), TaskCounts::from(&job.counts));
        jobs.insert(id, JobStatus { id, name, state: job.state().word(), tasks, taken_in: true });
    }
    let mut unreadable: Vec<_> =
        state.rejected.iter().map(|(&id, why)| Unreadable { id, why: why.clone() }).filter(|u| wanted(u.id)).collect();
    for entry in pending.iter().filter(|p| wanted(p.job)) {
        match &entry.manifest {
            Ok(manifest) => {
                let held = if manifest.needs.hold { TaskState::Held } else { TaskState::Waiting };
                let mut tasks = TaskCounts::default();
                tasks.add(held, manifest.array.as_ref().map_or(1, Ranges::len));
                let (id, name) = (entry.job, manifest.name.clone());
                jobs.insert(id, JobStatus { id, name, state: held.word(), tasks, taken_in: false });
            }
            Err(why) => unreadable.push(Unreadable { id: entry.job, why: why.clone() }),
        }
    }
    unreadable.sort_by_key(|u| u.id);
    let mut tasks = TaskCounts::default();
    for job in jobs.values() {
        tasks.sum(&job.tasks);
    }
    let mut workers = WorkerCounts::default();
    for worker in state.workers.values() {
        match worker.status {
            WorkerStatus::Gone(Departure::Lost, _) => workers.lost += 1,
            WorkerStatus::Gone(..) => {}
            _ => workers.alive += 1,
        }
    }
    let master = state.master.as_ref().map(|leader| MasterStatus {
        id: leader.w.to_string(),
        host: leader.identity.host.clone(),
        pid: leader.identity.pid,
        term: state.term,
        decided_at_ms,
    });
    let jobs = jobs.into_values().collect();
    let (trouble, head) = (Vec::new(), state.at.to_string());
    QueueStatus { schema: SCHEMA, tasks, jobs, unreadable, workers, master, trouble, head }
}

/// `fq show --json` of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskView {
    /// Always 1.
    pub schema: u32,
    /// `7` or `7_3`.
    pub id: String,
    /// The name of its job.
    pub name: String,
    /// Its state.
    pub state: &'static str,
    /// Why it is in that state, if there is something to say.
    pub reason: Option<String>,
    /// The exit code of the last attempt, if that has ended by exiting.
    pub exit_code: Option<i32>,
    /// The signal that ended the last attempt.
    pub signal: Option<i32>,
    /// All attempts, by number.
    pub attempts: Vec<AttemptView>,
    /// What the job asks for.
    pub job: JobDetails,
}

/// One execution of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttemptView {
    /// Its number, from 1.
    pub attempt: u32,
    /// The worker incarnation that it was given to.
    pub worker: String,
    /// The host of that.
    pub host: String,
    /// `issued`, `running`, `done`, `failed`, `timeout`, `out-of-memory`, `setup`, `cancelled`, `requeued`, `released`,
    /// `refused` or `lost`.
    pub outcome: String,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The step of its start that failed.
    pub step: Option<String>,
    /// The name of the system error of that step.
    pub errno: Option<String>,
    /// The path that the step was about, or why the worker refused.
    pub detail: Option<String>,
    /// Wall time of its start, milliseconds since 1970.
    pub start_ms: Option<u64>,
    /// Wall time of its end.
    pub end_ms: Option<u64>,
    /// Milliseconds that it ran, by the worker's boot clock.
    pub ms: Option<u64>,
    /// Bytes of standard output.
    pub stdout_bytes: Option<u64>,
    /// Bytes of standard error.
    pub stderr_bytes: Option<u64>,
    /// What it used.
    pub usage: Option<Usage>,
    /// Processes that outlived it and were ended.
    pub leftovers: u32,
    /// Things a person should know.
    pub notes: Vec<String>,
}

/// What a job asks for, in canonical units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobDetails {
    /// Its number.
    pub id: JobId,
    /// What it runs, for people; `null` if the manifest cannot be read.
    pub command: Option<String>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// Who submitted it.
    pub user: Option<String>,
    /// On which host.
    pub submit_host: Option<String>,
    /// When, milliseconds since 1970.
    pub submitted_at_ms: u64,
    /// Its array.
    pub array: Option<Ranges>,
    /// CPUs of each task.
    pub cpus: u32,
    /// Memory of each task in bytes; 0 if none was asked for.
    pub mem_bytes: u64,
    /// Time limit in milliseconds; 0 for none.
    pub time_ms: u64,
    /// Further attempts after failures.
    pub retries: u32,
    /// Higher runs first.
    pub priority: i32,
    /// At most so many tasks at once; 0 for no limit.
    pub cap: u64,
    /// What has to end before.
    pub after: Vec<String>,
    /// Its key.
    pub key: Option<String>,
}

impl JobDetails {
    fn new(id: JobId, at_ms: u64, array: Option<&Ranges>, needs: &Needs, manifest: Option<&Manifest>) -> Self {
        Self {
            id,
            command: manifest.map(|m| command_text(&m.command)),
            cwd: manifest.map(|m| String::from_utf8_lossy(&m.cwd.0).into_owned()),
            user: manifest.map(|m| m.user.clone()),
            submit_host: manifest.map(|m| m.host.clone()),
            submitted_at_ms: at_ms,
            array: array.cloned(),
            cpus: needs.cpus,
            mem_bytes: needs.mem,
            time_ms: needs.time_ms,
            retries: needs.retries,
            priority: needs.priority,
            cap: needs.cap,
            after: needs.after.iter().map(|d| format!("{}:{}", after_word(d.when), d.target)).collect(),
            key: Some(needs.key.clone()).filter(|key| !key.is_empty()),
        }
    }
}

/// The word of a kind of dependency, as it is typed.
pub fn after_word(when: After) -> &'static str {
    match when {
        After::Ok => "afterok",
        After::Any => "afterany",
        After::NotOk => "afternotok",
    }
}

/// A command as a person would type it.
pub fn command_text(command: &Command) -> String {
    let quoted = |words: &[Bytes]| words.iter().map(|word| quote(&word.0)).collect::<Vec<_>>().join(" ");
    match command {
        Command::Argv(words) => quoted(words),
        Command::Shell(text) => format!("sh -c {}", quote(&text.0)),
        Command::Entry => "sh -c <the task's line>".into(),
        Command::Script { name, args, .. } if args.is_empty() => name.clone(),
        Command::Script { name, args, .. } => format!("{name} {}", quoted(args)),
    }
}

/// A word for `sh`, in quotes where it needs them; bytes that are no text are shown as replacement characters.
fn quote(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+{}".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// `fq show --json` of a job with an array.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobView {
    /// Always 1.
    pub schema: u32,
    /// Its number.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: &'static str,
    /// Why it is in that state, if there is something to say.
    pub reason: Option<String>,
    /// Its tasks.
    pub tasks: TaskCounts,
    /// Tasks that failed, at most a hundred.
    pub failed: Vec<String>,
    /// What the job asks for.
    pub job: JobDetails,
}

/// What `fq show` shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// A task, or a job that has only one.
    Task(Box<TaskView>),
    /// A job with an array.
    Job(Box<JobView>),
}

/// Looks at one job or task; `None` if there is none under that id.
pub fn show(fs: &dyn Fs, state: &State, pending: &[Pending], id: TaskId) -> Option<Shown> {
    if let Some(job) = state.job(id.job) {
        let manifest = read_manifest(fs, job.spec.job).ok();
        let spec = &job.spec;
        let details = JobDetails::new(spec.job, spec.at_ms, spec.array.as_ref(), &spec.needs, manifest.as_ref());
        return match job.position(id.index) {
            Some(position) => Some(Shown::Task(Box::new(task_view(fs, state, job, position, details)))),
            None if id.index.is_none() => Some(Shown::Job(Box::new(job_view(state, job, details)))),
            None => None,
        };
    }
    let entry = pending.iter().find(|p| p.job == id.job)?;
    let manifest = entry.manifest.as_ref().ok()?;
    let word = if manifest.needs.hold { TaskState::Held } else { TaskState::Waiting };
    let reason = Some("no master has taken it in yet".to_owned());
    let array = manifest.array.as_ref();
    let details = JobDetails::new(id.job, manifest.at_ms, array, &manifest.needs, Some(manifest));
    let name = manifest.name.clone();
    match (array, id.index) {
        (Some(set), None) => {
            let mut tasks = TaskCounts::default();
            tasks.add(word, set.len());
            let (id, failed) = (id.to_string(), Vec::new());
            let view = JobView { schema: SCHEMA, id, name, state: word.word(), reason, tasks, failed, job: details };
            Some(Shown::Job(Box::new(view)))
        }
        (Some(set), Some(index)) if !set.contains(index) => None,
        (None, Some(_)) => None,
        _ => Some(Shown::Task(Box::new(TaskView {
            schema: SCHEMA,
            id: id.to_string(),
            name,
            state: word.word(),
            reason,
            exit_code: None,
            signal: None,
            attempts: Vec::new(),
            job: details,
        }))),
    }
}

fn job_view(state: &State, job: &Job, details: JobDetails) -> JobView {
    let position_of = |wanted: TaskState| job.tasks.iter().position(|task| task.state == wanted);
    let failed = job.tasks.iter().enumerate().filter(|(_, task)| task.state == TaskState::Failed);
    let failed = failed.take(100).map(|(at, _)| job.task_id(at as u32).to_string()).collect();
    let overall = job.state();
    let example = position_of(overall).or_else(|| position_of(TaskState::Issued));
    JobView {
        schema: SCHEMA,
        id: job.spec.job.to_string(),
        name: job.spec.name.clone(),
        state: overall.word(),
        reason: example.and_then(|at| reason(state, job, at as u32)),
        tasks: TaskCounts::from(&job.counts),
        failed,
        job: details,
    }
}

fn task_view(fs: &dyn Fs, state: &State, job: &Job, position: u32, details: JobDetails) -> TaskView {
    let attempts = attempts(fs, state, job, position);
    let task = &job.tasks[position as usize];
    let last = attempts.last().filter(|attempt| attempt.attempt == task.attempt);
    TaskView {
        schema: SCHEMA,
        id: job.task_id(position).to_string(),
        name: job.spec.name.clone(),
        state: task.state.word(),
        reason: reason(state, job, position),
        exit_code: last.and_then(|attempt| attempt.exit_code),
        signal: last.and_then(|attempt| attempt.signal),
        attempts,
        job: details,
    }
}

/// Where the record of an attempt is: its number, its worker's number, its journal line (0: none), and how it stands or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Its number, from 1.
    pub attempt: u32,
    /// The number of its worker.
    pub worker: u32,
    /// The journal line with its end; 0 if there is none.
    pub line: u64,
    /// One of the words of [`AttemptView::outcome`].
    pub how: String,
}

/// All attempts of a task, by number, as the decisions know them.
pub fn attempt_records(job: &Job, position: u32) -> Vec<AttemptRecord> {
    let past = job.past.get(&position).into_iter().flatten();
    let mut records: Vec<_> = past
        .map(|p| AttemptRecord { attempt: p.attempt, worker: p.worker, line: p.line, how: p.how.clone() })
        .collect();
    let Some(task) = job.tasks.get(position as usize) else { return records };
    if task.attempt > 0 && records.last().is_none_or(|record| record.attempt < task.attempt) {
        let how = match task.state {
            TaskState::Issued => "issued",
            state => state.word(),
        };
        records.push(AttemptRecord { attempt: task.attempt, worker: task.worker, line: task.line, how: how.into() });
    }
    records
}

/// The journal line that tells how an attempt ended, if there is one and it is still there.
pub fn end_line(fs: &dyn Fs, state: &State, record: &AttemptRecord) -> Option<EndLine> {
    let (wid, _) = state.worker_no(record.worker).filter(|_| record.line > 0)?;
    match journal::read_line(fs, wid, record.line).ok()?? {
        Line::End(end) => Some(*end),
        _ => None,
    }
}

fn attempts(fs: &dyn Fs, state: &State, job: &Job, position: u32) -> Vec<AttemptView> {
    let records = attempt_records(job, position);
    records.into_iter().map(|record| attempt_view(state, end_line(fs, state, &record), record)).collect()
}

fn attempt_view(state: &State, end: Option<EndLine>, record: AttemptRecord) -> AttemptView {
    let worker = state.worker_no(record.worker).map(|(wid, _)| wid);
    let facts = end.as_ref().map(|end| facts(&end.how)).unwrap_or_default();
    let wall = |ms: u64| (ms > 0).then_some(ms);
    AttemptView {
        attempt: record.attempt,
        worker: worker.map(ToString::to_string).unwrap_or_default(),
        host: worker.map(|wid| wid.host().to_owned()).unwrap_or_default(),
        outcome: facts.outcome.map_or(record.how, str::to_owned),
        exit_code: facts.exit_code,
        signal: facts.signal,
        step: facts.step,
        errno: facts.errno,
        detail: facts.detail,
        start_ms: end.as_ref().and_then(|end| wall(end.start_ms)),
        end_ms: end.as_ref().and_then(|end| wall(end.end_ms)),
        ms: end.as_ref().map(|end| end.ms),
        stdout_bytes: end.as_ref().map(|end| end.out.len()),
        stderr_bytes: end.as_ref().map(|end| end.err.len()),
        usage: end.as_ref().map(|end| end.usage),
        leftovers: end.as_ref().map_or(0, |end| end.leftovers),
        notes: end.map(|end| end.notes).unwrap_or_default(),
    }
}

/// An outcome taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    outcome: Option<&'static str>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    step: Option<String>,
    errno: Option<String>,
    detail: Option<String>,
}

fn facts(outcome: &Outcome) -> Facts {
    let of = |word, status: &Status| match *status {
        Status::Exit(code) => Facts { outcome: Some(word), exit_code: Some(code), ..Facts::default() },
        Status::Signal(signal) => Facts { outcome: Some(word), signal: Some(signal), ..Facts::default() },
    };
    match outcome {
        Outcome::Ran(status @ Status::Exit(0)) => of("done", status),
        Outcome::Ran(status) => of("failed", status),
        Outcome::Timeout(status) => of("timeout", status),
        Outcome::Oom(status) => of("out-of-memory", status),
        Outcome::Cancelled(status) => of("cancelled", status),
        Outcome::Setup(failure) => Facts {
            outcome: Some("setup"),
            step: Some(failure.step.to_string()),
            errno: Some(failure.errno.clone()),
            detail: Some(failure.path.clone()),
            ..Facts::default()
        },
        Outcome::Requeue(_) => Facts { outcome: Some("requeued"), ..Facts::default() },
        Outcome::Refused(why) => Facts { outcome: Some("refused"), detail: Some(why.clone()), ..Facts::default() },
    }
}

/// Why a task is in its state, if there is something to say.
pub fn reason(state: &State, job: &Job, position: u32) -> Option<String> {
    let task = job.tasks.get(position as usize)?;
    let note = || job.note(position).map(str::to_owned);
    match task.state {
        TaskState::Waiting => {
            let unmet = job.unmet.iter().filter_map(|&i| job.spec.needs.after.get(i as usize));
            let unmet: Vec<_> = unmet.map(|d| format!("{}:{}", after_word(d.when), d.target)).collect();
            Some(format!("waits for {}", unmet.join(", "))).filter(|_| !unmet.is_empty())
        }
        TaskState::Ready => Some(why_ready(state, job, position, task)),
        TaskState::Issued => {
            let wid = state.worker_no(task.worker).map(|(wid, _)| wid.to_string()).unwrap_or_default();
            Some(format!("given to {wid}, not known to run yet"))
        }
        TaskState::Running if task.cancelling => Some("is being cancelled".into()),
        TaskState::Running | TaskState::Done => None,
        TaskState::Failed | TaskState::Cancelled | TaskState::Aborted | TaskState::Held => note(),
    }
}

fn why_ready(state: &State, job: &Job, position: u32, task: &Task) -> String {
    let workers: Vec<_> = state.live_workers().collect();
    if workers.is_empty() {
        return "there is no worker".into();
    }
    let unfit: Vec<_> = workers.iter().filter_map(|(wid, w)| Some((wid, schedule::unfit(job, w)?))).collect();
    if unfit.len() == workers.len() {
        let needs = &job.spec.needs;
        let most_cpus = workers.iter().map(|(_, w)| w.admit.cpus).max().unwrap_or(0);
        if most_cpus < needs.cpus {
            return format!("no worker has {} CPUs, the largest has {most_cpus}", needs.cpus);
        }
        let example = unfit.first().map(|(wid, why)| format!("; {wid}: {why}")).unwrap_or_default();
        return format!("no worker can run it{example}");
    }
    let fit = || workers.iter().filter(|(_, w)| schedule::unfit(job, w).is_none());
    if !fit().any(|(_, w)| w.is_active()) {
        let why = fit().map(|(wid, w)| format!("{wid} {}", worker_word(w))).collect::<Vec<_>>().join(", ");
        return format!("no worker that could run it takes new work: {why}");
    }
    let cap = job.spec.needs.cap;
    if cap > 0 && job.out_count() >= cap {
        return format!("at most {cap} tasks of this array run at once");
    }
    if state.delayed().any(|(id, at, _)| (id, at) == (job.spec.job, position)) {
        return format!("waits before the next attempt, after {} failures", task.failures);
    }
    "all workers that could run it are busy".into()
}

/// The word for a worker's status.
fn worker_word(worker: &Worker) -> &'static str {
    match &worker.status {
        WorkerStatus::Active => "active",
        WorkerStatus::Paused(_) => "paused",
        WorkerStatus::Draining => "draining",
        WorkerStatus::Quarantined => "quarantined",
        WorkerStatus::Gone(Departure::Left, _) => "left",
        WorkerStatus::Gone(Departure::Lost, _) => "lost",
        WorkerStatus::Gone(Departure::Refused, _) => "refused",
    }
}

/// `fq workers --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workers {
    /// Always 1.
    pub schema: u32,
    /// The incarnations, by their number.
    pub workers: Vec<WorkerView>,
    /// What keeps the queue from going on at the moment, such as a full disk.
    pub trouble: Vec<String>,
}

/// A worker incarnation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerView {
    /// Its id.
    pub id: String,
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// `active`, `paused`, `draining`, `quarantined`, `left`, `lost` or `refused`.
    pub state: &'static str,
    /// Why it is in that state, if there is something to say.
    pub reason: Option<String>,
    /// CPUs that it gives to tasks.
    pub cpus: u32,
    /// Memory that it gives to tasks, bytes; 0 if it does not say.
    pub mem_bytes: u64,
    /// Attempts that it has.
    pub tasks: Vec<String>,
}

/// Lists the workers; those that are over only with `all`.
pub fn workers(state: &State, all: bool) -> Workers {
    let mut list: Vec<_> = state.workers.iter().filter(|(_, w)| all || !w.is_gone()).collect();
    list.sort_by_key(|(_, w)| w.no);
    let view = |(wid, w): (&crate::protocol::id::WorkerId, &Worker)| WorkerView {
        id: wid.to_string(),
        host: wid.host().to_owned(),
        pid: w.admit.worker.pid,
        state: worker_word(w),
        reason: match &w.status {
            WorkerStatus::Paused(why) | WorkerStatus::Gone(_, why) => Some(why.clone()).filter(|why| !why.is_empty()),
            WorkerStatus::Quarantined => Some("set-up failed too often in a row".into()),
            WorkerStatus::Active | WorkerStatus::Draining => None,
        },
        cpus: w.admit.cpus,
        mem_bytes: w.admit.mem,
        tasks: w
            .out
            .iter()
            .filter_map(|(&(id, at), &n)| Some(state.jobs.get(&id)?.attempt_id(at, n).to_string()))
            .collect(),
    };
    Workers { schema: SCHEMA, workers: list.into_iter().map(view).collect(), trouble: Vec::new() }
}

/// `fq list --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskList {
    /// Always 1.
    pub schema: u32,
    /// The tasks, by id.
    pub tasks: Vec<TaskRow>,
}

/// One task in `fq list`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskRow {
    /// `7` or `7_3`.
    pub id: String,
    /// The name of its job.
    pub name: String,
    /// Its state.
    pub state: &'static str,
    /// The number of its last attempt; 0 before the first.
    pub attempt: u32,
}

/// Lists all tasks, or those in the state that `word` names.
pub fn list(state: &State, pending: &[Pending], word: Option<&str>) -> TaskList {
    let mut tasks: Vec<TaskRow> = Vec::new();
    let wanted = |found: TaskState| word.is_none_or(|word| word == found.word());
    for job in state.jobs.values() {
        let rows = job.tasks.iter().enumerate().filter(|(_, task)| wanted(task.state));
        tasks.extend(rows.map(|(at, task)| TaskRow {
            id: job.task_id(at as u32).to_string(),
            name: job.spec.name.clone(),
            state: task.state.word(),
            attempt: task.attempt,
        }));
    }
    for entry in pending {
        let Ok(manifest) = &entry.manifest else { continue };
        let held = if manifest.needs.hold { TaskState::Held } else { TaskState::Waiting };
        let indices: Vec<_> = manifest.array.as_ref().map_or_else(|| vec![None], |set| set.iter().map(Some).collect());
        tasks.extend(indices.into_iter().filter(|_| wanted(held)).map(|index| TaskRow {
            id: TaskId { job: entry.job, index }.to_string(),
            name: manifest.name.clone(),
            state: held.word(),
            attempt: 0,
        }));
    }
    TaskList { schema: SCHEMA, tasks }
}

/// The exit code that stands for a task that has ended: its own for a program that ran, 1 if it never ran or the record is gone.
pub fn task_code(fs: &dyn Fs, state: &State, job: &Job, position: u32) -> i32 {
    let Some(task) = job.tasks.get(position as usize) else { return 1 };
    if task.state == TaskState::Done {
        return 0;
    }
    let last = attempt_records(job, position).pop().filter(|record| record.attempt == task.attempt);
    let outcome = last.and_then(|record| end_line(fs, state, &record)).map(|end| lifecycle::exit_code(&end.how));
    // An attempt that exited with 0 belongs to a task that was cancelled or aborted later on: not a success.
    outcome.filter(|&code| code != 0).unwrap_or(1)
}
