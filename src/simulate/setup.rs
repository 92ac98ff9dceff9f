//! Who serves what: devices, models, policies.

use super::{replay::Replay, surface::Surface, table::ModelTable};
use crate::batching::{CellId, Knobs, LaneKnobs, Next, Ns, Policy, ReqId, StageKnobs, Task};

/// Devices that serve models.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The models, all on every device.
    pub models: Vec<Served>,
    /// Devices, at least 1; each has a core of its own. The [router](crate::router) chooses among them.
    pub devices: u16,
    /// Devices that are lost, and when.
    pub lost: Vec<(Ns, u16)>,
    /// Lanes of each device, at least 1. A task takes its time whatever the other lanes do.
    pub lanes: u16,
    /// How far ahead lanes take work.
    pub ahead: LaneKnobs,
    /// Power of an idle device.
    pub idle_watts: f64,
    /// Power of a device with work on all its lanes; in between, it grows with the lanes at work.
    pub busy_watts: f64,
    /// What a task takes longer on a lane that had nothing to do: threads wake, and caches are cold.
    pub after_idle_ns: Ns,
    /// What requests spend outside of queue and device, half of it before: front end, threads and the client. Quantiles
    /// from the least to the most in even steps, of which one alone is everybody's; empty where it is nothing.
    pub front: Vec<f64>,
    /// How slow the lanes are over time, in place of the tables' scatter and `after_idle_ns`.
    pub replay: Option<Replay>,
    /// So many requests at the beginning are not counted.
    pub warm_up: u64,
    /// Requests of each of the periods that are told apart, by number; 0: none are.
    pub period: u64,
}

/// A model and how it is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// How long its stages take.
    pub table: ModelTable,
    /// How its requests are batched. Its stages are those of the table, whatever stands here but for their buckets. A
    /// model of cells runs them under `cellular`, and whole graphs, padded to the longest of a batch, under the other
    /// policies.
    pub knobs: Knobs,
}

impl Served {
    /// The knobs with the table's stages.
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

    /// Whether a task is the whole graph of its requests.
    pub(super) fn runs_graphs(&self) -> bool {
        self.table.cells.is_some() && !self.is_cellular()
    }

    /// Where a request goes that has run so many steps, the last of them this stage.
    pub(super) fn next(&self, stage: CellId, steps_run: u32, length: u32) -> Next {
        let is_last = usize::from(stage.0) + 1 == self.table.latencies.stages.len();
        match (steps_run >= length, is_last) {
            (true, _) => Next::Done,
            (false, false) => Next::On,
            (false, true) => Next::Skip(stage),
        }
    }

    /// What a task takes by the table, whose surfaces are the model's: as long as the bucket that it is executed in.
    /// `decoded` tells how many elements the output of a request will have.
    pub(super) fn task_ns(&self, surfaces: &[Surface], task: &Task, decoded: impl Fn(ReqId) -> u32) -> f64 {
        let rows = task.bucket.rows;
        let length = task.bucket.class.0.iter().fold(1, |product: u64, &length| product * u64::from(length.max(1)));
        let one_ns = || surfaces[usize::from(task.cell.0)].ns(rows, length);
        match &self.table.cells {
            None => one_ns(),
            Some(cells) if self.is_cellular() => one_ns() + cells.boundary_ns as f64,
            Some(cells) => {
                let longest = task.rows.iter().map(|span| decoded(span.req)).max().unwrap_or(1);
                cells.padded_ns(surfaces, rows, length, u64::from(longest))
            }
        }
    }
}
