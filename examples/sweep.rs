//! A parameter sweep with the library alone: makes a queue, submits an array over a real data set, runs a worker in this
//! process, shows the progress and prints the results.
//!
//! `cargo run --release --example sweep [DIR]`: DIR is the queue's directory, `./.fq-sweep` if it is not given. Stopped in the
//! middle and started again it goes on; started once more it shows the results at once.

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fq::client::wait::Follower;
use fq::client::{logs, submit, view};
use fq::clock::{Chance as _, Clock as _, HostChance, HostClock};
use fq::node::{self, WorkerSetup};
use fq::process::Stream;
use fq::protocol::id::{JobId, Nonce, Ranges, Target};
use fq::protocol::record::{Bytes, Command, Manifest, Needs};
use fq::protocol::version::CURRENT;
use fq::queue::{self, InitOptions, Queue};
use indicatif::{ProgressBar, ProgressStyle};

/// A job with this key is taken in once, however often the sweep is submitted.
const KEY: &str = "iris-knn-1";

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(".fq-sweep"), PathBuf::from);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");

    // 1. A queue is a directory.
    let queue = Arc::new(match Queue::open(&dir) {
        Ok(queue) => queue,
        Err(_) => queue::init(&dir, &InitOptions::default())?,
    });

    // 2. A job is a manifest that was bound to a number. Nothing has to run for that.
    let job = match job_of_the_sweep(&queue) {
        Some(job) => job,
        None => submit::bind(&*queue.fs, 0o600, &mut manifest(&examples))?,
    };
    writeln!(std::io::stderr(), "job {job} in `{}`", dir.display())?;

    // 3. A worker, which leads the queue, too. `fq worker` puts a keeper around it; an example may do without.
    let watcher = {
        let queue = Arc::clone(&queue);
        std::thread::spawn(move || show_progress(&queue, job))
    };
    let setup = WorkerSetup {
        cpus: std::thread::available_parallelism()?.get().try_into()?,
        mem: 0,
        trusted: Vec::new(),
        trusted_group: None,
        no_master: false,
        once: false,
        until_empty: true,
        idle_timeout: None,
        lifetime: None,
        env: node::own_environment(),
        scratch: std::env::temp_dir(),
        bin: PathBuf::from("fq"),
    };
    node::run_worker(&queue, &setup, None, None, |_| {})?;
    watcher.join().map_err(|_| "the progress display failed")??;

    // 4. Results are read from the queue, by anybody, at any time.
    print_results(&queue, job)
}

/// The job of an earlier run.
fn job_of_the_sweep(queue: &Queue) -> Option<JobId> {
    let follower = Follower::open(&queue.fs).ok()?;
    let state = follower.state();
    let mine = state.keys.iter().find(|((_, key), _)| key == KEY).map(|(_, job)| *job);
    mine.or_else(|| {
        let waiting = view::pending(&*queue.fs, state).ok()?;
        waiting.into_iter().find(|p| p.manifest.as_ref().is_ok_and(|m| m.needs.key == KEY)).map(|p| p.job)
    })
}

fn manifest(examples: &Path) -> Manifest {
    let bytes = |path: PathBuf| Bytes(path.into_os_string().into_encoded_bytes());
    let text = format!(
        "awk -v k=$FQ_ARRAY_TASK_ID -f '{}' '{}'",
        examples.join("knn.awk").display(),
        examples.join("data/iris.csv").display()
    );
    Manifest {
        fq: "job".into(),
        version: CURRENT,
        job: JobId(1),
        sub: Nonce(HostChance.bits()),
        name: "knn".into(),
        command: Command::Shell(text.as_str().into()),
        cwd: bytes(examples.to_owned()),
        env: Vec::new(),
        array: "1-49:2".parse::<Ranges>().ok(),
        entries: None,
        stdin: None,
        stdout: None,
        stderr: None,
        needs: Needs { retries: 1, key: KEY.into(), ..Needs::default() },
        user: String::new(),
        host: String::new(),
        at_ms: HostClock.wall_ms(),
    }
}

fn show_progress(queue: &Queue, job: JobId) -> Result<(), String> {
    let target = Target { job, indices: None };
    let mut follower = Follower::open(&queue.fs).map_err(|e| e.to_string())?;
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(25) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tasks, {elapsed}").map_err(|e| e.to_string())?;
    bar.set_style(style);
    loop {
        let progress = follower.progress(std::slice::from_ref(&target));
        if progress.unknown == 0 {
            bar.set_length(progress.total);
            bar.set_position(progress.ended);
        }
        if progress.is_over() {
            bar.finish();
            return Ok(());
        }
        follower.next(Duration::from_millis(200)).map_err(|e| e.to_string())?;
    }
}

fn print_results(queue: &Queue, job: JobId) -> Result<(), Box<dyn Error>> {
    let follower = Follower::open(&queue.fs)?;
    let state = follower.state();
    let Some(job) = state.job(job) else { return Err("the job is gone".into()) };
    let mut rows: Vec<(u32, u32, u32)> = Vec::new();
    for position in 0..u32::try_from(job.tasks.len())? {
        let records = view::attempt_records(job, position);
        let Some(last) = records.last() else { continue };
        let mut text = Vec::new();
        let output = logs::locate(&*queue.fs, state, job, position, last, Stream::Stdout);
        logs::copy(&*queue.fs, &output, &mut 0, &mut |bytes| text.extend_from_slice(bytes))?;
        let numbers: Vec<u32> =
            String::from_utf8(text)?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [k, right, of] = numbers[..] else { return Err("a task printed something else than three numbers".into()) };
        rows.push((k, right, of));
    }
    rows.sort_by_key(|&(k, right, _)| (std::cmp::Reverse(right), k));
    let mut out = std::io::stdout().lock();
    writeln!(out, "neighbours  told right  of")?;
    for (k, right, of) in rows {
        writeln!(out, "{k:>10}  {right:>10}  {of}")?;
    }
    Ok(())
}
