//! `fq wait`: until jobs have ended.

use std::time::Duration;

use fq::client::wait::Follower;
use fq::clock::{Clock as _, HostClock};
use fq::protocol::id::Target;
use fq::state::State;

use super::error::Failure;
use super::look::Look;
use super::place::Place;
use super::units::{self, Targets, count, targets};
use super::{Outcome, exit, out};

const EXAMPLES: &str = "\
Examples:
  fq wait 7
  fq wait 7,9-12 --timeout 1h || echo \"code $?\"

Exits with the highest exit code of the tasks, 1 for one that never ran, 124 when the time is up.";

/// Waits until jobs or tasks have ended
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Which: `7`, `7_3`, `7,9-12`
    #[arg(value_name = "ID", value_parser = targets, required = true)]
    ids: Vec<Targets>,
    /// Give up after this time
    #[arg(long, value_name = "T", value_parser = units::span)]
    timeout: Option<Duration>,
}

/// Runs `fq wait`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let targets: Vec<_> = args.ids.iter().flat_map(|list| list.0.clone()).collect();
    look.must_exist(&targets)?;
    let mut follower = Follower::open(&look.queue.fs)?;
    until_over(&mut follower, &targets, args.timeout)
}

/// Waits until `targets` have ended, and returns their highest exit code.
pub(crate) fn until_over(follower: &mut Follower, targets: &[Target], timeout: Option<Duration>) -> Outcome {
    let start = HostClock.boot();
    let mut said_held = false;
    let mut alone = Alone::default();
    loop {
        let progress = follower.progress(targets);
        if progress.is_over() {
            follower.settle();
            return Ok(code_byte(follower.highest_code(targets)));
        }
        let left = timeout.map(|limit| limit.saturating_sub(HostClock.boot().saturating_sub(start)));
        if left == Some(Duration::ZERO) {
            return Err(timed_out(follower, targets));
        }
        if progress.held > 0 && progress.held + progress.ended == progress.total && progress.unknown == 0 && !said_held
        {
            out::remark(&format!("{} held and will not end before `fq release`", count(progress.held, "task")));
            said_held = true;
        }
        alone.look(follower.state());
        follower.next(left.unwrap_or(Duration::MAX).min(alone.pace()))?;
    }
}

/// Says once to somebody who waits that nobody is there to do the work.
#[derive(Default)]
pub(crate) struct Alone {
    since: Option<Duration>,
    has_said: bool,
}

impl Alone {
    /// A worker may be just starting.
    const GRACE: Duration = Duration::from_secs(2);

    /// Looks whether there is a worker.
    pub(crate) fn look(&mut self, state: &State) {
        if state.live_workers().next().is_some() {
            self.since = None;
            return;
        }
        let now = HostClock.boot();
        if now.saturating_sub(*self.since.get_or_insert(now)) >= Self::GRACE && !self.has_said {
            self.has_said = true;
            out::remark("no worker is alive: nothing runs before one is started with `fq worker`");
        }
    }

    /// How long to wait before the next look.
    fn pace(&self) -> Duration {
        if self.since.is_some() && !self.has_said { Self::GRACE } else { Duration::MAX }
    }
}

fn timed_out(follower: &Follower, targets: &[Target]) -> Failure {
    let progress = follower.progress(targets);
    let mut failure = Failure::new(exit::TIMEOUT, "the time is up");
    if progress.total > 0 {
        failure = failure.note(format!("{} of {} ended", progress.ended, count(progress.total, "task")));
    }
    if progress.unknown > 0 {
        failure = failure.note(format!("{} not taken in by a master yet", count(progress.unknown, "job")));
    }
    if follower.state().live_workers().next().is_none() {
        failure = failure.note("there is no worker").hint("start one: `fq worker`");
    }
    failure
}

/// An exit code as the shell can see it.
pub(crate) fn code_byte(code: i32) -> u8 {
    match code {
        0..=255 => code as u8,
        _ => exit::NO,
    }
}
