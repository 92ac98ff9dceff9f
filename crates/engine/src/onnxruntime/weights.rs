//! Weights stored outside the graph's own file: read into memory to which a session refers, so that ONNX Runtime opens
//! no file.

use std::ffi::{CString, c_char};

use bytes::Bytes;
use ort::{AsPointer, session::builder::SessionBuilder, sys};
use paternoster_model::DataType;
use paternoster_onnx::{ExternalWeight, SealedModel};
use sha2::{Digest, Sha256};

use super::{
    status::check,
    value::{HostMemory, Tensor},
};
use crate::EngineError;

struct Weight {
    name: CString,
    datatype: DataType,
    dims: Vec<i64>,
    elements: Bytes,
}

/// The weights of one graph.
pub(super) struct Weights(Vec<Weight>);

impl Weights {
    /// Reads the weights of a model.
    ///
    /// # Errors
    /// Returns the weight and the reason if its file cannot be read or memory is short.
    pub(super) fn read(model: &SealedModel) -> Result<Self, EngineError> {
        model.weights().map(Weight::read).collect::<Result<_, _>>().map(Self)
    }

    /// Adds the names and elements to a hash, so that graphs with other weights differ.
    pub(super) fn add_to(&self, hash: &mut Sha256) {
        for Weight { name, elements, .. } in &self.0 {
            for part in [name.as_bytes(), elements] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
    }

    /// Returns the size of all weights in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|weight| weight.elements.len()).sum()
    }

    /// Shares the weights with the session that `builder` creates.
    ///
    /// # Safety
    /// The weights outlive the builder and its session.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects one of them.
    pub(super) unsafe fn share(&self, builder: &mut SessionBuilder) -> Result<(), EngineError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let host = HostMemory::new()?;
        let tensors = self.0.iter().map(|weight| weight.tensor(&host)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<*const c_char> = self.0.iter().map(|weight| weight.name.as_ptr()).collect();
        let values: Vec<*const sys::OrtValue> = tensors.iter().map(|tensor| tensor.as_ptr().cast_const()).collect();
        // SAFETY: both arrays have the length given and outlive the call, which copies the names and shares the values.
        // The caller keeps their memory for as long as the session. Sessions only read initializers.
        check(unsafe {
            (ort::api().AddExternalInitializers)(builder.ptr_mut(), names.as_ptr(), values.as_ptr(), values.len())
        })
    }
}

impl Weight {
    fn read(weight: &ExternalWeight) -> Result<Self, EngineError> {
        let ExternalWeight { name, datatype, dims, .. } = weight;
        let elements = weight.elements().map_err(|error| EngineError::new(format!("weight '{name}': {error}")))?;
        let name = CString::new(name.as_str())
            .map_err(|_| EngineError::new(format!("the name of weight '{}' holds a zero byte", name.escape_debug())))?;
        Ok(Self { name, datatype: *datatype, dims: dims.clone(), elements })
    }

    fn tensor(&self, host: &HostMemory) -> Result<Tensor<'_>, EngineError> {
        Tensor::over(host, self.datatype, &self.dims, &self.elements)
    }
}
