//! Finds, loads and checks CUDA's libraries. The driver's library is the system's; NVRTC, cuBLASLt and cuDNN often come
//! as Python wheels.
//!
//! `cudarc` opens each library by name at its first call, and panics if the library or the function is missing.
//! Therefore each module of this folder's parent calls `CudaLibrary::check` before the first call of a library.
//! `preload` decides which files its names lead to, `agreement` rejects what does not fit together, and `symbols` lists
//! the functions that are called.

mod agreement;
mod no_cards;
mod preload;
mod symbols;

use std::{
    ffi::{CStr, c_void},
    fmt, fs,
    path::{Path, PathBuf},
};

use cudarc::{cublaslt, cudnn, driver, nvrtc};
use libloading::Library;

pub use self::no_cards::NoCards;
use super::driver::named;

/// Versions of CUDA's toolkit whose libraries are used, the preferred one first.
const MAJORS: [u32; 2] = [13, 12];
/// The oldest version that a driver must support, and the first of NVIDIA's releases that does.
const OLDEST_DRIVER: (CudaVersion, &str) = (CudaVersion { major: 12, minor: 4 }, "550");

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The first number. Libraries of one major version run on each driver of that version or a later one.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl CudaVersion {
    /// Reads a version as CUDA writes it in one number, such as 12040.
    fn of(number: usize) -> Self {
        Self { major: (number / 1000) as u32, minor: (number % 1000 / 10) as u32 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// A library of CUDA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
}

impl fmt::Display for CudaLibrary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
        })
    }
}

/// Why a library cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The loader does not find it.
    #[error("{library} is not found ({}){}", .library.files(), .library.consequence())]
    Absent {
        /// The library.
        library: CudaLibrary,
    },
    /// It has no function of this name.
    #[error("{library} has no function {symbol} ({}){}", .path.display(), .library.consequence())]
    Lacks {
        /// The library.
        library: CudaLibrary,
        /// The function.
        symbol: &'static str,
        /// The library's file.
        path: PathBuf,
    },
}

/// A library that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// The library.
    pub library: CudaLibrary,
    /// Its version, as its makers write it.
    pub version: String,
    /// The version of CUDA that it belongs to; for the driver, the latest one that it supports.
    pub cuda: CudaVersion,
    /// The file from which it was loaded.
    pub path: PathBuf,
}

/// The libraries that the server would call.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// The driver, NVRTC, cuBLASLt and cuDNN.
    pub libraries: Vec<Result<LoadedLibrary, Unusable>>,
    /// Files in the given directory or in wheels that could not be loaded, with the loader's error.
    pub broken: Vec<(PathBuf, String)>,
    /// What is unusual about them, but harmless.
    pub warnings: Vec<String>,
}

/// Loads CUDA's libraries from `folder` or, without a folder, from the wheels of the active Python environments, and
/// checks that they fit together. What is not there is left to the system's loader. Opens no context.
///
/// # Errors
/// If there is no usable driver, or the libraries are of several major versions or of one that the driver does not
/// support.
pub fn open(folder: Option<&Path>) -> Result<Libraries, NoCards> {
    let driver = driver()?;
    let preload::Found { loaded: chosen, broken } = preload::preload(folder, driver.cuda);
    let others = [CudaLibrary::Nvrtc, CudaLibrary::CublasLt, CudaLibrary::Cudnn].map(CudaLibrary::loaded);
    let loaded: Vec<LoadedLibrary> = others.iter().flatten().cloned().collect();
    let warnings = agreement::check(&driver, &loaded, &chosen).map_err(NoCards::Libraries)?;
    Ok(Libraries { libraries: [Ok(driver)].into_iter().chain(others).collect(), broken, warnings })
}

/// Returns the driver. Initialises nothing and opens no context: a driver that is too old must not be asked for more.
///
/// # Errors
/// If there is none, or it cannot be used.
pub(super) fn driver() -> Result<LoadedLibrary, NoCards> {
    let unusable = |unusable| match unusable {
        Unusable::Absent { .. } => NoCards::NoDriver,
        Unusable::Lacks { .. } => NoCards::Libraries(unusable.to_string()),
    };
    CudaLibrary::Driver.check().map_err(unusable)?;
    let mut number = 0;
    #[expect(unsafe_code, reason = "the driver is a C library")]
    // SAFETY: the call writes one number.
    let answered = unsafe { driver::sys::cuDriverGetVersion(&mut number) }.result();
    // A toolkit's stub fails here.
    answered.map_err(|error| NoCards::Refused(named(error)))?;
    let cuda = CudaVersion::of(number.unsigned_abs() as usize);
    let path = CudaLibrary::Driver.path();
    let release = release(&path);
    if cuda < OLDEST_DRIVER.0 {
        let found =
            format!("CUDA {cuda} ({}{})", path.display(), release.map_or_else(String::new, |it| format!(", {it}")));
        return Err(NoCards::TooOld { found, expected: OLDEST_DRIVER });
    }
    let version = release.map_or_else(|| cuda.to_string(), |release| format!("{cuda} ({release})"));
    Ok(LoadedLibrary { library: CudaLibrary::Driver, version, cuda, path })
}

/// Returns the driver's release, such as `580.159.04`, which is part of the name of the file that its links lead to.
fn release(path: &Path) -> Option<String> {
    let file = fs::canonicalize(path).ok()?;
    let release = file.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
    release.contains('.').then(|| release.to_owned())
}

impl CudaLibrary {
    /// Opens the library, unless it is open, and looks up each function that the server calls.
    ///
    /// # Errors
    /// If it is not found, or lacks a function.
    pub(super) fn check(self) -> Result<(), Unusable> {
        let opened = self.opened().ok_or(Unusable::Absent { library: self })?;
        match self.symbols().iter().find(|symbol| address(opened, symbol).is_none()) {
            Some(symbol) => Err(Unusable::Lacks { library: self, symbol, path: self.path() }),
            None => Ok(()),
        }
    }

    #[expect(unsafe_code, reason = "the library's initialisers run")]
    fn opened(self) -> Option<&'static Library> {
        // SAFETY: the library is one of CUDA's, installed by the operator of the server. `cudarc` opens it by name, and
        // is asked for it only if it is there.
        unsafe {
            match self {
                Self::Driver => driver::sys::is_culib_present().then(|| driver::sys::culib()),
                Self::Nvrtc => nvrtc::sys::is_culib_present().then(|| nvrtc::sys::culib()),
                Self::CublasLt => cublaslt::sys::is_culib_present().then(|| cublaslt::sys::culib()),
                Self::Cudnn => cudnn::sys::is_culib_present().then(|| cudnn::sys::culib()),
            }
        }
    }

    fn symbols(self) -> &'static [&'static str] {
        match self {
            Self::Driver => symbols::DRIVER,
            Self::Nvrtc => symbols::NVRTC,
            Self::CublasLt => symbols::CUBLASLT,
            Self::Cudnn => symbols::CUDNN,
        }
    }

    /// Returns the function that returns its version.
    fn tells_version(self) -> &'static str {
        match self {
            Self::Driver => "cuDriverGetVersion",
            Self::Nvrtc => "nvrtcVersion",
            Self::CublasLt => "cublasLtGetVersion",
            Self::Cudnn => "cudnnGetVersion",
        }
    }

    /// Returns the start of the name of its files. The number of its version follows.
    fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.",
            Self::Nvrtc => "libnvrtc.so.",
            Self::CublasLt => "libcublasLt.so.",
            Self::Cudnn => "libcudnn.so.",
        }
    }

    /// Returns the names of the files that would do.
    fn files(self) -> String {
        let of_a_toolkit = || MAJORS.map(|major| format!("{}{major}", self.file())).join(" or ");
        match self {
            Self::Driver => format!("{}1", self.file()),
            Self::Nvrtc | Self::CublasLt => of_a_toolkit(),
            Self::Cudnn => format!("{}9", self.file()),
        }
    }

    /// Returns what cannot be done without it, and what to do about that.
    fn consequence(self) -> String {
        let lost = match self {
            Self::Driver => return String::new(),
            Self::Nvrtc => "kernels cannot be compiled",
            Self::CublasLt => "matrices cannot be multiplied",
            Self::Cudnn => "convolutions cannot be computed",
        };
        format!(": {lost}; give the folder of CUDA's libraries with --cuda-libraries")
    }

    /// Returns the file from which it was loaded, as the loader names it; empty if it is not loaded.
    fn path(self) -> PathBuf {
        let mut symbols = [self.tells_version()].into_iter().chain(self.symbols().iter().copied());
        let found = self.opened().and_then(|opened| symbols.find_map(|symbol| address(opened, symbol)));
        found.and_then(file_of).unwrap_or_default()
    }

    /// Loads it and asks for its version.
    fn loaded(self) -> Result<LoadedLibrary, Unusable> {
        self.check()?;
        let (version, cuda) = self.versions();
        Ok(LoadedLibrary { library: self, version, cuda, path: self.path() })
    }

    /// Returns its version and that of CUDA. It has passed [`Self::check`].
    #[expect(unsafe_code, reason = "CUDA's libraries are C libraries")]
    fn versions(self) -> (String, CudaVersion) {
        let parts = |number: usize| format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100);
        match self {
            Self::Driver => (String::new(), OLDEST_DRIVER.0),
            Self::Nvrtc => {
                let cuda = nvrtc_version();
                (cuda.to_string(), cuda)
            }
            Self::CublasLt => {
                // SAFETY: the call has no arguments.
                let number = unsafe { cublaslt::sys::cublasLtGetVersion() };
                // Its first number is that of the toolkit.
                (parts(number), CudaVersion { major: (number / 10_000) as u32, minor: (number / 100 % 100) as u32 })
            }
            Self::Cudnn => (parts(cudnn::result::get_version()), cudnn_cuda()),
        }
    }
}

/// Returns the version of NVRTC, which has passed [`CudaLibrary::check`].
#[expect(unsafe_code, reason = "the compiler is a C library")]
pub(super) fn nvrtc_version() -> CudaVersion {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes two numbers and reads nothing.
    let _ = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    CudaVersion { major: major.unsigned_abs(), minor: minor.unsigned_abs() }
}

/// Returns the version of CUDA that cuDNN, which has passed [`CudaLibrary::check`], was built for.
#[expect(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn cudnn_cuda() -> CudaVersion {
    // SAFETY: the call has no arguments.
    CudaVersion::of(unsafe { cudnn::sys::cudnnGetCudartVersion() })
}

/// Returns the address of a library's function.
#[expect(unsafe_code, reason = "a pointer to a function has no known type")]
fn address(library: &Library, symbol: &str) -> Option<*const c_void> {
    // SAFETY: the pointer is not called.
    let found = unsafe { library.get::<*const c_void>(symbol) };
    found.ok().map(|found| *found)
}

/// Returns the file that contains an address, as the loader names it.
#[expect(unsafe_code, reason = "the loader is a C library")]
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: a struct of pointers that may be null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads no memory at the address, and writes the struct.
    let found = unsafe { libc::dladdr(address, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: the name belongs to a library that is never unloaded.
    found.then(|| PathBuf::from(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_numbers_of_the_libraries() {
        assert_eq!(CudaVersion::of(13000), CudaVersion { major: 13, minor: 0 });
        assert_eq!(CudaVersion::of(12040).to_string(), "12.4");
        assert!(CudaVersion::of(12090) < CudaVersion::of(13000) && CudaVersion::of(12020) < OLDEST_DRIVER.0);
    }

    #[test]
    fn the_release_of_a_driver_is_in_the_name_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("libcuda.so.535.161.08"), folder.path().join("libcuda.so.1"));
        fs::write(&file, b"no library").expect("the file can be written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        assert_eq!(release(&link), Some("535.161.08".to_owned()));
        fs::rename(&file, folder.path().join("libcuda.so.2")).expect("the file can be renamed");
        assert_eq!(release(&link), None);
        assert_eq!(release(&folder.path().join("libcuda.so.2")), None);
    }
}
