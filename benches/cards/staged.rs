//! One network in stages: how long each stage takes for each number of rows, within a time.

use std::{
    cell::Cell,
    error::Error,
    rc::Rc,
    time::{Duration, Instant},
};

use paternoster::{
    device::cuda::{Cuda, Graph},
    engine::{
        Precision,
        cuda::{Loaded, Plan, Workspace},
    },
    model::TensorSpec,
    onnx::{
        Model,
        cut::{Cuts, StageGraph, StagePort, cut},
    },
    profile::{CutTable, Halt, Size, measure, row_buckets},
};
use serde::Serialize;

use crate::{
    STREAM,
    cuts::{self, CutNetwork},
    networks::row_spec,
    steps::{captured, live},
    timing,
};

/// Precisions that are measured.
const PRECISIONS: [Precision; 2] = [Precision::Ieee, Precision::Fp16];

/// Larger batches are not prepared once this part of a network's time is over.
const PREPARING: f64 = 0.7;
/// Runs after which a measurement ends if it is only to show that it works.
const QUICK_RUNS: usize = 24;

/// The times of one network at one length and in one precision.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StagedTimes {
    pub(crate) network: String,
    pub(crate) precision: String,
    /// What axes that vary were padded to; 0 if there is none.
    pub(crate) length: u32,
    /// Points of each stage, and the scatter of their runs, as a profile has them.
    pub(crate) cut: CutTable,
}

/// A batch that was not measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Skipped {
    pub(crate) network: String,
    pub(crate) precision: String,
    pub(crate) length: u32,
    /// Rows of the smallest batch that was left out; all larger ones were too.
    pub(crate) rows: u32,
    pub(crate) reason: String,
}

/// All times of networks in stages.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Staged {
    pub(crate) card: String,
    pub(crate) budget_s: f64,
    pub(crate) times: Vec<StagedTimes>,
    pub(crate) skipped: Vec<Skipped>,
}

/// Measures all networks within `budget`, of which each length and precision of a network that is left has an equal
/// share. Calls `keep` after each of them.
pub(crate) fn all(
    cuda: &mut Cuda,
    card: String,
    is_quick: bool,
    budget: Duration,
    mut keep: impl FnMut(&Staged) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let ending = Instant::now() + budget;
    let networks = cuts::all(is_quick);
    let mut left: usize = networks.iter().map(|network| network.lengths.len() * PRECISIONS.len()).sum();
    let most_runs = if is_quick { QUICK_RUNS } else { usize::MAX };
    let mut staged = Staged { card, budget_s: budget.as_secs_f64(), ..Staged::default() };
    for network in networks {
        let model = if Instant::now() < ending { Some((network.build)()?) } else { None };
        for &length in network.lengths {
            for precision in PRECISIONS {
                let share = ending.saturating_duration_since(Instant::now()) / u32::try_from(left)?;
                left -= 1;
                let mut unit = Unit { network: &network, precision, length, most_runs, skipped: Vec::new() };
                let measured = match &model {
                    Some(model) if !share.is_zero() => unit.measure(cuda, model, share),
                    _ => Err("the time for all networks was over".into()),
                };
                match measured {
                    Ok(times) => staged.times.push(times),
                    Err(reason) => unit.skip(1, reason.to_string()),
                }
                staged.skipped.extend(unit.skipped);
                keep(&staged)?;
            }
        }
    }
    Ok(())
}

/// A network at one length and in one precision.
struct Unit<'a> {
    network: &'a CutNetwork,
    precision: Precision,
    length: u32,
    /// Runs after which the measurement ends, whatever time is left.
    most_runs: usize,
    skipped: Vec<Skipped>,
}

impl Unit<'_> {
    /// Measures as many numbers of rows as there is time and memory for, within `budget`.
    fn measure(&mut self, cuda: &mut Cuda, model: &Model, budget: Duration) -> Result<StagedTimes, Box<dyn Error>> {
        let began = Instant::now();
        let stages = cut(model, Cuts::Parts(self.network.stages), &[])?;
        let plans = stages.iter().map(|stage| self.plan(stage)).collect::<Result<Vec<Plan>, _>>()?;
        let loaded = plans.iter().map(|plan| plan.load(cuda)).collect::<Result<Vec<Loaded>, _>>()?;
        let rows = row_buckets(self.network.max_rows);
        let (workspaces, fitting) = self.reserve(cuda, &loaded, &rows)?;
        let mut graphs: Vec<(u32, Vec<Rc<Graph>>)> = Vec::new();
        for &rows in &rows[..fitting] {
            if !graphs.is_empty() && began.elapsed() > budget.mul_f64(PREPARING) {
                self.skip(rows, "no time was left to prepare it");
                break;
            }
            let stages = loaded.iter().zip(&workspaces);
            let captured = stages.map(|(stage, workspace)| captured(cuda, stage, workspace, rows));
            match captured.collect::<Result<Vec<_>, _>>() {
                Ok(captured) => graphs.push((rows, captured)),
                Err(reason) if graphs.is_empty() => return Err(reason.into()),
                Err(reason) => {
                    self.skip(rows, reason.to_string());
                    break;
                }
            }
        }
        let sizes: Vec<Size> = graphs.iter().map(|(rows, _)| Size { rows: *rows, length: self.length }).collect();
        let runs = Cell::new(0);
        let elapsed = || if runs.get() < self.most_runs { began.elapsed() } else { Duration::MAX };
        let run = |size: Size| {
            runs.set(runs.get() + 1);
            let (_, graphs) =
                graphs.iter().find(|(rows, _)| *rows == size.rows).ok_or_else(|| failed("no such size"))?;
            timing::in_turn(cuda, graphs, &live(size.rows)).map_err(failed)
        };
        let table = measure(stages.len(), &sizes, budget, elapsed, run)?;
        let measured = table.rows();
        if let Some(size) = sizes.iter().find(|size| !measured.contains(&size.rows)) {
            self.skip(size.rows, "it would have taken longer than its share of the time");
        }
        Ok(StagedTimes {
            network: self.network.name.to_owned(),
            precision: self.precision.to_string(),
            length: self.length,
            cut: table,
        })
    }

    fn plan(&self, stage: &StageGraph) -> Result<Plan, Box<dyn Error>> {
        let specs = |ports: &[StagePort]| -> Vec<TensorSpec> {
            let spec = |port: &StagePort| row_spec(&port.name, port.datatype, port.dims.as_deref(), self.length.into());
            ports.iter().map(spec).collect()
        };
        let (inputs, outputs) = (specs(&stage.inputs), specs(&stage.outputs));
        Ok(Plan::new(&stage.model, &inputs, &outputs, true, self.precision)?)
    }

    /// Reserves memory for the largest of these numbers of rows that fits, and returns how many of them do.
    fn reserve(
        &mut self,
        cuda: &mut Cuda,
        loaded: &[Loaded],
        rows: &[u32],
    ) -> Result<(Vec<Workspace>, usize), Box<dyn Error>> {
        let loaded: Vec<&Loaded> = loaded.iter().collect();
        let mut fitting = rows.len();
        loop {
            let largest = rows[fitting - 1];
            match Loaded::reserve_together(&loaded, cuda, STREAM, largest) {
                Ok(workspaces) => return Ok((workspaces, fitting)),
                Err(reason) if fitting == 1 => return Err(reason.into()),
                Err(reason) => {
                    self.skip(largest, reason.to_string());
                    fitting -= 1;
                }
            }
        }
    }

    /// Notes a batch that is left out. Of several, the smallest counts, since larger ones are left out with it.
    fn skip(&mut self, rows: u32, reason: impl Into<String>) {
        self.skipped.retain(|skipped| skipped.rows < rows);
        self.skipped.push(Skipped {
            network: self.network.name.to_owned(),
            precision: self.precision.to_string(),
            length: self.length,
            rows,
            reason: reason.into(),
        });
    }
}

fn failed(reason: impl ToString) -> Halt {
    Halt::Failed(reason.to_string())
}
