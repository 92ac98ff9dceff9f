//! Cells: the programs of recurrent models, one graph per cell (BatchMaker section 3.1). The model's configuration
//! defines how a request unfolds into them.
//!
//! Axis 0 of every input and output is the rows of a task, symbol `batch`, unless stated otherwise; the shapes below
//! omit it. A carried state is named `x` as an input and `x_next` as an output. Other varying axes belong to tensors
//! of a request; a cell that gets such a tensor together with its length reads no entries beyond it, so that tasks may
//! pad.
//!
//! Random weights are scaled so that gates do not saturate and small differences shrink from step to step instead of
//! growing, so that results hardly depend on an engine's rounding. The end of a decoded sequence is made likely only by
//! the bias of its token.

pub mod conformer;
pub mod deepspeech2;
pub mod gnmt;
pub mod las;
mod layers;
pub mod lstm;
pub mod seq2seq;
pub mod transformer;
pub mod tree_lstm;

/// The start token of decoders.
pub const START: i64 = 1;
/// The end token of decoders.
pub const END: i64 = 2;

#[cfg(test)]
mod tests;
