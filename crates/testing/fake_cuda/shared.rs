//! Shared libraries that are loaded from bytes.

use std::{
    ffi::{CStr, CString, c_void},
    fs::File,
    io::Write,
    os::fd::FromRawFd,
};

use cudarc::driver::sys::{CUresult, CUresult::*};

pub(crate) struct Shared {
    handle: *mut c_void,
    /// Kept open: the loader identifies libraries by path, and another library's file would get the same path.
    _file: File,
}

// SAFETY: the handle is only used to look up functions and to close the library, which any thread may do.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Loads a library that the host's compiler created.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, CUresult> {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"library".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        // SAFETY: the file has just been created, and is closed when this value is dropped.
        let mut written = unsafe { File::from_raw_fd(file) };
        written.write_all(bytes).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let path = CString::new(format!("/proc/self/fd/{file}")).expect("it has no zero bytes");
        // SAFETY: the initialisers of these libraries only list their kernels.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: it is a C string after a failure.
            eprintln!("fake_cuda: {}", unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy());
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
        Ok(Self { handle, _file: written })
    }

    /// Returns the address of a function, which is valid while the library is open.
    pub(crate) fn function(&self, name: &CStr) -> Result<*mut c_void, CUresult> {
        // SAFETY: the library is open.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if found.is_null() { Err(CUDA_ERROR_INVALID_IMAGE) } else { Ok(found) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: all users of its functions hold this value, so none is left.
        unsafe { libc::dlclose(self.handle) };
    }
}
