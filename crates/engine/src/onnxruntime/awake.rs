//! Sessions whose threads stay awake within a run.
//!
//! A run on several threads hands them work at every operator. ONNX Runtime's threads either sleep between operators,
//! and waking them takes a good part of a short run's time, or they keep looking for work, also when the run has ended,
//! which takes cores from the rest of the server. Only a session's own threads can be told to do the one within its
//! runs and the other between them.

use std::{
    ffi::CStr,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
};
use tracing::debug;

use super::{session::refused, status::check, value::Tensor};
use crate::EngineError;

/// Threads that all sessions together may have of their own. Sessions beyond that share those of the process, since
/// containers often may have no more than a thousand.
const MAX_THREADS: usize = 256;
/// How ONNX Runtime's settings of a session name the end of waiting awake with the last run in progress.
const SLEEP_BETWEEN_RUNS: &str = "session.force_spinning_stop";
/// The name of an output that graphs do not have. ONNX Runtime refuses an empty name before a run begins.
const NO_OUTPUT: &CStr = c"no output, so that the run is refused";

/// How many threads sessions have of their own.
#[derive(Debug, Default)]
pub(super) struct OwnThreads(AtomicUsize);

/// The threads of one session; they count until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    threads: usize,
    of: Arc<OwnThreads>,
}

impl OwnThreads {
    /// Counts threads for a session. `None` if it would need none, or if too many exist.
    pub(super) fn reserve(self: &Arc<Self>, threads: usize) -> Option<Reserved> {
        // The calling thread is one of those of a run.
        let threads = threads.saturating_sub(1);
        let fits = |taken: usize| taken.checked_add(threads).filter(|&sum| threads > 0 && sum <= MAX_THREADS);
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Reserved { threads, of: Arc::clone(self) })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.threads, Ordering::Relaxed);
    }
}

/// Gives a session threads of its own, which stay awake from the start of a run to its end.
///
/// # Errors
/// Fails if ONNX Runtime rejects the options.
pub(super) fn awake_within_runs(builder: SessionBuilder, threads: usize) -> Result<SessionBuilder, EngineError> {
    let fail = |error: ort::Error<SessionBuilder>| refused(error.into());
    let builder = builder.with_independent_thread_pool().map_err(fail)?;
    let builder = builder.with_intra_threads(threads).map_err(fail)?;
    let builder = builder.with_intra_op_spinning(true).map_err(fail)?;
    builder.with_config_entry(SLEEP_BETWEEN_RUNS, "1").map_err(fail)
}

/// Makes the threads of a new session sleep until its first run. They look for work from their start on, and each would
/// take a core for 50 ms. The end of a run makes them sleep, also of one that is refused because it asks for an output
/// that the graph does not have.
pub(super) fn sleep_until_first_run(session: &Session) {
    let (names, mut values) = ([NO_OUTPUT.as_ptr()], [ptr::null_mut()]);
    #[allow(unsafe_code)]
    // SAFETY: without inputs, their arrays are not read; those of outputs have one element and outlive the call.
    let refused = check(unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            ptr::null(),
            ptr::null(),
            ptr::null(),
            0,
            names.as_ptr(),
            names.len(),
            values.as_mut_ptr(),
        )
    });
    let [value] = values;
    if !value.is_null() {
        #[allow(unsafe_code)]
        // SAFETY: the run allocated it, for a graph that does have that output, and nothing else refers to it.
        drop(unsafe { Tensor::from_run(value) });
    }
    debug!(?refused, "threads of a new session sleep");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_limited_over_all_sessions() {
        let all = Arc::new(OwnThreads::default());
        assert!(all.reserve(0).is_none() && all.reserve(1).is_none(), "the calling thread is enough");
        let most = all.reserve(MAX_THREADS).expect("there are none yet");
        let last = all.reserve(2).expect("one is left");
        assert!(all.reserve(2).is_none());
        drop(last);
        assert!(all.reserve(3).is_none() && all.reserve(2).is_some());
        drop(most);
        assert!(all.reserve(MAX_THREADS + 1).is_some());
    }
}
