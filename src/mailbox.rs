//! Messages from the master to one worker incarnation: send, receive, remove (spec: ordering, "Mail").
//!
//! Invariants:
//! - The decisions number the messages to an incarnation 1, 2, 3, … without gaps, and name each by the decision that issued it.
//!   The content is a function of the name, so sending twice or late is harmless.
//! - The one receiver takes them strictly in that order. A gap or a torn message is "not yet"; lower numbers are ignored, so a
//!   late repetition of a message that was acknowledged and removed does nothing.
//! - Two messages with one number mean that the decisions have forked: nothing after that point is taken.

use std::collections::BTreeMap;
use std::fmt;

use crate::clock::Chance;
use crate::fs::{Fs, FsError, publish, read_up_to};
use crate::mutant::{self, Mutant};
use crate::protocol::id::{DecisionId, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{BadRecord, Mail, from_document, to_document};

/// The longest message that a receiver reads, in bytes.
pub const MAIL_BYTES_MAX: u64 = 64 << 20;

/// The mode of a message: the worker may be another user.
const MODE: u32 = 0o644;

/// Sends `mail`: publishes it whole under the name that its number and its decision give.
///
/// Durable on return. On an error it may or may not be there; sending again is the way to find out.
pub fn send(fs: &dyn Fs, chance: &dyn Chance, mail: &Mail) -> Result<(), FsError> {
    publish(fs, chance, &layout::message(&mail.w, mail.m, mail.by), &to_document(mail), MODE)
}

/// Removes a message that was acknowledged. One that is gone already is no error.
pub fn remove(fs: &dyn Fs, wid: &WorkerId, number: u64, by: DecisionId) -> Result<(), FsError> {
    match fs.unlink(&layout::message(wid, number, by)) {
        Err(error) if !error.not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Why a mailbox cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailError {
    /// The file system; try again.
    Fs(FsError),
    /// Two decisions issued a message under one number.
    Forked {
        /// The number.
        m: u64,
        /// The decisions.
        by: (DecisionId, DecisionId),
    },
    /// The message is whole but cannot be understood, or says of itself something else than its name.
    Misread {
        /// The number.
        m: u64,
        /// What is wrong.
        why: String,
    },
}

impl From<FsError> for MailError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl fmt::Display for MailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fs(error) => error.fmt(f),
            Self::Forked { m, by: (a, b) } => {
                write!(f, "message {m} was issued by two decisions, `{a}` and `{b}`: the decision log has forked")
            }
            Self::Misread { m, why } => write!(f, "message {m} cannot be used: {why}"),
        }
    }
}

impl std::error::Error for MailError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fs(error) => Some(error),
            _ => None,
        }
    }
}

/// The one reader of a mailbox.
#[derive(Debug, Clone)]
pub struct Receiver {
    wid: WorkerId,
    next: u64,
}

impl Receiver {
    /// Reads the mailbox of `wid` from message 1 on.
    pub fn new(wid: WorkerId) -> Self {
        Self { wid, next: 1 }
    }

    /// The number of the message that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes the messages that are there, in order, by one fresh listing.
    ///
    /// Stops before a gap, a torn message or one that cannot be read. What was taken before an error is returned first; the
    /// error comes with the next poll.
    pub fn poll(&mut self, fs: &dyn Fs) -> Result<Vec<Mail>, MailError> {
        let mut waiting: BTreeMap<u64, Vec<DecisionId>> = BTreeMap::new();
        for entry in fs.list(&layout::mailbox(&self.wid))? {
            if let Some((m, by)) = layout::parse_message(&entry.name).filter(|(m, _)| *m >= self.next) {
                waiting.entry(m).or_default().push(by);
            }
        }
        let mut taken = Vec::new();
        if let (true, Some((&first, _))) = (mutant::is(Mutant::SkipGap), waiting.first_key_value()) {
            self.next = first;
        }
        while let Some(names) = waiting.get(&self.next) {
            match self.take(fs, names) {
                Ok(Some(mail)) => taken.push(mail),
                Err(error) if taken.is_empty() => return Err(error),
                Ok(None) | Err(_) => break,
            }
            self.next += 1;
        }
        Ok(taken)
    }

    /// Reads the message that comes next; `None` if it is not there in whole yet.
    fn take(&self, fs: &dyn Fs, names: &[DecisionId]) -> Result<Option<Mail>, MailError> {
        let m = self.next;
        let by = match *names {
            [by] => by,
            [a, b, ..] => return Err(MailError::Forked { m, by: (a.min(b), a.max(b)) }),
            [] => return Ok(None),
        };
        let bytes = match read_up_to(fs, &layout::message(&self.wid, m, by), MAIL_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mail: Mail = match from_document(&bytes) {
            Ok(mail) => mail,
            Err(BadRecord::Torn) => return Ok(None),
            Err(BadRecord::Malformed(why)) => return Err(MailError::Misread { m, why }),
        };
        if mail.w != self.wid || mail.m != m || mail.by != by {
            let why = format!("it calls itself message {} of `{}` to `{}`", mail.m, mail.by, mail.w);
            return Err(MailError::Misread { m, why });
        }
        Ok(Some(mail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostChance;
    use crate::fs::memory::MemoryFs;
    use crate::protocol::id::Nonce;
    use crate::protocol::record::Message;
    use crate::protocol::version::CURRENT;

    fn wid() -> WorkerId {
        WorkerId::new("n1", Nonce(7))
    }

    fn mail(m: u64) -> Mail {
        let by = DecisionId { generation: 100 + m, nonce: Nonce(m) };
        Mail { fq: "mail".into(), version: CURRENT, w: wid(), m, by, msg: Message::Drain }
    }

    fn post(fs: &MemoryFs, mail: &Mail) {
        assert_eq!(send(fs, &HostChance, mail), Ok(()));
    }

    fn fresh() -> MemoryFs {
        let memory = MemoryFs::default();
        memory.put(&layout::mailbox(&wid()).join("x"), b"");
        memory
    }

    fn numbers(receiver: &mut Receiver, fs: &MemoryFs) -> Vec<u64> {
        receiver.poll(fs).unwrap_or_else(|e| panic!("{e}")).iter().map(|mail| mail.m).collect()
    }

    #[test]
    fn messages_out_of_order_wait_for_the_gap_to_close() {
        let (fs, mut receiver) = (fresh(), Receiver::new(wid()));
        post(&fs, &mail(3));
        post(&fs, &mail(2));
        assert!(numbers(&mut receiver, &fs).is_empty());
        post(&fs, &mail(1));
        assert_eq!(numbers(&mut receiver, &fs), [1, 2, 3]);
    }

    #[test]
    fn a_torn_message_waits_until_it_is_replaced() {
        let (fs, mut receiver) = (fresh(), Receiver::new(wid()));
        let path = layout::message(&wid(), 1, mail(1).by);
        let whole = to_document(&mail(1));
        fs.put(&path, &whole[..whole.len() - 9]);
        post(&fs, &mail(2));
        assert!(numbers(&mut receiver, &fs).is_empty());
        post(&fs, &mail(1));
        assert_eq!(numbers(&mut receiver, &fs), [1, 2]);
    }

    #[test]
    fn a_late_repetition_is_ignored() {
        let (fs, mut receiver) = (fresh(), Receiver::new(wid()));
        post(&fs, &mail(1));
        assert_eq!(numbers(&mut receiver, &fs), [1]);
        assert_eq!(remove(&fs, &wid(), 1, mail(1).by), Ok(()));
        assert_eq!(remove(&fs, &wid(), 1, mail(1).by), Ok(()), "gone already is fine");
        post(&fs, &mail(1));
        assert!(numbers(&mut receiver, &fs).is_empty());
    }

    #[test]
    fn two_decisions_under_one_number_are_a_fork() {
        let (fs, mut receiver) = (fresh(), Receiver::new(wid()));
        let other = Mail { by: DecisionId { generation: 101, nonce: Nonce(99) }, ..mail(1) };
        post(&fs, &mail(1));
        post(&fs, &other);
        assert!(matches!(receiver.poll(&fs), Err(MailError::Forked { m: 1, .. })));
        assert_eq!(receiver.next(), 1);
    }

    #[test]
    fn a_message_under_a_name_that_is_not_its_own_is_refused() {
        let (fs, mut receiver) = (fresh(), Receiver::new(wid()));
        fs.put(&layout::message(&wid(), 1, mail(1).by), &to_document(&mail(2)));
        assert!(matches!(receiver.poll(&fs), Err(MailError::Misread { m: 1, .. })));
    }
}
