//! `fq init`: makes a queue.

use fq::protocol::record::Durability;
use fq::queue::InitOptions;

use super::error::Failure;
use super::place::{Place, group_id, is_in, make, warn_outsider};
use super::{Outcome, exit};

const EXAMPLES: &str = "\
Examples:
  fq init --dir /scratch/me/q
  fq init --dir /projects/lab/q --group lab      everyone in the group may submit and run workers

`fq submit` into an absent directory makes a queue, too; a worker never does.";

/// Makes a queue in a new or empty directory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Whether writes survive a crash of the machine
    #[arg(long, value_enum, default_value_t = Care::Full)]
    durability: Care,
    /// Share the queue with this group (name or number)
    #[arg(long, value_name = "G")]
    group: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Care {
    /// What is acted upon is synced first
    Full,
    /// Nothing is synced: faster, for queues that may be lost, on one host only
    None,
}

/// Runs `fq init`.
pub(crate) fn run(args: &Args) -> Outcome {
    let dir = args.place.dir()?;
    let group = args.group.as_deref().map(group_id).transpose()?;
    if let Some(gid) = group.filter(|&gid| !is_in(gid)) {
        let named = args.group.as_deref().unwrap_or_default();
        return Err(Failure::new(
            exit::REFUSED,
            format!("cannot share a queue with group `{named}`: you are not in it"),
        )
        .note("nothing was made")
        .hint(format!("`id` shows your groups; after joining group {gid} log in anew, or use `newgrp`")));
    }
    let durability = match args.durability {
        Care::Full => Durability::Full,
        Care::None => Durability::None,
    };
    make(dir, &InitOptions { durability, group, ..InitOptions::default() })?;
    group.into_iter().for_each(warn_outsider);
    Ok(exit::OK)
}
