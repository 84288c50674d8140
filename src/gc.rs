//! Collecting what nobody needs any more: plans as pure functions of records, and the steps that carry them out.
//!
//! The master alone carries plans out, in its own term, on its janitor thread (spec: ordering, "Collecting"):
//!
//! 1. two inventories, `gc_wait_ms` apart; [`candidates`] are files that no root needs and that were there in both;
//! 2. [`prepare`] the trash directory of a decision to be made, commit `quarantine`, then [`quarantine`];
//! 3. `gc_wait_ms` later commit `purge`, then [`purge`], which reads the roots again.
//!
//! Invariants:
//! - A file that a root needs is never removed: at every step it stays where it is, or goes back.
//! - A file is removed under a name that only the purge knows and that was given *before* the roots were read, so that what a
//!   late rename brings into the trash meanwhile is not removed with it.
//! - Only names inside the trash directory of one decision are removed. That directory is made before its decision is bound and
//!   never after, so a late rename of a deposed master fails instead of filling it again.
//! - No time stamp of a file is looked at.
//! - Every step may be repeated, and stopped anywhere: what was not moved is a candidate of the next round, and a trash
//!   directory of no known decision is given back whole ([`orphans`]).

mod plan;
mod survey;
mod tidy;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::fs::{Entry, EntryKind, ErrorKind, Fs, FsError};
use crate::protocol::digest::Digest;
use crate::protocol::id::{DecisionId, JobId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{Ref, SnapshotRef};
use crate::store;
use crate::store::inventory::Inventory;

pub use plan::{Keep, Plan, old_jobs, plan};
pub use survey::{Needed, Survey, Unsure, needed, survey};
pub use tidy::{Tidied, tidy_log, tidy_workers};

/// The store files that references need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    objects: BTreeSet<Digest>,
    packs: BTreeSet<String>,
}

impl Roots {
    /// Adds the file that holds the bytes of `reference`.
    pub fn add(&mut self, reference: &Ref) {
        match reference {
            Ref::Inline { .. } => {}
            Ref::Loose { sha, .. } => {
                self.objects.insert(*sha);
            }
            Ref::Packed { pack, .. } => {
                self.packs.insert(pack.clone());
            }
        }
    }

    /// Whether the store file with this name is needed; names that are none of the store's are.
    pub fn need(&self, file: &str) -> bool {
        match file.parse::<Digest>() {
            Ok(digest) => self.objects.contains(&digest),
            Err(_) => self.packs.contains(file) || layout::parse_pack(file).is_none(),
        }
    }
}

impl<'a> FromIterator<&'a Ref> for Roots {
    fn from_iter<I: IntoIterator<Item = &'a Ref>>(references: I) -> Self {
        let mut roots = Self::default();
        references.into_iter().for_each(|reference| roots.add(reference));
        roots
    }
}

/// What two inventories and the roots say can go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Names of objects and packs, for a `quarantine` decision.
    pub files: Vec<String>,
    /// Temporary files whose writers are long gone; removed without a decision, since nobody ever had their names.
    pub temps: Vec<PathBuf>,
}

/// Finds the files that were there in both inventories, taken long enough apart, and that `roots` do not need.
///
/// `roots` have to be read after the second inventory. Packs of `living` processes are left alone, which may be appending to them.
pub fn candidates(first: &Inventory, second: &Inventory, roots: &Roots, living: &BTreeSet<WorkerId>) -> Candidates {
    let objects = first.objects.intersection(&second.objects);
    let objects = objects.filter(|digest| !roots.objects.contains(digest)).map(ToString::to_string);
    let is_living = |pack: &str| layout::parse_pack(pack).is_none_or(|(creator, _)| living.contains(&creator));
    let packs = first.packs.intersection(&second.packs);
    let packs = packs.filter(|pack| !roots.packs.contains(*pack) && !is_living(pack)).cloned();
    Candidates {
        files: objects.chain(packs).collect(),
        temps: first.temps.intersection(&second.temps).cloned().collect(),
    }
}

/// The trash directories that no decision in force knows: of a purge that stopped half-way, a quarantine that was never bound, or
/// one that a roll-back took away. [`give_back`] moves all of it back.
pub fn orphans(found: &Inventory, known: impl Fn(DecisionId) -> bool) -> Vec<DecisionId> {
    found.trash.keys().copied().filter(|by| !known(*by)).collect()
}

/// Makes the trash directory of decision `by`, before that decision is bound.
pub fn prepare(fs: &dyn Fs, by: DecisionId) -> Result<(), FsError> {
    match fs.mkdir(&layout::trash(by)) {
        Err(error) if error.kind != ErrorKind::Exists => return Err(error),
        _ => {}
    }
    fs.sync_dir(Path::new(layout::TRASH))
}

/// Moves `files` to the trash directory of the bound decision `by`; returns how many were moved.
///
/// Files that are not there are skipped. Fails where the trash directory is not there (any more).
pub fn quarantine(fs: &dyn Fs, by: DecisionId, files: &[String]) -> Result<usize, FsError> {
    fs.list(&layout::trash(by))?;
    let mut moved = 0;
    for file in files {
        let (Some(from), Some(to)) = (store::path_of(file), store::trash_path_of(by, file)) else { continue };
        match fs.rename(&from, &to) {
            Ok(()) => moved += 1,
            Err(error) if error.not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(moved)
}

/// Moves one file back from the trash of `by`; returns whether it was there.
pub fn restore(fs: &dyn Fs, by: DecisionId, file: &str) -> Result<bool, FsError> {
    bring_back(fs, &layout::trash(by).join(file), file)
}

/// What [`purge`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purged {
    /// Files that are gone for good.
    pub removed: Vec<String>,
    /// Files that are needed again and went back.
    pub restored: Vec<String>,
    /// Names that are none of the store's; they stay, and so does the directory.
    pub left: Vec<String>,
}

/// What the name of a file in the trash ends with while it is about to be removed.
const DOOMED: &str = ".doomed";

/// Empties the trash of `by`: sets each file aside, then reads `roots`, then removes it or moves it back; then removes the
/// directory.
///
/// A directory that is not there is done. What stays after an error, [`give_back`] moves back.
pub fn purge<E: From<FsError>>(
    fs: &dyn Fs,
    by: DecisionId,
    roots: &mut dyn FnMut() -> Result<Roots, E>,
) -> Result<Purged, E> {
    let mut done = Purged::default();
    let dir = layout::trash(by);
    let Some(names) = list_if_there(fs, &dir)? else { return Ok(done) };
    let mut doomed = Vec::new();
    for entry in names {
        let file = entry.name.strip_suffix(DOOMED).unwrap_or(&entry.name);
        if entry.kind != EntryKind::File || store::path_of(file).is_none() {
            done.left.push(entry.name);
            continue;
        }
        if file == entry.name {
            match fs.rename(&dir.join(file), &dir.join(format!("{file}{DOOMED}"))) {
                Err(error) if !error.not_found() => return Err(error.into()),
                _ => {}
            }
        }
        doomed.push(file.to_owned());
    }
    let roots = if doomed.is_empty() { Roots::default() } else { roots()? };
    for file in doomed {
        let aside = dir.join(format!("{file}{DOOMED}"));
        if !roots.need(&file) {
            unlink(fs, &aside)?;
            done.removed.push(file);
        } else if bring_back(fs, &aside, &file)? {
            done.restored.push(file);
        }
    }
    if done.left.is_empty() {
        remove_dir(fs, &dir)?;
    }
    Ok(done)
}

/// Moves everything in the trash of `by` back and removes the directory; returns how many files went back.
pub fn give_back(fs: &dyn Fs, by: DecisionId) -> Result<usize, FsError> {
    let dir = layout::trash(by);
    let mut count = 0;
    for entry in list_if_there(fs, &dir)?.unwrap_or_default() {
        let file = entry.name.strip_suffix(DOOMED).unwrap_or(&entry.name);
        count += usize::from(entry.kind == EntryKind::File && bring_back(fs, &dir.join(&entry.name), file)?);
    }
    remove_dir(fs, &dir)?;
    Ok(count)
}

fn bring_back(fs: &dyn Fs, from: &Path, file: &str) -> Result<bool, FsError> {
    let Some(to) = store::path_of(file) else { return Ok(false) };
    match fs.rename(from, &to) {
        Ok(()) => Ok(true),
        Err(error) if error.not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn list_if_there(fs: &dyn Fs, dir: &Path) -> Result<Option<Vec<Entry>>, FsError> {
    match fs.list(dir) {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which decision groups can go, of those `listed` in `decisions/log`.
///
/// `chain` holds bound decisions from some generation up to the settled head, without gaps; `snapshots` are the newest two that
/// decisions made known. What goes: everything below the older of two snapshots, and candidates that the chain excludes.
/// A candidate above the head may still be bound and stays.
pub fn decisions_to_drop(
    listed: &[DecisionId],
    chain: &BTreeSet<DecisionId>,
    snapshots: &[SnapshotRef],
) -> Vec<DecisionId> {
    let (Some(first), Some(head)) = (chain.first(), chain.last()) else { return Vec::new() };
    let horizon = horizon(snapshots).min(head.generation);
    let is_excluded =
        |id: &DecisionId| (first.generation..=head.generation).contains(&id.generation) && !chain.contains(id);
    listed.iter().copied().filter(|id| id.generation < horizon || is_excluded(id)).collect()
}

/// The generation below which nothing is needed: that of the older of the two newest snapshots; 0 if there are not two.
fn horizon(snapshots: &[SnapshotRef]) -> u64 {
    match snapshots {
        [.., older, newer] => older.at.generation.min(newer.at.generation),
        _ => 0,
    }
}

/// Which snapshots can go, of those `listed`: those older than the newest two that decisions made known.
pub fn snapshots_to_drop(listed: &[DecisionId], snapshots: &[SnapshotRef]) -> Vec<DecisionId> {
    let horizon = horizon(snapshots);
    listed.iter().copied().filter(|id| id.generation < horizon).collect()
}

/// Which beacons can go, of those `listed`: those of terms that are over.
pub fn beacons_to_drop(listed: &[(u64, DecisionId)], term: u64) -> Vec<(u64, DecisionId)> {
    listed.iter().copied().filter(|(of, _)| *of < term).collect()
}

/// Which messages in a mailbox can go: those that the worker has taken, by a line of its journal that was read.
pub fn mail_to_drop(listed: &[(u64, DecisionId)], acknowledged: u64) -> Vec<(u64, DecisionId)> {
    listed.iter().copied().filter(|(number, _)| *number <= acknowledged).collect()
}

/// Which buckets of `jobs/` can go: whole full ones whose jobs are all `forgotten`, never the newest.
///
/// `listed` are the names found in each bucket; a name that is no job keeps its bucket, as does a number that never was a job,
/// since a submitter may still be about to bind it. Forgotten numbers may be missing: a removal stopped half-way goes on.
pub fn job_buckets_to_drop(listed: &BTreeMap<u64, Vec<String>>, forgotten: impl Fn(JobId) -> bool) -> Vec<u64> {
    let newest = listed.keys().next_back().copied();
    let is_over = |(bucket, names): (&u64, &Vec<String>)| {
        let mut numbers = (bucket * layout::BUCKET).max(1)..(bucket + 1) * layout::BUCKET;
        names.iter().all(|name| layout::parse_job(name).is_some()) && numbers.all(|n| forgotten(JobId(n)))
    };
    let over = listed.iter().filter(|(bucket, _)| Some(**bucket) != newest).filter(|pair| is_over(*pair));
    over.map(|(bucket, _)| *bucket).collect()
}

/// Which workers' namespaces and journals can go: those that the state does not know (any more), and whose journals have not
/// grown from one inventory to the other.
///
/// `first` and `second` are [`journal_bytes`] taken long enough apart. A worker that has just come and is not admitted yet is
/// in the second only, or beats.
pub fn workers_to_drop(
    first: &BTreeMap<WorkerId, u64>,
    second: &BTreeMap<WorkerId, u64>,
    known: impl Fn(&WorkerId) -> bool,
) -> Vec<WorkerId> {
    let silent = second.iter().filter(|(wid, len)| first.get(*wid) == Some(*len));
    silent.map(|(wid, _)| wid).filter(|wid| !known(wid)).cloned().collect()
}

/// The total length of each worker's journal, 0 for a namespace without one; calls `pace` before each worker.
pub fn journal_bytes(fs: &dyn Fs, pace: &mut dyn FnMut()) -> Result<BTreeMap<WorkerId, u64>, FsError> {
    let named = |dir: &str| -> Result<Vec<WorkerId>, FsError> {
        Ok(fs.list(Path::new(dir))?.iter().filter_map(|e| e.name.parse().ok()).collect())
    };
    let mut found: BTreeMap<WorkerId, u64> = named(layout::WORKERS)?.into_iter().map(|wid| (wid, 0)).collect();
    // A journal is not looked up before a listing shows it: this host could not read it for a minute once it is there.
    let journals = named(layout::JOURNALS)?;
    found.extend(journals.iter().map(|wid| (wid.clone(), 0)));
    for (wid, len) in found.iter_mut().filter(|(wid, _)| journals.contains(wid)) {
        pace();
        let dir = layout::journal(wid);
        let segments = match fs.list(&dir) {
            Ok(segments) => segments,
            Err(error) if error.not_found() => continue,
            Err(error) => return Err(error),
        };
        for segment in segments.iter().filter(|e| e.kind == EntryKind::File) {
            match fs.open(&dir.join(&segment.name)).and_then(|file| file.stat()) {
                Ok(stat) => *len += stat.len,
                Err(error) if error.not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

/// Removes a worker's journal and its namespace.
pub fn remove_worker(fs: &dyn Fs, wid: &WorkerId) -> Result<(), FsError> {
    remove_tree(fs, &layout::journal(wid))?;
    remove_tree(fs, &layout::worker(wid))
}

/// Removes a bucket of `jobs/` that [`job_buckets_to_drop`] named.
pub fn remove_job_bucket(fs: &dyn Fs, bucket: u64) -> Result<(), FsError> {
    remove_tree(fs, &Path::new(layout::JOBS).join(layout::bucket(bucket * layout::BUCKET)))
}

/// The names in every bucket of `jobs/`.
pub fn list_job_buckets(fs: &dyn Fs, pace: &mut dyn FnMut()) -> Result<BTreeMap<u64, Vec<String>>, FsError> {
    let mut found = BTreeMap::new();
    for bucket in fs.list(Path::new(layout::JOBS))? {
        let Ok(number) = bucket.name.parse::<u64>() else { continue };
        pace();
        let names = fs.list(&Path::new(layout::JOBS).join(&bucket.name))?;
        found.insert(number, names.into_iter().map(|e| e.name).collect());
    }
    Ok(found)
}

/// All groups in `decisions/log`, bound or not.
pub fn list_decisions(fs: &dyn Fs, pace: &mut dyn FnMut()) -> Result<Vec<DecisionId>, FsError> {
    let mut found = Vec::new();
    for bucket in fs.list(Path::new(layout::LOG))? {
        pace();
        match fs.list(&Path::new(layout::LOG).join(&bucket.name)) {
            Ok(names) => found.extend(names.iter().filter_map(|e| layout::parse_decision(&e.name))),
            Err(error) if error.not_found() || error.kind == ErrorKind::Planted => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes decision groups, and their buckets below the newest of them once they are empty.
pub fn remove_decisions(fs: &dyn Fs, ids: &[DecisionId]) -> Result<(), FsError> {
    for id in ids {
        unlink(fs, &layout::decision(*id))?;
    }
    let newest = ids.iter().map(|id| id.generation / layout::BUCKET).max();
    let buckets: BTreeSet<u64> = ids.iter().map(|id| id.generation / layout::BUCKET).collect();
    for bucket in buckets.into_iter().filter(|bucket| Some(*bucket) != newest) {
        match fs.rmdir(&layout::decision_bucket(bucket * layout::BUCKET)) {
            Err(error) if error.kind != ErrorKind::Exists && !error.not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes files whose names are never used again; those that are gone are fine.
pub fn remove_files(fs: &dyn Fs, paths: &[PathBuf]) -> Result<(), FsError> {
    paths.iter().try_for_each(|path| unlink(fs, path))
}

fn unlink(fs: &dyn Fs, path: &Path) -> Result<(), FsError> {
    match fs.unlink(path) {
        Err(error) if !error.not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Removes an empty directory. A name that came into it meanwhile keeps it, for the next round to see.
fn remove_dir(fs: &dyn Fs, dir: &Path) -> Result<(), FsError> {
    match fs.rmdir(dir) {
        Err(error) if error.kind != ErrorKind::Exists && !error.not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Removes a directory and what is in it, as long as that is files and directories.
///
/// The highest names go first: what is left of a journal when this is cut short is a journal that was cut short.
fn remove_tree(fs: &dyn Fs, dir: &Path) -> Result<(), FsError> {
    let mut entries = list_if_there(fs, dir)?.unwrap_or_default();
    entries.sort_by(|a, b| b.name.cmp(&a.name));
    for entry in entries {
        let path = dir.join(&entry.name);
        match entry.kind {
            EntryKind::File => unlink(fs, &path)?,
            EntryKind::Dir => remove_tree(fs, &path)?,
            EntryKind::Other => {}
        }
    }
    remove_dir(fs, dir)
}

#[cfg(test)]
mod tests;
