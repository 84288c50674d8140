//! One loop: take messages, run tasks, report. A [`Worker`] is a step function over the world's traits, so that the same code is
//! driven by a thread of the real program and by the simulator.
//!
//! - [`Worker`]: start, step, drain
//! - `run`: attempts from their start to their end line
//! - `jobs`: manifests, read once and checked
//! - `launch`: what an attempt is started with
//! - `output`: what an attempt writes
//! - [`trust`]: whose manifests are run
//!
//! Invariants:
//! - No task starts before the `claim` line of its message is durable, none of an attempt that was withdrawn or released before,
//!   and none while this worker drains, pauses or is fenced.
//! - Messages are acted upon strictly in their order, each exactly once.
//! - An `end` line is written after the bytes that it names are durable. No result is written that is not what the task wrote.
//! - Storage that does not take bytes fails no task: the worker pauses, tasks wait in their pipes, and it goes on later.
//! - A worker that could not make a sign of life durable for its self-fence time ends its tasks and writes nothing more.
//! - Whatever is copied, signs of life go on between its pieces; nothing is published once the lease is over.
//! - What proves the lease is a line that nobody can have read before.

mod jobs;
mod launch;
mod output;
mod run;
#[cfg(test)]
mod tests;
pub mod trust;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::{Chance, Clock};
use crate::fs::outside::Outside;
use crate::fs::{Call, ErrorKind, Fs, FsError, LockGuard, Locked, put_new, settle_dir};
use crate::journal;
use crate::lease::OwnLease;
use crate::mailbox::{MailError, Receiver};
use crate::mutant::{self, Mutant};
use crate::process::{Host, Identity, Process, Signal};
use crate::protocol::id::{AttemptId, Nonce, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{
    Bye, Hello, Limits, Line, LockVerdict, Mail, Message, Requeue, RunItem, Trust, to_document,
};
use crate::protocol::version::CURRENT;
use crate::store::Store;

use jobs::Jobs;
use run::{Finishing, Running, Why};

/// The exit code of a worker that lost its right to go on.
pub const EXIT_FENCED: i32 = 4;
/// The exit code of a worker that was asked to end while storage took nothing.
pub const EXIT_STUCK: i32 = 75;

/// After so much time without work the mailbox is looked at less often.
const IDLE: Duration = Duration::from_secs(300);
/// An end waits for others that may share its sync, at most so long.
const END_WAIT: Duration = Duration::from_millis(50);
/// The first and the longest wait before storage that failed is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long taking the lock may last.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
/// How much longer than its tasks' grace a worker that hands its work back waits for storage, first with the outputs, then
/// without them. Whoever asked it to end will not wait for long.
const STUCK_WAIT: Duration = Duration::from_secs(3);
/// How much output is taken in one step.
const OUTPUT_MAX: usize = 1 << 20;
/// How long a fenced worker waits for its tasks to be gone.
const FENCED_WAIT: Duration = Duration::from_secs(5);
/// How often it looks whether they are, where nothing tells it.
const FENCED_PACE: Duration = Duration::from_millis(100);

/// The world as one step of a worker sees it.
pub struct World<'a, 's> {
    /// The queue directory.
    pub fs: &'a dyn Fs,
    /// The host's time.
    pub clock: &'a dyn Clock,
    /// Chance for names and jitter.
    pub chance: &'a dyn Chance,
    /// The tasks' processes.
    pub process: &'a mut dyn Process,
    /// Who this process is.
    pub host: &'a dyn Host,
    /// Where values go; its creator is this worker.
    pub store: &'a mut Store<'s>,
    /// Scratch directories and the users' output files.
    pub outside: &'a mut dyn Outside,
    /// Whether a user is a member of a group.
    pub is_member: &'a dyn Fn(u32, u32) -> bool,
    /// Whether any task of the queue can still make progress; `None` if that is not known. Asked by an idle worker only.
    pub can_progress: &'a mut dyn FnMut() -> Option<bool>,
    /// Told at once, also in the middle of a long step, whenever a sign of life has become durable: the boot time before it was
    /// written. What watches over the worker counts from there.
    pub proved: &'a mut dyn FnMut(Duration),
}

/// The part of the world by which signs of life are given, apart from what a long step is busy with.
struct Pulse<'w> {
    fs: &'w dyn Fs,
    clock: &'w dyn Clock,
    chance: &'w dyn Chance,
    proved: &'w mut dyn FnMut(Duration),
}

impl<'s> World<'_, 's> {
    fn pulse(&mut self) -> Pulse<'_> {
        self.split().0
    }

    /// For what copies to the store or to the user's files, and gives signs of life meanwhile.
    fn split(&mut self) -> (Pulse<'_>, &mut Store<'s>, &mut dyn Outside) {
        let pulse = Pulse { fs: self.fs, clock: self.clock, chance: self.chance, proved: &mut *self.proved };
        (pulse, &mut *self.store, &mut *self.outside)
    }
}

/// What a worker is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its id, used for no other incarnation ever.
    pub wid: WorkerId,
    /// The queue's id.
    pub queue: Nonce,
    /// The limits in force.
    pub limits: Limits,
    /// CPUs for tasks, at least 1.
    pub cpus: u32,
    /// Memory for tasks in bytes; 0 if it does not say.
    pub mem: u64,
    /// Whose manifests it runs.
    pub trust: Trust,
    /// The process that watches over it.
    pub keeper: Option<Identity>,
    /// Whether this mount shows others only what was synced, so that marks are synced too.
    pub mark_sync: bool,
    /// The environment that tasks get, before fq's own variables.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The queue directory as tasks name it.
    pub dir: PathBuf,
    /// The `fq` program.
    pub bin: PathBuf,
    /// Ends after one task.
    pub once: bool,
    /// Ends when no task of the queue can make progress any more.
    pub until_empty: bool,
    /// Ends after so long without work.
    pub idle_timeout: Option<Duration>,
    /// Hands its work back after this span.
    pub lifetime: Option<Duration>,
}

/// What becomes of running tasks when a worker drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hand {
    /// They are finished.
    Finish,
    /// They are ended, to be run again elsewhere.
    Back,
}

/// What a step has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Boot time of the next step, if no child and no hint wakes earlier.
    pub next: Duration,
    /// Set when the worker is over: do not step again.
    pub over: Option<Exit>,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// 0 after an orderly end, [`EXIT_FENCED`] otherwise.
    pub code: i32,
    /// Why, for people.
    pub why: String,
}

/// A worker could not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError(pub FsError);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start a worker: {}", self.0)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<FsError> for StartError {
    fn from(error: FsError) -> Self {
        Self(error)
    }
}

/// An attempt that was claimed and not started.
struct Unstarted {
    a: AttemptId,
    m: u64,
    /// The line of its claim.
    claim: u64,
    item: std::rc::Rc<RunItem>,
}

/// Storage that does not take bytes.
struct Pause {
    why: String,
    backoff: Duration,
    again_at: Duration,
}

/// A drain that was begun.
struct Drain {
    /// When it was first acted upon.
    since: Option<Duration>,
    hand: Hand,
    requeue: Requeue,
    why: String,
}

/// One worker incarnation.
#[expect(clippy::struct_excessive_bools, reason = "each is a note of one step to a later one")]
pub struct Worker {
    options: Options,
    journal: journal::Writer,
    mailbox: Receiver,
    lease: OwnLease,
    lock: Option<Box<dyn LockGuard>>,
    jobs: Jobs,
    queue: VecDeque<Unstarted>,
    running: Vec<Running>,
    finishing: Vec<Finishing>,
    /// Files in `out/` that go once this line is durable.
    spent: Vec<(u64, PathBuf)>,
    /// When the oldest end line that is not durable was written.
    end_since: Option<Duration>,
    /// Claims wait for a flush.
    claims_wait: bool,
    /// Start lines wait to be written.
    starts_wait: bool,
    pause: Option<Pause>,
    drain: Option<Drain>,
    fenced: Option<(Duration, String)>,
    over: Option<Exit>,
    is_bye_written: bool,
    beat: u64,
    /// After one that failed in the middle of a step, no sign of life is tried before this.
    beat_again_at: Duration,
    started: Duration,
    busy_at: Duration,
    mail_at: Duration,
    /// Output was left in the pipes.
    has_more: bool,
}

impl Worker {
    /// Begins a new incarnation: makes its namespace and journal, takes its lock, says `HELLO`, gives the first sign of life.
    ///
    /// On return all of it is durable. After an error nobody will use what there is of the namespace; most of it is removed, for
    /// there may be many tries on a full disk.
    pub fn start(world: &mut World<'_, '_>, options: Options) -> Result<Self, StartError> {
        let (fs, wid) = (world.fs, options.wid.clone());
        let before = world.clock.boot();
        let (journal, verdict, lock) = Self::prepare(fs, &options).inspect_err(|_| sweep(fs, &wid))?;
        let hello = Hello {
            fq: "hello".into(),
            version: CURRENT,
            wid: wid.clone(),
            queue: options.queue,
            worker: world.host.me(),
            keeper: options.keeper.clone(),
            cpus: options.cpus.max(1),
            mem: options.mem,
            self_fence_ms: options.limits.self_fence_ms,
            lock: verdict,
            trust: options.trust.clone(),
            at_ms: world.clock.wall_ms(),
        };
        // Last: who sees it finds the journal. Whether it is there after an error nobody knows.
        put_new(fs, &layout::hello(&wid), &to_document(&hello), 0o644)?;
        (world.proved)(before);
        Ok(Self {
            mailbox: Receiver::new(wid),
            lease: OwnLease::new(&options.limits, before),
            journal,
            lock,
            jobs: Jobs::default(),
            queue: VecDeque::new(),
            running: Vec::new(),
            finishing: Vec::new(),
            spent: Vec::new(),
            end_since: None,
            claims_wait: false,
            starts_wait: false,
            pause: None,
            drain: None,
            fenced: None,
            over: None,
            is_bye_written: false,
            beat: 0,
            beat_again_at: before,
            started: before,
            busy_at: before,
            mail_at: before,
            has_more: false,
            options,
        })
    }

    /// Makes everything but `HELLO`.
    #[expect(clippy::type_complexity, reason = "taken apart at once")]
    fn prepare(
        fs: &dyn Fs,
        options: &Options,
    ) -> Result<(journal::Writer, LockVerdict, Option<Box<dyn LockGuard>>), FsError> {
        let wid = &options.wid;
        for dir in [layout::worker(wid), layout::mailbox(wid), layout::outputs(wid)] {
            match fs.mkdir(&dir) {
                Err(error) if error.kind != ErrorKind::Exists => return Err(error),
                _ => {}
            }
        }
        fs.sync_dir(layout::WORKERS.as_ref())?;
        let space = layout::worker(wid);
        if fs.drops_names() {
            // A master that finds no mailbox could never reach it.
            let names = settle_dir(fs, &space)?;
            for dir in [layout::mailbox(wid), layout::outputs(wid)] {
                if !names.iter().any(|entry| Some(entry.name.as_ref()) == dir.file_name()) {
                    return Err(FsError::new(Call::SyncDir, &dir, libc::EIO));
                }
            }
        } else {
            fs.sync_dir(&space)?;
        }
        fs.create(&layout::lock(wid), 0o644)?.close()?;
        let (verdict, lock) = match fs.lock(&layout::lock(wid), LOCK_LIMIT) {
            Locked::Held(guard) => (LockVerdict::Held, Some(guard)),
            Locked::Refused => (LockVerdict::Refused, None),
            Locked::Unsupported => (LockVerdict::Unsupported, None),
            Locked::Hung => (LockVerdict::Hung, None),
            Locked::Failed(_) => (LockVerdict::Failed, None),
        };
        let mut journal = journal::Writer::create(fs, wid, &options.limits)?;
        journal.set_mark_sync(options.mark_sync);
        journal.append(&Line::Beat { k: 0, free: options.cpus });
        journal.flush(fs)?;
        Ok((journal, verdict, lock))
    }

    /// The boot time before the last durable sign of life was written.
    fn proved(&self) -> Duration {
        self.lease.fence_at().saturating_sub(Limits::span(self.options.limits.self_fence_ms))
    }

    /// The lock of the namespace, for sharing it with the keeper; `None` if it was not taken.
    pub fn lock(&self) -> Option<&dyn LockGuard> {
        self.lock.as_deref()
    }

    /// How many attempts it has claimed and not ended.
    pub fn load(&self) -> usize {
        self.queue.len() + self.running.len() + self.finishing.len()
    }

    /// Why nothing is started at the moment although there may be work, for people: what storage said last.
    pub fn paused(&self) -> Option<&str> {
        self.pause.as_ref().map(|pause| pause.why.as_str())
    }

    /// Whether it takes no new work any more, and ends when nothing runs.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Lets the next step look into the mailbox at once: something may have changed there.
    pub fn hint(&mut self) {
        self.mail_at = Duration::ZERO;
    }

    /// Takes no new work any more, gives back what has not started, and ends when nothing runs.
    ///
    /// `Hand::Back` after `Hand::Finish` ends what still runs; nothing else changes a drain that was begun.
    pub fn drain(&mut self, hand: Hand, requeue: Requeue, why: &str) {
        if self.drain.as_ref().is_some_and(|drain| drain.hand >= hand) || self.over.is_some() {
            return;
        }
        self.drain = Some(Drain { since: None, hand, requeue, why: why.to_owned() });
        self.journal.append(&Line::Drain { why: requeue });
        let unstarted = self.queue.drain(..).map(|u| u.a).collect();
        self.release(unstarted, requeue);
    }

    fn release(&mut self, a: Vec<AttemptId>, why: Requeue) {
        if !a.is_empty() {
            self.journal.append(&Line::Released { a, why });
            self.claims_wait = true;
        }
    }

    /// Ends all tasks and the worker, since its keeper is gone: nobody would end them if it died too. May be called again.
    pub fn lose_keeper(&mut self, world: &mut World<'_, '_>) {
        if self.fenced.is_none() {
            self.fence(world, "its keeper is gone".to_owned());
        }
    }

    /// Ends all tasks at once and writes nothing more.
    fn fence(&mut self, world: &mut World<'_, '_>, why: String) {
        self.queue.clear();
        self.finishing.clear();
        for running in &self.running {
            world.process.signal(running.child, Signal::Kill);
        }
        self.fenced.get_or_insert((world.clock.boot() + FENCED_WAIT, why));
    }

    /// Does all that can be done now, without waiting.
    pub fn step(&mut self, world: &mut World<'_, '_>) -> Step {
        let now = world.clock.boot();
        if self.over.is_none() && self.fenced.is_none() {
            if self.lease.is_over(now) {
                let span = self.options.limits.self_fence_ms / 1000;
                self.fence(world, format!("nothing could be made durable for {span} s"));
            } else {
                self.work(world, now);
            }
        }
        if let (None, Some((until, why))) = (&self.over, self.fenced.clone()) {
            self.collect(world, now, true);
            if self.running.is_empty() || now >= until {
                self.over = Some(Exit { code: EXIT_FENCED, why });
            }
        }
        Step { next: self.next(world), over: self.over.clone() }
    }

    fn work(&mut self, world: &mut World<'_, '_>, now: Duration) {
        self.collect(world, now, false);
        self.read_mail(world, now);
        if self.fenced.is_some() {
            return;
        }
        self.watch_time(world, now);
        let may_write = self.pause.as_ref().is_none_or(|pause| now >= pause.again_at);
        if may_write {
            let is_stored = self.spill(world, now) && self.finish(world);
            let now = world.clock.boot();
            if self.lease.is_over(now) {
                return;
            }
            // Signs of life go on where only the store is full.
            let is_flushed = self.flush_if_due(world, now);
            if is_stored && is_flushed && self.pause.is_some() {
                self.pause = None;
                self.journal.append(&Line::Resume);
                self.flush(world);
            }
        }
        // All that may have lasted.
        let now = world.clock.boot();
        self.leave_if_stuck(world, now);
        self.start_tasks(world, now);
        if self.lease.is_over(world.clock.boot()) {
            return;
        }
        if self.starts_wait {
            self.starts_wait = false;
            // Early news; if it fails, the flush that follows says so.
            let _ = self.journal.write();
        }
        self.end_if_done(world);
    }

    /// Takes new messages if that is due.
    fn read_mail(&mut self, world: &mut World<'_, '_>, now: Duration) {
        if now < self.mail_at {
            return;
        }
        let news = self.mailbox.poll(world.fs);
        if self.load() > 0 || news.as_ref().is_ok_and(|mails| !mails.is_empty()) {
            self.busy_at = now;
        }
        self.mail_at = now + world.chance.jitter(self.mail_pace(now));
        match news {
            Ok(mails) => {
                let is_empty = mails.is_empty();
                for mail in mails {
                    self.take(world, mail);
                }
                if is_empty && self.load() == 0 && self.drain.is_none() {
                    self.consider_leaving(world, now);
                }
            }
            // Looking again is all that can be done; if it lasts, so does the silence of the journal.
            Err(MailError::Fs(_)) => {}
            Err(error) => self.drain(Hand::Back, Requeue::Drained, &error.to_string()),
        }
    }

    /// From one sign of life to the next; a worker that has had nothing to do for long loses nothing by being noticed late.
    fn beat_pace(&self, now: Duration) -> Duration {
        let (beat, limits) = (self.lease.beat(), &self.options.limits);
        let is_idle = self.load() == 0 && now >= self.busy_at + IDLE;
        if is_idle { (beat * 3 / 2).min(Limits::span(limits.suspect_ms) / 3).max(beat) } else { beat }
    }

    /// From one look into the mailbox to the next. An idle worker's looks and beats, and the looks of the standby master beside
    /// it, together stay within one call a second, and 0.2 a second later.
    fn mail_pace(&self, now: Duration) -> Duration {
        let limits = &self.options.limits;
        if self.load() > 0 {
            Limits::span(limits.poll_ms)
        } else if now < self.busy_at + IDLE {
            Limits::span(limits.poll_ms) * 3 / 2
        } else {
            Limits::span(limits.idle_poll_ms) * 4 / 3
        }
    }

    fn consider_leaving(&mut self, world: &mut World<'_, '_>, now: Duration) {
        if self.options.idle_timeout.is_some_and(|limit| now >= self.busy_at + limit) {
            self.drain(Hand::Finish, Requeue::Drained, "no work came for its idle time");
        } else if self.options.until_empty && (world.can_progress)() == Some(false) {
            self.drain(Hand::Finish, Requeue::Drained, "no task can make progress any more");
        }
    }

    fn take(&mut self, world: &mut World<'_, '_>, mail: Mail) {
        let Mail { m, by, msg, .. } = mail;
        self.claims_wait = true;
        match msg {
            Message::Run(items) => {
                let claim = self.journal.append(&Line::Claim { m, by });
                if let Some(drain) = &self.drain {
                    let why = drain.requeue;
                    self.release(items.iter().flat_map(RunItem::attempts).collect(), why);
                    return;
                }
                for item in items {
                    let item = std::rc::Rc::new(item);
                    let one = |a| Unstarted { a, m, claim, item: item.clone() };
                    self.queue.extend(item.attempts().into_iter().map(one));
                }
            }
            Message::Withdraw { attempts, kill } => {
                self.journal.append(&Line::Got { m, by });
                let wanted: std::collections::BTreeSet<AttemptId> = attempts.into_iter().collect();
                let (gone, kept) = self.queue.drain(..).partition(|u| wanted.contains(&u.a));
                self.queue = kept;
                let gone: VecDeque<Unstarted> = gone;
                let why = if kill { Requeue::Cancelled } else { Requeue::Withdrawn };
                self.release(gone.into_iter().map(|u| u.a).collect(), why);
                if kill {
                    let grace = Limits::span(self.options.limits.grace_ms);
                    let now = world.clock.boot();
                    for running in self.running.iter_mut().filter(|running| wanted.contains(&running.a)) {
                        running.end(world.process, Why::Cancelled, now, grace);
                    }
                }
            }
            Message::Drain => {
                self.journal.append(&Line::Got { m, by });
                self.drain(Hand::Finish, Requeue::Drained, "it was told to drain");
            }
            Message::Fence => self.fence(world, "it was declared lost".to_owned()),
        }
    }

    /// Ends what has run for too long, and the worker when its own time is up.
    fn watch_time(&mut self, world: &mut World<'_, '_>, now: Duration) {
        if self.options.lifetime.is_some_and(|span| now >= self.started + span) {
            self.drain(Hand::Back, Requeue::Walltime, "its lifetime is over");
        }
        let grace = Limits::span(self.options.limits.grace_ms);
        let back = self.drain.as_ref().filter(|drain| drain.hand == Hand::Back).map(|drain| drain.requeue);
        for running in &mut self.running {
            if let Some(why) = back {
                running.end(world.process, Why::Requeue(why), now, grace);
            }
            if running.deadline.is_some_and(|at| now >= at) {
                running.end(world.process, Why::Timeout, now, grace);
            }
            running.kill_if_due(world.process, now);
        }
    }

    /// Makes the journal durable if something waits for that; says whether it did not fail.
    fn flush_if_due(&mut self, world: &mut World<'_, '_>, now: Duration) -> bool {
        let is_due = self.lease.is_beat_due(now)
            || self.claims_wait
            || self.drain.is_some()
            || self.pause.is_some()
            || self.end_since.is_some_and(|since| self.queue.is_empty() || now >= since + END_WAIT);
        !is_due || self.flush(world)
    }

    /// Makes the journal durable. After an error the worker pauses; the lines are kept.
    fn flush(&mut self, world: &mut World<'_, '_>) -> bool {
        let mut outcome = self.prove(&mut world.pulse());
        if outcome.as_ref().is_err_and(|error| error.kind != ErrorKind::NoSpace) {
            // One bad descriptor is no outage: the next segment usually takes it.
            outcome = self.prove(&mut world.pulse());
        }
        if let Err(error) = &outcome {
            self.pause(world, error);
        }
        outcome.is_ok()
    }

    /// Gives a sign of life if one is due, between two pieces of something long; says whether the lease is not over.
    ///
    /// An error is met again by the flush that ends the step; meanwhile it is tried again now and then.
    fn stay_alive(&mut self, pulse: &mut Pulse<'_>) -> bool {
        let now = pulse.clock.boot();
        if self.lease.is_beat_due(now)
            && now >= self.beat_again_at
            && !self.lease.is_over(now)
            && self.prove(pulse).is_err()
        {
            self.beat_again_at = pulse.clock.boot() + self.first_backoff();
        }
        !self.lease.is_over(pulse.clock.boot())
    }

    /// Makes what the journal has to say durable, once; if a sign of life is due, with one.
    fn prove(&mut self, pulse: &mut Pulse<'_>) -> Result<(), FsError> {
        let before = pulse.clock.boot();
        let is_news = self.journal.last() > self.journal.shown();
        if !is_news && (self.lease.is_beat_due(before) || self.journal.is_dirty()) {
            // Lines that were written before prove nothing by becoming durable now: an observer may have counted from then.
            self.beat += 1;
            let free = self.free_cpus();
            self.journal.append(&Line::Beat { k: self.beat, free });
        }
        let durable = self.journal.durable();
        let outcome = self.journal.flush(pulse.fs);
        if self.journal.durable() > durable {
            let before = if mutant::is(Mutant::LateProof) { pulse.clock.boot() } else { before };
            self.lease.prove(before, pulse.chance.jitter(self.beat_pace(before)));
            (pulse.proved)(self.proved());
        }
        outcome?;
        self.claims_wait = false;
        self.end_since = None;
        let durable = self.journal.durable();
        for (_, path) in self.spent.extract_if(.., |(line, _)| *line <= durable) {
            // A stray costs a name; the master's janitor finds it in the namespace of an ended worker.
            let _ = pulse.fs.unlink(&path);
        }
        Ok(())
    }

    /// The first wait before storage that failed is tried again: several tries fit into the self-fence time, however small it is.
    fn first_backoff(&self) -> Duration {
        BACKOFF.0.min(Limits::span(self.options.limits.self_fence_ms) / 8)
    }

    /// Starts nothing and takes no output until storage takes bytes again; each failure doubles the wait.
    fn pause(&mut self, world: &World<'_, '_>, error: &FsError) {
        let backoff = if let Some(pause) = &self.pause {
            (pause.backoff * 2).min(BACKOFF.1)
        } else {
            self.journal.append(&Line::Pause { why: error.to_string() });
            BACKOFF.0
        };
        // Several tries fit into the self-fence time, however small it is.
        let backoff = backoff.min(Limits::span(self.options.limits.self_fence_ms) / 8);
        self.pause = Some(Pause { why: error.to_string(), backoff, again_at: world.clock.boot() + backoff });
    }

    /// Leaves although storage takes nothing, if it was asked to hand its work back: outputs that cannot be stored are given up
    /// and their tasks run again; where not even that can be written, whoever finds this worker dead does the same.
    fn leave_if_stuck(&mut self, world: &mut World<'_, '_>, now: Duration) {
        let grace = Limits::span(self.options.limits.grace_ms);
        let Some(drain) = self.drain.as_mut().filter(|drain| drain.hand == Hand::Back) else { return };
        let (since, requeue) = (*drain.since.get_or_insert(now), drain.requeue);
        let Some(pause) = self.pause.as_ref().filter(|_| now >= since + grace + STUCK_WAIT) else { return };
        if now >= since + grace + STUCK_WAIT * 2 {
            let why = format!("it was asked to end, and the queue takes nothing: {}", pause.why);
            for running in &self.running {
                world.process.signal(running.child, Signal::Kill);
            }
            self.over = Some(Exit { code: EXIT_STUCK, why });
            return;
        }
        self.give_up_outputs(world, requeue);
    }

    /// Leaves in order once nothing is left to do.
    fn end_if_done(&mut self, world: &mut World<'_, '_>) {
        let Some(drain) = self.drain.as_ref().filter(|_| self.load() == 0 && self.over.is_none()) else { return };
        let why = drain.why.clone();
        if !self.is_bye_written {
            self.is_bye_written = true;
            self.journal.append(&Line::Bye { why: why.clone() });
        }
        if self.pause.as_ref().is_some_and(|pause| world.clock.boot() < pause.again_at) || !self.flush(world) {
            return;
        }
        let (wid, seq) = (self.options.wid.clone(), self.journal.last());
        let path = layout::bye(&wid);
        let bye = Bye { fq: "bye".into(), version: CURRENT, wid, why, seq, at_ms: world.clock.wall_ms() };
        // The journal has said it already; the file is for those who only list.
        let _ = put_new(world.fs, &path, &to_document(&bye), 0o644);
        let why = bye.why;
        self.over = Some(Exit { code: 0, why });
    }

    /// When the next step has something to do.
    fn next(&self, world: &World<'_, '_>) -> Duration {
        let now = world.clock.boot();
        if let Some((until, _)) = &self.fenced {
            // The end of a task wakes earlier.
            return (now + FENCED_PACE).min(*until);
        }
        if self.has_more {
            return now;
        }
        let mut next = self.mail_at.min(self.lease.fence_at());
        next = next.min(match &self.pause {
            Some(pause) => pause.again_at,
            None => self.lease.next_beat(),
        });
        if self.pause.is_some() && self.drain.as_ref().is_some_and(|drain| drain.hand == Hand::Back) {
            next = next.min(now + Duration::from_millis(500));
        }
        if let Some(span) = self.options.lifetime.filter(|_| self.drain.is_none()) {
            next = next.min(self.started + span);
        }
        for running in &self.running {
            next = next.min(running.next().unwrap_or(next));
        }
        if self.pause.is_none() {
            let spills = self.running.iter().flat_map(|running| &running.output).filter_map(output::Capture::spill_at);
            next = spills.fold(next, Duration::min);
            next = next.min(self.end_since.map_or(next, |since| since + END_WAIT));
            if self.claims_wait {
                next = now;
            }
        }
        next.max(now)
    }
}

/// Removes what there is of a namespace without `HELLO`, as far as that is possible.
fn sweep(fs: &dyn Fs, wid: &WorkerId) {
    for file in [layout::lock(wid), layout::segment(wid, 1), layout::segment(wid, 2)] {
        let _ = fs.unlink(&file);
    }
    for dir in [layout::journal(wid), layout::mailbox(wid), layout::outputs(wid), layout::worker(wid)] {
        let _ = fs.rmdir(&dir);
    }
}

/// The name of a system error for records, such as `ENOENT`.
fn errno_name(errno: i32) -> String {
    let known = [
        (libc::ENOENT, "ENOENT"),
        (libc::ESTALE, "ESTALE"),
        (libc::EACCES, "EACCES"),
        (libc::EPERM, "EPERM"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EDQUOT, "EDQUOT"),
        (libc::EROFS, "EROFS"),
        (libc::EIO, "EIO"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::ELOOP, "ELOOP"),
        (libc::EFBIG, "EFBIG"),
    ];
    known.iter().find(|(n, _)| *n == errno).map_or_else(|| format!("error {errno}"), |(_, name)| (*name).to_owned())
}
