//! Counts calls by kind over any [`Fs`], because cost on a shared file system is calls, not bytes.
//!
//! Invariant: a call is counted when it is made, whether it succeeds or not, and everything else is left as it was.

use std::fmt;
use std::ops::Sub;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Call, Entry, Fs, Locked, ReadFile, Result, Space, Stat, WriteFile};

/// Counts the calls to the file system that it wraps, its open files included.
#[derive(Debug)]
pub struct Counting<F> {
    inner: F,
    tally: Arc<Tally>,
}

impl<F: Fs> Counting<F> {
    /// Wraps `inner`, with all counts at 0.
    pub fn new(inner: F) -> Self {
        Self { inner, tally: Arc::default() }
    }

    /// Returns the file system that is wrapped.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// Returns the counts of all calls so far.
    pub fn counts(&self) -> Counts {
        Counts(std::array::from_fn(|index| self.tally.0[index].load(Ordering::Relaxed)))
    }
}

/// Numbers of calls by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([u64; Call::ALL.len()]);

impl Counts {
    /// Returns how often `call` was made.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// Returns the number of calls that look up or change a name; see [`Call::is_namespace`].
    pub fn total_namespace(&self) -> u64 {
        Call::ALL.into_iter().filter(|call| call.is_namespace()).map(|call| self.of(call)).sum()
    }

    /// Returns the number of all calls.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Sub for Counts {
    type Output = Self;

    /// The calls made since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }
}

impl fmt::Display for Counts {
    /// One line for each kind of call that was made, then the sum over names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for call in Call::ALL.into_iter().filter(|call| self.of(*call) > 0) {
            writeln!(f, "{:<24} {:>10}", call.verb(), self.of(call))?;
        }
        write!(f, "{:<24} {:>10}", "calls on names", self.total_namespace())
    }
}

#[derive(Debug, Default)]
struct Tally([AtomicU64; Call::ALL.len()]);

impl Tally {
    fn add(&self, call: Call) {
        self.0[call as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl<F: Fs> Fs for Counting<F> {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.tally.add(Call::List);
        self.inner.list(dir)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        self.tally.add(Call::Open);
        let file = self.inner.open(path)?;
        Ok(Box::new(CountedFile { file, tally: Arc::clone(&self.tally) }))
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        self.tally.add(Call::Create);
        let file = self.inner.create(path, mode)?;
        Ok(Box::new(CountedFile { file, tally: Arc::clone(&self.tally) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.tally.add(Call::Rename);
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.tally.add(Call::Unlink);
        self.inner.unlink(path)
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        self.tally.add(Call::Mkdir);
        self.inner.mkdir(dir)
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        self.tally.add(Call::Rmdir);
        self.inner.rmdir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.tally.add(Call::SyncDir);
        self.inner.sync_dir(dir)
    }

    fn drops_names(&self) -> bool {
        self.inner.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        self.tally.add(Call::Lock);
        self.inner.lock(path, limit)
    }

    fn space(&self) -> Result<Space> {
        self.tally.add(Call::Space);
        self.inner.space()
    }
}

struct CountedFile<T: ?Sized> {
    tally: Arc<Tally>,
    file: Box<T>,
}

impl ReadFile for CountedFile<dyn ReadFile> {
    fn stat(&self) -> Result<Stat> {
        self.tally.add(Call::Stat);
        self.file.stat()
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.tally.add(Call::Read);
        self.file.read_at(buffer, offset)
    }

    fn sync(&self) -> Result<()> {
        self.tally.add(Call::Sync);
        self.file.sync()
    }
}

impl WriteFile for CountedFile<dyn WriteFile> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.tally.add(Call::Write);
        self.file.write(bytes)
    }

    fn sync(&mut self) -> Result<()> {
        self.tally.add(Call::Sync);
        self.file.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.tally.add(Call::Close);
        self.file.close()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Durability, HostFs, HostOptions, publish, put_new, read_all};
    use super::*;
    use crate::clock::HostChance;

    fn counting(dir: &Path) -> Counting<HostFs> {
        Counting::new(HostFs::open(dir, HostOptions { durability: Durability::Full, group: None }).unwrap())
    }

    #[track_caller]
    fn check(counts: Counts, expected: &[(Call, u64)]) {
        let made: Vec<_> = Call::ALL.into_iter().map(|c| (c, counts.of(c))).filter(|(_, count)| *count > 0).collect();
        assert_eq!(made, expected);
    }

    #[test]
    fn putting_a_new_file_touches_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let fs = counting(dir.path());
        put_new(&fs, Path::new("a"), b"x", 0o644).unwrap();
        let calls = [Call::Create, Call::Write, Call::Sync, Call::Close, Call::SyncDir].map(|c| (c, 1));
        check(fs.counts(), &calls);
        assert_eq!(fs.counts().total_namespace(), 1);
    }

    #[test]
    fn publishing_touches_two_names() {
        let dir = tempfile::tempdir().unwrap();
        let fs = counting(dir.path());
        publish(&fs, &HostChance, Path::new("a"), b"x", 0o644).unwrap();
        let calls = [Call::Create, Call::Write, Call::Sync, Call::Close, Call::Rename].map(|c| (c, 1));
        check(fs.counts(), &calls);
        assert_eq!(fs.counts().total_namespace(), 2);
    }

    #[test]
    fn counts_subtract_and_failed_calls_count() {
        let dir = tempfile::tempdir().unwrap();
        let fs = counting(dir.path());
        put_new(&fs, Path::new("a"), b"x", 0o644).unwrap();
        let before = fs.counts();
        assert_eq!(read_all(&fs, Path::new("a")).unwrap(), b"x");
        assert!(fs.unlink(Path::new("none")).unwrap_err().not_found());
        let since = fs.counts() - before;
        check(since, &[(Call::Open, 1), (Call::Read, 2), (Call::Unlink, 1)]);
        assert_eq!(
            since.to_string(),
            "open                              1\n\
             read                              2\n\
             remove                            1\n\
             calls on names                    2"
        );
    }
}
