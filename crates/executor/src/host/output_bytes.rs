//! Limits the memory of a run's outputs: checked before the run if the shapes are declared, and again after it.

use std::fmt;

use paternoster_device::BufferPool;
use paternoster_engine::BatchOutput;
use paternoster_model::{Dims, TensorSpec};

/// Rejects a batch before it runs if its outputs, as far as their shapes are known, exceed the pool's limit. `of`
/// completes the outputs' names, for example ` of model 'm'`.
///
/// # Errors
/// Names the first output that does not fit together with those before it.
pub(crate) fn check_declared<'a>(
    outputs: impl Iterator<Item = (&'a TensorSpec, &'a Option<Dims>)>,
    buffers: &BufferPool,
    of: fmt::Arguments<'_>,
) -> Result<(), String> {
    let most = buffers.max_output_bytes() as u128;
    let mut all = 0_u128;
    for (output, shape) in outputs {
        let (Some(shape), Some(size)) = (shape, output.datatype.size_bytes()) else { continue };
        // Saturating, so that a product of lengths cannot overflow unnoticed; an output without elements takes no
        // memory.
        let elements = if shape.contains(&0) {
            0
        } else {
            shape.iter().fold(1_u128, |count, &dim| count.saturating_mul(u128::try_from(dim).unwrap_or(u128::MAX)))
        };
        let bytes = elements.saturating_mul(size as u128);
        all = all.saturating_add(bytes);
        if all > most {
            return Err(refusal(output, "would take", bytes, shape, buffers, of));
        }
    }
    Ok(())
}

/// Rejects the outputs of a run if they exceed the pool's limit.
///
/// # Errors
/// See [`check_declared`].
pub(crate) fn check_made<'a>(
    outputs: impl Iterator<Item = (&'a TensorSpec, &'a BatchOutput)>,
    buffers: &BufferPool,
    of: fmt::Arguments<'_>,
) -> Result<(), String> {
    let mut all = 0_usize;
    for (output, made) in outputs {
        all = all.saturating_add(made.data.len());
        if all > buffers.max_output_bytes() {
            return Err(refusal(output, "takes", made.data.len() as u128, &made.shape, buffers, of));
        }
    }
    Ok(())
}

fn refusal(
    output: &TensorSpec,
    takes: &str,
    bytes: u128,
    shape: &[i64],
    buffers: &BufferPool,
    of: fmt::Arguments<'_>,
) -> String {
    format!(
        "output '{}'{of} {takes} {bytes} bytes for the shape {shape:?}: expected at most {} bytes for all outputs of \
         a batch (--max-output-bytes)",
        output.name,
        buffers.max_output_bytes()
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use paternoster_model::DataType;

    fn declared(shapes: &[&[i64]], most: usize) -> Result<(), String> {
        let outputs: Vec<(TensorSpec, Option<Dims>)> = shapes
            .iter()
            .zip(["a", "b"])
            .map(|(shape, name)| (TensorSpec::new(name, DataType::Fp32, shape), Some(Dims::from_slice(shape))))
            .collect();
        let buffers = BufferPool::with_output_limit(0, most);
        check_declared(outputs.iter().map(|(spec, shape)| (spec, shape)), &buffers, format_args!(" of model 'm'"))
    }

    #[test]
    fn outputs_count_together() {
        assert_eq!(declared(&[&[2, 2], &[1]], 20), Ok(()));
        assert_eq!(
            declared(&[&[2, 2], &[1]], 19).expect_err("a byte is missing"),
            "output 'b' of model 'm' would take 4 bytes for the shape [1]: expected at most 19 bytes for all outputs \
             of a batch (--max-output-bytes)"
        );
    }

    #[test]
    fn sizes_that_no_number_holds_are_large() {
        let long = i64::MAX;
        declared(&[&[long, long, long, long]], usize::MAX).expect_err("more than 2^252 bytes");
        declared(&[&[1 << 32, 1 << 32]], usize::MAX).expect_err("2^66 bytes");
        assert_eq!(declared(&[&[long, long, 0]], 0), Ok(()), "no element takes no memory");
    }

    #[test]
    fn what_was_made_is_measured_by_its_bytes() {
        let spec = TensorSpec::new("y", DataType::Bytes, &[1]);
        let made =
            BatchOutput { shape: Dims::from_slice(&[1, 1]), data: Bytes::from_static(&[4, 0, 0, 0, 1, 2, 3, 4]) };
        let check = |most| {
            let buffers = BufferPool::with_output_limit(0, most);
            check_made([(&spec, &made)].into_iter(), &buffers, format_args!(""))
        };
        assert_eq!(check(8), Ok(()));
        assert!(check(7).expect_err("one byte too many").starts_with("output 'y' takes 8 bytes for the shape [1, 1]"));
    }
}
