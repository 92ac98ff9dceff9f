//! Host memory that the device can access. The device uses the host's addresses, as on any 64-bit system.

use std::ffi::c_void;

use cudarc::driver::sys::{CUdeviceptr, CUresult::*};

use crate::{
    calls::entries,
    capture, context,
    memory::{self, What},
};

const PORTABLE: u32 = 1;
pub(crate) const DEVICE_MAP: u32 = 2;
const WRITE_COMBINED: u32 = 4;

entries! {
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32) |call| {
        call.note(|| format!("bytes={bytes} flags={flags}"));
        let context = context::current()?;
        capture::refuse_unsafe_call()?;
        if bytes == 0 || flags & !(PORTABLE | DEVICE_MAP | WRITE_COMBINED) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let piece = memory::allocate(context, bytes, What::Host { flags })?;
        call.note(|| format!("-> {}", piece.name()));
        *pointer = piece.address as *mut c_void;
        Ok(())
    }

    fn cuMemFreeHost(pointer: *mut c_void) |call| {
        call.note(|| memory::name(pointer as usize));
        context::current()?;
        capture::refuse_unsafe_call()?;
        memory::give_back(&*memory::remove(pointer as usize, |what| matches!(what, What::Host { .. }))?);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, pointer: *mut c_void, flags: u32) |call| {
        call.note(|| memory::name(pointer as usize));
        context::current()?;
        let piece = memory::find(pointer as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 || piece.what.is_device() || !piece.what.is_mapped() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *device = pointer as CUdeviceptr;
        Ok(())
    }

    fn cuMemHostGetFlags(flags: *mut u32, pointer: *mut c_void) |call| {
        call.note(|| memory::name(pointer as usize));
        context::current()?;
        match memory::find(pointer as usize).map(|piece| piece.what) {
            Some(What::Host { flags: given } | What::Registered { flags: given }) => *flags = given,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) |call| {
        call.note(|| format!("bytes={bytes} flags={flags}"));
        let context = context::current()?;
        capture::refuse_unsafe_call()?;
        if pointer.is_null() || bytes == 0 || flags & !(PORTABLE | DEVICE_MAP) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let last = pointer as usize + (bytes - 1);
        if memory::find(pointer as usize).is_some() || memory::find(last).is_some() {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        memory::add(context, pointer as usize, bytes, What::Registered { flags });
        Ok(())
    }

    fn cuMemHostUnregister(pointer: *mut c_void) |call| {
        call.note(|| memory::name(pointer as usize));
        context::current()?;
        capture::refuse_unsafe_call()?;
        let removed = memory::remove(pointer as usize, |what| matches!(what, What::Registered { .. }));
        removed.map(|_| ()).map_err(|_| CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    }
}
