//! From the queue directory to a path in it, without ever following a link.
//!
//! Invariants:
//! - Every way starts at the descriptor of the queue directory and ends below it.
//! - No part of a path may be a link. The calls that use a last name without opening it do not follow it either.
//! - Opening never blocks on a pipe or a device: what is neither a regular file nor a directory is refused.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How many times a stale handle (`ESTALE`) is answered by starting again before the name counts as not found.
const STALE_RETRIES_MAX: u32 = 10;

/// The queue directory's descriptor and the way to get from it to a path.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) fd: OwnedFd,
    pub(super) resolve: Resolve,
}

/// How a path is walked without following links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolve {
    /// By `openat2`, in one call.
    Kernel,
    /// By opening each directory on the way.
    Walk,
}

impl Resolve {
    /// The kernel's way where it has one; older kernels and some containers' filters say no.
    pub(super) fn probe(fd: &OwnedFd) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match retry(|| rustix::fs::openat2(fd, ".", flags, Mode::empty(), BENEATH)) {
            Ok(_) => Self::Kernel,
            Err(_) => Self::Walk,
        }
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Base {
    /// Opens a directory of the queue; the empty path is the queue directory itself.
    pub(super) fn dir(&self, path: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
        check_path(path)?;
        if path.as_os_str().is_empty() {
            return open_dir(&self.fd, OsStr::new("."), access);
        }
        match self.resolve {
            Resolve::Kernel => {
                let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), BENEATH)
            }
            Resolve::Walk => {
                let (parent, name) = split(path)?;
                open_dir(&self.walk(parent)?, name, access)
            }
        }
    }

    /// Opens or creates what must not be a link.
    pub(super) fn file(&self, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let (parent, name) = split(path)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self.resolve {
            Resolve::Kernel => rustix::fs::openat2(&self.fd, path, flags, mode, BENEATH),
            Resolve::Walk => rustix::fs::openat(&self.walk(parent)?, name, flags, mode),
        }
    }

    /// Opens an existing regular file, without waiting for the other end if it is a pipe.
    pub(super) fn regular(&self, path: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
        let fd = match self.file(path, access | OFlags::NONBLOCK, Mode::empty()) {
            // A socket, or a device without its driver.
            Err(Errno::NXIO | Errno::NODEV) => return Err(Errno::LOOP),
            other => other?,
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => Ok(fd),
            FileType::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::LOOP),
        }
    }

    fn walk(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let mut fd = open_dir(&self.fd, OsStr::new("."), OFlags::PATH)?;
        for name in path {
            fd = open_dir(&fd, name, OFlags::PATH)?;
        }
        Ok(fd)
    }
}

pub(super) fn open_dir(dir: &OwnedFd, name: &OsStr, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens the file that is about to be moved; `None` for a directory, and for a file that this user may move but not read.
pub(super) fn open_regular(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => Ok(Some(fd)),
            FileType::Directory => Ok(None),
            _ => Err(Errno::LOOP),
        },
        Err(Errno::ACCESS) => refuse_planted(dir, name).map(|()| None),
        Err(Errno::NXIO | Errno::NODEV) => Err(Errno::LOOP),
        Err(errno) => Err(errno),
    }
}

/// Refuses links, pipes, sockets and devices: they are not ours to move or remove.
///
/// Only good manners: the calls that follow do not go through a link either way.
pub(super) fn refuse_planted(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(Errno::LOOP),
    }
}

/// Refuses paths that could leave the queue directory, before the kernel sees them.
fn check_path(path: &Path) -> rustix::io::Result<()> {
    if path.components().all(|part| matches!(part, Component::Normal(_))) { Ok(()) } else { Err(Errno::XDEV) }
}

/// Splits a path into the directory and the last name in it.
pub(super) fn split(path: &Path) -> rustix::io::Result<(&Path, &OsStr)> {
    check_path(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        // The queue directory itself is never opened as a file, moved or removed.
        _ => Err(Errno::ISDIR),
    }
}

/// Repeats `step` when a signal interrupted it, and a few times when it met a stale handle.
pub(super) fn retry<T>(mut step: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let mut stale_count = 0;
    loop {
        match retry_interrupted(&mut step) {
            Err(Errno::STALE) if stale_count < STALE_RETRIES_MAX => stale_count += 1,
            outcome => return outcome,
        }
    }
}

pub(super) fn retry_interrupted<T>(step: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_is_tried_again_ten_times() {
        let mut calls = 0;
        let outcome = retry(|| -> rustix::io::Result<()> {
            calls += 1;
            Err(Errno::STALE)
        });
        assert_eq!((outcome, calls), (Err(Errno::STALE), 11));
        let mut calls = 0;
        let outcome = retry(|| {
            calls += 1;
            if calls < 5 { Err(Errno::STALE) } else { Ok(calls) }
        });
        assert_eq!(outcome, Ok(5));
    }
}
