//! What the decision log promises, clause by clause of spec "Commit", and what a crash at any call leaves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::clock::{HostChance, HostClock};
use crate::fs::{Counting, Durability, Entry, Faulty, HostFs, HostOptions, Locked, ReadFile, Rule, Space, WriteFile};
use crate::process::Identity;
use crate::protocol::id::{JobId, WorkerId};
use crate::queue::{self, InitOptions};

mod cluster;

/// A queue in a directory of its own.
struct Disk {
    dir: TempDir,
    fs: HostFs,
    file: QueueFile,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = files(dir.path());
        for path in ["decisions", layout::HEAD, layout::LOG, "decisions/log/000", layout::SNAPSHOTS] {
            fs.mkdir(path.as_ref()).expect("a directory");
        }
        let first = DecisionId { generation: 0, nonce: Nonce(1) };
        let header = Header {
            fq: "decision".into(),
            version: version::CURRENT,
            id: first,
            prev: None,
            prev_sha: None,
            snapshot: None,
            term: 0,
            by: me("init"),
            at_ms: 0,
        };
        fs::put_new(&fs, &layout::decision(first), &encode_group(&header, &[]), MODE).expect("the first decision");
        let file = QueueFile {
            fq: "queue".into(),
            version: version::CURRENT,
            features: Vec::new(),
            id: Nonce(1),
            durability: crate::protocol::record::Durability::None,
            head_style: HeadStyle::Plain,
            first,
            uid: 7,
            gid: None,
            at_ms: 0,
        };
        let disk = Self { dir, fs, file };
        disk.token(first);
        disk
    }

    fn faulty(&self) -> Faulty<HostFs> {
        Faulty::new(files(self.dir.path()))
    }

    fn writer(&self) -> Writer {
        Writer::open(&self.fs, &HostChance, &self.file).expect("the chain can be read")
    }

    /// Adds decisions of nothing.
    fn grow(&self, writer: &mut Writer, count: usize) {
        for _ in 0..count {
            assert_eq!(nothing(&self.fs, writer), Commit::Won);
        }
    }

    fn head(&self) -> DecisionId {
        match look(&self.fs) {
            Ok(Look::Alone(id)) => id,
            other => panic!("no single token: {other:?}"),
        }
    }

    /// The decisions from the head to the first one, read without the code under test.
    fn chain(&self) -> Vec<DecisionId> {
        chain(&self.head(), |path| fs::read_all(&self.fs, path).ok())
    }

    fn aside(&self) -> usize {
        let names = self.fs.list(layout::HEAD.as_ref()).expect("a listing");
        names.iter().filter(|e| e.name.starts_with(".gone-")).count()
    }

    fn remove(&self, path: &Path) {
        self.fs.unlink(path).expect("removed");
    }

    fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read_all(&self.fs, path).expect("bytes");
        change(&mut bytes);
        self.remove(path);
        fs::put_new(&self.fs, path, &bytes, MODE).expect("written");
    }

    /// Makes a second name for the token, as a rename that was cut in half leaves.
    fn token(&self, id: DecisionId) {
        fs::put_new(&self.fs, &layout::head(id, HeadStyle::Plain), b"x", MODE).expect("a token");
    }
}

fn files(dir: &Path) -> HostFs {
    HostFs::open(dir, HostOptions { durability: Durability::None, group: None }).expect("the directory")
}

fn chain(head: &DecisionId, read: impl Fn(&Path) -> Option<Vec<u8>>) -> Vec<DecisionId> {
    let mut ids = vec![*head];
    loop {
        let id = ids[ids.len() - 1];
        let bytes = read(&layout::decision(id)).unwrap_or_else(|| panic!("the head's ancestor {id} is missing"));
        let group = decode_group(&bytes).unwrap_or_else(|e| panic!("the head's ancestor {id} cannot be read: {e}"));
        assert_eq!(group.header.id, id);
        match group.header.prev {
            Some(prev) => ids.push(prev),
            None => return ids,
        }
    }
}

fn me(name: &str) -> WorkerId {
    WorkerId::new(name, Nonce(1))
}

fn author(writer: &Writer, name: &str) -> Author {
    Author { by: me(name), term: writer.state().term, at_ms: 5 }
}

fn identity() -> Identity {
    Identity { host: "h".into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 7 }
}

/// Commits a decision of the present term without operations.
fn nothing(fs: &dyn Fs, writer: &mut Writer) -> Commit {
    let (author, id) = (author(writer, "a"), writer.next_id(&HostChance));
    writer.commit(fs, &HostChance, &author, id, Vec::new())
}

/// Commits a new term.
fn lead(fs: &dyn Fs, chance: &dyn Chance, writer: &mut Writer, name: &str) -> (DecisionId, Commit) {
    let term = writer.state().term + 1;
    let id = writer.next_id(chance);
    let op = Op::Lead { term, master: me(name), identity: identity() };
    (id, writer.commit(fs, chance, &Author { by: me(name), term, at_ms: 5 }, id, vec![op]))
}

fn snapshot(fs: &dyn Fs, writer: &mut Writer) -> SnapshotRef {
    let reference = write_snapshot(fs, writer.state()).expect("a snapshot");
    let (author, id) = (author(writer, "a"), writer.next_id(&HostChance));
    assert_eq!(writer.commit(fs, &HostChance, &author, id, vec![Op::Snapshot(reference)]), Commit::Won);
    reference
}

// --- one commit -----------------------------------------------------------------------------------------------------------

#[test]
fn a_decision_is_bound_and_seen_by_others() {
    let disk = Disk::new();
    let mut reader = Reader::open(&disk.fs).unwrap();
    let mut writer = disk.writer();
    let (id, commit) = lead(&disk.fs, &HostChance, &mut writer, "a");
    assert_eq!(commit, Commit::Won);
    assert_eq!((disk.head(), writer.state().at), (id, id));
    assert_eq!(reader.refresh(&disk.fs), Ok(true));
    assert_eq!(reader.refresh(&disk.fs), Ok(false));
    assert_eq!(reader.state(), writer.state());
    assert_eq!(reader.state().master.as_ref().map(|m| m.lead), Some(id));
    assert_eq!(reader.decided_at_ms(), 5);
}

#[test]
fn a_commit_costs_four_calls_on_names() {
    let disk = Disk::new();
    let counting = Counting::new(files(disk.dir.path()));
    let mut writer = disk.writer();
    disk.grow(&mut writer, 1);
    let before = counting.counts();
    assert_eq!(nothing(&counting, &mut writer), Commit::Won);
    let made = counting.counts() - before;
    assert_eq!((made.of(Call::Create), made.of(Call::Rename), made.of(Call::List)), (1, 1, 2));
    assert_eq!(made.total_namespace(), 4);
}

#[test]
fn a_rename_that_was_done_counts_as_won_whatever_it_said() {
    for errno in [libc::ENOENT, libc::EIO, libc::ETIMEDOUT, libc::EEXIST] {
        let disk = Disk::new();
        let faulty = disk.faulty();
        let mut writer = disk.writer();
        faulty.add(Rule::new(Call::Rename, errno).on("decisions/head").times(1).executed());
        assert_eq!(nothing(&faulty, &mut writer), Commit::Won, "errno {errno}");
        assert_eq!(disk.head(), writer.state().at);
    }
}

#[test]
fn a_rename_that_was_not_done_leaves_the_candidate_in_doubt_and_only_that_one_is_tried_again() {
    let disk = Disk::new();
    let faulty = disk.faulty();
    let mut writer = disk.writer();
    let before = writer.state().clone();
    faulty.add(Rule::new(Call::Rename, libc::EIO).on("decisions/head").times(3));
    let id = writer.next_id(&HostChance);
    let author = author(&writer, "a");
    assert_eq!(writer.commit(&faulty, &HostChance, &author, id, Vec::new()), Commit::InDoubt);
    assert_eq!(writer.push(&faulty, &HostChance), Commit::InDoubt);
    assert_eq!(writer.push(&faulty, &HostChance), Commit::InDoubt);
    assert!(writer.is_in_doubt());
    assert_eq!(writer.state(), &before, "nothing of a candidate shows");
    assert_eq!(writer.push(&faulty, &HostChance), Commit::Won);
    assert_eq!(disk.head(), id);
}

#[test]
#[should_panic(expected = "in doubt")]
fn nothing_else_is_committed_while_a_candidate_is_in_doubt() {
    let disk = Disk::new();
    let faulty = disk.faulty();
    let mut writer = disk.writer();
    faulty.add(Rule::new(Call::Rename, libc::EIO));
    assert_eq!(nothing(&faulty, &mut writer), Commit::InDoubt);
    nothing(&faulty, &mut writer);
}

#[test]
fn who_comes_second_has_lost_and_goes_on_from_the_winner() {
    let disk = Disk::new();
    let (mut a, mut b) = (disk.writer(), disk.writer());
    assert_eq!(nothing(&disk.fs, &mut a), Commit::Won);
    assert_eq!(nothing(&disk.fs, &mut b), Commit::Lost);
    assert_eq!(a.state(), b.state());
    assert_eq!(nothing(&disk.fs, &mut b), Commit::Won);
    assert_eq!(a.refresh(&disk.fs, &HostChance), Ok(true));
    assert_eq!(disk.chain().len(), 3);
}

#[test]
fn a_decision_that_another_term_was_built_upon_is_not_carried_out_by_its_maker() {
    let disk = Disk::new();
    let faulty = disk.faulty();
    let (mut a, mut b) = (disk.writer(), disk.writer());
    // The rename is done, and a cannot look for a while.
    faulty.add(Rule::new(Call::List, libc::EIO).from(2).times(1));
    assert!(matches!(nothing(&faulty, &mut a), Commit::Unknown(ChainError::Fs(_))));
    let mine = disk.head();
    b.refresh(&disk.fs, &HostChance).unwrap();
    assert_eq!(lead(&disk.fs, &HostChance, &mut b, "b").1, Commit::Won);
    assert_eq!(a.push(&faulty, &HostChance), Commit::Lost);
    assert!(disk.chain().contains(&mine), "it is bound");
    assert_eq!(a.state().term, 1, "and its maker knows of the new term");
    assert!(!a.is_in_doubt());
}

#[test]
fn a_late_rename_of_a_dead_process_binds_its_candidate_and_the_chain_goes_on_from_it() {
    let disk = Disk::new();
    let mortal = Mortal::new(&disk.fs, u64::MAX, false);
    let (mut a, mut b) = (disk.writer(), disk.writer());
    mortal.dies_at_rename();
    assert!(matches!(nothing(&mortal, &mut a), Commit::Unknown(_)));
    drop(a);
    // The successor sees the old head for as long as it cares to look.
    assert_eq!(b.refresh(&disk.fs, &HostChance), Ok(false));
    assert!(mortal.late());
    let bound = disk.head();
    assert_eq!(nothing(&disk.fs, &mut b), Commit::Lost);
    assert_eq!(b.state().at, bound);
    assert_eq!(nothing(&disk.fs, &mut b), Commit::Won);
    assert_eq!(disk.chain()[1], bound);
}

#[test]
fn a_full_disk_changes_nothing_and_the_next_commit_works() {
    for call in [Call::Create, Call::Write, Call::Sync, Call::Close, Call::SyncDir] {
        let disk = Disk::new();
        let faulty = disk.faulty();
        let mut writer = disk.writer();
        let before = writer.state().clone();
        faulty.add(Rule::new(call, libc::ENOSPC).on("decisions/log").times(1));
        assert!(matches!(nothing(&faulty, &mut writer), Commit::NotTried(_)), "{call:?}");
        assert_eq!((writer.state(), writer.is_in_doubt()), (&before, false));
        assert_eq!(disk.head(), before.at);
        assert_eq!(nothing(&faulty, &mut writer), Commit::Won);
    }
}

#[test]
fn what_the_state_refuses_is_never_written() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    let before = (writer.state().clone(), disk.head());
    let absurd = Op::Alias { job: JobId(1), of: JobId(2) };
    let (me, id) = (author(&writer, "a"), writer.next_id(&HostChance));
    let commit = writer.commit(&disk.fs, &HostChance, &me, id, vec![Op::Abdicate, absurd]);
    assert!(matches!(commit, Commit::Unknown(ChainError::Broken { .. })), "{commit:?}");
    assert_eq!((writer.state(), disk.head()), (&before.0, before.1));
    // Nor what a master says whose term is over.
    let old = Author { term: 7, ..me };
    let id = writer.next_id(&HostChance);
    let commit = writer.commit(&disk.fs, &HostChance, &old, id, Vec::new());
    assert!(matches!(commit, Commit::Unknown(ChainError::Broken { .. })), "{commit:?}");
    assert_eq!(nothing(&disk.fs, &mut writer), Commit::Won);
}

// --- the token ------------------------------------------------------------------------------------------------------------

#[test]
fn without_a_token_nothing_is_believed_and_nothing_is_made() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 1);
    disk.remove(&layout::head(disk.head(), HeadStyle::Plain));
    assert_eq!(nothing(&disk.fs, &mut writer), Commit::Unknown(ChainError::NoHead));
    assert_eq!(writer.refresh(&disk.fs, &HostChance), Err(ChainError::NoHead));
    assert_eq!(Reader::open(&disk.fs).unwrap_err(), ChainError::NoHead);
    assert_eq!(look(&disk.fs), Ok(Look::None));
    assert!(ChainError::NoHead.may_pass());
}

/// A mover on `GlusterFS` died in the middle of its rename: both names are there for good.
#[test]
fn both_names_of_a_rename_are_mended_and_the_stale_mover_gets_nothing() {
    for opens_afresh in [false, true] {
        let disk = Disk::new();
        let (mut a, mut b, mut c) = (disk.writer(), disk.writer(), disk.writer());
        let old = disk.head();
        disk.grow(&mut a, 1);
        let new = disk.head();
        disk.token(old);
        assert!(matches!(Reader::open(&disk.fs), Err(ChainError::Several(names)) if names.len() == 2));
        if opens_afresh {
            b = disk.writer();
        } else {
            assert_eq!(b.refresh(&disk.fs, &HostChance), Ok(true));
        }
        assert_eq!((b.state().at, disk.head(), disk.aside()), (new, new, 1), "set aside, not removed");
        assert_eq!(nothing(&disk.fs, &mut c), Commit::Lost, "a mover that was asleep at the old name");
        assert_eq!(disk.head(), new);
    }
}

#[test]
fn a_mover_that_finds_its_own_rename_cut_in_half_finishes_it() {
    let disk = Disk::new();
    let twin = Twin(&disk.fs);
    let mut writer = disk.writer();
    assert_eq!(nothing(&twin, &mut writer), Commit::Won);
    assert_eq!((disk.head(), disk.aside()), (writer.state().at, 1));
}

#[test]
fn of_two_successors_all_keep_the_same_one() {
    let disk = Disk::new();
    let (mut a, mut b) = (disk.writer(), disk.writer());
    let old = disk.head();
    disk.grow(&mut a, 1);
    let first = disk.head();
    // The left-over old name lets a stale mover win a second time.
    disk.fs.rename(&layout::head(first, HeadStyle::Plain), Path::new("kept")).unwrap();
    disk.token(old);
    disk.grow(&mut b, 1);
    let second = disk.head();
    disk.fs.rename(Path::new("kept"), &layout::head(first, HeadStyle::Plain)).unwrap();
    let keep = first.min(second);
    let fresh = disk.writer();
    assert_eq!((fresh.state().at, disk.head(), disk.aside()), (keep, keep, 1));
}

#[test]
fn tokens_of_two_copies_of_a_queue_stop_everybody() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 1);
    let stranger = disk.head();
    disk.grow(&mut writer, 3);
    disk.token(stranger);
    assert!(matches!(Writer::open(&disk.fs, &HostChance, &disk.file), Err(ChainError::Several(_))));
    assert!(matches!(nothing(&disk.fs, &mut writer), Commit::Unknown(ChainError::Several(_))));
    assert_eq!(disk.aside(), 0, "nothing is touched");
}

#[test]
fn the_token_of_an_init_that_lost_and_died_is_set_aside() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    let loser = DecisionId { generation: 0, nonce: Nonce(0) };
    disk.token(loser);
    assert_eq!(disk.writer().state().at, disk.file.first);
    disk.grow(&mut writer, 3);
    disk.token(loser);
    disk.grow(&mut writer, 1);
    assert_eq!(disk.aside(), 2);
}

// --- roll-back ------------------------------------------------------------------------------------------------------------

/// Moves the token back to the predecessor, as a server does that lost its newest changes.
fn fall_back(disk: &Disk) -> DecisionId {
    let chain = disk.chain();
    disk.fs.rename(&layout::head(chain[0], HeadStyle::Plain), &layout::head(chain[1], HeadStyle::Plain)).unwrap();
    chain[0]
}

#[test]
fn a_head_that_fell_back_is_moved_forward_again_by_its_mover_and_an_error_for_everybody_else() {
    for loss in ["nothing", "entry", "torn"] {
        let disk = Disk::new();
        let (mut a, mut b) = (disk.writer(), disk.writer());
        disk.grow(&mut a, 2);
        b.refresh(&disk.fs, &HostChance).unwrap();
        let mut reader = Reader::open(&disk.fs).unwrap();
        let seen = fall_back(&disk);
        match loss {
            "entry" => disk.remove(&layout::decision(seen)),
            "torn" => disk.damage(&layout::decision(seen), |bytes| bytes.truncate(20)),
            _ => {}
        }
        let now = disk.head();
        assert_eq!(b.refresh(&disk.fs, &HostChance), Err(ChainError::RolledBack { seen, now }));
        assert_eq!(reader.refresh(&disk.fs), Err(ChainError::RolledBack { seen, now }));
        assert!(!ChainError::RolledBack { seen, now }.may_pass());
        assert_eq!(nothing(&disk.fs, &mut b), Commit::Unknown(ChainError::RolledBack { seen, now }));
        assert_eq!(a.refresh(&disk.fs, &HostChance), Ok(false), "{loss}");
        assert_eq!((disk.head(), disk.chain().len()), (seen, 3), "{loss}");
        assert_eq!(nothing(&disk.fs, &mut b), Commit::Won);
    }
}

#[test]
fn the_mover_moves_forward_also_in_the_middle_of_a_commit_and_whatever_the_rename_said() {
    let disk = Disk::new();
    let faulty = disk.faulty();
    let mut a = disk.writer();
    disk.grow(&mut a, 2);
    fall_back(&disk);
    faulty.add(Rule::new(Call::Rename, libc::ENOENT).on("decisions/head").times(1).executed());
    assert_eq!(nothing(&faulty, &mut a), Commit::Won);
    fall_back(&disk);
    faulty.add(Rule::new(Call::Rename, libc::EIO).on("decisions/head").times(1));
    assert!(a.refresh(&faulty, &HostChance).is_err_and(|e| e.may_pass()), "it is tried again");
    assert_eq!(a.refresh(&faulty, &HostChance), Ok(false));
    // With a candidate in doubt.
    faulty.add(Rule::new(Call::Rename, libc::EIO).on("decisions/head").times(1));
    assert_eq!(nothing(&faulty, &mut a), Commit::InDoubt);
    fall_back(&disk);
    assert_eq!(a.push(&faulty, &HostChance), Commit::InDoubt);
    assert_eq!(a.push(&faulty, &HostChance), Commit::Won);
    assert_eq!(disk.chain().len(), 5);
}

#[test]
fn a_line_that_took_the_place_of_the_known_one_is_an_error() {
    let disk = Disk::new();
    let mut a = disk.writer();
    let mut reader = Reader::open(&disk.fs).unwrap();
    disk.grow(&mut a, 2);
    reader.refresh(&disk.fs).unwrap();
    fall_back(&disk);
    let mut other = disk.writer();
    disk.grow(&mut other, 2);
    assert!(matches!(reader.refresh(&disk.fs), Err(ChainError::RolledBack { .. })));
    assert!(matches!(nothing(&disk.fs, &mut a), Commit::Unknown(ChainError::RolledBack { .. })));
}

// --- reading the chain ----------------------------------------------------------------------------------------------------

#[test]
fn an_entry_that_is_missing_or_torn_may_pass_and_one_that_contradicts_is_loud() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 3);
    let path = layout::decision(disk.chain()[1]);
    let whole = fs::read_all(&disk.fs, &path).unwrap();
    let restore = |bytes: &[u8]| {
        let _ = disk.fs.unlink(&path);
        fs::put_new(&disk.fs, &path, bytes, MODE).unwrap();
    };
    disk.remove(&path);
    assert!(matches!(Reader::open(&disk.fs), Err(e @ ChainError::Missing { .. }) if e.may_pass()));
    restore(&whole[..whole.len() - 3]);
    assert!(matches!(Reader::open(&disk.fs), Err(e @ ChainError::Missing { .. }) if e.may_pass()));
    let group = decode_group(&whole).unwrap();
    let altered = |change: &dyn Fn(&mut Header)| {
        let mut header = group.header.clone();
        change(&mut header);
        restore(&encode_group(&header, &group.ops));
        let error = Reader::open(&disk.fs).unwrap_err();
        assert!(matches!(error, ChainError::Broken { .. }) && !error.may_pass(), "{error:?}");
    };
    altered(&|h| h.at_ms += 1);
    altered(&|h| h.id.nonce.0 += 1);
    altered(&|h| h.version.0 += 1);
    altered(&|h| h.fq = "job".into());
    restore(&whole);
    assert_eq!(Reader::open(&disk.fs).unwrap().state(), writer.state());
}

#[test]
fn a_group_that_names_no_proper_predecessor_ends_the_walk_loudly() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 2);
    let head = disk.head();
    let bytes = fs::read_all(&disk.fs, &layout::decision(head)).unwrap();
    let group = decode_group(&bytes).unwrap();
    let changes: [&dyn Fn(&mut Header); 4] =
        [&|h| h.prev = None, &|h| h.prev_sha = None, &|h| h.prev = Some(h.id), &|h| {
            h.prev = Some(DecisionId { generation: u64::MAX, nonce: Nonce(1) });
        }];
    for change in changes {
        let mut header = group.header.clone();
        change(&mut header);
        disk.damage(&layout::decision(head), |bytes| *bytes = encode_group(&header, &[]));
        assert!(matches!(Reader::open(&disk.fs), Err(ChainError::Broken { .. })));
        let mut late = Reader::load(&disk.fs, disk.file.first).unwrap();
        assert!(matches!(late.refresh(&disk.fs), Err(ChainError::Broken { .. })));
    }
}

#[test]
fn what_a_decision_says_must_fit_the_state_and_the_term() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 2);
    let head = disk.head();
    let group = decode_group(&fs::read_all(&disk.fs, &layout::decision(head)).unwrap()).unwrap();
    let mut header = group.header.clone();
    disk.damage(&layout::decision(head), |bytes| {
        *bytes = encode_group(&header, &[Op::Alias { job: JobId(1), of: JobId(2) }]);
    });
    assert!(matches!(Reader::open(&disk.fs), Err(ChainError::Broken { .. })));
    header.term = 3;
    disk.damage(&layout::decision(head), |bytes| *bytes = encode_group(&header, &[]));
    assert!(matches!(Reader::open(&disk.fs), Err(ChainError::Broken { .. })));
}

#[test]
fn snapshots_are_only_a_short_cut_and_a_damaged_one_is_passed_over() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    assert_eq!(lead(&disk.fs, &HostChance, &mut writer, "a").1, Commit::Won);
    disk.grow(&mut writer, 3);
    let older = snapshot(&disk.fs, &mut writer);
    disk.grow(&mut writer, 3);
    let newer = snapshot(&disk.fs, &mut writer);
    disk.grow(&mut writer, 2);
    let read = || Reader::open(&disk.fs).map(|r| r.state().clone());
    assert_eq!(read().as_ref(), Ok(writer.state()));
    disk.damage(&layout::snapshot(newer.at), |bytes| bytes[30] ^= 1);
    assert_eq!(read().as_ref(), Ok(writer.state()), "by the older snapshot");
    disk.remove(&layout::snapshot(older.at));
    assert_eq!(read().as_ref(), Ok(writer.state()), "by the first decision");
}

#[test]
fn a_snapshot_that_is_there_already_is_not_trusted() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 1);
    assert!(write_snapshot(&disk.fs, writer.state()).is_some());
    assert!(write_snapshot(&disk.fs, writer.state()).is_none(), "its maker may have died before it was durable");
    let faulty = disk.faulty();
    for call in [Call::Create, Call::Write, Call::Sync, Call::SyncDir] {
        disk.grow(&mut writer, 1);
        faulty.heal();
        faulty.add(Rule::new(call, libc::ENOSPC).on("snapshots"));
        assert!(write_snapshot(&faulty, writer.state()).is_none());
    }
}

/// Removes what `fq gc` would.
fn prune(disk: &Disk, writer: &Writer) {
    let chain: BTreeSet<DecisionId> = disk.chain().into_iter().collect();
    let listed: Vec<DecisionId> = chain.iter().copied().collect();
    for id in crate::gc::decisions_to_drop(&listed, &chain, &writer.state().snapshots) {
        disk.remove(&layout::decision(id));
    }
    let names = disk.fs.list(layout::SNAPSHOTS.as_ref()).unwrap();
    let listed: Vec<DecisionId> = names.iter().filter_map(|e| layout::parse_decision(&e.name)).collect();
    for id in crate::gc::snapshots_to_drop(&listed, &writer.state().snapshots) {
        disk.remove(&layout::snapshot(id));
    }
}

#[test]
fn after_pruning_the_chain_opens_by_either_snapshot_and_sleepers_and_deposed_find_their_way() {
    let disk = Disk::new();
    let faulty = disk.faulty();
    let (mut a, mut writer) = (disk.writer(), disk.writer());
    let mut sleeper = Reader::open(&disk.fs).unwrap();
    faulty.add(Rule::new(Call::Rename, libc::EIO).on("decisions/head").times(1));
    assert_eq!(nothing(&faulty, &mut a), Commit::InDoubt);
    assert_eq!(lead(&disk.fs, &HostChance, &mut writer, "b").1, Commit::Won);
    for _ in 0..3 {
        disk.grow(&mut writer, 3);
        snapshot(&disk.fs, &mut writer);
    }
    disk.grow(&mut writer, 1);
    prune(&disk, &writer);
    let [older, newer] = writer.state().snapshots[..] else { panic!("two snapshots") };
    assert!(fs::read_all(&disk.fs, &layout::decision(disk.file.first)).is_err(), "something was removed");
    let read = || Reader::open(&disk.fs).map(|r| r.state().clone());
    assert_eq!(read().as_ref(), Ok(writer.state()));
    assert_eq!(sleeper.refresh(&disk.fs), Ok(true));
    assert_eq!(sleeper.state(), writer.state());
    assert_eq!(a.push(&faulty, &HostChance), Commit::Lost, "a writer that was deposed long ago learns it");
    assert_eq!((a.state(), a.is_in_doubt()), (writer.state(), false));
    disk.damage(&layout::snapshot(newer.at), |bytes| bytes.truncate(40));
    assert_eq!(read().as_ref(), Ok(writer.state()), "by the older snapshot");
    disk.remove(&layout::snapshot(older.at));
    assert!(matches!(read(), Err(ChainError::Missing { .. })));
}

#[test]
fn the_thousandth_decision_makes_its_bucket_whatever_a_dead_process_left_of_it() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.grow(&mut writer, 998);
    disk.grow(&mut writer, 1);
    let faulty = disk.faulty();
    faulty.add(Rule::new(Call::Create, libc::EIO).on("log/001").times(1));
    assert!(matches!(nothing(&faulty, &mut writer), Commit::NotTried(_)), "the bucket is there, the entry is not");
    let mortal = Mortal::new(&disk.fs, 1, true);
    let mut other = disk.writer();
    assert!(matches!(nothing(&mortal, &mut other), Commit::NotTried(_)));
    disk.grow(&mut writer, 2);
    assert_eq!(writer.state().at.generation, 1001);
    assert_eq!(disk.chain().len(), 1002);
    assert_eq!(Reader::open(&disk.fs).unwrap().state(), writer.state());
}

#[test]
fn a_bucket_that_was_lost_is_made_again() {
    let disk = Disk::new();
    let mut writer = disk.writer();
    disk.remove(&layout::decision(disk.file.first));
    disk.fs.rmdir(&layout::decision_bucket(0)).unwrap();
    disk.grow(&mut writer, 1);
}

// --- races ----------------------------------------------------------------------------------------------------------------

/// Two writers move the head as fast as they can.
fn race(disk: &Disk, fs_of: impl Fn(u64) -> Box<dyn Fs> + Sync, rounds: usize) -> Vec<DecisionId> {
    let believed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (fs_of, believed) = (&fs_of, &believed);
            scope.spawn(move || {
                let fs = fs_of(seed);
                let mut writer = disk.writer();
                for _ in 0..rounds {
                    let (me, id) = (author(&writer, "a"), writer.next_id(&HostChance));
                    let mut commit = writer.commit(&*fs, &HostChance, &me, id, Vec::new());
                    while writer.is_in_doubt() {
                        commit = writer.push(&*fs, &HostChance);
                    }
                    match commit {
                        Commit::Won => believed.lock().unwrap().push(id),
                        Commit::Lost | Commit::NotTried(_) => {}
                        Commit::Unknown(e) if e.may_pass() => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let believed = believed.into_inner().unwrap();
    let chain = disk.chain();
    let numbers: BTreeSet<u64> = chain.iter().map(|id| id.generation).collect();
    assert_eq!(numbers.len(), chain.len(), "no number is bound twice");
    assert_eq!(numbers.last(), Some(&(chain.len() as u64 - 1)), "and none is left out");
    for id in &believed {
        assert!(chain.contains(id), "{id} is believed and not bound");
    }
    believed
}

#[test]
fn two_writers_make_one_chain_and_both_know_what_is_theirs() {
    let disk = Disk::new();
    let believed = race(&disk, |_| Box::new(files(disk.dir.path())), 300);
    assert!(!believed.is_empty() && disk.chain().len() > 300);
}

#[test]
fn two_writers_make_one_chain_also_where_renames_lie_and_come_late() {
    let disk = Disk::new();
    race(&disk, |seed| Box::new(Liar::new(files(disk.dir.path()), seed)), 200);
}

// --- a crash at any call --------------------------------------------------------------------------------------------------

/// What a master does from its start to its first snapshot; returns the decisions that it believes to be bound.
fn reign(fs: &dyn Fs, file: &QueueFile, name: &str) -> Vec<DecisionId> {
    let mut believed = Vec::new();
    let Ok(mut writer) = Writer::open(fs, &HostChance, file) else { return believed };
    let (id, commit) = lead(fs, &HostChance, &mut writer, name);
    if commit != Commit::Won {
        return believed;
    }
    believed.push(id);
    let mut ops = Vec::new();
    for _ in 0..2 {
        let (me, id) = (author(&writer, name), writer.next_id(&HostChance));
        if writer.commit(fs, &HostChance, &me, id, std::mem::take(&mut ops)) != Commit::Won {
            return believed;
        }
        believed.push(id);
        ops.extend(write_snapshot(fs, writer.state()).map(Op::Snapshot));
    }
    believed
}

/// A process is killed at each of its calls in turn. Its rename, if that was the call, is never done, or before its successor
/// looks, or between the successor's look and its commit, or afterwards.
#[test]
fn a_crash_at_any_call_and_a_rename_at_any_later_time_leave_one_chain() {
    let mut died = 0;
    for executed in [false, true] {
        for moment in 0..4 {
            for calls in 0.. {
                let disk = Disk::new();
                let mortal = Mortal::new(&disk.fs, calls, executed);
                let mut believed = reign(&mortal, &disk.file, "a");
                if !mortal.is_dead() {
                    break;
                }
                died += 1;
                let at = |now: i32| if moment == now { mortal.late() } else { false };
                at(1);
                let mut b = disk.writer();
                at(2);
                let (mut id, mut commit) = lead(&disk.fs, &HostChance, &mut b, "b");
                if commit == Commit::Lost {
                    (id, commit) = lead(&disk.fs, &HostChance, &mut b, "b");
                }
                assert_eq!(commit, Commit::Won, "call {calls}, executed {executed}, moment {moment}");
                believed.push(id);
                let before = disk.head();
                assert!(!at(3), "a late rename finds nothing to move");
                assert_eq!(disk.head(), before);
                let chain = disk.chain();
                assert!(believed.iter().all(|id| chain.contains(id)), "what is believed is bound");
                assert_eq!(chain.len() as u64, before.generation + 1);
                assert_eq!(Reader::open(&disk.fs).unwrap().state(), b.state());
                assert_eq!(reign(&disk.fs, &disk.file, "c").len(), 3, "the queue is as good as new");
            }
        }
    }
    assert!(died > 100, "{died}");
}

#[test]
fn a_crash_at_any_of_the_last_calls_of_init_leaves_what_the_next_init_completes() {
    let fresh = |calls| {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = files(dir.path());
        let mortal = Mortal::new(&fs, calls, false);
        let made = queue::init_on(&mortal, &HostChance, &HostClock, dir.path(), 7, &InitOptions::default());
        let left = mortal.calls_left();
        (dir, made, left)
    };
    let (_, made, left) = fresh(100_000);
    made.expect("a queue");
    let total = 100_000 - left;
    for calls in total - 20..total {
        let (dir, _, _) = fresh(calls);
        let fs = files(dir.path());
        let again = queue::init_on(&fs, &HostChance, &HostClock, dir.path(), 7, &InitOptions::default());
        match again {
            Ok(_) | Err(queue::QueueError::Exists { .. }) => {}
            Err(e) => panic!("at call {calls}: {e}"),
        }
        let file = queue::read_file(&fs, dir.path()).expect("a queue");
        assert_eq!(reign(&fs, &file, "a").len(), 3, "call {calls}");
    }
}

// --- doubles --------------------------------------------------------------------------------------------------------------

/// The files as a process sees them that is killed at one of its calls: that call is done or not, all later ones fail.
struct Mortal<'a> {
    fs: &'a HostFs,
    gate: std::sync::Arc<Mutex<Gate>>,
}

struct Gate {
    left: u64,
    executes_last: bool,
    dies_at_rename: bool,
    is_dead: bool,
    stuck: Option<(PathBuf, PathBuf)>,
}

impl Gate {
    /// Whether the call is done, and whether the process lives on.
    fn pass(&mut self, call: Call) -> (bool, bool) {
        if self.is_dead {
            return (false, false);
        }
        if self.left > 0 && !(self.dies_at_rename && call == Call::Rename) {
            self.left -= 1;
            return (true, true);
        }
        self.is_dead = true;
        (self.executes_last, false)
    }
}

impl<'a> Mortal<'a> {
    /// Lives for `calls` calls and dies at the next one.
    fn new(fs: &'a HostFs, calls: u64, executes_last: bool) -> Self {
        let gate = Gate { left: calls, executes_last, dies_at_rename: false, is_dead: false, stuck: None };
        Self { fs, gate: std::sync::Arc::new(Mutex::new(gate)) }
    }

    fn dies_at_rename(&self) {
        self.gate.lock().unwrap().dies_at_rename = true;
    }

    fn is_dead(&self) -> bool {
        self.gate.lock().unwrap().is_dead
    }

    fn calls_left(&self) -> u64 {
        self.gate.lock().unwrap().left
    }

    /// Executes the rename of the dead, if it was stuck; says whether it moved something.
    fn late(&self) -> bool {
        let stuck = self.gate.lock().unwrap().stuck.clone();
        stuck.is_some_and(|(from, to)| self.fs.rename(&from, &to).is_ok())
    }

    fn call<T>(&self, call: Call, path: &Path, step: impl FnOnce() -> fs::Result<T>) -> fs::Result<T> {
        gated(&self.gate, call, path, step)
    }
}

fn gated<T>(gate: &Mutex<Gate>, call: Call, path: &Path, step: impl FnOnce() -> fs::Result<T>) -> fs::Result<T> {
    let (is_done, lives) = gate.lock().unwrap().pass(call);
    let outcome = if is_done { step() } else { Err(FsError::new(call, path, libc::EIO)) };
    if lives { outcome } else { outcome.and(Err(FsError::new(call, path, libc::EIO))) }
}

impl Fs for Mortal<'_> {
    fn list(&self, dir: &Path) -> fs::Result<Vec<Entry>> {
        self.call(Call::List, dir, || self.fs.list(dir))
    }
    fn open(&self, path: &Path) -> fs::Result<Box<dyn ReadFile>> {
        self.call(Call::Open, path, || self.fs.open(path))
    }
    fn create(&self, path: &Path, mode: u32) -> fs::Result<Box<dyn WriteFile>> {
        let file = self.call(Call::Create, path, || self.fs.create(path, mode))?;
        Ok(Box::new(MortalFile { gate: self.gate.clone(), path: path.to_owned(), file }))
    }
    fn rename(&self, from: &Path, to: &Path) -> fs::Result<()> {
        let was_dead = self.is_dead();
        let outcome = self.call(Call::Rename, from, || self.fs.rename(from, to));
        let mut gate = self.gate.lock().unwrap();
        if gate.is_dead && !was_dead && !gate.executes_last {
            gate.stuck = Some((from.to_owned(), to.to_owned()));
        }
        outcome
    }
    fn unlink(&self, path: &Path) -> fs::Result<()> {
        self.call(Call::Unlink, path, || self.fs.unlink(path))
    }
    fn mkdir(&self, dir: &Path) -> fs::Result<()> {
        self.call(Call::Mkdir, dir, || self.fs.mkdir(dir))
    }
    fn rmdir(&self, dir: &Path) -> fs::Result<()> {
        self.call(Call::Rmdir, dir, || self.fs.rmdir(dir))
    }
    fn sync_dir(&self, dir: &Path) -> fs::Result<()> {
        self.call(Call::SyncDir, dir, || self.fs.sync_dir(dir))
    }
    fn drops_names(&self) -> bool {
        self.fs.drops_names()
    }
    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        self.fs.lock(path, limit)
    }
    fn space(&self) -> fs::Result<Space> {
        self.fs.space()
    }
}

struct MortalFile {
    gate: std::sync::Arc<Mutex<Gate>>,
    path: PathBuf,
    file: Box<dyn WriteFile>,
}

impl WriteFile for MortalFile {
    fn write(&mut self, bytes: &[u8]) -> fs::Result<()> {
        // A write that is cut short leaves half of its bytes.
        let file = &mut self.file;
        let outcome = gated(&self.gate, Call::Write, &self.path, || file.write(bytes));
        if outcome.is_err() && !self.gate.lock().unwrap().executes_last {
            let _ = self.file.write(&bytes[..bytes.len() / 2]);
        }
        outcome
    }
    fn sync(&mut self) -> fs::Result<()> {
        let file = &mut self.file;
        gated(&self.gate, Call::Sync, &self.path, || file.sync())
    }
    fn close(self: Box<Self>) -> fs::Result<()> {
        let Self { gate, path, file } = *self;
        gated(&gate, Call::Close, &path, || file.close())
    }
}

/// Files on which the renames of the token lie: done or not, at once or at some later call, with any error.
struct Liar {
    fs: HostFs,
    dice: Mutex<(u64, Vec<(PathBuf, PathBuf)>)>,
}

impl Liar {
    fn new(fs: HostFs, seed: u64) -> Self {
        Self { fs, dice: Mutex::new((seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Vec::new())) }
    }

    fn roll(&self) -> u64 {
        let mut dice = self.dice.lock().unwrap();
        dice.0 ^= dice.0 << 13;
        dice.0 ^= dice.0 >> 7;
        dice.0 ^= dice.0 << 17;
        dice.0
    }
}

impl Fs for Liar {
    fn list(&self, dir: &Path) -> fs::Result<Vec<Entry>> {
        if self.roll().is_multiple_of(3) {
            let late = self.dice.lock().unwrap().1.pop();
            if let Some((from, to)) = late {
                let _ = self.fs.rename(&from, &to);
            }
        }
        if self.roll().is_multiple_of(20) {
            return Err(FsError::new(Call::List, dir, libc::EIO));
        }
        self.fs.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> fs::Result<()> {
        let lie = |errno| Err(FsError::new(Call::Rename, from, errno));
        match self.roll() % 8 {
            0 => self.fs.rename(from, to).and_then(|()| lie(libc::ENOENT)),
            1 => self.fs.rename(from, to).and_then(|()| lie(libc::EIO)),
            2 => lie(libc::EIO),
            3 => {
                self.dice.lock().unwrap().1.push((from.to_owned(), to.to_owned()));
                lie(libc::ETIMEDOUT)
            }
            _ => self.fs.rename(from, to),
        }
    }
    fn open(&self, path: &Path) -> fs::Result<Box<dyn ReadFile>> {
        self.fs.open(path)
    }
    fn create(&self, path: &Path, mode: u32) -> fs::Result<Box<dyn WriteFile>> {
        self.fs.create(path, mode)
    }
    fn unlink(&self, path: &Path) -> fs::Result<()> {
        self.fs.unlink(path)
    }
    fn mkdir(&self, dir: &Path) -> fs::Result<()> {
        self.fs.mkdir(dir)
    }
    fn rmdir(&self, dir: &Path) -> fs::Result<()> {
        self.fs.rmdir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> fs::Result<()> {
        self.fs.sync_dir(dir)
    }
    fn drops_names(&self) -> bool {
        self.fs.drops_names()
    }
    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        self.fs.lock(path, limit)
    }
    fn space(&self) -> fs::Result<Space> {
        self.fs.space()
    }
}

/// Files on which a rename of the token makes the new name and keeps the old one, unless it is set aside.
struct Twin<'a>(&'a HostFs);

impl Fs for Twin<'_> {
    fn rename(&self, from: &Path, to: &Path) -> fs::Result<()> {
        if to.to_string_lossy().contains(".gone-") {
            return self.0.rename(from, to);
        }
        fs::put_new(self.0, to, b"x", MODE)
    }
    fn list(&self, dir: &Path) -> fs::Result<Vec<Entry>> {
        self.0.list(dir)
    }
    fn open(&self, path: &Path) -> fs::Result<Box<dyn ReadFile>> {
        self.0.open(path)
    }
    fn create(&self, path: &Path, mode: u32) -> fs::Result<Box<dyn WriteFile>> {
        self.0.create(path, mode)
    }
    fn unlink(&self, path: &Path) -> fs::Result<()> {
        self.0.unlink(path)
    }
    fn mkdir(&self, dir: &Path) -> fs::Result<()> {
        self.0.mkdir(dir)
    }
    fn rmdir(&self, dir: &Path) -> fs::Result<()> {
        self.0.rmdir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> fs::Result<()> {
        self.0.sync_dir(dir)
    }
    fn drops_names(&self) -> bool {
        self.0.drops_names()
    }
    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        self.0.lock(path, limit)
    }
    fn space(&self) -> fs::Result<Space> {
        self.0.space()
    }
}
