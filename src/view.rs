//! What people see with `cat view/…`: the state rendered as text and tables (spec: reading).
//!
//! Invariants:
//! - Nothing is ever read back from here: the view may be old, missing or made by a deposed master, and nobody decides on it.
//! - Its size is bounded, whatever the queue holds: [`ROWS_MAX`] rows a table, and a line that says how many there are more.
//! - A table has one row a line, fields parted by a tab, the first line names them; a field holds neither tab nor line feed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::clock::Chance;
use crate::fs::{Fs, publish};
use crate::protocol::digest::Digest;
use crate::protocol::id::{DecisionId, WorkerId};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::state::{Counts, Job, State, Worker, WorkerStatus};

/// At most so many rows are in a table.
pub const ROWS_MAX: usize = 10_000;

/// At most so many rejected manifests are named in `STATUS`, the newest first.
const REJECTED_MAX: usize = 20;

/// Everybody may look.
const MODE: u32 = 0o644;

/// The states that have a column of their own; an issued task is `ready` to people.
const COLUMNS: [TaskState; 8] = [
    TaskState::Waiting,
    TaskState::Ready,
    TaskState::Running,
    TaskState::Done,
    TaskState::Failed,
    TaskState::Cancelled,
    TaskState::Aborted,
    TaskState::Held,
];

/// However little changes, a file is written again after so long: a deposed master may have put an older one in its place.
const REFRESH_MS: u64 = 300_000;

/// Publishes all files of the view. Errors are of no consequence: what could not be written is written the next time.
pub fn write(fs: &dyn Fs, chance: &dyn Chance, state: &State, now_ms: u64) {
    Writer::default().write(fs, chance, state, now_ms);
}

/// Publishes the view again and again, and of it only what has changed.
///
/// What it knows of the files holds for one reign: in another one somebody else has written them since.
#[derive(Debug, Default)]
pub struct Writer {
    /// The `lead` decision of the reign.
    reign: Option<DecisionId>,
    /// What was published last, and at which wall time.
    written: BTreeMap<&'static str, (Digest, u64)>,
}

impl Writer {
    /// Publishes the files that are not as this writer has published them last. What could not be written is written the next time.
    pub fn write(&mut self, fs: &dyn Fs, chance: &dyn Chance, state: &State, now_ms: u64) {
        let reign = state.master.as_ref().map(|leader| leader.lead);
        if reign.is_none() || reign != self.reign {
            self.written.clear();
        }
        self.reign = reign;
        for (name, bytes) in render(state, now_ms) {
            let digest = Digest::of(&bytes);
            let is_fresh = |at_ms: u64| now_ms.abs_diff(at_ms) < REFRESH_MS;
            if self.written.get(name).is_some_and(|&(sha, at_ms)| sha == digest && is_fresh(at_ms)) {
                continue;
            }
            match publish(fs, chance, &Path::new(layout::VIEW).join(name), &bytes, MODE) {
                Ok(()) => self.written.insert(name, (digest, now_ms)),
                Err(_) => self.written.remove(name),
            };
        }
    }
}

/// Renders `state` as file names and contents; `now_ms` is the wall time that the view tells, milliseconds since 1970.
pub fn render(state: &State, now_ms: u64) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("STATUS", status(state, now_ms)),
        ("jobs.tsv", jobs(state)),
        ("workers.tsv", workers(state)),
        ("failed.tsv", tasks(state, &[TaskState::Failed, TaskState::Aborted])),
        ("held.tsv", tasks(state, &[TaskState::Held])),
    ]
}

/// A wall time as people read it: `2025-01-31T12:00:00Z`. Times that no calendar has are `-`.
pub fn utc(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

fn of(counts: &Counts, column: TaskState) -> u64 {
    let issued = if column == TaskState::Ready { counts.of(TaskState::Issued) } else { 0 };
    counts.of(column) + issued
}

fn status(state: &State, now_ms: u64) -> Vec<u8> {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<10} {value}");
    };
    line("rendered", &utc(now_ms));
    line("head", &state.at.to_string());
    line("term", &state.term.to_string());
    line("master", state.master.as_ref().map_or("-", |leader| leader.w.as_str()));
    line("jobs", &state.jobs.len().to_string());
    let counts = state.counts();
    line("tasks", &counts.total().to_string());
    for column in COLUMNS {
        line(column.word(), &of(&counts, column).to_string());
    }
    let gone = state.workers.values().filter(|w| w.is_gone()).count();
    line("workers", &format!("{} alive, {gone} gone", state.workers.len() - gone));
    for (id, why) in state.rejected.iter().rev().take(REJECTED_MAX) {
        line("rejected", &field(&format!("{id} {why}")));
    }
    if state.rejected.len() > REJECTED_MAX {
        line("rejected", &format!("and {} more", state.rejected.len() - REJECTED_MAX));
    }
    text.into_bytes()
}

/// Jobs that have not ended come first, in order; then those that have, the newest first.
fn jobs(state: &State) -> Vec<u8> {
    let mut table = Table::new(
        "job\tstate\tname\tuid\tsubmitted\ttasks\twaiting\tready\trunning\tdone\tfailed\tcancelled\taborted\theld\tnote",
    );
    let open = state.jobs.values().filter(|job| !job.counts.all_ended());
    let ended = state.jobs.values().rev().filter(|job| job.counts.all_ended());
    for job in open.chain(ended) {
        table.add(|| {
            let mut row = vec![
                job.spec.job.to_string(),
                job.state().to_string(),
                field(&job.spec.name),
                job.spec.uid.to_string(),
                utc(job.spec.at_ms),
                job.counts.total().to_string(),
            ];
            row.extend(COLUMNS.map(|column| of(&job.counts, column).to_string()));
            row.push(field(job.notes.get(&u32::MAX).map_or("", String::as_str)));
            row
        });
    }
    table.end()
}

/// Workers that live come first, then those that are gone, the newest first.
fn workers(state: &State) -> Vec<u8> {
    let mut table = Table::new("worker\tstatus\thost\tpid\tuid\tcpus\tmem\tattempts\tjournal_line\twhy");
    let mut all: Vec<(&WorkerId, &Worker)> = state.workers.iter().collect();
    all.sort_by_key(|(_, w)| (w.is_gone(), if w.is_gone() { u32::MAX - w.no } else { w.no }));
    for (id, worker) in all {
        table.add(|| {
            let (status, why) = match &worker.status {
                WorkerStatus::Active => ("active", ""),
                WorkerStatus::Paused(why) => ("paused", why.as_str()),
                WorkerStatus::Draining => ("draining", ""),
                WorkerStatus::Quarantined => ("quarantined", "set-up of tasks failed too often in a row"),
                WorkerStatus::Gone(how, why) => (gone_word(*how), why.as_str()),
            };
            let process = &worker.admit.worker;
            vec![
                id.to_string(),
                status.to_owned(),
                field(&process.host),
                process.pid.to_string(),
                process.uid.to_string(),
                worker.admit.cpus.to_string(),
                worker.admit.mem.to_string(),
                worker.out.len().to_string(),
                worker.seq.to_string(),
                field(why),
            ]
        });
    }
    table.end()
}

fn gone_word(how: crate::protocol::record::Departure) -> &'static str {
    use crate::protocol::record::Departure;
    match how {
        Departure::Left => "left",
        Departure::Lost => "lost",
        Departure::Refused => "refused",
    }
}

/// The tasks that are in one of `states`. Their last attempt ended with line `line` of the journal of `worker`.
fn tasks(state: &State, states: &[TaskState]) -> Vec<u8> {
    let mut table = Table::new("task\tstate\tattempt\tworker\tline\tname\tnote");
    for job in state.jobs.values() {
        let there: u64 = states.iter().map(|&s| job.counts.of(s)).sum();
        if there == 0 {
            continue;
        }
        if table.is_full() {
            table.skip(there);
            continue;
        }
        for (at, task) in (0u32..).zip(&job.tasks).filter(|(_, task)| states.contains(&task.state)) {
            table.add(|| {
                let worker = state.worker_no(task.worker).filter(|_| task.attempt > 0);
                vec![
                    job.task_id(at).to_string(),
                    task.state.to_string(),
                    task.attempt.to_string(),
                    worker.map_or_else(|| "-".to_owned(), |(id, _)| id.to_string()),
                    task.line.to_string(),
                    field(&job.spec.name),
                    field(note(job, at)),
                ]
            });
        }
    }
    table.end()
}

fn note(job: &Job, at: u32) -> &str {
    job.note(at).unwrap_or("")
}

/// A text without the characters that part rows and fields.
fn field(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A table that stops growing.
struct Table {
    text: String,
    rows: usize,
    more: u64,
}

impl Table {
    fn new(header: &str) -> Self {
        Self { text: format!("{header}\n"), rows: 0, more: 0 }
    }

    fn is_full(&self) -> bool {
        self.rows >= ROWS_MAX
    }

    fn skip(&mut self, rows: u64) {
        self.more += rows;
    }

    fn add(&mut self, row: impl FnOnce() -> Vec<String>) {
        if self.is_full() {
            self.skip(1);
            return;
        }
        self.rows += 1;
        self.text.push_str(&row().join("\t"));
        self.text.push('\n');
    }

    fn end(mut self) -> Vec<u8> {
        if self.more > 0 {
            let _ = writeln!(self.text, "# and {} more; `fq list` shows all", self.more);
        }
        self.text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::fixed::Dice;
    use crate::fs::memory::MemoryFs;
    use crate::fs::{Call, Counting, Faulty, Rule};
    use crate::process::Identity;
    use crate::protocol::id::{JobId, Nonce, Ranges};
    use crate::protocol::record::{Action, Ingest, Needs, Op};

    fn submit(job: u64, name: &str, tasks: u64, hold: bool) -> Op {
        Op::Ingest(Box::new(Ingest {
            job: JobId(job),
            sub: Nonce(job),
            sha: Digest::of(b""),
            uid: 1000,
            name: name.into(),
            array: (tasks > 1).then(|| Ranges::span(0, tasks - 1)),
            needs: Needs { hold, ..Needs::default() },
            at_ms: 1_700_000_000_000,
        }))
    }

    fn state(ops: &[Op]) -> State {
        let id = |generation| DecisionId { generation, nonce: Nonce(generation) };
        let mut state = State::new(id(0));
        state.apply_group(id(1), ops).unwrap_or_else(|e| panic!("{e}"));
        state
    }

    fn text(state: &State, name: &str) -> String {
        let files = render(state, 1_700_000_001_999);
        let bytes = files.into_iter().find(|(n, _)| *n == name).map(|(_, bytes)| bytes);
        String::from_utf8(bytes.expect("a file of the view")).expect("text")
    }

    #[test]
    fn the_status_names_head_master_and_counts() {
        let state = state(&[submit(1, "a", 3, false), submit(2, "b", 1, true)]);
        let shown = text(&state, "STATUS");
        for line in [
            "rendered   2023-11-14T22:13:21Z",
            "head       1.0000000000000001",
            "master     -",
            "ready      3",
            "held       1",
            "workers    0 alive, 0 gone",
        ] {
            assert!(shown.lines().any(|l| l == line), "{line} in:\n{shown}");
        }
    }

    #[test]
    fn a_name_with_tabs_and_line_feeds_takes_one_field_of_one_row() {
        let state = state(&[submit(1, "a\tb\nc", 1, false)]);
        let shown = text(&state, "jobs.tsv");
        let rows: Vec<Vec<&str>> = shown.lines().map(|l| l.split('\t').collect()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].len(), rows[1].len());
        assert_eq!(rows[1][2], "a b c");
    }

    #[test]
    fn jobs_that_have_not_ended_come_before_those_that_have() {
        let cancel = Action::Cancel { targets: vec![one(1), one(2)], reason: "x".into() };
        let ops = [
            submit(1, "a", 1, false),
            submit(2, "b", 1, false),
            submit(3, "c", 1, false),
            Op::Answer { id: Nonce(9), action: cancel, uid: 0 },
        ];
        let shown = text(&state(&ops), "jobs.tsv");
        let first: Vec<&str> = shown.lines().skip(1).filter_map(|l| l.split('\t').next()).collect();
        assert_eq!(first, ["3", "2", "1"]);
    }

    fn one(job: u64) -> crate::protocol::id::Target {
        crate::protocol::id::Target { job: JobId(job), indices: None }
    }

    #[test]
    fn a_huge_queue_has_a_small_view_that_says_how_much_is_missing() {
        let state = state(&[submit(1, "a", 25_000, true), submit(2, "b", 10, true)]);
        let shown = text(&state, "held.tsv");
        assert_eq!(shown.lines().count(), 1 + ROWS_MAX + 1);
        assert_eq!(shown.lines().last(), Some("# and 15010 more; `fq list` shows all"));
    }

    #[test]
    fn many_rejected_manifests_are_counted_and_not_all_named() {
        let ops: Vec<Op> = (1..=50).map(|job| Op::Reject { job: JobId(job), why: "x".into() }).collect();
        let shown = text(&state(&ops), "STATUS");
        assert_eq!(shown.lines().filter(|l| l.starts_with("rejected")).count(), REJECTED_MAX + 1);
        assert!(shown.contains("rejected   50 x\n") && shown.ends_with("rejected   and 30 more\n"), "{shown}");
    }

    /// A state on top of `before`, or of nothing, in which `term` is led.
    fn led(term: u64, ops: &[Op]) -> State {
        let by = WorkerId::new("here", Nonce(term));
        let identity =
            Identity { host: "here".into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 1000 };
        let id = |generation| DecisionId { generation, nonce: Nonce(generation) };
        let mut state = State::new(id(0));
        for term in 1..=term {
            let lead = Op::Lead { term, master: by.clone(), identity: identity.clone() };
            state.apply_group(id(term), &[lead]).unwrap_or_else(|e| panic!("{e}"));
        }
        state.apply_group(id(term + 1), ops).unwrap_or_else(|e| panic!("{e}"));
        state
    }

    #[test]
    fn only_what_has_changed_is_written_again() {
        let memory = MemoryFs::default();
        for dir in layout::DIRECTORIES {
            let _ = memory.mkdir(Path::new(dir));
        }
        let fs = Counting::new(Faulty::new(memory));
        let mut writer = Writer::default();
        let files_written = |writer: &mut Writer, state: &State, now_ms: u64| {
            let before = fs.counts();
            writer.write(&fs, &Dice::new(now_ms), state, now_ms);
            (fs.counts() - before).of(Call::Create)
        };
        let one = led(1, &[submit(1, "a", 1, false)]);
        assert_eq!(files_written(&mut writer, &one, 1000), 5, "all at first");
        assert_eq!(files_written(&mut writer, &one, 1000), 0);
        assert_eq!(files_written(&mut writer, &one, 2000), 1, "the time that `STATUS` tells");
        let two = led(1, &[submit(1, "a", 1, false), submit(2, "b", 1, false)]);
        assert_eq!(files_written(&mut writer, &two, 3000), 2, "and the table of jobs");
        // Whoever led meanwhile has written all of them.
        let later = led(3, &[submit(1, "a", 1, false), submit(2, "b", 1, false)]);
        assert_eq!(files_written(&mut writer, &later, 4000), 5, "all, after another reign");
        assert_eq!(files_written(&mut writer, &state(&[]), 5000), 5, "all, where nobody leads any more");
        // What failed is tried again.
        assert_eq!(files_written(&mut writer, &later, 6000), 5);
        fs.inner().add(Rule::new(Call::Write, libc::ENOSPC).on("view/"));
        assert_eq!(files_written(&mut writer, &two, 7000), 5);
        fs.inner().heal();
        assert_eq!(files_written(&mut writer, &two, 7000), 5);
        assert_eq!(files_written(&mut writer, &two, 7000), 0);
        assert_eq!(files_written(&mut writer, &two, 7000 + REFRESH_MS), 5, "all now and then");
    }
}
