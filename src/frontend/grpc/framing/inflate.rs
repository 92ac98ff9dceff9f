//! Decompressing one message a step at a time, so that a large one does not hold up the thread's other calls.

use std::io::Read;

use bytes::{Buf, Bytes, buf::Reader};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use tonic::Status;

use super::Encoding;

/// Bytes of output per step.
const STEP_BYTES: usize = 256 << 10;

enum Decoder {
    Gzip(GzDecoder<Reader<Bytes>>),
    Deflate(ZlibDecoder<Reader<Bytes>>),
}

/// A message under decompression.
pub(super) struct Inflate {
    decoder: Decoder,
    message: Vec<u8>,
    limit: usize,
}

impl Inflate {
    /// Begins with a compressed message that may become `limit` bytes long.
    pub(super) fn new(encoding: Encoding, compressed: Bytes, limit: usize) -> Self {
        let decoder = match encoding {
            Encoding::Gzip => Decoder::Gzip(GzDecoder::new(compressed.reader())),
            Encoding::Deflate => Decoder::Deflate(ZlibDecoder::new(compressed.reader())),
        };
        Self { decoder, message: Vec::new(), limit }
    }

    /// Goes one step further; the message once it is complete.
    ///
    /// # Errors
    /// INTERNAL when the data is not what its encoding says, RESOURCE_EXHAUSTED when the message exceeds its limit or
    /// the memory there is.
    pub(super) fn step(&mut self) -> Result<Option<Bytes>, Status> {
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
