//! What goes wrong, when and how often: single faults at chosen calls, and a plan drawn from the seed within a budget.

use std::time::Duration;

use crate::fs::Call;

use super::cluster::{HostId, ProcId};

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// It is executed, its reply is lost; what comes of it depends on the profile.
    LostReply,
    /// It is not executed and fails with this error number.
    Refused(i32),
    /// It is executed and fails with this error number all the same.
    Failed(i32),
    /// The process dies before it is sent.
    CrashBefore,
    /// The process dies after it was executed, before its reply.
    CrashAfter,
    /// As [`CallFault::CrashBefore`], for the whole host.
    HostCrashBefore,
    /// As [`CallFault::CrashAfter`], for the whole host.
    HostCrashAfter,
    /// The process dies at once, and the call is executed this long afterwards.
    LateAfterDeath(Duration),
    /// It takes this long.
    Slow(Duration),
    /// The process stops for this long when it is done.
    PauseAfter(Duration),
    /// A read shows zeros at its end, once.
    NulTail,
    /// A read shows fewer bytes than there are, once.
    ShortTail,
    /// A rename stops between its two halves, leaving both names; its process dies or is told of an error (`bricks` profiles;
    /// elsewhere it is done, and the process dies or is told of an error).
    HalfRename,
    /// The power of the server fails for this long once it is executed: what is not durable is lost.
    PowerAfter(Duration),
    /// It fails with `EIO`, and is executed this long afterwards (on a machine's own disk: it is executed, and fails).
    LateAfterError(Duration),
    /// A rename reports success and is not done: an old server took it for another call that it had answered before (where
    /// replies are no matter of a session; elsewhere its reply is lost).
    FalseDone,
}

impl CallFault {
    /// One of each kind, without what differs within a kind.
    pub fn kinds() -> [Self; 16] {
        [
            Self::LostReply,
            Self::Refused(libc::EIO),
            Self::Failed(libc::EIO),
            Self::CrashBefore,
            Self::CrashAfter,
            Self::HostCrashBefore,
            Self::HostCrashAfter,
            Self::LateAfterDeath(Duration::ZERO),
            Self::Slow(Duration::ZERO),
            Self::PauseAfter(Duration::ZERO),
            Self::NulTail,
            Self::ShortTail,
            Self::HalfRename,
            Self::PowerAfter(Duration::ZERO),
            Self::LateAfterError(Duration::ZERO),
            Self::FalseDone,
        ]
    }

    /// Its name, without its numbers.
    pub fn name(self) -> &'static str {
        match self {
            Self::LostReply => "LostReply",
            Self::Refused(_) => "Refused",
            Self::Failed(_) => "Failed",
            Self::CrashBefore => "CrashBefore",
            Self::CrashAfter => "CrashAfter",
            Self::HostCrashBefore => "HostCrashBefore",
            Self::HostCrashAfter => "HostCrashAfter",
            Self::LateAfterDeath(_) => "LateAfterDeath",
            Self::Slow(_) => "Slow",
            Self::PauseAfter(_) => "PauseAfter",
            Self::NulTail => "NulTail",
            Self::ShortTail => "ShortTail",
            Self::HalfRename => "HalfRename",
            Self::PowerAfter(_) => "PowerAfter",
            Self::LateAfterError(_) => "LateAfterError",
            Self::FalseDone => "FalseDone",
        }
    }
}

/// A fault that waits for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Armed {
    /// Only calls of this process.
    pub process: Option<ProcId>,
    /// Only calls of this kind.
    pub call: Option<Call>,
    /// Only calls whose path contains this text.
    pub path: String,
    /// Lets this many such calls pass first.
    pub skip: u32,
    /// What happens.
    pub fault: CallFault,
}

impl Armed {
    /// Makes `fault` hit the next call of any kind of any process.
    pub fn next(fault: CallFault) -> Self {
        Self { process: None, call: None, path: String::new(), skip: 0, fault }
    }

    /// Narrows it to one process.
    #[must_use]
    pub fn of(mut self, process: ProcId) -> Self {
        self.process = Some(process);
        self
    }

    /// Narrows it to one kind of call.
    #[must_use]
    pub fn at(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }

    /// Narrows it to paths that contain `text`.
    #[must_use]
    pub fn on(mut self, text: &str) -> Self {
        text.clone_into(&mut self.path);
        self
    }

    /// Lets `count` such calls pass first.
    #[must_use]
    pub fn after(mut self, count: u32) -> Self {
        self.skip = count;
        self
    }

    pub(super) fn matches(&self, process: u32, call: Call, path: &str) -> bool {
        self.process.is_none_or(|p| p.0 == process)
            && self.call.is_none_or(|c| c == call)
            && path.contains(&self.path)
            && self.fault.suits(call)
    }
}

impl CallFault {
    /// Whether the fault makes sense for this call at all.
    pub fn suits(self, call: Call) -> bool {
        match self {
            Self::NulTail | Self::ShortTail => call == Call::Read,
            Self::HalfRename | Self::FalseDone => call == Call::Rename,
            Self::LostReply | Self::LateAfterError(_) => {
                matches!(call, Call::Create | Call::Rename | Call::Unlink | Call::Mkdir | Call::Rmdir | Call::Sync)
            }
            Self::Refused(_) | Self::Failed(_) => !matches!(call, Call::Stat | Call::Lock),
            _ => true,
        }
    }
}

/// A fault that comes at its time, whatever is being called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Kills one process.
    Kill(ProcId),
    /// Stops one process for a span (`SIGSTOP`, `SIGCONT`).
    Pause(ProcId, Duration),
    /// Crashes a host, which boots again after a span.
    HostCrash(HostId, Duration),
    /// Suspends a host for a span.
    Suspend(HostId, Duration),
    /// Cuts a host off for a span.
    Partition(HostId, Duration),
    /// Restarts the server, which takes a span; nothing but replies is lost.
    ServerRestart(Duration),
    /// The power of the server fails for a span: what is not durable is lost.
    PowerLoss(Duration),
    /// The disk is full for a span.
    DiskFull(Duration),
    /// A host's wall clock jumps by so many milliseconds.
    WallJump(HostId, i64),
}

impl Fault {
    /// Its name, without what it hits.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill(_) => "Kill",
            Self::Pause(..) => "Pause",
            Self::HostCrash(..) => "HostCrash",
            Self::Suspend(..) => "Suspend",
            Self::Partition(..) => "Partition",
            Self::ServerRestart(_) => "ServerRestart",
            Self::PowerLoss(_) => "PowerLoss",
            Self::DiskFull(_) => "DiskFull",
            Self::WallJump(..) => "WallJump",
        }
    }
}

/// How many faults of each kind a plan holds at most; the plan draws a number from 0 to that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultBudget {
    /// All faults begin within this span from now.
    pub window: Duration,
    /// Crashes of a process at some call.
    pub crashes: u32,
    /// Processes that die with a call under way that is executed later.
    pub late_calls: u32,
    /// Lost replies.
    pub lost_replies: u32,
    /// Calls that fail once.
    pub errors: u32,
    /// Reads with a bad tail.
    pub bad_tails: u32,
    /// Calls that take up to `slow_max`.
    pub slow_calls: u32,
    /// Longest slow call.
    pub slow_max: Duration,
    /// Stops of a process.
    pub pauses: u32,
    /// Longest stop, suspend or partition; take more than a lease.
    pub pause_max: Duration,
    /// Suspended hosts.
    pub suspends: u32,
    /// Crashed hosts.
    pub host_crashes: u32,
    /// Partitions.
    pub partitions: u32,
    /// Server restarts.
    pub server_restarts: u32,
    /// Power losses of the server.
    pub power_losses: u32,
    /// Times of full disk.
    pub full_disks: u32,
    /// Jumps of a wall clock.
    pub wall_jumps: u32,
    /// Renames that stop half way.
    pub half_renames: u32,
    /// Power losses of the server right after a call was executed.
    pub powers_at_calls: u32,
    /// Calls that fail and are executed later.
    pub late_errors: u32,
    /// Renames that are reported and not done.
    pub false_dones: u32,
    /// Of a thousand faults of calls, how many another fault follows within some seconds: the power of the server fails, the
    /// host is cut off, or the process stops. What hurts most is seldom one thing alone.
    pub follow_ups: u64,
    /// Kinds of calls, and a text that their path contains, one of which most faults of calls are drawn to: what is called seldom
    /// would hardly be hit by chance.
    pub aims: &'static [(Call, &'static str)],
}

impl FaultBudget {
    /// No faults.
    pub fn none(window: Duration) -> Self {
        Self {
            window,
            crashes: 0,
            late_calls: 0,
            lost_replies: 0,
            errors: 0,
            bad_tails: 0,
            slow_calls: 0,
            slow_max: Duration::from_secs(20),
            pauses: 0,
            pause_max: Duration::from_secs(400),
            suspends: 0,
            host_crashes: 0,
            partitions: 0,
            server_restarts: 0,
            power_losses: 0,
            full_disks: 0,
            wall_jumps: 0,
            half_renames: 0,
            powers_at_calls: 0,
            late_errors: 0,
            false_dones: 0,
            follow_ups: 0,
            aims: &[],
        }
    }

    /// A little of everything.
    pub fn mixed(window: Duration) -> Self {
        Self {
            crashes: 3,
            late_calls: 2,
            lost_replies: 4,
            errors: 3,
            bad_tails: 3,
            slow_calls: 3,
            pauses: 3,
            suspends: 1,
            host_crashes: 1,
            partitions: 2,
            server_restarts: 1,
            power_losses: 1,
            full_disks: 1,
            wall_jumps: 2,
            half_renames: 2,
            powers_at_calls: 1,
            late_errors: 2,
            false_dones: 1,
            follow_ups: 150,
            ..Self::none(window)
        }
    }
}
