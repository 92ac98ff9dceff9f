//! cuDNN's descriptors, each destroyed on drop, and the queries that take them.

use cudarc::cudnn::{
    result::{self, CudnnError},
    sys::{
        self, cudnnActivationMode_t::CUDNN_ACTIVATION_RELU, cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
        cudnnDataType_t, cudnnDeterminism_t, cudnnMathType_t, cudnnNanPropagation_t::CUDNN_NOT_PROPAGATE_NAN,
        cudnnStatus_t, cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
    },
};

use super::{Algo, Direction, Geometry};
use crate::cuda::{compiler::KernelElement, products::Multiplication};

macro_rules! descriptors {
    ($($name:ident: $raw:ident, $create:ident, $destroy:ident;)+) => {$(
        #[derive(Debug)]
        pub(super) struct $name(pub(super) sys::$raw);

        impl $name {
            fn create() -> Result<Self, CudnnError> {
                result::$create().map(Self)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: this is the only handle of it, and it is host memory only.
                let _ = unsafe { result::$destroy(self.0) };
            }
        }
    )+};
}

descriptors! {
    Tensor: cudnnTensorDescriptor_t, create_tensor_descriptor, destroy_tensor_descriptor;
    Filter: cudnnFilterDescriptor_t, create_filter_descriptor, destroy_filter_descriptor;
    Moves: cudnnConvolutionDescriptor_t, create_convolution_descriptor, destroy_convolution_descriptor;
}

/// Destroyed like the others, but by the plain function, because `cudarc` wraps none.
#[derive(Debug)]
pub(super) struct Activation(pub(super) sys::cudnnActivationDescriptor_t);

impl Drop for Activation {
    fn drop(&mut self) {
        // SAFETY: as for the other descriptors.
        let _ = unsafe { sys::cudnnDestroyActivationDescriptor(self.0) };
    }
}

/// Converts lengths to the library's integer type.
fn ints<const N: usize>(lengths: [usize; N]) -> Result<[i32; N], CudnnError> {
    let mut ints = [0; N];
    for (to, length) in ints.iter_mut().zip(lengths) {
        *to = i32::try_from(length).map_err(|_| CudnnError(cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_SHAPE))?;
    }
    Ok(ints)
}

fn data_type(element: KernelElement) -> cudnnDataType_t {
    match element {
        KernelElement::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        KernelElement::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
        KernelElement::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
    }
}

impl Tensor {
    fn images(element: KernelElement, dims: [usize; 4]) -> Result<Self, CudnnError> {
        let tensor = Self::create()?;
        // SAFETY: it lives.
        unsafe { result::set_tensor4d_descriptor(tensor.0, CUDNN_TENSOR_NCHW, data_type(element), ints(dims)?) }?;
        Ok(tensor)
    }
}

/// The bias and activation that follow a convolution.
#[derive(Debug)]
pub(super) struct Rectifier {
    pub(super) bias: Tensor,
    pub(super) activation: Activation,
}

impl Rectifier {
    pub(super) fn new(geometry: &Geometry) -> Result<Self, CudnnError> {
        let bias = Tensor::images(geometry.element, [1, geometry.outputs, 1, 1])?;
        let activation = Activation(result::create_activation_descriptor()?);
        // SAFETY: the descriptor lives. The fused call supports no other rule for NaN.
        unsafe {
            result::set_activation_descriptor(activation.0, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0.0)
        }?;
        Ok(Self { bias, activation })
    }
}

/// A ranked algorithm: its id, the math type that it is ranked for, and whether it is deterministic.
type Listed = (Algo, cudnnMathType_t, cudnnDeterminism_t);

/// The descriptors of a convolution.
#[derive(Debug)]
pub(super) struct Descriptors {
    pub(super) input: Tensor,
    pub(super) filter: Filter,
    pub(super) output: Tensor,
    pub(super) moves: Moves,
}

impl Descriptors {
    pub(super) fn new(geometry: &Geometry) -> Result<Self, CudnnError> {
        let Geometry { direction, images, inputs, outputs, groups, size, out, kernel, element, .. } = *geometry;
        let [input, output] = [(inputs, size), (outputs, out)]
            .map(|(channels, [height, width])| Tensor::images(element, [images, channels, height, width]));
        let channels = match direction {
            Direction::Forward => [outputs, inputs / groups],
            Direction::Transposed => [inputs, outputs / groups],
        };
        let filter = Filter::create()?;
        let dims = ints([channels[0], channels[1], kernel[0], kernel[1]])?;
        let moves = Moves::create()?;
        let [pads, strides, dilations] = [ints(geometry.pads)?, ints(geometry.strides)?, ints(geometry.dilations)?];
        // SAFETY: all of these live.
        unsafe {
            result::set_filter4d_descriptor(filter.0, data_type(element), CUDNN_TENSOR_NCHW, dims)?;
            result::set_convolution2d_descriptor(
                moves.0,
                pads[0],
                pads[1],
                strides[0],
                strides[1],
                dilations[0],
                dilations[1],
                CUDNN_CROSS_CORRELATION,
                cudnnDataType_t::CUDNN_DATA_FLOAT,
            )?;
            result::set_convolution_group_count(moves.0, ints([groups])?[0])?;
        }
        let described = Self { input: input?, filter, output: output?, moves };
        described.set_math(match (element, geometry.multiplication) {
            (KernelElement::F32, Multiplication::Ieee) => cudnnMathType_t::CUDNN_FMA_MATH,
            (KernelElement::F32, Multiplication::Tf32) => cudnnMathType_t::CUDNN_DEFAULT_MATH,
            (KernelElement::F16 | KernelElement::Bf16, _) => cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        })?;
        Ok(described)
    }

    /// Sets which instructions may be used. All math types but FMA use TF32 for fp32.
    pub(super) fn set_math(&self, math: cudnnMathType_t) -> Result<(), CudnnError> {
        // SAFETY: it lives.
        unsafe { result::set_convolution_math_type(self.moves.0, math) }
    }

    /// Returns up to `most` algorithms as the library ranks them, the fastest first.
    pub(super) fn forward_algorithms(
        &self,
        handle: sys::cudnnHandle_t,
        most: usize,
    ) -> Result<Vec<Listed>, CudnnError> {
        let mut ranked: Vec<sys::cudnnConvolutionFwdAlgoPerf_t> = Vec::with_capacity(most);
        let mut count = 0;
        // SAFETY: all of these live, and the vector has capacity for `most`; the library initialises `count` of them.
        unsafe {
            result::get_convolution_forward_algorithm(
                handle,
                self.input.0,
                self.filter.0,
                self.moves.0,
                self.output.0,
                ints([most])?[0],
                &raw mut count,
                ranked.as_mut_ptr(),
            )?;
            ranked.set_len(usize::try_from(count).unwrap_or(0).min(most));
        }
        let fits = ranked.iter().filter(|ranked| ranked.status == cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        Ok(fits.map(|ranked| (Algo::Forward(ranked.algo), ranked.mathType, ranked.determinism)).collect())
    }

    /// Same as [`Self::forward_algorithms`], for transposed convolutions.
    pub(super) fn transposed_algorithms(
        &self,
        handle: sys::cudnnHandle_t,
        most: usize,
    ) -> Result<Vec<Listed>, CudnnError> {
        let mut ranked: Vec<sys::cudnnConvolutionBwdDataAlgoPerf_t> = Vec::with_capacity(most);
        let mut count = 0;
        // SAFETY: as above.
        unsafe {
            result::get_convolution_backward_data_algorithm(
                handle,
                self.filter.0,
                self.input.0,
                self.moves.0,
                self.output.0,
                ints([most])?[0],
                &raw mut count,
                ranked.as_mut_ptr(),
            )?;
            ranked.set_len(usize::try_from(count).unwrap_or(0).min(most));
        }
        let fits = ranked.iter().filter(|ranked| ranked.status == cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        Ok(fits.map(|ranked| (Algo::Transposed(ranked.algo), ranked.mathType, ranked.determinism)).collect())
    }

    /// Returns the workspace bytes of an algorithm.
    pub(super) fn workspace_bytes(&self, handle: sys::cudnnHandle_t, algo: Algo) -> Result<usize, CudnnError> {
        let (input, filter, moves, output) = (self.input.0, self.filter.0, self.moves.0, self.output.0);
        // SAFETY: all of these live.
        unsafe {
            match algo {
                Algo::Forward(algo) => {
                    result::get_convolution_forward_workspace_size(handle, input, filter, moves, output, algo)
                }
                Algo::Transposed(algo) => {
                    result::get_convolution_backward_data_workspace_size(handle, filter, input, moves, output, algo)
                }
            }
        }
    }
}
