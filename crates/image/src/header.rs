//! What the first bytes of an image say: its format and size. Nothing is decoded or copied, and the work is bounded
//! whatever the bytes are, so that a request can be judged where it arrives.

use super::Size;

/// Most segments in front of the size of a JPEG. Profiles and metadata take a few hundred at most.
const MOST_SEGMENTS: usize = 1024;

/// A format that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg,
    Png,
    WebP,
}

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) format: Format,
    /// As stored: an orientation is not applied yet.
    pub(crate) stored: Size,
    /// Where the size lies. Thumbnails, which are images themselves, lie in front of it.
    pub(crate) place: usize,
}

/// Why there is no size.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    #[error("expected an image in JPEG, PNG or WebP")]
    Format,
    #[error("the image is cut off, or its header is damaged")]
    Damaged,
    #[error("the image has no pixels")]
    Empty,
}

impl Header {
    /// Reads the header of an image.
    pub(crate) fn read(data: &[u8]) -> Result<Self, HeaderFault> {
        let (format, frame) = match data {
            [0x89, b'P', b'N', b'G', ..] => (Format::Png, data),
            [0xff, 0xd8, ..] => (Format::Jpeg, jpeg_frame(data).ok_or(HeaderFault::Damaged)?),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => (Format::WebP, data),
            _ => return Err(HeaderFault::Format),
        };
        let size = match format {
            Format::Png => png(frame),
            Format::Jpeg => jpeg(frame),
            Format::WebP => webp(frame),
        };
        let (width, height) = size.ok_or(HeaderFault::Damaged)?;
        if width == 0 || height == 0 {
            return Err(HeaderFault::Empty);
        }
        Ok(Self { format, stored: Size { height, width }, place: data.len() - frame.len() })
    }
}

/// The signature, and the chunk IHDR behind it.
fn png(data: &[u8]) -> Option<(u32, u32)> {
    let header = data.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")?;
    let (width, rest) = header.split_first_chunk()?;
    Some((u32::from_be_bytes(*width), u32::from_be_bytes(*rest.first_chunk()?)))
}

/// Returns a JPEG from its frame on, behind all segments in front of it.
fn jpeg_frame(data: &[u8]) -> Option<&[u8]> {
    let mut rest = &data[2..];
    for _ in 0..MOST_SEGMENTS {
        // Readers skip what lies between segments, and any number of bytes 0xff in front of a marker.
        rest = &rest[rest.iter().position(|&byte| byte == 0xff)?..];
        rest = &rest[rest.iter().position(|&byte| byte != 0xff)?..];
        let (&marker, segment) = rest.split_first()?;
        match marker {
            // Without a length: restarts, and a byte that only looks like a marker.
            0x00 | 0x01 | 0xd0..=0xd8 => rest = segment,
            // The end of the image, or its data.
            0xd9 | 0xda => return None,
            // A frame, of whatever coding. C4, C8 and CC are other segments.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => return Some(segment),
            _ => {
                let length = u16::from_be_bytes(*segment.first_chunk()?);
                rest = segment.get(usize::from(length.max(2))..)?;
            }
        }
    }
    None
}

/// The frame's length and depth, then its height and width.
fn jpeg(frame: &[u8]) -> Option<(u32, u32)> {
    let [_, _, _, height_0, height_1, width_0, width_1] = *frame.first_chunk::<7>()?;
    Some((u16::from_be_bytes([width_0, width_1]).into(), u16::from_be_bytes([height_0, height_1]).into()))
}

/// The first chunk: an extended header, or the image itself.
fn webp(data: &[u8]) -> Option<(u32, u32)> {
    let (kind, content) = data.get(12..)?.split_first_chunk::<4>()?;
    let content = content.get(4..)?;
    match kind {
        b"VP8X" => {
            let [_, _, _, _, w0, w1, w2, h0, h1, h2] = *content.first_chunk::<10>()?;
            Some((1 + u32::from_le_bytes([w0, w1, w2, 0]), 1 + u32::from_le_bytes([h0, h1, h2, 0])))
        }
        b"VP8L" => {
            let [0x2f, bits @ ..] = content.first_chunk::<5>()? else { return None };
            let bits = u32::from_le_bytes(*bits);
            Some((1 + (bits & 0x3fff), 1 + (bits >> 14 & 0x3fff)))
        }
        b"VP8 " => lossy_frame(content),
        _ => None,
    }
}

/// The size of a lossy frame of WebP, at its first byte.
pub(crate) fn lossy_frame(frame: &[u8]) -> Option<(u32, u32)> {
    let [_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1] = *frame.first_chunk::<10>()? else { return None };
    let of = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    Some((of(w0, w1), of(h0, h1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(marker: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() + 2) as u16;
        [&[0xff, marker], &length.to_be_bytes()[..], content].concat()
    }

    fn size(data: &[u8]) -> Result<(u32, u32), HeaderFault> {
        Header::read(data).map(|header| (header.stored.width, header.stored.height))
    }

    #[test]
    fn the_frame_of_a_jpeg_is_found_behind_thumbnails_and_what_only_looks_like_one() {
        let thumbnail = segment(0xe1, b"Exif\0\0\xff\xd8\xff\xc0\0\x11\x08\0\x01\0\x01");
        let tables = segment(0xc4, &[0; 20]);
        let frame = segment(0xc2, &[8, 0x12, 0x34, 0x56, 0x78, 1]);
        let jpeg = [&b"\xff\xd8"[..], &thumbnail, b"\0\0junk\xff\xff", &tables[1..], &frame].concat();
        assert_eq!(size(&jpeg), Ok((0x5678, 0x1234)));
        assert_eq!(size(&jpeg[..jpeg.len() - 3]), Err(HeaderFault::Damaged));
        let ended = [&b"\xff\xd8"[..], &segment(0xda, &[0; 4]), &frame].concat();
        assert_eq!(size(&ended), Err(HeaderFault::Damaged), "data in front of the frame");
    }

    #[test]
    fn a_jpeg_of_endless_segments_is_given_up() {
        let padding = segment(0xfe, b"").repeat(MOST_SEGMENTS);
        let frame = segment(0xc0, &[8, 0, 1, 0, 1, 1]);
        assert_eq!(size(&[&b"\xff\xd8"[..], &padding, &frame].concat()), Err(HeaderFault::Damaged));
        let fewer = &padding[..padding.len() - 4];
        assert_eq!(size(&[&b"\xff\xd8"[..], fewer, &frame].concat()), Ok((1, 1)));
        assert_eq!(size(&[&b"\xff\xd8"[..], &[0xff; 1 << 16]].concat()), Err(HeaderFault::Damaged));
    }

    #[test]
    fn sizes_of_png_and_each_kind_of_webp() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\xea\x60\0\x01\0\0";
        assert_eq!(size(png), Ok((60_000, 65_536)));
        assert_eq!(size(&png[..20]), Err(HeaderFault::Damaged));
        let webp = |kind: &[u8], content: &[u8]| [b"RIFF\0\0\0\0WEBP", kind, &[0; 4], content].concat();
        assert_eq!(size(&webp(b"VP8X", &[0, 0, 0, 0, 0xff, 0xff, 0, 1, 0, 1])), Ok((0x1_0000, 0x1_0002)));
        assert_eq!(size(&webp(b"VP8L", &[0x2f, 0xff, 0xff, 0xff, 0x0f])), Ok((16_384, 16_384)));
        assert_eq!(size(&webp(b"VP8 ", &[0, 0, 0, 0x9d, 1, 0x2a, 5, 0x40, 7, 0])), Ok((5, 7)));
        assert_eq!(size(&webp(b"VP8 ", &[0, 0, 0, 0x9d, 1, 0x2a, 0, 0, 7, 0])), Err(HeaderFault::Empty));
        assert_eq!(size(&webp(b"ANIM", &[0; 10])), Err(HeaderFault::Damaged));
        assert_eq!(size(b"GIF89a"), Err(HeaderFault::Format));
        assert_eq!(size(b""), Err(HeaderFault::Format));
    }
}
