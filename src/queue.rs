//! A queue directory: making one, and opening one.
//!
//! Invariants:
//! - A directory is a queue if and only if `FQ` is there and whole. `FQ` is made last, by exclusive creation, and its bytes never
//!   change; nothing acts on a directory without it.
//! - What `FQ` says is a function of the first decision: it was written to that one's plan before there was a token. So a torn `FQ` can be
//!   replaced by the plan at any time, also while its maker still writes or a whole one has come there: they are the same bytes.
//! - Only [`init_on`] and fsck make a token, and neither uses a name again.
//! - What a crash of `init` leaves is completed by the next `init`, or refused with a sentence on what to do.
//! - A directory that strangers could have planted (writable by everybody, owned by another user) is refused before anything in
//!   it is believed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{Chance, Clock, HostChance, HostClock};
use crate::fs::{self, ErrorKind, Fs, FsError, HostFs, HostOptions, MountKind};
use crate::protocol::frame;
use crate::protocol::id::{DecisionId, Nonce, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{
    self, BadLimits, BadRecord, Durability, HeadStyle, Header, Limits, QueueFile, to_document, to_line,
};
use crate::protocol::version::{self, CURRENT, Unreadable};

/// What the maker of a queue decides once.
#[derive(Debug, Clone, Default)]
pub struct InitOptions {
    /// Whether writes are made durable.
    pub durability: Durability,
    /// The group that shares the queue; `None` for a queue of one user.
    pub group: Option<u32>,
    /// The limits in force; the defaults if `None`.
    pub limits: Option<Limits>,
    /// How the token is named.
    pub head_style: HeadStyle,
}

/// An open queue: its files and what `FQ` says.
#[derive(Debug, Clone)]
pub struct Queue {
    /// The files.
    pub fs: Arc<HostFs>,
    /// What kind of queue this is.
    pub file: QueueFile,
}

impl Queue {
    /// Opens the queue in the directory `root`, reading only.
    ///
    /// Fails if there is no whole `FQ`, if the format is newer than this program, and if the directory is writable by everybody
    /// or belongs to another user than root and the caller (a queue made for a group may belong to any of its members).
    pub fn open(root: &Path) -> Result<Self, QueueError> {
        let plain = HostFs::open(root, HostOptions::default()).map_err(|e| unopened(root, e))?;
        let stat = plain.root_stat().map_err(|source| QueueError::Fs { root: root.to_owned(), source })?;
        if stat.mode & 0o002 != 0 {
            return Err(QueueError::WorldWritable { root: root.to_owned(), mode: stat.mode });
        }
        let file = read_file(&plain, root)?;
        let me = rustix::process::geteuid().as_raw();
        if !is_trusted_owner(stat.uid, me, file.gid) {
            return Err(QueueError::Stranger { root: root.to_owned(), uid: stat.uid });
        }
        let fs = HostFs::open(root, host_options(file.durability, file.gid)).map_err(|e| unopened(root, e))?;
        Ok(Self { fs: Arc::new(fs), file })
    }

    /// The directory, absolute.
    pub fn root(&self) -> &Path {
        self.fs.root()
    }

    /// Reads the limits that the operator wants; those in force are the ones that a decision took over.
    pub fn limits(&self) -> Result<Limits, QueueError> {
        read_limits(&*self.fs, self.root())
    }
}

/// What it means that `root` cannot be opened. That there is no queue is said only where the storage says so: a mount that has
/// lost its connection may have one, and nobody should be told to make another there.
fn unopened(root: &Path, source: FsError) -> QueueError {
    let root = root.to_owned();
    match source.kind {
        ErrorKind::NotFound | ErrorKind::Planted => QueueError::NoQueue { root, source },
        _ => QueueError::Fs { root, source },
    }
}

/// Whether a queue directory of `owner` may be believed by `me`: the worker checks the owner of every manifest on top.
fn is_trusted_owner(owner: u32, me: u32, group: Option<u32>) -> bool {
    owner == 0 || owner == me || me == 0 || group.is_some()
}

fn host_options(durability: Durability, group: Option<u32>) -> HostOptions {
    let durability = match durability {
        Durability::Full => fs::Durability::Full,
        Durability::None => fs::Durability::None,
    };
    HostOptions { durability, group }
}

/// The way to name the token that is safe on a mount of this kind.
pub fn head_style(kind: &MountKind) -> HeadStyle {
    if matches!(kind, MountKind::Gluster) { HeadStyle::Dotted } else { HeadStyle::Plain }
}

/// Makes a queue in the directory `root`, which is made too if its parent exists, or completes what an earlier call has begun.
///
/// On return the queue is complete and durable. A crash leaves a directory without a whole `FQ`, which the next call with the same
/// options completes.
///
/// Fails with [`QueueError::Exists`] if there is a queue already, and with [`QueueError::NotEmpty`] if anything else lies there
/// that is not hidden. `options.head_style` is overruled where the mount needs a certain one.
pub fn init(root: &Path, options: &InitOptions) -> Result<Queue, QueueError> {
    let failed = |source| QueueError::Init { root: root.to_owned(), source };
    let host_options = host_options(options.durability, options.group);
    let host = HostFs::make(root, host_options).map_err(failed)?;
    let stat = host.root_stat().map_err(failed)?;
    if stat.mode & 0o002 != 0 {
        return Err(QueueError::WorldWritable { root: root.to_owned(), mode: stat.mode });
    }
    let mut options = options.clone();
    if head_style(&host.mount().kind) == HeadStyle::Dotted {
        options.head_style = HeadStyle::Dotted;
    }
    let uid = rustix::process::geteuid().as_raw();
    init_on(&host, &HostChance, &HostClock, root, uid, &options)?;
    Queue::open(root)
}

/// Makes a queue in the existing directory behind `fs`. `root` is its name in messages, `uid` the user who makes it.
pub fn init_on(
    fs: &dyn Fs,
    chance: &dyn Chance,
    clock: &dyn Clock,
    root: &Path,
    uid: u32,
    options: &InitOptions,
) -> Result<QueueFile, QueueError> {
    let limits = options.limits.clone().unwrap_or_default();
    limits.check().map_err(|source| QueueError::BadLimits { root: root.to_owned(), source })?;
    let wanted = QueueFile {
        fq: "queue".into(),
        version: CURRENT,
        features: Vec::new(),
        id: Nonce(chance.bits()),
        durability: options.durability,
        head_style: options.head_style,
        first: DecisionId { generation: 0, nonce: Nonce(chance.bits()) },
        uid,
        gid: options.group,
        at_ms: clock.wall_ms(),
    };
    let init = Init { fs, chance, root };
    if init.is_torn()? {
        return init.complete(&wanted);
    }
    let failed = |source| init.failed(source);
    make_directories(fs).map_err(failed)?;
    fs::publish(fs, chance, Path::new(layout::README), README.as_bytes(), 0o644).map_err(failed)?;
    let mode = if options.group.is_some() { 0o664 } else { 0o644 };
    fs::publish(fs, chance, Path::new(layout::LIMITS), &limits_text(&limits), mode).map_err(failed)?;
    let file = match init.begun(&wanted)? {
        Some(begun) => begun,
        None => init.begin(wanted).map_err(failed)?,
    };
    init.finish(file)
}

/// One attempt to make a queue, or to complete what an earlier one has left.
struct Init<'a> {
    fs: &'a dyn Fs,
    chance: &'a dyn Chance,
    root: &'a Path,
}

impl Init<'_> {
    fn failed(&self, source: FsError) -> QueueError {
        QueueError::Init { root: self.root.to_owned(), source }
    }

    fn unfinished(&self, why: impl Into<String>, remedy: Remedy) -> QueueError {
        QueueError::Unfinished { root: self.root.to_owned(), why: why.into(), remedy }
    }

    /// Refuses a directory that holds a queue, or anything that is not the beginning of one; says whether there is a torn `FQ`.
    fn is_torn(&self) -> Result<bool, QueueError> {
        let root = self.root.to_owned();
        let names = self.fs.list(Path::new("")).map_err(|source| self.failed(source))?;
        if names.iter().any(|e| e.name == layout::QUEUE) {
            return match read_file(self.fs, &root) {
                Ok(_) | Err(QueueError::Newer { .. }) => Err(QueueError::Exists { root }),
                Err(QueueError::Unfinished { .. }) => Ok(true),
                Err(other) => Err(other),
            };
        }
        let ours = |name: &str| {
            name == layout::README
                || name == layout::LIMITS
                || layout::DIRECTORIES.iter().any(|dir| Path::new(dir).starts_with(name))
        };
        match names.iter().find(|e| !e.name.starts_with('.') && !ours(&e.name)) {
            Some(stranger) => Err(QueueError::NotEmpty { root, name: stranger.name.clone() }),
            None => Ok(false),
        }
    }

    /// Makes the first decision, the plan for `FQ`, then the token that names the decision.
    fn begin(&self, file: QueueFile) -> fs::Result<QueueFile> {
        let header = Header {
            fq: "decision".into(),
            version: CURRENT,
            id: file.first,
            prev: None,
            prev_sha: None,
            snapshot: None,
            term: 0,
            by: WorkerId::new("init", Nonce(self.chance.bits())),
            at_ms: file.at_ms,
        };
        fs::put_new(self.fs, &layout::decision(file.first), &frame::close_document(to_line(&header)), 0o644)?;
        fs::put_new(self.fs, &layout::plan(file.first), &to_document(&file), 0o444)?;
        fs::put_new(self.fs, &layout::head(file.first, file.head_style), TOKEN, 0o644)?;
        Ok(file)
    }

    /// What `FQ` is to say by the plan of the token that an earlier `init` has made, if there is one; what it names was durable
    /// before it. Fails if that is not what is `wanted` now.
    fn begun(&self, wanted: &QueueFile) -> Result<Option<QueueFile>, QueueError> {
        let names = self.fs.list(Path::new(layout::HEAD)).map_err(|source| self.failed(source))?;
        let tokens: Vec<_> =
            names.iter().filter_map(|e| Some((e.name.as_str(), layout::parse_head(&e.name)?))).collect();
        let (name, first) = match tokens[..] {
            [] => return Ok(None),
            [(name, first)] if first.generation == 0 => (name, first),
            [(_, later)] => return Err(lost(self.root, later)),
            _ => {
                let why = format!("{} of them have begun it, and none has finished", tokens.len());
                return Err(self.unfinished(why, Remedy::Remove));
            }
        };
        let whole = |path: &Path| match fs::read_up_to(self.fs, path, FILE_LEN_MAX) {
            Ok(bytes) => Ok(frame::open_document(&bytes).is_some().then_some(bytes)),
            Err(error) if error.not_found() => Ok(None),
            Err(source) => Err(self.failed(source)),
        };
        let plan = whole(&layout::plan(first))?.and_then(|bytes| record::from_document::<QueueFile>(&bytes).ok());
        let Some(plan) =
            plan.filter(|plan| plan.first == first && layout::head(first, plan.head_style).ends_with(name))
        else {
            return Err(self.unfinished(format!("the plan of `{first}` is damaged"), Remedy::Remove));
        };
        if whole(&layout::decision(first))?.is_none() {
            return Err(self.unfinished(format!("the first decision `{first}` is damaged"), Remedy::Remove));
        }
        let same = QueueFile { id: plan.id, first, at_ms: plan.at_ms, ..wanted.clone() };
        if same != plan {
            let group = plan.gid.map_or("no group".to_owned(), |gid| format!("group {gid}"));
            let durability = if plan.durability == Durability::Full { "full" } else { "none" };
            let why = format!("user {} has begun it, for {group} and with durability `{durability}`", plan.uid);
            return Err(self.unfinished(why, Remedy::SameOptions));
        }
        Ok(Some(plan))
    }

    /// Makes `FQ`. The first decision, the plan and the token are durable.
    fn finish(&self, file: QueueFile) -> Result<QueueFile, QueueError> {
        let outcome = fs::put_new(self.fs, Path::new(layout::QUEUE), &to_document(&file), 0o444);
        // The error is a hint: what counts is whose `FQ` is there. Another's is torn for a moment, between its creation and its bytes.
        let mut seen = read_file(self.fs, self.root);
        for _ in 0..LOOKS {
            if !matches!(seen, Err(QueueError::Unfinished { .. })) {
                break;
            }
            seen = read_file(self.fs, self.root);
        }
        match (seen, outcome) {
            (Ok(found), _) if found == file => Ok(file),
            (Ok(found), _) => {
                if found.first != file.first {
                    let token = layout::head(file.first, file.head_style);
                    let aside = layout::gone_head(&file.first.to_string(), Nonce(self.chance.bits()));
                    self.fs.rename(&token, &aside).map_err(|source| self.failed(source))?;
                }
                Err(QueueError::Exists { root: self.root.to_owned() })
            }
            // Somebody died over it, and perhaps it was this process, whose call was done though it says that it was not.
            (Err(QueueError::Unfinished { .. }), Err(error)) if error.kind == ErrorKind::Exists => self.complete(&file),
            (Err(_), Err(source)) => Err(self.failed(source)),
            // Exclusive creation has one winner, so it is ours, whatever an old look-up says.
            (Err(QueueError::Unfinished { .. } | QueueError::NoQueue { .. }), Ok(())) => Ok(file),
            (Err(error), Ok(())) => Err(error),
        }
    }

    /// Replaces a torn `FQ` by what its maker wrote or writes.
    ///
    /// Its maker's token is older than `FQ`, and goes away only if a whole `FQ` names another one or by a commit. So if a token of
    /// generation 0 is alone, it is the maker's. Nobody can be hurt: whatever comes to be there meanwhile has the same bytes.
    fn complete(&self, wanted: &QueueFile) -> Result<QueueFile, QueueError> {
        let failed = |source| self.failed(source);
        // A listing of the tick in which two tokens were made may show one of them.
        let nudge = layout::nudge(layout::HEAD.as_ref(), Nonce(self.chance.bits()));
        self.fs.create(&nudge, 0o644).and_then(fs::WriteFile::close).map_err(failed)?;
        self.fs.unlink(&nudge).map_err(failed)?;
        let Some(plan) = self.begun(wanted)? else {
            return Err(self.unfinished("`FQ` is cut short, and there is no token", Remedy::Remove));
        };
        let bytes = to_document(&plan);
        let torn = fs::read_up_to(self.fs, Path::new(layout::QUEUE), FILE_LEN_MAX).map_err(failed)?;
        // After a power loss there may be zeros for what was not written.
        let written = torn.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        if !bytes.starts_with(&torn[..written]) {
            return Err(self.unfinished("`FQ` is cut short, and it is not of the token that is there", Remedy::Remove));
        }
        fs::publish(self.fs, self.chance, Path::new(layout::QUEUE), &bytes, 0o444).map_err(failed)?;
        match read_file(self.fs, self.root)? {
            found if found == plan => Ok(plan),
            _ => Err(QueueError::Exists { root: self.root.to_owned() }),
        }
    }
}

/// How often a torn `FQ` is looked at before its maker is taken for dead.
const LOOKS: u32 = 20;

/// Reads `FQ` and checks that this program may touch the queue. `root` is the queue's name in messages.
pub fn read_file(fs: &dyn Fs, root: &Path) -> Result<QueueFile, QueueError> {
    let root = root.to_owned();
    let bytes = match fs::read_up_to(fs, Path::new(layout::QUEUE), FILE_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.not_found() => {
            let begun = fs.list(Path::new("")).is_ok_and(|names| names.iter().any(|e| e.name == "decisions"));
            return Err(match later_decision(fs) {
                Some(later) => lost(&root, later),
                None if begun => QueueError::Unfinished { root, why: "`FQ` is missing".into(), remedy: Remedy::Again },
                None => QueueError::NoQueue { root, source: error },
            });
        }
        Err(source) => return Err(QueueError::Fs { root, source }),
    };
    // A newer format may have another frame, so its number is looked at before the frame is.
    if let Some(source) = announced(&bytes).and_then(|a| version::check(a.version, &a.features).err()) {
        return Err(QueueError::Newer { root, source });
    }
    match record::from_document::<QueueFile>(&bytes) {
        Ok(file) if file.fq == "queue" => Ok(file),
        Ok(file) => {
            let source = BadRecord::Malformed(format!("it is a `{}`, expected a `queue`", file.fq));
            Err(QueueError::Damaged { root, path: layout::QUEUE.into(), source })
        }
        Err(BadRecord::Torn) if later_decision(fs).is_none() => {
            Err(QueueError::Unfinished { root, why: "`FQ` is cut short".into(), remedy: Remedy::Again })
        }
        Err(source) => Err(QueueError::Damaged { root, path: layout::QUEUE.into(), source }),
    }
}

/// A decision that was bound after the first one, which tells a queue that was used from one whose `init` was cut short.
fn later_decision(fs: &dyn Fs) -> Option<DecisionId> {
    let names = fs.list(Path::new(layout::HEAD)).unwrap_or_default();
    names.iter().filter_map(|e| layout::parse_head(&e.name)).find(|id| id.generation > 0)
}

/// `FQ` was there once and is not any more.
fn lost(root: &Path, later: DecisionId) -> QueueError {
    let source = BadRecord::Malformed(format!("it is missing, and the newest decision is `{later}`"));
    QueueError::Damaged { root: root.to_owned(), path: layout::QUEUE.into(), source }
}

/// The greatest length of `FQ` and `limits.json` that is read.
const FILE_LEN_MAX: u64 = 1 << 20;

#[derive(serde::Deserialize)]
struct Announced {
    version: version::FormatVersion,
    #[serde(default)]
    features: Vec<String>,
}

fn announced(bytes: &[u8]) -> Option<Announced> {
    serde_json::from_slice(bytes.split(|&b| b == b'\n').next()?).ok()
}

/// Reads `limits.json`. A file that is missing or does not parse is an error and never means the defaults.
pub fn read_limits(fs: &dyn Fs, root: &Path) -> Result<Limits, QueueError> {
    let root = root.to_owned();
    let bytes = match fs::read_up_to(fs, Path::new(layout::LIMITS), FILE_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(source) => return Err(QueueError::Fs { root, source }),
    };
    let limits: Limits = serde_json::from_slice(&bytes).map_err(|e| QueueError::Damaged {
        root: root.clone(),
        path: layout::LIMITS.into(),
        source: BadRecord::Malformed(e.to_string()),
    })?;
    match limits.check() {
        Ok(()) => Ok(limits),
        Err(source) => Err(QueueError::BadLimits { root, source }),
    }
}

/// The text of `limits.json`: for people, so one member a line.
pub fn limits_text(limits: &Limits) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(limits).expect("limits have string keys only");
    text.push(b'\n');
    text
}

/// Makes all directories that are missing, and makes their names durable.
fn make_directories(fs: &dyn Fs) -> fs::Result<()> {
    let make = |dir: &Path| match fs.mkdir(dir) {
        Err(error) if error.kind != ErrorKind::Exists => Err(error),
        _ => Ok(()),
    };
    for dir in layout::DIRECTORIES {
        make(Path::new(dir))?;
    }
    for dir in layout::object_buckets() {
        make(&dir)?;
    }
    let mut parents: Vec<&Path> = layout::DIRECTORIES.iter().filter_map(|dir| Path::new(dir).parent()).collect();
    parents.push(Path::new(layout::OBJECTS));
    parents.sort_unstable();
    parents.dedup();
    parents.into_iter().try_for_each(|dir| fs.sync_dir(dir))
}

/// What the token holds. Nobody reads it but a curious person.
pub(crate) const TOKEN: &[u8] = b"The name of this file is the newest decision. Never copy, rename or remove it.\n";

const README: &str = "\
This directory is a queue of fq jobs. All its state is in files; reading them is always safe, changing them is not.

  fq status --dir .                who leads, what waits, runs, failed
  view/                            the same as text and tables, rewritten now and then
  jobs/000/42.json                 what was submitted as job 42
  workers/                         one directory per worker; in/ holds the work it was given
  store/log/<worker>/              what each worker did: claims, starts, ends, signs of life
  store/objects/                   results; the name is the sha256 of the bytes
  decisions/head/                  one file, whose name is the newest decision; its content is in decisions/log/
  limits.json                      leases, budgets and sizes; may be edited, takes effect with a decision

To move the queue: stop all workers, then `mv` or `rsync -a` it. To check it: `fq fsck --dir .`
";

/// What helps with an `init` that has not finished. Nothing was ever submitted to such a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Another `init` completes it.
    Again,
    /// An `init` by the same user with the same options completes it.
    SameOptions,
    /// It is beyond help, since it cannot be told what it was to become.
    Remove,
}

/// A queue that cannot be made or opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueError {
    /// There is no queue.
    NoQueue {
        /// The directory.
        root: PathBuf,
        /// What was looked for in vain.
        source: FsError,
    },
    /// There is a queue already.
    Exists {
        /// The directory.
        root: PathBuf,
    },
    /// Something else is there.
    NotEmpty {
        /// The directory.
        root: PathBuf,
        /// One of the names in it.
        name: String,
    },
    /// An `init` has not finished, and it cannot be told whether it still runs.
    Unfinished {
        /// The directory.
        root: PathBuf,
        /// What was found.
        why: String,
        /// What helps.
        remedy: Remedy,
    },
    /// The format is newer than this program.
    Newer {
        /// The directory.
        root: PathBuf,
        /// In what respect.
        source: Unreadable,
    },
    /// `FQ` or `limits.json` cannot be read.
    Damaged {
        /// The directory.
        root: PathBuf,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: BadRecord,
    },
    /// The limits contradict each other.
    BadLimits {
        /// The directory.
        root: PathBuf,
        /// In what respect.
        source: BadLimits,
    },
    /// Everybody may write in the directory.
    WorldWritable {
        /// The directory.
        root: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The directory belongs to somebody else.
    Stranger {
        /// The directory.
        root: PathBuf,
        /// To whom.
        uid: u32,
    },
    /// A file operation failed while the queue was made.
    Init {
        /// The directory.
        root: PathBuf,
        /// Which.
        source: FsError,
    },
    /// A file operation failed while the queue was opened.
    Fs {
        /// The directory.
        root: PathBuf,
        /// Which.
        source: FsError,
    },
}

impl QueueError {
    /// Whether it may be gone later although nobody changes anything in the queue; see [`FsError::may_pass`].
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NoQueue { source, .. } | Self::Init { source, .. } | Self::Fs { source, .. } => source.may_pass(),
            _ => false,
        }
    }

    /// What a person can do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoQueue { root, .. } => Some(format!("create one with `fq init --dir {}`", root.display())),
            Self::NotEmpty { .. } => {
                Some("name a new or empty directory; `fq init` makes the last part of its path".into())
            }
            Self::Unfinished { root, remedy, .. } => Some(match remedy {
                Remedy::Again => format!("`fq init --dir {}` completes it", root.display()),
                Remedy::SameOptions => format!(
                    "`fq init --dir {0}` by the same user and with the same options completes it; or remove `{0}`: nothing was \
                     ever submitted to it",
                    root.display()
                ),
                Remedy::Remove => format!(
                    "nothing was ever submitted to it: once no `fq init` runs any more, remove `{}` and make it anew",
                    root.display()
                ),
            }),
            Self::Newer { .. } => Some("use a newer fq on this host".into()),
            Self::WorldWritable { root, .. } => {
                Some(format!("`chmod o-w {}` if nobody can have planted anything in it", root.display()))
            }
            Self::Stranger { .. } => Some("a queue for several users is made with `fq init --group`".into()),
            Self::BadLimits { .. } => Some("the defaults hold together; see `limits.json` of a new queue".into()),
            Self::Damaged { path, .. } if path == Path::new(layout::QUEUE) => {
                Some("restore `FQ`, which never changes, from a backup or from `.FQ-0.…` beside it, which has the same bytes".into())
            }
            Self::Exists { .. } | Self::Damaged { .. } | Self::Init { .. } | Self::Fs { .. } => None,
        }
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue { root, .. } => write!(f, "no queue at `{}`", root.display()),
            Self::Exists { root } => write!(f, "`{}` is a queue already; nothing was changed", root.display()),
            Self::NotEmpty { root, name } => write!(
                f,
                "`{}` is not empty and no queue: it holds `{name}`, for example; nothing was changed",
                root.display()
            ),
            Self::Unfinished { root, why, .. } => {
                write!(f, "`{}` is a queue whose `fq init` has not finished: {why}", root.display())
            }
            Self::Newer { root, .. } | Self::Fs { root, .. } => {
                write!(f, "cannot open the queue `{}`", root.display())
            }
            Self::Damaged { root, path, .. } => write!(f, "cannot use `{}`", root.join(path).display()),
            Self::BadLimits { root, .. } => write!(f, "the limits of `{}` contradict each other", root.display()),
            Self::WorldWritable { root, mode } => write!(
                f,
                "refusing `{}`: everybody may write in it (mode {:04o}), so its content cannot be trusted",
                root.display(),
                mode & 0o7777
            ),
            Self::Stranger { root, uid } => {
                write!(f, "refusing `{}`: it belongs to user {uid}, expected root or yourself", root.display())
            }
            Self::Init { root, .. } => write!(
                f,
                "cannot make a queue at `{}`; what was made is no queue yet, and it is safe to run again",
                root.display()
            ),
        }
    }
}

impl std::error::Error for QueueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoQueue { source, .. } | Self::Init { source, .. } | Self::Fs { source, .. } => Some(source),
            Self::Newer { source, .. } => Some(source),
            Self::Damaged { source, .. } => Some(source),
            Self::BadLimits { source, .. } => Some(source),
            Self::Exists { .. }
            | Self::NotEmpty { .. }
            | Self::Unfinished { .. }
            | Self::WorldWritable { .. }
            | Self::Stranger { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::fixed::{Dice, Still};
    use crate::decision::{Author, Commit, Writer};
    use crate::fs::memory::MemoryFs;
    use crate::fs::{Call, Entry, Locked, ReadFile, Space, WriteFile};
    use crate::process::Identity;
    use crate::protocol::record::Op;

    const ROOT: &str = "/scratch/q";

    fn make(fs: &MemoryFs, seed: u64) -> Result<QueueFile, QueueError> {
        init_on(fs, &Dice::new(seed), &Still, Path::new(ROOT), 1000, &InitOptions::default())
    }

    fn tokens(fs: &MemoryFs) -> Vec<DecisionId> {
        let names = fs.list(Path::new(layout::HEAD)).unwrap_or_default();
        names.iter().filter_map(|e| layout::parse_head(&e.name)).collect()
    }

    fn put(fs: &MemoryFs, path: &str) {
        fs::put_new(fs, Path::new(path), b"x", 0o644).expect("a file");
    }

    // On GlusterFS a client that was cut off says ENOTCONN for the directory itself. Taken for "no queue", `submit` would try to
    // make one there.
    #[test]
    fn a_directory_that_cannot_be_reached_is_not_called_no_queue() {
        let at = |errno| unopened(Path::new(ROOT), FsError::new(Call::Open, Path::new(""), errno));
        assert!(matches!(at(libc::ENOENT), QueueError::NoQueue { .. }));
        assert!(matches!(at(libc::ENOTDIR), QueueError::NoQueue { .. }));
        for errno in [libc::ENOTCONN, libc::EIO, libc::EACCES, libc::ETIMEDOUT] {
            assert!(matches!(at(errno), QueueError::Fs { .. }), "{errno}");
        }
    }

    #[test]
    fn a_new_queue_has_one_token_that_names_its_first_decision() {
        let fs = MemoryFs::default();
        let file = make(&fs, 1).expect("a queue");
        assert_eq!(tokens(&fs), [file.first]);
        let entry = fs::read_all(&fs, &layout::decision(file.first)).expect("the first decision");
        let header: Header = record::from_document(&entry).expect("a whole header");
        assert_eq!((header.id, header.prev, header.term), (file.first, None, 0));
        assert_eq!(read_file(&fs, Path::new(ROOT)), Ok(file));
        assert_eq!(read_limits(&fs, Path::new(ROOT)), Ok(Limits::default()));
        assert_eq!(fs.list(Path::new(layout::OBJECTS)).map(|l| l.len()), Ok(256));
    }

    #[test]
    fn init_stopped_after_any_step_is_completed_by_the_next_one() {
        let fs = MemoryFs::default();
        make(&fs, 1).expect("a queue");
        // The many object buckets are alike: only the steps around them are worth stopping at.
        let steps = fs.step_count();
        for stop in (0..20).chain(steps - 50..steps) {
            for power in [false, true] {
                let fs = MemoryFs::default();
                fs.crash_after(stop);
                assert!(make(&fs, 1).is_err(), "stopped after {stop} of {steps}");
                fs.restart();
                if power {
                    fs.lose_power();
                }
                match make(&fs, 2) {
                    Ok(file) => assert_eq!(read_file(&fs, Path::new(ROOT)), Ok(file)),
                    // Only a whole `FQ` can be in the way.
                    Err(QueueError::Exists { .. }) => {}
                    Err(other) => panic!("stopped after {stop}, power lost {power}: {other}"),
                }
                let file = read_file(&fs, Path::new(ROOT)).expect("a queue");
                assert_eq!(tokens(&fs), [file.first], "stopped after {stop}");
                is_used(&fs, &file);
                assert_eq!(make(&fs, 3), Err(QueueError::Exists { root: ROOT.into() }));
            }
        }
    }

    /// Binds a decision, as the first master does.
    fn is_used(fs: &MemoryFs, file: &QueueFile) {
        let dice = Dice::new(9);
        let mut chain = Writer::open(fs, &dice, file).expect("a chain");
        let by = WorkerId::new("here", Nonce(1));
        let identity =
            Identity { host: "here".into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 1, ticks: 1, uid: file.uid };
        let lead = Op::Lead { term: 1, master: by.clone(), identity };
        let id = chain.next_id(&dice);
        assert_eq!(chain.commit(fs, &dice, &Author { by, term: 1, at_ms: 0 }, id, vec![lead]), Commit::Won);
    }

    /// Somebody else's `init` dies at any step of completing what a first one left.
    #[test]
    fn a_torn_queue_file_is_completed_also_if_that_is_cut_short() {
        let steps = {
            let fs = MemoryFs::default();
            make(&fs, 1).expect("a queue");
            fs.step_count()
        };
        // Created and empty; and with its bytes, which a power loss takes.
        for (stop, power) in [(steps - 3, false), (steps - 2, true)] {
            for again in 0..12 {
                let fs = MemoryFs::default();
                fs.crash_after(stop);
                make(&fs, 1).expect_err("it died");
                fs.restart();
                if power {
                    fs.lose_power();
                }
                let torn = QueueError::Unfinished {
                    root: ROOT.into(),
                    why: "`FQ` is cut short".into(),
                    remedy: Remedy::Again,
                };
                assert_eq!(read_file(&fs, Path::new(ROOT)), Err(torn));
                let planned = tokens(&fs);
                fs.crash_after(again);
                let _ = make(&fs, 2);
                fs.restart();
                let file = match make(&fs, 3) {
                    Ok(file) => file,
                    Err(QueueError::Exists { .. }) => read_file(&fs, Path::new(ROOT)).expect("it was whole already"),
                    Err(other) => panic!("stopped after {again}: {other}"),
                };
                assert_eq!(planned, [file.first]);
                is_used(&fs, &file);
            }
        }
    }

    /// The maker was only asleep between creating `FQ` and writing it, and goes on after another one has completed it.
    #[test]
    fn a_maker_that_was_taken_for_dead_has_made_the_queue_all_the_same() {
        let fs = MemoryFs::default();
        let late = Late { fs: &fs, meanwhile: &|| drop(make(&fs, 2).expect("completed")) };
        let file = init_on(&late, &Dice::new(1), &Still, Path::new(ROOT), 1000, &InitOptions::default());
        let file = file.expect("its queue");
        assert_eq!(read_file(&fs, Path::new(ROOT)), Ok(file.clone()));
        assert_eq!(tokens(&fs), [file.first]);
    }

    /// Nobody can tell whose `FQ` it was to be.
    #[test]
    fn a_torn_queue_file_beside_two_tokens_is_left_for_a_person() {
        let fs = MemoryFs::default();
        make(&fs, 1).expect("a queue");
        fs.tamper(Path::new(layout::QUEUE), Vec::clear);
        put(&fs, &layout::head(DecisionId { generation: 0, nonce: Nonce(5) }, HeadStyle::Plain).to_string_lossy());
        let before = fs.files();
        assert!(matches!(make(&fs, 2), Err(QueueError::Unfinished { remedy: Remedy::Remove, .. })));
        assert_eq!(fs.files(), before);
    }

    #[test]
    fn an_init_is_completed_only_with_the_options_and_by_the_user_it_was_begun_with() {
        let begun = |stop: u64| {
            let fs = MemoryFs::default();
            make(&fs, 1).expect("a queue");
            let steps = fs.step_count();
            let fs = MemoryFs::default();
            fs.crash_after(steps - stop);
            make(&fs, 1).expect_err("it died");
            fs.restart();
            fs
        };
        let group = InitOptions { group: Some(50), ..InitOptions::default() };
        // Before `FQ` is there, and when it is torn.
        for stop in [4, 3] {
            for (uid, options) in [(1000, &group), (1001, &InitOptions::default())] {
                let fs = begun(stop);
                let made = init_on(&fs, &Dice::new(2), &Still, Path::new(ROOT), uid, options);
                let Err(QueueError::Unfinished { why, remedy: Remedy::SameOptions, .. }) = made else {
                    panic!("{made:?}")
                };
                assert_eq!(why, "user 1000 has begun it, for no group and with durability `full`");
                make(&fs, 3).expect("completed");
            }
        }
    }

    /// A disk fault, not an `init` that was cut short: what was submitted is not given up.
    #[test]
    fn a_queue_that_was_used_and_lost_its_queue_file_is_called_damaged() {
        for is_missing in [false, true] {
            let fs = MemoryFs::default();
            let file = make(&fs, 1).expect("a queue");
            is_used(&fs, &file);
            if is_missing {
                fs.unlink(Path::new(layout::QUEUE)).expect("removed");
            } else {
                fs.tamper(Path::new(layout::QUEUE), |bytes| bytes.truncate(20));
            }
            let before = fs.files();
            let error = read_file(&fs, Path::new(ROOT)).expect_err("no whole `FQ`");
            assert!(matches!(error, QueueError::Damaged { .. }), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains(".FQ-0.")));
            assert!(matches!(make(&fs, 2), Err(QueueError::Damaged { .. })));
            assert!(before.iter().all(|path| fs.files().contains(path)));
            let plan = fs.get(&layout::plan(file.first)).expect("its copy");
            fs.put(Path::new(layout::QUEUE), &plan);
            assert_eq!(read_file(&fs, Path::new(ROOT)), Ok(file));
        }
    }

    #[test]
    fn init_leaves_a_queue_and_foreign_files_alone() {
        let fs = MemoryFs::default();
        make(&fs, 1).expect("a queue");
        let before = (fs.files(), fs.step_count());
        assert_eq!(make(&fs, 2), Err(QueueError::Exists { root: ROOT.into() }));
        assert_eq!((fs.files(), fs.step_count()), before);

        let fs = MemoryFs::default();
        put(&fs, "thesis.tex");
        assert_eq!(make(&fs, 1), Err(QueueError::NotEmpty { root: ROOT.into(), name: "thesis.tex".into() }));
        assert_eq!(fs.files(), [Path::new("thesis.tex")]);
    }

    #[test]
    fn hidden_files_do_not_hinder_init() {
        let fs = MemoryFs::default();
        put(&fs, ".snapshot");
        assert!(make(&fs, 1).is_ok());
    }

    #[test]
    fn a_newer_format_is_named_as_such_even_if_its_frame_is_another() {
        let fs = MemoryFs::default();
        make(&fs, 1).expect("a queue");
        fs.tamper(Path::new(layout::QUEUE), |bytes| *bytes = b"{\"fq\":\"queue\",\"version\":9}\nnew\n".to_vec());
        assert!(matches!(read_file(&fs, Path::new(ROOT)), Err(QueueError::Newer { .. })));
        assert_eq!(make(&fs, 2), Err(QueueError::Exists { root: ROOT.into() }));
    }

    #[test]
    fn missing_limits_never_mean_the_defaults() {
        let fs = MemoryFs::default();
        make(&fs, 1).expect("a queue");
        fs.unlink(Path::new(layout::LIMITS)).expect("removed");
        assert!(matches!(read_limits(&fs, Path::new(ROOT)), Err(QueueError::Fs { .. })));
    }

    #[test]
    fn a_queue_of_another_user_is_trusted_only_if_it_was_made_for_a_group() {
        assert!(is_trusted_owner(0, 1000, None));
        assert!(is_trusted_owner(1000, 1000, None));
        assert!(is_trusted_owner(1001, 0, None));
        assert!(!is_trusted_owner(1001, 1000, None));
        assert!(is_trusted_owner(1001, 1000, Some(50)));
    }

    #[test]
    fn a_queue_on_disk_is_opened_by_its_maker_and_refused_once_everybody_may_write_in_it() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().expect("a directory");
        let root = parent.path().join("q");
        let made = init(&root, &InitOptions::default()).expect("a queue");
        assert_eq!(Queue::open(&root).map(|q| q.file), Ok(made.file));
        assert!(matches!(init(&root, &InitOptions::default()), Err(QueueError::Exists { .. })));
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&root, open_to_all).expect("permissions");
        assert!(matches!(Queue::open(&root), Err(QueueError::WorldWritable { .. })));
    }

    #[test]
    fn a_missing_queue_reads_as_a_sentence_with_a_way_out() {
        let error = read_file(&MemoryFs::default(), Path::new(ROOT)).expect_err("no queue");
        assert_eq!(error.to_string(), "no queue at `/scratch/q`");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("cannot open `FQ`: no such file or directory"));
        assert_eq!(error.hint().as_deref(), Some("create one with `fq init --dir /scratch/q`"));
    }

    /// Files on which something happens between the creation of `FQ` and its first byte.
    struct Late<'a> {
        fs: &'a MemoryFs,
        meanwhile: &'a (dyn Fn() + Sync),
    }

    impl Fs for Late<'_> {
        fn list(&self, dir: &Path) -> fs::Result<Vec<Entry>> {
            self.fs.list(dir)
        }

        fn open(&self, path: &Path) -> fs::Result<Box<dyn ReadFile>> {
            self.fs.open(path)
        }

        fn create(&self, path: &Path, mode: u32) -> fs::Result<Box<dyn WriteFile>> {
            let file = self.fs.create(path, mode)?;
            if path == Path::new(layout::QUEUE) {
                (self.meanwhile)();
            }
            Ok(file)
        }

        fn rename(&self, from: &Path, to: &Path) -> fs::Result<()> {
            self.fs.rename(from, to)
        }

        fn unlink(&self, path: &Path) -> fs::Result<()> {
            self.fs.unlink(path)
        }

        fn mkdir(&self, dir: &Path) -> fs::Result<()> {
            self.fs.mkdir(dir)
        }

        fn rmdir(&self, dir: &Path) -> fs::Result<()> {
            self.fs.rmdir(dir)
        }

        fn sync_dir(&self, dir: &Path) -> fs::Result<()> {
            self.fs.sync_dir(dir)
        }

        fn drops_names(&self) -> bool {
            self.fs.drops_names()
        }

        fn lock(&self, path: &Path, limit: std::time::Duration) -> Locked {
            self.fs.lock(path, limit)
        }

        fn space(&self) -> fs::Result<Space> {
            self.fs.space()
        }
    }
}
