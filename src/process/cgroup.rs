//! Memory limits by control groups (version 2), and what the kernel's out-of-memory killer did.
//!
//! Invariants:
//! - Everything here is best effort: where the hierarchy is not writable, tasks run without a limit and are only accounted.
//! - Only tasks with a memory limit get a group of their own, since moving a process into one costs milliseconds.
//! - A child is moved right after its start; what it forked before that stays outside and is found by the process tree instead.
//! - A worker keeps its group locked as long as it lives, so that others can tell the empty group of a dead one, which they
//!   remove, from one that is only empty at the moment.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FlockOperation, Mode, OFlags};

use super::tree;
use crate::protocol::id::WorkerId;

/// The names of groups begin so; the worker's id follows.
const PREFIX: &str = "fq-";
/// How often a group is made that another worker takes for a dead one's before it is locked.
const TRIES_MAX: u32 = 3;

/// The control group of one worker, below the one that the worker runs in. Removed when dropped, if nothing is left in it.
#[derive(Debug)]
pub struct WorkerCgroup {
    dir: PathBuf,
    /// Holds the lock.
    _lock: OwnedFd,
}

impl WorkerCgroup {
    /// Makes the group `fq-<wid>`, if the hierarchy is writable and can limit memory there. Removes those that workers which were
    /// killed have left empty.
    pub fn create(wid: &str) -> Option<Self> {
        let above = own_group("cgroup2")?;
        // Refused while processes are in that group itself (except the root); then it had to be switched on for us.
        let _ = put(&above.join("cgroup.subtree_control"), b"+memory");
        sweep(&above);
        let dir = above.join(format!("{PREFIX}{wid}"));
        let group = (0..TRIES_MAX).find_map(|_| {
            rustix::fs::mkdir(&dir, Mode::RWXU | Mode::RGRP | Mode::XGRP).ok()?;
            Some(Self { dir: dir.clone(), _lock: lock(&dir)? })
        })?;
        put(&group.dir.join("cgroup.subtree_control"), b"+memory").then_some(group)
    }

    /// Makes a group with a limit of `mem_max` bytes for the task number `number`; no swap beyond it, and the kernel ends all of
    /// it at once. `None` if any of that is refused.
    pub(super) fn limited(&self, number: u64, mem_max: u64) -> Option<TaskCgroup> {
        let dir = self.dir.join(format!("task-{number}"));
        rustix::fs::mkdir(&dir, Mode::RWXU | Mode::RGRP | Mode::XGRP).ok()?;
        let group = TaskCgroup { dir };
        let _ = put(&group.dir.join("memory.swap.max"), b"0");
        let _ = put(&group.dir.join("memory.oom.group"), b"1");
        put(&group.dir.join("memory.max"), mem_max.to_string().as_bytes()).then_some(group)
    }
}

impl Drop for WorkerCgroup {
    fn drop(&mut self) {
        let _ = rustix::fs::rmdir(&self.dir);
    }
}

/// Opens and locks a directory; `None` if somebody else has locked it.
fn lock(dir: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(fd)
}

/// Removes the groups in `above` of workers that are no more, as far as nothing is left in them: only an empty group can be
/// removed.
fn sweep(above: &Path) {
    for name in directories(above) {
        if name.strip_prefix(PREFIX).is_none_or(|wid| wid.parse::<WorkerId>().is_err()) {
            continue;
        }
        let dir = above.join(&name);
        let Some(_lock) = lock(&dir) else { continue };
        for task in directories(&dir).into_iter().filter(|name| name.starts_with("task-")) {
            let _ = rustix::fs::rmdir(dir.join(task));
        }
        let _ = rustix::fs::rmdir(&dir);
    }
}

/// The names of the directories in `dir`; none if it cannot be read.
fn directories(dir: &Path) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Vec::new() };
    let entries = Dir::new(fd).into_iter().flatten().flatten();
    let names = entries
        .filter(|entry| entry.file_type().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "." && name != "..").collect()
}

/// The control group of one task. Removed when dropped, if nothing is left in it.
#[derive(Debug)]
pub(super) struct TaskCgroup {
    dir: PathBuf,
}

impl TaskCgroup {
    /// Moves `pid` into the group; what it forks from now on starts there.
    pub(super) fn adopt(&self, pid: u32) -> bool {
        put(&self.dir.join("cgroup.procs"), pid.to_string().as_bytes())
    }

    /// Ends everything in the group.
    pub(super) fn end(&self) {
        let _ = put(&self.dir.join("cgroup.kill"), b"1");
    }

    /// Whether processes are in the group, zombies not counted.
    pub(super) fn is_populated(&self) -> bool {
        counter(&self.dir.join("cgroup.events"), "populated") > 0
    }

    /// Counts the living processes in the group.
    pub(super) fn members(&self) -> u32 {
        let list = tree::read(&self.dir.join("cgroup.procs").to_string_lossy()).unwrap_or_default();
        String::from_utf8_lossy(&list).lines().count() as u32
    }

    /// Whether the kernel ended something in the group for want of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        counter(&self.dir.join("memory.events"), "oom_kill") > 0
    }
}

impl Drop for TaskCgroup {
    fn drop(&mut self) {
        let _ = rustix::fs::rmdir(&self.dir);
    }
}

/// Counts the kills for want of memory in the group that this process runs in: a batch system's limit on the whole job.
#[derive(Debug)]
pub(super) struct OutOfMemory {
    file: Option<PathBuf>,
    seen: u64,
}

impl OutOfMemory {
    /// Begins to count.
    pub(super) fn watch() -> Self {
        let events = own_group("cgroup2").map(|dir| dir.join("memory.events"));
        let control = || own_group("memory").map(|dir| dir.join("memory.oom_control"));
        let file = events.filter(|file| tree::read(&file.to_string_lossy()).is_some()).or_else(control);
        let mut watch = Self { file, seen: 0 };
        watch.happened();
        watch
    }

    /// Whether there was one since the last call.
    pub(super) fn happened(&mut self) -> bool {
        let Some(file) = &self.file else { return false };
        let now = counter(file, "oom_kill");
        let more = now > self.seen;
        self.seen = now;
        more
    }
}

/// Finds the directory of the group that this process runs in: in the unified hierarchy for `cgroup2`, else in that of the
/// named controller of version 1.
fn own_group(kind: &str) -> Option<PathBuf> {
    let mounts = tree::read("/proc/self/mountinfo")?;
    let groups = tree::read("/proc/self/cgroup")?;
    locate(&String::from_utf8_lossy(&mounts), &String::from_utf8_lossy(&groups), kind)
}

/// Joins what `/proc/self/mountinfo` and `/proc/self/cgroup` say.
fn locate(mounts: &str, groups: &str, kind: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let matches =
            if kind == "cgroup2" { controllers.is_empty() } else { controllers.split(',').any(|c| c == kind) };
        matches.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (root, point) = (*left.get(3)?, *left.get(4)?);
        let (kind_of_fs, options) = (*right.first()?, *right.get(2)?);
        let matches = if kind == "cgroup2" {
            kind_of_fs == "cgroup2"
        } else {
            kind_of_fs == "cgroup" && options.split(',').any(|option| option == kind)
        };
        // Inside a container the mount may show a part of the hierarchy only.
        let below = Path::new(path).strip_prefix(root).ok()?;
        matches.then(|| Path::new(point).join(below))
    })
}

/// Writes `bytes` to a control file in one call.
fn put(path: &Path, bytes: &[u8]) -> bool {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    file.and_then(|file| rustix::io::write(file, bytes)) == Ok(bytes.len())
}

/// Reads the number after `key` in a file of keys and numbers; 0 if it is not there.
fn counter(path: &Path, key: &str) -> u64 {
    let text = tree::read(&path.to_string_lossy()).unwrap_or_default();
    value_of(&String::from_utf8_lossy(&text), key)
}

fn value_of(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    value.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n\
                          31 25 0:27 /box /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
    const GROUPS: &str = "4:memory:/box/job_7\n1:name=systemd:/x\n0::/user.slice/a\n";

    #[test]
    fn the_own_group_is_found_in_both_hierarchies() {
        let found = |kind| locate(MOUNTS, GROUPS, kind);
        assert_eq!(found("cgroup2"), Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice/a")));
        assert_eq!(found("memory"), Some(PathBuf::from("/sys/fs/cgroup/memory/job_7")));
        assert_eq!(found("cpu"), None);
    }

    #[test]
    fn only_empty_groups_of_dead_workers_are_removed() {
        let above = tempfile::tempdir().unwrap();
        let wid = |n| format!("{PREFIX}n1~000000000000000{n}");
        for name in ["", "/task-1", "/task-2"] {
            std::fs::create_dir(above.path().join(wid(1) + name)).unwrap();
        }
        std::fs::create_dir_all(above.path().join(wid(2) + "/task-1/full")).unwrap();
        for name in [&wid(3), "fq-other", "other"] {
            std::fs::create_dir(above.path().join(name)).unwrap();
        }
        let living = lock(&above.path().join(wid(3)));
        assert!(living.is_some());
        let left = || {
            let mut left = directories(above.path());
            left.sort();
            left
        };
        sweep(above.path());
        assert_eq!(left(), [wid(2), wid(3), "fq-other".into(), "other".into()]);
        drop(living);
        sweep(above.path());
        assert_eq!(left(), [wid(2), "fq-other".into(), "other".into()]);
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        assert_eq!(value_of("oom 3\noom_kill 2\noom_group_kill 1\n", "oom_kill"), 2);
        assert_eq!(value_of("oom_kill_disable 0\nunder_oom 0\n", "oom_kill"), 0);
    }
}
