//! Manifests of jobs and requests, both written by clients.

use serde::{Deserialize, Serialize};

use super::{Bytes, Ref, is_default};
use crate::protocol::id::{JobId, Nonce, Ranges, Target, WorkerId};
use crate::protocol::version::FormatVersion;

/// What one `fq submit` asks for: `jobs/000/42.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `job`.
    pub fq: String,
    /// The format version of its writer.
    pub version: FormatVersion,
    /// The number under which it was bound; equals its file name.
    pub job: JobId,
    /// The submission's nonce: a job is taken in once per nonce, whatever numbers it is found under.
    pub sub: Nonce,
    /// A name for people.
    pub name: String,
    /// What to run.
    pub command: Command,
    /// Working directory.
    pub cwd: Bytes,
    /// Variables on top of the worker's environment, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(Bytes, Bytes)>,
    /// The indices of an array; `None` for a job of one task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Ranges>,
    /// One line per index of the array, given to the task as `FQ_ENTRY` and for `{}` in its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<Ref>,
    /// Standard input; `/dev/null` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Ref>,
    /// Pattern of the file that standard output is published to, besides the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Bytes>,
    /// The same for standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Bytes>,
    /// What the scheduler has to know.
    pub needs: Needs,
    /// Who submitted; for people. What counts is the owner of the file.
    pub user: String,
    /// On which host.
    pub host: String,
    /// Wall time of the submission, milliseconds since 1970.
    pub at_ms: u64,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// A program and its arguments, byte for byte.
    Argv(Vec<Bytes>),
    /// Text for `sh -c`.
    Shell(Bytes),
    /// The entry of each task is text for `sh -c`.
    Entry,
    /// A copy of a script, made at submit, and its arguments.
    Script {
        /// The script's bytes.
        bytes: Ref,
        /// Its file name.
        name: String,
        /// Its arguments.
        args: Vec<Bytes>,
    },
}

/// The part of a manifest that decides when and where its tasks run; copied into the decision that takes the job in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// CPUs of each task, at least 1.
    pub cpus: u32,
    /// Memory of each task in bytes; 0 for no claim and no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub mem: u64,
    /// Time limit of an attempt in milliseconds; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub time_ms: u64,
    /// How many failures and time-outs are followed by another attempt.
    #[serde(skip_serializing_if = "is_default")]
    pub retries: u32,
    /// Higher runs first.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i32,
    /// At most so many tasks of the array at once; 0 for no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub cap: u64,
    /// Submitted with `--hold`.
    #[serde(skip_serializing_if = "is_default")]
    pub hold: bool,
    /// What has to end before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    /// A job with a key is taken in once per key and owner.
    #[serde(skip_serializing_if = "is_default")]
    pub key: String,
}

impl Default for Needs {
    fn default() -> Self {
        Self {
            cpus: 1,
            mem: 0,
            time_ms: 0,
            retries: 0,
            priority: 0,
            cap: 0,
            hold: false,
            after: Vec::new(),
            key: String::new(),
        }
    }
}

/// One thing that has to end before a job starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// How it has to end.
    pub when: After,
    /// Which job or tasks, all of them.
    pub target: Target,
}

/// How a dependency has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum After {
    /// Every task is done.
    Ok,
    /// Every task has ended in any way.
    Any,
    /// At least one task has failed, was cancelled or aborted, and all have ended.
    NotOk,
}

/// What a client asks the master to change: `control/<nonce>.json`. Doing it twice is doing it once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Always `request`.
    pub fq: String,
    /// The format version of its writer.
    pub version: FormatVersion,
    /// Equals its file name.
    pub id: Nonce,
    /// What is asked.
    pub action: Action,
    /// Who asks; for people. What counts is the owner of the file.
    pub user: String,
    /// Wall time, milliseconds since 1970.
    pub at_ms: u64,
}

/// What is asked of the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// End these tasks, or never start them.
    Cancel {
        /// Which.
        targets: Vec<Target>,
        /// Why, in the user's words.
        #[serde(default)]
        reason: String,
    },
    /// Do not start these until they are released.
    Hold {
        /// Which.
        targets: Vec<Target>,
    },
    /// Start these again.
    Release {
        /// Which.
        targets: Vec<Target>,
    },
    /// Run these again, each only if this attempt was its last.
    Retry {
        /// Which, and the attempt number that the client saw as the last one.
        targets: Vec<(Target, u32)>,
    },
    /// Let a worker finish what runs and give it nothing more.
    Drain {
        /// Which.
        worker: WorkerId,
    },
    /// Quarantine unreferenced objects, or remove those quarantined before.
    Collect {
        /// Jobs that ended longer ago than so many milliseconds are removed; `None` keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_ms: Option<u64>,
    },
}
