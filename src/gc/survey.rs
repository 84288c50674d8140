//! What there is and what is needed, read off the commit path: the ground for every decision to remove something.
//!
//! Invariants:
//! - The inventory is taken before the roots are read, so that what the roots do not need was not needed when it was listed.
//! - Roots read with an older state are never fewer than those of a newer one, as far as kept jobs go: ends beyond the cursor of
//!   a worker that was alive count as roots, whoever will accept them, and so does every manifest that was not pruned.
//! - Where something that decisions name cannot be read, nothing is known, and so nothing is removed ([`Unsure`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Roots, journal_bytes, list_job_buckets};
use crate::fs::{self, Fs, FsError};
use crate::journal::Tail;
use crate::protocol::id::{JobId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{Command, Line, Manifest, Ref, from_document};
use crate::state::State;
use crate::store::inventory::{self, Inventory};

/// The largest manifest that is read; what is larger was never taken in.
const MANIFEST_MAX: u64 = 16 << 20;

/// What there is in a queue, and what of it is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The store.
    pub inventory: Inventory,
    /// What of it is needed.
    pub needed: Needed,
    /// Workers that were not over: their packs may be growing.
    pub living: BTreeSet<WorkerId>,
    /// The length of each worker's journal in bytes; see [`journal_bytes`].
    pub journals: BTreeMap<WorkerId, u64>,
}

/// What the records of a queue need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needed {
    /// The store files.
    pub roots: Roots,
    /// When the last attempt of each job ended, milliseconds since 1970 by the clock of its worker.
    pub ended_ms: BTreeMap<JobId, u64>,
    /// The names in each bucket of `jobs/`.
    pub buckets: BTreeMap<u64, Vec<String>>,
}

/// Why it is not known what is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsure {
    /// A file operation failed.
    Fs(FsError),
    /// A journal lacks a line with an end that was accepted.
    Line {
        /// Whose journal.
        w: WorkerId,
        /// The line.
        seq: u64,
    },
    /// The manifest of a kept job cannot be read.
    Manifest {
        /// The job.
        job: JobId,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fs(error) => error.fmt(f),
            Self::Line { w, seq } => write!(f, "the journal of {w} lacks line {seq}, which a kept job refers to"),
            Self::Manifest { job, why } => write!(f, "the manifest of job {job} cannot be read: {why}"),
        }
    }
}

impl std::error::Error for Unsure {}

impl From<FsError> for Unsure {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

/// Takes the inventory, then reads what is needed, given a settled `state`; calls `pace` before each directory and journal.
///
/// Reads all journals and the manifests of all kept jobs. Changes nothing.
pub fn survey(fs: &dyn Fs, state: &State, pace: &mut dyn FnMut()) -> Result<Survey, Unsure> {
    let journals = journal_bytes(fs, pace)?;
    let inventory = inventory::take(fs, pace)?;
    let needed = needed(fs, state, pace)?;
    let is_over = |w: &WorkerId| state.workers.get(w).is_some_and(crate::state::Worker::is_gone);
    let living = journals.keys().chain(state.workers.keys()).filter(|w| !is_over(w)).cloned().collect();
    Ok(Survey { inventory, needed, living, journals })
}

/// Reads what is needed, given a settled `state`; see [`survey`].
pub fn needed(fs: &dyn Fs, state: &State, pace: &mut dyn FnMut()) -> Result<Needed, Unsure> {
    let mut found = Needed { buckets: list_job_buckets(fs, pace)?, ..Needed::default() };
    read_manifests(fs, state, &mut found, pace)?;
    read_journals(fs, state, &mut found, pace)?;
    Ok(found)
}

fn read_manifests(fs: &dyn Fs, state: &State, found: &mut Needed, pace: &mut dyn FnMut()) -> Result<(), Unsure> {
    let listed: BTreeSet<JobId> = found.buckets.values().flatten().filter_map(|name| layout::parse_job(name)).collect();
    if let Some(job) = state.jobs.keys().find(|job| !listed.contains(job)) {
        return Err(Unsure::Manifest { job: *job, why: "it is not there".into() });
    }
    for job in listed {
        let is_kept = state.jobs.contains_key(&job);
        if !is_kept && state.knows(job) {
            continue;
        }
        pace();
        let manifest = match fs::read_up_to(fs, &layout::job(job), MANIFEST_MAX) {
            Ok(bytes) => from_document::<Manifest>(&bytes).map_err(|bad| bad.to_string()),
            Err(error) if error.not_found() || error.errno == libc::EFBIG => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        match manifest {
            Ok(manifest) => manifest_refs(&manifest).for_each(|reference| found.roots.add(reference)),
            Err(why) if is_kept => return Err(Unsure::Manifest { job, why }),
            // Not whole yet, or never: what it will need is put again or restored before the trash is emptied.
            Err(_) => {}
        }
    }
    Ok(())
}

fn manifest_refs(manifest: &Manifest) -> impl Iterator<Item = &Ref> {
    let script = match &manifest.command {
        Command::Script { bytes, .. } => Some(bytes),
        Command::Argv(_) | Command::Shell(_) | Command::Entry => None,
    };
    [manifest.entries.as_ref(), manifest.stdin.as_ref(), script].into_iter().flatten()
}

fn read_journals(fs: &dyn Fs, state: &State, found: &mut Needed, pace: &mut dyn FnMut()) -> Result<(), Unsure> {
    let wanted = state.wanted_ends();
    let names = fs.list(layout::JOURNALS.as_ref())?;
    let mut writers: BTreeSet<WorkerId> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    writers.extend(wanted.workers().cloned());
    for w in writers {
        pace();
        let lines = wanted.lines_of(&w);
        if lines.is_empty() && wanted.is_settled(&w) {
            continue;
        }
        let mut missing = lines.iter().peekable();
        let mut tail = Tail::new(w.clone());
        loop {
            let news = tail.poll(fs)?;
            for (seq, line) in news.lines {
                let is_in_use = missing.next_if(|wanted| **wanted == seq).is_some();
                let Line::End(end) = line else { continue };
                let job = end.a.task.job;
                if is_in_use {
                    let ended = found.ended_ms.entry(job).or_default();
                    *ended = end.end_ms.max(*ended);
                }
                if wanted.wants(&w, seq, job) {
                    found.roots.add(&end.out);
                    found.roots.add(&end.err);
                }
            }
            if !news.grew {
                break;
            }
        }
        if let Some(seq) = missing.next() {
            return Err(Unsure::Line { w, seq: *seq });
        }
    }
    Ok(())
}
