//! An LSTM over a sequence of tokens: one cell.

use super::layers::{EMBEDDED, Widths};
use crate::onnx::{
    Model,
    build::BuildError,
    zoo::{Width, layers::Net},
};

const VOCABULARY: usize = 2_000;

/// `x` INT64 `[]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`; hidden is 1,024 at full width.
///
/// # Errors
/// Never in a correct build.
pub fn step(width: Width) -> Result<Model, BuildError> {
    let hidden = width.of(1024);
    let mut net = Net::new("lstm/step");
    let x = net.number("x");
    let state = net.state("", hidden);
    let x = net.embed(&x, VOCABULARY, hidden);
    let next = net.lstm("lstm", &x, &state, Widths { input: hidden, hidden, gain: EMBEDDED }, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}
