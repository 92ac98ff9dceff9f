//! The codec of all methods.
//!
//! tonic copies each message into a buffer of its call, on the I/O thread, and allocates the length that a peer
//! declares. Messages that may be large do not pass through that buffer: tonic gets a frame without bytes for each, and
//! the message itself goes through the call's [`Handover`]. So payloads remain shares of the received frames, and
//! workers decode and encode large messages.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use paternoster_observe::trace::Sending;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::messages::unparsable;
use crate::intake::Message;

/// The frame that tonic reads and writes in place of a message that is handed over.
pub(super) const HANDED_OVER: Bytes = Bytes::from_static(&[0; super::messages::PREFIX_BYTES]);

/// Hands the messages of one call past tonic to its method and back. tonic asks for the next message only when the
/// former one has been taken, so each direction has one at most. The layers also learn from it how far the call is.
#[derive(Debug, Default)]
pub(super) struct Handover {
    request: Mutex<Option<Message>>,
    reply: Mutex<Option<Reply>>,
    next_has_begun: AtomicBool,
    submitted: AtomicBool,
}

/// A reply with its prefix, counted in the backlog of its connection.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) frame: Bytes,
    /// Records when it has been sent, if its request is traced.
    pub(super) sending: Option<Sending>,
}

impl Handover {
    /// Hands a request over, for which tonic gets [`HANDED_OVER`].
    pub(super) fn put_request(&self, message: Message) {
        let former = self.request.lock().replace(message);
        debug_assert!(former.is_none(), "the former request has been taken");
    }

    /// Returns the reply for which tonic has written [`HANDED_OVER`]; `None` after one that tonic has encoded.
    pub(super) fn take_reply(&self) -> Option<Reply> {
        self.reply.lock().take()
    }

    /// Records whether a part of the next request has been received.
    pub(super) fn set_next_has_begun(&self, has_begun: bool) {
        self.next_has_begun.store(has_begun, Ordering::Relaxed);
    }

    /// Returns whether a part of the next request has been received.
    pub(super) fn next_has_begun(&self) -> bool {
        self.next_has_begun.load(Ordering::Relaxed)
    }

    /// Records that the executor has the request, which it ends at its deadline.
    pub(super) fn set_submitted(&self) {
        self.submitted.store(true, Ordering::Relaxed);
    }

    /// Returns whether the executor has the request.
    pub(super) fn is_submitted(&self) -> bool {
        self.submitted.load(Ordering::Relaxed)
    }
}

/// A request that has been handed over, not decoded.
#[derive(Debug)]
pub(crate) struct Undecoded<M>(PhantomData<fn() -> M>);

impl<M> Undecoded<M> {
    /// Returns the request's bytes.
    ///
    /// # Errors
    /// INTERNAL if `handover` is not of its call.
    pub(super) fn take(self, handover: &Handover) -> Result<Message, Status> {
        handover.request.lock().take().ok_or_else(|| Status::internal("the message has not been handed over"))
    }
}

/// An encoded reply.
#[derive(Debug)]
pub(crate) struct Encoded<M> {
    reply: Reply,
    handover: Arc<Handover>,
    message: PhantomData<fn() -> M>,
}

impl<M> Encoded<M> {
    /// Creates a reply of the call whose handover this is.
    pub(super) fn new(reply: Reply, handover: Arc<Handover>) -> Self {
        Self { reply, handover, message: PhantomData }
    }
}

/// A message that the codec reads.
pub(crate) trait Decode: Sized + Send + 'static {
    /// Reads the message from what tonic has received.
    ///
    /// # Errors
    /// INTERNAL if the bytes are not such a message.
    fn decode(source: &mut DecodeBuf<'_>) -> Result<Self, Status>;
}

impl<M: prost::Message + Default + 'static> Decode for M {
    fn decode(source: &mut DecodeBuf<'_>) -> Result<Self, Status> {
        <M as prost::Message>::decode(source).map_err(|error| unparsable(&error))
    }
}

impl<M: 'static> Decode for Undecoded<M> {
    fn decode(_source: &mut DecodeBuf<'_>) -> Result<Self, Status> {
        Ok(Self(PhantomData))
    }
}

/// A message that the codec writes.
pub(crate) trait Encode: Send + 'static {
    /// Writes the message to what tonic sends.
    fn encode(self, target: &mut EncodeBuf<'_>);
}

impl<M: prost::Message + 'static> Encode for M {
    fn encode(self, target: &mut EncodeBuf<'_>) {
        target.reserve(self.encoded_len());
        self.encode_raw(target);
    }
}

impl<M: 'static> Encode for Encoded<M> {
    fn encode(self, _target: &mut EncodeBuf<'_>) {
        *self.handover.reply.lock() = Some(self.reply);
    }
}

/// The codec of a method that answers `D` with `E`; also its encoder and its decoder.
#[derive(Debug)]
pub(crate) struct MessageCodec<E, D>(PhantomData<fn(D) -> E>);

impl<E, D> Default for MessageCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// No memory before it is needed, and each message in a frame.
const BUFFERS: (usize, usize) = (0, 1);

impl<E: Encode, D: Decode> Codec for MessageCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Encode, D> Encoder for MessageCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(target);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFERS.0, BUFFERS.1)
    }
}

impl<E, D: Decode> Decoder for MessageCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(source).map(Some)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFERS.0, BUFFERS.1)
    }
}
