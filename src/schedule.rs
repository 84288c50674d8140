//! Which tasks go to which worker: a pure function of the state.
//!
//! Jobs are served by priority, then by number. A worker gets as much as its CPUs take, and more of a job whose tasks are short,
//! so that its slots do not starve between two looks at its mailbox. The first job of which a task is too wide for what is free
//! keeps one worker from being filled with later, narrower ones. Spec: lifecycle, "Placement".

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::id::{JobId, Ranges, WorkerId};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::RunItem;
use crate::state::{Job, State, Worker};

/// About so much work is given to each CPU of a worker in advance, in milliseconds.
const AHEAD_MS: u64 = 1000;
/// At most so many tasks for each CPU.
const DEPTH_MAX: u64 = 64;

/// What one worker gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Who.
    pub w: WorkerId,
    /// What; tasks of one job and attempt number each.
    pub items: Vec<RunItem>,
}

/// A worker, how full it is, and what it gets.
struct Slot<'a> {
    id: &'a WorkerId,
    worker: &'a Worker,
    cpus: u64,
    mem: u64,
    /// Nothing more, because a task that is too wide for what is free waits for it.
    kept_free: bool,
    items: Vec<RunItem>,
}

/// Places ready tasks. `may_run` says whether a task is not in a back-off; `may_get` whether a worker is not under suspicion.
pub fn place(state: &State, may_run: &dyn Fn(JobId, u32) -> bool, may_get: &dyn Fn(&WorkerId) -> bool) -> Vec<Bundle> {
    let mut slots: Vec<Slot> = state
        .live_workers()
        .filter(|(id, worker)| worker.is_active() && may_get(id))
        .map(|(id, worker)| Slot::new(state, id, worker))
        .collect();
    let mut is_anyone_waiting = false;
    for (_, job) in state.queue() {
        if slots.iter().all(|slot| slot.kept_free || slot.is_full()) {
            break;
        }
        let fits_nowhere = place_job(job, may_run, &mut slots);
        // One worker is enough: who waits for it comes first also next time, and then the next one waits.
        if fits_nowhere && !is_anyone_waiting {
            is_anyone_waiting = keep_one_free(job, &mut slots);
        }
    }
    slots.retain(|slot| !slot.items.is_empty());
    slots.into_iter().map(|slot| Bundle { w: slot.id.clone(), items: slot.items }).collect()
}

/// Places tasks of one job; says whether some fit nowhere now.
fn place_job(job: &Job, may_run: &dyn Fn(JobId, u32) -> bool, slots: &mut [Slot]) -> bool {
    let needs = &job.spec.needs;
    let cap = if needs.cap == 0 { u64::MAX } else { needs.cap.saturating_sub(job.out_count()) };
    let depth = job.mean_ms().map_or(1, |mean| (AHEAD_MS / mean.max(1)).clamp(1, DEPTH_MAX));
    let shuns = shuns(job, slots);
    let mut open: Vec<&mut Slot> =
        slots.iter_mut().filter(|slot| slot.room(job, depth) > 0 && slot.suits(job, shuns)).collect();
    // The emptiest worker first.
    open.sort_by_key(|slot| slot.cpus * 1000 / u64::from(slot.worker.admit.cpus.max(1)));
    let room = open.iter().map(|slot| slot.room(job, depth)).fold(0, u64::saturating_add);
    let mut ready = job
        .ready
        .iter()
        .copied()
        .filter(|&at| may_run(job.spec.job, at))
        .take(usize::try_from(cap).unwrap_or(usize::MAX))
        .peekable();
    let tasks: Vec<u32> = ready.by_ref().take(usize::try_from(room).unwrap_or(usize::MAX)).collect();
    let mut left = tasks.as_slice();
    let mut given: Vec<Vec<u32>> = vec![Vec::new(); open.len()];
    // First what can start at once, then what is given in advance; each gets its share, so that no one is left idle.
    for level in [1, depth] {
        let mut total = open.iter().map(|slot| slot.room(job, level)).fold(0, u64::saturating_add);
        for (slot, given) in open.iter_mut().zip(&mut given) {
            let room = slot.room(job, level);
            if left.is_empty() || room == 0 {
                continue;
            }
            let share = (left.len() as u128 * u128::from(room)).div_ceil(u128::from(total));
            let take = share.min(u128::from(room)).min(left.len() as u128) as usize;
            total -= room;
            let (now, later) = left.split_at(take);
            left = later;
            slot.take(job, take as u64);
            given.extend_from_slice(now);
        }
    }
    for (slot, mut given) in open.into_iter().zip(given).filter(|(_, given)| !given.is_empty()) {
        given.sort_unstable();
        add_items(&mut slot.items, job, &given);
    }
    !left.is_empty() || ready.peek().is_some()
}

/// Keeps the worker that lacks least for the job from being filled with what comes after it; says whether there is one.
fn keep_one_free(job: &Job, slots: &mut [Slot]) -> bool {
    let shuns = shuns(job, slots);
    let nearest = slots.iter_mut().filter(|slot| slot.suits(job, shuns)).min_by_key(|slot| slot.lacks(job));
    nearest.map(|slot| slot.kept_free = true).is_some()
}

/// Whether the job passes over workers on which its set-up failed, because there are others that it could run on.
fn shuns(job: &Job, slots: &[Slot]) -> bool {
    !job.setup_on.is_empty()
        && slots.iter().any(|slot| !job.setup_on.contains(&slot.worker.no) && unfit(job, slot.worker).is_none())
}

impl<'a> Slot<'a> {
    fn new(state: &State, id: &'a WorkerId, worker: &'a Worker) -> Self {
        let mut slot = Self { id, worker, cpus: 0, mem: 0, kept_free: false, items: Vec::new() };
        for (job, _) in worker.out.keys() {
            if let Some(job) = state.jobs.get(job) {
                slot.take(job, 1);
            }
        }
        slot
    }

    fn take(&mut self, job: &Job, count: u64) {
        self.cpus += u64::from(job.spec.needs.cpus.max(1)) * count;
        self.mem = self.mem.saturating_add(job.spec.needs.mem.saturating_mul(count));
    }

    /// Whether it takes nothing of any job.
    fn is_full(&self) -> bool {
        self.cpus >= u64::from(self.worker.admit.cpus) * DEPTH_MAX
    }

    /// Whether it may get tasks of the job at some time.
    fn suits(&self, job: &Job, shuns: bool) -> bool {
        let is_out = self.kept_free || (shuns && job.setup_on.contains(&self.worker.no));
        !is_out && unfit(job, self.worker).is_none()
    }

    /// How many more tasks of the job it takes if it may have `depth` times what it can run.
    fn room(&self, job: &Job, depth: u64) -> u64 {
        if self.kept_free {
            return 0;
        }
        let (needs, admit) = (&job.spec.needs, &self.worker.admit);
        let cpus = (u64::from(admit.cpus) * depth).saturating_sub(self.cpus) / u64::from(needs.cpus.max(1));
        let mem = if needs.mem == 0 || admit.mem == 0 {
            u64::MAX
        } else {
            admit.mem.saturating_mul(depth).saturating_sub(self.mem) / needs.mem
        };
        cpus.min(mem)
    }

    /// By how much it is too full for one task of the job, in thousandths of its size.
    fn lacks(&self, job: &Job) -> u128 {
        let (needs, admit) = (&job.spec.needs, &self.worker.admit);
        let short = |has: u64, used: u64, needed: u64| {
            (u128::from(used) + u128::from(needed)).saturating_sub(u128::from(has)) * 1000 / u128::from(has.max(1))
        };
        let mem = if needs.mem == 0 || admit.mem == 0 { 0 } else { short(admit.mem, self.mem, needs.mem) };
        short(u64::from(admit.cpus), self.cpus, u64::from(needs.cpus.max(1))) + mem
    }
}

fn add_items(items: &mut Vec<RunItem>, job: &Job, positions: &[u32]) {
    let mut by_attempt: BTreeMap<u32, Ranges> = BTreeMap::new();
    for &at in positions {
        let set = by_attempt.entry(job.tasks[at as usize].attempt + 1).or_default();
        if let Some(index) = job.task_id(at).index {
            set.insert(index);
        }
    }
    items.extend(by_attempt.into_iter().map(|(attempt, set)| RunItem {
        job: job.spec.job,
        sha: job.spec.sha,
        uid: job.spec.uid,
        tasks: job.spec.array.is_some().then_some(set),
        attempt,
    }));
}

/// Why `worker` can never run tasks of `job`, whatever else it does.
pub fn unfit(job: &Job, worker: &Worker) -> Option<String> {
    let needs = &job.spec.needs;
    let trust = &worker.admit.trust;
    if needs.cpus > worker.admit.cpus {
        return Some(format!("it has {} of the {} CPUs", worker.admit.cpus, needs.cpus));
    }
    if worker.admit.mem > 0 && needs.mem > worker.admit.mem {
        return Some(format!("it has {} of the {} bytes of memory", worker.admit.mem, needs.mem));
    }
    let uid = job.spec.uid;
    // Who is in the group only the worker knows; one of root trusts no group.
    let trusted = uid == trust.uid || trust.uids.contains(&uid) || (trust.gid.is_some() && trust.uid != 0);
    if !trusted || worker.refuses.contains(&uid) {
        return Some(format!("it does not run tasks of user {uid}"));
    }
    None
}

/// Attempts that were issued to busy workers, do not run yet, and would start at once on an idle one.
///
/// Half of what the fullest worker cannot start at once, and only if some worker has nothing to do and nothing that is ready
/// would suit it. Whether the master has asked already is for the caller to remember.
pub fn rebalance(state: &State, may_get: &dyn Fn(&WorkerId) -> bool) -> Option<(WorkerId, Vec<(JobId, u32)>)> {
    let idle: Vec<&Worker> = state
        .live_workers()
        .filter(|(id, w)| w.is_active() && w.out.is_empty() && may_get(id))
        .map(|(_, w)| w)
        .collect();
    if idle.is_empty() {
        return None;
    }
    let delayed: BTreeSet<(JobId, u32)> = state.delayed().map(|(job, at, _)| (job, at)).collect();
    let suits_idle = |job: &Job| idle.iter().any(|w| unfit(job, w).is_none());
    let is_placeable = |(id, job): (JobId, &Job)| {
        let is_capped = job.spec.needs.cap > 0 && job.out_count() >= job.spec.needs.cap;
        !is_capped && job.ready.iter().any(|&at| !delayed.contains(&(id, at))) && suits_idle(job)
    };
    if state.queue().any(is_placeable) {
        return None;
    }
    let (id, mut tail) = state
        .live_workers()
        .filter(|(_, w)| w.out.len() > 1)
        .map(|(id, w)| (id, surplus(state, w, &suits_idle)))
        .max_by_key(|(_, tail)| tail.len())
        .filter(|(_, tail)| !tail.is_empty())?;
    let take = tail.len().div_ceil(2);
    Some((id.clone(), tail.split_off(tail.len() - take)))
}

/// Attempts that the worker has and cannot start at once, as far as others could.
fn surplus(state: &State, worker: &Worker, suits_others: &dyn Fn(&Job) -> bool) -> Vec<(JobId, u32)> {
    let out = || worker.out.keys().filter_map(|&(id, at)| Some((id, at, state.jobs.get(&id)?)));
    let waits = |job: &Job, at: u32| job.tasks[at as usize].state == TaskState::Issued;
    let cpus = |job: &Job| u64::from(job.spec.needs.cpus.max(1));
    let running: u64 = out().filter(|(_, at, job)| !waits(job, *at)).map(|(_, _, job)| cpus(job)).sum();
    let mut free = u64::from(worker.admit.cpus).saturating_sub(running);
    let mut tail = Vec::new();
    for (id, at, job) in out().filter(|(_, at, job)| waits(job, *at)) {
        if cpus(job) <= free {
            free -= cpus(job);
        } else if !job.tasks[at as usize].cancelling && suits_others(job) {
            tail.push((id, at));
        }
    }
    tail
}

#[cfg(test)]
mod tests;
