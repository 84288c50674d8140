//! `fq worker`: runs tasks. Two processes: a keeper, and the worker proper that it starts and watches over.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fq::clock::{Chance as _, Clock as _, HostChance, HostClock};
use fq::fs::outside::HostOutside;
use fq::keeper::{self, KeeperOptions, Link, Over};
use fq::node::{self, WorkerFailure, WorkerSetup};
use fq::process::ThisHost;
use fq::protocol::id::Nonce;
use fq::queue::Queue;

use super::error::{Failure, Plain};
use super::place::{Place, group_id, user_id};
use super::{Outcome, exit, out, units};

const EXAMPLES: &str = "\
Examples:
  fq worker --dir /scratch/me/q                     as many tasks at once as there are CPUs here
  fq worker -c 4 --until-empty                      ends when nothing is left to do
  srun fq worker --dir /scratch/me/q -c 32 --lifetime 3:50:00

TERM hands running tasks back to the queue and ends; USR1 finishes what runs, then ends.
Storage that takes nothing for minutes ends the tasks that run; when it is back a new worker begins by itself.
Any number of workers may run, on any hosts that see the directory, started in any order.";

/// Runs tasks of a queue until it is told to end
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// CPUs for tasks; `auto` for all that this process may use
    #[arg(short, long, value_name = "N|auto", default_value = "auto", value_parser = cpus)]
    cpus: Cpus,
    /// Memory for tasks, such as 16G; without it memory is not counted
    #[arg(long, value_name = "M", value_parser = units::size)]
    mem: Option<u64>,
    /// End when no task of the queue can make progress any more
    #[arg(long)]
    until_empty: bool,
    /// End after so long without work
    #[arg(long, value_name = "T", value_parser = units::span)]
    idle_timeout: Option<Duration>,
    /// Hand everything back and end after this time, before a batch system ends it
    #[arg(long, value_name = "T", value_parser = units::span)]
    lifetime: Option<Duration>,
    /// End after one task
    #[arg(long)]
    once: bool,
    /// Never lead the queue
    #[arg(long)]
    no_master: bool,
    /// Also run tasks of this user or, with `@`, of the members of this group
    #[arg(long, value_name = "USER|@GROUP")]
    trust: Vec<String>,
    /// Where scratch directories are made; the keeper says so, and removes it when the worker is gone
    #[arg(long, hide = true)]
    scratch: Option<PathBuf>,
    /// Since when the lifetime is counted, in milliseconds of the boot clock; the keeper says so, whose workers share it
    #[arg(long, hide = true)]
    since: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Cpus {
    Auto,
    Number(u32),
}

fn cpus(text: &str) -> Result<Cpus, String> {
    match text {
        "auto" => Ok(Cpus::Auto),
        number => match number.parse() {
            Ok(n) if n > 0 => Ok(Cpus::Number(n)),
            _ => Err("expected a number from 1, or `auto`".into()),
        },
    }
}

/// Runs `fq worker`.
pub(crate) fn run(args: &Args) -> Outcome {
    // The descriptor of the keeper is in the environment; it is taken out before anything else runs.
    match Link::from_env() {
        Some(link) => work(args, &link),
        None => keep(args),
    }
}

/// Starts the worker proper and watches over it, and over its successors.
fn keep(args: &Args) -> Outcome {
    let begun = HostClock.boot();
    let queue = args.place.open()?;
    trusted(args, queue.file.gid)?;
    queue.limits()?;
    drop(queue);
    let broken =
        |error: &std::io::Error| Failure::new(exit::FQ_FAILED, "cannot start the worker").because(&Plain(error));
    let program = std::env::current_exe().map_err(|e| broken(&e))?;
    let name = Nonce(HostChance.bits()).to_string();
    let scratch = HostOutside::make_scratch(&std::env::temp_dir(), &name).map_err(|e| broken(&e))?;
    let argv = std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1));
    let since = begun.as_millis().to_string();
    let more: [OsString; 4] = ["--scratch".into(), scratch.clone().into_os_string(), "--since".into(), since.into()];
    let options = KeeperOptions {
        worker_argv: argv.chain(more).collect(),
        backoff: keeper::BACKOFF,
        until: args.lifetime.map(|span| begun + span),
    };
    let over = keeper::run(&options, &HostChance, &mut |again| {
        out::remark(&again.to_string());
        HostOutside::renew_scratch(&scratch)
    });
    HostOutside::remove_scratch(&scratch);
    match over.map_err(|e| broken(&e))? {
        Over::Worker(code) => Ok(u8::try_from(code).unwrap_or(exit::FQ_FAILED)),
        Over::Asked => {
            out::remark("ends: it was asked to while no worker ran");
            Ok(exit::OK)
        }
        Over::Late => {
            out::remark("ends: its lifetime is over");
            Ok(exit::OK)
        }
    }
}

/// Whom `--trust` names, in a queue for the group `of_queue`: users, and the one group besides.
fn trusted(args: &Args, of_queue: Option<u32>) -> Result<(Vec<u32>, Option<u32>), Failure> {
    let (mut users, mut group) = (Vec::new(), None);
    for who in &args.trust {
        let Some(name) = who.strip_prefix('@') else {
            users.push(user_id(who)?);
            continue;
        };
        let gid = group_id(name)?;
        let hint = "name its users instead: `--trust USER`, as often as needed";
        if rustix::process::geteuid().is_root() {
            return Err(Failure::usage(format!("a worker of root trusts no group, not even `{who}`")).hint(hint));
        }
        match group.or(of_queue) {
            Some(other) if other != gid => {
                return Err(Failure::usage(format!("a worker trusts one group, and besides {other} there is `{who}`"))
                    .hint(hint));
            }
            _ => group = Some(gid),
        }
    }
    Ok((users, group))
}

fn work(args: &Args, link: &Link) -> Outcome {
    let not_yet = |may_pass: bool| {
        if may_pass {
            link.not_yet();
        }
    };
    let queue = Arc::new(Queue::open(args.place.dir()?).inspect_err(|error| not_yet(error.may_pass()))?);
    let (trusted, trusted_group) = trusted(args, queue.file.gid)?;
    let bin = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("fq"));
    let setup = WorkerSetup {
        cpus: match args.cpus {
            Cpus::Number(n) => n,
            Cpus::Auto => {
                std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
            }
        },
        mem: args.mem.unwrap_or(0),
        trusted,
        trusted_group,
        no_master: args.no_master,
        once: args.once,
        until_empty: args.until_empty,
        idle_timeout: args.idle_timeout,
        lifetime: args.lifetime.map(|span| {
            let since = args.since.map_or(HostClock.boot(), Duration::from_millis);
            (since + span).saturating_sub(HostClock.boot())
        }),
        env: node::own_environment(),
        scratch: args.scratch.clone().unwrap_or_else(std::env::temp_dir),
        bin,
    };
    let keeper = ThisHost::new().ok().and_then(|host| host.parent());
    let over = node::run_worker(&queue, &setup, Some(link), keeper, out::remark).map_err(|failure| match failure {
        WorkerFailure::Files(error) => {
            not_yet(error.may_pass());
            Failure::files("cannot start a worker", &error)
        }
        WorkerFailure::Limits(error) => {
            not_yet(error.may_pass());
            Failure::from(error)
        }
        WorkerFailure::Queue(halt) => Failure::new(exit::NOT_A_QUEUE, halt.to_string()).hint("`fq fsck` tells more"),
        WorkerFailure::Host(why) => Failure::new(exit::FQ_FAILED, why),
    })?;
    out::remark(&format!("the worker has ended: {}", over.why));
    Ok(u8::try_from(over.code).unwrap_or(exit::FQ_FAILED))
}
