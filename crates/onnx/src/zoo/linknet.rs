//! `LinkNet` (Chaurasia, Culurciello: Exploiting encoder representations for efficient semantic segmentation, 2017): a
//! ResNet-18 encoder whose stages are linked by addition to the stages of a light decoder.

use super::{
    Width,
    layers::{Conv, Net},
    resnet::{basic_block, stem},
};
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
};

/// Channels of the encoder's stages.
const STAGES: [usize; 4] = [64, 128, 256, 512];
/// Number of classes in Cityscapes, the paper's data set.
const CLASSES: usize = 19;

/// `image` FP32 `[batch, 3, 256, 256]` → `mask` FP32 `[batch, 19, 256, 256]`; 11.5 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn linknet(width: Width) -> Result<Model, BuildError> {
    linknet_of(width, 256)
}

/// Like [`linknet`], for images of `side` × `side`, which must be a multiple of 32. The weights are the same.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn linknet_of(width: Width, side: i64) -> Result<Model, BuildError> {
    let mut net = Net::new("linknet");
    let image = net.image(&dims!["batch", 3, side, side]);
    let first = width.of(64);
    let mut x = stem(&mut net, &image, first);
    let mut channels = first;
    // For each decoder stage: the input of its encoder stage, whose shape it restores and to which it is added.
    let mut links = Vec::new();
    for (stage, output) in STAGES.into_iter().enumerate() {
        let output = width.of(output);
        let stride = if stage == 0 { 1 } else { 2 };
        links.push((x.clone(), channels, stride));
        x = net.scope(format!("encoder{}", stage + 1), |net| {
            let x = net.scope("block1", |net| basic_block(net, &x, channels, output, stride));
            net.scope("block2", |net| basic_block(net, &x, output, output, 1))
        });
        channels = output;
    }
    for (stage, (link, output, stride)) in links.into_iter().enumerate().rev() {
        let raised = net.scope(format!("decoder{}", stage + 1), |net| decode(net, &x, channels, output, stride));
        // The paper does not link the first encoder stage's input, which is the stem's output.
        x = if stage > 0 { net.add(&raised, &link) } else { raised };
        channels = output;
    }
    let half = width.of(32);
    x = net.upconv("full1", &x, Conv::new(channels, half, 3));
    x = net.relu(&x);
    x = net.conv_relu("conv", &x, Conv::new(half, half, 3));
    let mask = net.upconv("full2", &x, Conv::new(half, CLASSES, 2).gain(1.0));
    net.output("mask", &mask, &dims!["batch", CLASSES as i64, side, side]);
    net.graph.finish()
}

/// Adds a decoder block: reduces channels, upsamples, and expands channels.
fn decode(net: &mut Net, x: &Value, input: usize, output: usize, stride: usize) -> Value {
    let inner = input / 4;
    let x = net.conv_relu("conv1", x, Conv::new(input, inner, 1));
    let x = if stride == 1 {
        net.conv_relu("full", &x, Conv::new(inner, inner, 3))
    } else {
        let raised = net.upconv("full", &x, Conv::new(inner, inner, 3));
        net.relu(&raised)
    };
    net.conv_relu("conv2", &x, Conv::new(inner, output, 1))
}
