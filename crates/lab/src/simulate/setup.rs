//! The setup of a run: devices, models and policies.

use paternoster_batching::{Instant, Knobs, LaneKnobs, Ns, Policy, ReqId, StageKnobs, Task};
use paternoster_model::{CellId, Next};

use super::{replay::Replay, surface::Surface, table::ModelTable};

/// Devices and the models that they serve.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The models, each on every device.
    pub models: Vec<Served>,
    /// Number of devices, at least 1, each with its own core. The [router](paternoster_batching::router) chooses among
    /// them.
    pub devices: u16,
    /// Devices that are lost, with the times.
    pub lost: Vec<(Instant, u16)>,
    /// Number of lanes per device, at least 1. A task's duration does not depend on the other lanes.
    pub lanes: u16,
    /// How much work lanes accept ahead of completion.
    pub ahead: LaneKnobs,
    /// Power of an idle device.
    pub idle_watts: f64,
    /// Power of a device with tasks on all lanes; in between, power is linear in the number of busy lanes.
    pub busy_watts: f64,
    /// Additional time of a task on an idle lane, where threads wake up and caches are cold.
    pub after_idle_ns: Ns,
    /// Time that requests spend outside queue and device, half of it before: front end, threads and client. Given as
    /// quantiles from the least to the greatest in even steps; a single value applies to all requests; empty means
    /// none.
    pub front: Vec<f64>,
    /// Speed of the lanes over time, replacing the tables' scatter and `after_idle_ns`.
    pub replay: Option<Replay>,
    /// Number of requests at the start that are not counted.
    pub warm_up: u64,
    /// Number of requests per period in the results; 0: no periods.
    pub period: u64,
}

/// A model and how it is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// Times of its stages.
    pub table: ModelTable,
    /// Settings of its batching. The stages come from the table; only their buckets are taken from here. A model of
    /// cells runs cells under `cellular`, and whole graphs, padded to the longest of a batch, under the other policies.
    pub knobs: Knobs,
}

impl Served {
    /// Returns the knobs with the table's stages.
    pub(super) fn staged(&self) -> Knobs {
        let stages = if self.runs_graphs() { 1 } else { self.table.latencies.stages.len() };
        let mut stages = StageKnobs::chain(stages as u16);
        for (stage, given) in stages.iter_mut().zip(&self.knobs.stages) {
            stage.buckets.clone_from(&given.buckets);
        }
        if let Some(steps) = self.table.steps {
            stages[usize::from(steps.first)..].iter_mut().for_each(|stage| stage.decides = true);
        }
        Knobs { stages, ..self.knobs.clone() }
    }

    pub(super) fn is_cellular(&self) -> bool {
        matches!(self.knobs.policy, Policy::Cellular(_))
    }

    /// Whether a task runs the whole graph of its requests.
    pub(super) fn runs_graphs(&self) -> bool {
        self.table.cells.is_some() && !self.is_cellular()
    }

    /// Returns where a request goes after this stage, having run `steps_run` steps.
    pub(super) fn next(&self, stage: CellId, steps_run: u32, length: u32) -> Next {
        let is_last = usize::from(stage.0) + 1 == self.table.latencies.stages.len();
        match (steps_run >= length, is_last) {
            (true, _) => Next::Done,
            (false, false) => Next::On,
            (false, true) => Next::Skip(stage),
        }
    }

    /// Returns the duration of a task by the table, at the size of the bucket that it runs in. `surfaces` are the
    /// model's; `decoded` returns the number of elements of a request's output.
    pub(super) fn task_ns(&self, surfaces: &[Surface], task: &Task, decoded: impl Fn(ReqId) -> u32) -> f64 {
        let rows = task.bucket.rows;
        let length = task.bucket.class.0.iter().fold(1, |product: u64, &length| product * u64::from(length.max(1)));
        let one_ns = || surfaces[usize::from(task.cell.0)].ns(rows, length);
        match &self.table.cells {
            None => one_ns(),
            Some(cells) if self.is_cellular() => cells.task_ns(surfaces, task),
            Some(cells) => {
                let longest = task.rows.iter().map(|span| decoded(span.req)).max().unwrap_or(1);
                cells.padded_ns(surfaces, rows, length, u64::from(longest))
            }
        }
    }
}
