//! Random legal sequences of operations, and what holds after each of them.
//!
//! The desk adds to each step that a snapshot is the whole state.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The number of jobs that a sequence may name.
const JOBS: u64 = 9;

/// Three numbers from which one legal operation is made.
type Draw = (u8, u32, u32);

fn pick<T>(list: &[T], draw: u32) -> Option<&T> {
    list.get(draw as usize % list.len().max(1))
}

/// The operation that the draw stands for in this state; `None` if there is nothing it could act upon.
fn operation(state: &State, draw: Draw) -> Option<Op> {
    let (kind, a, b) = draw;
    let job = JobId(u64::from(a) % JOBS + 1);
    let live: Vec<&WorkerId> = state.live_workers().map(|(id, _)| id).collect();
    let with_work: Vec<&WorkerId> = state.live_workers().filter(|(_, w)| !w.out.is_empty()).map(|(id, _)| id).collect();
    let target = || vec![target(state, job, b)];
    match kind % 26 {
        0..=3 if !state.knows(job) => Some(ingest(job, b)),
        4 => {
            let w = WorkerId::new(&format!("h{}", b % 5), Nonce(state.workers.len() as u64 + u64::from(a)));
            (live.len() < 4 && !state.workers.contains_key(&w)).then(|| admit(w))
        }
        5..=9 => run(state, a, b),
        10 => {
            let w = pick(&live, a)?;
            let worker = &state.workers[*w];
            (worker.sent > 0).then(|| read(state, w, Seen::Got(worker.got + u64::from(worker.sent > worker.got))))
        }
        11 | 12 => {
            let w = pick(&with_work, a)?;
            Some(read(state, w, Seen::Started(vec![held(state, w, b)])))
        }
        13..=16 => {
            let w = pick(&with_work, a)?;
            let line = state.workers[*w].seq + 1;
            Some(read(state, w, Seen::Ended(Ended { a: held(state, w, b), line, how: outcome(b), ms: 3 })))
        }
        17 => {
            let w = pick(&with_work, a)?;
            let why = if b.is_multiple_of(2) { Requeue::Cancelled } else { Requeue::Withdrawn };
            Some(read(state, w, Seen::Released(vec![held(state, w, b)], why)))
        }
        18 => {
            let how = if b.is_multiple_of(3) { Departure::Left } else { Departure::Lost };
            Some(Op::Gone { w: (*pick(&live, a)?).clone(), how, why: "x".into() })
        }
        19 => {
            let action = match b % 4 {
                0 => Action::Cancel { targets: target(), reason: String::new() },
                1 => Action::Hold { targets: target() },
                2 => Action::Release { targets: target() },
                _ => Action::Drain { worker: (*pick(&live, a)?).clone() },
            };
            Some(Op::Answer { id: Nonce(u64::from(b)), action, uid: 7 })
        }
        20 | 21 => {
            let seen = state.job(job)?.tasks.iter().map(|t| t.attempt).max()?;
            let targets = vec![(target().remove(0), seen)];
            Some(Op::Answer { id: Nonce(u64::from(b)), action: Action::Retry { targets }, uid: 7 })
        }
        22 => {
            let word = if b.is_multiple_of(2) { Seen::Paused("full".into()) } else { Seen::Resumed };
            Some(read(state, pick(&live, a)?, word))
        }
        23 => {
            let of = state.jobs.keys().copied().collect::<Vec<_>>();
            (!state.knows(job)).then_some(())?;
            Some(match pick(&of, b) {
                Some(&of) if b.is_multiple_of(2) => Op::Alias { job, of },
                _ => Op::Reject { job, why: "no".into() },
            })
        }
        24 => Some(Op::Prune {
            jobs: Ranges::span(1, u64::from(b) % JOBS + 1),
            workers: state.workers.keys().cloned().collect(),
        }),
        25 => Some(match b % 4 {
            0 => Op::Quarantine { files: vec!["x".into()] },
            1 => Op::Purge { by: *state.trash.keys().next()? },
            2 => Op::Forget { ids: state.answered.iter().copied().take(2).collect() },
            _ => Op::Snapshot(crate::protocol::record::SnapshotRef { at: state.at, sha: Digest::of(b"x") }),
        }),
        _ => None,
    }
}

fn target(state: &State, job: JobId, draw: u32) -> Target {
    let index = state.job(job).and_then(|j| j.task_id(draw % j.tasks.len() as u32).index);
    let indices = index.filter(|_| draw.is_multiple_of(3)).map(|i| Ranges::span(i, i));
    Target { job, indices }
}

fn ingest(job: JobId, draw: u32) -> Op {
    let when = [After::Ok, After::Any, After::NotOk][draw as usize % 3];
    let mut after = Vec::new();
    for shift in [4, 9] {
        let on = JobId(u64::from(draw >> shift) % JOBS + 1);
        if (draw >> shift) % 4 == 1 {
            let indices = (draw >> shift).is_multiple_of(3).then(|| Ranges::span(0, 0));
            after.push(Dependency { when, target: Target { job: on, indices } });
        }
    }
    Op::Ingest(Box::new(Ingest {
        job,
        sub: Nonce(job.0 + 1000),
        sha: Digest::of(b"x"),
        uid: 7,
        name: "n".into(),
        array: (draw % 5 > 1).then(|| Ranges::span(0, u64::from(draw % 4))),
        needs: Needs {
            retries: draw % 2,
            priority: (draw % 3) as i32,
            hold: draw.is_multiple_of(11),
            after,
            ..Needs::default()
        },
        at_ms: 0,
    }))
}

fn admit(w: WorkerId) -> Op {
    let host = w.host().to_owned();
    let worker = Identity { host, boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 7 };
    let lock = LockVerdict::Held;
    let trust = Trust::default();
    Op::Admit(Box::new(Admit { w, worker, keeper: None, cpus: 4, mem: 0, self_fence_ms: 1, lock, trust }))
}

/// Some ready tasks of the same attempt number of one job go to one worker.
fn run(state: &State, a: u32, b: u32) -> Option<Op> {
    let jobs: Vec<_> = state.queue().collect();
    let (id, job) = pick(&jobs, a)?;
    let live: Vec<_> = state.live_workers().collect();
    let (w, worker) = pick(&live, b)?;
    let ready: Vec<u32> = job.ready.iter().copied().collect();
    let attempt = job.tasks[*pick(&ready, b)? as usize].attempt + 1;
    let chosen = ready.iter().filter(|&&at| job.tasks[at as usize].attempt + 1 == attempt);
    let tasks = job
        .spec
        .array
        .is_some()
        .then(|| chosen.take(1 + b as usize % 3).filter_map(|&at| job.task_id(at).index).collect());
    let item = RunItem { job: *id, sha: job.spec.sha, uid: 7, tasks, attempt };
    Some(Op::Send { w: (*w).clone(), m: worker.sent + 1, msg: Message::Run(vec![item]) })
}

fn held(state: &State, w: &WorkerId, draw: u32) -> AttemptId {
    let out: Vec<_> = state.workers[w].out.iter().collect();
    let (&(job, at), &number) = out[draw as usize % out.len()];
    state.jobs[&job].attempt_id(at, number)
}

fn read(state: &State, w: &WorkerId, seen: Seen) -> Op {
    Op::Read { w: w.clone(), seq: state.workers[w].seq + 1, seen: vec![seen] }
}

fn outcome(draw: u32) -> Outcome {
    match draw % 8 {
        0..=2 => OK,
        3 | 4 => FAIL,
        5 => Outcome::Requeue(Requeue::Walltime),
        6 => Outcome::Setup(SetupFailure { step: Step::Fork, errno: "EAGAIN".into(), path: "x".into() }),
        _ => Outcome::Cancelled(Status::Signal(15)),
    }
}

/// What holds in every state.
fn check(state: &State) {
    let mut out = BTreeMap::new();
    for worker in state.workers.values() {
        let open: BTreeSet<u64> = worker.out.keys().map(|(job, at)| state.jobs[job].tasks[*at as usize].m).collect();
        assert_eq!(worker.bundles.keys().copied().collect::<BTreeSet<_>>(), open, "bundles with attempts that are out");
        if worker.is_gone() {
            assert!(worker.out.is_empty() && worker.outbox.is_empty(), "a worker that is gone has nothing");
        } else {
            let kept: Vec<u64> = worker.outbox.keys().copied().collect();
            assert_eq!(kept, (worker.got + 1..=worker.sent).collect::<Vec<_>>(), "exactly the mail that was not taken");
        }
        for (key, number) in &worker.out {
            assert_eq!(out.insert(*key, (*number, worker.no)), None, "an attempt is with one worker");
        }
        assert_eq!(state.worker_no(worker.no).map(|(id, _)| id), Some(&worker.admit.w), "numbers lead to workers");
    }
    for (id, job) in &state.jobs {
        let mut counts = Counts::default();
        job.tasks.iter().for_each(|task| counts.step(None, task.state));
        assert_eq!(job.counts, counts, "counts of job {id}");
        let positions = |wanted: TaskState| -> BTreeSet<u32> {
            (0u32..).zip(&job.tasks).filter(|(_, t)| t.state == wanted).map(|(at, _)| at).collect()
        };
        assert_eq!(job.ready, positions(TaskState::Ready), "ready tasks of job {id}");
        assert_eq!(state.queue().any(|(other, _)| other == *id), !job.ready.is_empty(), "job {id} in the queue");
        assert!(positions(TaskState::Waiting).is_empty() || !job.unmet.is_empty(), "job {id} waits for nothing");
        for (at, task) in (0u32..).zip(&job.tasks) {
            let holder = task.state.is_out().then_some((task.attempt, task.worker));
            assert_eq!(out.remove(&(*id, at)), holder, "who has {id} at {at}");
            assert!(!task.cancelling || task.state.is_out(), "only what is out is asked to end");
            let past: Vec<u32> = job.past.get(&at).into_iter().flatten().map(|p| p.attempt).collect();
            assert!(past.is_sorted_by(|a, b| a < b), "attempts end once: {past:?}");
            assert!(past.last().is_none_or(|&last| last <= task.attempt), "past attempts are past");
        }
    }
    assert!(out.is_empty(), "workers have only what exists: {out:?}");
    let order: Vec<_> = state.queue().map(|(id, job)| (Reverse(job.spec.needs.priority), id)).collect();
    assert!(order.is_sorted(), "the queue is in order");
    for (job, at, _) in state.delayed() {
        assert_eq!(state.jobs[&job].tasks[at as usize].state, TaskState::Ready, "only ready tasks wait out a back-off");
    }
}

/// What holds between a state and the next one.
fn check_step(before: &State, op: &Op, after: &State) {
    let issues = matches!(op, Op::Send { msg: Message::Run(_), .. });
    let retries = matches!(op, Op::Answer { action: Action::Retry { .. }, .. });
    for (id, job) in &before.jobs {
        let Some(next) = after.jobs.get(id) else {
            assert!(
                job.counts.all_ended() && after.knows(*id),
                "only ended jobs are forgotten, and their numbers never"
            );
            continue;
        };
        for (old, new) in job.tasks.iter().zip(&next.tasks) {
            let grown = new.attempt - old.attempt;
            assert!(grown == 0 || (grown == 1 && issues), "attempts grow by one, when they are issued");
            assert!(!old.state.is_final() || old.state == new.state || retries, "only a retry leaves a final state");
        }
    }
    for (no, id) in &after.numbers {
        let newest = before.numbers.keys().next_back().copied().unwrap_or(0);
        assert!(before.numbers.get(no).map_or(*no > newest, |old| old == id), "numbers of workers are used once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_legal_sequence_of_operations_keeps_the_state_consistent(
        draws in proptest::collection::vec(any::<Draw>(), 1..120)
    ) {
        let mut d = Desk::new();
        for draw in draws {
            let Some(op) = operation(&d.state, draw) else { continue };
            let before = d.state.clone();
            d.ok(op.clone());
            check(&d.state);
            check_step(&before, &op, &d.state);
        }
    }
}
