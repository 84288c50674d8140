//! What there is in the store, by listing it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::fs::{EntryKind, Fs, FsError};
use crate::protocol::digest::Digest;
use crate::protocol::id::DecisionId;
use crate::protocol::layout;

/// The names in the store at the time of a walk. A moment later there may be more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Loose objects.
    pub objects: BTreeSet<Digest>,
    /// Packs by file name.
    pub packs: BTreeSet<String>,
    /// Temporary files of writers, alive or not.
    pub temps: BTreeSet<PathBuf>,
    /// Quarantined files by the decision that ordered it.
    pub trash: BTreeMap<DecisionId, BTreeSet<String>>,
    /// Names that are none of the store's.
    pub strangers: BTreeSet<PathBuf>,
}

/// Lists objects, packs and trash; calls `pace` before each listing, which may wait.
pub fn take(fs: &dyn Fs, pace: &mut dyn FnMut()) -> Result<Inventory, FsError> {
    let mut found = Inventory::default();
    let mut list = |dir: &Path| {
        pace();
        fs.list(dir)
    };
    for bucket in list(Path::new(layout::OBJECTS))? {
        let dir = Path::new(layout::OBJECTS).join(&bucket.name);
        if bucket.kind != EntryKind::Dir || bucket.name.len() != 2 {
            found.strangers.insert(dir);
            continue;
        }
        for entry in list(&dir)? {
            match layout::parse_object(&bucket.name, &entry.name) {
                Some(digest) if entry.kind == EntryKind::File => {
                    found.objects.insert(digest);
                }
                _ => found.add_other(dir.join(&entry.name), &entry.name),
            }
        }
    }
    for entry in list(Path::new(layout::PACKS))? {
        if entry.kind == EntryKind::File && layout::parse_pack(&entry.name).is_some() {
            found.packs.insert(entry.name);
        } else {
            found.add_other(Path::new(layout::PACKS).join(&entry.name), &entry.name);
        }
    }
    for entry in list(Path::new(layout::TRASH))? {
        let dir = Path::new(layout::TRASH).join(&entry.name);
        let Ok(by) = entry.name.parse::<DecisionId>() else {
            if !entry.name.starts_with(DAMAGED) {
                found.strangers.insert(dir);
            }
            continue;
        };
        match list(&dir) {
            Ok(names) => found.trash.insert(by, names.into_iter().map(|e| e.name).collect()),
            // Emptied and removed since.
            Err(error) if error.not_found() => None,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// How directories in the trash begin that hold damaged files; only a person removes them.
pub const DAMAGED: &str = "damaged-";

impl Inventory {
    fn add_other(&mut self, path: PathBuf, name: &str) {
        if name.starts_with(".t-") {
            self.temps.insert(path);
        } else {
            self.strangers.insert(path);
        }
    }
}
