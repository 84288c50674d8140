//! The state of the whole simulated world and the events that change it.
//!
//! Invariants:
//! - Everything that happens is an event in one queue, ordered by time, then by a number drawn from the seed, then by age.
//! - A process has at most one call under way. It runs only between the delivery of a reply (or of the end of a sleep) and its
//!   next call, and simulated time stands still meanwhile.
//! - Nothing here iterates in an order that depends on addresses or on a random hash.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fs::{Call, Space, Stat};
use crate::process::{
    Child, Event as ChildEvent, Group, Identity, Launch, Liveness, SetupFailure, Signal, Started, Status,
};

use super::client::{HostState, Look};
use super::cluster::{HostId, ProcId};
use super::faults::{Armed, CallFault, Fault};
use super::process::{ChildRun, ChildScript, ChildState};
use super::profile::{Commit, Locks, MS, Profile, Replay, SEC, Unsynced};
use super::seed::Seed;
use super::server::{Birth, Errno, Hold, ROOT, Server};

/// The world behind its lock, which is never contended: it only makes the handles shareable without a promise of our own.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<World>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a process asks of the file system.
#[derive(Debug, Clone)]
pub(super) enum Op {
    List,
    Open,
    Stat(u64),
    Read(u64, u64, usize),
    Create(u32),
    Write(u64, Vec<u8>),
    Sync(u64),
    Close(u64),
    Rename(Arc<str>),
    Unlink,
    Mkdir,
    Rmdir,
    SyncDir,
    Lock(u64),
    Space,
}

/// What it is told.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Done,
    Failed(Errno),
    Listing(Vec<(String, bool)>),
    Handle(u64),
    Stat(Stat),
    Bytes(Vec<u8>),
    Locked(u64),
    Refused,
    Unsupported,
    Hung,
    Space(Space),
}

impl Reply {
    fn errno(&self) -> Errno {
        match self {
            Self::Failed(errno) => *errno,
            Self::Refused => libc::EAGAIN,
            Self::Unsupported => libc::ENOLCK,
            Self::Hung => libc::ETIMEDOUT,
            _ => 0,
        }
    }
}

#[derive(Debug)]
struct Request {
    process: u32,
    host: u32,
    call: Call,
    path: Arc<str>,
    op: Op,
    fault: Option<CallFault>,
    /// Steps already done of a call with several.
    phase: u8,
    /// Result of the execution, while its reply is on the way.
    executed: Option<Reply>,
    /// Directories whose names are to be made durable before the reply.
    commits: Vec<u64>,
    /// Nobody waits for the reply any more.
    is_abandoned: bool,
    /// Beyond the reach of its host's troubles.
    is_in_flight: bool,
    partial: Vec<(String, bool)>,
}

#[derive(Debug)]
struct Handle {
    ino: u64,
    host: u32,
    process: u32,
    len: usize,
    seen_at: u64,
    fresh_for: u64,
    writes: bool,
    offset: usize,
    is_broken: bool,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a process can be in any combination of these")]
pub(super) struct ProcState {
    pub(super) name: String,
    pub(super) host: u32,
    /// The process of a thread, or itself.
    pub(super) owner: u32,
    pub(super) service: Option<u32>,
    pub(super) is_alive: bool,
    pub(super) has_finished: bool,
    /// Stops (`SIGSTOP`) not yet undone.
    pub(super) is_stopped: bool,
    pub(super) stops: u64,
    pub(super) asked_to_stop: bool,
    /// What it is resumed with, kept while it is stopped.
    pub(super) reply: Option<Reply>,
    is_ready: bool,
    sleep: u64,
    wakes_for_children: bool,
    spins: u32,
    boot_count: u32,
    pid: u32,
    ticks: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Start(u32),
    Execute(u64),
    Reply(u64),
    SoftTimeout(u64),
    Failure(u64),
    LockTimeout(u64),
    Wake(u32, u64),
    WriteBack(u64),
    ChildStir(u32),
    ChildEnd(u32, u64),
    Keeper(u32),
    Planned(Planned),
    Timed(Fault),
    Continue(u32, u64),
    Heal(u32, u64),
    Thaw(u32),
    HostUp(u32),
    LeaseEnd(u32, u64),
    ReleaseHost(u32, u32),
    ServerUp,
    DiskFree,
    Respawn(u32),
}

/// A call that a fault has hit, or whose caller died meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// The name of the calling process.
    pub by: String,
    /// The kind.
    pub call: Call,
    /// The path, of a rename the source.
    pub path: String,
    /// [`Met::DEATH`], [`Met::DONE_AFTER_DEATH`], or the name of the fault.
    pub what: &'static str,
}

impl Met {
    /// Its caller died while it was under way, for whatever reason.
    pub const DEATH: &'static str = "Death";
    /// It was executed, or begun, after its caller had died.
    pub const DONE_AFTER_DEATH: &'static str = "DoneAfterDeath";
}

/// A fault of a plan, whose victim is drawn when its time has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Planned {
    /// So many calls are let pass of that kind, if any, whose path contains the text.
    Call(CallFault, u32, Option<Call>, &'static str),
    Pause(Duration),
    Suspend(Duration),
    Partition(Duration),
    HostCrash(Duration),
    Timed(Fault),
    WallJump(i64),
}

struct Scheduled {
    at: u64,
    tie: u64,
    age: u64,
    event: Event,
}

impl Scheduled {
    fn key(&self) -> (u64, u64, u64) {
        (self.at, self.tie, self.age)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    // Reversed: the heap gives the greatest, we want the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.key().cmp(&self.key())
    }
}

enum Outcome {
    Answer(Reply),
    /// Goes on then.
    Wait(u64),
}

impl From<Result<Reply, Errno>> for Outcome {
    fn from(result: Result<Reply, Errno>) -> Self {
        Self::Answer(result.unwrap_or_else(Reply::Failed))
    }
}

#[derive(Debug)]
enum What {
    Sent,
    Done(Errno),
    Replied(Errno),
    Note(String),
}

#[derive(Debug)]
struct Line {
    at: u64,
    process: u32,
    call: Option<Call>,
    path: Arc<str>,
    what: What,
}

/// The last events, and a digest of all.
#[derive(Debug)]
pub(super) struct Trace {
    lines: VecDeque<Line>,
    pub(super) capacity: usize,
    pub(super) digest: u64,
    nothing: Arc<str>,
}

impl Trace {
    fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    fn push(&mut self, line: Line) {
        self.mix(line.at);
        self.mix(u64::from(line.process));
        let what = match &line.what {
            What::Sent => 1,
            What::Done(errno) => 2 + ((*errno as u64) << 8),
            What::Replied(errno) => 3 + ((*errno as u64) << 8),
            What::Note(text) => text.bytes().fold(4, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte)),
        };
        self.mix(what);
        self.mix(line.call.map_or(99, |call| call as u64));
        if matches!(line.what, What::Sent) {
            let sum = line.path.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
            self.mix(sum);
        }
        while self.lines.len() >= self.capacity {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// The child behaviour hook of a harness.
pub(super) type Hook = Box<dyn FnMut(&Launch, u32) -> ChildScript + Send + Sync>;

pub(super) struct World {
    pub(super) profile: Profile,
    pub(super) seed: Seed,
    pub(super) now: u64,
    age: u64,
    queue: BinaryHeap<Scheduled>,
    pub(super) server: Server,
    pub(super) hosts: Vec<HostState>,
    pub(super) procs: Vec<ProcState>,
    pub(super) children: Vec<ChildState>,
    requests: BTreeMap<u64, Request>,
    handles: BTreeMap<u64, Handle>,
    next_id: u64,
    writebacks: BTreeSet<u64>,
    /// The directories with `.nfs` names, by inode and host.
    silly: BTreeMap<(u64, u32), u64>,
    recent_unlinks: BTreeMap<(u64, String), u64>,
    pub(super) armed: Vec<Armed>,
    /// Of a thousand faults of calls, how many another fault follows.
    pub(super) follow_ups: u64,
    /// Faults of plans are ignored before this event age.
    plan_from: u64,
    pub(super) trace: Trace,
    pub(super) met: Vec<Met>,
    pub(super) place: Option<fn(&str) -> &'static str>,
    pub(super) places: BTreeMap<(Call, &'static str), u64>,
    pub(super) has_lost_power: bool,
    pub(super) counts: BTreeMap<String, [u64; Call::ALL.len()]>,
    pub(super) calls: u64,
    pub(super) hook: Hook,
    launches: BTreeMap<Vec<Vec<u8>>, u32>,
    /// The children of each process whose end it has not been told yet.
    watched: BTreeMap<u32, Vec<u32>>,
    /// Processes that have just died and whose stacks are to be unwound.
    pub(super) reap: Vec<u32>,
    pub(super) respawn: Vec<u32>,
    pub(super) respawn_after: Vec<u64>,
    /// Services that are down for the moment.
    pub(super) respawning: u32,
    next: Option<u32>,
    next_pid: u32,
    /// Of a hundred workers that die, how many leave a keeper behind that cleans up.
    pub(super) keeper_percent: u64,
    /// Names of processes that no plan stops.
    pub(super) spared: Vec<String>,
    /// How many faults of each kind have happened.
    pub(super) happened: BTreeMap<&'static str, u64>,
}

const NOBODY: u32 = u32::MAX;

impl World {
    pub(super) fn new(seed: u64, profile: Profile) -> Self {
        let server = Server::new(&profile);
        Self {
            profile,
            seed: Seed::new(seed),
            now: SEC,
            age: 0,
            queue: BinaryHeap::new(),
            server,
            hosts: Vec::new(),
            procs: Vec::new(),
            children: Vec::new(),
            requests: BTreeMap::new(),
            handles: BTreeMap::new(),
            next_id: 1,
            writebacks: BTreeSet::new(),
            silly: BTreeMap::new(),
            recent_unlinks: BTreeMap::new(),
            armed: Vec::new(),
            follow_ups: 0,
            plan_from: 0,
            trace: Trace { lines: VecDeque::new(), capacity: 2000, digest: 0xcbf2_9ce4_8422_2325, nothing: "".into() },
            met: Vec::new(),
            place: None,
            places: BTreeMap::new(),
            has_lost_power: false,
            counts: BTreeMap::new(),
            calls: 0,
            hook: Box::new(|launch, _| ChildScript::from_argv(&launch.argv)),
            launches: BTreeMap::new(),
            watched: BTreeMap::new(),
            reap: Vec::new(),
            respawn: Vec::new(),
            respawn_after: Vec::new(),
            respawning: 0,
            next: None,
            next_pid: 100,
            keeper_percent: 80,
            spared: Vec::new(),
            happened: BTreeMap::new(),
        }
    }

    // --- events -----------------------------------------------------------------------------------------------------------

    pub(super) fn schedule(&mut self, at: u64, event: Event) {
        self.age += 1;
        let tie = self.seed.bits();
        self.queue.push(Scheduled { at: at.max(self.now), tie, age: self.age, event });
    }

    fn soon(&mut self, span: (u64, u64), event: Event) {
        let at = self.now + self.seed.within(span);
        self.schedule(at, event);
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|scheduled| scheduled.at)
    }

    /// Lets the next event happen; says which process it lets run.
    pub(super) fn step(&mut self) -> Option<u32> {
        let Scheduled { at, age, event, .. } = self.queue.pop()?;
        self.now = at;
        self.next = None;
        match event {
            Event::Start(process) => self.resume(process),
            Event::Execute(id) => self.execute(id),
            Event::Reply(id) => self.reply(id),
            Event::Failure(id) => self.time_out(id, Reply::Failed(libc::EIO)),
            Event::SoftTimeout(id) => {
                self.time_out(id, Reply::Failed(libc::EIO));
                // Perhaps it was given up before it was sent.
                if self.requests.get(&id).is_some_and(|r| r.is_abandoned) && self.seed.happens(500) {
                    self.requests.remove(&id);
                }
            }
            Event::LockTimeout(id) => self.time_out(id, Reply::Hung),
            Event::Wake(process, sleep) => {
                if self.procs[process as usize].sleep == sleep {
                    self.procs[process as usize].sleep += 1;
                    // From here on it is busy: a child must not wake it out of a call.
                    self.procs[process as usize].wakes_for_children = false;
                    self.deliver(process, Reply::Done);
                }
            }
            Event::WriteBack(ino) => {
                self.writebacks.remove(&ino);
                let host = self.server.file(ino).map_or(0, |file| file.writer_host) as usize;
                if self.hosts.get(host).is_some_and(|h| h.is_cut) || !self.server.is_up || self.server.is_full {
                    self.write_back_later(ino, (SEC, 5 * SEC));
                } else {
                    self.server.write_back(ino);
                }
            }
            Event::ChildStir(child) => self.stir(child),
            Event::ChildEnd(child, ends_at) => self.child_end(child, ends_at),
            Event::Keeper(process) => self.keeper(process),
            Event::Planned(planned) => {
                if age >= self.plan_from {
                    self.planned(planned);
                }
            }
            Event::Timed(fault) => self.inject(fault),
            Event::Continue(process, stops) => {
                if self.procs[process as usize].stops == stops {
                    self.go_on(process);
                }
            }
            Event::Heal(host, silence) => {
                if self.hosts[host as usize].silence == silence {
                    self.heal(host);
                }
            }
            Event::Thaw(host) => self.thaw(host),
            Event::HostUp(host) => self.boot_host(host),
            Event::LeaseEnd(host, silence) => self.lease_end(host, silence),
            Event::ReleaseHost(host, boot) => {
                let hosts = &self.hosts;
                if hosts[host as usize].boot_count == boot {
                    let procs = &self.procs;
                    self.server
                        .locks
                        .retain(|_, hold| hold.host != host || procs[hold.process as usize].boot_count == boot);
                }
            }
            Event::ServerUp => self.server_up(),
            Event::DiskFree => self.server.is_full = false,
            Event::Respawn(service) => self.respawn.push(service),
        }
        self.next.take()
    }

    fn resume(&mut self, process: u32) {
        let proc = &mut self.procs[process as usize];
        if !proc.is_alive {
            return;
        }
        proc.spins = 0;
        if proc.is_stopped || self.hosts[proc.host as usize].is_frozen {
            proc.is_ready = true;
        } else {
            self.next = Some(process);
        }
    }

    fn deliver(&mut self, process: u32, reply: Reply) {
        let proc = &mut self.procs[process as usize];
        if proc.is_alive {
            proc.reply = Some(reply);
            self.resume(process);
        }
    }

    fn note(&mut self, process: u32, text: String) {
        let (at, path) = (self.now, Arc::clone(&self.trace.nothing));
        self.trace.push(Line { at, process, call: None, path, what: What::Note(text) });
    }

    pub(super) fn say(&mut self, process: u32, text: &str) {
        self.note(process, text.to_owned());
    }

    fn line(&mut self, process: u32, call: Call, path: &Arc<str>, what: What) {
        self.trace.push(Line { at: self.now, process, call: Some(call), path: Arc::clone(path), what });
    }

    pub(super) fn trace_lines(&self) -> Vec<String> {
        let show = |line: &Line| {
            let name = self.procs.get(line.process as usize).map_or("world", |p| p.name.as_str());
            let (secs, micros) = (line.at / SEC, line.at % SEC / 1000);
            let call = line.call.map_or("", Call::verb);
            let what = match &line.what {
                What::Sent => "sent".to_owned(),
                What::Done(0) => "executed".to_owned(),
                What::Done(errno) => format!("executed: {}", std::io::Error::from_raw_os_error(*errno)),
                What::Replied(0) => "replied".to_owned(),
                What::Replied(errno) => format!("replied: {}", std::io::Error::from_raw_os_error(*errno)),
                What::Note(text) => text.clone(),
            };
            format!("{secs:>6}.{micros:06} {name}#{} {call} {} {what}", line.process as i32, line.path)
        };
        self.trace.lines.iter().map(show).collect()
    }

    // --- calls ------------------------------------------------------------------------------------------------------------

    /// Counts a look at the world that takes no time; true if a process does nothing else.
    pub(super) fn spin(&mut self, process: u32) -> bool {
        let proc = &mut self.procs[process as usize];
        proc.spins += 1;
        proc.is_alive && proc.spins > 200_000
    }

    /// Sends a call; the caller suspends unless it is answered at once.
    pub(super) fn begin(&mut self, process: u32, call: Call, path: &str, op: Op) -> Result<(), Reply> {
        let proc = &self.procs[process as usize];
        if !proc.is_alive {
            return Err(Reply::Failed(libc::EIO));
        }
        let host = proc.host;
        self.calls += 1;
        if let Some(counts) = self.counts.get_mut(&proc.name) {
            counts[call as usize] += 1;
        } else {
            let mut counts = [0; Call::ALL.len()];
            counts[call as usize] = 1;
            self.counts.insert(proc.name.clone(), counts);
        }
        let id = self.next_id;
        self.next_id += 1;
        let path: Arc<str> = path.into();
        self.line(process, call, &path, What::Sent);
        let mut fault = self.take_fault(process, call, &path);
        match fault {
            Some(CallFault::LateAfterError(_)) if self.profile.local => fault = Some(CallFault::Failed(libc::EIO)),
            Some(CallFault::FalseDone) if self.profile.replay != Replay::Again => fault = Some(CallFault::LostReply),
            _ => {}
        }
        let limit = if let Op::Lock(limit) = op { Some(limit) } else { None };
        let mut request = Request {
            process,
            host,
            call,
            path,
            op,
            fault,
            phase: 0,
            executed: None,
            commits: Vec::new(),
            is_abandoned: false,
            is_in_flight: false,
            partial: Vec::new(),
        };
        match fault {
            Some(CallFault::CrashBefore) => self.kill(process, "crashes before a call"),
            Some(CallFault::HostCrashBefore) => self.crash_host(host, Duration::from_secs(20)),
            Some(CallFault::LateAfterError(span)) => {
                request.is_in_flight = true;
                if let Op::Sync(handle) = request.op {
                    self.break_handle(handle);
                }
                self.requests.insert(id, request);
                let reply = self.seed.within(self.profile.latency);
                self.schedule(self.now + reply, Event::Failure(id));
                self.schedule(self.now + reply + (span.as_nanos() as u64).max(1), Event::Execute(id));
            }
            Some(CallFault::LateAfterDeath(span)) => {
                request.is_in_flight = true;
                self.requests.insert(id, request);
                self.kill(process, "dies with a call under way");
                self.schedule(self.now + span.as_nanos() as u64, Event::Execute(id));
            }
            _ => {
                self.requests.insert(id, request);
                let extra = if let Some(CallFault::Slow(span)) = fault { span.as_nanos() as u64 } else { 0 };
                let at = self.now + extra + self.seed.within(self.profile.latency);
                self.schedule(at, Event::Execute(id));
                if let Some(limit) = limit {
                    self.schedule(self.now + limit.max(1), Event::LockTimeout(id));
                }
            }
        }
        Ok(())
    }

    fn take_fault(&mut self, process: u32, call: Call, path: &str) -> Option<CallFault> {
        let mut hit = None;
        for (index, armed) in self.armed.iter_mut().enumerate() {
            if armed.matches(process, call, path) {
                if armed.skip > 0 {
                    armed.skip -= 1;
                } else if hit.is_none() {
                    hit = Some(index);
                }
            }
        }
        let armed = self.armed.remove(hit?);
        self.meet(process, call, path, armed.fault.name());
        *self.happened.entry(armed.fault.name()).or_insert(0) += 1;
        self.note(process, format!("fault: {:?}", armed.fault));
        // What was in the making at the token is what a second fault hurts most.
        let is_aimed = call == Call::Rename && path.contains("decisions/head");
        let chance = self.follow_ups * if is_aimed { 4 } else { 1 };
        if chance > 0 && self.seed.happens(chance) {
            self.follow_up(process, armed.fault);
        }
        Some(armed.fault)
    }

    /// Lets another fault follow the one that a call of `process` has met.
    fn follow_up(&mut self, process: u32, first: CallFault) {
        let after = match first {
            CallFault::Slow(span) | CallFault::PauseAfter(span) => span.as_nanos() as u64,
            _ => 0,
        };
        let at = self.now + after + self.seed.below(4 * SEC);
        let span = Duration::from_millis(self.seed.within((500, 40_000)));
        let host = HostId(self.procs[process as usize].host);
        let fault = match self.seed.below(4) {
            0 | 1 => Fault::PowerLoss(span),
            2 => Fault::Partition(host, span),
            _ => Fault::Pause(ProcId(process), span),
        };
        self.schedule(at, Event::Planned(Planned::Timed(fault)));
    }

    fn meet(&mut self, process: u32, call: Call, path: &str, what: &'static str) {
        let by = self.procs[self.procs[process as usize].owner as usize].name.clone();
        self.met.push(Met { by, call, path: path.to_owned(), what });
    }

    fn is_local(&self, op: &Op) -> bool {
        match op {
            Op::Stat(_) => true,
            Op::Write(..) => matches!(self.profile.unsynced, Unsynced::After(_)),
            _ => false,
        }
    }

    fn execute(&mut self, id: u64) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        if request.executed.is_some() {
            // The server has given it up meanwhile.
            self.requests.insert(id, request);
            return;
        }
        let host = request.host as usize;
        if !self.is_local(&request.op) {
            if self.hosts[host].is_cut && !request.is_in_flight {
                self.hosts[host].held.push(id);
                self.requests.insert(id, request);
                if self.profile.soft {
                    self.soon((10 * SEC, 30 * SEC), Event::SoftTimeout(id));
                }
                return;
            }
            if !self.server.is_up {
                self.server.held.push(id);
                self.requests.insert(id, request);
                return;
            }
        }
        self.server.acting = request.host;
        if !self.procs[request.process as usize].is_alive && request.phase == 0 {
            let (call, path) = (request.call, Arc::clone(&request.path));
            self.meet(request.process, call, &path, Met::DONE_AFTER_DEATH);
        }
        let outcome = match request.fault {
            Some(CallFault::Refused(errno)) => {
                if let Op::Write(handle, _) | Op::Sync(handle) | Op::Close(handle) = request.op {
                    self.break_handle(handle);
                }
                Outcome::Answer(Reply::Failed(errno))
            }
            Some(CallFault::FalseDone) => Outcome::Answer(Reply::Done),
            _ if self.hosts[host].is_evicted => Outcome::Answer(Reply::Failed(libc::ESHUTDOWN)),
            _ => self.perform(id, &mut request),
        };
        match outcome {
            Outcome::Wait(at) => {
                self.requests.insert(id, request);
                self.schedule(at, Event::Execute(id));
            }
            Outcome::Answer(reply) => {
                self.line(request.process, request.call, &request.path, What::Done(reply.errno()));
                let syncs = !request.commits.is_empty() && self.profile.commit == Commit::Sync;
                request.executed = Some(reply);
                self.requests.insert(id, request);
                let mut at = self.now + self.seed.within(self.profile.latency);
                if syncs {
                    at += self.seed.within(self.profile.sync);
                }
                self.schedule(at, Event::Reply(id));
                if let Some(request) = self.requests.get_mut(&id)
                    && let Some(CallFault::PowerAfter(span)) = request.fault
                {
                    // Once: it may be executed again when the server is back.
                    request.fault = None;
                    *self.happened.entry("PowerLoss").or_insert(0) += 1;
                    self.server_down(true, span);
                }
            }
        }
    }

    fn reply(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let (process, host, call) = (request.process, request.host, request.call);
        let Some(mut reply) = request.executed.clone() else { return };
        let commits = std::mem::take(&mut request.commits);
        let crashes = matches!(
            request.fault,
            Some(CallFault::CrashAfter | CallFault::HostCrashAfter | CallFault::Failed(_) | CallFault::HalfRename)
        );
        // A client that syncs by a second call may die between the two, or that call fails.
        let is_alive = self.procs[process as usize].is_alive && !request.is_abandoned;
        let is_alive = is_alive && !(crashes && self.seed.happens(500));
        if self.profile.commit == Commit::Server || (self.profile.commit == Commit::Sync && is_alive) {
            for dir in commits {
                self.server.commit_names(dir);
            }
        }
        if self.hosts[host as usize].is_cut && self.hosts[host as usize].is_up && !self.is_local_call(call) {
            self.hosts[host as usize].held_replies.push(id);
            return;
        }
        let Some(request) = self.requests.get_mut(&id) else { return };
        match request.fault.take() {
            Some(CallFault::LostReply) => match self.profile.replay {
                Replay::Again => {
                    request.executed = None;
                    request.phase = 0;
                    return self.soon((200 * MS, 15 * SEC), Event::Execute(id));
                }
                Replay::Remembered | Replay::Exact => return self.soon((200 * MS, 15 * SEC), Event::Reply(id)),
                Replay::Error => reply = Reply::Failed(libc::EIO),
            },
            Some(CallFault::Failed(errno)) => {
                if let Op::Write(handle, _) | Op::Sync(handle) | Op::Close(handle) = request.op {
                    self.break_handle(handle);
                }
                reply = Reply::Failed(errno);
            }
            Some(CallFault::HalfRename) if self.seed.happens(500) => reply = Reply::Failed(libc::EIO),
            Some(CallFault::CrashAfter | CallFault::HalfRename) => self.kill(process, "crashes after a call"),
            Some(CallFault::HostCrashAfter) => self.crash_host(host, Duration::from_secs(20)),
            Some(CallFault::PauseAfter(span)) => self.pause(process, Some(span)),
            Some(CallFault::NulTail) => {
                if let Reply::Bytes(bytes) = &mut reply {
                    let tail = self.seed.below(bytes.len() as u64) as usize;
                    bytes[tail..].fill(0);
                }
            }
            Some(CallFault::ShortTail) => {
                if let Reply::Bytes(bytes) = &mut reply {
                    bytes.truncate(self.seed.below(bytes.len() as u64) as usize);
                }
            }
            _ => {}
        }
        let Some(request) = self.requests.remove(&id) else { return };
        if request.is_abandoned || !self.procs[process as usize].is_alive {
            return self.discard(&reply);
        }
        self.line(process, request.call, &request.path, What::Replied(reply.errno()));
        self.deliver(process, reply);
    }

    fn is_local_call(&self, call: Call) -> bool {
        call == Call::Stat || (call == Call::Write && matches!(self.profile.unsynced, Unsynced::After(_)))
    }

    /// Undoes what only a living caller could use.
    fn discard(&mut self, reply: &Reply) {
        match reply {
            Reply::Handle(handle) => self.close_handle(*handle),
            Reply::Locked(id) => self.release(*id),
            _ => {}
        }
    }

    fn time_out(&mut self, id: u64, reply: Reply) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.is_abandoned {
            return;
        }
        // Once executed, the answer is on its way, unless the network holds it.
        let host = request.host as usize;
        if request.executed.is_some() && !self.hosts[host].held_replies.contains(&id) {
            return;
        }
        request.is_abandoned = true;
        let (process, call, path) = (request.process, request.call, Arc::clone(&request.path));
        self.line(process, call, &path, What::Replied(reply.errno()));
        self.deliver(process, reply);
    }

    // --- execution --------------------------------------------------------------------------------------------------------

    fn cache(&mut self, host: u32) -> (&mut HostState, Look<'_>) {
        let look = Look { profile: &self.profile, server: &self.server, now: self.now, seed: &mut self.seed };
        (&mut self.hosts[host as usize], look)
    }

    fn look_up(&mut self, host: u32, dir: u64, name: &str) -> Option<u64> {
        let (cache, at) = self.cache(host);
        cache.look_up(at, dir, name)
    }

    fn locate(&mut self, host: u32, path: &str) -> Result<u64, Errno> {
        let mut at = ROOT;
        for name in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if !self.server.is_dir(at) {
                return Err(libc::ENOTDIR);
            }
            at = self.look_up(host, at, name).ok_or(libc::ENOENT)?;
        }
        Ok(at)
    }

    fn parent<'a>(&mut self, host: u32, path: &'a str) -> Result<(u64, &'a str), Errno> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.locate(host, dir)?;
        if !self.server.is_dir(dir) {
            return Err(libc::ENOTDIR);
        }
        if name.is_empty() { Err(libc::EINVAL) } else { Ok((dir, name)) }
    }

    /// Runs a change of `dir` and tells this host's cache about it.
    fn change(&mut self, host: u32, dir: u64, name: &str, change: impl FnOnce(&mut Server, u64)) {
        let before = HostState::attribute(&self.profile, &self.server, dir);
        change(&mut self.server, self.now);
        let (cache, at) = self.cache(host);
        cache.changed(at, dir, name, before);
    }

    /// Until when a silent host that has used `dir` keeps others from changing it.
    fn kept_by_silent(&mut self, dir: u64, host: u32) -> Option<u64> {
        let lease = if self.profile.evicts { self.profile.lock_lease? } else { return None };
        let users = self.server.dir(dir).ok()?.users.clone();
        let mut until = None;
        for user in users {
            if user == host {
                continue;
            }
            if let Some(since) = self.hosts[user as usize].silent_since {
                if since + lease > self.now {
                    until = until.max(Some(since + lease));
                } else if let Some(d) = self.server.dir_mut(dir) {
                    d.users.remove(&user);
                }
            }
        }
        if let Some(d) = self.server.dir_mut(dir) {
            d.users.insert(host);
        }
        until
    }

    /// Until when a dead reader keeps others from renaming or removing `ino`.
    fn kept_by_reader(&mut self, ino: u64, host: u32) -> Option<u64> {
        let span = self.profile.delegation?;
        let hosts = &self.hosts;
        let now = self.now;
        let file = self.server.file_mut(ino)?;
        let mut until = None;
        for reader in std::mem::take(&mut file.delegated) {
            if reader != host
                && let Some(since) = hosts[reader as usize].silent_since
                && since + span > now
            {
                until = until.max(Some(since + span));
                file.delegated.push(reader);
            }
        }
        until
    }

    /// Until when the server keeps others from using a name that it has not written yet.
    fn stalled(&self, ino: u64, host: u32) -> Option<u64> {
        let inode = self.server.inode(ino);
        (inode.stalled_by != host && inode.stalled_until > self.now).then_some(inode.stalled_until)
    }

    fn stall(&mut self, ino: u64, host: u32) {
        if let Some(tick) = self.profile.name_stall {
            let inode = self.server.inode_mut(ino);
            inode.stalled_by = host;
            inode.stalled_until = (self.now / tick + 1) * tick;
        }
    }

    /// Opens a handle with the number of the request, so that a repeated request opens it anew and leaves no other behind.
    fn open_handle(&mut self, handle: u64, ino: u64, request: &Request, len: usize, writes: bool) -> Reply {
        self.close_handle(handle);
        self.server.inode_mut(ino).opens += 1;
        let fresh_for = self.seed.within((3 * SEC, 12 * SEC));
        self.handles.insert(
            handle,
            Handle {
                ino,
                host: request.host,
                process: self.procs[request.process as usize].owner,
                len,
                seen_at: self.now,
                fresh_for,
                writes,
                offset: 0,
                is_broken: false,
            },
        );
        Reply::Handle(handle)
    }

    fn perform(&mut self, id: u64, request: &mut Request) -> Outcome {
        let host = request.host;
        let path = Arc::clone(&request.path);
        match request.op.clone() {
            Op::List => self.do_list(request, host, &path),
            Op::Open => self.do_open(id, request, host, &path),
            Op::Stat(handle) => self.do_stat(handle).into(),
            Op::Read(handle, offset, len) => self.do_read(handle, offset, len).into(),
            Op::Create(mode) => self.do_create(id, request, host, &path, mode),
            Op::Write(handle, bytes) => self.do_write(handle, &bytes).into(),
            Op::Sync(_) | Op::SyncDir if request.phase == 0 => {
                request.phase = 1;
                Outcome::Wait(self.now + self.seed.within(self.profile.sync))
            }
            Op::Sync(handle) => self.do_sync(handle).into(),
            Op::SyncDir => self
                .locate(host, &path)
                .map(|dir| {
                    if self.profile.commit != Commit::Later {
                        self.server.commit_names(dir);
                    }
                    Reply::Done
                })
                .into(),
            Op::Close(handle) => self.do_close(handle).into(),
            Op::Rename(to) => self.do_rename(id, request, host, &path, &to),
            Op::Unlink => self.do_unlink(request, host, &path),
            Op::Mkdir => self.do_mkdir(id, request, host, &path),
            Op::Rmdir => self.do_rmdir(request, host, &path).into(),
            Op::Lock(limit) => self.do_lock(id, request, host, &path, limit),
            Op::Space => {
                let bytes_free = if self.server.is_full { 0 } else { 1 << 40 };
                Outcome::Answer(Reply::Space(Space { bytes_free, inodes_free: 1 << 30 }))
            }
        }
    }

    fn do_list(&mut self, request: &mut Request, host: u32, path: &str) -> Outcome {
        let dir = match self.locate(host, path) {
            Ok(dir) if self.server.is_dir(dir) => dir,
            Ok(_) => return Outcome::Answer(Reply::Failed(libc::ENOTDIR)),
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        if let Some(d) = self.server.dir_mut(dir) {
            d.users.insert(host);
        }
        let (cache, at) = self.cache(host);
        let names = cache.list(at, dir);
        if !self.profile.bricks {
            return Outcome::Answer(Reply::Listing(names));
        }
        // One set of bricks after the other: a rename from one to the other may be seen twice or not at all.
        let phase = request.phase;
        request.partial.extend(names.into_iter().filter(|(name, _)| brick(name) == u64::from(phase)));
        if phase == 0 {
            request.phase = 1;
            return Outcome::Wait(self.now + self.seed.within((100_000, 5 * MS)));
        }
        let mut names = std::mem::take(&mut request.partial);
        names.sort();
        Outcome::Answer(Reply::Listing(names))
    }

    fn do_open(&mut self, id: u64, request: &mut Request, host: u32, path: &str) -> Outcome {
        let found = self.parent(host, path).and_then(|(dir, name)| {
            let mut ino = self.look_up(host, dir, name).ok_or(libc::ENOENT)?;
            if self.server.inode(ino).nlink == 0 {
                // Opening asks the server, who does not know what the cache names, and then the name is looked up afresh.
                ino = self.server.entry(dir, name).ok_or(libc::ENOENT)?;
            }
            if self.server.is_dir(ino) { Err(libc::EISDIR) } else { Ok((dir, ino)) }
        });
        let (dir, ino) = match found {
            Ok(found) => found,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        if let Some(until) = self.kept_by_silent(dir, host).or(self.stalled(ino, host)) {
            return Outcome::Wait(until);
        }
        if self.profile.bricks
            && self.server.dir(dir).is_ok_and(|d| d.changed_at + 50 * MS > self.now)
            && self.seed.happens(50)
        {
            return Outcome::Answer(Reply::Failed(libc::ENOENT));
        }
        if self.profile.delegation.is_some()
            && self.seed.happens(500)
            && let Some(file) = self.server.file_mut(ino)
            && !file.delegated.contains(&host)
        {
            file.delegated.push(host);
        }
        let len = self.hosts[host as usize].length(&self.profile, &self.server, ino, host, self.now);
        Outcome::Answer(self.open_handle(id, ino, request, len, false))
    }

    /// How much of its file a handle sees now.
    fn seen(&mut self, handle: u64) -> Result<(u64, usize), Errno> {
        let open = self.handles.get_mut(&handle).ok_or(libc::EBADF)?;
        let inode = self.server.inode(open.ino);
        let Some(file) = self.server.file(open.ino) else { return Err(libc::EISDIR) };
        if file.writer_host == open.host {
            open.len = file.data.len();
        } else if self.profile.stale_handles && inode.nlink == 0 {
            return Err(libc::ESTALE);
        } else if self.profile.unsynced == Unsynced::Shared || self.now > open.seen_at + open.fresh_for {
            open.len = file.at_server;
            open.seen_at = self.now;
        }
        Ok((open.ino, open.len.min(file.data.len())))
    }

    fn do_stat(&mut self, handle: u64) -> Result<Reply, Errno> {
        let (ino, len) = self.seen(handle)?;
        let inode = self.server.inode(ino);
        Ok(Reply::Stat(Stat { len: len as u64, uid: inode.uid, gid: inode.uid, mode: inode.mode }))
    }

    fn do_read(&mut self, handle: u64, offset: u64, len: usize) -> Result<Reply, Errno> {
        let (ino, seen) = self.seen(handle)?;
        let file = self.server.file(ino).ok_or(libc::EISDIR)?;
        let from = (offset as usize).min(seen);
        let to = from.saturating_add(len).min(seen);
        Ok(Reply::Bytes(file.data[from..to].to_vec()))
    }

    fn do_create(&mut self, id: u64, request: &mut Request, host: u32, path: &str, mode: u32) -> Outcome {
        let (dir, name) = match self.parent(host, path) {
            Ok(found) => found,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        if let Some(until) = self.kept_by_silent(dir, host) {
            return Outcome::Wait(until);
        }
        if let Some(there) = self.server.entry(dir, name) {
            // An exclusive create that is sent again is known by its verifier.
            if self.server.inode(there).maker == id {
                return Outcome::Answer(self.open_handle(id, there, request, 0, true));
            }
            return Outcome::Answer(Reply::Failed(libc::EEXIST));
        }
        if self.server.is_full {
            return Outcome::Answer(Reply::Failed(libc::ENOSPC));
        }
        self.change(host, dir, name, |server, now| {
            server.create(dir, name, Birth { mode, maker: id, host }, now);
        });
        let Some(ino) = self.server.entry(dir, name) else { return Outcome::Answer(Reply::Failed(libc::EIO)) };
        self.stall(ino, host);
        if self.profile.commit == Commit::Server {
            request.commits.push(dir);
        }
        Outcome::Answer(self.open_handle(id, ino, request, 0, true))
    }

    fn break_handle(&mut self, handle: u64) {
        if let Some(open) = self.handles.get_mut(&handle) {
            open.is_broken = true;
            let ino = open.ino;
            self.server.lose_unsynced(ino);
        }
    }

    fn do_write(&mut self, handle: u64, bytes: &[u8]) -> Result<Reply, Errno> {
        let shared = self.profile.unsynced == Unsynced::Shared;
        let open = self.handles.get_mut(&handle).ok_or(libc::EBADF)?;
        if open.is_broken {
            return Err(libc::EIO);
        }
        if shared && self.server.is_full {
            self.break_handle(handle);
            return Err(libc::ENOSPC);
        }
        let (ino, offset) = (open.ino, open.offset);
        open.offset += bytes.len();
        self.server.append(ino, offset, bytes, shared);
        if let Unsynced::After(span) = self.profile.unsynced {
            self.write_back_later(ino, span);
        }
        Ok(Reply::Done)
    }

    fn write_back_later(&mut self, ino: u64, span: (u64, u64)) {
        if self.writebacks.insert(ino) {
            self.soon(span, Event::WriteBack(ino));
        }
    }

    fn do_sync(&mut self, handle: u64) -> Result<Reply, Errno> {
        let open = self.handles.get(&handle).ok_or(libc::EBADF)?;
        if open.is_broken {
            return Err(libc::EIO);
        }
        if !open.writes {
            self.server.sync_seen(open.ino);
            return Ok(Reply::Done);
        }
        if self.server.is_full {
            self.break_handle(handle);
            return Err(libc::ENOSPC);
        }
        let ino = open.ino;
        self.server.sync(ino, self.now);
        self.server.inode_mut(ino).stalled_until = 0;
        Ok(Reply::Done)
    }

    fn do_close(&mut self, handle: u64) -> Result<Reply, Errno> {
        let open = self.handles.get(&handle).ok_or(libc::EBADF)?;
        let (ino, is_broken) = (open.ino, open.is_broken);
        let dirty = self.server.file(ino).is_some_and(|file| file.at_server < file.data.len());
        let result = if is_broken {
            Err(libc::EIO)
        } else if dirty && self.server.is_full {
            self.server.lose_unsynced(ino);
            Err(libc::ENOSPC)
        } else {
            self.server.write_back(ino);
            Ok(Reply::Done)
        };
        self.close_handle(handle);
        result
    }

    /// Closes without asking anybody: the end of a handle that was dropped, or whose process is gone.
    pub(super) fn close_handle(&mut self, handle: u64) {
        let Some(open) = self.handles.remove(&handle) else { return };
        let inode = self.server.inode_mut(open.ino);
        inode.opens = inode.opens.saturating_sub(1);
        let dirty = self.server.file(open.ino).is_some_and(|file| file.at_server < file.data.len());
        if open.writes && dirty && !open.is_broken && self.hosts[open.host as usize].is_up {
            self.writebacks.remove(&open.ino);
            self.write_back_later(open.ino, (MS, SEC));
        }
        // Wherever the file was when its name was taken away.
        if !self.handles.values().any(|h| h.ino == open.ino && h.host == open.host)
            && let Some(dir) = self.silly.remove(&(open.ino, open.host))
        {
            let silly = format!(".nfs{:08x}{:04x}", open.ino, open.host);
            if self.server.entry(dir, &silly) == Some(open.ino) {
                self.server.remove(dir, &silly, self.now);
            }
        }
    }

    /// Whether a host keeps a file that loses its name under a hidden one, because it has it open.
    fn keeps_open(&self, host: u32, ino: u64) -> bool {
        self.profile.silly_rename
            && self.server.inode(ino).opens > 0
            && self.handles.values().any(|h| h.ino == ino && h.host == host)
    }

    /// Takes a name away, leaving a hidden one where the file is open on the same host.
    fn take_away(&mut self, host: u32, dir: u64, name: &str) {
        let Some(ino) = self.server.entry(dir, name) else { return };
        let is_open = self.keeps_open(host, ino);
        if is_open {
            self.silly.insert((ino, host), dir);
        }
        self.change(host, dir, name, |server, now| {
            if is_open {
                server.rename((dir, name), (dir, &format!(".nfs{ino:08x}{host:04x}")), now);
            } else {
                server.remove(dir, name, now);
            }
        });
    }

    fn do_rename(&mut self, id: u64, request: &mut Request, host: u32, from: &str, to: &str) -> Outcome {
        if request.phase == 1 {
            return self.finish_rename(request, host, from);
        }
        let found = self.parent(host, from).and_then(|from| Ok((from, self.parent(host, to)?)));
        let ((from_dir, from_name), (to_dir, to_name)) = match found {
            Ok(found) => found,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        for dir in [from_dir, to_dir] {
            if let Some(until) = self.kept_by_silent(dir, host) {
                return Outcome::Wait(until);
            }
        }
        if self.look_up(host, from_dir, from_name).is_none() {
            return Outcome::Answer(Reply::Failed(libc::ENOENT));
        }
        let Some(ino) = self.server.entry(from_dir, from_name) else {
            self.hosts[host as usize].forget_name(from_dir, from_name);
            return Outcome::Answer(Reply::Failed(libc::ENOENT));
        };
        let target = self.server.entry(to_dir, to_name);
        for ino in [Some(ino), target].into_iter().flatten() {
            if let Some(until) = self.kept_by_reader(ino, host).or(self.stalled(ino, host)) {
                return Outcome::Wait(until);
            }
        }
        let other = self.server.dir(from_dir).ok().and_then(|d| d.moving.get(from_name).copied());
        if let Some(other) = other {
            if self.requests.contains_key(&other) {
                return Outcome::Wait(self.now + self.seed.within((100_000, 2 * MS)));
            }
            if let Some(d) = self.server.dir_mut(from_dir) {
                d.moving.remove(from_name);
            }
        }
        if let Err(errno) = self.may_replace(ino, target, from, to) {
            return Outcome::Answer(Reply::Failed(errno));
        }
        if target == Some(ino) {
            // Two names of one file: nothing is done, says POSIX.
            return Outcome::Answer(Reply::Done);
        }
        let is_silly = target.is_some_and(|ino| self.keeps_open(host, ino));
        if target.is_some() && (self.profile.bricks || is_silly) {
            self.take_away(host, to_dir, to_name);
        }
        if self.profile.bricks && !self.server.is_dir(ino) && brick(from_name) != brick(to_name) {
            self.change(host, to_dir, to_name, |server, now| server.add(to_dir, to_name, ino, now));
            if let Some(d) = self.server.dir_mut(from_dir) {
                d.moving.insert(from_name.to_owned(), id);
            }
            request.phase = 1;
            request.commits = vec![from_dir, to_dir];
            return Outcome::Wait(self.now + self.seed.within((500_000, 20 * MS)));
        }
        self.change(host, from_dir, from_name, |server, now| {
            server.rename((from_dir, from_name), (to_dir, to_name), now);
        });
        self.change(host, to_dir, to_name, |_, _| {});
        self.stall(ino, host);
        request.commits = vec![from_dir, to_dir];
        // Syncing the file is part of it where names are not durable by themselves.
        if self.profile.name_stall.is_some() {
            self.server.inode_mut(ino).stalled_until = 0;
        }
        Outcome::Answer(Reply::Done)
    }

    fn finish_rename(&mut self, request: &mut Request, host: u32, from: &str) -> Outcome {
        if let Ok((dir, name)) = self.parent(host, from) {
            if let Some(d) = self.server.dir_mut(dir) {
                d.moving.remove(name);
            }
            if request.fault != Some(CallFault::HalfRename) {
                self.change(host, dir, name, |server, now| server.remove(dir, name, now));
            }
        }
        Outcome::Answer(Reply::Done)
    }

    fn may_replace(&self, ino: u64, target: Option<u64>, from: &str, to: &str) -> Result<(), Errno> {
        let is_dir = self.server.is_dir(ino);
        if is_dir && to.starts_with(from) && to[from.len()..].starts_with('/') {
            return Err(libc::EINVAL);
        }
        match target {
            Some(target) if target != ino => match self.server.dir(target) {
                Ok(dir) if !is_dir && dir.entries.is_empty() => Err(libc::EISDIR),
                Ok(dir) if !dir.entries.is_empty() => Err(if is_dir { libc::ENOTEMPTY } else { libc::EISDIR }),
                Err(_) if is_dir => Err(libc::ENOTDIR),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn do_unlink(&mut self, request: &mut Request, host: u32, path: &str) -> Outcome {
        let (dir, name) = match self.parent(host, path) {
            Ok(found) => found,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        // Bricks answer each for itself: two callers may both be told that they did it.
        if self.recent_unlinks.get(&(dir, name.to_owned())).is_some_and(|at| at + 20 * MS > self.now)
            && self.seed.happens(500)
        {
            return Outcome::Answer(Reply::Done);
        }
        if self.look_up(host, dir, name).is_none() {
            return Outcome::Answer(Reply::Failed(libc::ENOENT));
        }
        if let Some(until) = self.kept_by_silent(dir, host) {
            return Outcome::Wait(until);
        }
        let Some(ino) = self.server.entry(dir, name) else {
            self.hosts[host as usize].forget_name(dir, name);
            return Outcome::Answer(Reply::Failed(libc::ENOENT));
        };
        if self.server.is_dir(ino) {
            return Outcome::Answer(Reply::Failed(libc::EISDIR));
        }
        if let Some(until) = self.kept_by_reader(ino, host).or(self.stalled(ino, host)) {
            return Outcome::Wait(until);
        }
        self.take_away(host, dir, name);
        if self.profile.bricks {
            let now = self.now;
            self.recent_unlinks.retain(|_, at| *at + 20 * MS > now);
            self.recent_unlinks.insert((dir, name.to_owned()), now);
        }
        if self.profile.commit == Commit::Server {
            request.commits.push(dir);
        }
        Outcome::Answer(Reply::Done)
    }

    fn do_mkdir(&mut self, id: u64, request: &mut Request, host: u32, path: &str) -> Outcome {
        let (dir, name) = match self.parent(host, path) {
            Ok(found) => found,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        if let Some(until) = self.kept_by_silent(dir, host) {
            return Outcome::Wait(until);
        }
        if self.server.entry(dir, name).is_some() {
            return Outcome::Answer(Reply::Failed(libc::EEXIST));
        }
        if self.server.is_full {
            return Outcome::Answer(Reply::Failed(libc::ENOSPC));
        }
        self.change(host, dir, name, |server, now| {
            server.mkdir(dir, name, id, now);
        });
        if self.profile.commit == Commit::Server {
            request.commits.push(dir);
        }
        Outcome::Answer(Reply::Done)
    }

    fn do_rmdir(&mut self, request: &mut Request, host: u32, path: &str) -> Result<Reply, Errno> {
        let (dir, name) = self.parent(host, path)?;
        self.look_up(host, dir, name).ok_or(libc::ENOENT)?;
        let Some(ino) = self.server.entry(dir, name) else {
            self.hosts[host as usize].forget_name(dir, name);
            return Err(libc::ENOENT);
        };
        if !self.server.dir(ino)?.entries.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.change(host, dir, name, |server, now| server.remove(dir, name, now));
        if self.profile.commit == Commit::Server {
            request.commits.push(dir);
        }
        Ok(Reply::Done)
    }

    fn do_lock(&mut self, id: u64, request: &Request, host: u32, path: &str, limit: u64) -> Outcome {
        let ino = match self.locate(host, path) {
            Ok(ino) => ino,
            Err(errno) => return Outcome::Answer(Reply::Failed(errno)),
        };
        if request.is_abandoned {
            return Outcome::Answer(Reply::Refused);
        }
        let key = match self.profile.locks {
            Locks::Coherent => (ino, NOBODY),
            Locks::HostLocal => (ino, host),
            Locks::Unsupported => return Outcome::Answer(Reply::Unsupported),
            // The timeout answers first.
            Locks::Hanging => return Outcome::Wait(self.now + limit + SEC),
        };
        match self.server.locks.get(&key) {
            // The same request once more, after a lost reply.
            Some(hold) if hold.id == id => Outcome::Answer(Reply::Locked(id)),
            Some(_) => Outcome::Answer(Reply::Refused),
            None if self.server.grace_until > self.now => Outcome::Wait(self.server.grace_until + MS),
            None => {
                let process = self.procs[request.process as usize].owner;
                self.server.locks.insert(key, Hold { process, host, id });
                Outcome::Answer(Reply::Locked(id))
            }
        }
    }

    pub(super) fn release(&mut self, id: u64) {
        self.server.locks.retain(|_, hold| hold.id != id);
    }

    // --- processes and hosts ----------------------------------------------------------------------------------------------

    pub(super) fn add_process(&mut self, host: u32, name: &str, parent: Option<u32>, service: Option<u32>) -> u32 {
        let pid = self.next_pid;
        self.next_pid += 1;
        let id = self.procs.len() as u32;
        self.procs.push(ProcState {
            name: name.to_owned(),
            host,
            owner: parent.unwrap_or(id),
            service,
            is_alive: true,
            has_finished: false,
            is_stopped: false,
            stops: 0,
            asked_to_stop: false,
            reply: None,
            is_ready: false,
            sleep: 0,
            wakes_for_children: false,
            spins: 0,
            boot_count: self.hosts[host as usize].boot_count,
            pid,
            ticks: self.now / (10 * MS),
        });
        self.note(id, "starts".to_owned());
        self.soon((1, 5 * MS), Event::Start(id));
        id
    }

    pub(super) fn sleep(&mut self, process: u32, boot: Duration, for_children: bool) -> bool {
        let proc = &self.procs[process as usize];
        if !proc.is_alive {
            return false;
        }
        let at = self.hosts[proc.host as usize].true_time(boot.as_nanos() as u64);
        let proc = &mut self.procs[process as usize];
        proc.sleep += 1;
        proc.wakes_for_children = for_children;
        let sleep = proc.sleep;
        // A sleep into the past still lets others run.
        self.schedule(at.max(self.now + 1_000), Event::Wake(process, sleep));
        true
    }

    /// The process has run to its end by itself.
    pub(super) fn finished(&mut self, process: u32) {
        self.procs[process as usize].has_finished = true;
        self.end_process(process, true, "ends");
    }

    pub(super) fn kill(&mut self, process: u32, why: &str) {
        // A call of one of its threads takes the whole process with it.
        let process = self.procs[process as usize].owner;
        let by_chance = self.seed.below(100) < self.keeper_percent;
        self.end_process(process, by_chance, why);
        let proc = &self.procs[process as usize];
        if let (Some(service), false) = (proc.service, proc.has_finished) {
            let at = self.now + self.respawn_after[service as usize];
            self.respawning += 1;
            self.schedule(at, Event::Respawn(service));
        }
    }

    fn end_process(&mut self, process: u32, keeper: bool, why: &str) {
        if !self.procs[process as usize].is_alive {
            return;
        }
        self.note(process, why.to_owned());
        self.procs[process as usize].is_alive = false;
        self.reap.push(process);
        let threads: Vec<u32> = (0..self.procs.len() as u32)
            .filter(|p| *p != process && self.procs[*p as usize].owner == process)
            .collect();
        for thread in threads {
            self.end_process(thread, keeper, "ends with its process");
        }
        // What it was doing: perhaps already sent, perhaps not. What the network holds is mostly sent later.
        let pending: Vec<u64> = self.requests.iter().filter(|(_, r)| r.process == process).map(|(id, _)| *id).collect();
        let host = self.procs[process as usize].host;
        for id in pending {
            let held = self.hosts[host as usize].held.contains(&id) || self.server.held.contains(&id);
            let Some(request) = self.requests.get(&id) else { continue };
            let (call, path) = (request.call, Arc::clone(&request.path));
            self.meet(process, call, &path, Met::DEATH);
            let Some(request) = self.requests.get(&id) else { continue };
            let begun = request.executed.is_some() || request.phase > 0 || request.is_in_flight;
            if !begun && !self.seed.happens(if held { 750 } else { 500 }) {
                self.requests.remove(&id);
            }
        }
        if self.procs[process as usize].owner != process {
            return;
        }
        let open: Vec<u64> = self.handles.iter().filter(|(_, h)| h.process == process).map(|(id, _)| *id).collect();
        for handle in open {
            self.close_handle(handle);
        }
        if keeper {
            self.soon((0, 2 * SEC), Event::Keeper(process));
        } else {
            self.release_locks_of(process);
        }
    }

    fn release_locks_of(&mut self, process: u32) {
        self.server.locks.retain(|_, hold| hold.process != process);
    }

    /// The keeper of a dead worker ends its children, then frees its lock.
    fn keeper(&mut self, process: u32) {
        let host = &self.hosts[self.procs[process as usize].host as usize];
        if !host.is_up || host.boot_count != self.procs[process as usize].boot_count {
            return;
        }
        if host.is_frozen || host.is_cut {
            return self.schedule(self.now + SEC, Event::Keeper(process));
        }
        let now = self.now;
        for child in &mut self.children {
            if child.run.process.0 == process {
                child.end(now, Status::Signal(9));
            }
        }
        self.release_locks_of(process);
    }

    pub(super) fn pause(&mut self, process: u32, span: Option<Duration>) {
        let now = self.now;
        let proc = &mut self.procs[process as usize];
        proc.is_stopped = true;
        proc.stops += 1;
        let stops = proc.stops;
        self.note(process, "is stopped".to_owned());
        if let Some(span) = span {
            self.schedule(now + span.as_nanos() as u64, Event::Continue(process, stops));
        }
    }

    pub(super) fn go_on(&mut self, process: u32) {
        let proc = &mut self.procs[process as usize];
        if !proc.is_stopped || !proc.is_alive {
            return;
        }
        proc.is_stopped = false;
        proc.stops += 1;
        let ready = std::mem::take(&mut proc.is_ready);
        self.note(process, "goes on".to_owned());
        if ready {
            self.soon((1, MS), Event::Start(process));
        }
    }

    fn thaw(&mut self, host: u32) {
        self.hosts[host as usize].is_frozen = false;
        for process in 0..self.procs.len() as u32 {
            let proc = &mut self.procs[process as usize];
            if proc.host == host && proc.is_alive && !proc.is_stopped && std::mem::take(&mut proc.is_ready) {
                self.soon((1, MS), Event::Start(process));
            }
        }
    }

    fn fall_silent(&mut self, host: u32) {
        let now = self.now;
        let state = &mut self.hosts[host as usize];
        state.silence += 1;
        state.silent_since = state.silent_since.or(Some(now));
        let silence = state.silence;
        if let Some(lease) = self.profile.lock_lease {
            self.schedule(now + lease, Event::LeaseEnd(host, silence));
        }
    }

    fn lease_end(&mut self, host: u32, silence: u64) {
        let state = &mut self.hosts[host as usize];
        if state.silence == silence && state.silent_since.is_some() {
            state.is_evicted = self.profile.evicts;
            self.server.locks.retain(|_, hold| hold.host != host);
            if self.profile.evicts {
                // What the shut-out host has under way will not land.
                self.requests.retain(|_, r| r.host != host || r.executed.is_some() || !r.is_in_flight);
            }
            self.note(NOBODY, format!("the lease of host {host} is over"));
        }
    }

    pub(super) fn cut(&mut self, host: u32, span: Option<Duration>) {
        if !self.hosts[host as usize].is_up || self.hosts[host as usize].is_cut || self.profile.local {
            return;
        }
        self.note(NOBODY, format!("host {host} is cut off"));
        self.hosts[host as usize].is_cut = true;
        self.fall_silent(host);
        let silence = self.hosts[host as usize].silence;
        if let Some(span) = span {
            self.schedule(self.now + span.as_nanos() as u64, Event::Heal(host, silence));
        }
    }

    pub(super) fn heal(&mut self, host: u32) {
        let state = &mut self.hosts[host as usize];
        if !state.is_cut {
            return;
        }
        state.is_cut = false;
        state.silent_since = None;
        state.silence += 1;
        let (held, replies) = (std::mem::take(&mut state.held), std::mem::take(&mut state.held_replies));
        self.note(NOBODY, format!("host {host} is back"));
        for id in held {
            self.soon((MS, 8 * SEC), Event::Execute(id));
        }
        for id in replies {
            self.soon((MS, 8 * SEC), Event::Reply(id));
        }
    }

    pub(super) fn crash_host(&mut self, host: u32, down: Duration) {
        if self.profile.local {
            // The host is the server.
            self.server_down(true, down);
        } else {
            self.lose_host(host, down);
        }
    }

    fn lose_host(&mut self, host: u32, down: Duration) {
        if !self.hosts[host as usize].is_up {
            return;
        }
        self.note(NOBODY, format!("host {host} crashes"));
        let held: BTreeSet<u64> = std::mem::take(&mut self.hosts[host as usize].held).into_iter().collect();
        self.hosts[host as usize].held_replies.clear();
        let locks = self.server.locks.clone();
        for process in 0..self.procs.len() as u32 {
            if self.procs[process as usize].host == host && self.procs[process as usize].is_alive {
                self.kill(process, "dies with its host");
            }
        }
        // Its locks stay until the server takes them back; a host-local lock is gone with it.
        if self.profile.locks == Locks::Coherent && !self.profile.local {
            self.server.locks = locks;
        } else {
            self.server.locks.retain(|_, hold| hold.host != host);
        }
        let now = self.now;
        let seed = &mut self.seed;
        self.requests.retain(|id, r| {
            r.host != host || r.is_in_flight || r.executed.is_some() || (!held.contains(id) && seed.happens(500))
        });
        for request in self.requests.values_mut().filter(|r| r.host == host) {
            request.is_in_flight = true;
        }
        let lost = self.server.lose_cache(host);
        if lost > 0 {
            self.note(NOBODY, format!("host {host} loses {lost} unsynced bytes"));
        }
        for child in self.children.iter_mut().filter(|c| c.run.host.0 == host) {
            child.end(now, Status::Signal(9));
        }
        let state = &mut self.hosts[host as usize];
        state.is_up = false;
        state.is_cut = false;
        state.is_frozen = false;
        state.drop_caches();
        self.fall_silent(host);
        self.schedule(now + down.as_nanos() as u64, Event::HostUp(host));
    }

    fn boot_host(&mut self, host: u32) {
        let now = self.now;
        let boot_base = self.seed.within((SEC, 100 * SEC));
        let state = &mut self.hosts[host as usize];
        if state.is_up {
            return;
        }
        state.is_up = true;
        state.is_evicted = false;
        state.silent_since = None;
        state.silence += 1;
        state.boot_count += 1;
        state.booted_at = now;
        state.boot_base = boot_base;
        let boot = state.boot_count;
        self.note(NOBODY, format!("host {host} boots"));
        if self.profile.evicts {
            // The new session ends the old one with all that was still under way in it.
            self.requests.retain(|_, r| r.host != host || r.executed.is_some());
        }
        self.schedule(now + 14 * SEC, Event::ReleaseHost(host, boot));
    }

    pub(super) fn server_down(&mut self, loses: bool, span: Duration) {
        if !self.server.is_up {
            return;
        }
        self.note(NOBODY, format!("the server goes down{}", if loses { " and loses what is not durable" } else { "" }));
        if self.profile.local && loses {
            for host in 0..self.hosts.len() as u32 {
                self.lose_host(host, span);
            }
            self.requests.clear();
        }
        self.server.is_up = false;
        self.has_lost_power |= loses;
        if loses {
            let hosts = &self.hosts;
            let up = |host: u32| hosts.get(host as usize).is_some_and(|h| h.is_up && !h.is_cut);
            let resends = |host| up(host) && !self.profile.local;
            let replays = |host| resends(host) && self.profile.replay == Replay::Exact;
            let lost = self.server.lose_power(self.now, &mut self.seed, &resends, &replays);
            self.note(NOBODY, format!("{lost} changes of names are lost"));
            // Who has a file open that is not there any more, or not as long, is told by the next call on it.
            for open in self.handles.values_mut().filter(|open| open.writes) {
                let has_shrunk = self.server.file(open.ino).is_none_or(|file| file.data.len() < open.offset);
                open.is_broken |= has_shrunk || self.server.inode_mut(open.ino).nlink == 0;
            }
        }
        if self.profile.local && !loses {
            // A local file system does not restart by itself.
            self.server.is_up = true;
            return;
        }
        self.give_up_halves();
        let open: Vec<u64> = self.requests.iter().filter(|(_, r)| r.executed.is_some()).map(|(id, _)| *id).collect();
        for id in open {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            match self.profile.replay {
                // The client sends it again when the server is back.
                Replay::Again | Replay::Remembered
                    if !matches!(request.op, Op::Stat(_) | Op::Write(..) | Op::Close(_)) =>
                {
                    request.executed = None;
                    request.phase = 0;
                    request.commits.clear();
                    self.server.held.push(id);
                }
                Replay::Error if request.call.is_namespace() => {
                    request.executed = Some(Reply::Failed(libc::EIO));
                }
                _ => {}
            }
        }
        self.schedule(self.now + span.as_nanos() as u64, Event::ServerUp);
    }

    /// Fails the renames that are between their two halves when the server goes: nobody carries out the second one.
    fn give_up_halves(&mut self) {
        let is_half = |r: &Request| r.phase == 1 && r.executed.is_none() && matches!(r.op, Op::Rename(_));
        let halves: Vec<u64> = self.requests.iter().filter(|(_, r)| is_half(r)).map(|(id, _)| *id).collect();
        for id in halves {
            if let Some(request) = self.requests.get_mut(&id) {
                request.executed = Some(Reply::Failed(libc::EIO));
                request.commits.clear();
            }
            self.soon((MS, 10 * SEC), Event::Reply(id));
        }
    }

    fn server_up(&mut self) {
        if self.server.is_up {
            return;
        }
        self.server.is_up = true;
        self.server.grace_until = self.now + self.profile.lock_grace;
        self.note(NOBODY, "the server is up".to_owned());
        for id in std::mem::take(&mut self.server.held) {
            self.soon((MS, 10 * SEC), Event::Execute(id));
        }
    }

    // --- faults -----------------------------------------------------------------------------------------------------------

    pub(super) fn inject(&mut self, fault: Fault) {
        *self.happened.entry(fault.name()).or_insert(0) += 1;
        match fault {
            Fault::Kill(process) => self.kill(process.0, "is killed"),
            Fault::Pause(process, span) => self.pause(process.0, Some(span)),
            Fault::HostCrash(host, down) => self.crash_host(host.0, down),
            Fault::Suspend(host, span) => {
                self.note(NOBODY, format!("host {} is suspended", host.0));
                self.hosts[host.0 as usize].is_frozen = true;
                self.schedule(self.now + span.as_nanos() as u64, Event::Thaw(host.0));
            }
            Fault::Partition(host, span) => self.cut(host.0, Some(span)),
            Fault::ServerRestart(span) => self.server_down(false, span),
            Fault::PowerLoss(span) => self.server_down(true, span),
            Fault::DiskFull(span) => {
                self.note(NOBODY, "the disk is full".to_owned());
                self.server.is_full = true;
                self.schedule(self.now + span.as_nanos() as u64, Event::DiskFree);
            }
            Fault::WallJump(host, ms) => self.hosts[host.0 as usize].wall_offset_ms += ms,
        }
    }

    fn planned(&mut self, planned: Planned) {
        let living: Vec<u32> = (0..self.procs.len() as u32)
            .filter(|p| self.procs[*p as usize].is_alive && !self.spared.contains(&self.procs[*p as usize].name))
            .collect();
        let host = HostId(self.seed.below(self.hosts.len() as u64) as u32);
        let victim = living.get(self.seed.below(living.len() as u64) as usize).map(|p| ProcId(*p));
        match planned {
            Planned::Call(fault, skip, call, path) => {
                self.armed.push(Armed { process: None, call, path: path.to_owned(), skip, fault });
            }
            Planned::Pause(span) => {
                if let Some(victim) = victim {
                    self.inject(Fault::Pause(victim, span));
                }
            }
            Planned::Suspend(span) => self.inject(Fault::Suspend(host, span)),
            Planned::Partition(span) => self.inject(Fault::Partition(host, span)),
            Planned::HostCrash(span) => self.inject(Fault::HostCrash(host, span)),
            Planned::Timed(fault) => self.inject(fault),
            Planned::WallJump(ms) => self.inject(Fault::WallJump(host, ms)),
        }
    }

    /// Ends all faults, now and to come.
    pub(super) fn quiet(&mut self) {
        self.plan_from = self.age + 1;
        self.armed.clear();
        for request in self.requests.values_mut() {
            request.fault = None;
        }
        self.server.is_full = false;
        self.server_up();
        for host in 0..self.hosts.len() as u32 {
            self.heal(host);
            self.thaw(host);
            self.boot_host(host);
            if self.hosts[host as usize].is_evicted {
                // The administrator mounts it again.
                self.hosts[host as usize].is_evicted = false;
                self.hosts[host as usize].drop_caches();
            }
        }
        for process in 0..self.procs.len() as u32 {
            self.go_on(process);
        }
        self.note(NOBODY, "quiet".to_owned());
    }

    // --- children ---------------------------------------------------------------------------------------------------------

    pub(super) fn start_child(&mut self, process: u32, launch: &Launch) -> Result<Started, SetupFailure> {
        let host = self.procs[process as usize].host;
        let fail = |step, errno: &str| SetupFailure { step, errno: errno.to_owned(), path: String::new() };
        if !self.procs[process as usize].is_alive {
            return Err(fail(crate::process::Step::Fork, "EAGAIN"));
        }
        let count = self.launches.entry(launch.argv.clone()).or_insert(0);
        *count += 1;
        let script = (self.hook)(launch, *count);
        if let Some(failure) = script.setup_failure {
            return Err(failure);
        }
        let pid = self.next_pid;
        self.next_pid += 1;
        let ticks = self.now / (10 * MS);
        let index = self.children.len() as u32;
        let run = ChildRun {
            host: HostId(host),
            process: ProcId(process),
            token: launch.token.clone(),
            argv: launch.argv.clone(),
            started: Duration::from_nanos(self.now),
            ended: None,
            status: None,
        };
        let stirs: Vec<u64> = script.output.iter().map(|(after, ..)| self.now + after.as_nanos() as u64).collect();
        let child = ChildState::new(run, script, pid, ticks, self.now);
        let ends_at = child.ends_at;
        self.children.push(child);
        self.watched.entry(process).or_default().push(index);
        for at in stirs {
            self.schedule(at, Event::ChildStir(index));
        }
        self.schedule(ends_at, Event::ChildEnd(index, ends_at));
        self.note(process, format!("starts child {index}, {}", launch.token));
        let group = Group { pid, ticks, token: launch.token.clone() };
        Ok(Started { child: Child(u64::from(index)), group })
    }

    /// Wakes the process that waits for its children.
    fn stir(&mut self, child: u32) {
        let process = self.children[child as usize].run.process.0;
        for waiter in 0..self.procs.len() as u32 {
            let proc = &self.procs[waiter as usize];
            if proc.owner == process && proc.is_alive && proc.wakes_for_children {
                self.schedule(self.now + 100_000, Event::Wake(waiter, proc.sleep));
            }
        }
    }

    fn child_end(&mut self, child: u32, ends_at: u64) {
        let state = &self.children[child as usize];
        if state.ended_at.is_some() || state.ends_at != ends_at {
            return;
        }
        if self.hosts[state.run.host.0 as usize].is_frozen {
            return self.schedule(self.now + SEC, Event::ChildEnd(child, ends_at));
        }
        let (now, status, process) = (self.now, state.ends_with, state.run.process.0);
        self.children[child as usize].end(now, status);
        self.note(process, format!("child {child} ends"));
        self.stir(child);
    }

    pub(super) fn poll_children(&mut self, process: u32, output_max: usize) -> Vec<ChildEvent> {
        let mut events = Vec::new();
        let mut room = output_max;
        let (children, now) = (&mut self.children, self.now);
        if let Some(watched) = self.watched.get_mut(&process) {
            watched.retain(|index| {
                let child = &mut children[*index as usize];
                child.collect(Child(u64::from(*index)), now, &mut room, &mut events);
                !child.is_reported()
            });
        }
        events
    }

    pub(super) fn signal_child(&mut self, process: u32, child: Child, signal: Signal) {
        let now = self.now;
        let grace = self.seed.within((MS, 50 * MS));
        if !self.procs[process as usize].is_alive {
            return;
        }
        let Some(state) = self.children.get_mut(child.0 as usize) else { return };
        if state.ended_at.is_some() || (signal == Signal::Term && state.script.ignores_term) {
            return;
        }
        let (span, number) = if signal == Signal::Kill { (0, 9) } else { (grace, 15) };
        if now + span < state.ends_at {
            state.ends_at = now + span;
            state.ends_with = Status::Signal(number);
            let ends_at = state.ends_at;
            self.schedule(ends_at, Event::ChildEnd(child.0 as u32, ends_at));
        }
    }

    pub(super) fn identity(&self, process: u32) -> Identity {
        let proc = &self.procs[process as usize];
        Identity {
            host: self.hosts[proc.host as usize].name.clone(),
            boot_id: format!("boot-{}-{}", self.hosts[proc.host as usize].name, proc.boot_count),
            pid_ns: "pid:[1]".to_owned(),
            pid: proc.pid,
            ticks: proc.ticks,
            uid: 1000,
        }
    }

    pub(super) fn liveness(&self, process: u32, who: &Identity) -> Liveness {
        let me = self.identity(process);
        if me.host != who.host || me.boot_id != who.boot_id || me.pid_ns != who.pid_ns {
            return Liveness::Unknown;
        }
        let runs = self.procs.iter().any(|p| p.is_alive && p.pid == who.pid && p.ticks == who.ticks);
        if runs { Liveness::Alive } else { Liveness::Gone }
    }

    pub(super) fn end_leftovers(&mut self, process: u32, groups: &[Group]) -> usize {
        let (host, now) = (self.procs[process as usize].host, self.now);
        if !self.procs[process as usize].is_alive {
            return 0;
        }
        let mut found = 0;
        for child in self.children.iter_mut().filter(|c| c.run.host.0 == host && c.ended_at.is_none()) {
            if groups.iter().any(|g| (g.pid == child.pid && g.ticks == child.ticks) || g.token == child.run.token) {
                child.end(now, Status::Signal(9));
                found += 1;
            }
        }
        found
    }
}

/// The set of bricks that a name lies on. A name like `.x.y` is placed as `x`, so that temporary names lie with final ones.
fn brick(name: &str) -> u64 {
    let placed = name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.')).map_or(name, |(stem, _)| stem);
    placed.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(u64::from(byte))) >> 3 & 1
}
