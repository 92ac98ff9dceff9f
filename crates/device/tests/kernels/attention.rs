//! Attention over padded sequences.

use crate::{
    array::{Array, Kind, UNTOUCHED},
    library::{
        Arg::{self, Float, Int},
        Library,
    },
    numbers::{assert_close, live, uniform},
};

/// Masks at most this are those of keys that may be left out.
const MASKED: f64 = -10_000.0;

/// Rows of a launch behind those that hold data.
const SPARE_ROWS: usize = 2;

/// A batch, with a length for each row that holds data.
#[derive(Clone)]
struct Case {
    element: Kind,
    lengths: Vec<usize>,
    /// Whether the kernel gets the lengths; otherwise rows have all keys.
    gives_lengths: bool,
    queries: usize,
    keys: usize,
    /// Whether queries and keys are the same tokens.
    own: bool,
    heads: usize,
    head_size: usize,
    /// The mask of a key, by its row, its number and the row's length.
    mask: Option<fn(usize, usize, usize) -> f64>,
    replaces: bool,
    /// The end of the keys that can matter, if those behind it have a weight of 0.
    last: usize,
    /// Computes elements from numbers between -1 and 1.
    values: fn(f64) -> f64,
    /// Multiplies scores.
    scale: f32,
}

/// Vectors in an array, with their distances by row, head and token.
struct Vectors {
    array: Array,
    strides: [usize; 3],
}

impl Vectors {
    fn at(&self, [row, head, token]: [usize; 3]) -> usize {
        row * self.strides[0] + head * self.strides[1] + token * self.strides[2]
    }

    fn arguments(&self) -> [Arg<'_>; 4] {
        let [row, head, token] = self.strides.map(|stride| Int(stride as i32));
        [Arg::Array(&self.array), row, head, token]
    }
}

/// Masks what lies behind a row's length.
fn padding(_: usize, key: usize, length: usize) -> f64 {
    if key < length { 0.0 } else { MASKED }
}

impl Case {
    fn new(lengths: &[usize]) -> Self {
        let tokens = lengths.iter().copied().max().unwrap_or(0) + 5;
        Self {
            element: Kind::F32,
            lengths: lengths.to_vec(),
            gives_lengths: true,
            queries: tokens,
            keys: tokens,
            own: true,
            heads: 2,
            head_size: 32,
            mask: Some(padding),
            replaces: false,
            last: usize::MAX,
            values: |x| 2.0 * x,
            scale: 1.0 / 32_f32.sqrt(),
        }
    }

    fn rows(&self) -> usize {
        self.lengths.len() + SPARE_ROWS
    }

    /// Returns the end of the keys that belong to a row's softmax.
    fn end(&self, row: usize) -> usize {
        let length = if self.gives_lengths { self.lengths[row].min(self.keys) } else { self.keys };
        let Some(mask) = self.mask else { return self.keys };
        let is_masked = |key: &usize| mask(row, *key, self.lengths[row]) <= MASKED;
        let shown = (0..self.keys).rev().find(|key| !is_masked(key)).map_or(0, |key| key + 1);
        length.max(shown).min(self.last)
    }

    /// Returns vectors, by tokens with a gap behind each or by heads. All that no result depends on are NaN.
    fn vectors(&self, seed: usize, tokens: usize, by_heads: bool) -> Vectors {
        let strides = if by_heads {
            [self.heads * tokens * self.head_size, tokens * self.head_size, self.head_size]
        } else {
            [tokens * (self.heads * self.head_size + 3), self.head_size, self.heads * self.head_size + 3]
        };
        let mut all = vec![f64::NAN; self.rows() * strides[0]];
        let numbers = uniform(seed, self.lengths.len() * self.heads * tokens * self.head_size, 1.0);
        let mut numbers = numbers.into_iter().map(self.values);
        for row in 0..self.lengths.len() {
            let end = if self.own || tokens == self.keys && seed > 0 { self.end(row) } else { tokens };
            for (head, token) in (0..self.heads).flat_map(|head| (0..tokens).map(move |token| (head, token))) {
                let first = row * strides[0] + head * strides[1] + token * strides[2];
                for place in all[first..][..self.head_size].iter_mut() {
                    let number = numbers.next().expect("a number for each element");
                    *place = if token < end { number } else { f64::NAN };
                }
            }
        }
        Vectors { array: Array::new(self.element, all), strides }
    }

    /// Launches the kernel. Returns the results, and their strides.
    fn launched(&self, [q, k, v]: &[Vectors; 3]) -> Vectors {
        let strides = [self.queries * self.heads * self.head_size, self.head_size, self.heads * self.head_size];
        let out = Vectors { array: Array::untouched(self.element, self.rows() * strides[0]), strides };
        let lengths = self.lengths.iter().map(|&length| length as f64).chain([1e9; SPARE_ROWS]);
        let lengths = Array::new(Kind::I32, lengths);
        let masks = self.mask.map(|mask| {
            let of_row = |row: usize| (0..self.keys).map(move |key| mask(row, key, self.lengths[row]));
            let masks = (0..self.lengths.len()).flat_map(of_row);
            Array::new(Kind::F32, masks.chain(vec![f64::NAN; SPARE_ROWS * self.keys]))
        });
        let size = [32, 64, 128].into_iter().find(|&size| size >= self.head_size).expect("a head size of at most 128");
        let int = |number: usize| Int(number as i32);
        let live = live(self.lengths.len());
        let mut arguments = vec![
            Arg::Array(&live),
            int(self.rows()),
            if self.gives_lengths { Arg::Array(&lengths) } else { Arg::Null },
            int(self.queries),
            int(self.keys),
            int(self.heads),
            int(self.head_size),
            Float(self.scale),
            masks.as_ref().map_or(Arg::Null, Arg::Array),
            int(self.replaces.into()),
            int(self.own.into()),
        ];
        arguments.extend([q, k, v, &out].into_iter().flat_map(Vectors::arguments));
        // Fewer blocks than tiles or heads must do the same.
        let grid =
            if self.heads.is_multiple_of(2) { [self.queries.div_ceil(32) as u32, self.heads as u32] } else { [1, 1] };
        Library::of(self.element)
            .launch(&format!("attention_{size}"), grid, 128, &arguments)
            .expect("the launch keeps the rules");
        out
    }

    fn check(&self) {
        // Keys and values never read what lies behind the end; queries only if they are the same tokens.
        let vectors =
            [self.vectors(0, self.queries, false), self.vectors(1, self.keys, true), self.vectors(2, self.keys, false)];
        let out = self.launched(&vectors);
        let [q, k, v] = vectors.map(|Vectors { array, strides }| (array.values(), strides));
        let vector = |(values, strides): &(Vec<f64>, [usize; 3]), place: [usize; 3]| {
            let first: usize = place.iter().zip(strides).map(|(index, stride)| index * stride).sum();
            values[first..][..self.head_size].to_vec()
        };
        let results = out.array.values();
        for row in 0..self.rows() {
            for (head, query) in (0..self.heads).flat_map(|head| (0..self.queries).map(move |query| (head, query))) {
                let got = &results[out.at([row, head, query])..][..self.head_size];
                let what = format!("head {head} of query {query} in row {row} of {:?}", self.lengths);
                let expected = if row >= self.lengths.len() {
                    vec![UNTOUCHED; self.head_size]
                } else {
                    let keys = |key| (vector(&k, [row, head, key]), vector(&v, [row, head, key]));
                    self.expected(row, query, || vector(&q, [row, head, query]), &keys)
                };
                assert_close(self.element, got, &expected, &what);
            }
        }
    }

    /// Computes one query's result in double precision. `key` returns the vectors of a key and its value.
    fn expected(
        &self,
        row: usize,
        query: usize,
        vector: impl Fn() -> Vec<f64>,
        key: &dyn Fn(usize) -> (Vec<f64>, Vec<f64>),
    ) -> Vec<f64> {
        let end = self.end(row);
        if end == 0 || self.own && query >= end {
            return vec![0.0; self.head_size];
        }
        let vector = vector();
        let score = |number: usize| {
            let dot: f64 = vector.iter().zip(&key(number).0).map(|(q, k)| q * k).sum();
            let mask = self.mask.map_or(0.0, |mask| mask(row, number, self.lengths[row]));
            let score = dot * f64::from(self.scale);
            match (self.replaces, mask) {
                (true, 0.0) => score,
                (true, mask) => mask,
                (false, mask) => score + mask,
            }
        };
        let scores: Vec<f64> = (0..end).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = shares.iter().sum();
        let values: Vec<Vec<f64>> = (0..end).map(|number| key(number).1).collect();
        let column =
            |column: usize| values.iter().zip(&shares).map(|(value, share)| share * value[column]).sum::<f64>();
        (0..self.head_size).map(|number| column(number) / sum).collect()
    }
}

#[test]
fn rows_of_any_length_attend_to_themselves_alone() {
    for element in Kind::ELEMENTS {
        for lengths in [&[1, 1, 1][..], &[31, 32, 33], &[5, 0, 70, 1], &[255, 3, 129]] {
            for replaces in [false, true] {
                Case { element, replaces, ..Case::new(lengths) }.check();
            }
        }
    }
}

#[test]
fn heads_of_every_size_up_to_128() {
    for element in Kind::ELEMENTS {
        for head_size in [1, 3, 31, 33, 64, 80, 127, 128] {
            let scale = 1.0 / (head_size as f32).sqrt();
            Case { element, head_size, heads: 3, scale, ..Case::new(&[33, 1, 20]) }.check();
        }
    }
}

#[test]
fn more_than_512_tokens() {
    Case { heads: 1, ..Case::new(&[512, 700]) }.check();
}

#[test]
fn queries_of_other_tokens_than_the_keys_are_all_answered() {
    for (queries, keys) in [(3, 40), (40, 3), (33, 64), (64, 64)] {
        for lengths in [vec![3, 1], vec![2, 0]] {
            Case { queries, keys, own: false, ..Case::new(&lengths) }.check();
        }
    }
}

#[test]
fn masks_with_holes_are_applied_within_the_length() {
    let holes = |row: usize, key: usize, length: usize| {
        if key % 3 == row % 3 || key >= length { MASKED } else { -0.5 * (key % 2) as f64 }
    };
    Case { mask: Some(holes), ..Case::new(&[40, 1, 33]) }.check();
    let holes = |row: usize, key: usize, length: usize| if key % 3 == row % 3 || key >= length { MASKED } else { 0.0 };
    Case { mask: Some(holes), replaces: true, ..Case::new(&[40, 1, 33]) }.check();
}

#[test]
fn keys_behind_the_length_count_if_they_are_not_masked() {
    let late = |_: usize, key: usize, length: usize| if key < length || key == length + 2 { 0.0 } else { MASKED };
    for replaces in [false, true] {
        Case { mask: Some(late), replaces, ..Case::new(&[40, 1, 33]) }.check();
    }
    // Just not masked; exact in fp32 beside whole numbers.
    let case = Case { mask: Some(|_, _, _| -9_984.0), scale: 0.125, ..Case::new(&[40, 1, 33]) };
    Case { values: |x| (4.0 * x).round(), ..case }.check();
    Case { mask: None, ..Case::new(&[40, 1, 33]) }.check();
}

/// A softmax of equal masks weights keys by their scores if masks are added, and equally if they replace the scores.
#[test]
fn a_row_whose_keys_are_all_masked_is_as_long_as_it_is() {
    // Powers of two and whole numbers make the scores exact in fp32 beside such a mask.
    let whole = |x: f64| (4.0 * x).round();
    for replaces in [false, true] {
        let all = |_: usize, _: usize, _: usize| -16_384.0;
        let case = Case { mask: Some(all), replaces, values: whole, scale: 0.125, ..Case::new(&[40, 1, 33]) };
        case.check();
        Case { gives_lengths: false, ..case }.check();
    }
    let nothing = |_: usize, _: usize, _: usize| f64::NEG_INFINITY;
    let case = Case { mask: Some(nothing), heads: 1, ..Case::new(&[3]) };
    let vectors = [0, 1, 2].map(|seed| case.vectors(seed, case.keys, false));
    let out = case.launched(&vectors);
    assert!(out.array.values()[..3 * 32].iter().all(|value| value.is_nan()), "as in ONNX");
}

#[test]
fn without_lengths_all_keys_count() {
    let holes = |_: usize, key: usize, length: usize| if key % 5 == 4 || key >= length { MASKED } else { 0.0 };
    for replaces in [false, true] {
        Case { gives_lengths: false, mask: Some(holes), replaces, ..Case::new(&[40, 1, 33]) }.check();
    }
    Case { gives_lengths: false, mask: None, ..Case::new(&[40, 1, 33]) }.check();
}

/// Masks that replace scores are left out only where they lie so far below all others that they do not matter.
#[test]
fn masked_keys_count_where_other_scores_are_as_low() {
    let lowest = |_: usize, key: usize, length: usize| if key < length { 0.0 } else { MASKED };
    // Scores around -10,000: all products have the same sign.
    let values = |x: f64| if x < 0.0 { 0.25 } else { 0.5 };
    let case = Case { gives_lengths: false, mask: Some(lowest), replaces: true, values, ..Case::new(&[33, 40, 7]) };
    Case { scale: -2_000.0, ..case.clone() }.check();
    Case { scale: -3_000.0, ..case }.check();
}

#[test]
fn masked_keys_at_the_end_are_not_read_where_they_cannot_matter() {
    // What lies behind the tile of the last key that is not masked is NaN.
    for (head_size, last) in [(32, 64), (128, 32)] {
        let case = Case { gives_lengths: false, replaces: true, own: false, head_size, last, ..Case::new(&[31, 2]) };
        Case { queries: 40, keys: 200, ..case }.check();
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    // Scores reach thousands, so that most weights are zero and each tile may have a much larger maximum. Whole numbers
    // and a scale of 1/8 make them exact in fp32.
    let values = |x: f64| (40.0 * x).round();
    Case { head_size: 64, values, scale: 0.125, mask: None, ..Case::new(&[100, 1, 64]) }.check();
}

#[test]
fn no_row_at_all_writes_nothing() {
    Case::new(&[]).check();
}

#[test]
fn lengths_beyond_the_keys_are_limited() {
    let case = Case { mask: Some(|_, key, _| if key < 3 { 0.0 } else { MASKED }), ..Case::new(&[3, 3]) };
    Case { lengths: vec![1 << 30, 3], ..case }.check();
}
