//! Pooling over the windows of images.

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Int, Ints},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROW_LAUNCHES, ROWS, assert_rows, live, uniform},
};

const CHANNELS: usize = 3;

/// One axis of a window: lengths of input and output, the window's size and stride, padding before and behind.
#[derive(Clone, Copy, Debug)]
struct Axis {
    length: i32,
    out: i32,
    size: i32,
    stride: i32,
    begin: i32,
    end: i32,
}

impl Axis {
    /// (places of the input, how many places of input and padding) under the window at `out`.
    fn window(&self, out: i32) -> (Vec<usize>, usize) {
        let places = (0..self.size).map(|place| out * self.stride - self.begin + place);
        let padded: Vec<i32> = places.filter(|&place| place < self.length + self.end).collect();
        let inside = padded.iter().filter(|&&place| (0..self.length).contains(&place)).map(|&place| place as usize);
        (inside.collect(), padded.len())
    }
}

const fn axis(length: i32, size: i32, stride: i32, begin: i32, end: i32, ceil: bool) -> Axis {
    let beyond = length + begin + end - size;
    let steps = if ceil { (beyond + stride - 1) / stride } else { beyond / stride };
    Axis { length, out: steps + 1, size, stride, begin, end }
}

/// (height, width): plain, padded unevenly, strided beyond the end (ceil_mode), one window, one pixel.
const WINDOWS: [(Axis, Axis); 5] = [
    (axis(6, 2, 2, 0, 0, false), axis(33, 3, 1, 0, 0, false)),
    (axis(7, 3, 2, 1, 1, false), axis(31, 3, 2, 0, 2, false)),
    (axis(8, 3, 3, 0, 0, true), axis(32, 3, 2, 1, 0, true)),
    (axis(5, 5, 1, 0, 0, false), axis(9, 9, 4, 0, 0, false)),
    (axis(1, 1, 1, 0, 0, false), axis(1, 3, 1, 1, 1, false)),
];

/// Images of which those that are not live are NaN.
fn images(element: Kind, size: usize) -> Array {
    let mut x = uniform(size, ROWS * CHANNELS * size, 5.0);
    x[LIVE * CHANNELS * size..].fill(f64::NAN);
    Array::new(element, x)
}

/// Runs a kernel on all windows and launches, and holds it to `of`, which sees the values in a window and the number
/// of places in input and padding.
fn check(kernel: &str, options: &[i32], of: impl Fn(&[f64], usize) -> f64) {
    for element in Kind::ELEMENTS {
        for ((h, w), (grid, threads)) in WINDOWS.iter().flat_map(|window| LAUNCHES.map(|launch| (window, launch))) {
            let x = images(element, (h.length * w.length) as usize);
            let outputs = (h.out * w.out) as usize;
            let out = Array::untouched(element, ROWS * CHANNELS * outputs);
            let live = live(LIVE);
            let window =
                [h.length, w.length, h.out, w.out, h.size, w.size, h.stride, w.stride, h.begin, w.begin, h.end, w.end];
            let mut arguments = vec![Arg::Array(&live), Int(ROWS as i32), Int(CHANNELS as i32), Ints(&window)];
            arguments.extend(options.iter().map(|&option| Int(option)));
            arguments.extend([Arg::Array(&x), Arg::Array(&out)]);
            Library::of(element).launch(kernel, grid, threads, &arguments).expect("the launch keeps the rules");

            let values = x.values();
            let planes =
                values[..LIVE * CHANNELS * (h.length * w.length) as usize].chunks((h.length * w.length) as usize);
            let pooled = |plane: &[f64], out: usize| {
                let (rows, high) = h.window(out as i32 / w.out);
                let (columns, wide) = w.window(out as i32 % w.out);
                let inside = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
                let inside: Vec<f64> = inside.map(|(row, column)| plane[row * w.length as usize + column]).collect();
                of(&inside, high * wide)
            };
            let expected: Vec<f64> =
                planes.flat_map(|plane| (0..outputs).map(|out| pooled(plane, out)).collect::<Vec<_>>()).collect();
            assert_rows(element, &out, &expected, &format!("{kernel} over {h:?} by {w:?}"));
        }
    }
}

#[test]
fn max_pool_does_not_count_padding() {
    check("max_pool", &[], |inside, _| inside.iter().fold(f64::NEG_INFINITY, |most, &value| most.max(value)));
}

#[test]
fn average_pool_may_count_padding_or_not() {
    check("average_pool", &[0], |inside, _| inside.iter().sum::<f64>() / inside.len() as f64);
    check("average_pool", &[1], |inside, padded| inside.iter().sum::<f64>() / padded as f64);
}

#[test]
fn global_average_pool_is_over_each_plane() {
    for element in Kind::ELEMENTS {
        for size in [1, 49, 255, 1000] {
            for (grid, threads) in ROW_LAUNCHES {
                let x = images(element, size);
                let out = Array::untouched(element, ROWS * CHANNELS);
                let arguments = [
                    Arg::Array(&live(LIVE)),
                    Int(ROWS as i32),
                    Int(CHANNELS as i32),
                    Int(size as i32),
                    Arg::Array(&x),
                    Arg::Array(&out),
                ];
                Library::of(element)
                    .launch("global_average_pool", grid, threads, &arguments)
                    .expect("the launch keeps the rules");
                let means = x.values()[..LIVE * CHANNELS * size]
                    .chunks(size)
                    .map(|plane| plane.iter().sum::<f64>() / size as f64)
                    .collect::<Vec<_>>();
                assert_rows(element, &out, &means, &format!("global_average_pool of {size}"));
            }
        }
    }
}
