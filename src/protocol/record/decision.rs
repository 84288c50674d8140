//! Decision groups, the operations in them, and the messages that they send.

use serde::{Deserialize, Serialize};

use super::{Action, Limits, LockVerdict, Needs, Outcome, Requeue, Trust, is_default};
use crate::process::Identity;
use crate::protocol::digest::Digest;
use crate::protocol::id::{AttemptId, DecisionId, JobId, Nonce, Ranges, WorkerId};
use crate::protocol::version::FormatVersion;

/// The first line of a decision group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Always `decision`.
    pub fq: String,
    /// The format version of its writer.
    pub version: FormatVersion,
    /// Its own name.
    pub id: DecisionId,
    /// The decision before; `None` for the first one of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<DecisionId>,
    /// The digest of the whole file of the decision before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_sha: Option<Digest>,
    /// The newest snapshot that a decision before this one made known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotRef>,
    /// The term of the master that wrote it.
    pub term: u64,
    /// That master.
    pub by: WorkerId,
    /// Wall time, milliseconds since 1970.
    pub at_ms: u64,
}

/// A snapshot of the state right after a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRef {
    /// The decision.
    pub at: DecisionId,
    /// The digest of the snapshot's file.
    pub sha: Digest,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Op {
    /// From here on this master leads.
    Lead {
        /// One more than the term before.
        term: u64,
        /// Who.
        master: WorkerId,
        /// Its process.
        identity: Identity,
    },
    /// The master of the current term leads no more; anybody may at once.
    Abdicate,
    /// These limits are in force.
    Limits {
        /// All of them.
        limits: Limits,
    },
    /// A submission becomes a job.
    Ingest(Box<Ingest>),
    /// This number is another name of a job taken in before (same submission or same key).
    Alias {
        /// The number.
        job: JobId,
        /// The job.
        of: JobId,
    },
    /// What is bound under this number is no job that can be run.
    Reject {
        /// The number.
        job: JobId,
        /// Why.
        why: String,
    },
    /// A worker may get work.
    Admit(Box<Admit>),
    /// A message is sent.
    Send {
        /// To whom.
        w: WorkerId,
        /// Its number, from 1, without gaps.
        m: u64,
        /// Its content.
        msg: Message,
    },
    /// A worker's journal was read up to `seq`.
    Read {
        /// Whose.
        w: WorkerId,
        /// The last line taken into account.
        seq: u64,
        /// What was found, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        seen: Vec<Seen>,
    },
    /// A worker incarnation is over; nothing of it is accepted after this.
    Gone {
        /// Whose.
        w: WorkerId,
        /// How.
        how: Departure,
        /// What it rests on, for people.
        why: String,
    },
    /// A request was answered.
    Answer {
        /// The request.
        id: Nonce,
        /// What it asked.
        action: Action,
        /// The owner of its file.
        uid: u32,
    },
    /// Files of answered requests are gone; their ids are forgotten.
    Forget {
        /// The requests.
        ids: Vec<Nonce>,
    },
    /// A snapshot exists and is verified.
    Snapshot(SnapshotRef),
    /// Objects and packs go to the trash directory named after this decision.
    Quarantine {
        /// File names: digests of loose objects, names of packs.
        files: Vec<String>,
    },
    /// The trash directory of an earlier decision is emptied for good.
    Purge {
        /// That decision.
        by: DecisionId,
    },
    /// Jobs that ended long ago are forgotten, and workers that nothing refers to.
    Prune {
        /// Which jobs.
        jobs: Ranges,
        /// Which workers: their incarnations are over and their namespaces are gone, so that nobody can meet them again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        workers: Vec<WorkerId>,
    },
}

/// A submission becomes a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingest {
    /// Its number.
    pub job: JobId,
    /// The submission's nonce.
    pub sub: Nonce,
    /// The digest of the manifest's file.
    pub sha: Digest,
    /// The owner of the manifest's file.
    pub uid: u32,
    /// Its name.
    pub name: String,
    /// The indices of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<Ranges>,
    /// When and where its tasks run.
    pub needs: Needs,
    /// Wall time of the submission, milliseconds since 1970.
    pub at_ms: u64,
}

/// A worker may get work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admit {
    /// Who.
    pub w: WorkerId,
    /// The process that runs tasks.
    pub worker: Identity,
    /// The process that watches over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<Identity>,
    /// CPUs.
    pub cpus: u32,
    /// Memory in bytes; 0 if it does not say.
    pub mem: u64,
    /// Its own self-fence time.
    pub self_fence_ms: u64,
    /// Whether it holds its lock.
    pub lock: LockVerdict,
    /// Whose tasks it runs.
    pub trust: Trust,
}

/// A message to a worker: the content of `in/000017.<decision>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// A bundle: run these.
    Run(Vec<RunItem>),
    /// Do not start these; end those that run if `kill` says so.
    Withdraw {
        /// Which.
        attempts: Vec<AttemptId>,
        /// Whether running ones are ended, as cancelled.
        kill: bool,
    },
    /// Finish what runs, take nothing more, end.
    Drain,
    /// This incarnation is over: end what runs, write nothing more.
    Fence,
}

/// Tasks of one job that are issued with the same attempt number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunItem {
    /// The job.
    pub job: JobId,
    /// The digest of its manifest's file.
    pub sha: Digest,
    /// The owner of its manifest's file.
    pub uid: u32,
    /// The indices of an array's tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Ranges>,
    /// The attempt number.
    pub attempt: u32,
}

impl RunItem {
    /// The attempts that the item issues, in order.
    pub fn attempts(&self) -> Vec<AttemptId> {
        let one =
            |index| AttemptId { task: crate::protocol::id::TaskId { job: self.job, index }, number: self.attempt };
        match &self.tasks {
            None => vec![one(None)],
            Some(set) => set.iter().map(|i| one(Some(i))).collect(),
        }
    }
}

/// A message as it lies in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// Always `mail`.
    pub fq: String,
    /// The format version of its writer.
    pub version: FormatVersion,
    /// To whom.
    pub w: WorkerId,
    /// Its number.
    pub m: u64,
    /// The decision that issued it.
    pub by: DecisionId,
    /// Its content.
    pub msg: Message,
}

/// Something in a worker's journal that changes the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
    /// A message was taken.
    Got(u64),
    /// These attempts run.
    Started(Vec<AttemptId>),
    /// An attempt has ended.
    Ended(Ended),
    /// These attempts never started.
    Released(Vec<AttemptId>, Requeue),
    /// No new work, for this reason.
    Paused(String),
    /// New work is welcome again.
    Resumed,
    /// No new work any more.
    Draining,
}

/// An accepted end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Which.
    pub a: AttemptId,
    /// The journal line that has the rest.
    pub line: u64,
    /// How.
    pub how: Outcome,
    /// Milliseconds that it ran.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ms: u64,
}

/// How a worker incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Departure {
    /// In order, with `BYE`.
    Left,
    /// Declared lost.
    Lost,
    /// Its journal names decisions that are not on the chain.
    Refused,
}
