//! One stream of the CPU: a queue, its thread, and its progress.

use std::{collections::VecDeque, mem, time::Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::work::Held;
use crate::{DeviceError, Ticket};

/// Tickets that the next operation waits for.
pub(super) type Waits = SmallVec<[Ticket; 2]>;

/// An operation in the queue of its stream. It stays there until its waits are over.
pub(super) struct Queued<W> {
    pub(super) position: u64,
    after: Waits,
    pub(super) action: Action<W>,
}

/// Next action of a stream's thread.
pub(super) enum Turn<W> {
    /// Wait for these tickets.
    Await(Waits),
    Run(Queued<W>),
    /// Exit, because another thread serves the stream.
    Leave,
    End,
}

/// Number of the thread that serves a stream: 0 for the first, n for the n-th replacement. Reports of earlier threads
/// are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shift(u64);

/// An operation that the calling thread runs instead of the stream's thread, and the shift that it runs it for.
pub(super) type Taken<W> = (Queued<W>, Shift);

pub(super) enum Action<W> {
    Launch {
        work: W,
        accesses: SmallVec<[Held; 4]>,
    },
    /// The rows to read, then the rows to write.
    Copy([Held; 2]),
    /// No operation. Completes after its waits, so that a ticket recorded right after a wait covers that wait.
    Mark,
}

/// A stream whose thread sleeps while there is nothing to do.
pub(super) struct Stream<W> {
    state: Mutex<State<W>>,
    /// Signaled when the thread has something to do.
    arrived: Condvar,
    /// Signaled when an operation completes.
    progressed: Condvar,
}

struct State<W> {
    queue: VecDeque<Queued<W>>,
    /// Waits since the last operation. They are attached to the next operation, so that a wait alone wakes no thread.
    waits: Waits,
    issued: u64,
    completed: u64,
    /// Whether an operation is running or in its completion callback.
    busy: bool,
    shift: Shift,
    stopped: bool,
}

impl<W> Default for Stream<W> {
    fn default() -> Self {
        let state = State {
            queue: VecDeque::new(),
            waits: Waits::new(),
            issued: 0,
            completed: 0,
            busy: false,
            shift: Shift::default(),
            stopped: false,
        };
        Self { state: Mutex::new(state), arrived: Condvar::new(), progressed: Condvar::new() }
    }
}

impl<W> Stream<W> {
    /// Queues an operation and returns its position.
    pub(super) fn issue(&self, action: Action<W>) -> Result<u64, DeviceError> {
        let mut state = self.state.lock();
        let position = state.push(action)?;
        self.wake(state);
        Ok(position)
    }

    /// Takes an operation for the calling thread if the stream is idle; the stream is then busy until
    /// [`rest`](Self::rest). Otherwise queues it.
    pub(super) fn issue_here(&self, action: Action<W>) -> Result<(u64, Option<Taken<W>>), DeviceError> {
        let mut state = self.state.lock();
        let idle = !state.busy && state.queue.is_empty() && state.waits.is_empty();
        let position = state.push(action)?;
        if idle {
            state.busy = true;
            let shift = state.shift;
            return Ok((position, state.queue.pop_front().map(|queued| (queued, shift))));
        }
        self.wake(state);
        Ok((position, None))
    }

    /// Makes the next operation wait for a ticket of another stream, if one is given.
    pub(super) fn wait(&self, ticket: Option<Ticket>) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(DeviceError::Stopped);
        }
        state.waits.extend(ticket);
        Ok(())
    }

    /// Returns the position that covers everything issued so far.
    pub(super) fn record(&self) -> Result<u64, DeviceError> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(DeviceError::Stopped);
        }
        if state.waits.is_empty() {
            return Ok(state.issued);
        }
        let position = state.push(Action::Mark)?;
        self.wake(state);
        Ok(position)
    }

    /// Returns whether the operation at `position` is complete; `None` if it was never issued.
    pub(super) fn is_complete(&self, position: u64) -> Option<bool> {
        let state = self.state.lock();
        (position <= state.issued).then_some(position <= state.completed)
    }

    /// Blocks the calling thread until the operation at `position` is complete. Returns `false` if it never will be, or
    /// at the deadline.
    pub(super) fn sleep_until(&self, position: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while state.completed < position {
            if state.stopped && state.queue.is_empty() && !state.busy {
                return false;
            }
            match deadline {
                None => self.progressed.wait(&mut state),
                Some(deadline) => {
                    if self.progressed.wait_until(&mut state, deadline).timed_out() {
                        return state.completed >= position;
                    }
                }
            }
        }
        true
    }

    /// Returns the next action of the stream's own thread. Sleeps while there is nothing to do.
    pub(super) fn next(&self, shift: Shift) -> Turn<W> {
        let mut state = self.state.lock();
        loop {
            if state.shift != shift {
                return Turn::Leave;
            }
            if !state.busy {
                if state.stopped {
                    return Turn::End;
                }
                let waits = state.queue.front_mut().map(|front| mem::take(&mut front.after));
                if let Some(waits) = waits.filter(|waits| !waits.is_empty()) {
                    return Turn::Await(waits);
                }
                if let Some(queued) = state.queue.pop_front() {
                    state.busy = true;
                    return Turn::Run(queued);
                }
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Publishes that the operation at `position`, and all before it, are complete.
    pub(super) fn complete(&self, position: u64, shift: Shift) {
        let mut state = self.state.lock();
        if state.shift == shift {
            state.completed = position;
            drop(state);
            self.progressed.notify_all();
        }
    }

    /// Ends the turn of an operation that ran on a calling thread, after its completion callback.
    pub(super) fn rest(&self, shift: Shift) {
        let mut state = self.state.lock();
        if state.shift != shift {
            return;
        }
        state.busy = false;
        let due = state.stopped || !state.queue.is_empty();
        drop(state);
        if due {
            self.arrived.notify_one();
        }
    }

    /// Detaches the running operation: it counts as complete, and the thread with the returned shift serves the stream
    /// from now on. Returns `None` if nothing is running; then the current thread stays.
    pub(super) fn take_over(&self) -> Option<Shift> {
        let mut state = self.state.lock();
        if !state.busy {
            return None;
        }
        state.shift.0 += 1;
        state.busy = false;
        // Operations leave the queue in order, so everything issued except the queue has been started.
        state.completed = state.issued - state.queue.len() as u64;
        let shift = state.shift;
        drop(state);
        // The stream's own thread may be waiting while a calling thread runs the operation.
        self.arrived.notify_all();
        self.progressed.notify_all();
        Some(shift)
    }

    /// Rejects further operations and makes the thread end.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.arrived.notify_one();
        self.progressed.notify_all();
    }

    /// Wakes the stream's thread, unless an operation is running: the thread that runs it takes the next operation, or
    /// wakes the thread in [`rest`](Self::rest).
    fn wake(&self, state: MutexGuard<'_, State<W>>) {
        let busy = state.busy;
        drop(state);
        if !busy {
            self.arrived.notify_one();
        }
    }

    /// Takes the operations that will never run, after the thread has ended.
    pub(super) fn abandon(&self) -> VecDeque<Queued<W>> {
        let abandoned = mem::take(&mut self.state.lock().queue);
        self.progressed.notify_all();
        abandoned
    }
}

impl<W> State<W> {
    fn push(&mut self, action: Action<W>) -> Result<u64, DeviceError> {
        if self.stopped {
            return Err(DeviceError::Stopped);
        }
        self.issued += 1;
        self.queue.push_back(Queued { position: self.issued, after: mem::take(&mut self.waits), action });
        Ok(self.issued)
    }
}
