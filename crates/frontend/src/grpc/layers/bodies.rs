//! The bodies around those of tonic: requests whose messages have arrived, and replies that count until they are sent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use paternoster_executor::Backlog;
use paternoster_observe::trace::Sending;
use tonic::Status;

use super::status::{encode_message, trailers};
use crate::{
    grpc::{
        call::Call,
        codec::{HANDED_OVER, Handover},
        messages::{MessageReader, PREFIX_BYTES, Writer},
    },
    unsent::admitted,
};

/// The body of a request as tonic reads it: uncompressed messages that have arrived as a whole.
pub(in crate::grpc) enum RequestBody {
    /// The only message of a call, until it is read.
    Message(Option<Bytes>),
    /// Messages that are handed over.
    Messages { reader: Box<MessageReader<Incoming>>, handover: Arc<Handover> },
    /// What only tonic reads.
    Unread(Incoming),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.get_mut() {
            Self::Message(message) => Poll::Ready(message.take().map(|message| Ok(Frame::data(message)))),
            Self::Messages { reader, handover } => {
                let polled = reader.poll_next(context);
                handover.set_next_has_begun(reader.has_begun());
                polled.map_ok(|message| {
                    handover.put_request(message);
                    Frame::data(HANDED_OVER)
                })
            }
            Self::Unread(body) => Pin::new(body).poll_frame(context).map_err(|error| Status::from_error(error.into())),
        }
    }
}

/// The body of a response: what tonic writes, with the replies that were handed over. Each reply counts in the backlog
/// of its connection until it has been sent.
#[derive(Default)]
pub(in crate::grpc) struct ResponseBody {
    body: tonic::body::Body,
    replies: Option<Replies>,
    /// Records when the response has been sent, if its request is traced.
    sending: Option<Sending>,
}

/// Where replies come from, and where they count.
pub(super) struct Replies {
    handover: Arc<Handover>,
    backlog: Arc<Backlog>,
    writer: Writer,
}

impl Replies {
    /// Those of a call.
    pub(super) fn of(Call { handover, holds, writer, .. }: &Call) -> Self {
        Self { handover: Arc::clone(handover), backlog: Arc::clone(&holds.backlog), writer: *writer }
    }
}

impl ResponseBody {
    /// Puts the replies into a body that tonic writes; `None` if they do not count.
    pub(super) fn new(body: tonic::body::Body, replies: Option<Replies>) -> Self {
        Self { body, replies, sending: None }
    }

    /// Returns the frame of a reply, given that of tonic.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if it exceeds the limit, or if too much waits.
    fn reply(&mut self, frame: Bytes) -> Result<Bytes, Status> {
        let Some(Replies { handover, backlog, writer }) = &self.replies else { return Ok(frame) };
        if let Some(reply) = handover.take_reply() {
            self.sending = reply.sending;
            return Ok(reply.frame);
        }
        writer.check_length(frame.len().saturating_sub(PREFIX_BYTES))?;
        admitted(frame, backlog).map_err(|unread| Status::resource_exhausted(unread.to_string()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()? else {
            return Poll::Ready(None);
        };
        let frame = match frame.into_data() {
            Ok(frame) => self.reply(frame).map_or_else(
                |status| {
                    self.body = tonic::body::Body::empty();
                    Frame::trailers(trailers(&status))
                },
                Frame::data,
            ),
            Err(frame) => {
                frame.into_trailers().map_or_else(|frame| frame, |trailers| Frame::trailers(encode_message(trailers)))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    /// Returns the response that tonic writes with this frame, for a client whose replies have at most 1000 bytes.
    fn response(call: &Call, frame: &'static [u8]) -> ResponseBody {
        let body = tonic::body::Body::new(Full::new(Bytes::from_static(frame)));
        ResponseBody::new(body, Some(Replies::of(call)))
    }

    #[tokio::test]
    async fn a_reply_that_tonic_has_encoded_counts_until_it_is_sent() {
        let call = Call::example();
        let sent = response(&call, b"\0\0\0\0\x01x").frame().await.expect("a frame").expect("no error");
        assert_eq!(call.holds.backlog.waiting_bytes(), 6);
        assert_eq!(sent.into_data().expect("data"), b"\0\0\0\0\x01x"[..]);
        assert_eq!(call.holds.backlog.waiting_bytes(), 0);
    }

    #[tokio::test]
    async fn a_reply_over_the_limit_ends_the_call_with_a_status() {
        let call = Call::example();
        let mut response = response(&call, &[0; PREFIX_BYTES + 1001]);
        let frame = response.frame().await.expect("a frame").expect("no error");
        let status = Status::from_header_map(frame.trailers_ref().expect("trailers")).expect("a status");
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(status.message().contains("1001 vs. 1000"), "{}", status.message());
        assert!(response.is_end_stream() && response.frame().await.is_none());
    }
}
