//! `text`: how a model that reads texts does so.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    knobs::Whole,
    values::{NonEmptyText, PartName},
};

/// A model that takes texts. Whatever is left out is read from the files that Hugging Face and sentence-transformers
/// put beside a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The tokenizer's file in the model's directory. Default: `tokenizer.json`.
    pub tokenizer: Option<NonEmptyText>,
    /// What the model does. Default: what the architecture in `config.json` is for, else `embed`.
    pub task: Option<TextTask>,
    /// The model's output that is used. Default: `sentence_embedding`, `last_hidden_state` or `logits`, else the first.
    pub output: Option<NonEmptyText>,
    /// Most tokens of a text, those that the tokenizer adds included.
    pub max_tokens: Option<Whole<u32, 1, { 1 << 20 }>>,
    /// Most bytes of a text. Default: 1 MiB.
    pub max_bytes: Option<Whole<u32, 1, { 1 << 30 }>>,
    /// Which end longer texts lose.
    pub truncate: Option<Side>,
    /// How the states of a text's tokens become its vector. With the task `embed`.
    pub pooling: Option<PoolingName>,
    /// Whether vectors are divided by their length. With the task `embed`.
    pub normalize: Option<bool>,
    /// Texts that are put in front of a text, by the name under which requests choose one.
    pub prompts: Option<BTreeMap<PartName, String>>,
    /// The prompt of requests that name none.
    pub default_prompt: Option<PartName>,
}

/// What a model does with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum TextTask {
    /// One vector for each text.
    Embed,
    /// One number for each class of a text, or of a pair of texts.
    Classify,
    /// One number for each class of each token.
    ClassifyTokens,
}

/// An end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Side {
    /// The beginning.
    Left,
    /// The end.
    Right,
}

/// How the states of tokens become a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PoolingName {
    /// The mean of all states.
    Mean,
    /// The first state.
    Cls,
    /// The last state.
    Last,
    /// The mean in which the n-th state counts n times.
    WeightedMean,
    /// The largest number of all states, by dimension.
    Max,
    /// The sum of all states, divided by the root of their number.
    MeanSqrtLen,
    /// The model gives the vector itself.
    Done,
}
