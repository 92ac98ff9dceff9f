//! Memory for the outputs of a run.

use super::{Batch, EngineError};
use crate::{
    device::{Buffer, BufferPool},
    model::{DataType, Dims, element_count},
};

/// Memory for one output of a run.
pub(super) enum Target<'a> {
    /// Memory of the caller.
    Given(Dims, &'a mut [u8]),
    /// Memory of the pool, because the shape is known.
    Ours(Dims, Buffer),
    /// Memory that the engine allocates.
    Engine,
}

impl<'a> Target<'a> {
    /// Returns memory for an output: the caller's, or the pool's if the shape follows from the batch. `differs` says
    /// whether an earlier run gave the output another shape than declared.
    ///
    /// # Errors
    /// Fails if the output exceeds the limit of a batch's outputs, or the caller's memory has another size.
    pub(super) fn of(
        (name, datatype): (&str, DataType),
        differs: bool,
        shape: Option<&Dims>,
        given: Option<&'a mut [u8]>,
        batch: &Batch<'_>,
    ) -> Result<Self, EngineError> {
        let sized = match (shape, datatype.size_bytes()) {
            (Some(shape), Some(size)) => {
                let len_bytes = element_count(shape).and_then(|count| count.checked_mul(size));
                let most = batch.buffers.max_output_bytes();
                let len_bytes = len_bytes.filter(|len_bytes| *len_bytes <= most).ok_or_else(|| {
                    EngineError(format!("output '{name}' of the shape {shape:?} takes more than {most} bytes"))
                })?;
                Some((shape.clone(), len_bytes))
            }
            _ => None,
        };
        match (sized, given) {
            (Some((shape, len_bytes)), Some(memory)) if memory.len() == len_bytes => Ok(Self::Given(shape, memory)),
            (_, Some(memory)) => {
                let has = memory.len();
                Err(EngineError(format!("{has} bytes are given for output '{name}' of the shape {shape:?}")))
            }
            (Some((shape, len_bytes)), None) if len_bytes > 0 && !differs => {
                Ok(Self::Ours(shape, BufferPool::take(batch.buffers, len_bytes)))
            }
            _ => Ok(Self::Engine),
        }
    }

    /// Leaves an output that would use the pool's memory to the engine, and returns the shape that it was expected to
    /// have.
    pub(super) fn leave_to_engine(&mut self) -> Option<Dims> {
        let Self::Ours(shape, _) = self else { return None };
        let shape = std::mem::take(shape);
        *self = Self::Engine;
        Some(shape)
    }
}
