//! The user's own files outside the queue: scratch directories on the host and the outputs that users asked for.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};

/// A long file is synced after so many bytes each, so that no single call has to wait for all of it.
const SYNC_EVERY: usize = 64 << 20;

/// Receives a file's bytes piece by piece.
pub type Sink<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// Files of one host and its user, outside the queue directory.
pub trait Outside {
    /// Makes a new private directory, mode 0700, with a name that begins with `name`.
    fn make_dir(&mut self, name: &str) -> io::Result<PathBuf>;

    /// Makes the new file `path` with the bytes that `fill` passes on.
    fn make_file(
        &mut self,
        path: &Path,
        mode: u32,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<()>;

    /// Removes a directory made before with all that is in it, as far as that is possible.
    fn remove_dir(&mut self, dir: &Path);

    /// Writes a file of the user's, whole or not at all, replacing what is there; makes its directory if that is missing.
    fn publish(&mut self, path: &Path, fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>) -> io::Result<()>;
}

/// The real ones, with scratch directories below one of the worker's own.
#[derive(Debug, Clone)]
pub struct HostOutside {
    scratch: PathBuf,
    count: u64,
}

impl HostOutside {
    /// Uses `scratch`, which exists and belongs to this worker alone.
    pub fn new(scratch: PathBuf) -> Self {
        Self { scratch, count: 0 }
    }

    /// Makes a scratch directory for the worker `name` in `parent`, mode 0700, which must not be there yet.
    pub fn make_scratch(parent: &Path, name: &str) -> io::Result<PathBuf> {
        let dir = parent.join(format!("fq-{name}"));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(dir)
    }

    /// Makes the scratch directory `dir` anew, without anything that was left in it.
    pub fn renew_scratch(dir: &Path) -> io::Result<()> {
        Self::remove_scratch(dir);
        fs::DirBuilder::new().mode(0o700).create(dir)
    }

    /// Removes a scratch directory with all that is left in it, as far as that is possible.
    pub fn remove_scratch(dir: &Path) {
        remove_tree(CWD, dir.as_os_str().as_bytes());
    }
}

impl Outside for HostOutside {
    fn make_dir(&mut self, name: &str) -> io::Result<PathBuf> {
        self.count += 1;
        let dir = self.scratch.join(format!("{name}-{}", self.count));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(dir)
    }

    fn make_file(
        &mut self,
        path: &Path,
        mode: u32,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        fill(&mut |bytes| file.write_all(bytes))
    }

    fn remove_dir(&mut self, dir: &Path) {
        if dir.parent() == Some(&self.scratch) {
            // What cannot be removed goes with the scratch directory, or with the batch job that owns it.
            remove_tree(CWD, dir.as_os_str().as_bytes());
        }
    }

    fn publish(&mut self, path: &Path, fill: &mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>) -> io::Result<()> {
        let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(dir)?;
        self.count += 1;
        let mut temp = std::ffi::OsString::from(format!(".fq-{}-{}-", std::process::id(), self.count));
        temp.push(name);
        let temp = dir.join(temp);
        let written = (|| {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temp)?;
            let mut unsynced = 0;
            fill(&mut |bytes| {
                file.write_all(bytes)?;
                unsynced += bytes.len();
                if unsynced >= SYNC_EVERY {
                    file.sync_data()?;
                    unsynced = 0;
                }
                Ok(())
            })?;
            file.sync_all()?;
            fs::rename(&temp, path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temp);
        }
        written
    }
}

/// Removes the directory `name` in `parent` with all that is in it, as far as that is possible, without following links.
///
/// The standard library's way panics where closing a directory fails, and the worker would die of a scratch file.
fn remove_tree(parent: impl AsFd, name: &[u8]) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(&parent, name, flags, Mode::empty()) else { return };
    for entry in Dir::read_from(&dir).into_iter().flatten().map_while(Result::ok) {
        let child = entry.file_name().to_bytes();
        if matches!(child, b"." | b"..") {
            continue;
        }
        // Tried as what is most frequent: a directory refuses.
        if rustix::fs::unlinkat(&dir, child, AtFlags::empty()).is_err() {
            remove_tree(&dir, child);
        }
    }
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_bytes_cannot_be_had_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let mut outside = HostOutside::new(dir.path().to_owned());
        let path = dir.path().join("a/b.out");
        assert!(outside.publish(&path, &mut |sink| sink(b"old")).is_ok());
        let broken = outside.publish(&path, &mut |sink| {
            sink(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(broken.is_err());
        assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"old"[..]));
        let names = fs::read_dir(dir.path().join("a")).map(Iterator::count);
        assert_eq!(names.ok(), Some(1), "no stray is left");
    }

    #[test]
    fn a_scratch_directory_goes_with_all_that_is_in_it_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let other = dir.path().join("other");
        fs::create_dir(&other).expect("a directory");
        fs::write(other.join("kept"), "").expect("a file");
        let scratch = HostOutside::make_scratch(dir.path(), "w").expect("a scratch directory");
        fs::create_dir_all(scratch.join("a/b/c")).expect("directories");
        for n in 0..300 {
            fs::write(scratch.join(format!("a/b/{n}")), "").expect("a file");
        }
        std::os::unix::fs::symlink(&other, scratch.join("a/link")).expect("a link");
        HostOutside::remove_scratch(&scratch);
        assert!(!scratch.exists());
        assert!(other.join("kept").exists());
    }
}
