//! Collecting what nobody needs, as one master decides it (spec: ordering, "Collecting").
//!
//! A round is a survey, `gc_wait_ms`, another survey; what neither needs is quarantined, and purged `gc_wait_ms` later. Rounds
//! begin by request and once a day.
//!
//! Invariants:
//! - Safety rests on decisions and on the roots that each chore reads, never on what is remembered here: a successor begins a new
//!   round, purges the trash that it finds in the state after a wait of its own, and gives back what no decision knows.
//! - All waiting is done on the own boot clock, at least for a lease: what a worker had put and not told of by then it never
//!   will.
//! - Only the age of ended jobs is judged by wall clocks, and only if a person asks for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::fs;
use crate::gc::{self, Keep, Survey, Unsure};
use crate::protocol::id::{DecisionId, JobId, Ranges, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{Limits, Op};
use crate::state::State;

use super::chores::{Chore, Leftovers, Report, SurveyNo};
use super::lead::Lead;
use super::{Env, Halt, Outcome};

/// From the end of one round to the beginning of the next, unless it is asked for.
const EVERY: Duration = Duration::from_secs(86_400);
/// How long a new leader waits at most before its first round.
const FIRST: Duration = Duration::from_secs(3_600);
/// A survey that has not come back after so long is given up.
const SURVEY_MAX: Duration = Duration::from_secs(6 * 3_600);
/// A look or a step that failed is tried again after so long.
const AGAIN: Duration = Duration::from_secs(60);
/// At most so many files are quarantined by one decision.
const FILES_MAX: usize = 5_000;
/// At most so many files are in the trash, for the state holds their names.
const TRASH_MAX: usize = 50_000;

/// Where a leader stands with collecting.
#[derive(Debug)]
pub(super) struct Collect {
    lead: DecisionId,
    /// The number of the last survey.
    number: u64,
    /// The survey under way, and since when.
    pending: Option<(u64, Duration)>,
    /// A survey that came back and was not looked at yet.
    came: Option<Result<Box<Survey>, Unsure>>,
    /// How long nothing must have needed a file: no shorter than a worker can go on without a sign of life.
    wait: Duration,
    /// When the next round begins by itself.
    next_at: Duration,
    /// A round was asked for.
    wanted: bool,
    /// The shortest time that anybody asked ended jobs to be kept, in milliseconds, since the last survey.
    keep_ms: Option<u64>,
    /// The first survey of the round, and when it came.
    first: Option<(Duration, Survey)>,
    /// Which jobs to forget, and when which ended, until that is decided.
    old: Option<(Keep, BTreeMap<JobId, u64>)>,
    /// Files to quarantine, one decision each, until that is decided.
    files: VecDeque<Vec<String>>,
    /// Workers whose namespaces are gone, until they are forgotten.
    forget: Vec<WorkerId>,
    /// Workers whose namespaces this leader has had removed: they are not met again.
    dropped: BTreeSet<WorkerId>,
    /// Since when this leader knows of each trash directory.
    trash: BTreeMap<DecisionId, Duration>,
    /// What the janitor has said.
    said: Vec<String>,
    again_at: Duration,
    has_news: bool,
}

impl Collect {
    pub(super) fn new(state: &State, now: Duration) -> Self {
        Self {
            lead: state.at,
            number: 0,
            pending: None,
            came: None,
            wait: Limits::span(state.limits.gc_wait_ms.max(state.limits.lease_ms)),
            next_at: now + FIRST.min(Limits::span(state.limits.gc_wait_ms)),
            wanted: false,
            keep_ms: None,
            first: None,
            old: None,
            files: VecDeque::new(),
            forget: Vec::new(),
            dropped: BTreeSet::new(),
            trash: state.trash.keys().map(|by| (*by, now)).collect(),
            said: Vec::new(),
            again_at: now,
            has_news: false,
        }
    }

    /// Asks for a round; with `keep_ms` also for forgetting jobs that ended longer ago.
    pub(super) fn ask(&mut self, keep_ms: Option<u64>) {
        self.wanted = true;
        self.keep_ms = self.keep_ms.into_iter().chain(keep_ms).min();
        self.has_news = true;
    }

    pub(super) fn take_report(&mut self, report: Report) {
        self.has_news = true;
        match report {
            Report::Survey(no, found) if no.lead == self.lead && self.pending.is_some_and(|(n, _)| n == no.number) => {
                self.came = Some(found);
            }
            Report::Survey(..) => {}
            Report::Said(said) => self.said.push(said),
        }
    }

    /// Takes note of an operation that is bound.
    pub(super) fn won(&mut self, op: &Op) {
        match op {
            Op::Prune { .. } => {
                self.old = None;
                self.forget.clear();
            }
            Op::Quarantine { .. } => {
                self.files.pop_front();
            }
            Op::Purge { by } => {
                self.trash.remove(by);
            }
            _ => {}
        }
    }

    /// Whether the namespace of `w` is being removed.
    pub(super) fn drops(&self, w: &WorkerId) -> bool {
        self.dropped.contains(w)
    }

    /// When there is something to do here.
    pub(super) fn due(&self, now: Duration) -> Duration {
        if self.has_news {
            return now;
        }
        let mut due = match (&self.pending, &self.first) {
            (Some((_, since)), _) => *since + SURVEY_MAX,
            (None, None) if self.wanted || self.keep_ms.is_some() => now,
            (None, None) => self.next_at,
            (None, Some((at, _))) => *at + self.wait,
        };
        if !self.files.is_empty() || self.old.is_some() || !self.forget.is_empty() {
            due = now;
        }
        due.max(self.again_at)
    }
}

impl Lead {
    /// Does what is due of collecting: at most one survey is under way, and one decision at a time.
    pub(super) fn collect(&mut self, env: Env, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        self.collect.has_news = false;
        out.notes.append(&mut self.collect.said);
        let fence = self.work.live_workers().map(|(_, worker)| worker.admit.self_fence_ms).max().unwrap_or(0);
        let limits = &self.work.limits;
        self.collect.wait = Limits::span(limits.gc_wait_ms.max(limits.lease_ms).max(fence + limits.grace_ms));
        if let Some(came) = self.collect.came.take()
            && let Some((_, began)) = self.collect.pending.take()
        {
            match came {
                Ok(found) => self.study(env, *found, began, out),
                Err(why) => {
                    out.notes.push(format!("nothing is collected for now: {why}"));
                    self.collect.again_at = now + AGAIN;
                }
            }
        }
        if now < self.collect.again_at {
            return Ok(());
        }
        self.call_for_survey(now, out);
        self.decide_prune(env, now)?;
        self.decide_purge(now)?;
        self.decide_quarantine(env, now, out)
    }

    fn call_for_survey(&mut self, now: Duration, out: &mut Outcome) {
        let collect = &mut self.collect;
        if collect.pending.is_some_and(|(_, since)| now < since + SURVEY_MAX) {
            return;
        }
        let is_due = match &collect.first {
            Some((at, _)) => now >= *at + collect.wait,
            None => collect.wanted || now >= collect.next_at,
        };
        // Decisions of the last round come first.
        if (is_due || collect.keep_ms.is_some()) && collect.files.is_empty() && collect.old.is_none() {
            collect.number += 1;
            collect.pending = Some((collect.number, now));
            out.chores.push(Chore::Survey(SurveyNo { lead: collect.lead, number: collect.number }));
        }
    }

    /// Draws the consequences of a survey that `began` at that boot time.
    fn study(&mut self, env: Env, found: Survey, began: Duration, out: &mut Outcome) {
        let now = env.clock.boot();
        // Also a quarantine that is in this very draft is known: its directory was made under the draft's name.
        let orphans = gc::orphans(&found.inventory, |by| self.work.trash.contains_key(&by) || by == self.id);
        if !orphans.is_empty() {
            out.chores.push(Chore::GiveBack(orphans));
        }
        if let Some(keep_ms) = self.collect.keep_ms.take() {
            let keep = Keep { keep_ms, now_ms: env.clock.wall_ms() };
            self.collect.old = Some((keep, found.needed.ended_ms.clone()));
        }
        let gone = self.work.workers.iter().filter(|(w, worker)| worker.is_gone() && !found.journals.contains_key(w));
        let in_use = self.work.workers_in_use();
        let newest = self.work.workers.values().map(|worker| worker.no).max();
        self.collect.forget = gone
            .filter(|(_, worker)| !in_use.contains(&worker.no) && Some(worker.no) != newest)
            .map(|(w, _)| w.clone())
            .collect();
        match self.collect.first.take() {
            None if self.collect.wanted || now >= self.collect.next_at => {
                self.collect.wanted = false;
                self.collect.first = Some((now, found));
            }
            Some((at, first)) if began >= at + self.collect.wait => {
                self.conclude(&first, &found, &in_use, out);
                self.collect.next_at = now + EVERY;
            }
            first => self.collect.first = first,
        }
    }

    /// Draws the consequences of both surveys of a round.
    fn conclude(&mut self, first: &Survey, second: &Survey, in_use: &BTreeSet<u32>, out: &mut Outcome) {
        let mut living = &first.living | &second.living;
        living.extend(self.work.live_workers().map(|(w, _)| w.clone()));
        let found = gc::candidates(&first.inventory, &second.inventory, &second.needed.roots, &living);
        let room = TRASH_MAX.saturating_sub(self.work.trash.values().map(Vec::len).sum());
        let files: Vec<String> = found.files.into_iter().take(room).collect();
        self.collect.files = files.chunks(FILES_MAX).map(<[String]>::to_vec).collect();
        let state = &self.work;
        let workers = gc::workers_to_drop(&first.journals, &second.journals, |w| {
            state.workers.get(w).is_some_and(|worker| !worker.is_gone() || in_use.contains(&worker.no))
        });
        let buckets = gc::job_buckets_to_drop(&second.needed.buckets, |job: JobId| {
            state.pruned.contains(job.0) || state.rejected.contains_key(&job)
        });
        self.collect.dropped.extend(workers.iter().cloned());
        out.chores.extend(Leftovers { temps: found.temps, workers, buckets }.chore());
    }

    fn decide_prune(&mut self, env: Env, now: Duration) -> Result<(), Halt> {
        let jobs = match &self.collect.old {
            // What has begun to matter since the survey is looked at now.
            Some((keep, ended_ms)) => gc::old_jobs(&self.work, ended_ms, *keep),
            None => Ranges::default(),
        };
        let mut workers = self.collect.forget.clone();
        if !workers.is_empty() {
            // A namespace that came back after its worker was forgotten would be that of a new one.
            let (Ok(spaces), Ok(journals)) =
                (fs::settle_dir(env.fs, layout::WORKERS.as_ref()), fs::settle_dir(env.fs, layout::JOURNALS.as_ref()))
            else {
                self.collect.again_at = now + AGAIN;
                return Ok(());
            };
            let there: BTreeSet<&str> = spaces.iter().chain(&journals).map(|entry| entry.name.as_str()).collect();
            workers.retain(|w| !there.contains(w.to_string().as_str()));
            self.collect.forget.clone_from(&workers);
        }
        if jobs.is_empty() && workers.is_empty() {
            self.collect.old = None;
            return Ok(());
        }
        self.decide(Op::Prune { jobs, workers })
    }

    fn decide_purge(&mut self, now: Duration) -> Result<(), Halt> {
        let known: Vec<DecisionId> = self.work.trash.keys().copied().collect();
        self.collect.trash.retain(|by, _| known.contains(by));
        for by in known {
            let since = *self.collect.trash.entry(by).or_insert(now);
            if now >= since + self.collect.wait {
                self.decide(Op::Purge { by })?;
            }
        }
        Ok(())
    }

    fn decide_quarantine(&mut self, env: Env, now: Duration, out: &mut Outcome) -> Result<(), Halt> {
        let Some(files) = self.collect.files.front().cloned() else { return Ok(()) };
        // Before the decision is bound, and never after: a late rename of a deposed master must find no directory.
        if let Err(error) = gc::prepare(env.fs, self.id) {
            out.notes.push(format!("{error}: nothing is collected for now"));
            self.collect.again_at = now + AGAIN;
            return Ok(());
        }
        self.decide(Op::Quarantine { files })
    }
}
