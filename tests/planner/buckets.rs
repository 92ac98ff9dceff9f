//! Each example network at every size that cards are prepared for when it is loaded (`lengths`). Networks that take
//! long on the stand-in are narrow here, and have few buckets. The long run has all of them in all buckets, at a few
//! lengths:
//!
//!     cargo test --release --test planner every_network -- --ignored --nocapture

use std::{fmt::Debug, time::Instant};

use paternoster_onnx::{
    Model,
    weights::Seeded,
    zoo::{self, Width, cells},
};
use paternoster_testing::fake_cuda::with_card;

use crate::{
    images::of_side,
    lengths::{ALL, Network},
};

/// Networks of images, whose layers do not depend on the size of the image.
fn of_images<E: Debug>(model: Result<Model, E>, side: i64) -> Network {
    Network::new::<()>(Ok(of_side(model.expect("the graph is sound"), side)), 1)
}

/// The cells of the papers' models, in all buckets.
fn cells_of_papers(width: Width) -> [(&'static str, Network); 7] {
    [
        ("lstm", Network::new(cells::lstm::step(width), 2_000)),
        ("gru, forward", Network::new(cells::deepspeech2::forward(width), 1)),
        ("gru, backward", Network::new(cells::deepspeech2::backward(width), 1)),
        ("seq2seq, encoder", Network::new(cells::seq2seq::encoder(width), 2_000)),
        ("seq2seq, decoder", Network::new(cells::seq2seq::decoder(width), 2_000)),
        ("tree-lstm, leaf", Network::new(cells::tree_lstm::leaf(width), 2_000)),
        ("tree-lstm, node", Network::new(cells::tree_lstm::node(width), 1)),
    ]
    .map(|(name, network)| (name, network.in_buckets(&ALL)))
}

fn bert(width: Width) -> Network {
    Network::new(zoo::bert_base(width), 30_522)
}

fn minilm(width: Width) -> Network {
    Network::new(zoo::minilm_of(width, Seeded::new(1)), 30_522)
}

fn transformer_encoder(width: Width) -> Network {
    Network::new(cells::transformer::encoder(width), 4_000)
}

fn transformer_decoder(width: Width) -> Network {
    Network::new(cells::transformer::decoder(width), 4_000)
}

fn translating_decoder(width: Width) -> Network {
    Network::new(cells::gnmt::decoder(width), 4_000)
}

fn speller(width: Width) -> Network {
    Network::new(cells::las::speller(width), 32)
}

fn resnet(width: Width) -> Network {
    of_images(zoo::resnet50(width), 64)
}

/// Its dense layers hold its images to their size.
fn vgg(width: Width) -> Network {
    Network::new(zoo::vgg19(width), 1)
}

fn mobilenet(width: Width) -> Network {
    of_images(zoo::mobilenet(width), 64)
}

fn unet(width: Width) -> Network {
    of_images(zoo::unet(width), 48)
}

fn linknet(width: Width) -> Network {
    of_images(zoo::linknet(width), 64)
}

#[test]
fn cells_in_all_buckets() {
    with_card(|| {
        for (_, network) in cells_of_papers(Width::QUARTER) {
            network.check();
        }
    });
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_narrow_bert() {
    with_card(|| bert(Width::part(12)).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_narrow_minilm() {
    with_card(|| minilm(Width::part(6)).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_transformer_encoder() {
    with_card(|| transformer_encoder(Width::QUARTER).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_transformer_decoder() {
    with_card(|| transformer_decoder(Width::QUARTER).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn decoders_that_attend() {
    with_card(|| {
        translating_decoder(Width::part(8)).check();
        speller(Width::part(8)).check();
    });
}

#[test]
fn a_narrow_resnet() {
    with_card(|| resnet(Width::part(16)).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_narrow_vgg() {
    with_card(|| vgg(Width::part(16)).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_narrow_mobilenet() {
    with_card(|| mobilenet(Width::part(8)).check());
}

#[test]
fn a_narrow_unet() {
    with_card(|| unet(Width::part(16)).check());
}

#[test]
#[ignore = "one network of many: make nightly"]
fn a_narrow_linknet() {
    with_card(|| linknet(Width::part(16)).check());
}

/// Prints how long each network takes.
#[test]
#[ignore = "minutes in a release build"]
fn every_network_in_every_bucket() {
    /// Lengths of networks with one axis that varies, and with two.
    const ONE: [&[u32]; 2] = [&[8], &[24]];
    const TWO: [&[u32]; 4] = [&[8, 8], &[8, 24], &[24, 8], &[24, 24]];
    with_card(|| {
        let others = [
            ("bert", bert(Width::QUARTER).at(&ONE)),
            ("minilm", minilm(Width::QUARTER).at(&ONE)),
            ("transformer, encoder", transformer_encoder(Width::QUARTER).at(&ONE)),
            ("transformer, decoder", transformer_decoder(Width::QUARTER).at(&TWO)),
            ("gnmt, decoder", translating_decoder(Width::QUARTER).at(&ONE)),
            ("las, speller", speller(Width::QUARTER).at(&ONE)),
            ("resnet50", resnet(Width::part(8))),
            ("vgg19", vgg(Width::part(16))),
            ("mobilenet", mobilenet(Width::QUARTER)),
            ("unet", unet(Width::part(8))),
            ("linknet", linknet(Width::part(8))),
        ];
        for (name, network) in cells_of_papers(Width::FULL).into_iter().chain(others) {
            let begun = Instant::now();
            network.in_buckets(&ALL).check();
            println!("{name}: {:?}", begun.elapsed());
        }
    });
}
