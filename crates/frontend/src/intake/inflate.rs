//! Decompresses a message step by step: the first steps on the I/O thread, the others on workers.

use std::{
    io::{self, Read},
    sync::Arc,
};

use bytes::{Buf, Bytes, buf::Reader};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use paternoster_observe::budget::{Exhausted, Reservation};
use tonic::Status;

use super::{Buffer, Encoding, Message, ROOM_PATIENCE, Workers, no_room};

/// Bytes of output per step.
const STEP_BYTES: usize = 256 << 10;

/// Number of steps that a worker makes before other work gets its turn.
const STEPS_AT_A_TIME: usize = 16;

/// Why a message cannot be decompressed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InflateError {
    /// The data does not match its encoding.
    #[error("cannot decompress the message: {0}")]
    Broken(io::Error),
    /// The message exceeds its limit in bytes.
    #[error("decompressed message is larger than {0} bytes")]
    TooLarge(usize),
    /// The system has no memory for it.
    #[error("no memory for the decompressed message")]
    NoMemory,
    /// The budget has no room for it.
    #[error("{}", no_room(.0).message())]
    NoRoom(Exhausted),
    /// The work panicked.
    #[error("{}", .0.message())]
    Work(Status),
}

impl From<InflateError> for Status {
    fn from(error: InflateError) -> Self {
        match error {
            InflateError::Broken(_) => Self::internal(error.to_string()),
            InflateError::TooLarge(_) | InflateError::NoMemory => Self::resource_exhausted(error.to_string()),
            InflateError::NoRoom(exhausted) => no_room(&exhausted),
            InflateError::Work(status) => status,
        }
    }
}

enum Decoder {
    /// One or several members (RFC 1952, section 2.2).
    Gzip(MultiGzDecoder<Reader<Bytes>>),
    Deflate(ZlibDecoder<Reader<Bytes>>),
}

impl Decoder {
    /// Decompresses up to [`STEP_BYTES`] more into `message`, and returns how many.
    fn read(&mut self, message: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.take(STEP_BYTES as u64).read_to_end(message),
            Self::Deflate(decoder) => decoder.take(STEP_BYTES as u64).read_to_end(message),
        }
    }

    /// Checks that nothing follows the compressed data. What follows a member of gzip has to be another one.
    fn end(&self) -> io::Result<()> {
        match self {
            Self::Deflate(decoder) if decoder.get_ref().get_ref().has_remaining() => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "bytes follow the end of the compressed data"))
            }
            _ => Ok(()),
        }
    }
}

/// A message being decompressed.
pub(crate) struct Inflate {
    decoder: Decoder,
    compressed_bytes: usize,
    message: Buffer,
    limit: usize,
}

impl Inflate {
    /// Starts decompressing a message of at most `limit` bytes, for whose memory `held` has to grow.
    pub(crate) fn new(encoding: Encoding, compressed: Bytes, limit: usize, held: &Reservation) -> Self {
        let compressed_bytes = compressed.len();
        let decoder = match encoding {
            Encoding::Gzip => Decoder::Gzip(MultiGzDecoder::new(compressed.reader())),
            Encoding::Deflate => Decoder::Deflate(ZlibDecoder::new(compressed.reader())),
        };
        // Up to the limit and a step, after which the message is refused.
        let most = limit.saturating_add(STEP_BYTES).min(held.largest());
        Self { decoder, compressed_bytes, message: Buffer::new(most), limit }
    }

    /// Makes one step if the budget has room for its output. Returns the message once it is complete.
    ///
    /// # Errors
    /// See [`Self::step`].
    pub(crate) fn step_within(&mut self, held: &mut Reservation) -> Result<Option<Bytes>, InflateError> {
        let before = self.message.len();
        if !held.try_grow(STEP_BYTES) {
            return Ok(None);
        }
        let message = self.step()?;
        match &message {
            // The compressed message is released now.
            Some(message) => held.shrink_to(message.len()),
            None => debug_assert_eq!(self.message.len(), before + STEP_BYTES),
        }
        Ok(message)
    }

    /// Makes all remaining steps on workers, a few at a time so that other work is not delayed. Waits for room in the
    /// budget.
    ///
    /// # Errors
    /// Those of [`Self::step`]; also if there is no room in time.
    pub(crate) async fn finish(
        mut self: Box<Self>,
        mut held: Reservation,
        workers: Arc<Workers>,
    ) -> Result<Message, InflateError> {
        loop {
            held.grow_within(STEP_BYTES, ROOM_PATIENCE).await.map_err(InflateError::NoRoom)?;
            held.shrink_to(held.amount() - STEP_BYTES);
            let bytes = self.compressed_bytes + self.message.len();
            let message;
            (self, held, message) = workers.run(bytes, move || self.steps(held)).await.map_err(InflateError::Work)?;
            if let Some(bytes) = message? {
                return Ok(Message { bytes, held });
            }
        }
    }

    fn steps(
        mut self: Box<Self>,
        mut held: Reservation,
    ) -> (Box<Self>, Reservation, Result<Option<Bytes>, InflateError>) {
        for _ in 0..STEPS_AT_A_TIME {
            let before = held.amount();
            match self.step_within(&mut held) {
                // Continue unless there was no room, since there is more to come.
                Ok(None) if held.amount() > before => {}
                result => return (self, held, result),
            }
        }
        (self, held, Ok(None))
    }

    /// Makes one step. Returns the message once it is complete.
    ///
    /// # Errors
    /// If the data does not match its encoding, or if the message exceeds its limit or the available memory.
    fn step(&mut self) -> Result<Option<Bytes>, InflateError> {
        let message = self.message.with_room(STEP_BYTES).map_err(|_| InflateError::NoMemory)?;
        let gained = self.decoder.read(message).map_err(InflateError::Broken)?;
        if self.message.len() > self.limit {
            return Err(InflateError::TooLarge(self.limit));
        }
        if gained == STEP_BYTES {
            return Ok(None);
        }
        self.decoder.end().map_err(InflateError::Broken)?;
        Ok(Some(self.message.finish()))
    }
}
