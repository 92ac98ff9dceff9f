//! cuDNN's descriptors of tensors, filters, convolutions and activations. Descriptors that were created but not set are
//! rejected where they are used.

use cudarc::cudnn::sys::cudnnStatus_t::{self, *};
use parking_lot::Mutex;

use crate::{
    calls::entries_of,
    cudnn::of,
    handles::{Handle, Kind, Table, name},
};

pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 2;
pub(crate) const BF16: u32 = 9;
const NCHW: u32 = 0;
/// Maximum elements of a tensor.
const ELEMENTS_MAX: i64 = i32::MAX as i64;

/// Dims of a dense tensor: images, channels, height, width; of a filter: outputs, inputs, height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Dense {
    pub data_type: u32,
    pub dims: [i64; 4],
}

/// The parameters of a convolution, along height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Moves {
    pub pads: [i64; 2],
    pub strides: [i64; 2],
    pub dilations: [i64; 2],
    /// 0: convolution, with the filter flipped; 1: cross-correlation.
    pub mode: u32,
    pub compute_type: u32,
}

/// A convolution with the attributes that have setters of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    pub moves: Option<Moves>,
    pub groups: i64,
    pub math: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Activation {
    pub mode: u32,
    pub propagates_nan: bool,
}

static TENSORS: Table<Mutex<Option<Dense>>> = Table::new(Kind::DnnTensor);
static FILTERS: Table<Mutex<Option<Dense>>> = Table::new(Kind::DnnFilter);
static CONVOLUTIONS: Table<Mutex<Convolution>> = Table::new(Kind::DnnConvolution);
static ACTIVATIONS: Table<Mutex<Option<Activation>>> = Table::new(Kind::DnnActivation);

pub(crate) fn tensor(handle: Handle) -> Result<Dense, cudnnStatus_t> {
    TENSORS.get(handle).map_err(of)?.lock().ok_or(CUDNN_STATUS_BAD_PARAM)
}

pub(crate) fn filter(handle: Handle) -> Result<Dense, cudnnStatus_t> {
    FILTERS.get(handle).map_err(of)?.lock().ok_or(CUDNN_STATUS_BAD_PARAM)
}

/// Returns a convolution that was set.
pub(crate) fn convolution(handle: Handle) -> Result<(Convolution, Moves), cudnnStatus_t> {
    let described = *CONVOLUTIONS.get(handle).map_err(of)?.lock();
    Ok((described, described.moves.ok_or(CUDNN_STATUS_BAD_PARAM)?))
}

pub(crate) fn activation(handle: Handle) -> Result<Activation, cudnnStatus_t> {
    ACTIVATIONS.get(handle).map_err(of)?.lock().ok_or(CUDNN_STATUS_BAD_PARAM)
}

fn dense(data_type: u32, format: u32, dims: [i32; 4]) -> Result<Dense, cudnnStatus_t> {
    let dims = dims.map(i64::from);
    if dims.iter().any(|&length| length < 1) || data_type > 13 || format > 2 {
        return Err(CUDNN_STATUS_BAD_PARAM);
    }
    let elements = dims.iter().try_fold(1_i64, |all, &length| all.checked_mul(length));
    if format != NCHW || elements.is_none_or(|elements| elements > ELEMENTS_MAX) {
        return Err(CUDNN_STATUS_NOT_SUPPORTED);
    }
    Ok(Dense { data_type, dims })
}

entries_of! {
    cudnnStatus_t,

    fn cudnnCreateTensorDescriptor(tensor: *mut Handle) |call| {
        *tensor = TENSORS.insert(Mutex::new(None));
        call.note(|| format!("-> {}", name(*tensor)));
        Ok(())
    }

    fn cudnnSetTensor4dDescriptor(
        tensor: Handle,
        format: u32,
        data_type: u32,
        n: i32,
        c: i32,
        h: i32,
        w: i32
    ) |call| {
        call.note(|| format!("{} {n}x{c}x{h}x{w} type={data_type}", name(tensor)));
        *TENSORS.get(tensor).map_err(of)?.lock() = Some(dense(data_type, format, [n, c, h, w])?);
        Ok(())
    }

    fn cudnnDestroyTensorDescriptor(tensor: Handle) |call| {
        call.note(|| name(tensor));
        TENSORS.remove(tensor).map_err(of)?;
        Ok(())
    }

    fn cudnnCreateFilterDescriptor(filter: *mut Handle) |call| {
        *filter = FILTERS.insert(Mutex::new(None));
        call.note(|| format!("-> {}", name(*filter)));
        Ok(())
    }

    fn cudnnSetFilter4dDescriptor(
        filter: Handle,
        data_type: u32,
        format: u32,
        k: i32,
        c: i32,
        h: i32,
        w: i32
    ) |call| {
        call.note(|| format!("{} {k}x{c}x{h}x{w} type={data_type}", name(filter)));
        *FILTERS.get(filter).map_err(of)?.lock() = Some(dense(data_type, format, [k, c, h, w])?);
        Ok(())
    }

    fn cudnnDestroyFilterDescriptor(filter: Handle) |call| {
        call.note(|| name(filter));
        FILTERS.remove(filter).map_err(of)?;
        Ok(())
    }

    fn cudnnCreateConvolutionDescriptor(convolution: *mut Handle) |call| {
        *convolution = CONVOLUTIONS.insert(Mutex::new(Convolution { moves: None, groups: 1, math: 0 }));
        call.note(|| format!("-> {}", name(*convolution)));
        Ok(())
    }

    fn cudnnSetConvolution2dDescriptor(
        convolution: Handle,
        pad_h: i32,
        pad_w: i32,
        stride_h: i32,
        stride_w: i32,
        dilation_h: i32,
        dilation_w: i32,
        mode: u32,
        compute_type: u32
    ) |call| {
        let [pads, strides, dilations] =
            [[pad_h, pad_w], [stride_h, stride_w], [dilation_h, dilation_w]].map(|pair| pair.map(i64::from));
        call.note(|| format!("{} pads={pads:?} strides={strides:?} dilations={dilations:?}", name(convolution)));
        let is_sound = pads.iter().all(|&pad| pad >= 0) && strides.iter().chain(&dilations).all(|&step| step > 0);
        if !is_sound || mode > 1 {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        let moves = Moves { pads, strides, dilations, mode, compute_type };
        CONVOLUTIONS.get(convolution).map_err(of)?.lock().moves = Some(moves);
        Ok(())
    }

    fn cudnnSetConvolutionMathType(convolution: Handle, math: u32) |call| {
        call.note(|| format!("{} math={math}", name(convolution)));
        if math > 3 {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        CONVOLUTIONS.get(convolution).map_err(of)?.lock().math = math;
        Ok(())
    }

    fn cudnnSetConvolutionGroupCount(convolution: Handle, groups: i32) |call| {
        call.note(|| format!("{} groups={groups}", name(convolution)));
        if groups < 1 {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        CONVOLUTIONS.get(convolution).map_err(of)?.lock().groups = i64::from(groups);
        Ok(())
    }

    fn cudnnDestroyConvolutionDescriptor(convolution: Handle) |call| {
        call.note(|| name(convolution));
        CONVOLUTIONS.remove(convolution).map_err(of)?;
        Ok(())
    }

    fn cudnnCreateActivationDescriptor(activation: *mut Handle) |call| {
        *activation = ACTIVATIONS.insert(Mutex::new(None));
        call.note(|| format!("-> {}", name(*activation)));
        Ok(())
    }

    fn cudnnSetActivationDescriptor(activation: Handle, mode: u32, nan: u32, _coefficient: f64) |call| {
        call.note(|| format!("{} mode={mode} nan={nan}", name(activation)));
        if mode > 6 || nan > 1 {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        let described = Activation { mode, propagates_nan: nan == 1 };
        *ACTIVATIONS.get(activation).map_err(of)?.lock() = Some(described);
        Ok(())
    }

    fn cudnnDestroyActivationDescriptor(activation: Handle) |call| {
        call.note(|| name(activation));
        ACTIVATIONS.remove(activation).map_err(of)?;
        Ok(())
    }
}
