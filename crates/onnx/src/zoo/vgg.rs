//! VGG19 (Simonyan, Zisserman: Very deep convolutional networks, 2015, configuration E).

use super::{
    Width,
    layers::{Conv, Net, RECTIFIED},
};
use crate::{Model, build::BuildError, port::dims};

/// Channels and number of the convolutions before each pool.
const BLOCKS: [(usize, usize); 5] = [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)];

/// `image` FP32 `[batch, 3, 224, 224]` → `logits` FP32 `[batch, 1000]`; 144 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn vgg19(width: Width) -> Result<Model, BuildError> {
    let mut net = Net::new("vgg19");
    let mut x = net.image(&dims!["batch", 3, 224, 224]);
    let mut channels = 3;
    for (block, (output, convolutions)) in BLOCKS.into_iter().enumerate() {
        x = net.scope(format!("block{}", block + 1), |net| {
            let mut x = x;
            for index in 0..convolutions {
                let output = width.of(output);
                x = net.conv_relu(&format!("conv{}", index + 1), &x, Conv::new(channels, output, 3));
                channels = output;
            }
            net.max_pool(&x, 2, 2, 0)
        });
    }
    let mut x = net.graph.op("Flatten", &[&x]).attr("axis", 1).value();
    let mut features = channels * 7 * 7;
    for name in ["fc6", "fc7"] {
        let hidden = width.of(4096);
        let y = net.dense(name, &x, features, hidden, RECTIFIED);
        x = net.relu(&y);
        features = hidden;
    }
    let logits = net.dense("fc8", &x, features, 1000, 1.0);
    net.output("logits", &logits, &dims!["batch", 1000]);
    net.graph.finish()
}
