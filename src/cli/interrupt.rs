//! Signals that end a waiting command, and what wakes it for them.

use std::sync::mpsc::{self, Receiver};

use fq::client::wait::Waker;
use fq::process::{Caught, Signals};

use super::error::{Failure, Plain};
use super::exit;

/// The signals that have come.
pub(crate) struct Interrupts(Receiver<Caught>);

impl Interrupts {
    /// Begins to catch them; `waker` is called at each.
    pub(crate) fn catch(waker: Waker) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(exit::FQ_FAILED, "cannot catch signals").because(&Plain(&error));
        let signals = Signals::catch().map_err(failed)?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(&mut fds, None);
                for caught in signals.take() {
                    if sender.send(caught).is_err() {
                        return;
                    }
                    waker.wake();
                }
            }
        });
        Ok(Self(receiver))
    }

    /// The next signal that asks the command to end.
    pub(crate) fn take(&self) -> Option<Caught> {
        self.0.try_iter().find(|caught| *caught != Caught::Usr1)
    }
}
