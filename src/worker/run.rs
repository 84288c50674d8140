//! Attempts from their start to their end line.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::fs::outside::{Outside, Sink};
use crate::fs::{self, Call, Fs, FsError};
use crate::process::{Child, End, Event, Process, SetupFailure, Signal, Status, Stdin, Step, Stream, Usage};
use crate::protocol::digest::{Digest, Hasher};
use crate::protocol::id::AttemptId;
use crate::protocol::layout;
use crate::protocol::record::{Bytes, EndLine, Limits, Line, Outcome, Ref, Requeue, RunItem, attempt_token};
use crate::store;

use super::jobs::{Job, JobStdin, NoJob};
use super::launch::{self, Recipe};
use super::output::Capture;
use super::{Hand, OUTPUT_MAX, Unstarted, Worker, World, errno_name, trust};

/// Small outputs of several ends are put together, up to about so many bytes.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// How much of a script is written at once.
const PIECE: usize = 1 << 20;
/// How often an output is read for the user's file before the file is given up.
const READS_MAX: u32 = 3;

/// Why fq ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Timeout,
    Cancelled,
    Requeue(Requeue),
}

struct Ending {
    why: Why,
    kill_at: Duration,
    is_killed: bool,
}

/// An attempt that runs.
pub(super) struct Running {
    pub(super) a: AttemptId,
    m: u64,
    pub(super) child: Child,
    job: Rc<Job>,
    cpus: u32,
    mem: u64,
    start_ms: u64,
    /// When its time limit is reached.
    pub(super) deadline: Option<Duration>,
    ending: Option<Ending>,
    pub(super) output: [Capture; 2],
    dirs: Vec<PathBuf>,
}

impl Running {
    /// Begins to end it: TERM now, KILL after `grace`. The first reason counts.
    pub(super) fn end(&mut self, process: &mut dyn Process, why: Why, now: Duration, grace: Duration) {
        if self.ending.is_none() {
            process.signal(self.child, Signal::Term);
            self.ending = Some(Ending { why, kill_at: now + grace, is_killed: false });
        }
    }

    pub(super) fn kill_if_due(&mut self, process: &mut dyn Process, now: Duration) {
        if let Some(ending) = self.ending.as_mut().filter(|ending| !ending.is_killed && now >= ending.kill_at) {
            ending.is_killed = true;
            process.signal(self.child, Signal::Kill);
        }
    }

    /// When something has to be done to it by time alone.
    pub(super) fn next(&self) -> Option<Duration> {
        match &self.ending {
            Some(ending) => Some(ending.kill_at).filter(|_| !ending.is_killed),
            None => self.deadline,
        }
    }

    fn outcome(&self, end: &End) -> Outcome {
        match &self.ending {
            _ if end.out_of_memory => Outcome::Oom(end.status),
            Some(Ending { why: Why::Timeout, .. }) => Outcome::Timeout(end.status),
            Some(Ending { why: Why::Cancelled, .. }) => Outcome::Cancelled(end.status),
            Some(Ending { why: Why::Requeue(why), .. }) => Outcome::Requeue(*why),
            None => Outcome::Ran(end.status),
        }
    }
}

/// An attempt that has ended and whose end line is not written.
pub(super) struct Finishing {
    line: EndLine,
    job: Rc<Job>,
    output: [Capture; 2],
    refs: [Option<Ref>; 2],
    dirs: Vec<PathBuf>,
}

impl Worker {
    pub(super) fn free_cpus(&self) -> u32 {
        self.options.cpus.saturating_sub(self.running.iter().map(|running| running.cpus).sum())
    }

    fn fits(&self, cpus: u32, mem: u64) -> bool {
        let used: u64 = self.running.iter().map(|running| running.mem).sum();
        cpus <= self.free_cpus() && (self.options.mem == 0 || used + mem <= self.options.mem)
    }

    /// Takes output and ends. While the worker pauses, output stays in the pipes; a fenced one throws it away.
    pub(super) fn collect(&mut self, world: &mut World<'_, '_>, now: Duration, is_fenced: bool) {
        let output_max = if self.pause.is_some() && !is_fenced { 0 } else { OUTPUT_MAX };
        let mut taken = 0;
        for event in world.process.poll(output_max) {
            match event {
                Event::Output { child, stream, bytes } => {
                    taken += bytes.len();
                    let running = self.running.iter_mut().find(|running| running.child == child);
                    if let Some(running) = running.filter(|_| !is_fenced) {
                        running.output[usize::from(stream == Stream::Stderr)].take(&bytes, now);
                    }
                }
                Event::Ended { child, end } => {
                    if let Some(at) = self.running.iter().position(|running| running.child == child) {
                        let running = self.running.remove(at);
                        self.ended(world, running, &end, is_fenced);
                    }
                }
            }
        }
        self.has_more = taken * 2 >= OUTPUT_MAX;
    }

    fn ended(&mut self, world: &mut World<'_, '_>, running: Running, end: &End, is_fenced: bool) {
        if is_fenced {
            for dir in &running.dirs {
                world.outside.remove_dir(dir);
            }
            return;
        }
        let line = EndLine {
            how: running.outcome(end),
            usage: end.usage,
            ms: u64::try_from(end.elapsed.as_millis()).unwrap_or(u64::MAX),
            leftovers: end.leftovers,
            start_ms: running.start_ms,
            ..empty_end(running.a, running.m, world.clock.wall_ms())
        };
        let Running { job, output, dirs, .. } = running;
        self.finishing.push(Finishing { line, job, output, refs: [None, None], dirs });
    }

    /// Writes output that is large or old to `out/`; says whether it did not fail.
    pub(super) fn spill(&mut self, world: &mut World<'_, '_>, now: Duration) -> bool {
        for i in 0..self.running.len() {
            for stream in 0..2 {
                let capture = &mut self.running[i].output[stream];
                if capture.spill_at().is_none_or(|at| at > now) {
                    continue;
                }
                if let Err(error) = capture.spill(world.fs, &self.options.wid) {
                    self.pause(world, &error);
                    return false;
                }
                self.stay_alive(&mut world.pulse());
            }
        }
        true
    }

    /// Makes the outputs of ended attempts durable and writes their end lines; says whether it did not fail.
    pub(super) fn finish(&mut self, world: &mut World<'_, '_>) -> bool {
        while !self.finishing.is_empty() {
            if let Err(error) = self.store_outputs(world) {
                self.pause(world, &error);
                return false;
            }
            let is_stored = |finishing: &mut Finishing| finishing.refs.iter().all(Option::is_some);
            let stored: Vec<Finishing> = self.finishing.extract_if(.., is_stored).collect();
            for finishing in stored {
                self.write_end(world, finishing);
            }
        }
        true
    }

    /// Puts a batch of outputs into the store: the small ones with one sync, or one large one. That may last; signs of life go on
    /// meanwhile.
    fn store_outputs(&mut self, world: &mut World<'_, '_>) -> Result<(), FsError> {
        let mut finishing = std::mem::take(&mut self.finishing);
        let stored = match self.store_small(world, &mut finishing) {
            Ok(false) => self.store_large(world, &mut finishing),
            other => other.map(drop),
        };
        self.finishing = finishing;
        stored
    }

    /// Stores small outputs; says whether there were any.
    fn store_small(&mut self, world: &mut World<'_, '_>, all: &mut [Finishing]) -> Result<bool, FsError> {
        let pack_item_max = self.options.limits.pack_item_max;
        let (mut pulse, store, _) = world.split();
        let fs = pulse.fs;
        let mut between = || held(self.stay_alive(&mut pulse));
        let mut batch = Vec::new();
        let mut batch_len = 0;
        for (i, finishing) in all.iter_mut().enumerate() {
            for stream in 0..2 {
                let capture = &finishing.output[stream];
                if finishing.refs[stream].is_some() || capture.len() > pack_item_max || batch_len > BATCH_BYTES_MAX {
                    continue;
                }
                match capture.read(fs, &mut between) {
                    Ok(Some(bytes)) => {
                        batch_len += bytes.len() as u64;
                        batch.push(((i, stream), bytes));
                    }
                    Ok(None) => finishing.lose(stream),
                    Err(error) if error.not_found() && !fs::is_listed(fs, &error.path)? => finishing.lose(stream),
                    Err(error) => return Err(error),
                }
                between()?;
            }
        }
        let values: Vec<&[u8]> = batch.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        let refs = store.put_all(&values)?;
        for (((i, stream), _), value) in batch.iter().zip(refs) {
            all[*i].refs[*stream] = Some(value);
        }
        between()?;
        Ok(!batch.is_empty())
    }

    /// Streams the first large output that is not stored into a loose object.
    fn store_large(&mut self, world: &mut World<'_, '_>, all: &mut [Finishing]) -> Result<(), FsError> {
        let missing = |finishing: &Finishing| (0..2).find(|&stream| finishing.refs[stream].is_none());
        let first = all.iter_mut().find_map(|finishing| missing(finishing).map(|stream| (finishing, stream)));
        let Some((finishing, stream)) = first else { return Ok(()) };
        let (mut pulse, store, _) = world.split();
        let fs = pulse.fs;
        let stored = (|| {
            let mut writer = store.writer()?;
            finishing.output[stream].each(fs, &mut |bytes| {
                writer.write(bytes)?;
                held(self.stay_alive(&mut pulse))
            })?;
            writer.finish()
        })();
        let value = match stored {
            Err(error) if error.not_found() && !fs::is_listed(fs, &error.path)? => {
                finishing.lose(stream);
                return Ok(());
            }
            other => other?,
        };
        let sha = match &value {
            Ref::Loose { sha, .. } | Ref::Packed { sha, .. } => *sha,
            Ref::Inline { bytes } => Digest::of(&bytes.0),
        };
        if sha == finishing.output[stream].digest() {
            finishing.refs[stream] = Some(value);
        } else {
            finishing.lose(stream);
        }
        Ok(())
    }

    /// Publishes the user's output files, writes the end line and cleans up.
    fn write_end(&mut self, world: &mut World<'_, '_>, finishing: Finishing) {
        let Finishing { mut line, job, output, refs, dirs } = finishing;
        if !matches!(line.how, Outcome::Requeue(Requeue::Storage)) {
            let (mut pulse, _, outside) = world.split();
            let fs = pulse.fs;
            let mut between = || held(self.stay_alive(&mut pulse));
            line.notes.extend(publish(fs, outside, &job, line.a, &output, &mut between));
        }
        let [out, err] = refs.map(Option::unwrap_or_default);
        (line.out, line.err) = (out, err);
        let paths: Vec<PathBuf> = output.iter().flat_map(Capture::paths).collect();
        let seq = self.append_end(world, line);
        self.spent.extend(paths.into_iter().map(|path| (seq, path)));
        for dir in &dirs {
            world.outside.remove_dir(dir);
        }
    }

    /// Writes the end lines of attempts whose outputs cannot be stored: they are run again.
    pub(super) fn give_up_outputs(&mut self, world: &World<'_, '_>, requeue: Requeue) {
        for Finishing { mut line, output, .. } in std::mem::take(&mut self.finishing) {
            line.how = Outcome::Requeue(requeue);
            line.notes.push("its output could not be stored before the worker had to end".to_owned());
            let seq = self.append_end(world, line);
            self.spent.extend(output.iter().flat_map(Capture::paths).map(|path| (seq, path)));
        }
    }

    fn append_end(&mut self, world: &World<'_, '_>, line: EndLine) -> u64 {
        self.end_since.get_or_insert(world.clock.boot());
        self.busy_at = world.clock.boot();
        self.journal.append(&Line::End(Box::new(line)))
    }

    /// Starts what fits, in the order of arrival. What waits for its manifest is passed over.
    pub(super) fn start_tasks(&mut self, world: &mut World<'_, '_>, now: Duration) {
        let mut at = 0;
        while at < self.queue.len() && self.pause.is_none() && self.drain.is_none() {
            if self.queue[at].claim > self.journal.durable() || !self.stay_alive(&mut world.pulse()) {
                break;
            }
            let job = match self.job(world, &self.queue[at].item.clone(), now) {
                Ok(job) => job,
                Err(NoJob::NotYet) => {
                    at += 1;
                    continue;
                }
                Err(NoJob::Never(how)) => {
                    self.fail(world, at, how);
                    continue;
                }
            };
            // What the master gave despite its size runs alone.
            let cpus = job.manifest.needs.cpus.clamp(1, self.options.cpus.max(1));
            let mem = match self.options.mem {
                0 => job.manifest.needs.mem,
                all => job.manifest.needs.mem.min(all),
            };
            if !self.fits(cpus, mem) {
                break;
            }
            let Some(next) = self.queue.remove(at) else { break };
            if let Err(how) = self.launch(world, &next, &job, (cpus, mem)) {
                let line = EndLine { how, ..empty_end(next.a, next.m, world.clock.wall_ms()) };
                self.append_end(world, line);
            }
            if self.options.once {
                self.drain(Hand::Finish, Requeue::Drained, "it was to run one task");
            }
        }
        if self.queue.is_empty() {
            self.jobs.sweep();
        }
    }

    /// The job of `item`, read where that was not done yet.
    fn job(&mut self, world: &mut World<'_, '_>, item: &RunItem, now: Duration) -> Result<Rc<Job>, NoJob> {
        let (trust, is_member) = (self.options.trust.clone(), world.is_member);
        let is_trusted = |uid| trust::trusts(&trust, uid, is_member);
        let paces = (Limits::span(self.options.limits.poll_ms), Limits::span(self.options.limits.visible_ms));
        let mut jobs = std::mem::take(&mut self.jobs);
        let mut pulse = world.pulse();
        let fs = pulse.fs;
        let mut between = || {
            self.stay_alive(&mut pulse);
        };
        let job = jobs.get(fs, item, &is_trusted, now, paces, &mut between);
        self.jobs = jobs;
        job
    }

    fn fail(&mut self, world: &World<'_, '_>, at: usize, how: Outcome) {
        if let Some(next) = self.queue.remove(at) {
            let line = EndLine { how, ..empty_end(next.a, next.m, world.clock.wall_ms()) };
            self.append_end(world, line);
        }
    }

    fn launch(
        &mut self,
        world: &mut World<'_, '_>,
        next: &Unstarted,
        job: &Rc<Job>,
        (cpus, mem): (u32, u64),
    ) -> Result<(), Outcome> {
        let manifest = &job.manifest;
        let entry = job.entry(next.a.task.index).map_err(Outcome::Refused)?;
        let mut dirs = Vec::new();
        let brought = self.bring(world, job, next.a, &mut dirs).map_err(Outcome::Setup);
        // Reading what it needs may have taken long.
        let now = world.clock.boot();
        let start_ms = world.clock.wall_ms();
        let limit = Some(manifest.needs.time_ms).filter(|&ms| ms > 0).map(Limits::span);
        let rest = self.options.lifetime.map(|span| (self.started + span).saturating_sub(now));
        let span = limit.into_iter().chain(rest).min();
        let end_time = span.map(|span| start_ms / 1000 + span.as_secs());
        let started = brought.and_then(|Brought { tmp, script, stdin }| {
            let token = attempt_token(self.options.queue, &self.options.wid, next.a);
            let recipe = Recipe {
                options: &self.options,
                manifest,
                attempt: next.a,
                entry,
                token,
                tmp: &tmp,
                script: script.as_deref(),
                stdin,
                end_time,
            };
            // Its attempt may be somewhere else by now.
            if self.lease.is_over(now) {
                return Err(Outcome::Requeue(Requeue::Storage));
            }
            world.process.start(&recipe.launch()).map_err(Outcome::Setup)
        });
        let started = started.inspect_err(|_| {
            for dir in &dirs {
                world.outside.remove_dir(dir);
            }
        })?;
        self.journal.append(&Line::Start { a: next.a, m: next.m, group: started.group, at_ms: start_ms });
        self.starts_wait = true;
        let inline_max = self.options.limits.inline_max;
        self.running.push(Running {
            a: next.a,
            m: next.m,
            child: started.child,
            job: job.clone(),
            cpus,
            mem,
            start_ms,
            deadline: limit.map(|limit| now + limit),
            ending: None,
            output: [Stream::Stdout, Stream::Stderr].map(|stream| Capture::new(next.a, stream, inline_max)),
            dirs,
        });
        Ok(())
    }

    /// Brings what an attempt needs to this host. That may last; signs of life go on meanwhile.
    fn bring(
        &mut self,
        world: &mut World<'_, '_>,
        job: &Job,
        a: AttemptId,
        dirs: &mut Vec<PathBuf>,
    ) -> Result<Brought, SetupFailure> {
        let (mut pulse, _, outside) = world.split();
        let fs = pulse.fs;
        let mut between = || held(self.stay_alive(&mut pulse));
        let tmp = make_dir(outside, &a.to_string(), dirs)?;
        let script = copy_script(outside, job, a, dirs, &mut between)?;
        let stdin = match &job.stdin {
            JobStdin::Null => Stdin::Null,
            JobStdin::Small(bytes) => Stdin::Bytes(bytes.clone()),
            JobStdin::Large(value) => Stdin::File(copy_stdin(fs, outside, value, a, dirs, &mut between)?),
        };
        Ok(Brought { tmp, script, stdin })
    }
}

/// What an attempt needs, on this host.
struct Brought {
    /// Its private directory.
    tmp: PathBuf,
    /// The copy of its script.
    script: Option<PathBuf>,
    stdin: Stdin,
}

/// Called between the pieces of a copy, which ends if it fails.
type Between<'a> = dyn FnMut() -> Result<(), FsError> + 'a;

/// Ends a copy where the lease is over.
fn held(is_held: bool) -> Result<(), FsError> {
    if is_held { Ok(()) } else { Err(FsError::new(Call::Sync, layout::JOURNALS.as_ref(), libc::ETIMEDOUT)) }
}

impl Finishing {
    /// Gives up on an output that the file system has lost: the attempt is run again without blame.
    fn lose(&mut self, stream: usize) {
        self.line.how = Outcome::Requeue(Requeue::Storage);
        self.line.notes.push("its output could not be read back as it was written".to_owned());
        self.refs[stream] = Some(Ref::default());
    }
}

fn empty_end(a: AttemptId, m: u64, end_ms: u64) -> EndLine {
    EndLine {
        a,
        m,
        how: Outcome::Ran(Status::Exit(0)),
        out: Ref::default(),
        err: Ref::default(),
        usage: Usage::default(),
        ms: 0,
        leftovers: 0,
        notes: Vec::new(),
        start_ms: 0,
        end_ms,
    }
}

fn input_failure(error: &io::Error, path: &Path) -> SetupFailure {
    let errno = error.raw_os_error().map_or_else(|| error.kind().to_string(), errno_name);
    SetupFailure { step: Step::Input, errno, path: path.display().to_string() }
}

fn make_dir(outside: &mut dyn Outside, name: &str, dirs: &mut Vec<PathBuf>) -> Result<PathBuf, SetupFailure> {
    let dir = outside.make_dir(name).map_err(|error| input_failure(&error, Path::new(name)))?;
    dirs.push(dir.clone());
    Ok(dir)
}

fn copy_script(
    outside: &mut dyn Outside,
    job: &Job,
    a: AttemptId,
    dirs: &mut Vec<PathBuf>,
    between: &mut Between<'_>,
) -> Result<Option<PathBuf>, SetupFailure> {
    let (Some(bytes), crate::protocol::record::Command::Script { name, .. }) = (&job.script, &job.manifest.command)
    else {
        return Ok(None);
    };
    let path = make_dir(outside, &format!("{a}.script"), dirs)?.join(launch::script_name(name));
    let made = outside.make_file(&path, 0o700, &mut |sink| {
        bytes.chunks(PIECE).try_for_each(|piece| sink(piece).and_then(|()| between().map_err(io::Error::other)))
    });
    made.map_err(|error| input_failure(&error, &path))?;
    Ok(Some(path))
}

/// Copies a large standard input to the host; the copy is used only if its digest is right.
fn copy_stdin(
    fs: &dyn Fs,
    outside: &mut dyn Outside,
    value: &Ref,
    a: AttemptId,
    dirs: &mut Vec<PathBuf>,
    between: &mut Between<'_>,
) -> Result<PathBuf, SetupFailure> {
    let path = make_dir(outside, &format!("{a}.stdin"), dirs)?.join("stdin");
    let mut lost = None;
    let made = outside.make_file(&path, 0o600, &mut |sink| {
        let mut written = Ok(());
        let copied = store::copy_to(fs, value, &mut |bytes| {
            if written.is_ok() {
                written = sink(bytes).and_then(|()| between().map_err(io::Error::other));
            }
        });
        copied.map_err(|error| io::Error::other(lost.insert(error.to_string()).clone())).and(written)
    });
    made.map_err(|error| match lost {
        Some(why) => SetupFailure { step: Step::Input, errno: "EIO".to_owned(), path: why },
        None => input_failure(&error, &path),
    })?;
    Ok(path)
}

/// Publishes the output files that the user asked for; returns what did not work, for people.
fn publish(
    fs: &dyn Fs,
    outside: &mut dyn Outside,
    job: &Job,
    a: AttemptId,
    output: &[Capture; 2],
    between: &mut Between<'_>,
) -> Vec<String> {
    let path = |pattern: &Option<Bytes>| pattern.as_ref().map(|p| launch::expand(&p.0, &job.manifest, a));
    let (out, err) = (path(&job.manifest.stdout), path(&job.manifest.stderr));
    let files: Vec<(PathBuf, Vec<&Capture>)> = match (out, err) {
        (Some(out), Some(err)) if out == err => vec![(out, vec![&output[0], &output[1]])],
        (out, err) => {
            let one = |path: Option<PathBuf>, stream: usize| path.map(|path| (path, vec![&output[stream]]));
            one(out, 0).into_iter().chain(one(err, 1)).collect()
        }
    };
    let mut notes = Vec::new();
    for (path, captures) in files {
        // Bytes that come back wrong are mostly right the next time.
        let mut done = Err(io::Error::other("not tried"));
        for _ in 0..READS_MAX {
            done = outside.publish(&path, &mut |sink| {
                captures.iter().try_for_each(|capture| pass_on(fs, capture, sink, between))?;
                // Others may have the task, and its file, by now.
                between().map_err(io::Error::other)
            });
            if !done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
                break;
            }
        }
        if let Err(error) = done {
            notes.push(format!("cannot write `{}`: {error}; the output is kept in the queue", path.display()));
        }
    }
    notes
}

/// Passes an output to `sink`; fails with `InvalidData` at its end if it was not what the attempt wrote.
fn pass_on(fs: &dyn Fs, capture: &Capture, sink: &mut Sink<'_>, between: &mut Between<'_>) -> io::Result<()> {
    let mut written = Ok(());
    let mut hasher = Hasher::default();
    let read = capture.each(fs, &mut |bytes| {
        hasher.update(bytes);
        if written.is_ok() {
            written = sink(bytes);
        }
        between()
    });
    read.map_err(io::Error::other).and(written)?;
    if hasher.finish() == capture.digest() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it could not be read back as it was written"))
}
