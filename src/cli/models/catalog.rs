//! What can be written: sets of models, each with its program and its configuration.

use std::{borrow::Cow, fmt, path::Path};

use super::{cells, configs};
use crate::{
    model::DataType,
    onnx::{
        self, Model, PortDim,
        build::BuildError,
        port::dims,
        zoo::{self, Width},
    },
};

/// Raised whenever a program changes, so that what an older version wrote is written again.
const CONTENT_VERSION: u32 = 2;

/// A set of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Set {
    /// Models to try the server with, and the networks of the benchmarks.
    Examples,
    /// The models that the recorded protocol cases call.
    Replay,
    /// What the tests of the project call.
    Tests,
}

impl fmt::Display for Set {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Examples => "examples",
            Self::Replay => "replay",
            Self::Tests => "tests",
        })
    }
}

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
    /// The same, where `HIDDEN` stands for so many channels at the model's width.
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
    fn graph(
        name: &'static str,
        about: &'static str,
        config: Config,
        make: fn() -> Result<Model, onnx::Error>,
    ) -> Self {
        Self { name, about, large: false, program: Program::Graph(make), config }
    }

    fn network(
        name: &'static str,
        about: &'static str,
        config: Config,
        make: fn(Width) -> Result<Model, onnx::Error>,
    ) -> Self {
        Self { name, about, large: true, program: Program::Network(make), config }
    }

    fn identity(name: &'static str, datatype: DataType) -> Self {
        let (about, config) = ("returns its input", Config::Pbtxt(configs::BATCHED));
        Self { name, about, large: false, program: Program::Identity(datatype), config }
    }

    fn repeat(name: &'static str, config: Config) -> Self {
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

impl Set {
    pub(super) fn recipes(self) -> Vec<Recipe> {
        match self {
            Self::Examples => examples(),
            Self::Replay => replay(),
            Self::Tests => tests(),
        }
    }
}

fn identity() -> Result<Model, onnx::Error> {
    Ok(zoo::identity()?)
}

fn add_sub() -> Result<Model, onnx::Error> {
    Ok(zoo::add_sub()?)
}

fn slow() -> Result<Model, onnx::Error> {
    Ok(zoo::slow()?)
}

fn strings() -> Result<Model, onnx::Error> {
    Ok(zoo::identity_of(DataType::Bytes, &dims!["batch", 2])?)
}

fn variable() -> Result<Model, onnx::Error> {
    Ok(zoo::identity_of(DataType::Int64, &dims!["batch", "n"])?)
}

fn unbatched() -> Result<Model, onnx::Error> {
    Ok(zoo::identity_of(DataType::Fp32, &dims![1, 16])?)
}

fn examples() -> Vec<Recipe> {
    use Config::{Bare, Pbtxt, Yaml};
    let minilm = Recipe {
        name: "minilm",
        about: "sentence embeddings of all-MiniLM-L6-v2; texts of different lengths share a batch",
        large: false,
        program: Program::Minilm,
        config: Yaml(configs::MINILM),
    };
    let images = Pbtxt(configs::NETWORK);
    let mut recipes = vec![
        Recipe::graph("identity", "returns its input, FP32 [16]", Bare, identity),
        Recipe::graph("addsub", "sum and difference of two inputs, FP32 [16]", Pbtxt(configs::ADD_SUB), add_sub),
        Recipe::graph("strings", "returns its input, BYTES [2]", Pbtxt(configs::STRINGS), strings),
        Recipe::graph("variable", "returns its input, INT64 of any length", Pbtxt(configs::VARIABLE), variable),
        Recipe::graph("slow", "returns its input after about a second", Pbtxt(configs::SLOW), slow),
        Recipe::repeat("repeat", Pbtxt(configs::REPEAT)),
        minilm,
        Recipe::network("mobilenet", "MobileNetV2, image [3, 224, 224]", images, |width| Ok(zoo::mobilenet(width)?)),
        Recipe::network("resnet50", "ResNet-50, image [3, 224, 224]", images, |width| Ok(zoo::resnet50(width)?)),
        Recipe::network("vgg19", "VGG19, image [3, 224, 224]", images, |width| Ok(zoo::vgg19(width)?)),
        Recipe::network("unet", "U-Net, image [3, 256, 256]", images, |width| Ok(zoo::unet(width)?)),
        Recipe::network("linknet", "LinkNet, image [3, 256, 256]", images, |width| Ok(zoo::linknet(width)?)),
        Recipe::network("bert-base", "BERT-base, tokens INT64 of any length", Yaml(configs::BERT), zoo::bert_base),
    ];
    recipes.extend(cells::recipes());
    recipes
}

fn replay() -> Vec<Recipe> {
    use Config::{Bare, Pbtxt};
    let broken = Recipe {
        name: "broken",
        about: "a file that is no model",
        large: false,
        program: Program::Garbage,
        config: Pbtxt(configs::EIGHT),
    };
    vec![
        Recipe::graph("identity_onnx", "identity with a configuration", Pbtxt(configs::SIXTY_FOUR), identity),
        Recipe::graph("identity_auto", "identity without a configuration", Bare, identity),
        Recipe::graph("identity_nobatch", "identity without a batch axis", Pbtxt(configs::NO_BATCH), unbatched),
        Recipe::graph("ident_str", "identity of strings", Pbtxt(configs::EIGHT), strings),
        Recipe::graph("ident_var", "identity of any length", Pbtxt(configs::BATCHED), variable),
        Recipe::graph("ident_prio", "identity with priorities", Pbtxt(configs::PRIORITIES), identity),
        Recipe::graph("ident_seq", "identity with sequences", Pbtxt(configs::SEQUENCES), identity),
        Recipe::graph("addsub", "sum and difference", Pbtxt(configs::BATCHED), add_sub),
        Recipe::graph("slow_onnx", "about a second of work", Pbtxt(configs::ONE_INSTANCE), slow),
        Recipe::graph("slow_q", "the same with a short queue", Pbtxt(configs::SHORT_QUEUE), slow),
        broken,
        Recipe::repeat("decoupled_py", Pbtxt(configs::REPEAT)),
    ]
}

fn tests() -> Vec<Recipe> {
    use Config::{Bare, Pbtxt, Yaml};
    let padded = || -> Result<Model, onnx::Error> {
        let shape: [PortDim; 2] = dims!["batch", "tokens"];
        Ok(zoo::identity_of(DataType::Int64, &shape)?)
    };
    let mut recipes = vec![
        Recipe::graph("identity", "returns its input, FP32 [16]", Bare, identity),
        Recipe::graph("nobatch", "identity without a batch axis", Pbtxt(configs::NO_BATCH), unbatched),
        Recipe::graph("addsub", "sum and difference", Pbtxt(configs::BATCHED), add_sub),
        Recipe::graph("strings", "identity of strings", Pbtxt(configs::BATCHED), strings),
        Recipe::graph("variable", "identity of any length, never padded", Pbtxt(configs::BATCHED), variable),
        Recipe::graph("padded", "identity of any length, padded with -1", Yaml(configs::PADDED), padded),
        Recipe::graph("scale", "input × 2", Pbtxt(configs::BATCHED), || Ok(zoo::scale(2.0)?)),
        Recipe::graph("lookup", "fails for indices outside −16…15", Pbtxt(configs::LOOKUP), || Ok(zoo::lookup()?)),
        Recipe::graph("total", "sums of each sequence", Pbtxt(configs::TOTAL), || Ok(zoo::running_total()?)),
        Recipe::graph("corrid", "the sequence's id", Pbtxt(configs::CORRELATION_ID), || Ok(zoo::correlation_id()?)),
        Recipe::graph("slow", "about a second of work", Pbtxt(configs::ONE_INSTANCE), slow),
        Recipe::graph("runaway", "never ends by itself", Pbtxt(configs::ONE_INSTANCE), || Ok(zoo::runaway()?)),
        Recipe::repeat("repeat", Pbtxt(configs::REPEAT)),
    ];
    recipes.extend(DataType::ALL.map(|datatype| Recipe::identity(identity_name(datatype), datatype)));
    recipes
}

/// `identity_` and the datatype's name in small letters.
const fn identity_name(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Bool => "identity_bool",
        DataType::Uint8 => "identity_uint8",
        DataType::Uint16 => "identity_uint16",
        DataType::Uint32 => "identity_uint32",
        DataType::Uint64 => "identity_uint64",
        DataType::Int8 => "identity_int8",
        DataType::Int16 => "identity_int16",
        DataType::Int32 => "identity_int32",
        DataType::Int64 => "identity_int64",
        DataType::Fp16 => "identity_fp16",
        DataType::Fp32 => "identity_fp32",
        DataType::Fp64 => "identity_fp64",
        DataType::Bytes => "identity_bytes",
        DataType::Bf16 => "identity_bf16",
    }
}
