//! Worker threads for what the server computes itself. Work goes piece by piece, and gives its thread back between
//! pieces when its turn is over, so that much work of one client does not keep others waiting.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paternoster_executor::InferError;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout_at};

/// How long work keeps its thread before others that wait have their turn. A piece is not interrupted.
const TURN: Duration = Duration::from_millis(50);

/// All groups of worker threads. What waits for one group does not wait for the others.
#[derive(Clone, Debug)]
pub struct Workers {
    /// For texts.
    pub texts: WorkerGroup,
    /// For images.
    pub images: WorkerGroup,
}

impl Workers {
    /// Creates groups of `count` threads each, and one more for long pieces.
    pub fn new(count: usize) -> Self {
        Self { texts: WorkerGroup::new(count), images: WorkerGroup::new(count) }
    }
}

/// Limits the worker threads that are used at a time. Those that wait for one get it in order of arrival.
#[derive(Clone, Debug)]
pub struct WorkerGroup {
    usual: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// About how long a piece of work takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Not much longer than a turn.
    Usual,
    /// So long that usual pieces must not wait for it.
    Long,
}

/// How far work is.
#[derive(Debug)]
pub enum Progress<T> {
    /// There is a next piece.
    Next(Effort),
    /// It has ended.
    Done(T),
}

impl WorkerGroup {
    fn new(count: usize) -> Self {
        Self { usual: Arc::new(Semaphore::new(count)), long: Arc::new(Semaphore::new(1)) }
    }

    /// Calls `piece` on worker threads until it is done. `effort` is that of the first piece. If the future is dropped,
    /// no turn begins any more, and `piece` is dropped with what it holds when its current turn ends.
    ///
    /// # Errors
    /// If the deadline passes while it waits for its turn, or a piece panics.
    pub async fn run<T: Send + 'static>(
        &self,
        mut effort: Effort,
        deadline: Option<Instant>,
        mut piece: impl FnMut() -> Progress<T> + Send + 'static,
    ) -> Result<T, InferError> {
        loop {
            let threads = match effort {
                Effort::Usual => Arc::clone(&self.usual),
                Effort::Long => Arc::clone(&self.long),
            };
            let thread = match deadline {
                None => threads.acquire_owned().await,
                Some(deadline) => {
                    let thread = timeout_at(deadline.into(), threads.acquire_owned()).await;
                    thread.map_err(|_| InferError::Expired)?
                }
            };
            let thread = thread.map_err(|_| InferError::ShuttingDown)?;
            let turn = spawn_blocking(move || {
                let _thread = thread;
                let began = Instant::now();
                loop {
                    match piece() {
                        Progress::Next(next) if next == effort && began.elapsed() < TURN => {}
                        progress => return (piece, progress),
                    }
                }
            });
            let (rest, progress) =
                turn.await.map_err(|error| InferError::Engine(format!("a built-in step failed: {error}")))?;
            match progress {
                Progress::Done(result) => return Ok(result),
                Progress::Next(next) => (piece, effort) = (rest, next),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        iter::repeat_n,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use parking_lot::Mutex;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// Work of long pieces, each of which says who it is, and waits until it may go on.
    fn begin(group: &WorkerGroup, name: char, pieces: usize, log: &Arc<Mutex<String>>) -> (Sender<()>, JoinHandle<()>) {
        let (sender, receiver): (Sender<()>, Receiver<()>) = channel();
        let (group, log) = (group.clone(), Arc::clone(log));
        let mut rest = repeat_n((), pieces);
        let piece = move || {
            rest.next();
            receiver.recv().unwrap_or_default();
            log.lock().push(name);
            let next = if rest.len().is_multiple_of(2) { Effort::Usual } else { Effort::Long };
            if rest.len() == 0 { Progress::Done(()) } else { Progress::Next(next) }
        };
        let first = if pieces.is_multiple_of(2) { Effort::Usual } else { Effort::Long };
        let work = tokio::spawn(async move { group.run(first, None, piece).await.expect("it runs") });
        (sender, work)
    }

    #[tokio::test]
    async fn work_of_many_pieces_takes_turns_with_others() {
        let (group, log) = (WorkerGroup::new(1), Arc::default());
        let (first, second) = (begin(&group, 'a', 5, &log), begin(&group, 'b', 5, &log));
        yield_now().await;
        for _ in 0..5 {
            first.0.send(()).expect("it waits");
            second.0.send(()).expect("it waits");
        }
        first.1.await.expect("no panic");
        second.1.await.expect("no panic");
        let order = log.lock().clone();
        assert!(order[..3].contains('b'), "one ran after the other: {order}");
    }

    #[tokio::test]
    async fn usual_pieces_do_not_wait_for_long_ones() {
        let (group, log) = (WorkerGroup::new(1), Arc::default());
        let (release, long) = begin(&group, 'a', 1, &log);
        yield_now().await;
        group.run(Effort::Usual, None, || Progress::Done(())).await.expect("it runs");
        assert!(!long.is_finished());
        drop(release);
        long.await.expect("no panic");
    }

    #[tokio::test]
    async fn what_is_left_of_work_is_dropped_once_no_one_waits_for_it() {
        struct Held(Option<tokio::sync::oneshot::Sender<usize>>, usize);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.take().map(|sender| sender.send(self.1));
            }
        }
        let (group, (sender, dropped)) = (WorkerGroup::new(1), tokio::sync::oneshot::channel());
        let (release, released) = channel::<()>();
        let mut held = Held(Some(sender), 0);
        let piece = move || {
            let held = &mut held;
            held.1 += 1;
            released.recv().unwrap_or_default();
            // Pieces of the other kind begin another turn.
            Progress::<()>::Next(if held.1.is_multiple_of(2) { Effort::Usual } else { Effort::Long })
        };
        let work = tokio::spawn(async move { group.run(Effort::Usual, None, piece).await });
        yield_now().await;
        work.abort();
        drop(work.await);
        drop(release);
        assert!(dropped.await.expect("it is dropped") <= 1, "only the piece that ran has run");
    }
}
