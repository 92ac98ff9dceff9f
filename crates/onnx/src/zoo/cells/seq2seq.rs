//! Sequence to sequence (Sutskever et al.: Sequence to sequence learning with neural networks, 2014), with one LSTM
//! layer each in encoder and decoder, as in BatchMaker's evaluation. The decoder starts with the last state of the
//! encoder.

use super::layers::{EMBEDDED, Ending, STATES, State, Widths};
use crate::{
    Model,
    build::{BuildError, Value},
    zoo::{Width, layers::Net},
};

const ENDING: Ending = Ending { pull: 15.0, bias: -1.0 };

/// Returns hidden width and vocabulary size.
fn sizes(width: Width) -> (usize, usize) {
    (width.of(1024), if width == Width::FULL { 30_000 } else { 2_000 })
}

/// `token` INT64 `[]`, `h`, `c` FP32 `[hidden]` → `h_next`, `c_next` FP32 `[hidden]`. `hidden` is 1,024 at full width,
/// with a vocabulary of 30,000 tokens, and 256 at a quarter, with 2,000.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn encoder(width: Width) -> Result<Model, BuildError> {
    let (hidden, _) = sizes(width);
    let mut net = Net::new("seq2seq/encoder");
    let (x, state, widths) = read(&mut net, width);
    let next = net.lstm("lstm", &x, &state, widths, "_next");
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// Like [`encoder`], with the additional output `next_token` INT64 `[]`, the most likely token.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn decoder(width: Width) -> Result<Model, BuildError> {
    let (hidden, vocabulary) = sizes(width);
    let mut net = Net::new("seq2seq/decoder");
    let (x, state, widths) = read(&mut net, width);
    let next = net.ticking_lstm("lstm", &x, &state, widths, "_next");
    net.next_token(&next.h, Widths { gain: STATES, ..widths }, vocabulary, ENDING);
    net.give_state(&next, hidden);
    net.graph.finish()
}

/// Adds the inputs: returns the embedding of the token, and the state.
fn read(net: &mut Net, width: Width) -> (Value, State, Widths) {
    let (hidden, vocabulary) = sizes(width);
    let token = net.number("token");
    let state = net.state("", hidden);
    let x = net.embed(&token, vocabulary, hidden);
    (x, state, Widths { input: hidden, hidden, gain: EMBEDDED })
}
