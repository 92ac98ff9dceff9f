//! Copies and memsets. Ranges of device memory are checked when they are issued, and again when they run.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUresult::*};

use crate::{
    calls::entries,
    capture, context,
    handles::{Handle, name},
    memory,
    stream::{self, Stream, Work},
};

/// One side of a copy.
#[derive(Clone)]
enum Side {
    Device(usize),
    /// Host memory, pinned or not.
    Host(usize),
    /// The contents of host memory when the copy was issued.
    Staged(Arc<[u8]>),
}

impl Side {
    /// Checks that all of the bytes are allocated. Host memory that CUDA does not know cannot be checked.
    fn check(&self, bytes: usize) -> Result<(), CUresult> {
        match self {
            Self::Device(address) => memory::find_mapped(*address, bytes).map(|_| ()),
            Self::Host(0) => Err(CUDA_ERROR_INVALID_VALUE),
            Self::Host(address) => match memory::find(*address) {
                Some(piece) if piece.what.is_device() => Err(CUDA_ERROR_INVALID_VALUE),
                Some(_) => memory::find_range(*address, bytes).map(|_| ()),
                None => Ok(()),
            },
            Self::Staged(_) => Ok(()),
        }
    }

    fn is_pageable(&self) -> bool {
        matches!(self, Self::Host(address) if memory::find(*address).is_none())
    }

    fn address(&self) -> usize {
        match self {
            Self::Device(address) | Self::Host(address) => *address,
            Self::Staged(bytes) => bytes.as_ptr() as usize,
        }
    }
}

/// Returns the work of a copy. Memory that is freed when it runs is an illegal address.
fn copying(to: Side, from: Side, bytes: usize) -> Work {
    Arc::new(move || {
        to.check(bytes).and(from.check(bytes)).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        // SAFETY: both ranges were checked above. They may overlap.
        unsafe { std::ptr::copy(from.address() as *const u8, to.address() as *mut u8, bytes) };
        Ok(())
    })
}

/// Issues a copy. Pageable memory behaves as with the real driver: a source is read before the call returns, and a
/// destination is written before it returns. Captured copies read and write when their graph runs.
fn copy(stream: &Arc<Stream>, to: Side, from: Side, bytes: usize) -> Result<(), CUresult> {
    if bytes == 0 {
        return Ok(());
    }
    to.check(bytes)?;
    from.check(bytes)?;
    let captures = capture::of(stream).is_some();
    let waits = to.is_pageable() && !captures;
    let from = if from.is_pageable() && !captures {
        // SAFETY: the calling program guarantees the size of its memory.
        Side::Staged(unsafe { std::slice::from_raw_parts(from.address() as *const u8, bytes) }.into())
    } else {
        from
    };
    stream::issue(stream, "copy", copying(to, from, bytes))?;
    if waits {
        stream.tail().wait();
    }
    Ok(())
}

/// Copies on the legacy stream and waits for it.
fn copy_now(to: Side, from: Side, bytes: usize) -> Result<(), CUresult> {
    let stream = legacy()?;
    copy(&stream, to, from, bytes)?;
    stream.tail().wait();
    stream.context.check()
}

/// Returns the stream of calls that wait, unless a capture forbids it.
fn legacy() -> Result<Arc<Stream>, CUresult> {
    context::current()?;
    capture::refuse_unsafe_call()?;
    stream::get(0)
}

/// Issues a memset of `count` copies of the bytes of `value`.
fn fill(stream: &Arc<Stream>, to: usize, value: &[u8], count: usize) -> Result<(), CUresult> {
    let bytes = count.checked_mul(value.len()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if bytes == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(value.len()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    memory::find_mapped(to, bytes)?;
    let value: Arc<[u8]> = value.into();
    stream::issue(
        stream,
        "memset",
        Arc::new(move || {
            memory::find_mapped(to, bytes).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
            // SAFETY: the range was checked above.
            let range = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
            match *value {
                [byte] => range.fill(byte),
                _ => range.chunks_exact_mut(value.len()).for_each(|place| place.copy_from_slice(&value)),
            }
            Ok(())
        }),
    )
}

fn fill_now(to: usize, value: &[u8], count: usize) -> Result<(), CUresult> {
    let stream = legacy()?;
    fill(&stream, to, value, count)?;
    stream.tail().wait();
    stream.context.check()
}

/// Returns a side of a copy whose kind of memory follows from the address.
fn unified(address: CUdeviceptr) -> Side {
    match memory::find(address as usize) {
        Some(piece) if piece.what.is_device() => Side::Device(address as usize),
        _ => Side::Host(address as usize),
    }
}

fn device(address: CUdeviceptr) -> Side {
    Side::Device(address as usize)
}

/// Returns the text of a copy in traces.
fn note(to: usize, from: usize, bytes: usize) -> String {
    let side = |address| match memory::find(address) {
        Some(_) => memory::name(address),
        None => "pageable".to_owned(),
    };
    format!("{} <- {} bytes={bytes}", side(to), side(from))
}

entries! {
    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) |call| {
        call.note(|| note(to as usize, from as usize, bytes));
        copy_now(unified(to), unified(from), bytes)
    }

    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) |call| {
        call.note(|| note(to as usize, from as usize, bytes));
        copy_now(device(to), Side::Host(from as usize), bytes)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) |call| {
        call.note(|| note(to as usize, from as usize, bytes));
        copy_now(Side::Host(to as usize), device(from), bytes)
    }

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) |call| {
        call.note(|| note(to as usize, from as usize, bytes));
        copy_now(device(to), device(from), bytes)
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: Handle) |call| {
        call.note(|| format!("{} {}", note(to as usize, from as usize, bytes), name(stream)));
        copy(&stream::get(stream)?, unified(to), unified(from), bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: Handle) |call| {
        call.note(|| format!("{} {}", note(to as usize, from as usize, bytes), name(stream)));
        copy(&stream::get(stream)?, device(to), Side::Host(from as usize), bytes)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: Handle) |call| {
        call.note(|| format!("{} {}", note(to as usize, from as usize, bytes), name(stream)));
        copy(&stream::get(stream)?, Side::Host(to as usize), device(from), bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: Handle) |call| {
        call.note(|| format!("{} {}", note(to as usize, from as usize, bytes), name(stream)));
        copy(&stream::get(stream)?, device(to), device(from), bytes)
    }

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: Handle,
        from: CUdeviceptr,
        from_context: Handle,
        bytes: usize,
        stream: Handle
    ) |call| {
        call.note(|| format!("{} {}", note(to as usize, from as usize, bytes), name(stream)));
        let stream = stream::get(stream)?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            if memory::find_mapped(address as usize, bytes)?.context.handle != context {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
        }
        copy(&stream, device(to), device(from), bytes)
    }

    fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) |call| {
        call.note(|| format!("{} value={value} count={count}", memory::name(to as usize)));
        fill_now(to as usize, &[value], count)
    }

    fn cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: Handle) |call| {
        call.note(|| format!("{} value={value} count={count} {}", memory::name(to as usize), name(stream)));
        fill(&stream::get(stream)?, to as usize, &[value], count)
    }

    fn cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) |call| {
        call.note(|| format!("{} value={value} count={count}", memory::name(to as usize)));
        fill_now(to as usize, &value.to_ne_bytes(), count)
    }

    fn cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: Handle) |call| {
        call.note(|| format!("{} value={value} count={count} {}", memory::name(to as usize), name(stream)));
        fill(&stream::get(stream)?, to as usize, &value.to_ne_bytes(), count)
    }

    fn cuMemsetD32_v2(to: CUdeviceptr, value: u32, count: usize) |call| {
        call.note(|| format!("{} value={value} count={count}", memory::name(to as usize)));
        fill_now(to as usize, &value.to_ne_bytes(), count)
    }

    fn cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: Handle) |call| {
        call.note(|| format!("{} value={value} count={count} {}", memory::name(to as usize), name(stream)));
        fill(&stream::get(stream)?, to as usize, &value.to_ne_bytes(), count)
    }
}
