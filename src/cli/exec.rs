//! `fq exec`: a command that runs on some worker as if it ran here.
//!
//! Invariant: however this process ends, its task ends too (unless `--detach`). A guard, in a session of its own, holds the other
//! end of a pipe: it was told the submission's nonce before there was a job, and asks for the job's end when the pipe closes
//! without word that the task is over.

use std::ffi::OsString;
use std::io::{BufRead as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fq::client::logs::{Pumped, Relay};
use fq::client::view;
use fq::client::wait::Follower;
use fq::decision::Reader;
use fq::process::{Helper, Stream};
use fq::protocol::id::{JobId, Nonce, Target};
use fq::protocol::record::{Action, Bytes, Command};
use fq::queue::Queue;

use super::error::{Failure, Plain};
use super::interrupt::Interrupts;
use super::place::{self, Place};
use super::submit::{self, Draft};
use super::{Outcome, ask, exit, export, out, wait};

const EXAMPLES: &str = "\
Examples:
  fq exec -- make -C src
  fq exec -c 'sort big.txt > sorted.txt'
  make -j50 SHELL=fq .SHELLFLAGS='exec -c'      recipe lines run on workers

The environment is recorded (less make's job server); --export records what it names instead. Exits as the command does;
124 time limit, 125 fq failed, 126 cannot be executed, 127 not found, 128+n signal n.";

/// Runs a command on a worker as if it ran here: waits, passes on its output and exit code
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Record these variables instead of all: `NAME`, `NAME=VALUE`, separated by commas
    #[arg(long, value_name = "LIST")]
    export: Vec<OsString>,
    /// Let the task go on if this process ends early
    #[arg(long)]
    detach: bool,
    /// Run this text with `sh -c`
    #[arg(short = 'c', value_name = "SH", conflicts_with = "command")]
    shell: Option<OsString>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present = "shell")]
    command: Vec<OsString>,
}

/// Runs `fq exec`.
pub(crate) fn run(args: &Args) -> Outcome {
    let queue = args.place.open()?;
    let environment: export::Env = std::env::vars_os().collect();
    let env = if args.export.is_empty() {
        export::everything(&environment)
    } else {
        export::pick(&args.export, &environment)
            .map_err(|why| Failure::usage(format!("cannot understand `--export`: {why}")))?
    };
    let (command, name) = match &args.shell {
        Some(text) => (Command::Shell(Bytes(text.clone().into_vec())), "sh".to_owned()),
        None => (Command::Argv(submit::words(&args.command)), submit::file_name(&args.command[0])),
    };
    let mut manifest = submit::manifest(name, command, &place::working_directory()?);
    manifest.env = env;
    let mut guard = if args.detach { None } else { Some(start_guard(&queue, manifest.sub)?) };
    let mut follower = Follower::open(&queue.fs).map_err(around)?;
    let interrupts = Interrupts::catch(follower.waker())?;
    let job = submit::submit(&queue, Draft { manifest, script: None, entries: None, stdin: None })?;
    let outcome = relay(&queue, &mut follower, &interrupts, job);
    if let (Some(mut guard), true) = (guard.take(), outcome.is_over) {
        let _ = guard.tell("over");
        let _ = guard.finish();
    } else if !args.detach && !outcome.is_over {
        // The guard does it too should this fail; asking twice is asking once.
        let targets = vec![Target { job, indices: None }];
        let _ = ask::send(&queue, "cancel", &Action::Cancel { targets, reason: "`fq exec` has ended".into() });
    }
    outcome.code
}

/// What relaying came to.
struct Relayed {
    /// Whether the task has ended.
    is_over: bool,
    code: Outcome,
}

fn relay(queue: &Queue, follower: &mut Follower, interrupts: &Interrupts, job: JobId) -> Relayed {
    let target = Target { job, indices: None };
    let targets = std::slice::from_ref(&target);
    let mut alone = wait::Alone::default();
    let mut streams = [Relay::new(job, 0, Stream::Stdout, 0), Relay::new(job, 0, Stream::Stderr, 0)];
    loop {
        let mut failed = None;
        let mut all_said = true;
        for (relay, is_out) in streams.iter_mut().zip([true, false]) {
            let pumped = relay.pump(&*queue.fs, follower.state(), &mut |bytes| {
                if !is_out {
                    out::err_bytes(bytes);
                } else if failed.is_none() {
                    failed = out::bytes(bytes).err();
                }
            });
            match pumped {
                Ok(Pumped::More) => all_said = false,
                Ok(Pumped::Restarted(attempt, how)) => {
                    all_said = false;
                    if is_out {
                        out::remark(&format!("attempt {attempt} of `{job}` is over ({how}); it runs again"));
                    }
                }
                Ok(Pumped::Over) => {}
                Ok(Pumped::Lost(attempt)) => {
                    out::remark(&format!("the output of attempt {attempt} of `{job}` cannot be read"));
                }
                Err(error) => {
                    return Relayed { is_over: follower.progress(targets).is_over(), code: Err(error.into()) };
                }
            }
        }
        let is_over = follower.progress(targets).is_over();
        if let Some(failure) = failed {
            return Relayed { is_over, code: Err(failure) };
        }
        if is_over && (all_said || follower.state().job(job).is_none()) {
            follower.settle();
            explain(queue, follower, job);
            return Relayed { is_over, code: Ok(wait::code_byte(follower.highest_code(targets))) };
        }
        if let Some(caught) = interrupts.take() {
            return Relayed { is_over, code: Ok(exit::signal(caught.number())) };
        }
        alone.look(follower.state());
        let live = streams[0].live_dir(follower.state());
        if let Some(dir) = live {
            follower.also_watch(&dir);
        }
        if let Err(error) = follower.next(Duration::from_millis(200)) {
            return Relayed { is_over: false, code: Err(around(error)) };
        }
    }
}

/// Says why the command did not run, where its exit code alone would leave one guessing.
fn explain(queue: &Queue, follower: &Follower, job: JobId) {
    let state = follower.state();
    let Some(found) = state.job(job) else { return };
    let Some(record) = view::attempt_records(found, 0).pop() else { return };
    if let Some(fq::protocol::record::Outcome::Setup(failure)) =
        view::end_line(&*queue.fs, state, &record).map(|e| e.how)
    {
        out::remark(&failure.to_string());
    }
}

/// A failure of fq around the command.
fn around(error: impl Into<Failure>) -> Failure {
    error.into().with_code(exit::FQ_FAILED)
}

fn start_guard(queue: &Queue, sub: Nonce) -> Result<Helper, Failure> {
    let args = ["guard".into(), "--dir".into(), queue.root().as_os_str().to_owned(), sub.to_string().into()];
    Helper::guard(&args).map_err(|error| {
        Failure::new(exit::FQ_FAILED, "cannot start the process that guards the task").because(&Plain(&error))
    })
}

/// Guards the task of an `fq exec`
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct GuardArgs {
    #[arg(long)]
    dir: PathBuf,
    sub: Nonce,
}

/// Runs `fq guard`: waits for the end of its input, then asks for the end of the job, unless told that it is over.
pub(crate) fn guard(args: &GuardArgs) -> Outcome {
    // A signal to the group or session of the command must not end the guard before it has done its work.
    let _ = rustix::process::setsid();
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(b"!").and_then(|()| stdout.flush());
    let is_over = std::io::stdin().lock().lines().map_while(Result::ok).any(|line| line == "over");
    if !is_over && let Some(job) = find(&args.dir, args.sub)? {
        let targets = vec![Target { job, indices: None }];
        ask::send(
            &Queue::open(&args.dir)?,
            "cancel",
            &Action::Cancel { targets, reason: "`fq exec` has ended".into() },
        )?;
    }
    Ok(exit::OK)
}

/// The job of a submission, if it came so far.
fn find(dir: &Path, sub: Nonce) -> Result<Option<JobId>, Failure> {
    let queue = Queue::open(dir)?;
    let reader = Reader::open(&*queue.fs)?;
    if let Some(&job) = reader.state().subs.get(&sub) {
        return Ok(Some(job));
    }
    let pending =
        view::pending(&*queue.fs, reader.state()).map_err(|e| Failure::files("cannot look for the job", &e))?;
    Ok(pending.iter().find(|p| p.manifest.as_ref().is_ok_and(|m| m.sub == sub)).map(|p| p.job))
}
