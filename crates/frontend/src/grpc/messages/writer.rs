//! Encodes the messages of a response.

use bytes::Bytes;
use prost::Message;
use tonic::{Response, Status};

use super::{PREFIX_BYTES, Packing, compression::GRPC_ENCODING};

/// Encoder for the messages of one response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    packing: Option<Packing>,
    limit: usize,
}

impl Writer {
    /// Creates an encoder for messages of at most `limit` bytes each.
    pub(crate) fn new(packing: Option<Packing>, limit: usize) -> Self {
        Self { packing, limit }
    }

    /// Whether it compresses messages.
    pub(crate) fn packs(self) -> bool {
        self.packing.is_some()
    }

    /// Returns the response with such messages, and the header for their compression.
    pub(crate) fn response<M>(self, messages: M) -> Response<M> {
        let mut response = Response::new(messages);
        if let Some(packing) = self.packing {
            response.metadata_mut().as_mut().insert(GRPC_ENCODING, packing.header());
        }
        response
    }

    /// Checks the length of an uncompressed message.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if it exceeds the limit.
    pub(crate) fn check_length(self, length: usize) -> Result<(), Status> {
        let limit = self.limit;
        if length > limit {
            return Err(Status::resource_exhausted(format!("sent message larger than max ({length} vs. {limit})")));
        }
        Ok(())
    }

    /// Encodes a message with its prefix.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if it exceeds the limit or the available memory.
    pub(crate) fn encode(self, message: &impl Message) -> Result<Bytes, Status> {
        let length = message.encoded_len();
        self.check_length(length)?;
        let mut frame = Vec::new();
        frame
            .try_reserve_exact(PREFIX_BYTES + length)
            .map_err(|_| Status::resource_exhausted(format!("no memory for a reply of {length} bytes")))?;
        frame.resize(PREFIX_BYTES, 0);
        match self.packing {
            None => message.encode_raw(&mut frame),
            Some(packing) => {
                frame = packing
                    .compress(&message.encode_to_vec(), frame)
                    .map_err(|error| Status::internal(format!("cannot compress the reply: {error}")))?;
                frame[0] = 1;
            }
        }
        let length = u32::try_from(frame.len() - PREFIX_BYTES)
            .map_err(|_| Status::resource_exhausted("reply is larger than a gRPC message can be"))?;
        frame[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        Ok(frame.into())
    }
}
