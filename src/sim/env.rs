//! What a simulated process is given: handles on its world, and the point where it gives way to the others.
//!
//! Invariant: a handle suspends only on the stack of the process that it belongs to, and never while that stack unwinds.

use std::cell::{Cell, RefCell};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corosensei::Yielder;

use crate::clock::{Chance, Clock};
use crate::fs::{Call, Entry, EntryKind, Fs, FsError, LockGuard, Locked, ReadFile, Result, Space, Stat, WriteFile};

use super::process::{SimHost, SimProcess};
use super::world::{Op, Reply, Shared};

thread_local! {
    /// The stack that runs now: the process, and how it suspends.
    static RUNNING: Cell<Option<(u32, *const Yielder<(), ()>)>> = const { Cell::new(None) };
}

/// Runs `body` as `process` on the stack of `yielder`.
pub(super) fn enter(process: u32, yielder: &Yielder<(), ()>, body: impl FnOnce()) {
    RUNNING.set(Some((process, std::ptr::from_ref(yielder))));
    body();
    RUNNING.set(None);
}

/// Notes that no simulated stack runs.
pub(super) fn leave() {
    RUNNING.set(None);
}

/// Gives way to the scheduler until `process` is resumed.
fn suspend(process: u32) {
    let running = RUNNING.get();
    let Some((current, yielder)) = running else {
        panic!("a handle of a simulated process was used outside of it");
    };
    assert!(current == process, "a handle of one simulated process was used by another");
    // SAFETY: `enter` stored the pointer while on the coroutine's own stack, where the yielder lives until the body returns.
    // Every other stack overwrites or clears it before it runs, so that it is the yielder of the stack we stand on.
    #[expect(unsafe_code, reason = "file handles are 'static, so they cannot borrow the yielder of their coroutine")]
    unsafe { &*yielder }.suspend(());
    RUNNING.set(running);
}

/// The thread that runs now, or `owner` if none does.
fn current(owner: u32) -> u32 {
    RUNNING.get().map_or(owner, |(process, _)| process)
}

/// A closure that becomes a thread of a process.
pub(super) type Body = Box<dyn FnOnce(&SimEnv)>;

/// Threads that wait to be started: of which process, under which name.
pub(super) type Threads = Rc<RefCell<Vec<(u32, String, Body)>>>;

/// The world as one simulated process sees it.
pub struct SimEnv {
    shared: Shared,
    process: u32,
    /// The process that this thread belongs to: itself, if it is the first.
    owner: u32,
    fs: SimFs,
    clock: SimClock,
    chance: SimChance,
    host: SimHost,
    threads: Threads,
}

impl SimEnv {
    pub(super) fn new(shared: &Shared, process: u32, threads: Threads) -> Self {
        let owner = shared.lock().procs[process as usize].owner;
        Self {
            fs: SimFs { shared: shared.clone(), owner },
            clock: SimClock { shared: shared.clone(), owner },
            chance: SimChance { shared: shared.clone() },
            host: SimHost { shared: shared.clone(), process: owner },
            shared: shared.clone(),
            process,
            owner,
            threads,
        }
    }

    /// The queue directory, through this host's mount. Clone it to own it.
    pub fn fs(&self) -> &SimFs {
        &self.fs
    }

    /// The same as a shared trait object, for roles that own their world.
    pub fn fs_arc(&self) -> Arc<dyn Fs> {
        Arc::new(self.fs.clone())
    }

    /// This host's clock.
    pub fn clock(&self) -> &SimClock {
        &self.clock
    }

    /// Chance, out of the world's seed.
    pub fn chance(&self) -> &SimChance {
        &self.chance
    }

    /// What can be known of the processes of this host.
    pub fn host(&self) -> &SimHost {
        &self.host
    }

    /// A starter of children. All starters of one process and its threads share its children.
    pub fn process(&self) -> SimProcess {
        SimProcess { shared: self.shared.clone(), process: self.owner }
    }

    /// Sleeps until the boot clock of this host shows at least `boot`.
    pub fn sleep_until(&self, boot: Duration) {
        self.rest(boot, false);
    }

    /// Sleeps for `span` on the boot clock of this host.
    pub fn sleep(&self, span: Duration) {
        self.sleep_until(self.clock.boot() + span);
    }

    /// As [`SimEnv::sleep_until`], but wakes early when a child writes something or ends.
    pub fn sleep_until_or_child(&self, boot: Duration) {
        self.rest(boot, true);
    }

    fn rest(&self, boot: Duration, for_children: bool) {
        if !std::thread::panicking() && self.shared.lock().sleep(self.process, boot, for_children) {
            suspend(self.process);
            self.shared.lock().procs[self.process as usize].reply = None;
        }
    }

    /// Whether the harness has asked this process to end in order, as a `SIGTERM` does.
    pub fn should_stop(&self) -> bool {
        self.shared.lock().procs[self.owner as usize].asked_to_stop
    }

    /// Ends this process at once, as `exit` does; a service is started again after its span. Nothing behind it is executed.
    pub fn exit(&self) {
        if !std::thread::panicking() {
            self.shared.lock().kill(self.owner, "exits");
            suspend(self.process);
        }
    }

    /// Writes a line of its own into the trace.
    pub fn note(&self, text: &str) {
        self.shared.lock().say(self.process, text);
    }

    /// Starts a thread of this process: it is killed, stopped and counted with it. It must take all that it shares with the
    /// other threads through values that do not block.
    pub fn spawn_thread(&self, name: &str, body: impl FnOnce(&SimEnv) + 'static) {
        self.threads.borrow_mut().push((self.owner, name.to_owned(), Box::new(body)));
    }
}

/// The boot and wall clocks of a simulated host.
#[derive(Debug, Clone)]
pub struct SimClock {
    shared: Shared,
    owner: u32,
}

impl Clock for SimClock {
    fn boot(&self) -> Duration {
        let mut world = self.shared.lock();
        let stuck = world.spin(current(self.owner));
        let host = world.procs[self.owner as usize].host as usize;
        let boot = world.hosts[host].boot(world.now);
        drop(world);
        assert!(!stuck, "a simulated process reads the clock without ever sleeping");
        Duration::from_nanos(boot)
    }

    fn wall_ms(&self) -> u64 {
        let world = self.shared.lock();
        let host = &world.hosts[world.procs[self.owner as usize].host as usize];
        (1_700_000_000_000 + (world.now / 1_000_000) as i64 + host.wall_offset_ms) as u64
    }
}

/// Random bits out of the world's seed.
#[derive(Debug, Clone)]
pub struct SimChance {
    shared: Shared,
}

impl Chance for SimChance {
    fn bits(&self) -> u64 {
        self.shared.lock().seed.bits()
    }
}

/// The shared file system as one simulated process sees it.
#[derive(Debug, Clone)]
pub struct SimFs {
    shared: Shared,
    owner: u32,
}

fn call(shared: &Shared, owner: u32, call: Call, path: &str, op: Op) -> Reply {
    if std::thread::panicking() {
        // The stack unwinds: a dead process does nothing any more.
        return Reply::Failed(libc::EIO);
    }
    let process = current(owner);
    let (is_ours, begun) = {
        let mut world = shared.lock();
        let is_ours = world.procs[process as usize].owner == owner;
        (is_ours, if is_ours { world.begin(process, call, path, op) } else { Ok(()) })
    };
    assert!(is_ours, "a handle of one simulated process was used by another");
    if let Err(at_once) = begun {
        return at_once;
    }
    suspend(process);
    shared.lock().procs[process as usize].reply.take().unwrap_or(Reply::Failed(libc::EIO))
}

impl SimFs {
    fn ask(&self, kind: Call, path: &Path, op: Op) -> Result<Reply> {
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let (true, Some(text)) = (is_plain, path.to_str()) else {
            return Err(FsError::new(kind, path, libc::EINVAL));
        };
        match call(&self.shared, self.owner, kind, text, op) {
            Reply::Failed(errno) => Err(FsError::new(kind, path, errno)),
            reply => Ok(reply),
        }
    }

    fn done(&self, kind: Call, path: &Path, op: Op) -> Result<()> {
        self.ask(kind, path, op).map(|_| ())
    }

    fn handle(&self, kind: Call, path: &Path, op: Op) -> Result<SimFile> {
        match self.ask(kind, path, op)? {
            Reply::Handle(id) => Ok(SimFile { shared: self.shared.clone(), owner: self.owner, path: path.into(), id }),
            _ => Err(FsError::new(kind, path, libc::EIO)),
        }
    }
}

impl Fs for SimFs {
    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        let Reply::Listing(names) = self.ask(Call::List, dir, Op::List)? else {
            return Err(FsError::new(Call::List, dir, libc::EIO));
        };
        let kind = |is_dir| if is_dir { EntryKind::Dir } else { EntryKind::File };
        Ok(names.into_iter().map(|(name, is_dir)| Entry { name, kind: kind(is_dir) }).collect())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn ReadFile>> {
        Ok(Box::new(self.handle(Call::Open, path, Op::Open)?))
    }

    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn WriteFile>> {
        Ok(Box::new(self.handle(Call::Create, path, Op::Create(mode))?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let target = to.to_str().ok_or_else(|| FsError::new(Call::Rename, to, libc::EINVAL))?;
        self.done(Call::Rename, from, Op::Rename(target.into()))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.done(Call::Unlink, path, Op::Unlink)
    }

    fn mkdir(&self, dir: &Path) -> Result<()> {
        self.done(Call::Mkdir, dir, Op::Mkdir)
    }

    fn rmdir(&self, dir: &Path) -> Result<()> {
        self.done(Call::Rmdir, dir, Op::Rmdir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.done(Call::SyncDir, dir, Op::SyncDir)
    }

    fn drops_names(&self) -> bool {
        self.shared.lock().profile.drops_names()
    }

    fn lock(&self, path: &Path, limit: Duration) -> Locked {
        match self.ask(Call::Lock, path, Op::Lock(limit.as_nanos() as u64)) {
            Ok(Reply::Locked(id)) => {
                Locked::Held(Box::new(SimLock { shared: self.shared.clone(), owner: self.owner, id }))
            }
            Ok(Reply::Refused) => Locked::Refused,
            Ok(Reply::Unsupported) => Locked::Unsupported,
            Ok(Reply::Hung) => Locked::Hung,
            Ok(_) => Locked::Failed(FsError::new(Call::Lock, path, libc::EIO)),
            Err(error) => Locked::Failed(error),
        }
    }

    fn space(&self) -> Result<Space> {
        match self.ask(Call::Space, Path::new(""), Op::Space)? {
            Reply::Space(space) => Ok(space),
            _ => Err(FsError::new(Call::Space, Path::new(""), libc::EIO)),
        }
    }
}

struct SimFile {
    shared: Shared,
    owner: u32,
    path: PathBuf,
    id: u64,
}

impl SimFile {
    fn ask(&self, kind: Call, op: Op) -> Result<Reply> {
        match call(&self.shared, self.owner, kind, self.path.to_str().unwrap_or(""), op) {
            Reply::Failed(errno) => Err(FsError::new(kind, &self.path, errno)),
            reply => Ok(reply),
        }
    }
}

impl ReadFile for SimFile {
    fn stat(&self) -> Result<Stat> {
        match self.ask(Call::Stat, Op::Stat(self.id))? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(FsError::new(Call::Stat, &self.path, libc::EIO)),
        }
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self.ask(Call::Read, Op::Read(self.id, offset, buffer.len()))? {
            Reply::Bytes(bytes) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            _ => Err(FsError::new(Call::Read, &self.path, libc::EIO)),
        }
    }

    fn sync(&self) -> Result<()> {
        self.ask(Call::Sync, Op::Sync(self.id)).map(|_| ())
    }
}

impl WriteFile for SimFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.ask(Call::Write, Op::Write(self.id, bytes.to_vec())).map(|_| ())
    }

    fn sync(&mut self) -> Result<()> {
        self.ask(Call::Sync, Op::Sync(self.id)).map(|_| ())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ask(Call::Close, Op::Close(self.id)).map(|_| ())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().close_handle(self.id);
    }
}

struct SimLock {
    shared: Shared,
    owner: u32,
    id: u64,
}

impl LockGuard for SimLock {
    fn raw_fd(&self) -> Option<i32> {
        None
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        // The lock of a dead process is freed by its keeper or by the server, not by its unwinding stack.
        let mut world = self.shared.lock();
        if world.procs[self.owner as usize].is_alive {
            world.release(self.id);
        }
    }
}
