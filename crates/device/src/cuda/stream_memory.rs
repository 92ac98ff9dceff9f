//! Scratch memory that all work on one stream shares.

use std::rc::{Rc, Weak};

use super::{Cuda, Memory};
use crate::{DeviceError, StreamId};

/// The latest memory of each stream, while something holds it.
#[derive(Debug, Default)]
pub(super) struct StreamMemory(Vec<Weak<Memory>>);

impl Cuda {
    /// Returns memory of at least `bytes` for the work of one stream. Work on a stream runs in order, so all of it can
    /// share this memory. Its contents do not outlast a run. A caller that writes there outside of a run, such as to
    /// try an algorithm, must [drain](Self::drain) the stream first.
    ///
    /// # Errors
    /// If there is no such stream, too little memory, or the device is lost.
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

    /// Waits until everything issued to a stream has ended. For loading.
    ///
    /// # Errors
    /// If there is no such stream, or the device is lost.
    pub fn drain(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.queue(stream)?.stream.synchronize()
    }
}
