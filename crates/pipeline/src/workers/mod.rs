//! Worker threads for what the server computes itself. Work goes piece by piece, and gives its thread back between
//! pieces when its turn is over, so that much work of one client does not keep others waiting.

mod queue;
mod threads;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use paternoster_executor::InferError;
use tokio::{sync::oneshot, time::timeout_at};

use queue::{Class, Queue};
pub(crate) use threads::spawn_work;

/// How long work of many pieces keeps its thread before others that wait have their turn. A piece is not interrupted.
const LONGEST_TURN: Duration = Duration::from_millis(50);

/// How long it may always do so: to change takes some hundredths of this.
const SHORTEST_TURN: Duration = Duration::from_micros(500);

/// All groups of worker threads. What waits for one group does not wait for the others.
#[derive(Clone, Debug)]
pub struct Workers {
    /// For texts.
    pub texts: WorkerGroup,
    /// For images.
    pub images: WorkerGroup,
    /// For rows that are joined to large tensors.
    pub joins: WorkerGroup,
}

impl Workers {
    /// Creates groups of `count` threads each, and one more that is kept for turns below 64 ms. To join rows is to copy
    /// memory, which few threads do as fast as many.
    pub fn new(count: usize) -> Self {
        Self { texts: WorkerGroup::new(count), images: WorkerGroup::new(count), joins: WorkerGroup::new(1) }
    }
}

/// Limits the worker threads that are used at a time. Of what waits for one, what takes least goes first, and what
/// takes long leaves threads to the rest.
#[derive(Clone, Debug)]
pub struct WorkerGroup(Arc<Mutex<Queue<oneshot::Sender<()>>>>);

/// How far work is.
#[derive(Debug)]
pub enum Progress<T> {
    /// There is a next piece, which takes about as long.
    Next(Duration),
    /// It has ended.
    Done(T),
}

impl WorkerGroup {
    fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue::new(count + 1))))
    }

    /// Calls `piece` on worker threads until it is done. The first piece takes about as long as `first`. A turn is as
    /// long as its first piece, or as all turns of the work before it up to 50 ms: work of many pieces is
    /// short until it has shown to be long. If the future is dropped, no turn begins any more, and `piece` is dropped
    /// with what it holds when its current turn ends.
    ///
    /// # Errors
    /// If the deadline passes while it waits for its turn, or a piece panics.
    pub async fn run<T: Send + 'static>(
        &self,
        first: Duration,
        deadline: Option<Instant>,
        mut piece: impl FnMut() -> Progress<T> + Send + 'static,
    ) -> Result<T, InferError> {
        let (mut next, mut spent) = (first, Duration::ZERO);
        loop {
            let length = next.max(spent.clamp(SHORTEST_TURN, LONGEST_TURN));
            let thread = self.thread(length, deadline).await?;
            let turn = spawn_work(move || {
                let _thread = thread;
                let began = Instant::now();
                loop {
                    match piece() {
                        Progress::Next(next) if began.elapsed().saturating_add(next) <= length => {}
                        progress => return (piece, progress, began.elapsed()),
                    }
                }
            });
            let (rest, progress, taken) =
                turn.await.map_err(|error| InferError::Engine(format!("a built-in step failed: {error}")))?;
            match progress {
                Progress::Done(result) => return Ok(result),
                Progress::Next(of_next) => (piece, next, spent) = (rest, of_next, spent + taken),
            }
        }
    }

    /// Waits for a thread for about this long.
    async fn thread(&self, length: Duration, deadline: Option<Instant>) -> Result<Thread, InferError> {
        let (sender, begins) = oneshot::channel();
        let class = Class::of(length);
        let number = self.0.lock().enter(class, sender);
        let thread = Thread { group: self.clone(), class, number };
        self.begin_waiting();
        let begun = match deadline {
            None => begins.await,
            Some(deadline) => timeout_at(deadline.into(), begins).await.map_err(|_| InferError::Expired)?,
        };
        begun.map(|()| thread).map_err(|_| InferError::ShuttingDown)
    }

    fn begin_waiting(&self) {
        let mut queue = self.0.lock();
        while let Some(waiting) = queue.begin_next() {
            // What no longer waits gives its thread back when it is dropped.
            waiting.send(()).unwrap_or_default();
        }
    }
}

/// A thread, or a place among what waits for one.
struct Thread {
    group: WorkerGroup,
    class: Class,
    number: u64,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.group.0.lock().leave(self.class, self.number);
        self.group.begin_waiting();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use tokio::{
        task::{JoinHandle, yield_now},
        time::advance,
    };

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(3600);

    /// Work of pieces, each of which says who it is, and waits until it may go on.
    fn begin(group: &WorkerGroup, name: char, pieces: &[Duration], log: &Arc<Mutex<String>>) -> Held {
        let (sender, receiver): (Sender<()>, Receiver<()>) = channel();
        let (group, log) = (group.clone(), Arc::clone(log));
        let (first, rest) = pieces.split_first().expect("a piece");
        let (first, mut rest) = (*first, rest.iter().copied().collect::<VecDeque<_>>());
        let piece = move || {
            receiver.recv().unwrap_or_default();
            log.lock().push(name);
            rest.pop_front().map_or(Progress::Done(()), Progress::Next)
        };
        let work = tokio::spawn(async move { group.run(first, None, piece).await.expect("it runs") });
        Held { release: sender, work }
    }

    /// Pieces that wait until they are released, or all are when this is dropped.
    struct Held {
        release: Sender<()>,
        work: JoinHandle<()>,
    }

    impl Held {
        async fn end(self) {
            drop(self.release);
            self.work.await.expect("no panic");
        }
    }

    #[tokio::test]
    async fn work_of_many_pieces_takes_turns_with_others() {
        let (group, log) = (WorkerGroup::new(1), Arc::default());
        // No two of these pieces fit into one turn.
        let pieces = [LONG; 5];
        let (first, second) = (begin(&group, 'a', &pieces, &log), begin(&group, 'b', &pieces, &log));
        yield_now().await;
        for _ in 0..5 {
            first.release.send(()).expect("it waits");
            second.release.send(()).expect("it waits");
        }
        first.work.await.expect("no panic");
        second.work.await.expect("no panic");
        let order = log.lock().clone();
        assert!(order[..3].contains('b'), "one ran after the other: {order}");
    }

    #[tokio::test]
    async fn the_pieces_of_a_turn_are_no_longer_than_it_was_said_to_be() {
        let (group, log) = (WorkerGroup::new(1), Arc::default());
        let pieces = [LONG / 2, SHORT, LONG, SHORT];
        let (first, second) = (begin(&group, 'a', &pieces, &log), begin(&group, 'b', &[LONG / 2], &log));
        yield_now().await;
        drop((first.release, second.release));
        first.work.await.expect("no panic");
        second.work.await.expect("no panic");
        assert_eq!(*log.lock(), "aabaa", "the second piece is in the turn of the first, the third is not");
    }

    #[tokio::test]
    async fn short_pieces_do_not_wait_for_long_ones() {
        let (group, log) = (WorkerGroup::new(2), Arc::default());
        let long = ['a', 'b', 'c'].map(|name| begin(&group, name, &[LONG], &log));
        yield_now().await;
        group.run(SHORT, None, || Progress::Done(())).await.expect("it runs");
        assert_eq!(*log.lock(), "");
        for work in long {
            work.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_whose_deadline_passes_leaves_its_place() {
        let (group, log) = (WorkerGroup::new(1), Arc::default());
        let held = begin(&group, 'a', &[LONG], &log);
        yield_now().await;
        let (other, soon) = (group.clone(), Some((tokio::time::Instant::now() + SHORT).into_std()));
        let late = tokio::spawn(async move { other.run(LONG, soon, || Progress::Done(())).await });
        yield_now().await;
        advance(2 * SHORT).await;
        assert!(matches!(late.await.expect("no panic"), Err(InferError::Expired)));
        held.end().await;
        group.run(LONG, None, || Progress::Done(())).await.expect("no thread is lost");
    }

    #[tokio::test]
    async fn what_is_left_of_work_is_dropped_once_no_one_waits_for_it() {
        struct Held(Option<oneshot::Sender<usize>>, usize);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.take().map(|sender| sender.send(self.1));
            }
        }
        let (group, (sender, dropped)) = (WorkerGroup::new(1), oneshot::channel());
        let (release, released) = channel::<()>();
        let mut held = Held(Some(sender), 0);
        let piece = move || {
            let held = &mut held;
            held.1 += 1;
            released.recv().unwrap_or_default();
            // Each piece is longer than a turn.
            Progress::<()>::Next(LONG)
        };
        let work = tokio::spawn(async move { group.run(LONG, None, piece).await });
        yield_now().await;
        work.abort();
        drop(work.await);
        drop(release);
        assert!(dropped.await.expect("it is dropped") <= 1, "only the piece that ran has run");
    }
}
