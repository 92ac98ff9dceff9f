//! Listen, attend and spell (Chan et al., 2016): a listener over the frames of a recording, and a speller that attends
//! to the listener's states and produces characters. The paper's pyramid is omitted: both layers of the listener run
//! over every frame.

use super::layers::{Ending, STATES, Widths};
use crate::{
    Model,
    build::BuildError,
    zoo::{Width, layers::Net},
};

/// Filter bank coefficients per frame.
const COEFFICIENTS: usize = 40;
/// Letters, punctuation, and the start and end tokens.
const CHARACTERS: usize = 32;
const ENDING: Ending = Ending { pull: 30.0, bias: -3.0 };

fn hidden(width: Width) -> usize {
    width.of(512)
}

/// `frame` FP32 `[40]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`; `hidden` is 512 at full width.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn listener(width: Width) -> Result<Model, BuildError> {
    // The input is narrow compared to the state, so the gain is smaller.
    listening("las/listener", "frame", Widths { input: COEFFICIENTS, hidden: hidden(width), gain: STATES / 2.0 })
}

/// `x`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`: the second layer.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn upper(width: Width) -> Result<Model, BuildError> {
    listening("las/upper", "x", Widths { input: hidden(width), hidden: hidden(width), gain: STATES })
}

fn listening(name: &str, input: &str, widths: Widths) -> Result<Model, BuildError> {
    let mut net = Net::new(name);
    let x = net.vector(input, widths.input);
    let state = net.state("", widths.hidden);
    let next = net.lstm("lstm", &x, &state, widths, "_next");
    net.give_state(&next, widths.hidden);
    net.graph.finish()
}

/// `token` INT64 `[]`, `memory` FP32 `[length, hidden]` of which the first `memory_length` INT64 `[]` are valid,
/// `context`, `h`, `c` FP32 `[hidden]` → `next_token` INT64 `[]`, `context_next`, `h_next`, `c_next` FP32 `[hidden]`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn speller(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("las/speller");
    let token = net.number("token");
    let memory = net.matrix("memory", "memory", hidden);
    let length = net.number("memory_length");
    let context = net.vector("context", hidden);
    let state = net.state("", hidden);
    let x = net.embed(&token, CHARACTERS, hidden);
    let joined = net.join(&[&x, &context]);
    let widths = Widths { input: 2 * hidden, hidden, gain: STATES / 4.0 };
    let next = net.ticking_lstm("lstm", &joined, &state, widths, "_next");
    let context = net.attend("attention", &next.h, &memory, &length, hidden);
    let context = net.graph.op("Identity", &[&context]).named("context_next").value();
    let joined = net.join(&[&next.h, &context]);
    net.next_token(&joined, Widths { gain: STATES, ..widths }, CHARACTERS, ENDING);
    net.give_vector(&context, hidden);
    net.give_state(&next, hidden);
    net.graph.finish()
}
