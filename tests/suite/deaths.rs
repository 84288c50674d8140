//! Workers, keepers and masters that are killed, stopped, told to end or started in any order; and what becomes of their tasks.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::live::{Live, QUICK, SHORT_LEASE, Stage, is_alive, send};
use crate::support::remark;

/// A task that says that it runs, and lasts until somebody kills it unless it is a second attempt.
const ONLY_THE_SECOND_ENDS: &str =
    r#"echo "$FQ_ATTEMPT $$" >> runs; [ "$FQ_ATTEMPT" = 2 ] || exec sleep 1000; echo again"#;

/// Kills a worker in the middle of a task while another one stands by.
#[track_caller]
fn the_task_goes_to_another(how: &str, kill: impl FnOnce(&mut Live)) {
    let stage = Stage::new(QUICK);
    let mut first = stage.worker(&["-c", "1"]);
    stage.submit(["--wrap", ONLY_THE_SECOND_ENDS]);
    stage.until_count("running", 1);
    stage.until("it has begun", || stage.lines("runs").len() == 1);
    let mut second = stage.worker(&["-c", "1"]);
    stage.until("the other worker is admitted", || {
        stage.fq(["workers", "--json"]).run().json()["workers"].as_array().is_some_and(|all| all.len() == 2)
    });
    let killed = Instant::now();
    kill(&mut first);
    stage.until("it runs again", || stage.lines("runs").len() == 2);
    remark(&format!("{how}: the task was restarted {:.1} s after its death", killed.elapsed().as_secs_f32()));
    let before: u32 = stage.lines("runs")[0].split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("a pid");
    assert!(!is_alive(before), "the first attempt was over when the second began");
    stage.until_count("done", 1);
    assert_eq!(stage.outcomes("1"), ["lost", "done"]);
    assert_eq!(stage.logs("1"), b"again\n");
    let _ = stage.end_of(&mut first);
    second.signal(Signal::TERM);
    stage.exits(&mut second, 0);
    stage.is_clean();
}

#[test]
fn a_task_of_a_killed_worker_goes_to_another() {
    the_task_goes_to_another("worker", |first| send(first.worker(), Signal::KILL));
}

#[test]
fn a_task_of_a_worker_whose_keeper_was_killed_goes_to_another() {
    the_task_goes_to_another("keeper", |first| send(first.keeper(), Signal::KILL));
}

#[test]
fn a_task_of_a_worker_killed_with_its_keeper_goes_to_another() {
    the_task_goes_to_another("both", Live::kill_both);
}

/// In real life: a suspended virtual machine. The attempt of the stopped worker ends well meanwhile, and its worker would like to
/// report that when it wakes.
#[test]
fn a_worker_stopped_past_its_lease_changes_nothing_when_it_wakes() {
    let stage = Stage::new(SHORT_LEASE);
    let mut first = stage.worker(&["-c", "1"]);
    let task = r#"echo "$FQ_ATTEMPT $$" >> runs
        if [ "$FQ_ATTEMPT" = 1 ]; then while [ ! -e late ]; do sleep 0.05; done; echo late; else echo again; fi"#;
    stage.submit(["--wrap", task]);
    // One that lasts, so that there is something to end.
    stage.submit(["-d", "afterok:1", "--wrap", "true"]);
    stage.until_count("running", 1);
    let begun = stage.until("it has begun", || stage.lines("runs").pop());
    let attempt: u32 = begun.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("a pid");
    send(first.keeper(), Signal::STOP);
    send(first.worker(), Signal::STOP);
    let mut second = stage.worker(&["-c", "1"]);
    stage.until_count("done", 2);
    assert!(is_alive(attempt), "nobody has ended what the stopped worker runs");
    stage.file("late", "");
    stage.until("the first attempt has ended", || !is_alive(attempt));
    let before = stage.show("1");
    // So that no new worker begins in its place.
    first.signal(Signal::TERM);
    send(first.worker(), Signal::CONT);
    send(first.keeper(), Signal::CONT);
    stage.exits(&mut first, 4);
    assert_eq!(stage.logs("1"), b"again\n");
    assert_eq!(stage.outcomes("1"), ["lost", "done"]);
    assert_eq!(stage.show("1"), before, "no decision was made about it");
    second.signal(Signal::TERM);
    stage.exits(&mut second, 0);
    stage.is_clean();
}

#[test]
fn a_worker_stopped_past_its_lease_ends_its_children_when_it_wakes() {
    let stage = Stage::new(SHORT_LEASE);
    let mut first = stage.worker(&["-c", "1"]);
    stage.submit(["--wrap", ONLY_THE_SECOND_ENDS]);
    stage.until_count("running", 1);
    stage.until("it has begun", || stage.lines("runs").len() == 1);
    send(first.keeper(), Signal::STOP);
    send(first.worker(), Signal::STOP);
    let mut second = stage.worker(&["-c", "1", "--until-empty"]);
    stage.exits(&mut second, 0);
    send(first.worker(), Signal::CONT);
    send(first.keeper(), Signal::CONT);
    stage.until("a new worker has begun in its place", || first.said().matches("runs tasks on").count() == 2);
    assert!(first.said().contains("; the queue gives them out again; a new worker begins in "), "{}", first.said());
    assert!(!is_alive(first.worker()));
    stage.submit(["--wrap", "echo $FQ_ATTEMPT"]);
    stage.until_count("done", 2);
    assert_eq!(stage.lines("runs").len(), 2);
    first.signal(Signal::TERM);
    stage.exits(&mut first, 0);
    stage.is_clean();
}

#[test]
fn term_hands_running_tasks_back_uncharged() {
    let stage = Stage::new(QUICK);
    let mut first = stage.worker(&["-c", "2"]);
    stage.submit(["-a", "0-2", "--wrap", ONLY_THE_SECOND_ENDS]);
    stage.until_count("running", 2);
    first.signal(Signal::TERM);
    stage.exits(&mut first, 0);
    assert_eq!(stage.count("ready"), 3);
    assert_eq!(stage.outcomes("1_0"), ["requeued"]);
    // Retries were not asked for: one failure counted would be the end.
    let mut second = stage.worker(&["-c", "2"]);
    stage.until("the first two are done", || stage.count("done") >= 2);
    assert_eq!(stage.outcomes("1_1"), ["requeued", "done"]);
    second.signal(Signal::TERM);
    stage.exits(&mut second, 0);
    stage.is_clean();
}

#[test]
fn usr1_finishes_what_runs() {
    let stage = Stage::new(QUICK);
    let mut worker = stage.worker(&["-c", "1"]);
    stage.submit(["-a", "0-1", "--wrap", "while [ ! -e go ]; do sleep 0.05; done; echo whole"]);
    stage.until_count("running", 1);
    worker.signal(Signal::USR1);
    stage.until("it has understood", || worker.said().contains("SIGUSR1"));
    stage.file("go", "");
    stage.exits(&mut worker, 0);
    assert_eq!((stage.count("done"), stage.count("ready")), (1, 1));
    assert_eq!(stage.logs("1_0"), b"whole\n");
    stage.is_clean();
}

#[test]
fn two_workers_share_a_queue() {
    let stage = Stage::new(QUICK);
    stage.submit(["-a", "0-59", "--wrap", r#"echo "$FQ_ARRAY_TASK_ID" >> runs; echo "$FQ_ARRAY_TASK_ID""#]);
    let mut workers = [stage.worker(&["-c", "2", "--until-empty"]), stage.worker(&["-c", "2", "--until-empty"])];
    for worker in &mut workers {
        stage.exits(worker, 0);
    }
    assert_eq!(stage.count("done"), 60);
    let mut runs: Vec<u32> = stage.lines("runs").iter().filter_map(|line| line.parse().ok()).collect();
    runs.sort_unstable();
    assert_eq!(runs, (0..60).collect::<Vec<_>>(), "each ran once");
    stage.is_clean();
}

/// Spans of a worker's life, each tried when the one before was too short for a crowded machine.
const SPANS: [&str; 3] = ["2s", "10s", "60s"];

/// All that has gone before is gone when it looks first: what is ready has no worker that could run it.
#[test]
fn until_empty_does_not_end_before_its_own_worker_is_admitted() {
    let stage = Stage::new(QUICK);
    stage.submit(["-a", "0-2", "--wrap", "true"]);
    let mut once = stage.worker(&["-c", "1", "--once"]);
    stage.exits(&mut once, 0);
    assert_eq!((stage.count("done"), stage.count("ready")), (1, 2), "one task was run");
    let mut rest = stage.worker(&["-c", "1", "--until-empty"]);
    stage.exits(&mut rest, 0);
    assert_eq!(stage.count("done"), 3, "{}", rest.said());
    stage.is_clean();
}

#[test]
fn until_empty_names_what_no_worker_can_run() {
    let stage = Stage::new(QUICK);
    stage.submit(["-c", "64", "--wrap", "true"]);
    stage.submit(["--wrap", "exit 9"]);
    let mut worker = stage.worker(&["-c", "1", "--until-empty"]);
    assert_eq!(stage.end_of(&mut worker), 0, "failed tasks are no failure of the worker: {}", worker.said());
    assert!(worker.said().contains("job 1 is left"), "{}", worker.said());
    assert_eq!((stage.count("failed"), stage.count("ready")), (1, 1));
}

#[test]
fn a_worker_ends_after_its_idle_time() {
    let stage = Stage::new(QUICK);
    let mut spans = SPANS.into_iter();
    stage.submit(["--wrap", "true"]);
    stage.until("it was long enough for the task", || {
        let mut worker = stage.worker(&["--idle-timeout", spans.next().expect("a longer one")]);
        stage.exits(&mut worker, 0);
        assert!(worker.said().contains("no work came"), "{}", worker.said());
        stage.count("done") == 1
    });
}

#[test]
fn a_worker_hands_back_at_the_end_of_its_lifetime() {
    let stage = Stage::new(QUICK);
    let mut spans = SPANS.into_iter();
    stage.submit(["--wrap", "exec sleep 1000"]);
    stage.until("it was long enough for the task to begin", || {
        let mut worker = stage.worker(&["--lifetime", spans.next().expect("a longer one")]);
        stage.exits(&mut worker, 0);
        assert!(worker.said().contains("lifetime"), "{}", worker.said());
        !stage.outcomes("1").is_empty()
    });
    assert_eq!(stage.count("ready"), 1);
    assert_eq!(stage.outcomes("1"), ["requeued"]);
    stage.is_clean();
}

#[test]
fn a_copied_queue_goes_on_elsewhere() {
    let stage = Stage::new(QUICK);
    stage.submit(["--wrap", "seq 100000"]);
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    stage.submit(["-d", "afterok:1", "--wrap", "echo moved"]);
    let copied = std::process::Command::new("cp").arg("-a").args([stage.queue(), stage.path("copy")]).status();
    assert!(copied.expect("cp").success());
    std::fs::rename(stage.queue(), stage.path("old")).expect("a rename");
    std::fs::rename(stage.path("copy"), stage.queue()).expect("a rename");
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    assert_eq!(stage.logs("2"), b"moved\n");
    assert_eq!(stage.logs("1").len(), 588_895);
    stage.is_clean();
}

#[test]
fn any_order_of_starting_comes_to_the_same_end() {
    for order in ["smw", "wms", "msw", "wsm"] {
        let stage = Stage::new(QUICK);
        let mut running = Vec::new();
        for step in order.chars() {
            match step {
                's' => drop(stage.submit(["-a", "0-4", "--wrap", "echo $FQ_ARRAY_TASK_ID"])),
                'm' => running.push(stage.start(&["master"])),
                _ => running.push(stage.worker(&["-c", "2", "--no-master"])),
            }
        }
        stage.until_count("done", 5);
        assert_eq!(stage.logs("1"), b"0\n1\n2\n3\n4\n", "{order}");
        for live in &mut running {
            live.signal(Signal::TERM);
            assert_eq!(stage.end_of(live), 0, "{order}: {}", live.said());
        }
        stage.is_clean();
    }
}

#[test]
fn another_master_leads_when_one_is_killed() {
    let stage = Stage::new(QUICK);
    let mut masters = [stage.start(&["master"]), stage.start(&["master"])];
    let mut worker = stage.worker(&["-c", "2", "--no-master"]);
    stage.submit(["-a", "0-29", "--wrap", r#"echo "$FQ_ARRAY_TASK_ID" >> runs; sleep 0.1"#]);
    stage.until("some are done", || stage.count("done") >= 5);
    let leader = stage.fq(["status", "--json"]).run().json()["master"]["pid"].as_u64().expect("a master");
    send(u32::try_from(leader).expect("a pid"), Signal::KILL);
    stage.until_count("done", 30);
    assert_eq!(stage.lines("runs").len(), 30, "nothing ran twice");
    let status = stage.fq(["status", "--json"]).run().json();
    assert_eq!(status["master"]["term"], 2);
    for live in masters.iter_mut().chain([&mut worker]) {
        live.signal(Signal::TERM);
        let code = stage.end_of(live);
        assert!(code == 0 || u64::from(live.keeper()) == leader, "{}", live.said());
    }
    stage.is_clean();
}

/// Nobody is left who remembers what ran.
#[test]
fn all_killed_at_once_goes_on_when_started_again() {
    let stage = Stage::new(QUICK);
    let mut master = stage.start(&["master"]);
    let mut worker = stage.worker(&["-c", "2"]);
    let task = r#"echo "$$" > "$FQ_ARRAY_TASK_ID.$FQ_ATTEMPT"; [ "$FQ_ATTEMPT" = 2 ] || exec sleep 1000
        case "$(cut -d " " -f 3 "/proc/$(cat "$FQ_ARRAY_TASK_ID.1")/stat" 2>/dev/null)" in
        ""|Z) echo alone;; *) echo still there;; esac"#;
    stage.submit(["-a", "0-1", "--wrap", task]);
    stage.until_count("running", 2);
    stage.until("both have begun", || ["0.1", "1.1"].iter().all(|name| !stage.lines(name).is_empty()));
    send(master.keeper(), Signal::STOP);
    worker.kill_both();
    send(master.keeper(), Signal::KILL);
    let _ = stage.end_of(&mut master);
    let mut again = stage.worker(&["-c", "2", "--until-empty"]);
    stage.exits(&mut again, 0);
    assert_eq!(String::from_utf8_lossy(&stage.logs("1")), "alone\nalone\n");
    assert_eq!(stage.outcomes("1_0"), ["lost", "done"]);
    stage.is_clean();
}

#[test]
fn a_daemon_that_holds_the_output_neither_delays_the_end_nor_outlives_it() {
    let stage = Stage::new(QUICK);
    let task = "setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 1000' &
        while [ ! -e daemon ]; do sleep 0.01; done; echo over";
    stage.submit(["--wrap", task]);
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    assert_eq!(stage.logs("1"), b"over\n");
    assert_eq!(stage.show("1")["attempts"][0]["leftovers"], 1);
    let daemon = stage.lines("daemon")[0].parse().expect("a pid");
    assert!(!is_alive(daemon));
    stage.is_clean();
}

#[test]
fn arguments_arrive_byte_for_byte() {
    let stage = Stage::new(QUICK);
    let odd = b"\xff\xfe \n\ttab 'single' \"double\" $HOME \\ \xc3\x28\r\n\n".to_vec();
    let long: Vec<u8> = (0..100 * 1024_u32).map(|i| (i % 255 + 1) as u8).collect();
    for argument in [&odd, &long] {
        let command = ["--", "printf", "%s"].map(OsString::from).into_iter();
        stage.submit(command.chain([OsString::from_vec(argument.clone())]));
    }
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    assert!(stage.logs("1") == odd);
    assert!(stage.logs("2") == long);
    stage.is_clean();
}

#[test]
fn a_task_is_ended_at_its_time_limit() {
    let stage = Stage::new(QUICK);
    stage.submit(["-t", "3s", "--wrap", "trap '' TERM; echo begun; while :; do sleep 0.1; done"]);
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    assert_eq!(stage.outcomes("1"), ["timeout"]);
    assert_eq!(stage.show("1")["state"], "failed");
    assert_eq!(stage.logs("1"), b"begun\n");
    stage.is_clean();
}

#[test]
fn a_task_that_fails_is_tried_again_as_often_as_was_asked() {
    let stage = Stage::new(QUICK);
    stage.submit(["--retries", "2", "--wrap", "echo $FQ_ATTEMPT; exit 3"]);
    stage.submit(["--retries", "2", "--wrap", "echo $FQ_ATTEMPT; [ $FQ_ATTEMPT = 3 ]"]);
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    assert_eq!(stage.outcomes("1"), ["failed", "failed", "failed"]);
    assert_eq!(stage.show("1")["exit_code"], 3);
    assert_eq!(stage.outcomes("2"), ["failed", "failed", "done"]);
    assert_eq!(stage.fq(["logs", "1", "--attempt", "2"]).succeeds().stdout, b"2\n");
    assert_eq!(stage.logs("2"), b"3\n");
    stage.is_clean();
}

#[test]
fn running_and_waiting_tasks_can_be_cancelled() {
    let stage = Stage::new(QUICK);
    let mut worker = stage.worker(&["-c", "1"]);
    stage.submit(["--wrap", "echo begun; exec sleep 1000"]);
    stage.submit(["-d", "afterany:1", "--wrap", "true"]);
    stage.until_count("running", 1);
    stage.until("it has begun", || stage.logs("1") == b"begun\n");
    stage.fq(["cancel", "2"]).succeeds();
    stage.until_count("cancelled", 1);
    stage.fq(["cancel", "1"]).succeeds();
    stage.until_count("cancelled", 2);
    assert_eq!(stage.outcomes("1"), ["cancelled"]);
    assert_eq!(stage.outcomes("2"), [""; 0]);
    assert_eq!(stage.logs("1"), b"begun\n");
    worker.signal(Signal::TERM);
    stage.exits(&mut worker, 0);
    stage.is_clean();
}

#[test]
fn a_failure_aborts_what_depends_on_it() {
    let stage = Stage::new(QUICK);
    stage.submit(["--wrap", "exit 1"]);
    stage.submit(["-d", "afterok:1", "--wrap", "true"]);
    stage.submit(["-d", "afterok:2", "--wrap", "true"]);
    stage.submit(["-d", "afterany:3", "--wrap", "echo any"]);
    stage.submit(["-d", "afternotok:1", "--wrap", "echo notok"]);
    let mut worker = stage.worker(&["--until-empty"]);
    stage.exits(&mut worker, 0);
    let states: Vec<_> = (1..=5).map(|id| stage.show(&id.to_string())["state"].clone()).collect();
    assert_eq!(states, ["failed", "aborted", "aborted", "done", "done"]);
    assert!(stage.show("3")["reason"].is_string(), "{}", stage.show("3"));
    stage.is_clean();
}

/// The step, the name of the error and the path are what a person needs.
#[track_caller]
fn set_up_fails(stage: &Stage, step: &str, errno: &str, path: &str) {
    let mut worker = stage.worker(&["--until-empty"]);
    stage.until_count("failed", 1);
    worker.signal(Signal::TERM);
    let _ = stage.end_of(&mut worker);
    let shown = stage.show("1");
    let last = shown["attempts"].as_array().and_then(|all| all.last()).cloned().expect("an attempt");
    assert_eq!((&last["outcome"], &last["step"], &last["errno"]), (&"setup".into(), &step.into(), &errno.into()));
    let detail = last["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(path), "{shown}");
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let stage = Stage::new(QUICK);
    let dir = stage.path("work");
    std::fs::create_dir(&dir).expect("a directory");
    stage.submit(["-D", "work", "--wrap", "true"]);
    std::fs::remove_dir(&dir).expect("removal");
    set_up_fails(&stage, "chdir", "ENOENT", &dir.display().to_string());
}

#[test]
fn a_program_that_cannot_be_executed_is_named() {
    let stage = Stage::new(QUICK);
    stage.file("data", "no program");
    stage.submit(["--", "./data"]);
    set_up_fails(&stage, "exec", "EACCES", "data");
}

#[test]
fn standard_input_that_is_lost_is_named() {
    let stage = Stage::new(r#"{"poll_ms":100,"idle_poll_ms":200,"visible_ms":500,"backoff_ms":[50,200]}"#);
    let input = stage.file("input", vec![b'x'; 200_000]);
    stage.submit(["-i", &input.display().to_string(), "--wrap", "cat"]);
    let sha = stage.manifest(1)["stdin"].to_string();
    std::fs::remove_dir_all(stage.path("q/store/objects")).expect("removal");
    std::fs::create_dir(stage.path("q/store/objects")).expect("a directory");
    let sha = sha.split('"').find(|word| word.len() == 64).map(|word| word[..8].to_owned()).expect("a digest");
    set_up_fails(&stage, "input", "EIO", &sha);
}
