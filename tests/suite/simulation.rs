//! Whole clusters of the real roles in the simulator. Every seed is another story of crashes, stale listings and lost replies; what
//! must hold in all of them is in `fq::rehearsal`. Thousands of seeds: `cargo run --example sim -- --seeds 5000`.

use fq::rehearsal;
use fq::sim::Profile;

/// Rehearses `seeds` on `profile` and shows what went wrong.
fn check(profile: &Profile, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(trouble) = rehearsal::run(seed, profile) {
            let tail = trouble.trace.len().saturating_sub(100);
            panic!("{}\n{trouble}", trouble.trace[tail..].join("\n"));
        }
    }
}

#[test]
fn clusters_keep_the_invariants_on_a_local_file_system() {
    check(&Profile::local(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_nfs3() {
    check(&Profile::nfs3(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_nfs3_without_locks() {
    check(&Profile::nfs3_nolock(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_nfs41() {
    check(&Profile::nfs41(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_lustre_without_locks() {
    check(&Profile::lustre_noflock(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_beegfs() {
    check(&Profile::beegfs(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_gluster() {
    check(&Profile::gluster(), 1000..1006);
}

#[test]
fn clusters_keep_the_invariants_on_ceph() {
    check(&Profile::ceph(), 1000..1006);
}

#[test]
fn a_seed_that_is_rehearsed_twice_gives_the_same_events() {
    for profile in [Profile::nfs3(), Profile::gluster()] {
        let [one, two] = [(); 2].map(|()| rehearsal::run(7, &profile).map(|report| report.digest));
        assert_eq!(one, two);
    }
}

/// A request to release reached the master together with the one to hold before it, and was answered first: the task stayed held.
#[test]
fn seed_10_released_before_it_was_held() {
    check(&Profile::nfs3_nolock(), 10..11);
}

/// Bytes of a running task's output came back damaged once, and its user's file was published like that.
#[test]
fn seed_6_published_what_was_read_badly() {
    check(&Profile::gluster(), 6..7);
}

/// Workers that came and went set the storm brake off again and again, and each time a dead one was given another lease: its tasks
/// never ran again.
#[test]
fn seed_47_braked_for_ever() {
    check(&Profile::ceph(), 47..48);
}

/// A worker hung in a look at its mailbox for longer than its lease; what it made durable afterwards renewed the lease, and it started
/// a task that had been given to another.
#[test]
fn seed_756_renewed_a_lease_that_was_over() {
    check(&Profile::lustre_noflock(), 756..757);
}

/// A manifest was taken in before it was durable, the server lost power, and the number went to another submission.
#[test]
fn seed_766_gave_one_number_to_two_submissions() {
    check(&Profile::gluster(), 766..767);
}

/// A manifest that had been torn for long became whole, and a request for it was answered before the next look at it.
#[test]
fn seed_1249_lost_a_release() {
    check(&Profile::nfs3(), 1249..1250);
}

/// The master looked for a new worker's HELLO by its name before it was there, and missed it for most of the worker's life.
#[test]
fn seed_3962_met_workers_too_late() {
    check(&Profile::nfs3_nolock(), 3962..3963);
}

/// The first mail of a worker came within the tick of its look into the mailbox, and it never looked anew.
#[test]
fn seeds_3737_and_4065_hid_mail_from_its_worker() {
    check(&Profile::nfs3(), 3737..3738);
    check(&Profile::nfs3(), 4065..4066);
}

/// A worker had stored a value and died before it promised the end; after collecting, the check of the whole directory missed it.
#[test]
fn seed_13513_missed_what_nobody_needed() {
    check(&Profile::nfs3(), 13513..13514);
}
