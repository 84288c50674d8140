//! The two kinds of time and a source of chance, each behind a trait so that the simulator can hand out its own.
//!
//! - *Boot time* counts from the host's boot, goes on during suspend and never jumps. All leases, silences, back-offs and limits
//!   are spans of it, and no span is ever compared between hosts.
//! - *Wall time* is what people read. It is recorded and shown, never used to decide.

use std::time::Duration;

/// The time of one host.
pub trait Clock: Send + Sync {
    /// Time since the host's boot, suspend included (`CLOCK_BOOTTIME`).
    fn boot(&self) -> Duration;

    /// Milliseconds since 1970-01-01 UTC by the host's own idea of it. For people only.
    fn wall_ms(&self) -> u64;
}

/// A source of chance for nonces and jitter.
pub trait Chance: Send + Sync {
    /// 64 fresh random bits.
    fn bits(&self) -> u64;

    /// `span` lengthened or shortened by up to a fifth, so that a thousand hosts do not act in step.
    fn jitter(&self, span: Duration) -> Duration {
        let thousandths = 800 + self.bits() % 401;
        span * u32::try_from(thousandths).unwrap_or(1000) / 1000
    }
}

/// The host's real clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostClock;

impl Clock for HostClock {
    fn boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
    }

    fn wall_ms(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The kernel's random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostChance;

impl Chance for HostChance {
    fn bits(&self) -> u64 {
        let mut bytes = [0; 8];
        let mut have = 0;
        while have < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => have += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => panic!("the kernel gives no random numbers: {e}"),
            }
        }
        u64::from_ne_bytes(bytes)
    }
}

/// Time that stands still and chance that repeats, for unit tests.
#[cfg(test)]
pub(crate) mod fixed {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::{Chance, Clock};

    /// A clock that always shows the same.
    pub(crate) struct Still;

    impl Clock for Still {
        fn boot(&self) -> Duration {
            Duration::from_secs(1000)
        }

        fn wall_ms(&self) -> u64 {
            1_700_000_000_000
        }
    }

    /// The same sequence of bits for the same seed.
    pub(crate) struct Dice(AtomicU64);

    impl Dice {
        /// Starts the sequence of `seed`.
        pub(crate) fn new(seed: u64) -> Self {
            Self(AtomicU64::new(seed))
        }
    }

    impl Chance for Dice {
        fn bits(&self) -> u64 {
            let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_does_not_go_back() {
        let first = HostClock.boot();
        assert!(HostClock.boot() >= first);
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        for _ in 0..1000 {
            let span = HostChance.jitter(Duration::from_secs(10));
            assert!((Duration::from_secs(8)..=Duration::from_secs(12)).contains(&span));
        }
    }
}
