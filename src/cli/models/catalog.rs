//! Sets of models that can be written.

use std::fmt;

use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, dims, zoo};

use super::{
    cells, configs,
    recipe::{Config, Program, Recipe},
};

/// A set of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Set {
    /// Models to try the server with, and the networks of the benchmarks
    Examples,
    /// Models that the recorded protocol cases call
    Replay,
    /// Models that the project's tests call
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

impl Set {
    pub(super) fn recipes(self) -> Vec<Recipe> {
        match self {
            Self::Examples => examples(),
            Self::Replay => replay(),
            Self::Tests => tests(),
        }
    }
}

fn identity() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::identity()?)
}

fn add_sub() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::add_sub()?)
}

fn slow() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::slow()?)
}

fn strings() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::identity_of(DataType::Bytes, &dims!["batch", 2])?)
}

fn variable() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::identity_of(DataType::Int64, &dims!["batch", "n"])?)
}

fn unbatched() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::identity_of(DataType::Fp32, &dims![1, 16])?)
}

fn reranker() -> Result<Model, paternoster_onnx::Error> {
    zoo::reranker()
}

fn urgency() -> Result<Model, paternoster_onnx::Error> {
    zoo::classifier("urgency", 1)
}

fn desk() -> Result<Model, paternoster_onnx::Error> {
    zoo::classifier("desk", 4)
}

fn glance() -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::mobilenet(zoo::Width::QUARTER)?)
}

fn examples() -> Vec<Recipe> {
    use Config::{Bare, Pbtxt, Yaml};
    let minilm = Recipe {
        name: "minilm",
        about: "sentence embeddings of all-MiniLM-L6-v2; texts of different lengths share a batch",
        large: false,
        program: Program::Minilm,
        config: Yaml(configs::MINILM),
        tokenizer: false,
    };
    let reranker = Recipe {
        tokenizer: true,
        ..Recipe::graph("reranker", "scores pairs of texts, with random weights", Yaml(configs::RERANKER), reranker)
    };
    let photos = Recipe {
        tokenizer: false,
        ..Recipe::pipeline("photos", "scores of a photo's classes: decoded and resized, glance", configs::PHOTOS)
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
        Recipe::pipeline("sentences", "embeddings of texts: tokenizer, minilm", configs::SENTENCES),
        Recipe::pipeline("triage", "sentences, their urgency, and a desk for those that are urgent", configs::TRIAGE),
        Recipe::graph("urgency", "a number from 0 to 1 for an embedding, with random weights", Bare, urgency),
        Recipe::graph("desk", "scores of four classes for an embedding, with random weights", Bare, desk),
        reranker,
        photos,
        Recipe::graph("glance", "MobileNetV2 at a quarter of its width, with random weights", images, glance),
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
        tokenizer: false,
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
    let padded = || -> Result<Model, paternoster_onnx::Error> {
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

/// Returns `identity_` followed by the datatype's name in lower case.
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
