//! Stops runs early.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use ort::session::RunOptions;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{EngineError, EngineErrorKind};

/// A run, or a wait for one, that another thread can end.
pub(super) trait Interrupt: Send + Sync {
    /// Makes it end soon. Returns at once.
    fn interrupt(&self);
}

/// Registers a run with a signal, until it is dropped.
pub(super) struct Interruptible<'a> {
    signal: &'a StopSignal,
    run: Arc<dyn Interrupt>,
}

impl Drop for Interruptible<'_> {
    fn drop(&mut self) {
        let mut running = self.signal.running.lock();
        if let Some(own) = running.iter().position(|run| Arc::ptr_eq(run, &self.run)) {
            running.swap_remove(own);
        }
    }
}

/// Stops runs: once raised, runs with this signal fail soon, and so do later ones until it is cleared. A lane, which
/// runs one batch at a time, reuses one signal for all its runs, so a run does not pay for creating one.
#[derive(Default)]
pub struct StopSignal {
    raised: AtomicBool,
    /// Runs to interrupt when the signal is raised. Locked while the signal changes and while the options are created,
    /// so that flag, runs and options agree.
    running: Mutex<SmallVec<[Arc<dyn Interrupt>; 1]>>,
    /// ONNX Runtime reads a flag of its own in a run's options, which are created by the first run that needs them.
    options: OnceLock<RunOptions>,
}

impl StopSignal {
    /// Makes current and later runs fail soon. Returns at once.
    pub fn raise(&self) {
        self.set(true);
    }

    /// Reverts [`Self::raise`], so that later runs are not affected.
    pub fn clear(&self) {
        self.set(false);
    }

    /// Returns whether runs are to stop.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    fn set(&self, raised: bool) {
        let running = self.running.lock();
        self.raised.store(raised, Ordering::Release);
        if raised {
            running.iter().for_each(|run| run.interrupt());
        }
        if let Some(options) = self.options.get() {
            // If the flag cannot be set, a run ends by itself; if it cannot be cleared, later runs fail with a clear
            // error.
            let _ = if raised { options.terminate() } else { options.unterminate() };
        }
    }

    /// Interrupts a run when the signal is raised, until the returned guard is dropped.
    ///
    /// # Errors
    /// Fails if the signal is already raised.
    pub(super) fn interrupts(&self, run: Arc<dyn Interrupt>) -> Result<Interruptible<'_>, EngineError> {
        let mut running = self.running.lock();
        if self.is_raised() {
            return Err(Self::stopped());
        }
        running.push(Arc::clone(&run));
        Ok(Interruptible { signal: self, run })
    }

    /// Returns the error of a run that a signal stopped.
    pub(super) fn stopped() -> EngineError {
        EngineError { kind: EngineErrorKind::Stopped, message: "the run was asked to stop".to_owned() }
    }

    /// Returns options for ONNX Runtime runs that stop with this signal.
    ///
    /// # Errors
    /// Fails if ONNX Runtime cannot create them.
    pub(super) fn run_options(&self) -> Result<&RunOptions, EngineError> {
        if let Some(options) = self.options.get() {
            return Ok(options);
        }
        let refused = |error: ort::Error| EngineError::of_engine(format!("onnx runtime error: {}", error.message()));
        let _running = self.running.lock();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Interrupt for Counted {
        fn interrupt(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_signal_interrupts_what_runs_and_nothing_else() {
        let (signal, other) = (StopSignal::default(), StopSignal::default());
        let runs: [Arc<Counted>; 3] = Default::default();
        let interrupted = || runs.each_ref().map(|run| run.0.load(Ordering::Relaxed));
        let first = signal.interrupts(Arc::clone(&runs[0]) as Arc<dyn Interrupt>).expect("it is not raised");
        let second = signal.interrupts(Arc::clone(&runs[1]) as Arc<dyn Interrupt>).expect("it is not raised");
        let _elsewhere = other.interrupts(Arc::clone(&runs[2]) as Arc<dyn Interrupt>).expect("it is not raised");
        drop(first);
        signal.raise();
        assert_eq!(interrupted(), [0, 1, 0], "the first has ended, the third has another signal");
        assert!(
            signal.interrupts(Arc::clone(&runs[0]) as Arc<dyn Interrupt>).is_err(),
            "a raised signal lets none begin"
        );
        drop(second);
        signal.clear();
        assert!(signal.interrupts(Arc::clone(&runs[0]) as Arc<dyn Interrupt>).is_ok());
        assert_eq!(interrupted(), [0, 1, 0], "taking it back interrupts nothing");
    }
}
