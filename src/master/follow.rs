//! A master that does not lead: it watches the one that does, and stands when there is none.

use std::time::Duration;

use crate::beacon::Tail;
use crate::clock::Chance;
use crate::decision::{Author, ChainError, Commit, Writer};
use crate::lease::Silence;
use crate::process::Liveness;
use crate::protocol::id::DecisionId;
use crate::protocol::record::{BeaconLine, Limits, Op};
use crate::state::Leader;

use super::{Env, Halt, Hint, Next, Options, Outcome};

/// Looks without news that a takeover by silence needs.
const SILENT_LOOKS_MIN: u32 = 6;
/// How long a process of a fresh or abdicated queue waits at most before it stands, so that not all stand at once.
const STAND_SPREAD: Duration = Duration::from_millis(200);

/// What a follower remembers.
#[derive(Debug)]
pub(super) struct Follow {
    look_at: Duration,
    /// The newest head and the beat of the beacon.
    seen: Option<(DecisionId, u64)>,
    beacon: Option<Tail>,
    silence: Silence,
    /// When it stands, once there is no leader.
    stand_at: Option<Duration>,
    quiet_since: Duration,
}

impl Follow {
    pub(super) fn new(now: Duration) -> Self {
        Self { look_at: now, seen: None, beacon: None, silence: Silence::default(), stand_at: None, quiet_since: now }
    }

    pub(super) fn hint(&mut self, hint: &Hint) {
        // A follower has no interest in every single decision; without a leader it has.
        if *hint == Hint::Head && self.stand_at.is_some() {
            self.look_at = Duration::ZERO;
        }
    }

    pub(super) fn step(&mut self, env: Env, writer: &mut Writer, options: &Options, out: &mut Outcome) -> Next {
        let now = env.clock.boot();
        if writer.is_in_doubt() {
            let commit = writer.push(env.fs, env.chance);
            return self.stood(env, writer, options, commit);
        }
        let leader = writer.state().master.clone();
        if let Some(leader) = &leader {
            // The strongest evidence costs nothing and needs no look at files.
            if env.host.liveness(&leader.identity) == Liveness::Gone && self.stand_at.is_none() {
                out.notes.push(format!("the master {} is gone from this host", leader.w));
                self.stand_at = Some(now + env.chance.jitter(STAND_SPREAD / 2));
                self.look_at = now;
            }
        } else if self.stand_at.is_none() {
            self.stand_at = Some(now + spread(env.chance, STAND_SPREAD));
            self.look_at = now;
        }
        if now >= self.look_at {
            // A beacon that goes on tells enough: somebody leads, whatever was decided meanwhile.
            let line = leader.as_ref().and_then(|leader| self.look_at_beacon(env, writer.state().term, leader));
            let beat = line.as_ref().map_or(0, |line| line.beat);
            let goes_on = self.stand_at.is_none() && self.seen.is_some_and(|(_, seen)| beat > seen);
            if !goes_on && let Err(e) = writer.refresh(env.fs, env.chance) {
                self.silence.failed();
                return Next::Blind(e);
            }
            self.judge(env, writer, leader.as_ref(), line, out);
        }
        if self.stand_at.is_some_and(|at| now >= at) {
            return self.stand(env, writer, options);
        }
        let alone = Duration::from_secs(1);
        let at = self.stand_at.unwrap_or(self.look_at).min(self.look_at).min(now + alone);
        Next::At(at)
    }

    fn look_at_beacon(&mut self, env: Env, term: u64, leader: &Leader) -> Option<BeaconLine> {
        let tail = match &mut self.beacon {
            Some(tail) if tail.is_of(term, leader.lead) => tail,
            other => other.insert(Tail::new(term, leader.lead)),
        };
        tail.look(env.fs).ok().flatten().cloned()
    }

    /// Takes note of what a look shows, and decides whether to stand and when to look again. `line` is the last one of the
    /// beacon of the leader `before` the look.
    fn judge(
        &mut self,
        env: Env,
        writer: &Writer,
        before: Option<&Leader>,
        line: Option<BeaconLine>,
        out: &mut Outcome,
    ) {
        let now = env.clock.boot();
        let state = writer.state();
        let limits = &state.limits;
        let takeover = Limits::span(limits.takeover_ms);
        let brisk = (takeover / 8).max(Duration::from_millis(20));
        let Some(leader) = &state.master else {
            self.look_at = now + Duration::from_millis(200);
            return;
        };
        let line = line.filter(|_| before == Some(leader));
        if before != Some(leader) {
            self.stand_at = None;
            self.silence.restart();
            self.seen = None;
        }
        // A beacon that cannot be read at the moment is no sign of anything.
        let known = self.seen.map_or(0, |(_, beat)| beat);
        let (head, beat) = line.map_or((state.at, known), |line| (line.head.max(state.at), line.beat));
        let has_moved = self.seen.is_none_or(|(seen, _)| seen != head);
        let grew = self.seen != Some((head, beat));
        self.seen = Some((head, beat));
        if has_moved {
            self.quiet_since = now;
        }
        if grew && env.host.liveness(&leader.identity) != Liveness::Gone {
            self.stand_at = None;
        }
        self.silence.polled(now, grew, takeover);
        let is_over = self.silence.span > takeover && self.silence.polls >= SILENT_LOOKS_MIN;
        if is_over && self.stand_at.is_none() {
            out.notes.push(format!("the master {} has been silent for {} s", leader.w, self.silence.span.as_secs()));
            self.stand_at = Some(now + spread(env.chance, takeover / 4));
        }
        // As long as each look shows a new beat, a look every few beats is enough.
        let beat = Limits::span(limits.beat_ms);
        let calm = match now.saturating_sub(self.quiet_since) {
            _ if !grew || has_moved => brisk,
            quiet if quiet > Duration::from_secs(300) => (beat * 4).max(brisk),
            _ => (beat * 2).max(brisk),
        };
        self.look_at = now + env.chance.jitter(calm);
    }

    fn stand(&mut self, env: Env, writer: &mut Writer, options: &Options) -> Next {
        let state = writer.state();
        let term = state.term + 1;
        let id = writer.next_id(env.chance);
        let author = Author { by: options.me.clone(), term, at_ms: env.clock.wall_ms() };
        let lead = Op::Lead { term, master: options.me.clone(), identity: env.host.me() };
        let commit = writer.commit(env.fs, env.chance, &author, id, vec![lead]);
        self.stood(env, writer, options, commit)
    }

    fn stood(&mut self, env: Env, writer: &Writer, options: &Options, commit: Commit) -> Next {
        let now = env.clock.boot();
        match commit {
            Commit::Won => {
                let leads = writer.state().master.as_ref().is_some_and(|m| m.w == options.me);
                if leads { Next::Lead } else { Next::Halt(Halt::Internal("a won lead decision did not count".into())) }
            }
            Commit::Lost => {
                self.stand_at = None;
                self.silence.restart();
                self.look_at = now;
                Next::At(now)
            }
            Commit::InDoubt => Next::At(now + env.chance.jitter(Duration::from_millis(100))),
            Commit::Unknown(e) => Next::Blind(e),
            Commit::NotTried(e) => {
                self.stand_at = Some(now + env.chance.jitter(Duration::from_secs(1)));
                Next::Blind(ChainError::Fs(e))
            }
        }
    }
}

/// A random part of `span`.
fn spread(chance: &dyn Chance, span: Duration) -> Duration {
    let ms = u64::try_from(span.as_millis()).unwrap_or(0).max(1);
    Duration::from_millis(chance.bits() % ms)
}
