//! `fq list`: one line per task.

use fq::client::view;

use super::look::Look;
use super::place::Place;
use super::units::tame;
use super::{Outcome, exit, json, out};

const EXAMPLES: &str = "\
Examples:
  fq list --state failed
  fq retry $(fq list --state failed -q)";

/// Lists tasks, one a line
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only tasks in this state
    #[arg(long, value_name = "S", value_parser = ["waiting", "ready", "running", "done", "failed", "cancelled", "aborted", "held"])]
    state: Option<String>,
    /// Print ids only
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON value
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Runs `fq list`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let list = view::list(look.state(), &look.pending, args.state.as_deref());
    if args.json {
        json::print(&list)?;
    } else if args.quiet {
        let ids: Vec<_> = list.tasks.iter().map(|task| task.id.as_str()).collect();
        if !ids.is_empty() {
            out::line(&ids.join(
                "
",
            ))?;
        }
    } else {
        let mut rows = vec![["TASK", "STATE", "ATTEMPT", "NAME"].map(String::from).to_vec()];
        rows.extend(
            list.tasks
                .iter()
                .map(|task| vec![task.id.clone(), task.state.to_owned(), task.attempt.to_string(), tame(&task.name)]),
        );
        out::bytes(out::table(&rows).as_bytes())?;
    }
    Ok(exit::OK)
}
