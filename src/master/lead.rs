//! A master that leads: gather, decide, commit, let it show.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::decision::{self, Author, Commit, Writer};
use crate::fs::{ErrorKind, WriteFile};
use crate::lease::StormBrake;
use crate::mailbox;
use crate::mutant::{self, Mutant};
use crate::protocol::id::{AttemptId, DecisionId, JobId, Nonce, TaskId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{Action, BeaconLine, Departure, Limits, Mail, Message, Op, QueueFile, to_line};
use crate::protocol::version::CURRENT;
use crate::schedule;
use crate::state::{State, WorkerStatus};

use super::collect::Collect;
use super::observe::Watched;
use super::overdue::{Awaited, Overdue};
use super::pace::{Budget, Pace};
use super::{Chore, Env, Halt, Hint, Next, Options, Outcome};

/// The longest gap between two looks for submissions and requests on a quiet queue.
pub(super) const IDLE_SCAN: Duration = Duration::from_secs(5);
/// About how often the operator's limits are read.
const LIMITS_EVERY: Duration = Duration::from_secs(30);
/// The head has been quiet for so long when it is nudged.
const QUIET: Duration = Duration::from_secs(1);

/// What a leader remembers besides the settled state.
pub(super) struct Lead {
    term: u64,
    /// Its `lead` decision.
    since: DecisionId,
    /// The settled state and the draft on top of it.
    pub(super) work: State,
    pub(super) draft: Vec<Op>,
    /// The name that the draft will be bound under.
    pub(super) id: DecisionId,
    /// Removals that are due once the draft is won.
    removals: Vec<PathBuf>,
    /// Mail that is due: from decisions that are won.
    mail: Vec<Mail>,
    mail_at: Duration,
    pub(super) budget: Budget,
    pub(super) jobs: Pace,
    pub(super) control: Pace,
    pub(super) workers: Pace,
    limits_at: Duration,
    pub(super) watched: BTreeMap<WorkerId, Watched>,
    pub(super) observe_at: Duration,
    pub(super) storm: StormBrake,
    /// Manifests that are not whole yet, and when to look at them again.
    pub(super) torn: BTreeMap<JobId, (Duration, u32)>,
    /// Requests that name a job which was not seen yet, and since when they wait.
    pub(super) unanswered: BTreeMap<Nonce, Duration>,
    /// Buckets of `jobs/` that have been listed by this leader.
    pub(super) listed: BTreeSet<String>,
    /// The newest of them, as long as it is known not to be full.
    pub(super) filling: Option<String>,
    /// Files that are no documents of ours and were reported.
    pub(super) reported: BTreeSet<PathBuf>,
    /// Requests that could not be read yet, and how often that was tried.
    pub(super) unread: BTreeMap<Nonce, u32>,
    /// When tasks in a back-off may run again.
    not_before: BTreeMap<(JobId, u32), Duration>,
    /// Attempts that were asked back.
    withdrawn: BTreeSet<AttemptId>,
    rebalance_at: Duration,
    /// Workers that know that they get no new work.
    pub(super) drained: BTreeSet<WorkerId>,
    beacon: Option<Box<dyn WriteFile>>,
    beacon_no: u64,
    beat: u64,
    beat_at: Duration,
    trouble: String,
    /// When to try again after a commit that could not be written.
    commit_at: Duration,
    commit_gap: Duration,
    won_at: Duration,
    nudged: bool,
    scan_nudge_at: Duration,
    overdue: Overdue,
    /// Workers whose namespaces were listed without a `HELLO`.
    pub(super) nameless: BTreeSet<WorkerId>,
    render_at: Duration,
    rendered: DecisionId,
    /// Whether the mail of earlier terms was written again.
    repaired: bool,
    pub(super) collect: Collect,
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead").field("term", &self.term).field("draft", &self.draft.len()).finish_non_exhaustive()
    }
}

impl Lead {
    pub(super) fn new(state: &State, options: &Options, now: Duration) -> Self {
        let _ = options;
        Self {
            term: state.term,
            since: state.at,
            work: state.clone(),
            draft: Vec::new(),
            id: state.at,
            removals: Vec::new(),
            mail: Vec::new(),
            mail_at: now,
            budget: Budget::new(now),
            jobs: Pace::new(now),
            control: Pace::new(now),
            workers: Pace::new(now),
            limits_at: now,
            watched: BTreeMap::new(),
            observe_at: now,
            storm: StormBrake::default(),
            torn: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            listed: BTreeSet::new(),
            filling: None,
            reported: BTreeSet::new(),
            unread: BTreeMap::new(),
            not_before: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            rebalance_at: now,
            drained: BTreeSet::new(),
            beacon: None,
            beacon_no: 0,
            beat: 0,
            beat_at: now,
            trouble: String::new(),
            commit_at: now,
            commit_gap: Duration::ZERO,
            won_at: now,
            nudged: false,
            scan_nudge_at: now + Duration::from_secs(30),
            overdue: Overdue::default(),
            nameless: BTreeSet::new(),
            render_at: now,
            rendered: DecisionId { generation: 0, nonce: Nonce(0) },
            repaired: false,
            collect: Collect::new(state, now),
        }
    }

    pub(super) fn hint(&mut self, hint: &Hint) {
        match hint {
            Hint::Jobs => self.jobs.wake(),
            Hint::Control => self.control.wake(),
            Hint::Workers => self.workers.wake(),
            Hint::Journal(w) => {
                if let Some(watched) = self.watched.get_mut(w) {
                    // Most often it is a heartbeat.
                    watched.pace.look_now();
                }
            }
            Hint::Head => {}
        }
    }

    pub(super) fn step(
        &mut self,
        env: Env,
        writer: &mut Writer,
        file: &QueueFile,
        options: &Options,
        out: &mut Outcome,
    ) -> Next {
        if writer.is_in_doubt() {
            let commit = writer.push(env.fs, env.chance);
            if let Some(next) = self.judged(env, writer, options, commit, out) {
                return next;
            }
        } else if !self.repaired {
            self.repair(writer.state());
        }
        let now = env.clock.boot();
        if now >= self.beat_at {
            match writer.refresh(env.fs, env.chance) {
                Ok(true) => {
                    if let Some(next) = self.overtaken(writer, options) {
                        return next;
                    }
                }
                Ok(false) => {}
                Err(e) => return Next::Blind(e),
            }
            self.send_beat(env, writer.state());
        }
        self.deliver(env);
        if now >= self.commit_at {
            self.id = writer.next_id(env.chance);
            if let Err(halt) = self.gather(env, writer, file, options, out) {
                return Next::Halt(halt);
            }
            if !self.draft.is_empty() {
                let ops = std::mem::take(&mut self.draft);
                let author = Author { by: options.me.clone(), term: self.term, at_ms: env.clock.wall_ms() };
                if mutant::is(Mutant::EarlyMail) {
                    self.externalise(&ops, out);
                    self.deliver(env);
                }
                let commit = writer.commit(env.fs, env.chance, &author, self.id, ops.clone());
                self.draft = ops;
                if let Some(next) = self.judged(env, writer, options, commit, out) {
                    return next;
                }
                self.deliver(env);
            }
        }
        self.linger(env, options, out);
        Next::At(self.next_due(env.clock.boot()))
    }

    /// Acts on the outcome of a commit; `None` if the step goes on.
    fn judged(
        &mut self,
        env: Env,
        writer: &mut Writer,
        options: &Options,
        commit: Commit,
        out: &mut Outcome,
    ) -> Option<Next> {
        let now = env.clock.boot();
        match commit {
            Commit::Won => {
                self.trouble.clear();
                self.commit_gap = Duration::ZERO;
                self.won_at = now;
                self.nudged = false;
                let ops = std::mem::take(&mut self.draft);
                self.externalise(&ops, out);
                // The draft was applied to the working copy already; what is settled is the same.
                self.work.at = writer.state().at;
                debug_assert_eq!(self.work.at, self.id);
                // With its abdication it leads no longer, also where that was in doubt and is won only now.
                self.work.master.is_none().then_some(Next::Follow)
            }
            Commit::Lost => Some(self.overtaken(writer, options).unwrap_or(Next::At(now))),
            Commit::InDoubt => Some(Next::At(now + env.chance.jitter(Duration::from_millis(100)))),
            Commit::Unknown(e) => {
                if !writer.is_in_doubt() {
                    self.forget_draft(writer.state());
                }
                Some(Next::Blind(e))
            }
            Commit::NotTried(e) => {
                self.forget_draft(writer.state());
                self.trouble = e.to_string();
                self.commit_gap = (self.commit_gap * 2).clamp(Duration::from_millis(250), Duration::from_secs(10));
                self.commit_at = now + self.commit_gap;
                out.notes.push(match e.kind {
                    ErrorKind::NoSpace => format!("{e}: nothing is decided until there is space again"),
                    _ => format!("{e}: trying again"),
                });
                Some(Next::At(self.commit_at.min(self.beat_at)))
            }
        }
    }

    /// Another process decided something: either it leads now, or (fsck) the working copy starts anew.
    fn overtaken(&mut self, writer: &Writer, options: &Options) -> Option<Next> {
        let state = writer.state();
        let leads = state.master.as_ref().is_some_and(|m| m.w == options.me && m.lead == self.since);
        if !leads || state.term != self.term {
            return Some(Next::Follow);
        }
        self.forget_draft(state);
        None
    }

    /// Goes back to the settled state: what was read for the draft is read again.
    fn forget_draft(&mut self, settled: &State) {
        if mutant::is(Mutant::BlindRebase) {
            return;
        }
        self.draft.clear();
        self.removals.clear();
        self.work = settled.clone();
        self.withdrawn.clear();
        self.drained.clear();
        self.watched.retain(|w, _| settled.workers.get(w).is_some_and(|worker| !worker.is_gone()));
        for (w, watched) in &mut self.watched {
            watched.rewind(w, settled.workers.get(w).map_or(0, |worker| worker.seq));
        }
        self.jobs.wake();
        self.control.wake();
        self.workers.wake();
    }

    /// Adds an operation to the draft, after it was applied to the working copy.
    pub(super) fn decide(&mut self, op: Op) -> Result<(), Halt> {
        if let Op::Read { w, seen, .. } = &op {
            // What this read acknowledges may be removed once the read is won.
            let got = seen
                .iter()
                .filter_map(|s| if let crate::protocol::record::Seen::Got(m) = s { Some(*m) } else { None })
                .max();
            if let (Some(got), Some(worker)) = (got, self.work.workers.get(w)) {
                let taken = worker.outbox.range(..=got).map(|(m, (by, _))| layout::message(w, *m, *by));
                self.removals.extend(taken);
            }
        }
        self.work.apply(self.id, &op).map_err(|absurd| Halt::Internal(format!("{absurd} ({op:?})")))?;
        self.draft.push(op);
        Ok(())
    }

    fn gather(
        &mut self,
        env: Env,
        writer: &Writer,
        file: &QueueFile,
        options: &Options,
        out: &mut Outcome,
    ) -> Result<(), Halt> {
        self.read_limits(env, out)?;
        self.meet_workers(env, file, out)?;
        self.take_in_jobs(env, out)?;
        self.answer_requests(env, file, out)?;
        self.observe(env, file, options, out)?;
        self.ask_back(env)?;
        self.place(env)?;
        self.collect(env, out)?;
        let settled = writer.state();
        let last = settled.snapshots.last().map_or(0, |s| s.at.generation);
        if settled.at.generation >= last + settled.limits.snapshot_every
            && !self.draft.is_empty()
            && let Some(reference) = decision::write_snapshot(env.fs, settled)
        {
            self.decide(Op::Snapshot(reference))?;
        }
        Ok(())
    }

    /// Takes the operator's limits into force by a decision.
    fn read_limits(&mut self, env: Env, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        if now < self.limits_at {
            return Ok(());
        }
        self.limits_at = now + env.chance.jitter(LIMITS_EVERY);
        // A file that is missing for a moment never means defaults.
        let Ok(bytes) = crate::fs::read_up_to(env.fs, layout::LIMITS.as_ref(), 65_536) else { return Ok(()) };
        match serde_json::from_slice::<Limits>(&bytes) {
            Ok(limits) if limits == self.work.limits => {}
            Ok(limits) => match limits.check() {
                Ok(()) => self.decide(Op::Limits { limits })?,
                Err(e) => out.notes.push(format!("`{}` is not taken into force: {e}", layout::LIMITS)),
            },
            Err(e) => out.notes.push(format!("`{}` is not taken into force: {e}", layout::LIMITS)),
        }
        Ok(())
    }

    /// Sends a message as part of the draft.
    pub(super) fn send(&mut self, w: &WorkerId, msg: Message) -> Result<(), Halt> {
        let m = self.work.workers.get(w).map_or(0, |worker| worker.sent) + 1;
        self.decide(Op::Send { w: w.clone(), m, msg })
    }

    /// Asks workers for what a person cancelled, and for what another worker could start at once; tells draining ones.
    fn ask_back(&mut self, env: Env) -> Result<(), Halt> {
        let now = env.clock.boot();
        let mut withdrawn = std::mem::take(&mut self.withdrawn);
        withdrawn.retain(|attempt| self.is_out(attempt.task));
        self.withdrawn = withdrawn;
        let mut kills: Vec<(WorkerId, Vec<AttemptId>)> = Vec::new();
        let mut drains = Vec::new();
        for (w, worker) in self.work.live_workers() {
            if worker.status == WorkerStatus::Draining && !self.drained.contains(w) {
                drains.push(w.clone());
            }
            let unwanted = worker.out.iter().filter_map(|(&(job, at), &number)| {
                let entry = self.work.jobs.get(&job)?;
                let attempt = entry.attempt_id(at, number);
                (entry.tasks[at as usize].cancelling && !self.withdrawn.contains(&attempt)).then_some(attempt)
            });
            let unwanted: Vec<AttemptId> = unwanted.collect();
            if !unwanted.is_empty() {
                kills.push((w.clone(), unwanted));
            }
        }
        for (w, attempts) in kills {
            self.withdrawn.extend(&attempts);
            self.send(&w, Message::Withdraw { attempts, kill: true })?;
        }
        for w in drains {
            self.drained.insert(w.clone());
            self.send(&w, Message::Drain)?;
        }
        if now >= self.rebalance_at
            && let Some((w, tail)) = schedule::rebalance(&self.work, &|w| self.may_get(w))
        {
            self.rebalance_at = now + Duration::from_secs(1);
            let attempts: Vec<AttemptId> = tail
                .into_iter()
                .filter_map(|(job, at)| {
                    let entry = self.work.jobs.get(&job)?;
                    Some(entry.attempt_id(at, entry.tasks[at as usize].attempt))
                })
                .filter(|attempt| !self.withdrawn.contains(attempt))
                .collect();
            if !attempts.is_empty() {
                self.withdrawn.extend(&attempts);
                self.send(&w, Message::Withdraw { attempts, kill: false })?;
            }
        }
        Ok(())
    }

    fn may_get(&self, w: &WorkerId) -> bool {
        self.watched.get(w).is_some_and(Watched::is_trusted)
    }

    /// Gives ready tasks to workers.
    fn place(&mut self, env: Env) -> Result<(), Halt> {
        let now = env.clock.boot();
        let (first, longest) = self.work.limits.backoff_ms;
        let delayed: Vec<(JobId, u32, u32)> = self.work.delayed().collect();
        self.not_before.retain(|key, _| delayed.iter().any(|(job, at, _)| (*job, *at) == *key));
        for (job, at, failures) in delayed {
            let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(20));
            let wait = env.chance.jitter(Limits::span(doubled.min(longest)));
            self.not_before.entry((job, at)).or_insert(now + wait);
        }
        let not_before = &self.not_before;
        let may_run = |job: JobId, at: u32| not_before.get(&(job, at)).is_none_or(|&t| now >= t);
        let bundles = schedule::place(&self.work, &may_run, &|w| self.may_get(w));
        for bundle in bundles {
            self.send(&bundle.w, Message::Run(bundle.items))?;
        }
        Ok(())
    }

    /// Lets the decisions of a won group show.
    fn externalise(&mut self, ops: &[Op], out: &mut Outcome) {
        out.removals.append(&mut self.removals);
        for op in ops {
            self.collect.won(op);
            match op {
                Op::Send { w, m, msg } => self.post(w, *m, self.id, msg),
                Op::Gone { w, how, .. } => {
                    self.watched.remove(w);
                    self.drained.remove(w);
                    if *how != Departure::Left {
                        // The number after the last one: of all incarnations only this one can ever take it.
                        let m = self.work.workers.get(w).map_or(0, |worker| worker.sent) + 1;
                        self.post(w, m, self.id, &Message::Fence);
                    }
                }
                Op::Answer { id, action, .. } => {
                    out.removals.push(layout::request(*id));
                    if let Action::Collect { keep_ms } = action {
                        self.collect.ask(*keep_ms);
                    }
                }
                Op::Snapshot(_) => out.chores.push(Chore::PruneLog),
                Op::Quarantine { files } => out.chores.push(Chore::Quarantine(self.id, files.clone())),
                Op::Purge { by } => out.chores.push(Chore::Purge(*by)),
                _ => {}
            }
        }
    }

    fn post(&mut self, w: &WorkerId, m: u64, by: DecisionId, msg: &Message) {
        self.mail.push(Mail { fq: "mail".into(), version: CURRENT, w: w.clone(), m, by, msg: msg.clone() });
        self.mail_at = Duration::ZERO;
    }

    /// Brings about what a predecessor may have died before.
    fn repair(&mut self, settled: &State) {
        self.repaired = true;
        if mutant::is(Mutant::NoRepair) {
            return;
        }
        self.post_again(None);
        self.removals.extend(settled.answered.iter().map(|id| layout::request(*id)));
    }

    /// Writes again all mail that no worker has acknowledged, or only that to `to`; the working copy is what is settled.
    fn post_again(&mut self, to: Option<&WorkerId>) {
        let is_due = |w: &WorkerId| to.is_none_or(|to| to == w) && !self.mail.iter().any(|mail| mail.w == *w);
        let mut due = Vec::new();
        for (w, worker) in self.work.live_workers().filter(|(w, _)| is_due(w)) {
            due.extend(worker.outbox.iter().map(|(m, (by, msg))| (w.clone(), *m, *by, msg.clone())));
        }
        for (w, m, by, msg) in due {
            self.post(&w, m, by, &msg);
        }
    }

    /// Publishes due mail; what fails is tried again, in order.
    fn deliver(&mut self, env: Env) {
        let now = env.clock.boot();
        if self.mail.is_empty() || now < self.mail_at {
            return;
        }
        let due = std::mem::take(&mut self.mail);
        let mut failed: BTreeSet<WorkerId> = BTreeSet::new();
        for mail in due {
            if failed.contains(&mail.w) || mailbox::send(env.fs, env.chance, &mail).is_err() {
                failed.insert(mail.w.clone());
                self.mail.push(mail);
            }
        }
        self.mail_at = now + env.chance.jitter(Duration::from_millis(500));
    }

    fn send_beat(&mut self, env: Env, settled: &State) {
        let now = env.clock.boot();
        self.beat_at = now + env.chance.jitter(Limits::span(settled.limits.beat_ms));
        self.beat += 1;
        let line = to_line(&BeaconLine { beat: self.beat, head: settled.at, trouble: self.trouble.clone() });
        if self.beacon.is_none() && self.beacon_no == 0 {
            self.beacon_no += 1;
            let path = layout::beacon(self.term, self.since);
            self.beacon = env.fs.create(&path, 0o664).ok().inspect(|_| {
                let _ = env.fs.sync_dir(layout::BEACONS.as_ref());
            });
        }
        // A beacon that failed is not touched again; commits are signs of life too.
        if let Some(file) = &mut self.beacon
            && file.write(&line).and_then(|()| file.sync()).is_err()
        {
            self.beacon = None;
        }
    }

    /// What is done when nothing else is: the nudges of a quiet master, the view for people.
    fn linger(&mut self, env: Env, options: &Options, out: &mut Outcome) {
        let now = env.clock.boot();
        let nudges = options.nudges && !mutant::is(Mutant::NoNudge) && !mutant::is(Mutant::HiddenNews);
        if !self.nudged && now >= self.won_at + QUIET {
            self.nudged = true;
            if nudges {
                let _ = decision::nudge(env.fs, env.chance, layout::HEAD.as_ref());
            }
        }
        if nudges && now >= self.scan_nudge_at {
            self.scan_nudge_at = now + env.chance.jitter(Duration::from_secs(30));
            let newest = self.listed.iter().next_back().map(|b| format!("{}/{b}", layout::JOBS));
            for dir in [layout::CONTROL, layout::WORKERS].into_iter().map(str::to_owned).chain(newest) {
                let _ = decision::nudge(env.fs, env.chance, dir.as_ref());
            }
        }
        if self.overdue.is_due(now) && self.draft.is_empty() {
            let overdue = self.overdue_now();
            for awaited in self.overdue.looked(now, overdue) {
                let dir = match awaited {
                    Awaited::Receipt(w) => {
                        if !mutant::is(Mutant::MailOnce) && !mutant::is(Mutant::NoRepair) {
                            self.post_again(Some(&w));
                        }
                        continue;
                    }
                    Awaited::News(w) => layout::journal(&w),
                    Awaited::Hello(w) => layout::worker(&w),
                };
                if nudges {
                    let _ = decision::nudge(env.fs, env.chance, &dir);
                }
            }
        }
        if self.work.at != self.rendered && now >= self.render_at && self.draft.is_empty() {
            self.rendered = self.work.at;
            self.render_at = now + Duration::from_secs(5);
            out.chores.push(Chore::Render);
        }
    }

    /// What should have shown by now: that mail was taken, news of a worker that lives, the `HELLO` of a namespace.
    fn overdue_now(&self) -> Vec<Awaited> {
        let silent = Limits::span(self.work.limits.beat_ms) * 2;
        let unanswered = self.work.live_workers().filter(|(_, worker)| !worker.outbox.is_empty());
        let unheard = self.watched.iter().filter(|(_, watched)| watched.is_silent_for(silent));
        let receipts = unanswered.map(|(w, _)| Awaited::Receipt(w.clone()));
        let news = unheard.map(|(w, _)| Awaited::News(w.clone()));
        receipts.chain(news).chain(self.nameless.iter().cloned().map(Awaited::Hello)).collect()
    }

    fn next_due(&self, now: Duration) -> Duration {
        let mut due = self.beat_at.min(self.limits_at).min(self.observe_at).min(self.collect.due(now));
        due = due.min(self.jobs.due()).min(self.control.due()).min(self.workers.due());
        due = self.watched.values().map(|w| w.pace.due()).fold(due, Duration::min);
        due = self.torn.values().map(|t| t.0).fold(due, Duration::min);
        due = self.not_before.values().copied().filter(|&t| t > now).fold(due, Duration::min);
        if !self.mail.is_empty() {
            due = due.min(self.mail_at);
        }
        if self.work.at != self.rendered {
            due = due.min(self.render_at.max(now + Duration::from_millis(200)));
        }
        if !self.nudged {
            due = due.min((self.won_at + QUIET).max(now + Duration::from_millis(20)));
        }
        due = self.overdue.due().map_or(due, |at| due.min(at));
        due.max(self.commit_at)
    }

    /// Gives up leading; says whether that is settled or cannot be had.
    pub(super) fn abdicate(
        &mut self,
        env: Env,
        writer: &mut Writer,
        options: &Options,
        out: &mut Outcome,
    ) -> Result<bool, Halt> {
        let commit = if writer.is_in_doubt() {
            writer.push(env.fs, env.chance)
        } else {
            self.mail_at = Duration::ZERO;
            self.deliver(env);
            self.forget_draft(writer.state());
            self.id = writer.next_id(env.chance);
            self.decide(Op::Abdicate)?;
            let author = Author { by: options.me.clone(), term: self.term, at_ms: env.clock.wall_ms() };
            writer.commit(env.fs, env.chance, &author, self.id, self.draft.clone())
        };
        // A disk that takes no decision takes no abdication: the others wait until they miss this one.
        let is_refused = matches!(commit, Commit::NotTried(_) | Commit::Unknown(_)) && !writer.is_in_doubt();
        let next = self.judged(env, writer, options, commit, out);
        Ok(is_refused || matches!(next, Some(Next::Follow)))
    }

    /// Whether `task` of the working copy is out.
    fn is_out(&self, task: TaskId) -> bool {
        self.work.task(task).is_some_and(|(_, t)| t.state.is_out())
    }
}
