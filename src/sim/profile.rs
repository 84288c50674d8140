//! What differs between mounts: one struct of flags and delays, and a constructor per kind of file system.
//!
//! The figures are those that were measured with two clients on real servers, in orders of magnitude. All spans are in
//! nanoseconds of simulated time, and a pair of them is the least and the greatest.

/// One millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SEC: u64 = 1_000_000_000;

/// Least and greatest span, in nanoseconds.
pub type Span = (u64, u64);

/// What a client keeps of the names that it has looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Nothing that can be out of date.
    Coherent,
    /// Positive and negative entries hold until the directory's attributes are fetched again, after a span drawn from this
    /// range or by a fresh listing, and are seen to have changed (NFS).
    Directory(Span),
    /// Each entry holds for this long, whatever happens (`GlusterFS`, `BeeGFS`).
    Each(u64),
}

/// How a client sees that a directory has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// By a counter: always.
    Counter,
    /// By a time stamp of this grain: two changes within one tick look like one (`NFSv3`).
    Tick(u64),
}

/// When bytes that were written but not synced become visible on other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// At once.
    Shared,
    /// After a span drawn from this range, or never if the host dies before.
    After(Span),
}

/// In which order changes of names reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// In the order in which they were made; syncing one syncs all earlier ones.
    Ordered,
    /// Each directory for itself: a later change in one may survive an earlier one in another.
    PerDirectory,
}

/// Who makes a change of names durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// The server, before it replies.
    Server,
    /// The client by a sync; `Fs::rename` contains one.
    Sync,
    /// Nobody: the server replies first and writes later (export option `async`).
    Later,
}

/// What comes of a call whose reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The client sends it again and it is executed again: a rename that was done says ENOENT.
    Again,
    /// The server remembers the reply and repeats it, except after a restart, when the call is executed again.
    Remembered,
    /// The server rebuilds the reply also after a restart.
    Exact,
    /// The caller gets EIO.
    Error,
}

/// What locks are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// They exclude everybody.
    Coherent,
    /// They exclude processes of the same host only.
    HostLocal,
    /// `ENOLCK`.
    Unsupported,
    /// No answer, ever.
    Hanging,
}

/// A kind of shared file system with its mount options.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a table of what mounts do, one flag per column")]
pub struct Profile {
    /// Name, for messages.
    pub name: &'static str,
    /// From a call to its execution, and again from the execution to its reply.
    pub latency: Span,
    /// Additional time of a sync.
    pub sync: Span,
    /// Whether all hosts are one machine, so that the power of the server is that of all.
    pub local: bool,
    /// Name caches.
    pub names: Names,
    /// Directory attributes.
    pub change: Change,
    /// How long a client trusts the length of a file also over a new open.
    pub length_cache: u64,
    /// Visibility of unsynced bytes.
    pub unsynced: Unsynced,
    /// Order of names on the disk.
    pub journal: Journal,
    /// Who commits names.
    pub commit: Commit,
    /// After this long everything is durable also without a sync.
    pub flush: u64,
    /// Fate of calls with lost replies.
    pub replay: Replay,
    /// Kind of locks.
    pub locks: Locks,
    /// After this long the server takes back the locks of a silent host; `None`: only when that host boots again.
    pub lock_lease: Option<u64>,
    /// How long after a restart the server gives no new locks.
    pub lock_grace: u64,
    /// Whether a host that was silent for `lock_lease` is shut out until it boots again.
    pub evicts: bool,
    /// Whether calls of a cut-off host fail with EIO after a while instead of hanging.
    pub soft: bool,
    /// Whether a host that only read a file can block its removal and renaming for this long after its death.
    pub delegation: Option<u64>,
    /// Whether other hosts wait for this tick before they can use a name that was not synced.
    pub name_stall: Option<u64>,
    /// Whether rename and listing have several steps.
    pub bricks: bool,
    /// Whether unlinking a file that is open on the same host leaves a `.nfs` name.
    pub silly_rename: bool,
    /// Whether a removed file that is open elsewhere gives `ESTALE`.
    pub stale_handles: bool,
}

impl Profile {
    /// One machine with a local journaled file system; power loss takes all processes down.
    pub fn local() -> Self {
        Self {
            name: "local",
            latency: (2_000, 60_000),
            sync: (50_000, 4 * MS),
            local: true,
            names: Names::Coherent,
            change: Change::Counter,
            length_cache: 0,
            unsynced: Unsynced::Shared,
            journal: Journal::Ordered,
            commit: Commit::Sync,
            flush: 30 * SEC,
            replay: Replay::Exact,
            locks: Locks::Coherent,
            lock_lease: None,
            lock_grace: 0,
            evicts: false,
            soft: false,
            delegation: None,
            name_stall: None,
            bricks: false,
            silly_rename: false,
            stale_handles: false,
        }
    }

    /// As [`Profile::local`], but each directory reaches the disk for itself.
    pub fn btrfs() -> Self {
        Self { name: "btrfs", journal: Journal::PerDirectory, ..Self::local() }
    }

    /// `NFSv3`, hard, default caches, a working lock manager.
    pub fn nfs3() -> Self {
        Self {
            name: "nfs3",
            latency: (100_000, 2 * MS),
            sync: (200_000, 8 * MS),
            local: false,
            names: Names::Directory((30 * SEC, 60 * SEC)),
            change: Change::Tick(10 * MS),
            unsynced: Unsynced::After((20 * SEC, 36 * SEC)),
            commit: Commit::Server,
            flush: 5 * SEC,
            replay: Replay::Again,
            lock_grace: 90 * SEC,
            silly_rename: true,
            stale_handles: true,
            ..Self::local()
        }
    }

    /// `NFSv3` without a lock manager: lock calls hang.
    pub fn nfs3_nolock() -> Self {
        Self { name: "nfs3-nolock", locks: Locks::Hanging, ..Self::nfs3() }
    }

    /// `NFSv4.0`: leases, delegations, no sessions.
    pub fn nfs40() -> Self {
        Self {
            name: "nfs40",
            change: Change::Counter,
            lock_lease: Some(90 * SEC),
            delegation: Some(104 * SEC),
            stale_handles: false,
            ..Self::nfs3()
        }
    }

    /// `NFSv4.1` and later: a reply is remembered while the server lives.
    pub fn nfs41() -> Self {
        Self { name: "nfs41", replay: Replay::Remembered, ..Self::nfs40() }
    }

    /// `NFSv4.1` on a server that replies before it writes, mounted soft.
    pub fn nfs_async() -> Self {
        Self { name: "nfs-async", commit: Commit::Later, soft: true, ..Self::nfs41() }
    }

    /// `NFSv4.1` mounted soft: calls of a cut-off host fail, and may be executed all the same.
    pub fn nfs41_soft() -> Self {
        Self { name: "nfs41-soft", soft: true, ..Self::nfs41() }
    }

    /// Lustre with coherent locks.
    pub fn lustre_flock() -> Self {
        Self {
            name: "lustre-flock",
            names: Names::Coherent,
            change: Change::Counter,
            unsynced: Unsynced::Shared,
            commit: Commit::Sync,
            flush: 5 * SEC,
            replay: Replay::Exact,
            lock_lease: Some(100 * SEC),
            lock_grace: 0,
            evicts: true,
            silly_rename: false,
            stale_handles: false,
            ..Self::nfs3()
        }
    }

    /// Lustre without locks.
    pub fn lustre_noflock() -> Self {
        Self { name: "lustre-noflock", locks: Locks::Unsupported, ..Self::lustre_flock() }
    }

    /// `BeeGFS` with default options: host-local locks, caches flushed at close.
    pub fn beegfs() -> Self {
        Self {
            name: "beegfs",
            names: Names::Each(SEC),
            change: Change::Counter,
            unsynced: Unsynced::After((SEC, 30 * SEC)),
            commit: Commit::Sync,
            journal: Journal::PerDirectory,
            replay: Replay::Error,
            locks: Locks::HostLocal,
            lock_grace: 0,
            silly_rename: false,
            stale_handles: false,
            ..Self::nfs3()
        }
    }

    /// `GlusterFS`, distributed and replicated.
    pub fn gluster() -> Self {
        Self {
            name: "gluster",
            latency: (300_000, 8 * MS),
            names: Names::Each(SEC),
            length_cache: SEC,
            unsynced: Unsynced::After((SEC / 10, 2 * SEC)),
            locks: Locks::Coherent,
            lock_lease: Some(43 * SEC),
            bricks: true,
            ..Self::beegfs()
        }
    }

    /// `CephFS`: coherent, evicts, and journals lazily.
    pub fn ceph() -> Self {
        Self {
            name: "ceph",
            names: Names::Coherent,
            unsynced: Unsynced::Shared,
            commit: Commit::Sync,
            journal: Journal::PerDirectory,
            flush: 5 * SEC,
            replay: Replay::Exact,
            locks: Locks::Coherent,
            lock_lease: Some(62 * SEC),
            evicts: true,
            name_stall: Some(5 * SEC),
            ..Self::beegfs()
        }
    }

    /// GPFS: coherent, fences dead nodes.
    pub fn gpfs() -> Self {
        Self { name: "gpfs", lock_lease: Some(35 * SEC), ..Self::lustre_flock() }
    }

    /// Whether a name that was not synced when the server lost power is gone, and a client that lives on learns of it by no call.
    pub fn drops_names(&self) -> bool {
        !self.local && self.commit == Commit::Sync && self.replay != Replay::Exact
    }

    /// All profiles, for tests that must hold on each.
    pub fn all() -> Vec<Self> {
        vec![
            Self::local(),
            Self::btrfs(),
            Self::nfs3(),
            Self::nfs3_nolock(),
            Self::nfs40(),
            Self::nfs41(),
            Self::nfs41_soft(),
            Self::nfs_async(),
            Self::lustre_flock(),
            Self::lustre_noflock(),
            Self::beegfs(),
            Self::gluster(),
            Self::ceph(),
            Self::gpfs(),
        ]
    }
}
