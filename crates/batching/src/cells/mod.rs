//! Cellular batching (BatchMaker). Requests are graphs of cells; each cell type has a queue of ready nodes, and every
//! task is formed from such a queue, so requests board at any step and leave after their own last step.
//!
//! This module must not know what a cell computes, what its state is, or where a device stores a slot.

mod graphs;
mod members;
mod nodes;
mod outcomes;
mod queues;
mod ready;
mod scheduling;
mod slots;

pub(super) use self::scheduling::{Cells, Place, longest, predict};

#[cfg(test)]
mod tests;
