//! The CPU as a device: each stream is a thread that runs closures in order.
//!
//! A thread that has nothing to do sleeps; nothing spins, so an idle server uses no CPU. Who is done is told on the
//! stream's own thread ([`HostWork::done`]), after the operation's ticket is complete and its rows are free, so that a
//! lane goes from one task to the next without a hand-over. Rows are handed out by guards ([`RowBuffer`]): where a wait
//! is missing and two operations meet on a row, the second fails instead of reading what is being written.

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

/// A handle on the CPU's streams and buffers; its clones are the same device. All calls are open to any thread, the
/// work's own among them; calls on one stream from several threads take effect in the order in which they come.
///
/// When the last handle is dropped, the streams end as by [`stop`](Device::stop), without waiting.
pub struct Cpu<W: HostWork> {
    owner: Arc<Owner<W>>,
}

/// Ends the threads, which hold a share of what they work on, but none of this.
struct Owner<W: HostWork> {
    shared: Arc<Shared<W>>,
    /// Every thread holds a clone; none once the streams are stopped.
    alive: Mutex<Option<Sender<()>>>,
    /// Disconnected once the last thread has ended.
    ended: Receiver<()>,
}

struct Shared<W> {
    streams: Box<[Stream<W>]>,
    buffers: RwLock<Registry<Arc<RowBuffer>>>,
    pool: Arc<BufferPool>,
}

impl<W: HostWork> Cpu<W> {
    /// Starts `streams` threads (at least one), whose buffers are `pool`'s memory.
    ///
    /// # Errors
    /// When a thread cannot be started.
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

    /// Starts a thread, which serves a stream if `begin` gives it the stream once it is there. A stopped device needs
    /// none.
    fn spawn(&self, index: usize, begin: impl FnOnce() -> Option<Shift>) -> io::Result<()> {
        let Some(alive) = self.owner.alive.lock().clone() else { return Ok(()) };
        let shared = Arc::clone(&self.owner.shared);
        let (begins, begun) = crossbeam_channel::bounded(1);
        thread::Builder::new().name(format!("cpu-stream-{index}")).spawn(move || {
            if let Ok(shift) = begun.recv() {
                shared.serve(&shared.streams[index], shift);
            }
            // A thread that sees that the others have ended sees that they hold nothing.
            drop(shared);
            drop(alive);
        })?;
        if let Some(shift) = begin() {
            // The thread waits for it.
            let _ = begins.send(shift);
        }
        Ok(())
    }

    /// Gives a stream a new thread, which leaves the operation that runs, if one does, to itself: it counts as
    /// complete, and the stream goes on behind it. It keeps its rows, and is told its end, when it returns; its thread
    /// ends then.
    ///
    /// # Errors
    /// When there is no such stream, or a thread cannot be started; then nothing changes.
    pub fn replace_thread(&self, stream: StreamId) -> io::Result<()> {
        let target = self.shared().stream(stream).map_err(io::Error::other)?;
        self.spawn(stream.index(), || target.take_over())
    }

    /// A buffer's memory, for the host to read and write beside the streams; [`RowBuffer`]'s guards keep it apart from
    /// them.
    ///
    /// # Errors
    /// When there is no such buffer.
    pub fn buffer(&self, buffer: BufferId) -> Result<Arc<RowBuffer>, DeviceError> {
        self.shared().buffers.read().get(buffer).cloned()
    }

    /// Issues work as [`launch`](Device::launch) does, but runs it on the calling thread where the stream has nothing
    /// else to do: the hand-over to the stream and back takes longer than a short task. It has then run, and been told
    /// that it is done, when this returns.
    ///
    /// # Errors
    /// As for a launch.
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

    /// Holds the calling thread until the ticket is complete, at most for `patience`; whether it is. For loading,
    /// unloading and tests: what serves requests is told by [`HostWork::done`].
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
    /// A stream's thread.
    fn serve(&self, stream: &Stream<W>, shift: Shift) {
        loop {
            match stream.next(shift) {
                Turn::Await(waits) => {
                    if !self.are_over(&waits) {
                        // Another stream saw the stop first; what waits for it must not begin.
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
                tell(work, Err(WorkFailure::Stopped));
            }
        }
    }

    /// Holds the calling thread until the tickets are complete; `false` when one will not be.
    fn are_over(&self, waits: &[Ticket]) -> bool {
        waits.iter().all(|ticket| {
            let awaited = self.stream(ticket.stream);
            awaited.is_ok_and(|awaited| awaited.sleep_until(ticket.position, None))
        })
    }

    /// Runs an operation on the calling thread, which is the stream's for as long.
    fn run(&self, stream: &Stream<W>, shift: Shift, Queued { position, action, .. }: Queued<W>) {
        match action {
            Action::Mark => stream.complete(position, shift),
            Action::Copy(rows) => {
                if let Err(failure) = with_rows(&rows, |operands| copy_rows(operands, &rows)) {
                    // Nobody is told of copies. Their rows are lost, so work that reads them fails.
                    error!(position, "a copy failed: {failure}");
                }
                stream.complete(position, shift);
            }
            Action::Launch { mut work, accesses } => {
                let outcome = with_rows(&accesses, |operands| run_caught(&mut work, operands));
                // What the launch held goes before it counts as complete.
                drop(accesses);
                stream.complete(position, shift);
                tell(work, outcome);
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

/// Tells work its end; a panic there is its own, the stream goes on.
fn tell<W: HostWork>(work: W, outcome: Result<(), WorkFailure>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work.done(outcome))) {
        error!("work panicked when it was told that it is done: {}", message(&*payload));
    }
}

/// What a panic said.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
