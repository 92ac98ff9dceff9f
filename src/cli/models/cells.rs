//! The example models of cells.

use paternoster_onnx::zoo::cells::{conformer, deepspeech2, gnmt, las, lstm, seq2seq, transformer, tree_lstm};

use super::{
    cell_configs as configs,
    recipe::{Cell, Config, Program, Recipe},
};

const LSTM: &[Cell] = &[Cell { name: "step", make: lstm::step }];
const LSTM_PROJECTED: &[Cell] =
    &[Cell { name: "project", make: lstm::project }, Cell { name: "step", make: lstm::projected_step }];
const SEQ2SEQ: &[Cell] =
    &[Cell { name: "encoder", make: seq2seq::encoder }, Cell { name: "decoder", make: seq2seq::decoder }];
const TREE_LSTM: &[Cell] =
    &[Cell { name: "leaf", make: tree_lstm::leaf }, Cell { name: "node", make: tree_lstm::node }];
const GNMT: &[Cell] = &[
    Cell { name: "forward", make: gnmt::forward },
    Cell { name: "backward", make: gnmt::backward },
    Cell { name: "upper", make: gnmt::upper },
    Cell { name: "decoder", make: gnmt::decoder },
];
const DEEPSPEECH2: &[Cell] = &[
    Cell { name: "conv", make: deepspeech2::conv },
    Cell { name: "forward", make: deepspeech2::forward },
    Cell { name: "backward", make: deepspeech2::backward },
    Cell { name: "dense", make: deepspeech2::dense },
];
const CONFORMER: &[Cell] = &[Cell { name: "chunk", make: conformer::chunk }];
const LAS: &[Cell] = &[
    Cell { name: "listener", make: las::listener },
    Cell { name: "upper", make: las::upper },
    Cell { name: "speller", make: las::speller },
];
const TRANSFORMER: &[Cell] =
    &[Cell { name: "encoder", make: transformer::encoder }, Cell { name: "decoder", make: transformer::decoder }];

pub(super) fn recipes() -> Vec<Recipe> {
    let wide = |text| Config::WideYaml { text, hidden: 1024 };
    vec![
        recipe("lstm", "LSTM over tokens INT64 of any length", wide(configs::LSTM), LSTM),
        recipe(
            "lstm-projected",
            "the same LSTM, its inputs multiplied by their weights before the steps",
            wide(configs::LSTM_PROJECTED),
            LSTM_PROJECTED,
        ),
        recipe(
            "lstm-sequence",
            "the same over streams: requests of one sequence_id share state",
            wide(configs::LSTM_SEQUENCE),
            LSTM,
        ),
        recipe(
            "seq2seq",
            "translation by two LSTMs, tokens INT64 of any length",
            Config::Yaml(configs::SEQ2SEQ),
            SEQ2SEQ,
        ),
        recipe("seq2seq-stream", "the same, a response for each token", Config::Yaml(configs::SEQ2SEQ_STREAM), SEQ2SEQ),
        recipe("tree-lstm", "LSTM over a tree that each request brings", wide(configs::TREE_LSTM), TREE_LSTM),
        recipe("gnmt", "translation with attention, tokens INT64 of any length", Config::Yaml(configs::GNMT), GNMT),
        recipe(
            "deepspeech2",
            "convolutions and recurrent layers over frames FP32 [-1, 80]",
            Config::Yaml(configs::DEEPSPEECH2),
            DEEPSPEECH2,
        ),
        recipe(
            "conformer",
            "streaming speech: frames FP32 [-1, 32, 80], chunks of 320 ms of a sequence",
            Config::Yaml(configs::CONFORMER),
            CONFORMER,
        ),
        recipe("las", "speech with attention, frames FP32 [-1, 40]", Config::Yaml(configs::LAS), LAS),
        recipe(
            "transformer",
            "translation by a Transformer, tokens INT64, at most 512",
            Config::Yaml(configs::TRANSFORMER),
            TRANSFORMER,
        ),
    ]
}

/// Written by default: one of each kind.
const USUAL: [&str; 3] = ["lstm", "seq2seq", "tree-lstm"];

fn recipe(name: &'static str, about: &'static str, config: Config, cells: &'static [Cell]) -> Recipe {
    Recipe { name, about, large: !USUAL.contains(&name), program: Program::Cells(cells), config, tokenizer: false }
}
