//! What a master has its janitor do, off the commit path: removals that a dead reader may stall, and long walks.
//!
//! Each chore may be done late, twice or never, also by the janitor of a master that was deposed; the state that it is given is a
//! settled one, however old.

use std::path::PathBuf;

use crate::fs::{Fs, FsError};
use crate::gc::{self, Survey, Unsure};
use crate::protocol::id::{DecisionId, WorkerId};
use crate::state::State;

/// Work for the janitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chore {
    /// Remove decisions, candidates and snapshots that nothing needs any more, given this settled state.
    PruneLog,
    /// Render `view/`.
    Render,
    /// Find out what there is and what is needed, and report it.
    Survey(SurveyNo),
    /// Move these files to the trash directory of this decision; back what turns out to be needed.
    Quarantine(DecisionId, Vec<String>),
    /// Empty the trash directory of this decision, but for what is needed.
    Purge(DecisionId),
    /// Move everything back from these trash directories, which no decision in force knows.
    GiveBack(Vec<DecisionId>),
    /// Remove what collecting found to be of no use.
    Drop(Box<Leftovers>),
}

/// Which survey of which reign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurveyNo {
    /// The `lead` decision of the reign.
    pub lead: DecisionId,
    /// From 1.
    pub number: u64,
}

/// Names that nothing refers to and that are never used again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Temporary files of dead writers.
    pub temps: Vec<PathBuf>,
    /// Workers that are over or never came.
    pub workers: Vec<WorkerId>,
    /// Buckets of `jobs/` in which every job is pruned.
    pub buckets: Vec<u64>,
}

/// What a chore came to, for [`Master::report`](super::Master::report).
#[derive(Debug)]
pub enum Report {
    /// A survey.
    Survey(SurveyNo, Result<Box<Survey>, Unsure>),
    /// Something that a person may want to read in the log.
    Said(String),
}

impl Chore {
    /// Does the chore, given a settled state. [`Chore::Render`] is left to the caller.
    pub fn perform(self, fs: &dyn Fs, state: &State) -> Option<Report> {
        let said = match self {
            Self::Survey(number) => {
                return Some(Report::Survey(number, gc::survey(fs, state, &mut || {}).map(Box::new)));
            }
            Self::Render => return None,
            Self::PruneLog => gc::tidy_log(fs, state).map(|_| None).map_err(Unsure::Fs),
            Self::Quarantine(by, files) => quarantine(fs, state, by, &files),
            Self::Purge(by) => purge(fs, state, by),
            Self::GiveBack(all) => give_back(fs, &all).map_err(Unsure::Fs),
            Self::Drop(leftovers) => leftovers.remove(fs, state).map_err(Unsure::Fs),
        };
        said.unwrap_or_else(|error| Some(format!("not all could be collected: {error}"))).map(Report::Said)
    }
}

/// What was said of a chore, if there is something to say.
type Said<E> = Result<Option<String>, E>;

fn quarantine(fs: &dyn Fs, state: &State, by: DecisionId, files: &[String]) -> Said<Unsure> {
    let moved = gc::quarantine(fs, by, files)?;
    if moved == 0 {
        return Ok(None);
    }
    // Something may have been put again and accepted between the look and the move; it must not be away until the purge.
    let roots = gc::needed(fs, state, &mut || {})?.roots;
    let mut back = 0;
    for file in files.iter().filter(|file| roots.need(file)) {
        back += usize::from(gc::restore(fs, by, file)?);
    }
    Ok(Some(format!("{} files that nothing needs went to the trash of {by}", moved - back.min(moved))))
}

fn purge(fs: &dyn Fs, state: &State, by: DecisionId) -> Said<Unsure> {
    let done = gc::purge(fs, by, &mut || Ok::<_, Unsure>(gc::needed(fs, state, &mut || {})?.roots))?;
    let left = if done.left.is_empty() {
        String::new()
    } else {
        format!("; {} names in it are none of the store's and stay: {}", done.left.len(), done.left.join(", "))
    };
    let (removed, restored) = (done.removed.len(), done.restored.len());
    Ok(Some(format!("the trash of {by} was emptied: {removed} files removed, {restored} moved back{left}")))
}

fn give_back(fs: &dyn Fs, all: &[DecisionId]) -> Said<FsError> {
    let mut back = 0;
    for by in all {
        back += gc::give_back(fs, *by)?;
    }
    Ok((back > 0).then(|| format!("{back} files moved back from trash that no decision knows")))
}

impl Leftovers {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The chore that removes them, if there is anything.
    pub(super) fn chore(self) -> Option<Chore> {
        (!self.is_empty()).then(|| Chore::Drop(Box::new(self)))
    }

    fn remove(&self, fs: &dyn Fs, state: &State) -> Said<FsError> {
        gc::remove_files(fs, &self.temps)?;
        for w in &self.workers {
            gc::remove_worker(fs, w)?;
        }
        for bucket in &self.buckets {
            gc::remove_job_bucket(fs, *bucket)?;
        }
        gc::tidy_workers(fs, state, &mut || {})?;
        let (temps, workers, buckets) = (self.temps.len(), self.workers.len(), self.buckets.len());
        Ok(Some(format!("removed {temps} temporary files, {workers} workers and {buckets} buckets of jobs")))
    }
}
