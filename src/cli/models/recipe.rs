//! Recipes of model directories: a program and its configuration.

use std::{borrow::Cow, path::Path};

use paternoster_model::DataType;
use paternoster_onnx::{Model, build::BuildError, zoo::Width};

use super::configs;

/// Incremented when a program changes, so that directories of an older version are written again.
const CONTENT_VERSION: u32 = 2;

/// One model directory.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether the model is written only on request.
    pub large: bool,
    pub program: Program,
    pub config: Config,
    /// Whether the directory has the tokenizer of the sentence encoder.
    pub tokenizer: bool,
}

/// The content of the version directory.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// A graph of fixed size.
    Graph(fn() -> Result<Model, paternoster_onnx::Error>),
    /// A graph that can be scaled in width.
    Network(fn(Width) -> Result<Model, paternoster_onnx::Error>),
    /// A graph for each cell.
    Cells(&'static [Cell]),
    /// The identity of one datatype, `[batch, 4]`.
    Identity(DataType),
    /// The sentence encoder, from its checkpoint.
    Minilm,
    /// A file that is not a model.
    Garbage,
    /// Nothing: the engine is built in, or the steps of a pipeline are other models.
    BuiltIn,
}

/// A program into which requests are unfolded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The file's name without `.onnx`.
    pub name: &'static str,
    pub make: fn(Width) -> Result<Model, BuildError>,
}

impl Program {
    /// Returns the names of the files, without `.onnx`.
    pub(crate) fn files(&self) -> Vec<&'static str> {
        match self {
            Self::BuiltIn => Vec::new(),
            Self::Cells(cells) => cells.iter().map(|cell| cell.name).collect(),
            Self::Graph(_) | Self::Network(_) | Self::Identity(_) | Self::Minilm | Self::Garbage => vec!["model"],
        }
    }

    /// Returns whether it can be scaled in width.
    fn has_widths(&self) -> bool {
        matches!(self, Self::Network(_) | Self::Cells(_))
    }
}

/// The configuration of the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Config {
    /// None: the server completes it from the graph.
    Bare,
    /// The text of `config.pbtxt`.
    Pbtxt(&'static str),
    /// The text of `model.yaml`.
    Yaml(&'static str),
    /// The text of `model.yaml` in which `HIDDEN` is replaced by `hidden` channels, scaled by the model's width.
    WideYaml { text: &'static str, hidden: usize },
}

impl Config {
    /// Returns the file's name and text.
    pub(crate) fn file(self, width: Width) -> Option<(&'static str, Cow<'static, str>)> {
        match self {
            Self::Bare => None,
            Self::Pbtxt(text) => Some(("config.pbtxt", text.into())),
            Self::Yaml(text) => Some(("model.yaml", text.into())),
            Self::WideYaml { text, hidden } => {
                Some(("model.yaml", text.replace("HIDDEN", &width.of(hidden).to_string()).into()))
            }
        }
    }
}

impl Recipe {
    pub(super) fn graph(
        name: &'static str,
        about: &'static str,
        config: Config,
        make: fn() -> Result<Model, paternoster_onnx::Error>,
    ) -> Self {
        Self { name, about, large: false, program: Program::Graph(make), config, tokenizer: false }
    }

    pub(super) fn network(
        name: &'static str,
        about: &'static str,
        config: Config,
        make: fn(Width) -> Result<Model, paternoster_onnx::Error>,
    ) -> Self {
        Self { name, about, large: true, program: Program::Network(make), config, tokenizer: false }
    }

    pub(super) fn identity(name: &'static str, datatype: DataType) -> Self {
        let (about, config) = ("returns its input", Config::Pbtxt(configs::BATCHED));
        Self { name, about, large: false, program: Program::Identity(datatype), config, tokenizer: false }
    }

    /// A pipeline of other models, with the tokenizer of the sentence encoder.
    pub(super) fn pipeline(name: &'static str, about: &'static str, text: &'static str) -> Self {
        let (program, config) = (Program::BuiltIn, Config::Yaml(text));
        Self { name, about, large: false, program, config, tokenizer: true }
    }

    pub(super) fn repeat(name: &'static str, config: Config) -> Self {
        let about = "n responses to one request, n = INPUT0[0]: response i is INPUT0 + i";
        Self { name, about, large: false, program: Program::BuiltIn, config, tokenizer: false }
    }

    /// Returns a text that identifies the content of the directory.
    pub(crate) fn stamp(&self, width: Width, checkpoint: Option<&Path>) -> String {
        let name = if self.program.has_widths() && width != Width::FULL { "quarter" } else { "full" };
        let weights = checkpoint.map(|path| path.metadata().map_or(0, |found| found.len())).unwrap_or_default();
        let config = self.config.file(width).map_or(Cow::Borrowed(""), |(_, text)| text);
        format!("content {CONTENT_VERSION}\nwidth {name}\nweights {weights} bytes\n{config}")
    }
}
