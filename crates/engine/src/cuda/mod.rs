//! ONNX graphs as work of a CUDA card.
//!
//! A [`Plan`] is made without a card. `lower` turns the graph's nodes into matrix products, convolutions, row kernels,
//! reductions and pointwise expressions; `attention` makes one operation of the parts of attention; `rectify` moves
//! what follows a convolution into its call; `fuse` merges the rest into few kernels, whose source `codegen` writes.
//! Nothing in a plan depends on the number of rows of a batch.
//!
//! [`Plan::load`] copies weights and kernels to a card, and [`LoadedPlan::reserve`] allocates memory for batches.
//! [`LoadedPlan::prepare`] does everything for batches of one size that may allocate or query a library, and
//! [`Prepared::issue`] issues the launches into a capture. `ir` defines what plans consist of. This module must not
//! know requests, slots or scheduling.

mod attention;
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
mod residual;
#[cfg(test)]
mod tests;
mod views;
mod weights;
mod workspace;

pub use self::{
    launch::Prepared,
    load::LoadedPlan,
    lower::PlannedNode,
    on_card::OnCard,
    plan::{Demand, Plan, PlanError, PlanSource},
    weights::Weights,
    workspace::Workspace,
};
