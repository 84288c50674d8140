//! `fq gc`: what goes, what stays, and what is said of it afterwards.

use crate::support::live::Stage;

/// As short as leases allow; a round still takes seconds.
const SOON: &str = r#"{"poll_ms":100,"idle_poll_ms":200,"grace_ms":300,"backoff_ms":[50,200],"beat_ms":300,
    "self_fence_ms":900,"suspect_ms":600,"lease_ms":1500,"takeover_ms":1500,"gc_wait_ms":100,"pack_item_max":100000}"#;

/// How many files there are below a directory of the queue.
fn count(stage: &Stage, dir: &str) -> usize {
    let files = walkdir::WalkDir::new(stage.queue().join(dir)).into_iter().flatten();
    files.filter(|entry| entry.file_type().is_file()).count()
}

#[test]
fn jobs_that_ended_long_ago_are_forgotten_with_their_results_and_nothing_else_is() {
    let stage = Stage::new(SOON);
    // Two values that are too large for packs, and one that is small.
    stage.submit(["-a", "0-1", "--wrap", "seq $FQ_ARRAY_TASK_ID 400000"]);
    stage.submit(["--wrap", "echo small"]);
    stage.fq(["worker", "--until-empty"]).succeeds();
    assert_eq!(count(&stage, "store/objects"), 2);
    let kept = stage.submit(["--hold", "--wrap", "seq 300000"]);
    assert_eq!(stage.fq(["gc", "--dry-run"]).succeeds().stdout_text(), "nothing to collect\n");
    let plan = stage.fq(["gc", "--dry-run", "--keep-days", "0"]).succeeds();
    assert!(plan.stdout_text().starts_with("2 jobs would be forgotten: 1-2\n"), "{}", plan.stdout_text());
    assert_eq!(count(&stage, "store/objects"), 2, "a dry run changes nothing");

    let mut worker = stage.worker(&["-c", "1"]);
    stage.fq(["gc", "--keep-days", "0"]).succeeds();
    stage.until("the objects are gone", || count(&stage, "store/objects") + count(&stage, "store/trash") == 0);
    for args in [&["result", "1_0"][..], &["logs", "2"], &["show", "2"], &["wait", "2"], &["cancel", "1"]] {
        stage.fq(args).exits(5).says("ended long ago and is no longer kept");
    }
    stage.fq(["release", &kept.to_string()]).succeeds();
    stage.fq(["wait", &kept.to_string()]).succeeds();
    assert_eq!(stage.logs("3").len(), 1_988_895);
    assert_eq!(stage.submit(["--wrap", "true"]), 4, "a number is never used twice");
    worker.signal(rustix::process::Signal::TERM);
    assert_eq!(stage.end_of(&mut worker), 0);
    stage.is_clean();
}
