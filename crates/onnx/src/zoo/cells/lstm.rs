//! An LSTM over a sequence of tokens: one cell, or, with the same weights, two: one for the input projection and one
//! for the recurrent step.

use super::layers::{EMBEDDED, Widths, lstm_bias};
use crate::{
    Model,
    build::BuildError,
    zoo::{Width, layers::Net},
};

const VOCABULARY: usize = 2_000;
/// The cell whose weights the others share.
const STEP: &str = "lstm/step";

/// `x` INT64 `[]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`; `hidden` is 1,024 at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn step(width: Width) -> Result<Model, BuildError> {
    let hidden = width.of(1024);
    let mut net = Net::new(STEP);
    let x = net.number("x");
    let state = net.state("", hidden);
    let x = net.embed(&x, VOCABULARY, hidden);
    let next = net.lstm("lstm", &x, &state, Widths { input: hidden, hidden, gain: EMBEDDED }, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// `x` INT64 `[]` → `gates` FP32 `[4 · hidden]`: the part of a step's gates that does not depend on its state. Uses
/// `input.weight` `[hidden, 4 · hidden]`, the first half of the weights of [`step`], and `input.bias`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn project(width: Width) -> Result<Model, BuildError> {
    let hidden = width.of(1024);
    let mut net = Net::sharing("lstm/project", STEP);
    let x = net.number("x");
    let x = net.embed(&x, VOCABULARY, hidden);
    let [weight, _] = halves(&net, hidden);
    let weight = net.graph.constant("input.weight", &[hidden, 4 * hidden], &weight);
    let bias = net.graph.constant("input.bias", &[4 * hidden], &lstm_bias(hidden, 0));
    let gates = net.graph.op("Gemm", &[&x, &weight, &bias]).named("gates").value();
    net.give_vector(&gates, 4 * hidden);
    net.graph.finish()
}

/// `gates` FP32 `[4 · hidden]` of [`project`], `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`. Uses
/// `state.weight` `[hidden, 4 · hidden]`, the second half of the weights of [`step`].
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn projected_step(width: Width) -> Result<Model, BuildError> {
    let hidden = width.of(1024);
    let mut net = Net::sharing("lstm/projected_step", STEP);
    let gates = net.vector("gates", 4 * hidden);
    let state = net.state("", hidden);
    let [_, weight] = halves(&net, hidden);
    let weight = net.graph.constant("state.weight", &[hidden, 4 * hidden], &weight);
    let gates = net.graph.op("Gemm", &[&state.h, &weight, &gates]).value();
    let next = net.lstm_from(&gates, &state, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// Returns the weights of [`step`], split into those of the input and those of the state.
fn halves(net: &Net, hidden: usize) -> [Vec<f32>; 2] {
    let fan_in = 2 * hidden;
    let mut input = net.drawn("lstm.weight", fan_in * 4 * hidden, fan_in, EMBEDDED);
    let state = input.split_off(hidden * 4 * hidden);
    [input, state]
}
