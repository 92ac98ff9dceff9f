//! Libraries of kernels, as the host prelude exports them: a list of kernels with the sizes of their arguments, and a
//! function that runs a kernel over a grid.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr,
};

use cudarc::driver::sys::{CUresult, CUresult::*};

use crate::{guard, memory, shared::Shared};

/// The prelude's description of a kernel.
#[repr(C)]
struct Entry {
    name: *const c_char,
    most_threads: u32,
    arguments: u32,
    sizes: *const u32,
    call: *const c_void,
    kernel: *const c_void,
    next: *const Entry,
}

type List = unsafe extern "C" fn() -> *const Entry;
type Launch = unsafe extern "C" fn(*const c_char, *const u32, *const u32, *const *mut c_void) -> *const c_char;

/// A loaded library.
pub(crate) struct Library {
    _library: Shared,
    launch: Launch,
    leave: guard::Leave,
    pub kernels: Vec<Kernel>,
}

#[derive(Clone)]
pub(crate) struct Kernel {
    pub name: CString,
    pub most_threads: u32,
    /// Bytes of each argument.
    pub sizes: Vec<usize>,
}

/// The arguments of one launch, copied.
pub(crate) struct Arguments {
    /// Each begins at a multiple of 16 bytes.
    storage: Vec<u128>,
    /// Index of each in the storage.
    places: Vec<usize>,
}

impl Library {
    /// Loads a library from its bytes.
    pub(crate) fn load(bytes: &[u8]) -> Result<Self, CUresult> {
        let library = Shared::open(bytes)?;
        let list = library.function(c"kernels")?;
        let launch = library.function(c"guarded_launch")?;
        let leave = library.function(c"guard_leave")?;
        // SAFETY: these are the types with which the prelude and the guard define them.
        unsafe {
            let list: List = std::mem::transmute(list);
            let launch: Launch = std::mem::transmute(launch);
            let leave: guard::Leave = std::mem::transmute(leave);
            Ok(Self { _library: library, launch, leave, kernels: read(list()) })
        }
    }

    /// Runs a kernel. The grid, blocks and arguments must have been checked.
    pub(crate) fn run(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &Arguments,
    ) -> Result<(), CUresult> {
        let pointers = arguments.pointers();
        // SAFETY: the arguments have the kernel's sizes. The kernel's own accesses are not checked here, as on a GPU.
        let broken = guard::guarded(self.leave, || unsafe {
            (self.launch)(kernel.name.as_ptr(), grid.as_ptr(), block.as_ptr(), pointers.as_ptr())
        });
        if !broken.is_null() {
            // SAFETY: it is a C string, valid until the thread's next launch.
            let broken = unsafe { CStr::from_ptr(broken) }.to_string_lossy();
            eprintln!("fake_cuda: kernel {} failed: {broken}", kernel.name.to_string_lossy());
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        memory::check_ends()
    }
}

/// Reads the list of kernels.
///
/// # Safety
/// It is the prelude's list.
unsafe fn read(mut entry: *const Entry) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    // SAFETY: guaranteed by the caller, here and below.
    while let Some(found) = unsafe { entry.as_ref() } {
        // SAFETY: a kernel without arguments may have no table.
        let sizes = match found.arguments {
            0 => &[],
            count => unsafe { std::slice::from_raw_parts(found.sizes, count as usize) },
        };
        // SAFETY: the name is a C string.
        let name = unsafe { CStr::from_ptr(found.name) }.to_owned();
        let sizes = sizes.iter().map(|size| *size as usize).collect();
        kernels.push(Kernel { name, most_threads: found.most_threads, sizes });
        entry = found.next;
    }
    kernels
}

impl Arguments {
    /// Copies the arguments that the pointers point to.
    ///
    /// # Safety
    /// `from` has a pointer for each size, to as many bytes or null.
    pub(crate) unsafe fn copy(from: *const *mut c_void, sizes: &[usize]) -> Result<Self, CUresult> {
        let mut arguments = Self { storage: Vec::new(), places: Vec::new() };
        for (place, size) in sizes.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            let argument = if from.is_null() { ptr::null_mut() } else { unsafe { *from.add(place) } };
            if argument.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let begin = arguments.storage.len();
            arguments.storage.resize(begin + size.div_ceil(16), 0);
            // SAFETY: the storage has just been extended by its size.
            unsafe { ptr::copy(argument.cast::<u8>(), arguments.storage[begin..].as_mut_ptr().cast(), *size) };
            arguments.places.push(begin);
        }
        Ok(arguments)
    }

    /// Returns pointers to the arguments. Kernels take them by value, so they never write to them.
    fn pointers(&self) -> Vec<*mut c_void> {
        self.places.iter().map(|place| self.storage[*place..].as_ptr().cast_mut().cast()).collect()
    }
}
