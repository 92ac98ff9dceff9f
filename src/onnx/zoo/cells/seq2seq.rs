//! Sequence to sequence (Sutskever et al.: Sequence to sequence learning with neural networks, 2014), of one LSTM layer
//! each way, as BatchMaker measures it: an encoder, whose last state a decoder begins with.

use super::layers::{EMBEDDED, Ending, STATES, State, Widths};
use crate::onnx::{
    Model,
    build::{BuildError, Value},
    zoo::{Width, layers::Net},
};

const ENDING: Ending = Ending { pull: 15.0, bias: -1.0 };

/// Hidden width and vocabulary.
fn sizes(width: Width) -> (usize, usize) {
    (width.of(1024), if width == Width::FULL { 30_000 } else { 2_000 })
}

/// `token` INT64 `[]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`; hidden is 1,024 at full width, of
/// 30,000 tokens, and 256 at a quarter, of 2,000.
///
/// # Errors
/// Never in a correct build.
pub fn encoder(width: Width) -> Result<Model, BuildError> {
    let (hidden, _) = sizes(width);
    let mut net = Net::new("seq2seq/encoder");
    let (x, state, widths) = read(&mut net, width);
    let next = net.lstm("lstm", &x, &state, widths, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// As [`encoder`], and `next_token` INT64 `[]`: the likeliest one.
///
/// # Errors
/// Never in a correct build.
pub fn decoder(width: Width) -> Result<Model, BuildError> {
    let (hidden, vocabulary) = sizes(width);
    let mut net = Net::new("seq2seq/decoder");
    let (x, state, widths) = read(&mut net, width);
    let next = net.ticking_lstm("lstm", &x, &state, widths, "_next");
    net.next_token(&next.h, Widths { gain: STATES, ..widths }, vocabulary, ENDING);
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// A token's vector and the state.
fn read(net: &mut Net, width: Width) -> (Value, State, Widths) {
    let (hidden, vocabulary) = sizes(width);
    let token = net.number("token");
    let state = net.state("", hidden);
    let x = net.embed(&token, vocabulary, hidden);
    (x, state, Widths { input: hidden, hidden, gain: EMBEDDED })
}
