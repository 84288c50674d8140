//! A master that does not lead: it watches the one that does, and stands when there is none.

use std::time::Duration;

use crate::clock::Chance;
use crate::decision::{Author, ChainError, Commit, Writer};
use crate::fs::{self, Fs};
use crate::lease::Silence;
use crate::process::Liveness;
use crate::protocol::id::DecisionId;
use crate::protocol::layout;
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
    seen: Option<(DecisionId, u64)>,
    silence: Silence,
    /// When it stands, once there is no leader.
    stand_at: Option<Duration>,
    quiet_since: Duration,
}

impl Follow {
    pub(super) fn new(now: Duration) -> Self {
        Self { look_at: now, seen: None, silence: Silence::default(), stand_at: None, quiet_since: now }
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
            match writer.refresh(env.fs, env.chance) {
                Ok(_) => {}
                Err(e) => {
                    self.silence.failed();
                    return Next::Blind(e);
                }
            }
            self.judge(env, writer, leader.as_ref(), out);
        }
        if self.stand_at.is_some_and(|at| now >= at) {
            return self.stand(env, writer, options);
        }
        let alone = Duration::from_secs(1);
        let at = self.stand_at.unwrap_or(self.look_at).min(self.look_at).min(now + alone);
        Next::At(at)
    }

    /// Takes note of what a look shows, and decides whether to stand and when to look again.
    fn judge(&mut self, env: Env, writer: &Writer, before: Option<&Leader>, out: &mut Outcome) {
        let now = env.clock.boot();
        let state = writer.state();
        let limits = &state.limits;
        let takeover = Limits::span(limits.takeover_ms);
        let brisk = (takeover / 8).max(Duration::from_millis(20));
        let Some(leader) = &state.master else {
            self.look_at = now + Duration::from_millis(200);
            return;
        };
        if before != Some(leader) {
            self.stand_at = None;
            self.silence.restart();
        }
        let beat = last_beat(env.fs, state.term, leader.lead).map_or(0, |line| line.beat);
        let seen = (state.at, beat);
        let grew = self.seen != Some(seen);
        self.seen = Some(seen);
        if grew {
            self.quiet_since = if state.at.generation > 0 && before.is_none() { now } else { self.quiet_since };
            if env.host.liveness(&leader.identity) != Liveness::Gone {
                self.stand_at = None;
            }
        }
        self.silence.polled(now, grew, takeover);
        let is_over = self.silence.span > takeover && self.silence.polls >= SILENT_LOOKS_MIN;
        if is_over && self.stand_at.is_none() {
            out.notes.push(format!("the master {} has been silent for {} s", leader.w, self.silence.span.as_secs()));
            self.stand_at = Some(now + spread(env.chance, takeover / 4));
        }
        // As long as each look shows a new beat, a look every few beats is enough.
        let is_idle = now.saturating_sub(self.quiet_since) > Duration::from_secs(300);
        let calm = if grew && is_idle { Limits::span(limits.beat_ms * 4).max(brisk) } else { brisk };
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

/// The last whole line of a beacon.
pub(super) fn last_beat(fs: &dyn Fs, term: u64, lead: DecisionId) -> Option<BeaconLine> {
    let path = layout::beacon(term, lead);
    let len = fs.open(&path).ok()?.stat().ok()?.len;
    let bytes = fs::read_from(fs, &path, len.saturating_sub(1024)).ok()?;
    let lines: Vec<&[u8]> = bytes.split_inclusive(|&b| b == b'\n').filter(|line| line.ends_with(b"\n")).collect();
    lines.iter().rev().find_map(|line| serde_json::from_slice(line).ok())
}
