//! Cuts where operators prefer different batch sizes (DVABatch sections 3 and 7.2).
//!
//! A model is measured in ranges of operators. Where the preferred batch of neighbours differs, a cut lets the policy
//! run each side at its size: a batch that was formed for the first is split for the second, and its first part is done
//! early. What that gains is weighed against what a boundary costs.

use paternoster_batching::{Ns, OperatorDiversity};
use serde::Serialize;

use super::{CutTable, find::preferred};

/// Cost of a stage boundary per request, beyond the times of the stages themselves: a step of the core and the transfer
/// to the lane.
pub const BOUNDARY_NS: Ns = 5_000;
/// A cut is accepted if rows then complete in at most this fraction of the time. A smaller gain is lost to noise.
pub(super) const PAYS: f64 = 0.95;
/// Most stages (DVABatch section 7.1).
const MOST_STAGES: usize = 8;

/// The preferred batches of ranges of operators, and the cuts that follow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorCuts {
    /// By range: the smallest batch whose throughput is within 5 % of the best.
    pub preferred_rows: Vec<u32>,
    /// Rows of the batch that is weighed: the most that a range prefers.
    pub rows: u32,
    /// Mean time until a row of this batch is done, without cuts.
    pub whole_ns: f64,
    /// The same with the accepted cuts.
    pub cut_ns: f64,
    /// Measured time that a boundary adds to this batch.
    pub boundary_ns: f64,
    /// The boundaries between ranges of different preferred batches, in order.
    pub weighed: Vec<WeighedCut>,
}

/// A boundary between two ranges, weighed beside the accepted cuts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeighedCut {
    /// Index of the range before it.
    pub behind: usize,
    /// The tensor that is cut at.
    pub tensor: String,
    /// How much earlier a row is done on average if the boundary cost nothing.
    pub gain_ns: f64,
    /// How much later the boundary makes it.
    pub cost_ns: f64,
    /// Whether it is cut.
    pub accepted: bool,
}

impl OperatorCuts {
    /// Weighs the boundaries between measured ranges: `ranges.at` are the tensors between its stages. `whole` is the
    /// uncut model, and `length` that of padded axes. `None` if no batch was measured in both.
    ///
    /// What a boundary adds to a batch follows from both: the ranges together take longer than the whole, by the
    /// boundaries between them. To that, [`BOUNDARY_NS`] is added.
    ///
    /// Cuts are accepted one after another, the best first, as long as each makes rows complete at least 5 % earlier.
    pub fn of(whole: &CutTable, ranges: &CutTable, length: u32) -> Option<Self> {
        let times = Times::new(whole, ranges, length)?;
        let preferred_rows = preferred(ranges, length);
        let largest = preferred_rows.iter().max().copied()?;
        let rows = times.sizes.iter().copied().filter(|&rows| rows <= largest).max()?;
        let changes = preferred_rows.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
        let candidates: Vec<usize> = changes.map(|(behind, _)| behind).collect();
        let whole_ns = times.mean_ns(rows, &[], None);
        let (mut accepted, mut cut_ns): (Vec<usize>, f64) = (Vec::new(), whole_ns);
        while accepted.len() + 1 < MOST_STAGES {
            let others = candidates.iter().filter(|behind| !accepted.contains(behind));
            let tried = others.map(|&behind| (with(&accepted, behind), behind));
            let tried = tried.map(|(cuts, behind)| (times.mean_ns(rows, &cuts, None), behind));
            match tried.min_by(|one, other| one.0.total_cmp(&other.0)) {
                Some((mean_ns, behind)) if mean_ns <= PAYS * cut_ns => {
                    accepted = with(&accepted, behind);
                    cut_ns = mean_ns;
                }
                _ => break,
            }
        }
        let weighed = candidates.iter().map(|&behind| {
            let others: Vec<usize> = accepted.iter().copied().filter(|own| *own != behind).collect();
            let cuts = with(&others, behind);
            let free_ns = times.mean_ns(rows, &cuts, Some(behind));
            WeighedCut {
                behind,
                tensor: ranges.at.get(behind).cloned().unwrap_or_default(),
                gain_ns: times.mean_ns(rows, &others, None) - free_ns,
                cost_ns: times.mean_ns(rows, &cuts, None) - free_ns,
                accepted: accepted.contains(&behind),
            }
        });
        let weighed = weighed.collect();
        let boundary_ns = times.boundary_ns(times.index(rows)?);
        Some(Self { preferred_rows, rows, whole_ns, cut_ns, boundary_ns, weighed })
    }

    /// Returns the tensors to cut at, in order.
    pub fn tensors(&self) -> Vec<String> {
        self.weighed.iter().filter(|cut| cut.accepted).map(|cut| cut.tensor.clone()).collect()
    }
}

/// Returns the mean time until a row of a batch is done in the measured stages of a cut, as Policy II runs them; `None`
/// if the batch was not measured.
pub(super) fn mean_ns(cut: &CutTable, rows: u32, length: u32) -> Option<f64> {
    let times = Times::new(cut, cut, length)?;
    times.index(rows)?;
    let all: Vec<usize> = (0..cut.stages.len() - 1).collect();
    Some(times.mean_ns(rows, &all, None))
}

/// Adds a cut to others; all ascend.
fn with(cuts: &[usize], behind: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = cuts.iter().copied().chain([behind]).collect();
    cuts.sort_unstable();
    cuts
}

/// The times of ranges by size.
struct Times {
    /// Rows, ascending.
    sizes: Vec<u32>,
    /// By range and size.
    ranges: Vec<Vec<Ns>>,
    /// By size: of the uncut model.
    whole: Vec<Ns>,
}

/// Time of the parts of a batch: until the last is done, and on average over the rows.
#[derive(Clone, Copy)]
struct Span {
    last_ns: f64,
    mean_ns: f64,
}

impl Times {
    fn new(whole: &CutTable, ranges: &CutTable, length: u32) -> Option<Self> {
        let both = |rows: &u32| Some((*rows, whole.total_ns(*rows, length)?, ranges.total_ns(*rows, length)?));
        let both: Vec<(u32, Ns, Ns)> = whole.rows().iter().filter_map(both).collect();
        let sizes: Vec<u32> = both.iter().map(|(rows, ..)| *rows).collect();
        let range_ns = |range: usize| {
            sizes
                .iter()
                .map(|&rows| ranges.point(range, rows, length).map(|point| point.median_ns))
                .collect::<Option<Vec<Ns>>>()
        };
        let of_ranges = (0..ranges.stages.len()).map(range_ns).collect::<Option<_>>()?;
        let whole = both.iter().map(|(_, whole, _)| *whole).collect();
        (!sizes.is_empty()).then_some(Self { sizes, ranges: of_ranges, whole })
    }

    fn index(&self, rows: u32) -> Option<usize> {
        self.sizes.iter().position(|own| *own == rows)
    }

    /// Returns the measured time that a boundary adds to a batch of a size.
    fn boundary_ns(&self, size: usize) -> f64 {
        let ranges_ns: Ns = self.ranges.iter().map(|times| times[size]).sum();
        let boundaries = self.ranges.len().saturating_sub(1).max(1);
        ranges_ns.saturating_sub(self.whole[size]) as f64 / boundaries as f64
    }

    /// Returns the time of ranges `from..to` as one stage: without the boundaries between them.
    fn stage_ns(&self, from: usize, to: usize, size: usize) -> f64 {
        let ranges_ns: Ns = self.ranges[from..to].iter().map(|times| times[size]).sum();
        (ranges_ns as f64 - (to - from - 1) as f64 * self.boundary_ns(size)).max(0.0)
    }

    /// Returns the mean time until a row of a batch is done, if the model is cut behind these ranges. At each cut the
    /// batch is split as Policy II does, depth-first: into the parts of least mean time among those that together take
    /// hardly longer than the batch. The boundary `free` costs nothing.
    fn mean_ns(&self, rows: u32, cuts: &[usize], free: Option<usize>) -> f64 {
        let ends: Vec<usize> = cuts.iter().map(|behind| behind + 1).chain([self.ranges.len()]).collect();
        let mut after: Option<Vec<Span>> = None;
        for (stage, &end) in ends.iter().enumerate().rev() {
            let begin = if stage == 0 { 0 } else { ends[stage - 1] };
            let is_free = |behind: usize| free == Some(behind);
            let spans = (0..self.sizes.len()).map(|size| {
                let entry_ns = if begin > 0 && is_free(begin - 1) { self.boundary_ns(size) } else { 0.0 };
                let own_ns = (self.stage_ns(begin, end, size) - entry_ns).max(0.0);
                let Some(after) = &after else { return Span { last_ns: own_ns, mean_ns: own_ns } };
                let rest = self.split(size, after);
                let own_ns = own_ns + if is_free(end - 1) { 0.0 } else { BOUNDARY_NS as f64 };
                Span { last_ns: own_ns + rest.last_ns, mean_ns: own_ns + rest.mean_ns }
            });
            after = Some(spans.collect());
        }
        let spans = after.unwrap_or_default();
        self.index(rows).map_or(0.0, |size| self.split(size, &spans).mean_ns)
    }

    /// Returns the times of a batch in the best parts of equal size. `after` has those of one part, by size.
    fn split(&self, size: usize, after: &[Span]) -> Span {
        let (rows, whole) = (self.sizes[size], after[size]);
        let most_ns = whole.last_ns / OperatorDiversity::default().threshold;
        let parts = self.sizes[..size].iter().zip(after).filter(|(part, _)| rows.is_multiple_of(**part));
        let spans = parts.map(|(&part, span)| {
            let count = f64::from(rows / part);
            Span { last_ns: count * span.last_ns, mean_ns: (count - 1.0) / 2.0 * span.last_ns + span.mean_ns }
        });
        spans.filter(|span| span.last_ns <= most_ns).fold(
            whole,
            |best, span| {
                if span.mean_ns < best.mean_ns { span } else { best }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LatencyPoint;

    const SIZES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

    /// Creates ranges whose batches take these times, in microseconds, in order.
    fn ranges(times: &[fn(u32) -> u32]) -> CutTable {
        let point = |rows, us: u32| {
            let ns = Ns::from(us) * 1000;
            LatencyPoint { rows, length: 0, median_ns: ns, p99_ns: ns, runs: 20 }
        };
        let stage = |took: &fn(u32) -> u32| SIZES.map(|rows| point(rows, took(rows))).to_vec();
        let at = (1..times.len()).map(|number| format!("t{number}")).collect();
        CutTable { at, stages: times.iter().map(stage).collect(), scatter: Vec::new() }
    }

    /// The model in one stage, without the boundaries between its ranges, which take these microseconds each.
    fn whole(ranges: &CutTable, boundary_us: fn(u32) -> u32) -> CutTable {
        let mut whole = ranges.stages[0].clone();
        for (size, point) in whole.iter_mut().enumerate() {
            let ns: Ns = ranges.stages.iter().map(|stage| stage[size].median_ns).sum();
            let boundaries = Ns::from(boundary_us(point.rows)) * 1000 * (ranges.stages.len() as Ns - 1);
            (point.median_ns, point.p99_ns) = (ns - boundaries, ns - boundaries);
        }
        CutTable { at: Vec::new(), stages: vec![whole], scatter: Vec::new() }
    }

    fn weighed(times: &[fn(u32) -> u32], boundary_us: fn(u32) -> u32) -> OperatorCuts {
        let ranges = ranges(times);
        OperatorCuts::of(&whole(&ranges, boundary_us), &ranges, 0).expect("it was measured")
    }

    /// Takes as long for any batch: DVABatch's encoder of a LinkNet.
    fn flat(_: u32) -> u32 {
        2000
    }

    /// Takes as long for each row.
    fn by_row(rows: u32) -> u32 {
        200 * rows
    }

    #[test]
    fn halves_that_prefer_different_batches_are_cut_apart() {
        let found = weighed(&[flat, flat, by_row, by_row], |_| 20);
        assert_eq!((&found.preferred_rows[..], found.rows), (&[64, 64, 1, 1][..], 64));
        assert_eq!(found.tensors(), ["t2"]);
        let [cut] = &found.weighed[..] else { panic!("one change: {found:?}") };
        assert!(cut.accepted && cut.behind == 1 && cut.gain_ns > cut.cost_ns, "{cut:?}");
        assert_eq!(found.boundary_ns, 20_000.0);
        // Without a cut all rows are done when the last is; with it, the decoder's rows are done one after another.
        assert_eq!(found.whole_ns, 1e3 * (2.0 * 2000.0 + 2.0 * 64.0 * 200.0 - 60.0));
        assert!(found.cut_ns < 0.6 * found.whole_ns, "{found:?}");
    }

    #[test]
    fn ranges_that_prefer_the_same_batch_stay_together() {
        for times in [[flat as fn(u32) -> u32; 4], [by_row as fn(u32) -> u32; 4]] {
            let found = weighed(&times, |_| 0);
            assert_eq!((found.weighed.len(), found.tensors().len()), (0, 0), "{found:?}");
            assert_eq!(found.whole_ns, found.cut_ns);
        }
    }

    #[test]
    fn a_boundary_that_costs_more_than_it_gains_is_not_cut() {
        // Nearly all of the second range's time is what crosses.
        let found = weighed(&[flat, by_row], |rows| 195 * rows);
        assert_eq!(found.preferred_rows, [64, 1]);
        let [cut] = &found.weighed[..] else { panic!("one change: {found:?}") };
        assert!(!cut.accepted && cut.cost_ns > cut.gain_ns, "{cut:?}");
        assert_eq!(found.tensors(), [""; 0]);
    }

    #[test]
    fn where_a_later_range_gains_more_by_large_batches_nothing_is_split_for_the_first() {
        let found = weighed(&[by_row, flat], |_| 10);
        assert_eq!(found.preferred_rows, [1, 64]);
        assert_eq!(found.tensors(), [""; 0], "parts do not merge again: {found:?}");
    }

    #[test]
    fn the_times_of_a_measured_cut_are_weighed_in_the_same_way() {
        let halves = ranges(&[flat, by_row]);
        let mean = mean_ns(&halves, 64, 0).expect("it was measured");
        let expected = 2000.0 + 5.0 + 200.0 * (64.0 + 1.0) / 2.0;
        assert!((mean / 1e3 - expected).abs() < 1e-6, "{mean}");
        assert_eq!(mean_ns(&halves, 65, 0), None);
    }
}
