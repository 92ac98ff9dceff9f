//! The sizes in which a batch should run: whole or in parts (DVABatch section 7.2, Policy II).

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Costs, length_of};
use crate::ShapeClass;

/// Sizes in rows, in execution order.
pub(crate) type Parts = SmallVec<[u32; 8]>;

/// No part of a split but the last is smaller than this fraction of its batch. With eight equal parts in sequence the
/// mean completion time is 9/16 of the whole, and no number of parts brings it below 8/16.
const MOST_EQUAL_PARTS: u32 = 8;

/// Up to this batch size every part size is tried. Above, at most this many of the sizes with known times are tried,
/// plus even parts.
const TRY_ALL_SIZES: u32 = 16;

/// Relative rounding error allowed in sums of times.
const ROUNDING: f64 = 1e-9;

/// One way to run some rows: its first part, and a reference to the way to run the rest.
#[derive(Clone, Copy, Debug)]
struct Arrangement {
    /// Time until the last part is done.
    ns: f64,
    /// Sum over the rows of the time until each is done.
    row_ns: f64,
    parts: u32,
    first: u32,
    /// Index among the arrangements of the remaining rows.
    rest: usize,
}

impl Arrangement {
    fn is_no_worse_than(&self, other: &Self) -> bool {
        self.ns <= other.ns && (self.row_ns, self.parts) <= (other.row_ns, other.parts)
    }
}

impl Costs {
    /// Policy II with cuts of any size: returns the parts in which a batch that waits for `from` should run, each part
    /// to its end, or `None` if it should stay whole or a time is unknown.
    ///
    /// Parts are acceptable if T_remain(rows) ≥ `threshold` · Σ T_remain(part). Among acceptable splits, takes those
    /// with the least mean completion time over the rows, and among these the one with the fewest parts.
    ///
    /// The search is dynamic programming over the number of remaining rows. For each number it keeps the arrangements
    /// that are not dominated in both total time and completion time. For batches above [`TRY_ALL_SIZES`] rows it tries
    /// sizes with known times, even parts, and any remainder.
    pub(crate) fn best_split(&self, from: CellId, rows: u32, class: &ShapeClass, threshold: f64) -> Option<Parts> {
        let length = length_of(class);
        let time = |part: u32| self.remaining_ns(from, part, length);
        let whole_ns = time(rows).filter(|&ns| ns > 0.0 && rows > 1)?;
        let budget_ns = whole_ns / threshold * (1.0 + ROUNDING);

        let known = self.known_rows(from);
        let fastest = self.fastest_ns_per_row(from, rows, length, &known)?;
        // Most batches are not worth splitting: this bound avoids the search for them.
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
            // The rows before these take at least `fastest` each, so a more expensive arrangement cannot meet the
            // budget.
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

    /// Returns the parts in which rows that have not started should run while `behind` other rows wait for their end,
    /// queued or still to arrive. Minimizes the sum of completion times over all of them; among equal solutions, takes
    /// the one with the largest first part. `None` if the sum is not at most `worthwhile` times that of one piece, or
    /// if a time is unknown.
    ///
    /// A part delays all rows behind it equally, however those run. So the best solution is a first part followed by
    /// the best solution for the remaining rows.
    pub(crate) fn best_parts(
        &self,
        from: CellId,
        rows: u32,
        class: &ShapeClass,
        behind: f64,
        worthwhile: f64,
    ) -> Option<Parts> {
        let length = length_of(class);
        let time = |part: u32| self.remaining_ns(from, part, length);
        let mut sizes: SmallVec<[(u32, f64); 32]> = SmallVec::new();
        for size in part_sizes(rows, 1, &self.known_rows(from)) {
            sizes.push((size, time(size)?));
        }
        // Indexed by remaining rows: the first part, and the total delay that these rows cause.
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
        let whole_ns = time(rows)? * (f64::from(rows) + behind);
        (parts.len() > 1 && best[rows as usize].1 <= worthwhile * whole_ns).then_some(parts)
    }

    /// Policy II as published (figure 13): splits a batch into halves if T_remain(b) ≥ 2 · T_remain(b / 2), and
    /// recursively each half. The larger half of an odd batch goes first. `None` if the batch stays whole or a time is
    /// unknown.
    pub(crate) fn halves(&self, from: CellId, rows: u32, class: &ShapeClass) -> Option<Parts> {
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

    /// Returns the least time per row of any part with fewer than `rows` rows. Times are linear between known sizes, so
    /// the minimum is at a known size.
    fn fastest_ns_per_row(&self, from: CellId, rows: u32, length: u64, known: &[u32]) -> Option<f64> {
        let sizes = known.iter().copied().filter(|&size| size < rows).chain([1, rows - 1]);
        let row_ns = |size| Some(self.remaining_ns(from, size, length)? / f64::from(size));
        sizes.map(row_ns).try_fold(f64::INFINITY, |fastest, ns| Some(fastest.min(ns?)))
    }

    /// Returns a lower bound on the total time in parts: one part has at most half the rows, and the others run at the
    /// `fastest` time per row.
    fn least_ns_in_parts(&self, from: CellId, rows: u32, length: u64, known: &[u32], fastest: f64) -> Option<f64> {
        let half = rows / 2;
        let sizes = known.iter().copied().filter(|&size| size < half).chain([1, half]);
        let in_parts_ns = |size| Some(self.remaining_ns(from, size, length)? + f64::from(rows - size) * fastest);
        sizes.map(in_parts_ns).try_fold(f64::INFINITY, |least, ns| Some(least.min(ns?)))
    }
}

/// Returns the sizes, ascending from `least`, that a part may have if others follow it.
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

/// Adds an affordable arrangement unless a kept one dominates it, and drops those that it dominates.
fn keep(found: &mut Vec<Arrangement>, new: Arrangement, affordable_ns: f64) {
    if new.ns > affordable_ns || found.iter().any(|kept| kept.is_no_worse_than(&new)) {
        return;
    }
    found.retain(|kept| !new.is_no_worse_than(kept));
    found.push(new);
}

/// Returns the arrangement of all rows with the least mean completion time, if it is below `whole_row_ns`.
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
