//! Follows the decisions from outside as they become durable, and checks each against those before.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::{self, Group};
use crate::fs;
use crate::journal;
use crate::process::{Status, Stream};
use crate::protocol::digest::Digest;
use crate::protocol::id::{AttemptId, DecisionId, JobId, Nonce, TaskId, WorkerId};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Departure, Ended, Line, Op, Outcome, Ref, Requeue, Seen};
use crate::sim::View;
use crate::state::{State, encode_snapshot};
use crate::store;

use super::script;
use super::truth::Truth;

/// All decisions so far, and what they add up to.
pub(super) struct History {
    head: Option<String>,
    pub(super) state: State,
    sha: Option<Digest>,
    /// The names of all decisions on the chain.
    pub(super) chain: BTreeSet<DecisionId>,
    /// Ends that were accepted.
    pub(super) accepted: BTreeMap<AttemptId, Outcome>,
    /// Which decision issued which message.
    sent: BTreeSet<(WorkerId, u64, DecisionId)>,
    /// Mail that was seen in mailboxes.
    mail: BTreeSet<(WorkerId, u64, DecisionId)>,
    pub(super) lost: u64,
    pub(super) violations: Vec<String>,
    /// Submissions that were taken in, and requests that were answered: each once.
    ingested: BTreeMap<Nonce, JobId>,
    answered: BTreeSet<Nonce>,
    /// Where the file system does not keep its word: all that was known after each decision, for when it falls back to one.
    past: Option<BTreeMap<DecisionId, Past>>,
    /// How often it has fallen back.
    pub(super) fallbacks: u64,
}

/// What was known after one decision.
#[derive(Clone)]
struct Past {
    state: State,
    sha: Option<Digest>,
    accepted: BTreeMap<AttemptId, Outcome>,
    ingested: BTreeMap<Nonce, JobId>,
    answered: BTreeSet<Nonce>,
}

impl History {
    /// Starts at the first decision of the queue. `lies`: the file system promises what it does not keep.
    pub(super) fn new(first: DecisionId, lies: bool) -> Self {
        Self {
            head: None,
            state: State::new(first),
            sha: None,
            chain: [first].into(),
            accepted: BTreeMap::new(),
            sent: BTreeSet::new(),
            mail: BTreeSet::new(),
            lost: 0,
            violations: Vec::new(),
            ingested: BTreeMap::new(),
            answered: BTreeSet::new(),
            past: lies.then(BTreeMap::new),
            fallbacks: 0,
        }
    }

    /// Whether the file system may fall back behind what it has promised.
    pub(super) fn may_fall_back(&self) -> bool {
        self.past.is_some()
    }

    pub(super) fn blame(&mut self, what: impl Into<String>) {
        if self.violations.len() < 20 {
            self.violations.push(what.into());
        }
    }

    /// Takes in what has been decided since the last look and is durable.
    pub(super) fn look(&mut self, view: &View<'_>) {
        let names = view.list(layout::HEAD).unwrap_or_default();
        let mut tokens = names.iter().filter(|name| layout::parse_head(name).is_some());
        // In the middle of a move there is nothing to judge by.
        let (Some(name), None) = (tokens.next(), tokens.next()) else { return };
        let path = format!("{}/{name}", layout::HEAD);
        if self.head.as_deref() == Some(name) || !(self.may_fall_back() || view.is_durable(&path)) {
            return;
        }
        self.head = Some(name.clone());
        let Some(id) = layout::parse_head(name) else { return };
        match self.catch_up(view, id) {
            // A file system that lies has then forgotten files that a name it has kept depends on: there is nothing to follow.
            Err(_) if self.may_fall_back() && view.has_lost_power() => {}
            Err(why) => self.blame(why),
            Ok(()) => {}
        }
        self.look_at_mail(view);
    }

    fn catch_up(&mut self, view: &View<'_>, head: DecisionId) -> Result<(), String> {
        let truth = Truth::now(view);
        self.fall_back(&truth, head)?;
        let known = self.state.at;
        if head.generation < known.generation || (head.generation == known.generation && head != known) {
            return Err(format!("the durable head fell back from {known} to {head}"));
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut at = head;
        while at.generation > known.generation || (self.sha.is_none() && at == known) {
            let path = layout::decision(at);
            if !self.may_fall_back() && !view.is_durable(&path.to_string_lossy()) {
                return Err(format!("decision {at} is on the chain of the durable head {head} and is not durable"));
            }
            let bytes = fs::read_all(&truth, &path).map_err(|e| format!("decision {at}: {e}"))?;
            let group = decision::decode_group(&bytes).map_err(|e| format!("decision {at}: {e:?}"))?;
            let prev = group.header.prev;
            groups.push(group);
            match prev {
                Some(prev) => at = prev,
                None => break,
            }
        }
        if self.sha.is_some() && at != known {
            return Err(format!("decision {head} does not descend from {known} but from {at}"));
        }
        for group in groups.into_iter().rev() {
            self.enter(view, &group)?;
        }
        Ok(())
    }

    /// Goes back to the newest decision that is still on the chain of `head`, where the file system has forgotten some.
    fn fall_back(&mut self, truth: &Truth<'_>, head: DecisionId) -> Result<(), String> {
        let Some(past) = &self.past else { return Ok(()) };
        let mut at = head;
        while !past.contains_key(&at) {
            let bytes = fs::read_all(truth, &layout::decision(at)).map_err(|e| format!("decision {at}: {e}"))?;
            let group = decision::decode_group(&bytes).map_err(|e| format!("decision {at}: {e:?}"))?;
            match group.header.prev {
                Some(prev) => at = prev,
                None => return Ok(()),
            }
        }
        if at != self.state.at
            && let Some(old) = past.get(&at).cloned()
        {
            self.fallbacks += 1;
            (self.state, self.sha, self.accepted) = (old.state, old.sha, old.accepted);
            (self.ingested, self.answered) = (old.ingested, old.answered);
        }
        Ok(())
    }

    fn enter(&mut self, view: &View<'_>, group: &Group) -> Result<(), String> {
        let id = group.header.id;
        if group.header.prev_sha.is_some() && group.header.prev_sha != self.sha {
            return Err(format!("decision {id} names another predecessor than the one that was read"));
        }
        for op in &group.ops {
            self.judge(view, id, op);
        }
        let before = self.state.clone();
        self.state.apply_group(id, &group.ops).map_err(|absurd| format!("decision {id}: {absurd}"))?;
        if group.header.term != self.state.term {
            return Err(format!("decision {id} is of term {}, in term {}", group.header.term, self.state.term));
        }
        let leads = self.state.master.as_ref().or(before.master.as_ref());
        if id.generation > 0 && leads.is_some_and(|leader| leader.w != group.header.by) {
            self.blame(format!("decision {id} was made by {}, who does not lead", group.header.by));
        }
        self.chain.insert(id);
        self.sha = Some(group.sha);
        if let Some(past) = &mut self.past {
            let known = Past {
                state: self.state.clone(),
                sha: self.sha,
                accepted: self.accepted.clone(),
                ingested: self.ingested.clone(),
                answered: self.answered.clone(),
            };
            past.insert(id, known);
        }
        Ok(())
    }

    fn judge(&mut self, view: &View<'_>, id: DecisionId, op: &Op) {
        match op {
            Op::Send { w, m, .. } => {
                self.sent.insert((w.clone(), *m, id));
            }
            Op::Gone { w, how, .. } => {
                let next = self.state.workers.get(w).map_or(0, |worker| worker.sent) + 1;
                self.sent.insert((w.clone(), next, id));
                self.lost += u64::from(*how == Departure::Lost);
                if *how == Departure::Refused && !self.may_fall_back() {
                    self.blame(format!("worker {w} was refused: its journal is not of this chain"));
                }
            }
            Op::Read { w, seen, .. } => {
                for item in seen {
                    if let Seen::Ended(ended) = item
                        && let Err(why) = self.accept(view, w, ended)
                    {
                        self.blame(format!("decision {id} accepts the end of {}: {why}", ended.a));
                    }
                }
            }
            Op::Ingest(ingest) => {
                if let Some(other) = self.ingested.insert(ingest.sub, ingest.job) {
                    self.blame(format!("decision {id} takes in {} once more, which is {other}", ingest.job));
                }
            }
            Op::Answer { id: request, .. } if !self.answered.insert(*request) => {
                self.blame(format!("decision {id} answers request {request} once more"));
            }
            Op::Snapshot(reference) if reference.at == self.state.at => {
                if Digest::of(&encode_snapshot(&self.state)) != reference.sha {
                    self.blame(format!(
                        "the snapshot of {} is not the state that the decisions add up to",
                        reference.at
                    ));
                }
                let path = layout::snapshot(reference.at);
                if !self.may_fall_back() && !view.is_durable(&path.to_string_lossy()) {
                    self.blame(format!("decision {id} names a snapshot that is not durable"));
                }
            }
            _ => {}
        }
    }

    /// Checks that an accepted end is the first of its attempt, and that line and bytes are durable and right.
    fn accept(&mut self, view: &View<'_>, w: &WorkerId, ended: &Ended) -> Result<(), String> {
        let is_well = ended.how == Outcome::Ran(Status::Exit(0));
        let earlier = self.accepted.range(first_of(ended.a)..=ended.a).find(|(a, how)| {
            a.task == ended.a.task && (a.number == ended.a.number || **how == Outcome::Ran(Status::Exit(0)))
        });
        if let Some((a, how)) = earlier {
            return Err(format!("that of {a} was accepted before ({how:?})"));
        }
        self.accepted.insert(ended.a, ended.how.clone());
        if self.may_fall_back() && view.has_lost_power() {
            // What was read may be gone.
            return Ok(());
        }
        let durable = if self.may_fall_back() { Truth::now(view) } else { Truth::durable(view) };
        let line = journal::read_line(&durable, w, ended.line).map_err(|e| e.to_string())?;
        let Some(Line::End(end)) = line else {
            return Err(format!("line {} of {w} is no durable end: {line:?}", ended.line));
        };
        if end.a != ended.a {
            return Err(format!("line {} of {w} is the end of {}", ended.line, end.a));
        }
        if ended.how == Outcome::Requeue(Requeue::Storage) {
            // A rename that was reported and not done has cost the bytes, and the task runs again.
            return Ok(());
        }
        let name = self.state.job(ended.a.task.job).map_or(String::new(), |job| job.spec.name.clone());
        for (stream, value) in [(Stream::Stdout, &end.out), (Stream::Stderr, &end.err)] {
            let bytes = match store::read(&durable, value) {
                Ok(bytes) => bytes,
                Err(error) => in_trash(view, value).ok_or_else(|| format!("its durable {stream:?}: {error}"))?,
            };
            if is_well && bytes != script::output(&name, ended.a.task.index, stream) {
                return Err(format!("its {stream:?} has {} bytes, and not those that the task wrote", bytes.len()));
            }
        }
        Ok(())
    }

    fn look_at_mail(&mut self, view: &View<'_>) {
        for name in view.list(layout::WORKERS).unwrap_or_default() {
            let Ok(w) = name.parse::<WorkerId>() else { continue };
            for entry in view.list(&layout::mailbox(&w).to_string_lossy()).unwrap_or_default() {
                if let Some((m, by)) = layout::parse_message(&entry) {
                    self.mail.insert((w.clone(), m, by));
                }
            }
        }
    }

    /// Checks at the end that all mail was issued by decisions on the chain, and that none is missing that was not taken.
    pub(super) fn close(&mut self, view: &View<'_>) {
        self.look_at_mail(view);
        let stray: Vec<String> = self
            .mail
            .difference(&self.sent)
            .map(|(w, m, by)| format!("message {m} to {w} by {by} was never decided"))
            .collect();
        let mut missing = Vec::new();
        for (w, worker) in self.state.live_workers() {
            for (m, (by, _)) in &worker.outbox {
                let path = layout::message(w, *m, *by);
                if !view.exists(&path.to_string_lossy()) {
                    missing.push(format!("message {m} to {w} is not acknowledged and not in its mailbox"));
                }
            }
        }
        for what in stray.into_iter().chain(missing) {
            self.blame(what);
        }
        self.never_started_after_release(view);
    }

    /// Journals: no start after `released` of the same attempt, messages taken in order.
    fn never_started_after_release(&mut self, view: &View<'_>) {
        let truth = Truth::now(view);
        for name in view.list(layout::JOURNALS).unwrap_or_default() {
            let Ok(w) = name.parse::<WorkerId>() else { continue };
            let mut tail = journal::Tail::new(w.clone());
            let Ok(news) = tail.finish(&truth) else { continue };
            if let Some(damage) = news.damaged {
                self.blame(format!("the journal of {w} is damaged: {damage:?}"));
            }
            let mut released: BTreeSet<AttemptId> = BTreeSet::new();
            let mut taken = 0;
            for (seq, line) in news.lines {
                match line {
                    Line::Released { a, .. } => released.extend(a),
                    Line::Start { a, .. } if released.contains(&a) => {
                        self.blame(format!("line {seq} of {w} starts {a}, which it had released"));
                    }
                    Line::Claim { m, .. } | Line::Got { m, .. } => {
                        if m != taken + 1 {
                            self.blame(format!("line {seq} of {w} takes message {m} after {taken}"));
                        }
                        taken = m;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether all tasks of a job have ended in a way that they may.
    pub(super) fn has_ended(&self, id: JobId, part: &script::Part) -> bool {
        let job = self.state.job(id);
        if job.is_none() && self.state.knows(id) {
            // It was collected.
            return true;
        }
        job.is_some_and(|job| job.tasks.iter().all(|task| part.ends.contains(&task.state) || task.state.is_final()))
    }

    /// Whether all ends of tasks were reported to a user.
    pub(super) fn is_reported(&self, reported: &BTreeMap<TaskId, TaskState>) -> bool {
        self.state.jobs.values().all(|job| {
            let mut ended = job.tasks.iter().enumerate().filter(|(_, task)| task.state.is_final());
            ended.all(|(at, task)| reported.get(&job.task_id(at as u32)) == Some(&task.state))
        })
    }

    /// Who leads and which workers there are, for messages.
    pub(super) fn describe_roles(&self) -> String {
        let workers = self.state.live_workers().map(|(w, worker)| {
            let (sent, got, out) = (worker.sent, worker.got, worker.out.len());
            format!("{w} {:?}, took {got} of {sent} messages, has {out} attempts", worker.status)
        });
        let master = self.state.master.as_ref().map_or("nobody".into(), |m| m.w.to_string());
        format!("{master} leads in term {}; {}", self.state.term, workers.collect::<Vec<_>>().join("; "))
    }

    /// The task states of a job by the index of its tasks, for messages.
    pub(super) fn describe(&self, id: JobId) -> String {
        let Some(job) = self.state.job(id) else { return "not taken in".into() };
        let tasks = job.tasks.iter().enumerate().map(|(at, task)| {
            format!(
                "{} {} (attempt {}, {} failures, {} losses)",
                job.task_id(at as u32),
                task.state,
                task.attempt,
                task.failures,
                task.losses
            )
        });
        tasks.collect::<Vec<_>>().join(", ")
    }
}

/// The value of a loose object that lies in the trash at the moment: it was put again between the look of a collection and its
/// move, whose second look gives it back.
fn in_trash(view: &View<'_>, value: &Ref) -> Option<Vec<u8>> {
    let Ref::Loose { sha, .. } = value else { return None };
    let dirs = view.list(layout::TRASH)?;
    let found = dirs.iter().find_map(|dir| view.read_durable(&format!("{}/{dir}/{sha}", layout::TRASH)));
    found.filter(|bytes| Digest::of(bytes) == *sha)
}

fn first_of(a: AttemptId) -> AttemptId {
    AttemptId { number: 0, ..a }
}
