//! Conversions between element types.

use half::{bf16, f16};

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Int},
        Library,
    },
};

fn convert(element: Kind, kernel: &str, x: &Array, out: &Array) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/convert.cu");
    let library = Library::compile(element, &[source.into()]).expect("the kernels compile");
    let arguments = [Int(x.values().len() as i32), Arg::Array(x), Arg::Array(out)];
    library.launch(kernel, [4, 1], 256, &arguments).expect("the launch keeps the rules");
}

/// Returns every 16-bit number as a value of a half type.
fn every_half(element: Kind) -> Vec<f64> {
    let value = |bits: u16| match element {
        Kind::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    (0..=u16::MAX).map(value).collect()
}

fn assert_same(got: &[f64], expected: &[f64], what: &str) {
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got == expected || got.is_nan() && expected.is_nan(), "{what}: [{place}] is {got}, not {expected}");
    }
}

#[test]
fn every_half_number_becomes_the_same_number_in_fp32() {
    for element in [Kind::F16, Kind::Bf16] {
        let numbers = every_half(element);
        let (x, out) = (Array::new(element, numbers.clone()), Array::untouched(Kind::F32, numbers.len()));
        convert(element, "to_f32", &x, &out);
        assert_same(&out.values(), &numbers, &format!("{element:?} in fp32"));
    }
}

#[test]
fn conversion_to_a_half_type_rounds_to_the_nearest_and_ties_to_even() {
    for element in [Kind::F16, Kind::Bf16] {
        // For each number also the point halfway to the next one, and the values just below and above that point.
        let numbers: Vec<f64> = every_half(element)
            .windows(2)
            .filter(|pair| pair.iter().all(|number| number.is_finite()))
            .flat_map(|pair| {
                let halfway = ((pair[0] + pair[1]) / 2.0) as f32;
                [pair[0] as f32, halfway, halfway.next_down(), halfway.next_up()]
            })
            .map(f64::from)
            .chain([65519.0, 65520.0, 1e30, -1e30, f64::from(f32::MAX), f64::INFINITY, f64::NEG_INFINITY, f64::NAN])
            .collect();
        let (x, out) = (Array::new(Kind::F32, numbers.clone()), Array::untouched(element, numbers.len()));
        convert(element, "from_f32", &x, &out);
        let rounded = Array::new(element, numbers);
        assert_same(&out.values(), &rounded.values(), &format!("fp32 in {element:?}"));
    }
}
