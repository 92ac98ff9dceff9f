//! Reads messages from a request's body.

use std::{
    fmt::Display,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::Body;
use paternoster_observe::budget::Reservation;
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

use super::PREFIX_BYTES;
use crate::intake::{Buffer, Encoding, Inflate, Message, ROOM_PATIENCE, Workers, no_room};

/// Maximum pause in the middle of a message that holds more than [`STALL_BYTES`], so that a peer cannot hold memory by
/// sending half of a message.
const STALL_PATIENCE: Duration = Duration::from_secs(60);

/// A message with at most this many bytes may pause indefinitely.
const STALL_BYTES: usize = 64 << 10;

/// Splits a request's body into messages.
///
/// ```text
/// Prefix => (Gathering | Ended)                    five bytes, or the body's end before the first of them
/// Gathering => (Waiting | Inflating | Prefix)      there is no room | the message is complete
/// Waiting => Gathering                             there is room again
/// Inflating => (Apart | Prefix)                    it goes on for long | the message is complete
/// Apart => Prefix
/// any => Ended                                     after an error
/// ```
pub(crate) struct MessageReader<B> {
    body: B,
    state: State,
    /// Received bytes that have not been read.
    chunk: Bytes,
    encoding: Option<Encoding>,
    limit: usize,
    /// The message's share of the connection's memory budget.
    held: Reservation,
    workers: Arc<Workers>,
    /// Timer that ends a message whose peer pauses for too long.
    stall: Option<Pin<Box<Sleep>>>,
}

type Work<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

enum State {
    Prefix { bytes: [u8; PREFIX_BYTES], filled: usize },
    Gathering(Gathering),
    Waiting { room: Work<Reservation>, gathering: Gathering },
    Inflating(Box<Inflate>),
    Apart(Work<Message>),
    Ended,
}

/// A message that has partly arrived.
struct Gathering {
    compressed: bool,
    length: usize,
    gathered: Buffer,
}

const AT_PREFIX: State = State::Prefix { bytes: [0; PREFIX_BYTES], filled: 0 };

impl<B> MessageReader<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    /// Creates a reader of messages of at most `limit` bytes. Messages flagged as compressed use `encoding`. Their
    /// memory is reserved in `held`, which must be empty; large messages are decompressed by `workers`.
    pub(crate) fn new(
        body: B,
        encoding: Option<Encoding>,
        limit: usize,
        held: Reservation,
        workers: Arc<Workers>,
    ) -> Self {
        Self { body, state: AT_PREFIX, chunk: Bytes::new(), encoding, limit, held, workers, stall: None }
    }

    /// Returns whether a part of the next message has been received.
    pub(crate) fn has_begun(&self) -> bool {
        let is_between = matches!(self.state, State::Ended | State::Prefix { filled: 0, .. });
        !is_between || !self.chunk.is_empty()
    }

    /// Returns the single message of a unary call, once the client has half-closed.
    ///
    /// # Errors
    /// INTERNAL if there is no message or more than one; see [`Self::poll_next`].
    pub(crate) async fn only(&mut self) -> Result<Message, Status> {
        let Some(message) = poll_fn(|context| self.poll_next(context)).await.transpose()? else {
            return Err(Status::internal("the call carries no message"));
        };
        if poll_fn(|context| self.poll_next(context)).await.transpose()?.is_some() {
            return Err(Status::internal("the call carries more than one message"));
        }
        Ok(message)
    }

    /// Returns the next message, uncompressed, or `None` after the last one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a message over the limit or over the memory budget, INTERNAL for a malformed frame,
    /// DEADLINE_EXCEEDED for a message that pauses for too long, CANCELLED if the client disconnected. Nothing follows
    /// an error.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Message, Status>>> {
        let result = ready!(self.poll_message(context));
        if !matches!(result, Ok(Some(_))) {
            self.state = State::Ended;
            self.chunk = Bytes::new();
            self.held.shrink_to(0);
        }
        self.stall = None;
        Poll::Ready(result.transpose())
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Message>, Status>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(Ok(None)),
                State::Apart(work) => {
                    let message = ready!(work.as_mut().poll(context))?;
                    self.state = AT_PREFIX;
                    return Poll::Ready(Ok(Some(message)));
                }
                State::Waiting { room, .. } => {
                    self.held = ready!(room.as_mut().poll(context))?;
                    if let State::Waiting { gathering, .. } = mem::replace(&mut self.state, State::Ended) {
                        self.state = State::Gathering(gathering);
                    }
                    continue;
                }
                State::Inflating(inflate) => {
                    if let Some(bytes) = inflate.step_within(&mut self.held)? {
                        self.state = AT_PREFIX;
                        return Poll::Ready(Ok(Some(Message { bytes, held: self.held.take() })));
                    }
                    if let State::Inflating(inflate) = mem::replace(&mut self.state, State::Ended) {
                        let apart = inflate.finish(self.held.take(), Arc::clone(&self.workers));
                        self.state = State::Apart(Box::pin(async move { Ok(apart.await?) }));
                    }
                    continue;
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
                State::Gathering(gathering) => {
                    // Memory is reserved before received bytes are stored.
                    let missing = gathering.length_with(&self.chunk).saturating_sub(self.held.amount());
                    if !self.held.try_grow(missing) {
                        self.await_room(missing);
                        continue;
                    }
                    if let Some(bytes) = gathering.gather(&mut self.chunk)? {
                        let Some(encoding) = self.encoding.filter(|_| gathering.compressed) else {
                            self.state = AT_PREFIX;
                            return Poll::Ready(Ok(Some(Message { bytes, held: self.held.take() })));
                        };
                        self.state = State::Inflating(Box::new(Inflate::new(encoding, bytes, self.limit, &self.held)));
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
        if let Some(error) = self.held.refusal(length) {
            return Err(no_room(&error));
        }
        self.state = State::Gathering(Gathering { compressed, length, gathered: Buffer::new(length) });
        Ok(())
    }

    /// Suspends a partial message until `missing` more bytes of memory are available.
    fn await_room(&mut self, missing: usize) {
        if let State::Gathering(gathering) = mem::replace(&mut self.state, State::Ended) {
            let mut held = self.held.take();
            let room = Box::pin(async move {
                held.grow_within(missing, ROOM_PATIENCE).await.map_err(|error| no_room(&error))?;
                Ok(held)
            });
            self.state = State::Waiting { room, gathering };
        }
    }

    /// Receives more of the body; returns false at its end.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                return self.poll_stall(context);
            };
            if let Some(stall) = &mut self.stall {
                stall.as_mut().reset(Instant::now() + STALL_PATIENCE);
            }
            return match frame {
                None => Poll::Ready(Ok(false)),
                Some(Err(error)) => Poll::Ready(Err(Status::cancelled(format!("the client went away: {error}")))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.chunk = data;
                        Poll::Ready(Ok(true))
                    }
                    // Trailers of a request have no meaning; the end follows.
                    Err(_) => continue,
                },
            };
        }
    }

    /// Returns an error once a message has paused for too long.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        if self.held.amount() <= STALL_BYTES {
            return Poll::Pending;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL_PATIENCE)));
        ready!(stall.as_mut().poll(context));
        let seconds = STALL_PATIENCE.as_secs();
        Poll::Ready(Err(Status::deadline_exceeded(format!("nothing came for {seconds} s in the middle of a message"))))
    }
}

impl Gathering {
    /// Returns how many bytes of the message are present, including `chunk`.
    fn length_with(&self, chunk: &Bytes) -> usize {
        self.gathered.len().saturating_add(chunk.len()).min(self.length)
    }

    /// Moves the message's bytes out of `chunk`, and returns the message once it is complete. A message in a single
    /// piece is not copied.
    fn gather(&mut self, chunk: &mut Bytes) -> Result<Option<Bytes>, Status> {
        let Self { length, gathered, .. } = self;
        let length = *length;
        if gathered.len() == 0 && chunk.len() >= length {
            return Ok(Some(chunk.split_to(length)));
        }
        let piece = chunk.split_to(chunk.len().min(length - gathered.len()));
        gathered
            .with_room(piece.len())
            .map_err(|_| Status::resource_exhausted(format!("no memory for a message of {length} bytes")))?
            .extend_from_slice(&piece);
        Ok((gathered.len() == length).then(|| gathered.finish()))
    }
}

/// Decodes one message.
///
/// # Errors
/// INTERNAL if the bytes are not such a message.
pub(crate) fn decode<M: prost::Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| unparsable(&error))
}

/// Returns the status for bytes that are not such a message.
pub(crate) fn unparsable(error: &dyn Display) -> Status {
    Status::internal(format!("cannot parse the message: {error}"))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzz;

#[cfg(test)]
mod tests;
