//! The face: arguments, one file per command, text and JSON, exit codes.
//!
//! Invariants:
//! - Results go to standard output, everything else to standard error; a closed pipe is no error.
//! - Text and JSON are two prints of one struct ([`json`]), so they cannot disagree.
//! - Nothing here knows a path inside a queue.

#![expect(clippy::print_stderr, reason = "the one place that talks to people")]

mod ask;
mod doctor;
mod error;
mod exec;
mod exit;
mod export;
mod fsck;
mod gc;
mod help;
mod init;
mod interrupt;
mod json;
mod list;
mod logs;
mod look;
mod master;
mod out;
mod place;
mod run;
mod show;
mod status;
mod submit;
mod units;
mod wait;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use error::Failure;

/// What a command returns: its exit code, or why it could not be carried out.
type Outcome = Result<u8, Failure>;

const ABOUT: &str = "A job queue that is a directory on a shared file system";

const LONG_ABOUT: &str = "\
A job queue that is a directory on a shared file system: no server, no port, no database.

Submit jobs from any host that sees the directory, start workers on any host, in any order and at any time; kill any of them.
What was asked for runs, and every result is accepted exactly once.";

const EXAMPLES: &str = "\
Examples:
  fq run -j 4 gzip -k {} ::: *.txt            run now, here, with a progress bar; type it again to go on

  export FQ_DIR=/scratch/me/q
  fq submit -- ./simulate --seed 1            prints the job number, such as 1
  fq submit -a 0-99 -c 4 --mem 8G sweep.sh    an array of 100 tasks
  fq worker --until-empty                     on any node, as often as you like
  fq status; fq logs 1; fq result 2_17

Exit codes:
  0 done, yes     1 no: something failed     2 bad usage     3 not a usable queue     4 lost the right to go on
  5 no such job   6 refused                  75 try again later (a full disk, for example)
  124 time is up  125 fq itself failed around the command  126 cannot be executed  127 not found  128+n ended by signal n

A queue is named with --dir or FQ_DIR. NO_COLOR is respected.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "fq", version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Submit(Box<submit::Args>),
    Worker(worker::Args),
    Master(master::Args),
    Run(run::Args),
    Exec(exec::Args),
    Status(status::Args),
    Show(show::Args),
    List(list::Args),
    Workers(workers::Args),
    Logs(logs::Args),
    Result(logs::ResultArgs),
    Wait(wait::Args),
    Cancel(ask::CancelArgs),
    /// Runs failed, cancelled or aborted jobs or tasks again
    #[command(after_help = "Examples:\n  fq retry 7\n  fq retry $(fq list --state failed -q)")]
    Retry(ask::Args),
    /// Does not start jobs or tasks before they are released
    Hold(ask::Args),
    /// Lets held jobs or tasks start
    Release(ask::Args),
    Fsck(fsck::Args),
    Gc(gc::Args),
    Doctor(doctor::Args),
    Guard(exec::GuardArgs),
    Completions(help::CompletionArgs),
    Man(help::ManArgs),
}

impl Command {
    fn run(self) -> Outcome {
        match self {
            Self::Init(args) => init::run(&args),
            Self::Submit(args) => submit::run(&args),
            Self::Worker(args) => worker::run(&args),
            Self::Master(args) => master::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Exec(args) => exec::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Show(args) => show::run(&args),
            Self::List(args) => list::run(&args),
            Self::Workers(args) => workers::run(&args),
            Self::Logs(args) => logs::run(&args),
            Self::Result(args) => logs::result(&args),
            Self::Wait(args) => wait::run(&args),
            Self::Cancel(args) => ask::cancel(args),
            Self::Retry(args) => ask::retry(&args),
            Self::Hold(args) => ask::hold(&args),
            Self::Release(args) => ask::release(&args),
            Self::Fsck(args) => fsck::run(&args),
            Self::Gc(args) => gc::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Guard(args) => exec::guard(&args),
            Self::Completions(args) => help::completions(&args),
            Self::Man(args) => help::man(&args),
        }
    }
}

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` come here too, with code 0 and standard output.
            let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match cli.command.run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprint!("{failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// The whole tree of commands, for completions and manual pages.
fn tree() -> clap::Command {
    Cli::command()
}
