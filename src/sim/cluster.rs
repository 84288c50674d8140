//! The scheduler and the harness' view: hosts, processes, faults, time, and what can be inspected.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::fs::Call;
use crate::process::Launch;

use super::client::HostState;
use super::env::{self, Body, SimEnv, Threads};
use super::faults::{Armed, CallFault, Fault, FaultBudget};
use super::process::{ChildRun, ChildScript};
use super::profile::Profile;
use super::seed::Seed;
use super::server::{Birth, Server};
use super::world::{Event, Met, Planned, Shared, World};

/// A simulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(super) u32);

/// A simulated process, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcId(pub(super) u32);

/// A process panicked: the run has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Name of the process.
    pub process: String,
    /// The panic's message.
    pub message: String,
    /// The seed that repeats it.
    pub seed: u64,
    /// The last events before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.trace.iter().skip(self.trace.len().saturating_sub(200)) {
            writeln!(f, "{line}")?;
        }
        write!(f, "seed {}: process `{}` panicked: {}", self.seed, self.process, self.message)
    }
}

impl std::error::Error for Failure {}

type Routine = Coroutine<(), (), (), DefaultStack>;
type ServiceBody = Rc<dyn Fn(&SimEnv)>;

struct Service {
    host: u32,
    name: String,
    body: ServiceBody,
}

/// The stack of a simulated process; touched pages only are really there.
const STACK_BYTES: usize = 1 << 20;

/// A whole cluster in one thread under one seed.
pub struct Cluster {
    seed: u64,
    shared: Shared,
    routines: BTreeMap<u32, Routine>,
    stacks: Vec<DefaultStack>,
    threads: Threads,
    services: Vec<Service>,
    look_ns: u64,
}

impl Cluster {
    /// Makes an empty world in which everything follows from `seed`.
    pub fn new(seed: u64, profile: Profile) -> Self {
        Self {
            seed,
            shared: Shared::new(World::new(seed, profile)),
            routines: BTreeMap::new(),
            stacks: Vec::new(),
            threads: Rc::default(),
            services: Vec::new(),
            look_ns: 10_000_000,
        }
    }

    /// Adds a host with clocks of its own.
    pub fn add_host(&mut self, name: &str) -> HostId {
        let mut world = self.shared.lock();
        let now = world.now;
        let state = HostState::new(name, now, &mut world.seed);
        world.hosts.push(state);
        HostId(world.hosts.len() as u32 - 1)
    }

    /// Starts a process. It runs when the cluster is run.
    pub fn spawn(&mut self, host: HostId, name: &str, body: impl FnOnce(&SimEnv) + 'static) -> ProcId {
        self.begin(host.0, name, None, None, Box::new(body))
    }

    /// Starts a process that is started again, `after` it was killed or its host is up again, until it ends by itself.
    /// [`Cluster::find`] gives the present one.
    pub fn spawn_service(
        &mut self,
        host: HostId,
        name: &str,
        after: Duration,
        body: impl Fn(&SimEnv) + 'static,
    ) -> ProcId {
        let body: ServiceBody = Rc::new(body);
        let index = self.services.len() as u32;
        self.services.push(Service { host: host.0, name: name.to_owned(), body: Rc::clone(&body) });
        self.shared.lock().respawn_after.push(after.as_nanos() as u64);
        self.begin(host.0, name, None, Some(index), Box::new(move |env| body(env)))
    }

    fn begin(&mut self, host: u32, name: &str, parent: Option<u32>, service: Option<u32>, body: Body) -> ProcId {
        let process = self.shared.lock().add_process(host, name, parent, service);
        let env = SimEnv::new(&self.shared, process, Rc::clone(&self.threads));
        let stack = self.stacks.pop().unwrap_or_else(|| match DefaultStack::new(STACK_BYTES) {
            Ok(stack) => stack,
            Err(error) => panic!("no memory for the stack of a simulated process: {error}"),
        });
        let routine = Coroutine::with_stack(stack, move |yielder, ()| {
            env::enter(process, yielder, || body(&env));
        });
        self.routines.insert(process, routine);
        ProcId(process)
    }

    /// The newest process of that name.
    pub fn find(&self, name: &str) -> Option<ProcId> {
        let world = self.shared.lock();
        world.procs.iter().rposition(|p| p.name == name).map(|index| ProcId(index as u32))
    }

    /// Lets `hook` decide what each child does, from its launch and how many times its arguments were started so far
    /// (from 1). Without one, [`ChildScript::from_argv`] does.
    pub fn children_do(&mut self, hook: impl FnMut(&Launch, u32) -> ChildScript + Send + Sync + 'static) {
        self.shared.lock().hook = Box::new(hook);
    }

    /// Of a hundred workers that die with their host alive, how many leave a keeper that ends their children within 2 s and
    /// then frees their lock; 80 at first. With the others the lock is free at once and the children go on as strays.
    pub fn keepers(&mut self, percent: u64) {
        self.shared.lock().keeper_percent = percent;
    }

    /// Sets how often in simulated time the condition of [`Cluster::run_until`] is looked at: every 10 ms at first, with 0 after
    /// each event.
    pub fn look_every(&mut self, span: Duration) {
        self.look_ns = span.as_nanos() as u64;
    }

    // --- running ----------------------------------------------------------------------------------------------------------

    /// Runs until `condition` holds, which is looked at as [`Cluster::look_every`] says, or `limit` has passed, or nothing is
    /// left to happen. Says whether the condition held.
    ///
    /// Fails if a process panics; then the cluster must not be run on.
    pub fn run_until(
        &mut self,
        mut condition: impl FnMut(&View<'_>) -> bool,
        limit: Duration,
    ) -> Result<bool, Box<Failure>> {
        let end = self.shared.lock().now + limit.as_nanos() as u64;
        let mut look_at = 0;
        loop {
            let resumed = {
                let mut world = self.shared.lock();
                if world.now >= look_at {
                    if condition(&View { world: &world }) {
                        return Ok(true);
                    }
                    look_at = world.now + self.look_ns;
                }
                match world.next_at() {
                    Some(at) if at <= end => world.step(),
                    next => {
                        if next.is_some() {
                            world.now = end;
                        }
                        return Ok(condition(&View { world: &world }));
                    }
                }
            };
            if let Some(process) = resumed {
                self.resume(process)?;
            }
            self.tidy();
        }
    }

    /// Runs for a span of simulated time.
    pub fn run_for(&mut self, span: Duration) -> Result<(), Box<Failure>> {
        self.run_until(|_| false, span).map(|_| ())
    }

    /// Runs until all processes have ended and no service is to start again; says whether they have within `limit`.
    pub fn run_to_end(&mut self, limit: Duration) -> Result<bool, Box<Failure>> {
        self.run_until(|view| view.world.respawning == 0 && view.living().is_empty(), limit)
    }

    fn resume(&mut self, process: u32) -> Result<(), Box<Failure>> {
        let Some(routine) = self.routines.get_mut(&process) else { return Ok(()) };
        let result = catch_unwind(AssertUnwindSafe(|| routine.resume(())));
        env::leave();
        match result {
            Ok(CoroutineResult::Yield(())) => Ok(()),
            Ok(CoroutineResult::Return(())) => {
                self.shared.lock().finished(process);
                Ok(())
            }
            Err(payload) => {
                let message = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "(no message)".to_owned());
                let name = self.shared.lock().procs[process as usize].name.clone();
                Err(Box::new(Failure { process: name, message, seed: self.seed, trace: self.trace() }))
            }
        }
    }

    /// Unwinds what has died and starts what was asked for.
    fn tidy(&mut self) {
        loop {
            let (dead, again) = {
                let mut world = self.shared.lock();
                if world.reap.is_empty() && world.respawn.is_empty() && self.threads.borrow().is_empty() {
                    return;
                }
                (std::mem::take(&mut world.reap), std::mem::take(&mut world.respawn))
            };
            for process in dead {
                if let Some(mut routine) = self.routines.remove(&process) {
                    routine.force_unwind();
                    env::leave();
                    self.stacks.push(routine.into_stack());
                }
            }
            for (parent, name, body) in self.threads.take() {
                let (host, is_alive) = {
                    let world = self.shared.lock();
                    (world.procs[parent as usize].host, world.procs[parent as usize].is_alive)
                };
                if is_alive {
                    self.begin(host, &name, Some(parent), None, body);
                }
            }
            for index in again {
                let service = &self.services[index as usize];
                let (host, name, body) = (service.host, service.name.clone(), Rc::clone(&service.body));
                let is_up = self.shared.lock().hosts[host as usize].is_up;
                if is_up {
                    self.shared.lock().respawning -= 1;
                    self.begin(host, &name, None, Some(index), Box::new(move |env| body(env)));
                } else {
                    let mut world = self.shared.lock();
                    let at = world.now + 1_000_000_000;
                    world.schedule(at, Event::Respawn(index));
                }
            }
        }
    }

    // --- interventions ----------------------------------------------------------------------------------------------------

    /// Makes `fault` happen now.
    pub fn inject(&mut self, fault: Fault) {
        self.shared.lock().inject(fault);
        self.tidy();
    }

    /// Makes `fault` happen at that time from the beginning of the world.
    pub fn inject_at(&mut self, at: Duration, fault: Fault) {
        self.shared.lock().schedule(at.as_nanos() as u64, Event::Timed(fault));
    }

    /// Lets a fault wait for its call. Of several that fit one call the oldest hits.
    pub fn arm(&mut self, armed: Armed) {
        self.shared.lock().armed.push(armed);
    }

    /// Kills a process as `SIGKILL` does.
    pub fn kill(&mut self, process: ProcId) {
        self.inject(Fault::Kill(process));
    }

    /// Stops a process until [`Cluster::go_on`].
    pub fn pause(&mut self, process: ProcId) {
        self.shared.lock().pause(process.0, None);
    }

    /// Lets a stopped process go on.
    pub fn go_on(&mut self, process: ProcId) {
        self.shared.lock().go_on(process.0);
    }

    /// Cuts a host off from the server until [`Cluster::heal`].
    pub fn partition(&mut self, host: HostId) {
        self.shared.lock().cut(host.0, None);
    }

    /// Ends a partition: what the network holds is executed within 8 s, also for the dead.
    pub fn heal(&mut self, host: HostId) {
        self.shared.lock().heal(host.0);
    }

    /// Asks a process to end in order; see [`SimEnv::should_stop`].
    pub fn ask_to_stop(&mut self, process: ProcId) {
        self.shared.lock().procs[process.0 as usize].asked_to_stop = true;
    }

    /// Keeps plans from stopping processes of that name. They still die with their host.
    pub fn spare(&mut self, name: &str) {
        self.shared.lock().spared.push(name.to_owned());
    }

    /// Draws a plan of faults from the seed within `budget`, and puts it before the processes.
    pub fn plan_faults(&mut self, budget: &FaultBudget) {
        let mut world = self.shared.lock();
        let mut seed = Seed::new(world.seed.bits());
        world.follow_ups = budget.follow_ups;
        let (from, window) = (world.now, budget.window.as_nanos() as u64);
        let pause_max = budget.pause_max.as_nanos() as u64;
        let mut draw = |most: u32, make: &mut dyn FnMut(&mut Seed) -> Planned| {
            for _ in 0..seed.below(u64::from(most) + 1) {
                let at = from + seed.below(window);
                let planned = make(&mut seed);
                world.schedule(at, Event::Planned(planned));
            }
        };
        // Most spans are short, some longer than a lease.
        let span = move |seed: &mut Seed| {
            let most = if seed.happens(500) { pause_max / 20 } else { pause_max };
            Duration::from_nanos(seed.below(most))
        };
        let short = |seed: &mut Seed| Duration::from_millis(seed.within((500, 40_000)));
        let aims = budget.aims;
        let at_call = move |s: &mut Seed, fault: CallFault| {
            let fitting: Vec<_> = aims.iter().filter(|(call, _)| fault.suits(*call)).collect();
            if !fitting.is_empty() && s.happens(600) {
                let (call, path) = fitting[s.below(fitting.len() as u64) as usize];
                return Planned::Call(fault, s.below(3) as u32, Some(*call), path);
            }
            Planned::Call(fault, s.below(12) as u32, None, "")
        };
        draw(budget.crashes, &mut |s| {
            let fault = if s.happens(500) { CallFault::CrashBefore } else { CallFault::CrashAfter };
            at_call(s, fault)
        });
        draw(budget.late_calls, &mut |s| {
            let fault = CallFault::LateAfterDeath(Duration::from_millis(s.below(60_000)));
            at_call(s, fault)
        });
        draw(budget.lost_replies, &mut |s| at_call(s, CallFault::LostReply));
        draw(budget.powers_at_calls, &mut |s| {
            let fault = CallFault::PowerAfter(short(s));
            at_call(s, fault)
        });
        draw(budget.errors, &mut |s| {
            let errno = [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EIO, libc::ESTALE][s.below(5) as usize];
            let fault =
                if s.happens(400) || errno != libc::EIO { CallFault::Refused(errno) } else { CallFault::Failed(errno) };
            at_call(s, fault)
        });
        draw(budget.bad_tails, &mut |s| {
            let fault = if s.happens(500) { CallFault::NulTail } else { CallFault::ShortTail };
            at_call(s, fault)
        });
        let slow_max = budget.slow_max.as_millis() as u64;
        draw(budget.slow_calls, &mut |s| {
            let fault = CallFault::Slow(Duration::from_millis(s.below(slow_max)));
            at_call(s, fault)
        });
        draw(budget.late_errors, &mut |s| {
            let fault = CallFault::LateAfterError(Duration::from_millis(s.within((5, 20_000))));
            at_call(s, fault)
        });
        draw(budget.false_dones, &mut |s| at_call(s, CallFault::FalseDone));
        draw(budget.half_renames, &mut |s| at_call(s, CallFault::HalfRename));
        draw(budget.pauses, &mut |s| Planned::Pause(span(s)));
        draw(budget.suspends, &mut |s| Planned::Suspend(span(s)));
        draw(budget.partitions, &mut |s| Planned::Partition(span(s)));
        draw(budget.host_crashes, &mut |s| Planned::HostCrash(short(s)));
        draw(budget.server_restarts, &mut |s| Planned::Timed(Fault::ServerRestart(short(s))));
        draw(budget.power_losses, &mut |s| Planned::Timed(Fault::PowerLoss(short(s))));
        draw(budget.full_disks, &mut |s| Planned::Timed(Fault::DiskFull(short(s))));
        draw(budget.wall_jumps, &mut |s| Planned::WallJump(s.below(7_200_000) as i64 - 3_600_000));
    }

    /// Ends all faults: none comes any more, the network heals, hosts and server are up, the stopped go on.
    pub fn quiet(&mut self) {
        self.shared.lock().quiet();
        self.tidy();
    }

    /// Puts a file on the server, complete and durable, as an operator might, replacing what is there; says whether the
    /// directory exists.
    pub fn put_file(&mut self, path: &str, bytes: &[u8]) -> bool {
        self.operate(path, |server, dir, name, now| {
            server.remove(dir, name, now);
            let ino = server.create(dir, name, Birth { mode: 0o644, maker: 0, host: u32::MAX }, now);
            server.append(ino, 0, bytes, true);
            server.make_durable(ino, dir);
        })
    }

    /// Makes a directory on the server.
    pub fn put_dir(&mut self, path: &str) -> bool {
        self.operate(path, |server, dir, name, now| {
            if server.entry(dir, name).is_none() {
                server.mkdir(dir, name, 0, now);
            }
            server.commit_names(dir);
        })
    }

    /// Removes a name from the server, a directory with all that is in it.
    pub fn remove(&mut self, path: &str) -> bool {
        self.operate(path, |server, dir, name, now| {
            server.remove(dir, name, now);
            server.commit_names(dir);
        })
    }

    /// Gives what is at `path` to another user; everything belongs to user 1000 at first.
    pub fn give(&mut self, path: &str, uid: u32) -> bool {
        let mut world = self.shared.lock();
        let Some(ino) = world.server.walk(path) else { return false };
        world.server.inode_mut(ino).uid = uid;
        true
    }

    fn operate(&mut self, path: &str, change: impl FnOnce(&mut Server, u64, &str, u64)) -> bool {
        let mut world = self.shared.lock();
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let now = world.now;
        let Some(dir) = world.server.walk(dir).filter(|dir| world.server.is_dir(*dir)) else { return false };
        change(&mut world.server, dir, name, now);
        true
    }

    // --- inspection -------------------------------------------------------------------------------------------------------

    /// Looks at the world without taking part in it.
    pub fn view<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        look(&View { world: &self.shared.lock() })
    }

    /// Whether a process lives.
    pub fn alive(&self, process: ProcId) -> bool {
        self.view(|view| view.alive(process))
    }

    /// True time since the beginning of the world.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.lock().now)
    }

    /// The last events, one a line.
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace_lines()
    }

    /// A number that is equal for two runs only if they were the same, event by event.
    pub fn digest(&self) -> u64 {
        self.shared.lock().trace.digest
    }

    /// All calls so far.
    pub fn calls(&self) -> u64 {
        self.shared.lock().calls
    }

    /// How many calls of one kind all processes of one name have made.
    pub fn count(&self, name: &str, call: Call) -> u64 {
        self.shared.lock().counts.get(name).map_or(0, |counts| counts[call as usize])
    }

    /// Every call so far that a fault has hit, or that its caller did not live to see the end of.
    pub fn met(&self) -> Vec<Met> {
        self.shared.lock().met.clone()
    }

    /// Counts calls by kind and by what `place` calls their path, from now on; see [`Cluster::places`].
    pub fn count_places(&mut self, place: fn(&str) -> &'static str) {
        self.shared.lock().place = Some(place);
    }

    /// How many calls of each kind were made at each place.
    pub fn places(&self) -> BTreeMap<(Call, &'static str), u64> {
        self.shared.lock().places.clone()
    }

    /// Keeps so many of the last events for [`Cluster::trace`] instead of 2000.
    pub fn keep_events(&mut self, count: usize) {
        self.shared.lock().trace.capacity = count.max(1);
    }

    /// How many faults of each kind have happened.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock().happened.clone()
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Their stacks hold values whose end must find everybody dead.
        for proc in &mut self.shared.lock().procs {
            proc.is_alive = false;
        }
        for routine in self.routines.values_mut() {
            routine.force_unwind();
            env::leave();
        }
    }
}

/// The world without caches, for conditions and checkers.
pub struct View<'a> {
    world: &'a World,
}

impl View<'_> {
    /// True time since the beginning of the world.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now)
    }

    /// Whether a process lives.
    pub fn alive(&self, process: ProcId) -> bool {
        self.world.procs[process.0 as usize].is_alive
    }

    /// Whether a process has run to its end by itself.
    pub fn finished(&self, process: ProcId) -> bool {
        self.world.procs[process.0 as usize].has_finished
    }

    /// The processes that live, threads included, and their names.
    pub fn living(&self) -> Vec<(ProcId, &str)> {
        let procs = self.world.procs.iter().enumerate().filter(|(_, p)| p.is_alive);
        procs.map(|(index, p)| (ProcId(index as u32), p.name.as_str())).collect()
    }

    /// The names in a directory as the server has them, sorted; `None` if there is no such directory.
    pub fn list(&self, dir: &str) -> Option<Vec<String>> {
        let server = &self.world.server;
        server.dir(server.walk(dir)?).ok().map(|d| d.entries.keys().cloned().collect())
    }

    /// The bytes of a file as far as the server has them.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        let server = &self.world.server;
        server.file(server.walk(path)?).map(|file| file.data[..file.at_server.min(file.data.len())].to_vec())
    }

    /// The bytes of a file that would survive a power loss now, if its name does.
    pub fn read_durable(&self, path: &str) -> Option<Vec<u8>> {
        let server = &self.world.server;
        server.file(server.walk(path)?).map(|file| file.data[..file.durable.min(file.data.len())].to_vec())
    }

    /// Whether name and bytes would survive a power loss now, with the names of all directories above.
    pub fn is_durable(&self, path: &str) -> bool {
        self.world.server.is_durable(path, self.world.now)
    }

    /// Whether the server has lost power so far.
    pub fn has_lost_power(&self) -> bool {
        self.world.has_lost_power
    }

    /// Whether the name would survive a power loss now, with the names of all directories above.
    pub fn is_named_durably(&self, path: &str) -> bool {
        self.world.server.named_durably(path, self.world.now).is_some()
    }

    /// Whether a directory is there.
    pub fn is_dir(&self, path: &str) -> bool {
        let server = &self.world.server;
        server.walk(path).is_some_and(|ino| server.is_dir(ino))
    }

    /// Whether anything is there.
    pub fn exists(&self, path: &str) -> bool {
        self.world.server.walk(path).is_some()
    }

    /// Every run of a child so far, in the order of their starts.
    pub fn children(&self) -> impl Iterator<Item = &ChildRun> {
        self.world.children.iter().map(|child| &child.run)
    }

    /// Who holds the lock on a file: its process, which may be dead.
    pub fn lock_holder(&self, path: &str) -> Option<ProcId> {
        let ino = self.world.server.walk(path)?;
        let mut holds = self.world.server.locks.range((ino, 0)..=(ino, u32::MAX));
        holds.next().map(|(_, hold)| ProcId(hold.process))
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("now", &self.now()).finish_non_exhaustive()
    }
}
