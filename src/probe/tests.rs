use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::clock::{HostChance, HostClock};
use crate::fs::{Durability as Sync, Entry, LockGuard, Locked, MountKind, ReadFile, Result, Space, WriteFile};
use crate::protocol::id::DecisionId;
use crate::protocol::record;

/// Small enough for a test, with limits that nothing here comes near.
const SMALL: Effort = Effort {
    rounds: 12,
    samples: 3,
    budget: Duration::from_secs(60),
    visible_limit: Duration::from_secs(60),
    hidden_limit: Duration::from_secs(60),
    lock_limit: Duration::from_secs(60),
};

/// A clock by which every look at it takes ten seconds, so that waiting in vain is soon over.
#[derive(Default)]
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn boot(&self) -> Duration {
        Duration::from_secs(10 * self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

fn quiet(_: &str) {}

fn examine_dirs(dir: &Path, peer: Option<&Path>, queue: Option<&QueueFile>) -> std::result::Result<Report, ProbeError> {
    let limits = Limits::default();
    examine(&Subject { dir, peer, queue, limits: &limits, host: "node-7" }, &SMALL, &HostClock, &HostChance, &quiet)
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

fn queue_file() -> QueueFile {
    QueueFile {
        fq: "queue".into(),
        version: crate::protocol::version::CURRENT,
        features: Vec::new(),
        id: Nonce(1),
        durability: Durability::Full,
        head_style: HeadStyle::Plain,
        first: DecisionId { generation: 1, nonce: Nonce(2) },
        uid: 0,
        gid: None,
        at_ms: 0,
    }
}

// Measuring, on a real directory.

#[test]
fn a_plain_directory_is_measured_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let report = examine_dirs(dir.path(), None, None).unwrap();
    let Measurements { alone, failed, blocked, .. } = &report.measured;
    assert_eq!((failed.as_slice(), blocked), (&[] as &[String], &None));
    assert_eq!((alone.rename_new, alone.rename_over), (Some(true), Some(true)));
    for race in [&alone.rename_race, &alone.create_race] {
        let race = race.as_ref().unwrap();
        assert_eq!((race.rounds, race.one, race.wins.iter().sum()), (12, 12, 12));
    }
    assert_eq!((alone.lock, alone.second_lock), (Some(LockAnswer::Held), Some(LockAnswer::Refused)));
    assert_eq!(alone.freed_lock, Some(LockAnswer::Held));
    assert_eq!((alone.hidden_names_listed, alone.mode_kept), (Some(true), Some(true)));
    assert_eq!(alone.append.map(|spread| spread.count), Some(15));
    assert!(report.verdict < Level::Unsafe, "{report:#?}");
    assert!(report.findings.iter().any(|finding| finding.what == "this directory is no queue"));
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_link_to_the_same_directory_counts_as_the_same_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("q");
    std::fs::create_dir(&root).unwrap();
    let other = dir.path().join("other");
    std::os::unix::fs::symlink(&root, &other).unwrap();
    let report = examine_dirs(&root, Some(&other), None).unwrap();
    let pair = report.measured.pair.as_ref().unwrap();
    assert!(pair.shares_caches);
    assert_eq!(report.measured.failed, [""; 0]);
    for race in [&pair.rename_race, &pair.create_race] {
        assert_eq!(race.as_ref().map(|race| (race.rounds, race.one)), Some((12, 12)));
    }
    assert_eq!(pair.lock, Some(LockAnswer::Refused));
    for lag in [pair.lock_release, pair.names, pair.bytes_reopened, pair.bytes_kept, pair.bytes_unsynced] {
        assert_eq!(lag.map(|lag| (lag.unseen, lag.seen.map(|spread| spread.count))), Some((0, Some(3))));
    }
    assert_eq!(pair.same_tick, Some(SameTick { rounds: 3, ..SameTick::default() }));
    assert!(report.verdict < Level::Unsafe, "{report:#?}");
    assert_eq!(names(&root), [""; 0]);
}

#[test]
fn another_directory_is_refused_as_a_peer() {
    let (dir, peer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let limits = Limits::default();
    let subject = Subject { dir: dir.path(), peer: Some(peer.path()), queue: None, limits: &limits, host: "node-7" };
    let outcome = examine(&subject, &SMALL, &Hasty::default(), &HostChance, &quiet);
    assert!(matches!(outcome, Err(ProbeError::NotTheSame { .. })), "{outcome:?}");
    assert_eq!((names(dir.path()), names(peer.path())), (vec![], vec![]));
}

#[test]
fn an_absent_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = examine_dirs(&dir.path().join("none"), None, None).unwrap_err();
    assert!(error.to_string().starts_with("cannot open the directory `"), "{error}");
}

#[test]
fn in_a_queue_the_work_is_done_below_probe_where_the_report_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("probe")).unwrap();
    let report = examine_dirs(dir.path(), None, Some(&queue_file())).unwrap();
    let fs = HostFs::open(dir.path(), HostOptions::default()).unwrap();
    let path = save(&fs, &HostChance, &report).unwrap();
    assert_eq!(path, Path::new("probe/node-7.json"));
    assert_eq!(names(&dir.path().join("probe")), ["node-7.json"]);
    let value: serde_json::Value = record::from_document(&fs::read_all(&fs, &path).unwrap()).unwrap();
    assert_eq!(value["schema"], 1);
    assert_eq!(value["measured"]["queue"]["durability"], "full");
}

#[test]
fn a_queue_without_its_directory_for_measurements_is_reported_as_not_writable() {
    let dir = tempfile::tempdir().unwrap();
    let report = examine_dirs(dir.path(), None, Some(&queue_file())).unwrap();
    assert!(report.measured.blocked.is_some());
    assert_eq!(report.verdict, Level::Warn);
}

// Measuring, on file systems that are broken.

/// Breaks one promise of the file system that it wraps.
struct Broken<F> {
    inner: F,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A loser of a rename is told that it has won.
    RenameTellsAll,
    /// A loser of an exclusive creation gets a file nevertheless.
    CreateTellsAll,
    /// Nothing made by others is ever listed.
    Blind,
    /// Everybody gets the lock.
    LocksAll,
}

impl<F: Fs> Fs for Broken<F> {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let mut entries = self.inner.list(dir)?;
        entries.retain(|entry| self.fault != Fault::Blind || !entry.name.starts_with("name-"));
        Ok(entries)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        self.inner.open(path)
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        match self.inner.create(path, mode) {
            Err(error) if self.fault == Fault::CreateTellsAll && error.kind == ErrorKind::Exists => {
                self.inner.create(&path.with_extension(format!("{:x}", HostChance.bits())), mode)
            }
            other => other,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match self.inner.rename(from, to) {
            Err(error) if self.fault == Fault::RenameTellsAll && error.not_found() => Ok(()),
            other => other,
        }
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.inner.unlink(path)
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        self.inner.mkdir(dir)
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        self.inner.rmdir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn drops_names(&self) -> bool {
        self.inner.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        struct Guard;
        impl LockGuard for Guard {
            fn raw_fd(&self) -> Option<i32> {
                None
            }
        }
        if self.fault == Fault::LocksAll { Locked::Held(Box::new(Guard)) } else { self.inner.lock(path, limit) }
    }

    fn space(&self) -> Result<Space> {
        self.inner.space()
    }
}

/// Measures both one mount and two with a fault, and judges as if they were mounts of NFS 4.2.
fn judged(fault: Fault) -> Vec<Finding> {
    let dir = tempfile::tempdir().unwrap();
    let open = || HostFs::open(dir.path(), HostOptions { durability: Sync::None, group: None }).unwrap();
    let (a, b) = (Broken { inner: open(), fault }, Broken { inner: open(), fault });
    let run = Path::new("run");
    a.mkdir(run).unwrap();
    let room = Room { dir: run, effort: &SMALL, clock: &Hasty::default(), chance: &HostChance, progress: &quiet };
    let mut measured = good("nfs4", MountKind::Nfs { version: "4.2".into() }, "rw,vers=4.2,hard");
    let effort = Effort { budget: Duration::MAX, ..SMALL };
    let room = Room { effort: &effort, ..room };
    measured.alone = measure::alone(&room, &a, &mut measured.failed);
    measured.pair = Some(measure::between(&room, &a, &b, &mut measured.failed));
    assert_eq!(measured.failed, [""; 0]);
    judge(&measured)
}

#[track_caller]
fn assert_unsafe(findings: &[Finding], parts: &[&str]) {
    for part in parts {
        let is_there = |finding: &Finding| finding.level == Level::Unsafe && finding.what.contains(part);
        assert!(findings.iter().any(is_there), "no `{part}` in {findings:#?}");
    }
    let count = findings.iter().filter(|finding| finding.level == Level::Unsafe).count();
    assert_eq!(count, parts.len(), "{findings:#?}");
}

#[test]
fn a_file_system_on_which_two_renames_win_is_unsafe() {
    let found = judged(Fault::RenameTellsAll);
    assert_unsafe(&found, &["renames of one file by several threads", "renames of one file by two mounts"]);
}

#[test]
fn a_file_system_on_which_two_creations_win_is_unsafe() {
    let found = judged(Fault::CreateTellsAll);
    assert_unsafe(&found, &["creations of one name by several threads", "creations of one name by two mounts"]);
}

#[test]
fn mounts_that_never_list_each_others_files_are_unsafe() {
    assert_unsafe(&judged(Fault::Blind), &["a new name did not reach the other mount within 60 s"]);
}

#[test]
fn a_lock_that_everybody_gets_is_a_warning_only() {
    let found = judged(Fault::LocksAll);
    assert_unsafe(&found, &[]);
    assert!(found.iter().any(|f| f.level == Level::Warn && f.what.contains("not even on this host")), "{found:#?}");
}

#[test]
fn a_step_that_fails_is_reported_and_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let fs = fs::Faulty::new(HostFs::open(dir.path(), HostOptions::default()).unwrap());
    fs.add(fs::Rule::new(fs::Call::Rename, libc::EIO));
    let run = Path::new("run");
    fs.mkdir(run).unwrap();
    let room = Room { dir: run, effort: &SMALL, clock: &HostClock, chance: &HostChance, progress: &quiet };
    let mut measured = good("ext4", MountKind::Local, "rw");
    measured.alone = measure::alone(&room, &fs, &mut measured.failed);
    assert!(measured.failed.iter().all(|why| why.contains("input/output error")), "{:?}", measured.failed);
    assert_eq!(measured.failed.len(), 2);
    assert_eq!(measured.alone.rename_race.as_ref().map(|race| (race.failed, race.none)), Some((12, 0)));
    assert!(measured.alone.append.is_some() && measured.alone.lock == Some(LockAnswer::Held));
    assert!(judge(&measured).iter().any(|finding| finding.level == Level::Warn));
}

// Judging.

/// What a healthy mount of some kind measures.
fn good(fs_type: &str, kind: MountKind, options: &str) -> Measurements {
    let race = Some(Race { rounds: 300, one: 300, wins: vec![150, 150], ..Race::default() });
    let spread = Spread { count: 100, median_us: 1500, p95_us: 2000, max_us: 9000 };
    Measurements {
        mount: MountInfo {
            fs_type: fs_type.to_owned(),
            source: "server:/q".to_owned(),
            options: options.split(',').map(str::to_owned).collect(),
            kind,
        },
        queue: Some(QueueFacts { durability: Durability::Full, head_style: HeadStyle::Plain }),
        limits: Limits::default(),
        blocked: None,
        failed: Vec::new(),
        alone: Alone {
            rename_new: Some(true),
            rename_over: Some(true),
            rename_race: race.clone(),
            create_race: race,
            dir_sync: Some(DirSync::Done),
            lock: Some(LockAnswer::Held),
            second_lock: Some(LockAnswer::Refused),
            freed_lock: Some(LockAnswer::Held),
            bytes_free: Some(1 << 40),
            inodes_free: None,
            append: Some(spread),
            rename: Some(spread),
            hidden_names_listed: Some(true),
            mode_kept: Some(true),
            mtime_step_us: Some(4000),
            notify: Some(true),
        },
        pair: None,
    }
}

fn nfs(version: &str, options: &str) -> Measurements {
    good("nfs", MountKind::Nfs { version: version.into() }, options)
}

/// What two healthy mounts see of each other.
fn good_pair() -> Pair {
    let seen = |max_us| {
        Some(Lag { seen: Some(Spread { count: 20, median_us: 500, p95_us: 800, max_us }), unseen: 0, limit_ms: 70_000 })
    };
    Pair {
        rename_race: Some(Race { rounds: 300, one: 300, wins: vec![150, 150], ..Race::default() }),
        create_race: Some(Race { rounds: 300, one: 300, wins: vec![150, 150], ..Race::default() }),
        lock: Some(LockAnswer::Refused),
        names: seen(900),
        bytes_reopened: seen(1900),
        ..Pair::default()
    }
}

/// Looks for a finding of `level` that has `what` in what it says.
#[track_caller]
fn check(measured: &Measurements, level: Level, what: &str) -> String {
    let findings = judge(measured);
    let found = findings.iter().find(|finding| finding.level == level && finding.what.contains(what));
    found.unwrap_or_else(|| panic!("no {level:?} with `{what}` in {findings:#?}")).consequence.clone()
}

#[track_caller]
fn worst(measured: &Measurements) -> Level {
    judge(measured).first().map(|finding| finding.level).unwrap()
}

#[test]
fn a_local_disk_is_fine() {
    let measured = good("ext4", MountKind::Local, "rw,relatime");
    assert_eq!(worst(&measured), Level::Ok);
    assert_eq!(recommend(&measured), Recommended::default());
    check(&measured, Level::Ok, "renames of one file by several threads of this host had exactly one winner");
    check(&good("tmpfs", MountKind::Local, "rw"), Level::Warn, "lives in memory");
}

// Measured on NFS 4.2 with two mounts of one host, one with `nosharecache`, while two hosts saw each other's bytes within seconds.
#[test]
fn bytes_that_two_mounts_of_one_nfs4_client_hide_from_each_other_make_nothing_unsafe() {
    let hidden = Some(Lag { seen: None, unseen: 2, limit_ms: 70_000 });
    let pair = Pair { bytes_reopened: hidden, ..good_pair() };
    let on = |version| Measurements { pair: Some(pair.clone()), ..nfs(version, "rw,hard,local_lock=none") };
    assert_eq!(worst(&on("4.2")), Level::Warn);
    check(&on("4.2"), Level::Warn, "both are one client");
    check(&on("3"), Level::Unsafe, "appended and synced bytes did not reach the other mount");
}

#[test]
fn two_good_mounts_have_nothing_worse_than_notes() {
    let measured = Measurements { pair: Some(good_pair()), ..nfs("4.2", "rw,hard,local_lock=none") };
    assert_eq!(worst(&measured), Level::Note);
    check(&measured, Level::Ok, "renames of one file by two mounts had exactly one winner in 300 of 300");
    check(&measured, Level::Ok, "refused to the other");
    check(&measured, Level::Note, "hold up the removal of files");
}

#[test]
fn nfs_3_has_hidden_names_and_locks_that_stay() {
    let measured = nfs("3", "rw,vers=3,hard,local_lock=none");
    check(&measured, Level::Note, "NFSv3: a change right after another can stay hidden");
    let consequence = check(&measured, Level::Note, "locks of a dead host stay until it boots");
    assert!(consequence.contains("after the lease (300 s)"), "{consequence}");
    let hole = SameTick { rounds: 20, missing_at_once: 9, missing_later: 8, missing_after_nudge: 0 };
    let pair = Pair { same_tick: Some(hole), ..good_pair() };
    check(&Measurements { pair: Some(pair), ..measured }, Level::Note, "8 of 20 names");
}

#[test]
fn nfs_options_that_harm_are_named() {
    check(&nfs("4.2", "rw,soft"), Level::Warn, "`soft`");
    check(&nfs("4.2", "rw,nocto"), Level::Unsafe, "`nocto`");
    check(&nfs("3", "rw,nolock"), Level::Note, "this host only");
    let long = nfs("4.2", "rw,acregmax=60,acdirmax=300");
    assert!(check(&long, Level::Warn, "for up to 300 s").contains("\"visible_ms\": 600000"));
    assert_eq!(recommend(&nfs("4.2", "rw,acregmax=60,acdirmax=60")).visible_ms, None);
}

#[test]
fn lustre_is_judged_by_whom_its_locks_exclude() {
    let lustre = |options| good("lustre", MountKind::Lustre, options);
    check(&lustre("rw,flock"), Level::Note, "locks exclude all hosts");
    let late = check(&lustre("rw,localflock"), Level::Note, "this host only");
    assert_eq!(late, "a dead worker on another host is noticed after the lease (300 s), not by its lock");
    let seen = Pair { lock: Some(LockAnswer::Held), ..good_pair() };
    check(&Measurements { pair: Some(seen), ..lustre("rw,localflock") }, Level::Note, "host-local here (localflock)");
    let mut noflock = lustre("rw,noflock");
    noflock.alone = Alone { lock: Some(LockAnswer::Unsupported), second_lock: None, freed_lock: None, ..noflock.alone };
    check(&noflock, Level::Warn, "there are no file locks here");
    assert!(worst(&noflock) < Level::Unsafe);
}

#[test]
fn beegfs_ceph_and_moosefs_are_explained() {
    check(&good("beegfs", MountKind::BeeGfs, "rw"), Level::Note, "does not move files that are open");
    check(&good("beegfs", MountKind::BeeGfs, "rw"), Level::Note, "unless `tuneUseGlobalFileLocks`");
    check(&good("ceph", MountKind::Ceph, "rw"), Level::Note, "stall for about 62 s");
    check(&good("fuse", MountKind::MooseFs, "rw"), Level::Note, "locks of a dead host stay for a day");
    for kind in [MountKind::BeeGfs, MountKind::Ceph, MountKind::MooseFs, MountKind::Gpfs, MountKind::Lustre] {
        assert!(worst(&good("x", kind, "rw")) <= Level::Note);
    }
}

#[test]
fn glusterfs_wants_a_token_with_a_dot() {
    let mut measured = good("fuse.glusterfs", MountKind::Gluster, "rw");
    check(&measured, Level::Warn, "a token with a plain name");
    assert_eq!(recommend(&measured).head_style, Some(HeadStyle::Dotted));
    measured.queue = Some(QueueFacts { durability: Durability::Full, head_style: HeadStyle::Dotted });
    assert_eq!(worst(&measured), Level::Note);
    assert_eq!(recommend(&measured).head_style, None);
    measured.alone.hidden_names_listed = Some(false);
    check(&measured, Level::Unsafe, "begin with a dot are not listed");
    measured.queue = None;
    assert_eq!(recommend(&measured).head_style, Some(HeadStyle::Dotted));
}

#[test]
fn sshfs_works_but_slowly() {
    let mut measured = good("fuse.sshfs", MountKind::Sshfs, "rw");
    check(&measured, Level::Warn, "listings are up to 20 s old");
    check(&measured, Level::Note, "exclude nobody");
    let old = Lag {
        seen: Some(Spread { count: 1, median_us: 20_885_000, p95_us: 20_885_000, max_us: 20_885_000 }),
        unseen: 0,
        limit_ms: 70_000,
    };
    measured.pair = Some(Pair { names: Some(old), ..good_pair() });
    check(&measured, Level::Ok, "a new name took 20 s (median), 20 s at most");
}

#[test]
fn a_queue_without_durability_is_unsafe_between_hosts_and_a_risk_on_one() {
    let queue = Some(QueueFacts { durability: Durability::None, head_style: HeadStyle::Plain });
    check(&Measurements { queue, ..nfs("4.2", "rw") }, Level::Unsafe, "`--durability none`");
    check(&Measurements { queue, ..good("xfs", MountKind::Local, "rw") }, Level::Warn, "`--durability none`");
}

#[test]
fn a_race_with_one_bad_round_in_300_is_unsafe() {
    let mut measured = nfs("4.2", "rw");
    measured.pair =
        Some(Pair { rename_race: Some(Race { rounds: 300, one: 299, several: 1, ..Race::default() }), ..good_pair() });
    assert_eq!(
        check(&measured, Level::Unsafe, "1 of 300 rounds had more"),
        "two masters could both decide; no queue is safe here"
    );
}

#[test]
fn lost_replies_are_a_warning() {
    let mut measured = nfs("4.2", "rw");
    measured.alone.rename_race = Some(Race { rounds: 300, one: 298, untold: 2, ..Race::default() });
    check(&measured, Level::Warn, "2 of 300 renames of one file");
    assert!(worst(&measured) < Level::Unsafe);
}

#[test]
fn a_delay_beyond_the_limits_comes_with_what_to_set() {
    let slow = |max_us| {
        Some(Lag {
            seen: Some(Spread { count: 4, median_us: 1000, p95_us: max_us, max_us }),
            unseen: 0,
            limit_ms: 70_000,
        })
    };
    let limits = Limits { visible_ms: 5_000, ..Limits::default() };
    let mut measured = Measurements { limits, pair: Some(good_pair()), ..nfs("4.2", "rw") };
    assert_eq!(recommend(&measured).limits_text(), None);
    measured.pair = Some(Pair { names: slow(20_200_000), ..good_pair() });
    let consequence = check(&measured, Level::Warn, "a new name took 1.0 ms (median), 20 s at most");
    assert!(consequence.ends_with("put \"visible_ms\": 41000 into `limits.json`"), "{consequence}");
    measured.pair = Some(Pair { bytes_reopened: slow(100_000_000), ..good_pair() });
    let wanted = recommend(&measured);
    assert_eq!((wanted.visible_ms, wanted.lease_ms), (Some(200_000), Some(332_400)));
    let changed = Limits { visible_ms: 200_000, lease_ms: 332_400, ..Limits::default() };
    assert_eq!(changed.check(), Ok(()));
}

#[test]
fn trouble_of_one_host_is_named() {
    let mut measured = good("xfs", MountKind::Local, "rw");
    measured.alone = Alone {
        dir_sync: Some(DirSync::Unsupported),
        mode_kept: Some(false),
        bytes_free: Some(5 << 20),
        inodes_free: Some(12),
        append: Some(Spread { count: 1, median_us: 2_000_000, p95_us: 2_000_000, max_us: 2_000_000 }),
        second_lock: Some(LockAnswer::Hung),
        ..measured.alone
    };
    for what in
        ["cannot be synced", "permissions", "5 MiB are free", "12 more files", "takes 2000 ms", "does not answer"]
    {
        check(&measured, Level::Warn, what);
    }
    measured.alone.dir_sync = Some(DirSync::Failed);
    check(&measured, Level::Unsafe, "syncing a directory fails");
}

#[test]
fn a_read_only_queue_says_what_still_works() {
    let blocked =
        Some(Blocked { is_passing: false, why: "cannot make directory `probe/x`: read-only file system".into() });
    let measured = Measurements { blocked, ..nfs("4.2", "ro") };
    assert!(check(&measured, Level::Warn, "nothing can be written here").contains("commands that only read work"));
}
