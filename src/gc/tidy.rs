//! Removing what has served: decisions, snapshots, beacons, tokens set aside, nudges; taken mail and old outputs.
//!
//! Invariants:
//! - The token is never touched: only names that [`layout::parse_head`] does not take for one.
//! - A candidate goes only when the settled head excludes it by a chain that was read.
//! - Everything may be stopped anywhere and done twice, also by a master that is deposed: what is removed was of no use to any
//!   state from the given one on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{
    beacons_to_drop, decisions_to_drop, horizon, list_decisions, list_if_there, mail_to_drop, remove_decisions,
    snapshots_to_drop, unlink,
};
use crate::decision::{ChainError, chain_ids};
use crate::fs::{Fs, FsError};
use crate::protocol::id::{AttemptId, DecisionId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::Departure;
use crate::state::{State, WorkerStatus};

/// How many files [`tidy_log`] has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tidied {
    /// Decisions below the older of two snapshots, and candidates that are excluded.
    pub decisions: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// Beacons of terms that are over.
    pub beacons: usize,
    /// Tokens that were set aside.
    pub tokens: usize,
    /// Nudges and temporary files whose makers died.
    pub strays: usize,
}

/// Removes what the decision log does not need any more, given the settled `state`.
///
/// Costs a listing for each directory of `decisions/` and, only where two decisions of one number are there, reading the chain
/// down to them. Meant for the janitor's thread, after each snapshot. Spec: ordering, "Pruning".
pub fn tidy_log(fs: &dyn Fs, state: &State) -> Result<Tidied, FsError> {
    let listed = list_decisions(fs, &mut || {})?;
    let decisions = decisions_to_drop(&listed, &chain(fs, state, &listed)?, &state.snapshots);
    remove_decisions(fs, &decisions)?;
    let found =
        names(fs, layout::SNAPSHOTS)?.iter().filter_map(|name| layout::parse_decision(name)).collect::<Vec<_>>();
    let snapshots: Vec<PathBuf> =
        snapshots_to_drop(&found, &state.snapshots).into_iter().map(layout::snapshot).collect();
    let found = names(fs, layout::BEACONS)?.iter().filter_map(|name| layout::parse_beacon(name)).collect::<Vec<_>>();
    let beacons: Vec<PathBuf> =
        beacons_to_drop(&found, state.term).into_iter().map(|(term, lead)| layout::beacon(term, lead)).collect();
    let head = names(fs, layout::HEAD)?;
    // A name that was set aside at or above the head may be the rest of a move that is still under way.
    let is_old = |name: &&String| gone_generation(name).is_some_and(|generation| generation < state.at.generation);
    let tokens: Vec<PathBuf> = head.iter().filter(is_old).map(|name| Path::new(layout::HEAD).join(name)).collect();
    let mut strays = Vec::new();
    for dir in [layout::HEAD, layout::CONTROL, layout::WORKERS] {
        // A nudge has done its work the moment it was made.
        let nudges = names(fs, dir)?.into_iter().filter(|name| name.starts_with(".nudge-"));
        strays.extend(nudges.map(|name| Path::new(dir).join(name)));
    }
    let temps = names(fs, layout::VIEW)?.into_iter().filter(|name| name.starts_with(".t-"));
    strays.extend(temps.map(|name| Path::new(layout::VIEW).join(name)));
    for path in [&snapshots, &beacons, &tokens, &strays].into_iter().flatten() {
        unlink(fs, path)?;
    }
    Ok(Tidied {
        decisions: decisions.len(),
        snapshots: snapshots.len(),
        beacons: beacons.len(),
        tokens: tokens.len(),
        strays: strays.len(),
    })
}

/// The part of the chain that tells bound decisions from candidates of the same number; the head alone where there are none.
fn chain(fs: &dyn Fs, state: &State, listed: &[DecisionId]) -> Result<BTreeSet<DecisionId>, FsError> {
    let horizon = horizon(&state.snapshots);
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for id in listed.iter().filter(|id| (horizon..=state.at.generation).contains(&id.generation)) {
        *counts.entry(id.generation).or_default() += 1;
    }
    let lowest = counts.iter().find(|(_, count)| **count > 1).map(|(generation, _)| *generation);
    match lowest.map(|generation| chain_ids(fs, state.at, generation)) {
        Some(Ok(chain)) => Ok(chain),
        Some(Err(ChainError::Fs(error))) => Err(error),
        // What cannot be read excludes nothing.
        Some(Err(_)) | None => Ok(BTreeSet::from([state.at])),
    }
}

fn names(fs: &dyn Fs, dir: &str) -> Result<Vec<String>, FsError> {
    Ok(fs.list(Path::new(dir))?.into_iter().map(|entry| entry.name).collect())
}

/// The number of the decision that a token set aside was named after.
fn gone_generation(name: &str) -> Option<u64> {
    let token = name.strip_prefix(".gone-")?.rsplit_once('-')?.0;
    let number = token.trim_start_matches("head.");
    number.split(['.', '-']).next()?.parse().ok()
}

/// Removes mail that was taken and outputs of attempts that are over, where a crash left them; calls `pace` for each worker.
///
/// A worker that left in order needs no mail at all. One that was lost keeps what it has not taken, so that it finds the fence
/// behind it if it comes back. Outputs of a worker that is gone stay until their task has ended: they are all there is of a lost
/// attempt. Returns how many files were removed.
pub fn tidy_workers(fs: &dyn Fs, state: &State, pace: &mut dyn FnMut()) -> Result<usize, FsError> {
    let mut count = 0;
    for (w, worker) in &state.workers {
        pace();
        let taken = match &worker.status {
            WorkerStatus::Gone(Departure::Left, _) => u64::MAX,
            _ => worker.got,
        };
        let mut paths: Vec<PathBuf> = Vec::new();
        let mail = list_if_there(fs, &layout::mailbox(w))?.unwrap_or_default();
        let mail: Vec<(u64, DecisionId)> = mail.iter().filter_map(|entry| layout::parse_message(&entry.name)).collect();
        paths.extend(mail_to_drop(&mail, taken).into_iter().map(|(number, by)| layout::message(w, number, by)));
        if worker.is_gone() {
            paths.extend(old_outputs(fs, state, w)?);
        }
        for path in &paths {
            unlink(fs, path)?;
        }
        count += paths.len();
    }
    Ok(count)
}

fn old_outputs(fs: &dyn Fs, state: &State, w: &WorkerId) -> Result<Vec<PathBuf>, FsError> {
    let dir = layout::outputs(w);
    let names = list_if_there(fs, &dir)?.unwrap_or_default().into_iter().map(|entry| entry.name);
    let is_over = |name: &String| {
        let attempt = name.rsplit_once('.').and_then(|(attempt, _)| attempt.parse::<AttemptId>().ok());
        attempt.is_some_and(|a| state.task(a.task).is_none_or(|(_, task)| task.state.is_final()))
    };
    Ok(names.filter(is_over).map(|name| dir.join(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::id::Nonce;

    #[test]
    fn the_number_of_a_token_set_aside_is_read_in_either_style() {
        for name in ["101.0000000000000abc", ".head.101-0000000000000abc"] {
            let path = layout::gone_head(name, Nonce(7));
            let aside = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            assert_eq!(gone_generation(aside), Some(101), "{aside}");
        }
        assert_eq!(gone_generation("101.0000000000000abc"), None);
    }
}
