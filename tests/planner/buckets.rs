//! Each example network at every size that cards are prepared for when it is loaded (`lengths`).

use std::fmt::Debug;

use paternoster::onnx::{
    Model,
    weights::Seeded,
    zoo::{self, Width, cells},
};

use crate::{fake_cuda::with_card, images::of_side, lengths::Network};

#[test]
fn an_lstm() {
    with_card(|| Network::new(cells::lstm::step(Width::QUARTER), 2_000).check());
}

#[test]
fn a_gru() {
    with_card(|| {
        Network::new(cells::deepspeech2::forward(Width::QUARTER), 1).check();
        Network::new(cells::deepspeech2::backward(Width::QUARTER), 1).check();
    });
}

#[test]
fn seq2seq() {
    with_card(|| {
        Network::new(cells::seq2seq::encoder(Width::QUARTER), 2_000).check();
        Network::new(cells::seq2seq::decoder(Width::QUARTER), 2_000).check();
    });
}

#[test]
fn a_tree_lstm() {
    with_card(|| {
        Network::new(cells::tree_lstm::leaf(Width::QUARTER), 2_000).check();
        Network::new(cells::tree_lstm::node(Width::QUARTER), 1).check();
    });
}

#[test]
fn bert() {
    with_card(|| Network::new(zoo::bert_base(Width::part(12)), 30_522).check());
}

#[test]
fn minilm() {
    with_card(|| Network::new(zoo::minilm_of(Width::part(6), Seeded::new(1)), 30_522).check());
}

#[test]
fn a_transformer_encoder() {
    with_card(|| Network::new(cells::transformer::encoder(Width::QUARTER), 4_000).check());
}

#[test]
fn a_transformer_decoder() {
    with_card(|| Network::new(cells::transformer::decoder(Width::QUARTER), 4_000).check());
}

#[test]
fn decoders_that_attend() {
    with_card(|| {
        Network::new(cells::gnmt::decoder(Width::part(8)), 4_000).check();
        Network::new(cells::las::speller(Width::part(8)), 32).check();
    });
}

/// Networks of images, whose layers do not depend on the size of the image.
fn check_images<E: Debug>(model: Result<Model, E>, side: i64) {
    Network::new::<()>(Ok(of_side(model.expect("the graph is sound"), side)), 1).check();
}

#[test]
fn resnet() {
    with_card(|| check_images(zoo::resnet50(Width::part(16)), 64));
}

#[test]
fn vgg() {
    // Its dense layers hold its images to their size.
    with_card(|| Network::new(zoo::vgg19(Width::part(16)), 1).check());
}

#[test]
fn mobilenet() {
    with_card(|| check_images(zoo::mobilenet(Width::part(8)), 64));
}

#[test]
fn unet() {
    with_card(|| check_images(zoo::unet(Width::part(16)), 48));
}

#[test]
fn linknet() {
    with_card(|| check_images(zoo::linknet(Width::part(16)), 64));
}
