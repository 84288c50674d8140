//! One look at a queue: what the readers have in common.

use fq::client::view::{self, Pending};
use fq::decision::{ChainError, Reader};
use fq::protocol::id::{JobId, Target};
use fq::queue::Queue;
use fq::state::State;

use super::error::{Failure, code_of};
use super::exit;
use super::place::Place;
use super::units::tame;

/// The newest state of a queue, and the manifests that no master has taken in yet.
pub(crate) struct Look {
    pub(crate) queue: Queue,
    reader: Reader,
    pub(crate) pending: Vec<Pending>,
}

impl Look {
    /// Looks at the queue that was named.
    pub(crate) fn open(place: &Place) -> Result<Self, Failure> {
        Self::at(place.open()?)
    }

    /// Looks at an open queue.
    pub(crate) fn at(queue: Queue) -> Result<Self, Failure> {
        let reader = Reader::open(&*queue.fs)?;
        let pending = view::pending(&*queue.fs, reader.state())
            .map_err(|error| Failure::files("cannot look for submitted jobs", &error))?;
        Ok(Self { queue, reader, pending })
    }

    pub(crate) fn state(&self) -> &State {
        self.reader.state()
    }

    pub(crate) fn decided_at_ms(&self) -> u64 {
        self.reader.decided_at_ms()
    }

    /// Refuses targets of which no task exists, or is no longer kept.
    pub(crate) fn must_exist(&self, targets: &[Target]) -> Result<(), Failure> {
        let refusal = |target| if self.exists(target) { self.forgotten(target) } else { Some(no_such(target)) };
        targets.iter().find_map(refusal).map_or(Ok(()), Err)
    }

    /// Why a target has no tasks, if a master has taken it in or refuses to.
    pub(crate) fn refused(&self, target: &Target) -> Option<Failure> {
        let torn =
            || self.pending.iter().find(|p| p.job == target.job).and_then(|p| p.manifest.as_ref().err().cloned());
        let why = self.state().rejected.get(&target.job).cloned().or_else(torn);
        let cannot =
            |why: String| Failure::new(exit::NO, format!("job `{}` cannot be run: {}", target.job, tame(&why)));
        why.map(cannot).or_else(|| self.forgotten(target))
    }

    fn forgotten(&self, target: &Target) -> Option<Failure> {
        let is_forgotten = self.state().pruned.contains(target.job.0);
        let text = || format!("job `{}` ended long ago and is no longer kept", target.job);
        is_forgotten.then(|| Failure::new(exit::NO_SUCH, text()).hint("`fq gc --keep-days` is what forgets jobs"))
    }

    fn exists(&self, target: &Target) -> bool {
        if let Some((_, positions)) = self.state().expand(target) {
            return !positions.is_empty();
        }
        let pending = self.pending.iter().find(|entry| entry.job == target.job);
        match pending.map(|entry| &entry.manifest) {
            Some(Ok(manifest)) => match (&target.indices, &manifest.array) {
                (None, _) => true,
                (Some(wanted), Some(array)) => wanted.iter().any(|index| array.contains(index)),
                (Some(_), None) => false,
            },
            Some(Err(_)) => true,
            None => self.state().knows(target.job),
        }
    }

    /// What the job is called by, if it has the key and belongs to this user.
    pub(crate) fn job_with_key(&self, uid: u32, key: &str) -> Option<JobId> {
        let known = self.state().keys.get(&(uid, key.to_owned())).copied();
        let waiting = || {
            self.pending.iter().find_map(|entry| {
                let manifest = entry.manifest.as_ref().ok()?;
                (entry.uid == Some(uid) && manifest.needs.key == key).then_some(entry.job)
            })
        };
        known.or_else(waiting)
    }
}

/// There is no such job or task.
pub(crate) fn no_such(target: &Target) -> Failure {
    let what = if target.indices.is_some() { "task" } else { "job" };
    Failure::new(exit::NO_SUCH, format!("there is no {what} `{target}`")).hint("`fq status` lists the jobs")
}

impl From<ChainError> for Failure {
    fn from(error: ChainError) -> Self {
        match &error {
            ChainError::Fs(cause) => Self::new(code_of(cause), "cannot read the decisions of the queue").because(cause),
            ChainError::NoHead | ChainError::Several(_) | ChainError::Missing { .. } => {
                Self::new(exit::TEMPORARY, "cannot tell the state of the queue at the moment")
                    .because(&error)
                    .hint("try again in a minute; if it stays, `fq fsck` says more")
            }
            ChainError::Broken { .. } | ChainError::RolledBack { .. } => {
                Self::new(exit::NOT_A_QUEUE, "the decisions of the queue do not hang together")
                    .because(&error)
                    .note("nothing was changed")
                    .hint("`fq fsck` says what is damaged and what can be done")
            }
        }
    }
}
