//! `fq master`: leads the queue, or stands by, and runs nothing.

use std::sync::Arc;

use fq::clock::{Chance as _, HostChance};
use fq::node;
use fq::process::{Host as _, ThisHost};
use fq::protocol::id::{Nonce, WorkerId};

use super::error::{Failure, Plain};
use super::place::Place;
use super::{Outcome, exit, out};

const EXAMPLES: &str = "\
Examples:
  fq master --dir /scratch/me/q                 leads, or stands by while another process leads
  fq master --dir /scratch/me/q --until-empty

Every `fq worker` can lead, so that nobody has to start this. It is for queues whose workers run with --no-master.";

/// Leads the queue without running tasks
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// End when no task of the queue can make progress any more
    #[arg(long)]
    until_empty: bool,
}

/// Runs `fq master`.
pub(crate) fn run(args: &Args) -> Outcome {
    let queue = Arc::new(args.place.open()?);
    let broken =
        |error: &std::io::Error| Failure::new(exit::FQ_FAILED, "cannot start the master").because(&Plain(error));
    let host = ThisHost::new().map_err(|e| broken(&e))?;
    let me = WorkerId::new(&host.me().host, Nonce(HostChance.bits()));
    node::run_master(&queue, me, &host, args.until_empty, out::remark)
        .map_err(|e| Failure::new(exit::NOT_A_QUEUE, e.to_string()).hint("`fq fsck` tells more"))?;
    Ok(exit::OK)
}
