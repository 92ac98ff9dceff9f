//! Converts ONNX Runtime's status objects into errors.

use std::ffi::CStr;

use ort::sys;

use crate::EngineError;

/// Converts a status into a result, and frees it.
pub(super) fn check(status: sys::OrtStatusPtr) -> Result<(), EngineError> {
    if status.0.is_null() {
        return Ok(());
    }
    let api = ort::api();
    // SAFETY: the status is not null, comes from the call just made and is released once, after its text is copied.
    let message = unsafe {
        // Some messages end with a line feed.
        let text = CStr::from_ptr((api.GetErrorMessage)(status.0)).to_string_lossy().trim_end().to_owned();
        (api.ReleaseStatus)(status.0);
        text
    };
    Err(EngineError::of_engine(format!("onnx runtime error: {message}")))
}
