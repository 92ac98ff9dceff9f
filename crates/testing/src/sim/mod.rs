//! A simulated device: virtual time, exact event semantics, and detectors for faults that a real device hides.
//!
//! - **Time** advances only when the caller [advances](Sim::advance) it. An operation starts when it has been issued,
//!   its stream is free and its waits are over. It takes the duration that its work specifies.
//! - **Races** are detected with vector clocks: an operation that accesses a row without being *ordered* after a
//!   conflicting one is rejected, even if the two do not overlap in this run. Completions reported to the host are
//!   ordered before everything that the host issues afterwards.
//! - **Rows are symbolic**: a row holds a hash of the program and of its inputs ([`content`]), to be compared with a
//!   serial oracle. This reveals wrong offsets, swapped rows and stale rows.
//! - **Faults** can be injected: failing work, rows that are poisoned when freed, streams that hang or are slow.
//!
//! Contents are computed when an operation is issued. That is exact: race-free operations leave the same contents in
//! every order that the tickets allow, and the issue order is one of them.

mod buffer;
mod clock;
mod stream;
mod work;

use std::{collections::VecDeque, time::Duration};

use paternoster_device::{
    Access, AccessKind, Accessor, BufferId, BufferRows, Device, DeviceError, Operation, Region, Registry, RowError,
    StreamId, Ticket, Violation, WorkFailure, check_copy, check_named_once,
};

pub use self::work::{RowSource, Work, content, external};
use self::{
    buffer::{Holds, SymbolicBuffer},
    clock::Clock,
    stream::{NEVER_NS, Pending, Stream},
    work::Content,
};

/// The simulated device. A clone continues independently from the same state, so that a search over schedules can
/// branch.
#[derive(Clone, Debug)]
pub struct Sim {
    now_ns: u64,
    streams: Vec<Stream>,
    /// Operations that the host knows to be complete.
    host: Clock,
    buffers: Registry<SymbolicBuffer>,
    copy_ns: u64,
    sequence: u64,
    stopped: bool,
    /// Launches that were abandoned when the device stopped and have not been reported yet.
    abandoned: VecDeque<Completion>,
    /// Contents of the output rows of one launch; a field to reuse its allocation.
    outputs: Vec<Holds>,
}

/// A completed launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation.
    pub operation: Operation,
    /// Start time, in nanoseconds of virtual time.
    pub started_ns: u64,
    /// End time.
    pub ended_ns: u64,
    /// Outcome.
    pub outcome: Result<(), WorkFailure>,
}

impl Sim {
    /// Creates a device with `streams` streams (at least one) at time 0. Copies take no time.
    pub fn new(streams: u16) -> Self {
        let streams = streams.max(1);
        Self {
            now_ns: 0,
            streams: (0..streams).map(|index| Stream::new(StreamId(index), streams)).collect(),
            host: Clock::zero(streams),
            buffers: Registry::default(),
            copy_ns: 0,
            sequence: 0,
            stopped: false,
            abandoned: VecDeque::new(),
            outputs: Vec::new(),
        }
    }

    /// Sets the duration of every copy issued from now on, in nanoseconds.
    pub fn set_copy_ns(&mut self, copy_ns: u64) {
        self.copy_ns = copy_ns;
    }

    /// Returns the virtual time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the end time of the operation that ends next; `None` if no issued operation will ever end.
    pub fn next_end_ns(&self) -> Option<u64> {
        if !self.abandoned.is_empty() {
            return Some(self.now_ns);
        }
        self.next_stream().map(|(ended_ns, ..)| ended_ns)
    }

    /// Advances time to the end of the next launch and returns its completion. Launches that end together are returned
    /// in issue order. `None` if no launch will ever end.
    pub fn advance(&mut self) -> Option<Completion> {
        self.advance_within(NEVER_NS)
    }

    /// Like [`advance`](Self::advance), but no further than `until_ns`. Returns `None` at that time.
    pub fn advance_to(&mut self, until_ns: u64) -> Option<Completion> {
        let completion = self.advance_within(until_ns);
        if completion.is_none() {
            self.now_ns = self.now_ns.max(until_ns);
        }
        completion
    }

    /// Returns the number of launches that have not been reported to the host, including those that hang.
    pub fn in_flight(&self) -> usize {
        let pending = self.streams.iter().flat_map(Stream::in_flight);
        pending.filter(|pending| pending.outcome.is_some()).count() + self.abandoned.len()
    }

    /// Makes everything issued to a stream from now on hang.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn hang(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.stream_mut(stream)?.hung = true;
        Ok(())
    }

    /// Gives a stream up, as a host does with a hung stream: operations that have not ended are abandoned and never
    /// reported, but the host knows that they run no more. The stream then works like a new one, at its previous speed.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn give_up(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        let now_ns = self.now_ns;
        let clock = self.stream_mut(stream)?.give_up(now_ns);
        self.host.join(&clock);
        Ok(())
    }

    /// Marks the contents of rows as obsolete: reading them before they are written again is a fault.
    ///
    /// # Errors
    /// If there is no such region.
    pub fn poison(&mut self, region: &Region) -> Result<(), DeviceError> {
        self.check(region)?;
        self.buffers.get_mut(region.buffer)?.poison(&region.rows);
        Ok(())
    }

    /// Poisons the rows of a region that an abandoned launch was to write, unless another has written them since.
    ///
    /// # Errors
    /// If there is no such region.
    pub fn lose(&mut self, launch: Operation, region: &Region) -> Result<(), DeviceError> {
        self.check(region)?;
        let buffer = self.buffers.get_mut(region.buffer)?;
        let is_own =
            |row: u32| matches!(buffer.writer(row), Some(Accessor::Launch { operation, .. }) if operation == launch);
        let own: Vec<u32> = region.rows.iter().filter(|&row| is_own(row)).collect();
        buffer.poison(&BufferRows::List(own.into()));
        Ok(())
    }

    /// Returns the completion of the oldest launch of one stream, if it has ended by now. Unlike
    /// [`advance`](Self::advance), launches of other streams that ended earlier stay unreported, as for a host that
    /// polls its streams in any order.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn poll(&mut self, stream: StreamId) -> Result<Option<Completion>, DeviceError> {
        let now_ns = self.now_ns;
        let polled = self.stream_mut(stream)?;
        while polled.oldest().is_some_and(|oldest| oldest.ended_ns <= now_ns) {
            if let Some(Pending { operation, started_ns, ended_ns, clock, outcome: Some(outcome), .. }) =
                polled.end_oldest()
            {
                self.host.join(&clock);
                return Ok(Some(Completion { operation, started_ns, ended_ns, outcome }));
            }
        }
        Ok(None)
    }

    /// Makes everything issued to a stream from now on take `factor` times its duration.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn slow(&mut self, stream: StreamId, factor: u32) -> Result<(), DeviceError> {
        self.stream_mut(stream)?.slowness = factor;
        Ok(())
    }

    /// Returns the contents of a row, as the host reads it.
    ///
    /// # Errors
    /// If there is no such row, it holds no result, or the host does not know that its writer is complete.
    pub fn read(&self, buffer: BufferId, row: u32) -> Result<u64, DeviceError> {
        let region = Region::new(buffer, row..row.saturating_add(1));
        let held = self.buffers.get(buffer)?;
        region.check(held.capacity())?;
        held.check(buffer, &region.rows, Accessor::Host, AccessKind::Read, &self.host)?;
        match held.holds(row) {
            Holds::Value(value) => Ok(value),
            Holds::Nothing | Holds::Poison | Holds::Lost => {
                let writer = held.writer(row).unwrap_or(Accessor::Host);
                Err(Box::new(Violation::Lost { writer, buffer, row }).into())
            }
        }
    }

    fn advance_within(&mut self, until_ns: u64) -> Option<Completion> {
        if let Some(abandoned) = self.abandoned.pop_front() {
            return Some(abandoned);
        }
        while let Some((ended_ns, _, stream)) = self.next_stream().filter(|(ended_ns, ..)| *ended_ns <= until_ns) {
            let ended = self.streams[stream].end_oldest();
            self.now_ns = self.now_ns.max(ended_ns);
            if let Some(Pending { operation, started_ns, clock, outcome: Some(outcome), .. }) = ended {
                self.host.join(&clock);
                return Some(Completion { operation, started_ns, ended_ns, outcome });
            }
        }
        None
    }

    /// Returns the end time of the operation that ends next, its issue number, and its stream.
    fn next_stream(&self) -> Option<(u64, u64, usize)> {
        let oldest = self.streams.iter().enumerate().filter_map(|(index, stream)| Some((index, stream.oldest()?)));
        oldest.map(|(index, oldest)| (oldest.ended_ns, oldest.sequence, index)).min()
    }

    fn stream(&self, stream: StreamId) -> Result<&Stream, DeviceError> {
        self.streams.get(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams: self.streams() })
    }

    fn stream_mut(&mut self, stream: StreamId) -> Result<&mut Stream, DeviceError> {
        let streams = self.streams();
        self.streams.get_mut(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams })
    }

    /// Returns a stream for the next operation, after everything that the host knows.
    fn target(&mut self, stream: StreamId) -> Result<&mut Stream, DeviceError> {
        let streams = self.streams();
        let target = self.streams.get_mut(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams })?;
        if self.stopped {
            return Err(DeviceError::Stopped);
        }
        target.learn(&self.host);
        Ok(target)
    }

    fn check(&self, region: &Region) -> Result<&SymbolicBuffer, DeviceError> {
        let buffer = self.buffers.get(region.buffer)?;
        region.check(buffer.capacity())?;
        Ok(buffer)
    }

    fn issue(&mut self, stream: StreamId, duration_ns: u64, outcome: Option<Result<(), WorkFailure>>) -> Operation {
        let sequence = self.sequence;
        self.sequence += 1;
        self.streams[stream.index()].issue(self.now_ns, sequence, duration_ns, outcome)
    }

    /// Returns a row that the accesses read and whose writer failed.
    fn lost_input(&self, accesses: &[Access]) -> Result<Option<u32>, DeviceError> {
        for Access { region, .. } in accesses.iter().filter(|access| access.kind.reads()) {
            let buffer = self.buffers.get(region.buffer)?;
            let lost = region.rows.iter().find(|row| buffer.holds(*row) == Holds::Lost);
            if lost.is_some() {
                return Ok(lost);
            }
        }
        Ok(None)
    }

    /// Computes the contents of every output row before any is written, because an input row may be one of the output
    /// rows.
    fn compute(&mut self, accesses: &[Access], work: &Work, lost: bool) -> Result<(), DeviceError> {
        let written = accesses.iter().filter(|access| access.kind.writes()).map(|access| access.region.rows.len());
        let expected = written.clone().map(u64::from).sum::<u64>() * u64::from(work.fan_in);
        if work.sources.len() as u64 != expected {
            return Err(DeviceError::MalformedWork("their number is not that of the written rows times the fan-in"));
        }
        self.outputs.clear();
        let mut sources = work.sources.as_slice();
        for (output, rows) in (0..).zip(written) {
            for _ in 0..rows {
                let (own, rest) = sources.split_at(work.fan_in as usize);
                sources = rest;
                let mut content = Content::of(work.program, output);
                for source in own {
                    content = content.and(self.value_of(accesses, *source)?);
                }
                self.outputs.push(if lost { Holds::Lost } else { Holds::Value(content.value()) });
            }
        }
        Ok(())
    }

    fn value_of(&self, accesses: &[Access], source: RowSource) -> Result<u64, DeviceError> {
        let (access, row) = match source {
            RowSource::External(value) => return Ok(value),
            RowSource::Row { access, row } => (access, row),
        };
        let access = accesses
            .get(usize::from(access))
            .filter(|access| access.kind.reads())
            .ok_or(DeviceError::MalformedWork("one names an access that does not read"))?;
        let row = access.region.rows.get(row).ok_or(DeviceError::MalformedWork("one names a row beyond its access"))?;
        match self.buffers.get(access.region.buffer)?.holds(row) {
            Holds::Value(value) => Ok(value),
            // The launch fails, and its outputs hold no value.
            Holds::Lost | Holds::Nothing | Holds::Poison => Ok(0),
        }
    }

    /// Records the accesses, and the computed contents of written rows.
    fn apply(&mut self, accesses: &[Access], accessor: Accessor, stream: StreamId) -> Result<(), DeviceError> {
        let mut outputs = self.outputs.iter();
        for Access { region, kind } in accesses {
            let buffer = self.buffers.get_mut(region.buffer)?;
            if !kind.writes() {
                region.rows.iter().for_each(|row| buffer.note_read(row, stream.index(), accessor));
                continue;
            }
            for (row, holds) in region.rows.iter().zip(&mut outputs) {
                buffer.write(row, accessor, *holds);
            }
        }
        Ok(())
    }

    /// Checks whether an operation may access its rows, given everything that is ordered before it.
    fn check_order(&self, accesses: &[Access], accessor: Accessor, stream: StreamId) -> Result<(), DeviceError> {
        let clock = &self.stream(stream)?.clock;
        for Access { region, kind } in accesses {
            self.check(region)?.check(region.buffer, &region.rows, accessor, *kind, clock)?;
        }
        Ok(())
    }
}

impl Device for Sim {
    type Work = Work;

    fn streams(&self) -> u16 {
        self.streams.len() as u16
    }

    fn allocate(&mut self, rows: u32, row_bytes: usize) -> Result<BufferId, DeviceError> {
        Ok(self.buffers.insert(SymbolicBuffer::new(rows, row_bytes, self.streams())))
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        let held = self.buffers.get(buffer)?;
        let rows = (0..held.capacity()).into();
        held.check(buffer, &rows, Accessor::Host, AccessKind::Write, &self.host)?;
        self.buffers.remove(buffer).map(drop)
    }

    fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), DeviceError> {
        self.target(stream)?;
        let awaited = self.stream(ticket.stream())?;
        if ticket.position() > awaited.issued() {
            return Err(DeviceError::UnknownTicket(ticket.stream()));
        }
        if ticket.stream() == stream || awaited.is_known(ticket.position()) {
            return Ok(());
        }
        let pending = awaited.pending(ticket.position()).map(|pending| (pending.clock.copied(), pending.ended_ns));
        if let Some((clock, ended_ns)) = pending {
            self.target(stream)?.wait(&clock, ended_ns);
        }
        Ok(())
    }

    fn launch(&mut self, stream: StreamId, accesses: &[Access], work: Work) -> Result<Operation, DeviceError> {
        let operation = self.target(stream)?.next();
        check_named_once(accesses)?;
        let accessor = Accessor::Launch { operation, program: work.program };
        self.check_order(accesses, accessor, stream)?;
        let lost = self.lost_input(accesses)?;
        self.compute(accesses, &work, work.fails || lost.is_some())?;
        self.apply(accesses, accessor, stream)?;
        let outcome = match lost {
            Some(row) => Err(RowError::NotWritten { row }.into()),
            None if work.fails => Err(WorkFailure::Failed("a planted fault".to_owned())),
            None => Ok(()),
        };
        Ok(self.issue(stream, work.duration_ns, Some(outcome)))
    }

    fn copy(&mut self, stream: StreamId, from: &Region, to: &Region) -> Result<Operation, DeviceError> {
        let operation = self.target(stream)?.next();
        check_copy(from, self.check(from)?.row_bytes, to, self.check(to)?.row_bytes)?;
        let accesses = [
            Access { region: from.clone(), kind: AccessKind::Read },
            Access { region: to.clone(), kind: AccessKind::Write },
        ];
        let accessor = Accessor::Copy(operation);
        self.check_order(&accesses, accessor, stream)?;
        let lost = self.lost_input(&accesses)?.is_some();
        let source = self.buffers.get(from.buffer)?;
        self.outputs.clear();
        self.outputs.extend(from.rows.iter().map(|row| if lost { Holds::Lost } else { source.holds(row) }));
        self.apply(&accesses, accessor, stream)?;
        Ok(self.issue(stream, self.copy_ns, None))
    }

    fn record(&mut self, stream: StreamId) -> Result<Ticket, DeviceError> {
        let target = self.target(stream)?;
        let position = target.issued();
        if !target.has_waited() {
            return Ok(Ticket::new(stream, position));
        }
        let Operation { position, .. } = self.issue(stream, 0, None);
        Ok(Ticket::new(stream, position))
    }

    fn is_complete(&mut self, ticket: Ticket) -> bool {
        let Ok(stream) = self.stream(ticket.stream()) else { return false };
        if stream.is_known(ticket.position()) {
            return true;
        }
        let ended = stream.pending(ticket.position()).filter(|pending| pending.ended_ns <= self.now_ns);
        let Some(clock) = ended.map(|pending| pending.clock.copied()) else { return false };
        self.host.join(&clock);
        true
    }

    fn stop(&mut self, patience: Duration) -> bool {
        self.stopped = true;
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(NEVER_NS);
        let until_ns = self.now_ns.saturating_add(patience_ns);
        let mut abandoned: Vec<Pending> =
            self.streams.iter_mut().flat_map(|stream| stream.abandon(self.now_ns)).collect();
        abandoned.sort_unstable_by_key(|pending| pending.sequence);
        let at_ns = self.now_ns;
        self.abandoned.extend(abandoned.into_iter().filter(|pending| pending.outcome.is_some()).map(|pending| {
            let outcome = Err(WorkFailure::Stopped);
            Completion { operation: pending.operation, started_ns: at_ns, ended_ns: at_ns, outcome }
        }));
        let mut running = self.streams.iter().flat_map(Stream::in_flight);
        running.all(|pending| pending.ended_ns != NEVER_NS && pending.ended_ns <= until_ns)
    }
}
