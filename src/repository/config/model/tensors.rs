//! `inputs`, `outputs` and the samples of `warmup`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    batching::knob::{Positive, Whole},
    repository::config::values::{DataTypeName, Dim, Parsed, Symbol},
};

/// The graph's shape of a tensor whose `dims` differ from it, with the same number of elements.
pub type Shape = Vec<Whole<i64, -1, { i64::MAX as i128 }>>;

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
    pub reshape: Option<Shape>,
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
    pub reshape: Option<Shape>,
    /// File in the model's directory with one label per line, for classification.
    pub labels: Option<String>,
}

/// A request that runs before a version is ready.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
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
