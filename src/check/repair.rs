//! Carrying repairs out, one by one, each after a fresh look.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::token::{self, RebuildError};
use crate::clock::Chance;
use crate::decision::{self, Look, strays};
use crate::fs::{self, ErrorKind, Fs, FsError};
use crate::gc;
use crate::protocol::digest::Digest;
use crate::protocol::id::{DecisionId, Nonce};
use crate::protocol::layout;
use crate::protocol::record::Ref;
use crate::queue;
use crate::store::{self, StoreError, inventory};

/// One repair. Printing it says what [`apply`] would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Make a directory of the layout.
    MakeDirectory(PathBuf),
    /// Rename a stray token so that it is no token any more.
    SetAside(String),
    /// Make a new token, named after the last decision.
    RebuildToken,
    /// Move a damaged object out of the way, so that nobody is given its bytes and it can be made again.
    QuarantineObject(Digest),
    /// Move a file back that was collected but is needed.
    RestoreFromTrash {
        /// The decision that ordered it away.
        by: DecisionId,
        /// Its name.
        file: String,
    },
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeDirectory(dir) => write!(f, "make the directory `{}`", dir.display()),
            Self::SetAside(name) => write!(f, "set the stray token `{name}` aside"),
            Self::RebuildToken => f.write_str("make a new token after the last decision"),
            Self::QuarantineObject(sha) => write!(f, "move the damaged object `{sha}` to `{}`", layout::TRASH),
            Self::RestoreFromTrash { by, file } => write!(f, "move `{file}` back from the trash of `{by}`"),
        }
    }
}

/// A repair that was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixError {
    /// What it was about has changed since the check; nothing was done.
    Changed,
    /// The token could not be rebuilt.
    Rebuild(RebuildError),
    /// A file operation failed.
    Fs(FsError),
}

impl fmt::Display for FixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("it has changed since the check; nothing was done"),
            Self::Rebuild(error) => error.fmt(f),
            Self::Fs(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FixError {}

impl From<FsError> for FixError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

/// Carries out one repair. `last` and `wait` are those of [`token::rebuild`].
///
/// Doing it twice is doing it once. Nothing is removed: what is moved out of the way lies in `decisions/head` under a hidden
/// name or in a directory of its own in the trash.
pub fn apply(
    fs: &dyn Fs,
    chance: &dyn Chance,
    fix: &Fix,
    last: Option<DecisionId>,
    wait: &mut dyn FnMut(Duration),
) -> Result<(), FixError> {
    match fix {
        Fix::MakeDirectory(dir) => {
            make_dir(fs, dir)?;
            Ok(())
        }
        Fix::SetAside(name) => set_aside(fs, chance, name),
        Fix::RebuildToken => token::rebuild(fs, chance, last, wait).map(drop).map_err(FixError::Rebuild),
        Fix::QuarantineObject(sha) => quarantine_object(fs, chance, sha),
        Fix::RestoreFromTrash { by, file } => {
            if gc::restore(fs, *by, file)? {
                Ok(())
            } else {
                Err(FixError::Changed)
            }
        }
    }
}

fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<(), FsError> {
    match fs.mkdir(dir) {
        Err(error) if error.kind != ErrorKind::Exists => return Err(error),
        _ => {}
    }
    fs.sync_dir(dir.parent().unwrap_or(Path::new("")))
}

/// Renames a token aside if it still is a stray, so that the only one is never taken away.
fn set_aside(fs: &dyn Fs, chance: &dyn Chance, name: &str) -> Result<(), FixError> {
    let Look::Several(tokens) = decision::look(fs)? else { return Err(FixError::Changed) };
    let first = queue::read_file(fs, Path::new(".")).ok().map(|file| file.first);
    let prev = |id| match fs::read_all(fs, &layout::decision(id)) {
        Err(error) if !error.not_found() => Err(error),
        // A group that is missing or damaged names nobody.
        bytes => Ok(bytes.ok().and_then(|bytes| decision::decode_group(&bytes).ok()).and_then(|g| g.header.prev)),
    };
    let judgement = strays::judge(&tokens, first, prev)?;
    if judgement.is_none_or(|judgement| !judgement.strays.iter().any(|stray| stray == name)) {
        return Err(FixError::Changed);
    }
    let from = Path::new(layout::HEAD).join(name);
    fs.rename(&from, &layout::gone_head(name, Nonce(chance.bits())))?;
    Ok(())
}

fn quarantine_object(fs: &dyn Fs, chance: &dyn Chance, sha: &Digest) -> Result<(), FixError> {
    // Somebody may have made it again meanwhile. The length is not known, so any is right that has the digest.
    match store::verify(fs, &Ref::Loose { sha: *sha, len: 0 }) {
        Err(StoreError::Damaged { found_sha, .. }) if found_sha != *sha => {}
        Err(StoreError::Fs(error)) => return Err(error.into()),
        _ => return Err(FixError::Changed),
    }
    let dir = Path::new(layout::TRASH).join(format!("{}{}", inventory::DAMAGED, Nonce(chance.bits())));
    make_dir(fs, &dir)?;
    fs.rename(&layout::object(sha), &dir.join(sha.to_string()))?;
    Ok(())
}
