//! The measuring itself: small experiments in a private directory.
//!
//! Invariants:
//! - A race has a violation only where two callers were told that they won, two results are listed, or nothing is left though
//!   nobody failed for another reason. What could not be tried is counted apart.
//! - Names are found by listing from the top, never by looking up a name that may not be there yet: on NFS the look-up itself
//!   would keep the name hidden.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;

use super::Effort;
use crate::clock::{Chance, Clock};
use crate::decision;
use crate::fs::{self, Fs, FsError, HostFs, LockGuard, Locked, ReadFile, Result, Watch, WriteFile};
use crate::protocol::id::Nonce;

/// How many threads race on one mount.
const RACERS: usize = 4;

/// Longer than one tick of a server's clock (1 to 10 ms), within which `NFSv3` does not notice a second change.
const TICK: Duration = Duration::from_millis(40);

/// The mode that new files are asked for: one that the usual umask takes something from and no usual mount option makes up.
const MODE: u32 = 0o664;

/// What one mount does by itself. Members that could not be measured are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Alone {
    /// Whether a file got a new name by rename, and its old one went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rename_new: Option<bool>,
    /// Whether rename replaced an existing file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rename_over: Option<bool>,
    /// Threads that rename one source to different targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rename_race: Option<Race>,
    /// Threads that create one name exclusively.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_race: Option<Race>,
    /// Whether a directory can be made durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir_sync: Option<DirSync>,
    /// The first try to lock a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockAnswer>,
    /// The second try, while the first has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_lock: Option<LockAnswer>,
    /// The third, after the first was let go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_lock: Option<LockAnswer>,
    /// Bytes that this user can still write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_free: Option<u64>,
    /// Files that this user can still make; left out where the file system does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    /// Appending 200 bytes and making them durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub append: Option<Spread>,
    /// A durable rename within a directory, as a commit does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rename: Option<Spread>,
    /// Whether names that begin with a dot are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_names_listed: Option<bool>,
    /// Whether a new file has the permissions that were asked for, whatever the umask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_kept: Option<bool>,
    /// The smallest step seen between two modification times, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtime_step_us: Option<u64>,
    /// Whether changes made on this host wake a watcher on it; left out where there is no watcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<bool>,
}

/// What two mounts of one directory see of each other; A is the queue's, B the peer's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Pair {
    /// The kind of B's mount.
    pub mount_kind: String,
    /// Whether both are one file system to this host's kernel, so that no cache lies between them.
    pub shares_caches: bool,
    /// A and B rename one source to different targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rename_race: Option<Race>,
    /// A and B create one name exclusively.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_race: Option<Race>,
    /// B's try to lock a file that A has locked; left out if A got no lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockAnswer>,
    /// From A's letting go of a lock to B's getting it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_release: Option<Lag>,
    /// From A's rename of a file to B's listing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Lag>,
    /// From A's sync of appended bytes to B's reading of them after opening the file again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_reopened: Option<Lag>,
    /// The same on a descriptor that B keeps open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_kept: Option<Lag>,
    /// Bytes that A has written and not synced; B opens the file again. Not waited for long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_unsynced: Option<Lag>,
    /// Two changes of a directory right after each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_tick: Option<SameTick>,
    /// Whether A's change wakes a watcher at B; left out where there is no watcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<bool>,
}

/// Rounds of a race by outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Race {
    /// Rounds that were run.
    pub rounds: u32,
    /// Exactly one caller won and knows it.
    pub one: u32,
    /// More than one caller was told that it won, or more than one result is there.
    pub several: u32,
    /// Nobody won and nothing is there.
    pub none: u32,
    /// Somebody won, but nobody was told: a lost reply.
    pub untold: u32,
    /// Nobody won, and somebody failed for another reason than losing.
    pub failed: u32,
    /// How many rounds each caller won.
    pub wins: Vec<u32>,
}

impl Race {
    /// Whether a round came out in a way that the queue's safety does not survive.
    pub fn is_violated(&self) -> bool {
        self.several > 0 || self.none > 0
    }

    fn count(&mut self, told: &[Told], listed: usize) {
        self.rounds += 1;
        self.wins.resize(told.len(), 0);
        for (wins, _) in self.wins.iter_mut().zip(told).filter(|(_, told)| **told == Told::Won) {
            *wins += 1;
        }
        let winners = told.iter().filter(|told| **told == Told::Won).count();
        let outcome = match (winners, listed) {
            (2.., _) | (_, 2..) => &mut self.several,
            (1, _) => &mut self.one,
            (0, 1) => &mut self.untold,
            (0, _) if told.contains(&Told::Failed) => &mut self.failed,
            (0, _) => &mut self.none,
        };
        *outcome += 1;
    }
}

/// What one caller in a race was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Won,
    Lost,
    Failed,
}

impl Told {
    fn of(outcome: &Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Won,
            Err(error) if matches!(error.kind, fs::ErrorKind::NotFound | fs::ErrorKind::Exists) => Self::Lost,
            Err(_) => Self::Failed,
        }
    }
}

/// Whether a directory can be made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DirSync {
    /// Yes.
    Done,
    /// The file system has no such call.
    Unsupported,
    /// It failed.
    Failed,
}

/// The answer to one try to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockAnswer {
    /// Taken.
    Held,
    /// Somebody else has it.
    Refused,
    /// There are no locks here.
    Unsupported,
    /// No answer in time.
    Hung,
    /// Another error.
    Failed,
}

impl LockAnswer {
    fn of(locked: &Locked) -> Self {
        match locked {
            Locked::Held(_) => Self::Held,
            Locked::Refused => Self::Refused,
            Locked::Unsupported => Self::Unsupported,
            Locked::Hung => Self::Hung,
            Locked::Failed(_) => Self::Failed,
        }
    }
}

/// How long something took, over all samples, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// How many samples, at least 1.
    pub count: u32,
    /// Half of them took no longer.
    pub median_us: u64,
    /// 95 of 100 took no longer.
    pub p95_us: u64,
    /// None took longer.
    pub max_us: u64,
}

impl Spread {
    /// Sums up samples; `None` if there are none.
    pub fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let rank = |percent: usize| (samples.len() * percent).div_ceil(100).saturating_sub(1);
        let us = |index: usize| samples.get(index).map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
        Some(Self {
            count: u32::try_from(samples.len()).unwrap_or(u32::MAX),
            median_us: us(rank(50))?,
            p95_us: us(rank(95))?,
            max_us: us(samples.len().checked_sub(1)?)?,
        })
    }

    /// Returns how many of them fit into a second, one after the other.
    pub fn per_second(&self) -> u64 {
        1_000_000 / self.median_us.max(1)
    }
}

/// How long one mount takes to see what was done on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lag {
    /// The samples that were seen; `None` if none was.
    pub seen: Option<Spread>,
    /// Samples that were not seen in the time given.
    pub unseen: u32,
    /// The time given, in milliseconds.
    pub limit_ms: u64,
}

impl Lag {
    /// Returns the longest delay in milliseconds, rounded up; `None` if something was not seen at all.
    pub fn max_ms(&self) -> Option<u64> {
        self.seen.filter(|_| self.unseen == 0).map(|spread| spread.max_us.div_ceil(1000))
    }
}

/// What B lists when A makes two files right after each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SameTick {
    /// Rounds that were run.
    pub rounds: u32,
    /// The second file was not in a listing at once.
    pub missing_at_once: u32,
    /// Nor a tick later.
    pub missing_later: u32,
    /// Nor after another change of the directory.
    pub missing_after_nudge: u32,
}

/// Where and how to measure.
#[derive(Clone, Copy)]
pub(super) struct Room<'a> {
    /// The private directory, which exists.
    pub(super) dir: &'a Path,
    pub(super) effort: &'a Effort,
    pub(super) clock: &'a dyn Clock,
    pub(super) chance: &'a dyn Chance,
    pub(super) progress: &'a dyn Fn(&str),
}

/// Keeps the value of a step that worked, and notes why one did not.
fn keep<T>(failed: &mut Vec<String>, what: &str, outcome: Result<T>) -> Option<T> {
    outcome.map_err(|error| failed.push(format!("{what}: {error}"))).ok()
}

/// Whether B lists what A has made in the private directory.
pub(super) fn is_same_directory(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs, limit: Duration) -> bool {
    let nonce = format!("here-{}", Nonce(room.chance.bits()));
    let parent = room.dir.parent().unwrap_or(Path::new(""));
    let Some(name) = room.dir.file_name().and_then(|name| name.to_str()) else { return false };
    let is_made = fs::put_new(a, &room.dir.join(&nonce), nonce.as_bytes(), MODE).is_ok();
    let lists = |dir: &Path, name: &str| b.list(dir).is_ok_and(|entries| entries.iter().any(|e| e.name == name));
    is_made && waits_for(room.clock, limit, || lists(parent, name) && lists(room.dir, &nonce)).is_some()
}

/// Measures one mount, by the calls that the queue itself makes.
pub(super) fn alone(room: &Room<'_>, fs: &dyn Fs, failed: &mut Vec<String>) -> Alone {
    let mut found = Alone::default();
    (room.progress)("files, names and locks");
    if let Some((new, over)) = keep(failed, "renaming", renames(room, fs)) {
        (found.rename_new, found.rename_over) = (Some(new), Some(over));
    }
    found.hidden_names_listed = keep(failed, "listing hidden names", lists_hidden(room, fs));
    found.mode_kept = keep(failed, "permissions of new files", keeps_mode(room, fs));
    if let Some(space) = keep(failed, "free space", fs.space()) {
        found.bytes_free = Some(space.bytes_free);
        found.inodes_free = Some(space.inodes_free).filter(|free| *free != u64::MAX);
    }
    if let Some(answers) = keep(failed, "locks", locks(room, fs)) {
        (found.lock, found.second_lock, found.freed_lock) =
            (answers.first().copied(), answers.get(1).copied(), answers.get(2).copied());
    }
    (room.progress)("durable appends and renames");
    found.append = keep(failed, "appending", append_times(room, fs)).flatten();
    found.rename = keep(failed, "renaming", rename_times(room, fs)).flatten();
    (room.progress)("races of threads on this mount");
    let racers = [fs; RACERS];
    found.rename_race = keep(failed, "a race of renames", race(room, Prize::Rename, "alone-r", &racers));
    found.create_race = keep(failed, "a race of creations", race(room, Prize::Create, "alone-c", &racers));
    found
}

/// Measures what the queue does not ask of its files, and people want to know.
pub(super) fn of_this_host(room: &Room<'_>, fs: &HostFs, found: &mut Alone, failed: &mut Vec<String>) {
    found.dir_sync = Some(match fs.can_sync_dir(room.dir) {
        Ok(true) => DirSync::Done,
        Ok(false) => DirSync::Unsupported,
        Err(error) => {
            failed.push(format!("syncing a directory: {error}"));
            DirSync::Failed
        }
    });
    found.mtime_step_us = keep(failed, "modification times", mtime_step(room, fs)).flatten();
    found.notify = keep(failed, "notification", is_notified(room, fs, fs, "notify")).flatten();
}

/// Measures what mount B sees of mount A and the other way round.
pub(super) fn pair(room: &Room<'_>, a: &HostFs, b: &HostFs, failed: &mut Vec<String>) -> Pair {
    let mut found = between(room, a, b, failed);
    found.notify = keep(failed, "notification across mounts", is_notified(room, a, b, "notify-pair")).flatten();
    found
}

/// The part of [`pair`] that needs nothing but the queue's own calls.
pub(super) fn between(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs, failed: &mut Vec<String>) -> Pair {
    let mut found = Pair::default();
    (room.progress)("races between the two mounts");
    let racers = [a, b];
    found.rename_race =
        keep(failed, "a race of renames between the mounts", race(room, Prize::Rename, "pair-r", &racers));
    found.create_race =
        keep(failed, "a race of creations between the mounts", race(room, Prize::Create, "pair-c", &racers));
    (room.progress)("locks between the two mounts");
    if let Some((answer, release)) = keep(failed, "locks between the mounts", lock_between(room, a, b)) {
        (found.lock, found.lock_release) = (answer, release);
    }
    (room.progress)("how long a name takes to be seen");
    found.names = keep(failed, "the delay of names", name_lag(room, a, b));
    found.same_tick = keep(failed, "two changes within a tick", same_tick(room, a, b));
    (room.progress)("how long appended bytes take to be seen");
    found.bytes_reopened = keep(failed, "the delay of bytes", byte_lag(room, a, b, Tail::Reopened));
    found.bytes_kept = keep(failed, "the delay of bytes on an open file", byte_lag(room, a, b, Tail::Kept));
    found.bytes_unsynced = keep(failed, "the delay of unsynced bytes", byte_lag(room, a, b, Tail::Unsynced));
    found
}

/// Renames to a new name and over an existing one; says of each whether it did what it should.
fn renames(room: &Room<'_>, fs: &dyn Fs) -> Result<(bool, bool)> {
    let dir = room.dir.join("rename");
    fs.mkdir(&dir)?;
    let names = || -> Result<Vec<String>> {
        let mut names: Vec<_> = fs.list(&dir)?.into_iter().map(|entry| entry.name).collect();
        names.sort();
        Ok(names)
    };
    fs::put_new(fs, &dir.join("a"), b"first", MODE)?;
    fs.rename(&dir.join("a"), &dir.join("b"))?;
    let is_new = names()? == ["b"] && fs::read_all(fs, &dir.join("b"))? == b"first";
    fs::put_new(fs, &dir.join("c"), b"second", MODE)?;
    fs.rename(&dir.join("c"), &dir.join("b"))?;
    let is_over = names()? == ["b"] && fs::read_all(fs, &dir.join("b"))? == b"second";
    Ok((is_new, is_over))
}

fn lists_hidden(room: &Room<'_>, fs: &dyn Fs) -> Result<bool> {
    let path = room.dir.join(".head.1-hidden");
    fs::put_new(fs, &path, b"", MODE)?;
    let entries = fs.list(room.dir)?;
    fs.unlink(&path)?;
    Ok(entries.iter().any(|entry| entry.name == ".head.1-hidden"))
}

fn keeps_mode(room: &Room<'_>, fs: &dyn Fs) -> Result<bool> {
    let path = room.dir.join("mode");
    fs::put_new(fs, &path, b"", MODE)?;
    Ok(fs.open(&path)?.stat()?.mode == MODE)
}

/// The answers to three tries: free, taken by another open file of this process, free again.
fn locks(room: &Room<'_>, fs: &dyn Fs) -> Result<Vec<LockAnswer>> {
    let path = room.dir.join("lock");
    fs::put_new(fs, &path, b"", MODE)?;
    let first = fs.lock(&path, room.effort.lock_limit);
    let mut answers = vec![LockAnswer::of(&first)];
    if let Locked::Held(_) = first {
        answers.push(LockAnswer::of(&fs.lock(&path, room.effort.lock_limit)));
        drop(first);
        answers.push(LockAnswer::of(&fs.lock(&path, room.effort.lock_limit)));
    }
    Ok(answers)
}

fn append_times(room: &Room<'_>, fs: &dyn Fs) -> Result<Option<Spread>> {
    let mut file = fs.create(&room.dir.join("append"), MODE)?;
    let line = [b'x'; 200];
    let spread = times(room, || {
        file.write(&line)?;
        file.sync()
    });
    file.close()?;
    spread
}

fn rename_times(room: &Room<'_>, fs: &dyn Fs) -> Result<Option<Spread>> {
    let dir = room.dir.join("rename-time");
    fs.mkdir(&dir)?;
    fs::put_new(fs, &dir.join("0"), b"", MODE)?;
    let mut number = 0_u32;
    times(room, || {
        number += 1;
        fs.rename(&dir.join((number - 1).to_string()), &dir.join(number.to_string()))
    })
}

/// Times a step again and again, until there are enough samples or the time is over.
fn times(room: &Room<'_>, mut step: impl FnMut() -> Result<()>) -> Result<Option<Spread>> {
    let mut samples = Vec::new();
    let begun = room.clock.boot();
    for _ in 0..room.effort.samples.saturating_mul(5) {
        let before = room.clock.boot();
        if before.saturating_sub(begun) > room.effort.budget {
            break;
        }
        step()?;
        samples.push(room.clock.boot().saturating_sub(before));
    }
    Ok(Spread::of(samples))
}

fn mtime_step(room: &Room<'_>, fs: &HostFs) -> Result<Option<u64>> {
    let mut stamps = Vec::new();
    for number in 0..room.effort.samples {
        let path = room.dir.join(format!("mtime-{number}"));
        fs.create(&path, MODE)?.close()?;
        stamps.push(fs.modified(&path)?);
    }
    let steps = stamps.windows(2).filter_map(|two| Some(two.last()?.saturating_sub(*two.first()?)));
    let smallest = steps.filter(|step| !step.is_zero()).min();
    Ok(smallest.map(|step| u64::try_from(step.as_micros()).unwrap_or(u64::MAX)))
}

/// Whether a change by `actor` wakes a watcher on the mount of `watcher`; `None` where this host gives no watcher.
fn is_notified(room: &Room<'_>, actor: &HostFs, watcher: &HostFs, name: &str) -> Result<Option<bool>> {
    let dir = room.dir.join(name);
    actor.mkdir(&dir)?;
    watcher.list(room.dir)?;
    let (sender, wakes) = mpsc::channel();
    let mut watch = Watch::new(&[], move |_| sender.send(()).unwrap_or_default());
    if !watch.as_mut().is_some_and(|watch| watch.add(&watcher.full_path(&dir))) {
        return Ok(None);
    }
    fs::put_new(actor, &dir.join("a"), b"", MODE)?;
    Ok(Some(wakes.recv_timeout(room.effort.hidden_limit).is_ok()))
}

/// What is raced for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prize {
    /// The right to rename the one source.
    Rename,
    /// The right to create the one name.
    Create,
}

/// Lets one thread for each of `racers` try for the same thing at the same time, round after round.
fn race(room: &Room<'_>, prize: Prize, name: &str, racers: &[&dyn Fs]) -> Result<Race> {
    let dir = room.dir.join(name);
    let Some(first) = racers.first() else { return Ok(Race::default()) };
    first.mkdir(&dir)?;
    let mut found = Race::default();
    let begun = room.clock.boot();
    while found.rounds < room.effort.rounds && room.clock.boot().saturating_sub(begun) <= room.effort.budget {
        let round = found.rounds;
        let source = dir.join(format!("{round}.source"));
        if prize == Prize::Rename {
            fs::put_new(*first, &source, b"", MODE)?;
        }
        let target = |racer: usize| match prize {
            Prize::Rename => format!("{round}.target-{racer}"),
            Prize::Create => format!("{round}.target"),
        };
        let outcomes = at_once(racers, |racer, fs| match prize {
            Prize::Rename => fs.rename(&source, &dir.join(target(racer))),
            Prize::Create => fs.create(&dir.join(target(racer)), MODE)?.close(),
        });
        let told: Vec<_> = outcomes.iter().map(Told::of).collect();
        // A target that one of the mounts lists was made, since each name is used in one round only.
        let prefix = format!("{round}.target");
        let mut listed: Vec<_> = racers.iter().filter_map(|fs| fs.list(&dir).ok()).flatten().map(|e| e.name).collect();
        listed.retain(|name| name.starts_with(&prefix));
        listed.sort();
        listed.dedup();
        found.count(&told, listed.len());
        for name in &listed {
            // Left for the end if it does not work now.
            let _ = first.unlink(&dir.join(name));
        }
    }
    Ok(found)
}

/// Calls `act` for each of `racers` in a thread of its own, all at the same moment as nearly as can be.
fn at_once(racers: &[&dyn Fs], act: impl Fn(usize, &dyn Fs) -> Result<()> + Sync) -> Vec<Result<()>> {
    let ready = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = racers
            .iter()
            .copied()
            .enumerate()
            .map(|(racer, fs)| {
                let (ready, act, count) = (&ready, &act, racers.len());
                scope.spawn(move || {
                    ready.fetch_add(1, Ordering::SeqCst);
                    // Spinning, not sleeping: waking up takes longer than what is raced for.
                    while ready.load(Ordering::SeqCst) < count {
                        std::thread::yield_now();
                    }
                    act(racer, fs)
                })
            })
            .collect();
        let died = || FsError::new(fs::Call::Rename, Path::new(""), libc::EIO);
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect()
    })
}

/// B's answer while A holds a lock, and how long B waits after A lets go.
fn lock_between(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs) -> Result<(Option<LockAnswer>, Option<Lag>)> {
    let path = room.dir.join("lock-pair");
    fs::put_new(a, &path, b"", MODE)?;
    let limit = room.effort.lock_limit;
    let Locked::Held(held) = a.lock(&path, limit) else { return Ok((None, None)) };
    let answer = LockAnswer::of(&b.lock(&path, limit));
    if answer != LockAnswer::Refused {
        return Ok((Some(answer), None));
    }
    let mut guard: Option<Box<dyn LockGuard>> = Some(held);
    let release = lag(
        room,
        limit,
        |_| {
            if guard.is_none() {
                guard = match a.lock(&path, limit) {
                    Locked::Held(held) => Some(held),
                    _ => return Err(FsError::new(fs::Call::Lock, &path, libc::EAGAIN)),
                };
            }
            guard = None;
            Ok(())
        },
        // The guard is dropped at once, so that A can have the lock again.
        |_| Ok(matches!(b.lock(&path, limit), Locked::Held(_))),
    )?;
    Ok((Some(answer), Some(release)))
}

fn name_lag(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs) -> Result<Lag> {
    let dir = room.dir.join("names");
    a.mkdir(&dir)?;
    let name = |number: u32| format!("name-{number}");
    lag(
        room,
        room.effort.visible_limit,
        |number| {
            // B has the directory in its cache, as a poller has; the pause keeps the same-tick hole for its own experiment.
            list_when_there(room, b, &dir)?;
            std::thread::sleep(TICK);
            fs::publish(a, room.chance, &dir.join(name(number)), b"x", MODE)
        },
        |number| Ok(b.list(&dir)?.iter().any(|entry| entry.name == name(number))),
    )
}

/// Lists a directory that the other mount has just made.
fn list_when_there(room: &Room<'_>, fs: &dyn Fs, dir: &Path) -> Result<Vec<fs::Entry>> {
    let parent = dir.parent().unwrap_or(Path::new(""));
    let is_listed =
        || fs.list(parent).is_ok_and(|entries| entries.iter().any(|e| dir.file_name().is_some_and(|n| n == &*e.name)));
    waits_for(room.clock, room.effort.visible_limit, is_listed);
    fs.list(dir)
}

fn same_tick(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs) -> Result<SameTick> {
    let dir = room.dir.join("tick");
    a.mkdir(&dir)?;
    list_when_there(room, b, &dir)?;
    let lists = |name: &str| -> Result<bool> { Ok(b.list(&dir)?.iter().any(|entry| entry.name == name)) };
    let mut found = SameTick::default();
    let begun = room.clock.boot();
    while found.rounds < room.effort.samples && room.clock.boot().saturating_sub(begun) <= room.effort.budget {
        let round = found.rounds;
        found.rounds += 1;
        a.create(&dir.join(format!("first-{round}")), MODE)?.close()?;
        b.list(&dir)?;
        let second = format!("second-{round}");
        a.create(&dir.join(&second), MODE)?.close()?;
        if lists(&second)? {
            continue;
        }
        found.missing_at_once += 1;
        std::thread::sleep(TICK);
        if lists(&second)? {
            continue;
        }
        found.missing_later += 1;
        decision::nudge(b, room.chance, &dir)?;
        if !lists(&second)? {
            found.missing_after_nudge += 1;
        }
    }
    Ok(found)
}

/// How B follows a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// Opens it for each look.
    Reopened,
    /// Keeps it open.
    Kept,
    /// Opens it for each look, while A does not sync.
    Unsynced,
}

fn byte_lag(room: &Room<'_>, a: &dyn Fs, b: &dyn Fs, tail: Tail) -> Result<Lag> {
    let name = format!("{tail:?}").to_lowercase();
    let path = room.dir.join(&name);
    let mut file: Box<dyn WriteFile> = a.create(&path, MODE)?;
    file.write(b"0")?;
    file.sync()?;
    a.sync_dir(room.dir)?;
    let is_listed = || b.list(room.dir).is_ok_and(|entries| entries.iter().any(|entry| entry.name == name));
    waits_for(room.clock, room.effort.visible_limit, is_listed);
    let mut kept: Box<dyn ReadFile> = b.open(&path)?;
    let mut look = |number: u32| -> Result<bool> {
        let mut byte = [0];
        let offset = u64::from(number) + 1;
        let read = match tail {
            Tail::Kept => kept.read_at(&mut byte, offset)?,
            Tail::Reopened | Tail::Unsynced => b.open(&path)?.read_at(&mut byte, offset)?,
        };
        // Some file systems show the new length before the bytes, and zeros meanwhile.
        Ok(read == 1 && byte == *b"1")
    };
    // B has the beginning in its cache, as one who follows has.
    look(0)?;
    let limit = if tail == Tail::Reopened { room.effort.visible_limit } else { room.effort.hidden_limit };
    lag(
        room,
        limit,
        |_| {
            file.write(b"1")?;
            if tail == Tail::Unsynced { Ok(()) } else { file.sync() }
        },
        look,
    )
}

/// Times from the end of `make` to the first look that sees it, again and again. Ends after two that were not seen.
fn lag(
    room: &Room<'_>,
    limit: Duration,
    mut make: impl FnMut(u32) -> Result<()>,
    mut is_seen: impl FnMut(u32) -> Result<bool>,
) -> Result<Lag> {
    let (mut samples, mut unseen) = (Vec::new(), 0);
    let begun = room.clock.boot();
    for number in 0..room.effort.samples {
        if unseen == 2 || room.clock.boot().saturating_sub(begun) > room.effort.budget {
            break;
        }
        make(number)?;
        let mut trouble = None;
        let waited = waits_for(room.clock, limit, || match is_seen(number) {
            Ok(is_seen) => is_seen,
            Err(error) if error.not_found() => false,
            Err(error) => {
                trouble = Some(error);
                true
            }
        });
        match (trouble, waited) {
            (Some(error), _) => return Err(error),
            (None, Some(waited)) => samples.push(waited),
            (None, None) => unseen += 1,
        }
    }
    Ok(Lag { seen: Spread::of(samples), unseen, limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) })
}

/// Looks until `is_seen`, at first every millisecond, then less often; returns how long it took, `None` after `limit`.
fn waits_for(clock: &dyn Clock, limit: Duration, mut is_seen: impl FnMut() -> bool) -> Option<Duration> {
    let begun = clock.boot();
    loop {
        if is_seen() {
            return Some(clock.boot().saturating_sub(begun));
        }
        let waited = clock.boot().saturating_sub(begun);
        if waited > limit {
            return None;
        }
        std::thread::sleep((waited / 20).clamp(Duration::from_millis(1), Duration::from_millis(100)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(told: &[Told], listed: usize, expected: &Race) {
        let mut race = Race::default();
        race.count(told, listed);
        assert_eq!(&Race { wins: Vec::new(), ..race }, &Race { rounds: 1, ..expected.clone() });
    }

    #[test]
    fn a_round_is_counted_by_what_was_told_and_what_is_there() {
        use Told::{Failed, Lost, Won};
        check(&[Won, Lost], 1, &Race { one: 1, ..Race::default() });
        check(&[Lost, Won, Failed], 1, &Race { one: 1, ..Race::default() });
        // The winner's name is not listed yet: absence proves nothing.
        check(&[Lost, Won], 0, &Race { one: 1, ..Race::default() });
        check(&[Won, Won], 1, &Race { several: 1, ..Race::default() });
        check(&[Won, Lost], 2, &Race { several: 1, ..Race::default() });
        check(&[Lost, Lost], 1, &Race { untold: 1, ..Race::default() });
        check(&[Lost, Lost], 0, &Race { none: 1, ..Race::default() });
        check(&[Failed, Lost], 0, &Race { failed: 1, ..Race::default() });
    }

    #[test]
    fn a_spread_has_the_middle_the_95th_of_100_and_the_last() {
        let samples = (1..=200).rev().map(Duration::from_micros).collect();
        let expected = Spread { count: 200, median_us: 100, p95_us: 190, max_us: 200 };
        assert_eq!(Spread::of(samples), Some(expected));
        let one = Spread { count: 1, median_us: 7, p95_us: 7, max_us: 7 };
        assert_eq!(Spread::of(vec![Duration::from_micros(7)]), Some(one));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
