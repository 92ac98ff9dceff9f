//! The same tests, with kernels that are compiled with the sanitizers for addresses and undefined behaviour.

use std::{path::Path, process::Command};

use crate::library::{SANITIZE, compiler};

/// Environment variable that skips the test if the C++ compiler has no sanitizers.
const WITHOUT: &str = "PATERNOSTER_NO_SANITIZER";

#[test]
#[ignore = "compiles with the sanitizers: make nightly"]
fn kernels_touch_nothing_but_their_arrays() {
    if std::env::var_os(WITHOUT).is_some() {
        println!("left out: {WITHOUT} is set");
        return;
    }
    let runtime = Command::new(compiler()).arg("-print-file-name=libasan.so").output().expect("the C++ compiler runs");
    let runtime = String::from_utf8_lossy(&runtime.stdout).trim().to_owned();
    assert!(
        Path::new(&runtime).is_absolute(),
        "'{}' has no AddressSanitizer; install it, or set {WITHOUT}=1 to leave this test out",
        compiler()
    );
    // A library that is opened at run time needs the sanitizer's runtime to be loaded first. The inner run leaves this
    // test out, because it is ignored.
    let tests = std::env::current_exe().expect("a test program knows its path");
    let done = Command::new(tests)
        .env(SANITIZE, "1")
        .env("LD_PRELOAD", runtime)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .expect("a test program can be started");
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{errors}");
    assert!(out.contains("slots_may_repeat_and_come_in_any_order ... ok"), "the kernels were run: {out}");
}
