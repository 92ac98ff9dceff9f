//! The bytes of a message while they arrive.

use std::collections::TryReserveError;

use bytes::Bytes;

/// Bytes that a message must have before it gets memory for its largest length.
pub(crate) const TRUSTED_BYTES: usize = 1 << 20;

/// Below [`TRUSTED_BYTES`], the memory is at most this many times the bytes that are there.
const GROWTH: usize = 8;

/// A message that is not complete.
///
/// A buffer that grows by copying needs its old and its new memory at once, and the allocator keeps the old one for a
/// while. So a long message is copied once, early, into a buffer for the largest length that it can have. The system
/// provides the pages of such a buffer when they are written. Memory therefore is what has arrived, which is what the
/// budget counts, and at most [`TRUSTED_BYTES`] more during the copy.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    most: usize,
}

impl Buffer {
    /// Creates a buffer for a message of at most `most` bytes: its declared length, or the limit.
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most }
    }

    /// Returns how many bytes are there.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns how much memory there is, written or not.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Makes room for `more` bytes, which the budget must have counted, and returns the bytes so far. No more than
    /// that may be appended.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn with_room(&mut self, more: usize) -> Result<&mut Vec<u8>, TryReserveError> {
        let needed = self.bytes.len().saturating_add(more);
        if needed > self.bytes.capacity() {
            let room = if needed > TRUSTED_BYTES {
                self.most
            } else {
                needed.saturating_mul(GROWTH).min(TRUSTED_BYTES).min(self.most)
            };
            self.bytes.try_reserve_exact(room.max(needed) - self.bytes.len())?;
        }
        Ok(&mut self.bytes)
    }

    /// Returns the message. Memory that a short one did not need is given back.
    pub(crate) fn finish(&mut self) -> Bytes {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() <= TRUSTED_BYTES {
            bytes.shrink_to_fit();
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds bytes in pieces, and returns how many of them were copied to other memory.
    fn moved(buffer: &mut Buffer, bytes: usize, piece: usize) -> usize {
        let mut moved = 0;
        for begin in (0..bytes).step_by(piece) {
            let piece = piece.min(bytes - begin);
            let before = buffer.bytes.as_ptr();
            let held = buffer.with_room(piece).expect("memory");
            let has_moved = held.as_ptr() != before;
            moved += if has_moved { begin } else { 0 };
            held.extend((begin..begin + piece).map(|byte| (byte % 251) as u8));
        }
        moved
    }

    #[test]
    fn a_long_message_moves_early_and_never_again() {
        for (most, bytes) in [(64 << 20, 40 << 20), (40 << 20, 40 << 20)] {
            let mut buffer = Buffer::new(most);
            let moved = moved(&mut buffer, bytes, 64 << 10);
            assert!(moved <= 2 * TRUSTED_BYTES, "{moved} bytes of {bytes} were copied");
            assert_eq!(buffer.capacity(), most, "for the largest length that it can have");
            let message = buffer.finish();
            assert!(message.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8));
            assert_eq!(message.len(), bytes);
        }
    }

    #[test]
    fn a_length_that_is_only_declared_gets_little_memory() {
        let mut buffer = Buffer::new(usize::MAX >> 1);
        buffer.with_room(1).expect("memory").push(b'x');
        assert!(buffer.capacity() <= GROWTH, "{} bytes", buffer.capacity());
        let room = moved(&mut Buffer::new(1 << 30), TRUSTED_BYTES, 1000);
        assert!(room < TRUSTED_BYTES, "{room} bytes were copied");
    }

    #[test]
    fn a_short_message_keeps_no_more_memory_than_it_has() {
        let mut buffer = Buffer::new(64 << 20);
        moved(&mut buffer, 1000, 300);
        let message: Vec<u8> = buffer.finish().into();
        assert_eq!((message.len(), message.capacity()), (1000, 1000));
    }
}
