//! Codes, their names and their descriptions.

use std::{
    collections::BTreeMap,
    ffi::{CString, c_char},
    sync::OnceLock,
};

use cudarc::driver::sys::CUresult::{self, *};

use crate::calls::entries;

/// The codes that the stand-in knows, whether it returns them itself or they are injected.
const KNOWN: [CUresult; 45] = [
    CUDA_SUCCESS,
    CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_STUB_LIBRARY,
    CUDA_ERROR_NO_DEVICE,
    CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_INVALID_IMAGE,
    CUDA_ERROR_INVALID_CONTEXT,
    CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_UNSUPPORTED_LIMIT,
    CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_FILE_NOT_FOUND,
    CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_ILLEGAL_STATE,
    CUDA_ERROR_NOT_FOUND,
    CUDA_ERROR_NOT_READY,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_NOT_PERMITTED,
    CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_MERGE,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    CUDA_ERROR_CAPTURED_EVENT,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
    CUDA_ERROR_UNKNOWN,
];

/// Returns the code of a number, if the stand-in knows it.
pub(crate) fn known(code: u32) -> Option<CUresult> {
    KNOWN.into_iter().find(|known| *known as u32 == code)
}

/// Returns whether the error leaves its context unusable.
pub(crate) fn is_sticky(code: CUresult) -> bool {
    let number = code as u32;
    let (first, last) = (CUDA_ERROR_HARDWARE_STACK_ERROR as u32, CUDA_ERROR_LAUNCH_FAILED as u32);
    (first..=last).contains(&number)
        || matches!(
            code,
            CUDA_ERROR_ECC_UNCORRECTABLE | CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_LAUNCH_TIMEOUT | CUDA_ERROR_ASSERT
        )
}

/// Returns the name and description of a code.
fn texts(code: u32) -> Option<&'static (CString, CString)> {
    static TEXTS: OnceLock<BTreeMap<u32, (CString, CString)>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let texts = KNOWN.into_iter().map(|code| {
            let name = format!("{code:?}");
            let description = name.trim_start_matches("CUDA_ERROR_").replace('_', " ").to_lowercase();
            let text = |text| CString::new(text).expect("names have no zero bytes");
            (code as u32, (text(name), text(description)))
        });
        texts.collect()
    });
    texts.get(&code)
}

entries! {
    fn cuGetErrorName(code: u32, name: *mut *const c_char) |_call| {
        let (text, _) = texts(code).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        *name = text.as_ptr();
        Ok(())
    }

    fn cuGetErrorString(code: u32, description: *mut *const c_char) |_call| {
        let (_, text) = texts(code).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        *description = text.as_ptr();
        Ok(())
    }
}
