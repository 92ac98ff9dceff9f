//! What the first bytes of an image say: its format and size. Nothing is decoded or copied, and the work is bounded
//! whatever the bytes are, so that a request can be judged where it arrives.

use super::{
    Size,
    jpeg::{self, segments},
};

/// A format that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg {
        channels: u8,
        is_progressive: bool,
    },
    Png {
        /// Of a pixel.
        bits: u8,
        is_interlaced: bool,
    },
    WebP {
        is_lossless: bool,
    },
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
        let (format, size, place) = match data {
            [0x89, b'P', b'N', b'G', ..] => png(data),
            [0xff, 0xd8, ..] => jpeg(data),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                webp(data).map(|size| (Format::WebP { is_lossless: data[12..].starts_with(b"VP8L") }, size, 0))
            }
            _ => return Err(HeaderFault::Format),
        }
        .ok_or(HeaderFault::Damaged)?;
        let (width, height) = size;
        if width == 0 || height == 0 {
            return Err(HeaderFault::Empty);
        }
        Ok(Self { format, stored: Size { height, width }, place })
    }
}

/// The format, width and height, and the place of the latter.
type Found = (Format, (u32, u32), usize);

/// The signature, and the chunk IHDR behind it.
fn png(data: &[u8]) -> Option<Found> {
    let header = data.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")?;
    let (size, rest) = header.split_first_chunk::<8>()?;
    let [depth, color, _, _, interlace] = *rest.first_chunk()?;
    let channels = match color {
        2 => 3,
        4 => 2,
        6 => 4,
        _ => 1,
    };
    let [width, height] = [0, 4].map(|place| u32::from_be_bytes(std::array::from_fn(|byte| size[place + byte])));
    let format = Format::Png { bits: depth.saturating_mul(channels), is_interlaced: interlace != 0 };
    Some((format, (width, height), 0))
}

/// The frame, behind all segments in front of it.
fn jpeg(data: &[u8]) -> Option<Found> {
    let (place, frame) = segments(data).find_map(|segment| Some((segment.place, segment.frame()?)))?;
    let jpeg::Frame { height, width, is_progressive, channels } = frame;
    Some((Format::Jpeg { channels: channels.len().try_into().ok()?, is_progressive }, (width, height), place))
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
        let padding = segment(0xfe, b"").repeat(jpeg::MOST_SEGMENTS);
        let frame = segment(0xc0, &[8, 0, 1, 0, 1, 1]);
        assert_eq!(size(&[&b"\xff\xd8"[..], &padding, &frame].concat()), Err(HeaderFault::Damaged));
        let fewer = &padding[..padding.len() - 4];
        assert_eq!(size(&[&b"\xff\xd8"[..], fewer, &frame].concat()), Ok((1, 1)));
        assert_eq!(size(&[&b"\xff\xd8"[..], &[0xff; 1 << 16]].concat()), Err(HeaderFault::Damaged));
    }

    #[test]
    fn a_header_says_what_a_pixel_takes() {
        let format = |data: &[u8]| Header::read(data).map(|header| header.format);
        let png = |depth, color, interlace| {
            let of = [&[0, 0, 0, 1, 0, 0, 0, 1][..], &[depth, color, 0, 0, interlace]].concat();
            format(&[&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], &of].concat())
        };
        let is = |bits, is_interlaced| Ok(Format::Png { bits, is_interlaced });
        assert_eq!([png(1, 0, 0), png(8, 3, 0), png(16, 4, 0)], [is(1, false), is(8, false), is(32, false)]);
        assert_eq!([png(8, 2, 1), png(16, 6, 1)], [is(24, true), is(64, true)]);
        let jpeg = |marker, channels: u8| {
            let ids = vec![[1, 0x11, 0]; channels.into()].concat();
            let frame = segment(marker, &[&[8, 0, 1, 0, 1, channels], &ids[..]].concat());
            format(&[&b"\xff\xd8"[..], &frame].concat())
        };
        assert_eq!(jpeg(0xc0, 3), Ok(Format::Jpeg { channels: 3, is_progressive: false }));
        assert_eq!(jpeg(0xc2, 4), Ok(Format::Jpeg { channels: 4, is_progressive: true }));
        let webp = |kind: &[u8]| format(&[b"RIFF\0\0\0\0WEBP", kind, &[0; 4], &[0x2f; 10]].concat());
        assert_eq!(
            [webp(b"VP8L"), webp(b"VP8X")].map(|format| format == Ok(Format::WebP { is_lossless: true })),
            [true, false]
        );
    }

    #[test]
    fn sizes_of_png_and_each_kind_of_webp() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\xea\x60\0\x01\0\0\x08\x02\0\0\0";
        assert_eq!(size(png), Ok((60_000, 65_536)));
        assert_eq!(size(&png[..28]), Err(HeaderFault::Damaged));
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
