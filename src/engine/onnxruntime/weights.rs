//! Weights stored outside the graph's own file: read into memory to which a session refers, so that ONNX Runtime opens
//! no file.

use std::{
    ffi::{CString, c_char},
    fmt,
};

use bytes::Bytes;
use ort::{
    AsPointer,
    session::{Session, builder::SessionBuilder},
    sys,
};
use sha2::{Digest, Sha256};

use super::{
    status::check,
    value::{HostMemory, Tensor},
};
use crate::{
    engine::EngineError,
    model::DataType,
    onnx::{ExternalWeight, SealedModel},
};

struct Weight {
    name: CString,
    datatype: DataType,
    dims: Vec<i64>,
    elements: Bytes,
}

/// The weights of one graph.
pub(super) struct Weights(Vec<Weight>);

impl Weights {
    /// Reads the weights of a model, and adds their names and elements to `hash`, so that graphs with other weights
    /// differ.
    ///
    /// # Errors
    /// Returns the weight and the reason if its file cannot be read or memory is short.
    pub(super) fn read(model: &SealedModel, hash: &mut Sha256) -> Result<Self, EngineError> {
        model.weights().map(|weight| Weight::read(weight, hash)).collect::<Result<_, _>>().map(Self)
    }
}

impl Weight {
    fn read(weight: &ExternalWeight, hash: &mut Sha256) -> Result<Self, EngineError> {
        let ExternalWeight { name, datatype, dims, .. } = weight;
        let elements = weight.elements().map_err(|error| EngineError(format!("weight '{name}': {error}")))?;
        for part in [name.as_bytes(), &elements] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let name = CString::new(name.as_str())
            .map_err(|_| EngineError(format!("the name of weight '{}' holds a zero byte", name.escape_debug())))?;
        Ok(Self { name, datatype: *datatype, dims: dims.clone(), elements })
    }

    fn tensor(&self, host: &HostMemory) -> Result<Tensor<'_>, EngineError> {
        Tensor::over(host, self.datatype, &self.dims, &self.elements)
    }
}

/// A session, and the weights to which it refers.
pub(super) struct CompiledGraph {
    // Declared first, so that it is dropped before the weights.
    session: Session,
    #[allow(dead_code, reason = "the session refers to it")]
    weights: Weights,
}

impl CompiledGraph {
    /// Compiles a graph with its external weights.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects it.
    pub(super) fn new(mut builder: SessionBuilder, graph: &[u8], weights: Weights) -> Result<Self, EngineError> {
        if !weights.0.is_empty() {
            let host = HostMemory::new()?;
            let tensors = weights.0.iter().map(|weight| weight.tensor(&host)).collect::<Result<Vec<_>, _>>()?;
            let names: Vec<*const c_char> = weights.0.iter().map(|weight| weight.name.as_ptr()).collect();
            let values: Vec<*const sys::OrtValue> = tensors.iter().map(|tensor| tensor.as_ptr().cast_const()).collect();
            // SAFETY: both arrays have the length given and outlive the call, which copies the names and shares the
            // values. The weights' memory outlives builder and session, since it moves into a struct that drops the
            // session first. Sessions only read initializers.
            check(unsafe {
                (ort::api().AddExternalInitializers)(builder.ptr_mut(), names.as_ptr(), values.as_ptr(), values.len())
            })?;
        }
        let session = builder.commit_from_memory(graph).map_err(super::program::refused)?;
        Ok(Self { session, weights })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }
}

impl fmt::Debug for CompiledGraph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CompiledGraph").field("session", &self.session).finish_non_exhaustive()
    }
}
