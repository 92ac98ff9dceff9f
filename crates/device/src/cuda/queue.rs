//! One stream: the operations issued to it, their parameter blocks, and the events that other streams wait for.

use std::{collections::VecDeque, sync::Arc};

use super::{
    capture::Capture,
    driver::{Argument, Context, Event, Function, GraphExec, LaunchShape, Mapped, Memory, Stream},
    signals::Signals,
};
use crate::{DeviceError, Operation, StreamId, Ticket};

/// Bytes of a parameter block's head, which is the operation's position.
const HEAD_BYTES: usize = size_of::<u64>();

/// The size of a parameter block is a multiple of this.
const BLOCK_ALIGNMENT: usize = 16;

/// The kernels that operations begin and end with.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Of graphs that do not fetch their parameters themselves.
    pub(super) fetch: Function,
    pub(super) signal: Function,
}

/// The parameter blocks of a stream: how many operations may be in flight, and the bytes of each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub(super) depth: u32,
    pub(super) bytes: u32,
}

impl Blocks {
    /// Returns the shape of blocks that hold `parameter_bytes` of parameters.
    pub(super) fn new(depth: u32, parameter_bytes: usize) -> Self {
        let bytes = (HEAD_BYTES + parameter_bytes).next_multiple_of(BLOCK_ALIGNMENT);
        Self { depth: depth.max(1), bytes: bytes as u32 }
    }
}

/// A stream. An operation is a graph, or operations followed by a graph that only signals. A graph fetches its
/// parameter block from host memory, does its work, and signals its position. Because a stream runs in order, one place
/// on the card holds the block of the running operation.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: StreamId,
    pub(super) stream: Arc<Stream>,
    context: Arc<Context>,
    signals: Arc<Signals>,
    frame: Frame,
    /// Position of the last issued operation; 0 before the first.
    position: u64,
    /// Whether the stream was made to wait for another since then.
    has_waited: bool,
    /// Recorded events and the positions that they mark, kept until these are complete.
    recorded: VecDeque<(u64, Event)>,
    spare: Vec<Event>,
    blocks: Mapped<u8>,
    shape: Blocks,
    /// Counter on the card: how many operations have ended, each with its block.
    ended: Memory,
    /// The parameter block of the running operation, on the card.
    block: Memory,
    /// A graph without work, which signals operations that are not graphs.
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
            ended: Memory::new(context, size_of::<u64>())?,
            block: Memory::new(context, shape.bytes as usize)?,
            mark: None,
        };
        queue.mark = Some(queue.capture(capturing, 0, true, |_| Ok(()))?);
        Ok(queue)
    }

    /// Captures what `issue` issues, followed by the kernel that signals. The kernel that fetches the parameters comes
    /// first, unless `issue` begins with one of its own that does. The graph is captured on `capturing` and runs on
    /// this stream.
    pub(super) fn capture(
        &self,
        capturing: &Stream,
        parameter_bytes: usize,
        fetches: bool,
        issue: impl FnOnce(&mut Capture<'_>) -> Result<(), DeviceError>,
    ) -> Result<GraphExec, DeviceError> {
        let Frame { fetch, signal } = &self.frame;
        self.check_parameters(parameter_bytes)?;
        let word = size_of::<u32>();
        let words = (HEAD_BYTES + parameter_bytes).div_ceil(word) as u32;
        let blocks = [
            Argument::Address(self.blocks.address()),
            Argument::U32(self.shape.depth),
            Argument::U32(self.shape.bytes / word as u32),
            Argument::U32(words),
            Argument::Address(self.ended.address()),
            Argument::Address(self.block.address()),
        ];
        let signal_arguments = [
            Argument::Address(self.block.address()),
            Argument::Address(self.signals.address(self.id)),
            Argument::Address(self.ended.address()),
        ];
        let one_block = |threads| LaunchShape { grid: [1; 3], threads, shared_bytes: 0 };
        capturing.capture(&self.stream, |stream| {
            if fetches {
                stream.launch(fetch, one_block(256), &blocks)?;
            }
            let parameters = self.block.address().offset(HEAD_BYTES);
            issue(&mut Capture { stream, parameters, blocks, head_words: (HEAD_BYTES / word) as i32 })?;
            stream.launch(signal, one_block(32), &signal_arguments)
        })
    }

    /// Returns whether everything up to a position is complete; `None` if no operation has that position yet.
    pub(super) fn is_complete(&self, position: u64) -> Option<bool> {
        (position <= self.position).then(|| position <= self.signals.complete(self.id))
    }

    /// Returns whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.signals.complete(self.id) == self.position
    }

    /// Launches a graph with its parameters.
    pub(super) fn launch(&mut self, graph: &GraphExec, parameters: &[u8]) -> Result<Operation, DeviceError> {
        self.write_block(parameters)?;
        self.stream.launch_graph(graph)?;
        Ok(self.has_issued())
    }

    /// Issues operations that are not a graph, followed by one that signals them.
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

    /// Writes the next operation's block to host memory.
    fn write_block(&mut self, parameters: &[u8]) -> Result<(), DeviceError> {
        let Blocks { depth, bytes } = self.shape;
        self.check_parameters(parameters.len())?;
        if self.position - self.signals.complete(self.id) >= u64::from(depth) {
            return Err(DeviceError::Full { stream: self.id, depth });
        }
        let place = (self.position % u64::from(depth)) as usize;
        #[expect(unsafe_code, reason = "the card reads the block only after the launch")]
        // SAFETY: the last operation that read this block is complete, as was checked above.
        let block = unsafe { self.blocks.bytes_mut(place * bytes as usize, bytes as usize) };
        let (head, rest) = block.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&(self.position + 1).to_ne_bytes());
        rest[..parameters.len()].copy_from_slice(parameters);
        Ok(())
    }

    /// Returns a ticket for everything issued so far. `is_waited_for`: other streams may wait for it.
    pub(super) fn record(&mut self, is_waited_for: bool) -> Result<Ticket, DeviceError> {
        if self.has_waited {
            // The ticket must include the waits, which have no position of their own.
            self.issue(|_| Ok(()))?;
        }
        let ticket = Ticket { stream: self.id, position: self.position };
        let complete = self.signals.complete(self.id);
        while let Some((_, event)) = self.recorded.pop_front_if(|(position, _)| *position <= complete) {
            self.spare.push(event);
        }
        // No event is needed for a position that is complete or has one already.
        let is_known = complete == self.position || self.recorded.back().is_some_and(|(own, _)| *own == self.position);
        if is_waited_for && !is_known {
            let event = self.spare.pop().map_or_else(|| Event::new(&self.context), Ok)?;
            event.record(&self.stream)?;
            self.recorded.push_back((self.position, event));
        }
        Ok(ticket)
    }

    /// Returns the event recorded at a position that is not complete.
    pub(super) fn event(&self, position: u64) -> Option<&Event> {
        self.recorded.iter().find(|(own, _)| *own == position).map(|(_, event)| event)
    }

    /// Makes everything issued from here on wait for an event.
    pub(super) fn wait(&mut self, event: &Event) -> Result<(), DeviceError> {
        self.stream.wait(event)?;
        self.has_waited = true;
        Ok(())
    }
}
