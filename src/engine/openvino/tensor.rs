//! Tensors of OpenVINO: made over borrowed memory, or owned and read back.

use std::{marker::PhantomData, ptr, slice};

use bytes::Bytes;

use super::api::{self, Api};
use crate::{
    engine::EngineError,
    model::{DataType, Dims, element_count},
};

/// The element type in OpenVINO's numbering since 2025.1; `None` for strings, which this engine does not take.
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

/// A tensor; `'a` is the lifetime of the memory it was made over (`'static` where it owns it).
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
    /// A tensor over input memory, which a run only reads.
    pub(super) fn over(
        api: &'static Api,
        datatype: DataType,
        shape: &[i64],
        data: &'a [u8],
    ) -> Result<Self, EngineError> {
        // SAFETY: OpenVINO does not write to a run's inputs; the lifetime keeps the memory alive.
        unsafe { Self::create(api, datatype, shape, data.as_ptr().cast_mut(), data.len()) }
    }

    /// A tensor over memory that a run writes its output to.
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
        // OpenVINO knows no length: it would read and write as far as the shape says.
        if takes != Some(len) {
            return Err(EngineError(format!("{len} bytes are given for {datatype} of the shape {shape:?}")));
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

    /// The shape.
    pub(super) fn shape(&self) -> Result<Dims, EngineError> {
        let mut shape = api::Shape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor is live; what the call fills in is copied and freed below.
        unsafe {
            self.api.check((self.api.ov_tensor_get_shape)(self.tensor, &mut shape))?;
            let rank = usize::try_from(shape.rank).unwrap_or(0);
            let dims = if rank == 0 { Dims::new() } else { Dims::from_slice(slice::from_raw_parts(shape.dims, rank)) };
            (self.api.ov_shape_free)(&mut shape);
            Ok(dims)
        }
    }
}

impl Tensor<'static> {
    /// A tensor of OpenVINO's own memory without elements, which a run makes as large as its output is.
    pub(super) fn empty(api: &'static Api, datatype: DataType) -> Result<Self, EngineError> {
        Self::owned(api, known(datatype)?, 0)
    }

    /// A tensor of so many elements in a row.
    fn owned(api: &'static Api, element: u32, length: i64) -> Result<Self, EngineError> {
        let (mut tensor, mut dims) = (ptr::null_mut(), [length]);
        let shape = api::Shape { rank: 1, dims: dims.as_mut_ptr() };
        // SAFETY: the shape is valid for its rank; the call copies it.
        api.check(unsafe { (api.ov_tensor_create)(element, shape, &mut tensor) })?;
        Ok(Self { api, tensor, memory: PhantomData })
    }

    /// Shares the elements without a copy. `len_bytes` is what shape and type make.
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
            return Err(EngineError(format!("an output has {has} bytes, expected {len_bytes}")));
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

/// Checks that a library numbers element types as this module does, by the size that it gives each.
///
/// # Errors
/// Names the first type that differs.
pub(super) fn check_types(api: &'static Api) -> Result<(), String> {
    for datatype in DataType::ALL {
        let (Some(element), Some(size)) = (element_type(datatype), datatype.size_bytes()) else { continue };
        let tensor = Tensor::owned(api, element, 1).map_err(|error| error.0)?;
        let mut has = 0;
        // SAFETY: the tensor is live.
        let counted = api.check(unsafe { (api.ov_tensor_get_byte_size)(tensor.tensor, &mut has) });
        counted.map_err(|error| error.0)?;
        if has != size {
            return Err(format!("its element type {element} has {has} bytes, expected {size} of {datatype}"));
        }
    }
    Ok(())
}

fn known(datatype: DataType) -> Result<u32, EngineError> {
    element_type(datatype).ok_or_else(|| EngineError("the engine openvino takes no strings".to_owned()))
}

/// A tensor of OpenVINO's own memory, seen as bytes.
struct OwnedElements {
    #[allow(dead_code, reason = "keeps the memory alive")]
    tensor: Tensor<'static>,
    data: *const u8,
    len_bytes: usize,
}

// SAFETY: the memory belongs to the tensor, which moves along, and is only read.
unsafe impl Send for OwnedElements {}
// SAFETY: as above.
unsafe impl Sync for OwnedElements {}

impl AsRef<[u8]> for OwnedElements {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the tensor said that it has as many bytes, which are not null then.
        unsafe { slice::from_raw_parts(self.data, self.len_bytes) }
    }
}
