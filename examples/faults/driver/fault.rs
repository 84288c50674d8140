//! What is done to whom at which call, and how `strace` is told to do it.
//!
//! `strace` counts the calls of each thread by itself. So the calls of a process that starts others are told apart by letting go of
//! everybody who executes a program, and those of the janitor, a thread beside the master's, by watching that thread alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// Who is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// The process that runs tasks.
    Worker,
    /// The one that watches over it.
    Keeper,
    /// `fq master`, all of its threads.
    Master,
    /// The thread of `fq master` that removes and renders.
    Janitor,
    /// A process that runs tasks and leads, all of its threads; there is no other.
    Leader,
}

impl Role {
    /// What people call it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Keeper => "keeper",
            Self::Master => "master",
            Self::Janitor => "janitor",
            Self::Leader => "leader",
        }
    }

    /// Whether `fq worker` is hit, with a live `fq master` beside it unless it leads; else it is the other way round.
    pub(crate) fn is_of_worker(self) -> bool {
        matches!(self, Self::Worker | Self::Keeper | Self::Leader)
    }

    /// Whether it is started by a keeper.
    pub(crate) fn has_keeper(self) -> bool {
        matches!(self, Self::Worker | Self::Leader)
    }
}

/// What the kernel does instead of what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// It kills the process; the call is not executed.
    Kill,
    /// It refuses with this error.
    Error(String),
    /// It does nothing and reports success.
    Lie,
    /// It begins only after ten seconds.
    Hang,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "SIGKILL",
            Self::Error(name) => name,
            Self::Lie => "lies",
            Self::Hang => "hangs",
        })
    }
}

/// Which calls are hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum When {
    /// That one, counted from 1 in each thread.
    Only(u64),
    /// That one and all that follow.
    From(u64),
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Who makes the call.
    pub(crate) role: Role,
    /// The call, by the kernel's name.
    pub(crate) call: String,
    /// What happens to it.
    pub(crate) effect: Effect,
    /// To which.
    pub(crate) when: When,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, call, effect, when } = self;
        let role = role.word();
        match when {
            When::Only(k) => write!(f, "{role}-{call}-{effect}-{k}"),
            When::From(k) => write!(f, "{role}-{call}-{effect}-from-{k}"),
        }
    }
}

/// What `strace` is to do: to hit, or to write down the calls of these names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order<'a> {
    /// Hit.
    Hit(&'a Fault),
    /// Write down.
    Record(&'a [&'a str]),
}

impl Order<'_> {
    /// The arguments of `strace` before the program or process that it is to watch.
    pub(crate) fn arguments(&self, trace: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["-y", "-e", "signal=none", "-o"].map(OsString::from).into();
        words.push(trace.into());
        let calls = match self {
            Self::Hit(fault) => fault.call.clone(),
            Self::Record(calls) => calls.iter().map(|call| format!("?{call}")).collect::<Vec<_>>().join(","),
        };
        words.extend(["-e".into(), format!("trace={calls}").into()]);
        if let Self::Hit(fault) = self {
            let what = match &fault.effect {
                Effect::Kill => "signal=SIGKILL".to_owned(),
                Effect::Error(name) => format!("error={name}"),
                Effect::Lie => "retval=0".to_owned(),
                Effect::Hang => "delay_enter=10s".to_owned(),
            };
            let when = match fault.when {
                When::Only(k) => k.to_string(),
                When::From(k) => format!("{k}+"),
            };
            words.extend(["-e".into(), format!("inject={calls}:{what}:when={when}").into()]);
        }
        words
    }
}

/// What a trace tells about a fault that does not kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// The call was not made so often.
    Nothing,
    /// The call.
    Call,
    /// A call on something inside the kernel, such as a counter, which never fails in this way.
    Kernel,
}

impl Met {
    /// Reads it from the trace.
    pub(crate) fn of(fault: &Fault, trace: &str) -> Self {
        if fault.effect == Effect::Hang {
            // A process may end while it hangs.
            let (When::Only(k) | When::From(k)) = fault.when;
            let is_made = counts(trace).get(&fault.call).is_some_and(|&n| n >= k);
            return if is_made { Self::Call } else { Self::Nothing };
        }
        let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
        for line in trace.lines() {
            let (thread, rest) = split_thread(line);
            if !rest.starts_with('<') {
                begun.insert(thread, rest);
            }
            if rest.ends_with("(INJECTED)") {
                let is_inner = begun.get(thread).is_some_and(|call| call.contains("<anon_inode:"));
                return if is_inner { Self::Kernel } else { Self::Call };
            }
        }
        Self::Nothing
    }
}

/// Splits a line into the thread's number, which is not there if only one is watched, and the rest.
fn split_thread(line: &str) -> (&str, &str) {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    (&line[..line.len() - rest.len()], rest.trim_start())
}

/// How often each call was made, by the thread that made it most often.
pub(crate) fn counts(trace: &str) -> BTreeMap<String, u64> {
    let mut threads: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for line in trace.lines() {
        let (thread, rest) = split_thread(line);
        if let Some((call, _)) = rest.split_once('(')
            && !call.is_empty()
            && call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            *threads.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((call, _), n) in threads {
        let known: &mut u64 = most.entry(call.to_owned()).or_default();
        *known = n.max(*known);
    }
    most
}
