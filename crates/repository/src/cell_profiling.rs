//! Measures the cells of a version, and serves it with the batch sizes and latencies of its profile.
//!
//! Without a profile, a short trial at load says how many rows are enough for chains that run several steps at a time.
//!
//! A cell is measured as a model of its own, each of whose requests is a single node: what the node reads comes with
//! the request. Its tasks gather, run and split as those of the version do.

use std::time::{Duration, Instant};

use bytes::Bytes;
use paternoster_batching::{Knobs, Ns, Policy};
use paternoster_config::unfold::UnfoldRequest;
use paternoster_engine::EngineError;
use paternoster_executor::{CellPrograms, StagePrograms, WarmUp};
use paternoster_model::{
    InputTensor, ModelSpec, SymbolId, TensorSpec, element_count,
    unfold::{CellInputSource, CellSpec, Emit, EmitRange, Emitted, NodeType, Nodes, Segment, Tensor, Unfolding},
};
use paternoster_profile::{CellSegment, CellTable, ChunkProfile, Halt, Key, MeasuredSize, Profile, cell_costs, sizes};

use super::{
    LoadAttempt, LoadError, PoolLoader, ResolvedVersion, TrialLimits, cells,
    profiling::{Subject, Trials, key},
    warmup::{OPEN_LENGTH, random_inputs},
};

/// Batches are measured up to this size at least, that of BatchMaker's LSTM (section 2.2), to show what larger ones
/// than configured would gain.
const MOST_ROWS: u32 = 512;

/// Lengths of axes that vary. More rows of them are measured than of whole models, hence fewer lengths.
const LENGTHS: [u32; 3] = [16, 64, 256];

/// Steps of tasks that run several.
const STEPS: [u32; 4] = [1, 4, 16, 64];

/// The trial at load: tasks of this many steps, from this many rows on, each run so often. Twice the rows must spare
/// this share of the time of a row, or they only make the steps of all longer.
const TRIAL_STEPS: u32 = 4;
const TRIAL_ROWS: u32 = 8;
const TRIAL_RUNS: usize = 3;
const LEAST_GAIN: f64 = 0.1;

/// Larger batches are not tried after this time.
const TRIAL_TIME: Duration = Duration::from_millis(250);

/// What the value of an input follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Nothing: it is random.
    Random,
    /// It is the measured length, or number of steps.
    Length,
    /// It is the length of an axis that is measured at one length only.
    OpenLength,
}

/// A cell as a model.
struct LoneCell {
    spec: ModelSpec,
    programs: StagePrograms,
    /// By input.
    values: Vec<Value>,
    sizes: Vec<MeasuredSize>,
}

impl PoolLoader {
    /// Returns the key of a model of cells. Batch sizes are not in it: a profile stays valid when its suggestions are
    /// written into the configuration.
    pub(super) fn cells_key(&self, resolved: &ResolvedVersion, unfold: &UnfoldRequest) -> Result<Key, LoadError> {
        let programs = distinct(resolved.cells.iter().map(|cell| cell.file.as_path()));
        let engines = resolved.cells.iter().map(|cell| self.engines.describe(cell.engine, cell.precision));
        let engines = engines.collect::<Result<Vec<_>, EngineError>>()?;
        let cells = unfold.cells.iter().enumerate().map(|(number, cell)| {
            let nodes = unfold.segments.iter().find(|segment| segment.cells.contains(&number)).map(|segment| {
                let over_rows = segment.sources.values().any(|source| matches!(source, CellInputSource::Rows(_)));
                match &segment.nodes {
                    Nodes::Stage if over_rows => "stage over rows",
                    Nodes::Stage => "stage",
                    Nodes::Chain { chunks: true, .. } => "chain of several steps",
                    Nodes::Chain { chunks: false, .. } => "chain",
                    Nodes::Decode { .. } => "decode",
                    Nodes::Tree { .. } => "tree",
                }
            });
            format!("{} ({})", cell.name, nodes.unwrap_or_default())
        });
        let cells = cells.collect::<Vec<_>>().join(", ");
        let (most, lanes) = (unfold.max_rows().max(MOST_ROWS), self.pool.lanes());
        let configuration = format!("cells {cells} in batches of up to {most} on {lanes} lanes");
        key(&programs, &distinct(engines).join("; "), configuration)
    }

    /// Returns a version with the batch sizes of its profile where the configuration sets none, and its latencies;
    /// `None` if there is no profile that can be trusted, or the version may run on cards.
    pub(super) fn cells_by_profile(
        &self,
        resolved: &ResolvedVersion,
        unfold: &UnfoldRequest,
    ) -> Option<ResolvedVersion> {
        let is_open = resolved.knobs.latencies.is_none() || unfold.cells.iter().any(|cell| cell.batch_sizes.is_none());
        // Profiles are measured on the CPU.
        if !is_open || (self.pool.has_cards() && resolved.placement.may_need_cards()) {
            return None;
        }
        let profile = self.trusted_profile(resolved)?;
        if !profile.cells.iter().map(|table| &table.name).eq(unfold.cells.iter().map(|cell| &cell.name)) {
            return None;
        }
        let mut sized = unfold.clone();
        for (cell, table) in sized.cells.iter_mut().zip(&profile.cells) {
            cell.batch_sizes.get_or_insert_with(|| table.batch_sizes.clone());
        }
        let mut knobs = resolved.knobs.clone();
        knobs.max_batch_rows = sized.max_rows();
        knobs.latencies.get_or_insert_with(|| cell_costs(&profile.cells));
        let batches = sized.cells.iter().map(|cell| format!("{}: {}", cell.name, cell.max_rows()));
        tracing::info!(
            model = resolved.spec.name,
            largest_batches = batches.collect::<Vec<_>>().join(", "),
            "profile applied"
        );
        Some(ResolvedVersion { knobs, unfold: Some(sized), ..resolved.clone() })
    }

    /// Bounds the batches of chains that run several steps at a time, where neither the configuration nor a profile
    /// does: to the rows from which more gain little on this machine. Those who come later then wait in the queue, and
    /// requests of many steps do not wait at each step for all others (`docs/cells.md`). Returns the knobs with these
    /// bounds.
    pub(super) fn bound_batches(
        &self,
        resolved: &ResolvedVersion,
        unfold: &UnfoldRequest,
        programs: &StagePrograms,
        mut knobs: Knobs,
        attempt: &LoadAttempt,
    ) -> Knobs {
        let is_on_cards = self.pool.has_cards() && resolved.placement.may_need_cards();
        let (Policy::Cellular(own), Some(cells)) = (&mut knobs.policy, programs.cells()) else { return knobs };
        if own.paper || is_on_cards {
            return knobs;
        }
        let bounds: Vec<Option<u32>> = unfold
            .cells
            .iter()
            .zip(&own.cells)
            .enumerate()
            .map(|(number, (cell, knobs))| {
                let chunks = knobs.chunks.filter(|_| cell.batch_sizes.is_none())?;
                let most = (cell.max_rows(), chunks.most_row_steps);
                let lone = LoneCell::new(resolved, cells, number, most).ok()?;
                self.try_batches(&lone, cell.max_rows(), self.trial_limits(resolved), attempt)
            })
            .collect();
        for (cell, bound) in own.cells.iter_mut().zip(bounds) {
            tracing::debug!(model = resolved.spec.name, bound, "rows that are enough, by a trial at load");
            cell.max_rows = bound.unwrap_or(cell.max_rows);
            cell.min_followup = cell.min_followup.min(cell.max_rows);
        }
        knobs
    }

    /// Runs tasks of a cell until [`enough_rows`] knows; `None` if they cannot be run, or if the smallest batch would
    /// take too long: a load must not end because of its trial.
    fn try_batches(&self, lone: &LoneCell, most: u32, limits: TrialLimits, attempt: &LoadAttempt) -> Option<u32> {
        let began = Instant::now();
        // The shortest of some runs, since others may run beside the load.
        let shortest = |rows: u32, runs: usize| -> Option<Duration> {
            let inputs = lone.inputs(MeasuredSize { rows, length: TRIAL_STEPS }).ok()?;
            let run = |_| {
                let ran = attempt.trial(limits, |stop| {
                    let batch = WarmUp { rows, inputs: &inputs, program_inputs: &[], stop };
                    self.pool.warm_up(&lone.spec, &lone.programs, batch).map_err(LoadError::engine)
                });
                ran.ok().map(|took_ns| Duration::from_nanos(took_ns.into_iter().sum::<Ns>()))
            };
            (0..runs).map(run).collect::<Option<Vec<_>>>()?.into_iter().min()
        };
        if shortest(1, 1)?.saturating_mul(TRIAL_ROWS) > TRIAL_TIME {
            return None;
        }
        enough_rows(most, |rows| {
            let is_in_time = rows <= TRIAL_ROWS || began.elapsed() <= TRIAL_TIME;
            let took = is_in_time.then(|| shortest(rows, TRIAL_RUNS)).flatten()?;
            Some(took.as_nanos() as f64 / f64::from(rows))
        })
    }

    /// Measures each cell of a version. The cells share the budget equally.
    ///
    /// # Errors
    /// Returns the reason if the version cannot be compiled or the smallest batch of a cell fails, and
    /// [`Halt::GivenUp`] if `before_run` stopped it.
    pub(super) fn measure_cells(
        &self,
        resolved: &ResolvedVersion,
        unfold: &UnfoldRequest,
        trials: Trials<'_>,
    ) -> Result<Profile, Halt> {
        let attempt = LoadAttempt::of_repository();
        let limits = self.trial_limits(resolved);
        let (programs, _) = cells::compile(&self.pool, &self.opener(&attempt), limits, resolved, unfold)?;
        let cells = programs.cells().ok_or_else(|| Halt::Failed("it has no cells".to_owned()))?;
        let (knobs, _) = cells.knobs();
        let budget = trials.budget / u32::try_from(knobs.len()).unwrap_or(u32::MAX).max(1);
        let mut tables = Vec::with_capacity(knobs.len());
        for (number, (cell, knobs)) in unfold.cells.iter().zip(&knobs).enumerate() {
            let configured = cell.batch_sizes.as_ref().and_then(|sizes| sizes.last().copied());
            // The rows of a program that is not made for cells are those of the configuration.
            let least = if resolved.is_one_program() { 1 } else { MOST_ROWS };
            let most_row_steps = knobs.chunks.map_or(u32::MAX, |chunks| chunks.most_row_steps);
            let most = (configured.map_or(least, |most| most.max(least)), most_row_steps);
            let lone = LoneCell::new(resolved, cells, number, most)?;
            let subject = Subject {
                resolved,
                spec: &lone.spec,
                programs: &lone.programs,
                what: format!("cell '{}'", cell.name),
                inputs: &|size| lone.inputs(size),
                at_once: 1,
            };
            let times = self.measure_programs(&subject, &lone.sizes, budget, trials)?;
            let chunk = knobs.chunks.map(|chunks| ChunkProfile { lengths: chunks.is_padded });
            tables.push(CellTable::new(cell.name.clone(), cell.priority, configured, chunk, times));
        }
        let max_rows = tables.iter().filter_map(CellTable::largest_batch).max().unwrap_or(1);
        let unfold = cells.unfolding().segments.iter().map(|segment| named(segment, cells.unfolding())).collect();
        let model = resolved.spec.name.clone();
        Ok(Profile { model, max_rows, cells: tables, unfold, ..Profile::default() })
    }
}

impl LoneCell {
    /// Makes a model of a cell, with batches of up to `most_rows`, and tasks of up to `most_row_steps` rows times
    /// steps.
    fn new(
        resolved: &ResolvedVersion,
        cells: &CellPrograms,
        number: usize,
        (most_rows, most_row_steps): (u32, u32),
    ) -> Result<Self, LoadError> {
        let lacks = |what: &str| LoadError::internal(what);
        let program = cells.program(number).ok_or_else(|| lacks("it has no program"))?;
        let unfolding = cells.unfolding();
        let mut nodes =
            unfolding.segments.iter().flat_map(|segment| segment.types.iter().map(move |own| (segment, own)));
        let (segment, nodes) = nodes.find(|(_, own)| own.cell == number).ok_or_else(|| lacks("no segment runs it"))?;
        let (is_chunked, over_rows) = (segment.runs_chunks(), nodes.goes_over_rows());
        let cell = &unfolding.cells[number];
        let tensor = |tensor: &TensorSpec, source: Option<&CellInputSource>| {
            let is_by_step = !is_chunked || matches!(source, Some(CellInputSource::Step { .. }));
            let varies = |axis: usize| tensor.dims[axis] < 0 && is_by_step && (axis == 0 || !is_chunked);
            let mut symbols = (0..tensor.dims.len()).map(|axis| varies(axis).then_some(SymbolId(0))).collect();
            let mut dims = tensor.dims.clone();
            if over_rows {
                dims.insert(0, -1);
                symbols = std::iter::once(Some(SymbolId(0))).chain(symbols).collect();
            }
            TensorSpec { symbols, ..TensorSpec::new(tensor.name.clone(), tensor.datatype, &dims) }
        };
        let inputs = cell.inputs.iter().zip(&nodes.inputs).map(|(own, source)| tensor(own, Some(source)));
        let spec = ModelSpec {
            name: format!("{}, cell '{}'", resolved.spec.name, cell.name),
            version: resolved.spec.version,
            max_batch_size: most_rows,
            inputs: inputs.collect(),
            outputs: cell.outputs.iter().map(|own| tensor(own, None)).collect(),
            symbols: vec!["length".to_owned()],
            decoupled: false,
        };
        let values = nodes.inputs.iter().map(|source| match source {
            CellInputSource::Steps => Value::Length,
            CellInputSource::Length(_) | CellInputSource::GrownLength if is_chunked => Value::OpenLength,
            CellInputSource::Length(_) | CellInputSource::GrownLength => Value::Length,
            _ => Value::Random,
        });
        let has_lengths = spec.inputs.iter().flat_map(|input| &input.symbols).any(Option::is_some);
        let lengths = match (is_chunked, has_lengths) {
            (true, _) => &STEPS[..],
            (false, true) => &LENGTHS,
            (false, false) => &[],
        };
        let mut sizes = sizes(most_rows, lengths);
        sizes.retain(|size| !is_chunked || size.length == 1 || size.rows.saturating_mul(size.length) <= most_row_steps);
        let programs =
            CellPrograms::new(&spec, alone(cell, &spec, over_rows), vec![program.clone()]).map_err(LoadError::graph)?;
        Ok(Self { values: values.collect(), sizes, programs: programs.into(), spec })
    }

    /// Builds random inputs of a batch, whose lengths are what they say.
    fn inputs(&self, size: MeasuredSize) -> Result<Vec<Option<InputTensor>>, LoadError> {
        let mut inputs = random_inputs(&self.spec, size)?;
        for ((input, value), spec) in inputs.iter_mut().zip(&self.values).zip(&self.spec.inputs) {
            let length = match value {
                Value::Random => continue,
                Value::Length => i64::from(size.length),
                Value::OpenLength => OPEN_LENGTH,
            };
            if let Some(input) = input {
                let count = element_count(&input.shape).unwrap_or(0);
                input.data = Bytes::from(spec.datatype.element(length as f64).repeat(count));
            }
        }
        Ok(inputs)
    }
}

/// Returns how a request unfolds into a single node of a cell, which reads the request's inputs and returns all
/// outputs.
fn alone(cell: &CellSpec, spec: &ModelSpec, over_rows: bool) -> Unfolding {
    let source = |input: usize| {
        let tensor = Tensor::Input(input);
        if over_rows { CellInputSource::Rows(tensor) } else { CellInputSource::Whole(tensor) }
    };
    let emit = |(output, own): (usize, &TensorSpec)| Emit { name: own.name.clone(), output, which: EmitRange::Last };
    let segment = Segment {
        name: cell.name.clone(),
        types: std::iter::once(NodeType { cell: 0, inputs: (0..cell.inputs.len()).map(source).collect() }).collect(),
        nodes: Nodes::Stage,
        emits: cell.outputs.iter().enumerate().map(emit).collect(),
        streams: false,
    };
    let cells = vec![CellSpec { max_rows: spec.max_batch_size, min_followup: 1, ..cell.clone() }];
    let outputs = (0..cell.outputs.len()).map(|emit| Emitted { segment: 0, emit });
    Unfolding { cells, segments: vec![segment], outputs: outputs.collect(), limits: Vec::new() }
}

/// Returns a segment with the names of its cells.
fn named(segment: &Segment, unfolding: &Unfolding) -> CellSegment {
    let name = |own: &NodeType| unfolding.cells[own.cell].name.clone();
    match (&segment.types[..], &segment.nodes) {
        ([leaf, inner], _) => CellSegment::Tree { leaf: name(leaf), inner: name(inner) },
        (types, Nodes::Stage) => CellSegment::Stage(name(&types[0])),
        (types, Nodes::Decode { .. }) => CellSegment::Decode(name(&types[0])),
        (types, _) => CellSegment::Chain(name(&types[0])),
    }
}

/// Returns the fewest rows whose double would spare too little of the time of a row, up to `most`. `ns_a_row` returns
/// that time, or `None` if it is not known; `None` if it knows none.
fn enough_rows(most: u32, mut ns_a_row: impl FnMut(u32) -> Option<f64>) -> Option<u32> {
    let mut rows = TRIAL_ROWS.min(most);
    let mut least_ns = ns_a_row(rows)?;
    while rows < most {
        let twice = rows.saturating_mul(2).min(most);
        let Some(ns) = ns_a_row(twice).filter(|ns| *ns <= (1.0 - LEAST_GAIN) * least_ns) else { break };
        (rows, least_ns) = (twice, ns);
    }
    Some(rows)
}

/// Returns the different ones of some values, in their order.
fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    values.into_iter().fold(Vec::new(), |mut distinct, value| {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
        distinct
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_enough_where_twice_as_many_spare_little() {
        // Microseconds of tasks of 4 steps, of layers of widths 64, 512 and 1,024 on one core.
        let enough = |most: u32, us: [f64; 4]| {
            enough_rows(most, |rows| Some(us[(rows.next_power_of_two().max(8) / 8).ilog2() as usize] / f64::from(rows)))
        };
        assert_eq!(enough(64, [80.3, 130.6, 189.5, 296.5]), Some(64));
        assert_eq!(enough(64, [745.3, 1491.0, 2807.7, 5646.6]), Some(8));
        assert_eq!(enough(64, [3683.3, 6508.3, 12375.4, 24112.6]), Some(16));
        assert_eq!(enough(4, [40.0; 4]), Some(4), "never more than the configuration allows");
        assert_eq!(enough(48, [80.3, 130.6, 189.5, 250.0]), Some(48));
        assert_eq!(enough_rows(64, |rows| (rows <= 8).then_some(1.0)), Some(8), "larger ones were not tried");
        assert_eq!(enough_rows(64, |_| None), None);
    }
}
