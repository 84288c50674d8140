//! The output of attempts, byte for byte: from the live file of a running one, from the store once it has ended.
//!
//! Invariants:
//! - What was passed on of a live file is the beginning of what is stored later, so the rest of the stored bytes continues it.
//! - Memory use does not depend on the length.

use std::path::{Path, PathBuf};

use crate::fs::{self, Fs, FsError};
use crate::process::Stream;
use crate::protocol::id::{AttemptId, JobId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::Ref;
use crate::state::{Job, State};
use crate::store::{self, StoreError};

use super::view::{self, AttemptRecord};

/// Where the output of an attempt can be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// In this file of its worker, which grows; it is made once there is something to see.
    Live(PathBuf),
    /// In the store, all of it.
    Stored(Ref),
    /// The journal line that tells is named by a decision but cannot be read, at least not yet.
    Unknown,
}

/// Where the output of an attempt can be read; a lost attempt has left at most its live file.
pub fn locate(fs: &dyn Fs, state: &State, job: &Job, position: u32, record: &AttemptRecord, stream: Stream) -> Output {
    if record.line > 0 {
        return match view::end_line(fs, state, record) {
            Some(end) => Output::Stored(if stream == Stream::Stdout { end.out } else { end.err }),
            None => Output::Unknown,
        };
    }
    let wid = state.worker_no(record.worker).map(|(wid, _)| wid);
    wid.map_or(Output::Unknown, |wid| Output::Live(live_path(wid, job.attempt_id(position, record.attempt), stream)))
}

fn live_path(wid: &WorkerId, attempt: AttemptId, stream: Stream) -> PathBuf {
    layout::output(wid, attempt, stream)
}

/// Passes on what `output` has after the first `offset` bytes, and moves `offset` along, also where it fails later on.
pub fn copy(fs: &dyn Fs, output: &Output, offset: &mut u64, sink: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
    match output {
        Output::Live(path) => copy_live(fs, path, offset, sink).map_err(StoreError::Fs),
        Output::Unknown => Ok(()),
        Output::Stored(reference) => {
            let mut seen = 0;
            store::copy_to(fs, reference, &mut |bytes| {
                let from = usize::try_from(offset.saturating_sub(seen)).unwrap_or(usize::MAX).min(bytes.len());
                seen += bytes.len() as u64;
                if from < bytes.len() {
                    *offset += (bytes.len() - from) as u64;
                    sink(&bytes[from..]);
                }
            })
        }
    }
}

fn copy_live(fs: &dyn Fs, path: &Path, offset: &mut u64, sink: &mut dyn FnMut(&[u8])) -> Result<(), FsError> {
    if *offset == 0 {
        match fs::is_listed(fs, path) {
            Ok(true) => {}
            Err(error) if !error.not_found() => return Err(error),
            _ => return Ok(()),
        }
    }
    let mut file = match fs.open(path) {
        Ok(file) => file,
        Err(error) if error.not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = file.read_at(&mut buffer, *offset)?;
        if n == 0 {
            return Ok(());
        }
        sink(&buffer[..n]);
        *offset += n as u64;
    }
}

/// Follows one output of a task over its attempts, from the first that it is told of to the end of the task.
#[derive(Debug, Clone)]
pub struct Relay {
    job: JobId,
    position: u32,
    stream: Stream,
    /// The attempt that is relayed; 0 before the first.
    attempt: u32,
    offset: u64,
    /// Looks in a row at which the record of a finished attempt could not be read.
    misses: u32,
}

/// How often the record of a finished attempt is looked for before its output is given up.
const MISSES_MAX: u32 = 200;

/// What [`Relay::pump`] came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pumped {
    /// There may be more later.
    More,
    /// The attempt is over and another one has taken its place; its number and how it ended.
    Restarted(u32, String),
    /// The task has ended, and all of its last attempt's output was passed on.
    Over,
    /// The task has ended, but the record of its last attempt cannot be found.
    Lost(u32),
}

impl Relay {
    /// Begins with attempt `from` of the task at `position` of `job`, or with the first one for 0.
    pub fn new(job: JobId, position: u32, stream: Stream, from: u32) -> Self {
        Self { job, position, stream, attempt: from, offset: 0, misses: 0 }
    }

    /// The directory in which the live file of the present attempt is, if there is one.
    pub fn live_dir(&self, state: &State) -> Option<PathBuf> {
        let job = state.job(self.job)?;
        let record = view::attempt_records(job, self.position).into_iter().find(|r| r.attempt == self.attempt)?;
        state.worker_no(record.worker).map(|(wid, _)| layout::outputs(wid))
    }

    /// Passes on what is new.
    ///
    /// Errors of the store that may pass by themselves are answered by looking again at the next call, a few times.
    pub fn pump(&mut self, fs: &dyn Fs, state: &State, sink: &mut dyn FnMut(&[u8])) -> Result<Pumped, StoreError> {
        let Some(job) = state.job(self.job) else { return Ok(Pumped::More) };
        let records = view::attempt_records(job, self.position);
        let is_final = job.tasks.get(self.position as usize).is_some_and(|task| task.state.is_final());
        let Some(record) = records.iter().find(|record| record.attempt >= self.attempt.max(1)) else {
            return Ok(if is_final { Pumped::Over } else { Pumped::More });
        };
        self.attempt = record.attempt;
        let is_open = matches!(record.how.as_str(), "issued" | "running");
        let output = locate(fs, state, job, self.position, record, self.stream);
        if output == Output::Unknown && record.line > 0 {
            self.misses += 1;
            let gave_up = self.misses > MISSES_MAX && is_final;
            return Ok(if gave_up { Pumped::Lost(record.attempt) } else { Pumped::More });
        }
        match copy(fs, &output, &mut self.offset, sink) {
            Ok(()) => {}
            Err(error) if error.may_pass() && self.misses < MISSES_MAX => {
                self.misses += 1;
                return Ok(Pumped::More);
            }
            Err(error) => return Err(error),
        }
        self.misses = 0;
        if is_open {
            return Ok(Pumped::More);
        }
        if records.iter().any(|next| next.attempt > record.attempt) {
            (self.attempt, self.offset) = (record.attempt + 1, 0);
            return Ok(Pumped::Restarted(record.attempt, record.how.clone()));
        }
        Ok(if is_final { Pumped::Over } else { Pumped::More })
    }
}
