//! One axis of a latency curve, rows or length, with a knot for each profiled size and each observed bucket.

use smallvec::SmallVec;

/// After this many samples, a knot moves by an eighth of the distance to each further sample.
const SETTLED: u32 = 8;

/// A size for which times are kept.
#[derive(Clone, Copy, Debug)]
struct SizeSample {
    at: f64,
    bucket: u32,
    /// Number of samples; 0 for a profiled knot, which does not move.
    samples: u32,
}

/// Knots in ascending order, at most one per bucket that has no profiled knot.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    knots: SmallVec<[SizeSample; 8]>,
    bucket: fn(u64) -> u32,
    /// Sizes from here on share a bucket of their own.
    largest: u64,
}

/// Position of a size between two knots: `low` and `high` blended by `weight`, and multiplied by `scale` beyond the
/// last knot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) low: usize,
    pub(super) high: usize,
    pub(super) weight: f64,
    pub(super) scale: f64,
}

/// The knot that a size belongs to, and whether it was inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) knot: usize,
    pub(super) is_new: bool,
}

impl Axis {
    /// Axis of rows. Buckets double: 1, 2, 3 to 4, 5 to 8, and so on. The largest batch has its own bucket, because
    /// full batches are common and times beyond the last knot are only extrapolated.
    pub(super) fn of_rows(largest: u32) -> Self {
        let octave = |rows: u64| u64::BITS - rows.saturating_sub(1).leading_zeros();
        Self { knots: SmallVec::new(), bucket: octave, largest: u64::from(largest) }
    }

    /// Axis of executed sizes. Each size has its own bucket, because there are few.
    pub(super) fn of_executed() -> Self {
        Self { knots: SmallVec::new(), bucket: |rows| u32::try_from(rows).unwrap_or(u32::MAX), largest: u64::MAX }
    }

    /// Axis of lengths. Buckets are quarters of an octave: 16 to 19, 20 to 23, 24 to 27, 28 to 31, 32 to 39, and so on.
    pub(super) fn of_lengths() -> Self {
        Self { knots: SmallVec::new(), bucket: quarter_octave, largest: u64::MAX }
    }

    fn bucket(&self, size: u64) -> u32 {
        if size >= self.largest { u32::MAX } else { (self.bucket)(size) }
    }

    pub(super) fn len(&self) -> usize {
        self.knots.len()
    }

    pub(super) fn at(&self, knot: usize) -> f64 {
        self.knots[knot].at
    }

    pub(super) fn sizes(&self) -> impl Iterator<Item = f64> {
        self.knots.iter().map(|knot| knot.at)
    }

    /// Returns the knot of a profiled size.
    pub(super) fn profile(&mut self, size: u64) -> Admitted {
        match self.knots.binary_search_by(|knot| knot.at.total_cmp(&(size as f64))) {
            Ok(knot) => Admitted { knot, is_new: false },
            Err(knot) => self.insert(knot, size, 0),
        }
    }

    /// Returns the knot of an observed size: the nearest knot of its bucket, which moves towards the size unless it was
    /// profiled.
    pub(super) fn observe(&mut self, size: u64) -> Admitted {
        let at = size as f64;
        let Some(index) = self.nearest(size) else {
            let index = self.knots.partition_point(|knot| knot.at < at);
            return self.insert(index, size, 1);
        };
        let knot = &mut self.knots[index];
        if knot.samples > 0 {
            knot.samples = (knot.samples + 1).min(SETTLED);
            knot.at += (at - knot.at) / f64::from(knot.samples);
        }
        Admitted { knot: index, is_new: false }
    }

    /// Returns the nearest knot of a size's bucket, if the bucket has any.
    pub(super) fn nearest(&self, size: u64) -> Option<usize> {
        let (bucket, at) = (self.bucket(size), size as f64);
        let knots = self.knots.iter().enumerate().filter(|(_, knot)| knot.bucket == bucket);
        let nearest = knots.min_by(|(_, one), (_, two)| (one.at - at).abs().total_cmp(&(two.at - at).abs()));
        nearest.map(|(index, _)| index)
    }

    fn insert(&mut self, index: usize, size: u64, samples: u32) -> Admitted {
        let bucket = self.bucket(size);
        self.knots.insert(index, SizeSample { at: size as f64, bucket, samples });
        Admitted { knot: index, is_new: true }
    }

    /// Returns the position of a size for interpolation: constant below the first knot, linear between two,
    /// proportional beyond the last. The axis must have a knot.
    pub(super) fn place(&self, size: u64) -> Place {
        let (size, last) = (size as f64, self.knots.len() - 1);
        let high = self.knots.partition_point(|knot| knot.at <= size);
        if high == 0 {
            return Place { low: 0, high: 0, weight: 0.0, scale: 1.0 };
        }
        if high > last {
            return Place { low: last, high: last, weight: 0.0, scale: size / self.knots[last].at };
        }
        let (below, above) = (self.knots[high - 1].at, self.knots[high].at);
        Place { low: high - 1, high, weight: (size - below) / (above - below), scale: 1.0 }
    }
}

fn quarter_octave(length: u64) -> u32 {
    let octave = length.max(1).ilog2();
    let quarter = if octave >= 2 { length >> (octave - 2) } else { length << (2 - octave) } & 3;
    octave * 4 + quarter as u32
}
