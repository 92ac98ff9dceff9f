//! The energy of a run: a counter, read at the beginning and at the end of the counted time.

use std::{fmt, sync::Arc, time::Instant};

use tokio::task::JoinHandle;

/// A counter of energy.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn() -> Option<f64> + Send + Sync>);

impl Meter {
    /// Creates a meter. `joules` returns the energy since some instant, the same for all readings, or `None` if it
    /// cannot be read.
    pub fn new(joules: impl Fn() -> Option<f64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(joules))
    }

    /// Reads the counter now.
    pub(super) fn now(&self) -> Option<f64> {
        (self.0)()
    }

    /// Reads the counter at an instant, or at once if it is past.
    pub(super) fn at(&self, when: Instant) -> JoinHandle<Option<f64>> {
        let meter = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(when.into()).await;
            meter.now()
        })
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Meter").finish_non_exhaustive()
    }
}
