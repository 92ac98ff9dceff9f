//! What tests in the same process may ask for, beside CUDA's own functions.

use std::ffi::{CStr, c_char};

use parking_lot::Mutex;

use crate::{calls, errors, trace};

/// The trace that was taken and did not fit.
static TAKEN: Mutex<Option<String>> = Mutex::new(None);

/// The number of calls so far, of all functions but these.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_calls() -> u64 {
    calls::count()
}

/// Makes the nth call from now on, from 1, answer `code`; each call with 0. A code that ruins contexts ruins the
/// current one. Libraries beside the driver answer that they failed. Returns whether the code is known.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_fail(nth: u64, code: u32) -> bool {
    fail(None, nth, code)
}

/// As [`fake_cuda_fail`], for the calls of one function.
///
/// # Safety
/// `function` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_fail_calls(function: *const c_char, nth: u64, code: u32) -> bool {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) };
    fail(Some(function.to_string_lossy().into_owned()), nth, code)
}

fn fail(function: Option<String>, nth: u64, code: u32) -> bool {
    let known = errors::known(code);
    if let Some(code) = known {
        calls::fail(function, nth, code);
    }
    known.is_some()
}

/// Makes no call fail any more.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_fail_none() {
    calls::forget_failures();
}

/// Logs calls from now on, and forgets those before.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_trace_begin() {
    *TAKEN.lock() = None;
    trace::begin();
}

/// Stops the log. Returns its length in bytes, and copies it to `text` if `capacity` is at least that; otherwise the
/// next call gets it.
///
/// # Safety
/// `text` has `capacity` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_trace_take(text: *mut c_char, capacity: usize) -> usize {
    trace::end();
    let mut taken = TAKEN.lock();
    let log = taken.get_or_insert_with(trace::take);
    let length = log.len();
    if length <= capacity {
        // SAFETY: the caller's promise; the log is not in that memory.
        unsafe { log.as_ptr().copy_to_nonoverlapping(text.cast(), length) };
        *taken = None;
    }
    length
}
