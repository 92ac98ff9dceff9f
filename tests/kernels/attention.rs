//! Attention over packed sequences.

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Float, Int},
        Library,
    },
    numbers::{assert_rows, live, uniform},
};

/// Packed sequences, with room for more tokens and sequences after them.
struct Case {
    element: Kind,
    lengths: Vec<usize>,
    heads: usize,
    head_size: usize,
    /// Computes the elements of the arrays from numbers between -1 and 1.
    values: fn(f64) -> f64,
    /// A sequence whose queries, keys and values are NaN.
    poisoned: Option<usize>,
}

impl Case {
    const SPARE_TOKENS: usize = 5;

    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }

    fn offsets(&self) -> Vec<f64> {
        let mut offsets = vec![0.0];
        for &length in &self.lengths {
            offsets.push(offsets[offsets.len() - 1] + length as f64);
        }
        offsets
    }

    fn check(&self) {
        let hidden = self.heads * self.head_size;
        let room = self.tokens() + Self::SPARE_TOKENS;
        // Queries, keys and values side by side in one matrix, as projections compute them.
        let mut qkv: Vec<f64> = uniform(self.tokens(), room * 3 * hidden, 1.0).into_iter().map(self.values).collect();
        qkv[self.tokens() * 3 * hidden..].fill(f64::NAN);
        if let Some(sequence) = self.poisoned {
            let offsets = self.offsets();
            let (begin, end) = (offsets[sequence] as usize, offsets[sequence + 1] as usize);
            qkv[begin * 3 * hidden..end * 3 * hidden].fill(f64::NAN);
        }
        let qkv = Array::new(self.element, qkv);
        let part = |place: usize| Arg::Inside(&qkv, place * hidden);
        let out = Array::untouched(self.element, room * hidden);
        let mut offsets = self.offsets();
        offsets.resize(self.lengths.len() + 3, 1e9);
        let size = [32, 64, 128].into_iter().find(|&size| size >= self.head_size).expect("a head size of at most 128");
        let arguments = [
            Arg::Array(&live(self.lengths.len())),
            Int(self.lengths.len() as i32 + 2),
            Arg::Array(&Array::new(Kind::I32, offsets)),
            Int(room as i32),
            Int(self.heads as i32),
            Int(self.head_size as i32),
            Int(3 * hidden as i32),
            Float(self.scale()),
            part(0),
            part(1),
            part(2),
            Arg::Array(&out),
        ];
        let grid = [room.div_ceil(32) as u32, self.heads as u32];
        Library::of(self.element)
            .launch(&format!("attention_{size}"), grid, 128, &arguments)
            .expect("the launch keeps the rules");
        let what = format!("attention over {:?}, heads of {}", self.lengths, self.head_size);
        assert_rows(self.element, &out, &self.expected(&qkv.values()), &what);
    }

    fn expected(&self, qkv: &[f64]) -> Vec<f64> {
        let hidden = self.heads * self.head_size;
        let vector = |token: usize, part: usize, head: usize| {
            &qkv[(token * 3 + part) * hidden + head * self.head_size..][..self.head_size]
        };
        let mut out = Vec::new();
        let offsets = self.offsets();
        for (sequence, &length) in self.lengths.iter().enumerate() {
            let own = offsets[sequence] as usize..offsets[sequence] as usize + length;
            for (query, head) in own.clone().flat_map(|query| (0..self.heads).map(move |head| (query, head))) {
                let dot = |key: usize| {
                    let pairs = vector(query, 0, head).iter().zip(vector(key, 1, head));
                    pairs.map(|(q, k)| q * k).sum::<f64>() * f64::from(self.scale())
                };
                let scores: Vec<f64> = own.clone().map(dot).collect();
                let most = scores.iter().fold(f64::NEG_INFINITY, |most, &score| most.max(score));
                let shares: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = shares.iter().sum();
                out.extend((0..self.head_size).map(|column| {
                    let values = own.clone().zip(&shares).map(|(key, share)| share * vector(key, 2, head)[column]);
                    values.sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

#[test]
fn sequences_of_any_length_attend_to_themselves_alone() {
    for element in Kind::ELEMENTS {
        for lengths in [vec![1], vec![1; 40], vec![31, 32, 33], vec![5, 0, 0, 70, 1, 0], vec![255, 3, 257]] {
            Case { element, lengths, heads: 2, head_size: 32, values: |x| 2.0 * x, poisoned: None }.check();
        }
    }
}

#[test]
fn heads_of_every_size_up_to_128() {
    for element in Kind::ELEMENTS {
        for head_size in [1, 3, 31, 33, 64, 80, 127, 128] {
            Case { element, lengths: vec![33, 1, 20], heads: 3, head_size, values: |x| 2.0 * x, poisoned: None }
                .check();
        }
    }
}

#[test]
fn sequences_beyond_512_tokens() {
    Case { element: Kind::F32, lengths: vec![512, 1000], heads: 1, head_size: 32, values: |x| 2.0 * x, poisoned: None }
        .check();
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    // Scores reach thousands, so that most weights are zero and each tile may have a much larger maximum. Whole numbers
    // and a scale of 1/8 make them exact in fp32.
    Case {
        element: Kind::F32,
        lengths: vec![100, 1, 64],
        heads: 2,
        head_size: 64,
        values: |x| (40.0 * x).round(),
        poisoned: None,
    }
    .check();
}

#[test]
fn no_sequence_at_all_writes_nothing() {
    Case { element: Kind::F32, lengths: vec![], heads: 2, head_size: 64, values: |x| 2.0 * x, poisoned: None }.check();
}

#[test]
fn a_sequence_of_nan_leaves_its_neighbours_alone() {
    for poisoned in 0..3 {
        let lengths = vec![5, 40, 7];
        let values = |x| 2.0 * x;
        Case { element: Kind::F32, lengths, heads: 2, head_size: 32, values, poisoned: Some(poisoned) }.check();
    }
}
