//! A queue directory in memory, for unit tests: one process, a crash after any step, a power loss.
//!
//! It shows everything at once and forgets only bytes that were not synced; [`crate::sim`] is the one that knows stale listings,
//! late calls and the other ways of real mounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Call, Entry, EntryKind, Fs, FsError, Locked, ReadFile, Result, Space, Stat, WriteFile};

/// The files of one queue directory, in memory.
#[derive(Clone, Default)]
pub(crate) struct MemoryFs(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: BTreeMap<PathBuf, Node>,
    files: Vec<File>,
    /// Changing calls that were executed.
    step_count: u64,
    /// After so many changing calls every further call fails.
    step_max: Option<u64>,
}

#[derive(Clone, Copy)]
enum Node {
    Dir,
    File(usize),
}

struct File {
    bytes: Vec<u8>,
    synced: usize,
    mode: u32,
}

impl MemoryFs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the process die after `steps` more changing calls: every call then fails until [`MemoryFs::restart`].
    pub(crate) fn crash_after(&self, steps: u64) {
        let mut state = self.state();
        state.step_max = Some(state.step_count + steps);
    }

    /// Starts a new process on the same files.
    pub(crate) fn restart(&self) {
        self.state().step_max = None;
    }

    /// Drops all bytes that were not synced.
    pub(crate) fn lose_power(&self) {
        for file in &mut self.state().files {
            file.bytes.truncate(file.synced);
        }
    }

    /// How many changing calls were executed so far.
    pub(crate) fn step_count(&self) -> u64 {
        self.state().step_count
    }

    /// Changes the bytes of a file behind everybody's back.
    pub(crate) fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let Some(Node::File(id)) = state.names.get(path).copied() else { panic!("no file {}", path.display()) };
        let file = &mut state.files[id];
        change(&mut file.bytes);
        file.synced = file.bytes.len();
    }

    /// Puts a whole, synced file with its directories as another host would, replacing what is there.
    pub(crate) fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        for dir in path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
            state.names.insert(dir.to_owned(), Node::Dir);
        }
        let id = state.files.len();
        state.files.push(File { bytes: bytes.to_vec(), synced: bytes.len(), mode: 0o644 });
        state.names.insert(path.to_owned(), Node::File(id));
    }

    /// The bytes of a file, synced or not.
    pub(crate) fn get(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        match state.names.get(path) {
            Some(Node::File(id)) => Some(state.files[*id].bytes.clone()),
            _ => None,
        }
    }

    /// All paths of files, sorted.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let state = self.state();
        state.names.iter().filter(|(_, node)| matches!(node, Node::File(_))).map(|(path, _)| path.clone()).collect()
    }
}

fn error(call: Call, path: &Path, errno: i32) -> FsError {
    FsError::new(call, path, errno)
}

impl State {
    /// Fails if the process is dead.
    fn alive(&self, call: Call, path: &Path) -> Result<()> {
        match self.step_max {
            Some(max) if self.step_count >= max => Err(error(call, path, libc::EIO)),
            _ => Ok(()),
        }
    }

    /// Counts a changing call, unless the process is dead.
    fn step(&mut self, call: Call, path: &Path) -> Result<()> {
        self.alive(call, path)?;
        self.step_count += 1;
        Ok(())
    }

    fn parent_exists(&self, call: Call, path: &Path) -> Result<()> {
        match path.parent() {
            None => Err(error(call, path, libc::EINVAL)),
            Some(parent) if parent.as_os_str().is_empty() => Ok(()),
            Some(parent) => match self.names.get(parent) {
                Some(Node::Dir) => Ok(()),
                Some(Node::File(_)) => Err(error(call, path, libc::ENOTDIR)),
                None => Err(error(call, path, libc::ENOENT)),
            },
        }
    }

    fn has_children(&self, dir: &Path) -> bool {
        self.names.keys().any(|path| path.parent() == Some(dir))
    }
}

impl Fs for MemoryFs {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let state = self.state();
        state.alive(Call::List, dir)?;
        if !dir.as_os_str().is_empty() && !matches!(state.names.get(dir), Some(Node::Dir)) {
            return Err(error(Call::List, dir, libc::ENOENT));
        }
        let entries = state.names.iter().filter(|(path, _)| path.parent() == Some(dir)).filter_map(|(path, node)| {
            let kind = if matches!(node, Node::Dir) { EntryKind::Dir } else { EntryKind::File };
            Some(Entry { name: path.file_name()?.to_str()?.to_owned(), kind })
        });
        Ok(entries.collect())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        let state = self.state();
        state.alive(Call::Open, path)?;
        match state.names.get(path) {
            Some(Node::File(id)) => Ok(Box::new(Handle { fs: self.clone(), id: *id, path: path.to_owned() })),
            Some(Node::Dir) => Err(error(Call::Open, path, libc::EISDIR)),
            None => Err(error(Call::Open, path, libc::ENOENT)),
        }
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        let mut state = self.state();
        state.parent_exists(Call::Create, path)?;
        if state.names.contains_key(path) {
            return Err(error(Call::Create, path, libc::EEXIST));
        }
        state.step(Call::Create, path)?;
        let id = state.files.len();
        state.files.push(File { bytes: Vec::new(), synced: 0, mode });
        state.names.insert(path.to_owned(), Node::File(id));
        Ok(Box::new(Handle { fs: self.clone(), id, path: path.to_owned() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        state.parent_exists(Call::Rename, to)?;
        let Some(node) = state.names.get(from).copied() else { return Err(error(Call::Rename, from, libc::ENOENT)) };
        state.step(Call::Rename, from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), node);
        Ok(())
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        match state.names.get(path) {
            None => return Err(error(Call::Unlink, path, libc::ENOENT)),
            Some(Node::Dir) => return Err(error(Call::Unlink, path, libc::EISDIR)),
            Some(Node::File(_)) => {}
        }
        state.step(Call::Unlink, path)?;
        state.names.remove(path);
        Ok(())
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        let mut state = self.state();
        state.parent_exists(Call::Mkdir, dir)?;
        if state.names.contains_key(dir) {
            return Err(error(Call::Mkdir, dir, libc::EEXIST));
        }
        state.step(Call::Mkdir, dir)?;
        state.names.insert(dir.to_owned(), Node::Dir);
        Ok(())
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        let mut state = self.state();
        if !matches!(state.names.get(dir), Some(Node::Dir)) {
            return Err(error(Call::Rmdir, dir, libc::ENOENT));
        }
        if state.has_children(dir) {
            return Err(error(Call::Rmdir, dir, libc::ENOTEMPTY));
        }
        state.step(Call::Rmdir, dir)?;
        state.names.remove(dir);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.state().step(Call::SyncDir, dir)
    }

    fn drops_names(&self) -> bool {
        false
    }

    fn lock(&self, _path: &Path, _limit: Duration) -> Locked {
        Locked::Unsupported
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { bytes_free: u64::MAX, inodes_free: u64::MAX })
    }
}

struct Handle {
    fs: MemoryFs,
    id: usize,
    path: PathBuf,
}

impl ReadFile for Handle {
    fn stat(&self) -> Result<Stat> {
        let state = self.fs.state();
        let file = &state.files[self.id];
        Ok(Stat { len: file.bytes.len() as u64, uid: 0, gid: 0, mode: file.mode })
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let state = self.fs.state();
        state.alive(Call::Read, &self.path)?;
        let bytes = &state.files[self.id].bytes;
        let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.fs.state();
        state.alive(Call::Sync, &self.path)?;
        let file = &mut state.files[self.id];
        file.synced = file.bytes.len();
        Ok(())
    }
}

impl WriteFile for Handle {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut state = self.fs.state();
        state.step(Call::Write, &self.path)?;
        state.files[self.id].bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.fs.state();
        state.step(Call::Sync, &self.path)?;
        let file = &mut state.files[self.id];
        file.synced = file.bytes.len();
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
