//! `model.yaml` as types: what the file may say, one field a key. The doc comments are what an editor shows of a key
//! (`paternoster schema`).
//!
//! Here live the types and what a single value may be. What values mean together is for `check`, and how they become
//! `ModelConfig` for `yaml`.

mod batching;
mod segments;
mod tensors;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{batching::*, segments::*, tensors::*};
use super::values::{Filled, Named, NonEmpty, PartName};
use crate::{
    batching::knob::{Finite, LengthList, Positive, Whole},
    engine::{OnnxEngine, Precision},
};

/// Most stages of a model.
pub const MAX_STAGES: u16 = 256;

/// A whole number from 1 that `ModelConfig` holds in 32 bits with a sign.
pub type PositiveInt = Whole<i32, 1, { i32::MAX as i128 }>;

/// A whole `model.yaml`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The directory's name.
    pub name: Option<String>,
    /// `onnxruntime` (default), `openvino` or `repeat`.
    pub backend: Option<String>,
    /// What runs the model on the CPU: `onnxruntime` (default) or `openvino`.
    pub engine: Option<Named<OnnxEngine>>,
    /// File name in the version's directory. Default: `model.onnx`.
    pub program: Option<String>,
    /// Largest batch in rows; 0: no batch axis.
    pub max_batch_size: Option<Whole<i32, 0, { i32::MAX as i128 }>>,
    /// Which versions are served: `latest` (default), `all`, `{ latest: <count> }` or `{ specific: [<versions>] }`.
    pub version_policy: Option<Versions>,
    /// The inputs. Missing ones, and missing `dtype` or `dims`, are completed from the graph.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// The outputs, likewise.
    #[serde(default)]
    pub outputs: Vec<Output>,
    /// How the model runs on its devices.
    pub instance: Option<Instance>,
    /// `true`: any number of responses to one request.
    pub decoupled: Option<bool>,
    /// Where the model is cut: `auto`, a number of stages, or the tensors to cut at.
    pub stages: Option<Stages>,
    /// Where rows leave the order of stages.
    #[serde(default)]
    pub exits: Vec<Exit>,
    /// The cell types of a recurrent model, by name.
    pub cells: Option<NonEmpty<BTreeMap<PartName, Cell>>>,
    /// The segments that each request runs, one after the other.
    pub unfold: Option<NonEmpty<Vec<Segment>>>,
    /// Requests belong to sequences that keep state.
    pub sequence_batching: Option<Sequences>,
    /// How requests share batches.
    pub batching: Option<Batching>,
    /// Requests that run before a version is ready.
    #[serde(default)]
    pub warmup: Vec<Sample>,
    /// Any keys with string values: shown in ModelConfig, without effect.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
}

/// Which versions of a model are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "latest, all, { latest: <count> } or { specific: [<versions>] }")]
#[schemars(untagged, inline)]
pub enum Versions {
    /// In one word.
    #[serde(rename = "#text")]
    Word(VersionWord),
    /// By their number, or by themselves.
    #[serde(rename = "#map")]
    Some(SomeVersions),
}

/// Versions in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum VersionWord {
    /// The newest.
    Latest,
    /// All.
    All,
}

/// Versions by their number, or by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SomeVersions {
    /// So many of the newest.
    Latest(Positive),
    /// These.
    Specific(Vec<Whole<i64, 1, { i64::MAX as i128 }>>),
}

/// How a model runs on its devices.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// `cpu`, `cuda` (all cards) and `cuda:<number>`. Default: the server decides.
    #[schemars(with = "Option<Vec<String>>")]
    pub devices: Option<Vec<Named<Device>>>,
    /// Most batches of the model in flight at once.
    pub count: Option<PositiveInt>,
    /// Lengths of padded axes that cards are prepared for, ascending, at most 64, by axis.
    #[serde(default)]
    pub lengths: BTreeMap<String, LengthList>,
    /// What products and convolutions are computed with: `fp32` (default, also `ieee`), `tf32`, `bf16` or `fp16`.
    pub precision: Option<Named<Precision>>,
}

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// Any card.
    Cards,
    /// One card.
    Card(i32),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (name, number) {
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cards),
            (_, Some(number @ 0..)) => Ok(Self::Card(number)),
            _ => Err(format!("expected cpu, cuda or cuda:<number>, but found '{name}'")),
        }
    }
}

/// Where a model is cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "auto, a number of stages from 1 to 256 or a list of tensors to cut at")]
#[schemars(untagged, inline)]
pub enum Stages {
    /// As its profile advises.
    #[serde(rename = "#text")]
    Word(Auto),
    /// Into this many stages of even time, at least 1.
    #[serde(rename = "#whole")]
    Count(Whole<u16, 1, { MAX_STAGES as i128 }>),
    /// At these tensors, at least one: the n-th is what stage n ends with.
    #[serde(rename = "#list")]
    At(NonEmpty<Vec<String>>),
}

/// What is left to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Auto {
    /// As the model's profile advises.
    Auto,
}

/// The number of a stage, from 0.
pub type StageNumber = Whole<u16, 0, { MAX_STAGES as i128 - 1 }>;

/// A way out of the order of stages (DVABatch section 9.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// The stage behind which rows may leave: any but the last.
    pub stage: StageNumber,
    /// A tensor of that stage with one FP32 value a row.
    pub value: Filled,
    /// Rows with at least this value leave.
    pub at_least: Finite,
    /// Rows that leave are done: the tensors of the stage that answer, by output of the model.
    #[serde(default)]
    pub outputs: BTreeMap<String, Filled>,
    /// Rows that leave go on at this stage instead, at least two behind `stage`.
    pub skip_to: Option<StageNumber>,
}

/// Requests that belong to sequences.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sequences {
    /// Most sequences that have state at a time.
    pub max_candidate_sequences: Option<PositiveInt>,
    /// How long a sequence may be idle before its state is dropped, in microseconds. Default: one second.
    pub max_sequence_idle_us: Option<Whole<u64, 1, { u64::MAX as i128 }>>,
    /// The queue of requests that wait for their turn.
    pub queue: Option<Queue>,
}

/// Rows of a cell's batch.
pub type Rows = Whole<u32, 1, { 1 << 16 }>;

/// A cell type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// File name in the version's directory.
    pub program: Filled,
    /// Sizes of its batches in rows, ascending; the last is the largest that runs (Bsizes). Default: `[64]`.
    pub batch_sizes: Option<Vec<Rows>>,
    /// Least rows of a further task of the same type, at most the largest batch; otherwise another type's turn comes.
    /// Default: a quarter of the largest batch.
    pub min_followup: Option<Rows>,
    /// Which of several types goes first, 1 = highest. Default: types that come later in a request go first.
    pub priority: Option<Positive>,
    /// What runs it on the CPU, in place of the model's `engine`.
    pub engine: Option<Named<OnnxEngine>>,
    /// What its products are computed with, in place of the model's `instance.precision`.
    pub precision: Option<Named<Precision>>,
}

/// Any whole number of 64 bits with a sign.
pub type Signed = Whole<i64, { i64::MIN as i128 }, { i64::MAX as i128 }>;

#[cfg(test)]
mod tests;
