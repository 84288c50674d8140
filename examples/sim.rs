//! Rehearses many seeds and counts: `cargo run --example sim -- --seeds 5000`.
//!
//! Exits with 1 at the first seed in which something goes wrong, after saying what and how to see it again.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use fq::rehearsal::{self, Report, Trouble};
use fq::sim::Profile;

/// Rehearses whole clusters in the simulator, seed by seed.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this profile; else the seeds are spread over all.
    #[arg(long)]
    profile: Option<String>,
    /// Only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Prints the last events of a seed that fails, and of `--seed` always.
    #[arg(long)]
    trace: bool,
    /// Goes on after seeds that fail, and counts them.
    #[arg(long)]
    keep_going: bool,
    /// Threads; one per CPU if not given.
    #[arg(long)]
    threads: Option<usize>,
}

/// What a profile's seeds came to.
#[derive(Default)]
struct Sum {
    seeds: u64,
    calls: u64,
    decisions: u64,
    tasks: u64,
    ends: u64,
    lost: u64,
    takeovers: u64,
    halts: u64,
    overlaps: u64,
    simulated: Duration,
}

#[derive(Default)]
struct Tally {
    sums: BTreeMap<&'static str, Sum>,
    faults: BTreeMap<&'static str, u64>,
    troubles: Vec<Trouble>,
}

impl Tally {
    fn add(&mut self, report: &Report) {
        let sum = self.sums.entry(report.profile).or_default();
        sum.seeds += 1;
        sum.calls += report.calls;
        sum.decisions += report.decisions;
        sum.tasks += report.tasks;
        sum.ends += report.ends;
        sum.lost += report.lost;
        sum.takeovers += report.takeovers;
        sum.halts += report.halts;
        sum.overlaps += report.overlaps;
        sum.simulated += report.simulated;
        for (kind, count) in &report.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }

    fn print(&self, took: Duration) {
        println!(
            "{:<15} {:>6} {:>10} {:>9} {:>8} {:>8} {:>6} {:>9} {:>6} {:>8} {:>7}",
            "profile",
            "seeds",
            "calls",
            "decisions",
            "tasks",
            "ends",
            "lost",
            "takeovers",
            "halts",
            "overlaps",
            "hours"
        );
        for (profile, sum) in &self.sums {
            println!(
                "{profile:<15} {:>6} {:>10} {:>9} {:>8} {:>8} {:>6} {:>9} {:>6} {:>8} {:>7.1}",
                sum.seeds,
                sum.calls,
                sum.decisions,
                sum.tasks,
                sum.ends,
                sum.lost,
                sum.takeovers,
                sum.halts,
                sum.overlaps,
                sum.simulated.as_secs_f64() / 3600.0
            );
        }
        let faults: Vec<String> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        println!("faults: {}", faults.join(", "));
        let seeds: u64 = self.sums.values().map(|sum| sum.seeds).sum();
        println!("{seeds} seeds in {:.0} s, {:.1} a second", took.as_secs_f64(), seeds as f64 / took.as_secs_f64());
    }
}

fn print_trouble(trouble: &Trouble, with_trace: bool) {
    if with_trace {
        trouble.trace.iter().for_each(|line| println!("{line}"));
    }
    println!("{trouble}");
    let (seed, profile) = (trouble.seed, trouble.profile);
    println!("replay: cargo run --example sim -- --seed {seed} --profile {profile} --trace");
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut profiles = Profile::all();
    if let Some(name) = &arguments.profile {
        profiles.retain(|profile| profile.name == name);
    }
    if profiles.is_empty() {
        eprintln!("error: there is no such profile");
        return ExitCode::from(2);
    }
    // What a simulated process says when it panics is told by the report of its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let (from, count) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let (next, stop, tally) = (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(Tally::default()));
    let events = if arguments.trace { usize::MAX } else { 2_000 };
    let began = Instant::now();
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let profile = &profiles[(seed % profiles.len() as u64) as usize];
                    let outcome = rehearsal::run_traced(seed, profile, events);
                    let Ok(mut tally) = tally.lock() else { return };
                    match outcome {
                        Ok(report) => {
                            tally.add(&report);
                            if arguments.seed.is_some() {
                                println!("{report:#?}");
                            }
                        }
                        Err(trouble) => {
                            print_trouble(&trouble, arguments.trace);
                            tally.troubles.push(*trouble);
                            if !arguments.keep_going {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                    let done = seed + 1 - from;
                    if done % 500 == 0 {
                        println!("{done} seeds, {:.0} s", began.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let Ok(tally) = tally.into_inner() else { return ExitCode::FAILURE };
    tally.print(began.elapsed());
    if tally.troubles.is_empty() {
        return ExitCode::SUCCESS;
    }
    let failed: Vec<String> = tally.troubles.iter().map(|t| format!("{} ({})", t.seed, t.profile)).collect();
    println!("{} failed: {}", failed.len(), failed.join(", "));
    ExitCode::FAILURE
}
