//! A queue whose worker or master is killed at one of its calls, or is refused one. All of them in turn: `cargo run --example faults`.

use std::path::PathBuf;

use crate::support::{FQ, Room, remark};

use driver::Tools;
use driver::fault::{Effect, Fault, Met, Role, When};

#[path = "../../examples/faults/driver/mod.rs"]
#[expect(dead_code, reason = "a sweep does more with it")]
mod driver;

/// Not a test: the process that the others start to watch over their workers.
#[test]
fn plays_the_keeper_of_a_worker_that_is_hit() {
    if let Some(code) = driver::play_keeper() {
        std::process::exit(code);
    }
}

/// Hits each of these calls in a run of its own.
#[track_caller]
fn all_ends_well(faults: &[(Role, &str, Effect, u64)]) {
    if !driver::has_strace() {
        remark("skipped: no faults are injected, because strace is missing or may not be used here");
        return;
    }
    let me = std::env::current_exe().expect("the path of this program");
    let fq = std::fs::canonicalize(FQ).expect("the path of fq");
    let role = ["faults::plays_the_keeper_of_a_worker_that_is_hit", "--exact", "--nocapture"];
    let tools = Tools { fq, keeper: std::iter::once(me.into()).chain(role.map(Into::into)).collect() };
    let room = Room::new();
    for (role, call, effect, k) in faults {
        let fault = Fault { role: *role, call: (*call).to_owned(), effect: effect.clone(), when: When::Only(*k) };
        let dir: PathBuf = room.path(fault.to_string());
        match driver::hit(&tools, &fault, &dir) {
            Ok(outcome) => assert_eq!(outcome.met, Met::Call, "{fault} was never made"),
            Err(why) => panic!("{fault}: {why}"),
        }
    }
}

fn error(name: &str) -> Effect {
    Effect::Error(name.to_owned())
}

#[test]
fn a_worker_killed_at_a_call_changes_no_end() {
    all_ends_well(&[
        // Before the first line of the journal is durable; in the middle; when the large result gets its name.
        (Role::Worker, "fdatasync", Effect::Kill, 1),
        (Role::Worker, "fdatasync", Effect::Kill, 9),
        (Role::Worker, "renameat", Effect::Kill, 1),
    ]);
}

#[test]
fn a_master_killed_at_a_call_changes_no_end() {
    all_ends_well(&[
        // Before the token moves for the third time; before mail is durable; in the middle of what the janitor does.
        (Role::Master, "renameat", Effect::Kill, 3),
        (Role::Master, "fsync", Effect::Kill, 15),
        (Role::Janitor, "unlinkat", Effect::Kill, 2),
    ]);
}

#[test]
fn a_call_that_fails_once_changes_no_end() {
    all_ends_well(&[
        (Role::Worker, "fdatasync", error("EIO"), 5),
        (Role::Worker, "openat2", error("EIO"), 60),
        (Role::Master, "renameat", error("EIO"), 3),
        (Role::Master, "fsync", error("EDQUOT"), 8),
    ]);
}

/// In real life: a lock manager that is not there, and one that says yes to everybody.
#[test]
fn locks_that_fail_or_lie_change_no_end() {
    all_ends_well(&[(Role::Worker, "flock", error("ENOLCK"), 1), (Role::Worker, "flock", Effect::Lie, 1)]);
}
