//! Device tables: the time of each stage of each model on a device, as plain data.

use paternoster_batching::{CostPoint, CostTable, Ns, Policy};

use super::{
    cells::{CellGraph, SimulatedSegment, cell_knobs},
    surface::Surface,
};

/// A device: its models' latencies and its power.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTable {
    /// Name of the device.
    pub name: String,
    /// Power of an idle device.
    pub idle_watts: f64,
    /// Power of a device with tasks on all lanes.
    pub busy_watts: f64,
    /// Its models.
    pub models: Vec<ModelTable>,
}

/// One model on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTable {
    /// The model's name.
    pub name: String,
    /// Largest batch in rows, at least 1.
    pub max_batch_rows: u32,
    /// Times of its stages: at least one stage, each with at least one point.
    pub latencies: CostTable,
    /// The stages that are unrolled steps of a loop, if any.
    pub steps: Option<UnrolledLoop>,
    /// The graph that requests unfold into, if the stages are cells.
    pub cells: Option<CellGraph>,
    /// Quantiles of the ratio between a task's time and the table's time, from the least to the greatest in even steps;
    /// empty: all tasks take the table's time.
    pub scatter: Vec<f64>,
}

/// An unrolled loop at the end of a chain (a decoder), with one stage per step. A request of length n is done after its
/// n-th step. A request longer than the number of stages repeats the last one, which predictions count only once
/// (LazyBatching's dec_timesteps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnrolledLoop {
    /// Stage of the first step.
    pub first: u16,
}

/// Why a table cannot be used as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table has no such model.
    #[error("the table '{table}' has no model '{model}'; it has {known}")]
    UnknownModel {
        /// The table's name.
        table: String,
        /// The requested model.
        model: String,
        /// The models that it has.
        known: String,
    },
    /// The model cannot be divided into this many stages.
    #[error("the model '{model}' has {parts} parts: expected from 1 to {parts} stages, but found {stages}")]
    Stages {
        /// The model.
        model: String,
        /// Number of parts in the table.
        parts: usize,
        /// Requested number of stages.
        stages: usize,
    },
    /// The stages of the model are steps of a loop.
    #[error(
        "the stages of the model '{model}' are steps of a loop and stay as they are: leave the number of stages out"
    )]
    Unrolled {
        /// The model.
        model: String,
    },
    /// The model has cells instead of stages.
    #[error("the model '{model}' runs cells, which are no stages: leave the number of stages out")]
    Cells {
        /// The model.
        model: String,
    },
}

impl DeviceTable {
    /// Returns a model by name.
    ///
    /// # Errors
    /// Lists the existing models if the name is unknown.
    pub fn model(&self, name: &str) -> Result<&ModelTable, TableError> {
        self.models.iter().find(|model| model.name == name).ok_or_else(|| TableError::UnknownModel {
            table: self.name.clone(),
            model: name.to_owned(),
            known: self.models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

impl ModelTable {
    /// Builds a model from the times of its cells and their largest batches. Cells that come later in a request have
    /// higher priority (BatchMaker section 4.3).
    pub(super) fn of_cells(
        name: &str,
        times: Vec<Vec<CostPoint>>,
        largest: &[u32],
        segments: Vec<SimulatedSegment>,
    ) -> Self {
        let cells = (0..).zip(largest).map(|(number, &max_rows)| cell_knobs(max_rows, largest.len() as u32 - number));
        Self {
            name: name.to_owned(),
            max_batch_rows: largest.iter().copied().min().unwrap_or(1),
            latencies: CostTable { stages: times },
            steps: None,
            cells: Some(CellGraph { cells: cells.collect(), segments, boundary_ns: 0 }),
            scatter: Vec::new(),
        }
    }

    /// Whether its times depend on a length to which the requests of a batch are padded.
    pub fn is_padded(&self) -> bool {
        self.latencies.stages.iter().flatten().any(|point| point.length > 1)
    }

    /// Returns the times of tasks, as a policy knows them: for a model of cells, those of single cells under
    /// `cellular`, and of whole padded graphs otherwise.
    pub fn task_latencies(&self, policy: &Policy) -> CostTable {
        match (&self.cells, policy) {
            (None, _) => self.latencies.clone(),
            (Some(cells), Policy::Cellular(_)) => cells.task_latencies(&self.latencies),
            (Some(cells), _) => cells.padded_latencies(&self.latencies),
        }
    }

    /// Returns the model with neighbouring parts joined into `stages` stages of similar time (DVABatch section 7.1),
    /// weighted at one row of the longest length.
    ///
    /// # Errors
    /// For zero stages, for more stages than parts, for an unrolled model, and for a model of cells.
    pub fn sliced(&self, stages: usize) -> Result<Self, TableError> {
        if self.steps.is_some() {
            return Err(TableError::Unrolled { model: self.name.clone() });
        }
        if self.cells.is_some() {
            return Err(TableError::Cells { model: self.name.clone() });
        }
        let parts = &self.latencies.stages;
        if stages == 0 || stages > parts.len() {
            return Err(TableError::Stages { model: self.name.clone(), parts: parts.len(), stages });
        }
        let longest = parts.iter().flatten().map(|point| point.length).max().unwrap_or(1);
        let surfaces: Vec<Surface> = parts.iter().map(|points| Surface::new(points)).collect();
        let weights: Vec<f64> = surfaces.iter().map(|surface| surface.ns(1, longest)).collect();
        let mut ends = even_ends(&weights, stages);
        ends.insert(0, 0);
        let joined = ends.windows(2).map(|ends| join(&parts[ends[0]..ends[1]], &surfaces[ends[0]..ends[1]]));
        Ok(Self { latencies: CostTable { stages: joined.collect() }, ..self.clone() })
    }

    /// Returns the model with each task longer by `boundary_ns`, the cost of a stage boundary.
    pub fn with_boundary(&self, boundary_ns: Ns) -> Self {
        let mut model = self.clone();
        if let Some(cells) = &mut model.cells {
            cells.boundary_ns = cells.boundary_ns.saturating_add(boundary_ns);
            return model;
        }
        let points = model.latencies.stages.iter_mut().flatten();
        points.for_each(|point| point.took_ns = point.took_ns.saturating_add(boundary_ns));
        model
    }
}

/// Returns the ends of `groups` groups of neighbours whose sums are as even as possible; no group is empty.
fn even_ends(weights: &[f64], groups: usize) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0];
    for weight in weights {
        sums.push(sums[sums.len() - 1] + weight);
    }
    let mut ends: Vec<usize> = Vec::with_capacity(groups);
    for group in 1..groups {
        let aim = total * group as f64 / groups as f64;
        let first = ends.last().map_or(1, |end| end + 1);
        let last = weights.len() - (groups - group);
        let mut best = first;
        for end in first..=last {
            if (sums[end] - aim).abs() < (sums[best] - aim).abs() {
                best = end;
            }
        }
        ends.push(best);
    }
    ends.push(weights.len());
    ends
}

/// Returns the points of parts that run as one stage: at each size that any of them has, the sum.
fn join(parts: &[Vec<CostPoint>], surfaces: &[Surface]) -> Vec<CostPoint> {
    let mut sizes: Vec<(u32, u64)> = parts.iter().flatten().map(|point| (point.rows, point.length)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sum = |(rows, length)| surfaces.iter().map(|surface| surface.ns(rows, length)).sum::<f64>();
    sizes.into_iter().map(|size| CostPoint { rows: size.0, length: size.1, took_ns: sum(size).round() as Ns }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(rows: u32, length: u64, took_ns: Ns) -> CostPoint {
        CostPoint { rows, length, took_ns }
    }

    fn model(stages: Vec<Vec<CostPoint>>) -> ModelTable {
        ModelTable {
            name: "m".to_owned(),
            max_batch_rows: 8,
            latencies: CostTable { stages },
            steps: None,
            cells: None,
            scatter: Vec::new(),
        }
    }

    #[test]
    fn times_are_linear_between_points_constant_below_and_proportional_beyond() {
        let surface = Surface::new(&[point(2, 10, 100), point(4, 10, 200), point(2, 20, 300), point(4, 20, 400)]);
        let at = [(3, 10, 150.0), (2, 15, 200.0), (3, 15, 250.0), (1, 5, 100.0), (8, 10, 400.0), (4, 40, 800.0)];
        for (rows, length, ns) in at {
            assert_eq!(surface.ns(rows, length), ns, "{rows} rows of {length}");
        }
        let plain = Surface::new(&[point(1, 0, 10), point(2, 1, 20)]);
        assert_eq!(plain.ns(2, 64), 20.0, "a table without lengths does not depend on them");
    }

    #[test]
    fn parts_are_joined_into_stages_of_even_time() {
        let parts = [10, 10, 10, 30, 5, 55].map(|ns| vec![point(1, 1, ns), point(8, 1, 2 * ns)]);
        let sliced = model(parts.to_vec()).sliced(2).expect("six parts make two stages");
        let stages = [60, 60].map(|ns| vec![point(1, 1, ns), point(8, 1, 2 * ns)]);
        assert_eq!(sliced.latencies.stages, stages);
        assert_eq!(model(parts.to_vec()).sliced(6).expect("as it is").latencies.stages, parts);
    }

    #[test]
    fn stages_that_cannot_be_are_refused() {
        let mut model = model(vec![vec![point(1, 1, 5)]; 3]);
        let refusal = |model: &ModelTable, stages| model.sliced(stages).expect_err("it cannot be").to_string();
        assert_eq!(refusal(&model, 4), "the model 'm' has 3 parts: expected from 1 to 3 stages, but found 4");
        assert_eq!(refusal(&model, 0), "the model 'm' has 3 parts: expected from 1 to 3 stages, but found 0");
        model.steps = Some(UnrolledLoop { first: 1 });
        assert!(refusal(&model, 2).contains("steps of a loop"));
    }

    #[test]
    fn a_boundary_costs_every_task_the_same() {
        let dearer = model(vec![vec![point(1, 1, 5), point(8, 1, 9)]]).with_boundary(3);
        assert_eq!(dearer.latencies.stages, [[point(1, 1, 8), point(8, 1, 12)]]);
    }
}
