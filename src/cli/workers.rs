//! `fq workers`: who runs tasks.

use std::fmt::Write as _;

use fq::client::view;

use super::look::Look;
use super::place::Place;
use super::units::{show_bytes, tame};
use super::{Outcome, exit, json, out};

/// Lists the workers and what they run
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Also those that are over
    #[arg(long)]
    all: bool,
    /// Print one JSON value
    #[arg(long)]
    json: bool,
}

/// Runs `fq workers`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let mut list = view::workers(look.state(), args.all);
    list.trouble = view::trouble(&*look.queue.fs, look.state());
    if args.json {
        json::print(&list)?;
        return Ok(exit::OK);
    }
    let mut rows = vec![["WORKER", "PID", "STATE", "CPUS", "MEMORY", "TASKS"].map(String::from).to_vec()];
    for worker in &list.workers {
        let reason = worker.reason.as_deref().map(|why| format!(": {}", tame(why))).unwrap_or_default();
        let mem = if worker.mem_bytes > 0 { show_bytes(worker.mem_bytes) } else { "-".into() };
        let shown = worker.tasks.iter().take(4).cloned().collect::<Vec<_>>().join(" ");
        let more = worker.tasks.len().saturating_sub(4);
        let tasks = if more > 0 { format!("{shown} and {more} more") } else { shown };
        let state = format!("{}{reason}", worker.state);
        rows.push(vec![worker.id.clone(), worker.pid.to_string(), state, worker.cpus.to_string(), mem, tasks]);
    }
    let mut text = out::table(&rows);
    for why in &list.trouble {
        let _ = writeln!(text, "trouble: {}", tame(why));
    }
    out::bytes(text.as_bytes())?;
    Ok(exit::OK)
}
