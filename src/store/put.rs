//! Putting values into the store.

use std::path::{Path, PathBuf};

use super::pack;
use crate::clock::Chance;
use crate::fs::{self, Fs, FsError, WriteFile};
use crate::mutant::{self, Mutant};
use crate::protocol::digest::{Digest, Hasher};
use crate::protocol::id::WorkerId;
use crate::protocol::layout;
use crate::protocol::record::{Bytes, Limits, Ref};

/// Read-only for everybody; the directories decide who comes that far.
const OBJECT_MODE: u32 = 0o444;

/// A long object is synced after so many bytes each, so that no single call has to wait for all of it.
const SYNC_EVERY: u64 = 64 << 20;

/// How often a step with an unknown outcome is tried before its error is passed on.
const TRIES_MAX: u32 = 3;

/// Puts the values of one process: small ones into its own packs.
pub struct Store<'a> {
    fs: &'a dyn Fs,
    chance: &'a dyn Chance,
    inline_max: u64,
    pack_item_max: u64,
    packs: pack::Writer,
}

impl<'a> Store<'a> {
    /// Makes the store of the process `creator`, whose id no other process has ever had.
    pub fn new(fs: &'a dyn Fs, chance: &'a dyn Chance, limits: &Limits, creator: WorkerId) -> Self {
        Self {
            fs,
            chance,
            inline_max: limits.inline_max,
            pack_item_max: limits.pack_item_max,
            packs: pack::Writer::new(creator, limits.pack_max),
        }
    }

    /// Puts one value. On return it is durable. See [`Store::put_all`].
    pub fn put(&mut self, bytes: &[u8]) -> Result<Ref, FsError> {
        let mut refs = self.put_all(&[bytes])?;
        Ok(refs.pop().expect("one reference for one value"))
    }

    /// Puts many values with one sync for all that go to the pack; returns their references in order.
    ///
    /// On return all are durable. Values up to `inline_max` are in their references, up to `pack_item_max` in the process's
    /// pack, larger ones loose. After an error nothing was promised; what lies in a pack without a reference is dead bytes.
    pub fn put_all(&mut self, values: &[&[u8]]) -> Result<Vec<Ref>, FsError> {
        let is_packed = |bytes: &[u8]| {
            let len = bytes.len() as u64;
            len > self.inline_max && len <= self.pack_item_max
        };
        let small: Vec<&[u8]> = values.iter().copied().filter(|bytes| is_packed(bytes)).collect();
        let mut packed = self.packs.append(self.fs, &small)?.into_iter();
        let inline_max = self.inline_max;
        let mut refs = Vec::with_capacity(values.len());
        for bytes in values {
            let len = bytes.len() as u64;
            refs.push(if len <= inline_max {
                Ref::Inline { bytes: Bytes(bytes.to_vec()) }
            } else if len <= self.pack_item_max {
                packed.next().expect("one reference for each packed value")
            } else {
                put_loose(self.fs, self.chance, bytes)?
            });
        }
        Ok(refs)
    }

    /// Begins a value of unknown length, which becomes a loose object.
    pub fn writer(&self) -> Result<ObjectWriter<'a>, FsError> {
        writer(self.fs, self.chance)
    }
}

/// Puts `bytes` as a loose object, whatever their length. On return it is durable.
pub fn put_loose(fs: &dyn Fs, chance: &dyn Chance, bytes: &[u8]) -> Result<Ref, FsError> {
    let mut writer = writer(fs, chance)?;
    writer.write(bytes)?;
    writer.finish()
}

/// Begins a loose object of unknown length.
pub fn writer<'a>(fs: &'a dyn Fs, chance: &'a dyn Chance) -> Result<ObjectWriter<'a>, FsError> {
    let mut tries = 0;
    loop {
        // The digest is not known yet, so the temporary file lies in a bucket by chance and moves to another one.
        let nonce = chance.bits();
        let temp = Path::new(layout::OBJECTS).join(format!("{:02x}", nonce >> 56)).join(format!(".t-{nonce:016x}"));
        match fs.create(&temp, OBJECT_MODE) {
            Ok(file) => {
                return Ok(ObjectWriter { fs, temp, file: Some(file), hasher: Hasher::default(), len: 0, synced: 0 });
            }
            Err(error) if error.refused() || tries == TRIES_MAX => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

/// A loose object that is being written. Dropping it before [`ObjectWriter::finish`] removes what was written.
///
/// Memory use does not depend on the length.
pub struct ObjectWriter<'a> {
    fs: &'a dyn Fs,
    temp: PathBuf,
    /// `None` after an error or the end.
    file: Option<Box<dyn WriteFile>>,
    hasher: Hasher,
    len: u64,
    synced: u64,
}

impl ObjectWriter<'_> {
    /// Appends `bytes`. After an error the object is lost: begin a new one.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        let Some(mut file) = self.file.take() else {
            return Err(FsError::new(fs::Call::Write, &self.temp, libc::EBADF));
        };
        file.write(bytes)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        if self.len - self.synced >= SYNC_EVERY {
            file.sync()?;
            self.synced = self.len;
        }
        self.file = Some(file);
        Ok(())
    }

    /// How many bytes were written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written so far.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the object: on return it is durable under its digest.
    ///
    /// Equal objects that are finished by many processes at once replace each other, which changes nothing.
    pub fn finish(mut self) -> Result<Ref, FsError> {
        let Some(mut file) = self.file.take() else {
            return Err(FsError::new(fs::Call::Sync, &self.temp, libc::EBADF));
        };
        if !mutant::is(Mutant::StoreUnsynced) {
            file.sync()?;
        }
        file.close()?;
        let sha = std::mem::take(&mut self.hasher).finish();
        let path = layout::object(&sha);
        let mut tries = 0;
        while let Err(error) = self.fs.rename(&self.temp, &path) {
            // The outcome is unknown: only if the source is gone and the whole object is there it was done.
            let reference = Ref::Loose { sha, len: self.len };
            if !error.refused() && !self.temp_exists()? {
                self.sync_both(&sha)?;
                // Only what is there afterwards was made durable.
                if super::verify(self.fs, &reference).is_ok() {
                    break;
                }
            }
            if error.refused() || tries == TRIES_MAX {
                return Err(error);
            }
            tries += 1;
        }
        self.temp = PathBuf::new();
        Ok(Ref::Loose { sha, len: self.len })
    }

    fn temp_exists(&self) -> Result<bool, FsError> {
        let (dir, name) = (self.temp.parent().unwrap_or(Path::new("")), self.temp.file_name());
        Ok(self.fs.list(dir)?.iter().any(|e| Some(e.name.as_ref()) == name))
    }

    fn sync_both(&self, sha: &Digest) -> Result<(), FsError> {
        self.fs.sync_dir(&layout::object_bucket(sha))?;
        self.fs.sync_dir(self.temp.parent().unwrap_or(Path::new("")))
    }
}

impl Drop for ObjectWriter<'_> {
    fn drop(&mut self) {
        if !self.temp.as_os_str().is_empty() {
            // What stays behind after a failure is found by its name and removed by collecting.
            self.file = None;
            let _ = self.fs.unlink(&self.temp);
        }
    }
}
