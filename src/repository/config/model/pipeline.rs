//! `pipeline`: the steps that each request runs through.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    batching::knob::{Finite, Whole},
    repository::config::values::{Entries, NonEmptyText, serialize_untagged},
};

/// One step of a pipeline: a mapping of its kind to its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PipelineStep {
    /// A model of the repository.
    Model(ModelStep),
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

impl ModelStep {
    /// Returns a mapping of ports to tensors as plain text.
    pub fn names(entries: &Entries<NonEmptyText>) -> BTreeMap<String, String> {
        entries.0.iter().map(|(port, tensor)| (port.0.clone(), tensor.0.clone())).collect()
    }
}
