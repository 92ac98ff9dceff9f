//! The measured cells of a model, and the batch sizes that their times suggest (BatchMaker sections 2.2 and 4.3).

use paternoster_batching::{CostPoint, CostTable};
use serde::{Deserialize, Serialize};

use super::{CutTable, find::preferred, row_buckets};

/// Largest batch of a cell in rows, as in configurations.
const MAX_ROWS: u32 = 1 << 16;

/// Latencies of one cell of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellTable {
    /// Its name.
    pub name: String,
    /// Its priority among the cells of the model, 1 the highest.
    pub priority: u32,
    /// Largest batch in rows, as the configuration sets it; `None`: the last of `batch_sizes`.
    pub max_rows: Option<u32>,
    /// How its tasks run several steps of each row. The lengths in `times` are then steps.
    pub chunk: Option<ChunkProfile>,
    /// Length in `times` that `batch_sizes` refers to: the middle one; 0 if the cell has no lengths.
    pub length: u32,
    /// Suggested sizes in rows, ascending. The last is the smallest batch whose throughput is within 5 % of the best:
    /// larger ones only take longer.
    pub batch_sizes: Vec<u32>,
    /// Its times, as one stage.
    pub times: CutTable,
}

/// How tasks run several steps of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkProfile {
    /// Whether rows with different numbers of steps share a task.
    pub lengths: bool,
}

/// A segment that requests unfold into, with the names of its cells, in the form of the simulator's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CellSegment {
    /// The cell runs once.
    Stage(String),
    /// The cell runs once for each element of an input.
    Chain(String),
    /// The cell runs once for each element of an output.
    Decode(String),
    /// A cell runs once for each node of a tree.
    Tree {
        /// Cell of the nodes without children.
        leaf: String,
        /// Cell of the other nodes.
        inner: String,
    },
}

impl CellTable {
    /// Creates the table of a cell that was measured, with the batch sizes that its times suggest.
    pub fn new(
        name: String,
        priority: u32,
        max_rows: Option<u32>,
        chunk: Option<ChunkProfile>,
        times: CutTable,
    ) -> Self {
        let length = times.middle_length().unwrap_or(0);
        let batch_sizes = row_buckets(preferred(&times, length).first().copied().unwrap_or(1));
        Self { name, priority, max_rows, chunk, length, batch_sizes, times }
    }

    /// Returns the largest batch that is served, in rows.
    pub fn largest_batch(&self) -> Option<u32> {
        self.max_rows.or_else(|| self.batch_sizes.last().copied())
    }

    /// Returns its latencies for the core. The core knows lengths of a cell only as the steps of its tasks; for a cell
    /// whose shapes vary otherwise, these are the latencies at the middle length.
    fn costs(&self) -> Vec<CostPoint> {
        let points = self.times.stages.iter().flatten();
        let points = points.filter(|point| self.chunk.is_some() || point.length == self.length);
        let length = |length| if self.chunk.is_some() { u64::from(length) } else { 0 };
        points
            .map(|point| CostPoint { rows: point.rows, length: length(point.length), took_ns: point.median_ns })
            .collect()
    }

    /// Returns whether the data is what a measurement can produce.
    pub(super) fn is_sound(&self) -> bool {
        let is_ascending = self.batch_sizes.is_sorted_by(|less, more| less < more);
        let is_in_range = |rows: &u32| (1..=MAX_ROWS).contains(rows);
        is_ascending
            && !self.batch_sizes.is_empty()
            && self.batch_sizes.iter().chain(&self.max_rows).all(is_in_range)
            && self.times.stages.len() == 1
            && !self.costs().is_empty()
    }
}

/// Returns the latencies of cells for the core, in their order.
pub fn cell_costs(cells: &[CellTable]) -> CostTable {
    CostTable { stages: cells.iter().map(CellTable::costs).collect() }
}

#[cfg(test)]
mod tests {
    use paternoster_batching::Ns;

    use super::*;
    use crate::LatencyPoint;

    fn times(points: &[(u32, u32, Ns)]) -> CutTable {
        let point = |&(rows, length, us): &(u32, u32, Ns)| LatencyPoint {
            rows,
            length,
            median_ns: us * 1000,
            p99_ns: us * 1000,
            runs: 20,
        };
        CutTable { at: Vec::new(), stages: vec![points.iter().map(point).collect()], scatter: Vec::new() }
    }

    fn cell(chunk: Option<ChunkProfile>, points: &[(u32, u32, Ns)]) -> CellTable {
        CellTable::new("step".to_owned(), 1, None, chunk, times(points))
    }

    #[test]
    fn the_largest_batch_is_the_papers() {
        // BatchMaker, figure 3: 185 µs up to 64 rows, and twice the time for twice the rows beyond 512.
        let step = [(1, 185), (64, 185), (128, 295), (256, 470), (512, 784), (1024, 1568), (2048, 3136)];
        let encoder = cell(None, &step.map(|(rows, us)| (rows, 0, us)));
        assert_eq!(encoder.batch_sizes, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        // Section 7.4: with the projection to the vocabulary, 256 rows are within 4 % of the best.
        let decoder = cell(None, &step.map(|(rows, us)| (rows, 0, us + 5 * Ns::from(rows.max(64)))));
        assert_eq!(decoder.batch_sizes.last(), Some(&256));
        let row_by_row = cell(None, &[(1, 0, 100), (2, 0, 200), (4, 0, 396)]);
        assert_eq!(row_by_row.batch_sizes, [1], "batches gain nothing");
    }

    #[test]
    fn costs_are_by_steps_where_tasks_run_several_and_else_at_the_middle_length() {
        let points = [(1, 16, 10), (1, 64, 20), (1, 256, 70), (2, 16, 12), (2, 64, 24), (2, 256, 130)];
        let of_lengths = cell(None, &points);
        let at = |rows, length, us: Ns| CostPoint { rows, length, took_ns: us * 1000 };
        assert_eq!(cell_costs(std::slice::from_ref(&of_lengths)).stages, [[at(1, 0, 20), at(2, 0, 24)]]);
        assert_eq!((of_lengths.length, of_lengths.batch_sizes), (64, vec![1, 2]));
        let of_steps = cell(Some(ChunkProfile { lengths: true }), &points);
        assert_eq!(cell_costs(&[of_steps]).stages[0], points.map(|(rows, steps, us)| at(rows, u64::from(steps), us)));
    }

    #[test]
    fn what_no_measurement_gives_is_not_sound() {
        let sound = cell(None, &[(1, 0, 10), (8, 0, 12)]);
        assert!(sound.is_sound());
        let faults: [fn(&mut CellTable); 5] = [
            |cell| cell.batch_sizes.clear(),
            |cell| cell.batch_sizes = vec![0, 4],
            |cell| cell.batch_sizes = vec![4, 4],
            |cell| cell.length = 64,
            |cell| cell.max_rows = Some(0),
        ];
        for fault in faults {
            let mut cell = sound.clone();
            fault(&mut cell);
            assert!(!cell.is_sound(), "{cell:?}");
        }
    }
}
