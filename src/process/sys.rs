//! The few system calls that no safe interface offers, each behind a function that is safe to call.
//!
//! Invariants:
//! - This is the only module with `unsafe`; every block says why it is sound.
//! - Nothing here decides anything.

#![expect(
    unsafe_code,
    reason = "wait4, signal handlers, inherited descriptors and the user database have no safe interface"
)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::{Status, Usage};

/// A child that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reaped {
    /// Its exit status.
    pub(crate) status: Status,
    /// What it and the descendants it waited for used.
    pub(crate) usage: Usage,
}

/// Takes the status of our child `pid` if it has ended, without blocking; `ECHILD` if it is not our child or was taken before.
pub(crate) fn reap(pid: u32) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let wanted = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ECHILD))?;
    loop {
        // SAFETY: both pointers are to live, writable memory of the right type.
        match unsafe { libc::wait4(wanted, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => break,
        }
    }
    // SAFETY: plain numbers, zeroed before and filled in by the call.
    let usage = unsafe { usage.assume_init() };
    let status = if libc::WIFSIGNALED(status) {
        Status::Signal(libc::WTERMSIG(status))
    } else {
        Status::Exit(libc::WEXITSTATUS(status))
    };
    let ms = |time: libc::timeval| {
        let (seconds, micros) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_usec).unwrap_or(0));
        seconds * 1000 + micros / 1000
    };
    let usage = Usage {
        user_ms: ms(usage.ru_utime),
        sys_ms: ms(usage.ru_stime),
        rss_kib_max: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        blocks_in: u64::try_from(usage.ru_inblock).unwrap_or(0),
        blocks_out: u64::try_from(usage.ru_oublock).unwrap_or(0),
    };
    Ok(Some(Reaped { status, usage }))
}

/// A signal that can be caught by [`Signals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caught {
    /// `SIGHUP`: the terminal is gone.
    Hup,
    /// `SIGINT`: the user pressed the interrupt key.
    Int,
    /// `SIGTERM`: end in order.
    Term,
    /// `SIGUSR1`: finish what runs, then end.
    Usr1,
}

impl Caught {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hup, Self::Int, Self::Term, Self::Usr1];

    /// Its number on this system.
    pub fn number(self) -> i32 {
        match self {
            Self::Hup => libc::SIGHUP,
            Self::Int => libc::SIGINT,
            Self::Term => libc::SIGTERM,
            Self::Usr1 => libc::SIGUSR1,
        }
    }
}

/// Set bits: signals that came and were not taken yet.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// Made readable by every signal; never closed, because a handler may run at any time.
static WAKE: OnceLock<OwnedFd> = OnceLock::new();

extern "C" fn on_signal(number: libc::c_int) {
    PENDING.fetch_or(1 << number, Ordering::SeqCst);
    if let Some(wake) = WAKE.get() {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `write` may be called in a signal handler, the buffer is live, and errno is put back.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::write(wake.as_raw_fd(), one.as_ptr().cast(), one.len());
            *errno = before;
        }
    }
}

/// The signals sent to this process, turned into a descriptor that can be polled.
///
/// There is one set per process, whoever asks. Children start with the default actions, since handlers do not survive `exec`.
/// Signals of one kind that come in quick succession are one.
#[derive(Debug, Clone, Copy)]
pub struct Signals(());

impl Signals {
    /// Begins to catch [`Caught::ALL`], for the life of the process. `SIGHUP` and `SIGINT` stay ignored where they are, as `nohup`
    /// and shells arrange it for commands in the background.
    pub fn catch() -> io::Result<Self> {
        if WAKE.get().is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // A second caller that was faster has made the one that counts.
            let _ = WAKE.set(wake);
        }
        for signal in Caught::ALL {
            let number = signal.number();
            // SAFETY: a zeroed sigaction is a valid one, the handler has the right type and only does what handlers may.
            unsafe {
                let mut old = MaybeUninit::<libc::sigaction>::zeroed();
                if libc::sigaction(number, std::ptr::null(), old.as_mut_ptr()) != 0 {
                    return Err(io::Error::last_os_error());
                }
                let ignored = old.assume_init().sa_sigaction == libc::SIG_IGN;
                if ignored && matches!(signal, Caught::Hup | Caught::Int) {
                    continue;
                }
                let mut new = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                new.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                if libc::sigaction(number, &raw const new, std::ptr::null_mut()) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(Self(()))
    }

    /// Takes the signals that came since the last call.
    pub fn take(&self) -> Vec<Caught> {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.as_fd(), &mut count);
        let bits = PENDING.swap(0, Ordering::SeqCst);
        Caught::ALL.into_iter().filter(|signal| bits & (1 << signal.number()) != 0).collect()
    }
}

impl AsFd for Signals {
    /// Becomes readable when a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        WAKE.get().expect("made by `catch`, the only way to a value").as_fd()
    }
}

/// Takes the environment variable `name` and removes it, so that children do not see it.
///
/// It is only removed while this process has a single thread, since other threads may be reading the environment.
pub(crate) fn take_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(OsStr::new(name))?;
    if super::tree::threads(std::process::id()).len() == 1 {
        // SAFETY: there is no other thread that could read or write the environment now.
        unsafe { std::env::remove_var(name) };
    }
    Some(value)
}

/// Takes possession of the inherited descriptor `number`, if there is one, and keeps it from further children.
///
/// The caller knows that nothing else in this process owns that number.
pub(crate) fn adopt_fd(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: F_SETFD takes a plain number and fails on a descriptor that is not open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return None;
    }
    // SAFETY: the descriptor is open, and by the contract above nobody else will close it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lists the groups of user `uid` by this host's user database, the primary one included; `None` if there is no such user.
pub fn groups_of(uid: u32) -> Option<Vec<u32>> {
    let mut buffer = vec![0_u8; 1 << 14];
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to live memory; the strings in `entry` point into `buffer`, which outlives their use.
    unsafe {
        while libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr().cast(), buffer.len(), &raw mut found)
            == libc::ERANGE
            && buffer.len() < 1 << 22
        {
            buffer.resize(buffer.len() * 2, 0);
        }
        if found.is_null() {
            return None;
        }
        let mut groups = vec![0; 64];
        loop {
            let mut count = libc::c_int::try_from(groups.len()).ok()?;
            if libc::getgrouplist((*found).pw_name, (*found).pw_gid, groups.as_mut_ptr(), &raw mut count) >= 0 {
                groups.truncate(usize::try_from(count).unwrap_or(0));
                return Some(groups);
            }
            if groups.len() > 1 << 20 {
                return None;
            }
            groups.resize(groups.len() * 2, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_the_root_group() {
        assert!(groups_of(0).is_some_and(|groups| groups.contains(&0)));
    }

    #[test]
    fn an_unknown_user_has_no_groups() {
        assert_eq!(groups_of(u32::MAX - 7), None);
    }

    #[test]
    fn what_is_not_a_child_cannot_be_reaped() {
        assert_eq!(reap(1).map_err(|e| e.raw_os_error()), Err(Some(libc::ECHILD)));
    }
}
