//! One operation after the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::id::{AttemptId, DecisionId, JobId, Target, WorkerId};
use crate::protocol::lifecycle::{Charge, TaskState, charge};
use crate::protocol::record::{Action, Admit, Departure, Ended, Ingest, Message, Op, Requeue, RunItem, Seen};

use super::depend::Met;
use super::{Absurd, Counts, Job, Leader, Past, State, Task, Worker, WorkerStatus, past_word};

/// The position under which the note of a whole job stands.
const WHOLE: u32 = u32::MAX;

/// Takes `job` off the lists of those that it waits for.
fn take_off(lists: &mut BTreeMap<JobId, BTreeSet<JobId>>, aliases: &BTreeMap<JobId, JobId>, job: &Job) {
    for dependency in &job.spec.needs.after {
        let on = aliases.get(&dependency.target.job).unwrap_or(&dependency.target.job);
        if let Some(waiting) = lists.get_mut(on) {
            waiting.remove(&job.spec.job);
            if waiting.is_empty() {
                lists.remove(on);
            }
        }
    }
}

type Applied = Result<(), Absurd>;

fn absurd<T>(why: impl Into<String>) -> Result<T, Absurd> {
    Err(Absurd(why.into()))
}

impl State {
    /// Applies all operations of the decision `id`, which follows [`State::at`].
    pub fn apply_group(&mut self, id: DecisionId, ops: &[Op]) -> Applied {
        ops.iter().try_for_each(|op| self.apply(id, op))?;
        self.at = id;
        Ok(())
    }

    /// Applies one operation of the decision `by`.
    pub fn apply(&mut self, by: DecisionId, op: &Op) -> Applied {
        match op {
            Op::Lead { term, master, identity } => {
                if *term != self.term + 1 {
                    return absurd(format!("term {term} follows term {}", self.term));
                }
                self.term = *term;
                self.master = Some(Leader { w: master.clone(), identity: identity.clone(), lead: by });
            }
            Op::Abdicate => self.master = None,
            Op::Limits { limits } => self.limits = limits.clone(),
            Op::Ingest(ingest) => self.ingest(ingest)?,
            Op::Alias { job, of } => {
                if self.knows(*job) || !self.jobs.contains_key(of) {
                    return absurd(format!("{job} cannot be another name of {of}"));
                }
                self.aliases.insert(*job, *of);
                if let Some(waiting) = self.dependents.remove(job) {
                    self.dependents.entry(*of).or_default().extend(waiting);
                }
                self.settle([*of].into());
            }
            Op::Reject { job, why } => {
                if self.knows(*job) {
                    return absurd(format!("job {job} is known and cannot be rejected"));
                }
                self.rejected.insert(*job, why.clone());
                self.settle([*job].into());
            }
            Op::Admit(admit) => self.admit(admit)?,
            Op::Send { w, m, msg } => self.send(by, w, *m, msg)?,
            Op::Read { w, seq, seen } => self.read(w, *seq, seen)?,
            Op::Gone { w, how, why } => self.gone(w, *how, why)?,
            Op::Answer { id, action, .. } => {
                self.answered.insert(*id);
                self.answer(action);
            }
            Op::Forget { ids } => ids.iter().for_each(|id| {
                self.answered.remove(id);
            }),
            Op::Snapshot(reference) => {
                self.snapshots.push(*reference);
                if self.snapshots.len() > 2 {
                    self.snapshots.remove(0);
                }
            }
            Op::Quarantine { files } => {
                self.trash.insert(by, files.clone());
            }
            Op::Purge { by } => {
                self.trash.remove(by);
            }
            Op::Prune { jobs, workers } => {
                jobs.iter().for_each(|n| self.prune(JobId(n)));
                self.forget_workers(workers);
            }
        }
        Ok(())
    }

    fn ingest(&mut self, ingest: &Ingest) -> Applied {
        let id = ingest.job;
        if self.knows(id) || self.subs.contains_key(&ingest.sub) {
            return absurd(format!("job {id} is taken in twice"));
        }
        let count = ingest.array.as_ref().map_or(1, crate::protocol::id::Ranges::len);
        if count == 0 || count > 10_000_000 {
            return absurd(format!("job {id} has {count} tasks"));
        }
        self.subs.insert(ingest.sub, id);
        if !ingest.needs.key.is_empty() {
            self.keys.insert((ingest.uid, ingest.needs.key.clone()), id);
        }
        let mut job = Job {
            spec: ingest.clone(),
            tasks: Vec::new(),
            counts: Counts::default(),
            unmet: BTreeSet::new(),
            ready: BTreeSet::new(),
            notes: BTreeMap::new(),
            past: BTreeMap::new(),
            measured: (0, 0),
            setup_on: BTreeSet::new(),
        };
        let mut never = None;
        for (i, dependency) in ingest.needs.after.iter().enumerate() {
            match self.met(dependency) {
                Met::Yes => {}
                Met::Never(why) => never = Some(why),
                Met::NotYet => {
                    job.unmet.insert(i as u32);
                    let on = *self.aliases.get(&dependency.target.job).unwrap_or(&dependency.target.job);
                    self.dependents.entry(on).or_default().insert(id);
                }
            }
        }
        let doomed = self.doomed.remove(&id).unwrap_or_default();
        let whole = doomed.iter().find(|(target, _)| target.indices.is_none()).map(|(_, reason)| reason.clone());
        let (state, note) = match (whole, never) {
            (Some(reason), _) => (TaskState::Cancelled, Some(reason)),
            (None, Some(why)) => (TaskState::Aborted, Some(why)),
            (None, None) if ingest.needs.hold => (TaskState::Held, Some("submitted with --hold".to_owned())),
            (None, None) if job.unmet.is_empty() => (TaskState::Ready, None),
            (None, None) => (TaskState::Waiting, None),
        };
        job.tasks = vec![Task::new(state); count as usize];
        job.counts.0[state as usize] = count;
        job.notes.extend(note.map(|note| (WHOLE, note)));
        if state == TaskState::Ready {
            job.ready = (0..count as u32).collect();
            self.queue.insert((Reverse(ingest.needs.priority), id));
        }
        if state.is_final() {
            job.unmet.clear();
        }
        self.jobs.insert(id, job);
        self.wait_no_more(id);
        for (target, reason) in &doomed {
            self.cancel(target, reason);
        }
        self.settle([id].into());
        Ok(())
    }

    fn admit(&mut self, admit: &Admit) -> Applied {
        if self.workers.contains_key(&admit.w) {
            return absurd(format!("worker {} is admitted twice", admit.w));
        }
        let no = self.numbers.keys().next_back().map_or(1, |n| n + 1);
        self.numbers.insert(no, admit.w.clone());
        self.workers.insert(
            admit.w.clone(),
            Worker {
                no,
                admit: admit.clone(),
                status: WorkerStatus::Active,
                sent: 0,
                got: 0,
                outbox: BTreeMap::new(),
                bundles: BTreeMap::new(),
                seq: 0,
                out: BTreeMap::new(),
                setup_row: BTreeSet::new(),
                refuses: BTreeSet::new(),
            },
        );
        Ok(())
    }

    fn live(&mut self, w: &WorkerId) -> Result<&mut Worker, Absurd> {
        match self.workers.get_mut(w) {
            Some(worker) if !worker.is_gone() => Ok(worker),
            Some(_) => absurd(format!("worker {w} is gone")),
            None => absurd(format!("worker {w} is not known")),
        }
    }

    fn send(&mut self, by: DecisionId, w: &WorkerId, m: u64, msg: &Message) -> Applied {
        let worker = self.live(w)?;
        if m != worker.sent + 1 {
            return absurd(format!("message {m} to {w} follows message {}", worker.sent));
        }
        worker.sent = m;
        worker.outbox.insert(m, (by, msg.clone()));
        match msg {
            Message::Run(items) => {
                worker.bundles.insert(m, by);
                items.iter().try_for_each(|item| self.issue(w, m, item))?;
            }
            Message::Drain => worker.status = WorkerStatus::Draining,
            Message::Withdraw { .. } | Message::Fence => {}
        }
        Ok(())
    }

    fn issue(&mut self, w: &WorkerId, m: u64, item: &RunItem) -> Applied {
        for attempt in item.attempts() {
            let Some((at, task)) = self.task(attempt.task) else {
                return absurd(format!("{attempt} is issued, and there is no such task"));
            };
            if task.state != TaskState::Ready || attempt.number != task.attempt + 1 {
                return absurd(format!(
                    "{attempt} is issued, and the task is {} after attempt {}",
                    task.state, task.attempt
                ));
            }
            let job = *self.aliases.get(&attempt.task.job).unwrap_or(&attempt.task.job);
            let worker = self.live(w)?;
            worker.out.insert((job, at), attempt.number);
            let no = worker.no;
            if let Some(task) = self.jobs.get_mut(&job).and_then(|j| j.tasks.get_mut(at as usize)) {
                task.attempt = attempt.number;
                task.worker = no;
                task.m = m;
                task.line = 0;
            }
            self.change(job, at, TaskState::Issued);
        }
        Ok(())
    }

    fn read(&mut self, w: &WorkerId, seq: u64, seen: &[Seen]) -> Applied {
        let worker = self.live(w)?;
        if seq < worker.seq {
            return absurd(format!("the journal of {w} is read back from {} to {seq}", worker.seq));
        }
        worker.seq = seq;
        for item in seen {
            match item {
                Seen::Got(m) => {
                    let worker = self.live(w)?;
                    if *m > worker.sent {
                        return absurd(format!("{w} took message {m}, and {} were sent", worker.sent));
                    }
                    worker.got = worker.got.max(*m);
                    worker.outbox.retain(|number, _| number > m);
                }
                Seen::Started(attempts) => {
                    self.live(w)?.setup_row.clear();
                    for attempt in attempts {
                        let (job, at) = self.owned(w, *attempt)?;
                        self.change(job, at, TaskState::Running);
                    }
                }
                Seen::Ended(ended) => self.ended(w, ended)?,
                Seen::Released(attempts, why) => {
                    for attempt in attempts {
                        let (job, at) = self.owned(w, *attempt)?;
                        self.hand_back(w, job, at);
                        self.remember(job, at, "released", 0);
                        let wanted = *why != Requeue::Cancelled;
                        self.requeue(job, at, wanted);
                    }
                }
                Seen::Paused(why) => {
                    let worker = self.live(w)?;
                    if matches!(worker.status, WorkerStatus::Active | WorkerStatus::Paused(_)) {
                        worker.status = WorkerStatus::Paused(why.clone());
                    }
                }
                Seen::Resumed => {
                    let worker = self.live(w)?;
                    if matches!(worker.status, WorkerStatus::Paused(_)) {
                        worker.status = WorkerStatus::Active;
                    }
                }
                Seen::Draining => self.live(w)?.status = WorkerStatus::Draining,
            }
        }
        Ok(())
    }

    /// The job and position of an attempt that `w` has.
    fn owned(&self, w: &WorkerId, attempt: AttemptId) -> Result<(JobId, u32), Absurd> {
        let job = *self.aliases.get(&attempt.task.job).unwrap_or(&attempt.task.job);
        let at = self.task(attempt.task).map(|(at, _)| at);
        let has =
            at.is_some_and(|at| self.workers.get(w).is_some_and(|w| w.out.get(&(job, at)) == Some(&attempt.number)));
        match at {
            Some(at) if has => Ok((job, at)),
            _ => absurd(format!("{attempt} is not with {w}")),
        }
    }

    /// Takes an attempt off its worker, and its bundle if that was the last of it.
    fn hand_back(&mut self, w: &WorkerId, job: JobId, at: u32) {
        let m = self.jobs.get(&job).and_then(|j| j.tasks.get(at as usize)).map_or(0, |task| task.m);
        let jobs = &self.jobs;
        if let Some(worker) = self.workers.get_mut(w) {
            worker.out.remove(&(job, at));
            let open = worker
                .out
                .keys()
                .any(|(job, at)| jobs.get(job).and_then(|j| j.tasks.get(*at as usize)).is_some_and(|task| task.m == m));
            if !open {
                worker.bundles.remove(&m);
            }
        }
    }

    fn ended(&mut self, w: &WorkerId, ended: &Ended) -> Applied {
        let (job, at) = self.owned(w, ended.a)?;
        self.hand_back(w, job, at);
        let no = self.live(w)?.no;
        let Some(entry) = self.jobs.get_mut(&job) else { return absurd(format!("there is no job {job}")) };
        let owner = entry.spec.uid;
        let retries = entry.spec.needs.retries;
        let task = &mut entry.tasks[at as usize];
        task.line = ended.line;
        let cancelling = task.cancelling;
        match charge(&ended.how) {
            Charge::Done => {
                entry.measured.0 += 1;
                entry.measured.1 += ended.ms;
                entry.notes.remove(&at);
                self.live(w)?.setup_row.clear();
                self.change(job, at, TaskState::Done);
            }
            Charge::Cancelled => self.change(job, at, TaskState::Cancelled),
            _ if cancelling => self.change(job, at, TaskState::Cancelled),
            Charge::Failure => {
                entry.measured.0 += 1;
                entry.measured.1 += ended.ms;
                task.failures += 1;
                if task.failures > retries {
                    self.change(job, at, TaskState::Failed);
                } else {
                    self.remember(job, at, past_word(&ended.how), ended.line);
                    self.delayed.insert((job, at));
                    self.requeue(job, at, true);
                }
            }
            Charge::Setup => {
                task.setups += 1;
                let spent = task.setups >= self.limits.setup_limit.max(1);
                entry.setup_on.insert(no);
                let blamed = entry.setup_on.len() > 1;
                self.blame_node(w, job, at, blamed)?;
                if spent {
                    self.note(job, at, "it could not be started, also not elsewhere");
                    self.change(job, at, TaskState::Failed);
                } else {
                    self.remember(job, at, past_word(&ended.how), ended.line);
                    self.requeue(job, at, true);
                }
            }
            Charge::Requeue => {
                self.remember(job, at, past_word(&ended.how), ended.line);
                self.requeue(job, at, true);
            }
            Charge::Refused => {
                self.live(w)?.refuses.insert(owner);
                self.remember(job, at, past_word(&ended.how), ended.line);
                self.requeue(job, at, true);
            }
        }
        Ok(())
    }

    /// Counts a set-up failure against a node, or takes the blame off all nodes if the same job failed on several.
    fn blame_node(&mut self, w: &WorkerId, job: JobId, at: u32, blamed_job: bool) -> Applied {
        let limit = self.limits.setup_limit.max(1) as usize;
        if blamed_job {
            for worker in self.workers.values_mut() {
                worker.setup_row.retain(|&(j, _)| j != job);
                if worker.status == WorkerStatus::Quarantined && worker.setup_row.len() < limit {
                    worker.status = WorkerStatus::Active;
                }
            }
            return Ok(());
        }
        let worker = self.live(w)?;
        worker.setup_row.insert((job, at));
        let spent = worker.setup_row.len() >= limit && worker.status == WorkerStatus::Active;
        let others = self.workers.iter().any(|(id, other)| id != w && other.is_active());
        if spent && others {
            self.live(w)?.status = WorkerStatus::Quarantined;
        }
        Ok(())
    }

    fn gone(&mut self, w: &WorkerId, how: Departure, why: &str) -> Applied {
        let worker = self.live(w)?;
        worker.status = WorkerStatus::Gone(how, why.to_owned());
        worker.outbox.clear();
        worker.bundles.clear();
        let host = worker.admit.worker.host.clone();
        let out = std::mem::take(&mut worker.out);
        for ((job, at), _) in out {
            let limit = self.limits.crash_limit;
            let Some(entry) = self.jobs.get_mut(&job) else { continue };
            let task = &mut entry.tasks[at as usize];
            let charged = how == Departure::Lost && task.state == TaskState::Running;
            task.losses += u32::from(charged);
            let spent = charged && task.losses >= limit && !task.cancelling;
            let losses = task.losses;
            self.remember(job, at, if how == Departure::Lost { "lost" } else { "requeued" }, 0);
            if spent {
                self.note(job, at, &format!("held: its worker was lost {losses} times, the last time on {host}"));
                self.change(job, at, TaskState::Held);
            } else {
                self.requeue(job, at, true);
            }
        }
        Ok(())
    }

    fn answer(&mut self, action: &Action) {
        match action {
            Action::Cancel { targets, reason } => {
                let note = if reason.is_empty() { "cancelled" } else { reason };
                for target in targets {
                    if !self.knows(target.job) {
                        self.doomed.entry(target.job).or_default().push((target.clone(), note.to_owned()));
                    }
                    self.cancel(target, note);
                }
            }
            Action::Hold { targets } => targets.iter().for_each(|target| {
                self.each(target, |state, job, at, task| {
                    if matches!(task.state, TaskState::Waiting | TaskState::Ready) {
                        state.note(job, at, "held by a person");
                        state.change(job, at, TaskState::Held);
                    }
                });
            }),
            Action::Release { targets } => targets.iter().for_each(|target| {
                self.each(target, |state, job, at, task| {
                    if task.state == TaskState::Held {
                        state.fresh_start(job, at);
                    }
                });
            }),
            Action::Retry { targets } => targets.iter().for_each(|(target, attempt)| {
                self.each(target, |state, job, at, task| {
                    let open = matches!(
                        task.state,
                        TaskState::Failed | TaskState::Cancelled | TaskState::Aborted | TaskState::Held
                    );
                    if open && task.attempt == *attempt {
                        if task.attempt > 0 && task.line > 0 {
                            state.remember(job, at, task.state.word(), task.line);
                        }
                        state.fresh_start(job, at);
                    }
                });
            }),
            Action::Drain { worker } => {
                if let Some(worker) = self.workers.get_mut(worker).filter(|w| !w.is_gone()) {
                    worker.status = WorkerStatus::Draining;
                }
            }
            Action::Collect { .. } => {}
        }
    }

    fn cancel(&mut self, target: &Target, note: &str) {
        self.each(target, |state, job, at, task| match task.state {
            TaskState::Waiting | TaskState::Ready | TaskState::Held => {
                state.note(job, at, note);
                state.change(job, at, TaskState::Cancelled);
            }
            TaskState::Issued | TaskState::Running => {
                state.note(job, at, note);
                if let Some(job) = state.jobs.get_mut(&job) {
                    job.tasks[at as usize].cancelling = true;
                }
            }
            _ => {}
        });
    }

    fn each(&mut self, target: &Target, mut act: impl FnMut(&mut Self, JobId, u32, Task)) {
        let Some((job, positions)) = self.expand(target) else { return };
        for at in positions {
            if let Some(task) = self.jobs.get(&job).and_then(|j| j.tasks.get(at as usize)).copied() {
                act(self, job, at, task);
            }
        }
        self.settle([job].into());
    }

    /// Makes a task that stands still run again, with its counters at zero.
    fn fresh_start(&mut self, job: JobId, at: u32) {
        let Some(spec) = self.jobs.get(&job).map(|j| j.spec.needs.after.clone()) else { return };
        let met: Vec<Met> = spec.iter().map(|dependency| self.met(dependency)).collect();
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.notes.remove(&at);
            entry.unmet.clear();
            let task = &mut entry.tasks[at as usize];
            (task.failures, task.losses, task.setups, task.cancelling) = (0, 0, 0, false);
        }
        self.wait_no_more(job);
        if let Some(why) = met.iter().find_map(|answer| if let Met::Never(why) = answer { Some(why) } else { None }) {
            self.note(job, at, why);
            self.change(job, at, TaskState::Aborted);
            return;
        }
        for (i, _) in met.iter().enumerate().filter(|(_, answer)| **answer == Met::NotYet) {
            let on = *self.aliases.get(&spec[i].target.job).unwrap_or(&spec[i].target.job);
            self.dependents.entry(on).or_default().insert(job);
            self.jobs.get_mut(&job).map(|j| j.unmet.insert(i as u32));
        }
        let waits = self.jobs.get(&job).is_some_and(|j| !j.unmet.is_empty());
        self.change(job, at, if waits { TaskState::Waiting } else { TaskState::Ready });
    }

    /// Takes a job off the lists of those that it waited for, if it waits for nothing any more.
    fn wait_no_more(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get(&id).filter(|job| job.unmet.is_empty()) {
            take_off(&mut self.dependents, &self.aliases, job);
        }
    }

    fn prune(&mut self, id: JobId) {
        if !self.jobs.get(&id).is_some_and(|job| job.counts.all_ended()) {
            return;
        }
        if let Some(job) = self.jobs.remove(&id) {
            take_off(&mut self.dependents, &self.aliases, &job);
            self.subs.remove(&job.spec.sub);
            self.keys.retain(|_, of| *of != id);
            self.dependents.remove(&id);
            self.pruned.insert(id.0);
            let aliases: Vec<JobId> =
                self.aliases.iter().filter(|(_, of)| **of == id).map(|(alias, _)| *alias).collect();
            for alias in aliases {
                self.aliases.remove(&alias);
                self.pruned.insert(alias.0);
            }
        }
    }

    /// Forgets those of `workers` that are gone and that no kept job refers to.
    fn forget_workers(&mut self, workers: &[WorkerId]) {
        let used = if workers.is_empty() { BTreeSet::new() } else { self.workers_in_use() };
        // The newest number stays known, so that numbers of workers are never used again.
        let newest = self.numbers.keys().next_back().copied();
        for id in workers {
            let Some(worker) = self.workers.get(id) else { continue };
            let no = worker.no;
            if worker.is_gone() && !used.contains(&no) && Some(no) != newest {
                self.numbers.remove(&no);
                self.workers.remove(id);
            }
        }
    }

    fn note(&mut self, job: JobId, at: u32, why: &str) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.notes.insert(at, why.to_owned());
        }
    }

    /// Writes the current attempt down as a past one.
    fn remember(&mut self, job: JobId, at: u32, how: &str, line: u64) {
        if let Some(job) = self.jobs.get_mut(&job) {
            let task = &mut job.tasks[at as usize];
            let past = Past { attempt: task.attempt, worker: task.worker, line, how: how.to_owned() };
            task.line = 0;
            job.past.entry(at).or_default().push(past);
        }
    }

    /// Puts a task whose attempt is over back in the queue, unless a person wants it ended.
    fn requeue(&mut self, job: JobId, at: u32, wanted: bool) {
        let Some(entry) = self.jobs.get(&job) else { return };
        let cancelling = entry.tasks[at as usize].cancelling;
        let waits = !entry.unmet.is_empty();
        self.change(
            job,
            at,
            match (wanted && !cancelling, waits) {
                (false, _) => TaskState::Cancelled,
                (true, true) => TaskState::Waiting,
                (true, false) => TaskState::Ready,
            },
        );
    }

    /// Changes the state of a task, and all that hangs on it.
    fn change(&mut self, id: JobId, at: u32, to: TaskState) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let task = &mut job.tasks[at as usize];
        let from = task.state;
        if from == to {
            return;
        }
        task.state = to;
        if to.is_final() {
            task.cancelling = false;
        }
        job.counts.step(Some(from), to);
        if from == TaskState::Ready {
            job.ready.remove(&at);
            if job.ready.is_empty() {
                self.queue.remove(&(Reverse(job.spec.needs.priority), id));
            }
        }
        if to == TaskState::Ready {
            job.ready.insert(at);
            self.queue.insert((Reverse(job.spec.needs.priority), id));
        } else {
            self.delayed.remove(&(id, at));
        }
        if to.is_final() {
            self.settle([id].into());
        }
    }

    /// Judges anew all jobs that depend on one of `changed`, and those that depend on them in turn.
    fn settle(&mut self, mut changed: BTreeSet<JobId>) {
        while let Some(id) = changed.pop_first() {
            let Some(waiting) = self.dependents.get(&id).cloned() else { continue };
            for dependent in waiting {
                let Some(job) = self.jobs.get(&dependent) else { continue };
                let mut never = None;
                let mut met = Vec::new();
                let mut left = 0;
                for &i in &job.unmet {
                    let dependency = &job.spec.needs.after[i as usize];
                    let on = *self.aliases.get(&dependency.target.job).unwrap_or(&dependency.target.job);
                    match self.met(dependency) {
                        Met::Yes => met.push(i),
                        Met::NotYet => left += usize::from(on == id),
                        Met::Never(why) => never = Some(why),
                    }
                }
                if left == 0 {
                    self.dependents.get_mut(&id).map(|set| set.remove(&dependent));
                }
                let Some(job) = self.jobs.get_mut(&dependent) else { continue };
                job.unmet.retain(|i| !met.contains(i));
                let to = match (&never, job.unmet.is_empty()) {
                    (Some(_), _) => TaskState::Aborted,
                    (None, true) => TaskState::Ready,
                    (None, false) => continue,
                };
                if let Some(why) = &never {
                    job.unmet.clear();
                    job.notes.insert(WHOLE, why.clone());
                }
                let moved: Vec<u32> = (0u32..)
                    .zip(&job.tasks)
                    .filter(|(_, task)| match task.state {
                        TaskState::Waiting => true,
                        TaskState::Held | TaskState::Ready => to == TaskState::Aborted,
                        _ => false,
                    })
                    .map(|(at, _)| at)
                    .collect();
                for at in moved {
                    self.change_quietly(dependent, at, to);
                }
                self.wait_no_more(dependent);
                if never.is_some() {
                    changed.insert(dependent);
                }
            }
            if self.dependents.get(&id).is_some_and(BTreeSet::is_empty) {
                self.dependents.remove(&id);
            }
        }
    }

    /// [`Self::change`] without looking at dependents, for use by [`Self::settle`], which does that itself.
    fn change_quietly(&mut self, id: JobId, at: u32, to: TaskState) {
        let dependents = std::mem::take(&mut self.dependents);
        self.change(id, at, to);
        self.dependents = dependents;
    }

    /// Builds the indices that are not part of a snapshot.
    pub(super) fn index(&mut self) {
        self.numbers = self.workers.iter().map(|(id, w)| (w.no, id.clone())).collect();
        self.queue.clear();
        self.dependents.clear();
        for (id, job) in &mut self.jobs {
            job.counts = Counts::default();
            job.tasks.iter().for_each(|task| job.counts.step(None, task.state));
            job.ready =
                (0u32..).zip(&job.tasks).filter(|(_, t)| t.state == TaskState::Ready).map(|(at, _)| at).collect();
            if !job.ready.is_empty() {
                self.queue.insert((Reverse(job.spec.needs.priority), *id));
            }
            for &i in &job.unmet {
                let on = job.spec.needs.after[i as usize].target.job;
                self.dependents.entry(*self.aliases.get(&on).unwrap_or(&on)).or_default().insert(*id);
            }
        }
    }

    /// The delayed tasks, for a snapshot.
    pub(super) fn delayed_mut(&mut self) -> &mut BTreeSet<(JobId, u32)> {
        &mut self.delayed
    }
}
