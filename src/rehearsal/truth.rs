//! The queue as the server has it, without caches, delays and faults: what the checkers read.

use std::path::Path;
use std::time::Duration;

use crate::fs::{Call, Entry, EntryKind, Fs, FsError, Locked, ReadFile, Result, Space, Stat, WriteFile};
use crate::sim::View;

/// A read-only file system over the server's own files.
pub(crate) struct Truth<'a> {
    view: &'a View<'a>,
    /// Shows only what a power loss now would leave.
    is_durable: bool,
}

impl<'a> Truth<'a> {
    /// All that is there now.
    pub(crate) fn now(view: &'a View<'a>) -> Self {
        Self { view, is_durable: false }
    }

    /// What a power loss now would leave.
    pub(crate) fn durable(view: &'a View<'a>) -> Self {
        Self { view, is_durable: true }
    }

    fn has(&self, path: &Path) -> bool {
        !self.is_durable || self.view.is_named_durably(text(path))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or("\0")
}

fn refuse<T>(call: Call, path: &Path) -> Result<T> {
    Err(FsError::new(call, path, libc::EROFS))
}

impl Fs for Truth<'_> {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let Some(names) = self.view.list(text(dir)) else { return Err(FsError::new(Call::List, dir, libc::ENOENT)) };
        let kind = |name: &str| {
            let is_dir = self.view.is_dir(text(&dir.join(name)));
            if is_dir { EntryKind::Dir } else { EntryKind::File }
        };
        Ok(names
            .into_iter()
            .filter(|name| self.has(&dir.join(name)))
            .map(|name| Entry { kind: kind(&name), name })
            .collect())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        let read = |path| if self.is_durable { self.view.read_durable(path) } else { self.view.read(path) };
        match read(text(path)) {
            Some(bytes) if self.has(path) => Ok(Box::new(Open(bytes))),
            _ => Err(FsError::new(Call::Open, path, libc::ENOENT)),
        }
    }

    fn create(&self, path: &Path, _mode: u32) -> Result<Box<dyn WriteFile>> {
        refuse(Call::Create, path)
    }

    fn rename(&self, from: &Path, _to: &Path) -> Result<()> {
        refuse(Call::Rename, from)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        refuse(Call::Unlink, path)
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        refuse(Call::Mkdir, dir)
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        refuse(Call::Rmdir, dir)
    }

    fn sync_dir(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn drops_names(&self) -> bool {
        false
    }

    fn lock(&self, _path: &Path, _limit: Duration) -> Locked {
        Locked::Unsupported
    }

    fn space(&self) -> Result<Space> {
        Ok(Space { bytes_free: 0, inodes_free: 0 })
    }
}

struct Open(Vec<u8>);

impl ReadFile for Open {
    fn stat(&self) -> Result<Stat> {
        Ok(Stat { len: self.0.len() as u64, uid: super::UID, gid: super::UID, mode: 0o644 })
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
