//! `fq fsck`: what is wrong with a queue, and repairs.

use std::time::Duration;

use fq::check::{self, Severity};
use fq::clock::HostChance;
use fq::fs::{HostFs, HostOptions};
use fq::queue::Queue;

use super::error::Failure;
use super::place::Place;
use super::units::{count, tame};
use super::{Outcome, exit, out};

const EXAMPLES: &str = "\
Examples:
  fq fsck
  fq fsck --full               also compares every stored byte with its digest
  fq fsck --full --repair

Without --repair nothing is changed. Exits with 1 if something is damaged.";

/// Checks a queue, and repairs what can be repaired
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Compare all stored bytes with their digests and follow every reference
    #[arg(long)]
    full: bool,
    /// Do what can be done about it; nothing is removed
    #[arg(long)]
    repair: bool,
}

/// Runs `fq fsck`.
pub(crate) fn run(args: &Args) -> Outcome {
    let dir = args.place.dir()?;
    // A queue whose own files are damaged can still be checked.
    let opened = Queue::open(dir);
    let fs = match &opened {
        Ok(queue) => queue.fs.clone(),
        Err(fq::queue::QueueError::Damaged { .. } | fq::queue::QueueError::BadLimits { .. }) => {
            let fs = HostFs::open(dir, HostOptions::default());
            std::sync::Arc::new(fs.map_err(|error| Failure::files("cannot check the queue", &error))?)
        }
        Err(_) => return Err(opened.err().map_or_else(|| Failure::silent(exit::NOT_A_QUEUE), Failure::from)),
    };
    let mut report = check::check(&*fs, args.full, &mut |_| {});
    let mut left = 0;
    if args.repair {
        for fix in report.fixes() {
            out::line(&format!("repair: {fix}"))?;
            if let Err(error) =
                check::apply(&*fs, &HostChance, &fix, None, &mut |span: Duration| std::thread::sleep(span))
            {
                out::remark(&format!("could not {fix}: {error}"));
                left += 1;
            }
        }
        report = check::check(&*fs, args.full, &mut |_| {});
    }
    for problem in &report.problems {
        let level = if problem.severity == Severity::Notice { "notice" } else { "damage" };
        out::line(&format!("{level}: {}", tame(&problem.to_string())))?;
        if let Some(hint) = &problem.hint {
            out::line(&format!("  hint: {}", tame(hint)))?;
        }
        if let Some(fix) = &problem.fix {
            out::line(&format!("  `fq fsck --repair` would {fix}"))?;
        }
    }
    let counts = &report.counts;
    let damages = report.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    out::line(&format!(
        "{}: {}, {}, {}, {}, {}",
        if damages == 0 { "sound".to_owned() } else { count(damages as u64, "damage") },
        count(counts.decisions, "decision"),
        count(counts.manifests, "manifest"),
        count(counts.journals, "journal"),
        count(counts.objects, "object"),
        count(counts.packs, "pack"),
    ))?;
    Ok(if damages == 0 && left == 0 { exit::OK } else { exit::NO })
}
