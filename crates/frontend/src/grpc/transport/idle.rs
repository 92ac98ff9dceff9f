//! Detects connections without calls.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Number of checks within the maximum idle time.
const CHECKS: u32 = 4;

/// Watches a connection for calls. Periodic checks cost nothing per call, unlike a timer that each call resets. The
/// connection is closed between 1 and 1.25 times the given duration after its last call.
pub(super) struct Idleness {
    checks: Option<Interval>,
    calls_begun: u64,
    quiet_checks: u32,
}

impl Idleness {
    /// Watches for a duration without calls; `None`: no limit.
    pub(super) fn new(most: Option<Duration>) -> Self {
        let checks = most.map(|most| {
            let mut checks = interval((most / CHECKS).max(Duration::from_millis(1)));
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            checks
        });
        Self { checks, calls_begun: 0, quiet_checks: 0 }
    }

    /// Waits for the next check.
    pub(super) async fn next_check(&mut self) {
        match &mut self.checks {
            Some(checks) => drop(checks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Checks whether the connection has been idle for too long.
    pub(super) fn check(&mut self, calls_begun: u64, running: bool) -> bool {
        let quiet = !running && calls_begun == self.calls_begun;
        self.calls_begun = calls_begun;
        self.quiet_checks = if quiet { self.quiet_checks + 1 } else { 0 };
        self.quiet_checks > CHECKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_between_two_looks_counts_even_if_it_is_over() {
        let mut idleness = Idleness::new(None);
        let mut checks = |calls_begun, running, times: u32| (0..times).any(|_| idleness.check(calls_begun, running));
        assert!(!checks(0, false, CHECKS));
        assert!(!checks(1, false, CHECKS + 1), "one begun and ended");
        assert!(!checks(1, true, 2 * CHECKS), "one that goes on");
        assert!(checks(1, false, CHECKS + 1), "none for long enough");
    }

    #[tokio::test(start_paused = true)]
    async fn looks_come_within_the_duration_and_never_without_one() {
        let mut idleness = Idleness::new(Some(Duration::from_secs(8)));
        let began = tokio::time::Instant::now();
        idleness.next_check().await;
        while !idleness.check(0, false) {
            idleness.next_check().await;
        }
        assert!((8..=10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        let never = tokio::time::timeout(Duration::from_secs(3600), Idleness::new(None).next_check()).await;
        never.expect_err("no limit");
    }
}
