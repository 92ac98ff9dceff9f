//! ONNX Runtime's CUDA execution provider, which runs graphs on a card whose operators have no plan. It is part of the
//! GPU build of ONNX Runtime, so whether it exists is determined at run time.

use std::{
    ffi::{CStr, CString, c_char},
    path::Path,
    ptr, slice,
};

use ort::{AsPointer, session::builder::SessionBuilder, sys};

use super::status::check;
use crate::{EngineError, Precision};

/// ONNX Runtime's name of the provider.
const NAME: &CStr = c"CUDAExecutionProvider";

/// Library from which ONNX Runtime loads the provider; it is beside ONNX Runtime's own.
const LIBRARY: &str = "libonnxruntime_providers_cuda.so";

/// A card to run sessions on, whether they may use TF32, and the maximum bytes of the card's memory of each session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaProvider {
    card: u16,
    tf32: bool,
    memory_bytes: Option<usize>,
}

impl CudaProvider {
    /// Returns the provider of the library at `path` on a card.
    ///
    /// # Errors
    /// Fails if the library has no CUDA provider, or the provider's library is missing.
    pub(super) fn of(
        path: &Path,
        card: u16,
        precision: Precision,
        memory_bytes: Option<usize>,
    ) -> Result<Self, EngineError> {
        if !providers()?.iter().any(|provider| provider.as_c_str() == NAME) {
            let path = path.display();
            return Err(EngineError::new(format!("the ONNX Runtime library '{path}' has no CUDA execution provider")));
        }
        check_library(path)?;
        Ok(Self { card, tf32: precision == Precision::Tf32, memory_bytes })
    }

    /// Returns what distinguishes its sessions from others of the same graph.
    pub(super) fn origin(&self) -> [u8; 4] {
        let [low, high] = self.card.to_le_bytes();
        [1, low, high, u8::from(self.tf32)]
    }

    /// Makes a session run supported operators on the card, and the others on the CPU.
    ///
    /// # Errors
    /// Fails if ONNX Runtime cannot load the provider or rejects its options.
    pub(super) fn append(&self, builder: &mut SessionBuilder) -> Result<(), EngineError> {
        let options = Options::new()?;
        // Convolution algorithms come from heuristics rather than trials: a run with a new shape must not take seconds.
        let number = |number: usize| CString::new(number.to_string()).unwrap_or_default();
        let mut settings = vec![
            (c"device_id", number(self.card.into())),
            (c"use_tf32", CString::from(if self.tf32 { c"1" } else { c"0" })),
            (c"cudnn_conv_algo_search", CString::from(c"HEURISTIC")),
        ];
        settings.extend(self.memory_bytes.map(|most| (c"gpu_mem_limit", number(most))));
        let keys: Vec<*const c_char> = settings.iter().map(|(key, _)| key.as_ptr()).collect();
        let values: Vec<*const c_char> = settings.iter().map(|(_, value)| value.as_ptr()).collect();
        let api = ort::api();
        // SAFETY: both arrays have the length given and hold C strings, which the call copies.
        check(unsafe { (api.UpdateCUDAProviderOptions)(options.0, keys.as_ptr(), values.as_ptr(), keys.len()) })?;
        // SAFETY: the session's options are live, and the call copies those of the provider.
        check(unsafe { (api.SessionOptionsAppendExecutionProvider_CUDA_V2)(builder.ptr_mut(), options.0) })
    }
}

/// Options of the provider, owned by ONNX Runtime.
struct Options(*mut sys::OrtCUDAProviderOptionsV2);

impl Options {
    fn new() -> Result<Self, EngineError> {
        let mut options = ptr::null_mut();
        // SAFETY: the call writes to `options`, or fails.
        check(unsafe { (ort::api().CreateCUDAProviderOptions)(&mut options) })?;
        Ok(Self(options))
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: the library created it, and nothing else refers to it.
        unsafe { (ort::api().ReleaseCUDAProviderOptions)(self.0) };
    }
}

/// Returns the providers that the library was built with.
fn providers() -> Result<Vec<CString>, EngineError> {
    let api = ort::api();
    let (mut names, mut count) = (ptr::null_mut::<*mut c_char>(), 0);
    // SAFETY: the call writes to `names` and `count`, or fails.
    check(unsafe { (api.GetAvailableProviders)(&mut names, &mut count) })?;
    let length = usize::try_from(count).unwrap_or(0);
    // SAFETY: the library returned an array of `length` C strings, which is valid until it is released.
    let found = unsafe {
        let names = if names.is_null() { &[] } else { slice::from_raw_parts(names, length) };
        names.iter().map(|name| CStr::from_ptr(*name).to_owned()).collect()
    };
    // SAFETY: the array belongs to the library and is no longer used.
    check(unsafe { (api.ReleaseAvailableProviders)(names, count) })?;
    Ok(found)
}

/// Checks that the provider's library exists, because ONNX Runtime's own error only says that it cannot be loaded.
fn check_library(path: &Path) -> Result<(), EngineError> {
    // The dynamic loader found a bare name in a directory that is not known here.
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    // The parts of the library are beside the file that links lead to.
    let folder = path.canonicalize().ok().and_then(|real| real.parent().map(Path::to_owned)).unwrap_or(folder.into());
    if folder.join(LIBRARY).exists() {
        return Ok(());
    }
    let (folder, path) = (folder.display(), path.display());
    Err(EngineError::new(format!(
        "the CUDA execution provider of '{path}' is not installed: '{folder}' has no {LIBRARY}"
    )))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn the_providers_library_lies_beside_that_of_onnx_runtime() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().join("lib");
        fs::create_dir(&real).expect("a folder");
        let (library, link) = (real.join("libonnxruntime.so.1.27.0"), folder.path().join("libonnxruntime.so"));
        fs::write(&library, []).expect("a file");
        symlink(&library, &link).expect("a link");
        for path in [&library, &link] {
            let refused = check_library(path).expect_err("it is not there").message;
            assert!(refused.ends_with(&format!("'{}' has no {LIBRARY}", real.display())), "{refused}");
        }
        fs::write(real.join(LIBRARY), []).expect("a file");
        assert_eq!(check_library(&link).map_err(|error| error.message), Ok(()));
        assert_eq!(
            check_library(Path::new("libonnxruntime.so")).map_err(|error| error.message),
            Ok(()),
            "the loader's"
        );
    }
}
