//! From one point to the next: all calls of a kind, or a sample of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::driver::fault::{Effect, Fault, Met, Role, When};
use super::driver::{self, KILLED, Tools};

/// So many runs in a row have to pass without a hit before there are no more calls to hit: runs differ in length.
const MISSES: u64 = 3;
/// How often a call is tried again that was missed while a later one was hit in another run.
const RETRIES: u32 = 10;

/// What is swept.
#[derive(Debug, Clone)]
pub(crate) struct Sweep<'a> {
    /// The programs.
    pub(crate) tools: &'a Tools,
    /// Where the queues are made.
    pub(crate) dir: &'a Path,
    /// How many points run at once.
    pub(crate) jobs: usize,
    /// The first point.
    pub(crate) from: u64,
    /// So many points of each kind of call, and not all.
    pub(crate) sample: Option<u64>,
    /// Decides which.
    pub(crate) seed: u64,
}

/// What came of one kind of call.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Who was hit.
    pub(crate) role: Role,
    /// At which call.
    pub(crate) call: String,
    /// How.
    pub(crate) effect: String,
    /// How many runs in which it was.
    pub(crate) hits: u64,
    /// How many of them came to the right end.
    pub(crate) survived: u64,
    /// How often somebody ended with which code before all was done and was started again; kills do not count.
    pub(crate) ends: BTreeMap<i32, u64>,
    /// The points that did not.
    pub(crate) failures: Vec<Failure>,
}

/// A point at which something does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// Which.
    pub(crate) fault: Fault,
    /// What does not hold.
    pub(crate) why: String,
    /// All of it.
    pub(crate) dir: PathBuf,
}

impl Sweep<'_> {
    /// Counts the calls of a run in which nothing is hit.
    pub(crate) fn record(&self, role: Role, calls: &[&str]) -> Result<BTreeMap<String, u64>, String> {
        let dir = self.dir.join(format!("{}-recorded", role.word()));
        driver::record(self.tools, role, calls, &dir).map(|outcome| outcome.counts)
    }

    /// Hits the calls of one kind, of which a run has about `count`, each in a run of its own.
    pub(crate) fn calls(
        &self,
        role: Role,
        call: &str,
        effects: &[Effect],
        count: u64,
        say: &(dyn Fn(&str) + Sync),
    ) -> Row {
        let names: Vec<String> = effects.iter().map(ToString::to_string).collect();
        let row = Row::new(role, call, names.join("|"));
        if count == 0 {
            return row;
        }
        let fault = |effect: &Effect, when| Fault { role, call: call.to_owned(), effect: effect.clone(), when };
        let row = Mutex::new(row);
        if let Some(n) = self.sample {
            let points = self.sample_of(&format!("{}{call}", role.word()), n, count, effects.len() as u64);
            let faults = points.iter().map(|&(k, e)| fault(&effects[e as usize], When::Only(k))).collect::<Vec<_>>();
            self.each(&faults, &row, say);
        } else {
            for effect in effects {
                self.all(&|k| fault(effect, When::Only(k)), &row, say);
            }
        }
        row.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hits the first call, the second and so on until runs are no longer so long. What a run missed that was shorter than others is
    /// tried again.
    fn all(&self, fault: &(dyn Fn(u64) -> Fault + Sync), row: &Mutex<Row>, say: &(dyn Fn(&str) + Sync)) {
        let next = AtomicU64::new(self.from);
        let misses = AtomicU64::new(0);
        let highest = AtomicU64::new(0);
        let missed = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while misses.load(Ordering::SeqCst) < MISSES {
                        let k = next.fetch_add(1, Ordering::SeqCst);
                        if self.point(&fault(k), row, say) {
                            highest.fetch_max(k, Ordering::SeqCst);
                            misses.store(0, Ordering::SeqCst);
                        } else {
                            misses.fetch_add(1, Ordering::SeqCst);
                            missed.lock().unwrap_or_else(PoisonError::into_inner).insert(k);
                        }
                    }
                });
            }
        });
        let (missed, highest) = (missed.into_inner().unwrap_or_else(PoisonError::into_inner), highest.into_inner());
        for k in missed.into_iter().filter(|&k| k < highest) {
            let _ = (0..RETRIES).any(|_| self.point(&fault(k), row, say));
        }
    }

    /// Hits these, each in a run of its own.
    pub(crate) fn each(&self, faults: &[Fault], row: &Mutex<Row>, say: &(dyn Fn(&str) + Sync)) {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while let Some(fault) = faults.get(next.fetch_add(1, Ordering::SeqCst) as usize) {
                        self.point(fault, row, say);
                    }
                });
            }
        });
    }

    /// One run; false if the call was not made so often.
    fn point(&self, fault: &Fault, row: &Mutex<Row>, say: &(dyn Fn(&str) + Sync)) -> bool {
        let dir = self.dir.join(fault.to_string());
        let result = driver::hit(self.tools, fault, &dir);
        let Ok(mut row) = row.lock() else { return false };
        match result {
            Ok(outcome) => {
                for code in outcome.ends.iter().filter(|&&code| code != KILLED) {
                    *row.ends.entry(*code).or_default() += 1;
                }
                let was_hit = outcome.met == Met::Call;
                row.hits += u64::from(was_hit);
                row.survived += u64::from(was_hit);
                let ends = if outcome.ends.is_empty() { String::new() } else { format!(", ended {:?}", outcome.ends) };
                let word = match outcome.met {
                    Met::Call => "survived",
                    Met::Kernel => "left out, not a file",
                    Met::Nothing => "not hit",
                };
                say(&format!("{fault}: {word}{ends}"));
                outcome.met != Met::Nothing
            }
            Err(why) => {
                say(&format!("{fault}: FAILED: {why}"));
                row.hits += 1;
                row.failures.push(Failure { fault: fault.clone(), why, dir });
                true
            }
        }
    }

    /// Chooses `n` different pairs of a call from 1 and an effect from 0; all if there are no more.
    fn sample_of(&self, salt: &str, n: u64, count: u64, effects: u64) -> BTreeSet<(u64, u64)> {
        let all = || (1..=count).flat_map(|k| (0..effects).map(move |e| (k, e)));
        if count * effects <= n {
            return all().collect();
        }
        let mut random = salt.bytes().fold(self.seed, |sum, b| splitmix(sum ^ u64::from(b)));
        let mut chosen = BTreeSet::new();
        while (chosen.len() as u64) < n {
            random = splitmix(random);
            let at = random % (count * effects);
            chosen.insert((1 + at / effects, at % effects));
        }
        chosen
    }
}

/// The next of a sequence that the first decides.
fn splitmix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Row {
    /// Nothing was done yet.
    pub(crate) fn new(role: Role, call: &str, effect: String) -> Self {
        Self { role, call: call.to_owned(), effect, hits: 0, survived: 0, ends: BTreeMap::new(), failures: Vec::new() }
    }
}

/// The rows as a table, and their sum.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:8} {:12} {:28} {:>6} {:>8}  ended by itself\n", "role", "call", "fault", "points", "survived");
    for row in rows {
        let ends: Vec<String> = row.ends.iter().map(|(code, n)| format!("{n} with {code}")).collect();
        let line = format!(
            "{:8} {:12} {:28} {:6} {:8}  {}",
            row.role.word(),
            row.call,
            row.effect,
            row.hits,
            row.survived,
            ends.join(", ")
        );
        let _ = writeln!(text, "{}", line.trim_end());
        for failure in &row.failures {
            let first = failure.why.lines().next().unwrap_or_default();
            let _ = writeln!(text, "    {} FAILED: {first}: `{}`", failure.fault, failure.dir.display());
        }
    }
    let (hits, survived) = rows.iter().fold((0, 0), |(h, s), row| (h + row.hits, s + row.survived));
    let _ = writeln!(text, "{hits} points, {survived} survived");
    text
}
