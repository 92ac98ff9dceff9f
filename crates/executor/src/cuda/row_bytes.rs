//! Sizes of tensors' rows on a card.

use paternoster_model::{Dims, Lengths, TensorSpec, element_count};
use smallvec::SmallVec;

/// Bytes of a word. Kernels move rows in whole words.
const WORD_BYTES: usize = 4;

/// Bytes of a tensor's row, for each combination of lengths that its program is prepared for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowBytes(SmallVec<[usize; 1]>);

impl RowBytes {
    /// Returns the bytes of a row with the lengths of this index.
    pub(super) fn at(&self, lengths: usize) -> usize {
        self.0.get(lengths).or(self.0.first()).copied().unwrap_or_default()
    }

    /// Returns the bytes of the longest row: the distance between rows where they are stored.
    pub(super) fn pitch(&self) -> usize {
        self.0.iter().copied().max().unwrap_or_default()
    }
}

impl From<usize> for RowBytes {
    fn from(bytes: usize) -> Self {
        Self(SmallVec::from_slice(&[bytes]))
    }
}

/// Returns the bytes of a tensor's row for each of these lengths.
///
/// # Errors
/// If rows have no fixed size, or their size is not a multiple of [`WORD_BYTES`].
pub(super) fn row_bytes(spec: &TensorSpec, lengths: &[Lengths]) -> Result<RowBytes, String> {
    let bytes = lengths.iter().map(|lengths| bytes_of_a_row(spec, &spec.dims_at(lengths)));
    Ok(RowBytes(bytes.collect::<Result<_, _>>()?))
}

/// Same as [`row_bytes`], from the dims of a row for each of the lengths.
///
/// # Errors
/// As [`row_bytes`].
pub(super) fn row_bytes_of(spec: &TensorSpec, dims: impl Iterator<Item = Dims>) -> Result<RowBytes, String> {
    let bytes = dims.map(|dims| bytes_of_a_row(spec, &dims));
    Ok(RowBytes(bytes.collect::<Result<_, _>>()?))
}

/// Returns the bytes of a row of a tensor whose dims are fixed.
///
/// # Errors
/// As [`row_bytes`].
pub(super) fn fixed_row_bytes(spec: &TensorSpec) -> Result<usize, String> {
    bytes_of_a_row(spec, &spec.dims)
}

fn bytes_of_a_row(spec: &TensorSpec, dims: &Dims) -> Result<usize, String> {
    let size = spec.datatype.size_bytes().ok_or_else(|| format!("'{}' holds strings", spec.name))?;
    let is_fixed = dims.iter().all(|&dim| dim >= 0);
    let bytes = element_count(dims).filter(|_| is_fixed).and_then(|count| count.checked_mul(size));
    let bytes = bytes
        .ok_or_else(|| format!("'{}' has dims {:?} that vary without being padded", spec.name, spec.dims.as_slice()))?;
    if !bytes.is_multiple_of(WORD_BYTES) || bytes == 0 {
        let name = &spec.name;
        return Err(format!("'{name}' has rows of {bytes} bytes, expected a multiple of {WORD_BYTES}"));
    }
    Ok(bytes)
}

/// Returns the index of the smallest lengths that are at least `longest` on each axis.
pub(super) fn least_that_holds(lengths: &[Lengths], longest: &[u32]) -> Option<usize> {
    let holds = |own: &Lengths| own.iter().zip(longest).all(|(most, length)| length <= most);
    let area = |own: &Lengths| own.iter().map(|&length| u64::from(length)).product::<u64>();
    let holding = lengths.iter().enumerate().filter(|(_, own)| holds(own));
    holding.min_by_key(|(_, own)| area(own)).map(|(number, _)| number)
}
