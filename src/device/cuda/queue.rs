//! One stream: what is issued to it, in which parameter blocks, and the events that other streams wait for.

use std::{collections::VecDeque, sync::Arc};

use super::{
    driver::{Address, Argument, Context, Event, Function, GraphExec, Mapped, Memory, Shape, Stream},
    signals::Signals,
};
use crate::device::{DeviceError, Operation, StreamId, Ticket};

/// Bytes at the head of a parameter block: the operation's position.
const HEAD_BYTES: usize = size_of::<u64>();

/// Parameter blocks are this long, or a multiple.
const BLOCK_ALIGNMENT: usize = 16;

/// The kernels that every operation begins and ends with.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) fetch: Function,
    pub(super) signal: Function,
}

/// How many operations of a stream may be in flight, and how much each is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub(super) depth: u32,
    pub(super) bytes: u32,
}

impl Blocks {
    /// Blocks with room for `parameter_bytes` of parameters.
    pub(super) fn new(depth: u32, parameter_bytes: usize) -> Self {
        let bytes = (HEAD_BYTES + parameter_bytes).next_multiple_of(BLOCK_ALIGNMENT);
        Self { depth: depth.max(1), bytes: bytes as u32 }
    }
}

/// A stream. An operation is a graph (or what a graph stands for): it fetches its parameter block from host memory,
/// does its work, and signals its position. Since a stream is in order, one place on the card holds the block of
/// whatever runs.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: StreamId,
    pub(super) stream: Arc<Stream>,
    context: Arc<Context>,
    signals: Arc<Signals>,
    frame: Frame,
    /// Of the last operation that was issued; 0 before the first.
    position: u64,
    /// Something was waited for since.
    has_waited: bool,
    /// Events by the position that they stand for, until that is complete.
    recorded: VecDeque<(u64, Event)>,
    spare: Vec<Event>,
    blocks: Mapped<u8>,
    shape: Blocks,
    /// How many blocks have been fetched; counts on the card.
    fetched: Memory,
    /// The block of what runs.
    block: Memory,
    /// An operation without work.
    mark: Option<GraphExec>,
}

impl Queue {
    pub(super) fn new(
        context: &Arc<Context>,
        id: StreamId,
        shape: Blocks,
        signals: &Arc<Signals>,
        frame: &Frame,
        capturing: &Stream,
    ) -> Result<Self, DeviceError> {
        let mut queue = Self {
            id,
            stream: Arc::new(Stream::new(context)?),
            context: Arc::clone(context),
            signals: Arc::clone(signals),
            frame: frame.clone(),
            position: 0,
            has_waited: false,
            recorded: VecDeque::new(),
            spare: (0..shape.depth).map(|_| Event::new(context)).collect::<Result<_, _>>()?,
            blocks: Mapped::new(context, shape.depth as usize * shape.bytes as usize)?,
            shape,
            fetched: Memory::new(context, size_of::<u64>())?,
            block: Memory::new(context, shape.bytes as usize)?,
            mark: None,
        };
        queue.mark = Some(queue.capture(capturing, 0, |_, _| Ok(()))?);
        Ok(queue)
    }

    /// Makes a graph of what `issue` issues, between the fetch of its parameters, which lie at the address that it is
    /// given, and its signal. It is captured on another stream, and runs on this one.
    pub(super) fn capture(
        &self,
        capturing: &Stream,
        parameter_bytes: usize,
        issue: impl FnOnce(&Stream, Address) -> Result<(), DeviceError>,
    ) -> Result<GraphExec, DeviceError> {
        let Frame { fetch, signal } = &self.frame;
        self.check_parameters(parameter_bytes)?;
        let word = size_of::<u32>();
        let words = (HEAD_BYTES + parameter_bytes).div_ceil(word) as u32;
        let fetch_arguments = [
            Argument::Address(self.blocks.address()),
            Argument::U32(self.shape.depth),
            Argument::U32(self.shape.bytes / word as u32),
            Argument::U32(words),
            Argument::Address(self.fetched.address()),
            Argument::Address(self.block.address()),
        ];
        let signal_arguments =
            [Argument::Address(self.block.address()), Argument::Address(self.signals.address(self.id))];
        let one_block = |threads| Shape { grid: [1; 3], threads, shared_bytes: 0 };
        capturing.capture(&self.stream, |stream| {
            stream.launch(fetch, one_block(256), &fetch_arguments)?;
            issue(stream, self.block.address().offset(HEAD_BYTES))?;
            stream.launch(signal, one_block(32), &signal_arguments)
        })
    }

    /// Whether everything up to a position is complete; none where the position is not this queue's.
    pub(super) fn is_complete(&self, position: u64) -> Option<bool> {
        (position <= self.position).then(|| position <= self.signals.complete(self.id))
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.signals.complete(self.id) == self.position
    }

    /// Issues a graph with its parameters.
    pub(super) fn launch(&mut self, graph: &GraphExec, parameters: &[u8]) -> Result<Operation, DeviceError> {
        self.write_block(parameters)?;
        self.stream.launch_graph(graph)?;
        Ok(self.has_issued())
    }

    /// Issues what has no graph: `issue` does it, and what follows signals it.
    pub(super) fn issue(
        &mut self,
        issue: impl FnOnce(&Stream) -> Result<(), DeviceError>,
    ) -> Result<Operation, DeviceError> {
        self.write_block(&[])?;
        issue(&self.stream)?;
        self.stream.launch_graph(self.mark.as_ref().ok_or(DeviceError::Stopped)?)?;
        Ok(self.has_issued())
    }

    fn has_issued(&mut self) -> Operation {
        self.position += 1;
        self.has_waited = false;
        Operation { stream: self.id, position: self.position }
    }

    fn check_parameters(&self, bytes: usize) -> Result<(), DeviceError> {
        let most_bytes = self.shape.bytes as usize - HEAD_BYTES;
        if bytes > most_bytes { Err(DeviceError::TooManyParameters { bytes, most_bytes }) } else { Ok(()) }
    }

    /// Writes the next operation's block.
    fn write_block(&mut self, parameters: &[u8]) -> Result<(), DeviceError> {
        let Blocks { depth, bytes } = self.shape;
        self.check_parameters(parameters.len())?;
        if self.position - self.signals.complete(self.id) >= u64::from(depth) {
            return Err(DeviceError::Full { stream: self.id, depth });
        }
        let place = (self.position % u64::from(depth)) as usize;
        #[expect(unsafe_code, reason = "the card reads the block, but not yet")]
        // SAFETY: of this place an operation was the last to read that is complete.
        let block = unsafe { self.blocks.bytes_mut(place * bytes as usize, bytes as usize) };
        let (head, rest) = block.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&(self.position + 1).to_ne_bytes());
        rest[..parameters.len()].copy_from_slice(parameters);
        Ok(())
    }

    /// A ticket for what has been issued so far; `is_waited_for` by other streams, if there are any.
    pub(super) fn record(&mut self, is_waited_for: bool) -> Result<Ticket, DeviceError> {
        if self.has_waited {
            // The ticket stands for the waits too, so that they need a position.
            self.issue(|_| Ok(()))?;
        }
        let ticket = Ticket { stream: self.id, position: self.position };
        let complete = self.signals.complete(self.id);
        while let Some((_, event)) = self.recorded.pop_front_if(|(position, _)| *position <= complete) {
            self.spare.push(event);
        }
        let is_known = complete == self.position || self.recorded.back().is_some_and(|(own, _)| *own == self.position);
        if is_waited_for && !is_known {
            let event = self.spare.pop().map_or_else(|| Event::new(&self.context), Ok)?;
            event.record(&self.stream)?;
            self.recorded.push_back((self.position, event));
        }
        Ok(ticket)
    }

    /// The event of a ticket that is not complete.
    pub(super) fn event(&self, position: u64) -> Option<&Event> {
        self.recorded.iter().find(|(own, _)| *own == position).map(|(_, event)| event)
    }

    /// Makes what is issued from here on wait.
    pub(super) fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.stream.wait(event)?;
        self.has_waited = true;
        Ok(())
    }
}
