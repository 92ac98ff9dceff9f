//! Compares two responses to one request.

use half::{bf16, f16};
use paternoster_executor::{OutputTensor, Response};
use paternoster_model::{DataType, ModelSpec};

/// How a response differs from another one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    /// Name of the output.
    pub(super) output: String,
    /// What differs.
    pub(super) what: OutputDifference,
}

/// What differs in an output.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutputDifference {
    /// Only one response has it.
    Missing,
    /// The shapes.
    Shape,
    /// The elements of a type that has no distances.
    Elements,
    /// Numbers: how many, and the largest relative difference; infinite where one is no number.
    Numbers { count: usize, largest: f64 },
}

/// Returns the first output in which `second` differs from `first` by more than the tolerance, relative to the larger
/// of 1 and the number in `first`.
pub(super) fn difference(
    (first, first_spec): (&Response, &ModelSpec),
    (second, second_spec): (&Response, &ModelSpec),
    tolerance: f64,
) -> Option<Difference> {
    let added = second_spec.outputs.iter().find(|output| first_spec.output_index(&output.name).is_none());
    if let Some(added) = added {
        return Some(Difference { output: added.name.clone(), what: OutputDifference::Missing });
    }
    first_spec.outputs.iter().zip(&first.outputs).find_map(|(spec, first)| {
        let other = second_spec.output_index(&spec.name);
        let what = match other.and_then(|number| Some((&second_spec.outputs[number], second.outputs.get(number)?))) {
            Some((other, second)) if other.datatype == spec.datatype => within(first, second, spec.datatype, tolerance),
            _ => Some(OutputDifference::Missing),
        };
        what.map(|what| Difference { output: spec.name.clone(), what })
    })
}

fn within(first: &OutputTensor, second: &OutputTensor, datatype: DataType, tolerance: f64) -> Option<OutputDifference> {
    if first.shape != second.shape {
        return Some(OutputDifference::Shape);
    }
    if first.data == second.data {
        return None;
    }
    let numbers = match datatype {
        DataType::Fp16 => numbers(first, second, |bytes| f16::from_le_bytes(bytes).to_f64(), tolerance),
        DataType::Bf16 => numbers(first, second, |bytes| bf16::from_le_bytes(bytes).to_f64(), tolerance),
        DataType::Fp32 => numbers(first, second, |bytes| f64::from(f32::from_le_bytes(bytes)), tolerance),
        DataType::Fp64 => numbers(first, second, f64::from_le_bytes, tolerance),
        _ => return Some(OutputDifference::Elements),
    };
    let (count, largest) = numbers;
    (count > 0).then_some(OutputDifference::Numbers { count, largest })
}

/// Returns how many numbers differ by more than the tolerance, and the largest relative difference.
fn numbers<const SIZE: usize>(
    first: &OutputTensor,
    second: &OutputTensor,
    read: impl Fn([u8; SIZE]) -> f64,
    tolerance: f64,
) -> (usize, f64) {
    let (first, _) = first.data.as_chunks::<SIZE>();
    let (second, _) = second.data.as_chunks::<SIZE>();
    let differences = first.iter().zip(second).map(|(first, second)| relative(read(*first), read(*second)));
    differences
        .filter(|difference| *difference > tolerance)
        .fold((0, 0.0), |(count, largest), difference| (count + 1, difference.max(largest)))
}

fn relative(first: f64, second: f64) -> f64 {
    if first == second || first.is_nan() && second.is_nan() {
        return 0.0;
    }
    let difference = (first - second).abs() / first.abs().max(1.0);
    if difference.is_finite() { difference } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use paternoster_model::{Dims, TensorSpec};

    use super::*;

    fn spec(outputs: &[(&str, DataType)]) -> ModelSpec {
        let outputs = outputs.iter().map(|(name, datatype)| TensorSpec::new(*name, *datatype, &[-1]));
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: Vec::new(),
            outputs: outputs.collect(),
            symbols: Vec::new(),
            decoupled: false,
        }
    }

    fn output(shape: &[i64], data: Vec<u8>) -> OutputTensor {
        OutputTensor { shape: Dims::from_slice(shape), data: Bytes::from(data) }
    }

    fn floats(values: &[f32]) -> OutputTensor {
        output(&[1, values.len() as i64], values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn compared(first: OutputTensor, second: OutputTensor, datatype: DataType) -> Option<OutputDifference> {
        let spec = spec(&[("y", datatype)]);
        let response = |output| Response { outputs: vec![output] };
        difference((&response(first), &spec), (&response(second), &spec), 1e-3).map(|difference| difference.what)
    }

    #[test]
    fn numbers_within_the_tolerance_are_equal() {
        let of = |first: &[f32], second: &[f32]| compared(floats(first), floats(second), DataType::Fp32);
        assert_eq!(of(&[1.0, 2000.0], &[1.0005, 2001.0]), None);
        assert_eq!(of(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY]), None);
        let Some(OutputDifference::Numbers { count: 2, largest }) = of(&[1.0, 0.0, 4.0], &[1.5, 0.25, 4.0]) else {
            panic!("two differ")
        };
        assert!((largest - 0.5).abs() < 1e-9, "{largest}");
        let infinite = Some(OutputDifference::Numbers { count: 1, largest: f64::INFINITY });
        assert_eq!(of(&[f32::INFINITY], &[1.0]), infinite);
        assert_eq!(of(&[1.0], &[f32::NAN]), infinite);
    }

    #[test]
    fn short_floats_are_numbers_too() {
        let halves = |values: [f32; 2]| {
            output(&[1, 2], values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect())
        };
        assert_eq!(compared(halves([1.0, 2.0]), halves([1.0, 2.001]), DataType::Fp16), None);
        let found = compared(halves([1.0, 2.0]), halves([1.0, 3.0]), DataType::Fp16);
        assert_eq!(found, Some(OutputDifference::Numbers { count: 1, largest: 0.5 }));
        let brains = |value: f32| output(&[1, 1], bf16::from_f32(value).to_le_bytes().to_vec());
        assert_eq!(
            compared(brains(1.0), brains(2.0), DataType::Bf16),
            Some(OutputDifference::Numbers { count: 1, largest: 1.0 })
        );
    }

    #[test]
    fn shapes_elements_and_missing_outputs_differ() {
        assert_eq!(compared(floats(&[1.0]), floats(&[1.0, 2.0]), DataType::Fp32), Some(OutputDifference::Shape));
        let whole = |value: i64| output(&[1, 1], value.to_le_bytes().to_vec());
        assert_eq!(compared(whole(1), whole(2), DataType::Int64), Some(OutputDifference::Elements));
        assert_eq!(compared(whole(1), whole(1), DataType::Int64), None);
        let (one, other) = (spec(&[("y", DataType::Fp32)]), spec(&[("z", DataType::Fp32)]));
        let response = Response { outputs: vec![floats(&[1.0])] };
        let missing = |output: &str| Some(Difference { output: output.to_owned(), what: OutputDifference::Missing });
        assert_eq!(difference((&response, &one), (&response, &other), 0.1), missing("z"));
        let both = spec(&[("y", DataType::Fp32), ("z", DataType::Fp32)]);
        let two = Response { outputs: vec![floats(&[1.0]), floats(&[1.0])] };
        assert_eq!(difference((&response, &one), (&two, &both), 0.1), missing("z"), "only the second has it");
        assert_eq!(difference((&two, &both), (&response, &one), 0.1), missing("z"), "only the first has it");
    }
}
