//! The pool's time: nanoseconds since it started.

use std::time::{Duration, Instant};

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use paternoster_batching::Ns;

/// The clock of a pool.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    /// The time, if a test sets it.
    #[cfg(test)]
    set: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// Starts a clock at 0.
    pub(super) fn start() -> Self {
        Self {
            epoch: Instant::now(),
            #[cfg(test)]
            set: None,
        }
    }

    /// Creates a clock that shows the time set by a test.
    #[cfg(test)]
    pub(super) fn set(by: &Arc<AtomicU64>) -> Self {
        Self { set: Some(Arc::clone(by)), ..Self::start() }
    }

    pub(super) fn now(&self) -> Ns {
        #[cfg(test)]
        if let Some(set) = &self.set {
            return set.load(Ordering::Relaxed);
        }
        duration_ns(self.epoch.elapsed())
    }

    /// Converts an instant to pool time; 0 for an instant before the start.
    pub(super) fn ns_at(&self, instant: Instant) -> Ns {
        duration_ns(instant.saturating_duration_since(self.epoch))
    }

    pub(super) fn instant_of(&self, at: Ns) -> Instant {
        self.epoch + Duration::from_nanos(at)
    }
}

/// Converts a duration to nanoseconds, saturating.
pub(super) fn duration_ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
