//! The [`Device`] trait: the contract between executors and devices.

use std::time::Duration;

use super::{Access, BufferId, DeviceError, Operation, Region, StreamId, Ticket};

/// A small subset of CUDA's semantics: in-order streams, events, row buffers, copies and launches.
///
/// - A stream runs its operations in issue order. Streams run concurrently.
/// - [`record`](Self::record) returns a [`Ticket`] for everything issued to a stream so far. [`wait`](Self::wait) makes
///   *later* operations of a stream wait for a ticket; work issued after the `record` is not waited for. Neither blocks
///   the caller. The only call that blocks is [`stop`](Self::stop).
/// - A launch declares every row that it accesses. Two operations on a row, at least one of which writes it, must be
///   ordered: by being on one stream, by a ticket, or because the caller knew that the first was complete when it
///   issued the second.
/// - The transfer of request inputs and responses is part of the work: on CUDA through mapped memory within the
///   captured graph, on the CPU through data that the work owns.
/// - A failed operation completes like any other. The rows that it should have written are lost until they are written
///   again. An operation that reads lost rows fails as well, if the device can detect it.
/// - How completions reach the caller depends on the device, because each is driven differently: the CPU calls the work
///   on the stream's thread, the simulator returns completions as time advances, and CUDA's sequence numbers are
///   polled. All of them report launches only, in order within a stream.
///
/// Calls are cheap and take `&mut self`; a device that is shared by threads gives each thread its own handle.
pub trait Device {
    /// The unit of work of a launch: a closure on the CPU, a symbolic operation in the simulator, a captured graph with
    /// its parameter block on CUDA.
    type Work;

    /// Returns the number of streams; their [`StreamId`]s count from 0.
    fn streams(&self) -> u16;

    /// Allocates a buffer of `rows` rows of `row_bytes` each, with undefined contents. Not for the hot path.
    ///
    /// # Errors
    /// If the size exceeds the limit of a buffer.
    fn allocate(&mut self, rows: u32, row_bytes: usize) -> Result<BufferId, DeviceError>;

    /// Frees a buffer. The caller must know that every operation that uses it is complete.
    ///
    /// # Errors
    /// If there is no such buffer, or it is in use, as far as the device can detect that.
    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError>;

    /// Makes everything issued to `stream` from now on wait for the ticket.
    ///
    /// # Errors
    /// If there is no such stream, the ticket is from another device, or the device is stopped.
    fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), DeviceError>;

    /// Issues work that accesses `accesses`. The work identifies its operands by their index in this list.
    ///
    /// # Errors
    /// If a stream, buffer or row does not exist, a written row is accessed twice, or the device is stopped.
    fn launch(&mut self, stream: StreamId, accesses: &[Access], work: Self::Work) -> Result<Operation, DeviceError>;

    /// Issues a copy of rows to the same number of rows of the same size.
    ///
    /// # Errors
    /// Like [`launch`](Self::launch), and if the sizes differ.
    fn copy(&mut self, stream: StreamId, from: &Region, to: &Region) -> Result<Operation, DeviceError>;

    /// Returns a ticket for everything issued to `stream` so far, including its waits.
    ///
    /// # Errors
    /// If there is no such stream, or the device is stopped.
    fn record(&mut self, stream: StreamId) -> Result<Ticket, DeviceError>;

    /// Returns whether everything covered by the ticket is complete. If so, everything that the caller issues
    /// afterwards is ordered after it.
    fn is_complete(&mut self, ticket: Ticket) -> bool;

    /// Stops the device: rejects further operations, abandons operations that have not started (their tickets stay
    /// incomplete, and their work gets [`WorkFailure::Stopped`](super::WorkFailure::Stopped)), and waits for running
    /// ones. Returns whether they completed within `patience`.
    fn stop(&mut self, patience: Duration) -> bool;
}
