//! The step `image` of a pipeline.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::When;
use crate::{
    knobs::{Above0, Finite, Whole},
    values::{DataTypeName, Entries, NonEmptyText, Parsed},
};

/// Most pixels of an edge that images are resized or cropped to.
const MOST_EDGE: i128 = 16_384;

/// A step that turns images in JPEG, PNG or WebP into the input of a model. Each row has one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageStepSettings {
    /// The size that images are resized to. Default: their own.
    pub resize: Option<ResizeTo>,
    /// How they are resized. Default: `bilinear`.
    pub resample: Option<ResampleName>,
    /// The size of the centre that is kept then, black where the image is smaller. Default: all.
    pub crop: Option<CropTo>,
    /// The channels, in order. Default: `RGB`.
    pub color: Option<ColorName>,
    /// The order of the axes. Default: `NCHW`.
    pub layout: Option<LayoutName>,
    /// The factor of pixels, which are from 0 to 255. Default: 1/255.
    pub scale: Option<Finite>,
    /// What is subtracted then: one number, or one for each channel in the order of `color`. Default: 0.
    pub mean: Option<Vec<Finite>>,
    /// What the result is divided by: one number, or one for each channel in the order of `color`. Default: 1.
    pub std: Option<Vec<Above0<1_000_000>>>,
    /// `FP32`, or `UINT8` for pixels as they are. Default: `FP32`.
    pub dtype: Option<Parsed<DataTypeName>>,
    /// Most pixels of an image, as it is sent and as it is resized. Default: 67108864.
    pub max_pixels: Option<Whole<u32, 1, { 1 << 28 }>>,
    /// The tensor of the pipeline that `IMAGE` receives.
    pub inputs: Entries<NonEmptyText>,
    /// The tensor of the pipeline that `pixels` gives.
    pub outputs: Entries<NonEmptyText>,
    /// The rows that run the step. Default: all.
    pub when: Option<When>,
}

/// A size that images are resized to: `shortest_edge`, or `height` and `width`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeTo {
    /// The length of the shorter edge; the other one keeps the ratio.
    pub shortest_edge: Option<Whole<u32, 1, MOST_EDGE>>,
    /// Rows of pixels.
    pub height: Option<Whole<u32, 1, MOST_EDGE>>,
    /// Columns.
    pub width: Option<Whole<u32, 1, MOST_EDGE>>,
}

/// The size of the centre of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CropTo {
    /// Rows of pixels.
    pub height: Whole<u32, 1, MOST_EDGE>,
    /// Columns.
    pub width: Whole<u32, 1, MOST_EDGE>,
}

/// How images are resized. All but `nearest` are antialiased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ResampleName {
    /// The nearest pixel.
    Nearest,
    /// A triangle.
    Bilinear,
    /// A cubic.
    Bicubic,
    /// A windowed sinc of three lobes.
    Lanczos,
}

/// The channels of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum ColorName {
    /// Red, green and blue.
    Rgb,
    /// Blue, green and red.
    Bgr,
    /// One channel of shades of gray.
    Gray,
}

/// The order of a tensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum LayoutName {
    /// Channels, height, width.
    Nchw,
    /// Height, width, channels.
    Nhwc,
}
