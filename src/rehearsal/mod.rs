//! Whole clusters of the real roles in the simulator, and the invariants that they must keep (spec: ordering, "Invariants").
//!
//! A *rehearsal* is one seed on one file system: two hosts with a keeper, a worker and a master beside it, and a master alone;
//! a third host from which a user submits 31 tasks (`script`), faults within a window, then quiet until everything has ended.
//! All of it follows from the seed. The decisions are watched from outside as they become durable (`history`), and at the end the
//! whole directory is judged (`verdict`).
//!
//! What is not rehearsed: threads of one process that run at once, the user's own files, real processes.

pub mod bounded;
mod history;
mod roles;
mod script;
pub(crate) mod truth;
mod verdict;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::fs::Call;
use crate::mutant::{self, Mutant};
use crate::protocol::layout;
use crate::protocol::record::{HeadStyle, Limits};
use crate::queue::{self, InitOptions};
use crate::sim::profile::{Change, Commit};
use crate::sim::{Cluster, Failure, Fault, FaultBudget, HostId, Profile};

use history::History;
use roles::{Desk, Setup};
use script::Dice;
use truth::Truth;

/// The user to whom everything belongs in the simulator.
const UID: u32 = 1000;
/// At least so many faults happen in each rehearsal.
const FAULTS_MIN: u64 = 3;
/// What works on a queue, in the order in which it is started.
const SERVICES: [&str; 4] = ["worker-0", "master-0", "worker-1", "master-1"];
/// Long enough for a collection that was asked for: two inventories, quarantine and purge.
const COLLECTING: Duration = Duration::from_secs(150);
/// So many of the last events does a trouble tell.
const TRACED: usize = 2_000;
/// After the faults everything ends within this span.
const PATIENCE: Duration = Duration::from_secs(900);

/// What a rehearsal came to in which nothing went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The name of the file system profile.
    pub profile: &'static str,
    /// Equal for two runs only if they were the same, event by event.
    pub digest: u64,
    /// File system calls.
    pub calls: u64,
    /// Decisions bound.
    pub decisions: u64,
    /// Tasks that ended.
    pub tasks: u64,
    /// Ends accepted.
    pub ends: u64,
    /// Workers declared lost.
    pub lost: u64,
    /// Terms after the first.
    pub takeovers: u64,
    /// How often the file system fell back behind what it had promised.
    pub fallbacks: u64,
    /// Masters that stopped for good because the file system had fallen back.
    pub halts: u64,
    /// Attempts of which an earlier one of the same task still ran, where that has to be expected: nobody was left to end it.
    pub overlaps: u64,
    /// Simulated time.
    pub simulated: Duration,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// A rehearsal in which something went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The seed.
    pub seed: u64,
    /// The name of the file system profile.
    pub profile: &'static str,
    /// What went wrong; never empty.
    pub violations: Vec<String>,
    /// The last events.
    pub trace: Vec<String>,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} profile {}", self.seed, self.profile)?;
        self.violations.iter().try_for_each(|what| write!(f, "\n  {what}"))
    }
}

impl std::error::Error for Trouble {}

/// Calls that are made seldom and that much depends on: most faults of calls are drawn to one of them.
const AIMS: &[(Call, &str)] = &[
    (Call::Rename, "decisions/head"),
    (Call::Rename, "decisions/head"),
    (Call::List, "decisions/head"),
    (Call::Create, "decisions/log"),
    (Call::Write, "decisions/log"),
    (Call::Sync, "decisions/log"),
    (Call::SyncDir, "decisions/log"),
    (Call::SyncDir, "decisions/head"),
    (Call::Sync, "snapshot"),
    (Call::Create, "/in/"),
    (Call::Rename, "/in/"),
    (Call::Sync, "store/log"),
    (Call::Write, "store/log"),
    (Call::Create, "store/log"),
    (Call::Read, "store/log"),
    (Call::Sync, "store/objects"),
    (Call::Create, "store/"),
    (Call::Sync, "HELLO"),
    (Call::Create, "jobs/"),
    (Call::Sync, "jobs/"),
    (Call::Unlink, "control/"),
    (Call::Rename, "trash"),
];

/// The limits of a rehearsal. Where they are `tight`, a worker is declared lost as soon as ever it may be.
fn limits(tight: bool) -> Limits {
    Limits { lease_ms: if tight { 11_200 } else { 30_000 }, ..base_limits() }
}

fn base_limits() -> Limits {
    Limits {
        beat_ms: 1_000,
        self_fence_ms: 10_000,
        grace_ms: 1_000,
        suspect_ms: 5_000,
        takeover_ms: 8_000,
        visible_ms: 90_000,
        poll_ms: 300,
        idle_poll_ms: 2_000,
        crash_limit: 50,
        backoff_ms: (500, 4_000),
        inline_max: 64,
        pack_item_max: 2_000,
        pack_max: 6_000,
        segment_max: 4_000,
        snapshot_every: 15,
        gc_wait_ms: 5_000,
        ..Limits::default()
    }
}

/// Whether nothing but the rules of the protocol keeps attempts of one task apart: a keeper is left by whoever dies, and no host
/// is suspended with running tasks.
#[derive(Debug, Clone, Copy)]
struct Care {
    keepers: u64,
    suspends: u32,
}

fn budget(dice: &mut Dice, care: Care) -> FaultBudget {
    let mut budget = FaultBudget {
        pause_max: Duration::from_secs(60),
        slow_max: Duration::from_secs(15),
        suspends: care.suspends,
        half_renames: 1,
        aims: AIMS,
        ..FaultBudget::mixed(Duration::from_secs(30))
    };
    // Some kinds alone, so that they are not always hidden behind a server that is away.
    if dice.one_in(2) {
        (budget.server_restarts, budget.power_losses, budget.full_disks) = (0, 0, 0);
        budget.powers_at_calls = 0;
    }
    if dice.one_in(3) {
        (budget.partitions, budget.host_crashes) = (0, 0);
    }
    budget
}

/// A seed for a purpose of its own.
fn seed_of(seed: u64, purpose: &str) -> u64 {
    purpose.bytes().fold(seed, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Sleeps the first time that it is called.
fn once(span: Duration) -> impl Fn(&crate::sim::SimEnv) {
    let first = std::cell::Cell::new(true);
    move |env| {
        if first.replace(false) {
            env.sleep(span);
        }
    }
}

/// Rehearses `seed` on `profile`.
///
/// # Errors
/// What went wrong, with the last events; running it again gives the same.
pub fn run(seed: u64, profile: &Profile) -> Result<Report, Box<Trouble>> {
    run_traced(seed, profile, TRACED)
}

/// As [`run`]; a trouble tells so many of the last events.
///
/// # Errors
/// As [`run`].
pub fn run_traced(seed: u64, profile: &Profile, events: usize) -> Result<Report, Box<Trouble>> {
    let mut dice = Dice::new(seed);
    let care = Care { keepers: if dice.one_in(4) { 80 } else { 100 }, suspends: u32::from(dice.one_in(4)) };
    // Drawn apart, so that what was drawn before stays what it was.
    let mut turns = Dice::new(seed_of(seed, "turns"));
    let is_tight = turns.one_in(2);
    let is_plain = turns.one_in(3);
    let lifetime = dice.one_in(4).then(|| Duration::from_secs(40 + dice.below(40)));
    let setup = setup_of(profile, is_tight, is_plain, lifetime);
    let (cluster, hosts) = opened(seed, profile, care, events);
    let desk: Rc<Desk> = Rc::default();
    let mut stage = Stage {
        seed,
        profile: profile.clone(),
        cluster,
        history: None,
        care,
        parts: script::parts(seed),
        desk,
        is_forgetful: false,
        is_looked_on: true,
    };
    stage.play(&hosts, &setup, &mut dice, &mut turns)
}

/// Rehearses `seed` on `profile` with one precaution of the protocol left out; returns what gave it away, if anything did.
///
/// Of use in builds with debug assertions only: others have no [mutants](crate::mutant).
pub fn find_mutant(mutant: Mutant, seed: u64, profile: &Profile) -> Option<String> {
    match std::panic::catch_unwind(|| mutant::with(mutant, || run_traced(seed, profile, 0))) {
        Ok(Ok(_)) => None,
        Ok(Err(trouble)) => Some(trouble.violations.into_iter().next().unwrap_or_default()),
        Err(_) => Some("it panicked".into()),
    }
}

/// A cluster while it is rehearsed.
struct Stage {
    seed: u64,
    profile: Profile,
    cluster: Cluster,
    history: Option<History>,
    care: Care,
    parts: Vec<script::Part>,
    desk: Rc<Desk>,
    /// Whether everything that had ended was asked to be collected.
    is_forgetful: bool,
    /// Whether somebody follows the decisions as `fq wait` does.
    is_looked_on: bool,
}

fn setup_of(profile: &Profile, is_tight: bool, is_plain: bool, lifetime: Option<Duration>) -> Setup {
    Setup {
        limits: limits(is_tight),
        head_style: if profile.bricks && !is_plain { HeadStyle::Dotted } else { HeadStyle::Plain },
        nudges: matches!(profile.change, Change::Tick(_)),
        mark_sync: !profile.local,
        lifetime,
        commit: profile.commit,
    }
}

/// The machines: two that run tasks, and the user's.
fn opened(seed: u64, profile: &Profile, care: Care, events: usize) -> (Cluster, [HostId; 3]) {
    let mut cluster = Cluster::new(seed, profile.clone());
    cluster.keep_events(events);
    cluster.look_every(Duration::from_millis(100));
    cluster.keepers(care.keepers);
    cluster.children_do(|launch, _| script::child(launch));
    let hosts = ["a", "b", "c"].map(|name| cluster.add_host(name));
    (cluster, hosts)
}

impl Stage {
    fn play(
        &mut self,
        hosts: &[HostId; 3],
        setup: &Setup,
        dice: &mut Dice,
        turns: &mut Dice,
    ) -> Result<Report, Box<Trouble>> {
        let first = self.init(hosts[2], setup)?;
        self.history = Some(History::new(first, self.profile.commit == Commit::Later));
        self.cast(hosts, setup, dice);
        let budget = budget(dice, self.care);
        self.cluster.plan_faults(&budget);
        if self.care.keepers < 100 && turns.one_in(3) {
            self.watch(Duration::from_secs(4 + turns.below(15)), false)?;
            if let Some(keeper) = self.cluster.find("keeper-0") {
                self.cluster.inject(Fault::Kill(keeper));
            }
        }
        if turns.one_in(5) {
            // The operator has less patience. Workers that are there keep the fence that they came with.
            self.watch(Duration::from_secs(3 + turns.below(15)), false)?;
            let hasty = Limits { self_fence_ms: 3_000, suspect_ms: 2_000, lease_ms: 4_500, ..setup.limits.clone() };
            let bytes = serde_json::to_vec(&hasty).unwrap_or_default();
            self.cluster.put_file(layout::LIMITS, &bytes);
        }
        if dice.one_in(3) {
            // A person or a batch system ends a worker in order.
            let at = Duration::from_secs(5 + dice.below(20));
            self.watch(at, false)?;
            if let Some(worker) = self.cluster.find("worker-0") {
                self.cluster.ask_to_stop(worker);
            }
        }
        // Drawn apart, so that what was drawn before stays what it was.
        let mut more = Dice::new(seed_of(self.seed, "more"));
        if more.one_in(5) {
            // Everybody is told to end at once, as before a maintenance.
            self.watch(Duration::from_secs(3 + more.below(25)), false)?;
            self.desk.pause.set(Some(Duration::from_secs(1 + more.below(40))));
            for process in SERVICES.map(|name| self.cluster.find(name)).into_iter().flatten() {
                self.cluster.ask_to_stop(process);
            }
        }
        self.watch(budget.window + Duration::from_secs(dice.below(10)), false)?;
        while self.cluster.faults().values().sum::<u64>() < FAULTS_MIN {
            let names = ["master-0", "worker-1", "master-1"];
            let victim = self.cluster.find(names[dice.below(3) as usize]);
            let fault = match victim {
                Some(victim) if dice.one_in(2) => Fault::Kill(victim),
                Some(victim) => Fault::Pause(victim, Duration::from_secs(15)),
                None => Fault::WallJump(hosts[0], 3_600_000),
            };
            self.cluster.inject(fault);
            self.watch(Duration::from_millis(dice.below(3_000)), false)?;
        }
        self.cluster.quiet();
        let mut has_ended = self.watch(PATIENCE, true)?;
        if turns.one_in(5) {
            has_ended &= self.collect_all(hosts[2], turns)?;
        }
        if more.one_in(4) {
            // What was asked to be collected is collected, and what came of the tasks is still there afterwards.
            self.watch(COLLECTING, false)?;
        }
        self.judge(has_ended)
    }

    /// Lets an operator collect all that has ended, while things go wrong once more.
    fn collect_all(&mut self, host: HostId, turns: &mut Dice) -> Result<bool, Box<Trouble>> {
        self.is_forgetful = true;
        let budget = FaultBudget { suspends: 0, full_disks: 0, ..budget(turns, self.care) };
        self.cluster.plan_faults(&budget);
        self.cluster.spawn_service(host, "operator", Duration::from_secs(1), roles::collect_all);
        self.watch(budget.window * 3, false)?;
        self.cluster.quiet();
        self.watch(COLLECTING, false)?;
        self.watch(PATIENCE, true)
    }

    /// Makes the queue; returns its first decision.
    fn init(&mut self, host: HostId, setup: &Setup) -> Result<crate::protocol::id::DecisionId, Box<Trouble>> {
        let (limits, head_style) = (Some(setup.limits.clone()), setup.head_style);
        let options = InitOptions { limits, head_style, ..InitOptions::default() };
        self.cluster.spawn(host, "init", move |env| {
            let made = queue::init_on(env.fs(), env.chance(), env.clock(), Path::new("q"), UID, &options);
            assert!(made.is_ok(), "cannot make a queue: {made:?}");
        });
        let ended = self.cluster.run_to_end(Duration::from_secs(600));
        ended.map_err(|failure| self.failed(&failure))?;
        let file = self.cluster.view(|view| queue::read_file(&Truth::now(view), Path::new("q")));
        file.map(|file| file.first).map_err(|error| self.trouble(vec![format!("no queue was made: {error}")]))
    }

    /// Starts all processes, each when the dice say.
    fn cast(&mut self, hosts: &[HostId; 3], setup: &Setup, dice: &mut Dice) {
        let self_fence = Limits::span(setup.limits.self_fence_ms);
        for (at, &host) in hosts.iter().enumerate().take(2) {
            let desk = self.desk.clone();
            let name = format!("keeper-{at}");
            self.cluster.spawn_service(host, &name, Duration::from_secs(1), move |env| {
                roles::keeper(env, &desk, at, self_fence);
            });
            self.cluster.spare(&name);
        }
        for name in SERVICES {
            let at = usize::from(name.ends_with('1'));
            let (desk, own) = (self.desk.clone(), setup.clone());
            let wait = once(Duration::from_millis(dice.below(4_000)));
            if name.starts_with("worker") {
                self.cluster.spawn_service(hosts[at], name, Duration::from_secs(2), move |env| {
                    wait(env);
                    roles::worker(env, &desk, at, &own);
                });
            } else {
                self.cluster.spawn_service(hosts[at], name, Duration::from_secs(3), move |env| {
                    wait(env);
                    roles::master(env, &desk, &own);
                });
            }
        }
        let (desk, parts) = (self.desk.clone(), self.parts.clone());
        let collects = Dice::new(seed_of(self.seed, "collects")).one_in(2);
        let wait = once(Duration::from_millis(dice.below(4_000)));
        self.cluster.spawn_service(hosts[2], "client", Duration::from_secs(1), move |env| {
            wait(env);
            roles::client(env, &desk, &parts, collects);
        });
        if self.is_looked_on {
            let desk = self.desk.clone();
            self.cluster.spawn_service(hosts[2], "onlooker", Duration::from_secs(1), move |env| {
                roles::onlooker(env, &desk);
            });
        }
    }

    /// Runs for a span, or until everything has ended; says whether it has.
    fn watch(&mut self, span: Duration, until_end: bool) -> Result<bool, Box<Trouble>> {
        let (history, desk, parts, is_looked_on) = (&mut self.history, &self.desk, &self.parts, self.is_looked_on);
        let ended = self.cluster.run_until(
            |view| {
                let Some(history) = history else { return false };
                history.look(view);
                let revoked = desk.revoked.take();
                if !history.may_fall_back() {
                    for what in revoked {
                        history.blame(what);
                    }
                }
                let is_broken = !history.violations.is_empty();
                is_broken
                    || (until_end
                        && desk.is_submitted.get()
                        && desk.numbers.borrow().iter().zip(parts).all(|(job, part)| history.has_ended(*job, part))
                        && view.children().all(|child| child.ended.is_some())
                        && (!is_looked_on || history.is_reported(&desk.reported.borrow())))
            },
            span,
        );
        let ended = ended.map_err(|failure| self.failed(&failure))?;
        match &self.history {
            Some(history) if !history.violations.is_empty() => Err(self.trouble(history.violations.clone())),
            _ => Ok(ended),
        }
    }

    #[expect(clippy::unnecessary_box_returns, reason = "it becomes the error of a result, which is to be small")]
    fn failed(&self, failure: &Failure) -> Box<Trouble> {
        self.trouble(vec![format!("process `{}` panicked: {}", failure.process, failure.message)])
    }

    #[expect(clippy::unnecessary_box_returns, reason = "it becomes the error of a result, which is to be small")]
    fn trouble(&self, violations: Vec<String>) -> Box<Trouble> {
        Box::new(Trouble { seed: self.seed, profile: self.profile.name, violations, trace: self.cluster.trace() })
    }
}
