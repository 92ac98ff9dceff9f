//! Memory of the card, and memory of the host that the card reads and writes where it is.

use std::{
    ffi::c_char,
    marker::PhantomData,
    ptr::{self, NonNull},
    sync::Arc,
};

use cudarc::driver::{result, sys};

use super::Context;
use crate::device::DeviceError;

/// Bytes of the driver's name for memory that a process shares.
pub const IMPORT_HANDLE_BYTES: usize = 64;

/// An address in the card's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(super) sys::CUdeviceptr);

impl Address {
    /// As kernels' parameters hold it.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on.
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
    pub(in crate::device::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.max(1);
        // SAFETY: nobody reads it before the zeros are there.
        let address = Address(context.check(unsafe { result::malloc_sync(bytes) })?);
        let memory = Self { context: Arc::clone(context), address, bytes };
        // SAFETY: it is that large.
        context.check(unsafe { result::memset_d8_sync(address.0, 0, bytes) })?;
        memory.settle()?;
        Ok(memory)
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes bytes from an offset on, and holds the thread until they are there. For loading.
    ///
    /// # Errors
    /// When it ends before, or the device is lost.
    pub fn upload(&self, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        self.check_range(offset, data.len())?;
        // SAFETY: the range is within it.
        self.context.check(unsafe { result::memcpy_htod_sync(self.address.0 + offset as u64, data) })?;
        self.settle()
    }

    /// Waits until what was written by the host is there. It goes by the context's own stream, for which others do not
    /// wait, and is on its way still when the driver's call returns.
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: null is the context's own stream.
        self.context.check(unsafe { result::stream::synchronize(ptr::null_mut()) })
    }

    /// Reads bytes from an offset on. For tests and for what runs seldom: it holds the thread.
    pub(in crate::device::cuda) fn download(&self, offset: usize, data: &mut [u8]) -> Result<(), DeviceError> {
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
        // SAFETY: nothing else names it, and what used it is complete (`Device::free`).
        self.context.free(|| unsafe { result::free_sync(self.address.0) });
    }
}

/// Memory on the card that another process allocated and shares.
#[derive(Debug)]
pub(in crate::device::cuda) struct Imported {
    context: Arc<Context>,
    address: Address,
}

/// How the driver refuses a handle, beside the errors that pass by everywhere: nothing has happened to the context.
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
    pub(in crate::device::cuda) fn open(
        context: &Arc<Context>,
        handle: [u8; IMPORT_HANDLE_BYTES],
    ) -> Result<Self, DeviceError> {
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the driver checks the handle, which is of its size.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }.result();
        context.check_but(opened, &REFUSED_HANDLES)?;
        Ok(Self { context: Arc::clone(context), address: Address(address) })
    }

    pub(in crate::device::cuda) fn address(&self) -> Address {
        self.address
    }

    /// How many bytes of the allocation there are from its address on.
    pub(in crate::device::cuda) fn bytes(&self) -> Result<usize, DeviceError> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both are written before the call returns.
        let found = unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, self.address.0) }.result();
        self.context.check(found)?;
        Ok(bytes.saturating_sub(self.address.0.saturating_sub(base) as usize))
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: nothing names it any more, and what used it is complete.
        self.context.free(|| unsafe { sys::cuIpcCloseMemHandle(self.address.0) }.result());
    }
}

/// Host memory that the card reads and writes where it is: pinned, mapped, and cached by the host (write-combined
/// memory would be slow to read).
#[derive(Debug)]
pub(in crate::device::cuda) struct Mapped<T> {
    context: Arc<Context>,
    host: NonNull<T>,
    address: Address,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns what it points to, and `T` is only ever an atomic or plain bytes written by one thread.
unsafe impl<T: Send> Send for Mapped<T> {}
// SAFETY: shared access goes through `&T`.
unsafe impl<T: Sync> Sync for Mapped<T> {}

/// What holds a value whatever its bits are, as the card writes it.
pub(in crate::device::cuda) trait Plain {}

impl Plain for u8 {}

impl<T: Plain> Mapped<T> {
    /// Allocates `len` elements, at least one, all bits zero.
    pub(in crate::device::cuda) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DeviceError> {
        let len = len.max(1);
        let bytes = len * size_of::<T>();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: nobody reads it before the zeros are there.
        let host = context.check(unsafe { result::malloc_host(bytes, flags) })?;
        let mut address = 0;
        // SAFETY: the memory was allocated just now, with this purpose.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0) }.result();
        let Some(host) = NonNull::new(host.cast::<T>()) else {
            return Err(DeviceError::Driver(format!("the driver gave no memory of {bytes} bytes")));
        };
        // SAFETY: it is that large, and `T` holds a value when all bits are zero.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        let memory = Self { context: Arc::clone(context), host, address: Address(address), len, owns: PhantomData };
        context.check(mapped)?;
        Ok(memory)
    }

    pub(in crate::device::cuda) fn address(&self) -> Address {
        self.address
    }

    /// The elements, as the card may be changing them: `T` is an atomic.
    pub(in crate::device::cuda) fn elements(&self) -> &[T] {
        // SAFETY: it owns `len` elements, all of which hold values.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.len) }
    }
}

impl Mapped<u8> {
    /// Bytes that the card does not touch meanwhile.
    ///
    /// # Safety
    /// No work that is on the card reads or writes them.
    pub(in crate::device::cuda) unsafe fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: the range is within it, and borrowed from its only owner; the card leaves it alone.
        unsafe { std::slice::from_raw_parts_mut(self.part(offset, len).as_ptr(), len) }
    }

    /// Its first bytes, which nothing on the card writes meanwhile: its owner waited for the copies.
    pub(in crate::device::cuda) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the range is within it, and borrowed from its only owner.
        unsafe { std::slice::from_raw_parts(self.part(0, len).as_ptr(), len) }
    }

    /// Writes its first bytes, which nothing on the card reads meanwhile: its owner waited for the copies.
    pub(in crate::device::cuda) fn fill(&mut self, bytes: &[u8]) {
        // SAFETY: the range is within it, and its only owner is borrowed.
        unsafe { self.part(0, bytes.len()).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Where a range begins.
    pub(in crate::device::cuda) fn part(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {}", self.len);
        // SAFETY: the range is within it.
        unsafe { self.host.add(offset) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: nothing else names it.
        self.context.free(|| unsafe { result::free_host(self.host.as_ptr().cast()) });
    }
}
