//! Reads a whole queue and says what is wrong with it; plans repairs and carries them out.
//!
//! Invariants:
//! - [`check`] changes nothing. One bad record does not hide the others: each is reported and the walk goes on.
//! - What a running or killed process normally leaves is no problem: the torn tail of a journal, a candidate that lost, the
//!   temporary file of a writer. What a person may want to know all the same is a notice.
//! - A [`Fix`] is a value that can be printed; [`apply`] looks again before it acts, never overwrites and never removes a byte.
//!
//! The token is a story of its own, in [`token`].

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::decision::strays::{self, Judgement};
use crate::decision::{self, Group, Look, Reader};
use crate::fs::{self, EntryKind, Fs, FsError};
use crate::gc;
use crate::protocol::digest::Digest;
use crate::protocol::frame;
use crate::protocol::id::{DecisionId, JobId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{self, BadRecord, Command, Line, Manifest, QueueFile, Ref, SnapshotRef};
use crate::queue;
use crate::state::{State, WantedEnds};
use crate::store::{self, StoreError, inventory, pack};

pub mod repair;
pub mod token;

pub use repair::{Fix, apply};

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// `FQ` or `limits.json`.
    Queue,
    /// A directory that should be there, or a name that should not.
    Layout,
    /// The token.
    Head,
    /// A decision group or the chain of them.
    Decision,
    /// A snapshot of the state.
    Snapshot,
    /// A submitted manifest.
    Manifest,
    /// A worker's journal.
    Journal,
    /// A loose object or a pack.
    Object,
    /// A reference to bytes that are not there or not right.
    Reference,
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is broken.
    Notice,
    /// Something is lost or cannot be read.
    Error,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it is about.
    pub what: What,
    /// How bad it is.
    pub severity: Severity,
    /// Where, relative to the queue directory.
    pub path: PathBuf,
    /// Why it is a problem.
    pub why: String,
    /// What a person can do, if that is known.
    pub hint: Option<String>,
    /// What [`apply`] can do about it.
    pub fix: Option<Fix>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.path.display(), self.why)
    }
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Counts {
    /// Decision groups on the chain.
    pub decisions: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Submitted manifests.
    pub manifests: u64,
    /// Journals.
    pub journals: u64,
    /// Valid lines in them.
    pub lines: u64,
    /// Loose objects.
    pub objects: u64,
    /// Packs.
    pub packs: u64,
    /// References that were followed.
    pub references: u64,
    /// Bytes of objects whose digest was computed.
    pub bytes_verified: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// All problems, in the order of the walk.
    pub problems: Vec<Problem>,
    /// How much was looked at.
    pub counts: Counts,
}

impl Report {
    /// Whether nothing is broken.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|p| p.severity == Severity::Notice)
    }

    /// The repairs that are possible, in the order in which they have to be done.
    pub fn fixes(&self) -> Vec<Fix> {
        self.problems.iter().filter_map(|p| p.fix.clone()).collect()
    }
}

/// Checks the queue behind `fs`. With `deep` every byte in the store is compared with its digest and every reference followed.
///
/// `progress` is called after each record and may wait. A master may run meanwhile: what changes under the walk can show as a
/// problem that a second check does not find any more.
pub fn check(fs: &dyn Fs, deep: bool, progress: &mut dyn FnMut(&Counts)) -> Report {
    let mut walk = Walk { fs, deep, progress, report: Report::default(), state: None, refs: Vec::new() };
    let file = walk.queue_files();
    walk.directories();
    walk.decisions(file.as_ref());
    walk.manifests();
    walk.journals();
    walk.store();
    walk.report
}

struct Walk<'a> {
    fs: &'a dyn Fs,
    deep: bool,
    progress: &'a mut dyn FnMut(&Counts),
    report: Report,
    state: Option<State>,
    /// References of kept jobs with the files that hold them; only if `deep`.
    refs: Vec<(Ref, PathBuf)>,
}

impl Walk<'_> {
    fn tick(&mut self) {
        (self.progress)(&self.report.counts);
    }

    fn add(&mut self, severity: Severity, what: What, path: &Path, why: impl Into<String>) -> &mut Problem {
        let problem = Problem { what, severity, path: path.to_owned(), why: why.into(), hint: None, fix: None };
        self.report.problems.push(problem);
        self.report.problems.last_mut().expect("just pushed")
    }

    fn error(&mut self, what: What, path: &Path, why: impl Into<String>) -> &mut Problem {
        self.add(Severity::Error, what, path, why)
    }

    fn notice(&mut self, what: What, path: &Path, why: impl Into<String>) -> &mut Problem {
        self.add(Severity::Notice, what, path, why)
    }

    /// Lists `dir`; reports links and devices in it, and a listing that fails, as problems about `what`.
    fn list(&mut self, what: What, dir: &Path) -> Vec<fs::Entry> {
        let names = match self.fs.list(dir) {
            Ok(names) => names,
            Err(error) => {
                self.error(what, dir, error.to_string());
                return Vec::new();
            }
        };
        let (mut names, planted): (Vec<_>, Vec<_>) = names.into_iter().partition(|e| e.kind != EntryKind::Other);
        for entry in planted {
            let why = "a symbolic link or another kind of file stands here, which fq never follows";
            self.error(What::Layout, &dir.join(&entry.name), why).hint =
                Some("find out who made it, then remove it".into());
        }
        // A nudge has done its work the moment it was made; its maker may have died before it removed it.
        names.retain(|entry| !entry.name.starts_with(".nudge-"));
        names.sort();
        names
    }

    fn queue_files(&mut self) -> Option<QueueFile> {
        let root = Path::new(".");
        if let Err(error) = queue::read_limits(self.fs, root) {
            self.error(What::Queue, Path::new(layout::LIMITS), chain_of(&error)).hint = error.hint();
        }
        match queue::read_file(self.fs, root) {
            Ok(file) => Some(file),
            Err(error) => {
                self.error(What::Queue, Path::new(layout::QUEUE), chain_of(&error)).hint = error.hint();
                None
            }
        }
    }

    fn directories(&mut self) {
        let buckets = layout::object_buckets();
        let all: Vec<PathBuf> = layout::DIRECTORIES.iter().map(PathBuf::from).chain(buckets).collect();
        let mut listed: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        for dir in all {
            // Buckets of jobs and decisions come and go with their numbers.
            if dir.ends_with("000") {
                continue;
            }
            let parent = dir.parent().unwrap_or(Path::new("")).to_owned();
            if !listed.contains_key(&parent) {
                let names = self.fs.list(&parent).unwrap_or_default();
                let dirs = names.into_iter().filter(|e| e.kind == EntryKind::Dir).map(|e| e.name);
                listed.insert(parent.clone(), dirs.collect());
            }
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            if !listed[&parent].contains(&*name) {
                self.error(What::Layout, &dir, "the directory is missing").fix = Some(Fix::MakeDirectory(dir.clone()));
            }
        }
    }

    fn decisions(&mut self, file: Option<&QueueFile>) {
        let log = Log::read(self);
        let head_dir = Path::new(layout::HEAD);
        let head = match decision::look(self.fs) {
            Err(error) => {
                self.error(What::Head, head_dir, error.to_string());
                None
            }
            Ok(Look::Alone(id)) => Some(id),
            Ok(Look::None) => {
                let problem = self.error(What::Head, head_dir, "the token that names the newest decision is gone");
                problem.fix = Some(Fix::RebuildToken);
                None
            }
            Ok(Look::Several(tokens)) => self.several(&tokens, file, &log),
        };
        let chain = match head {
            Some(head) => {
                let chain = self.chain(head, &log, file);
                self.off_chain(head, &chain, &log);
                chain
            }
            None => BTreeSet::new(),
        };
        self.bad_groups(head, &chain, &log);
        match Reader::open(self.fs) {
            Ok(reader) => self.state = Some(reader.state().clone()),
            Err(error) if head.is_some() => {
                self.error(What::Decision, Path::new(layout::LOG), format!("no state comes out of it: {error}"));
            }
            Err(_) => {}
        }
    }

    /// Several tokens: strays of a client that died while it moved the token, or two queues in one directory.
    fn several(&mut self, tokens: &[(String, DecisionId)], file: Option<&QueueFile>, log: &Log) -> Option<DecisionId> {
        let prev = |id: DecisionId| Ok::<_, Infallible>(log.groups.get(&id).and_then(|g| g.header.prev));
        let head_dir = Path::new(layout::HEAD);
        let Ok(judgement) = strays::judge(tokens, file.map(|file| file.first), prev);
        if let Some(Judgement { keep, strays }) = judgement {
            for name in strays {
                let why = format!("a stray token: the newest decision is `{keep}`");
                let path = head_dir.join(&name);
                let problem = self.error(What::Head, &path, why);
                problem.hint = Some("the next process that leads sets it aside, too".into());
                problem.fix = Some(Fix::SetAside(name));
            }
            return Some(keep);
        }
        let names: Vec<&str> = tokens.iter().map(|t| t.0.as_str()).collect();
        let why =
            format!("the tokens {} are of no one moment of a queue: two copies of it were merged", names.join(", "));
        self.error(What::Head, head_dir, why).hint =
            Some("nothing is safe to repair here; go back to one of the copies".into());
        None
    }

    /// Walks from the head to the first decision, or to the oldest one that is kept below a snapshot.
    fn chain(&mut self, head: DecisionId, log: &Log, file: Option<&QueueFile>) -> BTreeSet<DecisionId> {
        let mut chain = BTreeSet::new();
        let mut snapshots: BTreeMap<DecisionId, SnapshotRef> = BTreeMap::new();
        let mut is_covered = false;
        let (mut at, mut expected): (DecisionId, Option<Digest>) = (head, None);
        loop {
            if let Some(snapshot) = snapshots.get(&at) {
                is_covered |= self.snapshot(snapshot);
            }
            let path = layout::decision(at);
            let Some(group) = log.groups.get(&at) else {
                if let Some(bad) = log.bad.get(&at) {
                    self.error(What::Decision, &path, bad.why.clone()).hint = Some("restore it from a backup".into());
                } else if !is_covered {
                    let why = if at == head {
                        "the newest decision has no file"
                    } else {
                        "a decision that is still needed has no file"
                    };
                    self.error(What::Decision, &path, why).hint = Some("restore it from a backup".into());
                }
                break;
            };
            chain.insert(at);
            self.report.counts.decisions += 1;
            if expected.is_some_and(|sha| sha != group.sha) {
                self.error(What::Decision, &path, "its content is not what its successor says");
            }
            if let Some(s) = group.header.snapshot {
                snapshots.insert(s.at, s);
            }
            match group.header.prev {
                Some(prev) if prev.generation.checked_add(1) == Some(at.generation) => {
                    (at, expected) = (prev, group.header.prev_sha);
                }
                Some(prev) => {
                    self.error(What::Decision, &path, format!("it names `{prev}` as its predecessor"));
                    break;
                }
                None => {
                    if file.is_some_and(|file| file.first != at) {
                        self.error(What::Decision, &path, "it is the first of its chain but not of this queue");
                    }
                    break;
                }
            }
        }
        chain
    }

    /// Checks a snapshot that a decision names; says whether it is whole.
    fn snapshot(&mut self, snapshot: &SnapshotRef) -> bool {
        self.report.counts.snapshots += 1;
        let path = layout::snapshot(snapshot.at);
        let why = match fs::read_all(self.fs, &path) {
            // Older ones are removed, and so is what they cover.
            Err(error) if error.not_found() => return false,
            Err(error) => error.to_string(),
            Ok(bytes) if Digest::of(&bytes) != snapshot.sha => "its content is not what the decisions say".into(),
            Ok(_) => return true,
        };
        self.error(What::Snapshot, &path, why);
        false
    }

    /// Reports the groups that cannot be read; those on the chain are known already.
    fn bad_groups(&mut self, head: Option<DecisionId>, chain: &BTreeSet<DecisionId>, log: &Log) {
        let needed = chain.first().and_then(|oldest| log.groups.get(oldest)).and_then(|group| group.header.prev);
        for (id, bad) in &log.bad {
            let path = layout::decision(*id);
            if head == Some(*id) || needed == Some(*id) {
                continue;
            }
            if head.is_some() && bad.is_torn {
                self.notice(
                    What::Decision,
                    &path,
                    "a candidate cut short, the rest of a killed master; no decision needs it",
                );
            } else {
                self.error(What::Decision, &path, bad.why.clone());
            }
        }
    }

    fn off_chain(&mut self, head: DecisionId, chain: &BTreeSet<DecisionId>, log: &Log) {
        let lowest = chain.first().map_or(u64::MAX, |id| id.generation);
        for id in log.groups.keys().filter(|id| id.generation >= lowest && !chain.contains(id)) {
            let why = if id.generation > head.generation {
                "a candidate that was not bound, or not yet"
            } else {
                "a candidate that was not bound; the master removes it"
            };
            self.notice(What::Decision, &layout::decision(*id), why);
        }
    }

    fn manifests(&mut self) {
        for bucket in self.list(What::Manifest, Path::new(layout::JOBS)) {
            let dir = Path::new(layout::JOBS).join(&bucket.name);
            if bucket.kind != EntryKind::Dir {
                self.notice(What::Layout, &dir, "not a file of fq");
                continue;
            }
            for entry in self.list(What::Manifest, &dir) {
                let path = dir.join(&entry.name);
                match layout::parse_job(&entry.name) {
                    Some(id) => self.manifest(id, &path),
                    None => {
                        self.notice(What::Layout, &path, "not a file of fq");
                    }
                }
                self.tick();
            }
        }
    }

    fn manifest(&mut self, id: JobId, path: &Path) {
        self.report.counts.manifests += 1;
        let is_known = self.state.as_ref().is_some_and(|s| s.knows(id));
        let manifest = match fs::read_all(self.fs, path).map(|bytes| record::from_document::<Manifest>(&bytes)) {
            Err(error) => {
                self.error(What::Manifest, path, error.to_string());
                return;
            }
            Ok(Err(BadRecord::Torn)) if !is_known => {
                self.notice(What::Manifest, path, "not finished: its `fq submit` still runs or was killed").hint =
                    Some(format!("`fq cancel {id}` gives the number up"));
                return;
            }
            Ok(Err(bad)) => {
                self.error(What::Manifest, path, bad.to_string());
                return;
            }
            Ok(Ok(manifest)) => manifest,
        };
        if manifest.job != id {
            self.error(What::Manifest, path, format!("it says that it is job {}", manifest.job));
        }
        if self.deep && self.is_kept(id) {
            let script = match manifest.command {
                Command::Script { bytes, .. } => Some(bytes),
                _ => None,
            };
            let refs = [manifest.entries, manifest.stdin, script].into_iter().flatten();
            self.refs.extend(refs.map(|r| (r, path.to_owned())));
        }
    }

    /// Whether the bytes that a job refers to have to be there; without a state nobody knows of a job that is not kept.
    fn is_kept(&self, id: JobId) -> bool {
        self.state.as_ref().is_none_or(|s| !s.pruned.contains(id.0) && !s.rejected.contains_key(&id))
    }

    fn journals(&mut self) {
        let state = self.state.take();
        let wanted = state.as_ref().map(State::wanted_ends);
        for entry in self.list(What::Journal, Path::new(layout::JOURNALS)) {
            let dir = Path::new(layout::JOURNALS).join(&entry.name);
            match entry.name.parse::<WorkerId>() {
                Ok(wid) => self.journal(&wid, &dir, wanted.as_ref()),
                Err(_) => {
                    self.notice(What::Layout, &dir, "not a file of fq");
                }
            }
            self.tick();
        }
        drop(wanted);
        self.state = state;
    }

    /// Reads a journal; `wanted` are the ends that matter, all if that is not known.
    fn journal(&mut self, wid: &WorkerId, dir: &Path, wanted: Option<&WantedEnds<'_>>) {
        self.report.counts.journals += 1;
        let mut seq = 0;
        let mut segments: Vec<(u64, String)> = Vec::new();
        for entry in self.list(What::Journal, dir) {
            match layout::parse_segment(&entry.name) {
                Some(number) => segments.push((number, entry.name)),
                None => {
                    self.notice(What::Layout, &dir.join(&entry.name), "not a file of fq");
                }
            }
        }
        segments.sort_unstable();
        for (_, name) in segments {
            let path = dir.join(&name);
            let bytes = match fs::read_all(self.fs, &path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.error(What::Journal, &path, error.to_string());
                    continue;
                }
            };
            let segment = inspect_segment(&bytes, seq);
            self.report.counts.lines += segment.line_count;
            for why in segment.damage {
                self.error(What::Journal, &path, why);
            }
            for (number, why) in segment.unknown {
                self.notice(What::Journal, &path, format!("line {number} is not understood: {why}"));
            }
            if seq == 0 && segment.owner.as_ref().is_some_and(|owner| owner != wid) {
                self.error(What::Journal, &path, "it is the journal of another worker");
            }
            if self.deep {
                // Of an end that was never accepted and never will be, collecting may have taken the values.
                let matters = |seq, job| wanted.is_none_or(|wanted| wanted.wants(wid, seq, job));
                let needed = segment.ends.into_iter().filter(|(seq, job, _)| matters(*seq, *job));
                self.refs.extend(needed.map(|(_, _, reference)| (reference, path.clone())));
            }
            seq = segment.seq;
        }
    }

    fn store(&mut self) {
        let found = {
            let Walk { fs, progress, report, .. } = self;
            inventory::take(*fs, &mut || progress(&report.counts))
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let path = error.path.clone();
                self.error(What::Object, &path, error.to_string());
                return;
            }
        };
        for path in &found.strangers {
            self.notice(What::Layout, path, "not a file of fq");
        }
        self.report.counts.objects += found.objects.len() as u64;
        self.report.counts.packs += found.packs.len() as u64;
        if self.deep {
            let sound = self.objects(&found);
            self.references(&sound, &found);
        }
    }

    /// Compares all bytes with their digests; returns what is right.
    fn objects(&mut self, found: &inventory::Inventory) -> Sound {
        let mut sound = Sound::default();
        for sha in &found.objects {
            let path = layout::object(sha);
            match digest_of(self.fs, &path) {
                Ok((found_sha, len)) if found_sha == *sha => {
                    sound.objects.insert(*sha, len);
                    self.report.counts.bytes_verified += len;
                }
                Ok((found_sha, len)) => {
                    let why = format!("damaged: {len} bytes with digest `{found_sha}`");
                    self.error(What::Object, &path, why).fix = Some(Fix::QuarantineObject(*sha));
                }
                // Collected since the inventory.
                Err(error) if error.not_found() => {}
                Err(error) => {
                    self.error(What::Object, &path, error.to_string());
                }
            }
            self.tick();
        }
        for pack in &found.packs {
            let path = Path::new(layout::PACKS).join(pack);
            match pack::walk(self.fs, pack, true) {
                Ok(contents) => {
                    self.report.counts.bytes_verified += contents.whole_bytes;
                    for item in contents.items {
                        if item.is_sound == Some(true) {
                            sound.packed.insert((pack.clone(), item.at), (item.sha, item.len));
                        } else {
                            let why = format!("the {} bytes at {} are damaged", item.len, item.at);
                            self.error(What::Object, &path, why);
                        }
                    }
                }
                Err(error) if error.not_found() => {}
                Err(error) => {
                    self.error(What::Object, &path, error.to_string());
                }
            }
            self.tick();
        }
        sound
    }

    fn references(&mut self, sound: &Sound, found: &inventory::Inventory) {
        for (reference, holder) in std::mem::take(&mut self.refs) {
            self.report.counts.references += 1;
            if sound.has(&reference) {
                continue;
            }
            // Made since the inventory, or really not there.
            if let Err(error) = store::verify(self.fs, &reference) {
                let file = store::file_of(&reference).unwrap_or_default();
                let in_trash = found.trash.iter().find(|(_, files)| files.contains(&file)).map(|(by, _)| *by);
                let is_missing = matches!(error, StoreError::Missing { .. });
                let problem = self.error(What::Reference, &holder, error.to_string());
                problem.fix =
                    in_trash.filter(|_| is_missing).map(|by| Fix::RestoreFromTrash { by, file: file.clone() });
            }
            self.tick();
        }
    }
}

/// What was compared and found right.
#[derive(Default)]
struct Sound {
    objects: BTreeMap<Digest, u64>,
    packed: BTreeMap<(String, u64), (Digest, u64)>,
}

impl Sound {
    fn has(&self, reference: &Ref) -> bool {
        match reference {
            Ref::Inline { .. } => true,
            Ref::Loose { sha, len } => self.objects.get(sha) == Some(len),
            Ref::Packed { sha, len, pack, at } => self.packed.get(&(pack.clone(), *at)) == Some(&(*sha, *len)),
        }
    }
}

/// All decision groups that are there.
struct Log {
    groups: BTreeMap<DecisionId, Group>,
    /// There, but not whole or not as the format says, with the reason. What that means depends on where the chain goes.
    bad: BTreeMap<DecisionId, BadGroup>,
}

/// A decision group that cannot be read.
struct BadGroup {
    why: String,
    /// As a master leaves it that is killed while it writes.
    is_torn: bool,
}

impl Log {
    fn read(walk: &mut Walk<'_>) -> Self {
        let mut log = Self { groups: BTreeMap::new(), bad: BTreeMap::new() };
        let listed = gc::list_decisions(walk.fs, &mut || {});
        let ids = match listed {
            Ok(ids) => ids,
            Err(error) => {
                walk.error(What::Decision, Path::new(layout::LOG), error.to_string());
                return log;
            }
        };
        for id in ids {
            let path = layout::decision(id);
            match fs::read_all(walk.fs, &path).map(|bytes| decision::decode_group(&bytes)) {
                Ok(Ok(group)) if group.header.id == id => {
                    log.groups.insert(id, group);
                }
                Ok(Ok(group)) => {
                    log.put_bad(id, format!("it says that it is `{}`", group.header.id), false);
                }
                Ok(Err(bad)) => log.put_bad(id, bad.to_string(), bad == BadRecord::Torn),
                Err(error) => log.put_bad(id, error.to_string(), false),
            }
            walk.tick();
        }
        log
    }

    fn put_bad(&mut self, id: DecisionId, why: String, is_torn: bool) {
        self.bad.insert(id, BadGroup { why, is_torn });
    }
}

/// What one segment of a journal holds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Segment {
    /// Valid lines, repeats of earlier segments included.
    pub(crate) line_count: u64,
    /// The number of the last valid line, or what it was before.
    pub(crate) seq: u64,
    /// Whose journal it says it is.
    pub(crate) owner: Option<WorkerId>,
    /// Bad lines with valid ones after them, and gaps.
    pub(crate) damage: Vec<String>,
    /// Whole lines that are not understood.
    pub(crate) unknown: Vec<(u64, String)>,
    /// Outputs of ended attempts, with the numbers of their lines.
    pub(crate) ends: Vec<(u64, JobId, Ref)>,
    /// Decisions that it acted upon.
    pub(crate) acted_on: BTreeSet<DecisionId>,
}

/// Reads a segment whose predecessor ended with line `seq`. A bad end is no damage: it was never promised.
pub(crate) fn inspect_segment(bytes: &[u8], seq: u64) -> Segment {
    let mut found = Segment { seq, ..Segment::default() };
    let mut bad_at = None;
    let mut offset = 0;
    for line in bytes.split_inclusive(|&b| b == b'\n') {
        let at = offset;
        offset += line.len();
        let Some((number, text)) = frame::open_line(line) else {
            bad_at.get_or_insert(at);
            continue;
        };
        if let Some(from) = bad_at.take() {
            found.damage.push(format!("the bytes from {from} to {at} are no valid lines, but valid ones follow"));
        } else if number > found.seq + 1 {
            found.damage.push(format!("lines {} to {} are missing", found.seq + 1, number - 1));
        }
        found.line_count += 1;
        found.seq = found.seq.max(number);
        match serde_json::from_str::<Line>(text) {
            Ok(Line::Open { wid }) => found.owner = Some(wid),
            Ok(Line::Got { by, .. } | Line::Claim { by, .. }) => {
                found.acted_on.insert(by);
            }
            Ok(Line::End(end)) => found.ends.extend([end.out, end.err].map(|value| (number, end.a.task.job, value))),
            Ok(_) => {}
            Err(error) => found.unknown.push((number, error.to_string())),
        }
    }
    found
}

fn digest_of(fs: &dyn Fs, path: &Path) -> Result<(Digest, u64), FsError> {
    let mut file = fs.open(path)?;
    let mut hasher = crate::protocol::digest::Hasher::default();
    let len = store::get::read_range(&mut *file, 0, u64::MAX, &mut |bytes| hasher.update(bytes))?;
    Ok((hasher.finish(), len))
}

/// An error and its causes in one line.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests;
