//! The names of things: parse, print, order (spec: terms).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name that does not follow the rules of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadId {
    /// What was given, cut to 80 characters.
    pub given: String,
    /// What was expected, for example "a job id".
    pub expected: &'static str,
}

impl BadId {
    fn new(given: &str, expected: &'static str) -> Self {
        Self { given: given.chars().take(80).collect(), expected }
    }
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not {}", self.given, self.expected)
    }
}

impl std::error::Error for BadId {}

/// Implements `Serialize` and `Deserialize` through `Display` and `FromStr`.
macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// 64 bits of chance; printed as 16 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let ok = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let value = ok.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        value.map(Self).ok_or_else(|| BadId::new(text, "a nonce: expected 16 characters of 0-9a-f"))
    }
}

/// A job: what one `fq submit` makes. A small number, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        number(text)
            .filter(|&n| n > 0)
            .map(Self)
            .ok_or_else(|| BadId::new(text, "a job id: expected a number from 1, such as `7`"))
    }
}

/// Parses decimal digits without sign or leading zero.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// The scheduled unit: `7` for a job of one task, `7_3` for index 3 of an array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The job it belongs to.
    pub job: JobId,
    /// The array index; `None` for the only task of a job that is no array.
    pub index: Option<u64>,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}_{index}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

impl FromStr for TaskId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new(text, "a task id: expected `7` or `7_3`");
        match text.split_once('_') {
            None => Ok(Self { job: text.parse().map_err(|_| bad())?, index: None }),
            Some((job, index)) => {
                Ok(Self { job: job.parse().map_err(|_| bad())?, index: Some(number(index).ok_or_else(bad)?) })
            }
        }
    }
}

/// One execution of a task: `7_3.2` is the second attempt of `7_3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// The attempt number, from 1; issued by decisions only and growing by one.
    pub number: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.task, self.number)
    }
}

impl FromStr for AttemptId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new(text, "an attempt id: expected `7_3.2`");
        let (task, attempt) = text.split_once('.').ok_or_else(bad)?;
        let attempt = number(attempt).and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0).ok_or_else(bad)?;
        Ok(Self { task: task.parse().map_err(|_| bad())?, number: attempt })
    }
}

/// The name of a decision, `101.<nonce>`: the only identity that outlives roll-backs, copies and merges.
///
/// The same text is the name of the head token while that decision is the newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    /// The generation, from 0; grows by one with each decision.
    pub generation: u64,
    /// Chosen afresh for each candidate.
    pub nonce: Nonce,
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.nonce)
    }
}

impl FromStr for DecisionId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new(text, "the name of a decision: expected `101.0123456789abcdef`");
        let (generation, nonce) = text.split_once('.').ok_or_else(bad)?;
        Ok(Self { generation: number(generation).ok_or_else(bad)?, nonce: nonce.parse().map_err(|_| bad())? })
    }
}

/// A worker or master incarnation, `<host>~<nonce>`; never used again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(String);

impl WorkerId {
    /// Makes the id of a new incarnation on `host`; characters other than letters, digits, `-` and `.` become `-`.
    pub fn new(host: &str, nonce: Nonce) -> Self {
        let short = host.split('.').next().unwrap_or(host);
        let mut name: String =
            short.chars().take(40).map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
        if name.is_empty() || name.starts_with('-') {
            name.insert(0, 'h');
        }
        Self(format!("{name}~{nonce}"))
    }

    /// The text, which is also the name of the namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host part.
    pub fn host(&self) -> &str {
        self.0.split('~').next().unwrap_or("")
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WorkerId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new(text, "a worker id: expected `node7~0123456789abcdef`");
        let (host, nonce) = text.split_once('~').ok_or_else(bad)?;
        let _: Nonce = nonce.parse().map_err(|_| bad())?;
        let plain = !host.is_empty()
            && host.len() <= 64
            && !host.starts_with(['-', '.'])
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        if plain { Ok(Self(text.to_owned())) } else { Err(bad()) }
    }
}

as_text!(Nonce, TaskId, AttemptId, DecisionId, WorkerId);

/// A set of numbers, written as ranges: `0-4,7,9-12`. Kept sorted, disjoint and never touching.
#[derive(Clone, PartialEq, Eq, Default, Hash)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The set of all numbers from `first` to `last`, both included.
    pub fn span(first: u64, last: u64) -> Self {
        Self(vec![(first, last)])
    }

    /// Adds one number.
    pub fn insert(&mut self, n: u64) {
        if let Some(last) = self.0.last_mut() {
            if n == last.1 + 1 {
                last.1 = n;
                return;
            }
            if n > last.1 {
                self.0.push((n, n));
                return;
            }
        } else {
            self.0.push((n, n));
            return;
        }
        let at = self.0.partition_point(|r| r.1 < n);
        if self.0[at].0 <= n {
            return;
        }
        self.0.insert(at, (n, n));
        if at + 1 < self.0.len() && self.0[at + 1].0 == n + 1 {
            self.0[at].1 = self.0[at + 1].1;
            self.0.remove(at + 1);
        }
        if at > 0 && self.0[at - 1].1 + 1 == n {
            self.0[at - 1].1 = self.0[at].1;
            self.0.remove(at);
        }
    }

    /// How many numbers there are.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(a, b)| b - a + 1).sum()
    }

    /// Whether the set has no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        self.position(n).is_some()
    }

    /// The position of `n` in the sorted set, from 0.
    pub fn position(&self, n: u64) -> Option<u64> {
        let mut before = 0;
        for &(a, b) in &self.0 {
            if n < a {
                return None;
            }
            if n <= b {
                return Some(before + (n - a));
            }
            before += b - a + 1;
        }
        None
    }

    /// The number at `position` of the sorted set, from 0.
    pub fn nth(&self, position: u64) -> Option<u64> {
        let mut before = 0;
        for &(a, b) in &self.0 {
            if position - before <= b - a {
                return Some(a + (position - before));
            }
            before += b - a + 1;
        }
        None
    }

    /// All numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(a, b)| a..=b)
    }

    /// The smallest number.
    pub fn first(&self) -> Option<u64> {
        self.0.first().map(|r| r.0)
    }

    /// The greatest number.
    pub fn last(&self) -> Option<u64> {
        self.0.last().map(|r| r.1)
    }
}

impl FromIterator<u64> for Ranges {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut set = Self::default();
        for n in numbers {
            set.insert(n);
        }
        set
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(a, b)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if a == b { write!(f, "{comma}{a}")? } else { write!(f, "{comma}{a}-{b}")? }
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = BadId;

    /// Parses `0-4,7,10-20:5`; a step of 5 gives 10, 15 and 20. At most ten million numbers.
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || {
            BadId::new(text, "a list of indices: expected `0-99`, `1,3,5-7` or `0-20:5`, at most 10,000,000 of them")
        };
        let mut set = Self::default();
        if text.is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let (span, step) = part.split_once(':').map_or((part, Some(1)), |(s, step)| (s, number(step)));
            let step = step.filter(|&s| s > 0).ok_or_else(bad)?;
            let (a, b) = span.split_once('-').unwrap_or((span, span));
            let (a, b) = (number(a).ok_or_else(bad)?, number(b).ok_or_else(bad)?);
            if b < a || b > u64::from(u32::MAX) || (b - a) / step > 10_000_000 {
                return Err(bad());
            }
            let after = set.last().is_none_or(|last| a > last + 1);
            if step == 1 && after {
                set.0.push((a, b));
            } else {
                (a..=b).step_by(usize::try_from(step).map_err(|_| bad())?).for_each(|n| set.insert(n));
            }
        }
        if set.len() > 10_000_000 { Err(bad()) } else { Ok(set) }
    }
}

as_text!(Ranges);

/// The tasks that a user names on the command line or in a request: `7`, `7_3`, `7_[1-3,9]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The job.
    pub job: JobId,
    /// The array indices that are meant; `None` for all tasks of the job.
    pub indices: Option<Ranges>,
}

impl Target {
    /// Whether `task` is meant.
    pub fn covers(&self, task: TaskId) -> bool {
        self.job == task.job
            && self.indices.as_ref().is_none_or(|set| task.index.is_some_and(|index| set.contains(index)))
    }

    /// Parses a list such as `7,9-12,7_[1-3]`.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadId> {
        let bad = || BadId::new(text, "a list of jobs and tasks: expected for example `7`, `7_3`, `9-12` or `7_[1-3]`");
        let mut targets = Vec::new();
        let mut depth = 0;
        let parts = text.split(|c| {
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        });
        for part in parts {
            if let Some((job, indices)) = part.split_once('_') {
                let indices = indices.strip_prefix('[').and_then(|i| i.strip_suffix(']')).unwrap_or(indices);
                let indices: Ranges = indices.parse().map_err(|_| bad())?;
                if indices.is_empty() {
                    return Err(bad());
                }
                targets.push(Self { job: job.parse().map_err(|_| bad())?, indices: Some(indices) });
            } else {
                let jobs: Ranges = part.parse().map_err(|_| bad())?;
                if jobs.is_empty() || jobs.first() == Some(0) || jobs.len() > 1_000_000 {
                    return Err(bad());
                }
                targets.extend(jobs.iter().map(|n| Self { job: JobId(n), indices: None }));
            }
        }
        Ok(targets)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.indices {
            None => write!(f, "{}", self.job),
            Some(set) if set.len() == 1 => write!(f, "{}_{set}", self.job),
            Some(set) => write!(f, "{}_[{set}]", self.job),
        }
    }
}

impl FromStr for Target {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let mut list = Self::parse_list(text)?;
        match (list.pop(), list.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(BadId::new(text, "one job or task: expected `7`, `7_3` or `7_[1-3]`")),
        }
    }
}

as_text!(Target);

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: FromStr<Err = BadId> + fmt::Display>(text: &str) {
        let value: T = text.parse().unwrap_or_else(|e: BadId| panic!("{e}"));
        assert_eq!(value.to_string(), text);
    }

    #[test]
    fn ids_print_as_they_are_typed() {
        round_trip::<JobId>("7");
        round_trip::<TaskId>("7");
        round_trip::<TaskId>("7_0");
        round_trip::<AttemptId>("7_3.2");
        round_trip::<DecisionId>("101.00000000000000ff");
        round_trip::<WorkerId>("node-7~00000000000000ff");
        round_trip::<Ranges>("0-4,7,9-12");
        round_trip::<Target>("7_[1-3]");
        round_trip::<Target>("7_3");
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in ["", "0", "07", "-1", "+1", "7x", "7_", "_3", "7_03", "../x"] {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
        for text in ["~00000000000000ff", "a/b~00000000000000ff", ".a~00000000000000ff", "a~ff"] {
            assert!(text.parse::<WorkerId>().is_err(), "{text}");
        }
        for text in ["3-1", "1-", "1,,2", "a", "1:0", "0-99999999999"] {
            assert!(text.parse::<Ranges>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_stay_sorted_and_merged_in_any_order_of_insertion() {
        let set: Ranges = [5, 1, 3, 2, 9, 4, 4, 8].into_iter().collect();
        assert_eq!(set.to_string(), "1-5,8-9");
        assert_eq!(set.len(), 7);
        assert_eq!(set.position(8), Some(5));
        assert_eq!(set.position(6), None);
        assert_eq!("0-10:5,7".parse::<Ranges>().map(|r| r.iter().collect::<Vec<_>>()), Ok(vec![0, 5, 7, 10]));
    }

    #[test]
    fn lists_of_targets_are_read_as_slurm_users_write_them() {
        let list =
            Target::parse_list("7,9-10,7_[1-2,5]").map(|l| l.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(list, Ok(vec!["7".into(), "9".into(), "10".into(), "7_[1-2,5]".into()]));
    }

    #[test]
    fn host_names_become_safe_directory_names() {
        assert_eq!(WorkerId::new("node7.cluster", Nonce(255)).as_str(), "node7~00000000000000ff");
        assert_eq!(WorkerId::new("../x", Nonce(0)).as_str(), "h~0000000000000000");
    }
}
