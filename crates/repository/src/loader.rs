//! The [`Loader`] trait, which the repository calls to compile and start versions, and the [`ResolvedVersion`] that it
//! passes.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy};
use paternoster_config::{
    lengths::PreparedLengths,
    pb::{
        self,
        model_metrics::{MetricControl, metric_control::MetricOptions},
    },
    policies::Automatic,
    stages::{StageCuts, StageRequest},
    unfold::UnfoldRequest,
};
use paternoster_engine::{OnnxEngine, Precision, Program};
use paternoster_executor::{ModelHandle, Placement};
use paternoster_model::{InputTensor, ModelSpec};
use paternoster_observe::{
    FIRST_RESPONSE_HISTOGRAM, LatencyMetrics, StartCacheReading, VersionLatencies, budget::Reservation,
};
use paternoster_onnx::{ExternalFiles, SealedModel, Signature};

use super::{LoadAttempt, LoadError, mapped};

/// Compiles versions and starts them in the pool. Loader threads call it concurrently; its methods may block.
pub trait Loader: Send + Sync {
    /// Returns the latencies to record of each version for the metrics.
    fn latencies(&self) -> LatencyMetrics {
        LatencyMetrics::default()
    }

    /// Compiles a version, runs its warm-up requests, and starts it in the pool. Returns early if the attempt is
    /// stopped.
    ///
    /// # Errors
    /// Returns the reason, which names the operator or file at fault.
    fn load(&self, resolved: ResolvedVersion, attempt: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError>;

    /// Reads the inputs and outputs of an ONNX program: from `bytes` if given, else from the file.
    ///
    /// # Errors
    /// Returns the reason, which names the file.
    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, LoadError>;

    /// Fills in the shapes of outputs that neither the file says nor shape inference over it, as far as the engine
    /// knows them. Returns the compiled program, so that the load need not compile it again.
    ///
    /// # Errors
    /// Returns the reason if the program cannot be opened or compiled.
    fn infer_shapes(
        &self,
        _program: &CellProgram,
        _signature: &mut Signature,
        _attempt: &LoadAttempt,
    ) -> Result<Option<HeldProgram>, LoadError> {
        Ok(None)
    }

    /// Returns how often a program was found to have opened in a process of its own before; `None` if nothing is kept.
    fn start_cache(&self) -> Option<StartCacheReading> {
        None
    }

    /// Returns whether a version may gain from [`Self::profile`].
    fn may_profile(&self, _resolved: &ResolvedVersion) -> bool {
        false
    }

    /// Profiles a version while it serves, unless a profile of it exists. Blocks the calling thread for seconds, and
    /// returns early once `is_wanted` returns false. Returns whether a reload would now stage or batch the version
    /// differently.
    ///
    /// # Errors
    /// Returns the reason if the version cannot be measured or its profile cannot be stored.
    fn profile(&self, _resolved: &ResolvedVersion, _is_wanted: &dyn Fn() -> bool) -> Result<bool, LoadError> {
        Ok(false)
    }
}

/// One version to load, with complete settings and the places of its files. Each change of it makes another one.
#[derive(Clone, Debug)]
pub struct ResolvedVersion {
    /// Inputs, outputs and largest batch.
    pub spec: ModelSpec,
    /// Batching policy, queueing and priorities.
    pub knobs: Knobs,
    /// How the graph is cut into stages. `knobs` describes one stage until the cut is made.
    pub stages: StageRequest,
    /// How requests unfold into cells, for a model of cells. `knobs` has neither cells nor segments until the programs
    /// are read.
    pub unfold: Option<UnfoldRequest>,
    /// The programs of the cells, in the order of the configuration.
    pub cells: Vec<CellProgram>,
    /// What of the graph is to be served by cells.
    pub opening: Opening,
    /// The models of the cells, if they were made from the graph.
    pub opened: Vec<SealedModel>,
    /// Which of policy and stages the profile decides, if there is one.
    pub automatic: Automatic,
    /// Longest time that one task may run, zero for no limit; `None` uses the pool's limit.
    pub task_time_limit: Option<Duration>,
    /// The engine that runs it.
    pub engine: EngineKind,
    /// The program of a model that is not made of cells, by the engine if that is one for graphs. For a model of cells,
    /// its file is the version's directory.
    pub program: CellProgram,
    /// Requests to run before the version is ready.
    pub warmup: Vec<WarmupSample>,
    /// The devices that the version runs on.
    pub placement: Placement,
    /// Lengths of the padded axes for which plans for CUDA cards are prepared.
    pub lengths: PreparedLengths,
    /// The complete configuration, after auto-completion.
    pub config: Arc<pb::ModelConfig>,
    /// The program, if completion had to compile it.
    pub held: Option<HeldProgram>,
}

/// What of a graph is served by cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Nothing, or what the configuration names.
    Nothing,
    /// Its recurrent layers, if it has any that can be opened; it must have them if the policy is `cellular`.
    RecurrentLayers,
    /// Nothing, because the configuration says how requests share batches of the whole graph. The log says so if it has
    /// recurrent layers.
    Batches,
    /// All of it: a decoder.
    Decoder(Generation),
}

/// How a decoder generates tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Maximum tokens of a response.
    pub max_tokens: u64,
    /// Maximum tokens of a prompt and its response together.
    pub max_length: u64,
    /// Tokens that end a response.
    pub ends: Vec<i64>,
}

/// A compiled program that is held so that its engine does not compile the same graph again: programs of one graph
/// share its session.
#[derive(Clone)]
pub struct HeldProgram {
    pub(super) _program: Arc<dyn Program>,
    /// What is reserved for it if a client sent it.
    pub(super) _memory: Arc<[Reservation]>,
}

impl fmt::Debug for HeldProgram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HeldProgram").finish_non_exhaustive()
    }
}

impl ResolvedVersion {
    /// Whether the configuration asks that recurrent layers be served by cells.
    pub(super) fn asks_for_cells(&self) -> bool {
        self.opening == Opening::RecurrentLayers && matches!(self.knobs.policy, Policy::Cellular(_))
    }

    /// Whether the only cell is the program of a model that is not made of cells: one whose requests are in sequences.
    pub(super) fn is_one_program(&self) -> bool {
        self.opened.is_empty() && self.cells.iter().all(|cell| cell.file == self.program.file)
    }

    /// Whether the configuration lists the cells.
    pub fn has_configured_cells(&self) -> bool {
        self.unfold.is_some() && self.opened.is_empty() && !self.is_one_program()
    }

    /// Returns the number of stages if the configuration decides it, and `None` if the profile does.
    pub fn fixed_stages(&self) -> Option<u16> {
        let says_one = self.automatic.is_any() && !self.automatic.stages;
        (says_one || self.stages.cuts != StageCuts::Whole).then(|| self.stages.count())
    }
}

/// The program of one cell, or of a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellProgram {
    /// Its file, which exists unless `bytes` replaces it.
    pub file: PathBuf,
    /// The program's content, if the load request carried it.
    pub bytes: Option<Bytes>,
    /// Where weights outside the program's own file may be.
    pub external: ExternalFiles,
    /// Libraries of custom operators, which ONNX Runtime loads.
    pub operators: Arc<[PathBuf]>,
    /// The engine that runs it on the CPU.
    pub engine: OnnxEngine,
    /// Number format that the engine computes in, where it has a choice.
    pub precision: Precision,
    /// Whether its inputs are what a tokenizer gives: what else a decoder takes is computed in the graph.
    pub takes_texts: bool,
}

impl CellProgram {
    /// Reads the program's content.
    ///
    /// # Errors
    /// Returns the reason, with the file's name, if it cannot be read.
    pub(super) fn read(&self) -> Result<Bytes, LoadError> {
        match &self.bytes {
            Some(bytes) => Ok(bytes.clone()),
            None => {
                let failed = |error| LoadError::files(format!("cannot read '{}': {error}", self.file.display()));
                mapped::read(&self.file).map_err(failed)
            }
        }
    }
}

/// The engine of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// An engine for ONNX graphs.
    Onnx(OnnxEngine),
    /// The built-in model that sends several responses to one request.
    Repeat,
}

impl EngineKind {
    /// Returns its name: a Triton backend, or the platform of a built-in model.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Onnx(engine) => engine.name(),
            Self::Repeat => "repeat",
        }
    }
}

/// A warm-up request, which runs `count` times before its version is ready.
#[derive(Clone, Debug)]
pub struct WarmupSample {
    /// Its name in the configuration.
    pub name: String,
    /// How often it runs; at least once.
    pub count: u32,
    /// Inputs in the order of the specification; `None` for an optional input that the sample leaves out.
    pub inputs: Vec<Option<InputTensor>>,
    /// Inputs of the program that are not inputs of the model (states and controls of sequences), by name. Each is one
    /// row without the batch axis.
    pub program_inputs: Vec<(String, InputTensor)>,
    /// Rows of the batch; 1 for models without a batch axis.
    pub rows: u32,
    /// Memory that is reserved for the inputs, if a client sent the sample.
    pub memory: Arc<[Reservation]>,
}

/// Returns the latencies to record of a version.
pub(super) fn version_latencies(shown: &LatencyMetrics, config: &pb::ModelConfig) -> VersionLatencies {
    VersionLatencies::new(shown, first_response_bounds(config))
}

/// Returns the histogram bounds that `model_metrics` sets for the time to first response; the last ones win.
fn first_response_bounds(config: &pb::ModelConfig) -> Option<&[f64]> {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control).rev();
    let named = |control: &&MetricControl| {
        control.metric_identifier.as_ref().is_some_and(|metric| metric.family == FIRST_RESPONSE_HISTOGRAM)
    };
    controls.filter(named).find_map(|control| match control.metric_options.as_ref()? {
        MetricOptions::HistogramOptions(options) => Some(options.buckets.as_slice()),
    })
}
