//! `fq logs` and `fq result`: what tasks wrote, byte for byte.

use std::time::Duration;

use fq::client::logs::{self, Output, Pumped, Relay};
use fq::client::view::{self, AttemptRecord};
use fq::client::wait::Follower;
use fq::process::Stream;
use fq::protocol::digest::Digest;
use fq::protocol::id::TaskId;
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::Ref;
use fq::state::Job;
use fq::store::{self, StoreError};
use serde::Serialize;

use super::error::{Failure, code_of};
use super::look::{Look, no_such};
use super::place::Place;
use super::{Outcome, exit, json, out, show, wait};

const EXAMPLES: &str = "\
Examples:
  fq logs 7                    standard output so far, or all of it
  fq logs 7_3 --stderr
  fq logs -f 7                 live, over all attempts; ends with the task, with its exit code
  fq logs 7 --attempt 1

Of an array without an index: the outputs of all tasks, in order.";

/// Prints what a task wrote
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// `7` or `7_3`
    #[arg(value_name = "ID")]
    id: TaskId,
    /// Follow what is written until the task has ended
    #[arg(short, long)]
    follow: bool,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// This attempt instead of the last
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "follow")]
    attempt: Option<u32>,
}

/// Runs `fq logs`.
pub(crate) fn run(args: &Args) -> Outcome {
    let look = Look::open(&args.place)?;
    let target = show::target(args.id);
    look.must_exist(std::slice::from_ref(&target))?;
    let stream = if args.stderr { Stream::Stderr } else { Stream::Stdout };
    if args.follow {
        return follow(&look, args.id, stream);
    }
    let Some((id, positions)) = look.state().expand(&target) else {
        if let Some(refused) = look.refused(&target) {
            return Err(refused);
        }
        out::remark(&format!("`{}` has not been taken in by a master yet", args.id));
        return Ok(exit::OK);
    };
    let Some(job) = look.state().jobs.get(&id) else { return Err(no_such(&target)) };
    for position in positions {
        let records = view::attempt_records(job, position);
        let record = match args.attempt {
            Some(n) => records.iter().find(|record| record.attempt == n),
            None => records.last(),
        };
        match (record, args.attempt) {
            (Some(record), _) => print(&look, job, position, record, stream)?,
            (None, None) => out::remark(&format!("`{}` has not run yet", job.task_id(position))),
            (None, Some(n)) => {
                let text = format!("`{}` has no attempt {n}, only {}", job.task_id(position), records.len());
                return Err(Failure::new(exit::NO_SUCH, text));
            }
        }
    }
    Ok(exit::OK)
}

fn print(look: &Look, job: &Job, position: u32, record: &AttemptRecord, stream: Stream) -> Result<(), Failure> {
    let fs = &*look.queue.fs;
    let output = logs::locate(fs, look.state(), job, position, record, stream);
    if output == Output::Unknown {
        let text = format!("the record of attempt {} of `{}` cannot be read", record.attempt, job.task_id(position));
        return Err(Failure::new(exit::TEMPORARY, text).hint("try again in a minute; if it stays, `fq fsck` says more"));
    }
    let mut failed = None;
    let copied = logs::copy(fs, &output, &mut 0, &mut |bytes| {
        if failed.is_none() {
            failed = out::bytes(bytes).err();
        }
    });
    failed.map_or(Ok(()), Err)?;
    copied.map_err(Failure::from)
}

fn follow(look: &Look, id: TaskId, stream: Stream) -> Outcome {
    let target = show::target(id);
    let mut follower = Follower::open(&look.queue.fs)?;
    let position = loop {
        if let Some((_, positions)) = follower.state().expand(&target) {
            match positions.as_slice() {
                [one] => break *one,
                _ => {
                    return Err(Failure::usage(format!("`{id}` is an array: `-f` follows one task"))
                        .hint(format!("`fq logs -f {id}_0`, for example")));
                }
            }
        }
        if follower.state().rejected.contains_key(&id.job) {
            return Err(
                Failure::new(exit::NO, format!("job `{id}` cannot be run")).hint(format!("`fq show {id}` says why"))
            );
        }
        follower.next(Duration::MAX)?;
    };
    let from = follower.state().job(id.job).map(|job| view::attempt_records(job, position)).unwrap_or_default();
    let mut relay = Relay::new(id.job, position, stream, from.last().map_or(0, |record| record.attempt));
    loop {
        let mut failed = None;
        let pumped = relay.pump(&*look.queue.fs, follower.state(), &mut |bytes| {
            if failed.is_none() {
                failed = out::bytes(bytes).err();
            }
        });
        failed.map_or(Ok(()), Err)?;
        match pumped? {
            Pumped::Restarted(attempt, how) => {
                out::remark(&format!("attempt {attempt} of `{id}` is over ({how}); here begins the next"));
                continue;
            }
            Pumped::Lost(attempt) => out::remark(&format!("the record of attempt {attempt} of `{id}` cannot be read")),
            Pumped::More | Pumped::Over => {}
        }
        if follower.progress(std::slice::from_ref(&target)).is_over() {
            follower.settle();
            return Ok(wait::code_byte(follower.highest_code(&[target])));
        }
        if let Some(dir) = relay.live_dir(follower.state()) {
            follower.also_watch(&dir);
        }
        follower.next(Duration::from_millis(200))?;
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Missing { .. } => exit::TEMPORARY,
            StoreError::Damaged { .. } | StoreError::BadName(_) => exit::NO,
            StoreError::Fs(cause) => code_of(cause),
        };
        let failure = Self::new(code, error.to_string());
        match std::error::Error::source(&error) {
            Some(cause) => failure.because(cause),
            None => failure.hint("`fq fsck --full` lists damaged objects and the tasks that need them"),
        }
    }
}

const RESULT_EXAMPLES: &str = "\
Examples:
  fq result 7 > out.txt        only what a task wrote that is done, checked against its digest
  fq result 7_3 --json

Exits with 1 and prints nothing if the task is not done; `fq logs` shows what there is.";

/// Prints the result of a task that is done: its standard output
#[derive(Debug, clap::Args)]
#[command(after_help = RESULT_EXAMPLES)]
pub(crate) struct ResultArgs {
    #[command(flatten)]
    place: Place,
    /// `7` or `7_3`
    #[arg(value_name = "ID")]
    id: TaskId,
    /// Print where the result lies and how the task ended, in whatever state it is
    #[arg(long)]
    json: bool,
}

/// `fq result --json`.
#[derive(Debug, Serialize)]
struct ResultView {
    schema: u32,
    id: String,
    state: &'static str,
    attempt: u32,
    exit_code: Option<i32>,
    signal: Option<i32>,
    stdout: Option<Value>,
    stderr: Option<Value>,
}

/// A value in the store.
#[derive(Debug, Serialize)]
struct Value {
    bytes: u64,
    sha256: Digest,
    /// The file that holds it, within the queue; `null` if it stands in the journal.
    file: Option<std::path::PathBuf>,
    /// Its offset in that file.
    offset: u64,
}

impl Value {
    fn of(reference: &Ref) -> Self {
        let file = store::file_of(reference).and_then(|name| store::path_of(&name));
        let (sha256, offset) = match reference {
            Ref::Inline { bytes } => (Digest::of(&bytes.0), 0),
            Ref::Loose { sha, .. } => (*sha, 0),
            Ref::Packed { sha, at, .. } => (*sha, *at),
        };
        Self { bytes: reference.len(), sha256, file, offset }
    }
}

/// Runs `fq result`.
pub(crate) fn result(args: &ResultArgs) -> Outcome {
    let look = Look::open(&args.place)?;
    let (id, target) = (args.id, show::target(args.id));
    look.must_exist(std::slice::from_ref(&target))?;
    let not_done = |state: &str| {
        Failure::new(exit::NO, format!("`{id}` has no result: it is {state}")).hint(format!("`fq show {id}` says more"))
    };
    let Some(job) = look.state().job(id.job) else {
        return Err(look.refused(&target).unwrap_or_else(|| not_done("waiting")));
    };
    let Some(position) = job.position(id.index) else {
        return Err(
            Failure::usage(format!("`{id}` is an array: name one task")).hint(format!("`fq logs {id}` prints all"))
        );
    };
    let task = &job.tasks[position as usize];
    let record = view::attempt_records(job, position).pop();
    let end = record.as_ref().and_then(|record| view::end_line(&*look.queue.fs, look.state(), record));
    if args.json {
        let shown = view::show(&*look.queue.fs, look.state(), &look.pending, job.task_id(position));
        let (exit_code, signal) = match shown {
            Some(view::Shown::Task(task)) => (task.exit_code, task.signal),
            _ => (None, None),
        };
        json::print(&ResultView {
            schema: json::SCHEMA,
            id: job.task_id(position).to_string(),
            state: task.state.word(),
            attempt: task.attempt,
            exit_code,
            signal,
            stdout: end.as_ref().map(|end| Value::of(&end.out)),
            stderr: end.as_ref().map(|end| Value::of(&end.err)),
        })?;
        return Ok(if task.state == TaskState::Done { exit::OK } else { exit::NO });
    }
    if task.state != TaskState::Done {
        return Err(not_done(task.state.word()));
    }
    match record {
        Some(record) => print(&look, job, position, &record, Stream::Stdout)?,
        None => return Err(not_done("done without a record")),
    }
    Ok(exit::OK)
}
