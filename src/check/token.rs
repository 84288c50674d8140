//! A token that is gone: which decision was the last, and how a new one is made.
//!
//! Invariants:
//! - A token name is never made twice: a rebuilt token has a name that is a function of the last decision, one number higher.
//! - No token is rebuilt while a master may live: while any beacon grows, or one look shows a token.
//! - Which decision is the last is decided by evidence of what was acted upon, and by a person where there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::inspect_segment;
use crate::clock::Chance;
use crate::decision::{self, Group, Look};
use crate::fs::{self, EntryKind, ErrorKind, Fs, FsError};
use crate::gc;
use crate::protocol::id::{DecisionId, Nonce, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{BeaconLine, HeadStyle, Header, Limits, Op};
use crate::queue;

/// Why it cannot be told which decision is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undecided {
    /// There is no whole decision.
    Nothing,
    /// This decision was acted upon, and its file is missing or damaged.
    Missing(DecisionId),
    /// Both were acted upon, but neither builds on the other.
    Contradiction(DecisionId, DecisionId),
    /// Each of these may have been bound, and nothing tells which.
    Several(Vec<DecisionId>),
}

/// Finds the decision that was bound last, from what is whole and what was acted upon.
///
/// `entries` are whole decisions with their predecessors. `evidence` are decisions that a beacon, a message or a claim names:
/// only bound ones are acted upon, and a decision is built only on a bound one. A single candidate above the last of these may
/// have been bound and is taken, which is right either way: it is a legal successor of a state that nobody has left.
pub fn choose(
    entries: &BTreeMap<DecisionId, Option<DecisionId>>,
    evidence: &BTreeSet<DecisionId>,
) -> Result<DecisionId, Undecided> {
    let mut bound: BTreeSet<DecisionId> = entries.values().flatten().copied().collect();
    bound.extend(evidence);
    let Some(top) = bound.last().copied().or_else(|| entries.keys().next().copied()) else {
        return Err(Undecided::Nothing);
    };
    if let Some(other) = bound.iter().rev().nth(1).filter(|id| id.generation == top.generation) {
        return Err(Undecided::Contradiction(*other, top));
    }
    if !entries.contains_key(&top) {
        return Err(Undecided::Missing(top));
    }
    let children: Vec<DecisionId> = entries.iter().filter(|(_, prev)| **prev == Some(top)).map(|(id, _)| *id).collect();
    let last = match children[..] {
        [] => top,
        [child] => child,
        _ => return Err(Undecided::Several(children)),
    };
    let mut line = BTreeSet::new();
    let mut at = Some(last);
    while let Some(id) = at.filter(|id| line.insert(*id)) {
        at = entries.get(&id).copied().flatten();
    }
    let lowest = line.first().map_or(0, |id| id.generation);
    match bound.iter().find(|id| id.generation >= lowest && !line.contains(id)) {
        Some(stranger) => Err(Undecided::Contradiction(*stranger, last)),
        None => Ok(last),
    }
}

/// The decision that a rebuilt token is named after: empty, on top of `last`, and the same whoever rebuilds it.
pub fn successor(last: &Group) -> Header {
    let digest = last.sha.to_string();
    let nonce: Nonce = digest[..16].parse().expect("16 hexadecimal digits");
    let made_known = last.ops.iter().rev().find_map(|op| match op {
        Op::Snapshot(snapshot) => Some(*snapshot),
        _ => None,
    });
    Header {
        fq: "decision".into(),
        version: last.header.version,
        id: DecisionId { generation: last.header.id.generation + 1, nonce },
        prev: Some(last.header.id),
        prev_sha: Some(last.sha),
        snapshot: made_known.or(last.header.snapshot),
        term: last.header.term,
        by: WorkerId::new("fsck", nonce),
        at_ms: last.header.at_ms,
    }
}

/// A token cannot be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebuildError {
    /// A beacon grows: a master lives and will move its token itself, or end with an error.
    MasterLives(String),
    /// There is a token after all.
    NotLost,
    /// It cannot be told after which decision to name it.
    Undecided(Undecided),
    /// A file operation failed.
    Fs(FsError),
}

impl fmt::Display for RebuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot rebuild the token: ")?;
        match self {
            Self::MasterLives(beacon) => write!(f, "a master still writes `{beacon}`; stop it first"),
            Self::NotLost => f.write_str("it is there after all; nothing was changed"),
            Self::Undecided(Undecided::Nothing) => f.write_str("there is no whole decision"),
            Self::Undecided(Undecided::Missing(id)) => {
                write!(f, "decision `{id}` was acted upon, but its file is missing or damaged")
            }
            Self::Undecided(Undecided::Contradiction(a, b)) => {
                write!(f, "decisions `{a}` and `{b}` were both acted upon, but neither builds on the other")
            }
            Self::Undecided(Undecided::Several(ids)) => {
                let names: Vec<String> = ids.iter().map(|id| format!("`{id}`")).collect();
                write!(f, "each of {} may be the last decision, and nothing tells which", names.join(", "))
            }
            Self::Fs(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RebuildError {}

impl From<FsError> for RebuildError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

/// Makes a new token where there is none; returns its name.
///
/// `last` is a person's answer to which decision is the last one, where evidence does not tell. `wait` lets time pass: long
/// enough to see a living master's beacon grow and a token that was only late.
pub fn rebuild(
    fs: &dyn Fs,
    chance: &dyn Chance,
    last: Option<DecisionId>,
    wait: &mut dyn FnMut(Duration),
) -> Result<DecisionId, RebuildError> {
    let limits = queue::read_limits(fs, Path::new(".")).unwrap_or_default();
    let before = beacons(fs)?;
    decision::nudge(fs, chance, layout::HEAD.as_ref())?;
    wait(patience(&limits));
    for (name, beacon) in beacons(fs)? {
        if before.get(&name).is_none_or(|old| old.len != beacon.len) {
            return Err(RebuildError::MasterLives(name));
        }
    }
    if decision::look(fs)? != Look::None {
        return Err(RebuildError::NotLost);
    }
    let groups = whole_groups(fs)?;
    let chosen = if let Some(last) = last {
        last
    } else {
        let entries = groups.iter().map(|(id, group)| (*id, group.header.prev)).collect();
        choose(&entries, &evidence(fs)?).map_err(RebuildError::Undecided)?
    };
    let Some(group) = groups.get(&chosen) else {
        return Err(RebuildError::Undecided(Undecided::Missing(chosen)));
    };
    let header = successor(group);
    let style = queue::read_file(fs, Path::new(".")).map_or(HeadStyle::Plain, |file| file.head_style);
    make(fs, chance, &header, style)?;
    Ok(header.id)
}

/// How long a beacon has to stay still and a token to stay unseen.
fn patience(limits: &Limits) -> Duration {
    Duration::from_millis(limits.visible_ms.max(limits.takeover_ms).max(3 * limits.beat_ms))
}

/// Writes the decision, then the token. Two who do it at once write the same bytes and make one token.
fn make(fs: &dyn Fs, chance: &dyn Chance, header: &Header, style: HeadStyle) -> Result<(), FsError> {
    let bucket = layout::decision_bucket(header.id.generation);
    match fs.mkdir(&bucket) {
        Err(error) if error.kind != ErrorKind::Exists => return Err(error),
        _ => {}
    }
    fs.sync_dir(Path::new(layout::LOG))?;
    fs::publish(fs, chance, &layout::decision(header.id), &decision::encode_group(header, &[]), 0o664)?;
    match fs::put_new(fs, &layout::head(header.id, style), queue::TOKEN, 0o644) {
        Err(error) if error.kind == ErrorKind::Exists => Ok(()),
        outcome => outcome,
    }
}

fn whole_groups(fs: &dyn Fs) -> Result<BTreeMap<DecisionId, Group>, FsError> {
    let mut groups = BTreeMap::new();
    for id in gc::list_decisions(fs, &mut || {})? {
        match fs::read_all(fs, &layout::decision(id)) {
            Ok(bytes) => {
                let group = decision::decode_group(&bytes).ok().filter(|group| group.header.id == id);
                groups.extend(group.map(|group| (id, group)));
            }
            Err(error) if error.not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(groups)
}

struct Beacon {
    len: u64,
    head: Option<DecisionId>,
    lead: DecisionId,
}

fn beacons(fs: &dyn Fs) -> Result<BTreeMap<String, Beacon>, FsError> {
    let mut found = BTreeMap::new();
    for entry in fs.list(Path::new(layout::BEACONS))? {
        let Some((_, lead)) = layout::parse_beacon(&entry.name) else { continue };
        let bytes = match fs::read_all(fs, &Path::new(layout::BEACONS).join(&entry.name)) {
            Ok(bytes) => bytes,
            Err(error) if error.not_found() => continue,
            Err(error) => return Err(error),
        };
        let lines = bytes.split_inclusive(|&b| b == b'\n').rev();
        let head = lines.filter_map(|line| serde_json::from_slice::<BeaconLine>(line).ok()).map(|b| b.head).next();
        found.insert(entry.name, Beacon { len: bytes.len() as u64, head, lead });
    }
    Ok(found)
}

/// All decisions that were certainly bound, because something in the queue was done on the strength of them.
fn evidence(fs: &dyn Fs) -> Result<BTreeSet<DecisionId>, FsError> {
    let mut found = BTreeSet::new();
    for beacon in beacons(fs)?.into_values() {
        found.insert(beacon.lead);
        found.extend(beacon.head);
    }
    for entry in fs.list(Path::new(layout::WORKERS))? {
        let Ok(wid) = entry.name.parse::<WorkerId>() else { continue };
        let mail = list_if_there(fs, &layout::mailbox(&wid))?;
        found.extend(mail.iter().filter_map(|e| layout::parse_message(&e.name)).map(|(_, by)| by));
    }
    for entry in fs.list(Path::new(layout::JOURNALS))? {
        let dir = Path::new(layout::JOURNALS).join(&entry.name);
        for segment in list_if_there(fs, &dir)? {
            if segment.kind == EntryKind::File {
                found.extend(inspect_segment(&fs::read_all(fs, &dir.join(&segment.name))?, 0).acted_on);
            }
        }
    }
    let trash = fs.list(Path::new(layout::TRASH))?;
    for by in trash.iter().filter_map(|e| e.name.parse::<DecisionId>().ok()) {
        // The directory alone is made before its decision is bound; a file in it comes after.
        if !list_if_there(fs, &layout::trash(by))?.is_empty() {
            found.insert(by);
        }
    }
    Ok(found)
}

fn list_if_there(fs: &dyn Fs, dir: &Path) -> Result<Vec<fs::Entry>, FsError> {
    match fs.list(dir) {
        Err(error) if error.not_found() => Ok(Vec::new()),
        outcome => outcome,
    }
}
