//! The CPU as a device: each stream is a thread that runs closures in order.
//!
//! Idle threads sleep; nothing spins, so an idle server uses no CPU. Completion is reported on the stream's own thread
//! ([`HostWork::done`]), after the operation's ticket is complete and its rows are released, so that a lane proceeds
//! from one task to the next without a thread switch. Rows are accessed through guards ([`RowBuffer`]): if a wait is
//! missing and two operations conflict on a row, the second one fails instead of reading partially written data.

mod stream;
mod work;

use std::{
    any::Any,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tracing::error;

pub use self::work::{HostWork, Operand};
use self::{
    stream::{Action, Queued, Shift, Stream, Turn},
    work::{Held, with_rows},
};
use super::{
    Access, AccessKind, BufferId, BufferPool, Device, DeviceError, Operation, Region, RowBuffer, StreamId, Ticket,
    WorkFailure,
    access::{check_copy, check_named_once},
    registry::Registry,
};

/// A handle to the streams and buffers of the CPU. Clones refer to the same device. Every call may be made from any
/// thread, including the threads of the streams; calls on one stream from several threads take effect in the order in
/// which they arrive.
///
/// Dropping the last handle ends the streams like [`stop`](Device::stop), but without waiting.
pub struct Cpu<W: HostWork> {
    owner: Arc<Owner<W>>,
}

/// Stops the device when the last handle is dropped. The stream threads share [`Shared`] but not this.
struct Owner<W: HostWork> {
    shared: Arc<Shared<W>>,
    /// Every thread holds a clone; `None` after the streams were stopped.
    alive: Mutex<Option<Sender<()>>>,
    /// Disconnected when the last thread has ended.
    ended: Receiver<()>,
}

struct Shared<W> {
    streams: Box<[Stream<W>]>,
    buffers: RwLock<Registry<Arc<RowBuffer>>>,
    pool: Arc<BufferPool>,
}

impl<W: HostWork> Cpu<W> {
    /// Starts `streams` threads (at least one). Buffers are allocated from `pool`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(streams: u16, pool: Arc<BufferPool>) -> io::Result<Self> {
        let streams: Box<[_]> = (0..streams.max(1)).map(|_| Stream::default()).collect();
        let shared = Arc::new(Shared { streams, buffers: RwLock::default(), pool });
        let (alive, ended) = crossbeam_channel::bounded::<()>(0);
        let cpu = Self { owner: Arc::new(Owner { shared, alive: Mutex::new(Some(alive)), ended }) };
        for index in 0..cpu.owner.shared.streams.len() {
            cpu.spawn(index, || Some(Shift::default()))?;
        }
        Ok(cpu)
    }

    /// Starts a thread, which serves the stream if `begin` then returns a shift. Does nothing if the device is stopped.
    fn spawn(&self, index: usize, begin: impl FnOnce() -> Option<Shift>) -> io::Result<()> {
        let Some(alive) = self.owner.alive.lock().clone() else { return Ok(()) };
        let shared = Arc::clone(&self.owner.shared);
        let (begins, begun) = crossbeam_channel::bounded(1);
        thread::Builder::new().name(format!("cpu-stream-{index}")).spawn(move || {
            if let Ok(shift) = begun.recv() {
                shared.serve(&shared.streams[index], shift);
            }
            // Drops `shared` before `alive`: when the thread counts as ended, it must no longer hold any data.
            drop(shared);
            drop(alive);
        })?;
        if let Some(shift) = begin() {
            // The thread waits for this.
            let _ = begins.send(shift);
        }
        Ok(())
    }

    /// Replaces the thread of a stream and detaches the running operation, if there is one: it counts as complete, and
    /// the stream continues with the next operation. A detached operation keeps its rows and is notified of its
    /// completion when it returns; then its thread ends.
    ///
    /// # Errors
    /// If there is no such stream, or a thread cannot be started; then nothing changes.
    pub fn replace_thread(&self, stream: StreamId) -> io::Result<()> {
        let target = self.shared().stream(stream).map_err(io::Error::other)?;
        self.spawn(stream.index(), || target.take_over())
    }

    /// Returns a buffer's memory for the host, which may access it concurrently with the streams: the guards of
    /// [`RowBuffer`] prevent conflicts.
    ///
    /// # Errors
    /// If there is no such buffer.
    pub fn buffer(&self, buffer: BufferId) -> Result<Arc<RowBuffer>, DeviceError> {
        self.shared().buffers.read().get(buffer).cloned()
    }

    /// Issues work like [`launch`](Device::launch), but runs it on the calling thread if the stream is idle, because
    /// switching to the stream's thread and back takes longer than a short task. In that case the work has run, and
    /// [`HostWork::done`] has been called, when this returns.
    ///
    /// # Errors
    /// Like [`launch`](Device::launch).
    pub fn launch_here(&self, stream: StreamId, accesses: &[Access], work: W) -> Result<Operation, DeviceError> {
        let shared = self.shared();
        let target = shared.stream(stream)?;
        let action = shared.launch(accesses, work)?;
        let (position, here) = target.issue_here(action)?;
        if let Some((queued, shift)) = here {
            shared.run(target, shift, queued);
        }
        Ok(Operation { stream, position })
    }

    /// Blocks the calling thread until the ticket is complete, for at most `patience`. Returns whether it is complete.
    /// For loading, unloading and tests; the request path uses [`HostWork::done`].
    pub fn synchronize(&self, ticket: Ticket, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let stream = self.shared().stream(ticket.stream);
        stream.is_ok_and(|stream| stream.sleep_until(ticket.position, Some(deadline)))
    }

    fn shared(&self) -> &Shared<W> {
        &self.owner.shared
    }
}

impl<W: HostWork> Device for Cpu<W> {
    type Work = W;

    fn streams(&self) -> u16 {
        self.shared().streams.len() as u16
    }

    fn allocate(&mut self, rows: u32, row_bytes: usize) -> Result<BufferId, DeviceError> {
        let buffer = RowBuffer::new(&self.shared().pool, rows, row_bytes)?;
        Ok(self.shared().buffers.write().insert(buffer))
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let freed = self.shared().buffers.write().remove(buffer);
        freed.map(drop)
    }

    fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), DeviceError> {
        let shared = self.shared();
        let target = shared.stream(stream)?;
        let complete = shared.stream(ticket.stream)?.is_complete(ticket.position);
        let complete = complete.ok_or(DeviceError::UnknownTicket(ticket.stream))?;
        // A stream is in order anyway.
        target.wait(Some(ticket).filter(|ticket| !complete && ticket.stream != stream))
    }

    fn launch(&mut self, stream: StreamId, accesses: &[Access], work: W) -> Result<Operation, DeviceError> {
        let shared = self.shared();
        let target = shared.stream(stream)?;
        let position = target.issue(shared.launch(accesses, work)?)?;
        Ok(Operation { stream, position })
    }

    fn copy(&mut self, stream: StreamId, from: &Region, to: &Region) -> Result<Operation, DeviceError> {
        let shared = self.shared();
        let target = shared.stream(stream)?;
        let held = [shared.held(from, AccessKind::Read)?, shared.held(to, AccessKind::Write)?];
        check_copy(from, held[0].buffer.row_bytes(), to, held[1].buffer.row_bytes())?;
        let position = target.issue(Action::Copy(held))?;
        Ok(Operation { stream, position })
    }

    fn record(&mut self, stream: StreamId) -> Result<Ticket, DeviceError> {
        let position = self.shared().stream(stream)?.record()?;
        Ok(Ticket { stream, position })
    }

    fn is_complete(&mut self, ticket: Ticket) -> bool {
        let stream = self.shared().stream(ticket.stream);
        stream.is_ok_and(|stream| stream.is_complete(ticket.position) == Some(true))
    }

    fn stop(&mut self, patience: Duration) -> bool {
        self.shared().stop();
        self.owner.alive.lock().take();
        self.owner.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

impl<W> Shared<W> {
    fn stream(&self, stream: StreamId) -> Result<&Stream<W>, DeviceError> {
        let streams = self.streams.len() as u16;
        self.streams.get(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams })
    }

    fn held(&self, region: &Region, kind: AccessKind) -> Result<Held, DeviceError> {
        let buffer = self.buffers.read().get(region.buffer).cloned()?;
        region.check(buffer.capacity())?;
        Ok(Held { buffer, rows: region.rows.clone(), kind })
    }

    fn launch(&self, accesses: &[Access], work: W) -> Result<Action<W>, DeviceError> {
        check_named_once(accesses)?;
        let held: Result<SmallVec<_>, _> =
            accesses.iter().map(|access| self.held(&access.region, access.kind)).collect();
        Ok(Action::Launch { work, accesses: held? })
    }

    fn stop(&self) {
        self.streams.iter().for_each(Stream::stop);
    }
}

impl<W: HostWork> Shared<W> {
    /// Runs the loop of a stream's thread.
    fn serve(&self, stream: &Stream<W>, shift: Shift) {
        loop {
            match stream.next(shift) {
                Turn::Await(waits) => {
                    if !self.are_over(&waits) {
                        // The other stream was stopped first; operations that wait for it must not start.
                        self.stop();
                    }
                }
                Turn::Run(queued) => self.run(stream, shift, queued),
                Turn::Leave => return,
                Turn::End => break,
            }
        }
        for queued in stream.abandon() {
            if let Action::Launch { work, .. } = queued.action {
                complete(work, Err(WorkFailure::Stopped));
            }
        }
    }

    /// Blocks the calling thread until the tickets are complete. Returns `false` if one of them never will be.
    fn are_over(&self, waits: &[Ticket]) -> bool {
        waits.iter().all(|ticket| {
            let awaited = self.stream(ticket.stream);
            awaited.is_ok_and(|awaited| awaited.sleep_until(ticket.position, None))
        })
    }

    /// Runs an operation on the calling thread, which acts as the stream's thread meanwhile.
    fn run(&self, stream: &Stream<W>, shift: Shift, Queued { position, action, .. }: Queued<W>) {
        match action {
            Action::Mark => stream.complete(position, shift),
            Action::Copy(rows) => {
                if let Err(failure) = with_rows(&rows, |operands| copy_rows(operands, &rows)) {
                    // Copies have no completion callback. Their rows are lost, so work that reads them fails.
                    error!(position, error = %failure, "copy failed");
                }
                stream.complete(position, shift);
            }
            Action::Launch { mut work, accesses } => {
                let outcome = with_rows(&accesses, |operands| run_caught(&mut work, operands));
                // Releases the rows before the launch counts as complete.
                drop(accesses);
                stream.complete(position, shift);
                complete(work, outcome);
            }
        }
        stream.rest(shift);
    }
}

impl<W: HostWork> Clone for Cpu<W> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<W: HostWork> Drop for Owner<W> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<W: HostWork> fmt::Debug for Cpu<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cpu").field("streams", &self.shared().streams.len()).finish_non_exhaustive()
    }
}

fn copy_rows(operands: &mut [Operand], [_, to]: &[Held; 2]) -> Result<(), WorkFailure> {
    let [from, into] = operands else { return Ok(()) };
    if let (Some(from), Some(into)) = (from.bytes(), into.bytes_mut()) {
        into.copy_from_slice(from);
        return Ok(());
    }
    for place in 0..to.rows.len() as usize {
        if let (Some(from), Some(into)) = (from.row(place), into.row_mut(place)) {
            into.copy_from_slice(from);
        }
    }
    Ok(())
}

fn run_caught<W: HostWork>(work: &mut W, operands: &mut [Operand]) -> Result<(), WorkFailure> {
    match catch_unwind(AssertUnwindSafe(|| work.run(operands))) {
        Ok(outcome) => outcome.map_err(WorkFailure::Failed),
        Err(payload) => Err(WorkFailure::Panicked(message(&*payload))),
    }
}

/// Calls the completion callback of work. A panic in it is logged, and the stream continues.
fn complete<W: HostWork>(work: W, outcome: Result<(), WorkFailure>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work.done(outcome))) {
        error!(error = %message(&*payload), "completion callback panicked");
    }
}

/// Returns the message of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
