//! cuDNN's convolutions: the choice of an algorithm, its workspace, and the computation. Choosing waits for the device,
//! and so does the first call of an algorithm, which loads its kernels. Captures forbid both.

use std::{collections::BTreeSet, sync::Arc};

use cudarc::{
    cudnn::sys::{
        cudnnConvolutionBwdDataAlgo_t as BackwardAlgo, cudnnConvolutionBwdDataAlgoPerf_t as BackwardRanked,
        cudnnConvolutionFwdAlgo_t as ForwardAlgo, cudnnConvolutionFwdAlgoPerf_t as ForwardRanked, cudnnDeterminism_t,
        cudnnMathType_t,
        cudnnStatus_t::{self, *},
    },
    driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
};
use parking_lot::Mutex;

use crate::{
    calls::{Call, entries_of},
    capture,
    convolution::{Direction, Problem, Shape},
    cudnn::{of, stream_of},
    descriptors::{BF16, activation, convolution, filter, tensor},
    handles::{Handle, name},
    memory, stream,
};

const RELU: u32 = 1;
const IDENTITY: u32 = 5;

/// Returns the workspace that an algorithm needs; `None` if it does not support the shape.
fn forward_workspace(shape: &Shape, algo: u32) -> Option<usize> {
    match algo {
        // Implicit GEMM, and the same with precomputed indices.
        0 => Some(0),
        1 => Some(shape.weight_bytes() / 4),
        // All patches of the images side by side.
        2 => Some(shape.image_bytes().checked_mul(9)?),
        // Winograd, not fused.
        7 => shape.is_plain_3x3().then(|| 4 * shape.image_bytes() + 2 * shape.weight_bytes()),
        _ => None,
    }
}

fn backward_workspace(shape: &Shape, algo: u32) -> Option<usize> {
    match algo {
        0 => Some(0),
        1 => Some(shape.weight_bytes()),
        _ => None,
    }
}

fn shape(direction: Direction, x: Handle, w: Handle, convolved: Handle, y: Handle) -> Result<Shape, cudnnStatus_t> {
    Shape::new(direction, &tensor(x)?, &filter(w)?, &tensor(y)?, &convolution(convolved)?)
}

fn math_of(convolved: Handle) -> Result<cudnnMathType_t, cudnnStatus_t> {
    use cudnnMathType_t::*;
    let all = [CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, CUDNN_FMA_MATH];
    Ok(all[convolution(convolved)?.0.math as usize])
}

/// Computes, after overwriting the workspace, so that concurrent use by another operation shows.
fn run(
    call: &mut Call,
    handle: Handle,
    shape: Shape,
    problem: Problem,
    algo: u32,
    (workspace, workspace_bytes): (u64, usize),
) -> Result<(), cudnnStatus_t> {
    /// The shapes and algorithms whose kernels are loaded.
    static LOADED: Mutex<BTreeSet<(u64, u32)>> = Mutex::new(BTreeSet::new());
    let on = stream_of(handle)?;
    call.note(|| format!("{} algo={algo} {}", name(on.handle), memory::name(problem.y as usize)));
    let needs = match shape.direction {
        Direction::Forward => forward_workspace(&shape, algo),
        Direction::BackwardData => backward_workspace(&shape, algo),
    };
    let needs = needs.ok_or(CUDNN_STATUS_NOT_SUPPORTED)?;
    let is_aligned = [problem.x, problem.w, problem.y].iter().all(|address| address % 2 == 0);
    if needs > workspace_bytes || needs > 0 && workspace == 0 || !is_aligned {
        return Err(CUDNN_STATUS_BAD_PARAM);
    }
    let loads = (shape.fingerprint(), algo);
    if !LOADED.lock().contains(&loads) {
        capture::refuse_unsafe_call().map_err(of)?;
        LOADED.lock().insert(loads);
    }
    let work = move || {
        if needs > 0 {
            memory::find_mapped(workspace as usize, needs).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
            // SAFETY: the range was checked above.
            unsafe { (workspace as *mut u8).write_bytes(0xff, needs) };
        }
        shape.run(&problem)
    };
    stream::issue(&on, "convolution", Arc::new(work)).map_err(of)
}

entries_of! {
    cudnnStatus_t,

    fn cudnnGetConvolutionForwardAlgorithm_v7(
        handle: Handle,
        x: Handle,
        w: Handle,
        convolved: Handle,
        y: Handle,
        wanted: i32,
        count: *mut i32,
        ranked: *mut ForwardRanked
    ) |call| {
        call.note(|| name(convolved));
        stream_of(handle)?;
        capture::refuse_unsafe_call().map_err(of)?;
        let shape = shape(Direction::Forward, x, w, convolved, y)?;
        if wanted < 1 || count.is_null() || ranked.is_null() {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        use ForwardAlgo::*;
        // The fastest first; those that do not support the shape last.
        let order = [
            CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_FFT,
        ];
        let mut rows: Vec<_> = order.iter().map(|&algo| (algo, forward_workspace(&shape, algo as u32))).collect();
        rows.sort_by_key(|(_, needs)| needs.is_none());
        rows.truncate(wanted as usize);
        for (place, (algo, needs)) in rows.iter().enumerate() {
            *ranked.add(place) = ForwardRanked {
                algo: *algo,
                status: if needs.is_some() { CUDNN_STATUS_SUCCESS } else { CUDNN_STATUS_NOT_SUPPORTED },
                time: if needs.is_some() { place as f32 } else { -1.0 },
                memory: needs.unwrap_or(0),
                determinism: cudnnDeterminism_t::CUDNN_DETERMINISTIC,
                mathType: math_of(convolved)?,
                reserved: [0; 3],
            };
        }
        *count = rows.len() as i32;
        Ok(())
    }

    fn cudnnGetConvolutionForwardWorkspaceSize(
        handle: Handle,
        x: Handle,
        w: Handle,
        convolved: Handle,
        y: Handle,
        algo: u32,
        bytes: *mut usize
    ) |call| {
        call.note(|| format!("{} algo={algo}", name(convolved)));
        stream_of(handle)?;
        let shape = shape(Direction::Forward, x, w, convolved, y)?;
        *bytes = forward_workspace(&shape, algo).ok_or(CUDNN_STATUS_NOT_SUPPORTED)?;
        Ok(())
    }

    fn cudnnConvolutionForward(
        handle: Handle,
        alpha: *const f32,
        x: Handle,
        x_data: u64,
        w: Handle,
        w_data: u64,
        convolved: Handle,
        algo: u32,
        workspace: u64,
        workspace_bytes: usize,
        beta: *const f32,
        y: Handle,
        y_data: u64
    ) |call| {
        let shape = shape(Direction::Forward, x, w, convolved, y)?;
        if alpha.is_null() || beta.is_null() {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        let problem = shape.problem([x_data, w_data, y_data], *alpha, *beta);
        run(call, handle, shape, problem, algo, (workspace, workspace_bytes))
    }

    fn cudnnConvolutionBiasActivationForward(
        handle: Handle,
        alpha: *const f32,
        x: Handle,
        x_data: u64,
        w: Handle,
        w_data: u64,
        convolved: Handle,
        algo: u32,
        workspace: u64,
        workspace_bytes: usize,
        alpha2: *const f32,
        z: Handle,
        z_data: u64,
        bias: Handle,
        bias_data: u64,
        activated: Handle,
        y: Handle,
        y_data: u64
    ) |call| {
        let shape = shape(Direction::Forward, x, w, convolved, y)?;
        let (outputs, bias, activated) = (filter(w)?.dims[0], tensor(bias)?, activation(activated)?);
        let fits = bias.dims == [1, outputs, 1, 1] && tensor(z)? == tensor(y)? && bias_data != 0;
        if !fits || alpha.is_null() || alpha2.is_null() || z_data == 0 {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        // Without an activation, only one algorithm is supported.
        let is_known = activated.mode == RELU || activated.mode == IDENTITY && algo == 1;
        // The documentation does not list BF16 for this call.
        if !is_known || activated.propagates_nan || shape.data_type == BF16 || bias.data_type != shape.data_type {
            return Err(CUDNN_STATUS_NOT_SUPPORTED);
        }
        let mut problem = shape.problem([x_data, w_data, y_data], *alpha, 0.0);
        (problem.z, problem.alpha2, problem.bias) = (z_data, *alpha2, bias_data);
        problem.activates = i64::from(activated.mode == RELU);
        run(call, handle, shape, problem, algo, (workspace, workspace_bytes))
    }

    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle: Handle,
        w: Handle,
        y: Handle,
        convolved: Handle,
        x: Handle,
        wanted: i32,
        count: *mut i32,
        ranked: *mut BackwardRanked
    ) |call| {
        call.note(|| name(convolved));
        stream_of(handle)?;
        capture::refuse_unsafe_call().map_err(of)?;
        let shape = shape(Direction::BackwardData, x, w, convolved, y)?;
        if wanted < 1 || count.is_null() || ranked.is_null() {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        use BackwardAlgo::*;
        use cudnnDeterminism_t::*;
        let mut rows = vec![
            // It sums in no fixed order.
            (CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_NON_DETERMINISTIC),
            (CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_DETERMINISTIC),
        ];
        rows.truncate(wanted as usize);
        for (place, &(algo, determinism)) in rows.iter().enumerate() {
            *ranked.add(place) = BackwardRanked {
                algo,
                status: CUDNN_STATUS_SUCCESS,
                time: place as f32,
                memory: backward_workspace(&shape, algo as u32).unwrap_or(0),
                determinism,
                mathType: math_of(convolved)?,
                reserved: [0; 3],
            };
        }
        *count = rows.len() as i32;
        Ok(())
    }

    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle: Handle,
        w: Handle,
        y: Handle,
        convolved: Handle,
        x: Handle,
        algo: u32,
        bytes: *mut usize
    ) |call| {
        call.note(|| format!("{} algo={algo}", name(convolved)));
        stream_of(handle)?;
        let shape = shape(Direction::BackwardData, x, w, convolved, y)?;
        *bytes = backward_workspace(&shape, algo).ok_or(CUDNN_STATUS_NOT_SUPPORTED)?;
        Ok(())
    }

    fn cudnnConvolutionBackwardData(
        handle: Handle,
        alpha: *const f32,
        w: Handle,
        w_data: u64,
        y: Handle,
        y_data: u64,
        convolved: Handle,
        algo: u32,
        workspace: u64,
        workspace_bytes: usize,
        beta: *const f32,
        x: Handle,
        x_data: u64
    ) |call| {
        let shape = shape(Direction::BackwardData, x, w, convolved, y)?;
        if alpha.is_null() || beta.is_null() {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        let problem = shape.problem([x_data, w_data, y_data], *alpha, *beta);
        run(call, handle, shape, problem, algo, (workspace, workspace_bytes))
    }
}
