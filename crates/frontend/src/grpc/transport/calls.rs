//! The calls of one connection, run in the connection's own task.
//!
//! hyper hands each call to an executor. A separate task per call would cost two more trips through the scheduler per
//! request, and a separate write per response. Here, all ready responses are put into the connection's buffers before
//! it is polled, and leave in one write.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered, task::AtomicWaker};
use parking_lot::Mutex;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Collects the calls that hyper starts on one connection.
#[derive(Clone, Default)]
pub(super) struct Calls {
    begun: Arc<Mutex<Vec<Call>>>,
}

impl<F> hyper::rt::Executor<F> for Calls
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        // A call that panics must not end the other calls of its connection.
        let call = AssertUnwindSafe(call).catch_unwind().map(drop);
        self.begun.lock().push(Box::pin(call));
    }
}

/// Maximum number of rounds in one poll before other tasks get their turn.
const ROUNDS: usize = 16;

/// A connection with its calls; ends with the connection.
pub(super) struct WithCalls<C> {
    connection: Pin<Box<C>>,
    calls: Calls,
    running: FuturesUnordered<Call>,
    begun: u64,
    woken: Arc<ConnectionWaker>,
    waker: Waker,
}

impl<C> WithCalls<C> {
    /// Combines a connection with the calls that it starts in `calls`.
    pub(super) fn new(connection: C, calls: Calls) -> Self {
        let woken = Arc::new(ConnectionWaker::default());
        let waker = Waker::from(Arc::clone(&woken));
        Self { connection: Box::pin(connection), calls, running: FuturesUnordered::new(), begun: 0, woken, waker }
    }

    /// Returns the connection.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    /// Returns how many calls have started so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether any call is running.
    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Adds the calls started since the last time, and returns whether there were any.
    fn adopt(&mut self) -> bool {
        let begun = std::mem::take(&mut *self.calls.begun.lock());
        let any = !begun.is_empty();
        self.begun += begun.len() as u64;
        self.running.extend(begun);
        any
    }
}

impl<C: Future> Future for WithCalls<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        this.woken.task.register(context.waker());
        let waker = this.waker.clone();
        let mut inner = Context::from_waker(&waker);
        for _ in 0..ROUNDS {
            this.woken.state.store(LISTENING, Ordering::Release);
            while let Poll::Ready(Some(())) = this.running.poll_next_unpin(&mut inner) {}
            if let Poll::Ready(ended) = this.connection.as_mut().poll(&mut inner) {
                return Poll::Ready(ended);
            }
            if !this.adopt() && this.woken.leave() {
                return Poll::Pending;
            }
        }
        this.woken.state.store(AWAY, Ordering::Release);
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Not being polled; a wake-up wakes the task.
const AWAY: u8 = 0;
/// Being polled; a wake-up is recorded.
const LISTENING: u8 = 1;
/// Woken while being polled.
const RUNG: u8 = 2;

/// Wakes a connection's task. A connection and its calls wake each other constantly while they are polled; going
/// through the runtime would wake another worker thread for each request.
#[derive(Default)]
struct ConnectionWaker {
    state: AtomicU8,
    task: AtomicWaker,
}

impl ConnectionWaker {
    /// Ends a round; returns false if a wake-up was recorded, so that another round is due.
    fn leave(&self) -> bool {
        self.state.compare_exchange(LISTENING, AWAY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let rung = self.state.compare_exchange(LISTENING, RUNG, Ordering::AcqRel, Ordering::Acquire);
        if rung == Err(AWAY) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

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
            // Keeps the sender alive until then.
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

    /// Counts how often the runtime is asked to poll again.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn waking_itself_does_not_go_through_the_runtime_and_waking_from_outside_does() {
        let mut rounds = 0;
        let stored = Arc::new(Mutex::new(None::<Waker>));
        let store = Arc::clone(&stored);
        let connection = std::future::poll_fn(move |context| {
            rounds += 1;
            if rounds <= 3 {
                context.waker().wake_by_ref();
            }
            *store.lock() = Some(context.waker().clone());
            if rounds > 4 { Poll::Ready(rounds) } else { Poll::Pending }
        });
        let mut both = WithCalls::new(connection, Calls::default());
        let runtime = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&runtime));
        let mut context = Context::from_waker(&waker);
        assert_eq!(Pin::new(&mut both).poll(&mut context), Poll::Pending);
        assert_eq!(runtime.0.load(Ordering::SeqCst), 0, "three rounds, none by the runtime");
        stored.lock().take().expect("it was polled").wake();
        assert_eq!(runtime.0.load(Ordering::SeqCst), 1, "a wake from outside reaches the runtime");
        assert_eq!(Pin::new(&mut both).poll(&mut context), Poll::Ready(5));
    }

    #[test]
    fn a_connection_that_never_rests_lets_others_have_their_turn() {
        let connection = std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let mut both = WithCalls::new(connection, Calls::default());
        let runtime = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&runtime));
        assert_eq!(Pin::new(&mut both).poll(&mut Context::from_waker(&waker)), Poll::Pending);
        assert_eq!(runtime.0.load(Ordering::SeqCst), 1, "it is to be polled again");
    }
}
