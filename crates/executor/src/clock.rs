//! The pool's time: nanoseconds since it started.

use std::time::{self, Duration};

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use paternoster_batching::{Instant, Ns};

/// The clock of a pool.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: time::Instant,
    /// The time, if a test sets it.
    #[cfg(test)]
    set: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// Starts a clock at 0.
    pub(super) fn start() -> Self {
        Self {
            epoch: time::Instant::now(),
            #[cfg(test)]
            set: None,
        }
    }

    /// Creates a clock that shows the time set by a test.
    #[cfg(test)]
    pub(super) fn set(by: &Arc<AtomicU64>) -> Self {
        Self { set: Some(Arc::clone(by)), ..Self::start() }
    }

    pub(super) fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(set) = &self.set {
            return Instant::from_ns(set.load(Ordering::Relaxed));
        }
        Instant::from_ns(duration_ns(self.epoch.elapsed()))
    }

    /// Converts an instant of the standard library to pool time; the start for one before it.
    pub(super) fn pool_time(&self, at: time::Instant) -> Instant {
        Instant::from_ns(duration_ns(at.saturating_duration_since(self.epoch)))
    }

    /// Converts pool time to an instant of the standard library.
    pub(super) fn std_time(&self, at: Instant) -> time::Instant {
        self.epoch + Duration::from_nanos(at.as_ns())
    }
}

/// Converts a duration to nanoseconds, saturating.
pub(super) fn duration_ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
