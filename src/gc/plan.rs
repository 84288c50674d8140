//! What a collection would remove, for a person who asks first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Unsure, candidates, decisions_to_drop, job_buckets_to_drop, list_decisions, survey, workers_to_drop};
use crate::fs::Fs;
use crate::protocol::id::{JobId, Ranges, WorkerId};
use crate::state::State;
use crate::store;

/// Which ended jobs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Those that ended at most so many milliseconds ago.
    pub keep_ms: u64,
    /// The wall clock of the one who asks, milliseconds since 1970.
    pub now_ms: u64,
}

/// The jobs that [`Keep`] lets go: they ended longer ago, and no unfinished job depends on them.
///
/// A job's end is that of its last attempt by its worker's wall clock, or its submission if it never ran. Wall clocks of hosts
/// are compared here and nowhere else: they decide how long a person can still read about a job that is over, never whether
/// something that runs is in danger. An end in the future counts as now.
///
/// `ended_ms` is that of [`Needed`](super::Needed).
pub fn old_jobs(state: &State, ended_ms: &BTreeMap<JobId, u64>, keep: Keep) -> Ranges {
    let wanted = state.jobs_in_demand();
    let ended_at = |id: &JobId, at_ms: u64| ended_ms.get(id).copied().unwrap_or(0).max(at_ms);
    let is_old = |id: &JobId, at_ms: u64| keep.now_ms.saturating_sub(ended_at(id, at_ms)) > keep.keep_ms;
    let over = state.jobs.iter().filter(|(id, job)| job.counts.all_ended() && !wanted.contains(id));
    over.filter(|(id, job)| is_old(id, job.spec.at_ms)).map(|(id, _)| id.0).collect()
}

/// What a collection would remove if nothing changed until then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs that would be forgotten.
    pub jobs: Ranges,
    /// Objects and packs that nothing needs, and their bytes.
    pub files: Vec<(String, u64)>,
    /// Files in the trash already.
    pub trash: usize,
    /// Temporary files, some of which may belong to writers that are alive.
    pub temps: usize,
    /// Workers whose namespaces and journals nothing refers to.
    pub workers: Vec<WorkerId>,
    /// Buckets of `jobs/` whose jobs are all forgotten.
    pub buckets: Vec<u64>,
    /// Decisions that the newest snapshots replace.
    pub decisions: usize,
}

impl Plan {
    /// The bytes of [`Plan::files`] together.
    pub fn bytes_total(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Finds out what a collection would remove. Reads only, and needs no master.
///
/// Files that only forgotten jobs need are not counted: they go one collection later.
pub fn plan(fs: &dyn Fs, state: &State, keep: Option<Keep>) -> Result<Plan, Unsure> {
    let found = survey(fs, state, &mut || {})?;
    let would_go = candidates(&found.inventory, &found.inventory, &found.needed.roots, &found.living);
    let bytes = |file: &String| {
        let stat = store::path_of(file).and_then(|path| fs.open(&path).ok()).and_then(|open| open.stat().ok());
        stat.map_or(0, |stat| stat.len)
    };
    let listed = list_decisions(fs, &mut || {})?;
    let in_use = state.workers_in_use();
    Ok(Plan {
        jobs: keep.map(|keep| old_jobs(state, &found.needed.ended_ms, keep)).unwrap_or_default(),
        files: would_go.files.into_iter().map(|file| (bytes(&file), file)).map(|(n, file)| (file, n)).collect(),
        trash: found.inventory.trash.values().map(BTreeSet::len).sum(),
        temps: would_go.temps.len(),
        // One that the state does not know may just be starting.
        workers: workers_to_drop(&found.journals, &found.journals, |w| {
            state.workers.get(w).is_none_or(|worker| !worker.is_gone() || in_use.contains(&worker.no))
        }),
        buckets: job_buckets_to_drop(&found.needed.buckets, |job| {
            state.pruned.contains(job.0) || state.rejected.contains_key(&job)
        }),
        decisions: decisions_to_drop(&listed, &BTreeSet::from([state.at]), &state.snapshots).len(),
    })
}

impl fmt::Display for Plan {
    /// One line for each kind of thing that would go; one line that says so if there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("nothing to collect");
        }
        let mut lines = Vec::new();
        if !self.jobs.is_empty() {
            lines.push(format!("{} jobs would be forgotten: {}", self.jobs.len(), self.jobs));
        }
        let mut count = |n: usize, what: &str| {
            if n > 0 {
                lines.push(format!("{n} {what}"));
            }
        };
        count(self.files.len(), &format!("objects and packs that nothing needs, {} bytes", self.bytes_total()));
        count(self.trash, "files in the trash");
        count(self.temps, "temporary files");
        count(self.workers.len(), "workers that nothing refers to");
        count(self.buckets.len(), "buckets of forgotten jobs");
        count(self.decisions, "decisions that snapshots replace");
        f.write_str(&lines.join("\n"))
    }
}
