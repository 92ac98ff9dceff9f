//! The functions that the stand-in for CUDA has beside CUDA's, for tests in a process that has it: errors on demand,
//! and the calls that are made.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::CUresult;

/// A function that the stand-in has beside CUDA's.
fn control(name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded already, and is never closed.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the stand-in has {name:?}");
    found
}

/// Makes the nth call from now on fail.
pub(crate) fn fail(nth: u64, code: CUresult) {
    // SAFETY: the type that the stand-in defines it with.
    let fail: extern "C" fn(u64, u32) -> bool = unsafe { std::mem::transmute(control(c"fake_cuda_fail")) };
    assert!(fail(nth, code as u32), "the stand-in knows {code:?}");
}

/// Makes the nth call of a function fail from now on, or each.
pub(crate) fn fail_calls(function: &CStr, nth: u64, code: CUresult) {
    type Fail = unsafe extern "C" fn(*const libc::c_char, u64, u32) -> bool;
    // SAFETY: the type that the stand-in defines it with.
    let known = unsafe {
        let fail: Fail = std::mem::transmute(control(c"fake_cuda_fail_calls"));
        fail(function.as_ptr(), nth, code as u32)
    };
    assert!(known, "the stand-in knows {code:?}");
}

/// Makes no call fail any more.
pub(crate) fn fail_none() {
    // SAFETY: the type that the stand-in defines it with.
    let none: extern "C" fn() = unsafe { std::mem::transmute(control(c"fake_cuda_fail_none")) };
    none();
}

/// How many calls there have been.
pub(crate) fn calls() -> u64 {
    // SAFETY: the type that the stand-in defines it with.
    let calls: extern "C" fn() -> u64 = unsafe { std::mem::transmute(control(c"fake_cuda_calls")) };
    calls()
}

/// The calls that `body` makes, a line each.
pub(crate) fn traced(body: impl FnOnce()) -> String {
    type Take = unsafe extern "C" fn(*mut libc::c_char, usize) -> usize;
    // SAFETY: the types that the stand-in defines them with; the text has as many bytes as it says.
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
