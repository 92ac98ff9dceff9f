//! From pixels to the elements of a tensor.

use super::{Size, decode::Pixels};

/// The channels of a tensor, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// Red, green and blue.
    #[default]
    Rgb,
    /// Blue, green and red, as OpenCV has them.
    Bgr,
    /// One channel: shades of gray.
    Gray,
}

/// The order of a tensor's axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Channels, height, width.
    #[default]
    Nchw,
    /// Height, width, channels.
    Nhwc,
}

/// What the elements of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// UINT8: the pixels.
    Uint8,
    /// FP32: pixels that are scaled and normalised.
    Fp32(Normalization),
}

/// A pixel becomes `(pixel × scale − mean) ÷ std`.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalization {
    /// A factor for all channels.
    pub scale: f64,
    /// What is subtracted, by channel in the order of the tensor; empty for nothing.
    pub mean: Vec<f64>,
    /// What the result is divided by, by channel in the order of the tensor; empty for 1.
    pub std: Vec<f64>,
}

impl Default for Normalization {
    /// From 0 to 1.
    fn default() -> Self {
        Self { scale: 1.0 / 255.0, mean: Vec::new(), std: Vec::new() }
    }
}

impl Color {
    /// Returns the number of channels.
    pub fn channels(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Gray => 1,
        }
    }

    /// Returns the number of a tensor's channel in the pixels.
    fn of_pixel(self, channel: usize) -> usize {
        if self == Self::Bgr { 2 - channel } else { channel }
    }
}

/// Writes pixels as elements.
#[derive(Debug)]
pub(crate) struct Writer {
    color: Color,
    layout: Layout,
    table: Table,
}

/// The elements of all values of a pixel, by channel.
#[derive(Debug)]
enum Table {
    Uint8,
    Fp32(Vec<[[u8; 4]; 256]>),
}

impl Writer {
    pub(crate) fn new(color: Color, layout: Layout, elements: &Elements) -> Self {
        let table = match elements {
            Elements::Uint8 => Table::Uint8,
            Elements::Fp32(by) => Table::Fp32((0..color.channels()).map(|channel| of_channel(by, channel)).collect()),
        };
        Self { color, layout, table }
    }

    /// Returns the bytes of an image of this size.
    pub(crate) fn bytes(&self, size: Size) -> u64 {
        let element = match self.table {
            Table::Uint8 => 1,
            Table::Fp32(_) => size_of::<f32>() as u64,
        };
        size.pixels().saturating_mul(element * self.color.channels() as u64)
    }

    /// Returns the dimensions of an image; -1 for a size that varies.
    pub(crate) fn dims(&self, size: Option<Size>) -> [i64; 3] {
        let channels = self.color.channels() as i64;
        let (height, width) = size.map_or((-1, -1), |size| (size.height.into(), size.width.into()));
        match self.layout {
            Layout::Nchw => [channels, height, width],
            Layout::Nhwc => [height, width, channels],
        }
    }

    /// Appends the centre of an image in this size; black where the image is smaller.
    pub(crate) fn write(&self, pixels: &Pixels, size: Size, data: &mut Vec<u8>) {
        let (rows, columns) = (Part::of(pixels.size.height, size.height), Part::of(pixels.size.width, size.width));
        let channels = self.color.channels();
        let row_of = |row: Option<usize>| {
            let width = pixels.size.width as usize * channels;
            row.map_or(&[][..], |row| &pixels.data[row * width..][..width])
        };
        let mut put = |row: &[u8], column: Option<usize>, channel: usize| {
            let place = column.map(|column| column * channels + self.color.of_pixel(channel));
            let pixel = place.and_then(|place| row.get(place)).copied().unwrap_or(0);
            match &self.table {
                Table::Uint8 => data.push(pixel),
                Table::Fp32(by_channel) => data.extend_from_slice(&by_channel[channel][usize::from(pixel)]),
            }
        };
        match self.layout {
            Layout::Nchw => {
                for channel in 0..channels {
                    for row in rows.all() {
                        let row = row_of(row);
                        columns.all().for_each(|column| put(row, column, channel));
                    }
                }
            }
            Layout::Nhwc => {
                for row in rows.all() {
                    let row = row_of(row);
                    columns.all().for_each(|column| (0..channels).for_each(|channel| put(row, column, channel)));
                }
            }
        }
    }
}

/// Computes as Hugging Face does: the product in double precision, the rest in single.
fn of_channel(by: &Normalization, channel: usize) -> [[u8; 4]; 256] {
    let of = |values: &[f64], otherwise: f64| values.get(channel).copied().unwrap_or(otherwise) as f32;
    let (mean, std) = (of(&by.mean, 0.0), of(&by.std, 1.0));
    std::array::from_fn(|pixel| (((pixel as f64 * by.scale) as f32 - mean) / std).to_le_bytes())
}

/// The part of an axis that a crop keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Positions in front of the image.
    before: usize,
    /// Pixels of the image that are left out at its start.
    skipped: usize,
    /// Pixels that are kept.
    kept: usize,
    /// Length of the result.
    length: usize,
}

impl Part {
    /// Of the pixels that are cut off or missing, an odd one is at the end of what is cut off and at the start of what
    /// is missing, as in Hugging Face's image processors.
    fn of(given: u32, wanted: u32) -> Self {
        let before = wanted.saturating_sub(given).div_ceil(2) as usize;
        let skipped = (given.saturating_sub(wanted) / 2) as usize;
        Self { before, skipped, kept: given.min(wanted) as usize, length: wanted as usize }
    }

    /// Returns for each position of the result the pixel that is there, if one is.
    fn all(self) -> impl Iterator<Item = Option<usize>> {
        let Self { before, skipped, kept, length } = self;
        (0..length).map(move |position| {
            position.checked_sub(before).filter(|inside| *inside < kept).map(|inside| inside + skipped)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of three pixels, each with its number in red.
    fn pixels() -> Pixels {
        let data = (1..=6).flat_map(|number| [number, 10 * number, 100 + number]).collect();
        Pixels { size: Size { height: 2, width: 3 }, data }
    }

    fn written(color: Color, layout: Layout, size: Size) -> Vec<u8> {
        let mut data = Vec::new();
        let writer = Writer::new(color, layout, &Elements::Uint8);
        writer.write(&pixels(), size, &mut data);
        assert_eq!(data.len() as u64, writer.bytes(size));
        data
    }

    #[test]
    fn axes_and_channels_are_in_the_order_that_is_asked_for() {
        let whole = Size { height: 2, width: 3 };
        let planes = written(Color::Rgb, Layout::Nchw, whole);
        assert_eq!(planes[..6], [1, 2, 3, 4, 5, 6]);
        assert_eq!(planes[12..], [101, 102, 103, 104, 105, 106]);
        let blue_first = written(Color::Bgr, Layout::Nchw, whole);
        assert_eq!((&blue_first[..6], &blue_first[12..]), (&planes[12..], &planes[..6]));
        assert_eq!(written(Color::Rgb, Layout::Nhwc, whole), pixels().data);
        assert_eq!(written(Color::Bgr, Layout::Nhwc, whole)[..6], [101, 10, 1, 102, 20, 2]);
    }

    #[test]
    fn a_crop_keeps_the_centre_and_is_black_where_there_is_no_image() {
        let red = |size| written(Color::Rgb, Layout::Nchw, size)[..size.pixels() as usize].to_vec();
        assert_eq!(red(Size { height: 1, width: 1 }), [2], "the odd row is cut off below");
        assert_eq!(red(Size { height: 2, width: 2 }), [1, 2, 4, 5], "the odd column is cut off behind");
        assert_eq!(red(Size { height: 3, width: 1 }), [0, 2, 5], "the odd row is added above");
        assert_eq!(red(Size { height: 1, width: 5 }), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn pixels_are_scaled_then_normalised_by_channel() {
        let by = Normalization { scale: 0.5, mean: vec![1.0, 0.0, 0.25], std: vec![1.0, 4.0, 1.0] };
        let writer = Writer::new(Color::Bgr, Layout::Nhwc, &Elements::Fp32(by));
        let mut data = Vec::new();
        writer.write(&pixels(), Size { height: 2, width: 1 }, &mut data);
        let numbers: Vec<f32> = data.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
        // Blue, green and red of pixels 2 and 5.
        assert_eq!(numbers, [50.0, 2.5, 0.75, 51.5, 6.25, 2.25]);
        let usual = Writer::new(Color::Gray, Layout::Nchw, &Elements::Fp32(Normalization::default()));
        let Table::Fp32(table) = usual.table else { panic!("floats") };
        assert_eq!(f32::from_le_bytes(table[0][255]), 1.0);
    }
}
