//! What a worker writes: `HELLO`, `BYE` and its journal.

use serde::{Deserialize, Serialize};

use super::{Ref, is_default};
use crate::process::{Group, Identity, SetupFailure, Status, Usage};
use crate::protocol::id::{AttemptId, DecisionId, Nonce, WorkerId};
use crate::protocol::version::FormatVersion;

/// What a worker incarnation says of itself: `workers/<wid>/HELLO`. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always `hello`.
    pub fq: String,
    /// The format version of the worker.
    pub version: FormatVersion,
    /// Equals the name of its namespace.
    pub wid: WorkerId,
    /// The queue that it serves.
    pub queue: Nonce,
    /// The process that runs tasks.
    pub worker: Identity,
    /// The process that watches over it; `None` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<Identity>,
    /// CPUs that it gives to tasks, at least 1.
    pub cpus: u32,
    /// Memory that it gives to tasks, bytes; 0 if it does not say.
    pub mem: u64,
    /// Its own self-fence time: the master waits for the larger of this and its own.
    pub self_fence_ms: u64,
    /// What taking the namespace's lock gave.
    pub lock: LockVerdict,
    /// Whose tasks it runs.
    pub trust: Trust,
    /// Wall time of its start, milliseconds since 1970.
    pub at_ms: u64,
}

/// What taking a namespace's lock gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockVerdict {
    /// Taken. Whether that means anything to another host is for the observer to find out.
    Held,
    /// Somebody else held it.
    Refused,
    /// The mount has no locks.
    Unsupported,
    /// No answer in time.
    Hung,
    /// Another error.
    Failed,
}

/// Whose manifests a worker runs (spec: leases, "Strangers").
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trust {
    /// The worker's own user.
    pub uid: u32,
    /// Members of this group too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// And these users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uids: Vec<u32>,
}

/// What a worker leaves when it ends in order: `workers/<wid>/BYE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Always `bye`.
    pub fq: String,
    /// The format version of the worker.
    pub version: FormatVersion,
    /// Equals the name of its namespace.
    pub wid: WorkerId,
    /// Why it ended.
    pub why: String,
    /// The last sequence number of its journal.
    pub seq: u64,
    /// Wall time, milliseconds since 1970.
    pub at_ms: u64,
}

/// One line of a worker's journal, without `seq` and `crc` (spec: records, "Journal").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Line {
    /// The first line of a journal.
    Open {
        /// Whose journal this is.
        wid: WorkerId,
    },
    /// A sign of life.
    Beat {
        /// Grows by one.
        k: u64,
        /// Free CPUs.
        free: u32,
    },
    /// All lines up to `d` are durable: their sync has returned.
    Mark {
        /// The durable sequence number.
        d: u64,
    },
    /// A message that is no bundle was taken.
    Got {
        /// Its number.
        m: u64,
        /// The decision that issued it.
        by: DecisionId,
    },
    /// A bundle was taken; durable before any of its tasks starts.
    Claim {
        /// Its message number.
        m: u64,
        /// The decision that issued it.
        by: DecisionId,
    },
    /// An attempt runs.
    Start {
        /// Which.
        a: AttemptId,
        /// Of which message.
        m: u64,
        /// Its process group.
        group: Group,
        /// Wall time, milliseconds since 1970.
        at_ms: u64,
    },
    /// An attempt has ended.
    End(Box<EndLine>),
    /// Attempts that were taken, never started, and never will be.
    Released {
        /// Which.
        a: Vec<AttemptId>,
        /// Why.
        why: Requeue,
    },
    /// No new work at the moment.
    Pause {
        /// Why, for people.
        why: String,
    },
    /// New work is welcome again.
    Resume,
    /// No new work any more; what runs is finished or handed back.
    Drain {
        /// Why.
        why: Requeue,
    },
    /// The last line of a journal: the worker ends in order and nothing of it runs.
    Bye {
        /// Why, for people.
        why: String,
    },
    /// The last line of a segment.
    Seal {
        /// The next segment's number.
        next: u64,
    },
}

/// The end of an attempt, with all that is known about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndLine {
    /// Which.
    pub a: AttemptId,
    /// Of which message.
    pub m: u64,
    /// How it ended.
    pub how: Outcome,
    /// Standard output, all of it.
    #[serde(default, skip_serializing_if = "Ref::is_empty")]
    pub out: Ref,
    /// Standard error, all of it.
    #[serde(default, skip_serializing_if = "Ref::is_empty")]
    pub err: Ref,
    /// Resource usage.
    #[serde(default, skip_serializing_if = "is_default")]
    pub usage: Usage,
    /// Milliseconds from start to end on the boot clock.
    #[serde(default)]
    pub ms: u64,
    /// Processes of the attempt that outlived it and were ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub leftovers: u32,
    /// Things a person should know, such as an output file that could not be published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Wall time of the start, milliseconds since 1970; 0 if it never ran.
    #[serde(default)]
    pub start_ms: u64,
    /// Wall time of the end, milliseconds since 1970.
    #[serde(default)]
    pub end_ms: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The program ended by itself or by a signal that fq did not send.
    Ran(Status),
    /// Ended at its time limit.
    Timeout(Status),
    /// Ended by the kernel for want of memory.
    Oom(Status),
    /// It could not be started.
    Setup(SetupFailure),
    /// Ended because a person cancelled it.
    Cancelled(Status),
    /// Ended without blame; to be run again.
    Requeue(Requeue),
    /// Refused by the worker and never started, for example because of a stranger's manifest.
    Refused(String),
}

/// Why an attempt is run again without blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requeue {
    /// The worker was told to end.
    Drained,
    /// The worker's own time is up.
    Walltime,
    /// The master took it back to give it to another worker.
    Withdrawn,
    /// A person cancelled it before it started.
    Cancelled,
    /// The worker could not write any more.
    Storage,
}

/// The token of an attempt: what `FQ_ATTEMPT_TOKEN` says in all of its processes, by which strays are recognised and ended.
pub fn attempt_token(queue: Nonce, w: &WorkerId, a: AttemptId) -> String {
    format!("{queue}.{w}.{a}")
}
