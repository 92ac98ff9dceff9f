//! The sizes of an image from step to step, and what each step needs in memory.

use std::time::Duration;

use super::header::{Format, Header};

/// Bytes for each pixel while an image is decoded: at most the coefficients of a progressive JPEG of four channels and
/// its pixels, or 16 bits of four channels and their conversion to 8 bits of three.
const DECODED_BYTES: u64 = 12;

/// Codecs work in blocks of up to this many pixels a side.
const BLOCK: u32 = 32;

/// Bytes of a decoder's tables, and of profiles and metadata that it unpacks.
const TABLES_BYTES: u64 = 2 << 20;

/// The bytes of an encoded image are copied, and so is what it has of profiles and metadata, up to three times.
const COPIES: u64 = 4;

/// Bytes of weights for each row and column of an image that is resized, and of its result.
const WEIGHTS_BYTES: u64 = 160;

/// About how long each pixel takes that is read or written when an image is resized.
const RESIZED_PIXEL_NS: u64 = 2;

/// About how long each pixel of a result takes.
const RESULT_PIXEL_NS: u64 = 10;

/// Height and width, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of pixels.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

/// The size that images are resized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The shorter edge has this length, and the longer one keeps the ratio, rounded down.
    ShortestEdge(u32),
    /// Exactly this size.
    To(Size),
}

impl Size {
    /// Returns the number of pixels.
    pub fn pixels(self) -> u64 {
        u64::from(self.height) * u64::from(self.width)
    }

    fn transposed(self) -> Self {
        Self { height: self.width, width: self.height }
    }
}

impl Resize {
    /// Returns the size of an image after resizing.
    pub(crate) fn of(self, given: Size) -> Size {
        let edge = match self {
            Self::To(size) => return size,
            Self::ShortestEdge(edge) => edge,
        };
        let longer = |short: u32, long: u32| {
            // An edge of more pixels than can be counted is beyond every limit.
            u32::try_from(u64::from(edge) * u64::from(long) / u64::from(short.max(1))).unwrap_or(u32::MAX)
        };
        if given.width <= given.height {
            Size { height: longer(given.width, given.height), width: edge }
        } else {
            Size { height: edge, width: longer(given.height, given.width) }
        }
    }
}

/// Returns an upper limit of the bytes that are needed to decode and resize an image, apart from its result.
/// `resized` is its size if it is resized.
pub(crate) fn working_bytes(header: &Header, encoded: usize, resize: Option<Resize>) -> u64 {
    let Size { height, width } = header.stored;
    let padded = |edge: u32| u64::from(edge).next_multiple_of(BLOCK.into());
    let copies = COPIES.saturating_mul(encoded as u64);
    let decoded = DECODED_BYTES.saturating_mul(padded(height).saturating_mul(padded(width)));
    let decoding = decoded.saturating_add(copies).saturating_add(TABLES_BYTES);
    // The orientation may exchange height and width, and is known once the image is decoded.
    let resizing = [header.stored, header.stored.transposed()].map(|given| match resize {
        None => 0,
        Some(resize) => {
            let result = resize.of(given);
            // Rows are resized first, then columns.
            let between = u64::from(given.height).saturating_mul(result.width.into());
            let edges = [given.height, given.width, result.height, result.width].map(u64::from).iter().sum::<u64>();
            let pixels = between.saturating_add(result.pixels()).saturating_mul(3);
            pixels.saturating_add(WEIGHTS_BYTES.saturating_mul(edges))
        }
    });
    decoding.saturating_add(resizing[0].max(resizing[1]))
}

/// Returns about how long it takes to decode and resize an image, and to write a result of this size.
pub(crate) fn effort(header: &Header, encoded: usize, resize: Option<Resize>, result: Size) -> Duration {
    let resized = resize.map_or(0, |resize| header.stored.pixels().saturating_add(resize.of(header.stored).pixels()));
    let resizing = RESIZED_PIXEL_NS.saturating_mul(resized);
    let writing = RESULT_PIXEL_NS.saturating_mul(result.pixels());
    Duration::from_nanos(decoding_ns(header, encoded).saturating_add(resizing).saturating_add(writing))
}

/// Measured on one core of an x86-64 server, with images that compress well and badly: at most a third more than this,
/// and less for pictures of one color.
fn decoding_ns(header: &Header, encoded: usize) -> u64 {
    let (each_pixel, each_byte) = match header.format {
        Format::Png { bits, is_interlaced } => {
            let passes = if is_interlaced { 4 } else { 0 };
            // Gray and palettes become three channels.
            let channels = if bits <= 16 { 10 } else { 2 };
            (passes + channels + u64::from(bits).div_ceil(8), 7)
        }
        Format::Jpeg { channels: 1, is_progressive } => (10, if is_progressive { 24 } else { 7 }),
        Format::Jpeg { channels, is_progressive: false } => (2 * u64::from(channels), 7),
        Format::Jpeg { channels, is_progressive: true } => (4 * u64::from(channels), 24),
        Format::WebP { is_lossless: true } => (8, 7),
        Format::WebP { is_lossless: false } => (24, 25),
    };
    header.stored.pixels().saturating_mul(each_pixel).saturating_add((encoded as u64).saturating_mul(each_byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_edge_keeps_the_ratio_rounded_down() {
        let resized = |height, width| {
            let Size { height, width } = Resize::ShortestEdge(256).of(Size { height, width });
            (height, width)
        };
        assert_eq!(resized(300, 400), (256, 341), "341.33");
        assert_eq!(resized(400, 300), (341, 256));
        assert_eq!(resized(7, 7), (256, 256));
        assert_eq!(resized(1, u32::MAX), (256, u32::MAX));
    }

    #[test]
    fn memory_is_bounded_whatever_the_orientation() {
        let header =
            Header { format: Format::WebP { is_lossless: true }, stored: Size { height: 10, width: 1000 }, place: 0 };
        let lying = working_bytes(&header, 100, Some(Resize::To(Size { height: 10, width: 2000 })));
        let standing = Header { stored: header.stored.transposed(), ..header };
        assert_eq!(working_bytes(&standing, 100, Some(Resize::To(Size { height: 10, width: 2000 }))), lying);
        assert!(lying > 3 * (1000 * 10 + 2000 * 10));
        let huge = Header { stored: Size { height: u32::MAX, width: u32::MAX }, ..header };
        assert_eq!(working_bytes(&huge, usize::MAX, Some(Resize::ShortestEdge(u32::MAX))), u64::MAX, "no overflow");
    }

    #[test]
    fn an_image_takes_longer_with_its_pixels_its_bytes_and_its_form() {
        let stored = Size { height: 1000, width: 1000 };
        let ms = |format, encoded, resize, result| {
            effort(&Header { format, stored, place: 0 }, encoded, resize, result).as_micros() as f64 / 1e3
        };
        let small = Size { height: 10, width: 10 };
        let png = |bits, is_interlaced| ms(Format::Png { bits, is_interlaced }, 0, None, small);
        assert_eq!([png(24, false), png(64, false), png(64, true)].map(f64::round), [5.0, 10.0, 14.0]);
        let jpeg = |is_progressive, bytes| ms(Format::Jpeg { channels: 3, is_progressive }, bytes, None, small);
        assert_eq!([jpeg(false, 0), jpeg(false, 1_000_000), jpeg(true, 1_000_000)].map(f64::round), [6.0, 13.0, 36.0]);
        let webp = |is_lossless| ms(Format::WebP { is_lossless }, 0, None, small);
        assert_eq!([webp(true), webp(false)].map(f64::round), [8.0, 24.0]);
        let resized = ms(Format::WebP { is_lossless: true }, 0, Some(Resize::To(stored)), small);
        assert_eq!((resized - webp(true)).round(), 4.0);
        assert_eq!((ms(Format::WebP { is_lossless: true }, 0, None, stored) - webp(true)).round(), 10.0);
    }

    #[test]
    fn the_time_of_an_image_that_is_too_large_to_count_is_long() {
        let stored = Size { height: u32::MAX, width: u32::MAX };
        let header = Header { format: Format::Png { bits: 64, is_interlaced: true }, stored, place: 0 };
        let longest = effort(&header, usize::MAX, Some(Resize::ShortestEdge(u32::MAX)), stored);
        assert_eq!(longest, Duration::from_nanos(u64::MAX));
    }
}
