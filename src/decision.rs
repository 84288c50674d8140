//! The decision log: election, commit and fencing in one (spec: ordering, "Commit"; invariants H1 to H6 there).
//!
//! A decision group is a file `decisions/log/NNN/<g>.<nonce>.jsonl`; the newest one is the one that the single token in
//! `decisions/head` is named after. Committing is a compare-and-swap: renaming the token from the exact predecessor.
//!
//! Invariants:
//! - A group is durable and complete before the token is named after it.
//! - A head counts only where a fresh listing shows it alone. What a call returned decides nothing.
//! - A candidate is *in doubt* from its rename until a listing proves it won or lost. Meanwhile only the same rename is tried
//!   again, nothing else is committed, and the candidate is never removed.
//! - Token names are never used twice and never unlinked; strays are renamed aside.
//! - A head lower than one already seen is a roll-back: it is moved forward again by the process whose predecessor it exactly
//!   is, and otherwise an error.

use std::collections::BTreeMap;
use std::fmt;

use crate::clock::Chance;
use crate::fs::{self, ErrorKind, Fs, FsError};
use crate::protocol::digest::Digest;
use crate::protocol::frame;
use crate::protocol::id::{DecisionId, Nonce};
use crate::protocol::layout;
use crate::protocol::record::{BadRecord, HeadStyle, Header, Op, QueueFile, SnapshotRef, to_line};
use crate::state::{State, decode_snapshot, encode_snapshot};

/// The mode of files that everyone who works on the queue reads.
const MODE: u32 = 0o664;

/// A decision group as read.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Its first line.
    pub header: Header,
    /// Its operations.
    pub ops: Vec<Op>,
    /// The digest of its whole file.
    pub sha: Digest,
}

/// Encodes a group as it lies on disk.
pub fn encode_group(header: &Header, ops: &[Op]) -> Vec<u8> {
    let mut bytes = to_line(header);
    for op in ops {
        bytes.extend(to_line(op));
    }
    frame::close_document(bytes)
}

/// Decodes a group.
pub fn decode_group(bytes: &[u8]) -> Result<Group, BadRecord> {
    let malformed = |e: serde_json::Error| BadRecord::Malformed(e.to_string());
    let body = frame::open_document(bytes).ok_or(BadRecord::Torn)?;
    let mut lines = body.split_inclusive(|&b| b == b'\n');
    let header = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(malformed)?;
    let ops = lines.map(|line| serde_json::from_slice(line).map_err(malformed)).collect::<Result<_, _>>()?;
    Ok(Group { header, ops, sha: Digest::of(bytes) })
}

/// Why the chain cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainError {
    /// A file operation failed.
    Fs(FsError),
    /// The listing of `decisions/head` shows no token. For a moment this is possible while it moves.
    NoHead,
    /// It shows several. For a moment this is possible while it moves.
    Several(Vec<String>),
    /// The head or its ancestor is not there, or not whole. For a moment this is possible after a commit elsewhere.
    Missing {
        /// The decision.
        id: DecisionId,
        /// What is wrong with its file.
        why: String,
    },
    /// The chain contradicts itself.
    Broken {
        /// The decision.
        id: DecisionId,
        /// How.
        why: String,
    },
    /// The head is lower than one that this process has seen.
    RolledBack {
        /// The highest that was seen.
        seen: DecisionId,
        /// What is there now.
        now: DecisionId,
    },
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fs(e) => e.fmt(f),
            Self::NoHead => write!(f, "`{}` is empty: the token that names the newest decision is gone", layout::HEAD),
            Self::Several(names) => {
                write!(
                    f,
                    "`{}` has several tokens ({}): two copies of the queue were merged",
                    layout::HEAD,
                    names.join(", ")
                )
            }
            Self::Missing { id, why } => write!(f, "decision {id} cannot be read: {why}"),
            Self::Broken { id, why } => write!(f, "the decisions contradict each other at {id}: {why}"),
            Self::RolledBack { seen, now } => write!(
                f,
                "the newest decision was {seen} and is {now} now: the file system went back to an older state"
            ),
        }
    }
}

impl std::error::Error for ChainError {}

impl From<FsError> for ChainError {
    fn from(e: FsError) -> Self {
        Self::Fs(e)
    }
}

impl ChainError {
    /// Whether looking again later may help by itself. The others need a person.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::Broken { .. } | Self::RolledBack { .. })
    }
}

/// What a fresh listing of `decisions/head` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// No token.
    None,
    /// One, alone.
    Alone(DecisionId),
    /// More than one: names and what they stand for.
    Several(Vec<(String, DecisionId)>),
}

/// Lists `decisions/head` afresh.
pub fn look(fs: &dyn Fs) -> Result<Look, FsError> {
    let names = fs.list(layout::HEAD.as_ref())?;
    let mut tokens: Vec<_> =
        names.into_iter().filter_map(|e| layout::parse_head(&e.name).map(|id| (e.name, id))).collect();
    tokens.sort();
    Ok(match tokens.as_slice() {
        [] => Look::None,
        [(_, id)] => Look::Alone(*id),
        _ => Look::Several(tokens),
    })
}

/// Looks a few times for a token that is alone, since a listing may fall into the middle of a move.
fn look_for_one(fs: &dyn Fs) -> Result<DecisionId, ChainError> {
    let mut last = ChainError::NoHead;
    for _ in 0..5 {
        match look(fs)? {
            Look::Alone(id) => return Ok(id),
            Look::None => last = ChainError::NoHead,
            Look::Several(tokens) => last = ChainError::Several(tokens.into_iter().map(|t| t.0).collect()),
        }
    }
    Err(last)
}

/// Makes and removes a file in `dir`, so that hosts which missed a change within one tick of the server's clock see it.
pub fn nudge(fs: &dyn Fs, chance: &dyn Chance, dir: &str) -> Result<(), FsError> {
    let path = layout::nudge(dir.as_ref(), Nonce(chance.bits()));
    fs.create(&path, MODE)?.close()?;
    fs.unlink(&path)
}

fn read_group(fs: &dyn Fs, id: DecisionId, expected: Option<Digest>) -> Result<Group, ChainError> {
    let missing = |why: String| ChainError::Missing { id, why };
    let bytes = match fs::read_all(fs, &layout::decision(id)) {
        Ok(bytes) => bytes,
        Err(e) if e.not_found() => return Err(missing(e.to_string())),
        Err(e) => return Err(e.into()),
    };
    let group = match decode_group(&bytes) {
        Ok(group) => group,
        Err(BadRecord::Torn) => return Err(missing(BadRecord::Torn.to_string())),
        Err(e) => return Err(ChainError::Broken { id, why: e.to_string() }),
    };
    if group.header.id != id || expected.is_some_and(|sha| sha != group.sha) {
        return Err(ChainError::Broken { id, why: "its file is not the one that its successor names".into() });
    }
    Ok(group)
}

/// Follows the chain: keeps the state at the newest decision that was seen.
#[derive(Debug, Clone)]
pub struct Reader {
    state: State,
    /// The digest of the file of `state.at`.
    sha: Digest,
    /// The `at_ms` of the newest decision's header.
    at_ms: u64,
}

impl Reader {
    /// Reads the newest state: head, newest snapshot, and what follows it.
    pub fn open(fs: &dyn Fs) -> Result<Self, ChainError> {
        let head = look_for_one(fs)?;
        Self::load(fs, head)
    }

    fn load(fs: &dyn Fs, head: DecisionId) -> Result<Self, ChainError> {
        let mut groups: Vec<Group> = Vec::new();
        let mut snapshots: BTreeMap<DecisionId, Digest> = BTreeMap::new();
        let mut at = head;
        let mut expected = None;
        let mut state = loop {
            let snapshot = snapshots.get(&at).and_then(|sha| read_snapshot(fs, SnapshotRef { at, sha: *sha }));
            if let Some(state) = snapshot {
                break state;
            }
            let group = read_group(fs, at, expected)?;
            snapshots.extend(group.header.snapshot.map(|s| (s.at, s.sha)));
            let (prev, prev_sha) = (group.header.prev, group.header.prev_sha);
            groups.push(group);
            let Some(prev) = prev else { break State::new(at) };
            if prev.generation + 1 != at.generation {
                return Err(ChainError::Broken { id: at, why: format!("it names {prev} as its predecessor") });
            }
            (at, expected) = (prev, prev_sha);
        };
        let last = match groups.first() {
            Some(group) => (group.sha, group.header.at_ms),
            // The head itself is the snapshot's decision: its file is needed for its digest.
            None => read_group(fs, head, None).map(|group| (group.sha, group.header.at_ms))?,
        };
        for group in groups.iter().rev() {
            apply(&mut state, group)?;
        }
        Ok(Self { state, sha: last.0, at_ms: last.1 })
    }

    /// Looks for newer decisions and applies them; says whether there were any.
    ///
    /// Where the decisions between were pruned, or this reader followed a line that was never bound, everything is read anew.
    pub fn refresh(&mut self, fs: &dyn Fs) -> Result<bool, ChainError> {
        let head = look_for_one(fs)?;
        self.catch_up(fs, head)
    }

    fn catch_up(&mut self, fs: &dyn Fs, head: DecisionId) -> Result<bool, ChainError> {
        let known = self.state.at;
        if head == known {
            return Ok(false);
        }
        if head.generation <= known.generation {
            return Err(ChainError::RolledBack { seen: known, now: head });
        }
        let mut groups = Vec::new();
        let (mut at, mut expected) = (head, None);
        while at.generation > known.generation {
            let group = match read_group(fs, at, expected) {
                Ok(group) => group,
                Err(ChainError::Missing { .. }) if !groups.is_empty() => {
                    *self = Self::load(fs, head)?;
                    return Ok(true);
                }
                Err(e) => return Err(e),
            };
            let Some(prev) = group.header.prev else {
                return Err(ChainError::Broken { id: at, why: "it names no predecessor".into() });
            };
            (at, expected) = (prev, group.header.prev_sha);
            groups.push(group);
        }
        if at != known || expected != Some(self.sha) {
            return Err(ChainError::RolledBack { seen: known, now: head });
        }
        for group in groups.iter().rev() {
            apply(&mut self.state, group)?;
        }
        if let Some(newest) = groups.first() {
            (self.sha, self.at_ms) = (newest.sha, newest.header.at_ms);
        }
        Ok(true)
    }

    /// The state at the newest decision that was seen.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The wall time of the newest decision, milliseconds since 1970, by the clock of the master that made it.
    pub fn decided_at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Makes what is seen durable, before something final is reported on the strength of it.
    pub fn settle(&self, fs: &dyn Fs) -> Result<(), FsError> {
        fs.sync_dir(layout::HEAD.as_ref())
    }
}

fn apply(state: &mut State, group: &Group) -> Result<(), ChainError> {
    let id = group.header.id;
    state.apply_group(id, &group.ops).map_err(|absurd| ChainError::Broken { id, why: absurd.to_string() })
}

/// Reads and verifies a snapshot; `None` if it is not there or damaged, since the decisions before it may do instead.
fn read_snapshot(fs: &dyn Fs, wanted: SnapshotRef) -> Option<State> {
    let bytes = fs::read_all(fs, &layout::snapshot(wanted.at)).ok()?;
    if Digest::of(&bytes) != wanted.sha {
        return None;
    }
    decode_snapshot(&bytes).ok().filter(|state| state.at == wanted.at)
}

/// Writes the snapshot of `state` and reads it back; `None` if it did not come out right.
pub fn write_snapshot(fs: &dyn Fs, state: &State) -> Option<SnapshotRef> {
    let bytes = encode_snapshot(state);
    let reference = SnapshotRef { at: state.at, sha: Digest::of(&bytes) };
    // A file of that name may be there already, whole or torn; reading back tells.
    let _ = fs::put_new(fs, &layout::snapshot(state.at), &bytes, MODE);
    read_snapshot(fs, reference).map(|_| reference)
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// The decision is bound and durable.
    Won,
    /// Another one is bound in its place.
    Lost,
    /// The token has not moved, and the rename may still happen: try the same one again.
    InDoubt,
    /// What is seen allows no judgement; do nothing that shows, look again.
    Unknown(ChainError),
    /// The candidate could not be written, so nothing was tried.
    NotTried(FsError),
}

/// The one process's way to bind decisions: a reader that also moves the token.
#[derive(Debug)]
pub struct Writer {
    reader: Reader,
    style: HeadStyle,
    pending: Option<Candidate>,
    /// The last decision bound by this process, for moving the token forward again after a roll-back.
    last: Option<Candidate>,
}

#[derive(Debug, Clone)]
struct Candidate {
    header: Header,
    ops: Vec<Op>,
    bytes: Vec<u8>,
}

/// Who commits, for the header.
#[derive(Debug, Clone)]
pub struct Author {
    /// The process.
    pub by: crate::protocol::id::WorkerId,
    /// Its term.
    pub term: u64,
    /// Wall time, milliseconds since 1970.
    pub at_ms: u64,
}

impl Writer {
    /// Opens the chain of the queue `file`.
    pub fn open(fs: &dyn Fs, file: &QueueFile) -> Result<Self, ChainError> {
        Ok(Self { reader: Reader::open(fs)?, style: file.head_style, pending: None, last: None })
    }

    /// The settled state. Operations of a candidate are not part of it before it is bound.
    pub fn state(&self) -> &State {
        &self.reader.state
    }

    /// Whether a candidate is in doubt.
    pub fn is_in_doubt(&self) -> bool {
        self.pending.is_some()
    }

    /// Looks for newer decisions of others; says whether there were any. Not while a candidate is in doubt.
    ///
    /// A head that fell back to the exact predecessor of the last decision of this process is moved forward again.
    pub fn refresh(&mut self, fs: &dyn Fs) -> Result<bool, ChainError> {
        debug_assert!(self.pending.is_none());
        match self.reader.refresh(fs) {
            Err(ChainError::RolledBack { seen, now }) => {
                let again = self.last.clone().filter(|c| c.header.id == seen && c.header.prev == Some(now));
                let Some(candidate) = again else { return Err(ChainError::RolledBack { seen, now }) };
                if let Err(ChainError::Missing { .. }) = read_group(fs, seen, None) {
                    Self::put(fs, &candidate)?;
                }
                fs.rename(&layout::head(now, self.style), &layout::head(seen, self.style))?;
                self.reader.refresh(fs)
            }
            Err(ChainError::Several(names)) => Err(ChainError::Several(names)),
            other => other,
        }
    }

    /// The name that the next candidate of this process will have.
    pub fn next_id(&self, chance: &dyn Chance) -> DecisionId {
        DecisionId { generation: self.reader.state.at.generation + 1, nonce: Nonce(chance.bits()) }
    }

    /// Tries to bind `ops` as the decision `id` on top of the settled state.
    pub fn commit(
        &mut self,
        fs: &dyn Fs,
        chance: &dyn Chance,
        author: &Author,
        id: DecisionId,
        ops: Vec<Op>,
    ) -> Commit {
        debug_assert!(self.pending.is_none() && id.generation == self.reader.state.at.generation + 1);
        let header = Header {
            fq: "decision".into(),
            version: crate::protocol::version::CURRENT,
            id,
            prev: Some(self.reader.state.at),
            prev_sha: Some(self.reader.sha),
            snapshot: self.reader.state.snapshots.last().copied(),
            term: author.term,
            by: author.by.clone(),
            at_ms: author.at_ms,
        };
        let candidate = Candidate { bytes: encode_group(&header, &ops), header, ops };
        if let Err(e) = Self::put(fs, &candidate) {
            return Commit::NotTried(e);
        }
        match Self::only_token(fs, chance) {
            Ok(now) if Some(now) == candidate.header.prev => {}
            Ok(now) => return self.superseded(fs, now),
            Err(e) => return Commit::Unknown(e),
        }
        self.pending = Some(candidate);
        self.push(fs, chance)
    }

    /// Tries the same rename again, for a candidate in doubt.
    pub fn push(&mut self, fs: &dyn Fs, chance: &dyn Chance) -> Commit {
        let Some(candidate) = self.pending.clone() else { return Commit::Lost };
        let (id, prev) = (candidate.header.id, self.reader.state.at);
        let moved = fs.rename(&layout::head(prev, self.style), &layout::head(id, self.style));
        if moved.as_ref().is_err_and(FsError::not_found) {
            // Somebody moved it, perhaps this process: a listing from the same tick could still show the old name.
            let _ = nudge(fs, chance, layout::HEAD);
        }
        let now = match Self::only_token(fs, chance) {
            Ok(now) => now,
            Err(e) => return Commit::Unknown(e),
        };
        if now == prev {
            return Commit::InDoubt;
        }
        match Self::descends(fs, now, id) {
            Ok(true) => {
                // A rename that reported an error may not be durable yet.
                if moved.is_err()
                    && let Err(e) = fs.sync_dir(layout::HEAD.as_ref())
                {
                    return Commit::Unknown(e.into());
                }
                self.pending = None;
                let group = Group {
                    header: candidate.header.clone(),
                    ops: candidate.ops.clone(),
                    sha: Digest::of(&candidate.bytes),
                };
                if let Err(e) = apply(&mut self.reader.state, &group) {
                    return Commit::Unknown(e);
                }
                (self.reader.sha, self.reader.at_ms) = (group.sha, group.header.at_ms);
                self.last = Some(candidate);
                Commit::Won
            }
            Ok(false) => {
                self.pending = None;
                self.superseded(fs, now)
            }
            Err(e) => Commit::Unknown(e),
        }
    }

    fn put(fs: &dyn Fs, candidate: &Candidate) -> Result<(), FsError> {
        let id = candidate.header.id;
        if id.generation.is_multiple_of(layout::BUCKET) {
            match fs.mkdir(&layout::decision_bucket(id.generation)) {
                Err(e) if e.kind != ErrorKind::Exists => return Err(e),
                _ => fs.sync_dir(layout::LOG.as_ref())?,
            }
        }
        fs::put_new(fs, &layout::decision(id), &candidate.bytes, MODE)
    }

    /// Another line is bound: catches up with it.
    fn superseded(&mut self, fs: &dyn Fs, now: DecisionId) -> Commit {
        match self.reader.catch_up(fs, now) {
            Ok(_) => Commit::Lost,
            Err(e) => Commit::Unknown(e),
        }
    }

    /// Whether `now` is `id` or was decided on top of it. Where the chain between was pruned the answer is no: this process was
    /// deposed long ago.
    fn descends(fs: &dyn Fs, now: DecisionId, id: DecisionId) -> Result<bool, ChainError> {
        let mut at = now;
        let mut first = true;
        while at.generation > id.generation {
            at = match read_group(fs, at, None) {
                Ok(group) => group.header.prev.unwrap_or(id),
                Err(ChainError::Missing { .. }) if !first => return Ok(false),
                Err(e) => return Err(e),
            };
            first = false;
        }
        Ok(at == id)
    }

    /// The only token, after strays were set aside.
    fn only_token(fs: &dyn Fs, chance: &dyn Chance) -> Result<DecisionId, ChainError> {
        match look_for_one(fs) {
            Err(ChainError::Several(names)) => {
                Self::set_strays_aside(fs, chance, names)?;
                look_for_one(fs)
            }
            other => other,
        }
    }

    /// Renames aside every token but the newest, and of equal numbers all but the smallest nonce.
    ///
    /// Only what a rename that was cut in half leaves: a predecessor beside its successor, or two successors of one. Anything
    /// else comes from two copies of a queue and is left for a person.
    fn set_strays_aside(fs: &dyn Fs, chance: &dyn Chance, names: Vec<String>) -> Result<(), ChainError> {
        let mut tokens: Vec<(DecisionId, String)> =
            names.iter().filter_map(|name| layout::parse_head(name).map(|id| (id, name.clone()))).collect();
        tokens.sort_by_key(|(id, _)| (std::cmp::Reverse(id.generation), id.nonce));
        let Some((keep, _)) = tokens.first().cloned() else { return Ok(()) };
        let prev = read_group(fs, keep, None)?.header.prev;
        for (id, _) in &tokens[1..] {
            let related = Some(*id) == prev
                || (id.generation == keep.generation && read_group(fs, *id, None)?.header.prev == prev);
            if !related {
                return Err(ChainError::Several(names));
            }
        }
        for (_, name) in &tokens[1..] {
            let aside = layout::gone_head(name, Nonce(chance.bits()));
            let _ = fs.rename(&std::path::Path::new(layout::HEAD).join(name), &aside);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
