//! Simulated children: each follows a script given by the harness, and every start and end is recorded for the checkers.

use std::time::Duration;

use crate::process::{
    Child, End, Event, Group, Host, Identity, Launch, Liveness, Process, SetupFailure, Signal, Started, Status, Stream,
    Usage,
};

use super::cluster::{HostId, ProcId};
use super::world::Shared;

/// What a child does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildScript {
    /// How long it runs if nobody ends it.
    pub run: Duration,
    /// How it ends then.
    pub status: Status,
    /// What it writes, and how long after its start, in order.
    pub output: Vec<(Duration, Stream, Vec<u8>)>,
    /// Instead of all this, its start fails.
    pub setup_failure: Option<SetupFailure>,
    /// Whether only `SIGKILL` ends it.
    pub ignores_term: bool,
}

impl ChildScript {
    /// Runs for `run` and exits with `code`.
    pub fn exit(code: i32, run: Duration) -> Self {
        Self { run, status: Status::Exit(code), output: Vec::new(), setup_failure: None, ignores_term: false }
    }

    /// Adds standard output written `after` its start.
    #[must_use]
    pub fn prints(mut self, after: Duration, text: &str) -> Self {
        self.output.push((after, Stream::Stdout, text.as_bytes().to_vec()));
        self
    }

    /// Reads the script from the arguments, for harnesses without a hook of their own:
    /// `sim [exit CODE] [after MS] [print TEXT]`, in any order; anything else exits with 0 after 10 ms.
    pub fn from_argv(argv: &[Vec<u8>]) -> Self {
        let words: Vec<String> = argv.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect();
        let value = |key: &str| words.iter().position(|w| w == key).and_then(|i| words.get(i + 1));
        let number = |key: &str, default: u64| value(key).and_then(|v| v.parse().ok()).unwrap_or(default);
        let mut script = Self::exit(number("exit", 0) as i32, Duration::from_millis(number("after", 10)));
        if let Some(text) = value("print") {
            script = script.prints(Duration::ZERO, text);
        }
        script
    }
}

/// One run of a child, as the checkers see it. Times are true simulated time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRun {
    /// Where it ran.
    pub host: HostId,
    /// Which process started it.
    pub process: ProcId,
    /// The token of its launch.
    pub token: String,
    /// Its arguments.
    pub argv: Vec<Vec<u8>>,
    /// When it started.
    pub started: Duration,
    /// When it ended; `None` while it runs.
    pub ended: Option<Duration>,
    /// How it ended.
    pub status: Option<Status>,
}

#[derive(Debug)]
pub(super) struct ChildState {
    pub(super) run: ChildRun,
    pub(super) script: ChildScript,
    pub(super) pid: u32,
    pub(super) ticks: u64,
    pub(super) started_at: u64,
    /// When it will have ended by itself or by a signal.
    pub(super) ends_at: u64,
    pub(super) ends_with: Status,
    pub(super) ended_at: Option<u64>,
    written: usize,
    /// Bytes of the next chunk already taken.
    taken: usize,
    reported: bool,
}

impl ChildState {
    pub(super) fn new(run: ChildRun, script: ChildScript, pid: u32, ticks: u64, now: u64) -> Self {
        let ends_at = now + script.run.as_nanos() as u64;
        Self {
            run,
            pid,
            ticks,
            started_at: now,
            ends_at,
            ends_with: script.status,
            ended_at: None,
            written: 0,
            taken: 0,
            reported: false,
            script,
        }
    }

    pub(super) fn end(&mut self, now: u64, status: Status) {
        if self.ended_at.is_none() {
            self.ended_at = Some(now);
            self.run.ended = Some(Duration::from_nanos(now));
            self.run.status = Some(status);
        }
    }

    /// Whether its process has been told of its end.
    pub(super) fn is_reported(&self) -> bool {
        self.reported
    }

    /// Takes what it has written up to `now` and its end, at most `room` bytes.
    pub(super) fn collect(&mut self, child: Child, now: u64, room: &mut usize, events: &mut Vec<Event>) {
        let until = self.ended_at.unwrap_or(now);
        while let Some((after, stream, bytes)) = self.script.output.get(self.written) {
            if self.started_at + after.as_nanos() as u64 > until {
                break;
            }
            let rest = &bytes[self.taken..];
            let take = rest.len().min(*room);
            if take > 0 {
                events.push(Event::Output { child, stream: *stream, bytes: rest[..take].to_vec() });
                *room -= take;
            }
            if take < rest.len() {
                self.taken += take;
                return;
            }
            self.written += 1;
            self.taken = 0;
        }
        if let (Some(at), false) = (self.ended_at, self.reported) {
            self.reported = true;
            let elapsed = Duration::from_nanos(at - self.started_at);
            let end = End {
                status: self.run.status.unwrap_or(self.ends_with),
                out_of_memory: false,
                leftovers: 0,
                elapsed,
                usage: Usage::default(),
            };
            events.push(Event::Ended { child, end });
        }
    }
}

/// The children of one simulated process.
#[derive(Debug, Clone)]
pub struct SimProcess {
    pub(super) shared: Shared,
    pub(super) process: u32,
}

impl Process for SimProcess {
    fn start(&mut self, launch: &Launch) -> Result<Started, SetupFailure> {
        self.shared.lock().start_child(self.process, launch)
    }

    fn poll(&mut self, output_max: usize) -> Vec<Event> {
        let mut world = self.shared.lock();
        let stuck = world.spin(self.process);
        let events = world.poll_children(self.process, output_max);
        drop(world);
        assert!(!stuck, "a simulated process polls its children without ever sleeping");
        events
    }

    fn signal(&mut self, child: Child, signal: Signal) {
        self.shared.lock().signal_child(self.process, child, signal);
    }
}

/// What a simulated process knows of the processes of its host.
#[derive(Debug, Clone)]
pub struct SimHost {
    pub(super) shared: Shared,
    pub(super) process: u32,
}

impl Host for SimHost {
    fn me(&self) -> Identity {
        self.shared.lock().identity(self.process)
    }

    fn liveness(&self, who: &Identity) -> Liveness {
        self.shared.lock().liveness(self.process, who)
    }

    fn end_leftovers(&self, groups: &[Group]) -> usize {
        self.shared.lock().end_leftovers(self.process, groups)
    }
}
