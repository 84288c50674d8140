//! Which queue is meant, and who asks.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fq::clock::{Clock as _, HostClock};
use fq::process::groups_of;
use fq::queue::{InitOptions, Queue, QueueError};

use super::error::{Failure, Plain, code_of};
use super::{exit, out};

/// `--dir` or `FQ_DIR`.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// The queue directory
    #[arg(long, value_name = "Q", env = "FQ_DIR", hide_env_values = true, global = false)]
    dir: Option<PathBuf>,
}

impl Place {
    /// The directory that was named. There is no default: a queue found by searching upwards would be the wrong one some day.
    pub(crate) fn dir(&self) -> Result<&Path, Failure> {
        let named = self.dir.as_deref().filter(|dir| !dir.as_os_str().is_empty());
        named.ok_or_else(|| {
            Failure::usage("no queue was named: neither `--dir` nor `FQ_DIR` is given")
                .hint("`export FQ_DIR=/scratch/me/q`, a directory that all hosts see; `fq run` alone uses `./.fq`")
        })
    }

    /// The same, with a default.
    pub(crate) fn dir_or<'a>(&'a self, default: &'a Path) -> &'a Path {
        self.dir.as_deref().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(default)
    }

    /// Opens the queue that was named.
    pub(crate) fn open(&self) -> Result<Queue, Failure> {
        Ok(Queue::open(self.dir()?)?)
    }

    /// Opens the queue that was named; makes it first if there is nothing, and says so.
    pub(crate) fn open_or_make(&self) -> Result<Queue, Failure> {
        open_or_make(self.dir()?)
    }
}

/// How long another process that makes the same queue is waited for.
const MAKING: Duration = Duration::from_secs(10);

/// Opens the queue in `dir`; makes it first if `dir` is absent or empty, and says so.
pub(crate) fn open_or_make(dir: &Path) -> Result<Queue, Failure> {
    let start = HostClock.boot();
    loop {
        match Queue::open(dir) {
            Err(QueueError::NoQueue { .. } | QueueError::Unfinished { .. }) => {}
            other => return Ok(other?),
        }
        match make(dir, &InitOptions::default()) {
            Ok(queue) => return Ok(queue),
            // Somebody else is at it, or has just done it.
            Err(QueueError::Exists { .. } | QueueError::Unfinished { .. })
                if HostClock.boot().saturating_sub(start) < MAKING =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes a queue in `dir`, or completes one, and says which.
pub(crate) fn make(dir: &Path, options: &InitOptions) -> Result<Queue, QueueError> {
    let is_begun = matches!(Queue::open(dir), Err(QueueError::Unfinished { .. }));
    let queue = fq::queue::init(dir, options)?;
    let dir = dir.display();
    out::remark(&if is_begun {
        format!("completed the queue in `{dir}`, which an earlier `fq init` had begun")
    } else {
        format!("made a new queue in `{dir}`")
    });
    Ok(queue)
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let code = match &error {
            QueueError::NoQueue { .. }
            | QueueError::Unfinished { .. }
            | QueueError::Newer { .. }
            | QueueError::Damaged { .. }
            | QueueError::BadLimits { .. } => exit::NOT_A_QUEUE,
            QueueError::Exists { .. } | QueueError::NotEmpty { .. } => exit::NO,
            QueueError::WorldWritable { .. } | QueueError::Stranger { .. } => exit::REFUSED,
            QueueError::Init { source, .. } | QueueError::Fs { source, .. } => code_of(source),
        };
        let mut failure = Self::new(code, error.to_string());
        if let Some(cause) = std::error::Error::source(&error) {
            failure = failure.because(cause);
        }
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The working directory as the user's shell names it: automounters and home directories have two names, and only this one is
/// valid on other hosts.
pub(crate) fn working_directory() -> Result<PathBuf, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage("cannot find the working directory").because(&super::error::Plain(&error)))?;
    let Some(named) = std::env::var_os("PWD").map(PathBuf::from).filter(|path| path.is_absolute()) else {
        return Ok(here);
    };
    let same = |a: rustix::fs::Stat, b: rustix::fs::Stat| a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    match (rustix::fs::stat(&named), rustix::fs::stat(".")) {
        (Ok(a), Ok(b)) if same(a, b) => Ok(named),
        _ => Ok(here),
    }
}

/// The name of the user for people; what counts is the owner of a file.
pub(crate) fn user() -> String {
    let named = ["USER", "LOGNAME"].iter().filter_map(|name| std::env::var(name).ok()).find(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid{}", rustix::process::geteuid().as_raw()))
}

/// The name of this host for people.
pub(crate) fn host() -> String {
    String::from_utf8_lossy(rustix::system::uname().nodename().to_bytes()).into_owned()
}

/// The bytes of a path.
pub(crate) fn path_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// The number of a group, given as one or by a name in `/etc/group`; one that only a directory service knows is given as a
/// number.
pub(crate) fn group_id(text: &str) -> Result<u32, Failure> {
    look_up(text, "/etc/group", "group")
}

/// The number of a user, given as one or by a name in `/etc/passwd`; one that only a directory service knows is given as a
/// number.
pub(crate) fn user_id(text: &str) -> Result<u32, Failure> {
    look_up(text, "/etc/passwd", "user")
}

/// Whether this process may give files to `group`.
pub(crate) fn is_in(group: u32) -> bool {
    let gid = |gid: rustix::process::Gid| gid.as_raw() == group;
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::geteuid().is_root() || gid(rustix::process::getegid()) || others.into_iter().any(gid)
}

/// Says so if the workers of others in a queue for `group` will not know this user for one of its members.
pub(crate) fn warn_outsider(group: u32) {
    let me = rustix::process::geteuid().as_raw();
    let why = match groups_of(me) {
        Some(groups) if groups.contains(&group) => return,
        Some(_) => format!("does not have user {me} in group {group}"),
        None => format!("does not know user {me}"),
    };
    out::remark(&format!(
        "the user database of this host {why}: workers of others run tasks of this user only with `--trust {me}`"
    ));
}

/// The third field of the line in `file` whose first is `text`.
fn look_up(text: &str, file: &str, what: &str) -> Result<u32, Failure> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let lines = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot look up the {what} `{text}`")).because(&Plain(&error)))?;
    let found = lines.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next() == Some(text)).then(|| parts.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| {
        let base = file.rsplit('/').next().unwrap_or(file);
        Failure::usage(format!("`{file}` has no {what} `{text}`"))
            .hint(format!("`getent {base} {text}` prints its number, which is taken too"))
    })
}
