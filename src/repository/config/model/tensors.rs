//! `inputs`, `outputs` and the samples of `warmup`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    batching::knob::{Positive, Whole},
    repository::config::values::{DataTypeName, Dim, Named, Symbol},
};

/// Shape that the graph has in place of `dims`, with the same number of elements.
pub type Shape = Vec<Whole<i64, -1, { i64::MAX as i128 }>>;

/// An input.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name in the graph.
    pub name: String,
    /// Its datatype, such as `FP32`, `INT64` or `BYTES`.
    pub dtype: Option<Named<DataTypeName>>,
    /// Sizes without the batch axis. −1 is a size that varies; a name is one that varies under that name.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// Shape that the graph sees in place of `dims`, with the same number of elements.
    pub reshape: Option<Shape>,
    /// Whether a request may leave it out.
    #[serde(default)]
    pub optional: bool,
    /// Axes on which requests of different lengths are padded to share a batch.
    pub pad: Option<PadSection>,
}

/// The padded axes of an input.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PadSection {
    /// The axis.
    #[schemars(with = "Option<Symbol>")]
    pub axis: Option<Dim>,
    /// The axes, where there are several.
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
    pub dtype: Option<Named<DataTypeName>>,
    /// Sizes without the batch axis. −1 is a size that varies; a name is one that varies under that name.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// Shape that the graph gives in place of `dims`, with the same number of elements.
    pub reshape: Option<Shape>,
    /// File in the model's directory with one label per line, for classification.
    pub labels: Option<String>,
}

/// A request that runs before a version is ready.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Its name in messages.
    pub name: Option<String>,
    /// Its rows. Default: 1.
    pub batch_size: Option<Positive>,
    /// How often it runs. Default: 1.
    pub count: Option<Positive>,
    /// Its inputs, by name.
    #[serde(default)]
    pub inputs: BTreeMap<String, SampleInput>,
}

/// An input of a sample: zeros unless `data` or `file` says otherwise.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleInput {
    /// Its datatype.
    pub dtype: Named<DataTypeName>,
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
