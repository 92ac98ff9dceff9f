//! Checks shapes: each against its input's specification, and those of a request against each other.

use std::fmt;

use smallvec::SmallVec;

use super::{ModelSpec, TensorSpec, element_count};

/// Why the shape of an input does not fit.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShapeFault {
    /// The model has a batch axis, and the input no axis at all.
    #[error("it has no shape but the model requires a batch dimension")]
    NoBatchDimension,
    /// Fewer rows than one.
    #[error("inference request batch-size must be >= 1, got {got}")]
    BatchTooSmall {
        /// The rows of the request.
        got: i64,
    },
    /// More rows than the model allows.
    #[error("inference request batch-size must be <= {limit}, got {got}")]
    BatchTooLarge {
        /// The model's largest batch.
        limit: u32,
        /// The rows of the request.
        got: i64,
    },
    /// Another input has another number of rows.
    #[error("batch size {got} does not match other inputs: '{other}' has {expected}")]
    BatchMismatch {
        /// The rows of the other input.
        expected: u32,
        /// The rows of this input.
        got: u32,
        /// The name of the other input.
        other: String,
    },
    /// The number of axes, or a dimension that does not vary, is another one.
    #[error(
        "unexpected shape, expected {expected}, got {got}{}",
        if *.batched { " (the first is the batch)" } else { "" }
    )]
    Shape {
        /// The specification, with -1 for the batch and for what varies.
        expected: ShapeText,
        /// The shape of the request.
        got: ShapeText,
        /// Whether the first axis is the batch.
        batched: bool,
    },
    /// Negative, or too many elements.
    #[error("shape {shape} has a negative dimension or more elements than can be counted")]
    Uncountable {
        /// The shape of the request.
        shape: ShapeText,
    },
    /// Two inputs have different lengths along one padded axis.
    #[error("length {got} of axis '{symbol}' differs from {expected} of another input")]
    LengthMismatch {
        /// The axis.
        symbol: String,
        /// The length of the other input.
        expected: u32,
        /// The length of this input.
        got: u32,
    },
    /// The length of a padded axis does not fit 32 bits.
    #[error("length {got} of axis '{symbol}' is too large")]
    LengthTooLarge {
        /// The axis.
        symbol: String,
        /// The length.
        got: i64,
    },
}

/// A shape as formatted in messages: `[-1,16]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeText(pub Vec<i64>);

impl fmt::Display for ShapeText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for (position, dim) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(formatter, "{separator}{dim}")?;
        }
        formatter.write_str("]")
    }
}

/// What the inputs of one request must agree on: the batch size, and the length along each padded axis.
#[derive(Debug)]
pub struct RequestShape<'a> {
    spec: &'a ModelSpec,
    /// The batch size, and the index of the input that set it.
    batch: Option<(u32, usize)>,
    /// By symbol.
    lengths: SmallVec<[Option<u32>; 4]>,
}

impl<'a> RequestShape<'a> {
    /// Of a request of which no input is known yet.
    pub fn new(spec: &'a ModelSpec) -> Self {
        Self { spec, batch: None, lengths: SmallVec::from_elem(None, spec.symbols.len()) }
    }

    /// Returns the request's rows; 1 if no input has a batch axis.
    pub fn rows(&self) -> u32 {
        self.batch.map_or(1, |(rows, _)| rows)
    }

    /// Returns the bytes of all outputs of the request, as far as they follow from its inputs.
    pub fn output_bytes(&self) -> usize {
        let lengths: SmallVec<[u32; 4]> = self.lengths.iter().map(|length| length.unwrap_or(0)).collect();
        let of_row = self.spec.outputs.iter().filter_map(|output| {
            let elements = element_count(&output.dims_at(&lengths))?;
            Some(elements.saturating_mul(output.datatype.size_bytes()?))
        });
        of_row.fold(0, usize::saturating_add).saturating_mul(self.rows() as usize)
    }

    /// Checks the shape of the input at `index`, and returns its number of elements.
    ///
    /// # Errors
    /// If the shape does not fit the input's specification, or not those of the inputs before it.
    pub fn admit(&mut self, index: usize, shape: &[i64]) -> Result<usize, ShapeFault> {
        let tensor = &self.spec.inputs[index];
        let batched = self.spec.has_batch_axis();
        let dims = match shape.split_first() {
            None if batched => return Err(ShapeFault::NoBatchDimension),
            Some((_, dims)) if batched => dims,
            _ => shape,
        };
        let fits = dims.len() == tensor.dims.len()
            && dims.iter().zip(&tensor.dims).all(|(given, wanted)| given == wanted || *wanted < 0);
        if !fits {
            let expected = batched.then_some(-1).into_iter().chain(tensor.dims.iter().copied()).collect();
            return Err(ShapeFault::Shape { expected: ShapeText(expected), got: ShapeText(shape.to_vec()), batched });
        }
        if batched {
            self.admit_batch(index, shape[0])?;
        }
        let elements = countable(shape, self.spec.max_batch_size)
            .ok_or_else(|| ShapeFault::Uncountable { shape: ShapeText(shape.to_vec()) })?;
        self.admit_lengths(tensor, dims)?;
        Ok(elements)
    }

    fn admit_batch(&mut self, index: usize, got: i64) -> Result<(), ShapeFault> {
        let limit = self.spec.max_batch_size;
        if got < 1 {
            return Err(ShapeFault::BatchTooSmall { got });
        }
        let rows = u32::try_from(got).ok().filter(|rows| *rows <= limit);
        let rows = rows.ok_or(ShapeFault::BatchTooLarge { limit, got })?;
        let (expected, first) = *self.batch.get_or_insert((rows, index));
        if rows != expected {
            let other = self.spec.inputs[first].name.clone();
            return Err(ShapeFault::BatchMismatch { expected, got: rows, other });
        }
        Ok(())
    }

    fn admit_lengths(&mut self, tensor: &TensorSpec, dims: &[i64]) -> Result<(), ShapeFault> {
        for (symbol, &dim) in tensor.symbols.iter().zip(dims) {
            let Some(symbol) = symbol.map(|symbol| usize::from(symbol.0)) else { continue };
            let name = || self.spec.symbols[symbol].clone();
            let got = u32::try_from(dim).map_err(|_| ShapeFault::LengthTooLarge { symbol: name(), got: dim })?;
            let expected = *self.lengths[symbol].get_or_insert(got);
            if got != expected {
                return Err(ShapeFault::LengthMismatch { symbol: name(), expected, got });
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
