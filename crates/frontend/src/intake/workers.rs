//! Threads for work that would block an I/O thread: decompressing, decoding and encoding large messages.

use std::sync::Arc;

use tokio::{sync::Semaphore, task::spawn_blocking};
use tonic::Status;

/// Work on messages of at least this size is queued separately, so that shorter work does not wait behind it.
const LONG_WORK_BYTES: usize = 8 << 20;

/// Runs work on the runtime's blocking threads: at most one piece of long work and one of short work at a time, each in
/// order of arrival. So messages of any number and size leave processor time to everything else.
#[derive(Debug)]
pub(crate) struct Workers {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Workers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { short: Arc::new(Semaphore::new(1)), long: Arc::new(Semaphore::new(1)) })
    }

    /// Runs work on a message of `bytes` bytes. Dropping the future cancels work that has not started.
    ///
    /// # Errors
    /// INTERNAL if the work panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let places = if bytes >= LONG_WORK_BYTES { &self.long } else { &self.short };
        let place = Arc::clone(places).acquire_owned().await.map_err(|error| Status::internal(error.to_string()))?;
        let done = spawn_blocking(move || {
            let _place = place;
            work()
        });
        done.await.map_err(|error| Status::internal(format!("a message could not be worked on: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn short_work_does_not_wait_for_long_work_and_long_work_does() {
        let workers = Workers::new();
        let (release, released) = channel::<()>();
        let (first, second) = (Arc::clone(&workers), Arc::clone(&workers));
        let first = tokio::spawn(async move { first.run(LONG_WORK_BYTES, move || released.recv().is_ok()).await });
        tokio::task::yield_now().await;
        let second = tokio::spawn(async move { second.run(LONG_WORK_BYTES, || ()).await });
        workers.run(1, || ()).await.expect("no panic");
        assert!(!first.is_finished() && !second.is_finished());
        release.send(()).expect("it waits");
        assert!(first.await.expect("no panic").expect("no panic"));
        second.await.expect("no panic").expect("no panic");
    }

    #[tokio::test]
    async fn work_that_panics_fails_alone() {
        let workers = Workers::new();
        let status = workers.run(1, || panic!("on purpose")).await.map(|(): ()| ()).expect_err("it panicked");
        assert_eq!(status.code(), tonic::Code::Internal);
        workers.run(1, || ()).await.expect("the next one runs");
    }
}
