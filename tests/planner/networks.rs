//! The example networks compute the same as ONNX Runtime.

use std::fmt::Debug;

use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::{
    Model, Port, PortDim, Signature,
    weights::Seeded,
    zoo::{self, Width, cells},
};
use paternoster_testing::fake_cuda::with_card;

use crate::rig::Case;

/// Returns the tensors of a graph for one row, with these lengths of varying axes.
pub(crate) fn specs_of(ports: &[Port], lengths: &[(&str, i64)]) -> Vec<TensorSpec> {
    let length = |dim: &PortDim| match dim {
        PortDim::Fixed(length) => *length,
        PortDim::Symbol(name) => {
            lengths.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no length for {name}")).1
        }
        PortDim::Unknown => panic!("an axis has neither a length nor a name"),
    };
    let spec = |port: &Port| {
        let dims: Vec<i64> = port.dims.as_deref().unwrap_or_default()[1..].iter().map(length).collect();
        TensorSpec::new(port.name.clone(), port.datatype.expect("a datatype"), &dims)
    };
    ports.iter().map(spec).collect()
}

/// Returns a network with these lengths of varying axes, and tokens below `tokens`.
pub(crate) fn network<E: Debug>(model: Result<Model, E>, lengths: &[(&str, i64)], tokens: i64) -> Case {
    let model = model.expect("the graph is sound");
    let signature = Signature::from_bytes("network", &model.to_bytes()).expect("it can be read");
    let (inputs, outputs) = (specs_of(&signature.inputs, lengths), specs_of(&signature.outputs, lengths));
    // Lengths are at most those of their tensors, masks are 0 or 1, and all others are tokens.
    let below = |input: &TensorSpec| match input.name.as_str() {
        name if name.contains("mask") => 2,
        name if name.contains("length") => lengths.iter().map(|(_, length)| length + 1).min().unwrap_or(1),
        _ if input.datatype == DataType::Fp32 => 1,
        _ => tokens,
    };
    let most = inputs.iter().map(below).collect();
    Case { model, inputs, outputs, most, has_batch_axis: true }
}

#[test]
fn an_lstm_step() {
    with_card(|| network(cells::lstm::step(Width::QUARTER), &[], 2_000).check());
}

#[test]
fn a_seq2seq_encoder_step() {
    with_card(|| network(cells::seq2seq::encoder(Width::QUARTER), &[], 2_000).check());
}

#[test]
fn a_seq2seq_decoder_step() {
    with_card(|| network(cells::seq2seq::decoder(Width::QUARTER), &[], 2_000).check());
}

#[test]
fn an_lstm_projection() {
    with_card(|| network(cells::lstm::project(Width::QUARTER), &[], 2_000).check());
}

#[test]
fn an_lstm_step_over_projected_gates() {
    with_card(|| network(cells::lstm::projected_step(Width::QUARTER), &[], 1).check());
}

#[test]
fn a_tree_lstm_leaf() {
    with_card(|| network(cells::tree_lstm::leaf(Width::QUARTER), &[], 2_000).check());
}

#[test]
fn a_tree_lstm_node() {
    with_card(|| network(cells::tree_lstm::node(Width::QUARTER), &[], 1).check());
}

#[test]
fn gru_steps() {
    with_card(|| {
        network(cells::deepspeech2::forward(Width::QUARTER), &[], 1).check();
        network(cells::deepspeech2::backward(Width::QUARTER), &[], 1).check();
    });
}

#[test]
fn a_dense_layer_over_both_directions() {
    with_card(|| network(cells::deepspeech2::dense(Width::QUARTER), &[], 1).check());
}

#[test]
fn translation_cells() {
    with_card(|| {
        network(cells::gnmt::forward(Width::QUARTER), &[], 4_000).check();
        network(cells::gnmt::upper(Width::QUARTER), &[], 1).check();
    });
}

#[test]
fn a_translation_decoder_step() {
    with_card(|| network(cells::gnmt::decoder(Width::QUARTER), &[("memory", 7)], 4_000).check());
}

#[test]
fn listening_cells() {
    with_card(|| {
        network(cells::las::listener(Width::QUARTER), &[], 1).check();
        network(cells::las::upper(Width::QUARTER), &[], 1).check();
    });
}

#[test]
fn a_spelling_step() {
    with_card(|| network(cells::las::speller(Width::QUARTER), &[("memory", 9)], 32).check());
}

#[test]
fn a_transformer_encoder() {
    with_card(|| network(cells::transformer::encoder(Width::QUARTER), &[("source", 6)], 4_000).check());
}

#[test]
fn a_transformer_decoder_step() {
    with_card(|| {
        network(cells::transformer::decoder(Width::QUARTER), &[("past", 5), ("memory", 7)], 4_000).check();
    });
}

#[test]
fn bert() {
    with_card(|| network(zoo::bert_base(Width::QUARTER), &[("tokens", 5)], 30_522).check());
}

#[test]
fn a_narrow_sentence_encoder() {
    with_card(|| network(zoo::minilm_of(Width::part(6), Seeded::new(1)), &[("tokens", 4)], 30_522).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_sentence_encoder() {
    with_card(|| network(zoo::minilm(Seeded::new(1)), &[("tokens", 4)], 30_522).check());
}
