//! Memory on the card, and host memory that the card reads and writes in place.

use std::{
    ffi::c_char,
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::Arc,
};

use cudarc::driver::{result, sys};

use super::Context;
use crate::DeviceError;

/// Bytes of the driver's handle for shared memory.
pub const IMPORT_HANDLE_BYTES: usize = 64;

/// An address in the card's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(super) sys::CUdeviceptr);

impl Address {
    /// Returns it as a kernel's parameter holds it.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Memory on the card.
#[derive(Debug)]
pub struct Memory {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates `bytes` of memory, at least one, filled with zeros.
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.max(1);
        context.reserve(bytes)?;
        // SAFETY: nothing reads it before it is zeroed.
        let allocated = unsafe { result::malloc_sync(bytes) };
        let allocated = allocated.inspect_err(|error| context.allocation_failed(bytes, error));
        let address = Address(context.check(allocated)?);
        let memory = Self { context: Arc::clone(context), address, bytes };
        // SAFETY: the allocation has that size.
        context.check(unsafe { result::memset_d8_sync(address.0, 0, bytes) })?;
        memory.settle()?;
        Ok(memory)
    }

    /// Returns the address of its first byte.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes `data` at `offset` and blocks until it is there. For loading.
    ///
    /// # Errors
    /// If the range exceeds the memory, or the device is lost.
    pub fn upload(&self, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.check_range(offset, data.len())?;
        // SAFETY: the range is within it.
        self.context.check(unsafe { result::memcpy_htod_sync(self.address.0 + offset as u64, data) })?;
        self.settle()
    }

    /// Waits until the host's writes have arrived. They go through the context's default stream, for which other
    /// streams do not wait, and may still be under way when the driver's call returns.
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: null is the context's default stream.
        self.context.check(unsafe { result::stream::synchronize(ptr::null_mut()) })
    }

    /// Reads bytes at `offset`. Blocks the thread; for tests and rare cases.
    pub(in crate::cuda) fn download(&self, offset: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        self.check_range(offset, data.len())?;
        // SAFETY: the range is within it.
        self.context.check(unsafe { result::memcpy_dtoh_sync(data, self.address.0 + offset as u64) })
    }

    fn check_range(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        let is_within = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let refused = || DeviceError::Driver(format!("{bytes} bytes at {offset} of memory of {} bytes", self.bytes));
        is_within.then_some(()).ok_or_else(refused)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing else owns it, and all work that used it is complete (`Device::free`).
        self.context.free(|| unsafe { result::free_sync(self.address.0) });
        self.context.unreserve(self.bytes);
    }
}

/// Memory on the card that another process allocated and shares.
#[derive(Debug)]
pub(in crate::cuda) struct Imported {
    context: Arc<Context>,
    address: Address,
}

/// Errors with which the driver rejects a handle, in addition to those of [`PASSING`](super::PASSING). They leave the
/// context usable.
const REFUSED_HANDLES: [sys::CUresult; 6] = [
    sys::CUresult::CUDA_ERROR_INVALID_HANDLE,
    sys::CUresult::CUDA_ERROR_INVALID_CONTEXT,
    sys::CUresult::CUDA_ERROR_MAP_FAILED,
    sys::CUresult::CUDA_ERROR_ALREADY_MAPPED,
    sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS,
    sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
];

impl Imported {
    /// Maps the memory of a handle.
    pub(in crate::cuda) fn open(
        context: &Arc<Context>,
        handle: [u8; IMPORT_HANDLE_BYTES],
    ) -> Result<Self, DeviceError> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the driver validates the handle, which has the right size.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }.result();
        context.check_but(opened, &REFUSED_HANDLES)?;
        Ok(Self { context: Arc::clone(context), address: Address(address) })
    }

    pub(in crate::cuda) fn address(&self) -> Address {
        self.address
    }

    /// Returns the bytes of the allocation from this address to its end.
    pub(in crate::cuda) fn bytes(&self) -> Result<usize, DeviceError> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both are written before the call returns.
        let found = unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, self.address.0) }.result();
        self.context.check(found)?;
        Ok(bytes.saturating_sub(self.address.0.saturating_sub(base) as usize))
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: nothing else owns it, and all work that used it is complete.
        self.context.free(|| unsafe { sys::cuIpcCloseMemHandle(self.address.0) }.result());
    }
}

/// Host memory that the card reads and writes in place: pinned, mapped, and cached by the host, because reading
/// write-combined memory is slow.
#[derive(Debug)]
pub(in crate::cuda) struct Mapped<T> {
    context: Arc<Context>,
    host: NonNull<T>,
    address: Address,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns what it points to, and `T` is only ever an atomic, or bytes that one thread writes.
unsafe impl<T: Send> Send for Mapped<T> {}
// SAFETY: shared access goes through `&T`.
unsafe impl<T: Sync> Sync for Mapped<T> {}

/// Types for which every bit pattern is a valid value, because the card may write any.
pub(in crate::cuda) trait Plain {}

impl Plain for u8 {}

impl<T: Plain> Mapped<T> {
    /// Allocates `len` elements, at least one, all bits zero.
    pub(in crate::cuda) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let len = len.max(1);
        let bytes = len * size_of::<T>();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: nothing reads it before it is zeroed.
        let host = context.check(unsafe { result::malloc_host(bytes, flags) })?;
        let mut address = 0;
        // SAFETY: the memory was just allocated, with the flag for mapping.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0) }.result();
        let Some(host) = NonNull::new(host.cast::<T>()) else {
            return Err(DeviceError::Driver(format!("the driver gave no memory of {bytes} bytes")));
        };
        // SAFETY: the allocation has that size, and all zeros are a valid `T`.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        let memory = Self { context: Arc::clone(context), host, address: Address(address), len, owns: PhantomData };
        context.check(mapped)?;
        Ok(memory)
    }

    pub(in crate::cuda) fn address(&self) -> Address {
        self.address
    }

    /// Returns the elements, which the card may be writing: `T` must be an atomic.
    pub(in crate::cuda) fn elements(&self) -> &[T] {
        // SAFETY: it owns `len` elements, all of them valid values.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }
}

impl Mapped<u8> {
    /// Returns a range of bytes that the card does not access meanwhile.
    ///
    /// # Safety
    /// No work on the card reads or writes them during the borrow.
    pub(in crate::cuda) unsafe fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: the range is within it and borrowed from its only owner, and the caller ensures that the card does
        // not access it.
        unsafe { std::slice::from_raw_parts_mut(self.part(offset, len).as_ptr(), len) }
    }

    /// Returns its first bytes. The card does not write them meanwhile, because the owner waits for its copies.
    pub(in crate::cuda) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the range is within it and borrowed from its only owner.
        unsafe { std::slice::from_raw_parts(self.part(0, len).as_ptr(), len) }
    }

    /// Writes its first bytes. The card does not read them meanwhile, because the owner waits for its copies.
    pub(in crate::cuda) fn fill(&mut self, bytes: &[u8]) {
        // SAFETY: the range is within it, and its only owner is borrowed.
        unsafe { self.part(0, bytes.len()).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Returns a pointer to a range, which must lie within the memory.
    pub(in crate::cuda) fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {}", self.len);
        // SAFETY: the range is within it.
        unsafe { self.host.add(offset) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: nothing else owns it.
        self.context.free(|| unsafe { result::free_host(self.host.as_ptr().cast()) });
    }
}
