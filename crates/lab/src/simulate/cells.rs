//! Models of cells: the graphs that their requests unfold into, and the time of the same work as one padded graph
//! (BatchMaker section 2.3).

use std::sync::Arc;

use paternoster_batching::{CellKnobs, ChunkKnobs, CostPoint, CostTable, Ns, SegmentKnobs, Task};
use paternoster_model::{CellId, unfold::Unfolded};

use super::{load::Offered, surface::Surface};
use crate::workload::tree;

/// Number of steps that a decoder may run beyond the length of the input (BatchMaker section 7.4: a fixed threshold).
const EXTRA_STEPS: u32 = 50;
/// Largest length in the table of padded graphs. Times are linear in length, so two lengths suffice.
const LONGEST: u64 = 4096;
/// Numbers of steps in the table of tasks that run several. Their times are linear in steps.
const STEPS: [u64; 2] = [1, 64];

/// The cells of a model, and the segments that its requests unfold into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellGraph {
    /// The cell types. Their times are the model's latencies, by index.
    pub cells: Vec<CellKnobs>,
    /// The segments that requests unfold into, in order; at least one, and at most one decoder.
    pub segments: Vec<SimulatedSegment>,
    /// Time that each task takes in addition to its cell.
    pub boundary_ns: Ns,
}

/// One segment that requests unfold into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedSegment {
    /// A single cell.
    Stage(CellId),
    /// One cell per element of the input.
    Chain(CellId),
    /// One cell per element of the output. The number is unknown in advance: at most 50 more than the input has.
    Decode(CellId),
    /// One cell per node of the request's tree.
    Tree {
        /// Cell of the nodes without children.
        leaf: CellId,
        /// Cell of the other nodes.
        inner: CellId,
    },
}

impl SimulatedSegment {
    /// Returns the cells whose tasks run one step of a row.
    pub(super) fn of_single_steps(&self) -> impl Iterator<Item = CellId> {
        match *self {
            Self::Chain(_) => [None, None],
            Self::Stage(cell) | Self::Decode(cell) => [Some(cell), None],
            Self::Tree { leaf, inner } => [Some(leaf), Some(inner)],
        }
        .into_iter()
        .flatten()
    }
}

impl CellGraph {
    /// Returns the cells with batches limited to `most` rows.
    pub fn cells_within(&self, most: u32) -> Vec<CellKnobs> {
        let within = |cell: &CellKnobs| {
            let max_rows = cell.max_rows.min(most).max(1);
            CellKnobs { max_rows, min_followup: cell.min_followup.min(max_rows), ..cell.clone() }
        };
        self.cells.iter().map(within).collect()
    }

    /// Returns the segments in the core's form.
    pub fn segment_knobs(&self) -> Vec<SegmentKnobs> {
        let knobs = |segment: &SimulatedSegment| match *segment {
            SimulatedSegment::Stage(cell) => SegmentKnobs::Stage { cell },
            SimulatedSegment::Chain(cell) => SegmentKnobs::Steps { cell },
            SimulatedSegment::Decode(cell) => SegmentKnobs::Decode { cell, expected_steps: None },
            SimulatedSegment::Tree { leaf, inner } => SegmentKnobs::Tree { leaf, inner },
        };
        self.segments.iter().map(knobs).collect()
    }

    /// Whether requests have trees, which cannot be padded to share a batch.
    pub fn has_trees(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, SimulatedSegment::Tree { .. }))
    }

    /// Whether requests run as many steps as their output has elements, so that a task's outcome ends them.
    pub fn decodes(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, SimulatedSegment::Decode(_)))
    }

    /// Returns the graph of a request, taking its tree, and the number of the node that will turn out to be the last of
    /// its output.
    pub(super) fn unfold(&self, offered: &mut Offered) -> (Box<[Unfolded]>, Option<u32>) {
        let mut last = None;
        let mut graph: Vec<Unfolded> = Vec::with_capacity(self.segments.len());
        for segment in &self.segments {
            graph.push(match segment {
                SimulatedSegment::Stage(_) => Unfolded::Steps(1),
                SimulatedSegment::Chain(_) => Unfolded::Steps(offered.length.max(1)),
                SimulatedSegment::Decode(_) => {
                    let before: u32 = graph.iter().map(Unfolded::nodes).sum();
                    last = Some(before + decoded(offered) - 1);
                    Unfolded::Steps(most_decoded(offered))
                }
                SimulatedSegment::Tree { .. } => {
                    Unfolded::Tree(offered.tree.take().unwrap_or_else(|| Arc::new(tree(1, |_| 1))))
                }
            });
        }
        (graph.into_boxed_slice(), last)
    }

    /// Returns the time of a padded graph of `rows` rows, with as many steps as its longest input and its longest
    /// output have elements.
    pub(super) fn padded_ns(&self, surfaces: &[Surface], rows: u32, length: u64, decoded: u64) -> f64 {
        let segment_ns = |segment: &SimulatedSegment| {
            let (cell, steps) = match *segment {
                SimulatedSegment::Stage(cell) => (cell, 1),
                SimulatedSegment::Chain(cell) => (cell, length.max(1)),
                SimulatedSegment::Decode(cell) => (cell, decoded.max(1)),
                // Only `cellular` runs trees; for other policies a tree counts as a chain.
                SimulatedSegment::Tree { inner, .. } => (inner, length.max(1)),
            };
            self.steps_ns(surfaces, cell, rows, steps)
        };
        self.boundary_ns as f64 + self.segments.iter().map(segment_ns).sum::<f64>()
    }

    /// Returns the time of a task, which runs as many steps as that of its rows with the most.
    pub(super) fn task_ns(&self, surfaces: &[Surface], task: &Task) -> f64 {
        let steps = task.rows.iter().map(|row| row.count).max().unwrap_or(1);
        self.boundary_ns as f64 + self.steps_ns(surfaces, task.cell, task.bucket.rows, u64::from(steps))
    }

    /// Returns the time of consecutive steps of a cell. Where a task runs several and the cell's table has times for
    /// numbers of steps, these apply; else every step takes as long as the first.
    fn steps_ns(&self, surfaces: &[Surface], cell: CellId, rows: u32, steps: u64) -> f64 {
        let surface = &surfaces[usize::from(cell.0)];
        match self.cells[usize::from(cell.0)].chunks {
            Some(_) if surface.has_lengths() => surface.ns(rows, steps),
            _ => steps as f64 * surface.ns(rows, 1),
        }
    }

    /// Returns the times of tasks of one cell: of a single step, or of several where the cell runs several.
    pub(super) fn task_latencies(&self, latencies: &CostTable) -> CostTable {
        let stages = self.cells.iter().zip(&latencies.stages).map(|(cell, points)| {
            let has_steps = points.iter().any(|point| point.length > 1);
            let steps: &[u64] = if cell.chunks.is_some() && !has_steps { &STEPS } else { &STEPS[..1] };
            let of_point = |point: &CostPoint| {
                let CostPoint { rows, length, took_ns } = *point;
                steps.iter().map(move |&steps| CostPoint {
                    rows,
                    length: length.max(1) * steps,
                    took_ns: took_ns.saturating_mul(steps).saturating_add(self.boundary_ns),
                })
            };
            points.iter().flat_map(of_point).collect()
        });
        CostTable { stages: stages.collect() }
    }

    /// Returns the times of padded graphs, as far as they can be predicted: with outputs as long as inputs.
    pub(super) fn padded_latencies(&self, latencies: &CostTable) -> CostTable {
        let surfaces: Vec<Surface> = latencies.stages.iter().map(|points| Surface::new(points)).collect();
        let mut sizes: Vec<u32> = latencies.stages.iter().flatten().map(|point| point.rows).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let point = |rows: u32, length: u64| {
            let took_ns = self.padded_ns(&surfaces, rows, length, length).round() as Ns;
            CostPoint { rows, length, took_ns }
        };
        let points = [1, LONGEST].into_iter().flat_map(|length| sizes.iter().map(move |&rows| point(rows, length)));
        CostTable { stages: vec![points.collect()] }
    }
}

/// Creates a cell type with at most `max_rows` rows. A further task of a round has at least a quarter of them, the
/// default of model configurations.
pub(super) fn cell_knobs(max_rows: u32, priority: u32) -> CellKnobs {
    CellKnobs {
        max_rows,
        min_followup: (max_rows / 4).max(1),
        priority,
        kind: None,
        buckets: Box::default(),
        chunks: None,
    }
}

/// How tasks run several steps of each row, where memory allows any number of them.
pub(super) fn any_steps(is_padded: bool) -> ChunkKnobs {
    ChunkKnobs { is_padded, most_row_steps: u32::MAX, powers_up_to: None }
}

/// Returns the number of steps that a request's decoder runs.
pub(super) fn decoded(offered: &Offered) -> u32 {
    offered.decoded.clamp(1, most_decoded(offered))
}

fn most_decoded(offered: &Offered) -> u32 {
    offered.length.saturating_add(EXTRA_STEPS)
}
