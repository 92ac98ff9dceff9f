//! Reading messages out of a request's body.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::Body;
use prost::Message;
use tonic::Status;

use super::{Encoding, PREFIX_BYTES, inflate::Inflate};

/// A message gets this much memory on its declared length alone, in bytes.
const TRUSTED_BYTES: usize = 1 << 20;

/// … and from then on at most this many times the bytes that have come.
const TRUST_FACTOR: usize = 8;

/// Splits a request's body into messages.
///
/// ```text
/// Prefix => (Gathering | Ended)     five bytes, or the body's end before the first of them
/// Gathering => (Inflating | Prefix) the message is complete
/// Inflating => Prefix
/// any => Ended                      after an error
/// ```
pub(in crate::frontend::grpc) struct MessageReader<B> {
    body: B,
    state: State,
    /// What has come and is not read yet.
    chunk: Bytes,
    encoding: Option<Encoding>,
    limit: usize,
}

enum State {
    Prefix { bytes: [u8; PREFIX_BYTES], filled: usize },
    Gathering { compressed: bool, length: usize, gathered: Vec<u8> },
    Inflating(Box<Inflate>),
    Ended,
}

const AT_PREFIX: State = State::Prefix { bytes: [0; PREFIX_BYTES], filled: 0 };

impl<B> MessageReader<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    /// A reader of messages of at most `limit` bytes, of which those so flagged are compressed by `encoding`.
    pub(in crate::frontend::grpc) fn new(body: B, encoding: Option<Encoding>, limit: usize) -> Self {
        Self { body, state: AT_PREFIX, chunk: Bytes::new(), encoding, limit }
    }

    /// The one message of a unary call, once the client has said that nothing follows.
    ///
    /// # Errors
    /// INTERNAL when there is none or more than one, or when it is no such message; see [`Self::poll_next`].
    pub(in crate::frontend::grpc) async fn only<M: Message + Default>(&mut self) -> Result<M, Status> {
        let Some(message) = poll_fn(|context| self.poll_next(context)).await.transpose()? else {
            return Err(Status::internal("the call carries no message"));
        };
        if poll_fn(|context| self.poll_next(context)).await.transpose()?.is_some() {
            return Err(Status::internal("the call carries more than one message"));
        }
        decode(message)
    }

    /// The next message, uncompressed, or `None` after the last one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a message over the limit or over the memory there is, INTERNAL for a broken frame,
    /// CANCELLED when the client went away. Nothing follows an error.
    pub(in crate::frontend::grpc) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Status>>> {
        let result = ready!(self.poll_message(context));
        if !matches!(result, Ok(Some(_))) {
            self.state = State::Ended;
            self.chunk = Bytes::new();
        }
        Poll::Ready(result.transpose())
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(Ok(None)),
                State::Inflating(inflate) => {
                    let Some(message) = inflate.step()? else {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    };
                    self.state = AT_PREFIX;
                    return Poll::Ready(Ok(Some(message)));
                }
                State::Prefix { bytes, filled } => {
                    let taken = self.chunk.len().min(PREFIX_BYTES - *filled);
                    self.chunk.copy_to_slice(&mut bytes[*filled..*filled + taken]);
                    *filled += taken;
                    if *filled == PREFIX_BYTES {
                        let prefix = *bytes;
                        self.begin_message(prefix)?;
                        continue;
                    }
                }
                State::Gathering { compressed, length, gathered } => {
                    if let Some(message) = gather(&mut self.chunk, *length, gathered)? {
                        let Some(encoding) = self.encoding.filter(|_| *compressed) else {
                            self.state = AT_PREFIX;
                            return Poll::Ready(Ok(Some(message)));
                        };
                        self.state = State::Inflating(Box::new(Inflate::new(encoding, message, self.limit)));
                        continue;
                    }
                }
            }
            if !ready!(self.poll_chunk(context))? {
                let clean = matches!(self.state, State::Prefix { filled: 0, .. });
                return Poll::Ready(if clean { Ok(None) } else { Err(Status::internal("the body ends in a message")) });
            }
        }
    }

    fn begin_message(&mut self, prefix: [u8; PREFIX_BYTES]) -> Result<(), Status> {
        let [flag, length @ ..] = prefix;
        let compressed = match flag {
            0 => false,
            1 if self.encoding.is_some() => true,
            1 => return Err(Status::internal("a compressed message in a call without grpc-encoding")),
            _ => return Err(Status::internal(format!("message flag is {flag}, expected 0 or 1"))),
        };
        let length = u32::from_be_bytes(length) as usize;
        if length > self.limit {
            let limit = self.limit;
            return Err(Status::resource_exhausted(format!("received message larger than max ({length} vs. {limit})")));
        }
        self.state = State::Gathering { compressed, length, gathered: Vec::new() };
        Ok(())
    }

    /// Fetches more of the body; false at its end.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        loop {
            return match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => Poll::Ready(Ok(false)),
                Some(Err(error)) => Poll::Ready(Err(Status::cancelled(format!("the client went away: {error}")))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.chunk = data;
                        Poll::Ready(Ok(true))
                    }
                    // Trailers of a request mean nothing here; the end follows.
                    Err(_) => continue,
                },
            };
        }
    }
}

/// Moves what belongs to the message out of `chunk`; the message once it is complete. One that came in one piece is
/// not copied.
fn gather(chunk: &mut Bytes, length: usize, gathered: &mut Vec<u8>) -> Result<Option<Bytes>, Status> {
    if gathered.is_empty() && chunk.len() >= length {
        return Ok(Some(chunk.split_to(length)));
    }
    let piece = chunk.split_to(chunk.len().min(length - gathered.len()));
    let needed = gathered.len() + piece.len();
    if needed > gathered.capacity() {
        let trusted = needed.saturating_mul(TRUST_FACTOR).max(TRUSTED_BYTES).min(length);
        gathered
            .try_reserve_exact(trusted - gathered.len())
            .map_err(|_| Status::resource_exhausted(format!("no memory for a message of {length} bytes")))?;
    }
    gathered.extend_from_slice(&piece);
    Ok((gathered.len() == length).then(|| std::mem::take(gathered).into()))
}

/// Decodes one message.
///
/// # Errors
/// INTERNAL where the bytes are no such message.
pub(super) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(format!("cannot parse the message: {error}")))
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use flate2::Compression;
    use http_body::Frame;
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;
    use crate::frontend::grpc::{
        CompressionLevel,
        framing::{Packing, Writer},
    };

    /// A body that comes in the given pieces.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn reader(body: &[u8], piece_bytes: usize, limit: usize) -> MessageReader<Pieces> {
        let pieces = body.chunks(piece_bytes.max(1)).map(Bytes::copy_from_slice).collect();
        MessageReader::new(Pieces(pieces), Some(Encoding::Gzip), limit)
    }

    async fn next(reader: &mut MessageReader<Pieces>) -> Result<Option<Bytes>, Status> {
        poll_fn(|context| reader.poll_next(context)).await.transpose()
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("a test message");
        [&[0], &length.to_be_bytes()[..], message].concat()
    }

    fn gzipped(message: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, message).expect("memory");
        let mut frame = framed(&encoder.finish().expect("memory"));
        frame[0] = 1;
        frame
    }

    proptest! {
        #[test]
        fn messages_do_not_depend_on_how_the_body_is_cut(
            messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..6),
            piece_bytes in 1_usize..700,
        ) {
            let body: Vec<u8> = messages
                .iter()
                .flat_map(|(message, packed)| if *packed { gzipped(message) } else { framed(message) })
                .collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let mut reader = reader(&body, piece_bytes, 1 << 20);
                for (message, _) in &messages {
                    let read = next(&mut reader).await.expect("a whole message");
                    assert_eq!(read.as_deref(), Some(&message[..]), "messages come whole and in order");
                }
                assert_eq!(next(&mut reader).await.expect("a clean end"), None);
            });
        }

        #[test]
        fn no_body_makes_the_reader_panic(body in prop::collection::vec(any::<u8>(), 0..64), piece_bytes in 1_usize..9) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let mut reader = reader(&body, piece_bytes, 1 << 20);
                while let Ok(Some(_)) = next(&mut reader).await {}
                assert_eq!(next(&mut reader).await.expect("the end is final"), None);
            });
        }
    }

    #[tokio::test]
    async fn a_message_in_one_piece_is_not_copied() {
        let body = Bytes::from(framed(b"payload"));
        let mut reader = MessageReader::new(Pieces([body.clone()].into()), None, 100);
        let message = next(&mut reader).await.expect("whole").expect("one message");
        assert_eq!(message.as_ptr(), body[PREFIX_BYTES..].as_ptr());
    }

    #[tokio::test]
    async fn a_declared_length_alone_gets_little_memory() {
        let mut gathered = Vec::new();
        let length = i32::MAX as usize;
        let begun = gather(&mut Bytes::from_static(b"x"), length, &mut gathered).expect("memory");
        assert!(begun.is_none());
        assert!(gathered.capacity() <= TRUSTED_BYTES, "got {} bytes", gathered.capacity());
    }

    #[tokio::test]
    async fn a_message_over_the_limit_is_refused_by_its_declared_length() {
        let mut reader = reader(&framed(&[0; 101])[..PREFIX_BYTES], 100, 100);
        let status = next(&mut reader).await.expect_err("one byte too long");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("101 vs. 100"), "{}", status.message());
    }

    #[tokio::test]
    async fn a_compressed_message_may_not_grow_past_the_limit() {
        let mut reader = reader(&gzipped(&vec![0; 1 << 20]), 1 << 20, (1 << 20) - 1);
        let status = next(&mut reader).await.expect_err("one byte too long");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn a_large_compressed_message_is_read_whole() {
        let message: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
        let mut reader = reader(&gzipped(&message), 16 << 10, 1 << 30);
        assert!(next(&mut reader).await.expect("whole").expect("one message") == message, "the bytes are the same");
    }

    #[tokio::test]
    async fn broken_bodies_are_internal_errors() {
        let mut corrupt = gzipped(b"some text to compress");
        let checksum = corrupt.len() - 8;
        corrupt[checksum] ^= 0xff;
        for (body, what) in [
            (vec![0, 0, 0], "half a prefix"),
            (framed(b"abc")[..7].to_vec(), "half a message"),
            (vec![7, 0, 0, 0, 0], "an unknown flag"),
            (corrupt, "broken gzip"),
        ] {
            let status = next(&mut reader(&body, 100, 100)).await.expect_err(what);
            assert_eq!(status.code(), Code::Internal, "{what}: {}", status.message());
        }
    }

    #[tokio::test]
    async fn a_unary_call_has_exactly_one_message() {
        let none = reader(&[], 1, 10).only::<()>().await.expect_err("no message");
        assert!(none.message().contains("no message"), "{}", none.message());
        let two = reader(&[framed(b""), framed(b"")].concat(), 100, 10).only::<()>().await.expect_err("two messages");
        assert!(two.message().contains("more than one"), "{}", two.message());
        reader(&framed(b""), 100, 10).only::<()>().await.expect("one message");
    }

    #[tokio::test]
    async fn what_the_writer_packs_the_reader_reads() {
        let accepts = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-accept-encoding"),
            http::HeaderValue::from_static("gzip"),
        )]);
        let packing = Packing::negotiate(CompressionLevel::High, &accepts);
        let text = "again and again and again ".repeat(40);
        let frame = Writer::new(packing, 1 << 20).encode(&text).expect("small");
        assert!(frame.len() < text.len() / 4, "{} bytes are hardly compressed", frame.len());
        let read: String = reader(&frame, 50, 1 << 20).only().await.expect("one message");
        assert_eq!(read, text);
    }

    #[test]
    fn a_reply_over_the_limit_is_refused() {
        let status = Writer::new(None, 3).encode(&String::from("four")).expect_err("too long");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
