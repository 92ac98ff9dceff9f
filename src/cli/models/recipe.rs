//! A model directory that can be written: its program and its configuration.

use std::{borrow::Cow, path::Path};

use super::configs;
use crate::{
    model::DataType,
    onnx::{self, Model, build::BuildError, zoo::Width},
};

/// Raised whenever a program changes, so that directories of an older version are written again.
const CONTENT_VERSION: u32 = 2;

/// One model directory.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether the model is written only when asked for.
    pub large: bool,
    pub program: Program,
    pub config: Config,
}

/// What lies in the version's directory.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// A graph of fixed size.
    Graph(fn() -> Result<Model, onnx::Error>),
    /// A graph that comes in widths.
    Network(fn(Width) -> Result<Model, onnx::Error>),
    /// A graph for each cell.
    Cells(&'static [Cell]),
    /// The identity of one datatype, `[batch, 4]`.
    Identity(DataType),
    /// The sentence encoder, from its checkpoint.
    Minilm,
    /// A file that is no model.
    Garbage,
    /// Nothing: the engine has it built in.
    BuiltIn,
}

/// A program that requests are unfolded into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The file's name without `.onnx`.
    pub name: &'static str,
    pub make: fn(Width) -> Result<Model, BuildError>,
}

impl Program {
    /// The files' names without `.onnx`.
    pub(crate) fn files(&self) -> Vec<&'static str> {
        match self {
            Self::BuiltIn => Vec::new(),
            Self::Cells(cells) => cells.iter().map(|cell| cell.name).collect(),
            Self::Graph(_) | Self::Network(_) | Self::Identity(_) | Self::Minilm | Self::Garbage => vec!["model"],
        }
    }

    /// Whether it comes in widths.
    fn has_widths(&self) -> bool {
        matches!(self, Self::Network(_) | Self::Cells(_))
    }
}

/// The configuration beside the versions.
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
    /// The file's name and text.
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
        make: fn() -> Result<Model, onnx::Error>,
    ) -> Self {
        Self { name, about, large: false, program: Program::Graph(make), config }
    }

    pub(super) fn network(
        name: &'static str,
        about: &'static str,
        config: Config,
        make: fn(Width) -> Result<Model, onnx::Error>,
    ) -> Self {
        Self { name, about, large: true, program: Program::Network(make), config }
    }

    pub(super) fn identity(name: &'static str, datatype: DataType) -> Self {
        let (about, config) = ("returns its input", Config::Pbtxt(configs::BATCHED));
        Self { name, about, large: false, program: Program::Identity(datatype), config }
    }

    pub(super) fn repeat(name: &'static str, config: Config) -> Self {
        let about = "n responses to one request, n = INPUT0[0]: response i is INPUT0 + i";
        Self { name, about, large: false, program: Program::BuiltIn, config }
    }

    /// What decides the content of the directory.
    pub(crate) fn stamp(&self, width: Width, checkpoint: Option<&Path>) -> String {
        let name = if self.program.has_widths() && width != Width::FULL { "quarter" } else { "full" };
        let weights = checkpoint.map(|path| path.metadata().map_or(0, |found| found.len())).unwrap_or_default();
        let config = self.config.file(width).map_or(Cow::Borrowed(""), |(_, text)| text);
        format!("content {CONTENT_VERSION}\nwidth {name}\nweights {weights} bytes\n{config}")
    }
}
