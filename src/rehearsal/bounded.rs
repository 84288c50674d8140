//! A small rehearsal that is hit at chosen calls: for going through all of them.
//!
//! Two hosts with a keeper, a worker and a master each, and a user who submits two tasks of which the second is held and depends on
//! the first. Without a fault it is the same run every time, so the call numbers mean the same up to the first hit.

use std::rc::Rc;
use std::time::Duration;

use super::script::{self, Dice};
use super::{Care, History, PATIENCE, Report, Stage, TRACED, Trouble, opened, setup_of};
use crate::sim::profile::Commit;
use crate::sim::{Armed, CallFault, Profile};

/// From this seed everything follows that the hits leave open.
const SEED: u64 = 7;

/// How long it goes on when everything has ended.
const AFTERMATH: Duration = Duration::from_secs(45);

/// A fault at the call with this number, of those that it suits and that any process makes, counted from 0 when the processes are
/// started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// What happens.
    pub fault: CallFault,
    /// To which call.
    pub call: u32,
}

/// The kinds of faults that are worth a hit at every call.
pub fn hits() -> [CallFault; 9] {
    let secs = Duration::from_secs;
    [
        CallFault::CrashBefore,
        CallFault::CrashAfter,
        CallFault::LostReply,
        CallFault::Refused(libc::EIO),
        CallFault::LateAfterDeath(secs(30)),
        CallFault::PauseAfter(secs(40)),
        CallFault::HostCrashAfter,
        CallFault::PowerAfter(secs(3)),
        CallFault::HalfRename,
    ]
}

/// Plays the small rehearsal on `profile` with `hits`. [`Report::faults`] says which of them came before everything had ended.
///
/// # Errors
/// What went wrong; running it again gives the same.
pub fn run(profile: &Profile, hits: &[Hit]) -> Result<Report, Box<Trouble>> {
    let mut dice = Dice::new(SEED);
    let care = Care { keepers: 100, suspends: 0 };
    let setup = setup_of(profile, true, false, None);
    let (cluster, hosts) = opened(SEED, profile, care, TRACED);
    let mut stage = Stage {
        seed: SEED,
        profile: profile.clone(),
        cluster,
        history: None,
        care,
        parts: script::two_tasks(),
        desk: Rc::default(),
        is_forgetful: false,
        is_looked_on: false,
    };
    let first = stage.init(hosts[2], &setup)?;
    stage.history = Some(History::new(first, profile.commit == Commit::Later));
    stage.cast(&hosts, &setup, &mut dice);
    for hit in hits {
        stage.cluster.arm(Armed::next(hit.fault).after(hit.call));
    }
    let has_ended = stage.watch(PATIENCE, true)?;
    let met = stage.cluster.faults();
    stage.cluster.quiet();
    // What a dead process has sent is executed, and whoever paused goes on.
    stage.watch(AFTERMATH, false)?;
    stage.judge(has_ended).map(|report| Report { faults: met, ..report })
}
