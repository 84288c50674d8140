//! What an attempt is started with: arguments, environment, file names (spec: terms, "The environment of a task"). Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::process::{Launch, Stdin};
use crate::protocol::id::AttemptId;
use crate::protocol::record::{Command, Manifest};

use super::Options;

/// The variable by which strays of an attempt's tree are recognised.
const TOKEN: &str = "FQ_ATTEMPT_TOKEN";

/// All that decides how an attempt is started.
pub(super) struct Recipe<'a> {
    pub(super) options: &'a Options,
    pub(super) manifest: &'a Manifest,
    pub(super) attempt: AttemptId,
    /// The attempt's line of the job's entries.
    pub(super) entry: Option<&'a [u8]>,
    pub(super) token: String,
    /// Its private directory.
    pub(super) tmp: &'a Path,
    /// The copy of its script.
    pub(super) script: Option<&'a Path>,
    pub(super) stdin: Stdin,
    /// Wall time at which it will be ended, seconds since 1970.
    pub(super) end_time: Option<u64>,
}

impl Recipe<'_> {
    pub(super) fn launch(self) -> Launch {
        Launch {
            argv: self.argv(),
            env: self.env(),
            cwd: path(&self.manifest.cwd.0),
            mem_max: Some(self.manifest.needs.mem).filter(|&mem| mem > 0),
            stdin: self.stdin,
            token: self.token,
        }
    }

    fn argv(&self) -> Vec<Vec<u8>> {
        let filled = |argument: &[u8]| match self.entry {
            Some(entry) => fill(argument, entry),
            None => argument.to_vec(),
        };
        let shell = |text: &[u8]| vec![b"/bin/sh".to_vec(), b"-c".to_vec(), text.to_vec()];
        match &self.manifest.command {
            Command::Argv(argv) => argv.iter().map(|a| filled(&a.0)).collect(),
            Command::Shell(text) => shell(&text.0),
            Command::Entry => shell(self.entry.unwrap_or_default()),
            Command::Script { args, .. } => {
                let script = self.script.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default();
                std::iter::once(script).chain(args.iter().map(|a| filled(&a.0))).collect()
            }
        }
    }

    /// The worker's environment, then the manifest's, then fq's own variables; of one name the last one counts.
    fn env(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut env: Vec<(Vec<u8>, Vec<u8>)> =
            self.options.env.iter().filter(|(name, _)| !name.starts_with(b"FQ_")).cloned().collect();
        let mut set = |name: &[u8], value: &[u8]| match env.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1 = value.to_vec(),
            None => env.push((name.to_vec(), value.to_vec())),
        };
        for (name, value) in &self.manifest.env {
            set(&name.0, &value.0);
        }
        set(b"PWD", &self.manifest.cwd.0);
        let (manifest, task) = (self.manifest, self.attempt.task);
        set(b"FQ_DIR", self.options.dir.as_os_str().as_bytes());
        set(b"FQ_BIN", self.options.bin.as_os_str().as_bytes());
        set(b"FQ_TMP", self.tmp.as_os_str().as_bytes());
        set(b"FQ_SUBMIT_DIR", &manifest.cwd.0);
        set(TOKEN.as_bytes(), self.token.as_bytes());
        let mut text = |name: &str, value: &dyn std::fmt::Display| set(name.as_bytes(), value.to_string().as_bytes());
        text("FQ_JOB_ID", &task);
        text("FQ_JOB_NAME", &manifest.name);
        text("FQ_ATTEMPT", &self.attempt.number);
        text("FQ_WORKER_ID", &self.options.wid);
        text("FQ_CPUS", &manifest.needs.cpus.max(1));
        text("FQ_MEM_MB", &(manifest.needs.mem >> 20));
        text("FQ_SUBMIT_HOST", &manifest.host);
        if let (Some(array), Some(index)) = (&manifest.array, task.index) {
            let (min, max) = (array.first().unwrap_or(index), array.last().unwrap_or(index));
            let gaps = array.len().saturating_sub(1).max(1);
            let step = if (max - min) % gaps == 0 { ((max - min) / gaps).max(1) } else { 1 };
            text("FQ_ARRAY_JOB_ID", &task.job);
            text("FQ_ARRAY_TASK_ID", &index);
            text("FQ_ARRAY_TASK_COUNT", &array.len());
            text("FQ_ARRAY_TASK_MIN", &min);
            text("FQ_ARRAY_TASK_MAX", &max);
            text("FQ_ARRAY_TASK_STEP", &step);
        }
        if let Some(end) = self.end_time {
            text("FQ_END_TIME", &end);
        }
        if let Some(entry) = self.entry {
            set(b"FQ_ENTRY", entry);
        }
        env
    }
}

/// Puts `entry` in the place of each `{}`.
fn fill(argument: &[u8], entry: &[u8]) -> Vec<u8> {
    let mut filled = Vec::with_capacity(argument.len() + entry.len());
    let mut rest = argument;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"{}") {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(entry);
        rest = &rest[at + 2..];
    }
    filled.extend_from_slice(rest);
    filled
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The file that the pattern of `-o` or `-e` means for an attempt: `%j` its task, `%A` its job, `%a` its array index, `%x` the
/// job's name, `%n` the attempt number, `%%` a percent sign. Relative patterns begin at the working directory.
pub(super) fn expand(pattern: &[u8], manifest: &Manifest, attempt: AttemptId) -> PathBuf {
    let mut name = Vec::new();
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'j') => name.extend(attempt.task.to_string().bytes()),
            Some(b'A') => name.extend(attempt.task.job.to_string().bytes()),
            Some(b'a') => name.extend(attempt.task.index.unwrap_or(0).to_string().bytes()),
            // A name must not lead to another directory.
            Some(b'x') => name.extend(manifest.name.bytes().map(|b| if b == b'/' { b'-' } else { b })),
            Some(b'n') => name.extend(attempt.number.to_string().bytes()),
            Some(b'%') | None => name.push(b'%'),
            Some(other) => name.extend([b'%', other]),
        }
    }
    path(&manifest.cwd.0).join(path(&name))
}

/// The name under which a script is copied: its own where that is a plain file name.
pub(super) fn script_name(name: &str) -> &str {
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']) && name.len() < 128;
    if is_plain { name } else { "script" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_put_in_every_place() {
        assert_eq!(fill(b"--in={},{}", b"a b"), b"--in=a b,a b");
        assert_eq!(fill(b"{", b"x"), b"{");
        assert_eq!(fill(b"{}", b"{}"), b"{}");
    }

    #[test]
    fn a_script_name_never_leads_elsewhere() {
        assert_eq!(script_name("job.sh"), "job.sh");
        assert_eq!(script_name("../job.sh"), "script");
        assert_eq!(script_name(""), "script");
    }
}
