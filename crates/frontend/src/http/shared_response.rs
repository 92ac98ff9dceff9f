//! Answers that take long to compute: one at a time, outside the I/O threads, and shared by the clients that wait.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

use super::Problem;

/// Computes a response and shares it.
#[derive(Clone, Default)]
pub(super) struct SharedResponse {
    /// The last answer, and when its computation began. Locked while one is computed.
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl SharedResponse {
    /// Returns a response whose computation began at most `age` before the call. Clients that wait for a computation
    /// share the next one.
    ///
    /// # Errors
    /// If it cannot be computed.
    pub(super) async fn get<E: std::error::Error + Send + 'static>(
        &self,
        age: Duration,
        make: impl FnOnce() -> Result<Vec<u8>, E> + Send + 'static,
    ) -> Result<Bytes, Problem> {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.last).lock_owned().await;
        let is_fresh = |began: Instant| began >= asked || asked.duration_since(began) < age;
        if let Some((_, answer)) = last.as_ref().filter(|(began, _)| is_fresh(*began)) {
            return Ok(answer.clone());
        }
        let began = Instant::now();
        // The lock is held as long as the computation runs, even if the client has disconnected.
        let compute = move || {
            let answer = Bytes::from(make()?);
            *last = Some((began, answer.clone()));
            Ok(answer)
        };
        let made = spawn_blocking(compute).await.map_err(|error| Problem::internal(&error))?;
        made.map_err(|error: E| Problem::internal(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc::channel,
        },
    };

    use super::*;

    #[tokio::test]
    async fn those_who_wait_share_the_next_computation_and_clients_that_leave_start_no_other() {
        let (shared, count) = (SharedResponse::default(), Arc::new(AtomicUsize::new(0)));
        let (release, released) = channel::<()>();
        let first = {
            let (shared, count) = (shared.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let make = move || {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = released.recv();
                    Ok::<_, Infallible>(b"first".to_vec())
                };
                shared.get(Duration::ZERO, make).await
            })
        };
        while count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        first.abort();
        let waiting = (0..3).map(|_| {
            let (shared, count) = (shared.clone(), Arc::clone(&count));
            let make = move || {
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(b"second".to_vec())
            };
            async move { shared.get(Duration::ZERO, make).await }
        });
        let waiting = tokio::spawn(futures_util::future::join_all(waiting.collect::<Vec<_>>()));
        tokio::task::yield_now().await;
        assert_eq!(count.load(Ordering::SeqCst), 1, "the first still runs, although its client has left");
        release.send(()).expect("it waits");
        for answer in waiting.await.expect("no panic") {
            assert_eq!(answer.ok().as_deref(), Some(&b"second"[..]), "what began before they asked is too old");
        }
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}
