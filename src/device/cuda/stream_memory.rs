//! Memory that whatever runs on one stream uses in turn.

use std::rc::{Rc, Weak};

use super::{Cuda, Memory};
use crate::device::{DeviceError, StreamId};

/// By stream: the memory that was taken last, while something still has it.
#[derive(Debug, Default)]
pub(super) struct StreamMemory(Vec<Weak<Memory>>);

impl Cuda {
    /// Returns memory of at least `bytes` for work of one stream. Work on a stream runs one after another, so all of it
    /// shares this memory, and nothing in it outlasts a run. A caller that writes there outside of a run, as to try an
    /// algorithm, [drains](Self::drain) the stream first.
    ///
    /// # Errors
    /// When there is no such stream, not as much memory, or the device is lost.
    pub fn stream_memory(&mut self, stream: StreamId, bytes: usize) -> Result<Rc<Memory>, DeviceError> {
        self.queue(stream)?;
        let known = &mut self.stream_memory.0;
        if known.len() <= stream.index() {
            known.resize_with(stream.index() + 1, Weak::new);
        }
        if let Some(memory) = known[stream.index()].upgrade().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory);
        }
        let memory = Rc::new(Memory::new(&self.context, bytes)?);
        self.stream_memory.0[stream.index()] = Rc::downgrade(&memory);
        Ok(memory)
    }

    /// Waits until all that a stream was given has ended. For loading.
    ///
    /// # Errors
    /// When there is no such stream, or the device is lost.
    pub fn drain(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.queue(stream)?.stream.synchronize()
    }
}
