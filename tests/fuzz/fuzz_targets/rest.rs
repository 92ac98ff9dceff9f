#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| paternoster::fuzzing::rest(bytes));
