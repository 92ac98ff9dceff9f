//! The contract between an executor and whatever runs its work.

use std::time::Duration;

use super::{Access, BufferId, DeviceError, Operation, Region, StreamId, Ticket};

/// CUDA's semantics, small: in-order streams, events, buffers of rows, copies and launches.
///
/// - A stream runs its operations in the order in which they were issued; streams run beside each other.
/// - [`record`](Self::record) gives a [`Ticket`] for everything issued to a stream so far, and [`wait`](Self::wait)
///   makes a stream's *later* operations wait for a ticket. Work issued after the `record` is not waited for. Neither
///   holds the caller up, and no call but [`stop`](Self::stop) ever does.
/// - A launch names every row it touches. Two operations of which at least one writes a row must be ordered: by one
///   stream, by a ticket, or because the caller knew the first to be complete when it issued the second.
/// - Data that comes from requests or leaves in responses is the work's own matter: on CUDA it travels inside the
///   captured graph through mapped memory, on the CPU in what the work holds.
/// - An operation that fails completes like any other. What it should have written is lost until it is written again,
///   and an operation that reads lost rows fails too, where the device can tell.
/// - How completions reach the caller is the device's own way, since something else drives each: the CPU tells the
///   work on the stream's thread, the simulator yields them as time advances, CUDA's sequence numbers are polled. All
///   tell launches only, in order within a stream.
///
/// Calls are cheap and take `&mut self`; a device that several threads share gives each its own handle.
pub trait Device {
    /// What a launch runs: on the CPU a closure, in the simulator a symbolic operation, on CUDA a captured graph with
    /// its parameter block.
    type Work;

    /// How many streams there are: [`StreamId`]s from 0.
    fn streams(&self) -> u16;

    /// Memory for `rows` rows of `row_bytes` each; it holds nothing yet. Not for the hot path.
    ///
    /// # Errors
    /// When that is more than a buffer can have.
    fn allocate(&mut self, rows: u32, row_bytes: usize) -> Result<BufferId, DeviceError>;

    /// Frees a buffer. Everything that names it must be known to be complete.
    ///
    /// # Errors
    /// When there is no such buffer, or (as far as the device can tell) it is in use.
    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError>;

    /// Says that nobody wants what the rows hold: to read them before they are written again is a fault from the next
    /// operation on. For devices that look for such faults; others do nothing.
    ///
    /// # Errors
    /// When there is no such region.
    fn poison(&mut self, region: &Region) -> Result<(), DeviceError> {
        let _ = region;
        Ok(())
    }

    /// Makes what is issued to `stream` from here on wait for the ticket.
    ///
    /// # Errors
    /// When there is no such stream, the ticket is another device's, or the device is stopped.
    fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), DeviceError>;

    /// Issues work that touches `accesses`, which the work knows by their places in this list.
    ///
    /// # Errors
    /// When a stream, buffer or row does not exist, a row that is written is named twice, or the device is stopped.
    fn launch(&mut self, stream: StreamId, accesses: &[Access], work: Self::Work) -> Result<Operation, DeviceError>;

    /// Issues a copy of rows to as many rows of the same size.
    ///
    /// # Errors
    /// As for a launch, and when the sizes differ.
    fn copy(&mut self, stream: StreamId, from: &Region, to: &Region) -> Result<Operation, DeviceError>;

    /// A ticket for what has been issued to `stream` so far, its waits included.
    ///
    /// # Errors
    /// When there is no such stream or the device is stopped.
    fn record(&mut self, stream: StreamId) -> Result<Ticket, DeviceError>;

    /// Whether everything that the ticket stands for is complete. From then on the caller knows it, and orders what it
    /// issues by it.
    fn is_complete(&mut self, ticket: Ticket) -> bool;

    /// Takes no more operations, abandons those that have not begun (their tickets stay incomplete, their work is told
    /// [`WorkFailure::Stopped`](super::WorkFailure::Stopped)), and waits for those that run. Whether they ended within
    /// `patience`.
    fn stop(&mut self, patience: Duration) -> bool;
}
