//! One try to take a file lock, that no lock manager can turn into a wait without end.
//!
//! Invariants:
//! - The lock belongs to the open file and goes when its last copy is closed, in whatever process; nobody unlocks it earlier.
//! - The caller waits no longer than its limit. A helper that is given up keeps its thread and descriptor until the kernel
//!   answers; a lock that it then gets it frees at once.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fs2::FileExt;
use rustix::fs::OFlags;

use super::beneath::{Base, retry};
use super::{Call, FsError, LockGuard, Locked};

/// What counts as "locks are not supported" besides the usual numbers: the kernel's own `ENOTSUPP`, which some NFS and
/// autofs mounts let through.
const ENOTSUPP: i32 = 524;

/// Tries to lock `path` below `base`.
pub(super) fn lock(base: &Arc<Base>, path: &Path, limit: Duration) -> Locked {
    let (base, owned) = (Arc::clone(base), path.to_owned());
    with_limit(limit, move || try_lock(&base, &owned))
        .unwrap_or_else(|errno| Locked::Failed(FsError::new(Call::Lock, path, errno)))
}

/// A lock for as long as the open file lives, here or in a child that has inherited it.
///
/// Dropping closes and does not unlock, because unlocking would free the lock under a child that still holds it.
struct HostLock {
    file: File,
}

impl LockGuard for HostLock {
    fn raw_fd(&self) -> Option<i32> {
        Some(self.file.as_raw_fd())
    }
}

/// Takes the lock on a file opened read-write, without which `NFSv4` gives no exclusive lock.
fn try_lock(base: &Base, path: &Path) -> Locked {
    let file = match retry(|| base.regular(path, OFlags::RDWR)) {
        Ok(fd) => File::from(fd),
        Err(errno) => return Locked::Failed(FsError::new(Call::Lock, path, errno.raw_os_error())),
    };
    loop {
        let Err(error) = FileExt::try_lock_exclusive(&file) else {
            return Locked::Held(Box::new(HostLock { file }));
        };
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            libc::EWOULDBLOCK => return Locked::Refused,
            libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP | ENOTSUPP => return Locked::Unsupported,
            errno => return Locked::Failed(FsError::new(Call::Lock, path, errno)),
        }
    }
}

/// Runs `step` in a thread and waits at most `limit` for what it says; `Err` with an error number if there is no thread.
///
/// An answer that comes too late is dropped by the thread that made it, and a lock in it freed.
fn with_limit(limit: Duration, step: impl FnOnce() -> Locked + Send + 'static) -> std::result::Result<Locked, i32> {
    let (sender, answer) = mpsc::sync_channel(0);
    let helper = move || drop(sender.send(step()));
    std::thread::Builder::new()
        .name("fq-lock".to_owned())
        .spawn(helper)
        .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    match answer.recv_timeout(limit) {
        Ok(locked) => Ok(locked),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(Locked::Hung),
        // The helper ended without an answer: it panicked.
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fs, HostFs, HostOptions, put_new};
    use super::*;

    /// Far longer than any lock takes here.
    const LIMIT: Duration = Duration::from_secs(60);

    /// The keeper hands its lock to the worker by inheritance; the copy of a descriptor stands for that.
    #[test]
    fn a_lock_lives_until_its_last_copy_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let fs = HostFs::open(dir.path(), HostOptions::default()).unwrap();
        put_new(&fs, Path::new("lock"), b"", 0o600).unwrap();
        let file = File::options().read(true).write(true).open(dir.path().join("lock")).unwrap();
        FileExt::try_lock_exclusive(&file).unwrap();
        let copy = file.try_clone().unwrap();
        drop(HostLock { file });
        assert!(matches!(fs.lock(Path::new("lock"), LIMIT), Locked::Refused));
        drop(copy);
        assert!(matches!(fs.lock(Path::new("lock"), LIMIT), Locked::Held(_)));
    }

    #[test]
    fn a_lock_that_comes_after_the_limit_is_freed_at_once() {
        struct Guard(mpsc::Sender<()>);
        impl LockGuard for Guard {
            fn raw_fd(&self) -> Option<i32> {
                None
            }
        }
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let (answer, lock_manager) = mpsc::channel::<()>();
        let (freed, is_freed) = mpsc::channel();
        let outcome = with_limit(Duration::ZERO, move || {
            lock_manager.recv().unwrap();
            Locked::Held(Box::new(Guard(freed)))
        });
        assert!(matches!(outcome, Ok(Locked::Hung)));
        answer.send(()).unwrap();
        is_freed.recv().unwrap();
    }
}
