//! Reading bodies in arbitrary pieces, and messages with and without room in the budget.

use std::{collections::VecDeque, convert::Infallible};

use flate2::Compression;
use http_body::Frame;
use paternoster_observe::budget::Budget;
use proptest::prelude::*;
use tonic::Code;

use super::*;
use crate::grpc::{
    CompressionLevel,
    messages::{Packing, Writer},
};

/// A body that arrives in the given pieces.
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
    reader_within(&Budget::of_bytes(64 << 20), Pieces(pieces), limit)
}

fn reader_within(budget: &Arc<Budget>, pieces: Pieces, limit: usize) -> MessageReader<Pieces> {
    MessageReader::new(pieces, Some(Encoding::Gzip), limit, Reservation::none(budget), Workers::new())
}

async fn next(reader: &mut MessageReader<Pieces>) -> Result<Option<Bytes>, Status> {
    let message = poll_fn(|context| reader.poll_next(context)).await.transpose()?;
    Ok(message.map(|message| message.bytes))
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
    let mut reader = reader_within(&Budget::of_bytes(200), Pieces([body.clone()].into()), 100);
    let message = next(&mut reader).await.expect("whole").expect("one message");
    assert_eq!(message.as_ptr(), body[PREFIX_BYTES..].as_ptr());
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
    let none = reader(&[], 1, 10).only().await.expect_err("no message");
    assert!(none.message().contains("no message"), "{}", none.message());
    let two = reader(&[framed(b""), framed(b"")].concat(), 100, 10).only().await.expect_err("two messages");
    assert!(two.message().contains("more than one"), "{}", two.message());
    reader(&framed(b""), 100, 10).only().await.expect("one message");
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
    let read = reader(&frame, 50, 1 << 20).only().await.expect("one message");
    assert_eq!(decode::<String>(read.bytes).expect("a string"), text);
}

#[test]
fn a_reply_over_the_limit_is_refused() {
    let status = Writer::new(None, 3).encode(&String::from("four")).expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
}

/// Returns a budget and a connection's share of it, which is a megabyte.
fn megabyte() -> (Arc<Budget>, Arc<Budget>) {
    let whole = Budget::of_bytes(4 << 20);
    let share = Budget::share_of(&whole);
    (whole, share)
}

#[tokio::test]
async fn a_message_holds_what_came_and_gives_it_back() {
    let (whole, share) = megabyte();
    let body = framed(&[7; 300_000]);
    let mut half = reader_within(&share, Pieces([Bytes::copy_from_slice(&body[..100_000])].into()), 1 << 20);
    next(&mut half).await.expect_err("half a message");
    assert_eq!(whole.used(), 0, "a broken message holds nothing");

    let pieces = body.chunks(10_000).map(Bytes::copy_from_slice).collect();
    let mut reader = reader_within(&share, Pieces(pieces), 1 << 20);
    let message = poll_fn(|context| reader.poll_next(context)).await.expect("a message").expect("whole");
    assert_eq!((message.held.amount(), whole.used()), (300_000, 300_000), "what came, not what it came in");
    drop(message);
    assert_eq!(whole.used(), 0);
}

#[tokio::test]
async fn what_can_never_fit_is_refused_by_its_declared_length() {
    let (whole, share) = megabyte();
    let prefix = framed(&vec![0; (1 << 20) + 1])[..PREFIX_BYTES].to_vec();
    let mut reader = reader_within(&share, Pieces([prefix.into()].into()), 1 << 30);
    let status = next(&mut reader).await.expect_err("more than the connection's share");
    assert_eq!((status.code(), whole.refused()), (Code::ResourceExhausted, 1));
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_room_and_not_for_ever() {
    let (whole, share) = megabyte();
    let mut others = Reservation::none(&share);
    assert!(others.try_grow(1 << 20), "an empty budget");
    let body = Bytes::from(framed(&[7; 300_000]));
    let mut reader = reader_within(&share, Pieces([body.clone()].into()), 1 << 20);
    let status = next(&mut reader).await.expect_err("nothing is given back");
    assert_eq!((status.code(), whole.refused()), (Code::ResourceExhausted, 1));

    let mut reader = reader_within(&share, Pieces([body].into()), 1 << 20);
    let reading = tokio::spawn(async move { next(&mut reader).await });
    tokio::task::yield_now().await;
    assert!(!reading.is_finished(), "it waits");
    drop(others);
    assert_eq!(reading.await.expect("no panic").expect("there is room").map(|message| message.len()), Some(300_000));
}

#[tokio::test]
async fn what_a_message_is_decompressed_into_is_counted() {
    let (whole, share) = megabyte();
    let bomb = Bytes::from(gzipped(&vec![0; 64 << 20]));
    let mut reader = reader_within(&share, Pieces([bomb].into()), 1 << 30);
    let status = next(&mut reader).await.expect_err("64 MiB into one");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(whole.used(), 0);

    let mut reader = reader_within(&share, Pieces([gzipped(&vec![0; 700_000]).into()].into()), 1 << 30);
    let message = poll_fn(|context| reader.poll_next(context)).await.expect("a message").expect("whole");
    assert_eq!((message.bytes.len(), message.held.amount()), (700_000, 700_000));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_stops_in_its_middle_is_given_up() {
    /// A body that sends some bytes and then nothing more.
    struct Stops(Option<Bytes>);
    impl Body for Stops {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
        }
    }

    let (whole, share) = megabyte();
    let half = Stops(Some(framed(&[7; 300_000])[..200_000].to_vec().into()));
    let mut reader = MessageReader::new(half, None, 1 << 20, Reservation::none(&share), Workers::new());
    let status = reader.only().await.expect_err("the rest never comes");
    assert_eq!((status.code(), whole.used()), (Code::DeadlineExceeded, 0));
}
