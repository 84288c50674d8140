//! Binding a manifest to a number (spec: ordering, "Submitting").
//!
//! Invariants:
//! - A number is bound by exclusive creation of `jobs/<bucket>/<number>.json` and never used again: nothing is removed here, not
//!   even a torn file of one's own, because a repeated removal could hit the next one to take the number.
//! - Numbers are dense: the next one is one more than the greatest that is listed or found taken.
//! - A bucket is made only when the one before it is full, and never below the newest, so that one that `gc` has removed does not
//!   come back.
//! - A manifest may be bound twice under its nonce (after an error that leaves it open whether the first one counts); the job is
//!   taken in once, and the other number becomes another name of it.

use std::fmt;
use std::path::Path;

use crate::fs::{self, Entry, EntryKind, ErrorKind, Fs, FsError};
use crate::mutant::{self, Mutant};
use crate::protocol::id::{JobId, Nonce};
use crate::protocol::layout::{self, BUCKET};
use crate::protocol::record::{Manifest, from_document, to_document};

/// The mode of manifests and requests: they may hold secrets. In a queue that a group shares, the group has to read them.
pub fn private_mode(group: Option<u32>) -> u32 {
    if group.is_some() { 0o640 } else { 0o600 }
}

/// The longest manifest that is written and read, in bytes. Long inputs are objects in the store.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// Values up to this size stand in the manifest itself, larger ones are loose objects of the store.
pub const INLINE_BYTES_MAX: u64 = 64 << 10;

/// How many numbers are tried in one go; more than enough for every host of a cluster submitting at once.
const NUMBERS_MAX: u32 = 100_000;

/// How many errors of unknown outcome are answered by trying the next number.
const DOUBTS_MAX: u32 = 5;

/// How often a listing that contradicts itself (a bucket that has just gone) is taken afresh.
const LISTINGS_MAX: u32 = 50;

/// A manifest that could not be bound to a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindError {
    /// The file system refuses, or fails again and again; no whole manifest is there.
    Refused(FsError),
    /// The manifest is there under `job`, but it was never confirmed that it is durable.
    InDoubt {
        /// The number.
        job: JobId,
        /// What was said instead of the confirmation.
        cause: FsError,
    },
    /// Other submitters took every number first.
    Crowded,
    /// The manifest is too long.
    TooLarge {
        /// Its length in bytes.
        bytes: u64,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(cause) if cause.kind == ErrorKind::NoSpace => {
                f.write_str("cannot submit: no space is left in the queue")
            }
            Self::Refused(_) => f.write_str("cannot submit"),
            Self::InDoubt { job, .. } => write!(f, "cannot tell whether job `{job}` was submitted"),
            Self::Crowded => write!(f, "cannot submit: others took {NUMBERS_MAX} numbers in a row first"),
            Self::TooLarge { bytes } => write!(
                f,
                "cannot submit: the manifest has {bytes} bytes, expected at most {MANIFEST_BYTES_MAX}; long arguments and \
                 environments belong into a file"
            ),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(cause) | Self::InDoubt { cause, .. } => Some(cause),
            Self::Crowded | Self::TooLarge { .. } => None,
        }
    }
}

/// Binds `manifest` to the next free number, writes that into `manifest.job`, and returns it.
///
/// On return the manifest is complete and durable under that number, and will be a job as soon as a master reads it. `mode` is
/// that of its file, see [`private_mode`]. Costs two listings and one file.
///
/// Fails with [`BindError::Refused`] when nothing was submitted, with [`BindError::InDoubt`] when a crash decides.
pub fn bind(fs: &dyn Fs, mode: u32, manifest: &mut Manifest) -> Result<JobId, BindError> {
    let mut next = next_number(fs)?;
    let mut doubts = 0;
    for _ in 0..NUMBERS_MAX {
        manifest.job = JobId(next);
        let bytes = to_document(manifest);
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(BindError::TooLarge { bytes: bytes.len() as u64 });
        }
        let path = layout::job(manifest.job);
        match write_once(fs, &path, &bytes, mode) {
            Ok(()) => return Ok(manifest.job),
            Err(Stopped::Taken) => next += 1,
            Err(Stopped::NoBucket) => {
                next = next_number(fs)?;
                continue;
            }
            Err(Stopped::Failed { error, created }) => {
                doubts += 1;
                // Where nothing fits, the next number would only be one more file that is cut short.
                if error.refused() || error.kind == ErrorKind::NoSpace || doubts == DOUBTS_MAX {
                    let there = created && is_ours(fs, &path, manifest.sub);
                    let job = manifest.job;
                    return Err(if there {
                        BindError::InDoubt { job, cause: error }
                    } else {
                        BindError::Refused(error)
                    });
                }
                // The same nonce under the next number: should the first one count after all, both are one job.
                next += 1;
                if mutant::is(Mutant::FreshSub) {
                    manifest.sub = Nonce(manifest.sub.0 ^ next);
                }
            }
        }
        // The last number of the bucket is taken, whatever an old listing says.
        if next % BUCKET == 0 && !make_bucket(fs, next / BUCKET)? {
            next = next_number(fs)?;
        }
    }
    Err(BindError::Crowded)
}

/// Why a number was not bound.
enum Stopped {
    /// Somebody else has it.
    Taken,
    /// Its bucket has gone.
    NoBucket,
    /// An error; `created` if the file is ours.
    Failed { error: FsError, created: bool },
}

fn write_once(fs: &dyn Fs, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Stopped> {
    let mut file = match fs.create(path, mode) {
        Ok(file) => file,
        Err(error) => {
            return Err(match error.kind {
                ErrorKind::Exists => Stopped::Taken,
                ErrorKind::NotFound => Stopped::NoBucket,
                // Whether an empty file was made, nobody can tell; nobody will ever fill it.
                _ => Stopped::Failed { error, created: false },
            });
        }
    };
    let written = file.write(bytes).and_then(|()| file.sync());
    let written = written.and_then(|()| file.close()).and_then(|()| fs::sync_name(fs, path));
    written.map_err(|error| Stopped::Failed { error, created: true })
}

/// Whether a whole manifest with this nonce is there.
fn is_ours(fs: &dyn Fs, path: &Path, sub: Nonce) -> bool {
    let bytes = fs::read_up_to(fs, path, MANIFEST_BYTES_MAX);
    bytes.is_ok_and(|bytes| from_document::<Manifest>(&bytes).is_ok_and(|found| found.sub == sub))
}

/// The number after the greatest one that is listed, in a bucket that exists.
fn next_number(fs: &dyn Fs) -> Result<u64, BindError> {
    let jobs = Path::new(layout::JOBS);
    for _ in 0..LISTINGS_MAX {
        let newest = newest_bucket(&fs.list(jobs).map_err(BindError::Refused)?).unwrap_or(0);
        let dir = jobs.join(layout::bucket(newest * BUCKET));
        let names = match fs.list(&dir) {
            Ok(names) => names,
            Err(error) if error.not_found() => continue,
            Err(error) => return Err(BindError::Refused(error)),
        };
        let greatest = names.iter().filter_map(|entry| layout::parse_job(&entry.name)).map(|job| job.0).max();
        let next = greatest.map_or(newest * BUCKET, |n| n + 1).max(1);
        if next / BUCKET == newest {
            if greatest.is_none() && newest > 0 {
                // Whoever made it may not have come so far as to make its name durable.
                fs.sync_dir(jobs).map_err(BindError::Refused)?;
            }
            return Ok(next);
        }
        if make_bucket(fs, next / BUCKET)? {
            return Ok(next);
        }
    }
    Err(BindError::Refused(FsError::new(fs::Call::List, jobs, libc::ENOENT)))
}

/// Makes bucket `number`, unless a newer one shows that it had its time long ago.
fn make_bucket(fs: &dyn Fs, number: u64) -> Result<bool, BindError> {
    let jobs = Path::new(layout::JOBS);
    let dir = jobs.join(layout::bucket(number * BUCKET));
    match fs.mkdir(&dir) {
        Err(error) if error.refused() => return Err(BindError::Refused(error)),
        // It was there already, or nobody knows: the fresh listing below tells.
        _ => {}
    }
    let newest = newest_bucket(&fs.list(jobs).map_err(BindError::Refused)?);
    if newest != Some(number) {
        // Only an empty directory goes, so nothing is lost if somebody was quicker.
        let _ = fs.rmdir(&dir);
        return Ok(false);
    }
    fs.sync_dir(jobs).map_err(BindError::Refused)?;
    Ok(true)
}

fn newest_bucket(names: &[Entry]) -> Option<u64> {
    let number = |entry: &Entry| {
        let plain = entry.name.len() >= 3 && entry.name.bytes().all(|b| b.is_ascii_digit());
        (plain && entry.kind != EntryKind::File).then(|| entry.name.parse().ok()).flatten()
    };
    names.iter().filter_map(number).max()
}
