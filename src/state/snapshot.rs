//! Snapshots: the state as a document (spec: records, "Snapshot"). The same state gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::protocol::frame;
use crate::protocol::id::{DecisionId, JobId, Nonce, Ranges, Target, WorkerId};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{BadRecord, Ingest, Limits, SnapshotRef, to_line};
use crate::protocol::version::{CURRENT, FormatVersion};

use super::{Counts, Job, Leader, Past, State, Task, Worker};

#[derive(Serialize, Deserialize)]
struct Head {
    fq: String,
    version: FormatVersion,
    at: DecisionId,
    term: u64,
    master: Option<Leader>,
    limits: Limits,
    aliases: BTreeMap<JobId, JobId>,
    rejected: BTreeMap<JobId, String>,
    doomed: BTreeMap<JobId, Vec<(Target, String)>>,
    pruned: Ranges,
    answered: BTreeSet<Nonce>,
    snapshots: Vec<SnapshotRef>,
    trash: Vec<(DecisionId, Vec<String>)>,
    delayed: BTreeSet<(JobId, u32)>,
}

/// `[count, state, attempt, failures, losses, setups, worker, message, line, cancelling]`, for `count` equal tasks in a row.
type Run = (u64, TaskState, u32, u32, u32, u32, u32, u64, u64, bool);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Item {
    Job {
        spec: Box<Ingest>,
        tasks: Vec<Run>,
        unmet: BTreeSet<u32>,
        notes: BTreeMap<u32, String>,
        past: BTreeMap<u32, Vec<Past>>,
        measured: (u64, u64),
        setup_on: BTreeSet<u32>,
    },
    Worker {
        id: WorkerId,
        worker: Box<Worker>,
    },
}

/// Encodes the state.
pub fn encode_snapshot(state: &State) -> Vec<u8> {
    let mut bytes = to_line(&Head {
        fq: "snapshot".into(),
        version: CURRENT,
        at: state.at,
        term: state.term,
        master: state.master.clone(),
        limits: state.limits.clone(),
        aliases: state.aliases.clone(),
        rejected: state.rejected.clone(),
        doomed: state.doomed.clone(),
        pruned: state.pruned.clone(),
        answered: state.answered.clone(),
        snapshots: state.snapshots.clone(),
        trash: state.trash.clone().into_iter().collect(),
        delayed: state.delayed.clone(),
    });
    for job in state.jobs.values() {
        bytes.extend(to_line(&Item::Job {
            spec: Box::new(job.spec.clone()),
            tasks: runs(&job.tasks),
            unmet: job.unmet.clone(),
            notes: job.notes.clone(),
            past: job.past.clone(),
            measured: job.measured,
            setup_on: job.setup_on.clone(),
        }));
    }
    for (id, worker) in &state.workers {
        bytes.extend(to_line(&Item::Worker { id: id.clone(), worker: Box::new(worker.clone()) }));
    }
    frame::close_document(bytes)
}

fn runs(tasks: &[Task]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut before = None;
    for t in tasks {
        if before == Some(t)
            && let Some(last) = runs.last_mut()
        {
            last.0 += 1;
            continue;
        }
        before = Some(t);
        runs.push((1, t.state, t.attempt, t.failures, t.losses, t.setups, t.worker, t.m, t.line, t.cancelling));
    }
    runs
}

/// Decodes what [`encode_snapshot`] made.
pub fn decode_snapshot(bytes: &[u8]) -> Result<State, BadRecord> {
    let malformed = |e: serde_json::Error| BadRecord::Malformed(e.to_string());
    let body = frame::open_document(bytes).ok_or(BadRecord::Torn)?;
    let mut lines = body.split_inclusive(|&b| b == b'\n');
    let head: Head = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(malformed)?;
    let mut state = State::new(head.at);
    state.term = head.term;
    state.master = head.master;
    state.limits = head.limits;
    state.aliases = head.aliases;
    state.rejected = head.rejected;
    state.doomed = head.doomed;
    state.pruned = head.pruned;
    state.answered = head.answered;
    state.snapshots = head.snapshots;
    state.trash = head.trash.into_iter().collect();
    *state.delayed_mut() = head.delayed;
    for line in lines {
        match serde_json::from_slice(line).map_err(malformed)? {
            Item::Job { spec, tasks, unmet, notes, past, measured, setup_on } => {
                let mut list = Vec::new();
                for (count, s, attempt, failures, losses, setups, worker, m, line, cancelling) in tasks {
                    if list.len() as u64 + count > 10_000_000 {
                        return Err(BadRecord::Malformed(format!("job {} has too many tasks", spec.job)));
                    }
                    let task = Task { state: s, attempt, failures, losses, setups, worker, m, line, cancelling };
                    list.resize(list.len() + count as usize, task);
                }
                state.subs.insert(spec.sub, spec.job);
                if !spec.needs.key.is_empty() {
                    state.keys.insert((spec.uid, spec.needs.key.clone()), spec.job);
                }
                if unmet.iter().any(|&i| i as usize >= spec.needs.after.len()) {
                    return Err(BadRecord::Malformed(format!("job {} waits for something it does not name", spec.job)));
                }
                let job = Job {
                    spec: *spec,
                    tasks: list,
                    counts: Counts::default(),
                    unmet,
                    ready: BTreeSet::new(),
                    notes,
                    past,
                    measured,
                    setup_on,
                };
                state.jobs.insert(job.spec.job, job);
            }
            Item::Worker { id, worker } => {
                state.workers.insert(id, *worker);
            }
        }
    }
    state.index();
    Ok(state)
}
