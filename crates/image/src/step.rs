//! The step `image`: encoded images to the input of a model.

use bytes::Bytes;
use fast_image_resize::{
    FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer,
    images::{Image, ImageRef},
};
use paternoster_executor::InputTensor;
use paternoster_model::{DataType, Dims, TensorSpec};
use paternoster_pipeline::{BuiltIn, BuiltInFault, Effort, InputRows, Stop, Value, only_string};

use super::{
    Color, Elements, Layout, Normalization, Resize, Size,
    decode::{Pixels, decode},
    elements::Writer,
    header::Header,
    plan::working_bytes,
};

/// Name of the step's input: an image in JPEG, PNG or WebP.
pub const IMAGE: &str = "IMAGE";

/// Name of the step's output.
pub const PIXELS: &str = "pixels";

/// Most pixels of an image, unless configured otherwise: more than phones take.
pub const DEFAULT_MAX_PIXELS: u64 = 64 << 20;

/// Images of at most this many pixels together take a fraction of a second.
const USUAL_PIXELS: u64 = 32 << 20;

/// What the step does with an image.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions {
    /// The size that it is resized to, if it is.
    pub resize: Option<Resize>,
    /// How.
    pub resample: Resample,
    /// The size of the centre that is kept then; all without one.
    pub crop: Option<Size>,
    /// The channels.
    pub color: Color,
    /// The order of the axes.
    pub layout: Layout,
    /// What the elements are.
    pub elements: Elements,
    /// Most pixels of an image, as it is sent and as it is resized.
    pub max_pixels: u64,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            resize: None,
            resample: Resample::default(),
            crop: None,
            color: Color::default(),
            layout: Layout::default(),
            elements: Elements::Fp32(Normalization::default()),
            max_pixels: DEFAULT_MAX_PIXELS,
        }
    }
}

/// How images are resized. All but the first are antialiased, as in Pillow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resample {
    /// The nearest pixel.
    Nearest,
    /// A triangle.
    #[default]
    Bilinear,
    /// A cubic.
    Bicubic,
    /// A windowed sinc of three lobes.
    Lanczos,
}

impl Resample {
    fn algorithm(self) -> ResizeAlg {
        match self {
            Self::Nearest => ResizeAlg::Nearest,
            Self::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Self::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Self::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        }
    }
}

/// The step.
#[derive(Debug)]
pub struct ImageStep {
    options: ImageOptions,
    writer: Writer,
    inputs: [TensorSpec; 1],
    outputs: [TensorSpec; 1],
}

/// An encoded image whose header has been read.
struct Encoded<'a> {
    data: &'a [u8],
    header: Header,
}

impl ImageStep {
    /// Creates the step.
    pub fn new(options: ImageOptions) -> Self {
        let writer = Writer::new(options.color, options.layout, &options.elements);
        let fixed = match (options.crop, options.resize) {
            (Some(size), _) | (None, Some(Resize::To(size))) => Some(size),
            (None, Some(Resize::ShortestEdge(_)) | None) => None,
        };
        let datatype = match options.elements {
            Elements::Uint8 => DataType::Uint8,
            Elements::Fp32(_) => DataType::Fp32,
        };
        let outputs = [TensorSpec::new(PIXELS, datatype, &writer.dims(fixed))];
        Self { options, writer, inputs: [TensorSpec::new(IMAGE, DataType::Bytes, &[1])], outputs }
    }

    /// Returns the size of an image's pixels after resizing and cropping, given its size the right way up.
    fn result(&self, given: Size) -> Size {
        let resized = self.options.resize.map_or(given, |resize| resize.of(given));
        self.options.crop.unwrap_or(resized)
    }

    /// Reads the header of an image, and checks that it has no more pixels than it may have.
    fn read<'a>(&self, image: &'a InputTensor) -> Result<Encoded<'a>, String> {
        let data = only_string(image).ok_or_else(|| format!("{IMAGE} has no string"))?;
        let header = Header::read(data).map_err(|fault| fault.to_string())?;
        let most = self.options.max_pixels;
        let check = |what: &str, Size { height, width }: Size| {
            let pixels = u64::from(height) * u64::from(width);
            let text = || format!("expected an image of at most {most} pixels, but {what} {width} x {height}");
            if pixels > most { Err(text()) } else { Ok(()) }
        };
        check("found", header.stored)?;
        if let Some(resize) = self.options.resize {
            check("resized, it has", resize.of(header.stored))?;
        }
        Ok(Encoded { data, header })
    }

    /// Returns an upper limit of the bytes that an image needs apart from its result.
    fn working_bytes(&self, image: &Encoded<'_>) -> u64 {
        working_bytes(&image.header, image.data.len(), self.options.resize)
    }

    /// Decodes and resizes an image.
    fn pixels(&self, image: &Encoded<'_>, resizer: &mut Resizer, stop: &Stop) -> Result<Pixels, BuiltInFault> {
        let is_gray = self.options.color == Color::Gray;
        let most_bytes = self.working_bytes(image);
        let decoded = decode(image.data, &image.header, is_gray, most_bytes).map_err(BuiltInFault::Invalid)?;
        stop.check()?;
        let Some(size) = self.options.resize.map(|resize| resize.of(decoded.size)) else { return Ok(decoded) };
        let resample = self.options.resample;
        let resized = resized(&decoded, size, resample, if is_gray { PixelType::U8 } else { PixelType::U8x3 }, resizer);
        let data = resized.map_err(|fault| BuiltInFault::Failed(format!("the image cannot be resized: {fault}")))?;
        Ok(Pixels { size, data })
    }

    /// Returns the images among the inputs that can be read; the others fail when they run.
    fn readable(&self, inputs: &[Option<Value>]) -> Vec<(Header, u64, u64)> {
        let rows = match inputs.first() {
            Some(Some(Value::Joint(joint))) => usize::try_from(joint.shape.first().copied().unwrap_or(0)).unwrap_or(0),
            Some(Some(Value::Rows(rows))) => rows.len(),
            Some(None) | None => 0,
        };
        let Ok(given) = InputRows::new(inputs, &self.inputs, rows) else { return Vec::new() };
        let images = (0..rows).filter_map(|row| self.read(given.get(0, row)?).ok());
        let sizes = images.map(|image| {
            let result = self.writer.bytes(self.result(image.header.stored));
            (image.header, self.working_bytes(&image), result)
        });
        sizes.collect()
    }
}

impl BuiltIn for ImageStep {
    fn kind(&self) -> &'static str {
        "image"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn effort(&self, inputs: &[Option<Value>]) -> Effort {
        let pixels =
            self.readable(inputs).iter().map(|(header, ..)| header.stored.pixels()).fold(0, u64::saturating_add);
        if pixels <= USUAL_PIXELS { Effort::Usual } else { Effort::Long }
    }

    fn built_bytes(&self, inputs: &[Option<Value>]) -> usize {
        let sizes = self.readable(inputs);
        // One image is decoded after the other.
        let working = sizes.iter().map(|(_, working, _)| *working).max().unwrap_or(0);
        let results = sizes.iter().map(|(.., result)| *result).fold(0, u64::saturating_add);
        usize::try_from(working.saturating_add(results)).unwrap_or(usize::MAX)
    }

    fn run(&self, inputs: &[Option<Value>], rows: usize, stop: &Stop) -> Result<Vec<Value>, BuiltInFault> {
        let given = InputRows::new(inputs, &self.inputs, rows)?;
        let named = |row: usize, text: String| if rows > 1 { format!("row {row}: {text}") } else { text };
        let mut images = Vec::with_capacity(rows);
        for row in 0..rows {
            let image = given.get(0, row).map(|image| self.read(image)).transpose();
            images.push(image.map_err(|text| BuiltInFault::Invalid(named(row, text)))?);
        }
        let results = images.iter().flatten().map(|image| self.writer.bytes(self.result(image.header.stored)));
        let bytes = results.fold(0, u64::saturating_add);
        let too_large = || BuiltInFault::Invalid("the images are too large together".to_owned());
        let mut data = Vec::with_capacity(usize::try_from(bytes).map_err(|_| too_large())?);
        let mut shapes: Vec<Option<(Dims, usize)>> = Vec::with_capacity(rows);
        let mut resizer = Resizer::new();
        for (row, image) in images.iter().enumerate() {
            stop.check()?;
            let Some(image) = image else {
                shapes.push(None);
                continue;
            };
            let pixels = self.pixels(image, &mut resizer, stop).map_err(|fault| match fault {
                BuiltInFault::Invalid(text) => BuiltInFault::Invalid(named(row, text)),
                fault => fault,
            })?;
            let size = self.options.crop.unwrap_or(pixels.size);
            self.writer.write(&pixels, size, &mut data);
            let shape = std::iter::once(1).chain(self.writer.dims(Some(size))).collect();
            shapes.push(Some((shape, data.len())));
        }
        Ok(vec![value(data.into(), shapes)])
    }
}

/// Resizes an image: as in Pillow, along its rows first, then along its columns. Numbers between the two are cut off at
/// 0 and 255, so the order shows.
fn resized(
    given: &Pixels,
    size: Size,
    resample: Resample,
    kind: PixelType,
    resizer: &mut Resizer,
) -> Result<Vec<u8>, String> {
    let options = ResizeOptions::new().resize_alg(resample.algorithm());
    let mut step = |data: &[u8], from: Size, to: Size| {
        let given = ImageRef::new(from.width, from.height, data, kind).map_err(|fault| fault.to_string())?;
        let mut result = Image::new(to.width, to.height, kind);
        resizer.resize(&given, &mut result, &options).map_err(|fault| fault.to_string())?;
        Ok::<_, String>(result.into_vec())
    };
    let wide = Size { width: size.width, ..given.size };
    if resample == Resample::Nearest || wide == size || wide == given.size {
        return step(&given.data, given.size, size);
    }
    let between = step(&given.data, given.size, wide)?;
    step(&between, wide, size)
}

/// Returns images that lie behind each other as one tensor if they are all there and have one size, and as one for each
/// row otherwise. `rows` has the shape of each, and where it ends.
fn value(data: Bytes, rows: Vec<Option<(Dims, usize)>>) -> Value {
    if let Some(Some((shape, _))) = rows.first()
        && rows.iter().all(|row| row.as_ref().is_some_and(|(other, _)| other == shape))
    {
        let mut shape = shape.clone();
        shape[0] = rows.len() as i64;
        return Value::Joint(InputTensor { shape, data });
    }
    let mut start = 0;
    let mut tensor = |(shape, end): (Dims, usize)| {
        let tensor = InputTensor { shape, data: data.slice(start..end) };
        start = end;
        tensor
    };
    Value::Rows(rows.into_iter().map(|row| row.map(&mut tensor)).collect())
}
