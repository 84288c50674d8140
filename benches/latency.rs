//! How long a person waits: `cargo bench --bench latency [DIR]`. DIR is where the queues are made, a temporary directory if it
//! is not given; name one on the file system that you want to know about.
//!
//! Prints medians over many rounds, all of one run, side by side:
//! - `fork+exec`: the time to run `true` without fq
//! - `fq exec true` with an idle worker, with durability `full` and `none`
//! - from the end of a task to the start of the one that depends on it
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 41;
const CHAIN: usize = 41;

fn main() {
    let named = std::env::args_os().skip(1).map(PathBuf::from).find(|arg| !arg.starts_with("--bench"));
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let dir =
        named.map_or_else(|| temporary.path().to_owned(), |dir| dir.join(format!("fq-bench-{}", std::process::id())));
    std::fs::create_dir_all(&dir).expect("the directory can be made");

    let plain = median((0..ROUNDS).map(|_| time(|| run(Command::new("true")))).collect());
    println!("{:<44} {:>9}", "median over 41 rounds", "ms");
    println!("{:<44} {:>9.2}", "fork+exec true", plain * 1e3);
    for durability in ["full", "none"] {
        let queue = dir.join(durability);
        let worker = Worker::start(&queue, durability);
        run(fq(&queue, &["exec", "true"]));
        let exec = median((0..ROUNDS).map(|_| time(|| run(fq(&queue, &["exec", "true"])))).collect());
        println!(
            "{:<44} {:>9.2}  ({:.0} x)",
            format!("fq exec true, durability {durability}"),
            exec * 1e3,
            exec / plain
        );
        let gaps = chain(&queue);
        println!("{:<44} {:>9.0}", format!("parent's end to child's start, durability {durability}"), median(gaps));
        drop(worker);
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// Submits a chain of jobs and returns the gaps in milliseconds between the end of each and the start of the next, by the wall
/// clock of this one host.
fn chain(queue: &Path) -> Vec<f64> {
    let mut jobs: Vec<String> = Vec::new();
    for i in 0..CHAIN {
        let after = jobs.last().map_or_else(String::new, |job| format!("afterok:{job}"));
        let mut args = vec!["submit"];
        if i > 0 {
            args.extend(["-d", &after]);
        }
        args.extend(["--", "true"]);
        jobs.push(text(fq(queue, &args)));
    }
    let last = jobs.last().cloned().unwrap_or_default();
    run(fq(queue, &["wait", &last]));
    let times: Vec<(f64, f64)> = jobs
        .iter()
        .map(|job| {
            let shown: serde_json::Value =
                serde_json::from_str(&text(fq(queue, &["show", job, "--json"]))).expect("show prints JSON");
            let attempt = &shown["attempts"][0];
            let ms = |name: &str| attempt[name].as_f64().expect("a finished attempt has times");
            (ms("start_ms"), ms("end_ms"))
        })
        .collect();
    times.windows(2).map(|pair| (pair[1].0 - pair[0].1).max(0.0)).collect()
}

struct Worker(Child);

impl Worker {
    fn start(queue: &Path, durability: &str) -> Self {
        run(fq(queue, &["init", "--durability", durability]));
        let child = fq(queue, &["worker", "-c", "2"]).stderr(Stdio::null()).spawn().expect("a worker starts");
        Self(child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn fq(queue: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fq"));
    command.args(&args[..1]).arg("--dir").arg(queue).args(&args[1..]);
    command
}

fn run(mut command: Command) {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(mut command: Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
