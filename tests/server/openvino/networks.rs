//! Every network of the zoo, with both engines. The last number is the allowed difference between BF16 and fp32
//! answers, as a fraction of the largest: BF16 has 8 significant bits, and deep networks of random weights accumulate
//! the error.

use paternoster_onnx::{
    weights::Seeded,
    zoo::{self, Width, cells},
};

use crate::openvino::rig::Network;

const QUARTER: Width = Width::QUARTER;

/// Error of one product, or a few.
const SHALLOW: f32 = 0.02;
/// Error of a network with tens of layers.
const DEEP: f32 = 0.1;

#[test]
fn lstm_cells() {
    Network::new("step", cells::lstm::step(QUARTER), &[], 2_000).check(SHALLOW);
    Network::new("project", cells::lstm::project(QUARTER), &[], 2_000).check(SHALLOW);
    Network::new("projected step", cells::lstm::projected_step(QUARTER), &[], 1).check(SHALLOW);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn tree_lstm_cells() {
    Network::new("leaf", cells::tree_lstm::leaf(QUARTER), &[], 2_000).check(SHALLOW);
    Network::new("node", cells::tree_lstm::node(QUARTER), &[], 1).check(SHALLOW);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn translation_cells() {
    Network::new("encoder", cells::seq2seq::encoder(QUARTER), &[], 2_000).check(SHALLOW);
    Network::new("decoder", cells::seq2seq::decoder(QUARTER), &[], 2_000).check(SHALLOW);
    Network::new("gnmt forward", cells::gnmt::forward(QUARTER), &[], 4_000).check(SHALLOW);
    Network::new("gnmt backward", cells::gnmt::backward(QUARTER), &[], 4_000).check(SHALLOW);
    Network::new("gnmt upper", cells::gnmt::upper(QUARTER), &[], 1).check(SHALLOW);
    Network::new("gnmt decoder", cells::gnmt::decoder(QUARTER), &[("memory", 7)], 4_000).check(SHALLOW);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn speech_cells() {
    Network::new("conv", cells::deepspeech2::conv(QUARTER), &[("frames", 9)], 1).check(SHALLOW);
    Network::new("forward", cells::deepspeech2::forward(QUARTER), &[], 1).check(SHALLOW);
    Network::new("backward", cells::deepspeech2::backward(QUARTER), &[], 1).check(SHALLOW);
    Network::new("dense", cells::deepspeech2::dense(QUARTER), &[("steps", 5)], 1).check(SHALLOW);
    Network::new("listener", cells::las::listener(QUARTER), &[], 1).check(SHALLOW);
    Network::new("upper", cells::las::upper(QUARTER), &[], 1).check(SHALLOW);
    Network::new("speller", cells::las::speller(QUARTER), &[("memory", 9)], 32).check(SHALLOW);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn transformer_cells() {
    Network::new("encoder", cells::transformer::encoder(QUARTER), &[("source", 6)], 4_000).check(DEEP);
    let lengths = [("source", 6), ("memory", 6), ("past", 4)];
    Network::new("decoder", cells::transformer::decoder(QUARTER), &lengths, 4_000).check(DEEP);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn sentence_encoders() {
    Network::new("minilm", zoo::minilm(Seeded::new(1)), &[("tokens", 4)], 30_522).check(SHALLOW);
    Network::new("bert-base", zoo::bert_base(QUARTER), &[("tokens", 5)], 30_522).check(DEEP);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn residual_networks() {
    Network::new("resnet50", zoo::resnet50(QUARTER), &[], 1).check(DEEP);
    Network::new("mobilenet", zoo::mobilenet(QUARTER), &[], 1).check(DEEP);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_network_of_plain_convolutions() {
    Network::new("vgg19", zoo::vgg19(QUARTER), &[], 1).check(DEEP);
}

#[test]
#[ignore = "one network of many: make nightly"]
fn networks_for_segmentation() {
    Network::new("unet", zoo::unet(QUARTER), &[], 1).check(DEEP);
    Network::new("linknet", zoo::linknet(QUARTER), &[], 1).check(DEEP);
}

#[test]
fn small_models() {
    Network::new("identity", zoo::identity(), &[], 1).check(SHALLOW);
    Network::new("addsub", zoo::add_sub(), &[], 1).check(SHALLOW);
    Network::new("scale", zoo::scale(2.0), &[], 1).check(SHALLOW);
    Network::new("lookup", zoo::lookup(), &[], 16).check(SHALLOW);
    Network::new("total", zoo::running_total(), &[], 2).check(SHALLOW);
}
