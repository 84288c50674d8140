//! A narrow trait over the files of one queue directory, with the guarantee of each call written on it.
//!
//! Invariants:
//! - All paths are relative to the queue directory, and no call follows a symbolic link, in any part of a path: a planted link
//!   is an error, not a way out.
//! - Nothing is ever truncated, rewritten in place or replaced except by [`Fs::rename`] of a finished file.
//! - The error of a call that changes something is a *hint*: the call may have been executed (a lost reply). Callers look
//!   afresh and judge by what they see. The errors for which [`FsError::refused`] is true are the exception: nothing happened.
//! - Absence is a hint too: another host's new name may be missing for a minute where it was looked up before. Names are found
//!   by [`Fs::list`], which always asks afresh.
//!
//! [`HostFs`] is the real one, [`crate::sim`] the simulated one, [`Counting`] counts calls by kind over either.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod beneath;
mod compound;
mod counting;
mod faulty;
mod host;
mod latch;
mod lock;
#[cfg(test)]
pub(crate) mod memory;
mod mount;
pub mod outside;
mod watch;

pub use compound::{is_listed, publish, put_new, read_all, read_from, read_up_to, settle_dir, sync_name};
pub use counting::{Counting, Counts};
pub use faulty::{Faulty, Rule};
pub use host::{Durability, HostFs, HostOptions};
pub use mount::{MountInfo, MountKind};
pub use watch::Watch;

/// The result of a file operation.
pub type Result<T> = std::result::Result<T, FsError>;

/// The files of one queue directory.
pub trait Fs: Send + Sync {
    /// Lists the names in `dir`, by a fresh `opendir`, in no particular order, without `.` and `..`.
    ///
    /// Shows all names made by this process, and those made by others before the call as soon as this mount can know of them
    /// (at once with close-to-open consistency). `NFSv3`: a change within one tick of the server's clock may stay invisible
    /// until the directory changes again. During a rename elsewhere both names, on some file systems none, may be listed.
    fn list(&self, dir: &Path) -> Result<Vec<Entry>>;

    /// Opens a regular file for reading, afresh, so that all bytes that its writer has synced are seen.
    ///
    /// Not found and stale handles are both [`ErrorKind::NotFound`]: not there, or not there yet.
    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>>;

    /// Creates `path` exclusively, mode `mode` whatever the umask, for one writer.
    ///
    /// Exactly one of several racing callers succeeds, on every supported file system. Durable only after
    /// [`WriteFile::sync`] and [`Fs::sync_dir`] of the parent.
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>>;

    /// Renames `from` to `to`, replacing `to`, and makes the change durable in the way that this mount needs.
    ///
    /// Of several callers that rename one source to different targets exactly one succeeds. Others may for a moment see both
    /// names, and a process that dies within the call may leave both. On an error look afresh: it may have been done, may still
    /// be done later (a partition heals), or never.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file. Not exclusive: two callers may both be told that they did it.
    fn unlink(&self, path: &Path) -> Result<()>;

    /// Makes a directory, mode 0777 less what the queue's policy takes away; not durable before [`Fs::sync_dir`] of its parent.
    fn mkdir(&self, dir: &Path) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: &Path) -> Result<()>;

    /// Makes the names in `dir` durable. A mount that does so by itself returns at once.
    ///
    /// Only names that are there: see [`Fs::drops_names`] and [`sync_name`].
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Whether a server that lost power may have dropped a name that was made and not synced yet, while the client that made it
    /// lives on and learns of it by no call: neither does the server write names before it answers, nor does the client bring
    /// them again.
    fn drops_names(&self) -> bool;

    /// Tries to take the exclusive lock on the existing file `path`, in a helper that is given up after `limit`.
    ///
    /// Never blocks longer than `limit`, also where the lock manager hangs. What a lock proves depends on the mount; see
    /// [`Locked`].
    fn lock(&self, path: &Path, limit: Duration) -> Locked;

    /// Free bytes and inodes for this user.
    fn space(&self) -> Result<Space>;
}

/// A regular file open for reading.
pub trait ReadFile: Send {
    /// Length, owner and mode as of the open or later.
    fn stat(&self) -> Result<Stat>;

    /// Reads up to `buffer.len()` bytes at `offset`; 0 at the end of the file. May return fewer bytes than are there.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Makes the bytes that can be read durable, for a reader that is about to rely on what another process wrote and may not
    /// have synced yet. Mounts that cannot do this through a file open for reading return at once.
    fn sync(&self) -> Result<()>;
}

/// A regular file open for appending by its only writer.
pub trait WriteFile: Send {
    /// Appends all of `bytes`. Others on this host may see them at once, others elsewhere within a minute or never before
    /// [`WriteFile::sync`]. After an error the file must not be written or synced again.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Makes all bytes written so far durable and visible to a fresh [`Fs::open`] on any host. After an error the unsynced
    /// bytes are lost for this file, also if a later call says otherwise: write them to a new file.
    fn sync(&mut self) -> Result<()>;

    /// Closes the file and reports what only closing tells (a quota on NFS). Dropping closes too, silently.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One name in a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name; names that are not UTF-8 are never ours and are left out.
    pub name: String,
    /// What it is, as far as the listing says.
    pub kind: EntryKind,
}

/// What a name in a listing stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything else; never touched.
    Other,
}

/// What an open file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub len: u64,
    /// Numeric user id of the owner.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// Free space for this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user can still write.
    pub bytes_free: u64,
    /// Files that this user can still make; `u64::MAX` where the file system does not say.
    pub inodes_free: u64,
}

/// The outcome of one try to take a lock.
pub enum Locked {
    /// Taken; freed when the guard is dropped and no child has inherited the descriptor.
    Held(Box<dyn LockGuard>),
    /// Somebody else has it.
    Refused,
    /// This mount has no locks (`ENOLCK`, `ENOSYS`, `EOPNOTSUPP`).
    Unsupported,
    /// No answer within the limit.
    Hung,
    /// The lock file could not be opened, or another error.
    Failed(FsError),
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held(_) => "Held",
            Self::Refused => "Refused",
            Self::Unsupported => "Unsupported",
            Self::Hung => "Hung",
            Self::Failed(_) => "Failed",
        })
    }
}

/// Keeps a lock while it lives.
pub trait LockGuard: Send {
    /// The descriptor that holds the lock, for handing it to a child process; `None` in the simulator.
    fn raw_fd(&self) -> Option<i32>;
}

/// The calls of the traits, for counting and for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is named after its call")]
pub enum Call {
    List,
    Open,
    Stat,
    Read,
    Create,
    Write,
    Sync,
    Close,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
    SyncDir,
    Lock,
    Space,
}

impl Call {
    /// All calls, in the order of [`Call`].
    pub const ALL: [Self; 15] = [
        Self::List,
        Self::Open,
        Self::Stat,
        Self::Read,
        Self::Create,
        Self::Write,
        Self::Sync,
        Self::Close,
        Self::Rename,
        Self::Unlink,
        Self::Mkdir,
        Self::Rmdir,
        Self::SyncDir,
        Self::Lock,
        Self::Space,
    ];

    /// Whether the call looks up or changes a name: what a metadata server charges for.
    pub fn is_namespace(self) -> bool {
        matches!(self, Self::List | Self::Open | Self::Create | Self::Rename | Self::Unlink | Self::Mkdir | Self::Rmdir)
    }

    /// The verb for messages: "cannot {verb} `path`".
    pub fn verb(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Open => "open",
            Self::Stat => "examine",
            Self::Read => "read",
            Self::Create => "create",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Close => "close",
            Self::Rename => "rename",
            Self::Unlink => "remove",
            Self::Mkdir => "make directory",
            Self::Rmdir => "remove directory",
            Self::SyncDir => "sync directory",
            Self::Lock => "lock",
            Self::Space => "ask for free space at",
        }
    }
}

/// A failed file operation: which call, on which path, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsError {
    /// The call that failed.
    pub call: Call,
    /// The path, relative to the queue directory.
    pub path: PathBuf,
    /// What callers branch on.
    pub kind: ErrorKind,
    /// The system's error number; 0 if there is none.
    pub errno: i32,
}

/// Errors that some caller answers differently from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// `ENOENT` or `ESTALE`: not there, or not there yet.
    NotFound,
    /// `EEXIST`, or a directory that is not empty.
    Exists,
    /// `ENOSPC`, `EDQUOT` or `EFBIG`: pause, say so, try again later.
    NoSpace,
    /// `EROFS`: readers work, nobody else.
    ReadOnly,
    /// `EACCES` or `EPERM`.
    Denied,
    /// A symbolic link, a directory or a device where a regular file or directory of ours should be.
    Planted,
    /// The connection to the file system is gone for this client (`ESHUTDOWN`, `ENOTCONN`).
    Disconnected,
    /// Anything else (`EIO`, `ETIMEDOUT`, `EBUSY`): unknown outcome, look afresh and try again.
    Io,
}

impl FsError {
    /// Makes an error of `call` on `path` from a system error number.
    pub fn new(call: Call, path: &Path, errno: i32) -> Self {
        use rustix::io::Errno as E;
        let kind = match E::from_raw_os_error(errno) {
            E::NOENT | E::STALE => ErrorKind::NotFound,
            E::EXIST | E::NOTEMPTY => ErrorKind::Exists,
            E::NOSPC | E::DQUOT | E::FBIG => ErrorKind::NoSpace,
            E::ROFS => ErrorKind::ReadOnly,
            E::ACCESS | E::PERM => ErrorKind::Denied,
            E::LOOP | E::NOTDIR | E::ISDIR | E::XDEV => ErrorKind::Planted,
            E::SHUTDOWN | E::NOTCONN => ErrorKind::Disconnected,
            _ => ErrorKind::Io,
        };
        Self { call, path: path.to_owned(), kind, errno }
    }

    /// Whether the call was certainly not executed and will not be.
    ///
    /// Never true of writing, syncing and closing, which may fail half-way; a rename that was done but could not be made
    /// durable reports the call that failed, [`Call::Sync`] or [`Call::SyncDir`].
    pub fn refused(&self) -> bool {
        let is_whole = !matches!(self.call, Call::Write | Call::Sync | Call::SyncDir | Call::Close);
        is_whole
            && matches!(self.kind, ErrorKind::NoSpace | ErrorKind::ReadOnly | ErrorKind::Denied | ErrorKind::Planted)
    }

    /// Whether the same call may succeed later although nobody changes anything in the queue: the disk is full or broken, the
    /// server away, the mount read-only since an error.
    pub fn may_pass(&self) -> bool {
        let is_passing =
            matches!(self.kind, ErrorKind::NoSpace | ErrorKind::ReadOnly | ErrorKind::Disconnected | ErrorKind::Io);
        is_passing || self.errno == libc::ESTALE
    }

    /// Whether nothing is there under that name, as far as this look can tell.
    pub fn not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} `{}`: ", self.call.verb(), self.path.display())?;
        if self.kind == ErrorKind::Planted {
            return f.write_str("a symbolic link or another kind of file stands in its place, which is never followed");
        }
        let text = std::io::Error::from_raw_os_error(self.errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let mut chars = text.chars();
        let first = chars.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
        write!(f, "{first}{}", chars.as_str())
    }
}

impl std::error::Error for FsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_did_nothing_counts_as_refused() {
        let refused = |call, errno| FsError::new(call, Path::new("a"), errno).refused();
        assert!(refused(Call::Create, libc::ENOSPC));
        assert!(refused(Call::Rename, libc::EACCES));
        assert!(refused(Call::Open, libc::ELOOP));
        assert!(!refused(Call::Write, libc::ENOSPC));
        assert!(!refused(Call::Sync, libc::EDQUOT));
        assert!(!refused(Call::SyncDir, libc::ENOSPC));
        assert!(!refused(Call::Rename, libc::EIO));
        assert!(!refused(Call::Rename, libc::ENOENT));
    }
}
