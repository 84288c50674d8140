//! A queue that works while its processes are killed and stopped at random. A longer run: `cargo run --example chaos`.

use std::path::PathBuf;

use crate::support::{FQ, Room, remark};

#[path = "../../examples/chaos/driver.rs"]
mod driver;

/// 200 tasks and not 1,000: the machines that test every change have two CPUs.
#[track_caller]
fn all_is_well_with(seed: u64) {
    let room = Room::new();
    let plan = driver::Plan {
        tasks: 200,
        workers: 4,
        masters: 2,
        seconds: 20,
        seed,
        dir: room.path("chaos"),
        fq: PathBuf::from(FQ),
    };
    match driver::run(&plan, &|_| {}) {
        Ok(tally) => remark(&format!("seed {seed}\n{tally}")),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn seed_1_every_task_is_done_once_whatever_is_killed() {
    all_is_well_with(1);
}

#[test]
fn seed_2_every_task_is_done_once_whatever_is_killed() {
    all_is_well_with(2);
}
