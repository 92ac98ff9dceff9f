//! In which sizes a batch is best run: in one piece or split (DVABatch section 7.2, policy II).

use smallvec::SmallVec;

use super::{Costs, length_of};
use crate::batching::{CellId, ShapeClass};

/// Sizes in rows, in the order in which they run.
pub(in crate::batching) type Parts = SmallVec<[u32; 8]>;

/// Of a split, no part but the last is smaller than this share of its batch: with eight equal parts in a row the mean
/// completion time is 9/16 of the whole, and no number of parts brings it below 8/16.
const MOST_EQUAL_PARTS: u32 = 8;

/// Up to this batch size every part size is tried; above, at most so many of the sizes for which times are kept, and
/// the batch's even parts.
const TRY_ALL_SIZES: u32 = 16;

/// Share by which sums of times may differ from what they are exactly.
const ROUNDING: f64 = 1e-9;

/// One way to run some rows, as its first part and the way to run the rest.
#[derive(Clone, Copy, Debug)]
struct Arrangement {
    /// Time until the last part is done.
    ns: f64,
    /// Sum over the rows of the time until each is done.
    row_ns: f64,
    parts: u32,
    first: u32,
    /// Index among the arrangements of the other rows.
    rest: usize,
}

impl Arrangement {
    fn is_no_worse_than(&self, other: &Self) -> bool {
        self.ns <= other.ns && (self.row_ns, self.parts) <= (other.row_ns, other.parts)
    }
}

impl Costs {
    /// Policy II with cuts of any size: the parts in which a batch that stands before `from` is best run one after
    /// another, each to its end, or none when it is best left whole or something is not known.
    ///
    /// Parts are acceptable when T_remain(rows) ≥ `threshold` · Σ T_remain(part). Of the acceptable ones those are
    /// taken that complete earliest on average over the rows, and the fewest of those.
    ///
    /// The search is dynamic programming over the rows that are left, which keeps what completes early beside what
    /// takes little; for batches above [`TRY_ALL_SIZES`] rows it tries sizes for which times are kept, even parts, and
    /// any remainder.
    pub(in crate::batching) fn best_split(
        &self,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
        threshold: f64,
    ) -> Option<Parts> {
        let length = length_of(class);
        let time = |part: u32| self.remaining_ns(from, part, length);
        let whole_ns = time(rows).filter(|&ns| ns > 0.0 && rows > 1)?;
        let budget_ns = whole_ns / threshold * (1.0 + ROUNDING);

        let known = self.known_rows(from);
        let fastest = self.fastest_ns_per_row(from, rows, length, &known)?;
        if self.least_ns_in_parts(from, rows, length, &known, fastest)? > budget_ns {
            return None;
        }
        let mut sizes: SmallVec<[(u32, f64); 16]> = SmallVec::new();
        for size in part_sizes(rows, rows.div_ceil(MOST_EQUAL_PARTS), &known) {
            sizes.push((size, time(size)?));
        }

        let mut table: Vec<Vec<Arrangement>> = vec![Vec::new(); rows as usize + 1];
        for left in 1..=rows {
            let mut found = Vec::new();
            let affordable = budget_ns - f64::from(rows - left) * fastest;
            if left < rows {
                let ns = time(left)?;
                let alone = Arrangement { ns, row_ns: f64::from(left) * ns, parts: 1, first: left, rest: 0 };
                keep(&mut found, alone, affordable);
            }
            for &(first, first_ns) in sizes.iter().take_while(|(size, _)| *size < left) {
                for (rest, then) in table[(left - first) as usize].iter().enumerate() {
                    let (ns, row_ns) = (first_ns + then.ns, f64::from(left) * first_ns + then.row_ns);
                    keep(&mut found, Arrangement { ns, row_ns, parts: then.parts + 1, first, rest }, affordable);
                }
            }
            table[left as usize] = found;
        }
        unroll(&table, rows, f64::from(rows) * whole_ns)
    }

    /// The parts in which rows that have not begun are best run while `behind` rows wait for their end, of other
    /// requests or of such as will come meanwhile: the sum of completion times over all of them is least, and of the
    /// ways with the least the one that begins with the most rows. None when that is all in one piece, or something is
    /// not known.
    ///
    /// Any part delays all that are behind it, whatever those do then. So the best way to run some rows is a first
    /// part, and the best way to run the others.
    pub(in crate::batching) fn best_parts(
        &self,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
        behind: f64,
    ) -> Option<Parts> {
        let length = length_of(class);
        let time = |part: u32| self.remaining_ns(from, part, length);
        let mut sizes: SmallVec<[(u32, f64); 32]> = SmallVec::new();
        for size in part_sizes(rows, 1, &self.known_rows(from)) {
            sizes.push((size, time(size)?));
        }
        // By rows that are left: the first part, and the delay of all by these.
        let mut best: Vec<(u32, f64)> = vec![(0, 0.0)];
        for left in 1..=rows {
            let delay_ns = |first_ns: f64, rest: u32| first_ns * (f64::from(left) + behind) + best[rest as usize].1;
            let mut least = (left, delay_ns(time(left)?, 0));
            for &(first, first_ns) in sizes.iter().rev().skip_while(|(size, _)| *size >= left) {
                let delay_ns = delay_ns(first_ns, left - first);
                if delay_ns < least.1 {
                    least = (first, delay_ns);
                }
            }
            best.push(least);
        }
        let mut parts = Parts::new();
        let mut left = rows;
        while left > 0 {
            parts.push(best[left as usize].0);
            left -= best[left as usize].0;
        }
        (parts.len() > 1).then_some(parts)
    }

    /// Policy II as the paper has it (figure 13): a batch is split into halves when T_remain(b) ≥ 2 · T_remain(b / 2),
    /// and so is each half. Of an odd batch the larger half goes first. None when it stays whole or something is not
    /// known.
    pub(in crate::batching) fn halves(&self, from: CellId, rows: u32, class: &ShapeClass) -> Option<Parts> {
        let mut parts = Parts::new();
        self.halve(from, rows, length_of(class), &mut parts)?;
        (parts.len() > 1).then_some(parts)
    }

    fn halve(&self, from: CellId, rows: u32, length: u64, parts: &mut Parts) -> Option<()> {
        let (larger, smaller) = (rows.div_ceil(2), rows / 2);
        let whole_ns = self.remaining_ns(from, rows, length)?;
        let halves_ns = self.remaining_ns(from, larger, length)? + self.remaining_ns(from, smaller, length)?;
        if smaller == 0 || whole_ns < halves_ns {
            parts.push(rows);
            return Some(());
        }
        self.halve(from, larger, length, parts)?;
        self.halve(from, smaller, length, parts)
    }

    /// The least time per row of any part of fewer than `rows` rows. Between two known sizes times are linear, so the
    /// time per row is least at one of them.
    fn fastest_ns_per_row(&self, from: CellId, rows: u32, length: u64, known: &[u32]) -> Option<f64> {
        let sizes = known.iter().copied().filter(|&size| size < rows).chain([1, rows - 1]);
        let mut fastest = f64::INFINITY;
        for size in sizes {
            fastest = fastest.min(self.remaining_ns(from, size, length)? / f64::from(size));
        }
        Some(fastest)
    }

    /// What parts take together at least: one has at most half the rows, and the others run at the `fastest` time per
    /// row.
    fn least_ns_in_parts(&self, from: CellId, rows: u32, length: u64, known: &[u32], fastest: f64) -> Option<f64> {
        let half = rows / 2;
        let sizes = known.iter().copied().filter(|&size| size < half).chain([1, half]);
        let mut least = f64::INFINITY;
        for size in sizes {
            least = least.min(self.remaining_ns(from, size, length)? + f64::from(rows - size) * fastest);
        }
        Some(least)
    }
}

/// Sizes of parts that others may follow, ascending, from the least on.
fn part_sizes(rows: u32, least: u32, known: &[u32]) -> SmallVec<[u32; 32]> {
    if rows <= TRY_ALL_SIZES {
        return (least..rows).collect();
    }
    let even = (2..=MOST_EQUAL_PARTS).flat_map(|parts| [rows / parts, rows.div_ceil(parts)]);
    let thinned = known.iter().copied().step_by(known.len().div_ceil(TRY_ALL_SIZES as usize).max(1));
    let sizes = thinned.chain(even);
    let mut sizes: SmallVec<[u32; 32]> = sizes.filter(|size| (least..rows).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Adds an arrangement that is affordable, unless one that is kept is no worse; drops those that it is no worse than.
fn keep(found: &mut Vec<Arrangement>, new: Arrangement, affordable_ns: f64) {
    if new.ns > affordable_ns || found.iter().any(|kept| kept.is_no_worse_than(&new)) {
        return;
    }
    found.retain(|kept| !new.is_no_worse_than(kept));
    found.push(new);
}

/// The arrangement of all rows that completes earliest on average, if that is earlier than `whole_row_ns`.
fn unroll(table: &[Vec<Arrangement>], rows: u32, whole_row_ns: f64) -> Option<Parts> {
    let all = table[rows as usize].iter().enumerate();
    let earliest = all.min_by(|(_, one), (_, two)| one.row_ns.total_cmp(&two.row_ns).then(one.parts.cmp(&two.parts)));
    let (mut index, best) = earliest?;
    if best.row_ns >= whole_row_ns {
        return None;
    }
    let (mut parts, mut left) = (Parts::new(), rows);
    while let Some(arrangement) = table[left as usize].get(index) {
        parts.push(arrangement.first);
        left -= arrangement.first;
        index = arrangement.rest;
    }
    Some(parts)
}
