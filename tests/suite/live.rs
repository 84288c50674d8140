//! Processes of fq that run while a test looks on, and file systems made for one test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Call, Room};

/// Limits under which everything is noticed fast, but no worker gives up on storage while a test runs.
pub(crate) const QUICK: &str = r#"{"beat_ms":200,"self_fence_ms":100000,"grace_ms":500,"suspect_ms":100000,"lease_ms":110000,
"takeover_ms":2000,"visible_ms":500,"poll_ms":100,"idle_poll_ms":200,"setup_limit":3,"backoff_ms":[50,200]}
"#;

/// How long anything may take that is bound to happen; far more than it ever needs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks again and again until `look` sees something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "this never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running command. Dropping it ends it.
pub(crate) struct Live {
    child: Child,
    log: PathBuf,
}

impl Live {
    /// Starts a command whose remarks go to the new file `log`.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let file = std::fs::File::create(&log).expect("a log can be made");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().expect("a process can be started"), log }
    }

    /// Starts `fq worker ARGS` in `room`.
    pub(crate) fn worker<const N: usize>(room: &Room, args: [&str; N]) -> Self {
        let words: Vec<&str> = std::iter::once("worker").chain(args).collect();
        Self::call(room, &room.fq(words), "worker.log")
    }

    /// Starts any other call.
    pub(crate) fn call(room: &Room, call: &Call, log: &str) -> Self {
        Self::start(call.command(), room.path(log))
    }

    /// Its process id; of a worker that of its keeper.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit code if it has ended.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().expect("a child can be waited for").map(|status| status.code().unwrap_or(-1))
    }

    /// Asks it to end, as a batch system does.
    pub(crate) fn asked_to_end(&self) {
        signal(self.child.id(), libc::SIGTERM);
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn exits(&mut self, code: i32) {
        let found = until("the process ends", || self.ended());
        assert_eq!(found, code, "it said:\n{}", self.said());
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        signal(self.child.id(), libc::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, rustix::process::Signal::from_named_raw(signal)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Runs a helper program; says whether it succeeded, or why not.
pub(crate) fn helper(program: &str, args: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(args).stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {text}")) }
}

/// A small file system of its own, gone at the end of the test.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs on the new directory `dir`, or says why that is refused.
    pub(crate) fn tmpfs(dir: &Path, options: &str) -> Result<Self, String> {
        std::fs::create_dir(dir).map_err(|e| e.to_string())?;
        let name = dir.to_str().ok_or("the path is not UTF-8")?;
        helper("mount", &["-t", "tmpfs", "-o", &format!("mode=755,{options}"), "tmpfs", name])?;
        Ok(Self(dir.to_owned()))
    }

    /// Mounts `what` once more on the new directory `dir`, for reading only.
    pub(crate) fn read_only(what: &Path, dir: &Path) -> Result<Self, String> {
        std::fs::create_dir(dir).map_err(|e| e.to_string())?;
        let (what, name) = (what.to_str().ok_or("not UTF-8")?, dir.to_str().ok_or("not UTF-8")?);
        helper("mount", &["--bind", what, name])?;
        let mount = Self(dir.to_owned());
        helper("mount", &["-o", "remount,bind,ro", name])?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(name) = self.0.to_str() {
            let _ = helper("umount", &["-l", name]);
        }
    }
}

/// The file that [`fill`] makes.
pub(crate) const HOG: &str = ".hog";

/// Fills `dir`'s file system to the last byte with the file [`HOG`], which is returned; may be done again.
pub(crate) fn fill(dir: &Path) -> PathBuf {
    use std::io::Write as _;
    let path = dir.join(HOG);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(&path).expect("there is room for a name");
    for size in [65_536, 4096, 512, 1] {
        let piece = vec![0; size];
        while file.write_all(&piece).is_ok() {}
    }
    path
}

/// All that lies below `dir`, with contents, for telling whether anything was touched.
pub(crate) fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.expect("the directory can be read");
        let content = match entry.file_type() {
            kind if kind.is_file() => std::fs::read(entry.path()).expect("a file can be read"),
            kind if kind.is_symlink() => b"link".to_vec(),
            _ => Vec::new(),
        };
        found.push((entry.path().to_owned(), content));
    }
    found
}
