//! `MobileNetV2` (Sandler et al.: Inverted residuals and linear bottlenecks, 2018, table 2).

use super::{
    Width,
    layers::{Conv, Net, RECTIFIED},
};
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
};

/// The paper's t, c, n, s: expansion, output channels, blocks, stride of the first block.
const STAGES: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

/// `image` FP32 `[batch, 3, 224, 224]` → `logits` FP32 `[batch, 1000]`; 3.5 million weights at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn mobilenet(width: Width) -> Result<Model, BuildError> {
    let mut net = Net::new("mobilenet");
    let image = net.image(&dims!["batch", 3, 224, 224]);
    let mut channels = width.of(32);
    let mut x = net.conv("stem", &image, Conv::new(3, channels, 3).stride(2));
    x = relu6(&mut net, &x);
    for (stage, (expansion, output, blocks, stride)) in STAGES.into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let output = width.of(output);
            x = net.scope(format!("stage{}/block{}", stage + 1, block + 1), |net| {
                inverted_residual(net, &x, channels, output, expansion, stride)
            });
            channels = output;
        }
    }
    let features = width.of(1280);
    x = net.conv("head", &x, Conv::new(channels, features, 1));
    x = relu6(&mut net, &x);
    let mean = net.global_mean(&x);
    let logits = net.dense("fc", &mean, features, 1000, 1.0);
    net.output("logits", &logits, &dims!["batch", 1000]);
    net.graph.finish()
}

fn inverted_residual(net: &mut Net, x: &Value, input: usize, output: usize, expansion: usize, stride: usize) -> Value {
    let wide = input * expansion;
    let mut y = x.clone();
    if expansion > 1 {
        let expanded = net.conv("expand", &y, Conv::new(input, wide, 1));
        y = relu6(net, &expanded);
    }
    let filtered = net.depthwise("depthwise", &y, wide, stride);
    let filtered = relu6(net, &filtered);
    let has_shortcut = stride == 1 && input == output;
    let gain = if has_shortcut { RECTIFIED / 4.0 } else { RECTIFIED };
    let projected = net.conv("project", &filtered, Conv::new(wide, output, 1).gain(gain));
    if has_shortcut { net.add(x, &projected) } else { projected }
}

fn relu6(net: &mut Net, x: &Value) -> Value {
    let (low, high) = (net.graph.scalar(0.0_f32), net.graph.scalar(6.0_f32));
    net.graph.op("Clip", &[x, &low, &high]).value()
}
