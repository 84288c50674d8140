//! One builder for tests of the binary: a queue in a temporary directory, commands run in it, what they said.

pub(crate) mod disk;
pub(crate) mod live;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The binary under test.
pub(crate) const FQ: &str = env!("CARGO_BIN_EXE_fq");

/// A directory with room for a queue and the files of a test, removed at the end.
pub(crate) struct Room {
    dir: tempfile::TempDir,
    queue: PathBuf,
}

impl Room {
    /// An empty room.
    pub(crate) fn new() -> Self {
        // A real shared directory can stand in for the local one.
        let dir = match std::env::var_os("FQ_TEST_DIR") {
            Some(base) => tempfile::tempdir_in(base),
            None => tempfile::tempdir(),
        };
        let dir = dir.expect("a temporary directory can be made");
        let queue = dir.path().join("q");
        Self { dir, queue }
    }

    /// The room with its queue in another place.
    pub(crate) fn with_queue_at(self, queue: PathBuf) -> Self {
        Self { queue, ..self }
    }

    /// A room with a new queue in it.
    pub(crate) fn with_queue() -> Self {
        let room = Self::new();
        room.fq(["init"]).succeeds();
        room
    }

    /// A path in the room.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The queue's directory.
    pub(crate) fn queue(&self) -> PathBuf {
        self.queue.clone()
    }

    /// Writes a file in the room.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file of the test can be written");
        path
    }

    /// A command `fq ARGS` in the room, with `FQ_DIR` naming the queue.
    pub(crate) fn fq<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> Call {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        Call {
            args,
            cwd: self.dir.path().to_owned(),
            env: vec![("FQ_DIR".into(), Some(self.queue().into()))],
            stdin: None,
        }
    }

    /// Submits and returns the number that was printed.
    pub(crate) fn submit<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, args: I) -> u64 {
        let call =
            self.fq(std::iter::once(OsString::from("submit")).chain(args.into_iter().map(|a| a.as_ref().to_owned())));
        call.succeeds().stdout_text().trim_end().parse().expect("submit prints the number alone")
    }

    /// The manifest of a job, without its closing line.
    pub(crate) fn manifest(&self, job: u64) -> serde_json::Value {
        let path = self.queue().join("jobs").join(format!("{:03}", job / 1000)).join(format!("{job}.json"));
        let text = std::fs::read_to_string(path).expect("the manifest is there");
        serde_json::from_str(text.lines().next().expect("it has a line")).expect("it is JSON")
    }
}

/// A command to run.
#[must_use]
pub(crate) struct Call {
    args: Vec<OsString>,
    cwd: PathBuf,
    env: Vec<(OsString, Option<OsString>)>,
    stdin: Option<Vec<u8>>,
}

impl Call {
    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), Some(value.as_ref().to_owned())));
        self
    }

    /// Takes a variable away.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Sets what the command reads.
    pub(crate) fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = Some(bytes.as_ref().to_vec());
        self
    }

    /// The command, for tests that start it in their own way.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(FQ);
        command.args(&self.args).current_dir(&self.cwd).env_remove("PWD").env("NO_COLOR", "1");
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs it.
    pub(crate) fn run(self) -> Said {
        use std::io::Write as _;
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.stdin.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().expect("fq can be started");
        if let (Some(bytes), Some(mut pipe)) = (self.stdin, child.stdin.take()) {
            pipe.write_all(&bytes).expect("fq reads its input");
        }
        let output = child.wait_with_output().expect("fq ends");
        let code = output.status.code().unwrap_or(-1);
        Said {
            args: self.args,
            code,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs it and asserts that it exits with 0.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Said {
        self.exits(0)
    }

    /// Runs it and asserts its exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Said {
        let said = self.run();
        assert_eq!(said.code, code, "fq {:?} said:\n{}{}", said.args, said.stdout_text(), said.stderr);
        said
    }
}

/// What a command said.
pub(crate) struct Said {
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Its exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// Its standard error.
    pub(crate) stderr: String,
}

impl Said {
    /// Its standard output as text.
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Its standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).expect("it printed one JSON value")
    }

    /// Asserts that its standard error contains `text`.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "fq {:?} did not say {text:?} but:\n{}", self.args, self.stderr);
        self
    }
}

/// Says in the output of the test run why something was not tested.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn remark(text: &str) {
    eprintln!("{text}");
}
