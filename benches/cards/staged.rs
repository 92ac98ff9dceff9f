//! One network in stages: how long the task of each stage takes for each number of rows, within a time.

use std::{
    cell::Cell,
    error::Error,
    time::{Duration, Instant},
};

use paternoster_device::cuda::{Cuda, CudaWork};
use paternoster_engine::{Precision, RunSize};
use paternoster_executor::{CapturedStages, StageLaunch, StagePrograms};
use paternoster_model::ModelSpec;
use paternoster_onnx::Model;
use paternoster_profile::{CutTable, Halt, MeasuredSize, measure, row_buckets};
use serde::Serialize;

use crate::{
    cuts::{self, CutNetwork},
    programs, timing,
};

/// Precisions that are measured.
const PRECISIONS: [Precision; 2] = [Precision::Ieee, Precision::Fp16];

/// Larger batches are not prepared once this part of a network's time is over.
const PREPARING: f64 = 0.6;
/// The part of a network's time after which only its programs alone are measured.
const TASKS: f64 = 0.9;
/// Runs after which a measurement ends if it is only to show that it works.
const QUICK_RUNS: usize = 24;

/// The times of one network at one length and in one precision.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StagedTimes {
    pub(crate) network: String,
    pub(crate) precision: String,
    /// What axes that vary were padded to; 0 if there is none.
    pub(crate) length: u32,
    /// Points of each stage's task, and the scatter of their runs, as a profile has them.
    pub(crate) cut: CutTable,
    /// The same of the programs alone, without the moves of rows around them.
    pub(crate) alone: CutTable,
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
        let rows = row_buckets(self.network.max_rows);
        let spec = programs::spec(self.network.name, model, self.network.max_rows)?;
        let programs = programs::in_stages(model, &spec, self.network.stages, self.length, self.precision)?;
        let (mut stages, fitting) = self.load(cuda, &spec, &programs, &rows)?;
        let measured = self.times(cuda, &mut stages, &rows[..fitting], began, budget);
        stages.free(cuda)?;
        measured
    }

    fn times(
        &mut self,
        cuda: &mut Cuda,
        stages: &mut CapturedStages,
        rows: &[u32],
        began: Instant,
        budget: Duration,
    ) -> Result<StagedTimes, Box<dyn Error>> {
        let mut launches: Vec<(u32, Vec<StageLaunch>)> = Vec::new();
        for &rows in rows {
            if !launches.is_empty() && began.elapsed() > budget.mul_f64(PREPARING) {
                self.skip(rows, "no time was left to prepare it");
                break;
            }
            match stages.capture(cuda, RunSize { rows, lengths: 0 }) {
                Ok(captured) => launches.push((rows, captured)),
                Err(reason) if launches.is_empty() => return Err(reason.into()),
                Err(reason) => {
                    self.skip(rows, reason);
                    break;
                }
            }
        }
        let sizes: Vec<MeasuredSize> =
            launches.iter().map(|(rows, _)| MeasuredSize { rows: *rows, length: self.length }).collect();
        let mut table = |works: fn(&StageLaunch) -> &CudaWork, until: Duration| {
            let runs = Cell::new(0);
            let elapsed = || if runs.get() < self.most_runs { began.elapsed() } else { Duration::MAX };
            let run = |size: MeasuredSize| {
                runs.set(runs.get() + 1);
                let own = launches.iter().find(|(rows, _)| *rows == size.rows);
                let (_, stages) = own.ok_or_else(|| failed("no such size"))?;
                let works: Vec<&CudaWork> = stages.iter().map(works).collect();
                timing::in_turn(cuda, &works).map_err(failed)
            };
            measure(self.network.stages, &sizes, until, elapsed, run)
        };
        let cut = table(|launch| &launch.task, budget.mul_f64(TASKS))?;
        let alone = table(|launch| &launch.program, budget)?;
        let measured = cut.rows();
        if let Some(size) = sizes.iter().find(|size| !measured.contains(&size.rows)) {
            self.skip(size.rows, "it would have taken longer than its share of the time");
        }
        Ok(StagedTimes {
            network: self.network.name.to_owned(),
            precision: self.precision.to_string(),
            length: self.length,
            cut,
            alone,
        })
    }

    /// Loads the network for the largest of these numbers of rows that fits, and returns how many of them do.
    fn load(
        &mut self,
        cuda: &mut Cuda,
        spec: &ModelSpec,
        programs: &StagePrograms,
        rows: &[u32],
    ) -> Result<(CapturedStages, usize), Box<dyn Error>> {
        let mut fitting = rows.len();
        loop {
            let largest = rows[fitting - 1];
            match CapturedStages::load(cuda, spec.clone(), programs, largest) {
                Ok(stages) => return Ok((stages, fitting)),
                Err(reason) if fitting == 1 => return Err(reason.into()),
                Err(reason) => {
                    self.skip(largest, reason);
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
