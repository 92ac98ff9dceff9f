//! Compiles kernels for the installed card and caches the results on disk.

use std::{
    ffi::{CStr, CString, c_char},
    fs,
    path::{Path, PathBuf},
    ptr,
};

use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::libraries::{CudaLibrary, nvrtc_version};

/// A file of kernels, written or generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource<'t> {
    /// Its name in the compiler's messages.
    pub name: &'t str,
    /// The kernels.
    pub text: &'t str,
}

/// Element type of the kernels' tensors. Kernels compute in fp32 whatever the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelElement {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of single precision.
    Bf16,
}

impl KernelElement {
    /// Returns the bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Returns the compiler option that selects the type in the kernels' prelude.
    fn definition(self) -> &'static str {
        match self {
            Self::F32 => "--define-macro=ELEMENT=f32",
            Self::F16 => "--define-macro=ELEMENT=f16",
            Self::Bf16 => "--define-macro=ELEMENT=bf16",
        }
    }
}

macro_rules! kernels {
    ($($field:ident: $says:literal,)+) => {
        /// The files of `kernels/`.
        #[derive(Clone, Copy, Debug)]
        pub struct KernelFiles {
            $(#[doc = $says] pub $field: KernelSource<'static>,)+
        }

        /// The files of `kernels/`.
        pub const KERNELS: KernelFiles = KernelFiles {
            $($field: KernelSource {
                name: concat!(stringify!($field), ".cu"),
                text: include_str!(concat!("../../../../kernels/", stringify!($field), ".cu")),
            },)+
        };
    };
}

kernels! {
    parameters: "The kernel that every operation begins with.",
    rows: "Kernels that move rows by index.",
    signal: "The kernel that every operation ends with.",
    softmax: "Softmax over rows.",
    layer_norm: "Layer normalisation over rows.",
    argmax: "The index of each row's maximum.",
    attention: "Attention over padded sequences.",
}

/// The prelude of every file of kernels: header names and texts.
const PRELUDE: [(&CStr, &str); 2] = [
    (c"device.cuh", include_str!("../../../../kernels/prelude/device.cuh")),
    (c"portable.h", include_str!("../../../../kernels/prelude/portable.h")),
];

/// Options other than the architecture. The prelude is included before each file. Kernels whose registers spill to
/// memory are rejected.
const OPTIONS: [&str; 5] = [
    "--pre-include=device.cuh",
    "--std=c++17",
    "--device-as-default-execution-space",
    "--ptxas-options=--warn-on-spills",
    "--ptxas-options=-Werror",
];

/// Compiles for one architecture.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// Folder of the cache; if `None`, kernels are compiled each time.
    cache: Option<PathBuf>,
    /// Such as `sm_90`.
    architecture: String,
}

impl Compiler {
    /// Creates a compiler that caches its results in a folder.
    pub fn new(cache: Option<PathBuf>) -> Self {
        Self { cache, architecture: String::new() }
    }

    /// Returns the compiler for cards of a compute capability, such as 9 and 0. No card is needed to compile for it.
    pub fn for_architecture(&self, major: i32, minor: i32) -> Self {
        Self { cache: self.cache.clone(), architecture: format!("sm_{major}{minor}") }
    }

    /// Returns the binary of a file of kernels, from the cache if it is there; otherwise compiles it and stores it
    /// there. May be called on any thread.
    ///
    /// # Errors
    /// If NVRTC is missing, or a kernel does not compile; the text has the compiler's messages.
    pub fn compile(&self, source: KernelSource<'_>, element: KernelElement) -> Result<Vec<u8>, String> {
        CudaLibrary::Nvrtc.check().map_err(|unusable| unusable.to_string())?;
        let kept = self.cache.as_deref().map(|folder| folder.join(self.key(source, element)));
        if let Some(binary) = kept.as_deref().and_then(read) {
            return Ok(binary);
        }
        let binary = self.run(source, element)?;
        if let Some(path) = &kept
            && let Err(error) = keep(path, &binary)
        {
            warn!(%error, path = %path.display(), "cannot cache a compiled kernel");
        }
        Ok(binary)
    }

    /// Returns the cache's file name for a file of kernels. It is a hash of everything that the binary depends on.
    fn key(&self, source: KernelSource<'_>, element: KernelElement) -> String {
        let mut hash = Sha256::new();
        let prelude = PRELUDE.iter().map(|(_, text)| *text);
        let own =
            [self.architecture.as_str(), element.definition(), source.name, source.text, env!("CARGO_PKG_VERSION")];
        for part in prelude.chain(own).chain(OPTIONS) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(nvrtc_version().to_string());
        let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digest}.cubin")
    }

    #[expect(unsafe_code, reason = "the compiler is a C library")]
    fn run(&self, source: KernelSource<'_>, element: KernelElement) -> Result<Vec<u8>, String> {
        let failed =
            |what: &str, log: &str| format!("{}: {what}{}{log}", source.name, if log.is_empty() { "" } else { ":\n" });
        let text = |text: &str| CString::new(text).map_err(|_| failed("its text has a zero byte", ""));
        let (name, kernels) = (text(source.name)?, text(source.text)?);
        let headers = [text(PRELUDE[0].1)?, text(PRELUDE[1].1)?];
        let header_texts: Vec<*const c_char> = headers.iter().map(|text| text.as_ptr()).collect();
        let header_names: Vec<*const c_char> = PRELUDE.iter().map(|(name, _)| name.as_ptr()).collect();
        let mut program = ptr::null_mut();
        // SAFETY: all strings end in a zero byte and live until the program is destroyed; there are as many headers as
        // names.
        let created = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                kernels.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                header_texts.as_ptr(),
                header_names.as_ptr(),
            )
        };
        created.result().map_err(|error| failed(&error.to_string(), ""))?;
        let program = Program(program);
        let architecture = format!("--gpu-architecture={}", self.architecture);
        let options: Vec<&str> = [architecture.as_str(), element.definition()].into_iter().chain(OPTIONS).collect();
        // SAFETY: the program lives.
        if let Err(error) = unsafe { result::compile_program(program.0, &options) } {
            return Err(failed(&error.to_string(), &program.log()));
        }
        program.binary().map_err(|error| failed(&error.to_string(), ""))
    }
}

/// A program handle of NVRTC, destroyed on drop.
struct Program(sys::nvrtcProgram);

#[expect(unsafe_code, reason = "the compiler is a C library")]
impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    fn binary(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program lives and is compiled.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) }.result()?;
        let mut binary = vec![0_u8; bytes];
        // SAFETY: the vector has the size that the compiler asks for.
        unsafe { sys::nvrtcGetCUBIN(self.0, binary.as_mut_ptr().cast()) }.result()?;
        Ok(binary)
    }
}

impl Drop for Program {
    #[expect(unsafe_code, reason = "the compiler is a C library")]
    fn drop(&mut self) {
        // SAFETY: this is the only handle of the program.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Reads a file of the cache; `None` if it is absent or incomplete. The binary is preceded by its length.
fn read(path: &Path) -> Option<Vec<u8>> {
    let kept = fs::read(path).ok()?;
    let (length, binary) = kept.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*length) == binary.len() as u64).then(|| binary.to_vec())
}

/// Writes a binary to the cache. It is written to a temporary file and renamed, so that other processes never read half
/// of it.
fn keep(path: &Path, binary: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, &(binary.len() as u64).to_le_bytes())?;
    std::io::Write::write_all(&mut file, binary)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_unless_it_is_cut_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deeper").join("kernels.cubin");
        assert_eq!(read(&path), None);
        keep(&path, b"a binary").expect("it can be written");
        assert_eq!(read(&path).as_deref(), Some(&b"a binary"[..]));
        let whole = fs::read(&path).expect("it is there");
        fs::write(&path, &whole[..whole.len() - 1]).expect("it can be written");
        assert_eq!(read(&path), None);
    }
}
