//! The fuzz target for gRPC frames: messages do not depend on how the body is split, and take bounded memory.

use std::{convert::Infallible, sync::LazyLock};

use http_body::Frame;
use paternoster_observe::budget::Budget;
use tokio::runtime::Runtime;
use tonic::Code;

use super::*;
use crate::intake::TRUSTED_BYTES;

/// Maximum message length in bytes; long enough that memory is not allocated on the declared length alone.
const LIMIT_BYTES: usize = 2 * TRUSTED_BYTES;

/// Budget in bytes, enough for several of the longest messages.
const BUDGET_BYTES: usize = 32 * LIMIT_BYTES;

/// Long messages are decompressed on separate threads.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// A body that arrives in pieces of one length, with a pause before each.
struct Pieces {
    rest: Bytes,
    piece_bytes: usize,
    come_bytes: usize,
    paused: bool,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.paused = !self.paused;
        if self.paused {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = self.piece_bytes.min(self.rest.len());
        self.come_bytes += taken;
        let piece = self.rest.split_to(taken);
        Poll::Ready((taken > 0).then(|| Ok(Frame::data(piece))))
    }
}

/// All messages of a body, and the error at its end, if any.
type Outcome = (Vec<Bytes>, Option<(Code, String)>);

/// The fuzz target. The first byte selects the encoding, the second the length of pieces; the rest is the body.
pub fn frames(bytes: &[u8]) {
    let Some((&[encoding, piece_bytes], body)) = bytes.split_first_chunk() else { return };
    let encoding = [None, Some(Encoding::Gzip), Some(Encoding::Deflate)][usize::from(encoding) % 3];
    let whole = read(body, body.len().max(1), encoding);
    let cut = read(body, usize::from(piece_bytes).max(1), encoding);
    assert_eq!(cut, whole, "messages do not depend on how the body is cut");

    let plain: Vec<u8> = whole.0.iter().flat_map(|message| frame(message)).collect();
    assert_eq!(read(&plain, 7, None), (whole.0, None), "messages can be sent again as they were read");
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("messages are within the limit");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn read(body: &[u8], piece_bytes: usize, encoding: Option<Encoding>) -> Outcome {
    let pieces = Pieces { rest: Bytes::copy_from_slice(body), piece_bytes, come_bytes: 0, paused: false };
    let budget = Budget::of_bytes(BUDGET_BYTES);
    let mut reader = MessageReader::new(pieces, encoding, LIMIT_BYTES, Reservation::none(&budget), Workers::new());
    let mut next = || {
        RUNTIME.block_on(poll_fn(|context| {
            let polled = reader.poll_next(context);
            check_memory(&reader);
            polled
        }))
    };
    let mut messages = Vec::new();
    let error = loop {
        match next() {
            Some(Ok(Message { bytes, held })) => {
                assert!(bytes.len() <= LIMIT_BYTES, "a message of {} bytes", bytes.len());
                assert!(held.amount() >= bytes.len(), "{} bytes are held for {}", held.amount(), bytes.len());
                messages.push(bytes);
            }
            Some(Err(status)) => break Some((status.code(), status.message().to_owned())),
            None => break None,
        }
    };
    assert!(next().is_none(), "the end is final");
    assert_eq!(budget.used(), 0, "what is read no more takes no room");
    (messages, error)
}

/// Checks that the gathered bytes are paid for, and that their memory stays within what the received bytes justify.
fn check_memory(reader: &MessageReader<Pieces>) {
    let State::Gathering(Gathering { length, gathered, .. }) = &reader.state else { return };
    assert!(gathered.len() <= reader.held.amount(), "{} of {} bytes are held", reader.held.amount(), gathered.len());
    let vouched = if reader.body.come_bytes > TRUSTED_BYTES { *length } else { TRUSTED_BYTES.min(*length) };
    assert!(gathered.capacity() <= vouched, "{} bytes are held, {vouched} vouched for", gathered.capacity());
}
