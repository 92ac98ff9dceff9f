//! Bias and activation, and conversions between element types.

use half::{bf16, f16};

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Float, Int, Null},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROWS, SIZES, assert_rows, live, padded, sigmoid, uniform},
};

/// Computes erf by its series of positive terms: 2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n + 1)!!
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

const LOW: f32 = -0.5;
const HIGH: f32 = 6.0;

type Activation = fn(f64) -> f64;

/// Each activation with its number in the kernel's interface.
const ACTIVATIONS: [(i32, Activation); 7] = [
    (0, |x| x),
    (1, |x| x.max(0.0)),
    (2, f64::tanh),
    (3, sigmoid),
    (4, |x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))),
    (5, |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())),
    (6, |x| x.clamp(LOW.into(), HIGH.into())),
];

/// Runs bias_activation; `out` may be `x`.
fn activate(element: Kind, launch: ([u32; 2], u32), activation: i32, x: &Array, bias: Option<&Array>, out: &Array) {
    let columns = x.values().len() / ROWS;
    let arguments = [
        Arg::Array(&live(LIVE)),
        Int(ROWS as i32),
        Int(columns as i32),
        Int(activation),
        Float(LOW),
        Float(HIGH),
        Arg::Array(x),
        bias.map_or(Null, Arg::Array),
        Arg::Array(out),
    ];
    Library::of(element).launch("bias_activation", launch.0, launch.1, &arguments).expect("the launch keeps the rules");
}

fn expected(activation: Activation, x: &Array, bias: Option<&Array>) -> Vec<f64> {
    let (x, bias) = (x.values(), bias.map(Array::values));
    let columns = x.len() / ROWS;
    let biased = |place: usize| x[place] + bias.as_ref().map_or(0.0, |bias| bias[place % columns]);
    (0..LIVE * columns).map(|place| activation(biased(place))).collect()
}

#[test]
fn every_activation_follows_its_definition() {
    for element in Kind::ELEMENTS {
        for (number, activation) in ACTIVATIONS {
            for columns in SIZES {
                for (place, launch) in LAUNCHES.into_iter().enumerate() {
                    let x = Array::new(element, padded(columns, columns, 8.0));
                    let bias = (place != 1).then(|| Array::new(element, uniform(2, columns, 1.0)));
                    let out = Array::untouched(element, ROWS * columns);
                    activate(element, launch, number, &x, bias.as_ref(), &out);
                    let what = format!("activation {number} of {columns} columns");
                    assert_rows(element, &out, &expected(activation, &x, bias.as_ref()), &what);
                }
            }
        }
    }
}

#[test]
fn arrays_need_not_be_aligned_nor_apart() {
    for element in Kind::ELEMENTS {
        for columns in [32, 1000] {
            let x = Array::unaligned(element, padded(columns, columns, 8.0));
            let bias = Array::unaligned(element, uniform(2, columns, 1.0));
            let expected = expected(f64::tanh, &x, Some(&bias));
            activate(element, LAUNCHES[0], 2, &x, Some(&bias), &x);
            assert_rows_in_place(element, &x, &expected);
        }
    }
}

fn assert_rows_in_place(element: Kind, x: &Array, expected: &[f64]) {
    let values = x.values();
    crate::numbers::assert_close(element, &values[..expected.len()], expected, "an activation in place");
    assert!(values[expected.len()..].iter().all(|value| value.is_nan()), "a padding row is written");
}

#[test]
fn activations_hold_for_extreme_values() {
    let extremes = [-3e4, -100.0, -1e-6, 0.0, 1e-6, 100.0, 3e4, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let limits: [(i32, [f64; 10]); 4] = [
        (1, [0.0, 0.0, 0.0, 0.0, 1e-6, 100.0, 3e4, f64::INFINITY, 0.0, f64::NAN]),
        (2, [-1.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 1.0, 1.0, -1.0, f64::NAN]),
        (3, [0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.0, f64::NAN]),
        (6, [-0.5, -0.5, -1e-6, 0.0, 1e-6, 6.0, 6.0, 6.0, -0.5, f64::NAN]),
    ];
    for element in Kind::ELEMENTS {
        for (number, expected) in limits {
            let x = Array::new(element, extremes.repeat(ROWS));
            let out = Array::untouched(element, ROWS * extremes.len());
            activate(element, LAUNCHES[0], number, &x, None, &out);
            assert_rows(element, &out, &expected.repeat(LIVE), &format!("activation {number} of extremes"));
        }
    }
}

fn convert(element: Kind, kernel: &str, x: &Array, out: &Array) {
    let count = Int(x.values().len() as i32);
    let arguments = [Arg::Array(&live(1)), Int(1), count, Arg::Array(x), Arg::Array(out)];
    Library::of(element).launch(kernel, [1, 4], 256, &arguments).expect("the launch keeps the rules");
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
