//! Wrong variants of the protocol, to see whether the rehearsals find them (spec: crash-matrix, "Mutants").
//!
//! A *mutant* leaves out one of the precautions that the protocol rests on, as a careless change might. At each place where one
//! could be left out stands `mutant::is(…)`; one variant at a time is switched on, for the current thread only. In builds without
//! debug assertions the question is a constant `false`, so nothing of this is in what users run.

use std::cell::Cell;

macro_rules! mutants {
    ($($name:ident $cli:literal $what:literal $on:expr;)*) => {
        /// One wrong variant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Mutant {
            $(#[doc = $what] $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name for people.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $cli,)* }
            }

            /// What it does wrong.
            pub fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }

            /// The file systems on which it can do harm; all of them if there is none.
            pub fn profiles(self) -> &'static [&'static str] {
                match self { $(Self::$name => $on,)* }
            }
        }
    };
}

/// File systems that lose replies, or execute calls after their caller has died.
const REMOTE: &[&str] = &["nfs3", "nfs3-nolock", "nfs40", "nfs41", "nfs41-soft", "lustre-flock", "gpfs"];
/// NFS version 3, whose names are durable when a call has returned and whose listings may miss a change within a tick.
const V3: &[&str] = &["nfs3", "nfs3-nolock"];
/// File systems where a name is durable only once its directory was synced, or a commit came by.
const LATER: &[&str] = &["local", "btrfs", "ceph", "lustre-flock", "lustre-noflock", "beegfs"];
/// File systems whose locks hold between hosts.
const LOCKS: &[&str] = &["nfs40", "nfs41", "lustre-flock", "ceph", "gpfs", "local", "beegfs"];
/// File systems whose server may answer one call with the reply to another.
const SESSIONLESS: &[&str] = &["nfs3", "nfs3-nolock", "nfs40"];

mutants! {
    TrustRename "trust-rename" "Takes a decision for won because the rename of the token reported success, without looking." SESSIONLESS;
    TrustErrno "trust-errno" "Takes a decision for lost because the rename of the token reported an error." REMOTE;
    SecondCandidate "second-candidate" "Tries another decision while the rename of the first may still happen." REMOTE;
    DropCandidate "drop-candidate" "Removes a candidate whose rename may still happen." REMOTE;
    TakeNewest "take-newest" "Takes the highest of several tokens for the head." &["gluster", "beegfs"];
    MoveUnsynced "move-unsynced" "Does not sync the directory of the token after a move that reported an error." &[];
    EarlyMail "early-mail" "Lets the messages of a decision show before it is won." &[];
    GroupUnsynced "group-unsynced" "Names the token after a decision whose file was not synced." &[];
    NameUnsynced "name-unsynced" "Does not sync the directory of a file that it puts." LATER;
    SnapshotUnverified "snapshot-unverified" "Names a snapshot that was not read back." &[];
    MailUnsynced "mail-unsynced" "Publishes messages whose bytes were not synced." &[];
    SkipGap "skip-gap" "A worker takes messages out of order." &[];
    StoreUnsynced "store-unsynced" "Reports ends whose outputs were not synced." &[];
    JournalUnsynced "journal-unsynced" "Marks lines of a journal as durable that were not synced." &[];
    NoFence "no-fence" "A worker that cannot make its signs of life durable runs on." &[];
    LateProof "late-proof" "A worker counts its lease from when a sync returned, not from before the line was written." &[];
    LostAtOnce "lost-at-once" "Declares a worker lost when it is merely suspect." &[];
    LockAlone "lock-alone" "Declares a worker lost because its lock is free, whether or not it ever refused." LOCKS;
    IgnoreFence "ignore-fence" "Counts the queue's lease only and not the longer self-fence that a worker has stated." &[];
    NoLastLook "no-last-look" "Declares a worker lost without reading its journal to the end." &[];
    FreshSub "fresh-submission" "Submits again under a new identity after an error." &[];
    IngestUnsynced "ingest-unsynced" "Takes in a manifest whose name may not be durable." LATER;
    ForgetUnsettled "forget-unsettled" "Forgets that requests were answered while their files may come back." LATER;
    UnsettledReport "unsettled-report" "Reports ends as final that are not durable." LATER;
    NoRepair "no-repair" "No master sends again what no worker has acknowledged." &[];
    MailOnce "mail-once" "Mail that is not acknowledged is not sent again by the same master." SESSIONLESS;
    NoNudge "no-nudge" "A leader never nudges directories that a listing may have missed a change of." V3;
    HiddenNews "hidden-news" "The same, and a worker is declared lost whose newest lines an old listing may hide." V3;
    BlindRebase "blind-rebase" "Goes on with its draft after others have decided." &[];
}

impl Mutant {
    /// The test that shows what the mutant does, where a rehearsal would need more luck than there is.
    pub fn shown_by(self) -> Option<&'static str> {
        match self {
            Self::LateProof => Some("a_lease_counts_from_before_a_line_was_written_however_long_its_sync_takes"),
            Self::NoLastLook => Some("what_a_dead_worker_has_reported_is_accepted_before_it_is_declared_lost"),
            Self::HiddenNews => Some("a_worker_whose_newest_segment_an_old_listing_hides_is_not_declared_lost"),
            Self::IngestUnsynced => {
                Some("a_number_that_a_decision_knows_is_given_to_nobody_else_after_a_power_failure")
            }
            Self::NoNudge => Some("a_job_that_an_old_listing_hides_is_taken_in_within_a_minute"),
            Self::MoveUnsynced => Some("a_decision_whose_move_reported_an_error_counts_only_once_it_is_durable"),
            Self::UnsettledReport => Some("what_a_reader_has_settled_is_there_after_a_power_failure"),
            _ => None,
        }
    }
}

thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether this thread runs the variant `mutant`.
#[inline]
pub(crate) fn is(mutant: Mutant) -> bool {
    cfg!(debug_assertions) && ACTIVE.get() == Some(mutant)
}

/// Runs `run` with the variant switched on in this thread; off again afterwards, also after a panic.
pub fn with<T>(mutant: Mutant, run: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ACTIVE.set(None);
        }
    }
    ACTIVE.set(Some(mutant));
    let _off = Off;
    run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_on_in_its_own_thread_while_it_runs_and_off_after_a_panic() {
        assert!(with(Mutant::NoFence, || is(Mutant::NoFence) && !is(Mutant::EarlyMail)));
        assert!(with(Mutant::NoFence, || std::thread::spawn(|| !is(Mutant::NoFence)).join().unwrap_or(false)));
        let panicked = std::panic::catch_unwind(|| with(Mutant::NoFence, || panic!("on purpose")));
        assert!(panicked.is_err() && !is(Mutant::NoFence));
    }

    #[test]
    fn every_file_system_that_a_mutant_names_is_one_that_is_simulated() {
        let known: Vec<&str> = crate::sim::Profile::all().iter().map(|profile| profile.name).collect();
        for mutant in Mutant::ALL {
            assert!(mutant.profiles().iter().all(|name| known.contains(name)), "{}", mutant.name());
        }
    }
}
