//! `fq status`: the queue at a glance.

use std::fmt::Write as _;

use fq::client::view::{self, QueueStatus, TaskCounts};

use super::look::Look;
use super::place::Place;
use super::units::{Targets, tame, targets};
use super::{Outcome, exit, json, out};

const EXAMPLES: &str = "\
Examples:
  fq status
  fq status 7,9-12
  fq status --json | jq .tasks.failed

Works while no other fq process lives; jobs that no master has taken in yet count as waiting.";

/// Shows jobs, workers and the master
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only these jobs: `7`, `7,9-12`
    #[arg(value_name = "ID", value_parser = targets)]
    ids: Vec<Targets>,
    /// Print one JSON value
    #[arg(long)]
    json: bool,
}

/// Runs `fq status`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let only: Vec<_> = args.ids.iter().flat_map(|list| list.0.clone()).collect();
    look.must_exist(&only)?;
    let mut status = view::status(look.state(), &look.pending, &only, look.decided_at_ms());
    status.trouble = view::trouble(&*look.queue.fs, look.state());
    if args.json {
        json::print(&status)?;
    } else {
        out::bytes(text(&status).as_bytes())?;
    }
    Ok(exit::OK)
}

fn text(status: &QueueStatus) -> String {
    let mut text = String::new();
    if !status.jobs.is_empty() {
        let mut rows = vec![["JOB", "NAME", "STATE", "DONE", "TASKS", ""].map(String::from).to_vec()];
        for job in &status.jobs {
            let state = if job.taken_in { job.state.to_owned() } else { format!("{}*", job.state) };
            let (done, total) = (job.tasks.done.to_string(), job.tasks.total().to_string());
            rows.push(vec![job.id.to_string(), tame(&job.name), state, done, total, others(&job.tasks)]);
        }
        text.push_str(&out::table(&rows));
        text.push('\n');
    }
    for entry in &status.unreadable {
        let _ = writeln!(text, "job {} cannot be run: {}", entry.id, tame(&entry.why));
    }
    let _ = writeln!(text, "tasks: {}", counts(&status.tasks));
    let _ = writeln!(text, "workers: {} alive, {} lost", status.workers.alive, status.workers.lost);
    match &status.master {
        Some(master) => {
            let _ = writeln!(text, "master: {} (pid {}), term {}", master.id, master.pid, master.term);
        }
        None => text.push_str("master: none\n"),
    }
    for why in &status.trouble {
        let _ = writeln!(text, "trouble: {}", tame(why));
    }
    if status.jobs.iter().any(|job| !job.taken_in) {
        text.push_str("* not taken in by a master yet\n");
    }
    text
}

/// The states of a job's tasks that are neither done nor its whole.
fn others(tasks: &TaskCounts) -> String {
    let parts = tasks.list().into_iter().filter(|&(word, n)| n > 0 && n < tasks.total() && word != "done");
    parts.map(|(word, n)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
}

fn counts(tasks: &TaskCounts) -> String {
    let parts: Vec<_> =
        tasks.list().into_iter().filter(|&(_, n)| n > 0).map(|(word, n)| format!("{n} {word}")).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_counted() {
        let tasks = TaskCounts { done: 3, failed: 1, ..TaskCounts::default() };
        assert_eq!(counts(&tasks), "3 done, 1 failed");
        assert_eq!(others(&tasks), "1 failed");
        assert_eq!(counts(&TaskCounts::default()), "none");
    }
}
