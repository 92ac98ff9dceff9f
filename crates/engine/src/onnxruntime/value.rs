//! Tensors of ONNX Runtime, over borrowed memory or with memory of their own.

use std::{marker::PhantomData, ptr, slice};

use bytes::Bytes;
use ort::sys;
use paternoster_model::{DataType, Dims};

use super::status::check;
use crate::EngineError;

/// Returns the element type in ONNX Runtime's numbering.
pub(super) fn element_type(datatype: DataType) -> sys::ONNXTensorElementDataType {
    use sys::ONNXTensorElementDataType as Element;
    match datatype {
        DataType::Bool => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        DataType::Uint8 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        DataType::Uint16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        DataType::Uint32 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        DataType::Uint64 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        DataType::Int8 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        DataType::Int16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        DataType::Int32 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        DataType::Int64 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        DataType::Fp16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DataType::Fp32 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DataType::Fp64 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        DataType::Bytes => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        DataType::Bf16 => Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
    }
}

/// Describes host memory to ONNX Runtime.
#[derive(Debug)]
pub(super) struct HostMemory(*mut sys::OrtMemoryInfo);

// SAFETY: the object is immutable after creation.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Memory that is not allocated by ONNX Runtime.
    pub(super) fn new() -> Result<Self, EngineError> {
        Self::of(sys::OrtAllocatorType::OrtDeviceAllocator)
    }

    /// Memory of an arena.
    pub(super) fn of_arena() -> Result<Self, EngineError> {
        Self::of(sys::OrtAllocatorType::OrtArenaAllocator)
    }

    fn of(allocator: sys::OrtAllocatorType) -> Result<Self, EngineError> {
        let mut info = ptr::null_mut();
        // SAFETY: `info` receives the new object.
        check(unsafe { (ort::api().CreateCpuMemoryInfo)(allocator, sys::OrtMemType::OrtMemTypeDefault, &mut info) })?;
        Ok(Self(info))
    }

    pub(super) fn as_ptr(&self) -> *const sys::OrtMemoryInfo {
        self.0
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (ort::api().ReleaseMemoryInfo)(self.0) }
    }
}

/// A tensor. `'a` is the lifetime of the borrowed memory, `'static` if the tensor owns its memory.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    value: *mut sys::OrtValue,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an OrtValue is plain data behind a pointer; nothing about it is tied to a thread.
unsafe impl Send for Tensor<'_> {}
// SAFETY: shared references only read it.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// Creates a tensor over input memory, which a run only reads.
    pub(super) fn over(
        host: &HostMemory,
        datatype: DataType,
        shape: &[i64],
        data: &'a [u8],
    ) -> Result<Self, EngineError> {
        // SAFETY: ONNX Runtime does not write to a run's inputs; the lifetime keeps the memory alive.
        unsafe { Self::create(host, datatype, shape, data.as_ptr().cast_mut(), data.len()) }
    }

    /// Creates a tensor over memory to which a run writes its output.
    pub(super) fn over_mut(
        host: &HostMemory,
        datatype: DataType,
        shape: &[i64],
        data: &'a mut [u8],
    ) -> Result<Self, EngineError> {
        // SAFETY: the exclusive borrow lives as long as the tensor.
        unsafe { Self::create(host, datatype, shape, data.as_mut_ptr(), data.len()) }
    }

    /// # Safety
    /// `data` is valid for `len` bytes during `'a`, for writes too if a run writes to the tensor.
    unsafe fn create(
        host: &HostMemory,
        datatype: DataType,
        shape: &[i64],
        data: *mut u8,
        len: usize,
    ) -> Result<Self, EngineError> {
        let mut value = ptr::null_mut();
        // SAFETY: shape and data are valid for the lengths given; ONNX Runtime checks that they fit each other.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                host.0,
                data.cast(),
                len,
                shape.as_ptr(),
                shape.len(),
                element_type(datatype),
                &mut value,
            )
        })?;
        Ok(Self { value, memory: PhantomData })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::OrtValue {
        self.value
    }
}

impl Tensor<'static> {
    /// Creates a string tensor with copies of `elements`.
    pub(super) fn strings(shape: &[i64], elements: &[&[u8]]) -> Result<Self, EngineError> {
        let api = ort::api();
        let mut allocator = ptr::null_mut();
        let mut value = ptr::null_mut();
        // SAFETY: the default allocator lives as long as the library; shape is valid for its length.
        unsafe {
            check((api.GetAllocatorWithDefaultOptions)(&mut allocator))?;
            check((api.CreateTensorAsOrtValue)(
                allocator,
                shape.as_ptr(),
                shape.len(),
                element_type(DataType::Bytes),
                &mut value,
            ))?;
        }
        let tensor = Self { value, memory: PhantomData };
        for (index, element) in elements.iter().enumerate() {
            let mut buffer = ptr::null_mut();
            // SAFETY: ONNX Runtime checks the index and returns a buffer of the requested length. Unlike the functions
            // that take C strings, this one allows zero bytes within elements.
            unsafe {
                check((api.GetResizedStringTensorElementBuffer)(value, index, element.len(), &mut buffer))?;
                ptr::copy_nonoverlapping(element.as_ptr(), buffer.cast(), element.len());
            }
        }
        Ok(tensor)
    }

    /// Takes ownership of a value that a run allocated.
    ///
    /// # Safety
    /// `value` is a live tensor that nothing else releases.
    pub(super) unsafe fn from_run(value: *mut sys::OrtValue) -> Self {
        Self { value, memory: PhantomData }
    }

    /// Returns whether the run computed it.
    pub(super) fn has_value(&self) -> Result<bool, EngineError> {
        let mut has = 0;
        // SAFETY: the value is live.
        check(unsafe { (ort::api().HasValue)(self.value, &mut has) })?;
        Ok(has != 0)
    }

    /// Returns the shape.
    pub(super) fn shape(&self) -> Result<Dims, EngineError> {
        let api = ort::api();
        let mut info = ptr::null_mut();
        // SAFETY: the value is a live tensor; `info` is released below.
        check(unsafe { (api.GetTensorTypeAndShape)(self.value, &mut info) })?;
        let mut rank = 0;
        // SAFETY: `info` is live.
        let counted = check(unsafe { (api.GetDimensionsCount)(info, &mut rank) });
        let mut shape = Dims::from_elem(0, rank);
        // SAFETY: `shape` has room for `rank` dimensions.
        let read = check(unsafe { (api.GetDimensions)(info, shape.as_mut_ptr(), rank) });
        // SAFETY: released once.
        unsafe { (api.ReleaseTensorTypeAndShapeInfo)(info) };
        counted.and(read)?;
        Ok(shape)
    }

    /// Shares the elements of a tensor of fixed-size elements without copying them. `len_bytes` is the size that
    /// follows from its shape and type.
    pub(super) fn into_bytes(self, len_bytes: usize) -> Result<Bytes, EngineError> {
        let mut data = ptr::null_mut();
        // SAFETY: the value is a live tensor of fixed-size elements.
        check(unsafe { (ort::api().GetTensorMutableData)(self.value, &mut data) })?;
        if len_bytes == 0 {
            return Ok(Bytes::new());
        }
        Ok(Bytes::from_owner(OwnedElements { tensor: self, data: data.cast(), len_bytes }))
    }

    /// Returns the elements of a string tensor, each preceded by its length in four little-endian bytes.
    pub(super) fn prefixed_strings(&self, count: usize) -> Result<Bytes, EngineError> {
        let api = ort::api();
        let mut total = 0;
        // SAFETY: the value is a live string tensor.
        check(unsafe { (api.GetStringTensorDataLength)(self.value, &mut total) })?;
        let (mut content, mut offsets) = (reserved(total)?, reserved(count)?);
        content.resize(total, 0_u8);
        offsets.resize(count, 0_usize);
        // SAFETY: both buffers have the lengths given.
        check(unsafe {
            (api.GetStringTensorContent)(self.value, content.as_mut_ptr().cast(), total, offsets.as_mut_ptr(), count)
        })?;
        let mut prefixed: Vec<u8> = reserved(total.saturating_add(count.saturating_mul(4)))?;
        for (index, &start) in offsets.iter().enumerate() {
            let end = offsets.get(index + 1).copied().unwrap_or(total);
            let element = &content[start..end];
            let len =
                u32::try_from(element.len()).map_err(|_| EngineError::new("a string element is longer than 4 GiB"))?;
            prefixed.extend_from_slice(&len.to_le_bytes());
            prefixed.extend_from_slice(element);
        }
        Ok(prefixed.into())
    }
}

/// Returns a vector with room for `count` elements.
///
/// # Errors
/// Fails if the system has no memory for it.
fn reserved<T>(count: usize) -> Result<Vec<T>, EngineError> {
    let mut elements = Vec::new();
    elements
        .try_reserve_exact(count)
        .map_err(|_| EngineError::new(format!("no memory for {count} elements of strings")))?;
    Ok(elements)
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper and released once; borrowed memory is not touched.
        unsafe { (ort::api().ReleaseValue)(self.value) }
    }
}

/// A tensor in ONNX Runtime's memory, as bytes.
struct OwnedElements {
    #[allow(dead_code, reason = "keeps the memory alive")]
    tensor: Tensor<'static>,
    data: *const u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to the tensor, which moves with it, and is only read.
unsafe impl Send for OwnedElements {}
// SAFETY: as above.
unsafe impl Sync for OwnedElements {}

impl AsRef<[u8]> for OwnedElements {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: ONNX Runtime allocated memory for the tensor's shape and type, which take `len_bytes`.
        unsafe { slice::from_raw_parts(self.data, self.len_bytes) }
    }
}
