//! Works a queue of twenty tasks again and again, and each time one call of a worker or master kills it or fails; compares the end.
//!
//! ```text
//! cargo build --bin fq
//! cargo run --example faults -- crashes                      every mutating call of workers and masters
//! cargo run --example faults -- errors --sample 40 --seed 7  40 of the calls of each kind fail once
//! cargo run --example faults -- locks                        locks that fail, lie or hang
//! ```
//!
//! Needs `strace` and leave to use it.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod driver;
mod sweep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::{Parser as _, ValueEnum};

use driver::Tools;
use driver::fault::{Effect, Fault, Role, When};
use sweep::{Row, Sweep, table};

/// What changes something that others see or that survives a crash. One that opens may make a file.
const MUTATING: [&str; 21] = [
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlinkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "fsync",
    "fdatasync",
    "write",
    "pwrite64",
    "writev",
    "ftruncate",
    "fchmod",
    "fchown",
    "flock",
    "openat2",
];
/// What may fail.
const FALLIBLE: [&str; 20] = [
    "fsync",
    "fdatasync",
    "close",
    "openat",
    "openat2",
    "read",
    "pread64",
    "getdents64",
    "statx",
    "fstat",
    "newfstatat",
    "faccessat2",
    "write",
    "rename",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "fchmod",
];
/// How.
const ERRORS: [&str; 4] = ["EIO", "ENOSPC", "EDQUOT", "ESTALE"];

/// Lets each call of a worker or master in turn kill it or fail, and checks what comes of twenty tasks
#[derive(Debug, clap::Parser)]
struct Args {
    /// What happens to the calls
    #[arg(value_enum, default_value = "crashes")]
    what: What,
    /// An absent or empty directory; a failed point is kept there [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Who is hit
    #[arg(long, value_enum, default_value = "both")]
    role: Roles,
    /// Only these calls, by the kernel's names
    #[arg(long, value_delimiter = ',')]
    calls: Vec<String>,
    /// Only these errors
    #[arg(long, value_delimiter = ',')]
    errors: Vec<String>,
    /// The first call of each kind that is hit
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// So many points of each kind of call and not all
    #[arg(long)]
    sample: Option<u64>,
    /// Decides which
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Points that run at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The program [default: the one that was built beside this]
    #[arg(long)]
    fq: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// They kill the process that makes them
    Crashes,
    /// They fail once
    Errors,
    /// Locks fail, lie or hang, all of them
    Locks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Roles {
    /// What runs tasks in `fq worker --no-master`, with `fq master` beside it
    Worker,
    /// What watches over that
    Keeper,
    /// `fq master`, with `fq worker --no-master` beside it
    Master,
    /// The thread of that which removes and renders
    Janitor,
    /// `fq worker` that leads and has nobody beside it
    Leader,
    /// All of them
    Both,
}

impl Roles {
    fn list(self) -> &'static [Role] {
        match self {
            Self::Worker => &[Role::Worker],
            Self::Keeper => &[Role::Keeper],
            Self::Master => &[Role::Master],
            Self::Janitor => &[Role::Janitor],
            Self::Leader => &[Role::Leader],
            Self::Both => &[Role::Worker, Role::Keeper, Role::Master, Role::Janitor, Role::Leader],
        }
    }
}

fn main() -> ExitCode {
    if let Some(code) = driver::play_keeper() {
        return ExitCode::from(u8::try_from(code).unwrap_or(255));
    }
    let args = Args::parse();
    let Ok(me) = std::env::current_exe() else {
        eprintln!("cannot tell where this program is");
        return ExitCode::from(2);
    };
    let beside = me.parent().and_then(|dir| Some(dir.parent()?.join("fq")));
    let Some(fq) = args.fq.clone().or(beside).and_then(|fq| std::fs::canonicalize(fq).ok()) else {
        eprintln!("no program to test: --fq");
        return ExitCode::from(2);
    };
    if !driver::has_strace() {
        eprintln!("strace is missing, or may not be used here");
        return ExitCode::from(2);
    }
    let temporary = std::env::temp_dir().join(format!("fq-faults-{}", std::process::id()));
    let dir = args.dir.clone().unwrap_or(temporary);
    let tools = Tools { fq, keeper: vec![me.into()] };
    let (jobs, from, sample, seed) = (args.jobs.max(1), args.from.max(1), args.sample, args.seed);
    let sweep = Sweep { tools: &tools, dir: &dir, jobs, from, sample, seed };
    let rows = match all(&args, &sweep) {
        Ok(rows) => rows,
        Err(why) => {
            eprintln!("a run without faults fails: {why}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", table(&rows));
    // What is kept is not empty.
    let _ = std::fs::remove_dir(&dir);
    if rows.iter().all(|row| row.failures.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(args: &Args, sweep: &Sweep<'_>) -> Result<Vec<Row>, String> {
    let say = |text: &str| eprintln!("{text}");
    let mut rows = Vec::new();
    for &role in args.role.list() {
        if args.what == What::Locks {
            if matches!(role, Role::Worker | Role::Master) {
                rows.extend(locks(sweep, role, &say));
            }
            continue;
        }
        let known: &[&str] = if args.what == What::Crashes { &MUTATING } else { &FALLIBLE };
        let asked: Vec<&str> = args.calls.iter().map(String::as_str).collect();
        let calls = if asked.is_empty() { known } else { &asked };
        let effects: Vec<Effect> = match args.what {
            What::Crashes => vec![Effect::Kill],
            _ if args.errors.is_empty() => ERRORS.iter().map(|&name| Effect::Error(name.to_owned())).collect(),
            _ => args.errors.iter().map(|name| Effect::Error(name.clone())).collect(),
        };
        let counts = sweep.record(role, calls)?;
        eprintln!("{}: {counts:?}", role.word());
        for call in calls {
            let count = counts.get(*call).copied().unwrap_or(0);
            let row = sweep.calls(role, call, &effects, count, &say);
            eprint!("{}", table(std::slice::from_ref(&row)));
            rows.push(row);
        }
    }
    rows.retain(|row| row.hits > 0);
    Ok(rows)
}

/// All locks. The worker is killed in the middle, so that somebody looks at its lock.
fn locks(sweep: &Sweep<'_>, role: Role, say: &(dyn Fn(&str) + Sync)) -> Vec<Row> {
    let errors = ["ENOLCK", "ENOSYS", "EIO"].map(|name| Effect::Error(name.to_owned()));
    let effects = errors.into_iter().chain([Effect::Lie, Effect::Hang]);
    let rows = effects.map(|effect| {
        let row = Mutex::new(Row::new(role, "flock", effect.to_string()));
        sweep.each(&[Fault { role, call: "flock".into(), effect, when: When::From(1) }], &row, say);
        row.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    });
    rows.collect()
}
