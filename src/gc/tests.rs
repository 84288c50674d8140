use proptest::prelude::*;

use super::*;
use crate::clock::fixed::{Dice, Still};
use crate::fs;
use crate::fs::memory::MemoryFs;
use crate::protocol::id::Nonce;
use crate::queue::{InitOptions, init_on};
use crate::store::inventory;

fn id(generation: u64, nonce: u64) -> DecisionId {
    DecisionId { generation, nonce: Nonce(nonce) }
}

const BY: DecisionId = DecisionId { generation: 9, nonce: Nonce(9) };

fn queue() -> MemoryFs {
    let fs = MemoryFs::default();
    init_on(&fs, &Dice::new(1), &Still, Path::new("q"), 0, &InitOptions::default()).expect("a queue");
    fs
}

fn put(fs: &MemoryFs, value: &[u8]) -> Ref {
    store::put_loose(fs, &Dice::new(value.len() as u64), value).expect("put")
}

fn name(reference: &Ref) -> String {
    store::file_of(reference).expect("a file")
}

fn take(fs: &MemoryFs) -> Inventory {
    inventory::take(fs, &mut || {}).expect("an inventory")
}

fn set(ids: &[DecisionId]) -> BTreeSet<DecisionId> {
    ids.iter().copied().collect()
}

#[test]
fn only_files_that_are_unneeded_in_both_inventories_are_candidates() {
    let fs = queue();
    let (kept, dead) = (put(&fs, b"kept"), put(&fs, b"dead object"));
    let first = take(&fs);
    let young = put(&fs, b"came in between");
    let second = take(&fs);
    let roots: Roots = [&kept].into_iter().collect();
    let found = candidates(&first, &second, &roots, &BTreeSet::new());
    assert_eq!(found.files, [name(&dead)]);
    assert!(!found.files.contains(&name(&young)));
}

#[test]
fn packs_of_living_workers_are_no_candidates() {
    let wid = WorkerId::new("node", Nonce(1));
    let pack = layout::pack_name(&wid, 1);
    let found = Inventory { packs: [pack.clone()].into(), ..Inventory::default() };
    let living = BTreeSet::from([wid]);
    assert_eq!(candidates(&found, &found, &Roots::default(), &living).files, [""; 0]);
    assert_eq!(candidates(&found, &found, &Roots::default(), &BTreeSet::new()).files, [pack]);
}

#[test]
fn a_file_that_is_needed_again_survives_the_purge() {
    let fs = queue();
    let (dead, again) = (put(&fs, b"dead object"), put(&fs, b"needed again"));
    prepare(&fs, BY).expect("prepared");
    assert_eq!(quarantine(&fs, BY, &[name(&dead), name(&again)]), Ok(2));
    assert!(store::verify(&fs, &again).is_err());
    let roots: Roots = [&again].into_iter().collect();
    let done = purge(&fs, BY, &mut || Ok::<_, FsError>(roots.clone())).expect("purged");
    assert_eq!((done.removed, done.restored), (vec![name(&dead)], vec![name(&again)]));
    assert_eq!(store::verify(&fs, &again), Ok(()));
    assert!(take(&fs).trash.is_empty());
}

#[test]
fn collecting_stopped_after_any_step_keeps_what_is_needed_and_ends_when_repeated() {
    let run = |fs: &MemoryFs, files: &[String], roots: &Roots| -> Result<(), FsError> {
        prepare(fs, BY)?;
        quarantine(fs, BY, files)?;
        purge(fs, BY, &mut || Ok(roots.clone())).map(drop)
    };
    for stop in 0..16 {
        let fs = queue();
        let (kept, dead, again) = (put(&fs, b"kept"), put(&fs, b"dead object"), put(&fs, b"needed again"));
        let roots: Roots = [&kept, &again].into_iter().collect();
        let files = [name(&dead), name(&again)];
        fs.crash_after(stop);
        let _ = run(&fs, &files, &roots);
        fs.restart();
        fs.lose_power();
        // The successor does not know what was done: whatever lies in trash without a decision goes back.
        for by in orphans(&take(&fs), |_| false) {
            give_back(&fs, by).expect("given back");
        }
        for needed in [&kept, &again] {
            assert_eq!(store::verify(&fs, needed), Ok(()), "stopped after {stop}");
        }
        assert!(take(&fs).trash.is_empty(), "stopped after {stop}");
    }
}

// A master is paused before it moves an object to the trash, is deposed, and its successor purges that trash. The object is made
// again and accepted. Then the old master wakes: its rename must not take the object away.
#[test]
fn a_late_quarantine_after_the_purge_moves_nothing() {
    let fs = queue();
    let dead = put(&fs, b"dead object");
    prepare(&fs, BY).expect("prepared");
    quarantine(&fs, BY, &[name(&dead)]).expect("quarantined");
    let none = &mut || Ok::<_, FsError>(Roots::default());
    purge(&fs, BY, none).expect("purged");
    let again = put(&fs, b"dead object");
    assert!(quarantine(&fs, BY, &[name(&again)]).is_err());
    assert_eq!(store::verify(&fs, &again), Ok(()));
    assert_eq!(purge(&fs, BY, none), Ok(Purged::default()));
    assert_eq!(store::verify(&fs, &again), Ok(()));
}

// The rename of a deposed master arrives while its successor purges: the object was made again and is needed by an end that came
// after the roots were read. Only what was set aside before may go.
#[test]
fn what_a_late_rename_brings_during_a_purge_is_not_removed() {
    let fs = queue();
    let dead = put(&fs, b"dead object");
    let file = name(&dead);
    prepare(&fs, BY).expect("prepared");
    quarantine(&fs, BY, std::slice::from_ref(&file)).expect("quarantined");
    let mut roots = || {
        put(&fs, b"dead object");
        fs.rename(&store::path_of(&file).expect("a path"), &layout::trash(BY).join(&file))?;
        Ok::<_, FsError>(Roots::default())
    };
    purge(&fs, BY, &mut roots).expect("purged");
    assert_eq!(give_back(&fs, BY), Ok(1));
    assert_eq!(store::verify(&fs, &dead), Ok(()));
}

#[test]
fn names_that_are_not_the_stores_stay_in_the_trash() {
    let fs = queue();
    prepare(&fs, BY).expect("prepared");
    fs::put_new(&fs, &layout::trash(BY).join("thesis.tex"), b"x", 0o644).expect("a file");
    let done = purge(&fs, BY, &mut || Ok::<_, FsError>(Roots::default())).expect("purged");
    assert_eq!(done.left, ["thesis.tex"]);
    assert!(take(&fs).trash.contains_key(&BY));
}

#[test]
fn a_candidate_goes_only_when_the_settled_head_excludes_it() {
    let chain = set(&[id(3, 1), id(4, 1), id(5, 1)]);
    let listed = [id(2, 1), id(3, 1), id(4, 1), id(4, 2), id(5, 1), id(5, 2), id(6, 1), id(6, 2)];
    assert_eq!(decisions_to_drop(&listed, &chain, &[]), [id(4, 2), id(5, 2)]);
}

#[test]
fn decisions_below_the_older_of_two_snapshots_go() {
    let chain = set(&[id(4, 1), id(5, 1), id(6, 1), id(7, 1)]);
    let snapshot = |at| SnapshotRef { at, sha: Digest::of(b"x") };
    let listed: Vec<DecisionId> = (0..8).map(|g| id(g, 1)).collect();
    let one = [snapshot(id(6, 1))];
    assert_eq!(decisions_to_drop(&listed, &chain, &one), []);
    let two = [snapshot(id(4, 1)), snapshot(id(6, 1))];
    assert_eq!(decisions_to_drop(&listed, &chain, &two), [id(0, 1), id(1, 1), id(2, 1), id(3, 1)]);
    assert_eq!(snapshots_to_drop(&[id(2, 1), id(4, 1), id(6, 1), id(7, 5)], &two), [id(2, 1)]);
    assert_eq!(decisions_to_drop(&listed, &BTreeSet::new(), &two), [], "without a chain nothing is known");
}

#[test]
fn only_whole_full_forgotten_buckets_below_the_newest_go() {
    let names = |range: std::ops::Range<u64>| range.map(|n| format!("{n}.json")).collect::<Vec<_>>();
    let all = |_| true;
    let full = BTreeMap::from([(0, names(1..1000)), (1, names(1000..2000)), (2, names(2000..2001))]);
    assert_eq!(job_buckets_to_drop(&full, all), [0, 1]);
    assert_eq!(job_buckets_to_drop(&full, |id| id != JobId(1500)), [0]);
    let newest = BTreeMap::from([(0, names(1..1000))]);
    assert_eq!(job_buckets_to_drop(&newest, all), [0; 0], "never the newest");
    let gap = BTreeMap::from([(0, names(1..999)), (1, Vec::new())]);
    assert_eq!(job_buckets_to_drop(&gap, |id| id != JobId(999)), [0; 0], "a number that is not bound yet");
    assert_eq!(job_buckets_to_drop(&gap, all), [0], "a removal that stopped half-way");
    let mut stranger = full.clone();
    stranger.entry(0).or_default().push("notes.txt".into());
    assert_eq!(job_buckets_to_drop(&stranger, all), [1]);
}

#[test]
fn a_worker_that_beats_or_has_just_come_is_not_dropped() {
    let wid = |n| WorkerId::new("node", Nonce(n));
    let first = BTreeMap::from([(wid(1), 100), (wid(2), 100), (wid(3), 100)]);
    let second = BTreeMap::from([(wid(1), 100), (wid(2), 150), (wid(3), 100), (wid(4), 0)]);
    assert_eq!(workers_to_drop(&first, &second, |w| *w == wid(3)), [wid(1)]);
}

#[test]
fn a_removed_worker_leaves_nothing() {
    let fs = queue();
    let before = fs.files();
    let wid = WorkerId::new("node", Nonce(1));
    for dir in [layout::worker(&wid), layout::mailbox(&wid), layout::journal(&wid)] {
        fs.mkdir(&dir).expect("a directory");
    }
    fs::put_new(&fs, &layout::segment(&wid, 1), b"line\n", 0o644).expect("a file");
    fs::put_new(&fs, &layout::message(&wid, 1, BY), b"mail\n", 0o644).expect("a file");
    let mut nothing = || {};
    assert_eq!(journal_bytes(&fs, &mut nothing), Ok(BTreeMap::from([(wid.clone(), 5)])));
    remove_worker(&fs, &wid).expect("removed");
    remove_worker(&fs, &wid).expect("removed again");
    assert_eq!(fs.files(), before);
    assert_eq!(journal_bytes(&fs, &mut nothing), Ok(BTreeMap::new()));
}

proptest! {
    #[test]
    fn no_plan_names_a_decision_on_the_chain_at_or_above_the_older_snapshot(
        listed in prop::collection::vec((0_u64..30, 0_u64..3), 0..60),
        from in 0_u64..10,
        length in 1_u64..20,
        older in 0_u64..30,
        newer in 0_u64..30,
    ) {
        let chain: BTreeSet<DecisionId> = (from..from + length).map(|g| id(g, 0)).collect();
        let listed: Vec<DecisionId> = listed.into_iter().map(|(g, n)| id(g, n)).collect();
        let snapshots = [older, newer].map(|g| SnapshotRef { at: id(g, 0), sha: Digest::of(b"x") });
        let head = id(from + length - 1, 0);
        for dropped in decisions_to_drop(&listed, &chain, &snapshots) {
            prop_assert!(dropped != head && dropped.generation <= head.generation);
            prop_assert!(!chain.contains(&dropped) || dropped.generation < older.min(newer));
        }
    }
}
