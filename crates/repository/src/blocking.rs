//! Runs blocking work off the threads of the runtime.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::LoadError;

/// Runs work that reads the files of models, on a limited number of threads. The work never waits for other models.
#[derive(Clone, Debug)]
pub(super) struct Readers(Arc<Semaphore>);

impl Readers {
    /// Creates readers of at most `threads` threads; 0 counts as 1.
    pub(super) fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads.max(1))))
    }

    /// Runs work, after a wait if all threads are taken. A thread is taken until the work returns, even if the caller
    /// has stopped waiting for it.
    ///
    /// # Errors
    /// As [`blocking`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        let permit = self.0.clone().acquire_owned().await.map_err(LoadError::internal)?;
        blocking(move || {
            let done = work();
            drop(permit);
            done
        })
        .await
    }
}

/// Runs blocking work on a thread of tokio's blocking pool.
///
/// # Errors
/// Returns the message of a panic in the work.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadError> {
    tokio::task::spawn_blocking(work).await.map_err(|fault| LoadError::internal(format!("the loader failed: {fault}")))
}
