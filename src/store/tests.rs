use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::clock::HostChance;
use crate::clock::fixed::{Dice, Still};
use crate::fs::memory::MemoryFs;
use crate::fs::{Call, Counting, Faulty, Fs, HostFs, HostOptions, Rule};
use crate::protocol::id::{Nonce, WorkerId};
use crate::protocol::record::{Limits, Ref};
use crate::queue::{InitOptions, init_on};

fn limits() -> Limits {
    Limits { inline_max: 4, pack_item_max: 16, pack_max: 400, ..Limits::default() }
}

fn queue() -> MemoryFs {
    let fs = MemoryFs::default();
    init_on(&fs, &Dice::new(1), &Still, Path::new("q"), 0, &InitOptions::default()).expect("a queue");
    fs
}

fn wid() -> WorkerId {
    WorkerId::new("node", Nonce(1))
}

fn pack_of(reference: &Ref) -> &str {
    let Ref::Packed { pack, .. } = reference else { panic!("{reference:?} is not packed") };
    pack
}

#[test]
fn values_of_all_sizes_come_back_exactly() {
    let fs = queue();
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let values: [&[u8]; 6] = [b"", b"1234", b"12345", &[b'\n'; 16], &[7; 17], &[0xff; 3000]];
    let refs = store.put_all(&values).expect("put");
    for (reference, value) in refs.iter().zip(values) {
        assert_eq!(read(&fs, reference).as_deref(), Ok(value));
        assert_eq!(reference.len(), value.len() as u64);
    }
    assert!(matches!(refs[1], Ref::Inline { .. }));
    assert!(matches!(refs[2], Ref::Packed { .. }));
    assert!(matches!(refs[4], Ref::Loose { .. }));
}

#[test]
fn a_reference_holds_after_power_is_lost() {
    let fs = queue();
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let refs = store.put_all(&[b"packed item", b"another item", &[9; 100]]).expect("put");
    fs.lose_power();
    for reference in &refs {
        assert_eq!(verify(&fs, reference), Ok(()));
    }
}

#[test]
fn a_store_stopped_after_any_step_has_no_false_object_and_takes_the_value_again() {
    let value = [5; 100];
    for stop in 0..6 {
        let fs = queue();
        let dice = Dice::new(2);
        fs.crash_after(stop);
        let outcome = put_loose(&fs, &dice, &value);
        fs.restart();
        fs.lose_power();
        for sha in inventory::take(&fs, &mut || {}).expect("an inventory").objects {
            assert_eq!(verify(&fs, &Ref::Loose { sha, len: 100 }), Ok(()), "stopped after {stop}");
        }
        if let Ok(reference) = outcome {
            assert_eq!(verify(&fs, &reference), Ok(()));
        }
        let again = put_loose(&fs, &Dice::new(3), &value).expect("put");
        assert_eq!(read(&fs, &again).as_deref(), Ok(&value[..]));
    }
}

#[test]
fn many_small_values_cost_one_sync_and_no_new_file() {
    let fs = Counting::new(queue());
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &Limits { pack_max: 1 << 20, ..limits() }, wid());
    store.put(b"the first").expect("put");
    let before = fs.counts();
    let values: Vec<Vec<u8>> = (0..1000).map(|i| format!("value {i}").into_bytes()).collect();
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    store.put_all(&values).expect("put");
    let after = fs.counts();
    let spent = |call| after.of(call) - before.of(call);
    assert_eq!((spent(Call::Sync), spent(Call::Create), spent(Call::Rename)), (1, 0, 0));
}

#[test]
fn a_full_pack_is_followed_by_the_next_one() {
    let fs = queue();
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let values: Vec<&[u8]> = vec![b"0123456789"; 10];
    let refs = store.put_all(&values).expect("put");
    assert_ne!(pack_of(&refs[0]), pack_of(&refs[9]));
    assert!(refs.iter().all(|r| verify(&fs, r).is_ok()));
}

#[test]
fn after_a_failed_sync_the_values_are_in_a_new_pack() {
    let fs = Faulty::new(queue());
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let first = store.put(b"before the error").expect("put");
    fs.add(Rule::new(Call::Sync, libc::EIO).on("store/packs").times(1));
    let second = store.put(b"after the error").expect("put");
    assert_ne!(pack_of(&first), pack_of(&second));
    fs.inner().lose_power();
    assert_eq!(verify(&fs, &first), Ok(()));
    assert_eq!(verify(&fs, &second), Ok(()));
}

#[test]
fn a_full_disk_is_an_error_and_not_a_series_of_packs() {
    let fs = Faulty::new(queue());
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    fs.add(Rule::new(Call::Write, libc::ENOSPC).on("store/packs"));
    assert!(store.put(b"0123456789").is_err());
    let packs = fs.list(Path::new(layout::PACKS)).expect("a listing");
    assert_eq!(packs.len(), 1);
    fs.heal();
    let reference = store.put(b"0123456789").expect("put");
    assert_eq!(verify(&fs, &reference), Ok(()));
}

#[test]
fn a_rename_whose_reply_was_lost_counts_as_done() {
    let fs = Faulty::new(queue());
    fs.add(Rule::new(Call::Rename, libc::EIO).on("store/objects").times(1).executed());
    let reference = put_loose(&fs, &Dice::new(2), &[1; 50]).expect("put");
    assert_eq!(verify(&fs, &reference), Ok(()));
    assert!(inventory::take(&fs, &mut || {}).expect("an inventory").temps.is_empty());
}

#[test]
fn one_flipped_byte_is_found_by_every_read() {
    let fs = queue();
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let loose = store.put(&[7; 50]).expect("put");
    let packed = store.put(b"0123456789").expect("put");
    let Ref::Loose { sha, .. } = loose else { panic!("{loose:?} is not loose") };
    let Ref::Packed { ref pack, at, .. } = packed else { panic!("{packed:?} is not packed") };
    fs.tamper(&layout::object(&sha), |bytes| bytes[20] ^= 1);
    fs.tamper(&Path::new(layout::PACKS).join(pack), |bytes| bytes[at as usize + 3] ^= 1);
    for reference in [&loose, &packed] {
        assert!(matches!(read(&fs, reference), Err(StoreError::Damaged { .. })), "{reference:?}");
    }
    let walked = pack::walk(&fs, pack, true).expect("a walk");
    assert_eq!(walked.items[0].is_sound, Some(false));
}

#[test]
fn bytes_too_few_or_too_many_are_damage() {
    let fs = queue();
    let reference = put_loose(&fs, &Dice::new(2), &[7; 50]).expect("put");
    let Ref::Loose { sha, .. } = reference else { panic!("not loose") };
    fs.tamper(&layout::object(&sha), |bytes| bytes.push(7));
    let mut seen = 0;
    let outcome = copy_to(&fs, &reference, &mut |bytes| seen += bytes.len());
    assert!(matches!(outcome, Err(StoreError::Damaged { found_len: 51, .. })));
    assert_eq!(seen, 50, "never more than the reference says");
    fs.tamper(&layout::object(&sha), |bytes| bytes.truncate(9));
    assert!(matches!(read(&fs, &reference), Err(e) if e.may_pass()));
}

#[test]
fn a_missing_object_is_told_from_a_damaged_one() {
    let reference = Ref::Loose { sha: Digest::of(b"x"), len: 1 };
    assert!(matches!(read(&queue(), &reference), Err(StoreError::Missing { .. })));
}

#[test]
fn no_reference_leads_out_of_the_store() {
    let packed = |pack: &str| Ref::Packed { sha: Digest::of(b"x"), len: 1, pack: pack.into(), at: u64::MAX };
    for name in ["../../FQ", "/etc/passwd", "..", "", "a.000001.pack"] {
        assert!(matches!(read(&queue(), &packed(name)), Err(StoreError::BadName(_))), "{name}");
    }
}

#[test]
fn a_walk_over_a_pack_gives_its_references_back() {
    let fs = queue();
    let dice = Dice::new(2);
    let mut store = Store::new(&fs, &dice, &limits(), wid());
    let refs = store.put_all(&[b"first", b"second\nline", b"third"]).expect("put");
    let pack = pack_of(&refs[0]).to_owned();
    let rebuild = |found: &pack::Contents| -> Vec<Ref> {
        let all = found.items.iter();
        all.map(|i| Ref::Packed { sha: i.sha, len: i.len, pack: pack.clone(), at: i.at }).collect()
    };
    let found = pack::walk(&fs, &pack, true).expect("a walk");
    assert_eq!(rebuild(&found), refs);
    assert_eq!(found.whole_bytes, found.file_bytes);
    fs.tamper(&Path::new(layout::PACKS).join(&pack), |bytes| bytes.truncate(bytes.len() - 1));
    let torn = pack::walk(&fs, &pack, true).expect("a walk");
    assert_eq!(rebuild(&torn), refs[..2]);
    assert!(torn.whole_bytes < torn.file_bytes);
    assert_eq!(torn.dead_bytes(|i| i.sha == Digest::of(b"first")), torn.file_bytes - 5);
}

#[test]
fn an_object_that_is_given_up_leaves_nothing() {
    let fs = queue();
    let dice = Dice::new(2);
    let before = fs.files();
    let mut half = writer(&fs, &dice).expect("a writer");
    half.write(b"half").expect("written");
    drop(half);
    assert_eq!(fs.files(), before);
}

#[test]
fn sixty_four_writers_of_one_content_make_one_whole_object() {
    let dir = tempfile::tempdir().expect("a directory");
    let fs = Arc::new(HostFs::open(dir.path(), HostOptions::default()).expect("files"));
    init_on(&*fs, &HostChance, &Still, dir.path(), 0, &InitOptions::default()).expect("a queue");
    let value = vec![42; 100_000];
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let reference = put_loose(&*fs, &HostChance, &value).expect("put");
                assert_eq!(verify(&*fs, &reference), Ok(()));
            });
        }
    });
    let found = inventory::take(&*fs, &mut || {}).expect("an inventory");
    assert_eq!(found.objects.len(), 1);
    assert!(found.temps.is_empty());
    let path = dir.path().join(layout::object(&Digest::of(&value)));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).expect("the object").permissions());
    assert_eq!(mode & 0o777, 0o444);
}
