//! States of tasks, and what the end of an attempt means for its task (spec: lifecycle).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::record::{Outcome, Requeue};
use crate::process::{SetupFailure, Status, Step};

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Something that it depends on has not ended.
    Waiting,
    /// It could run now.
    Ready,
    /// An attempt was given to a worker and is not known to run.
    Issued,
    /// An attempt runs.
    Running,
    /// It ended with exit code 0.
    Done,
    /// It failed more often than its retries allow.
    Failed,
    /// A person ended it.
    Cancelled,
    /// fq ended it: something that it depends on failed.
    Aborted,
    /// It waits for a person.
    Held,
}

impl TaskState {
    /// All states, in the order in which they are shown.
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Ready,
        Self::Issued,
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Aborted,
        Self::Held,
    ];

    /// Whether the task has ended; only `fq retry` leaves such a state.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Aborted)
    }

    /// Whether an attempt is with a worker.
    pub fn is_out(self) -> bool {
        matches!(self, Self::Issued | Self::Running)
    }

    /// The word that people see; an issued task is `ready` until it is known to run.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready | Self::Issued => "ready",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Aborted => "aborted",
            Self::Held => "held",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What the end of an attempt means for its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// The task is done.
    Done,
    /// A failure, which counts against its retries.
    Failure,
    /// Perhaps the node's fault: to be tried elsewhere, up to a limit.
    Setup,
    /// To be run again without blame.
    Requeue,
    /// A person ended it.
    Cancelled,
    /// This worker does not run tasks of its owner.
    Refused,
}

/// Judges the end of an attempt (spec: lifecycle, "Counting").
pub fn charge(outcome: &Outcome) -> Charge {
    match outcome {
        Outcome::Ran(Status::Exit(0)) => Charge::Done,
        Outcome::Setup(failure) if may_be_the_nodes_fault(failure) => Charge::Setup,
        Outcome::Ran(_) | Outcome::Timeout(_) | Outcome::Oom(_) | Outcome::Setup(_) => Charge::Failure,
        Outcome::Cancelled(_) | Outcome::Requeue(Requeue::Cancelled) => Charge::Cancelled,
        Outcome::Requeue(_) => Charge::Requeue,
        Outcome::Refused(_) => Charge::Refused,
    }
}

/// What is wrong with the program itself is the user's mistake; a directory that was there at submit, a full process table and
/// whatever else a node's mounts may say may be this node's.
fn may_be_the_nodes_fault(failure: &SetupFailure) -> bool {
    match failure.step {
        Step::Env => false,
        Step::Exec => !matches!(
            failure.errno.as_str(),
            "ENOENT"
                | "ENOTDIR"
                | "EISDIR"
                | "EACCES"
                | "EPERM"
                | "ENOEXEC"
                | "ELIBBAD"
                | "ELOOP"
                | "ENAMETOOLONG"
                | "EINVAL"
                | "E2BIG"
        ),
        Step::Input | Step::Stdin | Step::Chdir | Step::Fork => true,
    }
}

/// The exit code by which `fq wait`, `fq exec` and `fq submit -W` pass an outcome on: the program's own, 128 + n for a signal,
/// 124 for a time-out, 126 or 127 for a program that could not be executed, 125 for another fault of set-up.
pub fn exit_code(outcome: &Outcome) -> i32 {
    let of = |status: &Status| match status {
        Status::Exit(code) => *code,
        Status::Signal(signal) => 128 + signal,
    };
    match outcome {
        Outcome::Ran(status) | Outcome::Oom(status) => of(status),
        Outcome::Timeout(_) => 124,
        Outcome::Setup(failure) if failure.step == Step::Exec && failure.errno == "ENOENT" => 127,
        Outcome::Setup(failure) if failure.step == Step::Exec => 126,
        Outcome::Setup(_) | Outcome::Refused(_) | Outcome::Requeue(_) => 125,
        Outcome::Cancelled(status) => match of(status) {
            0 => 143,
            code => code,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(step: Step, errno: &str) -> Outcome {
        Outcome::Setup(SetupFailure { step, errno: errno.into(), path: "x".into() })
    }

    #[test]
    fn a_missing_program_is_the_users_fault_and_a_missing_directory_may_be_the_nodes() {
        assert_eq!(charge(&setup(Step::Exec, "ENOENT")), Charge::Failure);
        assert_eq!(charge(&setup(Step::Exec, "EACCES")), Charge::Failure);
        // Whatever storage may answer.
        for errno in ["EIO", "ESTALE", "EDQUOT", "ENOSPC", "ETIMEDOUT", "ENOTCONN", "EKEYEXPIRED", "ETXTBSY"] {
            assert_eq!(charge(&setup(Step::Exec, errno)), Charge::Setup, "{errno}");
        }
        assert_eq!(charge(&setup(Step::Chdir, "ENOENT")), Charge::Setup);
        assert_eq!(charge(&setup(Step::Env, "E2BIG")), Charge::Failure);
    }

    #[test]
    fn walltime_and_drain_cost_nothing_and_time_outs_count() {
        assert_eq!(charge(&Outcome::Requeue(Requeue::Walltime)), Charge::Requeue);
        assert_eq!(charge(&Outcome::Requeue(Requeue::Drained)), Charge::Requeue);
        assert_eq!(charge(&Outcome::Timeout(Status::Signal(15))), Charge::Failure);
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(exit_code(&Outcome::Ran(Status::Exit(7))), 7);
        assert_eq!(exit_code(&Outcome::Ran(Status::Signal(9))), 137);
        assert_eq!(exit_code(&Outcome::Timeout(Status::Signal(15))), 124);
        assert_eq!(exit_code(&setup(Step::Exec, "ENOENT")), 127);
        assert_eq!(exit_code(&setup(Step::Exec, "EACCES")), 126);
    }
}
