//! Convolutions of images by cuDNN, planned before a capture and issued within it.
//!
//! cuDNN's older interface is called, not that of operation graphs: its one call for a convolution, a bias, a sum and a
//! rectifier is all that plans need, its arguments have types, and the choice of an algorithm is one call. The plain
//! functions are called: the safe layer of `cudarc` has neither groups nor the fused call, and computes in TF32
//! silently.
#![expect(unsafe_code, reason = "cuDNN is a C library")]

mod descriptors;

use std::{ffi::c_void, ptr, rc::Rc, sync::Arc};

use cudarc::cudnn::{
    result::{self, CudnnError},
    sys::{
        self, cudnnConvolutionBwdDataAlgo_t as TransposedAlgo, cudnnConvolutionFwdAlgo_t as ForwardAlgo,
        cudnnDeterminism_t::CUDNN_DETERMINISTIC, cudnnMathType_t, cudnnStatus_t,
    },
};

use self::descriptors::{Descriptors, Rectifier};
use super::{
    compiler::Element,
    driver::{Address, Context, Stream},
    products::Multiplication,
};
use crate::device::DeviceError;

/// What a convolution may use beside its images, at most. Algorithms that ask for more are left out; one asks for none.
pub const WORKSPACE_BYTES_MAX: usize = 256 << 20;

/// The first of cuDNN's versions that are taken, and the first that are not any more.
const VERSION_9: usize = 90_000;
const VERSION_10: usize = 100_000;

/// Algorithms that the library is asked for: it has no more.
const ALGORITHMS_MAX: usize = 16;

/// Which way a convolution goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Each output is a sum over a window of the inputs; the filter is `[outputs, inputs / groups, height, width]`.
    Forward,
    /// Each input is spread over a window of the outputs; the filter is `[inputs, outputs / groups, height, width]`.
    Transposed,
}

/// The shape of a convolution of dense images `[images, channels, height, width]`. Pairs are of height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Which way it goes.
    pub direction: Direction,
    /// How many.
    pub images: usize,
    /// Channels that are read.
    pub inputs: usize,
    /// Channels that are written.
    pub outputs: usize,
    /// Parts of the channels that are convolved apart.
    pub groups: usize,
    /// Of the images that are read.
    pub size: [usize; 2],
    /// Of the images that are written.
    pub out: [usize; 2],
    /// Of the filter.
    pub kernel: [usize; 2],
    /// Zeros on either side of the images; of what is written, where it is transposed.
    pub pads: [usize; 2],
    /// From window to window.
    pub strides: [usize; 2],
    /// From element to element of a window.
    pub dilations: [usize; 2],
    /// What images, filter and bias hold.
    pub element: Element,
    /// How elements are multiplied.
    pub multiplication: Multiplication,
}

/// What follows a convolution in the same call: `y = max(0, convolution + addend + bias)`. NaN becomes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectified {
    /// `[outputs]`.
    pub bias: Address,
    /// Images like those that are written.
    pub addend: Option<Address>,
}

/// A convolution, summed in fp32.
#[derive(Clone, Copy, Debug)]
pub struct ImageConvolution {
    /// Its shape.
    pub geometry: Geometry,
    /// The images that are read.
    pub x: Address,
    /// The filter.
    pub w: Address,
    /// The images that are written.
    pub y: Address,
    /// What follows in the same call. Not for transposed ones.
    pub rectified: Option<Rectified>,
    /// Memory that nothing else uses while the convolution is computed.
    pub workspace: Address,
    /// Its bytes.
    pub workspace_bytes: usize,
}

/// cuDNN, as opened for one context.
#[derive(Debug)]
pub(super) struct Library {
    context: Arc<Context>,
    handle: sys::cudnnHandle_t,
}

impl Library {
    pub(super) fn open(context: &Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: the library is one of CUDA's, installed by the operator of the server.
        if !unsafe { sys::is_culib_present() } {
            let absent = "cuDNN is not found (libcudnn.so.9): convolutions cannot be computed; give the folder of \
                          CUDA's libraries with --cuda-libraries";
            return Err(DeviceError::Driver(absent.to_owned()));
        }
        check_version(result::get_version())?;
        Ok(Self { handle: result::create_handle().map_err(refused)?, context: Arc::clone(context) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.context.is_usable() {
            // SAFETY: nothing else names it.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// Refuses a library whose answers have other numbers. Versions are `10000 · major + 100 · minor + patch`, before 9
/// `1000 · major + …`.
fn check_version(version: usize) -> Result<(), DeviceError> {
    let (major, minor) = if version < VERSION_9 {
        (version / 1000, version / 100 % 10)
    } else {
        (version / 10_000, version / 100 % 100)
    };
    let refused = || DeviceError::Driver(format!("cuDNN is of version {major}.{minor}, expected 9 (libcudnn.so.9)"));
    (VERSION_9..VERSION_10).contains(&version).then_some(()).ok_or_else(refused)
}

fn refused(error: CudnnError) -> DeviceError {
    DeviceError::Driver(format!("cuDNN: {:?}", error.0))
}

/// An algorithm that the library has ranked, with its workspace.
#[derive(Clone, Copy, Debug)]
struct Algorithm {
    algo: Algo,
    math: cudnnMathType_t,
    is_deterministic: bool,
    workspace_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Algo {
    Forward(ForwardAlgo),
    Transposed(TransposedAlgo),
}

/// The bytes that the library's best algorithm for a shape uses beside the images.
pub(super) fn workspace_bytes(library: &Library, geometry: &Geometry) -> Result<usize, DeviceError> {
    let found = Descriptors::new(geometry).and_then(|described| ranked(library, geometry, &described));
    let found = found.map_err(|error| unplanned(geometry, &format!("cuDNN: {:?}", error.0)))?;
    let fits = |algorithm: &&Algorithm| algorithm.workspace_bytes <= WORKSPACE_BYTES_MAX;
    let best = found.iter().find(fits).ok_or_else(|| lacks_workspace(geometry, WORKSPACE_BYTES_MAX))?;
    Ok(best.workspace_bytes)
}

fn unplanned(geometry: &Geometry, reason: &str) -> DeviceError {
    let Geometry { images, inputs, outputs, size: [height, width], kernel: [rows, columns], .. } = geometry;
    let what = format!("[{images}, {inputs}, {height}, {width}] with {outputs} kernels of {rows} x {columns}");
    DeviceError::Driver(format!("a convolution of {what} cannot be planned: {reason}"))
}

fn lacks_workspace(geometry: &Geometry, bytes: usize) -> DeviceError {
    unplanned(geometry, &format!("cuDNN has no algorithm for it with {bytes} bytes of workspace"))
}

/// The algorithms that compute a convolution, the best first. Those whose sums depend on the order in which threads
/// come are put behind all others: they are a little faster at most.
fn ranked(library: &Library, geometry: &Geometry, described: &Descriptors) -> Result<Vec<Algorithm>, CudnnError> {
    let listed = match geometry.direction {
        Direction::Forward => described.forward_algorithms(library.handle, ALGORITHMS_MAX)?,
        Direction::Transposed => described.transposed_algorithms(library.handle, ALGORITHMS_MAX)?,
    };
    let mut found = Vec::new();
    for (algo, math, determinism) in listed {
        // What IEEE forbids stays forbidden, whatever an algorithm was ranked for.
        let math = match (geometry.element, geometry.multiplication) {
            (Element::F32, Multiplication::Ieee) => cudnnMathType_t::CUDNN_FMA_MATH,
            _ => math,
        };
        described.set_math(math)?;
        let is_deterministic = determinism == CUDNN_DETERMINISTIC;
        match described.workspace_bytes(library.handle, algo) {
            Ok(workspace_bytes) => found.push(Algorithm { algo, math, is_deterministic, workspace_bytes }),
            Err(error) if is_unsupported(error) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|algorithm| !algorithm.is_deterministic);
    Ok(found)
}

/// Whether another algorithm may do. cuDNN numbers such answers from 3000 to 3999.
fn is_unsupported(error: CudnnError) -> bool {
    let first = cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED as u32;
    (first..first + 1000).contains(&(error.0 as u32))
}

/// A convolution with its algorithm, for a capture.
#[derive(Debug)]
pub struct Convolution {
    library: Rc<Library>,
    described: Descriptors,
    rectifier: Option<Rectifier>,
    algorithm: Algorithm,
    convolution: ImageConvolution,
}

impl Convolution {
    /// Describes a convolution, chooses its algorithm and runs it once.
    pub(super) fn new(
        library: &Rc<Library>,
        convolution: &ImageConvolution,
        stream: &Stream,
    ) -> Result<Self, DeviceError> {
        let ImageConvolution { geometry, workspace_bytes, .. } = convolution;
        let unplanned = |error: CudnnError| unplanned(geometry, &format!("cuDNN: {:?}", error.0));
        let described = Descriptors::new(geometry).map_err(unplanned)?;
        let rectifier = convolution.rectified.map(|_| Rectifier::new(geometry)).transpose().map_err(unplanned)?;
        let mut algorithms = ranked(library, geometry, &described).map_err(unplanned)?;
        algorithms.retain(|algorithm| algorithm.workspace_bytes <= *workspace_bytes);
        let first = *algorithms.first().ok_or_else(|| lacks_workspace(geometry, *workspace_bytes))?;
        let library = Rc::clone(library);
        let mut planned = Self { library, described, rectifier, algorithm: first, convolution: *convolution };
        let mut outcome = Ok(());
        // Not every algorithm takes a bias and a rectifier.
        for algorithm in algorithms {
            planned.algorithm = algorithm;
            outcome = planned.described.set_math(algorithm.math).and_then(|()| planned.run(stream));
            match outcome {
                Err(error) if is_unsupported(error) => {}
                _ => break,
            }
        }
        outcome.map_err(unplanned).map(|()| planned)
    }

    /// Issues it, in a capture or else.
    pub(super) fn issue(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.run(stream).map_err(refused)
    }

    fn run(&self, stream: &Stream) -> Result<(), CudnnError> {
        let Self { described, convolution, algorithm, .. } = self;
        let ImageConvolution { x, w, y, rectified, workspace, workspace_bytes, .. } = convolution;
        let handle = self.library.handle;
        let on_card = |address: &Address| address.to_bits() as *mut c_void;
        let pointer = |number: &f32| ptr::from_ref(number).cast::<c_void>();
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: both live.
        unsafe { result::set_stream(handle, stream.raw().cast()) }?;
        match (algorithm.algo, rectified, &self.rectifier) {
            (Algo::Forward(algo), Some(Rectified { bias, addend }), Some(rectifier)) => {
                // Without an addend, the library wants one and leaves it alone.
                let (share, z) = addend.as_ref().map_or((zero, y), |addend| (one, addend));
                // SAFETY: the descriptions live; that the images are as large as they say, and live until the
                // convolution is computed, is the duty of the caller, which compiles plans. The numbers are the host's
                // and read at once.
                unsafe {
                    result::convolution_bias_activation_forward(
                        handle,
                        pointer(&one),
                        described.input.0,
                        on_card(x),
                        described.filter.0,
                        on_card(w),
                        described.moves.0,
                        algo,
                        on_card(workspace),
                        *workspace_bytes,
                        pointer(&share),
                        described.output.0,
                        on_card(z),
                        rectifier.bias.0,
                        on_card(bias),
                        rectifier.activation.0,
                        described.output.0,
                        on_card(y),
                    )
                }
            }
            // SAFETY: as above.
            (Algo::Forward(algo), ..) => unsafe {
                result::convolution_forward(
                    handle,
                    pointer(&one),
                    described.input.0,
                    on_card(x),
                    described.filter.0,
                    on_card(w),
                    described.moves.0,
                    algo,
                    on_card(workspace),
                    *workspace_bytes,
                    pointer(&zero),
                    described.output.0,
                    on_card(y),
                )
            },
            // SAFETY: as above.
            (Algo::Transposed(algo), ..) => unsafe {
                result::convolution_backward_data(
                    handle,
                    pointer(&one),
                    described.filter.0,
                    on_card(w),
                    described.input.0,
                    on_card(x),
                    described.moves.0,
                    algo,
                    on_card(workspace),
                    *workspace_bytes,
                    pointer(&zero),
                    described.output.0,
                    on_card(y),
                )
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_of_the_library_are_refused_by_name() {
        assert_eq!(check_version(91_900), Ok(()));
        for (version, named) in [(8907, "8.9"), (100_200, "10.2")] {
            let reason = format!("cuDNN is of version {named}, expected 9 (libcudnn.so.9)");
            assert_eq!(check_version(version), Err(DeviceError::Driver(reason)));
        }
    }
}
