//! What tasks write: large, live, apart, whole.

use crate::support::live::{QUICK, Stage};

/// The largest amount of memory that a process has had, in kibibytes.
fn peak_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_large_output_takes_little_memory_and_comes_back_whole() {
    const LEN: u64 = 200 << 20;
    let stage = Stage::new(QUICK);
    // A second task keeps the worker alive until its memory was looked at.
    let large = stage.submit(["--wrap", &format!("head -c {LEN} /dev/zero | tr '\\0' x")]);
    let go = stage.path("go");
    let gate = stage.submit(["--wrap", &format!("until [ -e {} ]; do sleep 0.1; done", go.display())]);
    let mut worker = stage.worker(&["-c", "1", "--until-empty"]);
    stage.fq(["wait".to_owned(), large.to_string(), "--timeout".to_owned(), "10m".to_owned()]).succeeds();
    let peak = peak_kib(worker.worker()).expect("the worker runs");
    assert!(peak < 100 << 10, "the worker had {} MiB", peak >> 10);
    stage.file("go", "");
    stage.fq(["wait".to_owned(), gate.to_string()]).succeeds();
    stage.exits(&mut worker, 0);
    let result = stage.fq(["result".to_owned(), large.to_string()]).succeeds().stdout;
    assert_eq!(result.len() as u64, LEN);
    assert!(result.iter().all(|&byte| byte == b'x'));
}

#[test]
fn stdout_and_stderr_are_kept_apart_byte_for_byte() {
    let stage = Stage::new(QUICK);
    let job = stage.submit(["--wrap", r"printf '\377\000out\n\n'; printf '\376err' >&2"]).to_string();
    stage.fq(["worker", "--until-empty"]).succeeds();
    assert_eq!(stage.fq(["result", &job]).succeeds().stdout, b"\xff\0out\n\n");
    assert_eq!(stage.fq(["logs", &job]).succeeds().stdout, b"\xff\0out\n\n");
    assert_eq!(stage.fq(["logs", &job, "--stderr"]).succeeds().stdout, b"\xfeerr");
}

#[test]
fn the_output_of_a_running_task_is_a_plain_file() {
    let stage = Stage::new(QUICK);
    let go = stage.path("go");
    let job =
        stage.submit(["--wrap", &format!("echo so far; until [ -e {} ]; do sleep 0.1; done; echo end", go.display())]);
    let mut worker = stage.worker(&["--until-empty"]);
    let name = format!("{job}.1.out");
    let find = || {
        let dirs = std::fs::read_dir(stage.queue().join("workers")).ok()?;
        dirs.flatten().find_map(|dir| std::fs::read(dir.path().join("out").join(&name)).ok()).filter(|b| !b.is_empty())
    };
    assert_eq!(stage.until("the output is there", find), b"so far\n");
    assert_eq!(stage.fq(["logs".to_owned(), job.to_string()]).succeeds().stdout, b"so far\n");
    stage.file("go", "");
    stage.exits(&mut worker, 0);
    assert_eq!(stage.fq(["result".to_owned(), job.to_string()]).succeeds().stdout, b"so far\nend\n");
    assert_eq!(find(), None, "what is in the store is in no second place");
}

#[test]
fn the_outputs_of_attempts_are_kept_apart() {
    let stage = Stage::new(QUICK);
    let job = stage.submit(["--retries", "2", "--wrap", "echo try $FQ_ATTEMPT; [ $FQ_ATTEMPT = 3 ]"]).to_string();
    stage.fq(["worker", "--until-empty"]).succeeds();
    for attempt in 1..=3 {
        let said = stage.fq(["logs", &job, "--attempt", &attempt.to_string()]).succeeds();
        assert_eq!(said.stdout_text(), format!("try {attempt}\n"));
    }
    assert_eq!(stage.fq(["result", &job]).succeeds().stdout_text(), "try 3\n");
    stage.fq(["logs", &job, "--attempt", "4"]).exits(5);
}

#[test]
fn output_files_appear_whole_when_an_attempt_ends() {
    let stage = Stage::new(QUICK);
    let go = stage.path("go");
    let text = format!("echo out; echo err >&2; until [ -e {} ]; do sleep 0.1; done; echo more", go.display());
    stage.submit(["-o", "files/%x-%j.out", "-e", "files/%A_%n.err", "-J", "a/b", "--wrap", &text]);
    let both = stage.submit(["-a", "4", "-o", "both-%a", "-e", "both-%a", "--wrap", "echo out; echo err >&2"]);
    let mut worker = stage.worker(&["-c", "1", "--until-empty"]);
    let live = || stage.fq(["logs", "1"]).succeeds().stdout_text();
    stage.until("the first task runs", || live() == "out\n");
    assert!(!stage.path("files").exists(), "nothing is there before the end");
    stage.file("go", "");
    stage.exits(&mut worker, 0);
    let read = |name: &str| std::fs::read_to_string(stage.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(read("files/a-b-1.out"), "out\nmore\n");
    assert_eq!(read("files/1_1.err"), "err\n");
    assert_eq!(read("both-4"), "out\nerr\n", "job {both}");
    let names = std::fs::read_dir(stage.path("files")).map(Iterator::count).ok();
    assert_eq!(names, Some(2), "no stray is left");
}
