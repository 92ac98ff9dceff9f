//! The authority that clients of gRPC's C core send over a Unix socket: the path, with `%2F` for each slash.
//!
//! RFC 3986 allows a host with escapes, but the HTTP/2 library refuses every call with one. The server does not use the
//! authority, so the percent signs in it are replaced while the calls' headers arrive.

use std::{
    io, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::preface::PREFACE;

/// Bytes of a frame's head (RFC 9113, section 4.1).
const HEAD_BYTES: usize = 9;

/// Types of frames with headers.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Flags of a frame with headers, which announce a length of padding and a priority before the block.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The field's name, which the C core spells out, and its index in HPACK's static table (RFC 7541, appendix A).
const NAME: &[u8] = b":authority";
const INDEX: u8 = 1;

/// A stream of HTTP/2 whose reader finds no percent sign in an authority, if it is a Unix socket.
pub(super) struct Escaped<S> {
    stream: S,
    /// `None` for other streams, which pass unchanged.
    frames: Option<Frames>,
}

impl<S> Escaped<S> {
    /// Wraps a stream from its preface on.
    pub(super) fn new(stream: S, is_unix: bool) -> Self {
        Self { stream, frames: is_unix.then(Frames::default) }
    }
}

/// Position in a stream of frames.
struct Frames {
    part: Part,
    block: Block,
}

enum Part {
    /// The preface, the body of a frame without headers, or what precedes a block; then the block's bytes follow.
    Skip {
        left: usize,
        block: usize,
    },
    Head {
        bytes: [u8; HEAD_BYTES],
        filled: usize,
    },
    Block {
        left: usize,
    },
}

const HEAD: Part = Part::Head { bytes: [0; HEAD_BYTES], filled: 0 };

impl Default for Frames {
    fn default() -> Self {
        Self { part: Part::Skip { left: PREFACE.len(), block: 0 }, block: Block::Field }
    }
}

impl Frames {
    /// Follows bytes that were received, and replaces those of authorities.
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.part {
                Part::Skip { left, .. } | Part::Block { left } => bytes.len().min(*left),
                Part::Head { filled, .. } => bytes.len().min(HEAD_BYTES - *filled),
            };
            let (now, later) = mem::take(&mut bytes).split_at_mut(taken);
            bytes = later;
            match &mut self.part {
                Part::Skip { left, block } => {
                    *left -= taken;
                    if *left == 0 {
                        self.part = if *block > 0 { Part::Block { left: *block } } else { HEAD };
                    }
                }
                Part::Block { left } => {
                    now.iter_mut().for_each(|byte| self.block.pass(byte));
                    *left -= taken;
                    if *left == 0 {
                        self.part = HEAD;
                    }
                }
                Part::Head { bytes, filled } => {
                    bytes[*filled..*filled + taken].copy_from_slice(now);
                    *filled += taken;
                    if *filled == HEAD_BYTES {
                        let head = *bytes;
                        self.begin(head);
                    }
                }
            }
        }
    }

    fn begin(&mut self, [high, middle, low, kind, flags, ..]: [u8; HEAD_BYTES]) {
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let before = match kind {
            HEADERS => {
                self.block = Block::Field;
                usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 }
            }
            CONTINUATION => 0,
            _ => length,
        };
        let left = before.min(length);
        let block = length - left;
        self.part = match (left, block) {
            (0, 0) => HEAD,
            (0, left) => Part::Block { left },
            (left, block) => Part::Skip { left, block },
        };
    }
}

/// Position in a block of fields (RFC 7541, section 6). A malformed block is refused by the library.
#[derive(Clone, Copy)]
enum Block {
    /// The first byte of a field.
    Field,
    /// Further bytes of a number; what follows it.
    Number { then_value: bool },
    /// The first byte of a text's length.
    Length { of: Text },
    /// Further bytes of it.
    LongLength { of: Text, length: usize, shift: u32 },
    /// A text.
    Text { of: Text, left: usize },
}

/// What a text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// A name, and whether it is [`NAME`] so far.
    Name {
        is_authority: bool,
    },
    Authority,
    Value,
}

impl Text {
    /// What a text of this length is; only plain ones are looked at, since the C core does not compress them.
    fn of_length(self, length: usize, is_compressed: bool) -> Self {
        match self {
            Self::Name { .. } => Self::Name { is_authority: length == NAME.len() && !is_compressed },
            Self::Authority if is_compressed => Self::Value,
            of => of,
        }
    }
}

impl Block {
    fn pass(&mut self, byte: &mut u8) {
        *self = match *self {
            Self::Field => match *byte {
                indexed @ 0x80.. => Self::after(indexed & 0x7f == 0x7f, false),
                literal @ 0x40.. => Self::literal(literal & 0x3f, 0x3f),
                update @ 0x20.. => Self::after(update & 0x1f == 0x1f, false),
                literal => Self::literal(literal & 0x0f, 0x0f),
            },
            Self::Number { then_value } if *byte & 0x80 == 0 => Self::after(false, then_value),
            Self::Number { .. } => *self,
            Self::Length { of } => {
                let length = usize::from(*byte & 0x7f);
                let of = of.of_length(length, *byte & 0x80 != 0);
                match length {
                    0x7f => Self::LongLength { of, length, shift: 0 },
                    length => Self::text(of, length),
                }
            }
            Self::LongLength { of, length, shift } => {
                let length = length.saturating_add(usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or(0));
                match *byte & 0x80 {
                    0 => Self::text(of, length),
                    _ => Self::LongLength { of, length, shift: shift.saturating_add(7) },
                }
            }
            Self::Text { of: Text::Name { is_authority }, left } => {
                let is_authority = is_authority && NAME[NAME.len() - left] == *byte;
                Self::text(Text::Name { is_authority }, left - 1)
            }
            Self::Text { of, left } => {
                if of == Text::Authority && *byte == b'%' {
                    *byte = b'-';
                }
                Self::text(of, left - 1)
            }
        };
    }

    /// A literal field whose name has this index, if the number ends within its first byte.
    fn literal(index: u8, most: u8) -> Self {
        match index {
            0 => Self::Length { of: Text::Name { is_authority: true } },
            INDEX => Self::Length { of: Text::Authority },
            _ => Self::after(index == most, true),
        }
    }

    /// What follows an index.
    fn after(number_goes_on: bool, then_value: bool) -> Self {
        match (number_goes_on, then_value) {
            (true, then_value) => Self::Number { then_value },
            (false, true) => Self::Length { of: Text::Value },
            (false, false) => Self::Field,
        }
    }

    /// A text of which this many bytes are left.
    fn text(of: Text, left: usize) -> Self {
        match (left, of) {
            (0, Text::Name { is_authority: true }) => Self::Length { of: Text::Authority },
            (0, Text::Name { .. }) => Self::Length { of: Text::Value },
            (0, _) => Self::Field,
            (left, of) => Self::Text { of, left },
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Escaped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(frames) = &mut self.frames {
            frames.pass(&mut buffer.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Escaped<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], body].concat()
    }

    fn field(first: u8, text: &[u8]) -> Vec<u8> {
        let length = u8::try_from(text.len()).expect("short");
        match length {
            0..0x7f => [&[first, length], text].concat(),
            _ => [&[first, 0x7f, length - 0x7f], text].concat(),
        }
    }

    /// A stream, in which every `%` of an authority is to become a `-`.
    fn stream() -> Vec<u8> {
        let long = [&b"%2F"[..], &[b'a'; 130]].concat();
        let block = [
            vec![0x82, 0xff, 0x10, 0x3f, 0x21],
            field(0x41, b"tmp%2Fa.sock"),
            field(0x44, b"/path%2F"),
            [field(0x40, NAME), field(0, b"spelt%2Fout")[1..].to_vec()].concat(),
            [field(0x40, b":authoritx"), field(0, b"other%2F")[1..].to_vec()].concat(),
            [field(0x40, b"x-%41"), field(0, b"%")[1..].to_vec()].concat(),
            vec![0x7f, 0x05, 2, b'%', b'%'],
            field(0x01, &long),
            field(0x11, b"%"),
            vec![0x41, 0x82, b'%', b'%'],
        ];
        let block = block.concat();
        let (first, second) = block.split_at(9);
        [
            PREFACE.to_vec(),
            frame(4, 0, b"%%%%%%"),
            frame(HEADERS, 4, &block),
            frame(0, 0, &field(0x41, b"data%2F")),
            frame(HEADERS, PADDED | PRIORITY, &[&[0, 1, 2, 3, 4, 5], first].concat()),
            frame(CONTINUATION, 4, second),
            frame(0, 0, b""),
            frame(HEADERS, 4, &field(0x41, b"%")),
        ]
        .concat()
    }

    async fn read(pieces: &[&[u8]], is_unix: bool) -> Vec<u8> {
        let pieces = Pieces(pieces.iter().map(|piece| piece.to_vec()).collect());
        let mut read = Vec::new();
        Escaped::new(pieces, is_unix).read_to_end(&mut read).await.expect("memory");
        read
    }

    /// A stream that arrives in pieces.
    struct Pieces(VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                let later = piece.split_off(piece.len().min(buffer.remaining()));
                buffer.put_slice(&piece);
                if !later.is_empty() {
                    self.0.push_front(later);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn percent_signs_of_authorities_are_replaced_however_the_stream_is_cut() {
        let stream = stream();
        let expected = String::from_utf8_lossy(&stream)
            .replace("p%2Fa.sock", "p-2Fa.sock")
            .replace("spelt%2Fout", "spelt-2Fout")
            .replace("%2Faaa", "-2Faaa")
            .replace("\u{11}\u{1}%", "\u{11}\u{1}-");
        for size in [1, 2, 7, 64, stream.len()] {
            let pieces: Vec<&[u8]> = stream.chunks(size).collect();
            let read = read(&pieces, true).await;
            let (last, rest) = read.split_last().expect("bytes");
            assert_eq!(*last, b'-', "the last authority");
            let expected = &expected[..expected.len() - 1];
            assert_eq!(String::from_utf8_lossy(rest), expected, "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn other_streams_pass_unchanged() {
        let stream = stream();
        assert_eq!(read(&[&stream], false).await, stream);
    }
}
