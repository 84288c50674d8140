//! The few compound steps that everything is written and read with (spec: ordering).

use std::path::Path;

use super::{Call, Entry, Fs, FsError, Result};
use crate::clock::Chance;
use crate::mutant::{self, Mutant};

/// Creates `path` in place with all of `bytes`, synced with its directory.
///
/// For names with a nonce or an exclusive number. A crash leaves nothing or a torn file, which its closing line betrays.
/// Spec: ordering, "Put new".
pub fn put_new(fs: &dyn Fs, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut file = fs.create(path, mode)?;
    file.write(bytes)?;
    if !mutant::is(Mutant::GroupUnsynced) {
        file.sync()?;
    }
    file.close()?;
    if mutant::is(Mutant::NameUnsynced) { Ok(()) } else { sync_name(fs, path) }
}

/// Makes the name of the regular file `path` durable, and proves it.
///
/// Where a server may have dropped the name unnoticed ([`Fs::drops_names`]), looks whether it is still there once the directory
/// is synced, and fails with `EIO` if not: then it is lost, or comes back without anybody's doing. Costs one more call on such
/// mounts. Spec: ordering, "Put new".
pub fn sync_name(fs: &dyn Fs, path: &Path) -> Result<()> {
    fs.sync_dir(path.parent().unwrap_or(Path::new("")))?;
    if !fs.drops_names() || is_there(fs, path)? { Ok(()) } else { Err(FsError::new(Call::SyncDir, path, libc::EIO)) }
}

/// Lists `dir` after all changes of names in it that were made so far are durable: what the listing does not show any more does not
/// come back.
///
/// For what is decided on the strength of an absence. Spec: ordering, "Settling a directory".
pub fn settle_dir(fs: &dyn Fs, dir: &Path) -> Result<Vec<Entry>> {
    fs.sync_dir(dir)?;
    fs.list(dir)
}

/// Whether the server has the file: opening asks it, and so does listing where opening was answered from a cache or too early.
pub(super) fn is_there(fs: &dyn Fs, path: &Path) -> Result<bool> {
    match fs.open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.not_found() => is_listed(fs, path),
        Err(error) => Err(error),
    }
}

/// Whether a fresh listing of its directory, which is there, shows `path`.
///
/// To be asked before a name is looked up that may not be there yet: an NFS client that was once told that there is no such name
/// believes it for a minute, or for ever if it appears within one tick of the server's clock. Spec: ordering, "Quiet".
pub fn is_listed(fs: &dyn Fs, path: &Path) -> Result<bool> {
    let entries = fs.list(path.parent().unwrap_or(Path::new("")))?;
    Ok(entries.iter().any(|entry| Some(entry.name.as_ref()) == path.file_name()))
}

/// Publishes `bytes` under `path`, whole or not at all, replacing what is there.
///
/// For names whose content is a function of the name, so that doing it twice or late is harmless. The temporary file lies in
/// the same directory, begins with `.t-` and is used once. Spec: ordering, "Publish".
pub fn publish(fs: &dyn Fs, chance: &dyn Chance, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let temp = path.with_file_name(format!(".t-{:016x}", chance.bits()));
    let written = (|| {
        let mut file = fs.create(&temp, mode)?;
        file.write(bytes)?;
        if !mutant::is(Mutant::MailUnsynced) {
            file.sync()?;
        }
        file.close()
    })();
    if let Err(error) = written {
        let _ = fs.unlink(&temp);
        return Err(error);
    }
    fs.rename(&temp, path)
}

/// Reads the whole file, opened afresh.
pub fn read_all(fs: &dyn Fs, path: &Path) -> Result<Vec<u8>> {
    read_from(fs, path, 0)
}

/// Reads the file from `offset` to its end, opened afresh.
pub fn read_from(fs: &dyn Fs, path: &Path, offset: u64) -> Result<Vec<u8>> {
    let mut file = fs.open(path)?;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = file.read_at(&mut buffer, offset + bytes.len() as u64)?;
        if n == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&buffer[..n]);
    }
}

/// Reads the whole file, but fails with `EFBIG` if it is longer than `limit` bytes.
pub fn read_up_to(fs: &dyn Fs, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = fs.open(path)?;
    if file.stat()?.len > limit {
        return Err(FsError::new(Call::Read, path, libc::EFBIG));
    }
    drop(file);
    read_all(fs, path)
}
