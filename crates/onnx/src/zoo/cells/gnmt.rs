//! Google's neural machine translation system (Wu et al., 2016), reduced in size: an encoder with a bidirectional layer
//! and a unidirectional one on top, and a decoder of two layers with a residual connection and attention to the
//! encoder's states. As in section 3 of the paper, the context is computed from the previous state of the lower decoder
//! layer and is an input of both layers.

use super::layers::{EMBEDDED, Ending, STATES, Widths};
use crate::{
    Model,
    build::BuildError,
    zoo::{Width, layers::Net},
};

const VOCABULARY: usize = 4_000;
const ENDING: Ending = Ending { pull: 18.0, bias: -1.0 };

fn hidden(width: Width) -> usize {
    width.of(512)
}

/// `token` INT64 `[]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`; `hidden` is 512 at full width.
/// The first layer; runs from the first token to the last.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn forward(width: Width) -> Result<Model, BuildError> {
    first_layer("gnmt/forward", width)
}

/// Like [`forward`], but runs from the last token to the first.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn backward(width: Width) -> Result<Model, BuildError> {
    first_layer("gnmt/backward", width)
}

fn first_layer(name: &str, width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new(name);
    let token = net.number("token");
    let state = net.state("", hidden);
    let x = net.embed(&token, VOCABULARY, hidden);
    let next = net.lstm("lstm", &x, &state, Widths { input: hidden, hidden, gain: EMBEDDED }, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// `forward`, `backward`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`: the second layer, over the
/// states of both directions.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn upper(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("gnmt/upper");
    let (forward, backward) = (net.vector("forward", hidden), net.vector("backward", hidden));
    let state = net.state("", hidden);
    let x = net.join(&[&forward, &backward]);
    let next = net.lstm("lstm", &x, &state, Widths { input: 2 * hidden, hidden, gain: STATES }, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// `token` INT64 `[]`, `memory` FP32 `[length, hidden]` of which the first `memory_length` INT64 `[]` are valid, `h1`,
/// `c1`, `h2`, `c2` FP32 `[hidden]` → `next_token` INT64 `[]`, `h1_next`, `c1_next`, `h2_next`, `c2_next` FP32
/// `[hidden]`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn decoder(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("gnmt/decoder");
    let token = net.number("token");
    let memory = net.matrix("memory", "memory", hidden);
    let length = net.number("memory_length");
    let (lower, upper) = (net.state("1", hidden), net.state("2", hidden));
    let x = net.embed(&token, VOCABULARY, hidden);
    let context = net.attend("attention", &lower.h, &memory, &length, hidden);
    let joined = net.join(&[&x, &context]);
    // Only one of the three joined vectors has the mean square of the embeddings.
    let widths = Widths { input: 2 * hidden, hidden, gain: 1.5 * EMBEDDED };
    let lower = net.ticking_lstm("lower", &joined, &lower, widths, "1_next");
    let joined = net.join(&[&lower.h, &context]);
    let upper = net.lstm("upper", &joined, &upper, Widths { gain: STATES, ..widths }, "2_next");
    let sum = net.add(&lower.h, &upper.h);
    net.next_token(&sum, Widths { input: hidden, hidden, gain: STATES / 2.0 }, VOCABULARY, ENDING);
    net.give_state(&lower, hidden);
    net.give_state(&upper, hidden);
    net.graph.finish()
}
