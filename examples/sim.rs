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
use fq::mutant::Mutant;
use fq::rehearsal::bounded::{self, Hit};
use fq::rehearsal::{self, Report, Trouble};
use fq::sim::{CallFault, Profile};

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
    /// Instead looks how many seeds it takes to find each wrong variant of the protocol, or those of these names; `--seeds`
    /// is the most that are tried. Fails if one is not found.
    #[arg(long, value_name = "NAME,…", num_args = 0..=1, default_missing_value = "all", conflicts_with = "seed")]
    mutants: Option<String>,
    /// With `--seed`: rehearses this wrong variant of the protocol.
    #[arg(long, value_name = "NAME", requires = "seed", conflicts_with = "mutants")]
    mutant: Option<String>,
    /// Instead hits a small rehearsal at every call, or every so many calls, with every kind of fault.
    #[arg(long, value_name = "STRIDE", num_args = 0..=1, default_missing_value = "1", conflicts_with_all = ["seed", "mutants"])]
    exhaust: Option<u32>,
    /// With `--exhaust`: also so many pairs of hits, drawn from `--from`.
    #[arg(long, default_value_t = 0, requires = "exhaust")]
    pairs: u64,
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

/// What hitting one file system with one kind of fault at every call came to.
#[derive(Default)]
struct Sweep {
    points: u64,
    calls: u64,
}

fn prints_hits(profile: &Profile, hits: &[Hit], trouble: &Trouble, with_trace: bool) {
    if with_trace {
        trouble.trace.iter().for_each(|line| println!("{line}"));
    }
    let told: Vec<String> = hits.iter().map(|hit| format!("{} at {}", hit.fault.name(), hit.call)).collect();
    println!("{}: {}: {}", profile.name, told.join(", "), trouble.violations.join("; "));
}

/// Hits the small rehearsal on each profile with each kind of fault at every `stride`-th call until runs end unhit; then with
/// `pairs` pairs on each.
fn exhaust(profiles: &[Profile], stride: u32, (from, pairs): (u64, u64), threads: usize, trace: bool) -> ExitCode {
    let began = Instant::now();
    let jobs: Vec<(&Profile, CallFault)> =
        profiles.iter().flat_map(|p| bounded::hits().into_iter().map(move |fault| (p, fault))).collect();
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let sweeps: Mutex<BTreeMap<(&str, &str), Sweep>> = Mutex::default();
    let fail = |profile: &Profile, hits: &[Hit], trouble: &Trouble| {
        failed.fetch_add(1, Ordering::Relaxed);
        prints_hits(profile, hits, trouble, trace);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(profile, fault)) = jobs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let mut sweep = Sweep::default();
                    for n in 0.. {
                        // Another residue for each kind, so that together they come to more calls.
                        let hit = Hit { fault, call: n * stride + (fault.name().len() as u32 + from as u32) % stride };
                        match bounded::run(profile, &[hit]) {
                            Ok(report) if !report.faults.contains_key(fault.name()) => break,
                            Ok(report) => sweep.calls += report.calls,
                            Err(trouble) => fail(profile, &[hit], &trouble),
                        }
                        sweep.points += 1;
                    }
                    let mut dice = from.wrapping_add(n_of(profile.name)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut draw = |below: u64| {
                        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (dice >> 33) % below
                    };
                    let kinds = bounded::hits();
                    for _ in 0..pairs.div_ceil(kinds.len() as u64) {
                        let second = kinds[draw(kinds.len() as u64) as usize];
                        let reach = u64::from(stride) * sweep.points.max(1);
                        let first = Hit { fault, call: draw(reach) as u32 };
                        let hits = [first, Hit { fault: second, call: draw(reach) as u32 }];
                        match bounded::run(profile, &hits) {
                            Ok(report) => sweep.calls += report.calls,
                            Err(trouble) => fail(profile, &hits, &trouble),
                        }
                    }
                    if let Ok(mut sweeps) = sweeps.lock() {
                        sweeps.insert((profile.name, fault.name()), sweep);
                    }
                }
            });
        }
    });
    let Ok(sweeps) = sweeps.into_inner() else { return ExitCode::FAILURE };
    let kinds = bounded::hits();
    print!("{:<15}", "points");
    for kind in &kinds {
        print!(" {:>14}", kind.name());
    }
    println!();
    for profile in profiles {
        print!("{:<15}", profile.name);
        for kind in &kinds {
            print!(" {:>14}", sweeps.get(&(profile.name, kind.name())).map_or(0, |sweep| sweep.points));
        }
        println!();
    }
    let points: u64 = sweeps.values().map(|sweep| sweep.points).sum();
    let calls: u64 = sweeps.values().map(|sweep| sweep.calls).sum();
    let (failed, took) = (failed.into_inner(), began.elapsed().as_secs_f64());
    println!(
        "{points} points and {} pairs in {took:.0} s, {calls} calls; {failed} failed",
        sweeps.len() as u64 * pairs.div_ceil(kinds.len() as u64)
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The mutants of these names, or `all`.
fn mutants_of(names: &str) -> Result<Vec<Mutant>, String> {
    if !cfg!(debug_assertions) {
        return Err("this build has no mutants; build it with debug assertions".into());
    }
    let known = Mutant::ALL;
    if names == "all" {
        return Ok(known.to_vec());
    }
    let find = |name: &str| known.iter().copied().find(|m| m.name() == name);
    names
        .split(',')
        .map(|name| {
            find(name).ok_or_else(|| {
                let known: Vec<&str> = known.iter().map(|m| m.name()).collect();
                format!("there is no mutant `{name}`; there are {}", known.join(", "))
            })
        })
        .collect()
}

/// A number for a name.
fn n_of(name: &str) -> u64 {
    name.bytes().fold(0, |n: u64, byte| n.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// Looks for each of `mutants` with the seeds from `from` on, spread over its file systems; prints a line for each.
fn find_mutants(mutants: &[Mutant], profiles: &[Profile], from: u64, seeds: u64, threads: usize) -> ExitCode {
    let (next, missed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    println!("{:<20} {:>8} {:<15} what gave it away", "mutant", "seeds", "profile");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    if let Some(test) = mutant.shown_by() {
                        println!("{:<20} {:>8} {:<15} by the test {test}", mutant.name(), "-", "-");
                        continue;
                    }
                    let suits = |p: &&Profile| mutant.profiles().is_empty() || mutant.profiles().contains(&p.name);
                    let on: Vec<&Profile> = profiles.iter().filter(suits).collect();
                    if on.is_empty() {
                        continue;
                    }
                    let found = (0..seeds).find_map(|n| {
                        let profile = on[(n % on.len() as u64) as usize];
                        rehearsal::find_mutant(mutant, from + n, profile).map(|what| (n + 1, profile.name, what))
                    });
                    if let Some((tried, profile, what)) = found {
                        println!("{:<20} {tried:>8} {profile:<15} {what}", mutant.name());
                    } else {
                        println!("{:<20} {:>8} {:<15} not found: {}", mutant.name(), "-", "-", mutant.what());
                        if let Ok(mut missed) = missed.lock() {
                            missed.push(mutant.name());
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap_or_default();
    println!("{} of {} mutants found", mutants.len() - missed.len(), mutants.len());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let mutants = match arguments.mutants.as_ref().or(arguments.mutant.as_ref()).map(|names| mutants_of(names)) {
        None => Vec::new(),
        Some(Ok(mutants)) => mutants,
        Some(Err(error)) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if arguments.mutants.is_some() {
        return find_mutants(&mutants, &profiles, arguments.from, arguments.seeds, threads);
    }
    if let Some(stride) = arguments.exhaust {
        return exhaust(&profiles, stride.max(1), (arguments.from, arguments.pairs), threads, arguments.trace);
    }
    let (from, count) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let (next, stop, tally) = (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(Tally::default()));
    let events = if arguments.trace { usize::MAX } else { 2_000 };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let profile = &profiles[(seed % profiles.len() as u64) as usize];
                    let rehearse = || rehearsal::run_traced(seed, profile, events);
                    let outcome = mutants.first().map_or_else(rehearse, |&m| fq::mutant::with(m, rehearse));
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
