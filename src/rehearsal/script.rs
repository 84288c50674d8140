//! What the user of a rehearsal submits and asks for, what the tasks then do, and how each has to end. Pure.

use std::path::PathBuf;
use std::time::Duration;

use crate::process::{Launch, SetupFailure, Status, Step, Stream};
use crate::protocol::id::{JobId, Nonce, Ranges, Target};
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Action, After, Command, Dependency, Manifest, Needs};
use crate::protocol::version::CURRENT;
use crate::sim::ChildScript;

/// Numbers that follow from a seed, apart from those of the world.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x1d8e_4e27_c47d_124f)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the tasks of a job do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Exit with 0 after some time.
    Well,
    /// The same, after more time and while writing all along.
    Long,
    /// Exit with 3.
    Badly,
    /// Fail at the first attempt only.
    Flaky,
    /// Run for ten minutes unless ended.
    Forever,
    /// The same, and ignore `SIGTERM`.
    Stubborn,
    /// Cannot be started.
    NoStart,
}

impl Does {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Well, "well"),
        (Self::Long, "long"),
        (Self::Badly, "badly"),
        (Self::Flaky, "flaky"),
        (Self::Forever, "forever"),
        (Self::Stubborn, "stubborn"),
        (Self::NoStart, "no-start"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(does, _)| *does == self).map_or("", |(_, word)| word)
    }
}

/// What a person asks for after a job was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    Cancel,
    Hold,
    Release,
}

impl Asks {
    pub(super) fn of(self, job: JobId) -> Action {
        let targets = vec![Target { job, indices: None }];
        match self {
            Self::Cancel => Action::Cancel { targets, reason: "not wanted any more".into() },
            Self::Hold => Action::Hold { targets },
            Self::Release => Action::Release { targets },
        }
    }
}

/// One job.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) sub: Nonce,
    tasks: u64,
    does: Does,
    needs: Needs,
    /// The part that it depends on.
    after: Option<(After, usize)>,
    /// Whether standard output is also published to a file of the user's.
    pub(super) publishes: bool,
    /// What is asked of it, and how long after the request or submission before.
    pub(super) asks: Vec<(Duration, Asks)>,
    /// The states in which its tasks may end.
    pub(super) ends: &'static [TaskState],
}

impl Part {
    /// Its manifest, once the numbers of the parts before are known.
    pub(super) fn manifest(&self, numbers: &[JobId]) -> Manifest {
        let mut needs = self.needs.clone();
        needs.after = self
            .after
            .iter()
            .map(|(when, part)| Dependency { when: *when, target: Target { job: numbers[*part], indices: None } })
            .collect();
        Manifest {
            fq: "job".into(),
            version: CURRENT,
            job: JobId(0),
            sub: self.sub,
            name: self.name.into(),
            command: Command::Argv(vec!["task".into(), self.does.word().into()]),
            cwd: "/home".into(),
            env: Vec::new(),
            array: (self.tasks > 1).then(|| Ranges::span(0, self.tasks - 1)),
            entries: None,
            stdin: None,
            stdout: self.publishes.then(|| "%x-%a.out".into()),
            stderr: None,
            needs,
            user: "u".into(),
            host: "c".into(),
            at_ms: 0,
        }
    }

    pub(super) fn indices(&self) -> Vec<Option<u64>> {
        if self.tasks > 1 { (0..self.tasks).map(Some).collect() } else { vec![None] }
    }

    /// The file that a task publishes.
    pub(super) fn file(&self, index: Option<u64>) -> Option<PathBuf> {
        self.publishes.then(|| PathBuf::from(format!("/home/{}-{}.out", self.name, index.unwrap_or(0))))
    }
}

/// What is submitted in the rehearsal of a seed: 31 tasks.
pub(super) fn parts(seed: u64) -> Vec<Part> {
    use TaskState::{Aborted, Cancelled, Done, Failed, Held};
    let mut dice = Dice::new(seed ^ 0x5ca1_ab1e);
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |name, tasks, does, ends| {
        let sub = Nonce(dice.bits());
        let part = Part {
            name,
            sub,
            tasks,
            does,
            needs: Needs::default(),
            after: None,
            publishes: false,
            asks: Vec::new(),
            ends,
        };
        parts.push(part);
    };
    let secs = Duration::from_secs;
    add("sweep", 8, Does::Well, &[Done]);
    add("long", 2, Does::Long, &[Done]);
    add("flaky", 3, Does::Flaky, &[Done]);
    add("bad", 1, Does::Badly, &[Failed]);
    add("report", 4, Does::Well, &[Done]);
    add("never", 2, Does::Well, &[Aborted]);
    add("sorry", 1, Does::Well, &[Done]);
    add("slow", 1, Does::Forever, &[Failed]);
    add("held", 2, Does::Well, &[Done]);
    add("unwanted", 2, Does::Forever, &[Cancelled]);
    add("stubborn", 1, Does::Stubborn, &[Cancelled]);
    add("regret", 2, Does::Well, &[Cancelled, Done]);
    add("no-start", 1, Does::NoStart, &[Failed]);
    // A request of a client that died may be carried out after those of its successor.
    add("last", 1, Does::Well, &[Done, Held]);
    parts[1].publishes = true;
    parts[2].needs.retries = 1;
    parts[3].needs.retries = 1;
    parts[4].after = Some((After::Ok, 0));
    parts[4].publishes = true;
    parts[5].after = Some((After::Ok, 3));
    parts[6].after = Some((After::NotOk, 3));
    parts[7].needs.time_ms = 2_000;
    parts[8].needs.hold = true;
    parts[8].asks = vec![(secs(dice.below(4)), Asks::Release)];
    parts[9].asks = vec![(secs(dice.below(6)), Asks::Cancel)];
    parts[10].asks = vec![(secs(3), Asks::Cancel)];
    parts[10].needs.priority = 1;
    parts[11].asks = vec![(Duration::ZERO, Asks::Cancel)];
    parts[13].after = Some((After::Any, 9));
    parts[13].asks = vec![(Duration::ZERO, Asks::Hold), (secs(dice.below(5)), Asks::Release)];
    parts
}

/// What is submitted in the small rehearsal: two tasks, of which the second is held, released, and then waits for the first.
pub(super) fn two_tasks() -> Vec<Part> {
    let part = |name, sub| Part {
        name,
        sub: Nonce(sub),
        tasks: 1,
        does: Does::Well,
        needs: Needs::default(),
        after: None,
        publishes: false,
        asks: Vec::new(),
        ends: &[TaskState::Done],
    };
    let mut second = Part { after: Some((After::Ok, 0)), publishes: true, ..part("ab", 2) };
    second.needs.hold = true;
    second.asks = vec![(Duration::from_millis(500), Asks::Release)];
    vec![part("a", 1), second]
}

/// The name and index of a task, out of its environment.
fn who(launch: &Launch) -> (String, Option<u64>, u32) {
    let get = |name: &str| {
        let found = launch.env.iter().find(|(n, _)| n == name.as_bytes());
        found.map(|(_, v)| String::from_utf8_lossy(v).into_owned())
    };
    let index = get("FQ_ARRAY_TASK_ID").and_then(|v| v.parse().ok());
    let attempt = get("FQ_ATTEMPT").and_then(|v| v.parse().ok()).unwrap_or(0);
    (get("FQ_JOB_NAME").unwrap_or_default(), index, attempt)
}

/// What a task writes to a stream when it runs to its end: nothing, a line, or more than fits into the record, a pack or both.
pub(super) fn output(name: &str, index: Option<u64>, stream: Stream) -> Vec<u8> {
    let at = index.unwrap_or(name.len() as u64);
    let lines = match (stream, at % 4) {
        (Stream::Stdout, 0) => 1,
        (Stream::Stdout, 1) => 20,
        (Stream::Stdout, 2) => 300,
        (Stream::Stderr, 3) => 2,
        _ => 0,
    };
    (0..lines).flat_map(|n| format!("{name} {at} line {n}\n").into_bytes()).collect()
}

/// What a child does.
pub(super) fn child(launch: &Launch) -> ChildScript {
    let (name, index, attempt) = who(launch);
    let word = launch.argv.get(1).map(|w| String::from_utf8_lossy(w).into_owned()).unwrap_or_default();
    let does = Does::ALL.iter().find(|(_, w)| *w == word).map_or(Does::Badly, |(does, _)| *does);
    let vary = index.unwrap_or(3) * 7 + name.len() as u64 + u64::from(attempt);
    let run = match does {
        Does::Well | Does::Badly | Does::Flaky => Duration::from_millis(200 + vary % 13 * 300),
        Does::Long => Duration::from_millis(12_000 + vary % 5 * 3000),
        Does::Forever | Does::Stubborn => Duration::from_secs(600),
        Does::NoStart => Duration::ZERO,
    };
    let status = match does {
        Does::Badly => Status::Exit(3),
        Does::Flaky if attempt == 1 => Status::Exit(1),
        _ => Status::Exit(0),
    };
    let mut pieces = Vec::new();
    for stream in [Stream::Stdout, Stream::Stderr] {
        let bytes = output(&name, index, stream);
        let size = bytes.len().div_ceil(3).max(1);
        let times = bytes.chunks(size).zip([run / 10, run / 2, run * 9 / 10]);
        pieces.extend(times.map(|(piece, after)| (after, stream, piece.to_vec())));
    }
    pieces.sort_by_key(|(after, ..)| *after);
    let setup_failure = (does == Does::NoStart).then(|| SetupFailure {
        step: Step::Chdir,
        errno: "ENOENT".into(),
        path: "/home".into(),
    });
    ChildScript { run, status, output: pieces, setup_failure, ignores_term: does == Does::Stubborn }
}
