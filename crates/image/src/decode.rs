//! From the bytes of an image to its pixels: 8 bits of one channel or three, the right way up.

use std::io::Cursor;

use image::{
    DynamicImage, GrayImage, ImageDecoder, ImageError, Limits,
    codecs::{png::PngDecoder, webp::WebPDecoder},
    metadata::Orientation,
};

use super::{
    Size,
    header::{Format, Header, lossy_frame},
    jpeg,
    orientation::orientation,
};

/// The pixels of an image, row by row.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(crate) size: Size,
    /// Of one or three channels.
    pub(crate) data: Vec<u8>,
}

/// Decodes an image whose header was read. Of an animation, that is the first image. Transparency is left out: what
/// lies below it shows, as in Pillow. An orientation in its metadata is applied.
///
/// # Errors
/// Returns what is wrong with the image.
pub(crate) fn decode(data: &[u8], header: &Header, is_gray: bool, most_bytes: u64) -> Result<Pixels, String> {
    let Size { height, width } = header.stored;
    let mut limits = Limits::no_limits();
    (limits.max_image_height, limits.max_image_width) = (Some(height), Some(width));
    limits.max_alloc = Some(most_bytes);
    let reader = Cursor::new(data);
    let decoded = match header.format {
        Format::Jpeg { .. } if !has_end(&data[header.place..]) => return Err("the image is cut off".to_owned()),
        Format::Jpeg { .. } => jpeg::decode(data, header.stored).map(|image| (image, orientation(&jpeg::exif(data)))),
        Format::Png { .. } => {
            let decoder = PngDecoder::with_limits(reader, limits.clone());
            decoder.and_then(|decoder| whole(decoder, header, limits)).map_err(|fault| fault.to_string())
        }
        Format::WebP { .. } if has_larger_frame(data, header.stored) => {
            return Err("the image has a frame that is larger than the image".to_owned());
        }
        Format::WebP { .. } => {
            let decoder = WebPDecoder::new(reader);
            decoder.and_then(|decoder| whole(decoder, header, limits)).map_err(|fault| fault.to_string())
        }
    };
    let (decoded, orientation) = decoded.map_err(|fault| format!("the image cannot be decoded: {fault}"))?;
    let mut converted = if is_gray { gray(decoded).into() } else { DynamicImage::from(decoded.into_rgb8()) };
    converted.apply_orientation(orientation);
    let size = Size { height: converted.height(), width: converted.width() };
    Ok(Pixels { size, data: converted.into_bytes() })
}

fn whole(
    mut decoder: impl ImageDecoder,
    header: &Header,
    limits: Limits,
) -> Result<(DynamicImage, Orientation), ImageError> {
    let Size { height, width } = header.stored;
    decoder.set_limits(limits)?;
    if decoder.dimensions() != (width, height) {
        // What was reserved is for the size in the header.
        let kind = image::error::LimitErrorKind::DimensionError;
        return Err(ImageError::Limits(image::error::LimitError::from_kind(kind)));
    }
    let orientation = orientation(&decoder.exif_metadata()?.unwrap_or_default());
    Ok((DynamicImage::from_decoder(decoder)?, orientation))
}

/// Converts to shades of gray with the weights of ITU-R 601, rounded as Pillow does. Those of the library are others.
fn gray(decoded: DynamicImage) -> GrayImage {
    if !decoded.color().has_color() {
        return decoded.into_luma8();
    }
    let colored = decoded.into_rgb8();
    let (width, height) = colored.dimensions();
    let mut pixels = colored.pixels();
    GrayImage::from_fn(width, height, |_, _| {
        let [red, green, blue] = pixels.next().map_or([0; 3], |pixel| pixel.0.map(u32::from));
        image::Luma([((red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16) as u8])
    })
}

/// Whether a JPEG has its end behind its frame. The decoder fills what is missing with gray.
fn has_end(frame: &[u8]) -> bool {
    // Compressed data never contains this pair.
    frame.windows(2).any(|pair| *pair == [0xff, 0xd9])
}

/// Whether a WebP has a lossy frame of more pixels than the image: the decoder has made room for it when it finds out.
fn has_larger_frame(data: &[u8], image: Size) -> bool {
    let kinds = data.windows(4).enumerate().filter(|(_, kind)| *kind == b"VP8 ");
    let mut frames = kinds.filter_map(|(position, _)| lossy_frame(data.get(position + 8..)?));
    frames.any(|(width, height)| u64::from(width) * u64::from(height) > image.pixels())
}
