//! What jobs and idle workers cost a shared file system, counted call by call.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use fq::clock::Clock as _;
use fq::fs::{Call, Counts};
use fq::master::Hint;
use fq::protocol::id::{JobId, Nonce, WorkerId};
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::Limits;

use crate::bench::{Bench, Boss, Hireling};
use crate::support::remark;

/// Time goes on by so little between two steps that nothing is looked at but where a hint says so.
const TICK: Duration = Duration::from_millis(1);
/// So many single jobs are measured.
const JOBS: u64 = 5;

fn files(bench: &Bench) -> BTreeSet<PathBuf> {
    let all = walkdir::WalkDir::new(bench.dir());
    all.into_iter().map(|e| e.expect("a queue can be walked").into_path()).filter(|path| path.is_file()).collect()
}

fn counts(bench: &Bench) -> [(&'static str, Counts); 3] {
    [("client", bench.client_fs.counts()), ("master", bench.master_fs.counts()), ("worker", bench.worker_fs.counts())]
}

/// Takes one job from its submission to its accepted end, each process looking where a hint sends it.
fn one_job(bench: &Bench, boss: &mut Boss<'_>, worker: &mut Hireling<'_>) -> JobId {
    let job = bench.submit("true");
    boss.hint(&Hint::Jobs);
    for _ in 0..10_000 {
        bench.clock.reach(bench.clock.boot() + TICK);
        if boss.due <= bench.clock.boot() {
            boss.step(true);
            worker.hint();
        }
        let load = worker.load();
        if worker.due <= bench.clock.boot() || load > 0 {
            worker.step();
        }
        if load > 0 {
            worker.wait();
            if worker.load() == 0 {
                boss.hint(&Hint::Journal(worker.wid.clone()));
            }
        }
        let is_done = bench.state().job(job).is_some_and(|job| job.tasks[0].state == TaskState::Done);
        if is_done {
            return job;
        }
    }
    panic!("job {job} does not end");
}

#[test]
fn a_single_job_costs_few_calls_on_names_and_few_files() {
    let bench = Bench::new(Limits::default());
    let mut worker = Hireling::start(&bench);
    let mut boss = Boss::new(&bench, worker.wid.clone());
    while !boss.leads() {
        bench.clock.reach(boss.due.max(bench.clock.boot() + TICK));
        boss.step(true);
    }
    // Warm: directories are known, journals and packs are open.
    for _ in 0..3 {
        one_job(&bench, &mut boss, &mut worker);
    }
    boss.render();
    let (before, files_before) = (counts(&bench), files(&bench));
    for _ in 0..JOBS {
        one_job(&bench, &mut boss, &mut worker);
    }
    // The view of all of them at once: it is rendered every few seconds at most.
    let unrendered = bench.master_fs.counts();
    boss.render();
    let rendered = (bench.master_fs.counts() - unrendered).of(Call::Create);
    assert!(rendered <= 3, "{rendered} files of the view were written, and nothing has failed or is held");
    let (after, files_after) = (counts(&bench), files(&bench));
    let mut names = 0;
    for ((who, before), (_, after)) in before.iter().zip(&after) {
        let spent = *after - *before;
        remark(&format!("{JOBS} single jobs, {who}:\n{spent}"));
        names += spent.total_namespace();
    }
    let new: Vec<_> = files_after.difference(&files_before).collect();
    remark(&format!("{JOBS} single jobs: {names} calls on names, {} more files: {new:#?}", new.len()));
    assert!(names <= 25 * JOBS, "{names} calls on names for {JOBS} jobs");
    assert!(new.len() as u64 <= 4 * JOBS, "{} more files for {JOBS} jobs", new.len());
}

/// Calls in the first five idle minutes and in the twenty after, a second.
fn idle_rates(
    bench: &Bench,
    masters: &mut [&mut Boss<'_>],
    worker: &mut Hireling<'_>,
    of: &dyn Fn() -> u64,
) -> (f64, f64) {
    let run_to = |end: Duration, masters: &mut [&mut Boss<'_>], worker: &mut Hireling<'_>| {
        loop {
            let due = masters.iter().map(|m| m.due).chain([worker.due]).min().unwrap_or(end);
            if due >= end {
                bench.clock.reach(end);
                return;
            }
            bench.clock.reach(due.max(bench.clock.boot() + TICK));
            let now = bench.clock.boot();
            for master in masters.iter_mut().filter(|m| m.due <= now) {
                master.step(true);
                assert_eq!(master.halt, None);
            }
            if worker.due <= now {
                worker.step();
                assert_eq!(worker.over, None);
            }
        }
    };
    // Until the first moments are over: election, admission.
    let start = bench.clock.boot();
    run_to(start + Duration::from_secs(2), masters, worker);
    let begin = of();
    run_to(start + Duration::from_secs(300), masters, worker);
    let middle = of();
    // What begins to be idle takes a while to calm down.
    run_to(start + Duration::from_secs(330), masters, worker);
    let late = of();
    run_to(start + Duration::from_secs(330 + 3600), masters, worker);
    ((middle - begin) as f64 / 298.0, (of() - late) as f64 / 3600.0)
}

#[test]
fn an_idle_worker_with_a_standby_master_hardly_touches_the_file_system() {
    let bench = Bench::new(Limits::default());
    let elsewhere = bench.elsewhere();
    // The leader is on another host, and its calls are counted apart.
    let mut leader = Boss::on(&bench, WorkerId::new("elsewhere", Nonce(1)), &elsewhere);
    while !leader.leads() {
        bench.clock.reach(leader.due.max(bench.clock.boot() + TICK));
        leader.step(true);
    }
    let mut worker = Hireling::start(&bench);
    let mut standby = Boss::beside(&bench, worker.wid.clone());
    let of = || bench.worker_fs.counts().total();
    let (first, later) = idle_rates(&bench, &mut [&mut leader, &mut standby], &mut worker, &of);
    remark(&format!(
        "an idle worker with a standby master: {first:.3} calls/s in the first five minutes, {later:.3} after"
    ));
    assert!(!standby.leads() && leader.leads());
    assert!(first <= 1.0, "{first} calls/s");
    assert!(later <= 0.2, "{later} calls/s");
}

#[test]
fn an_idle_queue_of_one_worker_that_leads_is_quiet_too() {
    let bench = Bench::new(Limits::default());
    let mut worker = Hireling::start(&bench);
    let mut boss = Boss::new(&bench, worker.wid.clone());
    let of = || bench.worker_fs.counts().total() + bench.master_fs.counts().total();
    let (first, later) = idle_rates(&bench, &mut [&mut boss], &mut worker, &of);
    remark(&format!("an idle worker that leads: {first:.3} calls/s in the first five minutes, {later:.3} after"));
    remark(&format!("of them by the master:\n{}", bench.master_fs.counts()));
    assert!(boss.leads());
    // Besides what the worker may cost, 1/s and then 0.2/s, a leader has to look for submissions and for requests, each every second
    // and later every five; the rest are new workers, the worker's journal, the limits, its own beats and its look at the head.
    assert!(first <= 4.0, "{first} calls/s");
    assert!(later <= 1.4, "{later} calls/s");
}

// --- What the few looks of an idle leader must not cost: time ---

/// Lets the leader look when it wants to, without any hint, until `is_so`; returns how long that took by its own clock.
#[track_caller]
fn until_it_sees(bench: &Bench, boss: &mut Boss<'_>, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = bench.clock.boot();
    while !is_so() {
        bench.clock.reach(boss.due.max(bench.clock.boot() + TICK));
        boss.step(false);
        assert_eq!(boss.halt, None);
        assert!(bench.clock.boot() < start + Duration::from_secs(1200), "this never came true: {what}");
    }
    bench.clock.boot().saturating_sub(start)
}

/// A leader that has had nothing to do for `span`.
fn idle_leader(bench: &Bench, span: Duration) -> Boss<'_> {
    let mut boss = Boss::on(bench, WorkerId::new("elsewhere", Nonce(1)), bench.here());
    let start = bench.clock.boot();
    until_it_sees(bench, &mut boss, "time passes", || bench.clock.boot() >= start + span);
    assert!(boss.leads());
    boss
}

#[test]
fn a_submission_is_seen_as_soon_as_the_limits_promise_also_where_it_begins_a_bucket() {
    for (idle, longest) in [(60, 1), (600, 5)] {
        let bench = Bench::new(Limits::default());
        let mut boss = idle_leader(&bench, Duration::from_secs(idle));
        for begins_bucket in [false, true] {
            if begins_bucket {
                // All numbers before it are used up.
                std::fs::write(bench.dir().join("jobs/000/999.json"), "").expect("a file can be written");
            }
            let job = bench.submit("true");
            assert_eq!(job.0 >= 1000, begins_bucket);
            let took = until_it_sees(&bench, &mut boss, "it is taken in", || bench.state().knows(job));
            assert!(took <= Duration::from_secs(longest + 1), "{took:?} after {idle} s, {begins_bucket}");
        }
    }
}

#[test]
fn a_worker_that_came_to_an_idle_queue_is_there_when_the_first_task_is() {
    for (idle, longest) in [(60, 1), (600, 5)] {
        let bench = Bench::new(Limits::default());
        let mut boss = idle_leader(&bench, Duration::from_secs(idle));
        let worker = Hireling::start(&bench);
        bench.submit("true");
        let is_issued = || bench.state().workers.get(&worker.wid).is_some_and(|w| !w.out.is_empty());
        let took = until_it_sees(&bench, &mut boss, "the task is issued", is_issued);
        assert!(took <= Duration::from_secs(longest + 2), "{took:?} after {idle} s");
    }
}
