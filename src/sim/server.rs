//! The shared file system: inodes and directories as the server has them in memory, and what of them is on its disk.
//!
//! Invariants:
//! - Files only grow. Of each the first `durable` bytes survive a power loss, the first `at_server` are visible to all hosts,
//!   the rest lies in the page cache of the one host that writes it.
//! - The journal holds, in order, the changes of names that are not durable yet. A power loss undoes some of them from the
//!   newest backwards: all after one point, or, per directory, all after a point of its own.
//! - Inode numbers are never used twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::profile::{Commit, Journal, Profile};
use super::seed::Seed;

/// The inode of the queue directory itself.
pub(super) const ROOT: u64 = 0;

/// Everything belongs to one user.
pub(super) const USER: u32 = 1000;

/// How a file is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Birth {
    pub(super) mode: u32,
    /// The request.
    pub(super) maker: u64,
    pub(super) host: u32,
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) node: Node,
    pub(super) mode: u32,
    pub(super) uid: u32,
    /// Names that lead to it in memory.
    pub(super) nlink: u32,
    /// Handles open on it.
    pub(super) opens: u32,
    /// The request that made it, by which a repeated exclusive create is recognised.
    pub(super) maker: u64,
    /// Until then other hosts wait for its name.
    pub(super) stalled_until: u64,
    /// Who made or moved it last.
    pub(super) stalled_by: u32,
}

#[derive(Debug)]
pub(super) enum Node {
    File(File),
    Dir(Dir),
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) data: Vec<u8>,
    pub(super) at_server: usize,
    pub(super) durable: usize,
    /// Lengths that the client believes synced and when, where the server writes later.
    pub(super) marks: Vec<(u64, usize)>,
    pub(super) writer_host: u32,
    /// Hosts that hold a read delegation.
    pub(super) delegated: Vec<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Dir {
    pub(super) entries: BTreeMap<String, u64>,
    /// Changes so far.
    pub(super) version: u64,
    /// Server time of the last change.
    pub(super) changed_at: u64,
    /// Source names of renames between their two steps, with the request.
    pub(super) moving: BTreeMap<String, u64>,
    /// Hosts that have used this directory since it was last taken from them.
    pub(super) users: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
enum Change {
    Made { dir: u64, name: String },
    Removed { dir: u64, name: String, ino: u64 },
    Renamed { from: (u64, String), to: (u64, String), ino: u64, replaced: Option<u64> },
}

impl Change {
    /// Whether it gives or takes `name` in `dir`.
    fn makes(&self, dir: u64, name: &str) -> bool {
        let (at, changed) = match self {
            Self::Made { dir, name } | Self::Removed { dir, name, .. } => (*dir, name),
            Self::Renamed { to, .. } => (to.0, &to.1),
        };
        at == dir && changed == name
    }

    fn dirs(&self) -> (u64, u64) {
        match self {
            Self::Made { dir, .. } | Self::Removed { dir, .. } => (*dir, *dir),
            Self::Renamed { from, to, .. } => (from.0, to.0),
        }
    }
}

#[derive(Debug)]
struct Record {
    at: u64,
    /// The host that asked for it.
    host: u32,
    change: Change,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) process: u32,
    pub(super) host: u32,
    pub(super) id: u64,
}

#[derive(Debug)]
pub(super) struct Server {
    inodes: Vec<Inode>,
    journal: VecDeque<Record>,
    order: Journal,
    commit: Commit,
    flush: u64,
    unstable: BTreeSet<u64>,
    /// The host whose request is being executed.
    pub(super) acting: u32,
    pub(super) locks: BTreeMap<(u64, u32), Hold>,
    pub(super) is_up: bool,
    /// Until then no new lock is given, so that those of before the restart can be reclaimed.
    pub(super) grace_until: u64,
    pub(super) is_full: bool,
    /// Requests that wait for the server to come up.
    pub(super) held: Vec<u64>,
}

pub(super) type Errno = i32;

impl Server {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut server = Self {
            inodes: Vec::new(),
            journal: VecDeque::new(),
            order: profile.journal,
            commit: profile.commit,
            flush: profile.flush,
            unstable: BTreeSet::new(),
            acting: u32::MAX,
            locks: BTreeMap::new(),
            is_up: true,
            grace_until: 0,
            is_full: false,
            held: Vec::new(),
        };
        let root = server.make(Node::Dir(Dir::default()), 0o777, 0);
        server.inodes[root as usize].nlink = 1;
        server
    }

    fn make(&mut self, node: Node, mode: u32, maker: u64) -> u64 {
        let inode = Inode { node, mode, uid: USER, nlink: 0, opens: 0, maker, stalled_until: 0, stalled_by: 0 };
        self.inodes.push(inode);
        self.inodes.len() as u64 - 1
    }

    pub(super) fn inode(&self, ino: u64) -> &Inode {
        &self.inodes[ino as usize]
    }

    pub(super) fn inode_mut(&mut self, ino: u64) -> &mut Inode {
        &mut self.inodes[ino as usize]
    }

    pub(super) fn dir(&self, ino: u64) -> Result<&Dir, Errno> {
        match &self.inode(ino).node {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(libc::ENOTDIR),
        }
    }

    pub(super) fn dir_mut(&mut self, ino: u64) -> Option<&mut Dir> {
        match &mut self.inode_mut(ino).node {
            Node::Dir(dir) => Some(dir),
            Node::File(_) => None,
        }
    }

    pub(super) fn file(&self, ino: u64) -> Option<&File> {
        match &self.inode(ino).node {
            Node::File(file) => Some(file),
            Node::Dir(_) => None,
        }
    }

    pub(super) fn file_mut(&mut self, ino: u64) -> Option<&mut File> {
        match &mut self.inode_mut(ino).node {
            Node::File(file) => Some(file),
            Node::Dir(_) => None,
        }
    }

    pub(super) fn is_dir(&self, ino: u64) -> bool {
        matches!(self.inode(ino).node, Node::Dir(_))
    }

    pub(super) fn entry(&self, dir: u64, name: &str) -> Option<u64> {
        self.dir(dir).ok().and_then(|d| d.entries.get(name).copied())
    }

    /// The inode at `path` without any cache.
    pub(super) fn walk(&self, path: &str) -> Option<u64> {
        path.split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .try_fold(ROOT, |dir, name| self.entry(dir, name))
    }

    fn put(&mut self, dir: u64, name: &str, ino: Option<u64>, now: u64) {
        let Some(d) = self.dir_mut(dir) else { return };
        let old = match ino {
            Some(ino) => d.entries.insert(name.to_owned(), ino),
            None => d.entries.remove(name),
        };
        d.version += 1;
        d.changed_at = now;
        if let Some(old) = old {
            let inode = self.inode_mut(old);
            inode.nlink = inode.nlink.saturating_sub(1);
        }
        if let Some(ino) = ino {
            self.inode_mut(ino).nlink += 1;
        }
    }

    fn log(&mut self, at: u64, change: Change) {
        self.journal.push_back(Record { at, host: self.acting, change });
        while self.journal.front().is_some_and(|record| record.at + self.flush < at) {
            if let Some(record) = self.journal.pop_front() {
                self.forget(&record.change);
            }
        }
    }

    /// Frees the bytes of an inode whose removal is durable.
    fn forget(&mut self, change: &Change) {
        let gone = match change {
            Change::Removed { ino, .. } => Some(*ino),
            Change::Renamed { replaced, .. } => *replaced,
            Change::Made { .. } => None,
        };
        if let Some(ino) = gone
            && self.inode(ino).nlink == 0
            && self.inode(ino).opens == 0
            && let Some(file) = self.file_mut(ino)
        {
            *file = File::default();
            self.unstable.remove(&ino);
        }
    }

    pub(super) fn create(&mut self, dir: u64, name: &str, birth: Birth, now: u64) -> u64 {
        let file = File { writer_host: birth.host, ..File::default() };
        let ino = self.make(Node::File(file), birth.mode, birth.maker);
        self.add(dir, name, ino, now);
        ino
    }

    pub(super) fn mkdir(&mut self, dir: u64, name: &str, maker: u64, now: u64) -> u64 {
        let ino = self.make(Node::Dir(Dir { changed_at: now, ..Dir::default() }), 0o777, maker);
        self.add(dir, name, ino, now);
        ino
    }

    /// Gives `ino` one more name, which must be free.
    pub(super) fn add(&mut self, dir: u64, name: &str, ino: u64, now: u64) {
        self.put(dir, name, Some(ino), now);
        self.log(now, Change::Made { dir, name: name.to_owned() });
    }

    pub(super) fn remove(&mut self, dir: u64, name: &str, now: u64) {
        if let Some(ino) = self.entry(dir, name) {
            self.put(dir, name, None, now);
            self.log(now, Change::Removed { dir, name: name.to_owned(), ino });
        }
    }

    pub(super) fn rename(&mut self, from: (u64, &str), to: (u64, &str), now: u64) {
        let Some(ino) = self.entry(from.0, from.1) else { return };
        let replaced = self.entry(to.0, to.1);
        self.put(from.0, from.1, None, now);
        self.put(to.0, to.1, Some(ino), now);
        let (from, to) = ((from.0, from.1.to_owned()), (to.0, to.1.to_owned()));
        self.log(now, Change::Renamed { from, to, ino, replaced });
    }

    /// Makes the names in `dir` durable, and whatever the journal writes with them.
    pub(super) fn commit_names(&mut self, dir: u64) {
        let mut touched = BTreeSet::from([dir]);
        let mut kept = VecDeque::new();
        while let Some(record) = self.journal.pop_back() {
            let (a, b) = record.change.dirs();
            if self.order == Journal::Ordered || touched.contains(&a) || touched.contains(&b) {
                touched.insert(a);
                touched.insert(b);
                self.forget(&record.change);
            } else {
                kept.push_front(record);
            }
        }
        self.journal = kept;
    }

    /// Appends to the writer's page cache.
    pub(super) fn append(&mut self, ino: u64, offset: usize, bytes: &[u8], shared: bool) {
        if let Some(file) = self.file_mut(ino) {
            // After a rollback of the server the file is shorter than its writer knows: the gap reads as NUL.
            if file.data.len() < offset {
                file.data.resize(offset, 0);
            }
            file.data.truncate(offset);
            file.data.extend_from_slice(bytes);
            if shared {
                file.at_server = file.data.len();
            }
            self.unstable.insert(ino);
        }
    }

    /// Brings the writer's page cache to the server, without a promise.
    pub(super) fn write_back(&mut self, ino: u64) {
        if let Some(file) = self.file_mut(ino) {
            file.at_server = file.data.len();
        }
    }

    /// Makes durable what has reached the server of a file, whoever asks.
    pub(super) fn sync_seen(&mut self, ino: u64) {
        let commit = self.commit;
        if let Some(file) = self.file_mut(ino).filter(|_| commit != Commit::Later) {
            file.durable = file.durable.max(file.at_server.min(file.data.len()));
            if file.durable == file.data.len() {
                self.unstable.remove(&ino);
            }
        }
    }

    pub(super) fn sync(&mut self, ino: u64, now: u64) {
        let (commit, flush) = (self.commit, self.flush);
        if let Some(file) = self.file_mut(ino) {
            file.at_server = file.data.len();
            if commit == Commit::Later {
                let settled = file.marks.iter().take_while(|(at, _)| at + flush <= now).count();
                if let Some((_, len)) = file.marks.drain(..settled).next_back() {
                    file.durable = file.durable.max(len);
                }
                file.marks.push((now, file.data.len()));
            } else {
                file.durable = file.data.len();
                self.unstable.remove(&ino);
            }
        }
    }

    /// Drops what the writer has in its page cache only.
    pub(super) fn lose_cache(&mut self, host: u32) -> usize {
        let mut lost = 0;
        for ino in self.unstable.clone() {
            if let Some(file) = self.file_mut(ino)
                && file.writer_host == host
                && file.at_server < file.data.len()
            {
                lost += file.data.len() - file.at_server;
                file.data.truncate(file.at_server);
            }
        }
        lost
    }

    /// Drops the unsynced bytes of one file.
    pub(super) fn lose_unsynced(&mut self, ino: u64) {
        if let Some(file) = self.file_mut(ino) {
            let keep = file.at_server.max(file.durable);
            file.data.truncate(keep);
        }
    }

    /// Cuts the power: keeps what is durable and, by chance, some of the rest. `resends` says of which hosts the page caches
    /// outlive it, `replays` of which hosts also the changes of names do, with all that came before. Returns how many changes
    /// of names were lost.
    pub(super) fn lose_power(
        &mut self,
        now: u64,
        seed: &mut Seed,
        resends: &dyn Fn(u32) -> bool,
        replays: &dyn Fn(u32) -> bool,
    ) -> usize {
        let mut records: Vec<Record> = Vec::new();
        let mut safe = BTreeSet::new();
        let mut all_safe = false;
        while let Some(record) = self.journal.pop_back() {
            let (a, b) = record.change.dirs();
            let depended_on = match self.order {
                Journal::Ordered => all_safe,
                Journal::PerDirectory => safe.contains(&a) || safe.contains(&b),
            };
            if depended_on || replays(record.host) || record.at + self.flush < now {
                all_safe = true;
                safe.extend([a, b]);
            } else {
                records.push(record);
            }
        }
        records.reverse();
        let mut cut_at = now;
        let mut lost = Vec::new();
        match self.order {
            Journal::Ordered => {
                // Everything, nothing, or any point between, each often enough to be met.
                let kept = match seed.below(4) {
                    0 => 0,
                    1 => records.len(),
                    _ => seed.below(records.len() as u64 + 1) as usize,
                };
                if let Some(record) = records.get(kept) {
                    cut_at = record.at;
                }
                lost.extend(records.into_iter().skip(kept).map(|record| record.change));
            }
            Journal::PerDirectory => {
                let permille = [0, 100, 500, 1000][seed.below(4) as usize];
                let mut dirs = BTreeSet::new();
                for record in records {
                    let (a, b) = record.change.dirs();
                    if dirs.contains(&a) || dirs.contains(&b) || seed.happens(permille) {
                        dirs.insert(a);
                        dirs.insert(b);
                        lost.push(record.change);
                    }
                }
            }
        }
        for change in lost.iter().rev() {
            match change {
                Change::Made { dir, name } => self.put(*dir, name, None, now),
                Change::Removed { dir, name, ino } => self.put(*dir, name, Some(*ino), now),
                Change::Renamed { from, to, ino, replaced } => {
                    self.put(to.0, &to.1, *replaced, now);
                    self.put(from.0, &from.1, Some(*ino), now);
                }
            }
        }
        self.lose_bytes(cut_at, seed, resends);
        lost.len()
    }

    fn lose_bytes(&mut self, cut_at: u64, seed: &mut Seed, resends: &dyn Fn(u32) -> bool) {
        let (commit, flush) = (self.commit, self.flush);
        for ino in std::mem::take(&mut self.unstable) {
            let Some(file) = self.file_mut(ino) else { continue };
            if commit == Commit::Later {
                let settled = file.marks.iter().take_while(|(at, _)| at + flush / 2 <= cut_at || *at < cut_at).last();
                file.durable = file.durable.max(settled.map_or(0, |(_, len)| *len)).min(file.data.len());
                file.marks.clear();
                file.data.truncate(file.durable);
                file.at_server = file.durable;
                continue;
            }
            let durable = file.durable.min(file.data.len());
            if resends(file.writer_host) {
                // The client still has the bytes and writes them again.
                file.at_server = file.at_server.min(file.data.len());
                self.unstable.insert(ino);
                continue;
            }
            let loose = (file.at_server.min(file.data.len()) - durable) as u64;
            let kept = durable + seed.below(loose + 1) as usize;
            let len = kept + seed.below(loose + 1 - (kept - durable) as u64) as usize;
            file.data.truncate(kept);
            // The length reached the disk, the bytes did not.
            if seed.happens(300) {
                file.data.resize(len, 0);
            }
            file.at_server = file.data.len();
            file.durable = file.data.len();
        }
    }

    /// Makes one file durable with its name.
    pub(super) fn make_durable(&mut self, ino: u64, dir: u64) {
        if let Some(file) = self.file_mut(ino) {
            file.at_server = file.data.len();
            file.durable = file.data.len();
        }
        self.unstable.remove(&ino);
        self.commit_names(dir);
    }

    /// Whether a power loss now would leave `path`, and a file whole.
    pub(super) fn is_durable(&self, path: &str, now: u64) -> bool {
        let Some(at) = self.named_durably(path, now) else { return false };
        let settled = |file: &File| {
            let mark = file.marks.iter().rfind(|(marked, _)| marked + self.flush <= now).map_or(0, |(_, len)| *len);
            file.durable.max(mark) >= file.data.len()
        };
        self.file(at).is_none_or(settled)
    }

    /// What is at `path`, if a power loss now would leave it there.
    pub(super) fn named_durably(&self, path: &str, now: u64) -> Option<u64> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let loose = self.journal.iter().filter(|record| record.at + self.flush >= now);
            let touching: Vec<&Change> = loose.map(|record| &record.change).filter(|c| c.makes(at, part)).collect();
            let there = self.entry(at, part)?;
            match touching.as_slice() {
                [] => {}
                // Replaced by the same bytes: one or the other is left.
                [Change::Renamed { replaced: Some(old), .. }] if self.is_same_file(*old, there) => {}
                _ => return None,
            }
            at = there;
        }
        Some(at)
    }

    /// Whether two files hold the same durable bytes and nothing else.
    fn is_same_file(&self, one: u64, other: u64) -> bool {
        match (self.file(one), self.file(other)) {
            (Some(a), Some(b)) => {
                a.data == b.data && a.durable >= a.data.len() && b.durable >= b.data.len() && !a.data.is_empty()
            }
            _ => false,
        }
    }
}
