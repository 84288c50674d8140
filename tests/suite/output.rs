//! What tasks write: large, live, apart, whole.

use crate::live::{Live, QUICK, until};
use crate::support::Room;

fn room() -> Room {
    let room = Room::with_queue();
    std::fs::write(room.queue().join("limits.json"), QUICK).expect("limits can be written");
    room
}

/// The largest amount of memory that a process has had, in kibibytes.
fn peak_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_large_output_takes_little_memory_and_comes_back_whole() {
    const LEN: u64 = 200 << 20;
    let room = room();
    // A second task keeps the worker alive until its memory was looked at.
    let large = room.submit(["--wrap", &format!("head -c {LEN} /dev/zero | tr '\\0' x")]);
    let go = room.path("go");
    let gate = room.submit(["--wrap", &format!("until [ -e {} ]; do sleep 0.1; done", go.display())]);
    let mut worker = Live::worker(&room, ["-c", "1", "--until-empty"]);
    room.fq(["wait".to_owned(), large.to_string(), "--timeout".to_owned(), "10m".to_owned()]).succeeds();
    let pids = children(worker.pid());
    let peak = pids.iter().filter_map(|&pid| peak_kib(pid)).max().expect("the worker runs");
    assert!(peak < 100 << 10, "the worker had {} MiB", peak >> 10);
    room.file("go", "");
    room.fq(["wait".to_owned(), gate.to_string()]).succeeds();
    worker.exits(0);
    let result = room.fq(["result".to_owned(), large.to_string()]).succeeds().stdout;
    assert_eq!(result.len() as u64, LEN);
    assert!(result.iter().all(|&byte| byte == b'x'));
}

#[test]
fn stdout_and_stderr_are_kept_apart_byte_for_byte() {
    let room = room();
    let job = room.submit(["--wrap", r"printf '\377\000out\n\n'; printf '\376err' >&2"]).to_string();
    room.fq(["worker", "--until-empty"]).succeeds();
    assert_eq!(room.fq(["result", &job]).succeeds().stdout, b"\xff\0out\n\n");
    assert_eq!(room.fq(["logs", &job]).succeeds().stdout, b"\xff\0out\n\n");
    assert_eq!(room.fq(["logs", &job, "--stderr"]).succeeds().stdout, b"\xfeerr");
}

#[test]
fn the_output_of_a_running_task_is_a_plain_file() {
    let room = room();
    let go = room.path("go");
    let job =
        room.submit(["--wrap", &format!("echo so far; until [ -e {} ]; do sleep 0.1; done; echo end", go.display())]);
    let mut worker = Live::worker(&room, ["--until-empty"]);
    let name = format!("{job}.1.out");
    let find = || {
        let dirs = std::fs::read_dir(room.queue().join("workers")).ok()?;
        dirs.flatten().find_map(|dir| std::fs::read(dir.path().join("out").join(&name)).ok()).filter(|b| !b.is_empty())
    };
    assert_eq!(until("the output is there", find), b"so far\n");
    assert_eq!(room.fq(["logs".to_owned(), job.to_string()]).succeeds().stdout, b"so far\n");
    room.file("go", "");
    worker.exits(0);
    assert_eq!(room.fq(["result".to_owned(), job.to_string()]).succeeds().stdout, b"so far\nend\n");
    assert_eq!(find(), None, "what is in the store is in no second place");
}

#[test]
fn the_outputs_of_attempts_are_kept_apart() {
    let room = room();
    let job = room.submit(["--retries", "2", "--wrap", "echo try $FQ_ATTEMPT; [ $FQ_ATTEMPT = 3 ]"]).to_string();
    room.fq(["worker", "--until-empty"]).succeeds();
    for attempt in 1..=3 {
        let said = room.fq(["logs", &job, "--attempt", &attempt.to_string()]).succeeds();
        assert_eq!(said.stdout_text(), format!("try {attempt}\n"));
    }
    assert_eq!(room.fq(["result", &job]).succeeds().stdout_text(), "try 3\n");
    room.fq(["logs", &job, "--attempt", "4"]).exits(5);
}

#[test]
fn output_files_appear_whole_when_an_attempt_ends() {
    let room = room();
    let go = room.path("go");
    let text = format!("echo out; echo err >&2; until [ -e {} ]; do sleep 0.1; done; echo more", go.display());
    room.submit(["-o", "files/%x-%j.out", "-e", "files/%A_%n.err", "-J", "a/b", "--wrap", &text]);
    let both = room.submit(["-a", "4", "-o", "both-%a", "-e", "both-%a", "--wrap", "echo out; echo err >&2"]);
    let mut worker = Live::worker(&room, ["-c", "1", "--until-empty"]);
    let live = || room.fq(["logs", "1"]).succeeds().stdout_text();
    until("the first task runs", || (live() == "out\n").then_some(()));
    assert!(!room.path("files").exists(), "nothing is there before the end");
    room.file("go", "");
    worker.exits(0);
    let read = |name: &str| std::fs::read_to_string(room.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(read("files/a-b-1.out"), "out\nmore\n");
    assert_eq!(read("files/1_1.err"), "err\n");
    assert_eq!(read("both-4"), "out\nerr\n", "job {both}");
    let names = std::fs::read_dir(room.path("files")).map(Iterator::count).ok();
    assert_eq!(names, Some(2), "no stray is left");
}
