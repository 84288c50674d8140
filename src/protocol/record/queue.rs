//! `FQ` and `limits.json`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::is_default;
use crate::protocol::id::{DecisionId, Nonce};
use crate::protocol::version::FormatVersion;

/// The file `FQ`: what kind of queue this is. Written last by `fq init`, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueFile {
    /// Always `queue`.
    pub fq: String,
    /// The format version.
    pub version: FormatVersion,
    /// Features beyond the version that a program has to know to touch the queue.
    #[serde(default)]
    pub features: Vec<String>,
    /// The queue's own id, part of every worker's view of which queue it serves.
    pub id: Nonce,
    /// Whether writes are made durable.
    pub durability: Durability,
    /// How the token is named.
    #[serde(default)]
    pub head_style: HeadStyle,
    /// The first decision, which `init` made; the token's first name.
    pub first: DecisionId,
    /// The user who made the queue.
    pub uid: u32,
    /// The group that shares the queue, if it was made with `--group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Wall time of its making, milliseconds since 1970; for people.
    pub at_ms: u64,
}

/// Whether writes are made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// What is acted upon survives a power loss.
    #[default]
    Full,
    /// Nothing is synced; a crash of the machine may lose or damage the queue.
    None,
}

/// How the token is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadStyle {
    /// `101.<nonce>`.
    #[default]
    Plain,
    /// `.head.101-<nonce>`, which keeps a rename on `GlusterFS` in one step.
    Dotted,
}

/// The file `limits.json` and the limits in force (spec: leases, "Parameters"). Times in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// From one heartbeat of a worker or master to the next.
    pub beat_ms: u64,
    /// A worker that could not make a beat durable for so long ends its tasks and itself.
    pub self_fence_ms: u64,
    /// From TERM to KILL when a task is ended.
    pub grace_ms: u64,
    /// Silence after which a worker gets no new work.
    pub suspect_ms: u64,
    /// Silence after which a worker is declared lost.
    pub lease_ms: u64,
    /// Silence after which another process leads.
    pub takeover_ms: u64,
    /// The longest look at the mount that still shows something old.
    pub visible_ms: u64,
    /// From one look to the next where nothing wakes earlier and something is expected.
    pub poll_ms: u64,
    /// The same after some time without news.
    pub idle_poll_ms: u64,
    /// Losses of its worker after which a task is held.
    pub crash_limit: u32,
    /// Set-up failures that may be the node's fault before a task fails, and in a row before a worker is quarantined.
    pub setup_limit: u32,
    /// First and longest wait before a retry; doubled each time.
    pub backoff_ms: (u64, u64),
    /// File-system calls a second of a master, at most.
    pub calls_per_s: u32,
    /// Values up to this size stand in the journal itself.
    pub inline_max: u64,
    /// Values up to this size go to packs, larger ones are loose objects.
    pub pack_item_max: u64,
    /// A pack is closed at this size.
    pub pack_max: u64,
    /// A journal segment is closed at this size.
    pub segment_max: u64,
    /// A snapshot is made after so many decisions.
    pub snapshot_every: u64,
    /// From the first to the second inventory of `fq gc`, and from quarantine to removal.
    pub gc_wait_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            beat_ms: 15_000,
            self_fence_ms: 120_000,
            grace_ms: 10_000,
            suspect_ms: 60_000,
            lease_ms: 300_000,
            takeover_ms: 90_000,
            visible_ms: 90_000,
            poll_ms: 1_000,
            idle_poll_ms: 15_000,
            crash_limit: 5,
            setup_limit: 3,
            backoff_ms: (1_000, 60_000),
            calls_per_s: 200,
            inline_max: 4096,
            pack_item_max: 8 << 20,
            pack_max: 256 << 20,
            segment_max: 8 << 20,
            snapshot_every: 200,
            gc_wait_ms: 86_400_000,
        }
    }
}

/// Limits that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLimits(pub String);

impl std::fmt::Display for BadLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadLimits {}

impl Limits {
    /// Checks that a worker has ended its tasks before anyone may issue them again (spec: leases, "The constraint").
    pub fn check(&self) -> Result<(), BadLimits> {
        let bad = |why: String| Err(BadLimits(why));
        let needed = self.self_fence_ms + self.grace_ms + self.self_fence_ms / 50;
        if self.lease_ms < needed {
            return bad(format!(
                "`lease_ms` is {}, which is shorter than self-fence, grace and 2 % for clocks together ({needed})",
                self.lease_ms
            ));
        }
        if self.beat_ms * 3 > self.self_fence_ms || self.beat_ms == 0 {
            return bad(format!(
                "`beat_ms` is {}, expected 1 to a third of `self_fence_ms` ({})",
                self.beat_ms, self.self_fence_ms
            ));
        }
        if self.beat_ms * 2 > self.takeover_ms || self.beat_ms * 2 > self.suspect_ms {
            return bad(format!("`beat_ms` is {}, more than half of `takeover_ms` or `suspect_ms`", self.beat_ms));
        }
        if self.poll_ms == 0 || self.idle_poll_ms < self.poll_ms || self.snapshot_every == 0 || self.calls_per_s == 0 {
            return bad(
                "`poll_ms`, `snapshot_every` and `calls_per_s` are at least 1, `idle_poll_ms` at least `poll_ms`"
                    .into(),
            );
        }
        if self.inline_max > 65_536 || self.inline_max > self.pack_item_max || self.pack_item_max > self.pack_max {
            return bad("expected `inline_max` up to 65536, `inline_max` <= `pack_item_max` <= `pack_max`".into());
        }
        Ok(())
    }

    /// A value in milliseconds as a span.
    pub fn span(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }
}

/// The last line that a master wrote to its beacon; the counter is the sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeaconLine {
    /// Grows by one.
    pub beat: u64,
    /// The newest settled decision that the master knows.
    pub head: DecisionId,
    /// Why the master cannot work at the moment, such as a full disk.
    #[serde(default, skip_serializing_if = "is_default")]
    pub trouble: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_limits_hold_together() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_lease_shorter_than_the_self_fence_is_refused() {
        let limits = Limits { lease_ms: 120_000, ..Limits::default() };
        assert!(limits.check().is_err());
    }

    #[test]
    fn members_that_are_not_in_the_file_have_their_defaults() {
        let limits: Limits = serde_json::from_str("{\"lease_ms\":400000,\"unknown\":1}").unwrap_or_default();
        assert_eq!(limits, Limits { lease_ms: 400_000, ..Limits::default() });
    }
}
