//! Kernels that reduce over a row: softmax, LayerNorm, argmax, mean pooling.

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Float, Int, Null},
        Library,
    },
    numbers::{LIVE, ROW_LAUNCHES, ROWS, SIZES, assert_close, assert_rows, live, padded, uniform},
};

/// Runs a check for each element type, row width and launch.
fn for_each(check: impl Fn(Kind, usize, ([u32; 2], u32))) {
    for element in Kind::ELEMENTS {
        for columns in SIZES {
            for launch in ROW_LAUNCHES {
                check(element, columns, launch);
            }
        }
    }
}

fn softmax(element: Kind, (grid, threads): ([u32; 2], u32), x: &Array, out: &Array) {
    let columns = (x.values().len() / ROWS) as i32;
    let arguments = [Arg::Array(&live(LIVE)), Int(ROWS as i32), Int(columns), Arg::Array(x), Arg::Array(out)];
    Library::of(element).launch("softmax", grid, threads, &arguments).expect("the launch keeps the rules");
}

fn expected_softmax(x: &[f64], columns: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let most = row.iter().fold(f64::NEG_INFINITY, |most, &value| most.max(value));
        let shares: Vec<f64> = row.iter().map(|value| (value - most).exp()).collect();
        let sum: f64 = shares.iter().sum();
        shares.into_iter().map(move |share| share / sum).collect::<Vec<_>>()
    };
    x[..LIVE * columns].chunks(columns).flat_map(row).collect()
}

#[test]
fn softmax_of_ragged_rows() {
    for_each(|element, columns, launch| {
        let x = Array::new(element, padded(columns, columns, 5.0));
        let out = Array::untouched(element, ROWS * columns);
        softmax(element, launch, &x, &out);
        assert_rows(element, &out, &expected_softmax(&x.values(), columns), &format!("softmax of {columns}"));
    });
}

#[test]
fn softmax_neither_overflows_nor_divides_by_nothing() {
    for_each(|element, columns, launch| {
        let mut x = padded(columns, columns, 1e4);
        // Rows of one repeated value, and of infinities and one number.
        x[columns..2 * columns].fill(-1e4);
        x[2 * columns..3 * columns - 1].fill(f64::NEG_INFINITY);
        let x = Array::new(element, x);
        let out = Array::untouched(element, ROWS * columns);
        softmax(element, launch, &x, &out);
        assert_rows(element, &out, &expected_softmax(&x.values(), columns), &format!("extreme softmax of {columns}"));
    });
}

#[test]
fn softmax_of_minus_infinity_alone_is_nan_as_in_onnx() {
    let x = Array::new(Kind::F32, vec![f64::NEG_INFINITY; ROWS * 33]);
    let out = Array::untouched(Kind::F32, ROWS * 33);
    softmax(Kind::F32, ROW_LAUNCHES[0], &x, &out);
    assert!(out.values()[..LIVE * 33].iter().all(|value| value.is_nan()));
}

struct Norm<'a> {
    x: &'a Array,
    residual: Option<&'a Array>,
    scale: &'a Array,
    bias: Option<&'a Array>,
    sum: Option<&'a Array>,
}

impl Norm<'_> {
    const EPSILON: f32 = 1e-5;

    fn launch(&self, element: Kind, (grid, threads): ([u32; 2], u32), out: &Array) {
        let arguments = [
            Arg::Array(&live(LIVE)),
            Int(ROWS as i32),
            Int((self.x.values().len() / ROWS) as i32),
            Float(Self::EPSILON),
            Arg::Array(self.x),
            self.residual.map_or(Null, Arg::Array),
            Arg::Array(self.scale),
            self.bias.map_or(Null, Arg::Array),
            self.sum.map_or(Null, Arg::Array),
            Arg::Array(out),
        ];
        Library::of(element).launch("layer_norm", grid, threads, &arguments).expect("the launch keeps the rules");
    }

    /// Returns the sums with the residual, and the normalised rows.
    fn expected(&self, columns: usize) -> (Vec<f64>, Vec<f64>) {
        let residual = self.residual.map_or(vec![0.0; ROWS * columns], Array::values);
        let (scale, bias) = (self.scale.values(), self.bias.map_or(vec![0.0; columns], Array::values));
        let sums: Vec<f64> = self.x.values().iter().zip(residual).map(|(x, residual)| x + residual).collect();
        let sums = sums[..LIVE * columns].to_vec();
        let row = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / columns as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / columns as f64;
            let deviation = (variance + f64::from(Self::EPSILON)).sqrt();
            (0..columns).map(|i| (row[i] - mean) / deviation * scale[i] + bias[i]).collect::<Vec<_>>()
        };
        let normal = sums.chunks(columns).flat_map(row).collect();
        (sums, normal)
    }
}

#[test]
fn layer_norm_with_and_without_its_options() {
    for_each(|element, columns, launch| {
        let (x, residual) =
            (Array::new(element, padded(1, columns, 3.0)), Array::new(element, padded(2, columns, 3.0)));
        let (scale, bias) =
            (Array::new(element, uniform(3, columns, 2.0)), Array::new(element, uniform(4, columns, 1.0)));
        let sum = Array::untouched(element, ROWS * columns);
        let plain = Norm { x: &x, residual: None, scale: &scale, bias: None, sum: None };
        let whole = Norm { x: &x, residual: Some(&residual), scale: &scale, bias: Some(&bias), sum: Some(&sum) };
        for norm in [plain, whole] {
            let out = Array::untouched(element, ROWS * columns);
            norm.launch(element, launch, &out);
            let (sums, expected) = norm.expected(columns);
            assert_rows(element, &out, &expected, &format!("layer_norm of {columns}"));
            if let Some(sum) = norm.sum {
                assert_rows(element, sum, &sums, "the sum before layer_norm");
            }
        }
    });
}

#[test]
fn layer_norm_of_constant_rows_is_its_bias_however_large_they_are() {
    for_each(|element, columns, launch| {
        // Whole numbers below 2^11 have whole sums, so the mean is exact.
        let constants = [1024.0, -2.0, 0.0, f64::NAN, f64::NAN];
        let x = Array::new(element, constants.into_iter().flat_map(|row| vec![row; columns]));
        let (scale, bias) =
            (Array::new(element, uniform(3, columns, 2.0)), Array::new(element, uniform(4, columns, 1.0)));
        let out = Array::untouched(element, ROWS * columns);
        Norm { x: &x, residual: None, scale: &scale, bias: Some(&bias), sum: None }.launch(element, launch, &out);
        assert_rows(element, &out, &bias.values().repeat(LIVE), &format!("layer_norm of {columns} equal numbers"));
    });
}

#[test]
fn layer_norm_keeps_the_digits_of_rows_far_from_zero() {
    let columns = 256;
    let far = uniform(5, ROWS * columns, 1.0).into_iter().map(|value| 1000.0 + (value * 64.0).round() / 64.0);
    let x = Array::new(Kind::F32, far);
    let scale = Array::new(Kind::F32, vec![1.0; columns]);
    let norm = Norm { x: &x, residual: None, scale: &scale, bias: None, sum: None };
    let out = Array::untouched(Kind::F32, ROWS * columns);
    norm.launch(Kind::F32, ROW_LAUNCHES[2], &out);
    let expected = norm.expected(columns).1;
    for (got, expected) in out.values().iter().zip(expected) {
        assert!((got - expected).abs() < 1e-3, "{got}, not {expected}");
    }
}

#[test]
fn layer_norm_may_write_over_its_input_and_its_sum_over_the_residual() {
    let (element, columns) = (Kind::F16, 257);
    let (x, residual) = (Array::new(element, padded(1, columns, 3.0)), Array::new(element, padded(2, columns, 3.0)));
    let scale = Array::new(element, uniform(3, columns, 2.0));
    let norm = Norm { x: &x, residual: Some(&residual), scale: &scale, bias: None, sum: Some(&residual) };
    let (sums, expected) = norm.expected(columns);
    norm.launch(element, ROW_LAUNCHES[0], &x);
    assert_close(element, &x.values()[..LIVE * columns], &expected, "layer_norm in place");
    assert_close(element, &residual.values()[..LIVE * columns], &sums, "the sum in place of the residual");
}

/// Runs both kernels; returns (index, done) of all rows.
fn argmax(element: Kind, (grid, threads): ([u32; 2], u32), x: &Array, end: i32) -> (Vec<f64>, Vec<f64>) {
    let columns = (x.values().len() / ROWS) as i32;
    let mut results = [("argmax_i32", Kind::I32), ("argmax_i64", Kind::I64)].map(|(kernel, index_kind)| {
        let (index, done) = (Array::untouched(index_kind, ROWS), Array::untouched(Kind::I32, ROWS));
        let arguments = [
            Arg::Array(&live(LIVE)),
            Int(ROWS as i32),
            Int(columns),
            Arg::Array(x),
            Int(end),
            Arg::Array(&index),
            Arg::Array(&done),
        ];
        Library::of(element).launch(kernel, grid, threads, &arguments).expect("the launch keeps the rules");
        (index.values(), done.values())
    });
    assert_eq!(results[0], results[1], "argmax_i32 beside argmax_i64");
    std::mem::take(&mut results[0])
}

#[test]
fn argmax_takes_the_first_of_equals_and_tells_which_rows_are_done() {
    for_each(|element, columns, launch| {
        let mut x = padded(columns, columns, 5.0);
        let last = columns - 1;
        // Row 0: the maximum is last. Row 1: it occurs twice, far apart. Row 2: everywhere.
        x[last] = 9.0;
        x[columns + columns / 3] = 9.0;
        x[columns + last] = 9.0;
        x[2 * columns..3 * columns].fill(-4.0);
        let x = Array::new(element, x);
        let places = [last as f64, (columns / 3) as f64, 0.0, -7.0, -7.0];
        for end in [0, last as i32, (columns / 3) as i32, -1] {
            let done = places.map(|place| if place < 0.0 { -7.0 } else { f64::from(place == f64::from(end)) });
            let got = argmax(element, launch, &x, end);
            assert_eq!(got, (places.to_vec(), done.to_vec()), "{columns} columns, end {end}, {element:?}");
        }
    });
}

#[test]
fn argmax_never_chooses_nan_and_takes_minus_infinity_for_a_number() {
    let (nan, least) = (f64::NAN, f64::NEG_INFINITY);
    for element in Kind::ELEMENTS {
        let x = [[nan, nan, -3.0, nan], [nan, least, least, nan], [nan; 4], [9.0; 4], [9.0; 4]];
        let x = Array::new(element, x.into_iter().flatten());
        for launch in ROW_LAUNCHES {
            assert_eq!(argmax(element, launch, &x, 2).0, [2.0, 1.0, 0.0, -7.0, -7.0]);
        }
    }
}
