//! Masters in a simulated cluster, with a toy worker that speaks the protocol and runs nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

mod collect;
mod power;

use super::*;
use crate::decision::Reader;
use crate::fs::{Call, put_new, read_all};
use crate::journal::Writer as Journal;
use crate::mailbox::Receiver;
use crate::mutant::{self, Mutant};
use crate::process::Status;
use crate::protocol::id::{JobId, Nonce};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{
    Action, Command, EndLine, Hello, Limits, Line, LockVerdict, Manifest, Message, Needs, Outcome as How, Ref, Request,
    Requeue, RunItem, Trust, to_document,
};
use crate::protocol::version::CURRENT;
use crate::queue::{self, InitOptions};
use crate::sim::{Armed, CallFault, Cluster, FaultBudget, HostId, Profile, SimEnv};

fn limits() -> Limits {
    Limits {
        beat_ms: 1_000,
        self_fence_ms: 10_000,
        grace_ms: 1_000,
        suspect_ms: 5_000,
        lease_ms: 30_000,
        takeover_ms: 8_000,
        visible_ms: 90_000,
        snapshot_every: 20,
        ..Limits::default()
    }
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// A queue on a simulated cluster of two hosts.
struct Desk {
    cluster: Cluster,
    hosts: Vec<HostId>,
}

impl Desk {
    fn new(seed: u64, profile: Profile) -> Self {
        let mut cluster = Cluster::new(seed, profile);
        let hosts = vec![cluster.add_host("a"), cluster.add_host("b")];
        let options = InitOptions { limits: Some(limits()), ..InitOptions::default() };
        cluster.spawn(hosts[0], "init", move |env| {
            queue::init_on(
                env.fs(),
                env.chance(),
                env.clock(),
                std::path::Path::new("q"),
                env.host().me().uid,
                &options,
            )
            .expect("a queue");
        });
        cluster.run_to_end(secs(600)).unwrap_or_else(|e| panic!("{e}"));
        Self { cluster, hosts }
    }

    fn masters(&mut self) {
        for (i, host) in self.hosts.clone().into_iter().enumerate() {
            self.cluster.spawn_service(host, &format!("master-{i}"), secs(3), master);
        }
    }

    fn workers(&mut self) {
        for (i, host) in self.hosts.clone().into_iter().enumerate() {
            self.cluster.spawn_service(host, &format!("worker-{i}"), secs(3), worker);
        }
    }

    fn submit(&mut self, count: u64) {
        self.cluster.spawn_service(self.hosts[1], "client", secs(1), move |env| {
            for n in 1..=count {
                while submit(env, n).is_err() {
                    env.sleep(secs(1));
                }
                env.sleep(Duration::from_millis(env.chance().bits() % 300));
            }
        });
    }

    /// The state at the end of the chain, read by a process that nothing disturbs.
    fn state(&mut self) -> State {
        let found = Rc::new(RefCell::new(None));
        let slot = found.clone();
        self.cluster.spawn(self.hosts[0], "reader", move |env| {
            *slot.borrow_mut() = Some(loop {
                match Reader::open(env.fs()) {
                    Ok(reader) => break reader.state().clone(),
                    Err(e) if e.may_pass() => env.sleep(secs(1)),
                    Err(e) => panic!("{e}"),
                }
            });
        });
        let limit = self.cluster.now() + secs(600);
        let is_there = found.clone();
        let ok = self.cluster.run_until(|_| is_there.borrow().is_some(), limit);
        assert!(ok.unwrap_or_else(|e| panic!("{e}")), "the chain cannot be read: {:#?}", self.cluster.trace());
        let state = found.borrow_mut().take();
        state.expect("was there")
    }

    /// Runs until all `count` jobs are done.
    fn all_done(&mut self, count: u64) {
        for _ in 0..120 {
            self.cluster.run_for(secs(10)).unwrap_or_else(|e| panic!("{e}"));
            let state = self.state();
            let done = state.jobs.values().filter(|job| job.state() == TaskState::Done).count() as u64;
            if done == count {
                assert_eq!(state.counts().of(TaskState::Done), count);
                return;
            }
        }
        let trace = self.cluster.trace();
        let tail = &trace[trace.len().saturating_sub(150)..];
        let state = self.state();
        let jobs: Vec<_> = state.jobs.iter().map(|(id, job)| (id, job.state(), &job.tasks[0])).collect();
        let workers: Vec<_> =
            state.workers.iter().map(|(w, worker)| (w, &worker.status, worker.sent, worker.got, &worker.out)).collect();
        panic!("{}\nseed {}: not done: {jobs:?}\n{workers:#?}", tail.join("\n"), self.cluster.seed());
    }
}

/// A manifest for nothing in particular.
fn toy(sub: u64, number: JobId) -> Manifest {
    Manifest {
        fq: "job".into(),
        version: CURRENT,
        job: number,
        sub: Nonce(sub),
        name: "toy".into(),
        command: Command::Argv(vec!["true".into()]),
        cwd: "/".into(),
        env: Vec::new(),
        array: None,
        entries: None,
        stdin: None,
        stdout: None,
        stderr: None,
        needs: Needs::default(),
        user: "u".into(),
        host: "b".into(),
        at_ms: 0,
    }
}

/// Binds submission `sub` under the first number of its own that it can have: a torn file keeps its number for ever.
fn submit(env: &SimEnv, sub: u64) -> Result<(), crate::fs::FsError> {
    let mut last = None;
    for number in (0..8).map(|i| JobId(sub + 100 * i)) {
        let manifest = toy(sub, number);
        let path = layout::job(number);
        let bytes = to_document(&manifest);
        match put_new(env.fs(), &path, &bytes, 0o600) {
            Ok(()) => return Ok(()),
            Err(_) if read_all(env.fs(), &path).is_ok_and(|found| found == bytes) => {
                return env.fs().sync_dir("jobs/000".as_ref());
            }
            Err(e) => last = Some(e),
        }
    }
    last.map_or(Ok(()), Err)
}

fn master(env: &SimEnv) {
    let world = Env { fs: env.fs(), clock: env.clock(), chance: env.chance(), host: env.host() };
    let file = loop {
        match queue::read_file(env.fs(), std::path::Path::new("q")) {
            Ok(file) => break file,
            Err(_) => env.sleep(secs(1)),
        }
    };
    let me = WorkerId::new(&env.host().me().host, Nonce(env.chance().bits()));
    let mut master = Master::new(file, Options { me, nudges: true }, env.clock().boot());
    loop {
        let step = master.step(world);
        for note in &step.notes {
            env.note(note);
        }
        if let Some(halt) = step.halt {
            panic!("{halt}");
        }
        for path in step.removals {
            let _ = env.fs().unlink(&path);
        }
        if env.should_stop() && master.abdicate(world) {
            return;
        }
        env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
    }
}

/// One incarnation after the other.
fn worker(env: &SimEnv) {
    loop {
        incarnation(env);
        env.sleep(secs(1));
    }
}

/// Takes mail, claims, says that everything went well. Ends when it could not make a beat durable for too long.
fn incarnation(env: &SimEnv) {
    let queue = loop {
        match queue::read_file(env.fs(), std::path::Path::new("q")) {
            Ok(file) => break file.id,
            Err(_) => env.sleep(secs(1)),
        }
    };
    let limits = limits();
    let me = env.host().me();
    let wid = WorkerId::new(&me.host, Nonce(env.chance().bits()));
    let Ok(mut journal) = prepare(env, &wid, queue, &me, &limits) else { return };
    let mut mailbox = Receiver::new(wid);
    let mut lease = crate::lease::OwnLease::new(&limits, env.clock().boot());
    let mut k = 0;
    let mut revoked = std::collections::BTreeSet::new();
    loop {
        let before = env.clock().boot();
        if lease.is_over(before) {
            return;
        }
        let mut running = Vec::new();
        for mail in mailbox.poll(env.fs()).unwrap_or_default() {
            match mail.msg {
                Message::Run(items) => {
                    journal.append(&Line::Claim { m: mail.m, by: mail.by });
                    running.extend(items.iter().flat_map(RunItem::attempts).map(|a| (a, mail.m)));
                }
                Message::Withdraw { attempts, .. } => {
                    journal.append(&Line::Got { m: mail.m, by: mail.by });
                    revoked.extend(attempts);
                }
                Message::Drain => {
                    journal.append(&Line::Got { m: mail.m, by: mail.by });
                }
                Message::Fence => return,
            }
        }
        for (a, m) in running {
            if revoked.contains(&a) {
                journal.append(&Line::Released { a: vec![a], why: Requeue::Withdrawn });
                continue;
            }
            journal.append(&well(a, m));
        }
        if lease.is_beat_due(before) {
            k += 1;
            journal.append(&Line::Beat { k, free: 1 });
        }
        if journal.is_dirty() && journal.flush(env.fs()).is_ok() {
            lease.prove(before, secs(1));
        }
        env.sleep(Duration::from_millis(200 + env.chance().bits() % 300));
    }
}

/// The end of an attempt that went well and wrote nothing.
fn well(a: crate::protocol::id::AttemptId, m: u64) -> Line {
    Line::End(Box::new(EndLine {
        a,
        m,
        how: How::Ran(Status::Exit(0)),
        out: Ref::default(),
        err: Ref::default(),
        usage: crate::process::Usage::default(),
        ms: 10,
        leftovers: 0,
        notes: Vec::new(),
        start_ms: 0,
        end_ms: 0,
    }))
}

fn prepare(
    env: &SimEnv,
    wid: &WorkerId,
    queue: Nonce,
    me: &crate::process::Identity,
    limits: &Limits,
) -> Result<Journal, crate::fs::FsError> {
    env.fs().mkdir(&layout::worker(wid))?;
    env.fs().mkdir(&layout::mailbox(wid))?;
    env.fs().sync_dir(layout::WORKERS.as_ref())?;
    env.fs().sync_dir(&layout::worker(wid))?;
    let mut journal = Journal::create(env.fs(), wid, limits)?;
    journal.set_mark_sync(true);
    let hello = Hello {
        fq: "hello".into(),
        version: CURRENT,
        wid: wid.clone(),
        queue,
        worker: me.clone(),
        keeper: None,
        cpus: 2,
        mem: 0,
        self_fence_ms: limits.self_fence_ms,
        lock: LockVerdict::Unsupported,
        trust: Trust { uid: me.uid, ..Trust::default() },
        at_ms: 0,
    };
    put_new(env.fs(), &layout::hello(wid), &to_document(&hello), 0o644)?;
    Ok(journal)
}

#[test]
fn jobs_submitted_before_any_master_are_done_once_one_comes() {
    let mut desk = Desk::new(1, Profile::local());
    desk.submit(20);
    desk.cluster.run_for(secs(20)).unwrap_or_else(|e| panic!("{e}"));
    desk.workers();
    desk.masters();
    desk.all_done(20);
}

#[test]
fn any_order_of_start_gives_the_same_end() {
    let mut desk = Desk::new(2, Profile::nfs3());
    desk.masters();
    desk.cluster.run_for(secs(20)).unwrap_or_else(|e| panic!("{e}"));
    desk.submit(20);
    desk.cluster.run_for(secs(20)).unwrap_or_else(|e| panic!("{e}"));
    desk.workers();
    desk.all_done(20);
}

/// In life: `fq submit` and `fq cancel` in one line, while the master looks at `control/` before it looks at `jobs/`. Here the
/// request is there long before the manifest can be seen.
#[test]
fn a_cancel_that_is_seen_before_its_job_is_not_lost() {
    let mut desk = Desk::new(4, Profile::nfs3());
    desk.masters();
    desk.cluster.spawn(desk.hosts[1], "client", |env| {
        let id = Nonce(env.chance().bits());
        let request = Request {
            fq: "request".into(),
            version: CURRENT,
            id,
            action: Action::Cancel { targets: vec!["1".parse().expect("a target")], reason: "no".into() },
            user: "u".into(),
            at_ms: 0,
        };
        put_new(env.fs(), &layout::request(id), &to_document(&request), 0o600).expect("a request");
        env.sleep(secs(20));
        submit(env, 1).expect("a manifest");
    });
    desk.cluster.run_for(secs(60)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(desk.state().counts().of(TaskState::Cancelled), 1);
}

#[test]
fn another_master_leads_when_the_first_is_killed_and_jobs_go_on() {
    let mut desk = Desk::new(3, Profile::nfs41());
    desk.masters();
    desk.workers();
    desk.submit(30);
    desk.cluster.run_for(secs(4)).unwrap_or_else(|e| panic!("{e}"));
    let first = desk.state().term;
    let name = desk.state().master.map(|m| m.w.host().to_owned());
    let victim = if name.as_deref() == Some("a") { "master-0" } else { "master-1" };
    let victim = desk.cluster.find(victim).expect("runs");
    desk.cluster.kill(victim);
    desk.all_done(30);
    assert!(desk.state().term > first);
}

#[test]
fn twelve_seeds_with_every_kind_of_fault_end_with_all_jobs_done() {
    let profiles: BTreeMap<u64, fn() -> Profile> =
        [(0, Profile::local as fn() -> Profile), (1, Profile::nfs3), (2, Profile::nfs41), (3, Profile::ceph)].into();
    for seed in 100..112 {
        let mut desk = Desk::new(seed, profiles[&(seed % 4)]());
        desk.masters();
        desk.workers();
        desk.cluster.plan_faults(&FaultBudget::mixed(secs(60)));
        desk.submit(20);
        desk.cluster.run_for(secs(300)).unwrap_or_else(|e| panic!("{e}"));
        desk.cluster.quiet();
        desk.all_done(20);
    }
}

#[test]
fn a_master_with_nothing_to_do_sleeps_whether_it_nudges_or_not() {
    for nudges in [false, true] {
        let mut desk = Desk::new(5, Profile::local());
        let steps = Rc::new(Cell::new(0_u32));
        let count = steps.clone();
        desk.cluster.spawn(desk.hosts[0], "master", move |env| {
            let world = Env { fs: env.fs(), clock: env.clock(), chance: env.chance(), host: env.host() };
            let file = queue::read_file(env.fs(), std::path::Path::new("q")).expect("a queue");
            let me = WorkerId::new("a", Nonce(1));
            let mut master = Master::new(file, Options { me, nudges }, env.clock().boot());
            loop {
                let step = master.step(world);
                count.set(count.get() + 1);
                env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
            }
        });
        desk.cluster.run_for(secs(60)).unwrap_or_else(|e| panic!("{e}"));
        steps.set(0);
        desk.cluster.run_for(secs(60)).unwrap_or_else(|e| panic!("{e}"));
        let steps = steps.get();
        assert!((30..600).contains(&steps), "{steps} steps in a minute, nudges: {nudges}");
    }
}

/// Seed 262 on `nfs3`: the first rename of an abdication failed, and the second one was made by a step that thought of no abdication.
#[test]
fn a_master_whose_abdication_is_in_doubt_leads_no_further_once_it_is_won() {
    let mut desk = Desk::new(6, Profile::local());
    let (leads, over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (led, ended) = (leads.clone(), over.clone());
    let process = desk.cluster.spawn(desk.hosts[0], "master", move |env| {
        let world = Env { fs: env.fs(), clock: env.clock(), chance: env.chance(), host: env.host() };
        let file = queue::read_file(env.fs(), std::path::Path::new("q")).expect("a queue");
        let me = WorkerId::new("a", Nonce(1));
        let mut master = Master::new(file, Options { me, nudges: true }, env.clock().boot());
        while !env.should_stop() {
            let step = master.step(world);
            led.set(master.leads());
            env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
        }
        assert!(!master.abdicate(world), "its rename was refused");
        assert!(master.leads());
        while master.leads() {
            let step = master.step(world);
            assert_eq!(step.halt, None);
            env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
        }
        assert!(master.state().is_some_and(|state| state.master.is_none()));
        assert!(master.abdicate(world), "it has nothing to give up");
        ended.set(true);
    });
    let has_led = desk.cluster.run_until(|_| leads.get(), secs(60));
    assert!(has_led.unwrap_or_else(|e| panic!("{e}")));
    desk.cluster.run_for(secs(10)).unwrap_or_else(|e| panic!("{e}"));
    desk.cluster.arm(Armed::next(CallFault::Refused(libc::EIO)).of(process).at(Call::Rename).on("decisions/head"));
    desk.cluster.ask_to_stop(process);
    let has_ended = desk.cluster.run_until(|_| over.get(), secs(60));
    assert!(has_ended.unwrap_or_else(|e| panic!("{e}")), "{:#?}", desk.cluster.trace());
}

/// Workers that now and then begin two segments within a second, on a server that stamps changes of a directory in whole seconds.
/// Returns how many workers were declared lost.
fn lost_while_all_go_on(seed: u64, mutant: Mutant) -> usize {
    mutant::with(mutant, || {
        let coarse = Profile { change: crate::sim::profile::Change::Tick(1_000_000_000), ..Profile::nfs3() };
        let mut desk = Desk::new(seed, coarse);
        desk.masters();
        for host in desk.hosts.clone() {
            desk.cluster.spawn(host, "worker", |env| {
                let file = queue::read_file(env.fs(), std::path::Path::new("q")).expect("a queue");
                let limits = Limits { segment_max: 4_000, ..limits() };
                let me = env.host().me();
                let wid = WorkerId::new(&me.host, Nonce(env.chance().bits()));
                let mut journal = prepare(env, &wid, file.id, &me, &limits).expect("a worker");
                for k in 1.. {
                    let is_long = k % 50 < 2;
                    journal.append(&Line::Beat { k, free: 1 });
                    if is_long {
                        journal.append(&Line::Pause { why: "long ".repeat(1_000) });
                    }
                    journal.flush(env.fs()).expect("a sign of life");
                    env.sleep(Duration::from_millis(if is_long { 300 } else { 1_000 }));
                }
            });
        }
        desk.cluster.run_for(secs(300)).unwrap_or_else(|e| panic!("{e}"));
        desk.state()
            .workers
            .values()
            .filter(|worker| matches!(worker.status, crate::state::WorkerStatus::Gone(..)))
            .count()
    })
}

/// Without nudges (variant `no-nudge`) a listing hides the newest segment until the last look; without that of the last look too
/// (`hidden-news`) living workers are declared lost. On `nfs3`, seed 998, that began a task again which still ran.
#[test]
fn a_worker_whose_newest_segment_an_old_listing_hides_is_not_declared_lost() {
    let seeds = 300..304;
    assert!(seeds.clone().all(|seed| lost_while_all_go_on(seed, Mutant::NoNudge) == 0));
    assert!(seeds.clone().any(|seed| lost_while_all_go_on(seed, Mutant::HiddenNews) > 0), "the test shows nothing");
}

/// Somebody removes it, a listing hides it, or the rename was reported and not done, as here.
#[test]
fn mail_that_does_not_arrive_is_sent_again() {
    for seed in 310..316 {
        let mut desk = Desk::new(seed, Profile::nfs3());
        desk.masters();
        desk.workers();
        desk.submit(10);
        for skip in 0..3 {
            desk.cluster.arm(Armed::next(CallFault::FalseDone).at(Call::Rename).on("/in/").after(skip * 2));
        }
        desk.all_done(10);
        assert_eq!(desk.cluster.faults().get("FalseDone"), Some(&3));
        assert_eq!(
            desk.state().workers.values().filter(|worker| worker.status == crate::state::WorkerStatus::Active).count(),
            2
        );
    }
}

/// A worker on the master's host runs one task for three seconds, reports its end and is gone. Returns how often the task ran.
fn attempts_of_a_task_whose_worker_dies_with_its_last_word(seed: u64, mutant: Option<Mutant>) -> u32 {
    let play = || {
        let mut desk = Desk::new(seed, Profile::local());
        desk.cluster.spawn_service(desk.hosts[0], "master", secs(3), master);
        desk.submit(1);
        desk.cluster.spawn_service(desk.hosts[0], "worker", secs(5), |env| {
            let file = queue::read_file(env.fs(), std::path::Path::new("q")).expect("a queue");
            let me = env.host().me();
            let wid = WorkerId::new(&me.host, Nonce(env.chance().bits()));
            let mut journal = prepare(env, &wid, file.id, &me, &limits()).expect("a worker");
            let mut mailbox = Receiver::new(wid);
            let (m, by, a) = loop {
                let mail = mailbox.poll(env.fs()).expect("mail").into_iter().next();
                match mail.map(|mail| (mail.m, mail.by, mail.msg)) {
                    Some((m, by, Message::Run(items))) => {
                        break (m, by, items[0].attempts()[0]);
                    }
                    _ => env.sleep(Duration::from_millis(200)),
                }
            };
            journal.append(&Line::Claim { m, by });
            journal.flush(env.fs()).expect("a claim");
            env.sleep(Duration::from_millis(3_000 + env.chance().bits() % 500));
            journal.append(&well(a, m));
            journal.flush(env.fs()).expect("an end");
            env.exit();
        });
        desk.all_done(1);
        desk.state().jobs.values().map(|job| job.tasks[0].attempt).sum()
    };
    mutant.map_or_else(play, |mutant| mutant::with(mutant, play))
}

#[test]
fn what_a_dead_worker_has_reported_is_accepted_before_it_is_declared_lost() {
    let seeds = 320..328;
    for seed in seeds.clone() {
        assert_eq!(attempts_of_a_task_whose_worker_dies_with_its_last_word(seed, None), 1, "seed {seed}");
    }
    let attempts = |seed| attempts_of_a_task_whose_worker_dies_with_its_last_word(seed, Some(Mutant::NoLastLook));
    assert!(seeds.clone().any(|seed| attempts(seed) > 1), "the test shows nothing");
}

/// On `nfs3-nolock`, seed 737: what removes strays had looked for the journal of a worker that was only about to begin; for a minute
/// the master of that host did not see it, and declared the worker lost.
#[test]
fn a_journal_that_was_looked_for_too_early_is_read_once_it_is_there() {
    for profile in [Profile::nfs3(), Profile::nfs41(), Profile::gluster(), Profile::beegfs()] {
        let mut desk = Desk::new(340, profile);
        let (began, read) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let (begins, reads) = (began.clone(), read.clone());
        let w = WorkerId::new("b", Nonce(1));
        let wid = w.clone();
        desk.cluster.spawn(desk.hosts[0], "reader", move |env| {
            assert!(env.fs().list(&layout::journal(&wid)).is_err_and(|e| e.not_found()));
            begins.set(true);
            let mut tail = crate::journal::Tail::new(wid);
            env.sleep(secs(10));
            while reads.get() == 0 {
                env.sleep(secs(1));
                reads.set(tail.poll(env.fs()).map_or(0, |news| news.lines.len()));
            }
        });
        desk.cluster.spawn(desk.hosts[1], "worker", move |env| {
            while !began.get() {
                env.sleep(secs(1));
            }
            env.sleep(secs(3));
            let mut journal = Journal::create(env.fs(), &w, &limits()).expect("a journal");
            journal.append(&Line::Beat { k: 1, free: 1 });
            journal.flush(env.fs()).expect("a sign of life");
        });
        desk.cluster.run_for(secs(20)).unwrap_or_else(|e| panic!("{e}"));
        assert!(read.get() > 0, "not read for 20 s");
    }
}

/// Two jobs submitted within a second, on a server that stamps changes of a directory in whole seconds. Returns how many were taken in
/// a minute later.
fn taken_in_of_two(seed: u64, mutant: Option<Mutant>) -> usize {
    let play = || {
        let coarse = Profile { change: crate::sim::profile::Change::Tick(1_000_000_000), ..Profile::nfs3() };
        let mut desk = Desk::new(seed, coarse);
        desk.cluster.spawn(desk.hosts[0], "master", master);
        desk.cluster.spawn(desk.hosts[1], "client", |env| {
            env.sleep(secs(20));
            submit(env, 1).expect("a manifest");
            env.sleep(Duration::from_millis(400));
            submit(env, 2).expect("a manifest");
        });
        desk.cluster.run_for(secs(85)).unwrap_or_else(|e| panic!("{e}"));
        desk.state().jobs.len()
    };
    mutant.map_or_else(play, |mutant| mutant::with(mutant, play))
}

#[test]
fn a_job_that_an_old_listing_hides_is_taken_in_within_a_minute() {
    let seeds = 370..380;
    assert!(seeds.clone().all(|seed| taken_in_of_two(seed, None) == 2));
    assert!(seeds.clone().any(|seed| taken_in_of_two(seed, Some(Mutant::NoNudge)) < 2), "the test shows nothing");
}
