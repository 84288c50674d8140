//! What workers say in their journals, and whether they still live (spec: leases).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::decision;
use crate::fs::{Fs, FsError, Locked};
use crate::gc;
use crate::journal::{Tail, TailNews};
use crate::lease::{self, Evidence, LockSeen, Observation, Silence, Verdict};
use crate::mutant::{self, Mutant};
use crate::process::{Group, Liveness};
use crate::protocol::id::{AttemptId, Nonce, WorkerId};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{
    Admit, Departure, EndLine, Ended, Limits, Line, Op, Outcome as How, QueueFile, Ref, Requeue, Seen, attempt_token,
};
use crate::state::{State, Worker};
use crate::store;

use super::lead::Lead;
use super::pace::Pace;
use super::{Env, Halt, Options, Outcome};

/// How long starts wait for other news of the same worker before they are worth a decision.
const STARTS_WAIT: Duration = Duration::from_millis(300);
/// How long one try to take a lock may take.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// From one judgement of all workers to the next.
const OBSERVE_EVERY: Duration = Duration::from_millis(500);

/// One live worker as this leader sees it.
#[derive(Debug)]
pub(super) struct Watched {
    tail: Tail,
    pub(super) pace: Pace,
    /// Lines that were read and not acted upon yet: beyond the durable mark, or behind a value that is not visible yet.
    pending: VecDeque<(u64, Line)>,
    mark: u64,
    /// The last line acted upon.
    done: u64,
    /// Starts that are not decided yet, and since when.
    starts: BTreeSet<AttemptId>,
    starts_since: Duration,
    silence: Silence,
    lock: LockSeen,
    lock_has_refused: bool,
    lock_at: Duration,
    verdict: Verdict,
    /// Since when the value of an end line has not been visible.
    missing_since: Option<Duration>,
    /// Whether nothing was heard since the storm brake restarted all timers.
    unheard: bool,
    said_bye: bool,
    refused: Option<String>,
}

impl Watched {
    /// Whether nothing was heard for longer than `span`.
    pub(super) fn is_silent_for(&self, span: Duration) -> bool {
        self.silence.span > span
    }

    fn new(w: &WorkerId, seq: u64, now: Duration) -> Self {
        Self {
            tail: Tail::at(w.clone(), seq),
            pace: Pace::new(now),
            pending: VecDeque::new(),
            mark: 0,
            done: seq,
            starts: BTreeSet::new(),
            starts_since: now,
            silence: Silence::default(),
            lock: LockSeen::Untried,
            lock_has_refused: false,
            lock_at: now,
            verdict: Verdict::Alive,
            missing_since: None,
            unheard: false,
            said_bye: false,
            refused: None,
        }
    }

    /// Whether it may get work.
    pub(super) fn is_trusted(&self) -> bool {
        self.verdict == Verdict::Alive && !self.said_bye && self.refused.is_none()
    }

    /// Reads again after line `seq`, because what was read since was not decided.
    pub(super) fn rewind(&mut self, w: &WorkerId, seq: u64) {
        self.tail = Tail::at(w.clone(), seq);
        self.pending.clear();
        self.mark = 0;
        self.done = seq;
        self.starts.clear();
        self.said_bye = false;
        self.refused = None;
        self.pace.wake();
    }

    fn take_note(&mut self, news: TailNews) {
        self.pending.extend(news.lines);
        self.mark = self.mark.max(news.mark);
    }
}

impl Lead {
    /// Reads journals that are due, judges all workers, and decides what follows.
    pub(super) fn observe(
        &mut self,
        env: Env,
        file: &QueueFile,
        options: &Options,
        out: &mut Outcome,
    ) -> Result<(), Halt> {
        let now = env.clock.boot();
        let live: Vec<WorkerId> = self.work.live_workers().map(|(w, _)| w.clone()).collect();
        self.watched.retain(|w, _| live.contains(w));
        for w in &live {
            let seq = self.work.workers.get(w).map_or(0, |worker| worker.seq);
            self.watched.entry(w.clone()).or_insert_with(|| Watched::new(w, seq, now));
        }
        for w in &live {
            self.read_journal(env, w, out)?;
        }
        if now >= self.observe_at {
            self.observe_at = now + OBSERVE_EVERY;
            self.judge_all(env, &live, out);
        }
        for w in &live {
            self.see_off(env, file, options, w, out)?;
        }
        Ok(())
    }

    fn read_journal(&mut self, env: Env, w: &WorkerId, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        let limits = &self.work.limits;
        let (Some(watched), Some(worker)) = (self.watched.get_mut(w), self.work.workers.get(w)) else { return Ok(()) };
        if watched.pace.is_due(now) {
            if let Err(wait) = self.budget.take(now, 1, limits) {
                watched.pace.later(now + wait);
            } else {
                let beat = Limits::span(limits.beat_ms);
                let gap_max = beat * 2;
                if let Ok(news) = watched.tail.poll(env.fs) {
                    if let Some(damage) = news.damaged.as_ref().filter(|_| self.reported.insert(layout::segment(w, 0)))
                    {
                        out.notes.push(format!("the journal of {w} is damaged: {damage:?}"));
                    }
                    let grew = news.grew;
                    // A sign of life says nothing about when the next news come.
                    let is_news = grew && !is_sign_of_life(&news.lines);
                    watched.silence.polled(now, grew, gap_max);
                    if grew {
                        watched.lock = LockSeen::Untried;
                        watched.unheard = false;
                    }
                    watched.take_note(news);
                    let busy = !worker.out.is_empty() || !worker.outbox.is_empty();
                    // The end of a long task is expected however long nothing else was heard.
                    let poll = Limits::span(limits.poll_ms);
                    let longest = if busy { poll } else { beat.max(poll) };
                    watched.pace.looked(now, is_news, longest, longest);
                } else {
                    watched.silence.failed();
                    watched.pace.looked(now, false, Limits::span(limits.poll_ms), Limits::span(limits.poll_ms));
                }
            }
        }
        self.digest(env, w, false)
    }

    /// Acts on the lines of `w` that may be acted upon. With `last` starts are not held back.
    fn digest(&mut self, env: Env, w: &WorkerId, last: bool) -> Result<(), Halt> {
        let now = env.clock.boot();
        let Some(mut watched) = self.watched.remove(w) else { return Ok(()) };
        let result = self.digest_lines(env, w, &mut watched, now, last);
        self.watched.insert(w.clone(), watched);
        result
    }

    fn digest_lines(
        &mut self,
        env: Env,
        w: &WorkerId,
        watched: &mut Watched,
        now: Duration,
        last: bool,
    ) -> Result<(), Halt> {
        let Some(worker) = self.work.workers.get(w) else { return Ok(()) };
        let mut seen: Vec<Seen> = Vec::new();
        let mut over: BTreeSet<AttemptId> = BTreeSet::new();
        let mut got = worker.got;
        while let Some((seq, line)) = watched.pending.front() {
            if *seq > watched.mark || watched.refused.is_some() {
                break;
            }
            let seq = *seq;
            let has = |a: AttemptId| !over.contains(&a) && owns(&self.work, worker, a).is_some();
            match line {
                Line::Open { wid } if wid != w => watched.refused = Some(format!("its journal belongs to {wid}")),
                Line::Claim { m, by } | Line::Got { m, by } => {
                    match worker.outbox.get(m) {
                        Some((issued, _)) if issued == by => got = got.max(*m),
                        None if *m <= got => {}
                        _ => {
                            watched.refused =
                                Some(format!("it took message {m} of decision {by}, which is not on the chain"));
                        }
                    }
                    seen.push(Seen::Got(got));
                }
                Line::Start { a, .. } => {
                    if has(*a) {
                        if watched.starts.is_empty() {
                            watched.starts_since = now;
                        }
                        watched.starts.insert(*a);
                    }
                }
                Line::End(end) => {
                    if owns(&self.work, worker, end.a) == Some(end.m) && !over.contains(&end.a) {
                        let Some(how) = accepted(env, &self.work, end, &mut watched.missing_since, now) else {
                            break;
                        };
                        over.insert(end.a);
                        seen.push(Seen::Ended(Ended { a: end.a, line: seq, how, ms: end.ms }));
                    }
                    watched.starts.remove(&end.a);
                }
                Line::Released { a, why } => {
                    let released: Vec<AttemptId> = a.iter().copied().filter(|a| has(*a)).collect();
                    over.extend(&released);
                    if !released.is_empty() {
                        seen.push(Seen::Released(released, *why));
                    }
                }
                Line::Pause { why } => seen.push(Seen::Paused(why.clone())),
                Line::Resume => seen.push(Seen::Resumed),
                Line::Drain { .. } => {
                    self.drained.insert(w.clone());
                    seen.push(Seen::Draining);
                }
                Line::Bye { .. } => watched.said_bye = true,
                Line::Open { .. } | Line::Beat { .. } | Line::Mark { .. } | Line::Seal { .. } => {}
            }
            watched.done = seq;
            watched.pending.pop_front();
        }
        seen.dedup_by(|b, a| matches!((a, b), (Seen::Got(x), Seen::Got(y)) if x == y));
        let is_due = now >= watched.starts_since + STARTS_WAIT || !seen.is_empty() || last;
        if is_due && !watched.starts.is_empty() {
            let starts: Vec<AttemptId> = std::mem::take(&mut watched.starts)
                .into_iter()
                .filter(|a| self.work.task(a.task).is_some_and(|(_, t)| t.state == TaskState::Issued))
                .collect();
            if !starts.is_empty() {
                seen.insert(0, Seen::Started(starts));
            }
        } else if !watched.starts.is_empty() {
            let at = watched.starts_since + STARTS_WAIT;
            if watched.pace.due() > at {
                watched.pace.later(at);
            }
        }
        if seen.is_empty() {
            return Ok(());
        }
        let seq = watched.done;
        self.decide(Op::Read { w: w.clone(), seq, seen })
    }

    fn judge_all(&mut self, env: Env, live: &[WorkerId], out: &mut Outcome) {
        let limits = self.work.limits.clone();
        let newest = newest_of_keepers(&self.work);
        let mut silent = 0;
        for w in live {
            let (Some(watched), Some(worker)) = (self.watched.get_mut(w), self.work.workers.get(w)) else { continue };
            watch_lock(env, w, worker, watched);
            let begun = worker.admit.worker.ticks;
            let has_successor =
                watch(&worker.admit).is_some_and(|watch| newest.get(&watch).is_some_and(|&t| t > begun));
            let seen = Observation { has_successor, ..observation(env, worker, watched) };
            watched.verdict = lease::judge(&seen, &limits);
            if watched.verdict == Verdict::Suspect
                || matches!(watched.verdict, Verdict::Dead(Evidence::Silence | Evidence::Lock))
            {
                silent += 1;
            }
        }
        let unheard = self.watched.values().filter(|watched| watched.unheard).count();
        if self.storm.pull(live.len(), silent, unheard) {
            out.notes.push(format!(
                "{silent} of {} workers look silent at once: looking again before any is declared lost",
                live.len()
            ));
            for watched in self.watched.values_mut() {
                // Each is given one more lease, not one each time that others come and go.
                let is_known = matches!(watched.verdict, Verdict::Dead(Evidence::Processes | Evidence::Successor));
                if !is_known && !watched.unheard {
                    watched.silence.restart();
                    watched.unheard = true;
                    watched.verdict = Verdict::Suspect;
                }
            }
        }
    }

    /// Declares a worker gone that has said so, that is dead, or whose journal is not of this chain.
    fn see_off(
        &mut self,
        env: Env,
        file: &QueueFile,
        options: &Options,
        w: &WorkerId,
        out: &mut Outcome,
    ) -> Result<(), Halt> {
        let Some(watched) = self.watched.get(w) else { return Ok(()) };
        if watched.said_bye {
            let why = "it ended in order".to_owned();
            return self.decide(Op::Gone { w: w.clone(), how: Departure::Left, why });
        }
        if let Some(why) = watched.refused.clone() {
            out.notes.push(format!("worker {w} is refused: {why}"));
            return self.decide(Op::Gone { w: w.clone(), how: Departure::Refused, why });
        }
        let Verdict::Dead(evidence) = watched.verdict else { return Ok(()) };
        // Every durable end in its journal is accepted before it is declared lost, and nothing of it afterwards.
        let Some(watched) = self.watched.get_mut(w) else { return Ok(()) };
        if mutant::is(Mutant::NoLastLook) {
            return self.lose(w, evidence, out);
        }
        let must_show = options.nudges && evidence == Evidence::Silence && !mutant::is(Mutant::HiddenNews);
        let shown = if must_show { show(env, w) } else { Ok(()) };
        let Ok(news) = shown.and_then(|()| watched.tail.finish(env.fs)) else {
            watched.silence.failed();
            watched.verdict = Verdict::Suspect;
            return Ok(());
        };
        let grew = news.grew;
        watched.take_note(news);
        if grew && !matches!(evidence, Evidence::Processes | Evidence::Successor) {
            watched.silence.restart();
            watched.verdict = Verdict::Alive;
        }
        self.digest(env, w, true)?;
        let Some(watched) = self.watched.get(w) else { return Ok(()) };
        if watched.said_bye || watched.refused.is_some() {
            return self.see_off(env, file, options, w, out);
        }
        if watched.verdict != Verdict::Dead(evidence) || watched.missing_since.is_some() {
            return Ok(());
        }
        if evidence == Evidence::Processes {
            let Some(worker) = self.work.workers.get(w).filter(|worker| !worker.out.is_empty()) else {
                return self.lose(w, evidence, out);
            };
            let Ok(groups) = started(env, file.id, &self.work, (w, worker)) else { return Ok(()) };
            if env.host.end_leftovers(&groups) > 0 {
                return Ok(());
            }
        }
        self.lose(w, evidence, out)
    }

    fn lose(&mut self, w: &WorkerId, evidence: Evidence, out: &mut Outcome) -> Result<(), Halt> {
        let Some(watched) = self.watched.get(w) else { return Ok(()) };
        let why = match evidence {
            Evidence::Processes => "its processes are gone from this host".to_owned(),
            Evidence::Successor => "its keeper has started another worker".to_owned(),
            Evidence::Lock => "its lock came free and its journal is silent".to_owned(),
            Evidence::Silence => format!("its journal has been silent for {} s", watched.silence.span.as_secs()),
        };
        out.notes.push(format!("worker {w} is lost: {why}"));
        self.decide(Op::Gone { w: w.clone(), how: Departure::Lost, why })
    }
}

/// Makes sure that no old listing hides the newest segment of a journal that looks silent, or all of it.
fn show(env: Env, w: &WorkerId) -> Result<(), FsError> {
    match decision::nudge(env.fs, env.chance, &layout::journal(w)) {
        Err(error) if error.not_found() => decision::nudge(env.fs, env.chance, layout::JOURNALS.as_ref()),
        nudged => nudged,
    }
}

/// Whether lines that were read are beats and marks, and nothing else.
fn is_sign_of_life(lines: &[(u64, Line)]) -> bool {
    !lines.is_empty() && lines.iter().all(|(_, line)| matches!(line, Line::Beat { .. } | Line::Mark { .. }))
}

/// All by which processes of the attempts that `w` has and that are not over can be told: the groups that its journal records, read
/// from the beginning, for starts that an earlier master took note of are in nobody's memory; and the tokens, for an attempt may
/// have started without a record.
fn started(env: Env, queue: Nonce, state: &State, (w, worker): (&WorkerId, &Worker)) -> Result<Vec<Group>, FsError> {
    let held = worker.out.iter().filter_map(|(&(job, at), &number)| Some(state.job(job)?.attempt_id(at, number)));
    let mut groups: Vec<Group> = held.map(|a| Group { pid: 0, ticks: 0, token: attempt_token(queue, w, a) }).collect();
    let mut tail = Tail::new(w.clone());
    loop {
        let news = tail.poll(env.fs)?;
        groups.extend(news.lines.into_iter().filter_map(|(_, line)| match line {
            Line::Start { a, group, .. } if owns(state, worker, a).is_some() => Some(group),
            _ => None,
        }));
        if !news.grew {
            return Ok(groups);
        }
    }
}

/// The message that issued attempt `a`, if `worker` has it.
fn owns(state: &State, worker: &Worker, a: AttemptId) -> Option<u64> {
    let (at, task) = state.task(a.task)?;
    let job = state.job(a.task.job)?.spec.job;
    (worker.out.get(&(job, at)) == Some(&a.number)).then_some(task.m)
}

/// The outcome to accept for an end line; `None` while a value that it names is not visible yet.
fn accepted(
    env: Env,
    state: &State,
    end: &EndLine,
    missing_since: &mut Option<Duration>,
    now: Duration,
) -> Option<How> {
    let is_there = [&end.out, &end.err].into_iter().all(|value| is_visible(env.fs, value));
    if is_there {
        *missing_since = None;
        return Some(end.how.clone());
    }
    if missing_since.is_none() {
        bring_back(env.fs, state, &end.out);
        bring_back(env.fs, state, &end.err);
    }
    let since = *missing_since.get_or_insert(now);
    if now.saturating_sub(since) <= Limits::span(state.limits.visible_ms) {
        return None;
    }
    // The bytes are lost: the attempt is run again, without blame.
    *missing_since = None;
    Some(How::Requeue(Requeue::Storage))
}

/// Moves a value back that was taken for one that nothing needs before its end line was read.
fn bring_back(fs: &dyn Fs, state: &State, value: &Ref) {
    let Some(file) = store::file_of(value) else { return };
    for (by, _) in state.trash.iter().filter(|(_, files)| files.contains(&file)) {
        // What fails here the purge does.
        let _ = gc::restore(fs, *by, &file);
    }
}

fn is_visible(fs: &dyn Fs, value: &Ref) -> bool {
    let (path, len) = match value {
        Ref::Inline { .. } => return true,
        Ref::Loose { sha, len } => (layout::object(sha), *len),
        Ref::Packed { pack, at, len, .. } => {
            if layout::parse_pack(pack).is_none() {
                return false;
            }
            (std::path::Path::new(layout::PACKS).join(pack), at.saturating_add(*len))
        }
    };
    let found = fs.open(&path).and_then(|file| file.stat());
    found.is_ok_and(|stat| if matches!(value, Ref::Loose { .. }) { stat.len == len } else { stat.len >= len })
}

/// A keeper as one of its workers names it, and the user of both: boot, pid namespace, process, its start, user.
type Watch<'a> = (&'a str, &'a str, u32, u64, u32);

fn watch(admit: &Admit) -> Option<Watch<'_>> {
    let keeper = admit.keeper.as_ref()?;
    Some((&keeper.boot_id, &keeper.pid_ns, keeper.pid, keeper.ticks, admit.worker.uid))
}

/// When the newest worker of each keeper was started, in clock ticks of their boot.
fn newest_of_keepers(state: &State) -> BTreeMap<Watch<'_>, u64> {
    let mut newest = BTreeMap::new();
    for admit in state.workers.values().map(|worker| &worker.admit) {
        if let Some(watch) = watch(admit) {
            let ticks = newest.entry(watch).or_insert(0);
            *ticks = admit.worker.ticks.max(*ticks);
        }
    }
    newest
}

fn observation(env: Env, worker: &Worker, watched: &Watched) -> Observation {
    Observation {
        worker: env.host.liveness(&worker.admit.worker),
        keeper: worker.admit.keeper.as_ref().map(|keeper| env.host.liveness(keeper)),
        has_successor: false,
        lock: watched.lock,
        lock_has_refused: watched.lock_has_refused,
        silence: watched.silence.clone(),
        self_fence_ms: worker.admit.self_fence_ms,
    }
}

/// Tries the lock of a worker where that may tell something: once while it is alive elsewhere, so that its refusal is known,
/// and now and then when it looks dead.
fn watch_lock(env: Env, w: &WorkerId, worker: &Worker, watched: &mut Watched) {
    let now = env.clock.boot();
    if worker.admit.lock != crate::protocol::record::LockVerdict::Held {
        watched.lock = LockSeen::Unknown;
        return;
    }
    let here = env.host.liveness(&worker.admit.worker);
    let keeper = worker.admit.keeper.as_ref().map_or(Liveness::Gone, |k| env.host.liveness(k));
    let is_gone = here == Liveness::Gone && keeper == Liveness::Gone;
    let looks_dead = is_gone || watched.verdict != Verdict::Alive;
    let learns = here == Liveness::Unknown && !watched.lock_has_refused && watched.lock == LockSeen::Untried;
    if now < watched.lock_at || !(looks_dead || learns) {
        return;
    }
    watched.lock_at =
        now + env.chance.jitter(if is_gone { Duration::from_millis(500) } else { Duration::from_secs(10) });
    let seen = match env.fs.lock(&layout::lock(w), LOCK_LIMIT) {
        Locked::Held(_) => LockSeen::Free,
        Locked::Refused => LockSeen::Refused,
        Locked::Unsupported | Locked::Hung | Locked::Failed(_) => LockSeen::Unknown,
    };
    if seen == LockSeen::Refused && !looks_dead {
        watched.lock_has_refused = true;
    }
    watched.lock = seen;
}
