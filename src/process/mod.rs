//! Child processes behind a trait: start, output, signals to the whole tree, status, usage; and what one host can say about
//! the processes of another worker on it.
//!
//! Invariants:
//! - A child never waits on us after its end: output is drained as far as it goes without blocking, then the pipes are closed,
//!   whoever else still holds them.
//! - All output events of a child come before its [`Event::Ended`], and nothing of it comes after.
//! - When [`Event::Ended`] is reported, the child's process group and all other descendants that can be found are gone.
//! - Memory is constant whatever a child writes: output is read only when [`Process::poll`] is called, at most as much as asked.
//!
//! [`HostProcess`] is the real one, [`crate::sim`] the simulated one.

mod cgroup;
mod helper;
mod host;
mod identity;
mod sys;
mod tree;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cgroup::WorkerCgroup;
pub use helper::Helper;
pub use host::{HostProcess, Waker};
pub use identity::ThisHost;
pub use sys::{Caught, Signals, groups_of};

pub(crate) use host::start_worker;
pub(crate) use sys::{Reaped, adopt_fd, reap, take_variable};
#[cfg(test)]
pub(crate) use tree::is_alive;
pub(crate) use tree::{Sent, children, descendants, end};

/// Starts and watches the processes of one worker.
pub trait Process {
    /// Starts a child in a process group of its own.
    ///
    /// Fails with the step that failed; then nothing runs and nothing is left.
    fn start(&mut self, launch: &Launch) -> Result<Started, SetupFailure>;

    /// Collects what has happened, without blocking: output (at most `output_max` bytes in all, so that the rest waits in the
    /// pipes) and ends.
    fn poll(&mut self, output_max: usize) -> Vec<Event>;

    /// Sends `signal` to the child's whole tree. A child that has ended is no error.
    fn signal(&mut self, child: Child, signal: Signal);
}

/// What is asked of [`Process::start`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments, byte for byte; never empty. A program without `/` is looked up in the `PATH` of `env`.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The working directory.
    pub cwd: PathBuf,
    /// What the child reads.
    pub stdin: Stdin,
    /// Upper limit of memory for the whole tree in bytes, where the host can enforce it.
    pub mem_max: Option<u64>,
    /// Text that is unique to this attempt and stands in `env` as the value of `FQ_ATTEMPT_TOKEN`, by which strays of its tree
    /// are recognised.
    pub token: String,
}

/// The standard input of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// These bytes, then the end.
    Bytes(Arc<[u8]>),
    /// A file, opened read-only without following a link in its last part.
    File(PathBuf),
}

/// A running child, unique within its [`Process`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Child(pub u64);

/// A child that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The handle for events and signals.
    pub child: Child,
    /// Enough to recognise and end its process group later from another process of this host.
    pub group: Group,
}

/// A process group as recorded in a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Process id of the leader, which is the group's id; 0 where the start was not recorded.
    pub pid: u32,
    /// The leader's start time in clock ticks since boot, as in field 22 of `/proc/<pid>/stat`.
    pub ticks: u64,
    /// The `token` of its [`Launch`].
    pub token: String,
}

/// The step of a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Reading the task's manifest, script or input.
    Input,
    /// Opening the standard input.
    Stdin,
    /// Changing to the working directory.
    Chdir,
    /// Making the environment (too large, or a NUL byte in it).
    Env,
    /// Making the process, its pipes or its limits.
    Fork,
    /// Executing the program.
    Exec,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Stdin => "stdin",
            Self::Chdir => "chdir",
            Self::Env => "env",
            Self::Fork => "fork",
            Self::Exec => "exec",
        })
    }
}

/// A child could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupFailure {
    /// Where it failed.
    pub step: Step,
    /// The name of the system error, such as `ENOENT`.
    pub errno: String,
    /// The path that the step was about.
    pub path: String,
}

impl fmt::Display for SetupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of `{}` failed: {}", self.step, self.path, self.errno)
    }
}

/// Something that happened to a child.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The child wrote `bytes`, never empty.
    Output {
        /// Who.
        child: Child,
        /// Where to.
        stream: Stream,
        /// What.
        bytes: Vec<u8>,
    },
    /// The child and its tree are gone.
    Ended {
        /// Who.
        child: Child,
        /// How.
        end: End,
    },
}

/// One of the two outputs of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Its exit status.
    pub status: Status,
    /// Whether the kernel ended it, or a part of its tree, for want of memory.
    pub out_of_memory: bool,
    /// How many processes of its tree outlived it and were ended.
    pub leftovers: u32,
    /// From its start to its end, on the boot clock.
    pub elapsed: Duration,
    /// What it used.
    pub usage: Usage,
}

/// Exit code and signal, never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It exited with this code.
    Exit(i32),
    /// It was ended by this signal number.
    Signal(i32),
}

/// Resource usage of a child and the descendants it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// User time, milliseconds.
    pub user_ms: u64,
    /// System time, milliseconds.
    pub sys_ms: u64,
    /// Greatest resident set of one process, KiB.
    pub rss_kib_max: u64,
    /// 512-byte blocks read from disks.
    pub blocks_in: u64,
    /// 512-byte blocks written to disks.
    pub blocks_out: u64,
}

/// The signals that fq sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// `SIGTERM`: end in order.
    Term,
    /// `SIGKILL`: end now.
    Kill,
}

/// What one host knows about its processes.
pub trait Host: Send + Sync {
    /// Who is asking.
    fn me(&self) -> Identity;

    /// Whether the process that `who` names still runs; [`Liveness::Unknown`] if it belongs to another host, boot or pid
    /// namespace.
    fn liveness(&self, who: &Identity) -> Liveness;

    /// Ends what is left of the recorded groups of a dead worker of this host, by process group, and by `token` in the
    /// environment for strays. Returns how many processes were still there; call again until it is 0.
    fn end_leftovers(&self, groups: &[Group]) -> usize;
}

/// Identifies a process beyond its pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Host name.
    pub host: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The pid namespace, as `/proc/self/ns/pid` names it.
    pub pid_ns: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub ticks: u64,
    /// Effective user id.
    pub uid: u32,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs (or is stopped).
    Alive,
    /// It is gone.
    Gone,
    /// This host cannot tell.
    Unknown,
}
