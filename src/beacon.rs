//! The sign of life of a master, read by standbys and by people (spec: leases, "Masters").
//!
//! Invariants:
//! - One file a term, appended to by the master of that term alone; only its last whole line counts.
//! - Nothing is decided on the strength of a beacon but how long its master has been silent.

use crate::fs::{self, Fs, FsError};
use crate::protocol::id::DecisionId;
use crate::protocol::layout;
use crate::protocol::record::BeaconLine;

/// More than the longest line.
const TAIL_LEN: u64 = 4096;

/// Follows one beacon, reading only what is new: one open and one read a look.
#[derive(Debug, Clone)]
pub struct Tail {
    term: u64,
    lead: DecisionId,
    /// Where the first line begins that was not read in whole; `None` before the first look.
    offset: Option<u64>,
    last: Option<BeaconLine>,
}

impl Tail {
    /// Follows the beacon of `term`, whose `lead` decision is `lead`.
    pub fn new(term: u64, lead: DecisionId) -> Self {
        Self { term, lead, offset: None, last: None }
    }

    /// Whose beacon this is.
    pub fn is_of(&self, term: u64, lead: DecisionId) -> bool {
        (self.term, self.lead) == (term, lead)
    }

    /// Returns the last whole line; `Ok(None)` if there is none yet.
    pub fn look(&mut self, fs: &dyn Fs) -> Result<Option<&BeaconLine>, FsError> {
        let path = layout::beacon(self.term, self.lead);
        if self.offset.is_none() && !fs::is_listed(fs, &path)? {
            return Ok(None);
        }
        let mut file = match fs.open(&path) {
            Err(error) if error.not_found() => return Ok(self.last.as_ref()),
            opened => opened?,
        };
        let offset = match self.offset {
            Some(offset) => offset,
            None => file.stat()?.len.saturating_sub(TAIL_LEN),
        };
        let mut bytes = Vec::new();
        let mut buffer = vec![0; TAIL_LEN as usize];
        loop {
            let n = file.read_at(&mut buffer, offset + bytes.len() as u64)?;
            bytes.extend_from_slice(&buffer[..n]);
            if n < buffer.len() {
                break;
            }
        }
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        self.offset = Some(offset + whole as u64);
        let lines = bytes[..whole].split_inclusive(|&b| b == b'\n');
        if let Some(line) = lines.rev().find_map(|line| serde_json::from_slice(line).ok()) {
            self.last = Some(line);
        }
        Ok(self.last.as_ref())
    }
}

/// Why the master of this term cannot work at the moment, as far as its beacon tells.
pub fn trouble(fs: &dyn Fs, term: u64, lead: DecisionId) -> Option<String> {
    let mut tail = Tail::new(term, lead);
    let line = tail.look(fs).unwrap_or_default()?;
    Some(line.trouble.clone()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::memory::MemoryFs;
    use crate::fs::put_new;
    use crate::protocol::id::Nonce;
    use crate::protocol::record::to_line;

    const LEAD: DecisionId = DecisionId { generation: 7, nonce: Nonce(1) };

    fn beacon(bytes: &[u8]) -> MemoryFs {
        let fs = MemoryFs::default();
        for dir in layout::DIRECTORIES {
            assert_eq!(fs.mkdir(dir.as_ref()), Ok(()));
        }
        assert_eq!(put_new(&fs, &layout::beacon(3, LEAD), bytes, 0o644), Ok(()));
        fs
    }

    fn line(beat: u64, trouble: &str) -> Vec<u8> {
        to_line(&BeaconLine { beat, head: LEAD, trouble: trouble.into() })
    }

    fn last(fs: &MemoryFs, term: u64) -> Option<u64> {
        Tail::new(term, LEAD).look(fs).expect("memory does not fail").map(|line| line.beat)
    }

    #[test]
    fn the_last_whole_line_counts() {
        let text = [line(1, "full"), line(2, ""), line(3, "cut")].concat();
        let cut = &text[..text.len() - 1];
        assert_eq!(last(&beacon(cut), 3), Some(2));
        assert_eq!(trouble(&beacon(cut), 3, LEAD), None);
        assert_eq!(trouble(&beacon(&text), 3, LEAD), Some("cut".into()));
        assert_eq!(last(&beacon(b""), 3), None);
        assert_eq!(last(&beacon(b""), 4), None);
    }

    #[test]
    fn a_long_beacon_is_read_from_its_end() {
        let text: Vec<u8> = (0..1000).flat_map(|beat| line(beat, "")).collect();
        assert_eq!(last(&beacon(&text), 3), Some(999));
    }

    #[test]
    fn a_tail_reads_what_is_new() {
        let fs = beacon(b"");
        let path = layout::beacon(4, LEAD);
        let mut file = fs.create(&path, 0o644).expect("it is new");
        let mut tail = Tail::new(4, LEAD);
        let beat = |tail: &mut Tail| tail.look(&fs).expect("memory does not fail").map(|line| line.beat);
        assert_eq!(beat(&mut tail), None);
        let text = [line(1, ""), line(2, "")].concat();
        let (first, rest) = text.split_at(text.len() - 5);
        assert_eq!(file.write(first), Ok(()));
        assert_eq!(beat(&mut tail), Some(1));
        assert_eq!(file.write(rest), Ok(()));
        assert_eq!(beat(&mut tail), Some(2));
        assert_eq!(beat(&mut tail), Some(2));
    }
}
