//! ONNX Runtime's CUDA execution provider, which runs graphs on a card whose operators have no plan. What it needs is
//! in the GPU build of ONNX Runtime; the library is asked for it at run time.

use std::{
    ffi::{CStr, CString, c_char},
    path::Path,
    ptr, slice,
};

use ort::{AsPointer, session::builder::SessionBuilder, sys};

use super::{library::Runtime, status::check};
use crate::engine::{EngineError, Precision};

/// What ONNX Runtime calls the provider.
const NAME: &CStr = c"CUDAExecutionProvider";

/// What ONNX Runtime loads it from: a library beside its own.
const LIBRARY: &str = "libonnxruntime_providers_cuda.so";

/// How sessions run on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaProvider {
    card: u16,
    tf32: bool,
}

impl CudaProvider {
    /// The provider of a library, on a card, named by its number among those of the driver. Like the CPU, it computes
    /// in fp32 where half precision is asked for.
    ///
    /// # Errors
    /// When the library has none, or what it is loaded from is not there.
    pub fn of(runtime: &Runtime, card: u16, precision: Precision) -> Result<Self, EngineError> {
        let path = runtime.path();
        if !providers()?.iter().any(|provider| provider.as_c_str() == NAME) {
            let path = path.display();
            return Err(EngineError(format!("the ONNX Runtime library '{path}' has no CUDA execution provider")));
        }
        check_library(path)?;
        Ok(Self { card, tf32: precision == Precision::Tf32 })
    }

    /// What tells sessions on it from others of the same graph.
    pub(super) fn origin(&self) -> [u8; 4] {
        let [low, high] = self.card.to_le_bytes();
        [1, low, high, u8::from(self.tf32)]
    }

    /// Has a session run on it what it can; the rest runs on the CPU.
    ///
    /// # Errors
    /// When ONNX Runtime cannot load it, or does not take its options.
    pub(super) fn append(&self, builder: &mut SessionBuilder) -> Result<(), EngineError> {
        let options = Options::new()?;
        // Algorithms of convolutions are asked for, not tried: a run that meets a new shape must not take seconds.
        let settings = [
            (c"device_id", CString::new(self.card.to_string()).unwrap_or_default()),
            (c"use_tf32", CString::from(if self.tf32 { c"1" } else { c"0" })),
            (c"cudnn_conv_algo_search", CString::from(c"HEURISTIC")),
        ];
        let keys: Vec<*const c_char> = settings.iter().map(|(key, _)| key.as_ptr()).collect();
        let values: Vec<*const c_char> = settings.iter().map(|(_, value)| value.as_ptr()).collect();
        let api = ort::api();
        // SAFETY: both arrays have the length given and hold C strings, which the call copies.
        check(unsafe { (api.UpdateCUDAProviderOptions)(options.0, keys.as_ptr(), values.as_ptr(), keys.len()) })?;
        // SAFETY: the session's options live, and the call copies those of the provider.
        check(unsafe { (api.SessionOptionsAppendExecutionProvider_CUDA_V2)(builder.ptr_mut(), options.0) })
    }
}

/// Options of the provider, as ONNX Runtime keeps them.
struct Options(*mut sys::OrtCUDAProviderOptionsV2);

impl Options {
    fn new() -> Result<Self, EngineError> {
        let mut options = ptr::null_mut();
        // SAFETY: the call writes where it is told, or fails.
        check(unsafe { (ort::api().CreateCUDAProviderOptions)(&mut options) })?;
        Ok(Self(options))
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and nothing else names it.
        unsafe { (ort::api().ReleaseCUDAProviderOptions)(self.0) };
    }
}

/// The providers that the library was built with.
fn providers() -> Result<Vec<CString>, EngineError> {
    let api = ort::api();
    let (mut names, mut count) = (ptr::null_mut::<*mut c_char>(), 0);
    // SAFETY: the call writes where it is told, or fails.
    check(unsafe { (api.GetAvailableProviders)(&mut names, &mut count) })?;
    let length = usize::try_from(count).unwrap_or(0);
    // SAFETY: the library returned an array of `length` C strings, which is valid until it is released.
    let found = unsafe {
        let names = if names.is_null() { &[] } else { slice::from_raw_parts(names, length) };
        names.iter().map(|name| CStr::from_ptr(*name).to_owned()).collect()
    };
    // SAFETY: the array is the library's own and is not used any more.
    check(unsafe { (api.ReleaseAvailableProviders)(names, count) })?;
    Ok(found)
}

/// ONNX Runtime says of a library that is missing no more than that it cannot be loaded.
fn check_library(path: &Path) -> Result<(), EngineError> {
    // A bare name was found by the loader, wherever it lies.
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    // Links lead to where its parts are.
    let folder = path.canonicalize().ok().and_then(|real| real.parent().map(Path::to_owned)).unwrap_or(folder.into());
    if folder.join(LIBRARY).exists() {
        return Ok(());
    }
    let (folder, path) = (folder.display(), path.display());
    Err(EngineError(format!("the CUDA execution provider of '{path}' is not installed: '{folder}' has no {LIBRARY}")))
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
            let refused = check_library(path).expect_err("it is not there").0;
            assert!(refused.ends_with(&format!("'{}' has no {LIBRARY}", real.display())), "{refused}");
        }
        fs::write(real.join(LIBRARY), []).expect("a file");
        assert_eq!(check_library(&link).map_err(|error| error.0), Ok(()));
        assert_eq!(check_library(Path::new("libonnxruntime.so")).map_err(|error| error.0), Ok(()), "the loader's");
    }
}
