//! What `/proc` says about processes: who descends from whom, and which attempt a process belongs to.
//!
//! Invariants:
//! - A process is named by its pid *and* its start time; a signal is sent through a pidfd after both were compared, so it cannot
//!   hit a later process with the same pid.
//! - Everything here is a snapshot that is old when it is returned; callers repeat until a look shows nothing more.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The variable whose value is the token of an attempt.
const TOKEN_VARIABLE: &[u8] = b"FQ_ATTEMPT_TOKEN=";

/// The fields of `/proc/<pid>/stat` that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// Start time in clock ticks since boot.
    pub(crate) ticks: u64,
    state: u8,
    threads: u32,
}

impl Stat {
    /// Reads what is known of `pid` now; `None` if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&read(&format!("/proc/{pid}/stat"))?)
    }

    /// Understands one line of `/proc/<pid>/stat`, whose second field is the program's name in parentheses, in which blanks,
    /// parentheses and any other byte may occur.
    fn parse(line: &[u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        let close = line.iter().rposition(|&byte| byte == b')')?;
        let pid = std::str::from_utf8(line.get(..open)?).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // `fields[0]` is field 3 in the numbering of the manual.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            pid,
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            ticks: field(22)?.parse().ok()?,
        })
    }

    /// Understands a line that a test made up.
    #[cfg(test)]
    pub(super) fn parse_for_test(line: &str) -> Self {
        Self::parse(line.as_bytes()).expect("a well-formed line")
    }

    /// Whether it can still do anything. A process whose first thread has ended looks like a zombie while others run.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }
}

/// Reads a small file of the kernel's whole; `None` if it cannot be read, for whatever reason.
pub(super) fn read(path: &str) -> Option<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len();
        bytes.resize(have + 4096.max(have), 0);
        match rustix::io::read(&file, &mut bytes[have..]) {
            Ok(0) => {
                bytes.truncate(have);
                return Some(bytes);
            }
            Ok(n) => bytes.truncate(have + n),
            Err(Errno::INTR) => bytes.truncate(have),
            Err(_) => return None,
        }
    }
}

/// Lists the names in `path` that are numbers.
fn numbers_in(path: &str) -> Vec<u32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(path, flags, Mode::empty()).and_then(Dir::new) else { return Vec::new() };
    dir.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect()
}

/// Lists all processes that this one can see.
pub(crate) fn pids() -> Vec<u32> {
    numbers_in("/proc")
}

/// Lists the threads of `pid`.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// Where the family relations come from: the kernel's lists of children, or, where it was built without them, everybody's
/// parent.
enum Relations {
    Listed,
    Scanned(HashMap<u32, Vec<u32>>),
}

impl Relations {
    fn now() -> Self {
        if read("/proc/thread-self/children").is_some() {
            return Self::Listed;
        }
        let mut children = HashMap::<u32, Vec<u32>>::new();
        for stat in pids().into_iter().filter_map(Stat::of) {
            children.entry(stat.parent).or_default().push(stat.pid);
        }
        Self::Scanned(children)
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        match self {
            Self::Scanned(children) => children.get(&pid).cloned().unwrap_or_default(),
            Self::Listed => {
                let lists = threads(pid).into_iter().map(|thread| list(&format!("/proc/{pid}/task/{thread}/children")));
                lists.flatten().collect()
            }
        }
    }
}

/// Reads one list of children. The kernel leaves some out if others are reaped while it is read, so it is read until two
/// readings agree.
fn list(path: &str) -> Vec<u32> {
    const READINGS_MAX: usize = 5;
    let mut before = None;
    for _ in 0..READINGS_MAX {
        let now = read(path);
        if now == before {
            break;
        }
        before = now;
    }
    let text = before.unwrap_or_default();
    String::from_utf8_lossy(&text).split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Lists the children of `pid`, zombies included. While others come and go, some may be missing.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    Relations::now().children(pid)
}

/// Lists the living descendants of the processes `roots`, parents before children, without the roots.
pub(crate) fn descendants(roots: &[u32]) -> Vec<Stat> {
    let relations = Relations::now();
    let mut found: Vec<Stat> = Vec::new();
    let mut next = roots.to_vec();
    while let Some(pid) = next.pop() {
        for stat in relations.children(pid).into_iter().filter_map(Stat::of) {
            // A pid that comes up twice was used again while we looked.
            if stat.parent == pid && found.iter().all(|other| other.pid != stat.pid) {
                next.push(stat.pid);
                found.push(stat);
            }
        }
    }
    found.retain(Stat::is_alive);
    found
}

/// What the environment that a process was started with says about the attempt it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// The value of `FQ_ATTEMPT_TOKEN`.
    Is(Vec<u8>),
    /// There is none, or it may not be read.
    Missing,
    /// There is no environment: it was cleared, or the process is just executing a program or ending.
    Unclear,
}

impl Token {
    /// Reads it of `pid`.
    pub(crate) fn of(pid: u32) -> Self {
        read(&format!("/proc/{pid}/environ")).map_or(Self::Missing, |environ| Self::parse(&environ))
    }

    fn parse(environ: &[u8]) -> Self {
        let value = environ.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(TOKEN_VARIABLE));
        match value {
            Some(value) if !value.is_empty() => Self::Is(value.to_vec()),
            _ if environ.is_empty() => Self::Unclear,
            _ => Self::Missing,
        }
    }
}

/// Whether `pid` is between two programs, or ending: then it has no arguments either, whatever it did to its environment.
pub(crate) fn is_in_transition(pid: u32) -> bool {
    read(&format!("/proc/{pid}/cmdline")).is_some_and(|arguments| arguments.is_empty())
}

/// What came of sending a signal.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It was sent; the pidfd, where there are such, becomes readable when the process has ended.
    Yes(Option<OwnedFd>),
    /// The process is gone.
    Gone,
    /// It belongs to somebody else.
    Denied,
}

/// Sends `signal` to exactly the process that `stat` describes.
pub(crate) fn send(stat: &Stat, signal: Signal) -> Sent {
    let Some(pid) = i32::try_from(stat.pid).ok().and_then(Pid::from_raw) else { return Sent::Gone };
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    if Stat::of(stat.pid).is_none_or(|now| now.ticks != stat.ticks) {
        return Sent::Gone;
    }
    let (outcome, pidfd) = match pidfd {
        Ok(pidfd) => (pidfd_send_signal(&pidfd, signal), Some(pidfd)),
        Err(Errno::SRCH) => return Sent::Gone,
        Err(_) => (kill_process(pid, signal), None),
    };
    match outcome {
        Ok(()) => Sent::Yes(pidfd),
        Err(Errno::PERM) => Sent::Denied,
        Err(_) => Sent::Gone,
    }
}

/// Whether `pid` is there and not a zombie.
#[cfg(test)]
pub(crate) fn is_alive(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Ends the process that `stat` describes with `SIGKILL`.
pub(crate) fn end(stat: &Stat) -> Sent {
    send(stat, Signal::KILL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_with_a_nasty_name_is_understood() {
        let mut line = b"4321 (a) R (b\n) S 17 4320 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987654 10 11".to_vec();
        let stat = Stat::parse(&line).unwrap();
        assert_eq!(stat, Stat { pid: 4321, parent: 17, group: 4320, ticks: 987_654, state: b'S', threads: 3 });
        line.truncate(30);
        assert_eq!(Stat::parse(&line), None);
    }

    #[test]
    fn a_zombie_is_not_alive_but_one_with_threads_is() {
        let zombie = Stat { pid: 1, parent: 1, group: 1, ticks: 1, state: b'Z', threads: 1 };
        assert!(!zombie.is_alive());
        assert!(Stat { threads: 2, ..zombie }.is_alive());
    }

    #[test]
    fn the_token_is_a_whole_variable() {
        assert_eq!(Token::parse(b"A=1\0FQ_ATTEMPT_TOKEN=x.1\0B=2\0"), Token::Is(b"x.1".to_vec()));
        assert_eq!(Token::parse(b"A=FQ_ATTEMPT_TOKEN=x.1\0MY_FQ_ATTEMPT_TOKEN=y\0"), Token::Missing);
        assert_eq!(Token::parse(b"FQ_ATTEMPT_TOKEN=\0"), Token::Missing);
        assert_eq!(Token::parse(b""), Token::Unclear);
    }

    #[test]
    fn this_process_finds_itself() {
        let me = Stat::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(pids().contains(&me.pid));
        assert!(!threads(me.pid).is_empty());
    }
}
