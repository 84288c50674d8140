//! A worker's append-only log in the store: its only writer, and the tails of its readers (spec: records, "Journal").
//!
//! Invariants:
//! - A written line is a promise, synced or not: somebody may have read it. A number is given once, and whenever a line is
//!   written again it has the same number and the same bytes.
//! - [`Writer::durable`] grows only when a sync of the file, and of its directory where the file is new, has returned.
//! - After an error of a segment its descriptor is never written or synced again: what was not synced is gone for this file, even
//!   if a later sync says otherwise. Everything after the last good sync is written again to the next segment.
//! - Segments are numbered without gaps; segment `n+1` is never made before `n` exists.
//! - A reader takes the longest prefix of whole, valid, consecutive lines. A short or damaged tail is "not yet". A line that is
//!   whole but says something unknown is skipped with a report and stops nobody.

use std::collections::VecDeque;

use crate::fs::{self, ErrorKind, Fs, FsError, WriteFile, read_from};
use crate::mutant::{self, Mutant};
use crate::protocol::frame;
use crate::protocol::id::WorkerId;
use crate::protocol::layout;
use crate::protocol::record::{Limits, Line};

/// The mode of a segment: the master may be another user.
const MODE: u32 = 0o644;

/// How many segments that exist already are passed over when one is opened, before an error is returned.
const OCCUPIED_MAX: u64 = 64;

/// How many bytes one [`Tail::poll`] reads before it returns what it has, whatever else is there.
const POLL_BYTES_MAX: usize = 16 << 20;

/// Encodes `line` as number `seq`, checksum and newline included.
fn encode(seq: u64, line: &Line) -> Vec<u8> {
    let json = serde_json::to_string(line).expect("a line has string keys only");
    frame::seal_line(&format!("{{\"seq\":{seq},{}", &json[1..]))
}

/// Appends to the journal of one worker incarnation; the only one who does.
#[expect(clippy::struct_excessive_bools, reason = "each stands for a question of its own")]
pub struct Writer {
    wid: WorkerId,
    segment_max: u64,
    mark_sync: bool,
    /// The segment that is open, or was open last.
    segment: u64,
    file: Option<Box<dyn WriteFile>>,
    is_named_durably: bool,
    len: u64,
    seq: u64,
    /// The last line that a write has been tried with.
    shown: u64,
    durable: u64,
    /// The lines after `durable`, oldest first.
    retained: VecDeque<Vec<u8>>,
    /// How many of `retained` are written to the open segment.
    written: usize,
    /// Whether something besides a mark waits for a flush.
    is_dirty: bool,
    /// Whether there are lines without a mark that tells of them, beats left out.
    is_unmarked: bool,
}

impl Writer {
    /// Makes the journal of `wid`: its directory and the first segment with the line `open`, all durable on return.
    ///
    /// Fails as [`Writer::flush`] does; then nobody has a writer, and the incarnation is given up.
    pub fn create(fs: &dyn Fs, wid: &WorkerId, limits: &Limits) -> Result<Self, FsError> {
        match fs.mkdir(&layout::journal(wid)) {
            // The name has 64 bits of chance: only a repeated call of our own can have made it.
            Err(error) if error.kind != ErrorKind::Exists => return Err(error),
            _ => {}
        }
        fs.sync_dir(layout::JOURNALS.as_ref())?;
        let mut writer = Self {
            wid: wid.clone(),
            segment_max: limits.segment_max,
            mark_sync: false,
            segment: 0,
            file: None,
            is_named_durably: false,
            len: 0,
            seq: 0,
            shown: 0,
            durable: 0,
            retained: VecDeque::new(),
            written: 0,
            is_dirty: false,
            is_unmarked: false,
        };
        writer.append(&Line::Open { wid: wid.clone() });
        writer.flush(fs)?;
        Ok(writer)
    }

    /// Chooses whether the mark after a flush is synced too: for mounts where others see synced bytes only.
    pub fn set_mark_sync(&mut self, sync: bool) {
        self.mark_sync = sync;
    }

    /// Takes `line` as the next one and returns its number. Nothing is written before [`Writer::flush`].
    pub fn append(&mut self, line: &Line) -> u64 {
        self.is_dirty |= !matches!(line, Line::Mark { .. });
        self.is_unmarked |= !matches!(line, Line::Mark { .. } | Line::Beat { .. } | Line::Seal { .. });
        self.seq += 1;
        self.retained.push_back(encode(self.seq, line));
        self.seq
    }

    /// The number of the last line appended.
    pub fn last(&self) -> u64 {
        self.seq
    }

    /// The number of the last line that somebody may have read, durable or not.
    pub fn shown(&self) -> u64 {
        self.shown
    }

    /// The highest number whose sync has returned: that line and all before it survive a power loss.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether a flush has something to do: lines to write, or to write again after an error.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Writes all lines without making them durable, so that who can see them learns early.
    pub fn write(&mut self) -> Result<(), FsError> {
        let outcome = self.write_waiting();
        if outcome.is_err() {
            self.give_up_segment();
        }
        outcome
    }

    /// Writes all lines, syncs once, then writes the mark that tells readers so; beats alone need no mark.
    ///
    /// After an error [`Writer::durable`] says how far it came (it may have grown: the mark may be what failed), nothing is lost,
    /// and the next flush tries again in a new segment. [`ErrorKind::NoSpace`] is what a full disk or quota gives.
    pub fn flush(&mut self, fs: &dyn Fs) -> Result<(), FsError> {
        if !self.is_dirty {
            return Ok(());
        }
        let outcome = self.try_flush(fs);
        if outcome.is_err() {
            self.give_up_segment();
        }
        outcome
    }

    fn give_up_segment(&mut self) {
        self.file = None;
        self.written = 0;
        self.is_dirty = true;
    }

    fn try_flush(&mut self, fs: &dyn Fs) -> Result<(), FsError> {
        if self.file.is_none() {
            self.open_next(fs)?;
        }
        self.write_waiting()?;
        self.sync(fs)?;
        if self.is_unmarked {
            self.append(&Line::Mark { d: self.durable });
            self.write_waiting()?;
            if self.mark_sync {
                self.sync(fs)?;
            }
            self.is_unmarked = false;
        }
        self.is_dirty = false;
        if self.len >= self.segment_max {
            self.append(&Line::Seal { next: self.segment + 1 });
            self.write_waiting()?;
            self.sync(fs)?;
            self.is_dirty = false;
            if let Some(file) = self.file.take() {
                // All of it is synced; what closing says changes nothing.
                let _ = file.close();
            }
        }
        Ok(())
    }

    /// Creates the next segment.
    ///
    /// A number whose creation failed is tried again, so that there is no gap; if it was created all the same, it is found
    /// occupied then and left empty.
    fn open_next(&mut self, fs: &dyn Fs) -> Result<(), FsError> {
        for _ in 0..OCCUPIED_MAX {
            match fs.create(&layout::segment(&self.wid, self.segment + 1), MODE) {
                Ok(file) => {
                    self.segment += 1;
                    self.file = Some(file);
                    self.is_named_durably = false;
                    self.len = 0;
                    self.written = 0;
                    return Ok(());
                }
                Err(error) if error.kind == ErrorKind::Exists => self.segment += 1,
                Err(error) => return Err(error),
            }
        }
        Err(FsError::new(crate::fs::Call::Create, &layout::segment(&self.wid, self.segment), libc::EEXIST))
    }

    fn write_waiting(&mut self) -> Result<(), FsError> {
        let bytes: Vec<u8> = self.retained.iter().skip(self.written).flatten().copied().collect();
        if let (Some(file), false) = (self.file.as_mut(), bytes.is_empty()) {
            self.shown = self.seq;
            file.write(&bytes)?;
            self.len += bytes.len() as u64;
            self.written = self.retained.len();
        }
        Ok(())
    }

    fn sync(&mut self, fs: &dyn Fs) -> Result<(), FsError> {
        if let Some(file) = self.file.as_mut().filter(|_| !mutant::is(Mutant::JournalUnsynced)) {
            file.sync()?;
        }
        if !self.is_named_durably {
            fs::sync_name(fs, &layout::segment(&self.wid, self.segment))?;
            self.is_named_durably = true;
        }
        self.durable = self.seq;
        self.retained.clear();
        self.written = 0;
        Ok(())
    }
}

/// Follows one worker's journal for one reader.
#[derive(Debug, Clone)]
pub struct Tail {
    wid: WorkerId,
    /// The segment that is read; 0 before it is known where to begin.
    segment: u64,
    offset: u64,
    /// Whether a listing has shown the segment. Looked up by name before it is there, an NFS client would miss it for a minute, or
    /// for ever if it appears within one tick of the server's clock.
    is_listed: bool,
    /// Where it was before it came to `segment`, for the case that it left too early.
    before: Option<(u64, u64)>,
    seq: u64,
    mark: u64,
    /// Polls in a row without a new line.
    quiet: u32,
    /// Lines that were read by a poll which then failed: they come with the next one.
    unsaid: Vec<(u64, Line)>,
}

/// What [`Tail::poll`] found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TailNews {
    /// The new lines with their numbers, in order; numbers of skipped lines are missing.
    pub lines: Vec<(u64, Line)>,
    /// The highest durable number that the writer has told of, in this poll or before; 0 if none.
    pub mark: u64,
    /// Whether there is a new line, known or not: a sign of life.
    pub grew: bool,
    /// The first thing that is wrong with the journal.
    pub damaged: Option<Damage>,
}

/// Something wrong with a journal, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// The number of the line, or of the one before if the line itself has none that can be trusted.
    pub seq: u64,
    /// What.
    pub what: Wrong,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// Whole and checksummed but not understood; it was skipped.
    Unknown(String),
    /// Its checksum is wrong although valid lines follow; nothing after it in this segment is read.
    Checksum,
}

impl Tail {
    /// Follows the journal from its beginning.
    pub fn new(wid: WorkerId) -> Self {
        Self::at(wid, 0)
    }

    /// Follows the journal after line `seq`.
    pub fn at(wid: WorkerId, seq: u64) -> Self {
        Self { wid, segment: 0, offset: 0, is_listed: false, before: None, seq, mark: 0, quiet: 0, unsaid: Vec::new() }
    }

    /// Whose journal it is.
    pub fn wid(&self) -> &WorkerId {
        &self.wid
    }

    /// The number of the last line read.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Reads what is new, by a fresh open of the segment.
    ///
    /// A journal that is not there (yet) is no error and has no news. Costs one open as long as lines come; a listing more now
    /// and then while none do, because a writer that met an error goes on in the next segment without sealing this one.
    pub fn poll(&mut self, fs: &dyn Fs) -> Result<TailNews, FsError> {
        let look = self.quiet.saturating_add(1);
        self.read(fs, look.is_power_of_two() || look.is_multiple_of(16))
    }

    /// Reads all that is there, looking into every segment: the last reading before a worker is declared lost.
    pub fn finish(&mut self, fs: &dyn Fs) -> Result<TailNews, FsError> {
        let mut all = self.read(fs, true)?;
        let mut grew = all.grew;
        while grew {
            let more = match self.read(fs, true) {
                Ok(more) => more,
                Err(error) => {
                    all.lines.append(&mut self.unsaid);
                    self.unsaid = all.lines;
                    return Err(error);
                }
            };
            grew = more.grew;
            all.lines.extend(more.lines);
            all.damaged = all.damaged.or(more.damaged);
        }
        all.mark = self.mark;
        Ok(all)
    }

    fn read(&mut self, fs: &dyn Fs, look: bool) -> Result<TailNews, FsError> {
        let mut news = TailNews::default();
        let outcome = self.read_on(fs, look, &mut news);
        let mut lines = std::mem::take(&mut self.unsaid);
        news.grew |= !lines.is_empty();
        lines.append(&mut news.lines);
        if let Err(error) = outcome {
            self.unsaid = lines;
            return Err(error);
        }
        news.lines = lines;
        self.quiet = if news.grew { 0 } else { self.quiet.saturating_add(1) };
        news.mark = self.mark;
        Ok(news)
    }

    fn read_on(&mut self, fs: &dyn Fs, look: bool, news: &mut TailNews) -> Result<(), FsError> {
        if self.segment == 0 && !self.find_start(fs)? {
            return Ok(());
        }
        let mut bytes_left = POLL_BYTES_MAX;
        let mut has_looked = !look;
        // A segment that was left too early is gone back to; then the next is not entered again in the same poll.
        let mut furthest = self.segment;
        loop {
            let (used, sealed) = self.read_segment(fs, news)?;
            bytes_left = bytes_left.saturating_sub(used);
            if bytes_left == 0 {
                break;
            }
            if sealed {
                self.go_to(self.segment + 1, false);
                furthest = furthest.max(self.segment);
            } else if !has_looked && !news.grew {
                // The next segment is looked for first and this one read once more after that, so that no line synced here
                // before the next was made can be missed.
                has_looked = true;
                if self.segment < furthest || !self.next_exists(fs)? {
                    break;
                }
                if self.read_segment(fs, news)?.0 == 0 {
                    self.go_to(self.segment + 1, true);
                    furthest = self.segment;
                    has_looked = false;
                }
            } else {
                break;
            }
        }
        Ok(())
    }

    fn go_to(&mut self, segment: u64, is_listed: bool) {
        self.before = Some((self.segment, self.offset));
        self.segment = segment;
        self.offset = 0;
        self.is_listed = is_listed;
    }

    fn next_exists(&self, fs: &dyn Fs) -> Result<bool, FsError> {
        Ok(segments(fs, &self.wid)?.contains(&(self.segment + 1)))
    }

    /// Takes the new lines of the present segment; returns how many bytes they have and whether the segment is sealed.
    fn read_segment(&mut self, fs: &dyn Fs, news: &mut TailNews) -> Result<(usize, bool), FsError> {
        if !self.is_listed {
            if !segments(fs, &self.wid)?.contains(&self.segment) {
                return Ok((0, false));
            }
            self.is_listed = true;
        }
        let bytes = match read_from(fs, &layout::segment(&self.wid, self.segment), self.offset) {
            Ok(bytes) => bytes,
            Err(error) if error.not_found() => return Ok((0, false)),
            Err(error) => return Err(error),
        };
        let (lines, used) = frame::valid_lines(&bytes, self.seq);
        let mut sealed = false;
        for (seq, text) in lines {
            self.seq = seq;
            news.grew = true;
            match serde_json::from_str::<Line>(text) {
                Ok(line) => {
                    match line {
                        Line::Mark { d } => self.mark = self.mark.max(d),
                        // A seal that could not be written is repeated in the segment that it names, where it means nothing.
                        Line::Seal { next } => sealed |= next > self.segment,
                        _ => {}
                    }
                    news.lines.push((seq, line));
                }
                Err(error) => {
                    let what = Wrong::Unknown(error.to_string());
                    news.damaged.get_or_insert(Damage { segment: self.segment, seq, what });
                }
            }
        }
        self.offset += used as u64;
        if used < bytes.len() {
            self.judge_rest(&bytes[used..], news);
        }
        Ok((used, sealed))
    }

    /// Looks at what stopped the walk: a gap means that the segment before was left too early.
    fn judge_rest(&mut self, rest: &[u8], news: &mut TailNews) {
        let mut lines = rest.split_inclusive(|&b| b == b'\n');
        let first = lines.next().and_then(frame::open_line);
        match (first, self.before) {
            (Some((seq, _)), Some((segment, offset))) if seq > self.seq + 1 && self.offset == 0 => {
                (self.segment, self.offset) = (segment, offset);
                self.is_listed = true;
                self.before = None;
            }
            (None, _) if lines.any(|line| frame::open_line(line).is_some()) => {
                let what = Wrong::Checksum;
                news.damaged.get_or_insert(Damage { segment: self.segment, seq: self.seq, what });
            }
            _ => {}
        }
    }

    /// Finds the last segment that begins at or before the line wanted; says whether there is one.
    fn find_start(&mut self, fs: &dyn Fs) -> Result<bool, FsError> {
        let found = segments(fs, &self.wid)?;
        for &segment in found.iter().rev() {
            if found.first() == Some(&segment) || first_seq(fs, &self.wid, segment)?.is_some_and(|n| n <= self.seq + 1)
            {
                self.segment = segment;
                self.is_listed = true;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Lists the segments of a journal in order; none if the journal is not there. A journal that was looked up before it was there
/// fails as long as only the listing shows it.
fn segments(fs: &dyn Fs, wid: &WorkerId) -> Result<Vec<u64>, FsError> {
    let dir = layout::journal(wid);
    let entries = match fs.list(&dir) {
        Err(error) if error.not_found() => {
            if !fs::is_listed(fs, &dir)? {
                return Ok(Vec::new());
            }
            fs.list(&dir)?
        }
        listed => listed?,
    };
    let mut found: Vec<u64> = entries.iter().filter_map(|entry| layout::parse_segment(&entry.name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// The number of the first line of a segment; `None` if it has no whole line.
fn first_seq(fs: &dyn Fs, wid: &WorkerId, segment: u64) -> Result<Option<u64>, FsError> {
    let mut file = match fs.open(&layout::segment(wid, segment)) {
        Ok(file) => file,
        Err(error) if error.not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let n = file.read_at(&mut buffer, bytes.len() as u64)?;
        bytes.extend_from_slice(&buffer[..n]);
        if let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            return Ok(frame::open_line(&bytes[..=end]).map(|(seq, _)| seq));
        }
        if n == 0 || bytes.len() > POLL_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Reads the one line `seq` of a journal; `None` if it is not there or not understood.
pub fn read_line(fs: &dyn Fs, wid: &WorkerId, seq: u64) -> Result<Option<Line>, FsError> {
    for segment in segments(fs, wid)?.into_iter().rev() {
        if first_seq(fs, wid, segment)?.is_none_or(|first| first > seq) {
            continue;
        }
        let bytes = match read_from(fs, &layout::segment(wid, segment), 0) {
            Ok(bytes) => bytes,
            Err(error) if error.not_found() => continue,
            Err(error) => return Err(error),
        };
        let found = bytes.split_inclusive(|&b| b == b'\n').filter_map(frame::open_line).find(|(n, _)| *n == seq);
        if let Some((_, text)) = found {
            return Ok(serde_json::from_str(text).ok());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::memory::MemoryFs;
    use crate::fs::{Call, Counting, Faulty, Rule};
    use crate::protocol::id::Nonce;

    type TestFs = Counting<Faulty<MemoryFs>>;

    /// A file system with the directory of all journals.
    fn fresh() -> TestFs {
        let memory = MemoryFs::default();
        assert_eq!(memory.mkdir("store".as_ref()), Ok(()));
        assert_eq!(memory.mkdir(layout::JOURNALS.as_ref()), Ok(()));
        Counting::new(Faulty::new(memory))
    }

    fn memory(fs: &TestFs) -> &MemoryFs {
        fs.inner().inner()
    }

    fn fail_once(fs: &TestFs, call: Call, part: &str) {
        fs.inner().add(Rule::new(call, libc::EIO).on(part).times(1));
    }

    fn syncs(fs: &TestFs) -> u64 {
        fs.counts().of(Call::Sync)
    }

    fn wid() -> WorkerId {
        WorkerId::new("n1", Nonce(7))
    }

    fn beat(k: u64) -> Line {
        Line::Beat { k, free: 1 }
    }

    fn pause(why: &str) -> Line {
        Line::Pause { why: why.into() }
    }

    fn beats(news: &TailNews) -> Vec<u64> {
        news.lines
            .iter()
            .filter_map(|(_, line)| if let Line::Beat { k, .. } = line { Some(*k) } else { None })
            .collect()
    }

    fn start(fs: &TestFs, segment_max: u64) -> Writer {
        let limits = Limits { segment_max, ..Limits::default() };
        Writer::create(fs, &wid(), &limits).unwrap_or_else(|e| panic!("{e}"))
    }

    fn poll(tail: &mut Tail, fs: &TestFs) -> TailNews {
        tail.poll(fs).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn lines_that_a_failed_poll_has_read_come_with_the_next_one() {
        let fs = fresh();
        let limits = Limits { segment_max: 1, ..Limits::default() };
        let mut writer = Writer::create(&fs, &wid(), &limits).unwrap_or_else(|e| panic!("{e}"));
        writer.append(&pause("full"));
        assert_eq!(writer.flush(&fs), Ok(()));
        let mut tail = Tail::new(wid());
        fail_once(&fs, Call::Open, "000002");
        assert!(tail.poll(&fs).is_err(), "the segment that the seal names cannot be opened");
        let news = tail.poll(&fs).unwrap_or_else(|e| panic!("{e}"));
        assert!(news.grew && news.lines.iter().any(|(_, line)| *line == pause("full")), "{news:?}");
    }

    #[test]
    fn lines_of_one_flush_share_one_sync() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        let before = syncs(&fs);
        for k in 1..=10 {
            writer.append(&beat(k));
        }
        assert_eq!(writer.flush(&fs), Ok(()));
        assert_eq!(syncs(&fs), before + 1);
        assert_eq!(writer.durable(), writer.last());
    }

    #[test]
    fn a_line_is_not_durable_before_the_directory_of_a_new_segment_is_synced() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        fail_once(&fs, Call::Sync, "000001");
        writer.append(&beat(1));
        assert!(writer.flush(&fs).is_err());
        fail_once(&fs, Call::SyncDir, "store/log");
        let durable = writer.durable();
        assert!(writer.flush(&fs).is_err());
        assert_eq!(writer.durable(), durable);
    }

    #[test]
    fn an_error_at_sync_repeats_the_same_numbers_in_a_new_segment() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        let seq = writer.append(&pause("one"));
        fail_once(&fs, Call::Sync, "000001");
        assert!(writer.flush(&fs).is_err());
        assert!(writer.durable() < seq);
        let first = memory(&fs).get(&layout::segment(&wid(), 1)).unwrap_or_default();
        writer.append(&pause("two"));
        assert_eq!(writer.flush(&fs), Ok(()));
        let second = memory(&fs).get(&layout::segment(&wid(), 2)).unwrap_or_default();
        // The mark of the first flush and the line `one` were not synced; both stand in the second segment as they were.
        let promised: Vec<&[u8]> = first.split_inclusive(|&b| b == b'\n').skip(1).collect();
        assert_eq!(promised.len(), 2);
        assert!(second.starts_with(&promised.concat()));
    }

    #[test]
    fn a_tail_goes_on_after_an_error_of_the_writer_without_repeating_a_line() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        let mut tail = Tail::new(wid());
        writer.append(&beat(1));
        fail_once(&fs, Call::Sync, "000001");
        assert!(writer.flush(&fs).is_err());
        assert_eq!(beats(&poll(&mut tail, &fs)), [1], "written is seen, synced or not");
        writer.append(&beat(2));
        assert_eq!(writer.flush(&fs), Ok(()));
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend(beats(&poll(&mut tail, &fs)));
        }
        assert_eq!(seen, [2]);
    }

    #[test]
    fn a_full_disk_loses_no_line() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        fs.inner().add(Rule::new(Call::Write, libc::ENOSPC));
        fs.inner().add(Rule::new(Call::Create, libc::ENOSPC));
        for k in 1..=3 {
            writer.append(&beat(k));
            assert_eq!(writer.flush(&fs).map_err(|e| e.kind), Err(ErrorKind::NoSpace));
        }
        fs.inner().heal();
        assert_eq!(writer.flush(&fs), Ok(()));
        let news = Tail::new(wid()).finish(&fs).unwrap_or_default();
        assert_eq!(beats(&news), [1, 2, 3]);
    }

    #[test]
    fn sealed_segments_are_followed_in_one_poll() {
        let fs = fresh();
        let mut writer = start(&fs, 200);
        let mut tail = Tail::new(wid());
        for k in 1..=50 {
            writer.append(&beat(k));
            assert_eq!(writer.flush(&fs), Ok(()));
        }
        assert!(segments(&fs, &wid()).unwrap_or_default().len() > 3);
        let news = poll(&mut tail, &fs);
        assert_eq!(beats(&news), (1..=50).collect::<Vec<_>>());
        assert_eq!(news.damaged, None);
    }

    #[test]
    fn a_tail_continues_after_a_cursor_wherever_it_lies() {
        let fs = fresh();
        let mut writer = start(&fs, 200);
        for k in 1..=30 {
            writer.append(&beat(k));
            assert_eq!(writer.flush(&fs), Ok(()));
        }
        for cursor in 0..=writer.last() {
            let news = Tail::at(wid(), cursor).finish(&fs).unwrap_or_default();
            let expected: Vec<u64> = (cursor + 1..=writer.durable()).collect();
            assert_eq!(news.lines.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), expected, "after {cursor}");
        }
    }

    #[test]
    fn the_mark_tells_what_is_durable() {
        let fs = fresh();
        let mut writer = start(&fs, 1 << 20);
        let seq = writer.append(&pause("x"));
        assert_eq!(writer.flush(&fs), Ok(()));
        assert_eq!(poll(&mut Tail::new(wid()), &fs).mark, seq);
    }

    #[test]
    fn an_unknown_line_is_reported_and_skipped() {
        let fs = fresh();
        let mut bytes = encode(1, &beat(1));
        bytes.extend(frame::seal_line("{\"seq\":2,\"t\":\"dance\",\"x\":1}"));
        bytes.extend(encode(3, &beat(2)));
        memory(&fs).put(&layout::segment(&wid(), 1), &bytes);
        let news = poll(&mut Tail::new(wid()), &fs);
        assert_eq!(beats(&news), [1, 2]);
        assert!(matches!(news.damaged, Some(Damage { seq: 2, what: Wrong::Unknown(_), .. })), "{:?}", news.damaged);
    }

    #[test]
    fn a_torn_tail_is_not_yet() {
        let fs = fresh();
        let (one, two) = (encode(1, &beat(1)), encode(2, &beat(2)));
        let mut tail = Tail::new(wid());
        let path = layout::segment(&wid(), 1);
        for cut in 1..two.len() {
            let mut bytes = [one.clone(), two[..cut].to_vec()].concat();
            bytes.resize(one.len() + two.len(), 0);
            memory(&fs).put(&path, &bytes);
            assert!(!beats(&poll(&mut tail, &fs)).contains(&2), "cut at {cut}");
        }
        memory(&fs).put(&path, &[one, two].concat());
        assert_eq!(beats(&poll(&mut tail, &fs)), [2]);
        assert_eq!(tail.seq(), 2);
    }

    #[test]
    fn a_segment_left_too_early_is_read_again() {
        // A reader with an old view of segment 1 sees segment 2 first; the lines of 1 that it lacks come later.
        let fs = fresh();
        let line = |n| encode(n, &beat(n));
        memory(&fs).put(&layout::segment(&wid(), 1), &line(1));
        memory(&fs).put(&layout::segment(&wid(), 2), &line(4));
        let mut tail = Tail::new(wid());
        for _ in 0..8 {
            poll(&mut tail, &fs);
        }
        assert_eq!(tail.seq(), 1);
        memory(&fs).put(&layout::segment(&wid(), 1), &[line(1), line(2), line(3)].concat());
        for _ in 0..64 {
            poll(&mut tail, &fs);
        }
        assert_eq!(tail.seq(), 4);
    }

    #[test]
    fn one_line_is_found_by_its_number() {
        let fs = fresh();
        let mut writer = start(&fs, 200);
        let mut seqs = Vec::new();
        for k in 1..=20 {
            seqs.push((writer.append(&beat(k)), k));
            assert_eq!(writer.flush(&fs), Ok(()));
        }
        for (seq, k) in seqs {
            assert_eq!(read_line(&fs, &wid(), seq), Ok(Some(beat(k))));
        }
        assert_eq!(read_line(&fs, &wid(), writer.last() + 1), Ok(None));
    }
}
