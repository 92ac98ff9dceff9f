//! Convolutions of images by cuDNN, planned before a capture and issued within it.
//!
//! This module calls cuDNN's older interface, not that of operation graphs: its fused call for a convolution, a bias, a
//! sum and a rectifier covers what plans need, its arguments are typed, and choosing an algorithm takes one call. It
//! calls the plain functions of `cudarc`: the safe layer has neither groups nor the fused call, and silently computes
//! in TF32.
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
    compiler::KernelElement,
    driver::{Address, Context, Stream},
    libraries::{CudaLibrary, CudaVersion, cudnn_cuda, nvrtc_version},
    products::Multiplication,
};
use crate::DeviceError;

/// Maximum workspace bytes of a convolution. Algorithms that need more are excluded; there is one that needs none.
pub const WORKSPACE_BYTES_MAX: usize = 256 << 20;

/// The supported versions of cuDNN: from the first of these to below the second.
const VERSION_9: usize = 90_000;
const VERSION_10: usize = 100_000;

/// Algorithms that the library is asked for, more than it has.
const ALGORITHMS_MAX: usize = 16;

/// The direction of a convolution.
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
    /// The direction.
    pub direction: Direction,
    /// Number of images.
    pub images: usize,
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Number of channel groups, which are convolved separately.
    pub groups: usize,
    /// Size of the input images.
    pub size: [usize; 2],
    /// Size of the output images.
    pub out: [usize; 2],
    /// Size of the filter.
    pub kernel: [usize; 2],
    /// Zeros on each side of the input images; of the output images if it is transposed.
    pub pads: [usize; 2],
    /// Distance between windows.
    pub strides: [usize; 2],
    /// Distance between elements of a window.
    pub dilations: [usize; 2],
    /// Element type of images, filter and bias.
    pub element: KernelElement,
    /// How elements are multiplied.
    pub multiplication: Multiplication,
}

/// What the same call computes after a convolution: `y = max(0, convolution + addend + bias)`. NaN becomes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectified {
    /// The bias, `[outputs]`.
    pub bias: Address,
    /// Images of the output's shape.
    pub addend: Option<Address>,
}

/// A convolution, summed in fp32.
#[derive(Clone, Copy, Debug)]
pub struct ImageConvolution {
    /// Its shape.
    pub geometry: Geometry,
    /// The input images.
    pub x: Address,
    /// The filter.
    pub w: Address,
    /// The output images.
    pub y: Address,
    /// The bias, sum and rectifier of the fused call. Not for transposed convolutions.
    pub rectified: Option<Rectified>,
    /// Memory that nothing else uses while the convolution is computed.
    pub workspace: Address,
    /// Bytes of the workspace.
    pub workspace_bytes: usize,
}

/// cuDNN, opened for one context.
#[derive(Debug)]
pub(super) struct Library {
    context: Arc<Context>,
    handle: sys::cudnnHandle_t,
}

impl Library {
    pub(super) fn open(context: &Arc<Context>) -> Result<Self, DeviceError> {
        CudaLibrary::Cudnn.check().map_err(|unusable| DeviceError::Driver(unusable.to_string()))?;
        check_version(result::get_version())?;
        check_toolkit(cudnn_cuda(), nvrtc_version())?;
        let refused = |error: CudnnError| DeviceError::Driver(format!("cuDNN cannot be opened: {:?}", error.0));
        Ok(Self { handle: result::create_handle().map_err(refused)?, context: Arc::clone(context) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.context.is_usable() {
            // SAFETY: this is the only handle of it.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// Rejects other major versions, whose status codes have other numbers. A version is `10000 · major + 100 · minor +
/// patch`, before 9 `1000 · major + …`.
fn check_version(version: usize) -> Result<(), DeviceError> {
    let (major, minor) = if version < VERSION_9 {
        (version / 1000, version / 100 % 10)
    } else {
        (version / 10_000, version / 100 % 100)
    };
    let refused = || DeviceError::Driver(format!("cuDNN is of version {major}.{minor}, expected 9 (libcudnn.so.9)"));
    (VERSION_9..VERSION_10).contains(&version).then_some(()).ok_or_else(refused)
}

/// Rejects a cuDNN for another toolkit than that of NVRTC, with which all kernels were compiled: it opens cuBLASLt and
/// NVRTC of its toolkit by name, which need not be there.
fn check_toolkit(cuda: CudaVersion, nvrtc: CudaVersion) -> Result<(), DeviceError> {
    let refused = || {
        DeviceError::Driver(format!(
            "cuDNN is for CUDA {cuda} but NVRTC is of CUDA {nvrtc}, expected one toolkit (nvidia-cudnn-cu{})",
            nvrtc.major
        ))
    };
    (cuda.major == nvrtc.major).then_some(()).ok_or_else(refused)
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

/// Returns the workspace bytes of the library's best algorithm for a shape.
pub(super) fn workspace_bytes(library: &Library, geometry: &Geometry) -> Result<usize, DeviceError> {
    let found = Descriptors::new(geometry).and_then(|described| ranked(library, geometry, &described));
    let found = found.map_err(|error| failed(geometry, "planned", &format!("cuDNN: {:?}", error.0)))?;
    let fits = |algorithm: &&Algorithm| algorithm.workspace_bytes <= WORKSPACE_BYTES_MAX;
    let best = found.iter().find(fits).ok_or_else(|| lacks_workspace(geometry, WORKSPACE_BYTES_MAX))?;
    Ok(best.workspace_bytes)
}

/// An error of a convolution, with everything that the library was asked for.
fn failed(geometry: &Geometry, what: &str, reason: &str) -> DeviceError {
    let Geometry { images, inputs, outputs, size: [height, width], kernel: [rows, columns], .. } = geometry;
    let shape = format!("[{images}, {inputs}, {height}, {width}] with {outputs} kernels of {rows} x {columns}");
    DeviceError::Driver(format!("a convolution of {shape} cannot be {what}: {reason} ({geometry:?})"))
}

fn lacks_workspace(geometry: &Geometry, bytes: usize) -> DeviceError {
    failed(geometry, "planned", &format!("cuDNN has no algorithm for it with {bytes} bytes of workspace"))
}

/// Returns the algorithms for a convolution, the best first. Those that are not deterministic, because their sums
/// depend on the order of threads, come last: they are a little faster at most.
fn ranked(library: &Library, geometry: &Geometry, described: &Descriptors) -> Result<Vec<Algorithm>, CudnnError> {
    let listed = match geometry.direction {
        Direction::Forward => described.forward_algorithms(library.handle, ALGORITHMS_MAX)?,
        Direction::Transposed => described.transposed_algorithms(library.handle, ALGORITHMS_MAX)?,
    };
    let mut found = Vec::new();
    for (algo, math, determinism) in listed {
        // The math type that an algorithm was ranked for must not turn on TF32 where IEEE is asked for.
        let math = match (geometry.element, geometry.multiplication) {
            (KernelElement::F32, Multiplication::Ieee) => cudnnMathType_t::CUDNN_FMA_MATH,
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

/// Returns whether an error means that the algorithm does not support the convolution. cuDNN numbers such errors from
/// 3000 to 3999.
fn is_unsupported(error: CudnnError) -> bool {
    let first = cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED as u32;
    (first..first + 1000).contains(&(error.0 as u32))
}

/// A convolution with its algorithm, ready for captures.
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
        let unplanned = |error: CudnnError| failed(geometry, "planned", &format!("cuDNN: {:?}", error.0));
        let described = Descriptors::new(geometry).map_err(unplanned)?;
        let rectifier = convolution.rectified.map(|_| Rectifier::new(geometry)).transpose().map_err(unplanned)?;
        let mut algorithms = ranked(library, geometry, &described).map_err(unplanned)?;
        algorithms.retain(|algorithm| algorithm.workspace_bytes <= *workspace_bytes);
        let first = *algorithms.first().ok_or_else(|| lacks_workspace(geometry, *workspace_bytes))?;
        let library = Rc::clone(library);
        let mut planned = Self { library, described, rectifier, algorithm: first, convolution: *convolution };
        let mut outcome = Ok(());
        // Not every algorithm supports the fused bias and rectifier, which shows only when it runs.
        for algorithm in algorithms {
            planned.algorithm = algorithm;
            outcome = planned.described.set_math(algorithm.math).and_then(|()| planned.run(stream));
            match outcome {
                Err(error) if is_unsupported(error) => {}
                _ => break,
            }
        }
        outcome.map_err(|error| planned.failed("planned", error)).map(|()| planned)
    }

    /// Issues the convolution, within a capture or outside.
    pub(super) fn issue(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.run(stream).map_err(|error| self.failed("computed", error))
    }

    fn failed(&self, what: &str, error: CudnnError) -> DeviceError {
        let Self { algorithm, convolution: ImageConvolution { geometry, rectified, .. }, .. } = self;
        let fused = match rectified {
            None => "alone",
            Some(Rectified { addend: None, .. }) => "with bias and rectifier",
            Some(Rectified { addend: Some(_), .. }) => "with bias, sum and rectifier",
        };
        failed(geometry, what, &format!("cuDNN: {:?}, {fused}, by {algorithm:?}", error.0))
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
                // The library requires an addend. Without one, it gets `y` with a factor of zero, which it does not
                // read.
                let (share, z) = addend.as_ref().map_or((zero, y), |addend| (one, addend));
                // SAFETY: the descriptors live. The caller, which compiles plans, ensures that the images have the
                // described sizes and live until the convolution is computed. The factors are host memory that is read
                // during the call.
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
    fn a_library_for_another_toolkit_is_refused() {
        let version = |major, minor| CudaVersion { major, minor };
        assert_eq!(check_toolkit(version(13, 0), version(13, 1)), Ok(()));
        let reason = "cuDNN is for CUDA 12.9 but NVRTC is of CUDA 13.0, expected one toolkit (nvidia-cudnn-cu13)";
        let refused = Err(DeviceError::Driver(reason.to_owned()));
        assert_eq!(check_toolkit(version(12, 9), version(13, 0)), refused);
    }

    #[test]
    fn other_versions_of_the_library_are_refused_by_name() {
        assert_eq!(check_version(91_900), Ok(()));
        for (version, named) in [(8907, "8.9"), (100_200, "10.2")] {
            let reason = format!("cuDNN is of version {named}, expected 9 (libcudnn.so.9)");
            assert_eq!(check_version(version), Err(DeviceError::Driver(reason)));
        }
    }
}
