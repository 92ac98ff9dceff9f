//! Tensors of OpenVINO, over borrowed memory or with memory of their own.

use std::{marker::PhantomData, ptr, slice};

use bytes::Bytes;
use paternoster_model::{DataType, Dims, element_count};

use super::api::{self, Api};
use crate::EngineError;

/// Returns the element type in OpenVINO's numbering since 2025.1; `None` for strings, which this engine does not
/// accept.
pub(super) fn element_type(datatype: DataType) -> Option<u32> {
    Some(match datatype {
        DataType::Bool => 1,
        DataType::Bf16 => 2,
        DataType::Fp16 => 3,
        DataType::Fp32 => 4,
        DataType::Fp64 => 5,
        DataType::Int8 => 7,
        DataType::Int16 => 8,
        DataType::Int32 => 9,
        DataType::Int64 => 10,
        DataType::Uint8 => 16,
        DataType::Uint16 => 17,
        DataType::Uint32 => 18,
        DataType::Uint64 => 19,
        DataType::Bytes => return None,
    })
}

/// A tensor. `'a` is the lifetime of the borrowed memory, `'static` if the tensor owns its memory.
pub(super) struct Tensor<'a> {
    api: &'static Api,
    tensor: *mut api::Tensor,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a tensor is plain data behind a pointer; nothing about it is tied to a thread.
unsafe impl Send for Tensor<'_> {}
// SAFETY: shared references only read it.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// Creates a tensor over input memory, which a run only reads.
    pub(super) fn over(
        api: &'static Api,
        datatype: DataType,
        shape: &[i64],
        data: &'a [u8],
    ) -> Result<Self, EngineError> {
        // SAFETY: OpenVINO does not write to a run's inputs; the lifetime keeps the memory alive.
        unsafe { Self::create(api, datatype, shape, data.as_ptr().cast_mut(), data.len()) }
    }

    /// Creates a tensor over memory to which a run writes its output.
    pub(super) fn over_mut(
        api: &'static Api,
        datatype: DataType,
        shape: &[i64],
        data: &'a mut [u8],
    ) -> Result<Self, EngineError> {
        // SAFETY: the exclusive borrow lives as long as the tensor.
        unsafe { Self::create(api, datatype, shape, data.as_mut_ptr(), data.len()) }
    }

    /// # Safety
    /// `data` is valid for `len` bytes during `'a`, for writes too if a run writes to the tensor.
    unsafe fn create(
        api: &'static Api,
        datatype: DataType,
        shape: &[i64],
        data: *mut u8,
        len: usize,
    ) -> Result<Self, EngineError> {
        let mut dims = Dims::from_slice(shape);
        let count = element_count(&dims);
        let takes = count.and_then(|count| count.checked_mul(datatype.size_bytes()?));
        // OpenVINO is not given the length: it would read and write as far as the shape says.
        if takes != Some(len) {
            return Err(EngineError::new(format!("found {len} bytes for {datatype} of shape {shape:?}")));
        }
        let shape = api::Shape { rank: dims.len() as i64, dims: dims.as_mut_ptr() };
        let mut tensor = ptr::null_mut();
        // SAFETY: shape and data are valid for the lengths given; the call copies the shape.
        api.check(unsafe { (api.ov_tensor_create_from_host_ptr)(known(datatype)?, shape, data.cast(), &mut tensor) })?;
        Ok(Self { api, tensor, memory: PhantomData })
    }

    pub(super) fn as_ptr(&self) -> *const api::Tensor {
        self.tensor
    }

    /// Returns the shape.
    pub(super) fn shape(&self) -> Result<Dims, EngineError> {
        let mut shape = api::Shape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor is live; what the call fills in is copied and freed.
        unsafe {
            self.api.check((self.api.ov_tensor_get_shape)(self.tensor, &mut shape))?;
            Ok(taken_shape(self.api, &mut shape))
        }
    }
}

/// Copies and frees a shape that the library filled in.
///
/// # Safety
/// The library filled it in, and nothing else frees it.
pub(super) unsafe fn taken_shape(api: &Api, shape: &mut api::Shape) -> Dims {
    let rank = usize::try_from(shape.rank).unwrap_or(0);
    // SAFETY: the library filled in as many dimensions as the rank says; it frees them once.
    unsafe {
        let dims = if rank == 0 { Dims::new() } else { Dims::from_slice(slice::from_raw_parts(shape.dims, rank)) };
        (api.ov_shape_free)(shape);
        dims
    }
}

impl Tensor<'static> {
    /// Creates an empty tensor in OpenVINO's memory, which a run resizes to its output.
    pub(super) fn empty(api: &'static Api, datatype: DataType) -> Result<Self, EngineError> {
        Self::owned(api, known(datatype)?, 0)
    }

    /// Creates a one-dimensional tensor of `length` elements.
    fn owned(api: &'static Api, element: u32, length: i64) -> Result<Self, EngineError> {
        let (mut tensor, mut dims) = (ptr::null_mut(), [length]);
        let shape = api::Shape { rank: 1, dims: dims.as_mut_ptr() };
        // SAFETY: the shape is valid for its rank; the call copies it.
        api.check(unsafe { (api.ov_tensor_create)(element, shape, &mut tensor) })?;
        Ok(Self { api, tensor, memory: PhantomData })
    }

    /// Shares the elements without copying them. `len_bytes` is the size that follows from shape and type.
    pub(super) fn into_bytes(self, len_bytes: usize) -> Result<Bytes, EngineError> {
        if len_bytes == 0 {
            return Ok(Bytes::new());
        }
        let (mut data, mut has) = (ptr::null_mut(), 0);
        // SAFETY: the tensor is live, and of fixed-size elements.
        unsafe {
            self.api.check((self.api.ov_tensor_data)(self.tensor, &mut data))?;
            self.api.check((self.api.ov_tensor_get_byte_size)(self.tensor, &mut has))?;
        }
        if has != len_bytes {
            return Err(EngineError::new(format!("an output has {has} bytes, expected {len_bytes}")));
        }
        Ok(Bytes::from_owner(OwnedElements { tensor: self, data: data.cast(), len_bytes }))
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: owned by this wrapper, released once; memory it was made over stays untouched.
        unsafe { (self.api.ov_tensor_free)(self.tensor) }
    }
}

/// Checks by the size of each element type that the library numbers them as this module does.
///
/// # Errors
/// Names the first type that differs.
pub(super) fn check_types(api: &'static Api) -> Result<(), String> {
    for datatype in DataType::ALL {
        let (Some(element), Some(size)) = (element_type(datatype), datatype.size_bytes()) else { continue };
        let tensor = Tensor::owned(api, element, 1).map_err(|error| error.message)?;
        let mut has = 0;
        // SAFETY: the tensor is live.
        let counted = api.check(unsafe { (api.ov_tensor_get_byte_size)(tensor.tensor, &mut has) });
        counted.map_err(|error| error.message)?;
        if has != size {
            return Err(format!("its element type {element} has {has} bytes, expected {size} of {datatype}"));
        }
    }
    Ok(())
}

fn known(datatype: DataType) -> Result<u32, EngineError> {
    element_type(datatype).ok_or_else(|| EngineError::new("the engine openvino does not accept strings"))
}

/// A tensor in OpenVINO's memory, as bytes.
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
        // SAFETY: the tensor reported this many bytes, so the pointer is not null.
        unsafe { slice::from_raw_parts(self.data, self.len_bytes) }
    }
}
