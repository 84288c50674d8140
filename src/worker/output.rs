//! The output of a running attempt: in memory while small and young, then in `out/`, and into the store at its end.
//!
//! Invariants:
//! - The digest is taken from the bytes as they come. What is read back from `out/` is compared with it, so that a file system
//!   that lost something is found out and no short or wrong result is accepted.
//! - A file that had an error is not written again; what follows goes to the next part. What was not written is kept.
//! - Memory is bounded: output waits in the pipes while it cannot be written.

use std::path::PathBuf;
use std::time::Duration;

use crate::fs::{Fs, FsError, WriteFile};
use crate::process::Stream;
use crate::protocol::digest::{Digest, Hasher};
use crate::protocol::id::{AttemptId, WorkerId};
use crate::protocol::layout;

/// Output younger than this may stay in memory.
const YOUNG: Duration = Duration::from_secs(1);
/// Output of a file that exists is written when so many bytes wait, or when they are no longer young.
const CHUNK: usize = 64 * 1024;
/// How much is read at once.
const READ: usize = 256 * 1024;

/// One output of one attempt.
pub(super) struct Capture {
    attempt: AttemptId,
    stream: Stream,
    inline_max: usize,
    /// The first bytes, enough for an inline value.
    head: Vec<u8>,
    /// What stands in no part yet.
    waiting: Vec<u8>,
    /// Since when something waits.
    since: Duration,
    parts: Vec<Part>,
    file: Option<Box<dyn WriteFile>>,
    hasher: Hasher,
    len: u64,
}

struct Part {
    path: PathBuf,
    /// How many of its bytes are good.
    len: u64,
}

impl Capture {
    pub(super) fn new(attempt: AttemptId, stream: Stream, inline_max: u64) -> Self {
        Self {
            attempt,
            stream,
            inline_max: usize::try_from(inline_max).unwrap_or(usize::MAX),
            head: Vec::new(),
            waiting: Vec::new(),
            since: Duration::ZERO,
            parts: Vec::new(),
            file: None,
            hasher: Hasher::default(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    /// The files that it has made.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.parts.iter().map(|part| part.path.clone())
    }

    /// Takes what the attempt has written.
    pub(super) fn take(&mut self, bytes: &[u8], now: Duration) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        let room = self.inline_max.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        self.waiting.extend_from_slice(bytes);
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// When something has to be written to `out/`, if nothing comes before.
    pub(super) fn spill_at(&self) -> Option<Duration> {
        let limit = if self.parts.is_empty() { self.inline_max } else { CHUNK };
        match self.waiting.len() {
            0 => None,
            n if n > limit => Some(Duration::ZERO),
            _ => Some(self.since + YOUNG),
        }
    }

    /// Writes what waits to `out/`, where everybody can read it. After an error nothing is lost, and the next try makes a new
    /// part.
    pub(super) fn spill(&mut self, fs: &dyn Fs, wid: &WorkerId) -> Result<(), FsError> {
        if self.file.is_none() {
            let mut path = layout::output(wid, self.attempt, self.stream);
            if !self.parts.is_empty() {
                path.as_mut_os_string().push(format!(".{}", self.parts.len() + 1));
            }
            let file = fs.create(&path, 0o644);
            // Listed also after an error: it may be there all the same, and its name is not used again.
            self.parts.push(Part { path, len: 0 });
            self.file = Some(file?);
        }
        if let (Some(file), Some(part)) = (self.file.as_mut(), self.parts.last_mut()) {
            if let Err(error) = file.write(&self.waiting) {
                self.file = None;
                return Err(error);
            }
            part.len += self.waiting.len() as u64;
            self.waiting.clear();
            self.waiting.shrink_to(CHUNK);
        }
        Ok(())
    }

    /// Reads it all to memory, calling `between` between its pieces; `None` if it is not what the attempt wrote.
    pub(super) fn read(
        &self,
        fs: &dyn Fs,
        between: &mut dyn FnMut() -> Result<(), FsError>,
    ) -> Result<Option<Vec<u8>>, FsError> {
        if self.len == self.head.len() as u64 {
            return Ok(Some(self.head.clone()));
        }
        let mut bytes = Vec::new();
        self.each(fs, &mut |piece| {
            bytes.extend_from_slice(piece);
            between()
        })?;
        Ok(Some(bytes).filter(|bytes| Digest::of(bytes) == self.digest()))
    }

    /// Passes it all to `sink` piece by piece, with constant memory. A file that is shorter than it should be ends it early:
    /// who uses the bytes compares the digest.
    pub(super) fn each(&self, fs: &dyn Fs, sink: &mut dyn FnMut(&[u8]) -> Result<(), FsError>) -> Result<(), FsError> {
        let mut buffer = vec![0; if self.parts.is_empty() { 0 } else { READ }];
        for part in self.parts.iter().filter(|part| part.len > 0) {
            let mut file = fs.open(&part.path)?;
            let mut at = 0;
            while at < part.len {
                let want = usize::try_from(part.len - at).unwrap_or(READ).min(READ);
                let n = file.read_at(&mut buffer[..want], at)?;
                if n == 0 {
                    return Ok(());
                }
                sink(&buffer[..n])?;
                at += n as u64;
            }
        }
        if self.waiting.is_empty() { Ok(()) } else { sink(&self.waiting) }
    }
}
