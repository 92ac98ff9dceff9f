//! The kernels as a host library: compiled once for an element type, loaded, launched.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use libloading::Library as Opened;

use crate::array::{Array, Kind};

/// Environment variable of processes whose kernels are compiled with sanitizers (see `address_sanitizer`).
pub(crate) const SANITIZE: &str = "PATERNOSTER_SANITIZE_KERNELS";

/// An argument of a launch.
pub(crate) enum Arg<'a> {
    Array(&'a Array),
    Null,
    Int(i32),
    Float(f32),
}

/// The library's description of a kernel: `host::Kernel` of `kernels/prelude/host.h`.
#[repr(C)]
struct RawKernel {
    name: *const c_char,
    most_threads: u32,
    arguments: u32,
    sizes: *const u32,
    call: *const c_void,
    kernel: *const c_void,
    next: *const RawKernel,
}

/// A kernel in the library's table.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub name: String,
    pub most_threads: u32,
    /// Bytes of each argument.
    pub sizes: Vec<u32>,
}

type Launch = unsafe extern "C" fn(*const c_char, *const u32, *const u32, *mut *mut c_void) -> *const c_char;

pub(crate) struct Library {
    launch: Launch,
    pub kernels: Vec<Kernel>,
    _opened: Opened,
}

impl Library {
    /// Returns the repository's kernels for an element type.
    pub(crate) fn of(element: Kind) -> &'static Self {
        static LIBRARIES: [OnceLock<Library>; 3] = [const { OnceLock::new() }; 3];
        let (place, _) =
            Kind::ELEMENTS.iter().enumerate().find(|(_, kind)| **kind == element).expect("an element type");
        LIBRARIES[place].get_or_init(|| Self::compile(element, &sources()).expect("the kernels compile"))
    }

    /// Compiles and loads kernel files. The error is the compiler's message.
    pub(crate) fn compile(element: Kind, sources: &[PathBuf]) -> Result<Self, String> {
        let file = build(element, sources)?;
        // SAFETY: the library's initializers only fill its table.
        let opened = unsafe { Opened::new(file) }.map_err(|error| error.to_string())?;
        // SAFETY: `host.h` defines both functions with these types.
        let (launch, kernels) = unsafe {
            let list =
                opened.get::<extern "C" fn() -> *const RawKernel>("kernels").map_err(|error| error.to_string())?;
            let launch = opened.get::<Launch>("launch").map_err(|error| error.to_string())?;
            (*launch, table(list()))
        };
        Ok(Self { launch, kernels, _opened: opened })
    }

    /// Launches a kernel with blocks of `threads` threads. The error says which rule was broken.
    pub(crate) fn launch(&self, name: &str, grid: [u32; 2], threads: u32, arguments: &[Arg<'_>]) -> Result<(), String> {
        self.launch_on(name, [grid[0], grid[1], 1], threads, arguments)
    }

    /// Same as [`Self::launch`], with blocks along three axes.
    pub(crate) fn launch_on(
        &self,
        name: &str,
        grid: [u32; 3],
        threads: u32,
        arguments: &[Arg<'_>],
    ) -> Result<(), String> {
        let mut bytes: Vec<Vec<u64>> = arguments.iter().map(Arg::words).collect();
        if let Some(kernel) = self.kernels.iter().find(|kernel| kernel.name == name) {
            let sizes: Vec<u32> = arguments.iter().map(Arg::bytes).collect();
            assert_eq!(sizes, kernel.sizes, "bytes of the arguments of {name}, beside those of its table");
        }
        let mut addresses: Vec<*mut c_void> = bytes.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
        let c_name = CString::new(name).expect("a kernel's name has no zero byte");
        // SAFETY: the arguments have the kernel's sizes, and arrays live as long as `arguments`.
        let wrong =
            unsafe { (self.launch)(c_name.as_ptr(), grid.as_ptr(), [threads, 1, 1].as_ptr(), addresses.as_mut_ptr()) };
        if wrong.is_null() {
            return Ok(());
        }
        // SAFETY: the message is a C string, valid until this thread's next launch.
        Err(unsafe { CStr::from_ptr(wrong) }.to_string_lossy().into_owned())
    }
}

impl Arg<'_> {
    /// Returns the argument's memory, at least 8-byte aligned.
    fn words(&self) -> Vec<u64> {
        match self {
            Self::Array(array) => vec![array.address() as u64],
            Self::Null => vec![0],
            Self::Int(value) => vec![u64::from(*value as u32)],
            Self::Float(value) => vec![u64::from(value.to_bits())],
        }
    }

    fn bytes(&self) -> u32 {
        match self {
            Self::Array(_) | Self::Null => 8,
            Self::Int(_) | Self::Float(_) => 4,
        }
    }
}

/// Reads the library's list of kernels.
///
/// # Safety
/// The pointer is to a list as `host.h` builds it.
unsafe fn table(mut next: *const RawKernel) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    // SAFETY: guaranteed by the caller; a null pointer ends the list.
    while let Some(raw) = unsafe { next.as_ref() } {
        // SAFETY: a name is a C string, and there is a size for each argument.
        let (name, sizes) = unsafe {
            (CStr::from_ptr(raw.name), std::slice::from_raw_parts(raw.sizes, raw.arguments as usize).to_vec())
        };
        kernels.push(Kernel { name: name.to_string_lossy().into_owned(), most_threads: raw.most_threads, sizes });
        next = raw.next;
    }
    kernels
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels")
}

/// Returns the kernel files of the repository.
pub(crate) fn sources() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("the folder of the kernels");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "cu"));
    files.sort();
    files
}

pub(crate) fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

/// Compiles kernel files into a shared library and returns its path. A library that the same compiler built from the
/// same files with the same options is reused.
fn build(element: Kind, sources: &[PathBuf]) -> Result<PathBuf, String> {
    let prelude = folder().join("prelude");
    let element = match element {
        Kind::F32 => "f32",
        Kind::F16 => "f16",
        Kind::Bf16 => "bf16",
        other => panic!("no kernel is compiled for {other:?}"),
    };
    let mut options = vec!["-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"];
    options.extend(["-fno-strict-aliasing", "-Wno-unknown-pragmas"]);
    if std::env::var_os(SANITIZE).is_some() {
        options.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    let mut command = Command::new(compiler());
    // The sanitizers' runtime is preloaded for this process, not for the compiler.
    command.env_remove("LD_PRELOAD");
    command.args(options).arg(format!("-DELEMENT={element}"));
    command.arg("-include").arg(prelude.join("host.h")).args(["-x", "c++"]).args(sources);

    let mut hash = DefaultHasher::new();
    format!("{command:?}").hash(&mut hash);
    let version = Command::new(compiler()).arg("--version").output();
    let version = version.map_err(|error| format!("cannot run the C++ compiler '{}': {error}", compiler()))?;
    version.stdout.hash(&mut hash);
    for file in sources.iter().chain(&[prelude.join("host.h"), prelude.join("portable.h")]) {
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?.hash(&mut hash);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("kernels-{element}-{:016x}.so", hash.finish()));
    if !library.exists() {
        // Written next to it and renamed when complete, because other processes may build the same library.
        let scratch = tempfile::NamedTempFile::new_in(folder).map_err(|error| error.to_string())?;
        let done = command.arg("-o").arg(scratch.path()).output().map_err(|error| error.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        scratch.persist(&library).map_err(|error| error.to_string())?;
    }
    Ok(library)
}
