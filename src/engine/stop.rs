//! Stopping a run before its end.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use ort::session::RunOptions;
use parking_lot::Mutex;

use super::EngineError;

/// Stops the runs that it is given to: once raised, they fail soon, as do later ones until it is cleared. A lane, which
/// runs one batch at a time, keeps one for all its runs, so that it adds no cost to a run.
#[derive(Default)]
pub struct StopSignal {
    raised: AtomicBool,
    /// Held while the signal changes and while the options are made, so that both always say the same.
    changing: Mutex<()>,
    /// ONNX Runtime looks at a flag of its own, in the options of a run. Made by the first run that needs them.
    options: OnceLock<RunOptions>,
}

impl StopSignal {
    /// Makes runs in progress, and all later ones, fail soon. Returns at once.
    pub fn raise(&self) {
        self.set(true);
    }

    /// Takes [`Self::raise`] back: later runs are as good as before.
    pub fn clear(&self) {
        self.set(false);
    }

    /// Whether runs are to stop.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    fn set(&self, raised: bool) {
        let _changing = self.changing.lock();
        self.raised.store(raised, Ordering::Release);
        if let Some(options) = self.options.get() {
            // Where the flag cannot be set, a run ends by itself; where it cannot be cleared, later ones fail by name.
            let _ = if raised { options.terminate() } else { options.unterminate() };
        }
    }

    /// Options for runs of ONNX Runtime that stop with this signal.
    ///
    /// # Errors
    /// When ONNX Runtime has no memory for them.
    pub(super) fn run_options(&self) -> Result<&RunOptions, EngineError> {
        if let Some(options) = self.options.get() {
            return Ok(options);
        }
        let refused = |error: ort::Error| EngineError(format!("onnx runtime error: {}", error.message()));
        let _changing = self.changing.lock();
        let options = RunOptions::new().map_err(refused)?;
        if self.is_raised() {
            options.terminate().map_err(refused)?;
        }
        Ok(self.options.get_or_init(|| options))
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StopSignal").field("raised", &self.is_raised()).finish_non_exhaustive()
    }
}
