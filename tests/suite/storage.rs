//! Storage that is full, broken, read-only, damaged, or of a later time: the queue stays usable, and nothing wrong is accepted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fq::clock::Clock as _;
use fq::fs::{Call, Rule};
use fq::master::Hint;
use fq::protocol::id::{Nonce, WorkerId};
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::Limits;
use rustix::process::Signal;

use crate::bench::{Bench, Boss, Files, Hireling};
use crate::support::disk::{HOG, Mount, fill, snapshot};
use crate::support::live::{Live, QUICK, SHORT_LEASE, Stage};
use crate::support::{Room, remark};

/// A queue on a small file system of its own.
struct Small {
    // It goes before the directory that it is mounted on.
    _mount: Mount,
    stage: Stage,
    dir: PathBuf,
}

impl std::ops::Deref for Small {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Small {
    /// `None`, with a remark, where nothing can be mounted.
    fn new(options: &str) -> Option<Self> {
        let room = Room::new();
        let dir = room.path("small");
        match Mount::tmpfs(&dir, options) {
            Err(why) => {
                remark(&format!("skipped: {why}"));
                None
            }
            Ok(mount) => {
                let stage = Stage::around(room.with_queue_at(dir.join("q")));
                stage.fq(["init"]).succeeds();
                stage.set_limits(QUICK);
                Some(Self { _mount: mount, stage, dir })
            }
        }
    }

    /// Fills what is left until nothing that goes on meanwhile (mail and answered requests are removed) makes room any more.
    fn stays_full(&self, make_full: &dyn Fn() -> bool) {
        let mut quiet_looks = 0;
        self.until("nothing makes room any more", || {
            quiet_looks = if make_full() { 0 } else { quiet_looks + 1 };
            quiet_looks >= 10
        });
    }

    /// Asserts that all of the job's `tasks` are done with what they wrote.
    #[track_caller]
    fn all_right(&self, tasks: u64, expected: &[u8]) {
        assert_eq!((self.count("done"), self.count("failed")), (tasks, 0));
        for task in 0..tasks {
            let result = self.fq(["result", &format!("1_{task}")]).succeeds().stdout;
            assert!(result == expected, "1_{task} has {} bytes", result.len());
            let shown = self.show(&format!("1_{task}"));
            assert_eq!(shown["attempts"].as_array().map(Vec::len), Some(1), "a full disk costs no attempt: {shown}");
        }
    }
}

/// A task that writes 30,000 bytes; those after the fourth wait for the file `go`, so that none is done before the disk is full.
const WRITES: &str = r#"[ "$FQ_ARRAY_TASK_ID" -lt 4 ] || until [ -e go ]; do sleep 0.05; done
    head -c 30000 /dev/zero | tr '\0' x"#;

/// Runs tasks, fills the file system in the middle with `make_full`, which says whether there was room, and asserts all that is
/// promised of it.
fn fills_up(small: &Small, make_full: &dyn Fn() -> bool, make_room: impl FnOnce()) {
    const TASKS: u64 = 24;
    small.submit(["-a", "0-23", "--wrap", WRITES]);
    let mut worker = small.worker(&["-c", "2", "--until-empty"]);
    small.until_count("done", 4);
    make_full();
    small.file("go", "");
    small.until("the worker says that it pauses", || {
        make_full();
        worker.said().contains("pauses")
    });
    small.stays_full(make_full);
    let status = small.fq(["status"]).succeeds().stdout_text();
    assert!(status.contains("full"), "{status}");
    let workers = small.fq(["workers"]).succeeds().stdout_text();
    assert!(workers.contains("full"), "{workers}");
    let manifests = || std::fs::read_dir(small.queue().join("jobs/000")).map(Iterator::count).ok();
    let before = manifests();
    let refused = small.fq(["submit", "--wrap", "echo hi"]).exits(75);
    refused.says("no job was created; it is safe to submit again");
    let after = manifests();
    assert!(after <= before.map(|n| n + 1), "one try leaves at most one torn manifest: {before:?} {after:?}");
    small.stays_full(make_full);
    small.fq(["cancel", "1_5"]).exits(75);
    assert_eq!(small.count("failed"), 0);
    assert!(small.count("done") < TASKS, "the disk filled up too late to tell anything");
    assert_eq!(worker.ended(), None);
    make_room();
    small.exits(&mut worker, 0);
    small.all_right(TASKS, &vec![b'x'; 30_000]);
    assert!(!small.fq(["status"]).succeeds().stdout_text().contains("full"));
    let job = small.submit(["--", "true"]).to_string();
    small.fq(["worker", "--until-empty"]).succeeds();
    small.fq(["wait", &job]).succeeds();
}

#[test]
fn a_run_outlives_a_full_disk() {
    let Some(small) = Small::new("size=6m") else { return };
    let make_room = || std::fs::remove_file(small.dir.join(HOG)).expect("the file can be removed");
    fills_up(&small, &|| fill(&small.dir), make_room);
}

#[test]
fn a_run_outlives_used_up_inodes() {
    let Some(small) = Small::new("size=60m,nr_inodes=700") else { return };
    let dir = small.dir.join("hogs");
    std::fs::create_dir(&dir).expect("a directory can be made");
    let count = std::cell::Cell::new(0);
    let make_full = || {
        let before = count.get();
        while std::fs::write(dir.join(count.get().to_string()), "").is_ok() {
            count.set(count.get() + 1);
        }
        count.get() > before
    };
    fills_up(&small, &make_full, || std::fs::remove_dir_all(&dir).expect("the files can be removed"));
}

#[test]
fn a_master_waits_for_space_and_then_leads() {
    let Some(small) = Small::new("size=4m") else { return };
    small.submit(["--", "echo", "hi"]);
    fill(&small.dir);
    let mut master = small.start(&["master"]);
    small.until("the master says why it waits", || master.said().contains("no space left"));
    assert_eq!(master.ended(), None);
    assert!(small.fq(["status"]).succeeds().stdout_text().contains("full"));
    std::fs::remove_file(small.dir.join(HOG)).expect("the file can be removed");
    small.until_count("ready", 1);
    assert_eq!(master.ended(), None);
}

#[test]
fn a_worker_that_finds_no_space_to_begin_says_so() {
    let Some(small) = Small::new("size=4m") else { return };
    fill(&small.dir);
    let said = small.fq(["worker", "--until-empty"]).exits(75);
    said.says("no space left");
    std::fs::remove_file(small.dir.join(HOG)).expect("the file can be removed");
    small.fq(["worker", "--until-empty"]).succeeds();
}

/// A queue whose worker was ended by a full disk, and finds no room to begin anew.
struct Outage {
    small: Small,
    worker: Live,
    tmp: PathBuf,
}

impl Outage {
    const TASKS: u64 = 12;

    fn new(worker_args: &[&str]) -> Option<Self> {
        let small = Small::new("size=6m")?;
        // Nobody waits for the end of a lease: that the old worker is over is known by the new one.
        small.set_limits(&SHORT_LEASE.replace(r#""lease_ms":7000"#, r#""lease_ms":600000"#));
        small.submit(["-a", "0-11", "--wrap", WRITES]);
        let tmp = small.path("tmp");
        std::fs::create_dir(&tmp).expect("a directory can be made");
        let words = [&["worker", "-c", "2"], worker_args].concat();
        let worker = small.live(small.fq(&words).env("TMPDIR", &tmp).command());
        small.until_count("done", 4);
        small.until("no new worker finds room to begin", || {
            fill(&small.dir);
            worker.said().contains("no worker can begin yet; the next try is in ")
        });
        assert!(worker.said().contains("the queue gives them out again; a new worker begins in "), "{}", worker.said());
        small.file("go", "");
        Some(Self { small, worker, tmp })
    }

    fn is_over(&self) {
        std::fs::remove_file(self.small.dir.join(HOG)).expect("the file can be removed");
    }

    /// All tasks are done with what they wrote, and no worker has left anything on the host.
    #[track_caller]
    fn came_out_right(&self) {
        assert_eq!((self.small.count("done"), self.small.count("failed")), (Self::TASKS, 0));
        for task in 0..Self::TASKS {
            let result = self.small.fq(["result", &format!("1_{task}")]).succeeds().stdout;
            assert!(result == vec![b'x'; 30_000], "1_{task} has {} bytes", result.len());
        }
        assert_eq!(std::fs::read_dir(&self.tmp).map(Iterator::count).ok(), Some(0), "no scratch directory is left");
        self.small.is_clean();
    }
}

#[test]
fn a_run_outlives_an_outage_that_ends_its_worker() {
    let Some(mut outage) = Outage::new(&["--until-empty"]) else { return };
    assert_eq!(outage.worker.ended(), None);
    outage.is_over();
    outage.small.exits(&mut outage.worker, 0);
    outage.came_out_right();
}

#[test]
fn a_worker_that_waits_for_the_end_of_an_outage_can_be_told_to_end() {
    let Some(mut outage) = Outage::new(&[]) else { return };
    outage.worker.signal(Signal::TERM);
    outage.small.exits(&mut outage.worker, 0);
    outage.is_over();
    outage.small.fq(["worker", "--until-empty"]).succeeds();
    outage.came_out_right();
}

#[test]
fn a_worker_that_is_told_to_end_on_a_full_disk_ends() {
    let Some(small) = Small::new("size=4m") else { return };
    small.submit(["-a", "0-9", "--wrap", WRITES]);
    let mut worker = small.worker(&["-c", "2"]);
    small.until_count("done", 4);
    fill(&small.dir);
    small.file("go", "");
    small.until("the worker says that it pauses", || {
        fill(&small.dir);
        worker.said().contains("pauses")
    });
    worker.signal(Signal::TERM);
    small.exits(&mut worker, 75);
    std::fs::remove_file(small.dir.join(HOG)).expect("the file can be removed");
    small.fq(["worker", "--until-empty"]).succeeds();
    assert_eq!((small.count("done"), small.count("failed")), (10, 0));
}

#[test]
fn a_read_only_mount_can_be_read_and_nothing_more() {
    let room = Stage::around(Room::with_queue());
    room.submit(["--", "echo", "hi"]);
    room.fq(["worker", "--until-empty"]).succeeds();
    room.submit(["--", "echo", "later"]);
    let dir = room.path("ro");
    let mount = match Mount::read_only(&room.queue(), &dir) {
        Ok(mount) => mount,
        Err(why) => return remark(&format!("skipped: {why}")),
    };
    let before = snapshot(&dir);
    let fq = |args: &[&str]| room.fq(args).env("FQ_DIR", &dir);
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["show", "1"],
        &["list"],
        &["workers", "--all"],
        &["logs", "1"],
        &["result", "1"],
        &["wait", "1"],
    ] {
        fq(args).succeeds();
    }
    for args in [&["submit", "--", "true"][..], &["cancel", "2"], &["worker", "--until-empty"]] {
        fq(args).exits(6).says("read-only file system");
    }
    let mut master = room.live(fq(&["master"]).command());
    room.until("the master says why it waits, or ends", || {
        master.ended().is_some() || master.said().contains("read-only file system")
    });
    assert!(master.said().contains("read-only file system"), "{}", master.said());
    drop(master);
    assert_eq!(snapshot(&dir), before);
    drop(mount);
}

#[test]
fn a_queue_of_a_later_version_is_left_alone() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    let file = room.queue().join("FQ");
    let text = std::fs::read_to_string(&file).expect("FQ can be read");
    let line = text.lines().next().expect("it has a line");
    let mut value: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
    for (member, content) in [("version", serde_json::json!(99)), ("features", serde_json::json!(["unheard-of"]))] {
        let old = value[member].clone();
        value[member] = content;
        let mut line = serde_json::to_vec(&value).expect("it has string keys");
        line.push(b'\n');
        std::fs::remove_file(&file).expect("FQ can be removed");
        std::fs::write(&file, fq::protocol::frame::close_document(line)).expect("FQ can be written");
        let before = snapshot(&room.queue());
        for args in [
            &["status"][..],
            &["show", "1"],
            &["submit", "--", "true"],
            &["worker", "--until-empty"],
            &["master", "--until-empty"],
            &["cancel", "1"],
            &["logs", "1"],
            &["workers"],
            &["wait", "1"],
        ] {
            let said = room.fq(args).exits(3);
            assert!(said.stderr.starts_with("error: "), "{}", said.stderr);
        }
        assert_eq!(snapshot(&room.queue()), before);
        value[member] = old;
    }
}

/// Changes one byte in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x01;
    std::fs::remove_file(path).expect("it can be removed");
    std::fs::write(path, bytes).expect("it can be written");
}

fn first_file(dir: &Path, part: &str) -> Option<PathBuf> {
    let all = walkdir::WalkDir::new(dir).sort_by_file_name();
    all.into_iter()
        .flatten()
        .map(walkdir::DirEntry::into_path)
        .find(|p| p.is_file() && p.to_string_lossy().contains(part))
}

/// After whatever was done to `room`, a new job still runs; returns what the worker said.
#[track_caller]
fn still_runs(room: &Room, what: &str) -> String {
    let job = room.submit(["--", "echo", "still"]).to_string();
    let said = room.fq(["worker", "--until-empty"]).run();
    assert_eq!(said.code, 0, "{what}: {}", said.stderr);
    assert!(!said.stderr.contains("panicked"), "{what}: {}", said.stderr);
    let result = room.fq(["result", &job]).run();
    assert_eq!(
        (result.code, result.stdout_text().as_str()),
        (0, "still\n"),
        "{what}: {} {}",
        said.stderr,
        result.stderr
    );
    said.stderr
}

fn used_room() -> Stage {
    let room = Stage::new(&QUICK.replace('{', r#"{"pack_item_max":20000,"snapshot_every":2,"#));
    room.submit(["--", "echo", "first"]);
    room.submit(["--wrap", "head -c 10000 /dev/zero"]);
    room.submit(["--wrap", "head -c 100000 /dev/zero"]);
    room.fq(["worker", "--until-empty"]).succeeds();
    room
}

#[test]
fn a_damaged_manifest_stops_nobody() {
    let room = used_room();
    let job = room.submit(["--", "echo", "damaged"]);
    damage(&room.queue().join(format!("jobs/000/{job}.json")));
    let status = room.fq(["status"]).succeeds().stdout_text();
    assert!(status.contains(&format!("job {job} cannot be run")), "{status}");
    still_runs(&room, "a damaged manifest");
    // One that is whole and makes no sense.
    let text = fq::protocol::frame::close_document(b"{\"fq\":\"job\",\"version\":1}\n".to_vec());
    std::fs::write(room.queue().join("jobs/000/40.json"), text).expect("a file can be written");
    still_runs(&room, "a senseless manifest");
    assert!(room.fq(["status"]).succeeds().stdout_text().contains("job 40 cannot be run"));
}

#[test]
fn damaged_requests_and_hellos_stop_nobody() {
    let room = used_room();
    let document = |text: &str| fq::protocol::frame::close_document(format!("{text}\n").into_bytes());
    let put = |name: &str, bytes: &[u8]| {
        let path = room.queue().join(name);
        std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("a directory can be made");
        std::fs::write(path, bytes).expect("a file can be written");
    };
    put("control/0000000000000001.json", b"{\"fq\":\"req");
    put("control/0000000000000002.json", &document("{\"fq\":\"request\",\"version\":99}"));
    put("control/0000000000000003.json", &document("[[[[]]]]"));
    put("control/noise", b"\xff\xfe");
    put("workers/x~0000000000000001/HELLO", b"{\"fq\":\"hel");
    put("workers/x~0000000000000002/HELLO", &document("{\"fq\":\"hello\"}"));
    put("workers/noise/HELLO", b"\0\0");
    put("jobs/noise/1.json", b"x");
    put("jobs/000/x.json", b"x");
    put("decisions/log/000/000000002.0123456789abcdef.jsonl", b"x");
    put("decisions/beacon/noise", b"x");
    put("view/STATUS", b"\xff\xff\xff");
    put("probe/noise.json", b"{");
    let said = still_runs(&room, "damaged requests");
    assert!(said.contains("control/0000000000000002.json") && said.contains("x~0000000000000002"), "{said}");
    room.fq(["status"]).succeeds();
    room.fq(["workers", "--all"]).succeeds();
}

#[test]
fn a_damaged_journal_line_stops_nobody() {
    let room = used_room();
    let journal = first_file(&room.queue().join("store/log"), ".jsonl").expect("there is a journal");
    damage(&journal);
    still_runs(&room, "a damaged line of a worker that has gone");
    for args in [["show", "1"], ["show", "2"], ["show", "3"], ["logs", "1"], ["logs", "3"]] {
        let said = room.fq(args).run();
        assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    }
}

#[test]
fn a_damaged_snapshot_stops_nobody() {
    let room = used_room();
    // The newest two are kept, and the decisions since the older one.
    let names = std::fs::read_dir(room.queue().join("decisions/snapshots")).expect("there are snapshots");
    let newest = names.flatten().map(|entry| entry.path()).max().expect("there is one");
    damage(&newest);
    room.fq(["status"]).succeeds();
    still_runs(&room, "a damaged snapshot");
}

#[test]
fn a_damaged_object_is_never_handed_out() {
    let room = used_room();
    let object = first_file(&room.queue().join("store/objects"), "objects").expect("there is an object");
    let pack = first_file(&room.queue().join("store/packs"), "packs").expect("there is a pack");
    damage(&object);
    damage(&pack);
    for job in ["2", "3"] {
        let said = room.fq(["result", job]).run();
        assert_ne!(said.code, 0, "job {job}");
        assert!(said.stderr.contains("damaged"), "{}", said.stderr);
    }
    still_runs(&room, "damaged objects");
}

#[test]
fn damaged_limits_change_nothing_in_a_running_queue() {
    let room = used_room();
    let mut worker = room.worker(&[]);
    room.set_limits("{\"beat_ms\": oops");
    let job = room.submit(["--", "echo", "hi"]).to_string();
    room.until_count("done", 4);
    worker.signal(Signal::TERM);
    room.exits(&mut worker, 0);
    assert_eq!(room.fq(["result", &job]).succeeds().stdout_text(), "hi\n");
    room.fq(["worker", "--until-empty"]).exits(3).says("limits.json");
}

// --- Faults that no real disk shows on demand ---

/// Lets master and worker go on until `is_over`, at most for `span` of their own time.
fn go_on(
    bench: &Bench,
    boss: &mut Boss<'_>,
    worker: &mut Hireling<'_>,
    span: Duration,
    mut is_over: impl FnMut(&mut Boss<'_>, &mut Hireling<'_>) -> bool,
) -> bool {
    let end = bench.clock.boot() + span;
    for turn in 0_u64.. {
        if bench.clock.boot() >= end || turn.is_multiple_of(10) && is_over(boss, worker) {
            break;
        }
        if worker.load() > 0 && !worker.is_paused() {
            // Its children live in real time.
            worker.wait();
            worker.due = Duration::ZERO;
        }
        let due = boss.due.min(worker.due).max(bench.clock.boot() + Duration::from_millis(10));
        bench.clock.reach(due.min(end));
        let now = bench.clock.boot();
        if worker.due <= now {
            worker.step();
            boss.hint(&Hint::Journal(worker.wid.clone()));
        }
        if boss.due <= now {
            boss.step(false);
            worker.hint();
        }
    }
    is_over(boss, worker)
}

fn limits() -> Limits {
    Limits {
        beat_ms: 200,
        self_fence_ms: 600_000,
        grace_ms: 500,
        suspect_ms: 600_000,
        lease_ms: 700_000,
        takeover_ms: 60_000,
        visible_ms: 60_000,
        poll_ms: 50,
        idle_poll_ms: 100,
        inline_max: 64,
        pack_item_max: 1000,
        ..Limits::default()
    }
}

/// One run with `rule` in the middle of it on the files of one role; everything has to come out right after it was healed.
#[track_caller]
fn outlives(what: &str, rule: &Rule, files: fn(&Bench) -> &Files) {
    let bench = Bench::new(limits());
    let mut worker = Hireling::start(&bench);
    let mut boss = Boss::new(&bench, worker.wid.clone());
    let led = go_on(&bench, &mut boss, &mut worker, Duration::from_secs(10), |boss, _| boss.leads());
    assert!(led, "{what}: nobody leads");
    // Inline, in a pack, and an object of its own.
    let sizes = [10_u64, 500, 5000];
    let submit = || sizes.map(|n| bench.submit(&format!("head -c {n} /dev/zero | tr '\\0' x")));
    let mut jobs: Vec<_> = submit().into();
    boss.hint(&Hint::Jobs);
    let mut steps = 0;
    go_on(&bench, &mut boss, &mut worker, Duration::from_secs(10), |_, worker| {
        steps += 10;
        worker.load() > 0 || steps > 50
    });
    files(&bench).inner().add(rule.clone());
    jobs.extend(submit());
    boss.hint(&Hint::Jobs);
    go_on(&bench, &mut boss, &mut worker, Duration::from_secs(2), |_, _| false);
    files(&bench).inner().heal();
    let is_failed = |state: TaskState| {
        !matches!(
            state,
            TaskState::Waiting | TaskState::Ready | TaskState::Issued | TaskState::Running | TaskState::Done
        )
    };
    let during = bench.state();
    for job in jobs.iter().filter_map(|&job| during.job(job)) {
        assert!(!is_failed(job.tasks[0].state), "{what}: {:?}", job.tasks[0]);
    }
    let ended = go_on(&bench, &mut boss, &mut worker, Duration::from_secs(120), |_, _| {
        let state = bench.state();
        jobs.iter().all(|&job| state.job(job).is_some_and(|job| job.tasks[0].state == TaskState::Done))
    });
    let state = bench.state();
    let found: Vec<_> = jobs.iter().map(|&job| state.job(job).map(|job| job.tasks[0].state)).collect();
    assert!(ended, "{what}: {found:?}, {:?}, {:?}, paused {}", boss.notes, worker.over, worker.is_paused());
    assert_eq!(boss.halt, None, "{what}");
    for (&job, size) in jobs.iter().zip(sizes.iter().chain(&sizes)) {
        let job = state.job(job).expect("it is there");
        let record = fq::client::view::attempt_records(job, 0).pop().expect("it ran");
        let plain = &bench.client_fs;
        let end = fq::client::view::end_line(plain, &state, &record).expect("its record can be read");
        let mut len = 0;
        fq::store::copy_to(plain, &end.out, &mut |bytes| {
            len += bytes.len() as u64;
            assert!(bytes.iter().all(|&b| b == b'x'), "{what}");
        })
        .expect("its output can be read");
        assert_eq!(len, *size, "{what}");
    }
}

const WRITING: [Call; 5] = [Call::Create, Call::Write, Call::Sync, Call::Rename, Call::SyncDir];

fn errors() -> [(&'static str, i32); 4] {
    [("ENOSPC", libc::ENOSPC), ("EDQUOT", libc::EDQUOT), ("EIO", libc::EIO), ("ESTALE", libc::ESTALE)]
}

#[test]
fn a_worker_outlives_storage_that_takes_nothing() {
    for (name, errno) in errors() {
        for call in WRITING {
            outlives(&format!("worker, {call:?} {name}"), &Rule::new(call, errno), |bench| &bench.worker_fs);
        }
    }
}

#[test]
fn a_master_outlives_storage_that_takes_nothing() {
    for (name, errno) in errors() {
        for call in WRITING {
            outlives(&format!("master, {call:?} {name}"), &Rule::new(call, errno), |bench| &bench.master_fs);
        }
    }
}

#[test]
fn both_outlive_storage_that_gives_nothing() {
    for (name, errno) in [("EIO", libc::EIO), ("ESTALE", libc::ESTALE)] {
        for call in [Call::List, Call::Open, Call::Read, Call::Stat] {
            outlives(&format!("worker, {call:?} {name}"), &Rule::new(call, errno), |bench| &bench.worker_fs);
            outlives(&format!("master, {call:?} {name}"), &Rule::new(call, errno), |bench| &bench.master_fs);
        }
    }
}

#[test]
fn a_reply_that_is_lost_does_nothing_twice() {
    for call in WRITING {
        let rule = || Rule::new(call, libc::EIO).executed().times(3);
        outlives(&format!("worker, {call:?} done, reply lost"), &rule(), |bench| &bench.worker_fs);
        outlives(&format!("master, {call:?} done, reply lost"), &rule(), |bench| &bench.master_fs);
    }
}

#[test]
fn locks_that_are_missing_hang_or_refuse_hold_nobody_up() {
    for (name, errno) in [
        ("hangs", 0),
        ("ENOLCK", libc::ENOLCK),
        ("ENOSYS", libc::ENOSYS),
        ("refuses", libc::EWOULDBLOCK),
        ("EIO", libc::EIO),
    ] {
        let bench = Bench::new(limits());
        for files in [&bench.worker_fs, &bench.master_fs] {
            files.inner().add(Rule::new(Call::Lock, errno));
        }
        let mut worker = Hireling::start(&bench);
        let mut boss = Boss::new(&bench, WorkerId::new("here", Nonce(9)));
        let job = bench.submit("echo hi");
        let done = go_on(&bench, &mut boss, &mut worker, Duration::from_secs(60), |_, _| {
            bench.state().job(job).is_some_and(|job| job.tasks[0].state == TaskState::Done)
        });
        assert!(done, "{name}: {:?}", boss.notes);
    }
}
