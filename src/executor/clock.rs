//! The pool's time: nanoseconds since it started.

use std::time::{Duration, Instant};

#[cfg(test)]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::batching::Ns;

/// Tells the time.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    /// The time where a test sets it.
    #[cfg(test)]
    set: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// Starts at 0, and goes on by itself.
    pub(super) fn start() -> Self {
        Self {
            epoch: Instant::now(),
            #[cfg(test)]
            set: None,
        }
    }

    /// Stands at what is set.
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

    /// The time of an instant; 0 of one before the start.
    pub(super) fn ns_at(&self, instant: Instant) -> Ns {
        duration_ns(instant.saturating_duration_since(self.epoch))
    }

    pub(super) fn instant_of(&self, at: Ns) -> Instant {
        self.epoch + Duration::from_nanos(at)
    }
}

/// A duration in nanoseconds, as far as these can tell.
pub(super) fn duration_ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}
