//! Cells: the programs of recurrent models, one graph a cell (BatchMaker section 3.1). How a request unfolds into them
//! stands in the model's configuration, not here.
//!
//! Every input and output has the rows of a task as axis 0, symbol `batch`; the shapes below leave it out. A state that
//! is carried is called `x` where the cell takes it and `x_next` where it gives it. Further axes that vary are those of
//! what a request holds; a cell that takes such a tensor together with its length looks at no more than that many
//! entries, so that tasks may pad.
//!
//! Random weights are scaled so that gates stay far from their ends and small differences fade from step to step
//! instead of growing: answers then hardly depend on how an engine rounds. The end of a decoded sequence is made likely
//! by the bias of its token alone.

pub mod deepspeech2;
pub mod gnmt;
pub mod las;
mod layers;
pub mod lstm;
pub mod seq2seq;
pub mod transformer;
pub mod tree_lstm;

/// The token that a decoder is started with.
pub const START: i64 = 1;
/// The token that ends what a decoder gives.
pub const END: i64 = 2;

#[cfg(test)]
mod tests;
