//! OpenVINO for tests, from `OPENVINO_DYLIB_PATH` or where `scripts/fetch.py openvino` puts it.

use std::sync::OnceLock;

use paternoster_engine::openvino::{OpenVino, OpenVinoOptions};

use crate::cache;

/// Returns the engine of this process; `None` if the library is not installed.
pub fn openvino() -> Option<&'static OpenVino> {
    static OPENVINO: OnceLock<Option<OpenVino>> = OnceLock::new();
    OPENVINO
        .get_or_init(|| {
            let cached = cache().join("openvino/libopenvino_c.so");
            let library = cached.exists().then_some(cached);
            if library.is_none() && std::env::var_os("OPENVINO_DYLIB_PATH").is_none() {
                eprintln!("skipped: no OpenVINO library; run `make test`, or set OPENVINO_DYLIB_PATH");
                return None;
            }
            let openvino = OpenVino::new(OpenVinoOptions { library, threads: 2, lanes: 2 });
            openvino.load().expect("the library loads");
            Some(openvino)
        })
        .as_ref()
}
