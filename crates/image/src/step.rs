//! The step `image`: encoded images to the input of a model.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fast_image_resize::{
    FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::{U8, U8x3},
};
use paternoster_model::{DataType, Dims, InputTensor, TensorSpec};
use paternoster_pipeline::{
    BuiltIn, BuiltInFault, InputRows, StepWork, Stop, TensorRows, WorkerGroup, Workers, only_string,
};

use super::{
    Color, Elements, Layout, Normalization, Resize, Size,
    decode::{Pixels, decode},
    elements::Writer,
    header::Header,
    plan::{effort, working_bytes},
};

/// Name of the step's input: an image in JPEG, PNG or WebP.
pub const IMAGE: &str = "IMAGE";

/// Name of the step's output.
pub const PIXELS: &str = "pixels";

/// Most pixels of an image, unless configured otherwise: more than phones take.
pub const DEFAULT_MAX_PIXELS: u64 = 64 << 20;

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
        let resized = if is_gray { resized::<U8> } else { resized::<U8x3> };
        let resized = resized(&decoded, size, self.options.resample, resizer);
        let data = resized.map_err(|fault| BuiltInFault::Failed(format!("the image cannot be resized: {fault}")))?;
        Ok(Pixels { size, data })
    }

    /// Returns the images among the inputs that can be read; the others fail when they run.
    fn readable(&self, inputs: &[Option<TensorRows>]) -> Vec<(Header, u64, u64)> {
        let rows = match inputs.first() {
            Some(Some(TensorRows::Joint(joint))) => {
                usize::try_from(joint.shape.first().copied().unwrap_or(0)).unwrap_or(0)
            }
            Some(Some(TensorRows::Rows(rows))) => rows.len(),
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

    fn is_short(&self, _inputs: &[Option<TensorRows>]) -> bool {
        false
    }

    fn workers<'a>(&self, all: &'a Workers) -> &'a WorkerGroup {
        &all.images
    }

    fn built_bytes(&self, inputs: &[Option<TensorRows>]) -> usize {
        let sizes = self.readable(inputs);
        // One image is decoded after the other.
        let working = sizes.iter().map(|(_, working, _)| *working).max().unwrap_or(0);
        let results = sizes.iter().map(|(.., result)| *result).fold(0, u64::saturating_add);
        usize::try_from(working.saturating_add(results)).unwrap_or(usize::MAX)
    }

    fn begin(self: Arc<Self>, inputs: Vec<Option<TensorRows>>, rows: usize) -> Result<Box<dyn StepWork>, BuiltInFault> {
        let given = InputRows::new(&inputs, &self.inputs, rows)?;
        let mut headers = Vec::with_capacity(rows);
        for row in 0..rows {
            let image = given.get(0, row).map(|image| self.read(image)).transpose();
            let image = image.map_err(|text| BuiltInFault::Invalid(named(row, rows, text)))?;
            headers.push(image.map(|image| image.header));
        }
        let results = headers.iter().flatten().map(|header| self.writer.bytes(self.result(header.stored)));
        let bytes = results.fold(0, u64::saturating_add);
        let too_large = || BuiltInFault::Invalid("the images are too large together".to_owned());
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        let (data, shapes, resizer) = (Vec::new(), Vec::with_capacity(rows), Resizer::new());
        Ok(Box::new(Images { step: self, given, headers, bytes, data, shapes, resizer }))
    }
}

/// The work of a request.
struct Images {
    step: Arc<ImageStep>,
    given: InputRows,
    /// By row.
    headers: Vec<Option<Header>>,
    /// Of all results.
    bytes: usize,
    data: Vec<u8>,
    /// The shape of each result, and where it ends.
    shapes: Vec<Option<(Dims, usize)>>,
    resizer: Resizer,
}

impl StepWork for Images {
    fn effort(&self, row: usize) -> Duration {
        let (Some(header), Some(image)) = (self.headers[row], self.given.get(0, row)) else { return Duration::ZERO };
        effort(&header, image.data.len(), self.step.options.resize, self.step.result(header.stored))
    }

    fn run(&mut self, row: usize, stop: &Stop) -> Result<(), BuiltInFault> {
        let (Some(header), Some(image)) = (self.headers[row], self.given.get(0, row)) else {
            self.shapes.push(None);
            return Ok(());
        };
        // Reading the header has found the string.
        let image = Encoded { data: only_string(image).unwrap_or_default(), header };
        let pixels = self.step.pixels(&image, &mut self.resizer, stop).map_err(|fault| match fault {
            BuiltInFault::Invalid(text) => BuiltInFault::Invalid(named(row, self.headers.len(), text)),
            fault => fault,
        })?;
        self.data.reserve_exact(self.bytes.saturating_sub(self.data.len()));
        let (size, writer) = (self.step.options.crop.unwrap_or(pixels.size), &self.step.writer);
        writer.write(&pixels, size, &mut self.data);
        let shape = std::iter::once(1).chain(writer.dims(Some(size))).collect();
        self.shapes.push(Some((shape, self.data.len())));
        Ok(())
    }

    fn outputs(&mut self) -> Vec<TensorRows> {
        vec![value(std::mem::take(&mut self.data).into(), std::mem::take(&mut self.shapes))]
    }
}

/// Says which row is at fault, if there are several.
fn named(row: usize, rows: usize, text: String) -> String {
    if rows > 1 { format!("row {row}: {text}") } else { text }
}

/// Resizes an image: as in Pillow, along its rows first, then along its columns. Numbers between the two are cut off at
/// 0 and 255, so the order shows.
/// The pixels' type is the compiler's, which then compiles the two that occur and not all that the library knows.
fn resized<P: PixelTrait>(
    given: &Pixels,
    size: Size,
    resample: Resample,
    resizer: &mut Resizer,
) -> Result<Vec<u8>, String> {
    let options = ResizeOptions::new().resize_alg(resample.algorithm());
    let mut step = |data: &[u8], from: Size, to: Size| {
        let given =
            TypedImageRef::<P>::from_buffer(from.width, from.height, data).map_err(|fault| fault.to_string())?;
        let mut result = vec![0; to.width as usize * to.height as usize * P::size()];
        let mut view =
            TypedImage::<P>::from_buffer(to.width, to.height, &mut result).map_err(|fault| fault.to_string())?;
        resizer.resize_typed(&given, &mut view, &options).map_err(|fault| fault.to_string())?;
        Ok::<_, String>(result)
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
fn value(data: Bytes, rows: Vec<Option<(Dims, usize)>>) -> TensorRows {
    if let Some(Some((shape, _))) = rows.first()
        && rows.iter().all(|row| row.as_ref().is_some_and(|(other, _)| other == shape))
    {
        let mut shape = shape.clone();
        shape[0] = rows.len() as i64;
        return TensorRows::Joint(InputTensor { shape, data });
    }
    let mut start = 0;
    let mut tensor = |(shape, end): (Dims, usize)| {
        let tensor = InputTensor { shape, data: data.slice(start..end) };
        start = end;
        tensor
    };
    TensorRows::Rows(rows.into_iter().map(|row| row.map(&mut tensor)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_threads_apart_from_those_of_texts() {
        let (step, all) = (ImageStep::new(ImageOptions::default()), Workers::new(1));
        assert!(std::ptr::eq(step.workers(&all), &raw const all.images));
    }

    #[test]
    fn each_row_says_how_long_it_takes() {
        let png = |edge: u32| {
            let size = [edge, edge].map(u32::to_be_bytes).concat();
            [&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], &size, &[16, 6, 0, 0, 1]].concat()
        };
        let strings = [png(5000), png(10)].map(|data| [&(data.len() as u32).to_le_bytes()[..], &data].concat());
        let images = InputTensor { shape: Dims::from_slice(&[2, 1]), data: strings.concat().into() };
        let small = Some(Resize::To(Size { height: 1, width: 1 }));
        let step = Arc::new(ImageStep::new(ImageOptions { resize: small, ..ImageOptions::default() }));
        let work = step.begin(vec![Some(TensorRows::Joint(images))], 2).expect("it begins");
        let [large, small] = [0, 1].map(|row| work.effort(row));
        assert_eq!(large.as_millis(), 25 * (14 + 2));
        assert!(small < Duration::from_micros(10), "{small:?}");
    }
}
