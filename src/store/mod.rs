//! The content-addressed store: bytes in, verified bytes out (spec: records, "References").
//!
//! - [`put`](mod@put): values to inline references, packs and loose objects
//! - [`get`](mod@get): references to bytes, verified on every read
//! - [`pack`](mod@pack): how many small values share a file, and walking one
//! - [`inventory`](mod@inventory): what there is, for collecting
//!
//! Invariants:
//! - A [`Ref`] is handed out only after its bytes and their name are durable.
//! - What is read is compared with digest and length of its reference: wrong bytes are never returned as right.
//! - Nothing is written in place: a loose object appears whole by rename, a pack grows at its end by its one creator.
//! - That an object seems to be there already never saves writing it, since it may be on its way to the trash.

pub mod get;
pub mod inventory;
pub mod pack;
pub mod put;

use std::fmt;
use std::path::{Path, PathBuf};

pub use get::{copy_to, read, verify};
pub use put::{ObjectWriter, Store, put_loose, writer};

use crate::fs::FsError;
use crate::protocol::digest::Digest;
use crate::protocol::id::DecisionId;
use crate::protocol::layout;
use crate::protocol::record::Ref;

/// The file that holds the bytes of `reference`; `None` for an inline value and for a name that is no pack.
pub fn file_of(reference: &Ref) -> Option<String> {
    match reference {
        Ref::Inline { .. } => None,
        Ref::Loose { sha, .. } => Some(sha.to_string()),
        Ref::Packed { pack, .. } => layout::parse_pack(pack).map(|_| pack.clone()),
    }
}

/// The path of a store file by its name: a digest for a loose object, `<creator>.<number>.pack` for a pack.
pub fn path_of(file: &str) -> Option<PathBuf> {
    match file.parse::<Digest>() {
        Ok(digest) => Some(layout::object(&digest)),
        Err(_) => layout::parse_pack(file).map(|_| Path::new(layout::PACKS).join(file)),
    }
}

/// The path of a store file while it lies in the trash of the quarantine that `by` ordered.
pub fn trash_path_of(by: DecisionId, file: &str) -> Option<PathBuf> {
    path_of(file).map(|_| layout::trash(by).join(file))
}

/// A value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// Its file is not there, or not there yet.
    Missing {
        /// The digest of the value.
        sha: Digest,
        /// What was looked for.
        source: FsError,
    },
    /// Its bytes are not those that the reference names.
    Damaged {
        /// Where they lie.
        path: PathBuf,
        /// The digest of the value.
        sha: Digest,
        /// Its length.
        len: u64,
        /// The digest of what was found.
        found_sha: Digest,
        /// Its length.
        found_len: u64,
    },
    /// The reference names a file that cannot be one of the store's.
    BadName(String),
    /// A file operation failed.
    Fs(FsError),
}

impl StoreError {
    /// Whether looking again later may help by itself.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Fs(_) => true,
            // A pack's tail may be late on another host.
            Self::Damaged { len, found_len, .. } => found_len < len,
            Self::BadName(_) => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { sha, .. } => write!(f, "object `{sha}` is missing"),
            Self::Damaged { path, sha, len, found_sha, found_len } => write!(
                f,
                "object `{sha}` is damaged: expected {len} bytes, found {found_len} with digest `{found_sha}` in `{}`",
                path.display()
            ),
            Self::BadName(name) => write!(f, "`{name}` is not the name of a pack"),
            Self::Fs(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing { source, .. } => Some(source),
            Self::Fs(error) => std::error::Error::source(error),
            Self::Damaged { .. } | Self::BadName(_) => None,
        }
    }
}

impl From<FsError> for StoreError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

#[cfg(test)]
mod tests;
