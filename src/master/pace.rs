//! When to look again: soon after news, less and less often without, never more often than the budget allows.

use std::time::Duration;

use crate::protocol::record::Limits;

/// The first gap after news.
const FIRST: Duration = Duration::from_millis(50);

/// When one thing is looked at.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    due: Duration,
    gap: Duration,
    quiet_since: Duration,
}

impl Pace {
    /// Due at once.
    pub(super) fn new(now: Duration) -> Self {
        Self { due: now, gap: FIRST, quiet_since: now }
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// Makes the next look due now, and those after it soon: something is under way.
    pub(super) fn wake(&mut self) {
        self.due = Duration::ZERO;
        self.gap = FIRST;
    }

    /// Makes the next look due now; whether it finds news decides about those after it.
    pub(super) fn look_now(&mut self) {
        self.due = Duration::ZERO;
    }

    /// Makes the next look due at `at` at the latest.
    pub(super) fn no_later(&mut self, at: Duration) {
        self.due = self.due.min(at);
    }

    /// Takes note of a look at `now`; `longest` bounds the gap while there was news within five minutes, `idle` after.
    pub(super) fn looked(&mut self, now: Duration, news: bool, longest: Duration, idle: Duration) {
        if news {
            self.gap = FIRST;
            self.quiet_since = now;
        } else {
            let is_idle = now.saturating_sub(self.quiet_since) > Duration::from_secs(300);
            self.gap = (self.gap * 3 / 2).min(if is_idle { idle } else { longest });
        }
        self.due = now + self.gap;
    }

    /// Puts a look off.
    pub(super) fn later(&mut self, at: Duration) {
        self.due = at;
    }
}

/// A bucket of file-system calls that fills with time (spec: leases, "The budget").
#[derive(Debug, Clone)]
pub(super) struct Budget {
    calls: f64,
    filled_at: Duration,
}

impl Budget {
    pub(super) fn new(now: Duration) -> Self {
        Self { calls: 50.0, filled_at: now }
    }

    /// Takes `calls` out of the bucket, or says how long it takes to fill.
    pub(super) fn take(&mut self, now: Duration, calls: u32, limits: &Limits) -> Result<(), Duration> {
        let rate = f64::from(limits.calls_per_s);
        let filled = self.calls + now.saturating_sub(self.filled_at).as_secs_f64() * rate;
        self.calls = filled.min(rate.max(50.0));
        self.filled_at = now;
        let wanted = f64::from(calls);
        if self.calls >= wanted {
            self.calls -= wanted;
            return Ok(());
        }
        Err(Duration::from_secs_f64((wanted - self.calls) / rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn gaps_grow_without_news_and_shrink_with_it() {
        let mut pace = Pace::new(ms(0));
        let mut now = ms(0);
        for _ in 0..20 {
            now = pace.due();
            pace.looked(now, false, ms(1000), ms(15_000));
        }
        assert_eq!(pace.due().saturating_sub(now), ms(1000));
        for _ in 0..400 {
            now = pace.due();
            pace.looked(now, false, ms(1000), ms(15_000));
        }
        assert_eq!(pace.due().saturating_sub(now), ms(15_000));
        pace.looked(now, true, ms(1000), ms(15_000));
        assert_eq!(pace.due().saturating_sub(now), FIRST);
    }

    #[test]
    fn no_window_of_ten_seconds_exceeds_the_budget() {
        let limits = Limits { calls_per_s: 100, ..Limits::default() };
        let mut budget = Budget::new(ms(0));
        let mut taken = 0;
        for t in 0..10_000 {
            taken += u32::from(budget.take(ms(t), 1, &limits).is_ok());
        }
        assert!(taken <= 1100, "{taken}");
        assert!(taken >= 1000, "{taken}");
    }
}
