//! Functions for tests in the same process, in addition to CUDA's.

use std::ffi::{CStr, c_char};

use parking_lot::Mutex;

use crate::{calls, errors, gate, trace};

/// A trace that was taken but did not fit the caller's buffer.
static TAKEN: Mutex<Option<String>> = Mutex::new(None);

/// Returns the number of calls so far of all functions except these.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_calls() -> u64 {
    calls::count()
}

/// Makes the nth call from now on, from 1, return `code`; with 0, each call. A code that ruins contexts ruins the
/// current one. Libraries other than the driver return their general failure. Returns whether the code is known.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_fail(nth: u64, code: u32) -> bool {
    fail(None, nth, code)
}

/// Same as [`fake_cuda_fail`], for the calls of one function.
///
/// # Safety
/// `function` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_fail_calls(function: *const c_char, nth: u64, code: u32) -> bool {
    // SAFETY: guaranteed by the caller.
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

/// Ends all injected failures.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_fail_none() {
    calls::forget_failures();
}

/// Stops all streams before their next operation, such as the launch of a graph.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_hold() {
    gate::close();
}

/// Lets held streams run this number of further operations, in any order. `u64::MAX` ends the hold.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_release(operations: u64) {
    gate::let_pass(operations);
}

/// Starts a new log of calls.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_trace_begin() {
    *TAKEN.lock() = None;
    trace::begin();
}

/// Ends the log. Returns its length in bytes, and copies it to `text` if `capacity` suffices. Otherwise the next call
/// returns it.
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
        // SAFETY: guaranteed by the caller; the log does not overlap that memory.
        unsafe { log.as_ptr().copy_to_nonoverlapping(text.cast(), length) };
        *taken = None;
    }
    length
}
