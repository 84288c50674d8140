//! No network: no command makes an internet socket, whatever it does.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::live::Stage;
use crate::support::{Call, FQ, Room, remark};

/// Runs `call` under `strace` and returns the calls about sockets that it and all its children made; `None` without `strace`.
fn traced(room: &Room, call: &Call) -> Option<String> {
    let trace = room.path("trace");
    let plain = call.command();
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-e", "trace=socket,connect,socketpair", "-o"])
        .arg(&trace)
        .arg(FQ)
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(dir) = plain.get_current_dir() {
        command.current_dir(dir);
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    assert!(status.code().is_some(), "a signal ended it");
    std::fs::read_to_string(Path::new(&trace)).ok()
}

/// The subcommands that `fq help` lists.
fn subcommands(room: &Room) -> Vec<String> {
    let help = room.fq(["--help"]).succeeds().stdout_text();
    let list = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    list.take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .map(String::from)
        .collect()
}

#[test]
fn no_command_makes_an_internet_socket() {
    let stage = Stage::around(Room::new());
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        remark("skipped: strace is not installed");
        return;
    }
    // In an order in which each has something to do.
    let all: &[&[&str]] = &[
        &["init"],
        &["master", "--until-empty"],
        &["submit", "-a", "0-2", "--", "echo", "hi"],
        &["submit", "--hold", "--", "echo", "later"],
        &["submit", "--", "false"],
        &["doctor"],
        &["master", "--until-empty", "--dir", "none"],
        &["worker", "-c", "2", "--idle-timeout", "1s"],
        &["status"],
        &["show", "1_0"],
        &["list"],
        &["workers", "--all"],
        &["logs", "1"],
        &["result", "1_0"],
        &["wait", "1", "--timeout", "1m"],
        &["hold", "2"],
        &["cancel", "2"],
        &["release", "2"],
        &["retry", "3"],
        &["run", "--dir", "own", "-j", "2", "echo", "{}", ":::", "a", "b"],
        &["exec", "--detach", "-c", "true"],
        &["gc", "--dry-run"],
        &["fsck", "--full"],
        &["completions", "bash"],
        &["man"],
        &["help"],
    ];
    let mut tried = Vec::new();
    let mut helper = None;
    for args in all {
        if args[0] == "exec" {
            // It waits for its task.
            helper = Some(stage.worker(&[]));
        }
        let trace = traced(&stage, &stage.fq(*args)).expect("strace leaves its trace");
        for family in ["AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK"] {
            let found = trace.lines().find(|line| line.contains(family));
            assert_eq!(found, None, "fq {args:?}");
        }
        tried.push(args[0].to_owned());
    }
    drop(helper);
    let forgotten: Vec<String> = subcommands(&stage).into_iter().filter(|name| !tried.contains(name)).collect();
    assert!(forgotten.is_empty(), "not traced: {forgotten:?}");
}
