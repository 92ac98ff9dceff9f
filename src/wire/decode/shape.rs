//! Checks shapes: each against its input's specification, and those of a request against each other.

use smallvec::SmallVec;

use super::super::fault::{InputFault, Shape};
use crate::model::{ModelSpec, TensorSpec, element_count};

/// What the inputs of one request must agree on: the batch size, and the length along each padded axis.
#[derive(Debug)]
pub(super) struct Agreement<'a> {
    spec: &'a ModelSpec,
    /// The batch size, and the index of the input that set it.
    batch: Option<(u32, usize)>,
    /// By symbol.
    lengths: SmallVec<[Option<u32>; 4]>,
}

impl<'a> Agreement<'a> {
    pub(super) fn new(spec: &'a ModelSpec) -> Self {
        Self { spec, batch: None, lengths: SmallVec::from_elem(None, spec.symbols.len()) }
    }

    /// Returns the request's rows; 1 if no input has a batch axis.
    pub(super) fn rows(&self) -> u32 {
        self.batch.map_or(1, |(rows, _)| rows)
    }

    /// Checks the shape of the input at `index`, and returns its number of elements.
    pub(super) fn admit(&mut self, index: usize, shape: &[i64]) -> Result<usize, InputFault> {
        let tensor = &self.spec.inputs[index];
        let batched = self.spec.has_batch_axis();
        let dims = match shape.split_first() {
            None if batched => return Err(InputFault::NoBatchDimension),
            Some((_, dims)) if batched => dims,
            _ => shape,
        };
        let fits = dims.len() == tensor.dims.len()
            && dims.iter().zip(&tensor.dims).all(|(given, wanted)| given == wanted || *wanted < 0);
        if !fits {
            let expected = batched.then_some(-1).into_iter().chain(tensor.dims.iter().copied()).collect();
            return Err(InputFault::Shape { expected: Shape(expected), got: Shape(shape.to_vec()), batched });
        }
        if batched {
            self.admit_batch(index, shape[0])?;
        }
        let elements = countable(shape, self.spec.max_batch_size)
            .ok_or_else(|| InputFault::Uncountable { shape: Shape(shape.to_vec()) })?;
        self.admit_lengths(tensor, dims)?;
        Ok(elements)
    }

    fn admit_batch(&mut self, index: usize, got: i64) -> Result<(), InputFault> {
        let limit = self.spec.max_batch_size;
        if got < 1 {
            return Err(InputFault::BatchTooSmall { got });
        }
        let rows = u32::try_from(got).ok().filter(|rows| *rows <= limit);
        let rows = rows.ok_or(InputFault::BatchTooLarge { limit, got })?;
        let (expected, first) = *self.batch.get_or_insert((rows, index));
        if rows != expected {
            let other = self.spec.inputs[first].name.clone();
            return Err(InputFault::BatchMismatch { expected, got: rows, other });
        }
        Ok(())
    }

    fn admit_lengths(&mut self, tensor: &TensorSpec, dims: &[i64]) -> Result<(), InputFault> {
        for (symbol, &dim) in tensor.symbols.iter().zip(dims) {
            let Some(symbol) = symbol.map(|symbol| usize::from(symbol.0)) else { continue };
            let name = || self.spec.symbols[symbol].clone();
            let got = u32::try_from(dim).map_err(|_| InputFault::LengthTooLarge { symbol: name(), got: dim })?;
            let expected = *self.lengths[symbol].get_or_insert(got);
            if got != expected {
                return Err(InputFault::LengthMismatch { symbol: name(), expected, got });
            }
        }
        Ok(())
    }
}

/// Returns the number of elements if computing with the shape cannot overflow: the bytes of a full batch of such rows
/// must be countable, even ignoring dimensions of 0 (`[1, 2^62, 0]` has no elements, but its first two dimensions are
/// not safe to multiply by).
fn countable(shape: &[i64], max_batch_size: u32) -> Option<usize> {
    const LARGEST_ELEMENT_BYTES: i64 = 8;
    let batch = i64::from(max_batch_size.max(1));
    shape
        .iter()
        .try_fold(batch * LARGEST_ELEMENT_BYTES, |product, &dim| product.checked_mul(dim.max(1)))
        .and_then(|_| element_count(shape))
}
