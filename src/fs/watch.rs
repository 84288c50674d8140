//! A hint from the kernel that something below a directory may have changed.
//!
//! Invariants:
//! - A wake-up says "look now" and nothing else. It can come late, without reason, many times or never: changes by other hosts
//!   are not seen at all. Polling is the truth.
//! - Reading wakes nobody, so a watcher that looks does not wake itself.

use std::path::{Path, PathBuf};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// Watches directories or files on this host while it lives.
#[derive(Debug)]
pub struct Watch {
    watcher: RecommendedWatcher,
}

impl Watch {
    /// Watches `paths`, each without what is below its directories, and calls `wake` from a thread of its own when one may have
    /// changed, with what changed as far as the kernel says; an empty list stands for anything.
    ///
    /// The paths are absolute; those that cannot be watched are left out. `None` if this host gives no watcher (too many in
    /// use, no support). `wake` must be quick and must not block.
    pub fn new(paths: &[PathBuf], wake: impl Fn(&[PathBuf]) + Send + Sync + 'static) -> Option<Self> {
        let watcher = notify::recommended_watcher(move |event| {
            if is_change(&event) {
                let paths = event.as_ref().ok().filter(|e| !e.need_rescan()).map_or(&[][..], |e| &e.paths);
                wake(paths);
            }
        });
        let mut watch = Self { watcher: watcher.ok()? };
        for path in paths {
            watch.add(path);
        }
        Some(watch)
    }

    /// Watches `path` as well; returns whether that worked. Adding a path twice is harmless.
    pub fn add(&mut self, path: &Path) -> bool {
        self.watcher.watch(path, RecursiveMode::NonRecursive).is_ok()
    }
}

/// Whether something may have changed. Errors and overflows count, since nobody knows what they swallowed.
fn is_change(event: &notify::Result<Event>) -> bool {
    !matches!(event, Ok(Event { kind: EventKind::Access(_), .. }))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use notify::event::{AccessKind, AccessMode, CreateKind, Flag};

    use super::*;

    /// Far longer than any event takes; only a broken watch lets it pass.
    const LIMIT: Duration = Duration::from_secs(60);

    fn woken_by_a_new_file(watch_dir: impl FnOnce(&Path, Box<dyn Fn(&[PathBuf]) + Send + Sync>) -> Option<Watch>) {
        let dir = tempfile::tempdir().unwrap();
        let (sender, wakes) = mpsc::channel();
        let watch = watch_dir(dir.path(), Box::new(move |_| sender.send(()).unwrap_or_default()));
        if watch.is_some() {
            std::fs::write(dir.path().join("a"), "x").unwrap();
            wakes.recv_timeout(LIMIT).unwrap();
        }
    }

    #[test]
    fn a_new_file_wakes() {
        woken_by_a_new_file(|dir, wake| Watch::new(&[dir.to_owned()], wake));
    }

    #[test]
    fn a_new_file_wakes_in_a_directory_added_later() {
        woken_by_a_new_file(|dir, wake| {
            let mut watch = Watch::new(&[], wake)?;
            assert!(watch.add(dir));
            Some(watch)
        });
    }

    #[test]
    fn a_path_that_cannot_be_watched_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        if let Some(mut watch) = Watch::new(&[dir.path().join("none")], |_| {}) {
            assert!(!watch.add(&dir.path().join("none")));
            assert!(watch.add(dir.path()));
        }
    }

    #[test]
    fn reading_does_not_wake_but_changes_errors_and_overflows_do() {
        let read = Event::new(EventKind::Access(AccessKind::Open(AccessMode::Any)));
        assert!(!is_change(&Ok(read)));
        assert!(is_change(&Ok(Event::new(EventKind::Create(CreateKind::File)))));
        assert!(is_change(&Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan))));
        assert!(is_change(&Err(notify::Error::generic("lost"))));
    }
}
