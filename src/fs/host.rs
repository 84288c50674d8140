//! The files of a queue on a real mount, always relative to a descriptor of its directory.
//!
//! Invariants:
//! - Every call starts again at the queue directory, so a stale handle is answered by trying again, at most ten times, and
//!   follows no link on its way (see `beneath`).
//! - A failed sync is never tried again on the same descriptor.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;

use super::beneath::{Base, Resolve, open_dir, open_regular, refuse_planted, retry, retry_interrupted, split};
use super::compound;
use super::latch::Latch;
use super::lock::lock;
use super::mount::MountInfo;
use super::{Call, Entry, EntryKind, ErrorKind, Fs, FsError, Locked, ReadFile, Result, Space, Stat, WriteFile};

/// How often a rename that is refused as busy is tried again (`BeeGFS` right after a close), with 10, 20, 40, 80 ms in between.
const BUSY_RETRIES_MAX: u32 = 4;

/// How much care is taken that bytes and names survive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// All syncs are done.
    #[default]
    Full,
    /// No sync is done and all report success. Only for queues that may be lost, and only on one host: on a shared mount other
    /// hosts see unsynced bytes late or never.
    None,
}

/// What the owner of a queue decides about its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostOptions {
    /// How much care is taken to survive a crash.
    pub durability: Durability,
    /// The group that shares the queue. With one, directories are made with mode 02770 and all that is made belongs to it;
    /// without, directories have 0755 less the umask.
    pub group: Option<u32>,
}

/// The files of one queue directory on the host's file systems.
#[derive(Debug)]
pub struct HostFs {
    base: Arc<Base>,
    root: PathBuf,
    mount: MountInfo,
    options: HostOptions,
}

impl HostFs {
    /// Opens the directory `root`, which must exist; links in `root` itself are followed.
    ///
    /// Looks up the mount once. Fails with [`ErrorKind::NotFound`] if there is no such directory.
    pub fn open(root: &Path, options: HostOptions) -> Result<Self> {
        let failed = |errno: Errno| FsError::new(Call::Open, root, errno.raw_os_error());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::open(root, flags, Mode::empty())).map_err(failed)?;
        let device = retry(|| rustix::fs::fstat(&fd)).map_err(failed)?.st_dev;
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        let absolute = std::path::absolute(root)
            .map_err(|e| FsError::new(Call::Open, root, e.raw_os_error().unwrap_or(libc::EIO)))?;
        let real = std::fs::canonicalize(root).unwrap_or_else(|_| absolute.clone());
        // Without /proc nothing is known about the mount, which is an answer, too.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mount = MountInfo::find(&String::from_utf8_lossy(&mounts), &real, Some(device));
        let resolve = Resolve::probe(&fd);
        Ok(Self {
            base: Arc::new(Base { fd, resolve }),
            root: absolute,
            mount: mount.unwrap_or_else(MountInfo::unknown),
            options,
        })
    }

    /// Makes the directory `root` unless it is there, and opens it; its parent must exist.
    ///
    /// A new directory has the mode and group of [`Fs::mkdir`], and its name is durable on return. One that is there is left as
    /// it is.
    pub fn make(root: &Path, options: HostOptions) -> Result<Self> {
        let failed = |errno: Errno| FsError::new(Call::Mkdir, root, errno.raw_os_error());
        let mode = if options.group.is_some() { 0o2770 } else { 0o755 };
        let is_new = match retry(|| rustix::fs::mkdir(root, Mode::from_raw_mode(mode))) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed(errno)),
        };
        let made = Self::open(root, options)?;
        if is_new {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if options.group.is_some() {
                retry(|| rustix::fs::open(root, flags, Mode::empty()))
                    .and_then(|dir| made.settle(&dir, mode))
                    .map_err(half_done(Call::Mkdir, root))?;
            }
            if made.syncs_directories() {
                let parent = made.root.parent().unwrap_or(&made.root);
                retry(|| rustix::fs::open(parent, flags, Mode::empty()))
                    .and_then(|dir| sync_directory(&dir))
                    .map_err(half_done(Call::SyncDir, root))?;
            }
        }
        Ok(made)
    }

    /// Returns the queue directory as it was named, made absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns what the mount of the queue directory says about itself.
    pub fn mount(&self) -> &MountInfo {
        &self.mount
    }

    /// Returns owner and mode of the queue directory.
    pub fn root_stat(&self) -> Result<Stat> {
        let stat = retry(|| rustix::fs::fstat(&self.base.fd)).map_err(at(Call::Stat, Path::new("")))?;
        Ok(stat_of(&stat))
    }

    /// Returns the absolute form of a path in the queue, for messages, job environments and watches.
    pub fn full_path(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// Whether the file system can make a directory durable, by doing so; also where this mount needs no such call.
    pub fn can_sync_dir(&self, dir: &Path) -> Result<bool> {
        let fd = retry(|| self.base.dir(dir, OFlags::RDONLY)).map_err(at(Call::SyncDir, dir))?;
        match retry_interrupted(|| rustix::fs::fsync(&fd)) {
            Ok(()) => Ok(true),
            Err(errno) if is_unsupported(errno) => Ok(false),
            Err(errno) => Err(at(Call::SyncDir, dir)(errno)),
        }
    }

    /// Returns the modification time of a file, since 1970, for reports only: nothing is decided by it.
    pub fn modified(&self, path: &Path) -> Result<Duration> {
        let stat =
            retry(|| rustix::fs::fstat(&self.base.regular(path, OFlags::RDONLY)?)).map_err(at(Call::Stat, path))?;
        Ok(Duration::new(stat.st_mtime.try_into().unwrap_or(0), stat.st_mtime_nsec.try_into().unwrap_or(0)))
    }

    /// Whether both directories lie on one file system as the kernel counts them, so that they share all caches of this host.
    pub fn shares_caches_with(&self, other: &Self) -> bool {
        let device = |fs: &Self| rustix::fs::fstat(&fs.base.fd).map(|stat| stat.st_dev).ok();
        device(self).is_some() && device(self) == device(other)
    }

    fn syncs(&self) -> bool {
        self.options.durability == Durability::Full
    }

    fn syncs_directories(&self) -> bool {
        self.syncs() && !self.mount.kind.syncs_directories_itself()
    }

    /// Gives a new file or directory the group and mode that it should have, if the umask or the mount took something away.
    fn settle(&self, fd: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
        let stat = rustix::fs::fstat(fd)?;
        let wrong_group = self.options.group.filter(|gid| *gid != stat.st_gid);
        if let Some(gid) = wrong_group {
            retry(|| rustix::fs::fchown(fd, None, Some(Gid::from_raw(gid))))?;
        }
        // Changing the group may clear bits, so the mode comes last.
        let wrong_mode = wrong_group.is_some() || permissions(stat.st_mode) != mode;
        if wrong_mode {
            match retry(|| rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))) {
                // A file system without modes of its own: the mount's options decide who may do what.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Renames, without making anything durable; returns what has to be synced for that.
    fn rename_once(&self, from: &Path, to: &Path) -> rustix::io::Result<Renamed> {
        let flags = if self.syncs_directories() { OFlags::RDONLY } else { OFlags::PATH };
        let (from_dir, from_name) = split(from)?;
        let (to_dir, to_name) = split(to)?;
        let source_dir = self.base.dir(from_dir, flags)?;
        let target_dir = if from_dir == to_dir { None } else { Some(self.base.dir(to_dir, flags)?) };
        let file = if self.syncs() && self.mount.kind.needs_token_sync() {
            open_regular(&source_dir, from_name)?
        } else {
            refuse_planted(&source_dir, from_name)?;
            None
        };
        rustix::fs::renameat(&source_dir, from_name, target_dir.as_ref().unwrap_or(&source_dir), to_name)?;
        Ok(Renamed { file, source_dir, target_dir })
    }
}

/// What a rename has touched.
struct Renamed {
    file: Option<OwnedFd>,
    source_dir: OwnedFd,
    /// `None` if it is the same as the source's.
    target_dir: Option<OwnedFd>,
}

impl Fs for HostFs {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        retry(|| {
            let fd = self.base.dir(dir, OFlags::RDONLY)?;
            let names = fd.try_clone().map_err(|e| errno_of(&e))?;
            let mut entries = Vec::new();
            for entry in Dir::new(names)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if is_hidden(name) {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        // Gone between the two calls, as if the listing had come later.
                        Err(Errno::NOENT) => continue,
                        Err(errno) => return Err(errno),
                    },
                    known => known,
                };
                entries.push(Entry { name: name.to_owned(), kind: kind_of(kind) });
            }
            Ok(entries)
        })
        .map_err(at(Call::List, dir))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        let fd = retry(|| self.base.regular(path, OFlags::RDONLY)).map_err(at(Call::Open, path))?;
        Ok(Box::new(HostReadFile { fd, path: path.to_owned(), syncs: self.syncs() }))
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        let mode = permissions(mode);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        let fd = retry(|| self.base.file(path, flags, Mode::from_raw_mode(mode))).map_err(at(Call::Create, path))?;
        self.settle(&fd, mode).map_err(half_done(Call::Create, path))?;
        Ok(Box::new(HostWriteFile {
            fd,
            path: path.to_owned(),
            syncs: self.syncs(),
            is_new: true,
            latch: Latch::default(),
        }))
    }

    /// On local mounts and `CephFS` the file is opened before, and synced after it has moved; elsewhere it is never opened
    /// (`BeeGFS` does not move open files, NFS would give out a delegation). Then the directories are synced.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut busy_count = 0;
        let renamed = loop {
            match retry(|| self.rename_once(from, to)) {
                Err(Errno::BUSY) if busy_count < BUSY_RETRIES_MAX => {
                    std::thread::sleep(Duration::from_millis(10 << busy_count));
                    busy_count += 1;
                }
                outcome => break outcome.map_err(at(Call::Rename, from))?,
            }
        };
        if let Some(file) = &renamed.file {
            retry_interrupted(|| rustix::fs::fsync(file)).map_err(at(Call::Sync, to))?;
        }
        if self.syncs_directories() {
            let target_dir = renamed.target_dir.as_ref().unwrap_or(&renamed.source_dir);
            sync_directory(target_dir).map_err(at(Call::SyncDir, parent(to)))?;
            if renamed.target_dir.is_some() {
                sync_directory(&renamed.source_dir).map_err(at(Call::SyncDir, parent(from)))?;
            }
        }
        if self.drops_names() && !compound::is_there(self, to)? {
            return Err(FsError::new(Call::SyncDir, to, libc::EIO));
        }
        Ok(())
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        retry(|| {
            let (dir, name) = split(path)?;
            let dir = self.base.dir(dir, OFlags::PATH)?;
            refuse_planted(&dir, name)?;
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())
        })
        .map_err(at(Call::Unlink, path))
    }

    fn mkdir(&self, path: &Path) -> Result<()> {
        let mode = if self.options.group.is_some() { 0o2770 } else { 0o755 };
        let parent = retry(|| {
            let (dir, name) = split(path)?;
            let dir = self.base.dir(dir, OFlags::PATH)?;
            rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode))?;
            Ok(dir)
        })
        .map_err(at(Call::Mkdir, path))?;
        if self.options.group.is_some() {
            let (_, name) = split(path).map_err(at(Call::Mkdir, path))?;
            open_dir(&parent, name, OFlags::RDONLY)
                .and_then(|dir| self.settle(&dir, mode))
                .map_err(half_done(Call::Mkdir, path))?;
        }
        Ok(())
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        retry(|| {
            let (dir, name) = split(path)?;
            rustix::fs::unlinkat(&self.base.dir(dir, OFlags::PATH)?, name, AtFlags::REMOVEDIR)
        })
        .map_err(at(Call::Rmdir, path))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        if !self.syncs_directories() {
            return Ok(());
        }
        let fd = retry(|| self.base.dir(dir, OFlags::RDONLY)).map_err(at(Call::SyncDir, dir))?;
        sync_directory(&fd).map_err(at(Call::SyncDir, dir))
    }

    fn drops_names(&self) -> bool {
        self.syncs() && self.mount.kind.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        lock(&self.base, path, limit)
    }

    fn space(&self) -> Result<Space> {
        let stat = retry(|| rustix::fs::fstatvfs(&self.base.fd)).map_err(at(Call::Space, Path::new("")))?;
        Ok(Space {
            bytes_free: stat.f_bavail.saturating_mul(stat.f_frsize),
            // Btrfs and others make inodes as they go and report none at all.
            inodes_free: if stat.f_files == 0 { u64::MAX } else { stat.f_favail },
        })
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Syncs a directory; file systems that cannot do it have nothing to sync.
fn sync_directory(fd: &OwnedFd) -> rustix::io::Result<()> {
    match retry_interrupted(|| rustix::fs::fsync(fd)) {
        Err(errno) if is_unsupported(errno) => Ok(()),
        other => other,
    }
}

/// What a file system says that cannot sync a directory.
fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
}

/// Names that NFS and FUSE leave in place of removed files that are still open somewhere.
fn is_hidden(name: &str) -> bool {
    name == "." || name == ".." || name.starts_with(".nfs") || name.starts_with(".fuse_hidden")
}

fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Dir,
        _ => EntryKind::Other,
    }
}

fn permissions(mode: u32) -> u32 {
    mode & 0o7777
}

fn stat_of(stat: &rustix::fs::Stat) -> Stat {
    Stat {
        len: u64::try_from(stat.st_size).unwrap_or(0),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: permissions(stat.st_mode),
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn at(call: Call, path: &Path) -> impl FnOnce(Errno) -> FsError + '_ {
    move |errno| FsError::new(call, path, errno.raw_os_error())
}

/// The error of a call that did its main part and then failed, so that it must not count as refused.
fn half_done(call: Call, path: &Path) -> impl FnOnce(Errno) -> FsError + '_ {
    move |errno| FsError { kind: ErrorKind::Io, ..FsError::new(call, path, errno.raw_os_error()) }
}

struct HostReadFile {
    fd: OwnedFd,
    path: PathBuf,
    syncs: bool,
}

impl ReadFile for HostReadFile {
    fn stat(&self) -> Result<Stat> {
        let stat = retry_interrupted(|| rustix::fs::fstat(&self.fd)).map_err(at(Call::Stat, &self.path))?;
        Ok(stat_of(&stat))
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        retry_interrupted(|| rustix::io::pread(&self.fd, &mut *buffer, offset)).map_err(at(Call::Read, &self.path))
    }

    fn sync(&self) -> Result<()> {
        if !self.syncs {
            return Ok(());
        }
        match retry_interrupted(|| rustix::fs::fsync(&self.fd)) {
            Err(Errno::BADF | Errno::INVAL | Errno::ROFS | Errno::NOTSUP) => Ok(()),
            other => other.map_err(at(Call::Sync, &self.path)),
        }
    }
}

struct HostWriteFile {
    fd: OwnedFd,
    path: PathBuf,
    syncs: bool,
    /// Until the first sync, which also makes owner and mode durable; later ones need only bytes and length.
    is_new: bool,
    latch: Latch,
}

impl WriteFile for HostWriteFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.latch.run(|| {
            let mut rest = bytes;
            while !rest.is_empty() {
                match retry_interrupted(|| rustix::io::write(&self.fd, rest)) {
                    Ok(0) => return Err(FsError::new(Call::Write, &self.path, libc::EIO)),
                    Ok(count) => rest = &rest[count..],
                    Err(errno) => return Err(at(Call::Write, &self.path)(errno)),
                }
            }
            Ok(())
        })
    }

    fn sync(&mut self) -> Result<()> {
        let (fd, syncs, is_new) = (&self.fd, self.syncs, self.is_new);
        self.latch.run(|| {
            let synced = match (syncs, is_new) {
                (false, _) => Ok(()),
                (true, true) => retry_interrupted(|| rustix::fs::fsync(fd)),
                (true, false) => retry_interrupted(|| rustix::fs::fdatasync(fd)),
            };
            synced.map_err(at(Call::Sync, &self.path))
        })?;
        self.is_new = false;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { fd, path, mut latch, .. } = *self;
        latch.run(|| close(fd).map_err(at(Call::Close, &path)))
    }
}

/// Closes a descriptor and returns what the file system says to that.
#[expect(unsafe_code, reason = "the standard library closes without reporting errors")]
fn close(fd: OwnedFd) -> rustix::io::Result<()> {
    let fd = fd.into_raw_fd();
    // SAFETY: the descriptor was owned here and is given up by `into_raw_fd`, so nobody else uses it.
    if unsafe { libc::close(fd) } == 0 {
        return Ok(());
    }
    match errno_of(&std::io::Error::last_os_error()) {
        // Linux has let go of the descriptor by then; the answer was only cut short.
        Errno::INTR => Ok(()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Barrier;

    use super::super::{put_new, read_all, read_from};
    use super::*;

    /// Far longer than any lock takes here.
    const LIMIT: Duration = Duration::from_secs(60);

    fn host(dir: &Path) -> HostFs {
        HostFs::open(dir, HostOptions::default()).unwrap()
    }

    /// The same directory by both ways of resolving paths.
    fn both(dir: &Path) -> [HostFs; 2] {
        let mut walk = host(dir);
        Arc::get_mut(&mut walk.base).unwrap().resolve = Resolve::Walk;
        [host(dir), walk]
    }

    fn put(fs: &HostFs, path: &str, bytes: &[u8]) {
        put_new(fs, Path::new(path), bytes, 0o644).unwrap();
    }

    fn get(fs: &HostFs, path: &str) -> Vec<u8> {
        read_all(fs, Path::new(path)).unwrap()
    }

    #[track_caller]
    fn check<T>(outcome: Result<T>, expected: ErrorKind) {
        match outcome {
            Ok(_) => panic!("done, though it should fail as {expected:?}"),
            Err(error) => assert_eq!(error.kind, expected, "{error}"),
        }
    }

    /// Runs `step` in 16 threads at once and returns how many succeed.
    fn winners(step: impl Fn(usize) -> bool + Sync) -> usize {
        let start = Barrier::new(16);
        std::thread::scope(|scope| {
            let racers: Vec<_> = (0..16)
                .map(|racer| {
                    let (start, step) = (&start, &step);
                    scope.spawn(move || {
                        start.wait();
                        step(racer)
                    })
                })
                .collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        })
    }

    #[test]
    fn sixteen_threads_create_one_name_and_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        for fs in both(dir.path()) {
            for round in 0..20 {
                let name = format!("{:?}-{round}", fs.base.resolve);
                assert_eq!(winners(|_| fs.create(Path::new(&name), 0o600).is_ok()), 1);
            }
        }
    }

    #[test]
    fn one_source_renamed_to_sixteen_targets_has_one_winner() {
        let dir = tempfile::tempdir().unwrap();
        let fs = host(dir.path());
        for round in 0..20 {
            put(&fs, &format!("{round}.token"), b"");
            let to = |racer: usize| PathBuf::from(format!("{round}.{racer}"));
            assert_eq!(winners(|racer| fs.rename(Path::new(&format!("{round}.token")), &to(racer)).is_ok()), 1);
        }
        assert_eq!(fs.list(Path::new("")).unwrap().len(), 20);
    }

    #[test]
    fn a_planted_link_is_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(outside.path().join("sub")).unwrap();
        std::fs::write(outside.path().join("file"), "theirs").unwrap();
        symlink(outside.path().join("file"), dir.path().join("to-file")).unwrap();
        symlink(outside.path().join("gone"), dir.path().join("to-nothing")).unwrap();
        symlink(outside.path(), dir.path().join("to-dir")).unwrap();
        for fs in both(dir.path()) {
            put(&fs, "ours", b"ours");
            let path = Path::new;
            for name in ["to-file", "to-nothing", "to-dir", "to-dir/file", "to-dir/sub/x"] {
                check(fs.open(path(name)), ErrorKind::Planted);
                check(fs.unlink(path(name)), ErrorKind::Planted);
                check(fs.rmdir(path(name)), ErrorKind::Planted);
                check(fs.rename(path(name), path("moved")), ErrorKind::Planted);
                check(fs.list(path(name)), ErrorKind::Planted);
                assert!(matches!(fs.lock(path(name), LIMIT), Locked::Failed(e) if e.kind == ErrorKind::Planted));
            }
            for name in ["to-file", "to-nothing", "to-dir"] {
                check(fs.create(path(name), 0o644), ErrorKind::Exists);
                check(fs.mkdir(path(name)), ErrorKind::Exists);
            }
            for name in ["to-dir/new", "to-dir/sub/new", "to-nothing/new"] {
                check(fs.create(path(name), 0o644), ErrorKind::Planted);
                check(fs.mkdir(path(name)), ErrorKind::Planted);
                check(fs.rename(path("ours"), path(name)), ErrorKind::Planted);
            }
            fs.unlink(path("ours")).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(outside.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "sub"]);
        assert_eq!(std::fs::read(outside.path().join("file")).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(outside.path().join("sub")).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_the_place_of_a_rename_target_is_replaced_and_not_written_through() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), "theirs").unwrap();
        symlink(outside.path().join("file"), dir.path().join("target")).unwrap();
        let fs = host(dir.path());
        put(&fs, "a", b"ours");
        fs.rename(Path::new("a"), Path::new("target")).unwrap();
        assert_eq!(get(&fs, "target"), b"ours");
        assert_eq!(std::fs::read(outside.path().join("file")).unwrap(), b"theirs");
    }

    #[test]
    fn no_path_leads_out_of_the_queue() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("q");
        std::fs::create_dir_all(inner.join("sub")).unwrap();
        for fs in both(&inner) {
            for name in ["..", "../x", "sub/../x", "/etc/hostname", "./x"] {
                check(fs.open(Path::new(name)), ErrorKind::Planted);
                check(fs.create(Path::new(name), 0o644), ErrorKind::Planted);
                check(fs.list(Path::new(name)), ErrorKind::Planted);
                check(fs.mkdir(Path::new(name)), ErrorKind::Planted);
                check(fs.rename(Path::new("sub"), Path::new(name)), ErrorKind::Planted);
            }
            check(fs.open(Path::new("")), ErrorKind::Planted);
            check(fs.rmdir(Path::new("")), ErrorKind::Planted);
        }
    }

    #[test]
    fn pipes_and_directories_are_refused_at_once_where_a_file_should_be() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        for fs in both(dir.path()) {
            for name in ["pipe", "dir"] {
                check(fs.open(Path::new(name)), ErrorKind::Planted);
                check(fs.unlink(Path::new(name)), ErrorKind::Planted);
                check(fs.create(Path::new(name), 0o644), ErrorKind::Exists);
                assert!(matches!(fs.lock(Path::new(name), LIMIT), Locked::Failed(e) if e.kind == ErrorKind::Planted));
            }
            check(fs.rename(Path::new("pipe"), Path::new("x")), ErrorKind::Planted);
        }
    }

    /// A umask belongs to the whole process. This runs `step` in a thread that has one of its own, so that no other test sees it.
    fn with_umask(umask: u32, step: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                #[expect(unsafe_code, reason = "only affects this thread's umask and working directory")]
                // SAFETY: no descriptor table is split, so no owned descriptor changes its meaning.
                unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.unwrap();
                rustix::process::umask(Mode::from_raw_mode(umask));
                step();
            });
            thread.join().unwrap();
        });
    }

    fn mode_and_group(dir: &Path, name: &str) -> (u32, u32) {
        let metadata = std::fs::symlink_metadata(dir.join(name)).unwrap();
        (permissions(metadata.mode()), metadata.gid())
    }

    #[test]
    fn a_group_queue_keeps_its_modes_under_a_strict_umask() {
        let dir = tempfile::tempdir().unwrap();
        // Only root can give files to a group that it is not in.
        let gid = if rustix::process::geteuid().is_root() { 4321 } else { rustix::process::getegid().as_raw() };
        with_umask(0o077, || {
            let fs = HostFs::open(dir.path(), HostOptions { group: Some(gid), ..HostOptions::default() }).unwrap();
            fs.mkdir(Path::new("jobs")).unwrap();
            fs.mkdir(Path::new("jobs/000")).unwrap();
            put_new(&fs, Path::new("jobs/000/1.json"), b"x", 0o660).unwrap();
            put_new(&fs, Path::new("top"), b"x", 0o640).unwrap();
        });
        assert_eq!(mode_and_group(dir.path(), "jobs"), (0o2770, gid));
        assert_eq!(mode_and_group(dir.path(), "jobs/000"), (0o2770, gid));
        assert_eq!(mode_and_group(dir.path(), "jobs/000/1.json"), (0o660, gid));
        assert_eq!(mode_and_group(dir.path(), "top"), (0o640, gid));
    }

    #[test]
    fn without_a_group_files_have_the_mode_asked_for_and_directories_what_the_umask_leaves() {
        let dir = tempfile::tempdir().unwrap();
        for (umask, name, dir_mode) in [(0o077, "private", 0o700), (0o022, "usual", 0o755), (0, "open", 0o755)] {
            with_umask(umask, || {
                let fs = host(dir.path());
                fs.mkdir(Path::new(name)).unwrap();
                put(&fs, &format!("{name}/file"), b"");
            });
            assert_eq!(mode_and_group(dir.path(), name).0, dir_mode);
            assert_eq!(mode_and_group(dir.path(), &format!("{name}/file")).0, 0o644);
        }
    }

    #[test]
    fn a_listing_shows_our_names_and_hides_those_that_the_mount_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        for name in ["a", ".t-0", ".nfs000123", ".fuse_hidden0001"] {
            std::fs::write(path.join(name), "").unwrap();
        }
        std::fs::write(path.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        std::fs::create_dir(path.join("sub")).unwrap();
        symlink("a", path.join("link")).unwrap();
        for fs in both(path) {
            let mut entries = fs.list(Path::new("")).unwrap();
            entries.sort();
            let entries: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.kind)).collect();
            let expected = [
                (".t-0", EntryKind::File),
                ("a", EntryKind::File),
                ("link", EntryKind::Other),
                ("sub", EntryKind::Dir),
            ];
            assert_eq!(entries, expected);
            assert_eq!(fs.list(Path::new("sub")).unwrap(), []);
        }
    }

    #[test]
    fn absence_and_presence_have_their_own_errors() {
        let dir = tempfile::tempdir().unwrap();
        for fs in both(dir.path()) {
            let none = Path::new("none/x");
            check(fs.open(none), ErrorKind::NotFound);
            check(fs.create(none, 0o600), ErrorKind::NotFound);
            check(fs.list(none), ErrorKind::NotFound);
            check(fs.unlink(none), ErrorKind::NotFound);
            check(fs.mkdir(none), ErrorKind::NotFound);
            check(fs.rename(none, Path::new("x")), ErrorKind::NotFound);
            check(fs.sync_dir(none), ErrorKind::NotFound);
            assert!(matches!(fs.lock(none, LIMIT), Locked::Failed(e) if e.not_found()));
            fs.mkdir(Path::new("dir")).unwrap();
            put(&fs, "dir/file", b"");
            check(fs.mkdir(Path::new("dir")), ErrorKind::Exists);
            check(fs.rmdir(Path::new("dir")), ErrorKind::Exists);
            fs.unlink(Path::new("dir/file")).unwrap();
            fs.rmdir(Path::new("dir")).unwrap();
        }
        check(HostFs::open(&dir.path().join("none"), HostOptions::default()), ErrorKind::NotFound);
    }

    #[test]
    fn files_and_directories_move_between_directories() {
        let dir = tempfile::tempdir().unwrap();
        for fs in both(dir.path()) {
            fs.mkdir(Path::new("from")).unwrap();
            fs.mkdir(Path::new("to")).unwrap();
            put(&fs, "from/a", b"new");
            put(&fs, "to/a", b"old");
            fs.rename(Path::new("from/a"), Path::new("to/a")).unwrap();
            assert_eq!(get(&fs, "to/a"), b"new");
            fs.rename(Path::new("to"), Path::new("from/sub")).unwrap();
            assert_eq!(get(&fs, "from/sub/a"), b"new");
            fs.rename(Path::new("from"), Path::new(&format!("done-{:?}", fs.base.resolve))).unwrap();
        }
    }

    #[test]
    fn a_mount_that_must_not_open_what_it_moves_renames_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let mut fs = host(dir.path());
        fs.mkdir(Path::new("sub")).unwrap();
        for line in ["nfs4 s:/ rw,vers=4.2", "beegfs b rw"] {
            let mount = format!("1 0 0:1 / / rw - {line}\n");
            fs.mount = MountInfo::find(&mount, Path::new("/"), None).unwrap();
            put(&fs, "a", b"x");
            fs.rename(Path::new("a"), Path::new("sub/b")).unwrap();
            assert_eq!(get(&fs, "sub/b"), b"x");
            symlink("sub/b", dir.path().join("link")).unwrap();
            check(fs.rename(Path::new("link"), Path::new("c")), ErrorKind::Planted);
            std::fs::remove_file(dir.path().join("link")).unwrap();
        }
    }

    #[test]
    fn appended_bytes_are_read_from_any_offset() {
        let dir = tempfile::tempdir().unwrap();
        for durability in [Durability::Full, Durability::None] {
            let fs = HostFs::open(dir.path(), HostOptions { durability, group: None }).unwrap();
            let mut file = fs.create(Path::new("log"), 0o600).unwrap();
            file.write(b"one ").unwrap();
            file.sync().unwrap();
            file.write(b"two").unwrap();
            file.sync().unwrap();
            file.close().unwrap();
            assert_eq!(read_from(&fs, Path::new("log"), 4).unwrap(), b"two");
            let stat = fs.open(Path::new("log")).unwrap().stat().unwrap();
            assert_eq!((stat.len, stat.mode), (7, 0o600));
            assert_eq!(stat.uid, rustix::process::geteuid().as_raw());
            fs.unlink(Path::new("log")).unwrap();
        }
    }

    #[test]
    fn a_file_is_refused_after_a_failed_write() {
        let dir = tempfile::tempdir().unwrap();
        let fs = host(dir.path());
        put(&fs, "a", b"x");
        // A descriptor that cannot be written to stands for a disk that fails once.
        let fd = fs.base.regular(Path::new("a"), OFlags::RDONLY).unwrap();
        let mut file =
            HostWriteFile { fd, path: PathBuf::from("a"), syncs: true, is_new: false, latch: Latch::default() };
        let error = file.write(b"y").unwrap_err();
        assert_eq!((error.call, error.errno), (Call::Write, libc::EBADF));
        assert_eq!(file.sync(), Err(error.clone()));
        assert_eq!(Box::new(file).close(), Err(error));
    }

    #[test]
    fn a_lock_refuses_the_next_one_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let fs = host(dir.path());
        put(&fs, "lock", b"");
        let path = Path::new("lock");
        let Locked::Held(guard) = fs.lock(path, LIMIT) else { panic!("not taken") };
        assert!(matches!(fs.lock(path, LIMIT), Locked::Refused));
        assert!(matches!(host(dir.path()).lock(path, LIMIT), Locked::Refused));
        assert!(guard.raw_fd().is_some());
        drop(guard);
        assert!(matches!(fs.lock(path, LIMIT), Locked::Held(_)));
    }

    #[test]
    fn an_open_queue_knows_itself() {
        let dir = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2751);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let fs = host(dir.path());
        assert_eq!(fs.root(), dir.path());
        assert_eq!(fs.full_path(Path::new("a/b")), dir.path().join("a/b"));
        assert_eq!(fs.root_stat().unwrap().mode, 0o2751);
        assert_ne!(fs.mount().fs_type, "");
        assert!(fs.space().unwrap().bytes_free > 0);
    }
}
