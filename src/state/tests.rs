use super::*;
use crate::process::{Identity, SetupFailure, Status, Step};
use crate::protocol::digest::Digest;
use crate::protocol::record::{
    Action, After, Dependency, Ended, LockVerdict, Needs, Op, Requeue, RunItem, Seen, Trust,
};

mod laws;

/// A state and the decisions that made it, each checked to survive a snapshot.
struct Desk {
    state: State,
    generation: u64,
}

impl Desk {
    fn new() -> Self {
        Self { state: State::new(DecisionId { generation: 0, nonce: Nonce(0) }), generation: 0 }
    }

    #[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
    fn apply(&mut self, op: Op) -> Result<(), Absurd> {
        self.generation += 1;
        let id = DecisionId { generation: self.generation, nonce: Nonce(self.generation) };
        // Every operation goes through its text on the way, as it does on disk.
        let op: Op = serde_json::from_slice(&serde_json::to_vec(&op).unwrap()).unwrap();
        self.state.apply_group(id, &[op])?;
        let bytes = encode_snapshot(&self.state);
        let back = decode_snapshot(&bytes).expect("a snapshot is readable");
        assert_eq!(back, self.state, "a snapshot is the whole state");
        assert_eq!(encode_snapshot(&back), bytes, "the same state gives the same bytes");
        Ok(())
    }

    fn ok(&mut self, op: Op) -> &mut Self {
        self.apply(op).unwrap_or_else(|e| panic!("{e}"));
        self
    }

    fn submit(&mut self, job: u64, array: Option<&str>, needs: Needs) -> &mut Self {
        self.ok(Op::Ingest(Box::new(Ingest {
            job: JobId(job),
            sub: Nonce(job + 1000),
            sha: Digest::of(b"x"),
            uid: 7,
            name: "n".into(),
            array: array.map(|a| a.parse().unwrap()),
            needs,
            at_ms: 0,
        })))
    }

    fn admit(&mut self, name: &str) -> WorkerId {
        let w = WorkerId::new(name, Nonce(1));
        let worker = Identity { host: name.into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 7 };
        self.ok(Op::Admit(Box::new(Admit {
            w: w.clone(),
            worker,
            keeper: None,
            cpus: 4,
            mem: 0,
            self_fence_ms: 1,
            lock: LockVerdict::Held,
            trust: Trust::default(),
        })));
        w
    }

    fn run(&mut self, w: &WorkerId, task: &str) -> AttemptId {
        let id: TaskId = task.parse().unwrap();
        let attempt = self.state.task(id).unwrap().1.attempt + 1;
        let tasks = id.index.map(|i| Ranges::span(i, i));
        let item = RunItem { job: id.job, sha: Digest::of(b"x"), uid: 7, tasks, attempt };
        let m = self.state.workers[w].sent + 1;
        self.ok(Op::Send { w: w.clone(), m, msg: Message::Run(vec![item]) });
        AttemptId { task: id, number: attempt }
    }

    fn see(&mut self, w: &WorkerId, seen: Seen) -> &mut Self {
        let seq = self.state.workers[w].seq + 1;
        self.ok(Op::Read { w: w.clone(), seq, seen: vec![seen] })
    }

    fn end(&mut self, w: &WorkerId, a: AttemptId, how: Outcome) -> &mut Self {
        let line = self.state.workers[w].seq + 1;
        self.see(w, Seen::Ended(Ended { a, line, how, ms: 5 }))
    }

    fn start_and_lose(&mut self, name: &str, task: &str) {
        let w = self.admit(name);
        let a = self.run(&w, task);
        self.see(&w, Seen::Started(vec![a]));
        self.ok(Op::Gone { w, how: Departure::Lost, why: "silence".into() });
    }

    fn is(&self, task: &str, state: TaskState) {
        assert_eq!(self.state.task(task.parse().unwrap()).unwrap().1.state, state, "{task}");
    }
}

fn after(when: After, target: &str) -> Needs {
    Needs { after: vec![Dependency { when, target: target.parse().unwrap() }], ..Needs::default() }
}

const OK: Outcome = Outcome::Ran(Status::Exit(0));
const FAIL: Outcome = Outcome::Ran(Status::Exit(1));

#[test]
fn a_task_goes_from_ready_over_issued_and_running_to_done() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    let w = d.admit("a");
    d.is("1", TaskState::Ready);
    let a = d.run(&w, "1");
    d.is("1", TaskState::Issued);
    d.see(&w, Seen::Got(1)).see(&w, Seen::Started(vec![a]));
    d.is("1", TaskState::Running);
    d.end(&w, a, OK);
    d.is("1", TaskState::Done);
    assert!(d.state.workers[&w].bundles.is_empty() && d.state.workers[&w].outbox.is_empty());
    assert!(!d.state.can_progress(&|_| true));
}

#[test]
fn an_end_is_accepted_once_and_only_from_the_worker_that_has_the_attempt() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    let (w, other) = (d.admit("a"), d.admit("b"));
    let a = d.run(&w, "1");
    let ended =
        |w: &WorkerId| Op::Read { w: w.clone(), seq: 9, seen: vec![Seen::Ended(Ended { a, line: 9, how: OK, ms: 1 })] };
    assert!(d.apply(ended(&other)).is_err());
    d.ok(ended(&w));
    assert!(d.apply(ended(&w)).is_err());
}

#[test]
fn nothing_of_a_lost_worker_is_accepted() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    let w = d.admit("a");
    let a = d.run(&w, "1");
    d.ok(Op::Gone { w: w.clone(), how: Departure::Lost, why: "silence".into() });
    d.is("1", TaskState::Ready);
    let late = Op::Read { w, seq: 3, seen: vec![Seen::Ended(Ended { a, line: 3, how: OK, ms: 1 })] };
    assert!(d.apply(late).is_err());
}

#[test]
fn failures_are_retried_as_often_as_asked_and_losses_do_not_count() {
    let mut d = Desk::new();
    d.submit(1, None, Needs { retries: 1, ..Needs::default() });
    d.start_and_lose("x", "1");
    let w = d.admit("a");
    let a = d.run(&w, "1");
    assert_eq!(a.number, 2);
    d.end(&w, a, FAIL);
    d.is("1", TaskState::Ready);
    assert_eq!(d.state.delayed().collect::<Vec<_>>(), [(JobId(1), 0, 1)]);
    let a = d.run(&w, "1");
    assert_eq!(d.state.delayed().count(), 0);
    d.end(&w, a, FAIL);
    d.is("1", TaskState::Failed);
    let past = &d.state.jobs[&JobId(1)].past[&0];
    assert_eq!(past.iter().map(|p| p.how.as_str()).collect::<Vec<_>>(), ["lost", "failed"]);
}

#[test]
fn a_task_that_loses_its_worker_five_times_is_held_with_the_reason() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    for i in 0..5 {
        d.is("1", TaskState::Ready);
        d.start_and_lose(&format!("h{i}"), "1");
    }
    d.is("1", TaskState::Held);
    assert!(d.state.jobs[&JobId(1)].note(0).unwrap().contains("h4"));
    let retry = Action::Retry { targets: vec![("1".parse().unwrap(), 5)] };
    d.ok(Op::Answer { id: Nonce(1), action: retry, uid: 7 });
    d.is("1", TaskState::Ready);
}

#[test]
fn an_issued_task_that_never_ran_is_not_charged_for_a_lost_worker() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    for i in 0..9 {
        let w = d.admit(&format!("h{i}"));
        d.run(&w, "1");
        d.ok(Op::Gone { w, how: Departure::Lost, why: "silence".into() });
    }
    d.is("1", TaskState::Ready);
}

#[test]
fn dependents_of_a_failure_are_aborted_in_a_cascade_and_those_of_a_success_become_ready() {
    let mut d = Desk::new();
    d.submit(1, Some("0-1"), Needs::default());
    d.submit(2, None, after(After::Ok, "1"));
    d.submit(3, None, after(After::Ok, "2"));
    d.submit(4, None, after(After::Any, "1"));
    d.submit(5, None, after(After::NotOk, "1"));
    d.submit(6, None, after(After::Ok, "1_0"));
    d.submit(7, None, after(After::Any, "3"));
    let w = d.admit("a");
    d.is("2", TaskState::Waiting);
    let a = d.run(&w, "1_0");
    d.end(&w, a, OK);
    d.is("6", TaskState::Ready);
    d.is("4", TaskState::Waiting);
    let a = d.run(&w, "1_1");
    d.end(&w, a, FAIL);
    d.is("2", TaskState::Aborted);
    d.is("3", TaskState::Aborted);
    d.is("4", TaskState::Ready);
    d.is("5", TaskState::Ready);
    d.is("7", TaskState::Ready);
    assert_eq!(d.state.jobs[&JobId(3)].note(0), Some("2 did not end well"));
}

#[test]
fn a_dependency_on_a_number_that_is_taken_in_later_is_kept() {
    let mut d = Desk::new();
    d.submit(2, None, after(After::Ok, "1"));
    d.is("2", TaskState::Waiting);
    d.submit(1, None, Needs::default());
    let w = d.admit("a");
    let a = d.run(&w, "1");
    d.end(&w, a, OK);
    d.is("2", TaskState::Ready);
}

#[test]
fn cancelling_ends_what_waits_at_once_and_marks_what_runs() {
    let mut d = Desk::new();
    d.submit(1, Some("0-2"), Needs::default());
    let w = d.admit("a");
    let a = d.run(&w, "1_0");
    let b = d.run(&w, "1_1");
    let cancel = Action::Cancel { targets: vec!["1".parse().unwrap()], reason: "no".into() };
    d.ok(Op::Answer { id: Nonce(1), action: cancel, uid: 7 });
    d.is("1_2", TaskState::Cancelled);
    d.is("1_0", TaskState::Issued);
    d.see(&w, Seen::Released(vec![a], Requeue::Cancelled));
    d.is("1_0", TaskState::Cancelled);
    d.end(&w, b, OK);
    d.is("1_1", TaskState::Done);
}

#[test]
fn a_job_cancelled_before_it_is_taken_in_is_born_cancelled() {
    let mut d = Desk::new();
    let cancel = Action::Cancel { targets: vec!["1".parse().unwrap()], reason: "typo".into() };
    d.ok(Op::Answer { id: Nonce(1), action: cancel, uid: 7 });
    d.submit(1, Some("0-9"), Needs::default());
    d.is("1_3", TaskState::Cancelled);
}

#[test]
fn cancelling_one_task_of_a_job_that_is_not_taken_in_yet_ends_only_that_one() {
    let mut d = Desk::new();
    let cancel = Action::Cancel { targets: vec!["1_3".parse().unwrap()], reason: "typo".into() };
    d.ok(Op::Answer { id: Nonce(1), action: cancel, uid: 7 });
    d.submit(1, Some("0-9"), Needs::default());
    d.is("1_3", TaskState::Cancelled);
    d.is("1_4", TaskState::Ready);
    assert_eq!(d.state.jobs[&JobId(1)].note(3), Some("typo"));
}

#[test]
fn a_released_task_no_longer_says_that_it_is_held() {
    let mut d = Desk::new();
    d.submit(1, None, Needs { hold: true, ..Needs::default() });
    assert_eq!(d.state.jobs[&JobId(1)].note(0), Some("submitted with --hold"));
    d.ok(Op::Answer { id: Nonce(1), action: Action::Release { targets: vec!["1".parse().unwrap()] }, uid: 7 });
    assert_eq!(d.state.jobs[&JobId(1)].note(0), None);
}

#[test]
fn jobs_that_wait_for_each_other_are_no_progress() {
    let mut d = Desk::new();
    d.submit(1, None, after(After::Ok, "2"));
    d.submit(2, None, after(After::Ok, "1"));
    d.submit(3, None, after(After::Ok, "3"));
    assert!(!d.state.can_progress(&|_| true));
}

#[test]
fn a_job_that_is_aborted_is_on_nobodys_list_any_more() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    d.submit(2, None, Needs::default());
    let both = ["1", "2"].map(|t| Dependency { when: After::Ok, target: t.parse().unwrap() });
    d.submit(3, None, Needs { after: both.into(), ..Needs::default() });
    let w = d.admit("a");
    let a = d.run(&w, "1");
    // The desk compares with a snapshot, which has no such list.
    d.end(&w, a, FAIL);
    d.is("3", TaskState::Aborted);
}

#[test]
fn a_retry_names_the_attempt_so_that_doing_it_twice_is_doing_it_once() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    let w = d.admit("a");
    let retry =
        || Op::Answer { id: Nonce(1), action: Action::Retry { targets: vec![("1".parse().unwrap(), 1)] }, uid: 7 };
    let a = d.run(&w, "1");
    d.end(&w, a, FAIL);
    d.ok(retry());
    d.is("1", TaskState::Ready);
    let a = d.run(&w, "1");
    d.end(&w, a, FAIL);
    d.ok(retry());
    d.is("1", TaskState::Failed);
}

#[test]
fn three_set_up_failures_in_a_row_quarantine_a_node_unless_the_job_fails_elsewhere_too() {
    let mut d = Desk::new();
    let fault = || Outcome::Setup(SetupFailure { step: Step::Fork, errno: "EAGAIN".into(), path: "x".into() });
    d.submit(1, Some("0-9"), Needs::default());
    let (w, other) = (d.admit("a"), d.admit("b"));
    for i in 0..3 {
        assert!(d.state.workers[&w].is_active());
        let a = d.run(&w, &format!("1_{i}"));
        d.end(&w, a, fault());
        d.is(&format!("1_{i}"), TaskState::Ready);
    }
    assert_eq!(d.state.workers[&w].status, WorkerStatus::Quarantined);
    let a = d.run(&other, "1_0");
    d.end(&other, a, fault());
    assert!(d.state.workers[&w].is_active(), "the job fails everywhere, so it is not the node");
}

#[test]
fn holding_and_releasing_moves_only_what_is_not_out() {
    let mut d = Desk::new();
    d.submit(1, Some("0-1"), Needs::default());
    let w = d.admit("a");
    d.run(&w, "1_0");
    d.ok(Op::Answer { id: Nonce(1), action: Action::Hold { targets: vec!["1".parse().unwrap()] }, uid: 7 });
    d.is("1_0", TaskState::Issued);
    d.is("1_1", TaskState::Held);
    d.ok(Op::Answer { id: Nonce(2), action: Action::Release { targets: vec!["1".parse().unwrap()] }, uid: 7 });
    d.is("1_1", TaskState::Ready);
}

#[test]
fn the_queue_is_ordered_by_priority_and_then_by_number() {
    let mut d = Desk::new();
    for (job, priority) in [(1, 0), (2, 5), (3, -1), (4, 5)] {
        d.submit(job, None, Needs { priority, ..Needs::default() });
    }
    assert_eq!(d.state.queue().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 4, 1, 3]);
}

#[test]
fn pruning_forgets_ended_jobs_and_the_workers_that_only_they_name() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    d.submit(2, None, Needs::default());
    let w = d.admit("a");
    let a = d.run(&w, "1");
    d.end(&w, a, OK);
    d.ok(Op::Gone { w: w.clone(), how: Departure::Left, why: "done".into() });
    d.admit("b");
    d.ok(Op::Prune { jobs: Ranges::default(), workers: vec![w.clone()] });
    assert!(d.state.workers.contains_key(&w), "a kept job names it");
    d.ok(Op::Prune { jobs: Ranges::span(1, 2), workers: Vec::new() });
    assert!(!d.state.jobs.contains_key(&JobId(1)) && d.state.knows(JobId(1)));
    assert!(d.state.jobs.contains_key(&JobId(2)), "a job that has not ended is kept");
    assert!(d.state.workers.contains_key(&w), "its namespace may still be there");
    d.ok(Op::Prune { jobs: Ranges::default(), workers: vec![w.clone()] });
    assert!(!d.state.workers.contains_key(&w));
}

#[test]
fn a_job_that_is_forgotten_is_on_nobodys_list_any_more() {
    let mut d = Desk::new();
    d.submit(1, None, after(After::Ok, "9"));
    let cancel = Action::Cancel { targets: vec!["1".parse().unwrap()], reason: "no".into() };
    d.ok(Op::Answer { id: Nonce(1), action: cancel, uid: 7 });
    // The desk compares with a snapshot, which has no such list.
    d.ok(Op::Prune { jobs: Ranges::span(1, 1), workers: Vec::new() });
}

#[test]
fn what_waits_only_for_a_person_is_no_progress() {
    let mut d = Desk::new();
    d.submit(1, None, Needs { hold: true, ..Needs::default() });
    d.submit(2, None, after(After::Ok, "1"));
    assert!(!d.state.can_progress(&|_| true));
    d.submit(3, None, Needs::default());
    d.submit(4, None, after(After::Ok, "3"));
    assert!(d.state.can_progress(&|_| true));
    assert!(!d.state.can_progress(&|_| false), "what no worker can run is no progress, nor is what waits for it");
}

#[test]
fn absurd_operations_are_refused() {
    let mut d = Desk::new();
    d.submit(1, None, Needs::default());
    let w = d.admit("a");
    let item = RunItem { job: JobId(1), sha: Digest::of(b"x"), uid: 7, tasks: None, attempt: 2 };
    assert!(d.apply(Op::Send { w: w.clone(), m: 1, msg: Message::Run(vec![item]) }).is_err());
    assert!(d.apply(Op::Send { w, m: 3, msg: Message::Drain }).is_err());
    assert!(d.apply(Op::Alias { job: JobId(1), of: JobId(1) }).is_err());
    assert!(d.apply(Op::Read { w: WorkerId::new("zz", Nonce(1)), seq: 1, seen: vec![] }).is_err());
}
