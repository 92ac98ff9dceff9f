//! Buffers of a device by identifier.

use super::{BufferId, DeviceError};

/// Buffers by identifier. Identifiers are unique: a reused index gets another generation.
#[derive(Clone, Debug)]
pub struct Registry<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    buffer: Option<T>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Registry<T> {
    /// Stores a buffer and returns its identifier.
    pub fn insert(&mut self, buffer: T) -> BufferId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, buffer: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.buffer = Some(buffer);
        BufferId { index, generation: slot.generation }
    }

    /// Returns a buffer.
    ///
    /// # Errors
    /// [`DeviceError::UnknownBuffer`].
    pub fn get(&self, id: BufferId) -> Result<&T, DeviceError> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.buffer.as_ref()).ok_or(DeviceError::UnknownBuffer(id))
    }

    /// Returns a buffer to change.
    ///
    /// # Errors
    /// [`DeviceError::UnknownBuffer`].
    pub fn get_mut(&mut self, id: BufferId) -> Result<&mut T, DeviceError> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.buffer.as_mut()).ok_or(DeviceError::UnknownBuffer(id))
    }

    /// Removes a buffer and returns it.
    ///
    /// # Errors
    /// [`DeviceError::UnknownBuffer`].
    pub fn remove(&mut self, id: BufferId) -> Result<T, DeviceError> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
        let (slot, buffer) = slot
            .and_then(|slot| slot.buffer.take().map(|buffer| (slot, buffer)))
            .ok_or(DeviceError::UnknownBuffer(id))?;
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(id.index);
        Ok(buffer)
    }
}
