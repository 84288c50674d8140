//! What a mount can really do: measures it, judges it, and says in plain words what follows.
//!
//! Invariants:
//! - Everything happens in a private directory that is removed afterwards; nothing of the queue is read or changed but that.
//! - Measuring and judging are apart: [`judge()`] is a pure function of [`Measurements`].
//! - A step that fails is reported as not measured; it never passes for good, and it does not hide the others.
//! - No step waits longer than its budget in [`Effort`], as long as the mount answers at all.

mod judge;
mod measure;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::clock::{Chance, Clock};
use crate::fs::{self, ErrorKind, Fs, FsError, HostFs, HostOptions, MountInfo};
use crate::protocol::id::Nonce;
use crate::protocol::layout;
use crate::protocol::record::{Durability, HeadStyle, Limits, QueueFile, to_document};

pub use judge::{judge, recommend};
pub use measure::{Alone, DirSync, Lag, LockAnswer, Pair, Race, SameTick, Spread};

use measure::Room;

/// What `fq doctor` found out about one host's mount. The shape of its JSON and of `probe/<host>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The version of this shape.
    pub schema: u32,
    /// The name of the host that measured.
    pub host: String,
    /// Wall time, milliseconds since 1970; for people.
    pub at_ms: u64,
    /// The directory, absolute.
    pub dir: PathBuf,
    /// The other mount of it, absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PathBuf>,
    /// The worst level among the findings.
    pub verdict: Level,
    /// What follows, the worst first.
    pub findings: Vec<Finding>,
    /// What to set.
    pub recommended: Recommended,
    /// What was measured.
    pub measured: Measurements,
}

/// One thing that was found, and what it means for the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What is the case.
    pub what: String,
    /// What follows from it; empty where nothing does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consequence: String,
}

/// How bad a finding is; a later one is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// The queue is right, but slower, or less comfortable, than it could be.
    Warn,
    /// Results could be lost or accepted twice.
    Unsafe,
}

/// Values that fit what was measured; only what differs from what the queue has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Recommended {
    /// Members to put in `limits.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_ms: Option<u64>,
    /// The lease that leaves room for the delay with which others see a sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// How the token should be named, which `fq init` decides once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_style: Option<HeadStyle>,
}

impl Recommended {
    /// Returns the members to change in `limits.json`, as text to paste; `None` if it can stay as it is.
    pub fn limits_text(&self) -> Option<String> {
        let member = |name: &str, value: Option<u64>| value.map(|ms| format!("\"{name}\": {ms}"));
        let members: Vec<_> =
            [member("visible_ms", self.visible_ms), member("lease_ms", self.lease_ms)].into_iter().flatten().collect();
        (!members.is_empty()).then(|| members.join(", "))
    }
}

/// All that [`judge()`] looks at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Measurements {
    /// What the mount says about itself.
    #[serde(serialize_with = "mount_members")]
    pub mount: MountInfo,
    /// What the queue was made for; `None` if the directory is no queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueFacts>,
    /// The limits that were compared with: the queue's, or the defaults.
    pub limits: Limits,
    /// Why nothing could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// Steps that failed, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// What this mount does by itself.
    pub alone: Alone,
    /// What two mounts see of each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<Pair>,
}

/// What a queue was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct QueueFacts {
    /// Whether writes are made durable.
    pub durability: Durability,
    /// How the token is named.
    pub head_style: HeadStyle,
}

/// Why nothing could be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// Whether it will pass (a full disk) or is meant so (read-only, permissions).
    pub is_passing: bool,
    /// The error.
    pub why: String,
}

fn mount_members<S: Serializer>(mount: &MountInfo, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Members<'a> {
        kind: String,
        fs_type: &'a str,
        source: &'a str,
        options: &'a [String],
        locks: &'a str,
    }
    let MountInfo { fs_type, source, options, kind } = mount;
    Members { kind: kind.to_string(), fs_type, source, options, locks: mount.locks_by_options() }.serialize(serializer)
}

/// How long and how often to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds of each race.
    pub rounds: u32,
    /// Samples of each rate and each delay.
    pub samples: u32,
    /// How long one step goes on at most, after which it makes do with the rounds or samples that it has.
    pub budget: Duration,
    /// How long something that must become visible is waited for.
    pub visible_limit: Duration,
    /// How long something is waited for that may never become visible.
    pub hidden_limit: Duration,
    /// How long a lock is waited for.
    pub lock_limit: Duration,
}

impl Default for Effort {
    /// A few seconds for one mount, and about a minute for two.
    fn default() -> Self {
        Self {
            rounds: 300,
            samples: 20,
            budget: Duration::from_secs(10),
            visible_limit: Duration::from_secs(70),
            hidden_limit: Duration::from_secs(3),
            lock_limit: Duration::from_secs(10),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// A queue directory, or one that could become one.
    pub dir: &'a Path,
    /// The same directory through another mount.
    pub peer: Option<&'a Path>,
    /// What the queue is; `None` if the directory is none.
    pub queue: Option<&'a QueueFile>,
    /// The limits to compare with.
    pub limits: &'a Limits,
    /// The name of this host.
    pub host: &'a str,
}

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeError {
    /// The directory cannot be opened.
    Open {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: FsError,
    },
    /// What was written in the one directory did not appear in the other.
    NotTheSame {
        /// The directory.
        dir: PathBuf,
        /// The one that was said to be another mount of it.
        peer: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { dir, .. } => write!(f, "cannot open the directory `{}`", dir.display()),
            Self::NotTheSame { dir, peer, waited } => write!(
                f,
                "`{}` is not another mount of `{}`: a file made in the latter was not listed in the former within {} s",
                peer.display(),
                dir.display(),
                waited.as_secs()
            ),
        }
    }
}

impl std::error::Error for ProbeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. } => Some(source),
            Self::NotTheSame { .. } => None,
        }
    }
}

/// Measures the mount of a directory, and with a peer what two mounts of it see of each other; then judges.
///
/// Makes a private directory and removes it again; a crash leaves it behind, under a hidden name. `progress` is told what comes
/// next. A directory that cannot be written is reported as such. Everything is synced, also where the queue does without.
///
/// Fails if a directory cannot be opened, or if the peer does not show what was written in the first.
pub fn examine(
    subject: &Subject<'_>,
    effort: &Effort,
    clock: &dyn Clock,
    chance: &dyn Chance,
    progress: &dyn Fn(&str),
) -> Result<Report, ProbeError> {
    let here = open(subject.dir, subject.queue)?;
    let there = subject.peer.map(|peer| open(peer, subject.queue)).transpose()?;
    let queue = subject.queue.map(|file| QueueFacts { durability: file.durability, head_style: file.head_style });
    let mut measured = Measurements {
        mount: here.mount().clone(),
        queue,
        limits: subject.limits.clone(),
        blocked: None,
        failed: Vec::new(),
        alone: Alone::default(),
        pair: None,
    };
    let dir = layout::probe_run(Nonce(chance.bits()), queue.is_some());
    match here.mkdir(&dir) {
        Ok(()) => {
            let room = Room { dir: &dir, effort, clock, chance, progress };
            let outcome = measure_all(&room, &here, there.as_ref(), &mut measured);
            remove_tree(&here, &dir);
            outcome?;
        }
        Err(error) => {
            let is_passing = !matches!(error.kind, ErrorKind::ReadOnly | ErrorKind::Denied);
            measured.blocked = Some(Blocked { is_passing, why: error.to_string() });
        }
    }
    let findings = judge(&measured);
    Ok(Report {
        schema: 1,
        host: subject.host.to_owned(),
        at_ms: clock.wall_ms(),
        dir: here.root().to_owned(),
        peer: there.as_ref().map(|fs| fs.root().to_owned()),
        verdict: findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok),
        findings,
        recommended: recommend(&measured),
        measured,
    })
}

/// Publishes `report` as `probe/<host>.json` of the queue, replacing an older one of the same host.
pub fn save(fs: &dyn Fs, chance: &dyn Chance, report: &Report) -> Result<PathBuf, FsError> {
    let path = layout::probe(&report.host);
    fs::publish(fs, chance, &path, &to_document(report), 0o644)?;
    Ok(path)
}

/// Opens a directory with all syncs on: what a queue without durability does not do can still be measured.
fn open(dir: &Path, queue: Option<&QueueFile>) -> Result<HostFs, ProbeError> {
    let options = HostOptions { durability: fs::Durability::Full, group: queue.and_then(|file| file.gid) };
    HostFs::open(dir, options).map_err(|source| ProbeError::Open { dir: dir.to_owned(), source })
}

fn measure_all(
    room: &Room<'_>,
    here: &HostFs,
    there: Option<&HostFs>,
    measured: &mut Measurements,
) -> Result<(), ProbeError> {
    if let Some(there) = there {
        (room.progress)("whether both are the same directory");
        // Listings of some mounts are 20 s old.
        let waited = room.effort.visible_limit.min(Duration::from_secs(30));
        if !measure::is_same_directory(room, here, there, waited) {
            let (dir, peer) = (here.root().to_owned(), there.root().to_owned());
            return Err(ProbeError::NotTheSame { dir, peer, waited });
        }
    }
    measured.alone = measure::alone(room, here, &mut measured.failed);
    measure::of_this_host(room, here, &mut measured.alone, &mut measured.failed);
    if let Some(there) = there {
        let mut pair = measure::pair(room, here, there, &mut measured.failed);
        pair.shares_caches = here.shares_caches_with(there);
        pair.mount_kind = there.mount().kind.to_string();
        measured.pair = Some(pair);
    }
    Ok(())
}

/// Removes a directory and all in it, as far as that works: leftovers under a hidden name harm nobody.
fn remove_tree(fs: &dyn Fs, dir: &Path) {
    for entry in fs.list(dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        match entry.kind {
            fs::EntryKind::Dir => remove_tree(fs, &path),
            fs::EntryKind::File | fs::EntryKind::Other => {
                let _ = fs.unlink(&path);
            }
        }
    }
    let _ = fs.rmdir(dir);
}

#[cfg(test)]
mod tests;
