//! The output of the stand-in's NVRTC, from which modules are loaded: a shared library for the host with a header, as
//! bytes ("cubin") or as text ("PTX"). Loading a module passes no length, so both formats contain it.

use std::ffi::CStr;

use cudarc::driver::sys::{CUresult, CUresult::*};

use crate::settings::settings;

const MAGIC: &[u8; 16] = b"fake cuda cubin\n";
const PTX_MAGIC: &str = "// fake cuda ptx\n";

#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    magic: [u8; 16],
    /// Ten times the compute capability that it was compiled for.
    architecture: u64,
    bytes: u64,
}

pub(crate) fn cubin(library: &[u8], architecture: u32) -> Vec<u8> {
    let lengths = [u64::from(architecture), library.len() as u64].map(u64::to_ne_bytes);
    [MAGIC.as_slice(), lengths.as_flattened(), library].concat()
}

/// Encodes a library as PTX, with a terminating zero byte.
pub(crate) fn ptx(library: &[u8], architecture: u32) -> Vec<u8> {
    let mut text = format!("{PTX_MAGIC}.target sm_{architecture}\n// ");
    text.reserve(2 * library.len() + 1);
    for byte in library {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('\0');
    text.into_bytes()
}

/// Returns the library in an image.
///
/// # Safety
/// `image` is what [`cubin`] or [`ptx`] made, or a C string.
pub(crate) unsafe fn read(image: *const u8) -> Result<Vec<u8>, CUresult> {
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller. A C string ends where it differs from the magic, at the latest.
    let is_cubin = MAGIC.iter().enumerate().all(|(place, byte)| unsafe { image.add(place).read() } == *byte);
    if is_cubin {
        // SAFETY: a cubin has a header and the bytes that it declares.
        let (header, library) = unsafe {
            let header = image.cast::<Header>().read_unaligned();
            (header, std::slice::from_raw_parts(image.add(size_of::<Header>()), header.bytes as usize))
        };
        check_architecture(header.architecture, true)?;
        return Ok(library.to_vec());
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| CUDA_ERROR_INVALID_IMAGE)?;
    let (target, digits) = text
        .strip_prefix(PTX_MAGIC)
        .and_then(|rest| rest.strip_prefix(".target sm_"))
        .and_then(|rest| rest.split_once("\n// "))
        .ok_or(if text.contains(".target") { CUDA_ERROR_INVALID_PTX } else { CUDA_ERROR_INVALID_IMAGE })?;
    check_architecture(target.parse().map_err(|_| CUDA_ERROR_INVALID_PTX)?, false)?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(byte).collect::<Option<_>>().ok_or(CUDA_ERROR_INVALID_PTX)
}

/// Checks the architecture: a cubin runs on devices of its own generation that are not older, PTX on all that are not
/// older.
fn check_architecture(architecture: u64, same_generation: bool) -> Result<(), CUresult> {
    let (major, minor) = settings().capability;
    let device = (major * 10 + minor) as u64;
    let runs = architecture <= device && (!same_generation || architecture / 10 == device / 10);
    runs.then_some(()).ok_or(CUDA_ERROR_NO_BINARY_FOR_GPU)
}
