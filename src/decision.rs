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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use crate::clock::Chance;
use crate::fs::{self, Call, ErrorKind, Fs, FsError};
use crate::mutant::{self, Mutant};
use crate::protocol::digest::Digest;
use crate::protocol::frame;
use crate::protocol::id::{DecisionId, Nonce};
use crate::protocol::layout;
use crate::protocol::record::{BadRecord, HeadStyle, Header, Op, QueueFile, SnapshotRef, to_line};
use crate::protocol::version;
use crate::state::{State, decode_snapshot, encode_snapshot};

pub mod strays;

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
    let header: Header = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(malformed)?;
    if header.fq != "decision" {
        return Err(BadRecord::Malformed(format!("it is a `{}`, expected a `decision`", header.fq)));
    }
    version::check(header.version, &[]).map_err(|e| BadRecord::Malformed(e.to_string()))?;
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
    /// It shows several. For a moment this is possible while it moves, and longer where a process died while moving it; a
    /// [`Writer`] then sets all but one aside, unless they come from two copies of a queue.
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
                    "`{}` has several tokens ({}): a move of the token was cut short, which the next master mends, or two \
                     copies of the queue were merged",
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
        [.., _] if mutant::is(Mutant::TakeNewest) => {
            Look::Alone(tokens.iter().map(|t| t.1).max().unwrap_or(tokens[0].1))
        }
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
pub fn nudge(fs: &dyn Fs, chance: &dyn Chance, dir: &Path) -> Result<(), FsError> {
    let path = layout::nudge(dir, Nonce(chance.bits()));
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

/// The predecessor that a group names, and the digest of its file.
fn predecessor(group: &Group) -> Result<(DecisionId, Digest), ChainError> {
    let id = group.header.id;
    match (group.header.prev, group.header.prev_sha) {
        (Some(prev), Some(sha)) if prev.generation.checked_add(1) == Some(id.generation) => Ok((prev, sha)),
        (Some(prev), _) => Err(ChainError::Broken { id, why: format!("it names {prev} as its predecessor") }),
        (None, _) => Err(ChainError::Broken { id, why: "it names no predecessor".into() }),
    }
}

/// The bound decisions from `head` down to the generation `down_to`, by following the names of predecessors.
///
/// Reads one file for each. Fails with [`ChainError::Missing`] where one was pruned already.
pub fn chain_ids(fs: &dyn Fs, head: DecisionId, down_to: u64) -> Result<BTreeSet<DecisionId>, ChainError> {
    let mut ids = BTreeSet::from([head]);
    let (mut at, mut expected) = (head, None);
    while at.generation > down_to {
        let (prev, sha) = predecessor(&read_group(fs, at, expected)?)?;
        ids.insert(prev);
        (at, expected) = (prev, Some(sha));
    }
    Ok(ids)
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
            if at.generation == 0 && group.header.prev.is_none() {
                groups.push(group);
                break State::new(at);
            }
            let (prev, sha) = predecessor(&group)?;
            groups.push(group);
            (at, expected) = (prev, Some(sha));
        };
        for group in groups.iter().rev() {
            apply(&mut state, group)?;
        }
        // No group names a snapshot of itself, so the head's own was read.
        let newest = &groups[0];
        Ok(Self { state, sha: newest.sha, at_ms: newest.header.at_ms })
    }

    /// Looks for newer decisions and applies them; says whether there were any.
    ///
    /// Where the decisions between were pruned, everything is read anew. Fails with [`ChainError::RolledBack`] where what this
    /// reader knows is not part of the chain; nothing of it may be acted upon then. After [`ChainError::Broken`] the reader is of
    /// no use.
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
            let (prev, sha) = predecessor(&group)?;
            groups.push(group);
            (at, expected) = (prev, Some(sha));
        }
        if at != known || expected != Some(self.sha) {
            return Err(ChainError::RolledBack { seen: known, now: head });
        }
        for group in groups.iter().rev() {
            apply(&mut self.state, group)?;
            (self.sha, self.at_ms) = (group.sha, group.header.at_ms);
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
    ///
    /// Fails with [`ChainError::RolledBack`] where what was seen had not been durable and is gone.
    pub fn settle(&self, fs: &dyn Fs) -> Result<(), ChainError> {
        if mutant::is(Mutant::UnsettledReport) {
            return Ok(());
        }
        fs.sync_dir(layout::HEAD.as_ref())?;
        if fs.drops_names() {
            let (seen, now) = (self.state.at, look_for_one(fs)?);
            if now.generation < seen.generation {
                return Err(ChainError::RolledBack { seen, now });
            }
        }
        Ok(())
    }
}

fn apply(state: &mut State, group: &Group) -> Result<(), ChainError> {
    let id = group.header.id;
    state.apply_group(id, &group.ops).map_err(|absurd| ChainError::Broken { id, why: absurd.to_string() })?;
    if group.header.term != state.term {
        let why = format!("it was made in term {}, and the term is {}", group.header.term, state.term);
        return Err(ChainError::Broken { id, why });
    }
    Ok(())
}

/// Reads and verifies a snapshot; `None` if it is not there or damaged, since the decisions before it may do instead.
fn read_snapshot(fs: &dyn Fs, wanted: SnapshotRef) -> Option<State> {
    let bytes = fs::read_all(fs, &layout::snapshot(wanted.at)).ok()?;
    if Digest::of(&bytes) != wanted.sha {
        return None;
    }
    decode_snapshot(&bytes).ok().filter(|state| state.at == wanted.at)
}

/// Writes the snapshot of `state` and reads it back; `None` if it did not come out right, or if one of that name is there already:
/// it may be torn, or its writer may have died before it was durable. There is another chance after the next decision.
pub fn write_snapshot(fs: &dyn Fs, state: &State) -> Option<SnapshotRef> {
    let bytes = encode_snapshot(state);
    let reference = SnapshotRef { at: state.at, sha: Digest::of(&bytes) };
    let put = fs::put_new(fs, &layout::snapshot(state.at), &bytes, MODE);
    if mutant::is(Mutant::SnapshotUnverified) {
        return Some(reference);
    }
    put.ok()?;
    read_snapshot(fs, reference).map(|_| reference)
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// The decision is bound, durable, and the newest one.
    Won,
    /// Others have decided since: in its place, or on top of it, which only the master of a newer term does. Either way nothing
    /// of it is this process's to carry out, and the state has moved on.
    Lost,
    /// The token has not moved, and the rename may still happen: try the same one again.
    InDoubt,
    /// What is seen allows no judgement; do nothing that shows, look again. A candidate may be in doubt or not.
    Unknown(ChainError),
    /// The candidate could not be written, so nothing was tried. Try again with a new name.
    NotTried(FsError),
}

/// The one process's way to bind decisions: a reader that also moves the token.
#[derive(Debug)]
pub struct Writer {
    reader: Reader,
    style: HeadStyle,
    /// The first decision of the queue.
    first: DecisionId,
    pending: Option<Pending>,
    /// The last decision bound by this process, for moving the token forward again after a roll-back.
    last: Option<Candidate>,
}

/// A decision that is bound by moving the token.
#[derive(Debug, Clone)]
struct Candidate {
    header: Header,
    bytes: Vec<u8>,
    sha: Digest,
}

/// A candidate whose rename may happen, and the state that it would lead to.
#[derive(Debug)]
struct Pending {
    candidate: Candidate,
    next: State,
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
    /// Opens the chain of the queue `file`, after setting aside what a move of the token that was cut short has left.
    pub fn open(fs: &dyn Fs, chance: &dyn Chance, file: &QueueFile) -> Result<Self, ChainError> {
        let reader = Reader::load(fs, only_token(fs, chance, file.first)?)?;
        Ok(Self { reader, style: file.head_style, first: file.first, pending: None, last: None })
    }

    /// The settled state. Operations of a candidate are not part of it before it is bound.
    pub fn state(&self) -> &State {
        &self.reader.state
    }

    /// Whether a candidate is in doubt.
    pub fn is_in_doubt(&self) -> bool {
        self.pending.is_some()
    }

    /// Looks for newer decisions of others; says whether there were any. Must not be called while a candidate is in doubt.
    ///
    /// A head that fell back to the exact predecessor of the last decision of this process is moved forward again.
    pub fn refresh(&mut self, fs: &dyn Fs, chance: &dyn Chance) -> Result<bool, ChainError> {
        assert!(self.pending.is_none(), "a candidate is in doubt");
        let now = self.head(fs, chance)?;
        self.reader.catch_up(fs, now)
    }

    /// The name that the next candidate of this process will have.
    pub fn next_id(&self, chance: &dyn Chance) -> DecisionId {
        DecisionId { generation: self.reader.state.at.generation + 1, nonce: Nonce(chance.bits()) }
    }

    /// Tries to bind `ops` as the decision `id` on top of the settled state. Must not be called while a candidate is in doubt.
    ///
    /// Operations that the state refuses, or an author of another term, would make the chain unreadable for everybody. They are
    /// answered with [`ChainError::Broken`], and nothing is written.
    pub fn commit(
        &mut self,
        fs: &dyn Fs,
        chance: &dyn Chance,
        author: &Author,
        id: DecisionId,
        ops: Vec<Op>,
    ) -> Commit {
        assert!(self.pending.is_none(), "a candidate is in doubt");
        let prev = self.reader.state.at;
        assert_eq!(id.generation, prev.generation + 1, "a candidate follows the settled state");
        let header = Header {
            fq: "decision".into(),
            version: version::CURRENT,
            id,
            prev: Some(prev),
            prev_sha: Some(self.reader.sha),
            snapshot: self.reader.state.snapshots.last().copied(),
            term: author.term,
            by: author.by.clone(),
            at_ms: author.at_ms,
        };
        let bytes = encode_group(&header, &ops);
        let group = Group { header, ops, sha: Digest::of(&bytes) };
        let mut next = self.reader.state.clone();
        if let Err(e) = apply(&mut next, &group) {
            return Commit::Unknown(e);
        }
        let candidate = Candidate { header: group.header, bytes, sha: group.sha };
        if let Err(e) = candidate.put(fs) {
            return Commit::NotTried(e);
        }
        match self.head(fs, chance) {
            Ok(now) if now == prev => {}
            Ok(now) => return self.superseded(fs, now),
            Err(e) => return Commit::Unknown(e),
        }
        self.pending = Some(Pending { candidate, next });
        self.push(fs, chance)
    }

    /// Tries the same rename again, for a candidate in doubt.
    pub fn push(&mut self, fs: &dyn Fs, chance: &dyn Chance) -> Commit {
        let Some(pending) = &self.pending else { return Commit::Lost };
        let (id, prev) = (pending.candidate.header.id, self.reader.state.at);
        let moved = self.move_token(fs, chance, prev, id);
        if mutant::is(Mutant::TrustRename) && moved.is_ok() {
            return self.won();
        }
        if mutant::is(Mutant::TrustErrno) && moved.is_err() {
            self.pending = None;
            return Commit::Lost;
        }
        let now = match self.head(fs, chance) {
            Ok(now) => now,
            Err(e) => return Commit::Unknown(e),
        };
        if now == prev {
            if mutant::is(Mutant::DropCandidate) {
                let _ = fs.unlink(&layout::decision(id));
            }
            if mutant::is(Mutant::DropCandidate) || mutant::is(Mutant::SecondCandidate) {
                self.pending = None;
                return Commit::Lost;
            }
            return Commit::InDoubt;
        }
        if now != id {
            return self.superseded(fs, now);
        }
        if moved.is_err() && !mutant::is(Mutant::MoveUnsynced) {
            // A rename that reported an error and was done nevertheless may not be durable yet, and only what is there after the
            // sync is.
            match fs.sync_dir(layout::HEAD.as_ref()).map_err(ChainError::Fs).and_then(|()| self.head(fs, chance)) {
                Ok(now) if now == id => {}
                Ok(now) if now == prev => return Commit::InDoubt,
                Ok(now) => return self.superseded(fs, now),
                Err(e) => return Commit::Unknown(e),
            }
        }
        self.won()
    }

    /// The candidate is bound.
    fn won(&mut self) -> Commit {
        if let Some(Pending { candidate, next }) = self.pending.take() {
            self.reader = Reader { state: next, sha: candidate.sha, at_ms: candidate.header.at_ms };
            self.last = Some(candidate);
        }
        Commit::Won
    }

    /// Others have decided since: catches up with them. What this process has tried cannot be bound any more, or is part of it.
    fn superseded(&mut self, fs: &dyn Fs, now: DecisionId) -> Commit {
        match self.reader.catch_up(fs, now) {
            Ok(_) => {
                self.pending = None;
                Commit::Lost
            }
            Err(e) => Commit::Unknown(e),
        }
    }

    fn move_token(&self, fs: &dyn Fs, chance: &dyn Chance, from: DecisionId, to: DecisionId) -> fs::Result<()> {
        let moved = fs.rename(&layout::head(from, self.style), &layout::head(to, self.style));
        if moved.as_ref().is_err_and(FsError::not_found) {
            // Somebody moved it, perhaps this process: a listing from the same tick could still show the old name.
            let _ = nudge(fs, chance, layout::HEAD.as_ref());
        }
        moved
    }

    /// The only token, after strays were set aside and a roll-back by exactly the last decision of this process was undone.
    fn head(&self, fs: &dyn Fs, chance: &dyn Chance) -> Result<DecisionId, ChainError> {
        let now = only_token(fs, chance, self.first)?;
        let seen = self.reader.state.at;
        if now.generation >= seen.generation {
            return Ok(now);
        }
        match &self.last {
            Some(last) if last.header.id == seen && last.header.prev == Some(now) => {
                last.restore(fs, chance)?;
                let moved = self.move_token(fs, chance, now, seen);
                if moved.is_err() {
                    // It may have been done nevertheless, and only what is there after the sync is durable.
                    fs.sync_dir(layout::HEAD.as_ref())?;
                }
                let again = only_token(fs, chance, self.first)?;
                if again == now {
                    let why = format!("the token fell back to {now} and has not moved forward again yet");
                    return Err(moved.map_or_else(ChainError::Fs, |()| ChainError::Missing { id: seen, why }));
                }
                Ok(again)
            }
            _ => {
                // Whoever believes an old listing here stops for good, so it gets a second chance.
                let _ = nudge(fs, chance, layout::HEAD.as_ref());
                only_token(fs, chance, self.first)
            }
        }
    }
}

impl Candidate {
    /// Writes the candidate, durable with its bucket.
    fn put(&self, fs: &dyn Fs) -> fs::Result<()> {
        let id = self.header.id;
        // Also where the bucket is there: whoever made it may have died before it was durable.
        if id.generation.is_multiple_of(layout::BUCKET) {
            make_bucket(fs, id)?;
        }
        let put = || fs::put_new(fs, &layout::decision(id), &self.bytes, MODE);
        match put() {
            Err(e) if e.call == Call::Create && e.not_found() => {
                make_bucket(fs, id)?;
                put()
            }
            other => other,
        }
    }

    /// Writes the file of a bound decision again, if a roll-back took it or tore it.
    fn restore(&self, fs: &dyn Fs, chance: &dyn Chance) -> Result<(), ChainError> {
        let id = self.header.id;
        match read_group(fs, id, Some(self.sha)) {
            Err(ChainError::Missing { .. }) => {
                make_bucket(fs, id)?;
                // The name stands for these bytes for ever, so what is there may be replaced.
                fs::publish(fs, chance, &layout::decision(id), &self.bytes, MODE).map_err(ChainError::Fs)
            }
            other => other.map(|_| ()),
        }
    }
}

fn make_bucket(fs: &dyn Fs, id: DecisionId) -> fs::Result<()> {
    match fs.mkdir(&layout::decision_bucket(id.generation)) {
        Err(e) if e.kind != ErrorKind::Exists => Err(e),
        _ => fs.sync_dir(layout::LOG.as_ref()),
    }
}

/// The only token of the queue whose first decision is `first`, after strays were set aside.
fn only_token(fs: &dyn Fs, chance: &dyn Chance, first: DecisionId) -> Result<DecisionId, ChainError> {
    match look_for_one(fs) {
        Err(ChainError::Several(names)) => {
            set_strays_aside(fs, chance, first, names)?;
            look_for_one(fs)
        }
        other => other,
    }
}

/// Renames the tokens aside that are [strays](strays), if all but one are.
fn set_strays_aside(fs: &dyn Fs, chance: &dyn Chance, first: DecisionId, names: Vec<String>) -> Result<(), ChainError> {
    let tokens: Vec<_> = names.iter().filter_map(|name| Some((name.clone(), layout::parse_head(name)?))).collect();
    let prev = |id| read_group(fs, id, None).map(|group| group.header.prev);
    let Some(judgement) = strays::judge(&tokens, Some(first), prev)? else { return Err(ChainError::Several(names)) };
    for name in &judgement.strays {
        let aside = layout::gone_head(name, Nonce(chance.bits()));
        let _ = fs.rename(&std::path::Path::new(layout::HEAD).join(name), &aside);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
