//! What should have shown by now, and when to do something about it. Pure (spec: ordering, "Quiet").
//!
//! On mounts with the same-tick hole a listing that was taken within the tick of a change hides it until the directory changes
//! again, which may be never. Whoever misses something does not know; a leader knows what is missed: an answer from a worker, or a
//! name in a listing of its own. A nudge is a change, and costs so little that one in vain is no harm.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::id::WorkerId;

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(2);

/// What a leader waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    /// That a worker takes its mail.
    Receipt(WorkerId),
    /// News in the journal of a worker.
    News(WorkerId),
    /// The `HELLO` of a namespace.
    Hello(WorkerId),
}

/// What was overdue at the last look, and for how many looks in a row.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    looks: BTreeMap<Awaited, u32>,
    next: Duration,
}

impl Overdue {
    /// Whether it is time to look, on the boot clock.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// When the next look is wanted; not while nothing is overdue, then any time will do.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.looks.is_empty()).then_some(self.next)
    }

    /// Takes note of what is overdue at a look; returns that about which something is to be done: what was overdue at two looks in a
    /// row, at four, at eight and so on, since one nudge may fall into a tick like the change before it, and a dead worker never
    /// answers.
    pub(super) fn looked(&mut self, now: Duration, overdue: impl IntoIterator<Item = Awaited>) -> Vec<Awaited> {
        let before = std::mem::take(&mut self.looks);
        let count = |awaited: Awaited| {
            let n = before.get(&awaited).map_or(1, |n| n.saturating_add(1));
            (awaited, n)
        };
        self.looks = overdue.into_iter().map(count).collect();
        self.next = now + EVERY;
        let is_to_do = |n: u32| n > 1 && n.is_power_of_two();
        self.looks.iter().filter(|(_, n)| is_to_do(**n)).map(|(awaited, _)| awaited.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::id::Nonce;

    fn news(names: &[&str]) -> Vec<Awaited> {
        names.iter().map(|name| Awaited::News(WorkerId::new(name, Nonce(1)))).collect()
    }

    #[test]
    fn what_stays_overdue_is_looked_after_less_and_less_often() {
        let mut overdue = Overdue::default();
        let mut now = Duration::ZERO;
        let mut looked_after = Vec::new();
        for look in 1..=40 {
            assert!(overdue.is_due(now));
            looked_after.extend(overdue.looked(now, news(&["a"])).into_iter().map(|_| look));
            now = overdue.due().expect("something is overdue");
        }
        assert_eq!(looked_after, [2, 4, 8, 16, 32]);
    }

    #[test]
    fn what_is_answered_is_forgotten_and_begins_anew() {
        let mut overdue = Overdue::default();
        let now = Duration::ZERO;
        assert_eq!(overdue.looked(now, news(&["a", "b"])), news(&[]));
        assert_eq!(overdue.looked(now, news(&["b"])), news(&["b"]));
        assert_eq!(overdue.looked(now, news(&["a"])), news(&[]));
        assert_eq!(overdue.looked(now, news(&["a"])), news(&["a"]));
        assert_eq!(overdue.looked(now, news(&[])), news(&[]));
        assert_eq!(overdue.due(), None);
    }
}
