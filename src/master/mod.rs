//! The master: one step function that follows the decisions of another, or leads (spec: ordering, "A term"; leases, "Masters").
//!
//! Any number of masters may run. Each step reads what is new, decides, commits and only then lets its decisions show.
//!
//! Invariants:
//! - Nothing is externalised (mail, removals) but on the strength of decisions of the own term that are proved won, and none
//!   before the own `lead` decision is bound.
//! - While a candidate is in doubt nothing new is decided.
//! - Every operation is applied to a working copy of the state before it is proposed, so that a proposal never contradicts the
//!   chain; what is not won is forgotten, and read again from where the settled state stands.
//! - Nothing here waits: a step returns when it wants to be called again.

mod chores;
mod collect;
mod follow;
mod intake;
mod lead;
mod observe;
mod overdue;
mod pace;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::{Chance, Clock};
use crate::decision::{ChainError, Writer};
use crate::fs::Fs;
use crate::process::Host;
use crate::protocol::id::WorkerId;
use crate::protocol::record::QueueFile;
use crate::state::State;

pub use chores::{Chore, Report, SurveyNo};

use follow::Follow;
use lead::Lead;

/// The world as a master sees it.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The files of the queue.
    pub fs: &'a dyn Fs,
    /// The time of this host.
    pub clock: &'a dyn Clock,
    /// Chance.
    pub chance: &'a dyn Chance,
    /// The processes of this host.
    pub host: &'a dyn Host,
}

impl fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env")
    }
}

/// What a master is told when it starts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its own incarnation; that of the worker whose process it shares, or one of its own.
    pub me: WorkerId,
    /// Whether to nudge quiet directories: other hosts may look through mounts whose listings miss a change within one tick of
    /// the server's clock (`NFSv3`), whatever this host's mount is.
    pub nudges: bool,
}

/// What woke a master early: where something has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A manifest was submitted.
    Jobs,
    /// A request was made.
    Control,
    /// A worker came or went.
    Workers,
    /// A worker wrote to its journal.
    Journal(WorkerId),
    /// The head moved.
    Head,
}

/// What a step came to.
#[derive(Debug)]
pub struct Step {
    /// Boot time at which the next step is due; earlier calls are harmless.
    pub next: Duration,
    /// Files to be removed by the janitor, whenever and however often it likes; errors do not matter.
    pub removals: Vec<PathBuf>,
    /// Work for the janitor beyond single files.
    pub chores: Vec<Chore>,
    /// Things that a person may want to read in the log.
    pub notes: Vec<String>,
    /// The queue cannot be led or followed any further by this process.
    pub halt: Option<Halt>,
}

/// Why a master stops for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// The chain of decisions cannot be followed.
    Chain(ChainError),
    /// An invariant of the program is broken.
    Internal(String),
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(e) => e.fmt(f),
            Self::Internal(why) => write!(f, "internal error: {why}"),
        }
    }
}

impl std::error::Error for Halt {}

/// One master.
#[derive(Debug)]
pub struct Master {
    file: QueueFile,
    options: Options,
    writer: Option<Writer>,
    /// Since when, by how many looks and why the chain could not be read.
    blind: Option<(Duration, ChainError)>,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Follow(Follow),
    Lead(Box<Lead>),
}

/// What the two roles add to while they step.
#[derive(Debug, Default)]
struct Outcome {
    removals: Vec<PathBuf>,
    chores: Vec<Chore>,
    notes: Vec<String>,
}

/// What a role wants next.
enum Next {
    /// To be called again at this boot time.
    At(Duration),
    /// To lead, since its `lead` decision of this term is bound.
    Lead,
    /// To follow, since another one leads.
    Follow,
    /// The chain could not be read.
    Blind(ChainError),
    /// To stop.
    Halt(Halt),
}

impl Master {
    /// Makes a master that follows at first.
    pub fn new(file: QueueFile, options: Options, now: Duration) -> Self {
        Self { file, options, writer: None, blind: None, role: Role::Follow(Follow::new(now)) }
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Lead(_))
    }

    /// The settled state as it knows it; a follower's may be old.
    pub fn state(&self) -> Option<&State> {
        self.writer.as_ref().map(Writer::state)
    }

    /// Makes the next step look at once where something has changed.
    pub fn hint(&mut self, hint: &Hint) {
        match &mut self.role {
            Role::Lead(lead) => lead.hint(hint),
            Role::Follow(follow) => follow.hint(hint),
        }
    }

    /// Takes what the janitor has found; the next step acts on it.
    pub fn report(&mut self, report: Report) {
        if let Role::Lead(lead) = &mut self.role {
            lead.collect.take_report(report);
        }
    }

    /// Looks, decides, commits, lets it show. Never waits longer than single file operations take.
    pub fn step(&mut self, env: Env) -> Step {
        let mut out = Outcome::default();
        let now = env.clock.boot();
        let next = self.turn(env, &mut out);
        let mut halt = None;
        let at = match next {
            Next::At(at) => {
                self.blind = None;
                at
            }
            Next::Lead => {
                self.blind = None;
                let writer = self.writer.as_ref();
                if let Some(state) = writer.map(Writer::state) {
                    out.notes.push(format!("leads in term {}", state.term));
                    self.role = Role::Lead(Box::new(Lead::new(state, &self.options, now)));
                }
                now
            }
            Next::Follow => {
                let is_led = self.writer.as_ref().is_some_and(|writer| writer.state().master.is_some());
                let by = if is_led { "another master leads" } else { "nobody leads" };
                out.notes.push(format!("{by}; this one follows"));
                self.role = Role::Follow(Follow::new(now));
                now
            }
            Next::Blind(error) => {
                let since = self.blind.as_ref().map_or(now, |(since, _)| *since);
                if let (ChainError::Fs(e), None | Some((_, ChainError::NoHead | ChainError::Several(_)))) =
                    (&error, &self.blind)
                {
                    out.notes.push(format!("{e}: trying again until it works"));
                }
                let visible = self.state().map_or(90_000, |s| s.limits.visible_ms);
                let is_missing =
                    matches!(error, ChainError::Missing { .. } | ChainError::NoHead | ChainError::Several(_));
                if !error.may_pass() || (is_missing && now.saturating_sub(since) > Duration::from_millis(visible)) {
                    halt = Some(Halt::Chain(error.clone()));
                }
                self.blind = Some((since, error));
                now + env.chance.jitter(Duration::from_millis(500))
            }
            Next::Halt(why) => {
                halt = Some(why);
                now + Duration::from_secs(1)
            }
        };
        Step { next: at, removals: out.removals, chores: out.chores, notes: out.notes, halt }
    }

    fn turn(&mut self, env: Env, out: &mut Outcome) -> Next {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => match Writer::open(env.fs, env.chance, &self.file) {
                Ok(writer) => none.insert(writer),
                Err(e) => return Next::Blind(e),
            },
        };
        match &mut self.role {
            Role::Follow(follow) => follow.step(env, writer, &self.options, out),
            Role::Lead(lead) => lead.step(env, writer, &self.file, &self.options, out),
        }
    }

    /// Gives up leading in order, so that another master takes over at once. Says whether that is settled, which it is for a
    /// follower; while a decision is in doubt it is not, and has to be asked for again.
    pub fn abdicate(&mut self, env: Env) -> bool {
        let (Role::Lead(lead), Some(writer)) = (&mut self.role, &mut self.writer) else { return true };
        // What it would let show besides is done by its successor, as after a crash.
        let done = lead.abdicate(env, writer, &self.options, &mut Outcome::default()).unwrap_or(true);
        if done {
            self.role = Role::Follow(Follow::new(env.clock.boot()));
        }
        done
    }
}

#[cfg(test)]
mod tests;
