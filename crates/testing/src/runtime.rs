//! ONNX Runtime for tests, from `ORT_DYLIB_PATH` or where `make` puts it.

use std::sync::OnceLock;

use paternoster_engine::onnxruntime::{Runtime, RuntimeOptions};

use crate::cache;

/// Maximum bytes of all sessions of a test process.
pub const MAX_MEMORY_BYTES: usize = 1 << 30;

/// Returns the runtime of this process; `None` if the library is not installed.
pub fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let cached = cache().join("onnxruntime/libonnxruntime.so");
            let library = cached.exists().then_some(cached);
            if library.is_none() && std::env::var_os("ORT_DYLIB_PATH").is_none() {
                eprintln!("skipped: no ONNX Runtime library; run `make test`, or set ORT_DYLIB_PATH");
                return None;
            }
            let options = RuntimeOptions { library, threads: 2, lanes: 2, max_memory_bytes: MAX_MEMORY_BYTES };
            Some(Runtime::load(&options).expect("the library loads"))
        })
        .as_ref()
}
