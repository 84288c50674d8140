//! `fq show`: one job or task in full.

use std::fmt::Write as _;

use fq::client::view::{self, AttemptView, JobDetails, Shown, TaskView};
use fq::protocol::id::{Target, TaskId};

use super::look::{self, Look};
use super::place::Place;
use super::units::{show_bytes, show_ms, tame};
use super::{Outcome, exit, json, out};

const EXAMPLES: &str = "\
Examples:
  fq show 7
  fq show 7_3 --json | jq '.attempts[].outcome'";

/// Shows a job or a task: its state and why, its attempts, what it asked for
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// `7` or `7_3`
    #[arg(value_name = "ID")]
    id: TaskId,
    /// Print one JSON value
    #[arg(long)]
    json: bool,
}

/// Runs `fq show`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let target = target(args.id);
    let fs = &*look.queue.fs;
    let Some(shown) = view::show(fs, look.state(), &look.pending, args.id) else {
        return Err(look.refused(&target).unwrap_or_else(|| look::no_such(&target)));
    };
    match (&shown, args.json) {
        (_, true) => json::print(&shown)?,
        (Shown::Task(task), false) => out::bytes(task_text(task).as_bytes())?,
        (Shown::Job(job), false) => {
            let mut text = heading(&job.id, &job.name, job.state, job.reason.as_deref());
            let counts = job.tasks.list().into_iter().filter(|&(_, n)| n > 0).map(|(word, n)| format!("{n} {word}"));
            field(&mut text, "tasks", &counts.collect::<Vec<_>>().join(", "));
            if !job.failed.is_empty() {
                field(&mut text, "failed", &job.failed.join(" "));
            }
            details(&mut text, &job.job);
            out::bytes(text.as_bytes())?;
        }
    }
    Ok(exit::OK)
}

/// A task id as what a user may name.
pub(crate) fn target(id: TaskId) -> Target {
    Target { job: id.job, indices: id.index.map(|index| fq::protocol::id::Ranges::span(index, index)) }
}

fn heading(id: &str, name: &str, state: &str, reason: Option<&str>) -> String {
    let reason = reason.map(|why| format!(" ({})", tame(why))).unwrap_or_default();
    format!("{}  {}  {state}{reason}\n", out::bold(id), tame(name))
}

fn field(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<10} {value}");
}

fn task_text(task: &TaskView) -> String {
    let mut text = heading(&task.id, &task.name, task.state, task.reason.as_deref());
    details(&mut text, &task.job);
    for attempt in &task.attempts {
        field(&mut text, &format!("attempt {}", attempt.attempt), &attempt_text(attempt));
        for note in &attempt.notes {
            field(&mut text, "", &tame(note));
        }
    }
    text
}

fn attempt_text(attempt: &AttemptView) -> String {
    let mut parts = vec![attempt.outcome.clone()];
    parts.extend(attempt.exit_code.map(|code| format!("exit code {code}")));
    parts.extend(attempt.signal.map(|signal| format!("signal {signal}")));
    if let (Some(step), Some(errno)) = (&attempt.step, &attempt.errno) {
        parts.push(format!("{step} of `{}` failed: {errno}", tame(attempt.detail.as_deref().unwrap_or(""))));
    } else {
        parts.extend(attempt.detail.as_deref().map(tame));
    }
    parts.push(format!("on {}", attempt.worker));
    parts.extend(attempt.ms.map(|ms| format!("in {}", show_ms(ms))));
    parts.extend(attempt.usage.filter(|usage| usage.rss_kib_max > 0).map(|u| show_bytes(u.rss_kib_max * 1024)));
    if attempt.leftovers > 0 {
        parts.push(format!(
            "{} ended",
            super::units::count(attempt.leftovers.into(), "left-over process").replace("processs", "processes")
        ));
    }
    parts.join(", ")
}

fn details(text: &mut String, job: &JobDetails) {
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            field(text, name, &value);
        }
    };
    add("command", job.command.as_deref().map(tame));
    add("directory", job.cwd.as_deref().map(tame));
    add(
        "user",
        job.user.as_deref().map(|user| format!("{} on {}", tame(user), tame(job.submit_host.as_deref().unwrap_or("")))),
    );
    add("cpus", Some(job.cpus.to_string()));
    add("memory", (job.mem_bytes > 0).then(|| show_bytes(job.mem_bytes)));
    add("time limit", (job.time_ms > 0).then(|| show_ms(job.time_ms)));
    add("retries", (job.retries > 0).then(|| job.retries.to_string()));
    add("priority", (job.priority != 0).then(|| job.priority.to_string()));
    add("array", job.array.as_ref().map(ToString::to_string));
    add("at once", (job.cap > 0).then(|| job.cap.to_string()));
    add("after", (!job.after.is_empty()).then(|| job.after.join(",")));
    add("key", job.key.as_deref().map(tame));
}
