//! Detects unreliable profiles: measured in too little time, or while something else used the machine.

use super::{CellTable, LatencyPoint, Profile};

/// A larger batch that takes less than this fraction of a smaller one's time shows that the speed of the machine
/// changed. Smaller drops are noise; the core raises those times to that of the smaller batch.
const FALLS: f64 = 0.75;

impl Profile {
    /// Returns why the times of the whole model, or of its cells, are unreliable, if they are: most sizes ran only
    /// once, or times fall as batches grow.
    pub fn doubt(&self) -> Option<String> {
        let whole = self.whole().into_iter().flat_map(|whole| &whole.stages);
        let of_cells = || self.cells.iter().flat_map(|cell| cell.times.stages.iter().map(move |points| (cell, points)));
        let all: Vec<&[LatencyPoint]> = whole.chain(of_cells().map(|(_, points)| points)).map(Vec::as_slice).collect();
        let named = |(cell, points): (&CellTable, &Vec<LatencyPoint>)| {
            falls(points).map(|fall| format!("cell '{}': {fall}", cell.name))
        };
        ran_once(&all)
            .or_else(|| self.whole()?.stages.iter().find_map(|points| falls(points)))
            .or_else(|| of_cells().find_map(named))
    }
}

fn ran_once(tables: &[&[LatencyPoint]]) -> Option<String> {
    let points = tables.iter().copied().flatten();
    let (sizes, once) = points.fold((0, 0), |(sizes, once), point| (sizes + 1, once + usize::from(point.runs <= 1)));
    (2 * once > sizes).then(|| format!("of its {sizes} sizes {once} ran only once"))
}

/// Describes the first larger batch that took much less time than a smaller one of the same length.
fn falls(points: &[LatencyPoint]) -> Option<String> {
    let shorter_than = |larger: &LatencyPoint| {
        let smaller = points.iter().filter(|point| point.length == larger.length && point.rows < larger.rows);
        let longest = smaller.max_by_key(|point| point.median_ns)?;
        let falls = (larger.median_ns as f64) < FALLS * longest.median_ns as f64;
        falls.then(|| {
            let of_length = if larger.length > 0 { format!(" of length {}", larger.length) } else { String::new() };
            let us = |point: &LatencyPoint| point.median_ns as f64 / 1e3;
            format!(
                "{} rows{of_length} took {:.0} µs, less than {} with {:.0} µs",
                larger.rows,
                us(larger),
                longest.rows,
                us(longest),
            )
        })
    };
    points.iter().find_map(shorter_than)
}
