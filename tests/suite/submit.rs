//! `fq submit` and the readers, while no other fq process lives.

use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{self, FQ, Room};

#[test]
fn submit_into_an_absent_directory_makes_the_queue_and_prints_the_number_alone() {
    let room = Room::new();
    let said = room.fq(["submit", "--", "echo", "hi"]).succeeds();
    assert_eq!(said.stdout_text(), "1\n");
    said.says("made a new queue in");
    let said = room.fq(["submit", "--", "echo", "hi"]).succeeds();
    assert_eq!((said.stdout_text().as_str(), said.stderr.as_str()), ("2\n", ""));
}

#[test]
fn a_queue_has_to_be_named() {
    let room = Room::new();
    let said = room.fq(["submit", "--", "true"]).without("FQ_DIR").exits(2);
    assert!(said.stdout.is_empty());
    said.says("error: no queue was named: neither `--dir` nor `FQ_DIR` is given").says("hint: ");
    room.fq(["status"]).exits(3).says("hint: create one with `fq init --dir ");
}

#[test]
fn mistakes_are_told_before_anything_is_made() {
    let room = Room::new();
    for (args, words) in [
        (&["submit"][..], "error: nothing to run was given"),
        (&["submit", "no-such-script"], "error: cannot read `no-such-script`"),
        (&["submit", "--mem", "8", "--", "true"], "expected a number and a unit"),
        (&["submit", "-t", "90", "--", "true"], "expected a time such as"),
        (&["submit", "-a", "5-1", "--", "true"], "`5-1` is not a list of indices"),
        (&["submit", "-d", "after:1", "--", "true"], "the kinds are `afterok`, `afterany` and `afternotok`"),
        (&["submit", "-D", "nowhere", "--", "true"], "is not there"),
        (&["submit", "--export", "NOT_SET_ANYWHERE", "--", "true"], "it is not set here"),
        (&["submit", "-c", "0", "--", "true"], "0"),
    ] {
        let said = room.fq(args).exits(2);
        said.says(words);
        assert!(said.stdout.is_empty() && !room.queue().exists(), "{args:?}");
    }
}

#[test]
fn arguments_are_recorded_byte_for_byte() {
    let room = Room::with_queue();
    let long = "x".repeat(100 << 10);
    let args = [&b"--"[..], b"printf", b"two words", b"", b"a\nb", b"\xff\xfe", b"{}", long.as_bytes()];
    let job = room.submit(args.map(std::ffi::OsStr::from_bytes));
    let expected = json!({"argv": ["printf", "two words", "", "a\nb", {"b64": "//4="}, "{}", long]});
    assert_eq!(room.manifest(job)["command"], expected);
}

#[test]
fn options_arrive_in_canonical_units() {
    let room = Room::with_queue();
    let job = room.submit([
        "-J",
        "fit",
        "-c",
        "4",
        "--mem",
        "8G",
        "-t",
        "01:00:00",
        "-a",
        "1-10%3",
        "--priority",
        "-5",
        "--retries",
        "2",
        "-d",
        "afterok:12:13,afterany:14_3",
        "--key",
        "k",
        "-o",
        "out.%j",
        "--wrap",
        "run.sh | sort",
    ]);
    let manifest = room.manifest(job);
    assert_eq!(manifest["name"], "fit");
    assert_eq!(manifest["array"], "1-10");
    assert_eq!(manifest["command"], json!({"shell": "run.sh | sort"}));
    assert_eq!(manifest["stdout"], "out.%j");
    let needs = json!({
        "cpus": 4, "mem": 8_589_934_592_u64, "time_ms": 3_600_000, "retries": 2, "priority": -5, "cap": 3,
        "after": [
            {"when": "ok", "target": "12"}, {"when": "ok", "target": "13"}, {"when": "any", "target": "14_3"}
        ],
        "key": "k"
    });
    assert_eq!(manifest["needs"], needs);
    let cwd = std::fs::canonicalize(room.path("")).expect("the room is there");
    assert_eq!(manifest["cwd"].as_str().map(std::fs::canonicalize).and_then(Result::ok), Some(cwd));
}

#[test]
fn nothing_of_the_environment_is_recorded_unless_named() {
    let room = Room::with_queue();
    let env = |job: u64| room.manifest(job)["env"].clone();
    assert_eq!(env(room.submit(["--", "true"])), json!(null));
    let submit = |list: &str| {
        let call = room.fq(["submit", "--export", list, "--", "true"]).env("SECRET", "s3cret").env("FQ_JOB_ID", "99");
        call.succeeds().stdout_text().trim().parse().expect("a number")
    };
    assert_eq!(env(submit("SECRET,SEED=3")), json!([["SECRET", "s3cret"], ["SEED", "3"]]));
    let all = env(submit("ALL")).to_string();
    assert!(all.contains("s3cret") && !all.contains("FQ_"), "{all}");
}

#[test]
fn manifests_are_for_their_owner_alone_whatever_the_umask() {
    let room = Room::with_queue();
    let script = format!("umask 0; '{FQ}' submit -- true");
    let status = Command::new("sh").args(["-c", &script]).env("FQ_DIR", room.queue()).output().expect("sh runs");
    assert_eq!(status.stdout, b"1\n");
    let mode = std::fs::metadata(room.queue().join("jobs/000/1.json")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn scripts_and_inputs_are_copied_at_submit() {
    let room = Room::with_queue();
    room.file("s.sh", "#!/bin/sh\necho one\n");
    let input = vec![b'i'; 1 << 20];
    room.file("in.bin", &input);
    let job = room.submit(["-i", "in.bin", "s.sh", "a", "--", "--flag"]);
    let manifest = room.manifest(job);
    assert_eq!(manifest["command"]["script"]["bytes"], json!({"in": "#!/bin/sh\necho one\n"}));
    assert_eq!(manifest["command"]["script"]["args"], json!(["a", "--flag"]));
    let sha = manifest["stdin"]["sha"].as_str().expect("a long input is an object").to_owned();
    assert_eq!(manifest["stdin"]["len"], 1 << 20);
    let object = room.queue().join("store/objects").join(&sha[..2]).join(&sha[2..]);
    assert!(std::fs::read(object).expect("the object is there") == input);
}

#[test]
fn each_line_that_says_something_is_a_task() {
    let room = Room::with_queue();
    let call = room.fq(["submit", "--each-line", "-", "--", "gzip", "{}"]).stdin("# inputs\na.txt\n\n  b c.txt\nlast");
    let job = call.succeeds().stdout_text().trim().parse().expect("a number");
    let manifest = room.manifest(job);
    assert_eq!(manifest["array"], "0-2");
    assert_eq!(manifest["entries"], json!({"in": "a.txt\n  b c.txt\nlast"}));
    assert_eq!(manifest["command"], json!({"argv": ["gzip", "{}"]}));
    room.fq(["submit", "--each-line", "-"]).stdin("#\n").exits(2).says("standard input has no lines");
}

/// Fifty hosts that submit at the same moment.
#[test]
fn numbers_of_racing_submitters_are_dense_and_unique() {
    let room = Room::new();
    let children: Vec<_> = (0..50)
        .map(|_| {
            let mut command = room.fq(["submit", "--", "true"]).command();
            command
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("fq starts")
        })
        .collect();
    let mut numbers: Vec<u64> = Vec::new();
    for child in children {
        let output = child.wait_with_output().expect("fq ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        numbers.push(text.trim().parse().unwrap_or_else(|_| panic!("no number but {text:?} and {said}")));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_full_bucket_is_followed_by_the_next_one() {
    let room = Room::with_queue();
    std::fs::write(room.queue().join("jobs/000/998.json"), "torn").expect("written");
    assert_eq!(room.submit(["--", "true"]), 999);
    assert_eq!(room.submit(["--", "true"]), 1000);
    assert_eq!(room.submit(["--", "true"]), 1001);
    assert!(room.queue().join("jobs/001/1001.json").exists());
}

#[test]
fn waiting_jobs_are_counted_without_a_master() {
    let room = Room::with_queue();
    room.submit(["-J", "one", "--", "true"]);
    room.submit(["-a", "0-9", "--hold", "--", "true"]);
    std::fs::write(room.queue().join("jobs/000/3.json"), "{\"fq\":\"job\"").expect("written");
    let status = room.fq(["status", "--json"]).succeeds().json();
    assert_eq!(status["schema"], 1);
    let tasks = json!({
        "waiting": 1, "ready": 0, "running": 0, "done": 0, "failed": 0, "cancelled": 0, "aborted": 0, "held": 10
    });
    assert_eq!(status["tasks"], tasks);
    assert_eq!(status["jobs"][0]["id"], 1);
    assert_eq!(status["jobs"][0]["name"], "one");
    assert_eq!(status["workers"], json!({"alive": 0, "lost": 0}));
    assert_eq!(status["master"], json!(null));
    assert_eq!(status["unreadable"][0]["id"], 3);
    let text = room.fq(["status"]).succeeds().stdout_text();
    assert!(text.contains("tasks: 1 waiting, 10 held\n") && text.contains("master: none\n"), "{text}");
    let shown = room.fq(["show", "1", "--json"]).succeeds().json();
    assert_eq!((&shown["id"], &shown["state"], &shown["attempts"]), (&json!("1"), &json!("waiting"), &json!([])));
    assert_eq!(room.fq(["list", "-q", "--state", "waiting"]).succeeds().stdout_text(), "1\n");
    room.fq(["show", "2_10"]).exits(5).says("error: there is no task `2_10`");
    room.fq(["show", "3"]).exits(1).says("error: job `3` cannot be run: cut short");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let room = Room::with_queue();
    room.submit(["-J", "a\x1b[31m\nb", "--", "true"]);
    let text = room.fq(["status"]).succeeds().stdout_text();
    assert!(text.contains("a\\u{1b}[31m\\nb") && !text.contains('\x1b'), "{text}");
}

#[test]
fn a_key_is_submitted_once() {
    let room = Room::with_queue();
    assert_eq!(room.submit(["--key", "night", "--", "true"]), 1);
    assert_eq!(room.submit(["--key", "night", "--", "true"]), 1);
    assert_eq!(room.submit(["--key", "day", "--", "true"]), 2);
}

#[test]
fn a_request_is_durable_without_a_master() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    room.fq(["cancel", "1", "--reason", "bad input"]).succeeds().says("no master leads");
    let mut names = std::fs::read_dir(room.queue().join("control")).expect("it is there");
    let path = names.next().and_then(Result::ok).expect("there is a request").path();
    let text = std::fs::read_to_string(path).expect("it can be read");
    let request: serde_json::Value = serde_json::from_str(text.lines().next().unwrap_or("")).expect("it is JSON");
    assert_eq!(request["action"], json!({"cancel": {"targets": ["1"], "reason": "bad input"}}));
    room.fq(["cancel", "2"]).exits(5).says("error: there is no job `2`");
    room.fq(["retry", "1"]).exits(1).says("nothing to retry");
}

#[test]
fn wait_ends_when_its_time_is_up() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    room.fq(["wait", "1", "--timeout", "100ms"]).exits(124).says("there is no worker");
    room.fq(["wait", "2"]).exits(5);
}

#[test]
fn no_command_opens_a_network_socket() {
    if Command::new("strace").arg("-V").output().is_err() {
        support::remark("skipped: there is no strace");
        return;
    }
    let room = Room::with_queue();
    let log = room.path("trace");
    for args in [&["submit", "--", "true"][..], &["status"], &["show", "1"], &["list"], &["workers"], &["cancel", "1"]]
    {
        let status = Command::new("strace")
            .args(["-f", "-e", "trace=socket", "-o"])
            .arg(&log)
            .arg(FQ)
            .args(args)
            .env("FQ_DIR", room.queue())
            .output()
            .expect("strace runs");
        assert!(status.status.success(), "{args:?}: {}", String::from_utf8_lossy(&status.stderr));
        let trace = std::fs::read_to_string(&log).expect("there is a trace");
        assert!(!trace.contains("AF_INET"), "{args:?}: {trace}");
    }
}

#[test]
fn who_waits_without_a_worker_is_told_so_once() {
    let room = Room::with_queue();
    for args in [&["submit", "-W", "--", "true"][..], &["wait", "1"], &["exec", "--", "true"]] {
        let mut call = room.fq(args).command();
        let mut child = call.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("fq can be started");
        // The line comes while it still waits.
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let said = lines.next().expect("it says something").expect("text");
        assert!(said.contains("no worker is alive"), "{args:?}: {said}");
        assert_eq!(child.try_wait().expect("its status"), None, "{args:?}");
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
        assert!(lines.next().is_none(), "{args:?}: it says so once");
    }
}
