//! Works a queue on this host while its processes are killed and stopped at random, and checks what came of it.
//!
//! ```text
//! cargo build --release --bin fq
//! cargo run --release --example chaos -- --seconds 60 --tasks 1000 --seed 7
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod driver;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;

/// Kills and stops workers and masters at random while they work, and checks what came of it
#[derive(Debug, clap::Parser)]
struct Args {
    /// Tasks, at least 20
    #[arg(long, default_value_t = 1000)]
    tasks: u64,
    /// Workers, of two CPUs each
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Processes that only lead
    #[arg(long, default_value_t = 2)]
    masters: usize,
    /// How long, about
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Decides what is hurt
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An absent or empty directory [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The program [default: the one that was built beside this]
    #[arg(long)]
    fq: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let temporary = std::env::temp_dir().join(format!("fq-chaos-{}-{}", args.seed, std::process::id()));
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.join("fq")));
    let (Some(fq), dir) = (args.fq.or(beside), args.dir.clone().unwrap_or(temporary)) else {
        eprintln!("no program to test: --fq");
        return ExitCode::from(2);
    };
    let (tasks, workers, masters, seconds, seed) =
        (args.tasks.max(20), args.workers.max(1), args.masters, args.seconds, args.seed);
    let plan = driver::Plan { tasks, workers, masters, seconds, seed, dir, fq };
    match driver::run(&plan, &|text| eprintln!("{text}")) {
        Ok(tally) => {
            println!("{tally}");
            if args.dir.is_none() {
                let _ = std::fs::remove_dir_all(&plan.dir);
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}\nall of it is kept in `{}`", plan.dir.display());
            ExitCode::FAILURE
        }
    }
}
