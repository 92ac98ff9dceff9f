//! Decompressing one message a step at a time: the first where it came in, the others apart from the I/O threads.

use std::{io::Read, sync::Arc};

use bytes::{Buf, Bytes, buf::Reader};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use tonic::Status;

use super::{
    Encoding, Message,
    reader::{ROOM_PATIENCE, no_room},
};
use crate::{budget::Reservation, frontend::grpc::workers::Workers};

/// Bytes of output per step.
const STEP_BYTES: usize = 256 << 10;

/// Steps that a worker makes before others have their turn.
const STEPS_AT_A_TIME: usize = 16;

enum Decoder {
    Gzip(GzDecoder<Reader<Bytes>>),
    Deflate(ZlibDecoder<Reader<Bytes>>),
}

/// A message under decompression.
pub(super) struct Inflate {
    decoder: Decoder,
    compressed_bytes: usize,
    message: Vec<u8>,
    limit: usize,
}

impl Inflate {
    /// Begins with a compressed message that may become `limit` bytes long.
    pub(super) fn new(encoding: Encoding, compressed: Bytes, limit: usize) -> Self {
        let compressed_bytes = compressed.len();
        let decoder = match encoding {
            Encoding::Gzip => Decoder::Gzip(GzDecoder::new(compressed.reader())),
            Encoding::Deflate => Decoder::Deflate(ZlibDecoder::new(compressed.reader())),
        };
        Self { decoder, compressed_bytes, message: Vec::new(), limit }
    }

    /// Makes one step, if there is room for what it may give; the message once it is complete.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(super) fn step_within(&mut self, held: &mut Reservation) -> Result<Option<Bytes>, Status> {
        let before = self.message.len();
        if !held.try_grow(STEP_BYTES) {
            return Ok(None);
        }
        let message = self.step()?;
        match &message {
            // The compressed message goes now.
            Some(message) => held.shrink_to(message.len()),
            None => debug_assert_eq!(self.message.len(), before + STEP_BYTES),
        }
        Ok(message)
    }

    /// Makes all further steps, a few at a time, where they hold nobody up. Waits for room where there is none.
    ///
    /// # Errors
    /// As [`Self::step`], and RESOURCE_EXHAUSTED when there is no room in time.
    pub(super) async fn finish(
        mut self: Box<Self>,
        mut held: Reservation,
        workers: Arc<Workers>,
    ) -> Result<Message, Status> {
        loop {
            held.grow_within(STEP_BYTES, ROOM_PATIENCE).await.map_err(|error| no_room(&error))?;
            held.shrink_to(held.amount() - STEP_BYTES);
            let bytes = self.compressed_bytes + self.message.len();
            let message;
            (self, held, message) = workers.run(bytes, move || self.steps(held)).await?;
            if let Some(bytes) = message? {
                return Ok(Message { bytes, held });
            }
        }
    }

    fn steps(mut self: Box<Self>, mut held: Reservation) -> (Box<Self>, Reservation, Result<Option<Bytes>, Status>) {
        for _ in 0..STEPS_AT_A_TIME {
            let before = held.amount();
            match self.step_within(&mut held) {
                // Either there is no room, or there is more to come.
                Ok(None) if held.amount() > before => {}
                result => return (self, held, result),
            }
        }
        (self, held, Ok(None))
    }

    /// Goes one step further; the message once it is complete.
    ///
    /// # Errors
    /// INTERNAL when the data is not what its encoding says, RESOURCE_EXHAUSTED when the message exceeds its limit or
    /// the memory there is.
    fn step(&mut self) -> Result<Option<Bytes>, Status> {
        let before = self.message.len();
        self.message
            .try_reserve(if before == 0 { 0 } else { STEP_BYTES })
            .map_err(|_| Status::resource_exhausted("no memory for the decompressed message"))?;
        let outcome = match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.take(STEP_BYTES as u64).read_to_end(&mut self.message),
            Decoder::Deflate(decoder) => decoder.take(STEP_BYTES as u64).read_to_end(&mut self.message),
        };
        let gained = outcome.map_err(|error| Status::internal(format!("cannot decompress the message: {error}")))?;
        if self.message.len() > self.limit {
            let limit = self.limit;
            return Err(Status::resource_exhausted(format!("decompressed message is larger than {limit} bytes")));
        }
        Ok((gained < STEP_BYTES).then(|| std::mem::take(&mut self.message).into()))
    }
}
