//! U-Net (Ronneberger, Fischer, Brox: Convolutional networks for biomedical image segmentation, 2015).
//!
//! Convolutions are padded, so that the mask has the size of the image. The image is 256 × 256 with three channels
//! instead of 572 × 572 with one.

use super::{
    Width,
    layers::{Conv, Net},
};
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
};

/// Channels at each depth.
const DEPTHS: [usize; 5] = [64, 128, 256, 512, 1024];
const CLASSES: usize = 2;

/// `image` FP32 `[batch, 3, 256, 256]` → `mask` FP32 `[batch, 2, 256, 256]`; 31 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn unet(width: Width) -> Result<Model, BuildError> {
    unet_of(width, 256)
}

/// Like [`unet`], for images of `side` × `side`, which must be a multiple of 16. The weights are the same.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn unet_of(width: Width, side: i64) -> Result<Model, BuildError> {
    let mut net = Net::new("unet");
    let mut x = net.image(&dims!["batch", 3, side, side]);
    let mut channels = 3;
    let mut skips = Vec::new();
    for (depth, output) in DEPTHS.into_iter().enumerate() {
        let output = width.of(output);
        if depth > 0 {
            x = net.max_pool(&x, 2, 2, 0);
        }
        x = net.scope(format!("down{depth}"), |net| double(net, &x, channels, output));
        skips.push((x.clone(), output));
        channels = output;
    }
    skips.pop();
    for (depth, (skip, output)) in skips.into_iter().enumerate().rev() {
        x = net.scope(format!("up{depth}"), |net| {
            let raised = net.upconv("upconv", &x, Conv::new(channels, output, 2).gain(1.0));
            let both = net.graph.op("Concat", &[&skip, &raised]).attr("axis", 1).value();
            double(net, &both, 2 * output, output)
        });
        channels = output;
    }
    let mask = net.conv("classes", &x, Conv::new(channels, CLASSES, 1).gain(1.0));
    net.output("mask", &mask, &dims!["batch", CLASSES as i64, side, side]);
    net.graph.finish()
}

fn double(net: &mut Net, x: &Value, input: usize, output: usize) -> Value {
    let x = net.conv_relu("conv1", x, Conv::new(input, output, 3));
    net.conv_relu("conv2", &x, Conv::new(output, output, 3))
}
