//! Cellular batching (BatchMaker): requests as graphs of cells, queues of ready nodes by cell type, and tasks that are
//! formed for each run, so that requests board at any step and leave after their own last one.
//!
//! Here must not live: what a cell computes, or what state is and where a slot of it lies.

mod graphs;
mod members;
mod nodes;
mod outcomes;
mod queues;
mod ready;
mod scheduling;
mod slots;

pub(super) use self::scheduling::{Cells, Place, predict};

#[cfg(test)]
mod tests;
