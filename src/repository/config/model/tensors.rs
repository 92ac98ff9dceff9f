//! `inputs`, `outputs` and the samples of `warmup`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    batching::knob::{Positive, Whole},
    repository::config::values::{DataTypeName, Dim, Named, Symbol},
};

/// What the graph has in place of `dims`: as many elements.
pub type Shape = Vec<Whole<i64, -1, { i64::MAX as i128 }>>;

/// An input.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name in the graph.
    pub name: String,
    /// Its datatype, such as `FP32`, `INT64` or `BYTES`.
    pub dtype: Option<Named<DataTypeName>>,
    /// Sizes without the batch; −1 varies; a name varies under that name.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// What the graph sees in place of `dims`: as many elements.
    pub reshape: Option<Shape>,
    /// `true`: a request may leave it out.
    #[serde(default)]
    pub optional: bool,
    /// Axes on which requests of different lengths are padded to share a batch.
    pub pad: Option<PadSection>,
}

/// What is padded of an input: one axis or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PadSection {
    /// The axis.
    #[schemars(with = "Option<Symbol>")]
    pub axis: Option<Dim>,
    /// The axes, where there are several.
    #[schemars(with = "Option<Vec<Symbol>>")]
    pub axes: Option<Vec<Dim>>,
    /// What it is filled with. Default: 0.
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
    /// Sizes without the batch; −1 varies; a name varies under that name.
    #[serde(default)]
    pub dims: Vec<Dim>,
    /// What the graph gives in place of `dims`: as many elements.
    pub reshape: Option<Shape>,
    /// File in the model's directory, one label a line, for classification.
    pub labels: Option<String>,
}

/// A request that runs before a version is ready.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// What messages call it.
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

/// What a sample's input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SampleData {
    /// Zeros, or empty strings.
    Zero,
    /// Random values.
    Random,
}
