//! Cuts a graph into a chain of stages (DVABatch, section 7.1), each a model of its own with the weights it uses.
//!
//! Stages run one after another on the rows of one batch. What crosses from a stage to a later one must come by rows,
//! axis 0 being the batch, so that batches can be stretched and split between stages; anything else is refused with the
//! tensor, the reason and where one could cut instead.
//!
//! What follows from weights and shapes alone (masks, positions, target shapes) does not cross: each stage that needs
//! it computes it again, from the inputs of the graph or from a tensor that crosses anyway or may. Such nodes are no
//! work of any stage. Nodes that no output needs are left out.

mod assign;
mod cost;
mod error;
mod parts;
mod plan;
mod stage;
mod sweep;
#[cfg(test)]
mod tests;

pub use self::{error::CutError, stage::StagePort};

use self::{plan::Plan, sweep::Sweep};
use super::{Model, links::Links};

/// Most stages of a model.
pub const STAGES_MAX: usize = 256;
/// Places where more tensors would cross are not offered.
pub const CROSSING_MAX: usize = 64;

/// Where to cut.
#[derive(Clone, Copy, Debug)]
pub enum Cuts<'a> {
    /// Into this many stages of even estimated time, with little crossing between them.
    Parts(usize),
    /// Behind the nodes that make these tensors. A stage holds what its tensor needs and no earlier stage holds; the
    /// last one holds all else.
    At(&'a [String]),
}

/// One stage of a model.
#[derive(Clone, Debug)]
pub struct StageGraph {
    /// The stage alone. Weights given as raw data are shared with the model it was cut from.
    pub model: Model,
    /// Inputs of the graph in the graph's order, then tensors of earlier stages in the order of their making.
    pub inputs: Vec<StagePort>,
    /// Tensors for later stages, outputs of the graph and extra outputs, in the order of their making.
    pub outputs: Vec<StagePort>,
    /// Share of the whole graph's estimated time, 0 to 1.
    pub cost: f64,
}

/// A tensor at which one may cut.
#[derive(Clone, Debug, PartialEq)]
pub struct LegalCut {
    /// The tensor, as [`Cuts::At`] takes it.
    pub tensor: String,
    /// What crosses when one cuts here alone, the tensor included, in the order of making.
    pub crossing: Vec<String>,
    /// Estimated size of what crosses, of one row; lengths that vary are taken as 64.
    pub crossing_bytes: f64,
    /// Share of the graph's estimated time before the cut, 0 to 1.
    pub cost_before: f64,
}

/// Cuts a model into stages.
///
/// `extra` are tensors that become outputs of the stages that make them although no later stage reads them, such as the
/// predicates of early exits (DVABatch, section 9.2). What only they need joins the stage that makes its operands.
///
/// # Errors
/// When there is no such cut; the text tells the tensor, the reason and what is possible.
pub fn cut(model: &Model, cuts: Cuts<'_>, extra: &[String]) -> Result<Vec<StageGraph>, CutError> {
    let graph = model.0.graph.as_ref().ok_or(CutError::NoGraph)?;
    let links = Links::new(graph);
    let plan = Plan::new(&model.0, graph, &links, extra)?;
    let stages = match cuts {
        Cuts::Parts(parts) => parts::assign(&plan, parts)?,
        Cuts::At(names) => assign::assign(&plan, names)?,
    };
    stage::build(&model.0, &plan, &stages)
}

/// The tensors at which one may cut, in an order in which several can be used together.
pub fn legal_cuts(model: &Model) -> Vec<LegalCut> {
    let Some(graph) = &model.0.graph else { return Vec::new() };
    let links = Links::new(graph);
    Plan::new(&model.0, graph, &links, &[]).map_or(Vec::new(), |plan| Sweep::by_name(&plan).legal_cuts(&plan))
}
