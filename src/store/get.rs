//! Getting values out of the store, compared with what their references say.

use std::path::{Path, PathBuf};

use super::StoreError;
use crate::fs::{self, Fs, FsError, ReadFile};
use crate::protocol::digest::{Digest, Hasher};
use crate::protocol::layout;
use crate::protocol::record::Ref;

/// Reads the value of `reference` into memory.
///
/// Fails with [`StoreError::Missing`] or [`StoreError::Damaged`] rather than return anything else than the value. Whether to
/// look again later is the caller's decision; see [`StoreError::may_pass`].
pub fn read(fs: &dyn Fs, reference: &Ref) -> Result<Vec<u8>, StoreError> {
    let mut value = Vec::new();
    copy_to(fs, reference, &mut |bytes| value.extend_from_slice(bytes))?;
    Ok(value)
}

/// Passes the value of `reference` to `sink` piece by piece, with constant memory.
///
/// The digest is known at the end only: after an error, what `sink` was given must not be used, or be marked as damaged.
pub fn copy_to(fs: &dyn Fs, reference: &Ref, sink: &mut dyn FnMut(&[u8])) -> Result<(), StoreError> {
    let (path, sha, at, len) = match reference {
        Ref::Inline { bytes } => {
            sink(&bytes.0);
            return Ok(());
        }
        Ref::Loose { sha, len } => (layout::object(sha), *sha, 0, *len),
        Ref::Packed { sha, len, pack, at } => (pack_path(pack)?, *sha, *at, *len),
    };
    let mut file = fs.open(&path).map_err(|error| missing(sha, error))?;
    let is_loose = matches!(reference, Ref::Loose { .. });
    let mut hasher = Hasher::default();
    // A loose object is read to its end, so that bytes too many are found.
    let wanted = if is_loose { u64::MAX } else { len };
    let mut given = 0;
    let found_len = read_range(&mut *file, at, wanted, &mut |bytes| {
        hasher.update(bytes);
        let rest = usize::try_from(len - given).unwrap_or(usize::MAX).min(bytes.len());
        sink(&bytes[..rest]);
        given += rest as u64;
    })
    .map_err(|error| missing(sha, error))?;
    let found_sha = hasher.finish();
    if found_len == len && found_sha == sha {
        Ok(())
    } else {
        Err(StoreError::Damaged { path, sha, len, found_sha, found_len })
    }
}

/// Checks that the value of `reference` is there and right.
pub fn verify(fs: &dyn Fs, reference: &Ref) -> Result<(), StoreError> {
    copy_to(fs, reference, &mut |_| {})
}

fn pack_path(pack: &str) -> Result<PathBuf, StoreError> {
    match layout::parse_pack(pack) {
        Some(_) => Ok(Path::new(layout::PACKS).join(pack)),
        None => Err(StoreError::BadName(pack.chars().take(80).collect())),
    }
}

fn missing(sha: Digest, source: FsError) -> StoreError {
    if source.not_found() { StoreError::Missing { sha, source } } else { StoreError::Fs(source) }
}

/// Reads up to `len` bytes from `at` on; returns how many there were.
pub(crate) fn read_range(file: &mut dyn ReadFile, at: u64, len: u64, sink: &mut dyn FnMut(&[u8])) -> fs::Result<u64> {
    let mut buffer = vec![0; 256 * 1024];
    let mut have = 0;
    while have < len {
        let want = usize::try_from(len - have).unwrap_or(usize::MAX).min(buffer.len());
        // An offset that no file has is the end of every file.
        let Some(offset) = at.checked_add(have) else { break };
        match file.read_at(&mut buffer[..want], offset)? {
            0 => break,
            n => {
                sink(&buffer[..n]);
                have += n as u64;
            }
        }
    }
    Ok(have)
}
