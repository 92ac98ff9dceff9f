//! `unfold`: the segments that each request of a recurrent model runs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::Signed;
use crate::{
    SettingError,
    knobs::{Finite, Long, Whole},
    values::{Entries, Names, NonEmpty, NonEmptyText, PartName, serialize_untagged},
};

/// One part of what each request runs: a mapping of its kind to its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SegmentSettings {
    /// A cell that runs once, or once for each row of a tensor. Short form of `{ cell: <name> }`: the cell's name.
    Stage(
        #[serde(deserialize_with = "short_stage")]
        #[schemars(with = "ShortStage")]
        Stage,
    ),
    /// A cell that runs for a number of steps, one after the other.
    Chain(Chain),
    /// A cell that runs repeatedly until one of its outputs has the value of `until`.
    Decode(Decode),
    /// Cells that run after those of their children.
    Tree(Tree),
}

/// A segment of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name for later segments. Default: its cell's.
    pub name: Option<PartName>,
    /// The cell.
    pub cell: NonEmptyText,
    /// Tensors whose rows each run separately, by the input that receives them; or one tensor, for the input in `as`.
    pub over: Option<Over>,
    /// The cell's input that receives the rows of `over`.
    #[serde(rename = "as")]
    pub as_input: Option<NonEmptyText>,
    /// Tensors, by the input that receives them. Other inputs receive the model's input of the same name.
    pub inputs: Names,
    /// Outputs of the previous request of the sequence, by the input that receives them.
    pub keep: Names,
    /// Value before a sequence's first request, by input: one number for all elements, or a tensor. Default: 0.
    pub start: Option<Entries<StartSettings>>,
    /// Tensors, by the input that receives their length.
    pub length: Names,
    /// `start`, `end`, `ready` or `id` of the request's sequence, by the input that receives it.
    pub control: Names,
    /// Its results, by name: `last(<output>)` or `all(<output>)`. Default: each output under its own name.
    pub emit: Names,
}

/// A segment of steps whose number is known in advance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// Its name for later segments. Default: its cell's.
    pub name: Option<PartName>,
    /// The cell.
    pub cell: NonEmptyText,
    /// Number of steps, an expression such as `len(tokens) / 2`. Default: the length of `over`, where that is known.
    pub steps: Option<StepCount>,
    /// That the cell's program runs several steps at a time: what it reads of `over`, and the outputs that it does not
    /// carry, have the steps as their first axis behind the batch. Default: one step, without such an axis.
    pub chunk: Option<ChunkSettings>,
    /// Whether the steps go from the last row to the first.
    pub reverse: Option<bool>,
    /// Whether each step is answered by a response of its own.
    pub stream: Option<bool>,
    /// The tensors of which each step receives its row, by input; or one tensor, for the input that `as` names.
    pub over: Option<Over>,
    /// The cell's input that receives the rows of `over`.
    #[serde(rename = "as")]
    pub as_input: Option<NonEmptyText>,
    /// Outputs of the previous step, by the input that receives them.
    pub carry: Names,
    /// As `carry`; the value is also kept for the sequence's next request.
    pub keep: Names,
    /// Value of a carried input in the first step, by input: one number for all elements, or a tensor. Default: 0.
    pub start: Option<Entries<StartSettings>>,
    /// Outputs that are appended to an input, by the input that grows.
    pub grow: Names,
    /// Tensors that each step receives whole, by input.
    pub hold: Names,
    /// Tensors, or `grow.<input>`, by the input that receives their length.
    pub length: Names,
    /// `start`, `end`, `ready` or `id` of the request's sequence, by the input that receives it.
    pub control: Names,
    /// Its results, by name: `last(<output>)` or `all(<output>)`.
    pub emit: Entries<NonEmptyText>,
}

/// How a program runs several steps at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkSettings {
    /// The cell's input that receives the number of steps of each row; rows with fewer are padded with zeros. Default:
    /// only rows with equally many steps run together.
    pub lengths: Option<NonEmptyText>,
}

/// A segment of steps that ends with a step whose output has a given value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// Its name for later segments. Default: its cell's.
    pub name: Option<PartName>,
    /// The cell.
    pub cell: NonEmptyText,
    /// Maximum number of steps, an expression such as `len(source) + 50`.
    pub max_steps: StepCount,
    /// Number of steps that nine in ten requests do not exceed, until the server has counted them. With `until`.
    pub expected_steps: Option<Whole<u32, 1, { 1 << 20 }>>,
    /// Whether each step is answered by a response of its own.
    pub stream: Option<bool>,
    /// Outputs of the previous step, by the input that receives them.
    pub carry: Names,
    /// As `carry`; for the generated token, which the next step reads.
    pub feed: Names,
    /// As `carry`; the value is also kept for the sequence's next request.
    pub keep: Names,
    /// Value of a carried input in the first step, by input: one number for all elements, or a tensor. Default: 0.
    pub start: Option<Entries<StartSettings>>,
    /// Outputs that are appended to an input, by the input that grows.
    pub grow: Names,
    /// The integer that ends the loop, by output. The step that outputs it is the last.
    pub until: Option<Entries<Signed>>,
    /// Tensors that each step receives whole, by input.
    pub hold: Names,
    /// Tensors, or `grow.<input>`, by the input that receives their length.
    pub length: Names,
    /// `start`, `end`, `ready` or `id` of the request's sequence, by the input that receives it.
    pub control: Names,
    /// Its results, by name: `last(<output>)` or `all(<output>)`.
    pub emit: Entries<NonEmptyText>,
}

/// A segment of nodes that run after their children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Its name for later segments. Default: `tree`.
    pub name: Option<PartName>,
    /// The cell of nodes without children.
    pub leaf: NonEmptyText,
    /// The cell of the other nodes.
    pub internal: NonEmptyText,
    /// The input of the model that names each node's children, −1 for none.
    pub children: NonEmptyText,
    /// Maximum number of nodes of a request. Default: 256.
    pub max_nodes: Option<Whole<u32, 1, { 1 << 20 }>>,
    /// The tensors of which each node receives its row, by input; or one tensor, for the input that `as` names.
    pub over: Option<Over>,
    /// The cell's input that receives the rows of `over`.
    #[serde(rename = "as")]
    pub as_input: Option<NonEmptyText>,
    /// Tensors that each node receives whole, by input.
    pub hold: Names,
    /// Tensors, by the input that receives their length.
    pub length: Names,
    /// `start`, `end`, `ready` or `id` of the request's sequence, by the input that receives it.
    pub control: Names,
    /// `<n>.<output>` of the n-th child, by input; zeros where there is none.
    pub child: Names,
    /// Its results, by name: `root(<output>)` or `all(<output>)`.
    pub emit: Entries<NonEmptyText>,
}

impl SegmentSettings {
    /// Returns the keyword of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Stage(_) => "stage",
            Self::Chain(_) => "chain",
            Self::Decode(_) => "decode",
            Self::Tree(_) => "tree",
        }
    }

    /// Returns its name, if given, and the key and the name of its cell. For a tree, the cell is that of the leaves.
    pub fn name_and_cell(&self) -> (Option<&str>, &'static str, &NonEmptyText) {
        let (name, key, cell) = match self {
            Self::Stage(stage) => (&stage.name, "cell", &stage.cell),
            Self::Chain(chain) => (&chain.name, "cell", &chain.cell),
            Self::Decode(decode) => (&decode.name, "cell", &decode.cell),
            Self::Tree(tree) => (&tree.name, "leaf", &tree.leaf),
        };
        (name.as_ref().map(|name| name.0.as_str()), key, cell)
    }

    /// Returns its mappings from inputs of its cells to their sources, by key.
    pub fn sources(&self) -> Vec<(&'static str, &BTreeMap<NonEmptyText, NonEmptyText>)> {
        const NO: &Names = &None;
        let (over, [inputs, carry, feed, keep, grow, hold, length, control, child]) = match self {
            Self::Stage(Stage { over, inputs, keep, length, control, .. }) => {
                (over, [inputs, NO, NO, keep, NO, NO, length, control, NO])
            }
            Self::Chain(Chain { over, carry, keep, grow, hold, length, control, .. }) => {
                (over, [NO, carry, NO, keep, grow, hold, length, control, NO])
            }
            Self::Decode(Decode { carry, feed, keep, grow, hold, length, control, .. }) => {
                (&None, [NO, carry, feed, keep, grow, hold, length, control, NO])
            }
            Self::Tree(Tree { over, hold, length, control, child, .. }) => {
                (over, [NO, NO, NO, NO, NO, hold, length, control, child])
            }
        };
        let over = match over {
            Some(Over::Inputs(inputs)) => Some(("over", &inputs.0)),
            Some(Over::Tensor(_)) | None => None,
        };
        let keys = ["inputs", "carry", "feed", "keep", "grow", "hold", "length", "control", "child"];
        let named = keys.into_iter().zip([inputs, carry, feed, keep, grow, hold, length, control, child]);
        over.into_iter().chain(named.filter_map(|(key, names)| Some((key, &names.as_ref()?.0)))).collect()
    }

    /// Replaces `over: <tensor>` with `as: <input>` by the mapping `over: { <input>: <tensor> }`.
    ///
    /// # Errors
    /// Rejects one of the two without the other. Returns the key and the reason.
    pub fn name_over(&mut self) -> Result<(), SettingError> {
        let (over, as_input) = match self {
            Self::Stage(stage) => (&mut stage.over, stage.as_input.take()),
            Self::Chain(chain) => (&mut chain.over, chain.as_input.take()),
            Self::Decode(_) => return Ok(()),
            Self::Tree(tree) => (&mut tree.over, tree.as_input.take()),
        };
        *over = match (over.take(), as_input) {
            (Some(Over::Tensor(tensor)), Some(input)) => Some(Over::Inputs(NonEmpty([(input, tensor)].into()))),
            (over @ (None | Some(Over::Inputs(_))), None) => over,
            (Some(Over::Tensor(_)), None) => {
                let message = "expected 'as', the cell's input, beside it, or a mapping from inputs to tensors";
                return Err(SettingError::from(message).at("over"));
            }
            (None, Some(_)) => {
                return Err(SettingError::from("expected 'over', which names the tensor, beside it").at("as"));
            }
            (Some(Over::Inputs(_)), Some(_)) => {
                return Err(SettingError::from("the mapping 'over' names the cell's inputs: remove this").at("as"));
            }
        };
        Ok(())
    }
}

/// The keys of a stage, or the name of its cell.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of a cell, or a mapping of keys to values")]
#[schemars(untagged, inline)]
enum ShortStage {
    #[serde(rename = "#text")]
    Cell(NonEmptyText),
    #[serde(rename = "#map")]
    Keys(Box<Stage>),
}

fn short_stage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Stage, D::Error> {
    Ok(match ShortStage::deserialize(deserializer)? {
        ShortStage::Keys(stage) => *stage,
        ShortStage::Cell(cell) => Stage { cell, ..Stage::default() },
    })
}

/// Tensors by input, or a single tensor.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "a tensor, or a mapping of inputs to tensors")]
#[schemars(untagged, inline)]
pub enum Over {
    /// A tensor for the input that `as` names.
    #[serde(rename = "#text")]
    Tensor(NonEmptyText),
    /// Tensors by input.
    #[serde(rename = "#map")]
    Inputs(Entries<NonEmptyText>),
}
serialize_untagged!(Over: Tensor, Inputs);

/// Value of a carried input in the first step.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(from = "WrittenStart")]
#[schemars(with = "WrittenStart", inline)]
pub enum StartSettings {
    /// This value in each element.
    Number(Finite),
    /// The row of a tensor.
    Tensor(NonEmptyText),
}
serialize_untagged!(StartSettings: Number, Tensor);

/// The written form of [`Start`]. A text that is a number counts as a number, as it does in parameters.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "a number, or the name of a tensor")]
#[schemars(untagged, inline)]
enum WrittenStart {
    /// This value in each element.
    #[serde(rename = "#number")]
    Number(Finite),
    /// The row of a tensor.
    #[serde(rename = "#text")]
    Text(NonEmptyText),
}

impl From<WrittenStart> for StartSettings {
    fn from(written: WrittenStart) -> Self {
        match written {
            WrittenStart::Number(number) => Self::Number(number),
            WrittenStart::Text(text) => match text.0.parse().ok().filter(|number: &f64| number.is_finite()) {
                Some(number) => Self::Number(Finite(number)),
                None => Self::Tensor(text),
            },
        }
    }
}

/// A number of steps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(from = "WrittenSteps")]
#[schemars(with = "WrittenSteps", inline)]
pub enum StepCount {
    /// This number.
    Number(Long),
    /// An expression of the tensors' lengths.
    Expression(NonEmptyText),
}
serialize_untagged!(StepCount: Number, Expression);

/// The written form of [`Steps`]. A text that is a number counts as a number, as it does in parameters.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "a number of steps, or an expression such as \"len(tokens) + 1\"")]
#[schemars(untagged, inline)]
enum WrittenSteps {
    /// This number.
    #[serde(rename = "#whole")]
    Number(Long),
    /// An expression of the tensors' lengths.
    #[serde(rename = "#text")]
    Text(NonEmptyText),
}

impl From<WrittenSteps> for StepCount {
    fn from(written: WrittenSteps) -> Self {
        match written {
            WrittenSteps::Number(number) => Self::Number(number),
            WrittenSteps::Text(text) => match text.0.parse() {
                Ok(number) => Self::Number(Whole(number)),
                Err(_) => Self::Expression(text),
            },
        }
    }
}
