//! ONNX Runtime for tests, from `ORT_DYLIB_PATH` or where `make` puts it.

use std::{path::PathBuf, sync::OnceLock};

use paternoster::engine::onnxruntime::{Runtime, RuntimeOptions};

/// Maximum bytes of all sessions of a test process.
pub(crate) const MAX_MEMORY_BYTES: usize = 1 << 30;

/// Returns the runtime of this process; `None` if the library is not installed.
pub(crate) fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let cached = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/onnxruntime/libonnxruntime.so");
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
