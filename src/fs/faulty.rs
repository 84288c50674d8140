//! Fails chosen calls of any [`Fs`], for tests of what happens when the disk is full, broken or away.
//!
//! Invariant: what no rule matches is passed on unchanged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::latch::Latch;
use super::{Call, Entry, Fs, FsError, Locked, ReadFile, Result, Space, Stat, WriteFile};

/// Fails those calls to the file system it wraps that a [`Rule`] picks.
#[derive(Debug)]
pub struct Faulty<F> {
    inner: F,
    rules: Arc<Rules>,
}

/// One fault: which calls fail, when, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    call: Call,
    part: String,
    errno: i32,
    skip: u64,
    times: u64,
    is_executed: bool,
}

impl Rule {
    /// Makes every `call`, on any path, fail with the system error number `errno`.
    pub fn new(call: Call, errno: i32) -> Self {
        Self { call, part: String::new(), errno, skip: 0, times: u64::MAX, is_executed: false }
    }

    /// Limits the rule to paths that contain `part`; of a rename either path will do.
    #[must_use]
    pub fn on(self, part: &str) -> Self {
        Self { part: part.to_owned(), ..self }
    }

    /// Lets the first `nth - 1` matching calls pass; counted from 1.
    #[must_use]
    pub fn from(self, nth: u64) -> Self {
        Self { skip: nth.saturating_sub(1), ..self }
    }

    /// Ends the rule after it has failed `times` calls.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// Executes the call before it fails, like a reply that was lost.
    #[must_use]
    pub fn executed(self) -> Self {
        Self { is_executed: true, ..self }
    }
}

impl<F: Fs> Faulty<F> {
    /// Wraps `inner`, without any rule.
    pub fn new(inner: F) -> Self {
        Self { inner, rules: Arc::default() }
    }

    /// Returns the file system that is wrapped.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// Adds a rule; it applies also to files that are open already. Of several that match the first decides.
    pub fn add(&self, rule: Rule) {
        self.rules.0.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// Removes all rules.
    pub fn heal(&self) {
        self.rules.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[derive(Debug, Default)]
struct Rules(Mutex<Vec<Rule>>);

impl Rules {
    /// Makes `call` on `path`, or fails it as the rules say.
    fn apply<T>(&self, call: Call, path: &Path, step: impl FnOnce() -> Result<T>) -> Result<T> {
        self.apply_to(call, &[path], step)
    }

    fn apply_to<T>(&self, call: Call, paths: &[&Path], step: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some((errno, is_executed)) = self.pick(call, paths) else { return step() };
        if is_executed {
            step()?;
        }
        Err(FsError::new(call, paths.first().copied().unwrap_or(Path::new("")), errno))
    }

    fn pick(&self, call: Call, paths: &[&Path]) -> Option<(i32, bool)> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in rules.iter_mut() {
            let matches = paths.iter().any(|path| path.to_string_lossy().contains(&rule.part));
            if rule.call != call || rule.times == 0 || !matches {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            return Some((rule.errno, rule.is_executed));
        }
        None
    }
}

impl<F: Fs> Fs for Faulty<F> {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.rules.apply(Call::List, dir, || self.inner.list(dir))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        let file = self.rules.apply(Call::Open, path, || self.inner.open(path))?;
        Ok(Box::new(FaultyFile::new(file, path, &self.rules)))
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        let file = self.rules.apply(Call::Create, path, || self.inner.create(path, mode))?;
        Ok(Box::new(FaultyFile::new(file, path, &self.rules)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.rules.apply_to(Call::Rename, &[from, to], || self.inner.rename(from, to))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.rules.apply(Call::Unlink, path, || self.inner.unlink(path))
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        self.rules.apply(Call::Mkdir, dir, || self.inner.mkdir(dir))
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        self.rules.apply(Call::Rmdir, dir, || self.inner.rmdir(dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.rules.apply(Call::SyncDir, dir, || self.inner.sync_dir(dir))
    }

    /// A rule with the number 0 makes the lock hang, `EWOULDBLOCK` refuses it, `ENOLCK` says that there are none.
    fn drops_names(&self) -> bool {
        self.inner.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        match self.rules.pick(Call::Lock, &[path]) {
            None => self.inner.lock(path, limit),
            Some((0, _)) => Locked::Hung,
            Some((libc::EWOULDBLOCK, _)) => Locked::Refused,
            Some((libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP, _)) => Locked::Unsupported,
            Some((errno, _)) => Locked::Failed(FsError::new(Call::Lock, path, errno)),
        }
    }

    fn space(&self) -> Result<Space> {
        self.rules.apply(Call::Space, Path::new(""), || self.inner.space())
    }
}

struct FaultyFile<T: ?Sized> {
    path: PathBuf,
    rules: Arc<Rules>,
    latch: Latch,
    file: Box<T>,
}

impl<T: ?Sized> FaultyFile<T> {
    fn new(file: Box<T>, path: &Path, rules: &Arc<Rules>) -> Self {
        Self { path: path.to_owned(), rules: Arc::clone(rules), latch: Latch::default(), file }
    }
}

impl ReadFile for FaultyFile<dyn ReadFile> {
    fn stat(&self) -> Result<Stat> {
        self.rules.apply(Call::Stat, &self.path, || self.file.stat())
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.rules.apply(Call::Read, &self.path, || self.file.read_at(buffer, offset))
    }

    fn sync(&self) -> Result<()> {
        self.rules.apply(Call::Sync, &self.path, || self.file.sync())
    }
}

impl WriteFile for FaultyFile<dyn WriteFile> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.latch.run(|| self.rules.apply(Call::Write, &self.path, || self.file.write(bytes)))
    }

    fn sync(&mut self) -> Result<()> {
        self.latch.run(|| self.rules.apply(Call::Sync, &self.path, || self.file.sync()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { path, rules, mut latch, file } = *self;
        latch.run(|| rules.apply(Call::Close, &path, || file.close()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Durability, ErrorKind, HostFs, HostOptions, publish, put_new, read_all};
    use super::*;
    use crate::clock::HostChance;

    fn faulty(dir: &Path) -> Faulty<HostFs> {
        Faulty::new(HostFs::open(dir, HostOptions { durability: Durability::None, group: None }).unwrap())
    }

    #[test]
    fn a_file_is_refused_after_a_failed_sync_though_the_disk_recovers() {
        let dir = tempfile::tempdir().unwrap();
        let fs = faulty(dir.path());
        let mut file = fs.create(Path::new("a"), 0o600).unwrap();
        file.write(b"one").unwrap();
        fs.add(Rule::new(Call::Sync, libc::EIO).times(1));
        let error = file.sync().unwrap_err();
        assert_eq!((error.call, error.errno), (Call::Sync, libc::EIO));
        assert_eq!(file.write(b"two"), Err(error.clone()));
        assert_eq!(file.sync(), Err(error.clone()));
        assert_eq!(file.close(), Err(error));
        assert_eq!(read_all(&fs, Path::new("a")).unwrap(), b"one");
    }

    #[test]
    fn a_full_disk_leaves_no_temporary_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let fs = faulty(dir.path());
        fs.add(Rule::new(Call::Write, libc::EDQUOT));
        let error = publish(&fs, &HostChance, Path::new("a"), b"x", 0o600).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoSpace);
        assert_eq!(fs.list(Path::new("")).unwrap(), []);
    }

    #[test]
    fn a_rule_picks_its_calls_by_path_and_number() {
        let dir = tempfile::tempdir().unwrap();
        let fs = faulty(dir.path());
        fs.add(Rule::new(Call::Create, libc::ENOSPC).on("log").from(2).times(1));
        put_new(&fs, Path::new("other"), b"", 0o600).unwrap();
        put_new(&fs, Path::new("log1"), b"", 0o600).unwrap();
        assert_eq!(put_new(&fs, Path::new("log2"), b"", 0o600).unwrap_err().kind, ErrorKind::NoSpace);
        put_new(&fs, Path::new("log2"), b"", 0o600).unwrap();
    }

    #[test]
    fn an_executed_call_can_lose_its_reply() {
        let dir = tempfile::tempdir().unwrap();
        let fs = faulty(dir.path());
        put_new(&fs, Path::new("a"), b"x", 0o600).unwrap();
        fs.add(Rule::new(Call::Rename, libc::ESTALE).on("b").executed());
        assert!(fs.rename(Path::new("a"), Path::new("b")).unwrap_err().not_found());
        assert_eq!(read_all(&fs, Path::new("b")).unwrap(), b"x");
    }

    #[test]
    fn a_lock_can_hang() {
        let dir = tempfile::tempdir().unwrap();
        let fs = faulty(dir.path());
        fs.add(Rule::new(Call::Lock, 0));
        assert!(matches!(fs.lock(Path::new("a"), Duration::ZERO), Locked::Hung));
    }
}
