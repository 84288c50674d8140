//! Waiting for the decisions to say something.
//!
//! Polling is the truth, a change noticed by the kernel only a hint to look earlier.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use crate::clock::{Clock, HostClock};
use crate::decision::{ChainError, Reader};
use crate::fs::{HostFs, Watch};
use crate::protocol::id::{JobId, Target};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::state::State;

use super::view;

/// From one look to the next where nothing wakes earlier.
const POLL: Duration = Duration::from_millis(500);

/// How long a chain that cannot be read at the moment is looked at again.
const PATIENCE: Duration = Duration::from_secs(90);

/// Follows the decisions of a queue.
pub struct Follower {
    fs: Arc<HostFs>,
    reader: Reader,
    wake: SyncSender<()>,
    wakes: Receiver<()>,
    watch: Option<Watch>,
    trouble_since: Option<Duration>,
}

impl Follower {
    /// Reads the newest state and follows it from there.
    pub fn open(fs: &Arc<HostFs>) -> Result<Self, ChainError> {
        let (wake, wakes) = mpsc::sync_channel(1);
        let head = fs.full_path(Path::new(layout::HEAD));
        let hint = wake.clone();
        let watch = Watch::new(&[head], move |_| {
            let _ = hint.try_send(());
        });
        Ok(Self { fs: Arc::clone(fs), reader: Reader::open(&**fs)?, wake, wakes, watch, trouble_since: None })
    }

    /// Something with which another thread ends the present wait early.
    pub fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    /// Wakes up on changes in this directory of the queue, too.
    pub fn also_watch(&mut self, dir: &Path) {
        let path = self.fs.full_path(dir);
        if let Some(watch) = &mut self.watch {
            watch.add(&path);
        }
    }

    /// The state as of the last look.
    pub fn state(&self) -> &State {
        self.reader.state()
    }

    /// Waits for a sign of change, at most `limit` and never longer than a poll takes, and looks again.
    ///
    /// Fails when the chain is broken for good, or could not be read for a minute and a half.
    pub fn next(&mut self, limit: Duration) -> Result<bool, ChainError> {
        let _ = self.wakes.recv_timeout(limit.min(POLL));
        match self.reader.refresh(&*self.fs) {
            Ok(changed) => {
                self.trouble_since = None;
                Ok(changed)
            }
            Err(error) if !error.may_pass() => Err(error),
            Err(error) => {
                let now = HostClock.boot();
                let since = *self.trouble_since.get_or_insert(now);
                if now.saturating_sub(since) > PATIENCE { Err(error) } else { Ok(false) }
            }
        }
    }

    /// Makes what was seen durable, before something final is reported on the strength of it. Where that is not possible, as on
    /// a read-only mount, what was seen is reported all the same.
    pub fn settle(&self) {
        let _ = self.reader.settle(&*self.fs);
    }

    /// How far the tasks of `targets` have come.
    pub fn progress(&self, targets: &[Target]) -> Progress {
        progress(self.state(), targets)
    }

    /// The highest exit code of the ended tasks of `targets`.
    pub fn highest_code(&self, targets: &[Target]) -> i32 {
        let state = self.state();
        let mut highest = 0;
        for target in targets {
            if state.rejected.contains_key(&target.job) {
                highest = highest.max(1);
            }
            let Some((id, positions)) = state.expand(target) else { continue };
            let Some(job) = state.jobs.get(&id) else { continue };
            let bad = |at: &&u32| {
                job.tasks.get(**at as usize).is_some_and(|t| t.state.is_final() && t.state != TaskState::Done)
            };
            for &at in positions.iter().filter(bad) {
                highest = highest.max(view::task_code(&*self.fs, state, job, at));
                if highest >= 255 {
                    return highest;
                }
            }
        }
        highest
    }
}

/// Ends the wait of a [`Follower`] early.
#[derive(Debug, Clone)]
pub struct Waker(SyncSender<()>);

impl Waker {
    /// Makes the follower look now.
    pub fn wake(&self) {
        let _ = self.0.try_send(());
    }
}

/// How far some tasks have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tasks that are known.
    pub total: u64,
    /// Those that have ended.
    pub ended: u64,
    /// Those that ended otherwise than well.
    pub bad: u64,
    /// Those that wait for a person.
    pub held: u64,
    /// Jobs that no master has taken in yet.
    pub unknown: u64,
}

impl Progress {
    /// Whether everything has ended.
    pub fn is_over(&self) -> bool {
        self.unknown == 0 && self.ended == self.total
    }
}

/// How far the tasks of `targets` have come, by what `state` knows. A rejected manifest counts as a task that ended badly, a
/// pruned job as one that ended.
pub fn progress(state: &State, targets: &[Target]) -> Progress {
    let mut sum = Progress::default();
    for target in targets {
        let gone = |id: &JobId| state.pruned.contains(id.0);
        match state.expand(target) {
            Some((id, positions)) => {
                let Some(job) = state.jobs.get(&id) else { continue };
                for task in positions.iter().filter_map(|&at| job.tasks.get(at as usize)) {
                    sum.total += 1;
                    sum.ended += u64::from(task.state.is_final());
                    sum.bad += u64::from(task.state.is_final() && task.state != TaskState::Done);
                    sum.held += u64::from(task.state == TaskState::Held);
                }
            }
            None if state.rejected.contains_key(&target.job) => {
                sum.total += 1;
                sum.ended += 1;
                sum.bad += 1;
            }
            None if gone(&target.job) => {
                sum.total += 1;
                sum.ended += 1;
            }
            None => sum.unknown += 1,
        }
    }
    sum
}
