//! Who a process is, and whether it still runs, on this host.
//!
//! Invariants:
//! - A pid alone never decides: host, boot, pid namespace and start time must agree, else the answer is "unknown" or "gone".
//! - Nothing is killed that is not proved to be part of a recorded attempt: by the leader's start time, or by the token in the
//!   environment of the process or of a member of its group.

use std::collections::{HashMap, HashSet};
use std::io;

use super::tree::{self, Stat, Token};
use super::{Group, Host, Identity, Liveness};

/// This host, as seen by this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisHost {
    me: Identity,
}

impl ThisHost {
    /// Finds out who is asking. Fails where `/proc` is not mounted.
    pub fn new() -> io::Result<Self> {
        let unreadable = |what: &str| io::Error::other(format!("cannot read `{what}`"));
        let pid = std::process::id();
        let boot_id = "/proc/sys/kernel/random/boot_id";
        let boot = tree::read(boot_id).ok_or_else(|| unreadable(boot_id))?;
        let pid_ns = rustix::fs::readlink("/proc/self/ns/pid", Vec::new())?;
        let stat = Stat::of(pid).ok_or_else(|| unreadable("/proc/self/stat"))?;
        Ok(Self {
            me: Identity {
                host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                boot_id: String::from_utf8_lossy(&boot).trim().to_owned(),
                pid_ns: pid_ns.to_string_lossy().into_owned(),
                pid,
                ticks: stat.ticks,
                uid: rustix::process::geteuid().as_raw(),
            },
        })
    }
}

impl ThisHost {
    /// The process that started this one; `None` if it is in another pid namespace.
    pub fn parent(&self) -> Option<Identity> {
        let pid = rustix::process::getppid()?.as_raw_nonzero().get().unsigned_abs();
        Some(Identity { pid, ticks: Stat::of(pid)?.ticks, ..self.me.clone() })
    }
}

impl Host for ThisHost {
    fn me(&self) -> Identity {
        self.me.clone()
    }

    fn liveness(&self, who: &Identity) -> Liveness {
        let here = who.host == self.me.host && who.boot_id == self.me.boot_id && who.pid_ns == self.me.pid_ns;
        if !here {
            return Liveness::Unknown;
        }
        match Stat::of(who.pid) {
            Some(stat) if stat.ticks == who.ticks && stat.is_alive() => Liveness::Alive,
            // Mounted with `hidepid`, /proc shows nothing of other users' processes; a signal finds them all the same.
            None if is_hidden(who.pid) => Liveness::Unknown,
            _ => Liveness::Gone,
        }
    }

    fn end_leftovers(&self, groups: &[Group]) -> usize {
        let scan = || -> Vec<Seen> {
            let others = tree::pids().into_iter().filter(|&pid| pid != self.me.pid);
            let alive = others.filter_map(Stat::of).filter(Stat::is_alive);
            alive.map(|stat| Seen { token: Token::of(stat.pid), stat }).collect()
        };
        let mut found = leftovers(groups, &scan());
        if found.is_empty() {
            // One that was just executing a program had no environment at that moment.
            found = leftovers(groups, &scan());
        }
        for stat in &found {
            let _ = tree::end(stat);
        }
        found.len()
    }
}

/// Whether there is a process `pid` although `/proc` does not show it.
fn is_hidden(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return false };
    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::PERM)
}

/// A living process and the token in its environment, as far as it can be read.
struct Seen {
    stat: Stat,
    token: Token,
}

/// Chooses what belongs to `groups`: members of groups that are proved to be the recorded ones, and whoever has their tokens.
fn leftovers(groups: &[Group], seen: &[Seen]) -> Vec<Stat> {
    let tokens: HashSet<&[u8]> =
        groups.iter().map(|group| group.token.as_bytes()).filter(|token| !token.is_empty()).collect();
    // Group 0 is that of the kernel, and of processes from outside the namespace.
    let recorded: HashMap<u32, &Group> =
        groups.iter().filter(|group| group.pid > 0).map(|group| (group.pid, group)).collect();
    let is_ours = |process: &Seen| matches!(&process.token, Token::Is(token) if tokens.contains(token.as_slice()));
    let proved: HashSet<u32> = seen
        .iter()
        .filter_map(|process| {
            let group = recorded.get(&process.stat.group)?;
            let is_leader = process.stat.pid == group.pid && process.stat.ticks == group.ticks;
            let has_token = is_ours(process)
                && matches!(&process.token, Token::Is(token) if token.as_slice() == group.token.as_bytes());
            (is_leader || has_token).then_some(group.pid)
        })
        .collect();
    seen.iter()
        .filter(|process| proved.contains(&process.stat.group) || is_ours(process))
        .map(|process| process.stat)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::{Event, HostProcess, Launch, Process, Signal, Stdin};
    use super::*;

    fn launch(token: &str, script: &str) -> Launch {
        let argv = ["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec());
        let env = vec![(b"FQ_ATTEMPT_TOKEN".to_vec(), token.as_bytes().to_vec())];
        Launch {
            argv: argv.to_vec(),
            env,
            cwd: PathBuf::from("/"),
            stdin: Stdin::Null,
            mem_max: None,
            token: token.into(),
        }
    }

    fn wait_for_end(process: &mut HostProcess) {
        for _ in 0..1000 {
            if process.poll(1 << 20).iter().any(|event| matches!(event, Event::Ended { .. })) {
                return;
            }
            process.wait(Some(Duration::from_millis(100)));
        }
        panic!("the child does not end");
    }

    #[test]
    fn a_running_process_is_alive_until_it_is_killed() {
        let host = ThisHost::new().unwrap();
        assert_eq!(host.liveness(&host.me()), Liveness::Alive);
        let mut process = HostProcess::new().unwrap();
        let started = process.start(&launch("identity-1", "exec sleep 1000")).unwrap();
        let who = Identity { pid: started.group.pid, ticks: started.group.ticks, ..host.me() };
        assert_eq!(host.liveness(&who), Liveness::Alive);
        process.signal(started.child, Signal::Kill);
        wait_for_end(&mut process);
        assert_eq!(host.liveness(&who), Liveness::Gone);
    }

    #[test]
    fn another_boot_cannot_be_judged() {
        let host = ThisHost::new().unwrap();
        for other in [
            Identity { host: "elsewhere".into(), ..host.me() },
            Identity { boot_id: "0".into(), ..host.me() },
            Identity { pid_ns: "pid:[1]".into(), ..host.me() },
        ] {
            assert_eq!(host.liveness(&other), Liveness::Unknown);
        }
    }

    #[test]
    fn a_pid_that_was_used_again_is_gone() {
        let host = ThisHost::new().unwrap();
        let me = host.me();
        assert_eq!(host.liveness(&Identity { ticks: me.ticks + 1, ..me }), Liveness::Gone);
    }

    #[test]
    fn leftovers_of_a_recorded_group_are_ended() {
        let host = ThisHost::new().unwrap();
        let mut process = HostProcess::new().unwrap();
        let started = process.start(&launch("identity-2", "setsid sleep 1000 & exec sleep 1000")).unwrap();
        assert!(host.end_leftovers(std::slice::from_ref(&started.group)) >= 1);
        wait_for_end(&mut process);
        assert_eq!(host.end_leftovers(&[started.group]), 0);
    }

    fn seen(pid: u32, group: u32, ticks: u64, token: Option<&str>) -> Seen {
        let line = format!("{pid} (x) S 1 {group} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 {ticks} ");
        Seen { stat: Stat::parse_for_test(&line), token: token.map_or(Token::Missing, |token| Token::Is(token.into())) }
    }

    #[test]
    fn a_group_whose_number_was_used_again_is_spared() {
        let group = Group { pid: 50, ticks: 7, token: "a".into() };
        let chosen =
            |seen: &[Seen]| leftovers(std::slice::from_ref(&group), seen).iter().map(|s| s.pid).collect::<Vec<_>>();
        assert_eq!(chosen(&[seen(50, 50, 7, None), seen(51, 50, 9, None)]), [50, 51]);
        assert_eq!(chosen(&[seen(50, 50, 8, None), seen(51, 50, 9, Some("b"))]), [] as [u32; 0]);
        assert_eq!(
            chosen(&[seen(52, 50, 9, Some("a")), seen(53, 50, 9, None), seen(60, 60, 9, Some("a"))]),
            [52, 53, 60]
        );
    }

    #[test]
    fn an_attempt_whose_start_was_not_recorded_is_known_by_its_token() {
        let group = Group { pid: 0, ticks: 0, token: "a".into() };
        let seen = [seen(51, 51, 9, Some("a")), seen(52, 0, 9, Some("a")), seen(2, 0, 0, None)];
        assert_eq!(leftovers(&[group], &seen).iter().map(|s| s.pid).collect::<Vec<_>>(), [51, 52]);
    }

    #[test]
    fn an_empty_token_proves_nothing() {
        let group = Group { pid: 50, ticks: 7, token: String::new() };
        assert!(leftovers(&[group], &[seen(51, 50, 9, Some("")), seen(52, 52, 9, Some(""))]).is_empty());
    }
}
