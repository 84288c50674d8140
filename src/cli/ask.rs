//! `fq cancel`, `fq hold`, `fq release` and `fq retry`: requests to whoever leads.

use fq::client::request;
use fq::client::submit::private_mode;
use fq::clock::{HostChance, HostClock};
use fq::protocol::id::{Nonce, Ranges, Target};
use fq::protocol::record::Action;
use fq::queue::Queue;

use super::error::Failure;
use super::look::Look;
use super::place::{self, Place};
use super::units::{Targets, targets};
use super::{Outcome, exit, out};

/// Which jobs and tasks, for commands that change them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Which: `7`, `7_3`, `7,9-12`, `7_[1-3]`
    #[arg(value_name = "ID", value_parser = targets, required = true)]
    ids: Vec<Targets>,
}

const CANCEL: &str = "\
Examples:
  fq cancel 7
  fq cancel 9-12,14_[0-3] --reason 'wrong input'

Returns when the request is durable. What has ended stays as it is.";

/// Ends jobs or tasks, or never starts them
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    which: Args,
    /// Why, shown by `fq show`
    #[arg(long, value_name = "R", default_value = "")]
    reason: String,
}

/// Runs `fq cancel`.
pub(crate) fn cancel(args: CancelArgs) -> Outcome {
    let reason = args.reason;
    args.which.ask("cancel", |_, targets| Ok(Action::Cancel { targets, reason }))
}

/// Runs `fq hold`.
pub(crate) fn hold(args: &Args) -> Outcome {
    args.ask("hold", |_, targets| Ok(Action::Hold { targets }))
}

/// Runs `fq release`.
pub(crate) fn release(args: &Args) -> Outcome {
    args.ask("release", |_, targets| Ok(Action::Release { targets }))
}

/// Runs `fq retry`.
pub(crate) fn retry(args: &Args) -> Outcome {
    args.ask("retry", |look, targets| {
        let targets = last_attempts(look, &targets);
        if targets.is_empty() {
            return Err(Failure::new(
                exit::NO,
                "there is nothing to retry: no such task has ended otherwise than well",
            ));
        }
        Ok(Action::Retry { targets })
    })
}

/// The tasks of `targets` that ended otherwise than well, grouped by job and last attempt number. A retry names the number, so
/// that asking twice runs a task once more, not twice.
pub(crate) fn last_attempts(look: &Look, targets: &[Target]) -> Vec<(Target, u32)> {
    use fq::protocol::lifecycle::TaskState;
    let mut found: std::collections::BTreeMap<(u64, u32), Option<Ranges>> = std::collections::BTreeMap::new();
    for target in targets {
        let Some((id, positions)) = look.state().expand(target) else { continue };
        let Some(job) = look.state().jobs.get(&id) else { continue };
        for position in positions {
            let Some(task) = job.tasks.get(position as usize) else { continue };
            if !task.state.is_final() || task.state == TaskState::Done {
                continue;
            }
            let set = found.entry((id.0, task.attempt)).or_default();
            if let Some(index) = job.task_id(position).index {
                set.get_or_insert_default().insert(index);
            }
        }
    }
    let target = |((job, attempt), indices)| (Target { job: fq::protocol::id::JobId(job), indices }, attempt);
    found.into_iter().map(target).collect()
}

impl Args {
    fn ask(&self, verb: &str, action: impl FnOnce(&Look, Vec<Target>) -> Result<Action, Failure>) -> Outcome {
        let look = Look::open(&self.place)?;
        let targets: Vec<_> = self.ids.iter().flat_map(|list| list.0.clone()).collect();
        look.must_exist(&targets)?;
        let action = action(&look, targets)?;
        send(&look.queue, verb, &action)?;
        if look.state().master.is_none() {
            out::remark(&format!(
                "the request to {verb} is safe, but no master leads: the next worker or master will answer it"
            ));
        }
        Ok(exit::OK)
    }
}

/// Makes a request durable and returns its id.
pub(crate) fn send(queue: &Queue, verb: &str, action: &Action) -> Result<Nonce, Failure> {
    let mode = private_mode(queue.file.gid);
    request::send(&*queue.fs, &HostClock, &HostChance, mode, &place::user(), action).map_err(|error| {
        Failure::files(format!("cannot {verb}"), &error).note("nothing was changed; it is safe to ask again")
    })
}
