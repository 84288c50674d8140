//! When a dependency is fulfilled, and when it never will be.

use crate::protocol::id::Target;
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{After, Dependency};

use super::State;

/// The answer for one dependency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Met {
    /// Fulfilled.
    Yes,
    /// Not decided yet.
    NotYet,
    /// Can never be fulfilled, with the reason.
    Never(String),
}

impl State {
    /// Judges `dependency` by what is known now.
    pub(super) fn met(&self, dependency: &Dependency) -> Met {
        let target = &dependency.target;
        if let Some(why) = self.rejected.get(&target.job) {
            return match dependency.when {
                After::Ok => Met::Never(format!("job {} could not be taken in: {why}", target.job)),
                After::Any | After::NotOk => Met::Yes,
            };
        }
        if self.pruned.contains(target.job.0) {
            return Met::Never(format!("job {} is no longer kept", target.job));
        }
        let Some(sum) = self.summary(target) else { return Met::NotYet };
        let ended = sum.done + sum.bad == sum.total;
        match dependency.when {
            After::Ok if sum.bad > 0 => Met::Never(format!("{target} did not end well")),
            After::Ok | After::Any if ended => Met::Yes,
            After::NotOk if ended && sum.bad > 0 => Met::Yes,
            After::NotOk if ended => Met::Never(format!("{target} ended well")),
            _ => Met::NotYet,
        }
    }

    fn summary(&self, target: &Target) -> Option<Summary> {
        let job = self.job(target.job)?;
        if target.indices.is_none() {
            let done = job.counts.of(TaskState::Done);
            return Some(Summary { total: job.counts.total(), done, bad: job.counts.ended() - done });
        }
        let (_, positions) = self.expand(target)?;
        let states = || positions.iter().map(|&p| job.tasks[p as usize].state);
        let done = states().filter(|&s| s == TaskState::Done).count() as u64;
        let ended = states().filter(|s| s.is_final()).count() as u64;
        Some(Summary { total: positions.len() as u64, done, bad: ended - done })
    }
}

struct Summary {
    total: u64,
    done: u64,
    bad: u64,
}
