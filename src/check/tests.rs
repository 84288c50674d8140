use std::time::Duration;

use super::token::{RebuildError, Undecided, choose, rebuild};
use super::*;
use crate::clock::fixed::{Dice, Still};
use crate::fs::memory::MemoryFs;
use crate::process::Identity;
use crate::process::Status;
use crate::protocol::id::{AttemptId, Nonce, TaskId};
use crate::protocol::record::{Admit, Departure, EndLine, HeadStyle, Header, LockVerdict, Op, Outcome, Trust, to_line};
use crate::queue::{InitOptions, init_on};

fn id(generation: u64, nonce: u64) -> DecisionId {
    DecisionId { generation, nonce: Nonce(nonce) }
}

fn queue() -> (MemoryFs, DecisionId) {
    let fs = MemoryFs::default();
    let made = init_on(&fs, &Dice::new(1), &Still, Path::new("q"), 0, &InitOptions::default()).expect("a queue");
    (fs, made.first)
}

/// Writes an empty decision on top of `prev`.
fn candidate(fs: &MemoryFs, prev: DecisionId, nonce: u64) -> DecisionId {
    candidate_of(fs, prev, nonce, &[])
}

fn candidate_of(fs: &MemoryFs, prev: DecisionId, nonce: u64, ops: &[Op]) -> DecisionId {
    let bytes = fs::read_all(fs, &layout::decision(prev)).expect("the decision before");
    let header = Header {
        prev: Some(prev),
        prev_sha: Some(Digest::of(&bytes)),
        id: id(prev.generation + 1, nonce),
        ..decision::decode_group(&bytes).expect("a whole decision").header
    };
    put(fs, &layout::decision(header.id), &decision::encode_group(&header, ops));
    header.id
}

/// Makes and binds an empty decision.
fn commit(fs: &MemoryFs, prev: DecisionId, nonce: u64) -> DecisionId {
    commit_of(fs, prev, nonce, &[])
}

fn commit_of(fs: &MemoryFs, prev: DecisionId, nonce: u64, ops: &[Op]) -> DecisionId {
    let next = candidate_of(fs, prev, nonce, ops);
    fs.rename(&head(prev), &head(next)).expect("the token moves");
    next
}

fn head(id: DecisionId) -> PathBuf {
    layout::head(id, HeadStyle::Plain)
}

fn put(fs: &MemoryFs, path: &Path, bytes: &[u8]) {
    fs::put_new(fs, path, bytes, 0o644).expect("a file");
}

fn run(fs: &MemoryFs) -> Report {
    check(fs, true, &mut |_| {})
}

#[track_caller]
fn errors(fs: &MemoryFs) -> Vec<String> {
    let report = run(fs);
    report.problems.iter().filter(|p| p.severity == Severity::Error).map(ToString::to_string).collect()
}

fn no_wait(_: Duration) {}

fn repair_all(fs: &MemoryFs) {
    for fix in run(fs).fixes() {
        apply(fs, &Dice::new(7), &fix, None, &mut no_wait).expect("repaired");
    }
}

fn wid() -> WorkerId {
    WorkerId::new("node", Nonce(1))
}

/// Writes a journal with these lines, numbered from 1.
fn journal(fs: &MemoryFs, lines: &[Line]) {
    fs.mkdir(&layout::journal(&wid())).expect("a directory");
    let mut bytes = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let json = String::from_utf8(to_line(line)).expect("text");
        bytes.extend(frame::seal_line(&format!("{{\"seq\":{},{}", i + 1, json.trim_end().trim_start_matches('{'))));
    }
    put(fs, &layout::segment(&wid(), 1), &bytes);
}

fn end(job: u64, out: Ref) -> Line {
    Line::End(Box::new(EndLine {
        a: AttemptId { task: TaskId { job: JobId(job), index: None }, number: 1 },
        m: 1,
        how: Outcome::Ran(Status::Exit(0)),
        out,
        err: Ref::default(),
        usage: crate::process::Usage::default(),
        ms: 1,
        leftovers: 0,
        notes: Vec::new(),
        start_ms: 0,
        end_ms: 0,
    }))
}

#[test]
fn a_new_queue_is_sound() {
    let (fs, first) = queue();
    commit(&fs, first, 1);
    let before = (fs.files(), fs.step_count());
    let report = run(&fs);
    assert_eq!(report.problems, []);
    assert_eq!(report.counts.decisions, 2);
    assert_eq!((fs.files(), fs.step_count()), before, "a check changes nothing");
}

#[test]
fn one_bad_record_does_not_hide_the_others() {
    let (fs, first) = queue();
    let second = commit(&fs, first, 1);
    let third = commit(&fs, second, 2);
    fs.tamper(&layout::decision(second), |bytes| bytes[10] ^= 1);
    put(&fs, &layout::job(JobId(1)), b"{\"fq\":\"job\"");
    journal(&fs, &[Line::Open { wid: wid() }, Line::Resume, Line::Resume]);
    fs.tamper(&layout::segment(&wid(), 1), |bytes| {
        let end_of_first = bytes.iter().position(|&b| b == b'\n').expect("a line");
        bytes[end_of_first + 3] ^= 1;
    });
    let report = run(&fs);
    let of = |what| report.problems.iter().filter(|p| p.what == what).count();
    assert!(of(What::Decision) >= 1, "{:?}", report.problems);
    assert_eq!((of(What::Manifest), of(What::Journal)), (1, 1));
    assert!(!report.problems.iter().any(|p| p.path == layout::decision(third)));
}

#[test]
fn a_decision_that_was_changed_and_closed_again_is_found() {
    let (fs, first) = queue();
    let second = commit(&fs, first, 1);
    commit(&fs, second, 2);
    fs.tamper(&layout::decision(second), |bytes| {
        let mut group = decision::decode_group(bytes).expect("whole");
        group.header.at_ms += 1;
        *bytes = decision::encode_group(&group.header, &[]);
    });
    assert!(errors(&fs).iter().any(|e| e.contains("not what its successor says")), "{:?}", errors(&fs));
}

#[test]
fn what_a_killed_process_leaves_is_no_error() {
    let (fs, first) = queue();
    let second = commit(&fs, first, 1);
    candidate(&fs, first, 9);
    candidate(&fs, second, 9);
    put(&fs, &layout::job(JobId(1)), b"{\"fq\":\"job\"");
    put(&fs, Path::new("store/objects/00/.t-0000000000000001"), b"half");
    journal(&fs, &[Line::Open { wid: wid() }, Line::Resume]);
    fs.tamper(&layout::segment(&wid(), 1), |bytes| bytes.truncate(bytes.len() - 5));
    let report = run(&fs);
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.problems.len(), 3, "two candidates and a manifest are worth a notice");
}

#[test]
fn damage_in_the_middle_of_a_journal_is_told_from_a_torn_tail() {
    let line = |seq: u64| frame::seal_line(&format!("{{\"seq\":{seq},\"t\":\"resume\"}}"));
    let lines: Vec<Vec<u8>> = (1..=4).map(line).collect();
    let whole = lines.concat();
    assert_eq!(inspect_segment(&whole, 0).damage, [""; 0]);
    assert_eq!(inspect_segment(&whole[..whole.len() - 1], 0), Segment { line_count: 3, seq: 3, ..Segment::default() });
    let gap = [&lines[0][..], &lines[2]].concat();
    assert_eq!(inspect_segment(&gap, 0).damage, ["lines 2 to 2 are missing"]);
    let mut flipped = whole.clone();
    flipped[lines[0].len() + 2] ^= 1;
    assert_eq!(inspect_segment(&flipped, 0).damage.len(), 1);
    assert_eq!(inspect_segment(&whole, 4).damage, [""; 0], "a new segment repeats lines");
}

#[test]
fn a_flipped_byte_in_the_store_is_found_and_the_object_moved_away() {
    let (fs, _) = queue();
    let reference = store::put_loose(&fs, &Dice::new(3), b"a result").expect("put");
    journal(&fs, &[Line::Open { wid: wid() }, end(1, reference.clone())]);
    assert_eq!(errors(&fs), [""; 0]);
    let sha = Digest::of(b"a result");
    fs.tamper(&layout::object(&sha), |bytes| bytes[0] ^= 1);
    assert_eq!(errors(&fs).len(), 2, "the object and what refers to it: {:?}", errors(&fs));
    let shallow = check(&fs, false, &mut |_| {});
    assert!(shallow.is_sound(), "only a deep check reads objects");
    repair_all(&fs);
    assert!(matches!(store::read(&fs, &reference), Err(StoreError::Missing { .. })));
    assert!(fs.files().iter().any(|p| p.starts_with(layout::TRASH) && p.ends_with(sha.to_string())));
    store::put_loose(&fs, &Dice::new(4), b"a result").expect("made again");
    assert_eq!(errors(&fs), [""; 0]);
}

#[test]
fn an_object_that_was_made_again_is_not_moved_away() {
    let (fs, _) = queue();
    store::put_loose(&fs, &Dice::new(3), b"a result").expect("put");
    let fix = Fix::QuarantineObject(Digest::of(b"a result"));
    assert_eq!(apply(&fs, &Dice::new(7), &fix, None, &mut no_wait), Err(repair::FixError::Changed));
}

#[test]
fn a_needed_file_in_the_trash_is_moved_back() {
    let (fs, first) = queue();
    let reference = store::put_loose(&fs, &Dice::new(3), b"a result").expect("put");
    journal(&fs, &[Line::Open { wid: wid() }, end(1, reference.clone())]);
    gc::prepare(&fs, first).expect("prepared");
    gc::quarantine(&fs, first, &[store::file_of(&reference).expect("a file")]).expect("quarantined");
    assert_eq!(errors(&fs).len(), 1);
    repair_all(&fs);
    assert_eq!(store::verify(&fs, &reference), Ok(()));
    assert_eq!(errors(&fs), [""; 0]);
}

/// A worker dies before it has promised the end of an attempt, the task runs elsewhere, and collecting takes what it had stored.
#[test]
fn values_of_ends_that_can_no_longer_be_accepted_may_be_gone() {
    let (fs, first) = queue();
    let sha = Digest::of(b"never accepted");
    journal(&fs, &[Line::Open { wid: wid() }, end(1, Ref::Loose { sha, len: 14 })]);
    assert_eq!(errors(&fs).len(), 1, "a worker that is not known yet may be heard");
    let admit = Admit {
        w: wid(),
        worker: Identity { host: "node".into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: 0 },
        keeper: None,
        cpus: 1,
        mem: 0,
        self_fence_ms: 1,
        lock: LockVerdict::Held,
        trust: Trust::default(),
    };
    let second = commit_of(&fs, first, 1, &[Op::Admit(Box::new(admit))]);
    assert_eq!(errors(&fs).len(), 1, "its end may still be accepted");
    let gone = Op::Gone { w: wid(), how: Departure::Lost, why: "silent".into() };
    commit_of(&fs, second, 2, &[gone]);
    assert_eq!(errors(&fs), [""; 0]);
}

#[test]
fn a_stray_token_is_set_aside_and_the_head_stays() {
    let (fs, first) = queue();
    let second = commit(&fs, first, 1);
    put(&fs, &head(first), b"left by a client that died while it moved the token");
    assert_eq!(errors(&fs).len(), 2, "the stray, and no state: {:?}", errors(&fs));
    repair_all(&fs);
    assert_eq!(decision::look(&fs), Ok(Look::Alone(second)));
    assert_eq!(errors(&fs), [""; 0]);
    let again = Fix::SetAside(second.to_string());
    assert_eq!(apply(&fs, &Dice::new(7), &again, None, &mut no_wait), Err(repair::FixError::Changed));
}

#[test]
fn merged_copies_are_reported_and_left_alone() {
    let (fs, first) = queue();
    let ours = commit(&fs, first, 1);
    let theirs = candidate(&fs, first, 2);
    let newest = candidate(&fs, theirs, 3);
    put(&fs, &head(newest), b"copied here");
    let report = run(&fs);
    assert!(report.fixes().is_empty());
    assert!(report.problems.iter().any(|p| p.what == What::Head && p.why.contains("merged")));
    assert!(fs.files().contains(&head(ours)));
}

#[test]
fn the_token_of_an_init_that_lost_is_set_aside() {
    let (fs, first) = queue();
    put(&fs, &head(id(0, 0)), b"its maker died before it could set it aside");
    repair_all(&fs);
    assert_eq!(decision::look(&fs), Ok(Look::Alone(first)));
    assert_eq!(errors(&fs), [""; 0]);
}

#[test]
fn an_older_token_of_the_same_line_is_left_for_a_person() {
    let (fs, first) = queue();
    let mut at = first;
    for nonce in 1..=3 {
        at = commit(&fs, at, nonce);
    }
    put(&fs, &head(first), b"copied here from an old backup");
    assert!(run(&fs).fixes().is_empty());
    assert_eq!(
        apply(&fs, &Dice::new(7), &Fix::SetAside(first.to_string()), None, &mut no_wait),
        Err(repair::FixError::Changed)
    );
    assert!(fs.files().contains(&head(first)) && fs.files().contains(&head(at)));
}

#[test]
fn a_lost_token_is_made_anew_under_a_name_that_never_was() {
    let (fs, first) = queue();
    let last = commit(&fs, first, 1);
    fs.unlink(&head(last)).expect("lost");
    assert_eq!(errors(&fs).len(), 1);
    let group = decision::decode_group(&fs::read_all(&fs, &layout::decision(last)).expect("read")).expect("whole");
    repair_all(&fs);
    let Ok(Look::Alone(made)) = decision::look(&fs) else { panic!("no token: {:?}", decision::look(&fs)) };
    assert_eq!(made.generation, 2);
    assert_eq!(made.nonce.to_string(), group.sha.to_string()[..16]);
    assert_eq!(errors(&fs), [""; 0]);
    assert_eq!(Reader::open(&fs).map(|r| r.state().at), Ok(made));
    // A mover that slept holds the old name.
    assert!(fs.rename(&head(last), &head(id(2, 5))).is_err());
}

#[test]
fn a_rebuild_stopped_after_any_step_is_completed_by_the_next_one() {
    for stop in 0..14 {
        let (fs, first) = queue();
        let last = commit(&fs, first, 1);
        fs.unlink(&head(last)).expect("lost");
        fs.crash_after(stop);
        let outcome = rebuild(&fs, &Dice::new(7), None, &mut no_wait);
        fs.restart();
        fs.lose_power();
        match rebuild(&fs, &Dice::new(8), None, &mut no_wait) {
            Ok(_) => {}
            // Its own token is there: the last step alone failed, or none.
            Err(RebuildError::NotLost) => assert!(stop > 6, "stopped after {stop}: {outcome:?}"),
            Err(other) => panic!("stopped after {stop}: {other}"),
        }
        assert_eq!(errors(&fs), [""; 0], "stopped after {stop}");
    }
}

#[test]
fn two_rebuilds_at_once_make_one_token() {
    let (fs, first) = queue();
    fs.unlink(&head(first)).expect("lost");
    // The other one goes through completely where this one has looked for the last time but not yet written.
    let group = decision::decode_group(&fs::read_all(&fs, &layout::decision(first)).expect("read")).expect("whole");
    let made = token::successor(&group).id;
    assert_eq!(rebuild(&fs, &Dice::new(7), None, &mut no_wait), Ok(made));
    fs.unlink(&head(made)).expect("as if not seen");
    let entry_before = fs::read_all(&fs, &layout::decision(made));
    assert_eq!(rebuild(&fs, &Dice::new(8), Some(first), &mut no_wait), Ok(made));
    assert_eq!(fs::read_all(&fs, &layout::decision(made)), entry_before);
}

#[test]
fn no_token_is_made_while_a_master_lives_or_the_token_was_only_late() {
    let (fs, first) = queue();
    let beacon = layout::beacon(1, first);
    put(&fs, &beacon, b"{\"beat\":1}\n");
    fs.rename(&head(first), Path::new("decisions/head/.away")).expect("hidden");
    let files = fs.files();
    let mut beats = |_: Duration| fs.tamper(&beacon, |bytes| bytes.extend(b"{\"beat\":2}\n"));
    let outcome = rebuild(&fs, &Dice::new(7), None, &mut beats);
    assert!(matches!(outcome, Err(RebuildError::MasterLives(_))), "{outcome:?}");
    let mut comes_back = |_: Duration| fs.rename(Path::new("decisions/head/.away"), &head(first)).expect("back");
    assert_eq!(rebuild(&fs, &Dice::new(7), None, &mut comes_back), Err(RebuildError::NotLost));
    assert_eq!(fs.files().len(), files.len());
}

#[test]
fn the_last_decision_is_the_one_that_was_acted_upon() {
    let first = id(0, 1);
    let entries = BTreeMap::from([(first, None), (id(1, 1), Some(first)), (id(1, 2), Some(first))]);
    let check = |evidence: &[DecisionId]| choose(&entries, &evidence.iter().copied().collect());
    assert_eq!(check(&[id(1, 1)]), Ok(id(1, 1)));
    assert_eq!(check(&[id(1, 2)]), Ok(id(1, 2)));
    assert_eq!(check(&[]), Err(Undecided::Several(vec![id(1, 1), id(1, 2)])));
    assert_eq!(check(&[id(1, 1), id(1, 2)]), Err(Undecided::Contradiction(id(1, 1), id(1, 2))));
    assert_eq!(check(&[id(2, 7)]), Err(Undecided::Missing(id(2, 7))));
    let one = BTreeMap::from([(first, None), (id(1, 1), Some(first))]);
    assert_eq!(choose(&one, &BTreeSet::new()), Ok(id(1, 1)), "a single candidate is legal either way");
    assert_eq!(choose(&BTreeMap::new(), &BTreeSet::new()), Err(Undecided::Nothing));
    let fork =
        BTreeMap::from([(first, None), (id(1, 1), Some(first)), (id(1, 2), Some(first)), (id(2, 1), Some(id(1, 1)))]);
    // `1.1` was bound, since `2.1` builds on it.
    assert_eq!(choose(&fork, &[id(1, 2)].into()), Err(Undecided::Contradiction(id(1, 1), id(1, 2))));
}

#[test]
fn evidence_from_a_claim_settles_which_candidate_was_bound() {
    let (fs, first) = queue();
    let (won, _lost) = (candidate(&fs, first, 8), candidate(&fs, first, 2));
    fs.unlink(&head(first)).expect("lost");
    let outcome = rebuild(&fs, &Dice::new(7), None, &mut no_wait);
    assert!(matches!(outcome, Err(RebuildError::Undecided(Undecided::Several(_)))), "{outcome:?}");
    journal(&fs, &[Line::Open { wid: wid() }, Line::Claim { m: 1, by: won }]);
    let made = rebuild(&fs, &Dice::new(7), None, &mut no_wait).expect("a token");
    let group = decision::decode_group(&fs::read_all(&fs, &layout::decision(made)).expect("read")).expect("whole");
    assert_eq!(group.header.prev, Some(won));
}

// A master was killed on NFS right after it made the file of its next decision: an empty one, beside the one that its successor
// bound under the same number.
#[test]
fn a_candidate_cut_short_is_no_damage_and_a_decision_cut_short_is() {
    let (fs, first) = queue();
    let torn = id(first.generation + 1, 9);
    put(&fs, &layout::decision(torn), b"");
    let bound = commit(&fs, first, 8);
    commit(&fs, bound, 7);
    assert_eq!(errors(&fs), Vec::<String>::new());
    assert_eq!(run(&fs).problems.iter().map(|p| p.path.clone()).collect::<Vec<_>>(), [layout::decision(torn)]);
    fs.unlink(&layout::decision(bound)).expect("removed");
    put(&fs, &layout::decision(bound), b"{");
    let found = errors(&fs);
    assert!(found.iter().any(|text| text.contains(&bound.to_string())), "{found:?}");
    assert!(found.iter().all(|text| !text.contains(&torn.to_string())), "{found:?}");
}

#[test]
fn missing_directories_are_made_again() {
    let (fs, _) = queue();
    fs.rmdir(Path::new(layout::VIEW)).expect("removed");
    fs.rmdir(Path::new("store/objects/7f")).expect("removed");
    assert_eq!(errors(&fs).len(), 2);
    repair_all(&fs);
    assert_eq!(run(&fs).problems, []);
}
