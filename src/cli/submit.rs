//! `fq submit`: binds a manifest to a number and prints the number.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use fq::client::submit::{INLINE_BYTES_MAX, bind, private_mode};
use fq::client::wait::Follower;
use fq::clock::{Chance as _, Clock as _, HostChance, HostClock};
use fq::fs::FsError;
use fq::protocol::id::{JobId, Nonce, Ranges, Target};
use fq::protocol::record::{Bytes, Command, Manifest, Needs, Ref};
use fq::protocol::version::CURRENT;
use fq::queue::Queue;
use fq::store;

use super::error::Failure;
use super::look::Look;
use super::place::{self, Place};
use super::units::{self, Array, Dependencies};
use super::{Outcome, exit, export, out, wait};

const EXAMPLES: &str = "\
Examples:
  fq submit -- ./simulate --seed 1
  fq submit -J fit -c 4 --mem 8G -t 1:00:00 --wrap 'python fit.py > fit.log'
  fq submit -a 0-99%10 sweep.sh               index in FQ_ARRAY_TASK_ID, at most 10 at once
  fq submit --each-line files.txt -- gzip {}  one task a line, the line also in FQ_ENTRY
  fq submit -d afterok:12:13 -- ./collect     starts when jobs 12 and 13 are done

Prints the job number alone. No other fq process has to run. In an absent directory a queue is made.";

/// Submits a job and prints its number
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Name for people [default: the command's]
    #[arg(short = 'J', long = "job-name", value_name = "NAME")]
    name: Option<String>,
    /// Make an array of these indices: `0-99`, `1,3,5-7`, `0-20:5`, at most four at once: `0-99%4`
    #[arg(short, long, value_name = "IDX", value_parser = units::array, conflicts_with = "each_line")]
    array: Option<Array>,
    /// Start when these have ended: `afterok:12:13,afterany:14_3,afternotok:15`
    #[arg(short, long, value_name = "EXPR", value_parser = units::dependencies)]
    dependency: Vec<Dependencies>,
    /// CPUs of each task
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// Memory of each task, such as `8G`
    #[arg(long, value_name = "M", value_parser = units::size)]
    mem: Option<u64>,
    /// Time limit of an attempt: `90s`, `10m`, `1:00:00`, `1-12:00:00`
    #[arg(short, long, value_name = "TIME", value_parser = units::span)]
    time: Option<std::time::Duration>,
    /// Working directory [default: the current one]
    #[arg(short = 'D', long, value_name = "DIR")]
    chdir: Option<PathBuf>,
    /// Standard input of each task, copied now [default: empty]
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Also publish standard output there when an attempt ends; %j task, %A job, %a index, %x name
    #[arg(short, long, value_name = "PATTERN")]
    output: Option<OsString>,
    /// The same for standard error
    #[arg(short, long, value_name = "PATTERN")]
    error: Option<OsString>,
    /// Record variables for the job: `NAME`, `NAME=VALUE`, `ALL`, separated by commas
    #[arg(long, value_name = "LIST")]
    export: Vec<OsString>,
    /// Try again so often after a failure or time-out
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
    /// Higher runs first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Submit once per key: if a job of yours has it already, print that one's number
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// One task for each line of FILE (`-`: standard input) that is neither blank nor a `#` comment
    #[arg(long, value_name = "FILE")]
    each_line: Option<PathBuf>,
    /// Do not start before `fq release`
    #[arg(long)]
    hold: bool,
    /// Wait for the end and exit with the highest exit code of its tasks
    #[arg(short = 'W', long)]
    wait: bool,
    /// Run this text with `sh -c`
    #[arg(long, value_name = "SH", conflicts_with_all = ["script", "command"])]
    wrap: Option<OsString>,
    /// A script, copied now, and its arguments
    #[arg(value_name = "SCRIPT")]
    script: Vec<OsString>,
    /// A program and its arguments; after a SCRIPT, more arguments of it
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs `fq submit`.
pub(crate) fn run(args: &Args) -> Outcome {
    // Everything that the user may have got wrong is found before anything is made.
    args.place.dir()?;
    let draft = args.draft()?;
    let queue = args.place.open_or_make()?;
    let known = args.key.as_deref().map(|key| known(&queue, key)).transpose()?.flatten();
    let job = match known {
        Some(job) => job,
        None => submit(&queue, draft)?,
    };
    out::line(&job.to_string())?;
    queue.file.gid.into_iter().for_each(place::warn_outsider);
    if !args.wait {
        return Ok(exit::OK);
    }
    let mut follower = Follower::open(&queue.fs)?;
    wait::until_over(&mut follower, &[Target { job, indices: None }], None)
}

/// The job of this user that has `key`. Of several submitters who look at the same time all submit; the master takes in one, and
/// makes the others' numbers other names of it.
pub(crate) fn known(queue: &Queue, key: &str) -> Result<Option<JobId>, Failure> {
    let look = Look::at(queue.clone())?;
    Ok(look.job_with_key(rustix::process::geteuid().as_raw(), key))
}

/// A manifest that still holds its long inputs.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The rest.
    pub(crate) manifest: Manifest,
    /// The script's bytes, if the command is one.
    pub(crate) script: Option<Vec<u8>>,
    /// The entries, if there are any.
    pub(crate) entries: Option<Vec<u8>>,
    /// The open file with the standard input, if there is one, and its name.
    pub(crate) stdin: Option<(PathBuf, std::fs::File)>,
}

/// Stores what is long, binds the manifest, returns the number.
pub(crate) fn submit(queue: &Queue, draft: Draft) -> Result<JobId, Failure> {
    let Draft { mut manifest, script, entries, stdin } = draft;
    if let (Some(content), Command::Script { bytes, .. }) = (script, &mut manifest.command) {
        *bytes = keep(queue, content)?;
    }
    manifest.entries = entries.map(|bytes| keep(queue, bytes)).transpose()?;
    manifest.stdin = stdin.map(|(path, file)| keep_file(queue, &path, file)).transpose()?;
    Ok(bind(&*queue.fs, private_mode(queue.file.gid), &mut manifest)?)
}

/// Puts `bytes` where the manifest can refer to them.
fn keep(queue: &Queue, bytes: Vec<u8>) -> Result<Ref, Failure> {
    if bytes.len() as u64 <= INLINE_BYTES_MAX {
        return Ok(Ref::Inline { bytes: Bytes(bytes) });
    }
    store::put_loose(&*queue.fs, &HostChance, &bytes).map_err(|error| unkept(&error))
}

/// The same for the content of a file of any length, with constant memory.
fn keep_file(queue: &Queue, path: &Path, mut file: std::fs::File) -> Result<Ref, Failure> {
    let unread = |error: std::io::Error| Failure::own_file("read", path, &error).note("no job was created");
    let mut start = Vec::new();
    (&mut file).take(INLINE_BYTES_MAX + 1).read_to_end(&mut start).map_err(unread)?;
    if start.len() as u64 <= INLINE_BYTES_MAX {
        return Ok(Ref::Inline { bytes: Bytes(start) });
    }
    let mut object = store::writer(&*queue.fs, &HostChance).map_err(|error| unkept(&error))?;
    object.write(&start).map_err(|error| unkept(&error))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return object.finish().map_err(|error| unkept(&error)),
            Ok(n) => object.write(&buffer[..n]).map_err(|error| unkept(&error))?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unread(error)),
        }
    }
}

fn unkept(error: &FsError) -> Failure {
    Failure::files("cannot submit: an input cannot be stored", error)
        .note("no job was created; it is safe to submit again")
}

/// A manifest of `command` with everything else at its default, submitted from here and now.
pub(crate) fn manifest(name: String, command: Command, cwd: &Path) -> Manifest {
    Manifest {
        fq: "job".into(),
        version: CURRENT,
        job: JobId(0),
        sub: Nonce(HostChance.bits()),
        name,
        command,
        cwd: Bytes(place::path_bytes(cwd)),
        env: Vec::new(),
        array: None,
        entries: None,
        stdin: None,
        stdout: None,
        stderr: None,
        needs: Needs::default(),
        user: place::user(),
        host: place::host(),
        at_ms: HostClock.wall_ms(),
    }
}

impl Args {
    fn draft(&self) -> Result<Draft, Failure> {
        let here = place::working_directory()?;
        let cwd = self.chdir.as_ref().map_or_else(|| here.clone(), |dir| here.join(dir));
        if !cwd.is_dir() {
            return Err(Failure::usage(format!("the working directory `{}` is not there", cwd.display())));
        }
        let lines = self.each_line.as_deref().map(read_lines).transpose()?;
        let (command, default_name, script) = self.command()?;
        let name = self.name.clone().unwrap_or(default_name);
        if name.is_empty() || name.len() > 255 || self.key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 255)
        {
            return Err(Failure::usage("a name or key is empty or longer than 255 bytes"));
        }
        let env = export::pick(&self.export, &std::env::vars_os().collect())
            .map_err(|why| Failure::usage(format!("cannot understand `--export`: {why}")))?;
        let array = self.array.as_ref().map(|array| array.indices.clone());
        let mut manifest = manifest(name, command, &cwd);
        manifest.env = env;
        manifest.array = lines.as_ref().map(|lines| Ranges::span(0, lines.count - 1)).or(array);
        manifest.stdout = self.output.clone().map(|pattern| Bytes(pattern.into_vec()));
        manifest.stderr = self.error.clone().map(|pattern| Bytes(pattern.into_vec()));
        manifest.needs = Needs {
            cpus: self.cpus,
            mem: self.mem.unwrap_or(0),
            time_ms: self.time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            retries: self.retries,
            priority: self.priority,
            cap: self.array.as_ref().map_or(0, |array| array.cap),
            hold: self.hold,
            after: self.dependency.iter().flat_map(|list| list.0.clone()).collect(),
            key: self.key.clone().unwrap_or_default(),
        };
        let open = |path: &PathBuf| {
            let file = std::fs::File::open(path).map_err(|error| Failure::own_file("read", path, &error))?;
            Ok::<_, Failure>((path.clone(), file))
        };
        let stdin = self.input.as_ref().map(open).transpose()?;
        Ok(Draft { manifest, script, entries: lines.map(|lines| lines.joined), stdin })
    }

    /// What to run, what to call it, and the content of the script.
    fn command(&self) -> Result<(Command, String, Option<Vec<u8>>), Failure> {
        if let Some(text) = &self.wrap {
            return Ok((Command::Shell(Bytes(text.clone().into_vec())), "wrap".into(), None));
        }
        if let Some((path, first)) = self.script.split_first() {
            let path = Path::new(path);
            let content = read_own(path).map_err(|failure| {
                failure
                    .hint(format!("to run a command instead of a copied script: `fq submit -- {} …`", path.display()))
            })?;
            let name = file_name(path.as_os_str());
            let args = words(first.iter().chain(&self.command));
            return Ok((Command::Script { bytes: Ref::default(), name: name.clone(), args }, name, Some(content)));
        }
        match (self.command.first(), &self.each_line) {
            (Some(program), _) => Ok((Command::Argv(words(&self.command)), file_name(program), None)),
            (None, Some(file)) if file.as_os_str() == "-" => Ok((Command::Entry, "stdin".into(), None)),
            (None, Some(file)) => Ok((Command::Entry, file_name(file.as_os_str()), None)),
            (None, None) => Err(Failure::usage("nothing to run was given")
                .hint("`fq submit -- CMD ARG…`, `fq submit SCRIPT` or `fq submit --wrap 'TEXT FOR SH'`")),
        }
    }
}

/// Arguments, byte for byte.
pub(crate) fn words<'a>(args: impl IntoIterator<Item = &'a OsString>) -> Vec<Bytes> {
    args.into_iter().map(|word| Bytes(word.clone().into_vec())).collect()
}

/// The last part of a path, for a job's name.
pub(crate) fn file_name(path: &std::ffi::OsStr) -> String {
    let name = Path::new(path).file_name().unwrap_or(path);
    let name: String = name.to_string_lossy().chars().take(60).collect();
    if name.is_empty() { "job".into() } else { name }
}

/// The lines of `--each-line`.
#[derive(Debug)]
pub(crate) struct Lines {
    /// At least 1.
    pub(crate) count: u64,
    /// The lines, with a newline between them.
    pub(crate) joined: Vec<u8>,
}

/// The lines of `content` that are neither blank nor a comment; `None` if there is none. Pure.
pub(crate) fn entries(content: &[u8]) -> Option<Lines> {
    let meant = |line: &&[u8]| line.trim_ascii_start().first().is_some_and(|&b| b != b'#');
    let lines: Vec<_> = content.split(|&b| b == b'\n').filter(meant).collect();
    (!lines.is_empty()).then(|| Lines { count: lines.len() as u64, joined: lines.join(&b'\n') })
}

fn read_lines(path: &Path) -> Result<Lines, Failure> {
    let content = if path.as_os_str() == "-" {
        let mut content = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut content);
        read.map_err(|error| Failure::own_file("read", Path::new("standard input"), &error))?;
        content
    } else {
        read_own(path)?
    };
    let named =
        if path.as_os_str().as_bytes() == b"-" { "standard input".into() } else { format!("`{}`", path.display()) };
    let lines = entries(&content).ok_or_else(|| {
        Failure::usage(format!("{named} has no lines to make tasks of: all are blank or `#` comments"))
            .note("no job was created")
    })?;
    if lines.count > 10_000_000 {
        return Err(Failure::usage(format!("{named} has {} lines, expected at most 10,000,000", lines.count)));
    }
    Ok(lines)
}

fn read_own(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::own_file("read", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_comments_make_no_tasks() {
        let lines = entries(b"# head\na b\n\n  \n \xff\n  # more\nlast");
        assert_eq!(lines.as_ref().map(|l| (l.count, l.joined.as_slice())), Some((3, &b"a b\n \xff\nlast"[..])));
        assert!(entries(b"\n#x\n").is_none());
    }

    #[test]
    fn a_job_is_named_after_its_program() {
        assert_eq!(file_name("/usr/bin/gzip".as_ref()), "gzip");
        assert_eq!(file_name("..".as_ref()), "..");
        assert_eq!(file_name("".as_ref()), "job");
    }
}
