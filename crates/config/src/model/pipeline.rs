//! `pipeline`: the steps that each request runs through.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageStepSettings, PoolingName, Side};
use crate::{
    knobs::{Finite, Whole},
    values::{DataTypeName, Entries, NonEmptyText, Parsed, PartName, serialize_untagged},
};

/// One step of a pipeline: a mapping of its kind to its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PipelineStep {
    /// A model of the repository.
    Model(ModelStep),
    /// Texts to tokens.
    Tokenize(TokenizeStep),
    /// The states of tokens to one vector.
    Pool(PoolStep),
    /// Images to the input of a model.
    Image(ImageStepSettings),
}

/// A step that turns texts into tokens. Each row has its own number of tokens, and models get each row by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeStep {
    /// The tokenizer's file in the pipeline's directory. Default: `tokenizer.json`.
    pub tokenizer: Option<NonEmptyText>,
    /// Most tokens of a text, those that the tokenizer adds included. Default: 512.
    pub max_tokens: Option<Whole<u32, 1, { 1 << 20 }>>,
    /// Most bytes of a text. Default: 1 MiB.
    pub max_bytes: Option<Whole<u32, 1, { 1 << 30 }>>,
    /// Which end longer texts lose.
    pub truncate: Option<Side>,
    /// Whether `ids`, `mask` and `types` are INT32 in place of INT64.
    pub int32: Option<bool>,
    /// Texts that are put in front of a text, by the name under which requests choose one.
    pub prompts: Option<BTreeMap<PartName, String>>,
    /// The prompt of requests that name none.
    pub default_prompt: Option<PartName>,
    /// Tensors of the pipeline, by what receives them: `TEXT`, `PAIR`, `TOKENS`, `PROMPT` or `TRUNCATE`.
    pub inputs: Entries<NonEmptyText>,
    /// Tensors of the pipeline, by what gives them: `ids`, `mask`, `types`, `tokens` or `offsets`.
    pub outputs: Entries<NonEmptyText>,
    /// The rows that run the step. Default: all.
    pub when: Option<When>,
}

/// A step that turns the states of a text's tokens into one vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolStep {
    /// How. Default: `mean`; a model that gives the vector itself needs `done`.
    pub pooling: Option<PoolingName>,
    /// Whether vectors are divided by their length.
    pub normalize: Option<bool>,
    /// The datatype of the states. Default: `FP32`.
    pub dtype: Option<Parsed<DataTypeName>>,
    /// Tensors of the pipeline, by what receives them: `states`, `DIMENSIONS` or `NORMALIZE`.
    pub inputs: Entries<NonEmptyText>,
    /// The tensor of the pipeline that `embedding` gives.
    pub outputs: Entries<NonEmptyText>,
    /// The rows that run the step. Default: all.
    pub when: Option<When>,
}

/// A step that runs a model of the repository.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelStep {
    /// The model.
    pub name: NonEmptyText,
    /// Its version. Default: the latest.
    pub version: Option<Whole<i64, 1, { i64::MAX as i128 }>>,
    /// Tensors of the pipeline, by the model's input that receives them.
    pub inputs: Entries<NonEmptyText>,
    /// Tensors of the pipeline, by the model's output that gives them.
    pub outputs: Entries<NonEmptyText>,
    /// The rows that run the step. Default: all.
    pub when: Option<When>,
}

/// A step runs for the rows of which an element of a tensor passes a test. Rows that no step gives an output have zeros
/// there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The tensor.
    pub tensor: NonEmptyText,
    /// A number that the element is not below.
    pub at_least: Option<Finite>,
    /// What the element equals: a number, `true`, `false` or a text.
    pub equals: Option<Scalar>,
}

/// A single value.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "a number, true, false or a text")]
#[schemars(untagged, inline)]
pub enum Scalar {
    /// A number.
    #[serde(rename = "#number")]
    Number(Finite),
    /// A truth value.
    #[serde(rename = "#flag")]
    Bool(bool),
    /// A text.
    #[serde(rename = "#text")]
    Text(String),
}
serialize_untagged!(Scalar: Number, Bool, Text);

impl PipelineStep {
    /// Returns its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Model(_) => "model",
            Self::Tokenize(_) => "tokenize",
            Self::Pool(_) => "pool",
            Self::Image(_) => "image",
        }
    }

    /// Returns its inputs, its outputs and its condition.
    pub fn ports(&self) -> (&Entries<NonEmptyText>, &Entries<NonEmptyText>, Option<&When>) {
        match self {
            Self::Model(ModelStep { inputs, outputs, when, .. })
            | Self::Tokenize(TokenizeStep { inputs, outputs, when, .. })
            | Self::Pool(PoolStep { inputs, outputs, when, .. })
            | Self::Image(ImageStepSettings { inputs, outputs, when, .. }) => (inputs, outputs, when.as_ref()),
        }
    }
}

impl ModelStep {
    /// Returns a mapping of ports to tensors as plain text.
    pub fn names(entries: &Entries<NonEmptyText>) -> BTreeMap<String, String> {
        entries.0.iter().map(|(port, tensor)| (port.0.clone(), tensor.0.clone())).collect()
    }
}
