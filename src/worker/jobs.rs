//! The manifests that a worker's tasks come from: each read once, and checked against what the master took in.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::fs::{Fs, FsError};
use crate::process::{SetupFailure, Step};
use crate::protocol::digest::Digest;
use crate::protocol::frame;
use crate::protocol::id::JobId;
use crate::protocol::layout;
use crate::protocol::record::{Command, Manifest, Outcome, Ref, RunItem, from_document};
use crate::store::{self, StoreError};

/// The longest manifest that is read, in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Standard input up to this size is kept in memory for all tasks of its job.
const STDIN_BYTES_MAX: u64 = 64 * 1024;
/// How much of a manifest is read at once.
const PIECE: usize = 1 << 20;

/// A job as its tasks need it.
pub(super) struct Job {
    pub(super) manifest: Manifest,
    pub(super) script: Option<Vec<u8>>,
    pub(super) stdin: JobStdin,
    entries: Option<Entries>,
}

/// The standard input of a job's tasks.
pub(super) enum JobStdin {
    Null,
    Small(Arc<[u8]>),
    Large(Ref),
}

struct Entries {
    bytes: Vec<u8>,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Entries {
    fn new(bytes: Vec<u8>) -> Self {
        let mut ends: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i] == b'\n').collect();
        if bytes.last().is_some_and(|&last| last != b'\n') {
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    fn line(&self, n: usize) -> Option<&[u8]> {
        let end = *self.ends.get(n)?;
        let start = if n == 0 { 0 } else { self.ends[n - 1] + 1 };
        Some(&self.bytes[start..end])
    }
}

impl Job {
    /// The entry of the task with that index; `Ok(None)` if the job has no entries, an error if this task has none.
    pub(super) fn entry(&self, index: Option<u64>) -> Result<Option<&[u8]>, String> {
        let Some(entries) = &self.entries else { return Ok(None) };
        let position = match (&self.manifest.array, index) {
            (Some(array), Some(index)) => array.position(index),
            _ => Some(0),
        };
        let line = position.and_then(|n| usize::try_from(n).ok()).and_then(|n| entries.line(n));
        line.map(Some).ok_or_else(|| "the list of entries has no line for this task".to_owned())
    }
}

/// Why a job's tasks cannot be started.
pub(super) enum NoJob {
    /// Something is not there in whole yet: look again later.
    NotYet,
    /// They never will be.
    Never(Outcome),
}

/// The jobs that were read, by number.
#[derive(Default)]
pub(super) struct Jobs {
    known: HashMap<JobId, State>,
}

enum State {
    Missing { since: Duration, again_at: Duration, last: Outcome },
    Read { sha: Digest, uid: u32, job: Rc<Job> },
}

impl Jobs {
    /// Finds the job of `item`, reading it where that was not done yet.
    ///
    /// What is missing is looked for at most every `pace`, and given up after `patience`: another host's new file may be
    /// invisible for a while, but the master has seen it. `between` is called between the pieces of what is read.
    pub(super) fn get(
        &mut self,
        fs: &dyn Fs,
        item: &RunItem,
        is_trusted: &dyn Fn(u32) -> bool,
        now: Duration,
        (pace, patience): (Duration, Duration),
        between: &mut dyn FnMut(),
    ) -> Result<Rc<Job>, NoJob> {
        if let Some(State::Read { sha, uid, job }) = self.known.get(&item.job)
            && (*sha, *uid) == (item.sha, item.uid)
        {
            return Ok(job.clone());
        }
        let since = match self.known.get(&item.job) {
            Some(State::Missing { again_at, .. }) if *again_at > now => return Err(NoJob::NotYet),
            Some(State::Missing { since, last, .. }) if now >= *since + patience => {
                return Err(NoJob::Never(last.clone()));
            }
            Some(State::Missing { since, .. }) => *since,
            _ => now,
        };
        match read(fs, item, is_trusted, between) {
            Ok(job) => {
                let job = Rc::new(job);
                self.known.insert(item.job, State::Read { sha: item.sha, uid: item.uid, job: job.clone() });
                Ok(job)
            }
            Err(Trouble::Passing(last)) => {
                self.known.insert(item.job, State::Missing { since, again_at: now + pace, last });
                Err(NoJob::NotYet)
            }
            Err(Trouble::Final(outcome)) => Err(NoJob::Never(outcome)),
        }
    }

    /// Forgets jobs of which nothing runs.
    pub(super) fn sweep(&mut self) {
        self.known.retain(|_, state| matches!(state, State::Read { job, .. } if Rc::strong_count(job) > 1));
    }
}

enum Trouble {
    Passing(Outcome),
    Final(Outcome),
}

fn setup(path: String, errno: &str) -> Outcome {
    Outcome::Setup(SetupFailure { step: Step::Input, errno: errno.to_owned(), path })
}

fn refused(why: impl Into<String>) -> Trouble {
    Trouble::Final(Outcome::Refused(why.into()))
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Self {
        let path = error.path.display().to_string();
        if error.refused() {
            return Self::Final(setup(path, &super::errno_name(error.errno)));
        }
        Self::Passing(setup(path, &super::errno_name(error.errno)))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        let outcome = setup(error.to_string(), "EIO");
        if error.may_pass() { Self::Passing(outcome) } else { Self::Final(outcome) }
    }
}

fn read(
    fs: &dyn Fs,
    item: &RunItem,
    is_trusted: &dyn Fn(u32) -> bool,
    between: &mut dyn FnMut(),
) -> Result<Job, Trouble> {
    let path = layout::job(item.job);
    let mut file = fs.open(&path)?;
    let stat = file.stat()?;
    // One descriptor for owner and bytes: a name may be made to mean something else in between.
    if stat.uid != item.uid {
        return Err(refused(format!("its manifest belongs to user {}, not to user {}", stat.uid, item.uid)));
    }
    if !is_trusted(stat.uid) {
        return Err(refused(format!("this worker does not run what user {} submits", stat.uid)));
    }
    if stat.len > MANIFEST_BYTES_MAX {
        return Err(refused(format!("its manifest has {} bytes", stat.len)));
    }
    let mut bytes = vec![0; usize::try_from(stat.len).unwrap_or(0)];
    let mut have = 0;
    while have < bytes.len() {
        let end = bytes.len().min(have + PIECE);
        match file.read_at(&mut bytes[have..end], have as u64)? {
            0 => break,
            n => have += n,
        }
        between();
    }
    bytes.truncate(have);
    if frame::open_document(&bytes).is_none() {
        return Err(Trouble::Passing(setup(path.display().to_string(), "EBADMSG")));
    }
    if Digest::of(&bytes) != item.sha {
        // Not refused: that would be held against all that this user submits.
        return Err(Trouble::Final(setup(path.display().to_string(), "EBADMSG")));
    }
    let manifest: Manifest = from_document(&bytes).map_err(|error| refused(format!("its manifest: {error}")))?;
    let mut value = |reference: &Ref| {
        let mut bytes = Vec::new();
        let copied = store::copy_to(fs, reference, &mut |piece| {
            bytes.extend_from_slice(piece);
            between();
        });
        copied.map(|()| bytes)
    };
    let entries = manifest.entries.as_ref().map(&mut value).transpose()?.map(Entries::new);
    let script = match &manifest.command {
        Command::Script { bytes, .. } => Some(value(bytes)?),
        _ => None,
    };
    let stdin = match &manifest.stdin {
        None => JobStdin::Null,
        Some(value) if value.len() <= STDIN_BYTES_MAX => JobStdin::Small(store::read(fs, value)?.into()),
        Some(value) => JobStdin::Large(value.clone()),
    };
    Ok(Job { manifest, script, stdin, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lines_with_or_without_a_last_newline() {
        for text in ["a\n\nc c", "a\n\nc c\n"] {
            let entries = Entries::new(text.into());
            assert_eq!(entries.line(0), Some(&b"a"[..]));
            assert_eq!(entries.line(1), Some(&b""[..]));
            assert_eq!(entries.line(2), Some(&b"c c"[..]));
            assert_eq!(entries.line(3), None);
        }
    }
}
