//! `fq doctor`: measures the file system under a queue and says in plain words what follows.

use std::fmt::Write as _;
use std::path::PathBuf;

use fq::clock::{HostChance, HostClock};
use fq::probe::{self, Effort, Finding, Level, ProbeError, Report, Subject};
use fq::protocol::record::{HeadStyle, Limits};
use fq::queue::{Queue, QueueError};

use super::error::Failure;
use super::place::{self, Place};
use super::units::tame;
use super::{Outcome, exit, json, out};

const EXAMPLES: &str = "\
Examples:
  fq doctor --dir /scratch/me/q
  fq doctor --dir /scratch/me/q --peer /mnt/second/me/q      the same directory through another mount
  fq doctor --json | jq '.findings[] | select(.level == \"unsafe\")'

Works beside a running queue, and in a directory that is no queue yet. Exit code 3 if a queue is not safe here.";

/// Measures the file system under a queue and says what follows
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Another mount of the same directory, to see whether both agree
    #[arg(long, value_name = "DIR")]
    peer: Option<PathBuf>,
    /// Print one JSON value
    #[arg(long)]
    json: bool,
}

/// Runs `fq doctor`.
pub(crate) fn run(args: &Args) -> Outcome {
    let dir = args.place.dir()?;
    let queue = match Queue::open(dir) {
        Ok(queue) => Some(queue),
        Err(QueueError::NoQueue { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let limits = queue.as_ref().map_or_else(|| Ok(Limits::default()), Queue::limits)?;
    let host = place::host();
    let subject = Subject {
        dir,
        peer: args.peer.as_deref(),
        queue: queue.as_ref().map(|queue| &queue.file),
        limits: &limits,
        host: &host,
    };
    let progress = |step: &str| {
        if !args.json {
            out::remark(&format!("measuring: {step}"));
        }
    };
    let report = probe::examine(&subject, &Effort::default(), &HostClock, &HostChance, &progress)?;
    if args.json {
        json::print(&report)?;
    } else {
        out::bytes(text(&report).as_bytes())?;
    }
    if let Some(queue) = queue.filter(|_| report.measured.blocked.is_none()) {
        match probe::save(&*queue.fs, &HostChance, &report) {
            Ok(path) if !args.json => out::remark(&format!("kept as `{}` in the queue", path.display())),
            Ok(_) => {}
            Err(error) => out::remark(&format!("the report could not be kept in the queue: {error}")),
        }
    }
    Ok(if report.verdict == Level::Unsafe { exit::NOT_A_QUEUE } else { exit::OK })
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        let text = error.to_string();
        match error {
            ProbeError::Open { source, .. } => Self::new(exit::NOT_A_QUEUE, text).because(&source),
            ProbeError::NotTheSame { .. } => Self::usage(text)
                .note("nothing was measured, and nothing is left behind")
                .hint("`--peer` names the same queue directory by its path on another mount"),
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mount = &report.measured.mount;
    let _ = writeln!(text, "{}", out::bold(&tame(&report.dir.to_string_lossy())));
    let _ = writeln!(text, "{} ({}) from {}", mount.kind, tame(&mount.fs_type), tame(&mount.source));
    let _ = writeln!(text, "options: {}\n", tame(&mount.options.join(",")));
    for finding in &report.findings {
        let Finding { level, what, consequence } = finding;
        let _ = writeln!(text, "{:<7} {}", word(*level), tame(what));
        if !consequence.is_empty() {
            let _ = writeln!(text, "        {}", tame(consequence));
        }
    }
    text.push('\n');
    if let Some(members) = report.recommended.limits_text() {
        let _ = writeln!(text, "put into limits.json: {members}");
    }
    if report.recommended.head_style == Some(HeadStyle::Dotted) {
        text.push_str("make the queue on this mount with `fq init`, which names its token so that GlusterFS moves it in one step\n");
    }
    text.push_str(match report.verdict {
        Level::Ok | Level::Note => "verdict: good\n",
        Level::Warn => "verdict: safe, but read the warnings\n",
        Level::Unsafe => "verdict: NOT SAFE for a queue\n",
    });
    text
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Warn => "warn",
        Level::Unsafe => "UNSAFE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_the_verdict_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let limits = Limits::default();
        let subject = Subject { dir: dir.path(), peer: None, queue: None, limits: &limits, host: "node-7" };
        let effort = Effort { rounds: 2, samples: 1, ..Effort::default() };
        let mut report = probe::examine(&subject, &effort, &HostClock, &HostChance, &|_| {}).expect("a report");
        report.findings = vec![
            Finding { level: Level::Unsafe, what: "two won".into(), consequence: "do not".into() },
            Finding { level: Level::Ok, what: "all \u{1b}[31mwell".into(), consequence: String::new() },
        ];
        report.verdict = Level::Unsafe;
        report.recommended.visible_ms = Some(41_000);
        let text = text(&report);
        let (_, findings) = text.split_once("\n\n").expect("a head and findings");
        assert!(findings.starts_with("UNSAFE  two won\n        do not\nok      all "), "{findings}");
        assert!(!findings.contains('\u{1b}'), "{findings}");
        assert!(
            findings.ends_with("\nput into limits.json: \"visible_ms\": 41000\nverdict: NOT SAFE for a queue\n"),
            "{findings}"
        );
    }
}
