//! `fq run`: one command over many arguments, here and now, with a queue and a worker of its own.
//!
//! The job's key is made of the command, its arguments and the directory, so that the same line typed again goes on where the
//! last one stopped: what is done is printed from the store, what failed is tried again, the rest runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::time::Duration;

use fq::client::request;
use fq::client::view::{self, AttemptRecord};
use fq::client::wait::Follower;
use fq::journal::Tail;
use fq::process::{Helper, Status};
use fq::protocol::digest::Hasher;
use fq::protocol::id::{JobId, Nonce, Ranges, Target, WorkerId};
use fq::protocol::lifecycle::TaskState;
use fq::protocol::record::{Action, Bytes, Command, EndLine, Line, Ref};
use fq::queue::Queue;
use fq::store;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::{Failure, Plain};
use super::interrupt::Interrupts;
use super::look::Look;
use super::place::{self, Place};
use super::submit::{self, Draft};
use super::units::{count, tame};
use super::{Outcome, ask, exit, export, out};

const EXAMPLES: &str = "\
Examples:
  fq run gzip -k {} ::: *.txt
  ls *.csv | fq run -j 4 ./fit.py --input {}
  fq run -k wc -l ::: a b c             without {} the argument comes last

Typed again in the same directory it goes on: what is done is not run again, what failed is.
Exits with 0, 1 if a task failed, 125 if fq itself failed.";

/// Runs a command for each argument, with a worker of its own and a progress bar
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// So many at once [default: the number of CPUs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Print outputs in the order of the arguments instead of as tasks end
    #[arg(short, long)]
    keep_order: bool,
    /// Cancel the rest as soon as one failed
    #[arg(long)]
    fail_fast: bool,
    /// The command, with `{}` for the argument; then `:::` and the arguments, or one a line on standard input
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    words: Vec<OsString>,
}

/// Runs `fq run`.
pub(crate) fn run(args: &Args) -> Outcome {
    let (command, arguments) = args.split()?;
    if arguments.is_empty() {
        return Err(Failure::usage("there are no arguments to run the command for")
            .hint("give them after `:::`, or one a line on standard input"));
    }
    let cwd = place::working_directory()?;
    let queue = place::open_or_make(args.place.dir_or(Path::new(".fq")))?;
    let key = key(&command, &arguments, &cwd);
    let (job, answered_by) = match submit::known(&queue, &key)? {
        Some(job) => (job, retry(&queue, job)?),
        None => (new_job(&queue, &command, &arguments, &cwd, key)?, None),
    };
    let worker = start_worker(&queue, args.jobs)?;
    let mut follower = Follower::open(&queue.fs)?;
    let interrupts = Interrupts::catch(follower.waker())?;
    let bar = progress_bar(arguments.len() as u64);
    let mut run = Run {
        queue: &queue,
        arguments: &arguments,
        job,
        bar,
        journals: BTreeMap::new(),
        printed: BTreeSet::new(),
        keep_order: args.keep_order,
        jobs: args.jobs,
        bad: 0,
    };
    let outcome = run.until_over(&mut follower, &interrupts, worker, answered_by, args.fail_fast);
    run.bar.finish_and_clear();
    outcome
}

impl Args {
    fn split(&self) -> Result<(Vec<Bytes>, Vec<Vec<u8>>), Failure> {
        let cut = self.words.iter().position(|word| word == ":::");
        let (command, arguments) = match cut {
            Some(at) => {
                let list = self.words[at + 1..].iter().map(|word| word.clone().into_vec());
                (&self.words[..at], list.collect::<Vec<_>>())
            }
            None => (&self.words[..], read_arguments()?),
        };
        if let Some(bad) = arguments.iter().find(|argument| argument.contains(&b'\n')) {
            let shown = tame(&String::from_utf8_lossy(bad));
            return Err(Failure::usage(format!(
                "`{shown}` cannot be an argument of a task: it has a line break in it"
            )));
        }
        if command.is_empty() {
            return Err(Failure::usage("there is no command before `:::`"));
        }
        let mut command = submit::words(command);
        if !command.iter().any(|word| word.0.windows(2).any(|pair| pair == b"{}")) {
            command.push("{}".into());
        }
        Ok((command, arguments))
    }
}

fn read_arguments() -> Result<Vec<Vec<u8>>, Failure> {
    let mut stdin = std::io::stdin().lock();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut content = Vec::new();
    stdin
        .read_to_end(&mut content)
        .map_err(|error| Failure::usage("cannot read standard input").because(&Plain(&error)))?;
    Ok(content.split(|&b| b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

/// The digest of command, arguments and directory, each with its length so that none runs into the next.
fn key(command: &[Bytes], arguments: &[Vec<u8>], cwd: &Path) -> String {
    let mut hasher = Hasher::default();
    let words = command.iter().map(|word| word.0.as_slice()).chain(std::iter::once(cwd.as_os_str().as_bytes()));
    for part in words.chain(arguments.iter().map(Vec::as_slice)) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    format!("run-{}", &hasher.finish().to_string()[..32])
}

fn new_job(queue: &Queue, command: &[Bytes], arguments: &[Vec<u8>], cwd: &Path, key: String) -> Result<JobId, Failure> {
    let name = command.first().map(|word| OsString::from_vec(word.0.clone())).unwrap_or_default();
    let mut manifest = submit::manifest(submit::file_name(&name), Command::Argv(command.to_vec()), cwd);
    manifest.env = export::everything(&std::env::vars_os().collect());
    manifest.array = Some(Ranges::span(0, arguments.len() as u64 - 1));
    manifest.needs.key = key;
    submit::submit(queue, Draft { manifest, script: None, entries: Some(arguments.join(&b'\n')), stdin: None })
}

/// Asks for another try of what failed before; returns the request that has to be answered first.
fn retry(queue: &Queue, job: JobId) -> Result<Option<Nonce>, Failure> {
    let look = Look::at(queue.clone())?;
    let targets = ask::last_attempts(&look, &[Target { job, indices: None }]);
    if targets.is_empty() { Ok(None) } else { ask::send(queue, "retry", &Action::Retry { targets }).map(Some) }
}

/// How long the worker stays without work, should this process not be there any more to end it. It is not told to end when the
/// queue is empty, because it has to answer a request to try again first.
const WORKER_IDLE: &str = "10s";

fn start_worker(queue: &Queue, jobs: Option<u32>) -> Result<Helper, Failure> {
    let cpus = jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |n| n as usize);
    let dir = queue.root().as_os_str().to_owned();
    let cpus = cpus.to_string().into();
    let args = ["worker".into(), "--dir".into(), dir, "-c".into(), cpus, "--idle-timeout".into(), WORKER_IDLE.into()];
    Helper::start(&args, true)
        .map_err(|error| Failure::new(exit::FQ_FAILED, "cannot start a worker").because(&Plain(&error)))
}

fn progress_bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg} {elapsed}, {eta} left");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A run on its way.
struct Run<'a> {
    queue: &'a Queue,
    arguments: &'a [Vec<u8>],
    job: JobId,
    bar: ProgressBar,
    /// What the workers' journals say about ends, as far as it was read and not printed yet, by line.
    journals: BTreeMap<WorkerId, (Tail, BTreeMap<u64, EndLine>)>,
    /// Positions of tasks whose end was reported.
    printed: BTreeSet<u32>,
    keep_order: bool,
    jobs: Option<u32>,
    bad: u64,
}

impl Run<'_> {
    fn until_over(
        &mut self,
        follower: &mut Follower,
        interrupts: &Interrupts,
        mut worker: Helper,
        mut unanswered: Option<Nonce>,
        fail_fast: bool,
    ) -> Outcome {
        let targets = [Target { job: self.job, indices: None }];
        let mut is_cancelled = false;
        loop {
            if let Some(id) = unanswered
                && request::is_answered(&*self.queue.fs, follower.state(), id)
            {
                unanswered = None;
            }
            if unanswered.is_none() {
                self.report(follower)?;
                if self.bad > 0 && fail_fast && !is_cancelled {
                    let reason = "another task of `fq run --fail-fast` failed".to_owned();
                    ask::send(self.queue, "cancel", &Action::Cancel { targets: targets.to_vec(), reason })?;
                    is_cancelled = true;
                }
                if follower.progress(&targets).is_over() {
                    follower.settle();
                    break;
                }
            }
            if let Some(caught) = interrupts.take() {
                worker.terminate();
                let _ = worker.finish();
                self.bar.suspend(|| out::remark("stopped; type it again to go on"));
                return Ok(exit::signal(caught.number()));
            }
            match worker.status() {
                // It had nothing to do for a while: perhaps another run's worker was busy with these tasks.
                Ok(Some(Status::Exit(0))) => worker = start_worker(self.queue, self.jobs)?,
                Ok(Some(status)) => return Err(self.without_worker(status)),
                _ => {}
            }
            follower.next(Duration::from_millis(300))?;
        }
        worker.terminate();
        let _ = worker.finish();
        let total = self.arguments.len() as u64;
        out::remark(&format!("{}, {} done, {} not", count(total, "task"), total - self.bad, self.bad));
        Ok(if self.bad == 0 { exit::OK } else { exit::NO })
    }

    fn without_worker(&self, status: Status) -> Failure {
        let how = match status {
            Status::Exit(code) => format!("exit code {code}"),
            Status::Signal(signal) => format!("signal {signal}"),
        };
        Failure::new(exit::FQ_FAILED, format!("the worker of this run ended early with {how}"))
            .note("nothing is lost; type it again to go on")
            .hint(format!("`fq worker --dir {} --until-empty` says why", self.queue.root().display()))
    }

    /// Prints what tasks wrote that have ended since the last time.
    fn report(&mut self, follower: &Follower) -> Result<(), Failure> {
        let state = follower.state();
        let Some(job) = state.job(self.job) else { return Ok(()) };
        for (position, task) in (0..).zip(&job.tasks) {
            if self.printed.contains(&position) {
                continue;
            }
            if !task.state.is_final() {
                if self.keep_order {
                    break;
                }
                continue;
            }
            let record = view::attempt_records(job, position).pop();
            let end = record.and_then(|record| {
                let wid = state.worker_no(record.worker)?.0.clone();
                self.end_of(&wid, &record)
            });
            if let Some(end) = &end {
                self.print(&end.out, true)?;
                self.print(&end.err, false)?;
            }
            if task.state != TaskState::Done {
                self.bad += 1;
                let argument = self.arguments.get(position as usize).map(|a| String::from_utf8_lossy(a).into_owned());
                let text = format!("`{}` {}{}", tame(&argument.unwrap_or_default()), task.state, ending(end.as_ref()));
                self.bar.suspend(|| out::remark(&text));
            }
            self.printed.insert(position);
        }
        self.bar.set_position(job.counts.ended());
        let running = job.counts.of(TaskState::Running);
        self.bar.set_message(format!("{running} running, {} failed", self.bad));
        Ok(())
    }

    fn print(&self, value: &Ref, is_out: bool) -> Result<(), Failure> {
        if value.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        let copied = self.bar.suspend(|| {
            store::copy_to(&*self.queue.fs, value, &mut |bytes| {
                if !is_out {
                    out::err_bytes(bytes);
                } else if failed.is_none() {
                    failed = out::bytes(bytes).err();
                }
            })
        });
        failed.map_or(Ok(()), Err)?;
        copied.map_err(Failure::from)
    }

    /// The end that `record` tells of. Journals are read along, so that each line is read once.
    fn end_of(&mut self, wid: &WorkerId, record: &AttemptRecord) -> Option<EndLine> {
        if record.line == 0 {
            return None;
        }
        let entry = self.journals.entry(wid.clone());
        let (tail, ends) = entry.or_insert_with(|| (Tail::new(wid.clone()), BTreeMap::new()));
        while !ends.contains_key(&record.line) {
            let Ok(news) = tail.poll(&*self.queue.fs) else { return None };
            if !news.grew {
                break;
            }
            ends.extend(news.lines.into_iter().filter_map(|(seq, line)| match line {
                Line::End(end) => Some((seq, *end)),
                _ => None,
            }));
        }
        ends.remove(&record.line)
    }
}

/// How an attempt ended, for a remark.
fn ending(end: Option<&EndLine>) -> String {
    use fq::protocol::record::Outcome as How;
    let of = |status: &Status| match status {
        Status::Exit(code) => format!(" with exit code {code}"),
        Status::Signal(signal) => format!(" by signal {signal}"),
    };
    match end.map(|end| &end.how) {
        Some(How::Ran(status) | How::Cancelled(status)) => of(status),
        Some(How::Timeout(_)) => ": its time was up".into(),
        Some(How::Oom(_)) => ": out of memory".into(),
        Some(How::Setup(failure)) => format!(": {failure}"),
        Some(How::Refused(why)) => format!(": {why}"),
        Some(How::Requeue(_)) | None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_tells_command_arguments_and_directory_apart() {
        let words = |list: &[&str]| list.iter().map(|word| Bytes::from(*word)).collect::<Vec<_>>();
        let args = |list: &[&str]| list.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let cwd = Path::new("/w");
        let first = key(&words(&["a", "{}"]), &args(&["b"]), cwd);
        assert_eq!(first, key(&words(&["a", "{}"]), &args(&["b"]), cwd));
        assert_ne!(first, key(&words(&["a", "{}", "b"]), &args(&[]), cwd));
        assert_ne!(first, key(&words(&["a", "{}"]), &args(&["b"]), Path::new("/v")));
    }
}
