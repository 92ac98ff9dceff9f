//! One stream of the CPU: a queue, the thread that serves it, and how far it has come.

use std::{collections::VecDeque, mem, time::Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::work::Held;
use crate::device::{DeviceError, Ticket};

/// What the next operation waits for.
pub(super) type Waits = SmallVec<[Ticket; 2]>;

/// An operation in its stream's queue. It stays there until its waits are over.
pub(super) struct Queued<W> {
    pub(super) position: u64,
    after: Waits,
    pub(super) action: Action<W>,
}

/// What a stream's thread does next.
pub(super) enum Turn<W> {
    /// Waits for these tickets.
    Await(Waits),
    Run(Queued<W>),
    /// Another thread serves the stream.
    Leave,
    End,
}

/// Number of the thread that serves a stream: 0 for the first, n for the n-th that took over. What earlier threads
/// report is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shift(u64);

/// An operation that the calling thread runs in place of the stream's, and for which thread it stands in.
pub(super) type Taken<W> = (Queued<W>, Shift);

pub(super) enum Action<W> {
    Launch {
        work: W,
        accesses: SmallVec<[Held; 4]>,
    },
    /// The rows to read, then those to write.
    Copy([Held; 2]),
    /// Does nothing, once its waits are over: what a ticket stands for that was recorded right after a wait.
    Mark,
}

/// A stream whose thread sleeps while there is nothing to do.
pub(super) struct Stream<W> {
    state: Mutex<State<W>>,
    /// The thread has something to do.
    arrived: Condvar,
    /// An operation completed.
    progressed: Condvar,
}

struct State<W> {
    queue: VecDeque<Queued<W>>,
    /// Waits since the last operation. They ride on the next one, so that a wait alone wakes no thread.
    waits: Waits,
    issued: u64,
    completed: u64,
    /// An operation runs, or tells that it is done.
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
    /// Queues an operation; its position.
    pub(super) fn issue(&self, action: Action<W>) -> Result<u64, DeviceError> {
        let mut state = self.state.lock();
        let position = state.push(action)?;
        self.wake(state);
        Ok(position)
    }

    /// Takes an operation for the calling thread where the stream has nothing else to do: then the stream is busy until
    /// [`rest`](Self::rest). Queues it otherwise.
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

    /// Makes the next operation wait for a ticket of another stream, if there is one to wait for.
    pub(super) fn wait(&self, ticket: Option<Ticket>) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(DeviceError::Stopped);
        }
        state.waits.extend(ticket);
        Ok(())
    }

    /// The position that stands for everything issued so far.
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

    /// Whether the operation at `position` is complete; `None` where it was never issued.
    pub(super) fn is_complete(&self, position: u64) -> Option<bool> {
        let state = self.state.lock();
        (position <= state.issued).then_some(position <= state.completed)
    }

    /// Holds the calling thread until the operation at `position` is complete; `false` when it will not be.
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

    /// What the stream's own thread does next; sleeps while there is nothing.
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

    /// The operation that was taken has been told its end.
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

    /// Leaves the operation that runs to itself: it counts as complete, and the thread of the shift that is given
    /// serves the stream from here on. `None` where nothing runs, so that its thread stays.
    pub(super) fn take_over(&self) -> Option<Shift> {
        let mut state = self.state.lock();
        if !state.busy {
            return None;
        }
        state.shift.0 += 1;
        state.busy = false;
        // What runs was taken out of the queue, in order.
        state.completed = state.issued - state.queue.len() as u64;
        let shift = state.shift;
        drop(state);
        // Where a calling thread runs the operation, the stream's own one waits.
        self.arrived.notify_all();
        self.progressed.notify_all();
        Some(shift)
    }

    /// Takes no more operations, and tells the thread to end.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.arrived.notify_one();
        self.progressed.notify_all();
    }

    /// Wakes the thread for what was queued, unless somebody runs an operation in the stream: that one takes the next,
    /// or wakes it at [`rest`](Self::rest).
    fn wake(&self, state: MutexGuard<'_, State<W>>) {
        let busy = state.busy;
        drop(state);
        if !busy {
            self.arrived.notify_one();
        }
    }

    /// What will never run, after the thread's end.
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
