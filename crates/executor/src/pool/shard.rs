//! A shard: one device of the pool with its own core, lock, timer and backend. Nothing here is shared with other
//! shards.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;

use super::Pool;
use crate::{
    backend::{Backend, Order, Reports},
    state::State,
    timer::Timer,
};

/// One device of a pool.
pub(crate) struct Shard {
    /// Its number in the pool.
    pub(super) number: usize,
    pub(crate) state: Mutex<State>,
    pub(super) backend: Box<dyn Backend>,
    /// Orders for the backend, in the order in which the core issued them. Filled under the lock of `state`.
    orders: Mutex<VecDeque<Order>>,
    pub(crate) timer: Timer,
    /// Disconnected once the timer's thread has ended.
    timer_ended: Mutex<Option<Receiver<()>>>,
}

impl Shard {
    pub(super) fn new(number: usize, backend: Box<dyn Backend>, state: State) -> Self {
        Self {
            number,
            state: Mutex::new(state),
            backend,
            orders: Mutex::default(),
            timer: Timer::default(),
            timer_ended: Mutex::default(),
        }
    }

    /// Starts the timer thread, which calls the pool at each alarm.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn keep_time(pool: &Arc<Pool>, number: usize) -> io::Result<()> {
        let (alive, ended) = crossbeam_channel::bounded::<()>(0);
        *pool.shards[number].timer_ended.lock() = Some(ended);
        let pool = Arc::clone(pool);
        thread::Builder::new().name(format!("batch-timer-{number}")).spawn(move || {
            let shard = &pool.shards[number];
            shard.timer.run(|| pool.ring(shard));
            drop(alive);
        })?;
        Ok(())
    }

    pub(super) fn lanes(&self) -> u16 {
        self.backend.lanes()
    }

    /// Appends orders. Must be called under the lock of `state`.
    pub(super) fn queue(&self, orders: &mut Vec<Order>) {
        if !orders.is_empty() {
            self.orders.lock().extend(orders.drain(..));
        }
    }

    /// Makes the backend carry out the queued orders.
    pub(super) fn issue(&self, pool: &Arc<Pool>) {
        let pool: Arc<dyn Reports> = Arc::<Pool>::clone(pool);
        self.backend.issue(&pool, &mut || self.orders.lock().pop_front());
    }

    /// Stops the lanes and the timer, and returns whether all threads ended by `deadline`.
    pub(super) fn stop(&self, deadline: Instant) -> bool {
        self.timer.stop();
        let lanes_ended = self.backend.stop(deadline);
        let timer_ended = self.timer_ended.lock().clone();
        let left = deadline.saturating_duration_since(Instant::now());
        lanes_ended && timer_ended.is_none_or(|ended| has_ended(&ended, left))
    }
}

fn has_ended(alive: &Receiver<()>, patience: Duration) -> bool {
    alive.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
}
