//! Turns the arguments into setups and loads.

use std::path::Path;

use paternoster_batching::LaneKnobs;
use paternoster_lab::{
    simulate::{
        CellGraph, DeviceTable, ModelTable, Recorded, RecordedError, RecordedTask, Replay, RequestInputs, Served,
        Setup, SimulatedFigures, SimulatedLoad, run,
    },
    workload::{Arrivals, LengthDistribution, Trace, Trees},
};
use paternoster_observe::timeline::{Picture, RanTask};

use super::{
    MOST_REQUESTS, SimulateArgs, SimulateError,
    policies::{Asked, Circumstances},
    tables,
};

const NS_PER_US: f64 = 1e3;
const MS_PER_S: f64 = 1e3;

/// Most requests of the run that finds the peak.
const SATURATING: u64 = 10_000;
/// By default, one in this many requests is a warm-up.
const WARM_UP: u64 = 20;
/// The policies with which the peak is measured: if all models have cells, and otherwise. A window pads whatever waits,
/// as the papers' baselines do, so that the peak does not depend on what runs teach.
const PEAK_POLICIES: [&str; 2] = ["cellular", "window, queueing: { bucket_width: 0 }"];
/// Periods of a run whose rate changes, other than in steps.
const PERIODS: u64 = 60;
/// Length of a run that tests whether devices keep up, as a multiple of the latency bound. A queue that grows by half a
/// percent exceeds the bound in that time.
const TOLD_BY: f64 = 200.0;
/// Most tasks that a lane accepts ahead: BatchMaker's MaxTasksToSubmit.
const DEPTH: u16 = 5;

/// A model to simulate.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Its table for policies that do not set a number of stages.
    pub(super) table: ModelTable,
    /// As in the device table.
    parts: ModelTable,
    pub(super) share: f64,
    pub(super) workload: Option<String>,
    inputs: RequestInputs,
}

/// The part of the simulation that is the same for all policies.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    args: &'a SimulateArgs,
    pub(super) table: DeviceTable,
    pub(super) models: Vec<Model>,
    /// Requests of each run: at most those of the trace, and more than configured if a growing queue would not show
    /// otherwise.
    pub(super) requests: u64,
    arrivals: Arrivals,
    traced: Option<Vec<u32>>,
    /// Requests of each period that is shown separately; 0 if the rate is constant.
    period: u64,
    after_idle_ns: u64,
    replay: Option<Replay>,
}

impl<'a> Ask<'a> {
    /// Reads the tables and the trace, and finds the models and their workloads.
    ///
    /// # Errors
    /// Fails if an argument is unknown, or a file is invalid.
    pub(super) fn new(args: &'a SimulateArgs) -> Result<Self, SimulateError> {
        let table = tables::read(&args.table, args.dec_timesteps).map_err(SimulateError::Word)?;
        let only = || match table.models.as_slice() {
            [only] => Ok(vec![only.name.clone()]),
            models => {
                let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let message = format!("name a model of the table '{}': --model {}", table.name, known.join("|"));
                Err(SimulateError::Word(message))
            }
        };
        let named = if args.models.is_empty() { only()? } else { args.models.clone() };
        let mut models = named.iter().map(|word| model(word, &table, args)).collect::<Result<Vec<_>, _>>()?;
        let mut after_idle_ns = (args.after_idle_us * NS_PER_US).round() as u64;
        if let Some(path) = &args.recorded {
            let picture = tables::timeline("recorded", path).map_err(SimulateError::Word)?;
            let recorded = run_as_recorded(&mut models, &tasks(&picture));
            after_idle_ns = recorded.map_err(|fault| tells_nothing("recorded", path, &fault))?;
        }
        let trace = args.trace.as_ref().map(|path| Trace::read(path)).transpose()?;
        let replay = match (&args.replay, &trace) {
            (Some(path), Some(trace)) => {
                let picture = tables::timeline("replay", path).map_err(SimulateError::Word)?;
                let tables: Vec<&ModelTable> = models.iter().map(|model| &model.table).collect();
                let (tasks, arrived_ns) = (tasks(&picture), picture.arrivals());
                let front = front_ns(args);
                let before_ns = front.get(front.len() / 2).map_or(0, |front_ns| front_ns.round() as u64 / 2);
                let reached_ns: Vec<u64> = trace.arrivals_ns.iter().map(|at_ns| at_ns + before_ns).collect();
                let replay = Replay::of(&tables, args.lanes, &tasks, &arrived_ns, &reached_ns);
                Some(replay.map_err(|fault| tells_nothing("replay", path, &fault))?)
            }
            _ => None,
        };
        let (arrivals, traced) = match trace {
            Some(trace) => (trace.arrivals(), Some(trace.lengths)),
            None => {
                let unknown = || SimulateError::unknown("arrivals", &args.arrivals, &Arrivals::NAMES);
                (Arrivals::named(&args.arrivals).ok_or_else(unknown)?, None)
            }
        };
        if args.backlog > 0 && !matches!(arrivals, Arrivals::Poisson { .. } | Arrivals::Bursts { .. }) {
            let message = format!("--backlog: expected arrivals poisson or bursts, but found {}", args.arrivals);
            return Err(SimulateError::Word(message));
        }
        let recorded = traced.as_ref().map_or(u64::MAX, |lengths| lengths.len() as u64);
        let telling = args.capacity.zip(args.p99_ms).map_or(0.0, |(rate, p99_ms)| rate * p99_ms / MS_PER_S * TOLD_BY);
        if telling > MOST_REQUESTS as f64 {
            let message = format!(
                "--capacity: a growing queue shows after {telling:.0} requests at this rate and --p99-ms: expected at most \
                 {MOST_REQUESTS}"
            );
            return Err(SimulateError::Word(message));
        }
        let requests = args.requests.max(telling.ceil() as u64).min(recorded);
        let period = match &arrivals {
            Arrivals::Poisson { .. } => 0,
            Arrivals::Stepped { steps } => steps.first().map_or(0, |&(_, requests)| requests),
            _ => requests.div_ceil(PERIODS),
        };
        Ok(Self { args, table, models, requests, arrivals, traced, period, after_idle_ns, replay })
    }

    /// Returns the devices under a policy and an objective.
    ///
    /// # Errors
    /// Fails if the policy's knobs do not fit one of the models.
    pub(super) fn setup(
        &self,
        policy: &Asked,
        objective_ms: Option<f64>,
        devices: u16,
    ) -> Result<Setup, SimulateError> {
        let args = self.args;
        let ahead = ahead(args);
        let around = Circumstances { lanes: args.lanes, depth: ahead.depth, objective_ms, max_batch: args.max_batch };
        let served = |model: &Model| -> Result<Served, SimulateError> {
            let boundary_us = policy.boundary_us.unwrap_or(args.boundary_us);
            let table = staged(&model.parts, policy.stages.or(args.stages), boundary_us)?;
            let knobs = policy.knobs(&table, around).map_err(SimulateError::Word)?;
            Ok(Served { table, knobs })
        };
        Ok(Setup {
            models: self.models.iter().map(served).collect::<Result<_, _>>()?,
            devices,
            lost: Vec::new(),
            lanes: args.lanes,
            ahead,
            idle_watts: self.table.idle_watts,
            busy_watts: self.table.busy_watts,
            after_idle_ns: self.after_idle_ns,
            front: front_ns(args),
            replay: self.replay.clone(),
            warm_up: args
                .warm_up
                .unwrap_or(self.requests / WARM_UP)
                .max(args.backlog)
                .min(self.requests.saturating_sub(1)),
            period: self.period,
        })
    }

    /// Returns the number of runs of each policy and load.
    pub(super) fn runs(&self) -> u64 {
        self.args.seeds
    }

    /// Returns whether the rate rises in steps.
    pub(super) fn is_stepped(&self) -> bool {
        matches!(self.arrivals, Arrivals::Stepped { .. })
    }

    /// Returns the load at a mean rate; `None` keeps the arrivals' own rate.
    pub(super) fn load(&self, rate: Option<f64>) -> SimulatedLoad {
        let arrivals = rate.map_or_else(|| self.arrivals.clone(), |rate| self.arrivals.scaled(rate));
        self.loaded(arrivals)
    }

    fn loaded(&self, arrivals: Arrivals) -> SimulatedLoad {
        let models = self.models.iter().map(|model| (model.share, model.inputs.clone())).collect();
        SimulatedLoad { arrivals, models, traced: self.traced.clone(), backlog: self.args.backlog }
    }

    /// Returns the policy with which the peak is measured.
    pub(super) fn peak_policy(&self) -> &'static str {
        PEAK_POLICIES[usize::from(self.models.iter().any(|model| model.table.cells.is_none()))]
    }

    /// Returns the requests per second that these devices complete while requests are always waiting.
    pub(super) fn peak(&self, setup: &Setup) -> f64 {
        let waiting = self.requests.min(SATURATING);
        let load = SimulatedLoad { backlog: waiting, ..self.loaded(Arrivals::At(Vec::new())) };
        let unlimited = Setup { warm_up: 0, replay: None, ..setup.clone() };
        let figures: SimulatedFigures = run(&unlimited, self.args.seed, load.requests(self.args.seed, waiting));
        figures.throughput(&figures.all())
    }
}

/// Parses `NAME[:SHARE[:WORKLOAD]]`.
fn model(word: &str, table: &DeviceTable, args: &SimulateArgs) -> Result<Model, SimulateError> {
    let mut parts = word.splitn(3, ':');
    let name = parts.next().unwrap_or_default();
    let share = match parts.next() {
        None => 1.0,
        Some(given) => {
            let share = given.parse::<f64>().ok().filter(|share| share.is_finite() && *share > 0.0);
            let message = || format!("model '{word}': expected a share above 0, but found '{given}'");
            share.ok_or_else(|| SimulateError::Word(message()))?
        }
    };
    let whole = table.model(name)?.clone();
    let model = staged(&whole, args.stages, args.boundary_us)?;
    let default = usual_workload(&model);
    let given = parts.next().or(args.workload.as_deref());
    let workload = default.map(|default| given.unwrap_or(default).to_owned());
    let inputs =
        workload.as_ref().map(|name| request_inputs(&model, name)).transpose()?.unwrap_or(RequestInputs::Alike);
    if matches!(inputs, RequestInputs::Tree(_)) && args.trace.is_some() {
        let message = format!("--trace: expected a model whose requests have lengths, but '{}' has trees", whole.name);
        return Err(SimulateError::Word(message));
    }
    Ok(Model { table: model, parts: whole, share, workload, inputs })
}

/// Returns a model in this many stages, or in all its parts, with the cost of a boundary.
fn staged(parts: &ModelTable, stages: Option<usize>, boundary_us: f64) -> Result<ModelTable, SimulateError> {
    let sliced = stages.map(|stages| parts.sliced(stages)).transpose()?;
    Ok(sliced.as_ref().unwrap_or(parts).with_boundary((boundary_us * NS_PER_US).round() as u64))
}

/// Returns the default workload of a model; `None` if all its requests are alike.
fn usual_workload(model: &ModelTable) -> Option<&'static str> {
    match &model.cells {
        Some(cells) if cells.has_trees() => Some("trees"),
        Some(_) => Some("wmt15"),
        None if model.steps.is_some() => Some("wmt19"),
        None => model.is_padded().then_some("glue-short"),
    }
}

/// Returns what requests of a model contain under a workload.
fn request_inputs(model: &ModelTable, workload: &str) -> Result<RequestInputs, SimulateError> {
    if model.cells.as_ref().is_some_and(CellGraph::has_trees) {
        let trees = Trees::named(workload);
        return trees
            .map(RequestInputs::Tree)
            .ok_or_else(|| SimulateError::unknown("workload", workload, &Trees::NAMES));
    }
    let lengths = LengthDistribution::named(workload);
    let lengths = lengths.ok_or_else(|| SimulateError::unknown("workload", workload, &LengthDistribution::NAMES))?;
    let is_translated = model.cells.as_ref().is_some_and(CellGraph::decodes);
    Ok(if is_translated { RequestInputs::Translated(lengths) } else { RequestInputs::OfLength(lengths) })
}

/// Returns how far ahead lanes accept work.
fn ahead(args: &SimulateArgs) -> LaneKnobs {
    match (args.horizon_us * NS_PER_US).round() as u64 {
        0 => LaneKnobs::default(),
        horizon_ns => LaneKnobs { horizon_ns, depth: DEPTH },
    }
}

/// Returns the completed tasks of a timeline, as the simulator takes them.
fn tasks(picture: &Picture) -> Vec<RecordedTask<'_>> {
    let recorded = |RanTask { model, stage, lane, rows, lengths, from_ns, to_ns }| RecordedTask {
        model,
        stage,
        lane,
        rows,
        lengths,
        from_ns,
        to_ns,
    };
    picture.tasks().into_iter().map(recorded).collect()
}

/// Makes the models' task times scatter as in a recording, and returns what idle lanes cost there, averaged over the
/// models.
fn run_as_recorded(models: &mut [Model], tasks: &[RecordedTask<'_>]) -> Result<u64, RecordedError> {
    let mut after_idle_ns = 0;
    for model in &mut *models {
        let recorded = Recorded::of(&model.table, tasks)?;
        after_idle_ns += recorded.after_idle_ns;
        model.parts.scatter.clone_from(&recorded.scatter);
        model.table.scatter = recorded.scatter;
    }
    Ok(after_idle_ns / models.len().max(1) as u64)
}

fn tells_nothing(option: &str, path: &Path, fault: &RecordedError) -> SimulateError {
    SimulateError::Word(format!("--{option}: '{}': {fault}", path.display()))
}

fn front_ns(args: &SimulateArgs) -> Vec<f64> {
    let mut quantiles: Vec<f64> = args.front_us.iter().map(|us| us * NS_PER_US).collect();
    quantiles.sort_by(f64::total_cmp);
    quantiles
}
