//! What the repository asks of the part that compiles and runs models.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::config::{
    automatic::Automatic,
    lengths::PreparedLengths,
    pb,
    stages::{StageCuts, StageRequest},
    unfold::UnfoldRequest,
};
use crate::{
    batching::Knobs,
    engine::{OnnxEngine, Precision},
    executor::{InputTensor, ModelHandle, Placement},
    model::ModelSpec,
    onnx::{ExternalFiles, Signature},
};

/// Compiles versions and brings them up. Called on loader threads, where blocking is fine; several at once.
pub trait Loader: Send + Sync {
    /// Compiles a version, warms it up, and brings it up in the pool.
    ///
    /// # Errors
    /// With the reason, naming the operator or file at fault.
    fn load(&self, request: LoadRequest) -> Result<Arc<ModelHandle>, String>;

    /// Reads what an ONNX program takes and gives: from `bytes` where there are any, else from the file.
    ///
    /// # Errors
    /// With the reason, naming the file.
    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, String>;

    /// Whether a version that was loaded so may gain from [`Self::profile`].
    fn may_profile(&self, _request: &LoadRequest) -> bool {
        false
    }

    /// Profiles a version that serves, unless there is a profile of it: for seconds, on the calling thread. Ends soon
    /// once `is_wanted` says no. Whether the version, loaded again, would be served otherwise than it was loaded.
    ///
    /// # Errors
    /// When it cannot be measured or its profile not be kept; with the reason.
    fn profile(&self, _request: &LoadRequest, _is_wanted: &dyn Fn() -> bool) -> Result<bool, String> {
        Ok(false)
    }
}

/// One version to load.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// What it takes and gives.
    pub spec: ModelSpec,
    /// How it batches.
    pub knobs: Knobs,
    /// How its graph is to be cut; `knobs` has one stage until that is done.
    pub stages: StageRequest,
    /// How its requests unfold into cells, if they do; `knobs` know neither cells nor segments until the programs are
    /// read.
    pub unfold: Option<UnfoldRequest>,
    /// The programs of the cells, in their order.
    pub cells: Vec<CellProgram>,
    /// What of policy and stages a profile decides, if there is one.
    pub automatic: Automatic,
    /// How long its tasks may run, where it says so; zero: as long as they like.
    pub task_time_limit: Option<Duration>,
    /// What runs it.
    pub engine: EngineKind,
    /// The program's file; it exists unless `override_bytes` stand for it or the engine needs none. Of a model of
    /// cells, the version's directory.
    pub program: PathBuf,
    /// The program itself, where a load request brought it.
    pub override_bytes: Option<Bytes>,
    /// Where the program's weights may lie that are not in its own file.
    pub external: ExternalFiles,
    /// Requests to run before the version is ready.
    pub warmup: Vec<WarmupSample>,
    /// The devices that it is to live on.
    pub placement: Placement,
    /// The lengths of padded axes that it is prepared for on cards.
    pub lengths: PreparedLengths,
    /// What its products and convolutions are computed with, where its device and engine leave a choice.
    pub precision: Precision,
    /// The complete configuration.
    pub config: Arc<pb::ModelConfig>,
}

impl LoadRequest {
    /// The program of a model that is not made of cells.
    pub(super) fn whole_program(&self) -> CellProgram {
        let Self { program, override_bytes, external, precision, .. } = self;
        let engine = match self.engine {
            EngineKind::Onnx(engine) => engine,
            EngineKind::Repeat => OnnxEngine::default(),
        };
        let (bytes, external) = (override_bytes.clone(), external.clone());
        CellProgram { file: program.clone(), bytes, external, engine, precision: *precision }
    }

    /// The number of stages, where the configuration decides it.
    pub fn fixed_stages(&self) -> Option<u16> {
        let says_one = self.automatic.is_any() && !self.automatic.stages;
        (says_one || self.stages.cuts != StageCuts::Whole).then(|| self.stages.count())
    }
}

/// The program of a cell, or of a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellProgram {
    /// Its file; it exists unless `bytes` stand for it.
    pub file: PathBuf,
    /// The program itself, where a load request brought it.
    pub bytes: Option<Bytes>,
    /// Where its weights may lie that are not in its own file.
    pub external: ExternalFiles,
    /// What runs it on the CPU.
    pub engine: OnnxEngine,
    /// What that computes with, where it has a choice.
    pub precision: Precision,
}

impl CellProgram {
    /// The program's file.
    ///
    /// # Errors
    /// When it cannot be read; with its name.
    pub(super) fn read(&self) -> Result<Bytes, String> {
        match &self.bytes {
            Some(bytes) => Ok(bytes.clone()),
            None => fs::read(&self.file)
                .map(Bytes::from)
                .map_err(|error| format!("cannot read '{}': {error}", self.file.display())),
        }
    }
}

/// Which engine runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// One for ONNX graphs.
    Onnx(OnnxEngine),
    /// The built-in model with many responses to one request.
    Repeat,
}

impl EngineKind {
    /// Its name as a backend of Triton, or as the platform of a built-in model.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Onnx(engine) => engine.name(),
            Self::Repeat => "repeat",
        }
    }
}

/// A request that runs `count` times before its version is ready.
#[derive(Clone, Debug)]
pub struct WarmupSample {
    /// Its name in the configuration.
    pub name: String,
    /// How often it runs, at least once.
    pub count: u32,
    /// Inputs in the order of the specification; `None` for optional ones left out.
    pub inputs: Vec<Option<InputTensor>>,
    /// By name, what inputs of the program read that are not the model's (states and controls of sequences): one row
    /// each, without the batch.
    pub program_inputs: Vec<(String, InputTensor)>,
    /// Rows of the batch; 1 for models without a batch axis.
    pub rows: u32,
}
