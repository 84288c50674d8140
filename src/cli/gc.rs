//! `fq gc`: lets go of what nobody needs any more.

use fq::clock::{Clock as _, HostClock};
use fq::gc::{self, Keep};
use fq::protocol::record::Action;

use super::error::Failure;
use super::look::Look;
use super::place::Place;
use super::{Outcome, ask, exit, out};

const DAY_MS: u64 = 86_400_000;

const EXAMPLES: &str = "\
Examples:
  fq gc --dry-run                   what would go now
  fq gc                             objects that no kept job needs
  fq gc --keep-days 30              also forgets jobs that ended more than 30 days ago

The master collects, in two steps with a day between them (`gc_wait_ms` in `limits.json`), so that nothing that is being written
goes. It is safe beside running workers, and the master does it by itself once a day.";

/// Removes what nobody needs any more
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Say what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also forget jobs that ended more than so many days ago
    #[arg(long, value_name = "N")]
    keep_days: Option<u64>,
}

/// Runs `fq gc`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let keep_ms = args.keep_days.map(|days| days.saturating_mul(DAY_MS));
    if args.dry_run {
        let keep = keep_ms.map(|keep_ms| Keep { keep_ms, now_ms: HostClock.wall_ms() });
        let plan = gc::plan(&*look.queue.fs, look.state(), keep).map_err(|unsure| {
            Failure::new(exit::TEMPORARY, "cannot tell what would go").because(&unsure).note("nothing was changed")
        })?;
        out::bytes(format!("{plan}\n").as_bytes())?;
        return Ok(exit::OK);
    }
    ask::send(&look.queue, "collect", &Action::Collect { keep_ms })?;
    match &look.state().master {
        Some(_) => out::remark("the master collects, in two steps"),
        None => out::remark("no master leads: the next one collects, in two steps"),
    }
    Ok(exit::OK)
}
