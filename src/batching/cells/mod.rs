//! Cellular batching (BatchMaker): requests as graphs of cells, queues of ready nodes by cell type, and tasks that are
//! formed for each run, so that requests board at any step and leave after their own last one.
//!
//! Here must not live: what a cell computes, where state lies, or which requests may board (the group's queue decides).

mod members;
mod nodes;
mod queues;
mod ready;
mod unfold;

pub(super) use queues::NodeRow;
pub(super) use unfold::{Cells, slots};

#[cfg(test)]
mod tests;
