//! The latency of one stage over rows and length: profiled and observed times, and a monotone surface through them.

use std::ops::Range;

use super::{
    axis::{Axis, Place},
    estimate::{Estimate, Spread},
    law::LinearCost,
};

/// Times on a grid of knots, with one column per length.
///
/// Known times never fall as rows or length grow. If a learned time contradicts others, the newest evidence wins and
/// the others move with it; only if the learned time is still unconfirmed and the others are confirmed does it yield.
/// Unknown times are filled in along the rows of their column (constant below the first known time, linear between two,
/// proportional beyond the last) and kept within the bounds set by the known times around them.
///
/// If the device runs only a few sizes (buckets), each bucket has its own times, which need not grow with rows.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) rows: Axis,
    /// Whether known times never fall as rows grow.
    grows_with_rows: bool,
    lengths: Axis,
    /// Indexed by length, then by rows.
    known: Vec<Vec<Option<Estimate>>>,
    /// The monotone surface at the knots, length-major.
    surface: Vec<f64>,
    /// Upper bounds from known times. Kept to reuse the allocation.
    ceilings: Vec<f64>,
    /// Deviation of run times from predictions.
    pub(super) spread: Spread,
    /// The cost law over padded tokens.
    pub(super) law: LinearCost,
    /// Whether any time was profiled.
    pub(super) is_profiled: bool,
}

impl Curve {
    /// Creates a curve for a stage that runs any size up to `max_rows`; `None`: only a few sizes.
    pub(super) fn new(max_rows: Option<u32>) -> Self {
        Self {
            rows: max_rows.map_or_else(Axis::of_executed, Axis::of_rows),
            grows_with_rows: max_rows.is_some(),
            lengths: Axis::of_lengths(),
            known: Vec::new(),
            surface: Vec::new(),
            ceilings: Vec::new(),
            spread: Spread::new(),
            law: LinearCost::default(),
            is_profiled: false,
        }
    }

    /// Adds profiled points (rows, length, nanoseconds), each raised to the longest time of any smaller size.
    pub(super) fn profiled(mut self, mut points: Vec<(u32, u64, f64)>) -> Self {
        points.sort_by(|one, two| (one.0, one.1).cmp(&(two.0, two.1)).then(one.2.total_cmp(&two.2)));
        self.is_profiled = !points.is_empty();
        for (rows, length, ns) in points {
            let (column, row) = (self.lengths.profile(length), self.rows.profile(u64::from(rows)));
            self.make_room(column.is_new.then_some(column.knot), row.is_new.then_some(row.knot));
            self.known[column.knot][row.knot] = Some(Estimate::profiled(ns.max(1.0)));
            self.law.learn(rows, rows, length, ns.max(1.0));
            let (least, _) = self.bounds(column.knot, row.knot, |_| true);
            if let Some(estimate) = &mut self.known[column.knot][row.knot] {
                estimate.confine(least, f64::INFINITY);
            }
        }
        self.fill();
        self
    }

    /// Returns the predicted time in nanoseconds, or `None` if no time is known.
    pub(super) fn predict(&self, rows: u32, length: u64) -> Option<f64> {
        (!self.surface.is_empty()).then(|| self.at(self.lengths.place(length), self.rows.place(u64::from(rows.max(1)))))
    }

    /// Whether the time of this many rows of the least length was profiled, or has been confirmed by several runs of
    /// about as many.
    pub(super) fn is_confirmed(&self, rows: u32) -> bool {
        let known = self.rows.nearest(u64::from(rows)).and_then(|row| *self.known.first()?.get(row)?);
        self.is_profiled || known.is_some_and(|estimate| estimate.is_settled())
    }

    /// Corrects the curve by one run of `rows` rows, executed in a `bucket`, that took `took_ns`.
    pub(super) fn learn(&mut self, rows: u32, bucket: u32, length: u64, took_ns: f64) {
        self.law.learn(rows, bucket, length, took_ns.max(1.0));
        let (column, row) = (self.lengths.observe(length), self.rows.observe(u64::from(bucket.max(1))));
        if column.is_new || row.is_new {
            self.make_room(column.is_new.then_some(column.knot), row.is_new.then_some(row.knot));
            self.fill();
        }
        let (column, row) = (column.knot, row.knot);
        let sample = took_ns.max(1.0) * self.shape(column, row, bucket, length);
        match &mut self.known[column][row] {
            Some(estimate) => {
                // The first runs of a size define its estimate, so they say nothing about its spread.
                if estimate.is_confirmed() {
                    self.spread.learn(sample / estimate.ns());
                }
                estimate.learn(sample);
            }
            unknown => *unknown = Some(Estimate::first(sample)),
        }
        if self.known[column][row].is_some_and(|estimate| estimate.has_moved()) {
            self.follow();
            self.reconcile(column, row);
            self.fill();
        }
    }

    /// Scales profiled times of sizes that have not run since by the average drift of the sizes that have. A device
    /// that became slower, or is shared, is slower for all sizes.
    fn follow(&mut self) {
        let drifts = self.known.iter().flatten().flatten().filter_map(Estimate::drift);
        let (sum, weights) =
            drifts.fold((0.0, 0.0), |(sum, weights), (drift, weight)| (sum + drift * weight, weights + weight));
        if weights > 0.0 {
            let estimates = self.known.iter_mut().flatten().flatten();
            estimates.for_each(|estimate| estimate.follow(sum / weights));
        }
    }

    /// Returns the factor from a time of this size to a time of the knot's size.
    fn shape(&self, column: usize, row: usize, rows: u32, length: u64) -> f64 {
        match self.predict(rows, length) {
            Some(here) if here > 0.0 => self.value(column, row) / here,
            _ => 1.0,
        }
    }

    fn make_room(&mut self, new_column: Option<usize>, new_row: Option<usize>) {
        if let Some(row) = new_row {
            self.known.iter_mut().for_each(|column| column.insert(row, None));
        }
        if let Some(column) = new_column {
            self.known.insert(column, vec![None; self.rows.len()]);
        }
    }

    /// Makes the other known times consistent with one that has changed.
    fn reconcile(&mut self, column: usize, row: usize) {
        let Some(mut newest) = self.known[column][row] else { return };
        if !newest.is_confirmed() {
            let (least, most) = self.bounds(column, row, Estimate::is_confirmed);
            newest.confine(least, most);
            self.known[column][row] = Some(newest);
        }
        let (narrower, wider) = (self.no_wider(row), self.no_narrower(row));
        for times in &mut self.known[..=column] {
            times[narrower.clone()].iter_mut().flatten().for_each(|smaller| smaller.confine(0.0, newest.ns()));
        }
        for times in &mut self.known[column..] {
            times[wider.clone()].iter_mut().flatten().for_each(|larger| larger.confine(newest.ns(), f64::INFINITY));
        }
    }

    /// Returns the rows whose times are at most those of `row`.
    fn no_wider(&self, row: usize) -> Range<usize> {
        if self.grows_with_rows { 0..row + 1 } else { row..row + 1 }
    }

    /// Returns the rows whose times are at least those of `row`.
    fn no_narrower(&self, row: usize) -> Range<usize> {
        if self.grows_with_rows { row..self.rows.len() } else { row..row + 1 }
    }

    /// Returns the longest known time of smaller sizes and the shortest known time of larger sizes, considering only
    /// estimates that `count`.
    fn bounds(&self, column: usize, row: usize, count: impl Fn(&Estimate) -> bool) -> (f64, f64) {
        let (mut least, mut most) = (0.0_f64, f64::INFINITY);
        let (narrower, wider) = (self.no_wider(row), self.no_narrower(row));
        for (c, times) in self.known.iter().enumerate() {
            for (r, estimate) in times.iter().enumerate() {
                let Some(estimate) = estimate.filter(&count) else { continue };
                if (c, r) == (column, row) {
                    continue;
                }
                if c <= column && narrower.contains(&r) {
                    least = least.max(estimate.ns());
                } else if c >= column && wider.contains(&r) {
                    most = most.min(estimate.ns());
                }
            }
        }
        (least, most)
    }

    /// Computes the surface at the knots.
    fn fill(&mut self) {
        let (columns, rows) = (self.lengths.len(), self.rows.len());
        self.known.iter_mut().flatten().flatten().for_each(Estimate::draw);
        self.ceilings.clear();
        self.ceilings.resize(columns * rows, f64::INFINITY);
        // From the largest size down, each ceiling is the least known time of any larger size.
        for c in (0..columns).rev() {
            for r in (0..rows).rev() {
                let longer = if c + 1 < columns { self.ceilings[(c + 1) * rows + r] } else { f64::INFINITY };
                let wider =
                    if self.grows_with_rows && r + 1 < rows { self.ceilings[c * rows + r + 1] } else { f64::INFINITY };
                let own = self.known[c][r].map_or(f64::INFINITY, |estimate| estimate.ns());
                self.ceilings[c * rows + r] = own.min(longer).min(wider);
            }
        }
        self.surface.clear();
        for c in 0..columns {
            // From the smallest size up, each time is at least that of any smaller size.
            let (mut below, mut above) = (None, self.known_from(c, 0));
            for r in 0..rows {
                if above == Some(r) {
                    (below, above) = (above, self.known_from(c, r + 1));
                }
                let shorter = if c > 0 { self.surface[(c - 1) * rows + r] } else { 0.0 };
                let narrower = if self.grows_with_rows && r > 0 { self.surface[c * rows + r - 1] } else { 0.0 };
                let guess = self.along_column(c, r, below, above).min(self.ceilings[c * rows + r]);
                self.surface.push(guess.max(shorter).max(narrower));
            }
        }
    }

    /// Returns the first row of a column, from this one on, whose time is known.
    fn known_from(&self, column: usize, row: usize) -> Option<usize> {
        (row..self.rows.len()).find(|&row| self.known[column][row].is_some())
    }

    /// Interpolates a time from the known times of its column: the last up to this row, and the first beyond it.
    fn along_column(&self, column: usize, row: usize, below: Option<usize>, above: Option<usize>) -> f64 {
        let known = |row: usize| self.known[column][row].map(|estimate| (self.rows.at(row), estimate.ns()));
        let at = self.rows.at(row);
        match (below.and_then(known), above.and_then(known)) {
            (Some((low, start)), Some((high, end))) => start + (end - start) * (at - low) / (high - low),
            (Some((low, start)), None) => start * at / low,
            (None, Some((_, end))) => end,
            (None, None) => 0.0,
        }
    }

    fn at(&self, length: Place, row: Place) -> f64 {
        let along_rows = |column: usize| blend(self.value(column, row.low), self.value(column, row.high), row.weight);
        let low = along_rows(length.low);
        let high = if length.high == length.low { low } else { along_rows(length.high) };
        blend(low, high, length.weight) * length.scale * row.scale
    }

    fn value(&self, column: usize, row: usize) -> f64 {
        self.surface[column * self.rows.len() + row]
    }
}

/// Interpolates between two times; never exceeds the longer one through rounding.
fn blend(low: f64, high: f64, weight: f64) -> f64 {
    (low + (high - low) * weight).min(low.max(high))
}
