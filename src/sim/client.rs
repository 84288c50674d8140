//! One host: its clock, its connection, and what its kernel has cached of the shared file system.
//!
//! All processes of a host share one cache. A name that was looked up stays as it was found, present or missing, until the
//! directory's attributes are fetched again and look changed; a listing always fetches them. Where a change is told by a coarse
//! time stamp, a change within the tick of the last look is never noticed until there is another one.

use std::collections::BTreeMap;

use super::profile::{Change, Names, Profile};
use super::seed::Seed;
use super::server::Server;

/// What is remembered of one directory.
#[derive(Debug, Default)]
struct Dentries {
    attribute: u64,
    valid_until: u64,
    /// Name, what it led to, and until when that holds.
    names: BTreeMap<String, (Option<u64>, u64)>,
    listing: Option<Vec<(String, bool)>>,
}

/// The rest of the world, as far as a cache needs it for one look.
pub(super) struct Look<'a> {
    pub(super) profile: &'a Profile,
    pub(super) server: &'a Server,
    pub(super) now: u64,
    pub(super) seed: &'a mut Seed,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "four troubles of a host that are independent of each other")]
pub(super) struct HostState {
    pub(super) name: String,
    pub(super) boot_count: u32,
    pub(super) booted_at: u64,
    /// How much faster than true time its clocks run, parts per million.
    pub(super) rate_ppm: i64,
    pub(super) boot_base: u64,
    pub(super) wall_offset_ms: i64,
    pub(super) is_up: bool,
    /// Suspended: time goes on, nothing runs.
    pub(super) is_frozen: bool,
    /// Cut off from the server.
    pub(super) is_cut: bool,
    pub(super) silent_since: Option<u64>,
    /// Counts silences, so that a timer of an old one is recognised.
    pub(super) silence: u64,
    pub(super) is_evicted: bool,
    /// Requests and replies that wait for the network.
    pub(super) held: Vec<u64>,
    pub(super) held_replies: Vec<u64>,
    dirs: BTreeMap<u64, Dentries>,
    lengths: BTreeMap<u64, (u64, usize)>,
}

const MILLION: i128 = 1_000_000;

impl HostState {
    pub(super) fn new(name: &str, now: u64, seed: &mut Seed) -> Self {
        Self {
            name: name.to_owned(),
            boot_count: 1,
            booted_at: now,
            rate_ppm: seed.below(20_001) as i64 - 10_000,
            boot_base: seed.within((1_000_000_000, 1_000_000_000_000_000)),
            wall_offset_ms: seed.below(600_000) as i64 - 300_000,
            is_up: true,
            is_frozen: false,
            is_cut: false,
            silent_since: None,
            silence: 0,
            is_evicted: false,
            held: Vec::new(),
            held_replies: Vec::new(),
            dirs: BTreeMap::new(),
            lengths: BTreeMap::new(),
        }
    }

    /// The boot clock in nanoseconds.
    pub(super) fn boot(&self, now: u64) -> u64 {
        let span = i128::from(now - self.booted_at);
        self.boot_base + (span * (MILLION + i128::from(self.rate_ppm)) / MILLION) as u64
    }

    /// The true time at which the boot clock shows `boot` or a little more.
    pub(super) fn true_time(&self, boot: u64) -> u64 {
        let span = i128::from(boot.saturating_sub(self.boot_base));
        self.booted_at + (span * MILLION / (MILLION + i128::from(self.rate_ppm))) as u64 + 2
    }

    pub(super) fn drop_caches(&mut self) {
        self.dirs.clear();
        self.lengths.clear();
    }

    /// What tells a client that a directory has changed.
    pub(super) fn attribute(profile: &Profile, server: &Server, dir: u64) -> u64 {
        server.dir(dir).map_or(0, |d| match profile.change {
            Change::Counter => d.version,
            Change::Tick(grain) => d.changed_at / grain,
        })
    }

    fn revalidate(&mut self, at: &mut Look<'_>, dir: u64) {
        let attribute = Self::attribute(at.profile, at.server, dir);
        let cached = self.dirs.entry(dir).or_default();
        if cached.attribute != attribute {
            cached.names.clear();
            cached.listing = None;
            cached.attribute = attribute;
        }
        if let Names::Directory(span) = at.profile.names {
            cached.valid_until = at.now + at.seed.within(span);
        }
    }

    /// Looks a name up as this host's kernel does.
    pub(super) fn look_up(&mut self, mut at: Look<'_>, dir: u64, name: &str) -> Option<u64> {
        let (profile, server, now) = (at.profile, at.server, at.now);
        let hold = match profile.names {
            Names::Coherent => return server.entry(dir, name),
            Names::Directory(_) => u64::MAX,
            Names::Each(span) => now + span,
        };
        if matches!(profile.names, Names::Directory(_)) && self.dirs.get(&dir).is_none_or(|d| now >= d.valid_until) {
            self.revalidate(&mut at, dir);
        }
        if let Some(&(known, until)) = self.dirs.get(&dir).and_then(|d| d.names.get(name))
            && now < until
        {
            match known {
                None => return None,
                Some(ino) if server.inode(ino).nlink > 0 => return Some(ino),
                Some(_) => {}
            }
        }
        if matches!(profile.names, Names::Directory(_)) {
            // The reply carries the directory's attributes.
            self.revalidate(&mut at, dir);
        }
        let found = server.entry(dir, name);
        self.dirs.entry(dir).or_default().names.insert(name.to_owned(), (found, hold));
        found
    }

    /// Forgets one name, after the server has contradicted it.
    pub(super) fn forget_name(&mut self, dir: u64, name: &str) {
        if let Some(cached) = self.dirs.get_mut(&dir) {
            cached.names.remove(name);
        }
    }

    /// What a change by this host itself tells its cache. `before` is the directory's attribute just before the change.
    pub(super) fn changed(&mut self, mut at: Look<'_>, dir: u64, name: &str, before: u64) {
        let (profile, server) = (at.profile, at.server);
        let hold = match profile.names {
            Names::Coherent => return,
            Names::Directory(_) => u64::MAX,
            Names::Each(span) => at.now + span,
        };
        let after = Self::attribute(profile, server, dir);
        if self.dirs.get(&dir).is_none_or(|cached| cached.attribute != before) {
            self.revalidate(&mut at, dir);
        }
        let cached = self.dirs.entry(dir).or_default();
        cached.attribute = after;
        cached.listing = None;
        cached.names.insert(name.to_owned(), (server.entry(dir, name), hold));
    }

    /// Lists as a fresh `opendir` does.
    pub(super) fn list(&mut self, mut at: Look<'_>, dir: u64) -> Vec<(String, bool)> {
        let (profile, server) = (at.profile, at.server);
        let fresh = || -> Vec<(String, bool)> {
            server.dir(dir).map_or(Vec::new(), |d| {
                d.entries.iter().map(|(name, ino)| (name.clone(), server.is_dir(*ino))).collect()
            })
        };
        if matches!(profile.names, Names::Directory(_)) {
            self.revalidate(&mut at, dir);
        }
        if !matches!(profile.change, Change::Tick(_)) {
            return fresh();
        }
        self.dirs.entry(dir).or_default().listing.get_or_insert_with(fresh).clone()
    }

    /// The length that a new open of a file sees.
    pub(super) fn length(&mut self, profile: &Profile, server: &Server, ino: u64, host: u32, now: u64) -> usize {
        let Some(file) = server.file(ino) else { return 0 };
        if file.writer_host == host {
            return file.data.len();
        }
        if profile.length_cache == 0 {
            return file.at_server;
        }
        let seen = self.lengths.entry(ino).or_insert((now, file.at_server));
        if now - seen.0 > profile.length_cache {
            *seen = (now, file.at_server);
        }
        seen.1.min(file.at_server)
    }
}
