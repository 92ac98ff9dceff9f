//! Memory for the outputs of a run.

use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use paternoster_device::{Buffer, BufferPool};
use paternoster_model::{DataType, Dims, element_count};

use super::{Batch, BatchOutput, EngineError};

/// Memory for one output of a run. Memory that the engine is given has been cleared, so that an operator that leaves
/// part of it unwritten leaves zeros there, and not the data of an earlier request.
pub(super) enum Target<'a> {
    /// Memory of the caller.
    Given(Dims, &'a mut [u8]),
    /// Memory of the pool, because the shape is known.
    Ours(Dims, Buffer),
    /// Memory that the engine allocates.
    Engine {
        /// The shape that follows from the batch, if it does.
        expected: Option<Dims>,
        /// Memory of the caller, to which the output is copied.
        copied_to: Option<&'a mut [u8]>,
    },
}

impl<'a> Target<'a> {
    /// Returns memory for an output: the caller's, or the pool's if the shape follows from the batch; the engine's if
    /// the output may not be written in place.
    ///
    /// # Errors
    /// Fails if the output exceeds the limit of a batch's outputs, if there is no memory for it, or the caller's memory
    /// has another size.
    pub(super) fn of(
        (name, datatype): (&str, DataType),
        in_place: &InPlace,
        shape: Option<&Dims>,
        given: Option<&'a mut [u8]>,
        batch: &Batch<'_>,
    ) -> Result<Self, EngineError> {
        let sized = match (shape, datatype.size_bytes()) {
            (Some(shape), Some(size)) => {
                let len_bytes = element_count(shape).and_then(|count| count.checked_mul(size));
                let most = batch.buffers.max_output_bytes();
                let len_bytes = len_bytes.filter(|len_bytes| *len_bytes <= most).ok_or_else(|| {
                    EngineError::new(format!("output '{name}' of the shape {shape:?} takes more than {most} bytes"))
                })?;
                Some((shape.clone(), len_bytes))
            }
            _ => None,
        };
        if let Some(memory) = &given
            && sized.as_ref().is_none_or(|(_, len_bytes)| memory.len() != *len_bytes)
        {
            let has = memory.len();
            return Err(EngineError::new(format!("{has} bytes are given for output '{name}' of the shape {shape:?}")));
        }
        Ok(match (sized, given) {
            (Some((shape, 1..)), Some(memory)) if in_place.is_proven() => {
                memory.fill(0);
                Self::Given(shape, memory)
            }
            (Some((shape, len_bytes @ 1..)), None) if in_place.is_proven() => {
                let memory = BufferPool::take_cleared(batch.buffers, len_bytes)
                    .map_err(|error| EngineError::new(format!("output '{name}' of the shape {shape:?}: {error}")))?;
                Self::Ours(shape, memory)
            }
            (sized, copied_to) => Self::Engine { expected: sized.map(|(shape, _)| shape), copied_to },
        })
    }

    /// Leaves an output that would use the pool's memory to the engine. Returns whether it would.
    pub(super) fn leave_to_engine(&mut self) -> bool {
        let Self::Ours(shape, _) = self else { return false };
        *self = Self::Engine { expected: Some(std::mem::take(shape)), copied_to: None };
        true
    }
}

/// Passes on an output that the engine did not write into memory that it was given: copies it to the caller's memory,
/// if there is any.
///
/// # Errors
/// Fails if the caller's memory is for another shape.
pub(super) fn handed_on(
    name: &str,
    mut output: BatchOutput,
    expected: Option<&Dims>,
    copied_to: Option<&mut [u8]>,
) -> Result<BatchOutput, EngineError> {
    if let Some(memory) = copied_to {
        if expected != Some(&output.shape) || memory.len() != output.data.len() {
            let (shape, expected) = (&output.shape, expected.map(Dims::as_slice).unwrap_or_default());
            return Err(EngineError::new(format!("output '{name}' has the shape {shape:?}, expected {expected:?}")));
        }
        memory.copy_from_slice(&output.data);
        output.data = Bytes::new();
    }
    Ok(output)
}

/// Whether an engine writes an output into memory that it is given.
///
/// An engine may ignore that memory without a word: ONNX Runtime returns an input itself where it is also an output,
/// and skips outputs that an operator does not compute. The memory would keep what an earlier request left in it.
/// An engine therefore allocates an output until a run has shown that the output is made by the graph.
#[derive(Debug)]
pub(super) struct InPlace(AtomicU8);

const UNPROVEN: u8 = 0;
const PROVEN: u8 = 1;
const NEVER: u8 = 2;

impl InPlace {
    /// An output of which no run has shown anything yet.
    pub(super) fn unproven() -> Self {
        Self(AtomicU8::new(UNPROVEN))
    }

    /// An output that the engine is known to write.
    pub(super) fn proven() -> Self {
        Self(AtomicU8::new(PROVEN))
    }

    /// An output that the engine always allocates.
    pub(super) fn never() -> Self {
        Self(AtomicU8::new(NEVER))
    }

    fn is_proven(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PROVEN
    }

    /// Notes how an engine made an output that it allocated: its shape, and whether it is memory of an input. Has no
    /// effect if the output is empty or no shape was expected.
    pub(super) fn learn(&self, expected: Option<&Dims>, output: &BatchOutput, is_input: bool) {
        let Some(expected) = expected else { return };
        // Concurrent runs learn the same from outputs of the same origin. An output whose shape once differed stays
        // with the engine, so that no later run has to be repeated.
        if is_input || *expected != output.shape {
            self.0.store(NEVER, Ordering::Relaxed);
        } else if !output.data.is_empty() {
            let _ = self.0.compare_exchange(UNPROVEN, PROVEN, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(shape: &[i64], data: &[u8]) -> BatchOutput {
        BatchOutput { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn an_output_is_written_in_place_once_the_graph_is_known_to_make_it() {
        let expected = Dims::from_slice(&[2]);
        let made = output(&[2], &[1, 2]);
        let learned = |runs: &[(&BatchOutput, bool)]| {
            let in_place = InPlace::unproven();
            runs.iter().for_each(|(output, is_input)| in_place.learn(Some(&expected), output, *is_input));
            in_place.is_proven()
        };
        assert!(!learned(&[]), "nothing is known before the first run");
        assert!(learned(&[(&made, false)]));
        assert!(!learned(&[(&made, true)]), "the engine passed an input on");
        assert!(!learned(&[(&made, true), (&made, false)]), "and may do so again");
        assert!(!learned(&[(&output(&[3], &[1, 2, 3]), false), (&made, false)]), "its shape varies");
        let empty = InPlace::unproven();
        empty.learn(Some(&Dims::from_slice(&[0])), &output(&[0], &[]), false);
        assert!(!empty.is_proven(), "an output without elements shows nothing");
        let undeclared = InPlace::unproven();
        undeclared.learn(None, &made, false);
        assert!(!undeclared.is_proven(), "there is no memory for it anyway");
    }

    #[test]
    fn memory_for_another_shape_is_refused() {
        let mut memory = [7; 3];
        let expected = Dims::from_slice(&[3]);
        let error = handed_on("y", output(&[2], &[1, 2]), Some(&expected), Some(&mut memory)).expect_err("two bytes");
        assert_eq!(error.message, "output 'y' has the shape [2], expected [3]");
        let written = handed_on("y", output(&[3], &[1, 2, 3]), Some(&expected), Some(&mut memory)).expect("three");
        assert!(written.data.is_empty(), "the memory has it");
        assert_eq!(memory, [1, 2, 3]);
    }
}
