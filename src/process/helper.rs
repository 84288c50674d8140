//! Other fq processes that a command starts: a worker of its own, or a guard that outlives it.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::Status;

/// A process that runs this same executable.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    input: Option<ChildStdin>,
}

impl Helper {
    /// Starts this executable with `args`, in a process group of its own, reading nothing, its standard output closed to it. Its
    /// standard error is ours, or `/dev/null` if it is to be quiet.
    pub fn start(args: &[OsString], is_quiet: bool) -> io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let stderr = if is_quiet { Stdio::null() } else { Stdio::inherit() };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
        Ok(Self { child: command.spawn()?, input: None })
    }

    /// Starts this executable with `args` to watch over the caller, and waits until it has said that it is ready.
    ///
    /// It reads what [`Helper::tell`] writes, and the end of it when this process ends in whatever way: it is the only other
    /// holder of that pipe. It shares no output with this process, so nobody waits for it.
    pub fn guard(args: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let mut ready = [0];
        if let Some(mut pipe) = child.stdout.take() {
            pipe.read_exact(&mut ready)?;
        }
        Ok(Self { child, input })
    }

    /// Writes a line to a guard.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.input {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> io::Result<Option<Status>> {
        Ok(self.child.try_wait()?.map(status))
    }

    /// Lets the guard go and waits until it has done what it had to.
    pub fn finish(mut self) -> io::Result<Status> {
        drop(self.input.take());
        self.child.wait().map(status)
    }

    /// Asks it to end in order.
    pub fn terminate(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

fn status(status: std::process::ExitStatus) -> Status {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().map_or_else(|| Status::Signal(status.signal().unwrap_or(0)), Status::Exit)
}
