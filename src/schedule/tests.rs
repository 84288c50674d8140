//! What placement promises. Every placement here is applied to the state, so none is absurd.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::process::{Identity, SetupFailure, Status, Step};
use crate::protocol::digest::Digest;
use crate::protocol::id::{AttemptId, DecisionId, Nonce};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Admit, Ended, Ingest, LockVerdict, Message, Needs, Op, Outcome, Requeue, Seen, Trust};

/// A state to place in.
struct Room {
    state: State,
    generation: u64,
}

impl Room {
    fn new() -> Self {
        Self { state: State::new(DecisionId { generation: 0, nonce: Nonce(0) }), generation: 0 }
    }

    fn apply(&mut self, op: Op) {
        self.generation += 1;
        let id = DecisionId { generation: self.generation, nonce: Nonce(self.generation) };
        self.state.apply_group(id, &[op]).unwrap_or_else(|e| panic!("{e}"));
    }

    fn worker(&mut self, name: &str, cpus: u32, mem: u64) -> WorkerId {
        self.worker_with(name, cpus, mem, Trust { uid: 7, ..Trust::default() })
    }

    fn worker_with(&mut self, name: &str, cpus: u32, mem: u64, trust: Trust) -> WorkerId {
        let w = WorkerId::new(name, Nonce(1));
        let worker = Identity { host: name.into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 7 };
        let (lock, self_fence_ms) = (LockVerdict::Held, 1);
        self.apply(Op::Admit(Box::new(Admit {
            w: w.clone(),
            worker,
            keeper: None,
            cpus,
            mem,
            self_fence_ms,
            lock,
            trust,
        })));
        w
    }

    fn job(&mut self, number: u64, count: u64, needs: Needs) -> JobId {
        self.apply(Op::Ingest(Box::new(Ingest {
            job: JobId(number),
            sub: Nonce(number),
            sha: Digest::of(b"x"),
            uid: 7,
            name: "n".into(),
            array: Some(Ranges::span(0, count - 1)),
            needs,
            at_ms: 0,
        })));
        JobId(number)
    }

    /// Places what is ready and applies it; returns who got how many.
    fn place(&mut self) -> BTreeMap<WorkerId, usize> {
        let bundles = place(&self.state, &|_, _| true, &|_| true);
        assert_eq!(bundles, place(&self.state, &|_, _| true, &|_| true), "the same state gives the same placement");
        let mut got = BTreeMap::new();
        for bundle in bundles {
            got.insert(bundle.w.clone(), bundle.items.iter().map(|item| item.attempts().len()).sum());
            let m = self.state.workers[&bundle.w].sent + 1;
            self.apply(Op::Send { w: bundle.w, m, msg: Message::Run(bundle.items) });
        }
        self.check();
        got
    }

    /// What holds after every placement.
    fn check(&self) {
        for job in self.state.jobs.values() {
            assert!(job.spec.needs.cap == 0 || job.out_count() <= job.spec.needs.cap, "more than the cap is out");
        }
        for worker in self.state.workers.values() {
            for (job, _) in worker.out.keys() {
                assert_eq!(unfit(&self.state.jobs[job], worker), None, "a worker got what it cannot run");
            }
        }
    }

    fn see(&mut self, w: &WorkerId, seen: Seen) {
        let seq = self.state.workers[w].seq + 1;
        self.apply(Op::Read { w: w.clone(), seq, seen: vec![seen] });
    }

    fn attempt(&self, job: JobId, at: u32) -> AttemptId {
        let job = &self.state.jobs[&job];
        job.attempt_id(at, job.tasks[at as usize].attempt)
    }

    /// The attempts that the worker runs by now: in order, as far as its CPUs and memory go.
    fn start(&mut self, w: &WorkerId) -> Vec<(JobId, u32)> {
        let worker = &self.state.workers[w];
        let (mut cpus, mut mem) = (u64::from(worker.admit.cpus), worker.admit.mem);
        let mut runs = Vec::new();
        let is_running = |key: &(JobId, u32)| self.state.jobs[&key.0].tasks[key.1 as usize].state == TaskState::Running;
        let mut order: Vec<(JobId, u32)> = worker.out.keys().copied().collect();
        order.sort_by_key(|key| (!is_running(key), self.state.jobs[&key.0].tasks[key.1 as usize].m, *key));
        let mut fresh = Vec::new();
        for key in order {
            let needs = &self.state.jobs[&key.0].spec.needs;
            let fits_mem = worker.admit.mem == 0 || needs.mem <= mem;
            if u64::from(needs.cpus) > cpus || !fits_mem {
                break;
            }
            cpus -= u64::from(needs.cpus);
            mem = mem.saturating_sub(needs.mem);
            if !is_running(&key) {
                fresh.push(self.attempt(key.0, key.1));
            }
            runs.push(key);
        }
        if !fresh.is_empty() {
            self.see(w, Seen::Started(fresh));
        }
        runs
    }

    fn end(&mut self, w: &WorkerId, (job, at): (JobId, u32), how: Outcome, ms: u64) {
        let a = self.attempt(job, at);
        let line = self.state.workers[w].seq + 1;
        self.see(w, Seen::Ended(Ended { a, line, how, ms }));
    }

    fn live(&self) -> Vec<WorkerId> {
        self.state.live_workers().map(|(id, _)| id.clone()).collect()
    }

    fn is_done(&self) -> bool {
        self.state.jobs.values().all(|job| job.counts.all_ended())
    }
}

const OK: Outcome = Outcome::Ran(Status::Exit(0));

fn cpus(cpus: u32) -> Needs {
    Needs { cpus, ..Needs::default() }
}

#[test]
fn each_worker_gets_what_its_cpus_take() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 4, 0), room.worker("b", 2, 0));
    room.job(1, 100, Needs::default());
    assert_eq!(room.place(), [(a, 4), (b, 2)].into());
    assert!(room.place().is_empty());
}

#[test]
fn a_large_worker_is_filled_although_there_is_a_small_one() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 64, 0), room.worker("b", 1, 0));
    room.job(1, 65, Needs::default());
    assert_eq!(room.place(), [(a, 64), (b, 1)].into());
}

#[test]
fn few_tasks_are_spread_over_the_workers() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 4, 0), room.worker("b", 4, 0));
    room.job(1, 4, Needs::default());
    assert_eq!(room.place(), [(a, 2), (b, 2)].into());
}

#[test]
fn short_tasks_are_given_in_advance_by_the_size_of_the_worker_but_first_everybody_starts() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 8, 0), room.worker("b", 1, 0));
    room.job(1, 9 + 45, Needs::default());
    room.place();
    for w in [&a, &b] {
        for key in room.start(w) {
            room.end(w, key, OK, 10);
        }
    }
    assert_eq!(room.place(), [(a, 40), (b, 5)].into());
}

#[test]
fn memory_counts_where_a_worker_says_how_much_it_has() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 8, 10), room.worker("b", 8, 0));
    room.job(1, 100, Needs { mem: 4, ..Needs::default() });
    assert_eq!(room.place(), [(a, 2), (b, 8)].into());
    // Sizes are the worker's word and may be anything.
    room.worker("c", 8, u64::MAX);
    room.job(2, 3, Needs { mem: u64::MAX, ..Needs::default() });
    room.place();
}

#[test]
fn the_better_priority_is_placed_first_and_then_the_lower_number() {
    let mut room = Room::new();
    room.worker("a", 3, 0);
    room.job(1, 2, Needs::default());
    let urgent = room.job(2, 2, Needs { priority: 1, ..Needs::default() });
    room.place();
    assert_eq!(room.state.jobs[&urgent].out_count(), 2);
    assert_eq!(room.state.jobs[&JobId(1)].out_count(), 1);
}

#[test]
fn suspected_workers_and_tasks_in_a_back_off_are_passed_over() {
    let mut room = Room::new();
    let (a, b) = (room.worker("a", 4, 0), room.worker("b", 4, 0));
    room.job(1, 4, Needs::default());
    let bundles = place(&room.state, &|_, at| at >= 2, &|w| *w == b);
    assert_eq!(bundles.len(), 1);
    assert_eq!(bundles[0].w, b);
    assert_eq!(bundles[0].items[0].tasks, Some(Ranges::span(2, 3)));
    let _ = a;
}

#[test]
fn a_job_whose_set_up_failed_on_a_worker_is_tried_elsewhere_first() {
    let mut room = Room::new();
    let a = room.worker("a", 1, 0);
    room.job(1, 1, Needs::default());
    room.place();
    let fault = Outcome::Setup(SetupFailure { step: Step::Fork, errno: "EAGAIN".into(), path: "x".into() });
    let key = room.start(&a)[0];
    room.end(&a, key, fault, 0);
    let b = room.worker("b", 1, 0);
    assert_eq!(room.place(), [(b, 1)].into());
}

#[test]
fn a_wide_task_does_not_wait_for_all_the_narrow_ones_that_come_after_it() {
    for wide in [cpus(4), Needs { mem: 100, ..Needs::default() }] {
        let mut room = Room::new();
        for name in ["a", "b", "c"] {
            room.worker(name, 4, 100);
        }
        room.job(1, 40, Needs { mem: 25, ..Needs::default() });
        room.place();
        let wide = room.job(2, 3, wide);
        room.job(3, 400, Needs { mem: 25, ..Needs::default() });
        let mut wide_done_at = None;
        for round in 0..2000 {
            // One task ends at a time, as they do.
            let live = room.live();
            let w = &live[round % live.len()];
            let runs = room.start(w);
            if let Some(&key) = runs.first() {
                room.end(w, key, OK, 5000);
            }
            room.place();
            if wide_done_at.is_none() && room.state.jobs[&wide].counts.all_ended() {
                wide_done_at = Some(room.state.jobs[&JobId(3)].counts.ended());
            }
            if room.is_done() {
                break;
            }
        }
        assert!(room.is_done());
        assert!(wide_done_at.unwrap() < 100, "{wide_done_at:?} of 400 later ones were done before");
    }
}

#[test]
fn a_request_that_no_worker_can_meet_holds_nobody_up() {
    let mut room = Room::new();
    let a = room.worker("a", 4, 0);
    room.job(1, 1, cpus(99));
    room.job(2, 8, Needs::default());
    assert_eq!(room.place(), [(a, 4)].into());
}

#[test]
fn unstarted_tasks_go_from_a_busy_worker_to_an_idle_one_and_stay_there() {
    let mut room = Room::new();
    let a = room.worker("a", 1, 0);
    room.job(1, 42, Needs::default());
    room.place();
    let key = room.start(&a)[0];
    room.end(&a, key, OK, 10);
    room.place();
    assert_eq!(room.state.workers[&a].out.len(), 41, "they were short, so it has many");
    room.job(2, 1, cpus(9));
    room.worker("b", 1, 0);
    let mut moved = 0;
    for _ in 0..10_000 {
        if let Some((w, tail)) = rebalance(&room.state, &|_| true) {
            moved += tail.len();
            for &(job, at) in &tail {
                assert_eq!(room.state.jobs[&job].tasks[at as usize].state, TaskState::Issued, "only what does not run");
            }
            let attempts = tail.iter().map(|&(job, at)| room.attempt(job, at)).collect();
            room.see(&w, Seen::Released(attempts, Requeue::Withdrawn));
        }
        room.place();
        let idle = room.live().iter().filter(|w| room.state.workers[*w].out.is_empty()).count();
        let unstarted = room.state.jobs[&JobId(1)].counts.of(TaskState::Issued);
        assert!(idle == 0 || unstarted <= 1, "{idle} idle with {unstarted} unstarted");
        for w in room.live() {
            if let Some(&key) = room.start(&w).first() {
                room.end(&w, key, OK, 10);
            }
        }
        if room.state.jobs[&JobId(1)].counts.all_ended() {
            break;
        }
    }
    assert!(room.state.jobs[&JobId(1)].counts.all_ended());
    assert!(moved > 0 && moved < 42 * 3, "{moved} moves");
}

#[test]
fn wide_tasks_that_wait_behind_each_other_are_given_to_an_idle_worker() {
    let mut room = Room::new();
    let a = room.worker("a", 4, 0);
    room.job(1, 5, cpus(4));
    room.place();
    let key = room.start(&a)[0];
    room.end(&a, key, OK, 10);
    room.place();
    room.start(&a);
    room.worker("b", 4, 0);
    let (w, tail) = rebalance(&room.state, &|_| true).expect("three wait, and one is idle");
    assert_eq!((w, tail.len()), (a, 2));
}

#[derive(Debug, Clone)]
struct Plan {
    workers: Vec<(u32, u64)>,
    jobs: Vec<(u64, u32, u64, u64, i32)>,
    /// What the rolls follow from.
    seed: u64,
}

fn plans() -> impl Strategy<Value = Plan> {
    let workers = proptest::collection::vec((1..9u32, prop_oneof![Just(0), 1..100u64]), 1..6);
    let jobs = proptest::collection::vec((1..30u64, 1..9u32, 0..60u64, 0..5u64, -1..2i32), 1..12);
    (workers, jobs, any::<u64>()).prop_map(|(workers, jobs, seed)| Plan { workers, jobs, seed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 500, ..ProptestConfig::default() })]

    /// Rounds of placing, starting and ending until nothing is left that any worker can run.
    #[test]
    fn everything_that_fits_somewhere_is_run_and_no_worker_is_idle_meanwhile(plan in plans()) {
        let mut room = Room::new();
        for (i, (cpus, mem)) in plan.workers.iter().enumerate() {
            room.worker(&format!("h{i}"), *cpus, *mem);
        }
        for (i, (count, cpus, mem, cap, priority)) in plan.jobs.iter().enumerate() {
            let needs =
                Needs { cpus: *cpus, mem: *mem, cap: *cap, priority: *priority, retries: 1, ..Needs::default() };
            room.job(i as u64 + 1, *count, needs);
        }
        // Rolls that repeat themselves might let a task run for ever.
        let mut seed = plan.seed;
        let mut roll = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32
        };
        for _ in 0..20_000 {
            room.place();
            let live = room.live();
            for w in &live {
                let worker = &room.state.workers[w];
                let suits = |job: &Job| {
                    let is_capped = job.spec.needs.cap > 0 && job.out_count() >= job.spec.needs.cap;
                    !is_capped && unfit(job, worker).is_none()
                };
                // What comes later may have to leave an idle worker to a wide one that comes before.
                let first_suits = room.state.queue().next().is_some_and(|(_, job)| suits(job));
                prop_assert!(!worker.out.is_empty() || !first_suits, "{} is idle and could run the first job", w);
            }
            let mut has_ended = false;
            for w in &live {
                let runs = room.start(w);
                for key in runs {
                    let roll = roll();
                    if roll.is_multiple_of(3) {
                        let how = if roll.is_multiple_of(7) { Outcome::Ran(Status::Exit(1)) } else { OK };
                        room.end(w, key, how, u64::from(roll % 3000));
                        has_ended = true;
                    }
                }
            }
            let is_over = room.state.live_workers().all(|(_, w)| w.out.is_empty());
            if is_over && !has_ended && place(&room.state, &|_, _| true, &|_| true).is_empty() {
                break;
            }
        }
        let open: BTreeSet<JobId> =
            room.state.jobs.iter().filter(|(_, j)| !j.counts.all_ended()).map(|(id, _)| *id).collect();
        for id in open {
            let job = &room.state.jobs[&id];
            prop_assert!(room.state.workers.values().all(|w| unfit(job, w).is_some()), "job {} is never run", id);
        }
    }
}

/// Whether a user is in the group only the worker can tell; but one of root runs nothing on the word of a group.
#[test]
fn a_worker_of_root_gets_no_tasks_of_a_group() {
    let mut room = Room::new();
    let job = room.job(1, 1, Needs::default());
    let member = room.worker_with("member", 1, 0, Trust { uid: 8, gid: Some(50), uids: Vec::new() });
    let root = room.worker_with("root", 1, 0, Trust { uid: 0, gid: Some(50), uids: Vec::new() });
    let named = room.worker_with("named", 1, 0, Trust { uid: 0, gid: Some(50), uids: vec![7] });
    let fits = |w: &WorkerId| unfit(&room.state.jobs[&job], &room.state.workers[w]).is_none();
    assert_eq!([&member, &root, &named].map(fits), [true, false, true]);
}

/// Not a test of time: `cargo test --release -- --ignored --nocapture placing` shows it.
#[test]
#[ignore = "shows how long placement takes"]
fn placing_ten_thousand_tasks_on_a_hundred_workers() {
    use crate::clock::{Clock, HostClock};
    for (jobs, count) in [(1, 10_000), (10_000, 1)] {
        let mut room = Room::new();
        for i in 0..100 {
            room.worker(&format!("h{i}"), 32, 0);
        }
        for i in 0..jobs {
            room.job(i + 1, count, Needs::default());
        }
        for _ in 0..2 {
            let before = HostClock.boot();
            let bundles = place(&room.state, &|_, _| true, &|_| true);
            let took = HostClock.boot().saturating_sub(before);
            let tasks: usize = bundles.iter().flat_map(|b| &b.items).map(|i| i.attempts().len()).sum();
            #[expect(clippy::print_stderr, reason = "this is for a person to look at")]
            {
                eprintln!("{jobs} jobs of {count}: {tasks} tasks placed in {took:?}");
            }
            room.place();
        }
    }
}
