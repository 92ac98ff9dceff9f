//! The calls of one connection, run in the connection's own task.
//!
//! hyper hands each call to an executor. A task for each would cost a request two more trips through the scheduler, and
//! its answer a write of its own: here, all answers that are ready go into the connection's buffers before it is polled,
//! and leave in one write.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where hyper puts the calls of one connection.
#[derive(Clone, Default)]
pub(super) struct Calls {
    begun: Arc<Mutex<Vec<Call>>>,
}

impl<F> hyper::rt::Executor<F> for Calls
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        // A call that panics must not take the others of its connection with it.
        let call = AssertUnwindSafe(call).catch_unwind().map(drop);
        self.begun.lock().push(Box::pin(call));
    }
}

/// A connection with its calls; ends with the connection.
pub(super) struct WithCalls<C> {
    connection: Pin<Box<C>>,
    calls: Calls,
    running: FuturesUnordered<Call>,
}

impl<C> WithCalls<C> {
    /// `connection` puts its calls into `calls`.
    pub(super) fn new(connection: C, calls: Calls) -> Self {
        Self { connection: Box::pin(connection), calls, running: FuturesUnordered::new() }
    }

    /// The connection itself.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    /// Takes on what began since the last time; whether anything did.
    fn adopt(&mut self) -> bool {
        let begun = std::mem::take(&mut *self.calls.begun.lock());
        let any = !begun.is_empty();
        self.running.extend(begun);
        any
    }
}

impl<C: Future> Future for WithCalls<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        loop {
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {}
            if let Poll::Ready(ended) = self.connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            if !self.adopt() {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::rt::Executor;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn calls_run_with_their_connection_and_a_panic_ends_only_its_own() {
        let calls = Calls::default();
        let ended = Arc::new(AtomicUsize::new(0));
        let (release, released) = oneshot::channel::<()>();
        let count = |ended: &Arc<AtomicUsize>| {
            let ended = Arc::clone(ended);
            move || ended.fetch_add(1, Ordering::SeqCst)
        };
        let (first, second) = (count(&ended), count(&ended));
        calls.execute(async move {
            first();
        });
        calls.execute(async { panic!("on purpose") });
        calls.execute(async move {
            // The sender is kept until then.
            let _ = released.await;
            second();
        });
        let both = Arc::clone(&ended);
        let mut release = Some(release);
        let connection = std::future::poll_fn(move |context| match both.load(Ordering::SeqCst) {
            2 => Poll::Ready(()),
            _ => {
                release.take();
                context.waker().wake_by_ref();
                Poll::Pending
            }
        });
        WithCalls::new(connection, calls).await;
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    }
}
