//! Inputs for kernels, and comparisons of their outputs with references.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::array::{Array, Kind, UNTOUCHED};

/// Row widths around the sizes of vectors, warps and blocks.
pub(crate) const SIZES: [usize; 8] = [1, 3, 31, 32, 33, 255, 257, 1000];

/// Rows of a launch, of which the first `LIVE` hold data.
pub(crate) const ROWS: usize = 5;
pub(crate) const LIVE: usize = 3;

/// Launches that compute the same: (blocks along x and y, threads of a block).
pub(crate) const LAUNCHES: [([u32; 2], u32); 3] = [([5, 1], 32), ([1, 1], 96), ([2, 3], 256)];

/// Launches of kernels that reduce over a row, where a block takes whole rows.
pub(crate) const ROW_LAUNCHES: [([u32; 2], u32); 3] = [([5, 1], 32), ([1, 1], 96), ([2, 1], 256)];

pub(crate) fn generator(seed: usize) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed as u64)
}

/// Returns numbers between -limit and limit.
pub(crate) fn uniform(seed: usize, count: usize, limit: f64) -> Vec<f64> {
    let mut generator = generator(seed);
    (0..count).map(|_| generator.random_range(-limit..limit)).collect()
}

/// Returns a matrix of `ROWS` rows of numbers between -limit and limit, whose padding rows are NaN.
pub(crate) fn padded(seed: usize, columns: usize, limit: f64) -> Vec<f64> {
    let mut values = uniform(seed, ROWS * columns, limit);
    values[LIVE * columns..].fill(f64::NAN);
    values
}

/// Returns the number of live rows, as the parameter block holds it.
pub(crate) fn live(count: usize) -> Array {
    Array::new(Kind::I32, [count as f64])
}

/// Returns the relative and the absolute tolerance: for fp32 that of sums of a thousand terms, for the half types that
/// of rounding the result.
fn tolerance(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::F32 => (1e-5, 2e-6),
        Kind::F16 => (1e-3, 1e-5),
        Kind::Bf16 => (8e-3, 1e-5),
        Kind::I32 | Kind::I64 => (0.0, 0.0),
    }
}

/// Checks each output against the reference.
pub(crate) fn assert_close(kind: Kind, got: &[f64], expected: &[f64], what: &str) {
    let (relative, absolute) = tolerance(kind);
    assert_eq!(got.len(), expected.len(), "elements of {what}");
    for (place, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let close = got == expected || (got - expected).abs() <= absolute + relative * expected.abs();
        assert!(close || (got.is_nan() && expected.is_nan()), "{what}, {kind:?}: [{place}] is {got}, not {expected}");
    }
}

/// Checks the live rows of an output against the reference, and that the padding rows are unchanged.
pub(crate) fn assert_rows(kind: Kind, output: &Array, expected: &[f64], what: &str) {
    let got = output.values();
    let (rows, padding) = got.split_at(expected.len());
    assert_close(kind, rows, expected, what);
    assert!(padding.iter().all(|&value| value == UNTOUCHED), "{what}, {kind:?}: a padding row is written");
}
