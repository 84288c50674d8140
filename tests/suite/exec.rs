//! `fq exec` and `fq fsck` while no worker lives.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::Room;
use crate::support::live::{send, until};

/// Starts `fq exec ARGS` and waits until its job is there.
fn exec(room: &Room, args: &[&str]) -> Child {
    let mut command = room.fq(std::iter::once(&"exec").chain(args)).command();
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fq starts");
    until("the manifest is whole", || is_whole(room));
    child
}

/// Whether the manifest of job 1 is there with its closing line: before that there is no job.
fn is_whole(room: &Room) -> bool {
    std::fs::read(room.queue().join("jobs/000/1.json")).is_ok_and(|bytes| bytes.ends_with(b"\"}\n"))
}

fn requests(room: &Room) -> Vec<Value> {
    let names = std::fs::read_dir(room.queue().join("control")).expect("it is there");
    let texts = names.map_while(Result::ok).filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| serde_json::from_str(text.lines().next()?).ok()).collect()
}

/// The user presses the interrupt key, or a batch system ends the shell.
#[test]
fn exec_that_is_told_to_end_cancels_its_task() {
    let room = Room::with_queue();
    let mut child = exec(&room, &["--", "sleep", "1000"]);
    send(child.id(), rustix::process::Signal::TERM);
    // A signal that comes before it is caught ends the process, and the guard does the rest.
    let status = child.wait().expect("it ends");
    assert!(matches!(status.code(), Some(143) | None), "{status}");
    let request = until("there is a request", || requests(&room).pop());
    assert_eq!(request["action"]["cancel"]["targets"], json!(["1"]));
}

/// The machine's out-of-memory killer takes the process: it has no chance to say a word.
#[test]
fn exec_that_is_killed_has_its_task_cancelled() {
    let room = Room::with_queue();
    let mut child = exec(&room, &["-c", "sleep 1000"]);
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    let request = until("there is a request", || requests(&room).pop());
    assert_eq!(request["action"]["cancel"]["targets"], json!(["1"]));
}

#[test]
fn exec_records_the_environment_less_the_job_server() {
    let room = Room::with_queue();
    let mut command =
        room.fq(["exec", "--detach", "--", "true"]).env("MAKEFLAGS", "k -j8 --jobserver-auth=3,4").command();
    let mut child = command.env("MARK", "m").stderr(Stdio::null()).spawn().expect("fq starts");
    until("the manifest is whole", || is_whole(&room));
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    let env = room.manifest(1)["env"].clone();
    let has = |pair: Value| env.as_array().is_some_and(|list| list.contains(&pair));
    assert!(has(json!(["MAKEFLAGS", "k"])) && has(json!(["MARK", "m"])), "{env}");
}

#[test]
fn a_new_queue_is_sound() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    let text = room.fq(["fsck", "--full"]).succeeds().stdout_text();
    assert!(text.contains("sound: "), "{text}");
}
