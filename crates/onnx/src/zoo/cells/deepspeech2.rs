//! Deep Speech 2 (Amodei et al., 2016), reduced in size: convolutions over a spectrogram, a bidirectional recurrent
//! layer over the resulting frames, and a dense layer that scores the characters.

use paternoster_model::DataType;

use super::layers::Widths;
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
    zoo::{
        Width,
        layers::{Net, RECTIFIED},
    },
};

/// Frequencies per frame.
const FREQUENCIES: usize = 80;
/// Frequency bands after the convolutions, each of which halves them.
const BANDS: usize = FREQUENCIES / 4;
/// Letters, space, apostrophe and the CTC blank.
const CHARACTERS: usize = 29;
/// Upper bound of the clipped rectifiers.
const CLIPPED: f32 = 20.0;

fn hidden(width: Width) -> usize {
    width.of(512)
}

fn features(width: Width) -> usize {
    width.of(32) * BANDS
}

/// `frames` FP32 `[frames, 80]`, of which the first `frames_length` INT64 `[]` are valid → `features` FP32 `[steps,
/// 640]`, one step for every second frame, with fewer channels at smaller widths. Everything behind the last valid
/// frame is silence, as if the recording ended there.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn conv(width: Width) -> Result<Model, BuildError> {
    let channels = width.of(32);
    let mut net = Net::new("deepspeech2/conv");
    let frames = net.matrix("frames", "frames", FREQUENCIES);
    let length = net.number("frames_length");
    let axis = net.graph.literal(&[1_i64]);
    let x = net.graph.op("Unsqueeze", &[&frames, &axis]).value();
    let x = convolve(&mut net, "conv1", &x, [channels, 1, 11, 41], 2);
    let x = silenced(&mut net, &x, &length);
    let x = convolve(&mut net, "conv2", &x, [channels, channels, 11, 21], 1);
    // [batch, channels, steps, bands] → [batch, steps, channels · bands]
    let x = net.graph.op("Transpose", &[&x]).attr("perm", [0, 2, 1, 3]).value();
    let flat = net.graph.literal(&[0, 0, features(width) as i64]);
    let x = net.graph.op("Reshape", &[&x, &flat]).named("features").value();
    net.graph.output(&x, DataType::Fp32, &dims!["batch", "steps", features(width) as i64]);
    net.graph.finish()
}

/// Zeros the steps of `x` `[batch, channels, steps, bands]` behind those of the first `length` frames, so that the next
/// convolution reads zeros there, as it does behind the end.
fn silenced(net: &mut Net, x: &Value, length: &Value) -> Value {
    let (zero, one, two) = (net.graph.scalar(0_i64), net.graph.scalar(1_i64), net.graph.scalar(2_i64));
    let shape = net.graph.op("Shape", &[x]).value();
    let steps = net.graph.op("Gather", &[&shape, &two]).value();
    let places = net.graph.op("Range", &[&zero, &steps, &one]).value();
    // Every second frame begins a step: step s is of the first frames if frame 2 s is.
    let begins = net.graph.op("Mul", &[&places, &two]).value();
    let axis = net.graph.literal(&[1_i64]);
    let length = net.graph.op("Unsqueeze", &[length, &axis]).value();
    let is_there = net.graph.op("Less", &[&begins, &length]).value();
    let axes = net.graph.literal(&[1_i64, 3]);
    let is_there = net.graph.op("Unsqueeze", &[&is_there, &axes]).value();
    let silence = net.graph.scalar(0.0_f32);
    net.graph.op("Where", &[&is_there, x, &silence]).value()
}

/// Adds a convolution over time and frequency and a clipped rectifier. `stride` is that of time; the stride of
/// frequency is 2.
fn convolve(net: &mut Net, name: &str, x: &Value, shape: [usize; 4], stride: i64) -> Value {
    let [_, channels, frames, frequencies] = shape;
    let weight = net.weight(&format!("{name}.weight"), &shape, channels * frames * frequencies, RECTIFIED);
    let bias = net.weight(&format!("{name}.bias"), &shape[..1], 1, 1e-4);
    let (before, below) = (frames as i64 / 2, frequencies as i64 / 2);
    let call = net.graph.op("Conv", &[x, &weight, &bias]).attr("strides", [stride, 2]);
    let x = call.attr("pads", [before, below, before, below]).value();
    let (low, high) = (net.graph.scalar(0.0_f32), net.graph.scalar(CLIPPED));
    net.graph.op("Clip", &[&x, &low, &high]).value()
}

/// `x` FP32 `[640]`, `h` FP32 `[hidden]` → `h_next` FP32 `[hidden]`; `hidden` is 512 at full width. Runs from the first
/// step to the last.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn forward(width: Width) -> Result<Model, BuildError> {
    recurrent("deepspeech2/forward", width)
}

/// Like [`forward`], but runs from the last step to the first.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn backward(width: Width) -> Result<Model, BuildError> {
    recurrent("deepspeech2/backward", width)
}

fn recurrent(name: &str, width: Width) -> Result<Model, BuildError> {
    let widths = Widths { input: features(width), hidden: hidden(width), gain: 1.5 };
    let mut net = Net::new(name);
    let (x, h) = (net.vector("x", widths.input), net.vector("h", widths.hidden));
    let next = net.gru("gru", &x, &h, widths);
    net.give_vector(&next, widths.hidden);
    net.graph.finish()
}

/// `forward`, `backward` FP32 `[hidden]` → `logits` FP32 `[29]`, for each step.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn dense(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("deepspeech2/dense");
    let (forward, backward) = (net.vector("forward", hidden), net.vector("backward", hidden));
    let joined = net.join(&[&forward, &backward]);
    let weight = net.weight("dense.weight", &[2 * hidden, CHARACTERS], 2 * hidden, 8.0);
    let bias = net.weight("dense.bias", &[CHARACTERS], 1, 1e-2);
    let scores = net.graph.op("MatMul", &[&joined, &weight]).value();
    let logits = net.graph.op("Add", &[&scores, &bias]).named("logits").value();
    net.give_vector(&logits, CHARACTERS);
    net.graph.finish()
}
