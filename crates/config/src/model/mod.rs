//! The types of `model.yaml`, with one field for each key. Their doc comments are the descriptions of the JSON schema
//! that `paternoster schema` prints, which editors show.
//!
//! Here live the types and the limits of single values. `check` compares values with each other, and `yaml` converts
//! them to `ModelConfig`.

mod batching;
mod generate;
mod image;
mod pipeline;
mod rollout;
mod segments;
mod text;

use std::collections::BTreeMap;

use paternoster_engine::{OnnxEngine, Precision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{batching::*, generate::*, image::*, pipeline::*, rollout::*, segments::*, text::*};
use super::{
    SettingError,
    knobs::{Finite, LengthList, Positive, PositiveInt, QueueSettings, Whole},
    values::{DataTypeName, Dim, Entries, NonEmpty, NonEmptyText, Parsed, PartName, Symbol, serialize_untagged},
};

/// Maximum number of stages of a model.
pub const MAX_STAGES: u16 = 256;

/// A whole `model.yaml`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// The directory's name.
    pub name: Option<String>,
    /// `onnxruntime` (default), `openvino` or `repeat`.
    pub backend: Option<String>,
    /// The engine that runs the model on the CPU: `onnxruntime` (default) or `openvino`.
    pub engine: Option<Parsed<OnnxEngine>>,
    /// File name in the version's directory. Default: `model.onnx`.
    pub program: Option<String>,
    /// Largest batch in rows; 0: no batch axis.
    pub max_batch_size: Option<Whole<i32, 0, { i32::MAX as i128 }>>,
    /// Which versions are served: `latest` (default), `all`, `{ latest: <count> }` or `{ specific: [<versions>] }`.
    pub version_policy: Option<Versions>,
    /// Which versions answer requests that name none.
    pub rollout: Option<Rollout>,
    /// The inputs. Missing ones, and missing `dtype` or `dims`, are completed from the graph.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// The outputs. Missing ones, and missing `dtype` or `dims`, are completed from the graph.
    #[serde(default)]
    pub outputs: Vec<Output>,
    /// How the model runs on its devices.
    pub instance: Option<Instance>,
    /// Whether a request may have any number of responses.
    pub decoupled: Option<bool>,
    /// Whether responses are kept and given again to equal requests, if the server has a cache (`--cache-config`).
    pub response_cache: Option<bool>,
    /// Whether the model is loaded at the start and never unloaded to make room or because it is idle, where requests
    /// load models (`--model-control-mode=on-demand`).
    pub pin: Option<bool>,
    /// Where the model is cut: `auto`, a number of stages, or the tensors to cut at.
    pub stages: Option<Stages>,
    /// Exits: where rows leave before the last stage.
    #[serde(default)]
    pub exits: Vec<ExitSettings>,
    /// The cell types of a recurrent model, by name. `off`: recurrent layers in the graph are served as a whole.
    pub cells: Option<Cells>,
    /// The segments that each request runs, one after the other.
    pub unfold: Option<NonEmpty<Vec<SegmentSettings>>>,
    /// How the model takes texts.
    pub text: Option<Text>,
    /// How a decoder generates tokens.
    pub generate: Option<Generate>,
    /// The steps that each request runs through, in place of a program of its own.
    pub pipeline: Option<NonEmpty<Vec<PipelineStep>>>,
    /// Requests belong to sequences that keep state.
    pub sequence_batching: Option<Sequences>,
    /// How requests share batches.
    pub batching: Option<Batching>,
    /// Requests that run before a version is ready.
    #[serde(default)]
    pub warmup: Vec<WarmUpSettings>,
    /// Any keys with string values. ModelConfig shows them; they have no effect.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
}

/// Which versions of a model are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "latest, all, { latest: <count> } or { specific: [<versions>] }")]
#[schemars(untagged, inline)]
pub enum Versions {
    /// A keyword.
    #[serde(rename = "#text")]
    Word(VersionWord),
    /// A count, or a list of versions.
    #[serde(rename = "#map")]
    Some(SomeVersions),
}

/// A keyword for a set of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum VersionWord {
    /// The newest version.
    Latest,
    /// All versions.
    All,
}

/// The newest versions by count, or a list of versions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SomeVersions {
    /// This number of the newest versions.
    Latest(Positive),
    /// These versions.
    Specific(Vec<Whole<i64, 1, { i64::MAX as i128 }>>),
}

/// How a model runs on its devices.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// `cpu`, `cuda` (all cards) and `cuda:<number>`. Default: the server decides.
    #[schemars(with = "Option<Vec<String>>")]
    pub devices: Option<Vec<Parsed<DeviceSelector>>>,
    /// Maximum number of the model's batches in flight at once.
    pub count: Option<PositiveInt>,
    /// Lengths that cards are prepared for, by padded axis: ascending, at most 64.
    #[serde(default)]
    pub lengths: BTreeMap<String, LengthList>,
    /// Precision of matrix products and convolutions: `fp32` (default, also `ieee`), `tf32`, `bf16` or `fp16`.
    pub precision: Option<Parsed<Precision>>,
    /// What each batch holds while it runs, and the model's share of the chances to run
    /// (`--rate-limit=execution_count`).
    pub rate_limiter: Option<RateLimiterSettings>,
}

/// What a model asks of the rate limiter.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimiterSettings {
    /// The resources that each batch holds while it runs.
    #[serde(default)]
    pub resources: Vec<RateLimiterResource>,
    /// 1 (default) is highest; a model of priority n has 1 / n of the chances.
    pub priority: Option<Whole<u32, 1, { u32::MAX as i128 }>>,
}

/// A resource that batches hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimiterResource {
    /// The resource, by any name.
    pub name: String,
    /// Whether all devices share its units; by default each device has its own.
    #[serde(default)]
    pub global: bool,
    /// Number of units that a batch holds.
    pub count: Whole<u32, 1, { u32::MAX as i128 }>,
}

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// The CPU.
    Cpu,
    /// Any card.
    Cards,
    /// One card.
    Card(i32),
}

impl std::str::FromStr for DeviceSelector {
    type Err = SettingError;

    fn from_str(name: &str) -> Result<Self, SettingError> {
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (name, number) {
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cards),
            (_, Some(number @ 0..)) => Ok(Self::Card(number)),
            _ => Err(format!("expected cpu, cuda or cuda:<number>, but found '{name}'").into()),
        }
    }
}

/// Where a model is cut.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "auto, a number of stages from 1 to 256 or a list of tensors to cut at")]
#[schemars(untagged, inline)]
pub enum Stages {
    /// Where the model's profile advises.
    #[serde(rename = "#text")]
    Word(Auto),
    /// Into this number of stages, at least 1, of about equal run time.
    #[serde(rename = "#whole")]
    Count(Whole<u16, 1, { MAX_STAGES as i128 }>),
    /// At these tensors, at least one: stage n ends with the n-th tensor.
    #[serde(rename = "#list")]
    At(NonEmpty<Vec<String>>),
}
serialize_untagged!(Stages: Word, Count, At);

/// The keyword for a choice that is left to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Auto {
    /// As the model's profile advises.
    Auto,
}

/// The number of a stage, from 0.
pub type StageNumber = Whole<u16, 0, { MAX_STAGES as i128 - 1 }>;

/// An exit: rows that leave before the last stage (DVABatch section 9.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExitSettings {
    /// The stage after which rows may leave: any but the last.
    pub stage: StageNumber,
    /// A tensor of that stage with one FP32 value per row.
    pub value: NonEmptyText,
    /// Rows with at least this value leave.
    pub at_least: Finite,
    /// Rows that leave are complete: the stage's tensors that give the model's outputs, by output.
    #[serde(default)]
    pub outputs: BTreeMap<String, NonEmptyText>,
    /// Rows that leave continue at this stage instead, which comes at least two after `stage`.
    pub skip_to: Option<StageNumber>,
}

/// Requests that belong to sequences.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sequences {
    /// Maximum number of sequences that have state at the same time.
    pub max_candidate_sequences: Option<PositiveInt>,
    /// How long a sequence may be idle before its state is dropped, in microseconds. Default: one second.
    pub max_sequence_idle_us: Option<Whole<u64, 1, { u64::MAX as i128 }>>,
    /// The queue of requests that wait for their turn.
    pub queue: Option<QueueSettings>,
}

/// The cells of a model.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "off or a mapping of cells")]
#[schemars(untagged, inline)]
pub enum Cells {
    /// None: recurrent layers in the graph are served as a whole.
    #[serde(rename = "#text")]
    Word(Off),
    /// The cell types, by name.
    #[serde(rename = "#map")]
    Types(NonEmpty<BTreeMap<PartName, Cell>>),
}
serialize_untagged!(Cells: Word, Types);

/// The keyword for what is turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Off {
    /// It is turned off.
    Off,
}

/// Rows of a cell's batch.
pub type RowCount = Whole<u32, 1, { 1 << 16 }>;

/// A cell type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// File name in the version's directory.
    pub program: NonEmptyText,
    /// Sizes of its batches in rows, ascending; the last is the largest that runs (Bsizes). Default: those of its
    /// profile, or else `[64]`.
    pub batch_sizes: Option<Vec<RowCount>>,
    /// Minimum number of rows for another task of the same type; with fewer, another type runs. Only in the mode
    /// `paper` of `cellular`. Default: a quarter of the largest batch.
    pub min_followup: Option<RowCount>,
    /// Priority among the cell types, 1 the highest. Only in the mode `paper` of `cellular`. Default: types that come
    /// later in a request run first.
    pub priority: Option<Positive>,
    /// Axes along which inputs and outputs of the program have the batch, by tensor. Default: 0.
    pub batch_axes: Option<Entries<Whole<u16, 0, 7>>>,
    /// The engine that runs it on the CPU, in place of the model's `engine`.
    pub engine: Option<Parsed<OnnxEngine>>,
    /// Precision of its matrix products, in place of the model's `instance.precision`.
    pub precision: Option<Parsed<Precision>>,
}

/// A signed 64-bit integer.
pub type Signed = Whole<i64, { i64::MIN as i128 }, { i64::MAX as i128 }>;

/// The graph's shape of a tensor whose `dims` differ from it, with the same number of elements.
pub type ReshapeDims = Vec<Whole<i64, -1, { i64::MAX as i128 }>>;

/// An input.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name in the graph.
    pub name: String,
    /// Its datatype, such as `FP32`, `INT64` or `BYTES`.
    pub dtype: Option<Parsed<DataTypeName>>,
    /// Sizes without the batch axis. −1 means that the size varies; a name means the same, and names the axis.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// Shape of the graph's input in place of `dims`, with the same number of elements.
    pub reshape: Option<ReshapeDims>,
    /// Whether a request may omit it.
    #[serde(default)]
    pub optional: bool,
    /// Axes on which requests of different lengths are padded to share a batch.
    pub pad: Option<PadSection>,
}

/// The padded axes of an input.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PadSection {
    /// The padded axis.
    #[schemars(with = "Option<Symbol>")]
    pub axis: Option<Dim>,
    /// The padded axes, if there are several.
    #[schemars(with = "Option<Vec<Symbol>>")]
    pub axes: Option<Vec<Dim>>,
    /// The value of padding. Default: 0.
    pub value: Option<f64>,
}

/// An output.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Its name in the graph.
    pub name: String,
    /// Its datatype, such as `FP32`, `INT64` or `BYTES`.
    pub dtype: Option<Parsed<DataTypeName>>,
    /// Sizes without the batch axis. −1 means that the size varies; a name means the same, and names the axis.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// Shape of the graph's output in place of `dims`, with the same number of elements.
    pub reshape: Option<ReshapeDims>,
    /// File in the model's directory with one label per line, for classification.
    pub labels: Option<String>,
}

/// A request that runs before a version is ready.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUpSettings {
    /// Its name in log messages.
    pub name: Option<String>,
    /// Its number of rows. Default: 1.
    pub batch_size: Option<Positive>,
    /// Number of times that it runs. Default: 1.
    pub count: Option<Positive>,
    /// Its inputs, by name.
    #[serde(default)]
    pub inputs: BTreeMap<String, SampleInput>,
}

/// An input of a sample: zeros, unless `data` or `file` is given.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleInput {
    /// Its datatype.
    pub dtype: Parsed<DataTypeName>,
    /// Its sizes without the batch, all fixed.
    pub dims: Vec<Whole<i64, 0, { i64::MAX as i128 }>>,
    /// `zero` or `random`.
    pub data: Option<SampleData>,
    /// File in the model's directory `warmup`.
    pub file: Option<String>,
}

/// The values of a sample's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SampleData {
    /// Zeros, or empty strings.
    Zero,
    /// Random values.
    Random,
}

#[cfg(test)]
pub(crate) mod tests;
