//! The janitor: the thread that removes things, so that a removal which a dead reader stalls for minutes delays no commit
//! (spec: ordering, invariant H12).

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;

use crate::fs::Fs;

/// At most so much waits; more is left for another time, since all of it is found again.
const WAITING_MAX: usize = 4096;

/// Anything that takes the files of the queue.
type Work = Box<dyn FnOnce(&dyn Fs) + Send>;

/// A piece of work for the janitor.
pub(super) enum Job {
    /// Remove these files.
    Remove(Vec<PathBuf>),
    /// Anything else.
    Do(Work),
}

/// A handle on the thread; dropping it lets the thread end after its current piece of work.
#[derive(Debug)]
pub struct Janitor {
    sender: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Janitor {
    /// Starts the thread.
    pub fn start(fs: std::sync::Arc<dyn Fs + Send + Sync>) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("janitor".into()).spawn(move || work(&*fs, &receiver))?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Removes `files` whenever there is time.
    pub fn remove(&self, files: Vec<PathBuf>) {
        if !files.is_empty() {
            self.give(Job::Remove(files));
        }
    }

    /// Does `work` whenever there is time.
    pub fn perform(&self, work: impl FnOnce(&dyn Fs) + Send + 'static) {
        self.give(Job::Do(Box::new(work)));
    }

    fn give(&self, job: Job) {
        if let Some(sender) = &self.sender {
            // A janitor that hangs in the file system loses work, which is found again later.
            let _ = sender.try_send(job);
        }
    }

    /// Ends the thread after what waits is done, or leaves it behind if it hangs longer than `patience`.
    pub fn finish(mut self, patience: std::time::Duration) {
        self.sender = None;
        let Some(thread) = self.thread.take() else { return };
        let (done, wait) = mpsc::channel();
        let _ = std::thread::Builder::new().name("janitor-end".into()).spawn(move || {
            let _ = thread.join();
            let _ = done.send(());
        });
        let _ = wait.recv_timeout(patience);
    }
}

fn work(fs: &dyn Fs, jobs: &Receiver<Job>) {
    for job in jobs {
        match job {
            Job::Remove(files) => {
                for file in files {
                    // Not there any more, or not to be had now: it is listed again if it matters.
                    let _ = fs.unlink(&file);
                }
            }
            Job::Do(work) => work(fs),
        }
    }
}
