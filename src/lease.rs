//! Who may still run, judged from both ends: a worker about itself, an observer about a worker (spec: leases). Pure.
//!
//! Invariants:
//! - A worker counts its age from *before* the last line covered by a successful sync was written, on its own boot clock: an
//!   observer cannot have seen a sign of life later than that moment and count less. Its own limit is shorter than any
//!   observer's by the grace it gives its tasks and 2 % for clocks that run unequally.
//! - An observer counts silence on its own boot clock, over polls that succeeded only. Time in which it was itself paused, or
//!   could not read, counts for nobody.
//! - No clock is compared between hosts.

use std::time::Duration;

use crate::mutant::{self, Mutant};
use crate::process::Liveness;
use crate::protocol::record::Limits;

/// Decides when a worker has to end itself, and when it gives the next sign of life.
#[derive(Debug, Clone)]
pub struct OwnLease {
    self_fence: Duration,
    beat: Duration,
    proved: Duration,
    next_beat: Duration,
}

impl OwnLease {
    /// Begins at `now`, which is before the first line of the journal was written.
    pub fn new(limits: &Limits, now: Duration) -> Self {
        let beat = Limits::span(limits.beat_ms);
        Self { self_fence: Limits::span(limits.self_fence_ms), beat, proved: now, next_beat: now + beat }
    }

    /// Takes note that lines were made durable; `written` is the boot time before the last of them was written, `pause` the
    /// time until the next sign of life, about [`OwnLease::beat`].
    ///
    /// A lease that was over before stays over: a call that hung for long may return in the middle of a step, when others have
    /// the tasks.
    pub fn prove(&mut self, written: Duration, pause: Duration) {
        if !self.is_over(written) {
            self.proved = self.proved.max(written);
        }
        self.next_beat = written + pause;
    }

    /// From one sign of life to the next.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// When the next sign of life is due.
    pub fn next_beat(&self) -> Duration {
        self.next_beat
    }

    /// When the worker ends its tasks and itself, if nothing more becomes durable.
    pub fn fence_at(&self) -> Duration {
        self.proved + self.self_fence
    }

    /// Whether a sign of life is due.
    pub fn is_beat_due(&self, now: Duration) -> bool {
        now >= self.next_beat
    }

    /// Whether the worker has to end its tasks and itself.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.fence_at() && !mutant::is(Mutant::NoFence)
    }
}

/// Silence of one worker as one observer has measured it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Silence {
    /// Summed over successful polls without news.
    pub span: Duration,
    /// How many successful polls without news there were.
    pub polls: u32,
    last_ok: Option<Duration>,
}

impl Silence {
    /// Takes note of a successful poll at `now`. The time since the poll before counts if that one succeeded too, and at most
    /// `gap_max` of it: the observer may have been suspended.
    pub fn polled(&mut self, now: Duration, grew: bool, gap_max: Duration) {
        if grew {
            *self = Self::default();
        } else if let Some(last) = self.last_ok {
            self.span += now.saturating_sub(last).min(gap_max);
            self.polls += 1;
        }
        self.last_ok = Some(now);
    }

    /// Takes note of a poll that failed: the time around it does not count.
    pub fn failed(&mut self) {
        self.last_ok = None;
    }

    /// Begins anew, as the storm brake demands.
    pub fn restart(&mut self) {
        *self = Self::default();
    }
}

/// What trying the lock of a worker's namespace gave an observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockSeen {
    /// Not tried since the worker fell silent.
    #[default]
    Untried,
    /// Somebody holds it.
    Refused,
    /// It was free.
    Free,
    /// No locks here, or no answer.
    Unknown,
}

/// All that an observer knows about a worker's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What this host says about the process that runs tasks.
    pub worker: Liveness,
    /// The same about its keeper; `None` if it has none.
    pub keeper: Option<Liveness>,
    /// Whether its keeper has started another worker since, which it does only when nothing of this one is left.
    pub has_successor: bool,
    /// What its lock says now.
    pub lock: LockSeen,
    /// Whether this very lock has refused this very observer while the journal grew.
    pub lock_has_refused: bool,
    /// How long its journal has been silent.
    pub silence: Silence,
    /// The self-fence time that its `HELLO` states, milliseconds.
    pub self_fence_ms: u64,
}

/// What an observation means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may get work.
    Alive,
    /// It gets no new work; its lock may be tried.
    Suspect,
    /// It is over.
    Dead(Evidence),
}

/// What a death rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Its processes are gone from this host. What is left of its tasks has to be ended before it is declared lost.
    Processes,
    /// Its keeper has started another worker since.
    Successor,
    /// Its lock, which had refused this observer before, is free, and its journal is silent.
    Lock,
    /// Its lease has run out in silence.
    Silence,
}

/// Successful polls without news that any verdict by silence needs.
const SILENT_POLLS_MIN: u32 = 3;

/// The silence after which a worker is dead: the longer of the queue's lease and what the worker's own self-fence time needs.
pub fn lease(limits: &Limits, self_fence_ms: u64) -> Duration {
    if mutant::is(Mutant::LostAtOnce) {
        return Limits::span(limits.suspect_ms);
    }
    if mutant::is(Mutant::IgnoreFence) {
        return Limits::span(limits.lease_ms);
    }
    let needed = self_fence_ms.saturating_add(limits.grace_ms).saturating_add(self_fence_ms / 50);
    Limits::span(limits.lease_ms.max(needed))
}

/// Judges a worker by the strongest evidence there is.
pub fn judge(seen: &Observation, limits: &Limits) -> Verdict {
    if mutant::is(Mutant::LockAlone) && seen.lock == LockSeen::Free {
        return Verdict::Dead(Evidence::Lock);
    }
    if seen.has_successor {
        return Verdict::Dead(Evidence::Successor);
    }
    let is_gone = seen.worker == Liveness::Gone && seen.keeper.is_none_or(|keeper| keeper == Liveness::Gone);
    if is_gone {
        match seen.lock {
            LockSeen::Free | LockSeen::Unknown => return Verdict::Dead(Evidence::Processes),
            LockSeen::Untried => return Verdict::Suspect,
            // A process of its tasks may still hold it; then time decides.
            LockSeen::Refused => {}
        }
    }
    let is_silent = |span: Duration| seen.silence.span >= span && seen.silence.polls >= SILENT_POLLS_MIN;
    let is_suspect = is_silent(Limits::span(limits.suspect_ms));
    if is_silent(lease(limits, seen.self_fence_ms)) {
        Verdict::Dead(Evidence::Silence)
    } else if is_suspect && seen.lock == LockSeen::Free && seen.lock_has_refused {
        Verdict::Dead(Evidence::Lock)
    } else if is_suspect || is_gone {
        Verdict::Suspect
    } else {
        Verdict::Alive
    }
}

/// Holds an observer back once when most workers look silent: then it is likelier that the observer sees badly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StormBrake {
    is_spent: bool,
}

impl StormBrake {
    /// Says whether all timers have to be restarted now, given how many of the `watched` workers are silent for the time of
    /// suspicion, and from how many nothing at all was heard since the timers were last restarted.
    ///
    /// It delays once and never vetoes: after that the normal rule holds until at least half were heard again.
    pub fn pull(&mut self, watched: usize, silent: usize, unheard: usize) -> bool {
        if self.is_spent {
            self.is_spent = unheard * 2 > watched;
            return false;
        }
        self.is_spent = silent * 2 > watched;
        self.is_spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn silent(seconds: u64) -> Observation {
        Observation {
            worker: Liveness::Unknown,
            keeper: Some(Liveness::Unknown),
            has_successor: false,
            lock: LockSeen::Untried,
            lock_has_refused: false,
            silence: Silence { span: s(seconds), polls: 10, last_ok: None },
            self_fence_ms: 120_000,
        }
    }

    fn check(seen: &Observation, expected: Verdict) {
        assert_eq!(judge(seen, &Limits::default()), expected, "{seen:?}");
    }

    #[test]
    fn what_becomes_durable_too_late_does_not_renew_a_lease() {
        let mut lease = OwnLease::new(&Limits::default(), s(1000));
        lease.prove(s(1121), s(15));
        assert!(lease.is_over(s(1121)));
        assert!(lease.is_over(s(1122)));
    }

    #[test]
    fn the_age_of_a_worker_counts_from_before_its_last_durable_line() {
        let mut lease = OwnLease::new(&Limits::default(), s(1000));
        lease.prove(s(1010), s(15));
        assert_eq!(lease.fence_at(), s(1130));
        assert!(!lease.is_over(s(1129)));
        assert!(lease.is_over(s(1130)));
        assert!(lease.is_beat_due(s(1025)));
        lease.prove(s(1005), s(15));
        assert_eq!(lease.fence_at(), s(1130), "an older proof takes nothing back");
    }

    #[test]
    fn a_worker_with_a_successor_is_over_at_once() {
        check(&Observation { has_successor: true, ..silent(0) }, Verdict::Dead(Evidence::Successor));
    }

    #[test]
    fn silence_alone_kills_after_the_lease_only() {
        check(&silent(59), Verdict::Alive);
        check(&silent(60), Verdict::Suspect);
        check(&silent(299), Verdict::Suspect);
        check(&silent(300), Verdict::Dead(Evidence::Silence));
    }

    #[test]
    fn the_longer_self_fence_of_a_worker_is_waited_for() {
        let seen = Observation { self_fence_ms: 600_000, ..silent(300) };
        check(&seen, Verdict::Suspect);
        // 600 s, 10 s of grace and 2 % for clocks.
        check(&Observation { silence: silent(621).silence, ..seen.clone() }, Verdict::Suspect);
        check(&Observation { silence: silent(622).silence, ..seen }, Verdict::Dead(Evidence::Silence));
    }

    #[test]
    fn few_polls_prove_nothing_whatever_time_has_passed() {
        let mut seen = silent(10_000);
        seen.silence.polls = 2;
        check(&seen, Verdict::Alive);
    }

    #[test]
    fn a_free_lock_counts_only_if_it_has_refused_this_observer() {
        let free = Observation { lock: LockSeen::Free, ..silent(60) };
        check(&free, Verdict::Suspect);
        check(&Observation { lock_has_refused: true, ..free }, Verdict::Dead(Evidence::Lock));
    }

    #[test]
    fn a_free_lock_of_a_worker_that_still_speaks_means_nothing() {
        check(&Observation { lock: LockSeen::Free, lock_has_refused: true, ..silent(20) }, Verdict::Alive);
    }

    #[test]
    fn processes_gone_from_this_host_are_enough_once_the_lock_was_tried() {
        let gone = Observation { worker: Liveness::Gone, keeper: Some(Liveness::Gone), ..silent(0) };
        check(&gone, Verdict::Suspect);
        check(&Observation { lock: LockSeen::Free, ..gone.clone() }, Verdict::Dead(Evidence::Processes));
        check(&Observation { lock: LockSeen::Unknown, ..gone.clone() }, Verdict::Dead(Evidence::Processes));
        check(&Observation { lock: LockSeen::Refused, ..gone.clone() }, Verdict::Suspect);
        check(&Observation { keeper: None, lock: LockSeen::Free, ..gone }, Verdict::Dead(Evidence::Processes));
    }

    #[test]
    fn a_keeper_that_lives_keeps_its_worker_alive() {
        let seen =
            Observation { worker: Liveness::Gone, keeper: Some(Liveness::Alive), lock: LockSeen::Free, ..silent(0) };
        check(&seen, Verdict::Alive);
    }

    #[test]
    fn failed_polls_and_pauses_of_the_observer_do_not_count_as_silence() {
        let mut silence = Silence::default();
        silence.polled(s(0), true, s(30));
        silence.polled(s(10), false, s(30));
        assert_eq!(silence.span, s(10));
        silence.failed();
        silence.polled(s(100), false, s(30));
        assert_eq!(silence.span, s(10));
        silence.polled(s(5000), false, s(30));
        assert_eq!(silence.span, s(40), "a suspended observer");
        silence.polled(s(5001), true, s(30));
        assert_eq!((silence.span, silence.polls), (s(0), 0));
    }

    #[test]
    fn the_storm_brake_delays_once_and_never_vetoes() {
        let mut brake = StormBrake::default();
        assert!(!brake.pull(10, 5, 5), "half is no storm");
        assert!(brake.pull(10, 6, 6));
        assert!(!brake.pull(10, 0, 10), "timers that were just restarted are no sign of life");
        assert!(!brake.pull(10, 6, 6), "the second time the rule holds");
        assert!(!brake.pull(10, 2, 2));
        assert!(brake.pull(10, 9, 9), "a new storm is a new storm");
    }

    #[test]
    fn the_only_worker_of_a_queue_is_lost_after_one_delay() {
        let mut brake = StormBrake::default();
        assert!(brake.pull(1, 1, 1));
        assert!(!brake.pull(1, 0, 1));
        assert!(!brake.pull(1, 1, 1));
    }
}
