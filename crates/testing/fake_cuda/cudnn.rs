//! cuDNN's version, and its handles, each with its stream. `descriptors` describe what its calls work on, and
//! `convolve` computes.

use std::sync::Arc;

use cudarc::{
    cudnn::sys::cudnnStatus_t::{self, *},
    driver::sys::CUresult,
};
use parking_lot::Mutex;

use crate::{
    calls::{Status, entries_of},
    capture, context, convolution,
    handles::{Handle, Kind, Table, name},
    stream::{self, Stream},
};

/// 9.19.0.
const VERSION: usize = 91_900;

/// The stream of each handle.
static HANDLES: Table<Mutex<Handle>> = Table::new(Kind::Dnn);

impl Status for cudnnStatus_t {
    const SUCCESS: Self = CUDNN_STATUS_SUCCESS;

    fn of(code: CUresult) -> Self {
        match code {
            CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_INVALID_HANDLE => CUDNN_STATUS_BAD_PARAM,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED => CUDNN_STATUS_NOT_SUPPORTED,
            _ => CUDNN_STATUS_INTERNAL_ERROR,
        }
    }
}

/// Returns cuDNN's status for a code of the driver.
pub(crate) fn of(code: CUresult) -> cudnnStatus_t {
    Status::of(code)
}

/// Returns the stream to which a handle's work is issued.
pub(crate) fn stream_of(handle: Handle) -> Result<Arc<Stream>, cudnnStatus_t> {
    let on = *HANDLES.get(handle).map_err(of)?.lock();
    stream::get(on).map_err(of)
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

/// The version of CUDA that the library is for.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudnnGetCudartVersion() -> usize {
    13000
}

entries_of! {
    cudnnStatus_t,

    fn cudnnCreate(handle: *mut Handle) |call| {
        context::current().map_err(|_| CUDNN_STATUS_NOT_INITIALIZED)?;
        capture::refuse_unsafe_call().map_err(of)?;
        convolution::prepare()?;
        *handle = HANDLES.insert(Mutex::new(0));
        call.note(|| format!("-> {}", name(*handle)));
        Ok(())
    }

    fn cudnnDestroy(handle: Handle) |call| {
        call.note(|| name(handle));
        HANDLES.remove(handle).map_err(of)?;
        Ok(())
    }

    fn cudnnSetStream(handle: Handle, stream: Handle) |call| {
        call.note(|| format!("{} {}", name(handle), name(stream)));
        let owner = HANDLES.get(handle).map_err(of)?;
        stream::get(stream).map_err(of)?;
        *owner.lock() = stream;
        Ok(())
    }

    fn cudnnGetStream(handle: Handle, stream: *mut Handle) |call| {
        call.note(|| name(handle));
        *stream = *HANDLES.get(handle).map_err(of)?.lock();
        Ok(())
    }
}
