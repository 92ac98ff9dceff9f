//! Rejects libraries that do not fit together.
//!
//! The loader finds libraries by name, and `cudarc` asks it for `libcublasLt.so` before `libcublasLt.so.13`. A toolkit
//! in `LD_LIBRARY_PATH` thus takes the place of the wheels that were preloaded. This is an error if it is of another
//! major version: kernels would come from one toolkit and matrix products from another, perhaps one that the driver
//! does not support, which would show in the first model at the earliest. Another file of the same major version does
//! no harm, and is a warning.

use std::{fs, path::Path};

use super::{CudaLibrary, LoadedLibrary, preload::Chosen};

/// Checks the libraries that were loaded against the driver, each other, and the files that were chosen. Returns
/// warnings.
///
/// # Errors
/// If they are of several major versions, or of one that the driver does not support.
pub(super) fn check(
    driver: &LoadedLibrary,
    loaded: &[LoadedLibrary],
    chosen: &[Chosen],
) -> Result<Vec<String>, String> {
    // cuDNN is checked where it is used: models without convolutions do not need it.
    let of_the_toolkit = || loaded.iter().filter(|it| it.library != CudaLibrary::Cudnn);
    let mut warnings = Vec::new();
    for it in of_the_toolkit() {
        let LoadedLibrary { library, version, cuda, path } = it;
        let named = format!("{library} {version} ({})", path.display());
        if let Some(chosen) = chosen.iter().find(|chosen| chosen.library == *library && !is_same(&chosen.path, path)) {
            if chosen.major != cuda.major {
                return Err(format!(
                    "the loader finds {named} instead of that of CUDA {} ({}), expected one toolkit; take the former \
                     out of LD_LIBRARY_PATH and the loader's cache, or give its folder with --cuda-libraries",
                    chosen.major,
                    chosen.path.display()
                ));
            }
            warnings.push(format!("the loader finds {named} instead of {}", chosen.path.display()));
        }
        if cuda.major > driver.cuda.major {
            return Err(format!(
                "{named} needs a driver of CUDA {}, but that of this machine supports CUDA {}; give the folder of \
                 libraries of CUDA {} with --cuda-libraries",
                cuda.major, driver.cuda, driver.cuda.major
            ));
        }
    }
    let mut two = of_the_toolkit();
    if let (Some(one), Some(other)) = (two.next(), two.next())
        && one.cuda.major != other.cuda.major
    {
        let named = |it: &LoadedLibrary| format!("{} {} ({})", it.library, it.version, it.path.display());
        return Err(format!(
            "{} and {} are of different toolkits; give the folder of both with --cuda-libraries",
            named(one),
            named(other)
        ));
    }
    Ok(warnings)
}

/// Returns whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    file(one) == file(other)
}

#[cfg(test)]
mod tests {
    use super::{super::CudaVersion, *};

    fn loaded(library: CudaLibrary, major: u32, minor: u32, path: &str) -> LoadedLibrary {
        let cuda = CudaVersion { major, minor };
        LoadedLibrary { library, version: cuda.to_string(), cuda, path: path.into() }
    }

    fn driver(major: u32, minor: u32) -> LoadedLibrary {
        loaded(CudaLibrary::Driver, major, minor, "/lib/libcuda.so.1")
    }

    fn both(major: u32, minor: u32) -> [LoadedLibrary; 2] {
        [(CudaLibrary::Nvrtc, "/wheel/libnvrtc.so"), (CudaLibrary::CublasLt, "/wheel/libcublasLt.so")]
            .map(|(library, path)| loaded(library, major, minor, path))
    }

    fn chosen(library: CudaLibrary, major: u32, path: &str) -> Chosen {
        Chosen { library, major, path: path.into() }
    }

    #[test]
    fn a_toolkit_no_later_than_the_drivers_major_version_is_accepted() {
        assert_eq!(check(&driver(13, 0), &both(13, 1), &[]), Ok(vec![]));
        assert_eq!(check(&driver(13, 0), &both(12, 4), &[]), Ok(vec![]));
        // Kernels are compiled to machine code, which any driver of the major version loads.
        assert_eq!(check(&driver(12, 4), &both(12, 9), &[]), Ok(vec![]));
        let refusal = check(&driver(12, 4), &both(13, 0), &[]).expect_err("the driver is older");
        assert_eq!(
            refusal,
            "NVRTC 13.0 (/wheel/libnvrtc.so) needs a driver of CUDA 13, but that of this machine supports CUDA 12.4; \
             give the folder of libraries of CUDA 12 with --cuda-libraries"
        );
    }

    #[test]
    fn libraries_of_two_toolkits_are_refused_with_both_paths() {
        let mixed = [both(13, 0)[0].clone(), loaded(CudaLibrary::CublasLt, 12, 4, "/old/libcublasLt.so")];
        assert_eq!(
            check(&driver(13, 0), &mixed, &[]).expect_err("they are mixed"),
            "NVRTC 13.0 (/wheel/libnvrtc.so) and cuBLASLt 12.4 (/old/libcublasLt.so) are of different toolkits; give \
             the folder of both with --cuda-libraries"
        );
    }

    #[test]
    fn another_file_than_the_chosen_one_is_named_with_it() {
        let it = loaded(CudaLibrary::CublasLt, 13, 1, "/path/libcublasLt.so");
        let same = [chosen(CudaLibrary::CublasLt, 13, "/path/libcublasLt.so")];
        assert_eq!(check(&driver(13, 0), std::slice::from_ref(&it), &same), Ok(vec![]));
        let other = [chosen(CudaLibrary::CublasLt, 13, "/wheel/libcublasLt.so.13")];
        let warning = "the loader finds cuBLASLt 13.1 (/path/libcublasLt.so) instead of /wheel/libcublasLt.so.13";
        assert_eq!(check(&driver(13, 0), &[it], &other), Ok(vec![warning.to_owned()]));
        let old = loaded(CudaLibrary::CublasLt, 12, 4, "/path/libcublasLt.so");
        let refusal = check(&driver(13, 0), &[old], &other).expect_err("they are mixed");
        let start = "the loader finds cuBLASLt 12.4 (/path/libcublasLt.so) instead of that of CUDA 13 \
                     (/wheel/libcublasLt.so.13), expected one toolkit";
        assert!(refusal.starts_with(start), "{refusal}");
    }
}
