//! Packs: many small values in one file, appended by its one creator.
//!
//! An item is a header line `{"sha":"…","len":N}`, the `N` bytes, and a newline, so that a pack can be read by a person and its
//! references rebuilt by walking it. What follows the last whole item is "not yet", or was never promised to anybody.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fs::{self, ErrorKind, Fs, FsError, ReadFile, WriteFile};
use crate::mutant::{self, Mutant};
use crate::protocol::digest::{Digest, Hasher};
use crate::protocol::id::WorkerId;
use crate::protocol::layout;
use crate::protocol::record::{Ref, to_line};

const MODE: u32 = 0o644;

/// How many packs are begun before an error is passed on.
const TRIES_MAX: u32 = 3;

#[derive(Serialize, Deserialize)]
struct ItemHeader {
    sha: Digest,
    len: u64,
}

/// Appends to the packs of one process.
pub(super) struct Writer {
    creator: WorkerId,
    len_max: u64,
    /// The number of the newest pack; 0 before the first.
    number: u64,
    current: Option<Current>,
}

struct Current {
    file: Box<dyn WriteFile>,
    len: u64,
}

impl Writer {
    pub(super) fn new(creator: WorkerId, len_max: u64) -> Self {
        Self { creator, len_max, number: 0, current: None }
    }

    /// Appends all `values` and syncs once per pack.
    ///
    /// After an error in a pack it is never touched again, and all values of this call go to a new one: nobody has a reference
    /// to what the old one may hold of them.
    pub(super) fn append(&mut self, fs: &dyn Fs, values: &[&[u8]]) -> Result<Vec<Ref>, FsError> {
        let mut tries = 1;
        loop {
            match self.try_append(fs, values) {
                Ok(refs) => return Ok(refs),
                Err(error) => {
                    self.current = None;
                    if error.kind == ErrorKind::NoSpace || error.refused() || tries == TRIES_MAX {
                        return Err(error);
                    }
                    tries += 1;
                }
            }
        }
    }

    fn try_append(&mut self, fs: &dyn Fs, values: &[&[u8]]) -> Result<Vec<Ref>, FsError> {
        let mut refs = Vec::with_capacity(values.len());
        let mut rest = values;
        while !rest.is_empty() {
            let current = match self.current.take() {
                Some(current) => current,
                None => self.begin(fs)?,
            };
            let (written, current) = self.fill(current, rest, &mut refs)?;
            rest = &rest[written..];
            if rest.is_empty() {
                self.current = Some(current);
            }
        }
        Ok(refs)
    }

    /// Writes as many of `values` as the pack takes, at least one, and syncs it.
    fn fill(&self, mut current: Current, values: &[&[u8]], refs: &mut Vec<Ref>) -> Result<(usize, Current), FsError> {
        let mut written = 0;
        for bytes in values {
            let len = bytes.len() as u64;
            if current.len > 0 && current.len + len > self.len_max {
                break;
            }
            let sha = Digest::of(bytes);
            let mut item = to_line(&ItemHeader { sha, len });
            let at = current.len + item.len() as u64;
            item.extend_from_slice(bytes);
            item.push(b'\n');
            current.file.write(&item)?;
            current.len += item.len() as u64;
            refs.push(Ref::Packed { sha, len, pack: layout::pack_name(&self.creator, self.number), at });
            written += 1;
        }
        if written > 0 && !mutant::is(Mutant::StoreUnsynced) {
            current.file.sync()?;
        }
        Ok((written, current))
    }

    fn begin(&mut self, fs: &dyn Fs) -> Result<Current, FsError> {
        loop {
            self.number += 1;
            match fs.create(&layout::pack(&self.creator, self.number), MODE) {
                Ok(file) => {
                    fs::sync_name(fs, &layout::pack(&self.creator, self.number))?;
                    return Ok(Current { file, len: 0 });
                }
                // An earlier try of our own whose reply was lost.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// One value in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The digest that its header names.
    pub sha: Digest,
    /// Its length in bytes.
    pub len: u64,
    /// The byte offset of its first byte.
    pub at: u64,
    /// Whether the bytes have that digest; `None` if it was not asked for.
    pub is_sound: Option<bool>,
}

/// What a walk over a pack found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// All whole items, in order.
    pub items: Vec<Item>,
    /// How many bytes they take with their headers.
    pub whole_bytes: u64,
    /// The length of the file; what is beyond `whole_bytes` is an item that is not whole.
    pub file_bytes: u64,
}

impl Contents {
    /// The bytes of items that `is_live` does not know, and of the unfinished end.
    pub fn dead_bytes(&self, is_live: impl Fn(&Item) -> bool) -> u64 {
        let live: u64 = self.items.iter().filter(|item| is_live(item)).map(|item| item.len).sum();
        self.file_bytes.saturating_sub(live)
    }
}

/// Walks over the pack with the file name `pack`; computes digests if `deep`.
///
/// Reads headers only, or everything if `deep`; memory does not depend on the length of items.
pub fn walk(fs: &dyn Fs, pack: &str, deep: bool) -> Result<Contents, FsError> {
    let mut file = fs.open(&Path::new(layout::PACKS).join(pack))?;
    let mut found = Contents { file_bytes: file.stat()?.len, ..Contents::default() };
    while let Some((header, at)) = read_header(&mut *file, found.whole_bytes)? {
        let Some(end) = at.checked_add(header.len).and_then(|end| end.checked_add(1)) else { break };
        if end > found.file_bytes || !is_newline(&mut *file, end - 1)? {
            break;
        }
        let is_sound = if deep { Some(digest_of(&mut *file, at, header.len)? == header.sha) } else { None };
        found.items.push(Item { sha: header.sha, len: header.len, at, is_sound });
        found.whole_bytes = end;
    }
    Ok(found)
}

/// Reads the header at `offset`; returns it with the offset of the bytes that follow.
fn read_header(file: &mut dyn ReadFile, offset: u64) -> fs::Result<Option<(ItemHeader, u64)>> {
    // The longest header has 64 hexadecimal digits and a number of 20.
    let mut buffer = [0; 128];
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset + have as u64)? {
            0 => break,
            n => have += n,
        }
    }
    let Some(len) = buffer[..have].iter().position(|&b| b == b'\n') else { return Ok(None) };
    Ok(serde_json::from_slice(&buffer[..len]).ok().map(|header| (header, offset + len as u64 + 1)))
}

fn is_newline(file: &mut dyn ReadFile, at: u64) -> fs::Result<bool> {
    let mut byte = [0];
    Ok(file.read_at(&mut byte, at)? == 1 && byte[0] == b'\n')
}

fn digest_of(file: &mut dyn ReadFile, at: u64, len: u64) -> fs::Result<Digest> {
    let mut hasher = Hasher::default();
    super::get::read_range(file, at, len, &mut |bytes| hasher.update(bytes))?;
    Ok(hasher.finish())
}
