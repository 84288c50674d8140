//! Which tasks go to which worker: a pure function of the state.
//!
//! Jobs are served by priority, then by number. A worker gets as much as its CPUs take, and more of a job whose tasks are short,
//! so that its slots do not starve between two looks at its mailbox. A task that is too wide for what is free keeps one worker
//! from being filled with later, narrower ones. Spec: lifecycle, "Placement".

use std::collections::BTreeMap;

use crate::protocol::id::{JobId, Ranges, WorkerId};
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

/// How full a worker is.
#[derive(Debug, Clone, Copy)]
struct Load {
    cpus: u64,
    mem: u64,
    /// Nothing more, because a wide task waits for it.
    kept_free: bool,
}

/// Places ready tasks. `may_run` says whether a task is not in a back-off; `may_get` whether a worker is not under suspicion.
pub fn place(state: &State, may_run: &dyn Fn(JobId, u32) -> bool, may_get: &dyn Fn(&WorkerId) -> bool) -> Vec<Bundle> {
    let mut loads: BTreeMap<&WorkerId, Load> = state
        .live_workers()
        .filter(|(id, worker)| worker.is_active() && may_get(id))
        .map(|(id, worker)| (id, load(state, worker)))
        .collect();
    let mut bundles: BTreeMap<&WorkerId, Vec<RunItem>> = BTreeMap::new();
    for (_, job) in state.queue() {
        if loads.values().all(|l| l.kept_free) {
            break;
        }
        place_job(state, job, may_run, &mut loads, &mut bundles);
    }
    bundles.into_iter().map(|(w, items)| Bundle { w: w.clone(), items }).collect()
}

fn load(state: &State, worker: &Worker) -> Load {
    let mut sum = Load { cpus: 0, mem: 0, kept_free: false };
    for (job, _) in worker.out.keys() {
        if let Some(job) = state.jobs.get(job) {
            sum.cpus += u64::from(job.spec.needs.cpus);
            sum.mem += job.spec.needs.mem;
        }
    }
    sum
}

fn place_job<'a>(
    state: &'a State,
    job: &Job,
    may_run: &dyn Fn(JobId, u32) -> bool,
    loads: &mut BTreeMap<&'a WorkerId, Load>,
    bundles: &mut BTreeMap<&'a WorkerId, Vec<RunItem>>,
) {
    let needs = &job.spec.needs;
    let room = if needs.cap == 0 { u64::MAX } else { needs.cap.saturating_sub(job.out_count()) };
    let ready: Vec<u32> = job
        .ready
        .iter()
        .copied()
        .filter(|&at| may_run(job.spec.job, at))
        .take(usize::try_from(room).unwrap_or(usize::MAX))
        .collect();
    if ready.is_empty() {
        return;
    }
    let mut fit: Vec<&'a WorkerId> =
        loads.keys().copied().filter(|id| state.workers.get(*id).is_some_and(|w| unfit(job, w).is_none())).collect();
    // A job whose set-up failed on some workers is tried on the others first.
    if !job.setup_on.is_empty() {
        let fresh: Vec<&'a WorkerId> =
            fit.iter().copied().filter(|id| !job.setup_on.contains(&state.workers[*id].no)).collect();
        if !fresh.is_empty() {
            fit = fresh;
        }
    }
    let depth = job.mean_ms().map_or(1, |mean| (AHEAD_MS / mean.max(1)).clamp(1, DEPTH_MAX));
    let mut left = ready.as_slice();
    // The emptiest worker first; each gets at most its share, so that the others are not left idle.
    fit.sort_by_key(|id| {
        let worker = &state.workers[*id];
        loads[id].cpus * 1000 / u64::from(worker.admit.cpus.max(1))
    });
    for (i, id) in fit.iter().enumerate() {
        if left.is_empty() {
            return;
        }
        let (Some(worker), Some(load)) = (state.workers.get(*id), loads.get_mut(id)) else { continue };
        if load.kept_free {
            continue;
        }
        let share = left.len().div_ceil(fit.len() - i);
        let take = share.min(fitting(job, worker, load, depth)).min(left.len());
        if take == 0 {
            continue;
        }
        let (now, later) = left.split_at(take);
        left = later;
        load.cpus += u64::from(needs.cpus) * take as u64;
        load.mem += needs.mem * take as u64;
        add_items(bundles.entry(*id).or_default(), job, now);
    }
    // What fits nowhere now waits for the emptiest worker that is large enough.
    if !left.is_empty() && needs.cpus > 1 {
        let waits_for = fit.iter().filter(|id| !loads[*id].kept_free).min_by_key(|id| loads[*id].cpus).copied();
        if let Some(load) = waits_for.and_then(|id| loads.get_mut(id)) {
            load.kept_free = true;
        }
    }
}

/// How many more tasks of `job` the worker takes.
fn fitting(job: &Job, worker: &Worker, load: &Load, depth: u64) -> usize {
    let needs = &job.spec.needs;
    let cpus = (u64::from(worker.admit.cpus) * depth).saturating_sub(load.cpus) / u64::from(needs.cpus.max(1));
    let mem = if needs.mem == 0 || worker.admit.mem == 0 {
        u64::MAX
    } else {
        (worker.admit.mem * depth).saturating_sub(load.mem) / needs.mem
    };
    usize::try_from(cpus.min(mem)).unwrap_or(usize::MAX)
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
    let trusted = uid == trust.uid || trust.uids.contains(&uid) || trust.gid.is_some();
    if !trusted || worker.refuses.contains(&uid) {
        return Some(format!("it does not run tasks of user {uid}"));
    }
    None
}

/// Attempts that were issued to busy workers, do not run yet, and would start at once on an idle one.
///
/// Half of the unstarted tail of the fullest worker, and only if nothing is ready and some worker has nothing to do.
pub fn rebalance(state: &State, may_get: &dyn Fn(&WorkerId) -> bool) -> Option<(WorkerId, Vec<(JobId, u32)>)> {
    if state.queue().next().is_some() {
        return None;
    }
    let idle: Vec<&Worker> = state
        .live_workers()
        .filter(|(id, w)| w.is_active() && w.out.is_empty() && may_get(id))
        .map(|(_, w)| w)
        .collect();
    if idle.is_empty() {
        return None;
    }
    let issued = |worker: &Worker| -> Vec<(JobId, u32)> {
        let waits = |&&(job, at): &&(JobId, u32)| {
            state.jobs.get(&job).is_some_and(|j| {
                let task = &j.tasks[at as usize];
                task.state == crate::protocol::lifecycle::TaskState::Issued
                    && !task.cancelling
                    && idle.iter().any(|w| unfit(j, w).is_none())
            })
        };
        worker.out.keys().filter(waits).copied().collect()
    };
    let (id, mut tail) = state
        .live_workers()
        .filter(|(_, w)| w.out.len() > 1)
        .map(|(id, w)| (id, issued(w)))
        .max_by_key(|(_, tail)| tail.len())?;
    let running = state.workers[id].out.len() - tail.len();
    // What its free slots will start at once stays.
    let keep = (state.workers[id].admit.cpus as usize).saturating_sub(running);
    if tail.len() <= keep {
        return None;
    }
    let take = (tail.len() - keep).div_ceil(2);
    Some((id.clone(), tail.split_off(tail.len() - take)))
}

#[cfg(test)]
mod tests;
