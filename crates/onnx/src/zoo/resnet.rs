//! ResNet-50 and ResNet-152 (He et al.: Deep residual learning for image recognition, 2016), with the stride of a stage
//! in its first 3 × 3 convolution (known as version 1.5), and the basic blocks of ResNet-18 that LinkNet uses.

use super::{
    Width,
    layers::{Conv, Net},
};
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
};

/// Inner channels of the bottleneck blocks of each stage.
const STAGES: [usize; 4] = [64, 128, 256, 512];
/// Output channels of a bottleneck, as a multiple of its inner channels.
const EXPANSION: usize = 4;
/// Keeps the sum of a long chain of residual blocks within a small multiple of its first term.
const RESIDUAL_GAIN: f32 = 0.25;

/// `image` FP32 `[batch, 3, 224, 224]` → `logits` FP32 `[batch, 1000]`; 25.5 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn resnet50(width: Width) -> Result<Model, BuildError> {
    resnet("resnet50", width, [3, 4, 6, 3])
}

/// As [`resnet50`], three times as deep; 60 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn resnet152(width: Width) -> Result<Model, BuildError> {
    resnet("resnet152", width, [3, 8, 36, 3])
}

/// Builds a network with this number of blocks in each stage.
fn resnet(name: &str, width: Width, blocks: [usize; 4]) -> Result<Model, BuildError> {
    let mut net = Net::new(name);
    let image = net.image(&dims!["batch", 3, 224, 224]);
    let mut x = stem(&mut net, &image, width.of(64));
    let mut channels = width.of(64);
    for (stage, (inner, blocks)) in STAGES.into_iter().zip(blocks).enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let inner = width.of(inner);
            x = net.scope(format!("stage{}/block{}", stage + 1, block + 1), |net| {
                bottleneck(net, &x, channels, inner, stride)
            });
            channels = inner * EXPANSION;
        }
    }
    let features = net.global_mean(&x);
    let logits = net.dense("fc", &features, channels, 1000, 1.0);
    net.output("logits", &logits, &dims!["batch", 1000]);
    net.graph.finish()
}

/// Adds a 7 × 7 convolution and a pool, which reduce the image's side to a quarter.
pub(super) fn stem(net: &mut Net, image: &Value, channels: usize) -> Value {
    let x = net.conv_relu("stem", image, Conv::new(3, channels, 7).stride(2));
    net.max_pool(&x, 3, 2, 1)
}

fn bottleneck(net: &mut Net, x: &Value, input: usize, inner: usize, stride: usize) -> Value {
    let output = inner * EXPANSION;
    let y = net.conv_relu("conv1", x, Conv::new(input, inner, 1));
    let y = net.conv_relu("conv2", &y, Conv::new(inner, inner, 3).stride(stride));
    let y = net.conv("conv3", &y, Conv::new(inner, output, 1).gain(RESIDUAL_GAIN));
    join(net, x, &y, input, output, stride)
}

/// Adds two 3 × 3 convolutions with a shortcut.
pub(super) fn basic_block(net: &mut Net, x: &Value, input: usize, output: usize, stride: usize) -> Value {
    let y = net.conv_relu("conv1", x, Conv::new(input, output, 3).stride(stride));
    let y = net.conv("conv2", &y, Conv::new(output, output, 3).gain(RESIDUAL_GAIN));
    join(net, x, &y, input, output, stride)
}

/// Adds the rectified sum of `x` and `y`, with `x` projected if the shapes differ.
fn join(net: &mut Net, x: &Value, y: &Value, input: usize, output: usize, stride: usize) -> Value {
    let sum = if input == output && stride == 1 {
        net.add(x, y)
    } else {
        let shortcut = net.conv("shortcut", x, Conv::new(input, output, 1).stride(stride).gain(1.0));
        net.add(&shortcut, y)
    };
    net.relu(&sum)
}
