//! One stage: the durations of its runs, and the sizes in which it runs.

use smallvec::SmallVec;

use super::{CostPoint, curve::Curve, steps::StepLaw};

/// The times of one stage by executed size.
///
/// A device that captures graphs runs a few sizes (buckets). Rows run in the cheapest bucket that holds them, so the
/// time is a step function of rows. A larger bucket may be faster than a smaller one. Then the smaller one is not used,
/// so more rows never take less time.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) curve: Curve,
    /// Of a cell whose tasks run several steps: their times. The curve then only tells how runs spread.
    pub(super) steps: Option<StepLaw>,
    /// Ascending; empty: any size is executed unpadded.
    buckets: SmallVec<[u32; 8]>,
}

impl Stage {
    /// Creates a stage with batches of up to `max_rows` rows and its profiled points.
    pub(super) fn new(max_rows: u32, buckets: &[u32], points: &[CostPoint]) -> Self {
        let mut buckets: SmallVec<[u32; 8]> = buckets.iter().copied().filter(|&bucket| bucket > 0).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let curve = Curve::new(buckets.is_empty().then_some(max_rows));
        let usable = points.iter().filter(|point| point.rows > 0);
        let points = usable.map(|point| (point.rows, point.length.max(1), point.took_ns as f64)).collect();
        Self { curve: curve.profiled(points), steps: None, buckets }
    }

    /// Corrects the times by one run.
    pub(super) fn learn(&mut self, rows: u32, bucket: u32, length: u64, took_ns: f64) {
        self.curve.learn(rows, bucket, length, took_ns);
        if let Some(steps) = &mut self.steps {
            steps.learn(rows, length, took_ns.max(1.0));
        }
    }

    /// Returns the size in which a batch of `rows` is executed: the cheapest bucket that holds it; the smallest one if
    /// several take equally long or have no known time. Without buckets, or if none is large enough, it is `rows`.
    pub(super) fn bucket(&self, rows: u32, length: u64) -> u32 {
        let holding = &self.buckets[self.buckets.partition_point(|&bucket| bucket < rows)..];
        match holding {
            [] => rows,
            &[only] => only,
            &[smallest, ..] => {
                let times = holding.iter().filter_map(|&bucket| Some((bucket, self.curve.predict(bucket, length)?)));
                times.min_by(|(_, one), (_, two)| one.total_cmp(two)).map_or(smallest, |(bucket, _)| bucket)
            }
        }
    }

    /// Returns the predicted time in nanoseconds, or `None` if no time is known. More rows than the largest bucket
    /// holds take proportionally longer.
    pub(super) fn predict(&self, rows: u32, length: u64) -> Option<f64> {
        if let Some(steps) = &self.steps {
            return steps.terms().map(|terms| terms.run_ns(f64::from(rows.max(1)), length.max(1) as f64));
        }
        let full = self.buckets.last().copied().filter(|&largest| rows > largest);
        let Some(largest) = full else { return self.curve.predict(self.bucket(rows, length), length) };
        self.curve.predict(largest, length).map(|ns| ns * f64::from(rows) / f64::from(largest))
    }

    /// Returns the duration of a run by the profile, or else by its padded tokens, which covers sizes that never ran.
    pub(super) fn run_ns(&self, rows: u32, length: u64) -> Option<f64> {
        if self.curve.is_profiled {
            self.predict(rows, length)
        } else {
            self.curve.law.predict(self.bucket(rows, length), length)
        }
    }

    /// Returns the part of a run's time that does not grow with rows. It is the smaller of two estimates: how much less
    /// the second row of a batch takes than the first, and the line through the latest runs.
    pub(super) fn fixed_ns(&self, length: u64) -> Option<f64> {
        if let Some(steps) = &self.steps {
            return steps.terms().map(|terms| terms.fixed_ns + length.max(1) as f64 * terms.step_ns);
        }
        let of_two = 2.0 * self.predict(1, length)? - self.predict(2, length)?;
        Some(of_two.min(self.curve.law.fixed_ns()?).max(0.0))
    }

    /// Returns the part of [`Self::run_ns`] that rows add to a batch.
    pub(super) fn added_ns(&self, rows: u32, length: u64) -> Option<f64> {
        let (_, row_ns) = self.tangent(length)?;
        Some(f64::from(rows.max(1)) * row_ns)
    }

    /// Returns what rows add to batches that they share with others, as recent rows did: the same, and their share of
    /// the fixed time.
    pub(super) fn share_ns(&self, rows: u32, length: u64) -> Option<f64> {
        let (fixed_ns, _) = self.tangent(length)?;
        Some(self.added_ns(rows, length)? + fixed_ns * self.curve.law.share_of(rows))
    }

    /// Returns the line that [`Self::run_ns`] follows near the recent mean number of rows, neither part below 0: the
    /// fixed time of a run, and what a row adds to it.
    ///
    /// Of a profile it is the tangent there. The law would not do, although it is fitted to the latest runs: the larger
    /// their batches are, the less of their time seems fixed, and the more rows that are left behind seem to cost. Then
    /// batches grow further, and stay large whatever the load.
    fn tangent(&self, length: u64) -> Option<(f64, f64)> {
        let Curve { law, rows: sizes, is_profiled, .. } = &self.curve;
        if !is_profiled {
            return Some((law.fixed_ns()?, law.tokens_ns(1, length)?));
        }
        // Times beyond the last known one are proportional to rows, as if nothing of them were fixed.
        let last = sizes.sizes().last()? as u32;
        let rows = (law.mean_rows()? as u32).min(last.saturating_sub(1)).max(1);
        // Between two buckets the curve is the line through their times.
        let (ns, next_ns) = (self.curve.predict(rows, length)?, self.curve.predict(rows + 1, length)?);
        let row_ns = (next_ns - ns).max(0.0);
        Some(((ns - f64::from(rows) * row_ns).max(0.0), row_ns))
    }

    /// Returns the sizes between which times are linear or constant: the sizes with known times, or all buckets.
    pub(super) fn sizes(&self) -> SmallVec<[u32; 16]> {
        if !self.buckets.is_empty() {
            return self.buckets.iter().copied().collect();
        }
        self.curve.rows.sizes().flat_map(|at| [at.floor() as u32, at.ceil() as u32]).collect()
    }
}
