//! The control functions that the stand-in for CUDA exports in addition to CUDA's, for tests in a process that uses it:
//! injected errors, held streams, and a trace of the calls.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::CUresult;

/// Returns a control function of the stand-in.
fn control(name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded already, and is never closed.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the stand-in has {name:?}");
    found
}

/// Makes the nth call from now on fail.
pub fn fail(nth: u64, code: CUresult) {
    // SAFETY: this is the type with which the stand-in defines it.
    let fail: extern "C" fn(u64, u32) -> bool = unsafe { std::mem::transmute(control(c"fake_cuda_fail")) };
    assert!(fail(nth, code as u32), "the stand-in knows {code:?}");
}

/// Makes the nth call of a function from now on fail; with 0, each call.
pub fn fail_calls(function: &CStr, nth: u64, code: CUresult) {
    type Fail = unsafe extern "C" fn(*const libc::c_char, u64, u32) -> bool;
    // SAFETY: this is the type with which the stand-in defines it.
    let known = unsafe {
        let fail: Fail = std::mem::transmute(control(c"fake_cuda_fail_calls"));
        fail(function.as_ptr(), nth, code as u32)
    };
    assert!(known, "the stand-in knows {code:?}");
}

/// Ends all injected failures.
pub fn fail_none() {
    // SAFETY: this is the type with which the stand-in defines it.
    let none: extern "C" fn() = unsafe { std::mem::transmute(control(c"fake_cuda_fail_none")) };
    none();
}

/// Stops all streams before their next operation, such as the launch of a graph. [`release`] lets them continue.
pub fn hold() {
    // SAFETY: this is the type with which the stand-in defines it.
    let hold: extern "C" fn() = unsafe { std::mem::transmute(control(c"fake_cuda_hold")) };
    hold();
}

/// Lets held streams run this number of further operations. `u64::MAX` ends the hold.
pub fn release(operations: u64) {
    // SAFETY: this is the type with which the stand-in defines it.
    let release: extern "C" fn(u64) = unsafe { std::mem::transmute(control(c"fake_cuda_release")) };
    release(operations);
}

/// Returns the number of calls so far.
pub fn calls() -> u64 {
    // SAFETY: this is the type with which the stand-in defines it.
    let calls: extern "C" fn() -> u64 = unsafe { std::mem::transmute(control(c"fake_cuda_calls")) };
    calls()
}

/// Returns the calls that `body` makes, one on each line.
pub fn traced(body: impl FnOnce()) -> String {
    type Take = unsafe extern "C" fn(*mut libc::c_char, usize) -> usize;
    // SAFETY: these are the types with which the stand-in defines them, and the buffer has the given size.
    unsafe {
        let begin: extern "C" fn() = std::mem::transmute(control(c"fake_cuda_trace_begin"));
        let take: Take = std::mem::transmute(control(c"fake_cuda_trace_take"));
        begin();
        body();
        let mut text = vec![0_u8; take(std::ptr::null_mut(), 0)];
        assert_eq!(take(text.as_mut_ptr().cast(), text.len()), text.len(), "the trace fits");
        String::from_utf8(text).expect("the trace is text")
    }
}
