//! The slots that a task reads and writes, which become its accesses on the device.

use paternoster_device::{Access, BufferId, BufferRows};
use smallvec::SmallVec;

/// The slots that a task accesses, by buffer.
#[derive(Default)]
pub(super) struct Touched(SmallVec<[(BufferId, OfBuffer); 4]>);

#[derive(Default)]
struct OfBuffer {
    read: Vec<u32>,
    written: Vec<u32>,
    updated: Vec<u32>,
}

impl Touched {
    fn of(&mut self, buffer: BufferId) -> &mut OfBuffer {
        let at = self.0.iter().position(|(own, _)| *own == buffer).unwrap_or_else(|| {
            self.0.push((buffer, OfBuffer::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    pub(super) fn read(&mut self, buffer: BufferId, slot: u32) {
        self.of(buffer).read.push(slot);
    }

    /// Adds a written slot. `is_read`: the task also reads what the slot held before.
    pub(super) fn write(&mut self, buffer: BufferId, slot: u32, is_read: bool) {
        let of = self.of(buffer);
        if is_read { of.updated.push(slot) } else { of.written.push(slot) }
    }

    pub(super) fn accesses(self) -> Vec<Access> {
        let mut accesses = Vec::new();
        for (buffer, OfBuffer { read, written, updated }) in self.0 {
            let list = |rows: Vec<u32>| (!rows.is_empty()).then(|| BufferRows::List(rows.into()));
            accesses.extend(list(read).map(|rows| Access::read(buffer, rows)));
            accesses.extend(list(written).map(|rows| Access::write(buffer, rows)));
            accesses.extend(list(updated).map(|rows| Access::update(buffer, rows)));
        }
        accesses
    }
}
