//! A convolution that is ready to run, and a plain reference for it.

use std::{ffi::c_void, ptr};

use cudarc::{
    cudnn::{
        result::{self as dnn, CudnnError},
        sys::{
            self, cudnnActivationMode_t, cudnnActivationMode_t::*, cudnnConvolutionFwdAlgo_t,
            cudnnConvolutionMode_t::*, cudnnDataType_t::*, cudnnMathType_t, cudnnMathType_t::*, cudnnNanPropagation_t,
            cudnnNanPropagation_t::*, cudnnStatus_t, cudnnStatus_t::*, cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        },
    },
    driver::{CudaStream, result, sys::CUdeviceptr},
};

/// A convolution as the tests describe it. `x` and `y` are those of the forward direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub x: [usize; 4],
    /// Outputs, height, width.
    pub kernels: [usize; 3],
    pub groups: usize,
    pub pads: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub is_turned: bool,
    pub math: cudnnMathType_t,
    pub alpha: f32,
    pub beta: f32,
}

pub(crate) const PLAIN: Case = Case {
    x: [2, 3, 6, 5],
    kernels: [4, 3, 2],
    groups: 1,
    pads: [0, 0],
    strides: [1, 1],
    dilations: [1, 1],
    is_turned: false,
    math: CUDNN_FMA_MATH,
    alpha: 1.0,
    beta: 0.0,
};

impl Case {
    fn w(&self) -> [usize; 4] {
        let [outputs, height, width] = self.kernels;
        [outputs, self.x[1] / self.groups, height, width]
    }

    fn y(&self) -> [usize; 4] {
        let along = |axis: usize| {
            let span = (self.kernels[1 + axis] - 1) * self.dilations[axis] + 1;
            (self.x[2 + axis] + 2 * self.pads[axis] - span) / self.strides[axis] + 1
        };
        [self.x[0], self.kernels[0], along(0), along(1)]
    }

    /// Calls `with` for all indices of `x`, `w` and `y` that are multiplied and summed.
    fn walk(&self, mut with: impl FnMut(usize, usize, usize)) {
        let ([images, channels, height, width], [_, inputs, rows, columns]) = (self.x, self.w());
        let [_, outputs, down, across] = self.y();
        let (of_group, from_group) = (outputs / self.groups, channels / self.groups);
        for y in 0..images * outputs * down * across {
            let (j, i, output, image) =
                (y % across, y / across % down, y / across / down % outputs, y / across / down / outputs);
            for w in 0..inputs * rows * columns {
                let (column, row, input) = (w % columns, w / columns % rows, w / columns / rows);
                let at = |place: usize, element: usize, axis: usize| {
                    (place * self.strides[axis] + element * self.dilations[axis]).checked_sub(self.pads[axis])
                };
                let (Some(h), Some(v)) = (at(i, row, 0), at(j, column, 1)) else { continue };
                if h >= height || v >= width {
                    continue;
                }
                let x = ((image * channels + output / of_group * from_group + input) * height + h) * width + v;
                let turned = if self.is_turned { (rows - 1 - row, columns - 1 - column) } else { (row, column) };
                with(x, ((output * inputs + input) * rows + turned.0) * columns + turned.1, y);
            }
        }
    }
}

fn count(dims: [usize; 4]) -> usize {
    dims.iter().product()
}

/// Returns different numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|place| ((place * 37 + seed * 101) % 211) as f32 / 105.5 - 1.0).collect()
}

pub(crate) fn upload(numbers: &[f32]) -> CUdeviceptr {
    // SAFETY: the memory has the size of the copy.
    unsafe {
        let memory = result::malloc_sync(4 * numbers.len()).unwrap();
        result::memcpy_htod_sync(memory, numbers).unwrap();
        memory
    }
}

pub(crate) fn tensor(dims: [usize; 4]) -> sys::cudnnTensorDescriptor_t {
    let tensor = dnn::create_tensor_descriptor().unwrap();
    // SAFETY: it has just been made.
    unsafe {
        dnn::set_tensor4d_descriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, dims.map(|length| length as i32))
    }
    .unwrap();
    tensor
}

/// The bias, sum and activation of the fused call.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    pub mode: cudnnActivationMode_t,
    pub nan: cudnnNanPropagation_t,
    pub adds: f32,
    pub bias: [usize; 4],
}

pub(crate) const ENDING: Ending =
    Ending { mode: CUDNN_ACTIVATION_RELU, nan: CUDNN_NOT_PROPAGATE_NAN, adds: 0.5, bias: [1, 4, 1, 1] };
const WORKSPACE_BYTES: usize = 64 << 10;

pub(crate) type Answer = Result<(), cudnnStatus_t>;

pub(crate) fn answer<T>(result: Result<T, CudnnError>) -> Result<T, cudnnStatus_t> {
    result.map_err(|error| error.0)
}

/// A convolution that is ready to run.
pub(crate) struct Convolution {
    pub case: Case,
    pub handle: sys::cudnnHandle_t,
    pub x: sys::cudnnTensorDescriptor_t,
    pub w: sys::cudnnFilterDescriptor_t,
    pub y: sys::cudnnTensorDescriptor_t,
    pub moves: sys::cudnnConvolutionDescriptor_t,
    pub values: [Vec<f32>; 3],
    pub memory: [CUdeviceptr; 3],
    pub workspace: CUdeviceptr,
    pub workspace_bytes: usize,
}

impl Convolution {
    pub(crate) fn new(case: Case, stream: &CudaStream) -> Self {
        let dims = [case.x, case.w(), case.y()];
        let values = [0, 1, 2].map(|place: usize| numbers(count(dims[place]), place));
        let memory = [0, 1, 2].map(|place: usize| upload(&values[place]));
        let (w, moves) = (dnn::create_filter_descriptor().unwrap(), dnn::create_convolution_descriptor().unwrap());
        let handle = dnn::create_handle().unwrap();
        let mode = if case.is_turned { CUDNN_CONVOLUTION } else { CUDNN_CROSS_CORRELATION };
        let ([pads, strides, dilations], data) =
            ([case.pads, case.strides, case.dilations].map(|pair| pair.map(|it| it as i32)), CUDNN_DATA_FLOAT);
        // SAFETY: all of these have just been made.
        let workspace = unsafe {
            dnn::set_stream(handle, stream.cu_stream().cast()).unwrap();
            dnn::set_filter4d_descriptor(w, data, CUDNN_TENSOR_NCHW, case.w().map(|it| it as i32)).unwrap();
            let [(pad_h, pad_w), (u, v), (down, across)] = [pads, strides, dilations].map(|it| (it[0], it[1]));
            dnn::set_convolution2d_descriptor(moves, pad_h, pad_w, u, v, down, across, mode, data).unwrap();
            dnn::set_convolution_group_count(moves, case.groups as i32).unwrap();
            dnn::set_convolution_math_type(moves, case.math).unwrap();
            result::malloc_sync(WORKSPACE_BYTES).unwrap()
        };
        let (x, y) = (tensor(case.x), tensor(case.y()));
        Self { case, handle, x, w, y, moves, values, memory, workspace, workspace_bytes: WORKSPACE_BYTES }
    }

    /// Returns the forward algorithms that support it, with their workspaces.
    pub(crate) fn algorithms(&self) -> Result<Vec<(cudnnConvolutionFwdAlgo_t, usize)>, cudnnStatus_t> {
        let mut ranked: Vec<sys::cudnnConvolutionFwdAlgoPerf_t> = Vec::with_capacity(8);
        let mut count = 0;
        // SAFETY: there is room for eight, and `count` of them are filled.
        unsafe {
            let Self { handle, x, w, y, moves, .. } = *self;
            let to = ranked.as_mut_ptr();
            answer(dnn::get_convolution_forward_algorithm(handle, x, w, moves, y, 8, &raw mut count, to))?;
            ranked.set_len(count as usize);
            let fits = ranked.iter().filter(|it| it.status == CUDNN_STATUS_SUCCESS);
            let bytes = |algo| dnn::get_convolution_forward_workspace_size(handle, x, w, moves, y, algo).unwrap();
            Ok(fits.map(|it| (it.algo, bytes(it.algo))).inspect(|it| assert!(it.1 < 1 << 30)).collect())
        }
    }

    pub(crate) fn forward(&self, algo: cudnnConvolutionFwdAlgo_t) -> Answer {
        let (&Self { handle, x, w, y, moves, .. }, [x_data, w_data, y_data]) = (self, self.memory);
        let Case { alpha, beta, .. } = self.case;
        // SAFETY: all of these are valid, and the memory has the given size.
        answer(unsafe {
            dnn::convolution_forward(
                handle,
                ptr::from_ref(&alpha).cast(),
                x,
                x_data as *const c_void,
                w,
                w_data as *const c_void,
                moves,
                algo,
                self.workspace as *mut c_void,
                self.workspace_bytes,
                ptr::from_ref(&beta).cast(),
                y,
                y_data as *mut c_void,
            )
        })
    }

    pub(crate) fn backward(&self, algo: sys::cudnnConvolutionBwdDataAlgo_t) -> Answer {
        let (&Self { handle, x, w, y, moves, .. }, [x_data, w_data, y_data]) = (self, self.memory);
        let Case { alpha, beta, .. } = self.case;
        // SAFETY: as above.
        answer(unsafe {
            dnn::convolution_backward_data(
                handle,
                ptr::from_ref(&alpha).cast(),
                w,
                w_data as *const c_void,
                y,
                y_data as *const c_void,
                moves,
                algo,
                self.workspace as *mut c_void,
                self.workspace_bytes,
                ptr::from_ref(&beta).cast(),
                x,
                x_data as *mut c_void,
            )
        })
    }

    /// Makes the fused call, with `y` as `z`, and the bias.
    pub(crate) fn fused(&self, algo: cudnnConvolutionFwdAlgo_t, ending: Ending) -> (Answer, Vec<f32>) {
        let (&Self { handle, x, w, y, moves, .. }, [x_data, w_data, y_data]) = (self, self.memory);
        let bias = numbers(count(ending.bias), 7);
        let (bias_data, described) = (upload(&bias), tensor(ending.bias));
        let activation = dnn::create_activation_descriptor().unwrap();
        // SAFETY: as above.
        let called = answer(unsafe {
            dnn::set_activation_descriptor(activation, ending.mode, ending.nan, 0.0).unwrap();
            dnn::convolution_bias_activation_forward(
                handle,
                ptr::from_ref(&self.case.alpha).cast(),
                x,
                x_data as *const c_void,
                w,
                w_data as *const c_void,
                moves,
                algo,
                self.workspace as *mut c_void,
                self.workspace_bytes,
                ptr::from_ref(&ending.adds).cast(),
                y,
                y_data as *const c_void,
                described,
                bias_data as *const c_void,
                activation,
                y,
                y_data as *mut c_void,
            )
        });
        (called, bias)
    }

    /// Returns the elements of a tensor: x, w or y.
    pub(crate) fn holds(&self, place: usize) -> Vec<f32> {
        let mut numbers = vec![0.0_f32; self.values[place].len()];
        // SAFETY: the memory has the size of the copy.
        unsafe { result::memcpy_dtoh_sync(&mut numbers, self.memory[place]) }.unwrap();
        numbers
    }

    /// Returns the reference's sums in the forward direction or the other.
    pub(crate) fn sums(&self, is_forward: bool) -> Vec<f64> {
        let [x, w, y] = &self.values;
        let mut sums = vec![0.0; if is_forward { y.len() } else { x.len() }];
        self.case.walk(|x_at, w_at, y_at| {
            let weight = f64::from(w[w_at]);
            if is_forward {
                sums[y_at] += weight * f64::from(x[x_at]);
            } else {
                sums[x_at] += weight * f64::from(y[y_at]);
            }
        });
        sums
    }

    pub(crate) fn assert_right(&self, is_forward: bool) {
        let Case { alpha, beta, .. } = self.case;
        let before = if is_forward { &self.values[2] } else { &self.values[0] };
        let sums = self.sums(is_forward);
        let expected: Vec<f64> = sums
            .iter()
            .zip(before)
            .map(|(sum, before)| f64::from(alpha) * sum + f64::from(beta) * f64::from(*before))
            .collect();
        self.assert_holds(if is_forward { 2 } else { 0 }, &expected);
    }

    pub(crate) fn assert_holds(&self, place: usize, expected: &[f64]) {
        let tolerance = if self.case.math == CUDNN_FMA_MATH { 1e-5 } else { 2e-2 };
        for (at, (is, right)) in self.holds(place).iter().zip(expected).enumerate() {
            let difference = (f64::from(*is) - right).abs();
            assert!(difference <= tolerance * (1.0 + right.abs()), "{:?}: {is} for {right} at {at}", self.case);
        }
    }
}
