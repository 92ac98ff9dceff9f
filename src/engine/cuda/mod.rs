//! An ONNX graph as work of a CUDA card.
//!
//! A [`Plan`] is made without a card: the graph's nodes are lowered to matrix products, convolutions, kernels over
//! rows, reductions and pointwise expressions (`lower`), what follows a convolution goes into its call (`rectify`), and
//! the rest is merged into few kernels (`fuse`) and written as source (`codegen`). Nothing of it depends on how many
//! rows a batch has. [`Plan::load`] puts weights and kernels on a card, [`Loaded::reserve`] takes memory for batches,
//! [`Loaded::prepare`] does all that may allocate or ask a library for batches of one size, and [`Prepared::issue`]
//! issues the launches into a capture.
//!
//! Knows nothing of requests, slots or scheduling. `ir` says what a plan is made of.

mod codegen;
mod constants;
mod fuse;
mod geometry;
mod ir;
mod launch;
mod load;
mod lower;
mod memory;
mod narrow;
mod on_card;
mod plan;
mod rectify;
#[cfg(test)]
mod tests;
mod views;
mod weights;
mod workspace;

pub use self::{
    launch::Prepared,
    load::Loaded,
    lower::PlannedNode,
    on_card::OnCard,
    plan::{Demand, Plan, PlanError, PlanSource},
    weights::Weights,
    workspace::Workspace,
};
