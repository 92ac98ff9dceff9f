//! JPEGs: the segments in front of their data, and pixels in the colors that libjpeg finds in them.

use std::borrow::Cow;

use image::{DynamicImage, GrayImage, RgbImage};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, options::DecoderOptions},
};

use super::Size;

/// Most segments in front of the data of a JPEG. Profiles and metadata take a few hundred at most.
pub(crate) const MOST_SEGMENTS: usize = 1024;

/// What the metadata of cameras begins with.
const EXIF: &[u8] = b"Exif\0\0";

/// A segment in front of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    marker: u8,
    /// Where its content lies.
    pub(crate) place: usize,
    content: &'a [u8],
}

/// Returns the segments of a JPEG up to its data or its end. What has no length is left out: restarts, and bytes that
/// only look like a marker.
pub(crate) fn segments(data: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut rest = data.get(2..).unwrap_or_default();
    let mut markers = 0..MOST_SEGMENTS;
    std::iter::from_fn(move || {
        while markers.next().is_some() {
            // Readers skip what lies between segments, and any number of bytes 0xff in front of a marker.
            rest = &rest[rest.iter().position(|&byte| byte == 0xff)?..];
            rest = &rest[rest.iter().position(|&byte| byte != 0xff)?..];
            let (&marker, segment) = rest.split_first()?;
            match marker {
                0x00 | 0x01 | 0xd0..=0xd8 => rest = segment,
                // The end of the image, or its data.
                0xd9 | 0xda => return None,
                _ => {
                    let length = usize::from(u16::from_be_bytes(*segment.first_chunk()?)).max(2);
                    let (place, content) = (data.len() - segment.len() + 2, segment.get(2..length)?);
                    rest = &segment[length..];
                    return Some(Segment { marker, place, content });
                }
            }
        }
        None
    })
}

impl<'a> Segment<'a> {
    /// Whether it may say which colors there are.
    fn is_of_adobe(&self) -> bool {
        self.marker == 0xee && self.content.len() >= 12 && self.content.starts_with(b"Adobe")
    }

    /// Returns the frame, of whatever coding, if it is one. C4, C8 and CC are other segments.
    pub(crate) fn frame(self) -> Option<Frame<'a>> {
        let Self { marker: 0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf, content, .. } = self else {
            return None;
        };
        let ([_, height_0, height_1, width_0, width_1, _], channels) = content.split_first_chunk()?;
        Some(Frame {
            height: u16::from_be_bytes([*height_0, *height_1]).into(),
            width: u16::from_be_bytes([*width_0, *width_1]).into(),
            is_progressive: self.marker & 3 == 2,
            channels: channels.as_chunks().0,
        })
    }
}

/// What a frame says about an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) height: u32,
    pub(crate) width: u32,
    /// Whether the data goes through the image several times.
    pub(crate) is_progressive: bool,
    /// For each channel its name, sampling and table.
    pub(crate) channels: &'a [[u8; 3]],
}

/// What the channels of a JPEG are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colors {
    Gray,
    Rgb,
    /// Brightness, and two differences of color.
    Ycc,
    /// Cyan, magenta, yellow and black, all inverted.
    Inks,
    /// The same, and the first three stored as [`Self::Ycc`].
    YccInks,
}

impl Colors {
    /// Returns the colors of a JPEG: as libjpeg, by what its writer has said, and by the names of the channels if there
    /// is nothing else.
    fn of(data: &[u8]) -> Option<Self> {
        let (mut channels, mut is_jfif, mut adobe) = (None, false, None);
        for segment in segments(data) {
            match segment {
                Segment { marker: 0xe0, content, .. } if content.len() >= 14 && content.starts_with(b"JFIF\0") => {
                    is_jfif = true;
                }
                segment if segment.is_of_adobe() => adobe = Some(segment.content[11]),
                segment => channels = channels.or(segment.frame().map(|frame| frame.channels)),
            }
        }
        match (channels?, adobe) {
            ([_], _) => Some(Self::Gray),
            ([_, _, _], _) if is_jfif => Some(Self::Ycc),
            ([_, _, _], Some(0)) | ([[b'R', ..], [b'G', ..], [b'B', ..]], None) => Some(Self::Rgb),
            ([_, _, _], _) => Some(Self::Ycc),
            ([_, _, _, _], None | Some(0)) => Some(Self::Inks),
            ([_, _, _, _], Some(_)) => Some(Self::YccInks),
            _ => None,
        }
    }

    fn channels(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb | Self::Ycc => 3,
            Self::Inks | Self::YccInks => 4,
        }
    }

    /// Converts pixels to RGB, or leaves them gray: to the same numbers as libjpeg, and as Pillow for inks.
    fn convert(self, mut data: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Gray | Self::Rgb => {}
            Self::Ycc => data.as_chunks_mut().0.iter_mut().for_each(|pixel| *pixel = rgb_of_ycc(*pixel)),
            Self::Inks | Self::YccInks => {
                let pixels = data.len() / 4;
                for number in 0..pixels {
                    let [first, second, third, black] = data.as_chunks().0[number];
                    let stored = [first, second, third];
                    let inks = if self == Self::YccInks { rgb_of_ycc(stored) } else { stored.map(|light| 255 - light) };
                    let light = inks.map(|ink| black - of_255(ink, black));
                    data[3 * number..][..3].copy_from_slice(&light);
                }
                data.truncate(3 * pixels);
            }
        }
        data
    }
}

/// With the factors of JFIF in units of 2^-16.
fn rgb_of_ycc([y, blue, red]: [u8; 3]) -> [u8; 3] {
    let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
    let rounded = |number: i32| (number + (1 << 15)) >> 16;
    let green = y + rounded(-22_554 * blue - 46_802 * red);
    [y + rounded(91_881 * red), green, y + rounded(116_130 * blue)].map(|value| value.clamp(0, 255) as u8)
}

/// Returns a part of a number, in units of 1/255, rounded.
fn of_255(part: u8, number: u8) -> u8 {
    let product = u32::from(part) * u32::from(number) + 128;
    ((product + (product >> 8)) >> 8) as u8
}

/// Returns the metadata of cameras. What several segments have is one piece, as in Pillow, so the first one counts.
pub(crate) fn exif(data: &[u8]) -> Vec<u8> {
    let found = segments(data).filter(|segment| segment.marker == 0xe1 && segment.content.starts_with(EXIF));
    found.enumerate().fold(Vec::new(), |mut all, (number, segment)| {
        all.extend_from_slice(if number == 0 { segment.content } else { &segment.content[EXIF.len()..] });
        all
    })
}

/// Decodes a JPEG of this size to shades of gray or RGB.
///
/// # Errors
/// Returns what is wrong with it.
pub(crate) fn decode(encoded: &[u8], size: Size) -> Result<DynamicImage, String> {
    let (height, width) = (size.height as usize, size.width as usize);
    let colors = Colors::of(encoded).ok_or("expected one, three or four channels")?;
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(width).set_max_height(height);
    // The decoder would choose the colors by itself, and refuse what it does not know.
    let plain = without_adobe(encoded);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&*plain), options);
    decoder.decode_headers().map_err(|fault| fault.to_string())?;
    let stored = decoder.input_colorspace().filter(|stored| stored.num_components() == colors.channels());
    // What was reserved is for the size and the channels in the header.
    let (Some(stored), true) = (stored, decoder.dimensions() == Some((width, height))) else {
        return Err("it has two headers that differ".to_owned());
    };
    decoder.set_options(options.jpeg_set_out_colorspace(stored));
    let mut data = decoder.decode().map_err(|fault| fault.to_string())?;
    if let Some(frame) = segments(encoded).find_map(Segment::frame) {
        mend_edges(&mut data, size, frame.channels);
    }
    let data = colors.convert(data);
    let image = match colors {
        Colors::Gray => GrayImage::from_raw(size.width, size.height, data).map(DynamicImage::from),
        _ => RgbImage::from_raw(size.width, size.height, data).map(DynamicImage::from),
    };
    image.ok_or_else(|| "it has fewer pixels than its header says".to_owned())
}

/// Computes the last row and column of channels that are stored at half the resolution, as libjpeg does: the decoder
/// lets samples beyond the edge have a part in them. The last sample `s` within follows from the two pixels between it
/// and the one before it, `r`: these are `(s + 3 r) / 4` and `(3 s + r) / 4`.
fn mend_edges(data: &mut [u8], size: Size, channels: &[[u8; 3]]) {
    let (height, width, step) = (size.height as usize, size.width as usize, channels.len());
    let sampling = |channel: &[u8; 3]| [usize::from(channel[1] & 15), usize::from(channel[1] >> 4)];
    let most = channels.iter().map(sampling).fold([1; 2], |most, of| [most[0].max(of[0]), most[1].max(of[1])]);
    for (number, channel) in channels.iter().enumerate() {
        let is_mended = |axis: usize, length: usize| {
            // Blocks of samples that the image fills have none beyond the edge.
            let is_half = most[axis] == 2 * sampling(channel)[axis];
            // Colors of two columns are not interpolated, those of two rows are.
            is_half && length > 2 + 2 * axis && length.is_multiple_of(2) && !length.is_multiple_of(8 * most[axis])
        };
        let mut mend = |last: usize, distance: usize| {
            let [far, near] = [2, 1].map(|pixels| i32::from(data[last - pixels * distance]));
            data[last] = (3 * near - far + 1).div_euclid(2).clamp(0, 255) as u8;
        };
        if is_mended(0, height) {
            (0..width).for_each(|column| mend(((height - 1) * width + column) * step + number, width * step));
        }
        if is_mended(1, width) {
            (1..=height).for_each(|row| mend((row * width - 1) * step + number, step));
        }
    }
}

/// Returns a JPEG in which segments of Adobe have no effect.
fn without_adobe(data: &[u8]) -> Cow<'_, [u8]> {
    let mut plain = Cow::Borrowed(data);
    for segment in segments(data).filter(|segment| segment.marker == 0xee) {
        // Where it would have its name.
        let name = segment.content.len().min(5);
        plain.to_mut()[segment.place..][..name].fill(0);
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::ImageFormat;

    use super::*;

    fn segment(marker: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() + 2) as u16;
        [&[0xff, marker], &length.to_be_bytes()[..], content].concat()
    }

    fn jfif() -> Vec<u8> {
        segment(0xe0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
    }

    fn adobe(transform: u8) -> Vec<u8> {
        segment(0xee, &[&b"Adobe\0\x64\0\0\0\0"[..], &[transform]].concat())
    }

    /// The beginning of a JPEG with a frame whose channels have these names.
    fn with(marks: &[Vec<u8>], names: &[u8]) -> Vec<u8> {
        let channels: Vec<u8> = names.iter().flat_map(|&name| [name, 0x11, 0]).collect();
        let frame = segment(0xc0, &[&[8, 0, 1, 0, 1, names.len() as u8], &channels[..]].concat());
        [&b"\xff\xd8"[..], &marks.concat(), &frame].concat()
    }

    /// What libjpeg finds, for all that may be said.
    #[test]
    fn colors_are_those_of_libjpeg() {
        use Colors::{Gray, Inks, Rgb, Ycc, YccInks};
        for transform in [None, Some(0), Some(1), Some(2), Some(3), Some(255)] {
            let mark: Vec<Vec<u8>> = transform.map(adobe).into_iter().collect();
            let of = |names: &[u8]| Colors::of(&with(&mark, names));
            let with_jfif = |names: &[u8]| Colors::of(&with(&[&mark[..], &[jfif()]].concat(), names));
            for names in [b"\x01\x02\x03", b"RGB", b"\0\x01\x02", b"rgb"] {
                assert_eq!(with_jfif(names), Some(Ycc), "{transform:?} {names:?}");
                let by_name = if names == b"RGB" { Rgb } else { Ycc };
                let expected = transform.map_or(by_name, |transform| if transform == 0 { Rgb } else { Ycc });
                assert_eq!(of(names), Some(expected), "{transform:?} {names:?}");
            }
            let inks = if matches!(transform, None | Some(0)) { Inks } else { YccInks };
            assert_eq!([of(b"\x01\x02\x03\x04"), with_jfif(b"CMYK")], [Some(inks); 2], "{transform:?}");
            assert_eq!([of(b"\x01"), with_jfif(b"R")], [Some(Gray); 2], "{transform:?}");
            assert_eq!([of(b"\x01\x02"), with_jfif(b"\x01\x02\x03\x04\x05")], [None; 2]);
        }
        assert_eq!(Colors::of(b"\xff\xd8"), None);
    }

    #[test]
    fn marks_count_wherever_they_are_and_the_last_of_adobe_does() {
        let behind = |mark: &[u8]| Colors::of(&[&with(&[], b"\x01\x02\x03")[..], mark].concat());
        assert_eq!([behind(&adobe(0)), behind(&jfif())], [Some(Colors::Rgb), Some(Colors::Ycc)]);
        assert_eq!(Colors::of(&with(&[adobe(0), adobe(1)], b"RGB")), Some(Colors::Ycc));
        let short = [segment(0xee, b"Adobe\0\x64\0\0\0\0"), segment(0xe0, b"JFIF\0")];
        assert_eq!(Colors::of(&with(&short, b"RGB")), Some(Colors::Rgb), "they say nothing");
    }

    /// A JPEG of colors that change, with marks in front of its frame in place of its own.
    fn written(marks: &[Vec<u8>]) -> (Vec<u8>, Size) {
        let size = Size { height: 20, width: 37 };
        let picture = RgbImage::from_fn(size.width, size.height, |x, y| {
            image::Rgb([(x * 6) as u8, (y * 12) as u8, (255 - x * 3 - y * 4) as u8])
        });
        let mut data = Cursor::new(Vec::new());
        picture.write_to(&mut data, ImageFormat::Jpeg).expect("it can be written");
        let data = data.into_inner();
        let own = segments(&data).next().expect("a segment");
        assert_eq!(own.marker, 0xe0);
        ([&data[..2], &marks.concat(), &data[own.place + own.content.len()..]].concat(), size)
    }

    fn decoded(marks: &[Vec<u8>]) -> Vec<u8> {
        let (data, size) = written(marks);
        decode(&data, size).expect("it can be decoded").into_bytes()
    }

    #[test]
    fn pixels_are_converted_from_what_is_stored() {
        let (stored, usual) = (decoded(&[adobe(0)]), decoded(&[jfif()]));
        assert_eq!(Colors::Ycc.convert(stored), usual);
        for marks in [vec![], vec![adobe(1)], vec![adobe(200)], vec![jfif(), adobe(0)], vec![adobe(0), jfif()]] {
            assert_eq!(decoded(&marks), usual);
        }
    }

    #[test]
    fn colors_are_converted_with_the_factors_of_jfif() {
        assert_eq!(rgb_of_ycc([77, 128, 128]), [77; 3]);
        assert_eq!([rgb_of_ycc([76, 85, 255]), rgb_of_ycc([29, 255, 107])], [[254, 0, 0], [0, 0, 254]]);
        let inks = |pixel: [u8; 4]| Colors::Inks.convert(pixel.to_vec());
        assert_eq!([inks([255; 4]), inks([255, 255, 255, 0])], [[255; 3], [0; 3]], "white and black");
        assert_eq!(inks([255, 128, 0, 200]), [200, 100, 0]);
        let stored = [76, 85, 255, 255, 29, 255, 107, 128];
        assert_eq!(Colors::YccInks.convert(stored.to_vec()), [1, 255, 255, 128, 128, 1]);
    }

    #[test]
    fn metadata_in_several_segments_is_one_piece() {
        let marks = [segment(0xe1, b"Exif\0\0II"), segment(0xe1, b"http:"), segment(0xe1, b"Exif\0\0*\0")];
        assert_eq!(exif(&with(&marks, b"\x01")), b"Exif\0\0II*\0");
        assert_eq!(exif(&with(&[], b"\x01")), b"");
    }

    #[test]
    fn frames_that_differ_from_the_header_are_refused() {
        let (data, size) = written(&[]);
        for other in [Size { height: 19, ..size }, Size { width: 38, ..size }] {
            decode(&data, other).expect_err("what is reserved is for another size");
        }
    }

    /// Samples of twice the resolution, as they are interpolated between these.
    fn interpolated(samples: &[u8]) -> Vec<u8> {
        let at = |place: usize| u16::from(samples[place.min(samples.len() - 1)]);
        let between = |near: usize, far: usize| ((3 * at(near) + at(far) + 2) >> 2) as u8;
        (0..samples.len())
            .flat_map(|place| [between(place, place.saturating_sub(1)), between(place, place + 1)])
            .collect()
    }

    #[test]
    fn what_is_stored_beyond_the_edge_has_no_part_in_the_image() {
        let samples = [10, 200, 90, 0, 250, 40, 255, 3];
        let (brightness, half) = ([0, 0x21, 0], [1, 0x11, 0]);
        for length in [6, 8, 10, 12] {
            let (within, beyond) = (interpolated(&samples[..length / 2]), interpolated(&samples));
            let mut row: Vec<u8> = beyond[..length].iter().flat_map(|&sample| [sample, sample]).collect();
            let given = row.clone();
            mend_edges(&mut row, Size { height: 1, width: length as u32 }, &[brightness, half]);
            assert_eq!(row[..2 * length - 1], given[..2 * length - 1], "only the last sample of the second channel");
            assert!(row[2 * length - 1].abs_diff(within[length - 1]) <= 1, "{row:?} {within:?}");
            let mut column = beyond[..length].to_vec();
            let tall = [[0, 0x12, 0], [1, 0x11, 0]];
            mend_edges(&mut column, Size { height: length as u32, width: 1 }, &tall[1..]);
            assert_eq!(column, beyond[..length], "nothing is stored at half the resolution");
            let mut columns: Vec<u8> = beyond[..length].iter().flat_map(|&sample| [7, sample]).collect();
            mend_edges(&mut columns, Size { height: length as u32, width: 1 }, &tall);
            assert!(columns[2 * length - 1].abs_diff(within[length - 1]) <= 1 && columns[2 * length - 2] == 7);
        }
    }

    #[test]
    fn edges_that_nothing_is_beyond_stay() {
        let mut data: Vec<u8> = (0..16 * 16 * 2).map(|number| (number * 37) as u8).collect();
        let given = data.clone();
        let halves = [[0, 0x22, 0], [1, 0x11, 0]];
        mend_edges(&mut data, Size { height: 16, width: 16 }, &halves);
        mend_edges(&mut data[..15 * 15 * 2], Size { height: 15, width: 15 }, &halves);
        mend_edges(&mut data[..2 * 4 * 2], Size { height: 2, width: 4 }, &halves);
        mend_edges(&mut data[..2], Size { height: 1, width: 1 }, &halves);
        assert_eq!(data, given);
    }
}
