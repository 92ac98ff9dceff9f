//! Cuts a graph into a chain of stages (DVABatch, section 7.1). Each stage is a model of its own with the weights that
//! it uses.
//!
//! Stages run one after another on the rows of a batch. Tensors that cross from a stage to a later one must be by rows,
//! with the batch as axis 0, so that batches can be merged and split between stages. Other cuts are rejected with the
//! tensor, the reason and nearby alternatives.
//!
//! Tensors that depend only on weights and shapes (masks, positions, target shapes) do not cross. Each stage that needs
//! them recomputes them, from the graph's inputs or from tensors that cross or may cross. Such nodes belong to no
//! stage. Nodes that no output needs are removed.

mod assign;
pub(crate) mod cost;
mod error;
mod parts;
mod plan;
pub(crate) mod stage;
mod sweep;
#[cfg(test)]
mod tests;

pub use self::{error::CutError, stage::StagePort};

use self::{plan::Plan, sweep::Sweep};
use super::{Model, links::Links};

/// Maximum number of stages of a model.
pub const STAGES_MAX: usize = 256;
/// Maximum number of tensors that cross an offered cut.
pub const CROSSING_MAX: usize = 64;

/// Where to cut.
#[derive(Clone, Copy, Debug)]
pub enum Cuts<'a> {
    /// Into this many stages of equal estimated time, with few bytes crossing between them.
    Parts(usize),
    /// After the nodes that produce these tensors. A stage contains the nodes that its tensor depends on and that no
    /// earlier stage contains; the last stage contains the rest.
    At(&'a [String]),
}

/// One stage of a model.
#[derive(Clone, Debug)]
pub struct StageGraph {
    /// The model of the stage. Weights given as raw data are shared with the original model.
    pub model: Model,
    /// The graph's inputs in the graph's order, then tensors of earlier stages in the order of production.
    pub inputs: Vec<StagePort>,
    /// Tensors for later stages, outputs of the graph and extra outputs, in the order of production.
    pub outputs: Vec<StagePort>,
    /// Fraction of the whole graph's estimated time, 0 to 1.
    pub cost: f64,
}

/// A tensor at which a cut is possible.
#[derive(Clone, Debug, PartialEq)]
pub struct LegalCut {
    /// Name of the tensor, for [`Cuts::At`].
    pub tensor: String,
    /// Tensors that cross if this is the only cut, including this one, in the order of production.
    pub crossing: Vec<String>,
    /// Estimated bytes of one row of the crossing tensors. Varying lengths count as 64.
    pub crossing_bytes: f64,
    /// Fraction of the graph's estimated time before the cut, 0 to 1.
    pub cost_before: f64,
}

/// Cuts a model into stages.
///
/// `extra` are tensors that become outputs of the stages that produce them although no later stage reads them, such as
/// the predicates of early exits (DVABatch, section 9.2). Nodes that only they need are added to the stage that
/// produces their operands.
///
/// # Errors
/// If there is no such cut. The error names the tensor, the reason and the alternatives.
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

/// Returns why a model cannot be cut anywhere, by its first tensor between two nodes.
pub fn obstacle(model: &Model) -> String {
    let Some(graph) = &model.0.graph else { return CutError::NoGraph.to_string() };
    let links = Links::new(graph);
    let plan = match Plan::new(&model.0, graph, &links, &[]) {
        Ok(plan) => plan,
        Err(error) => return error.to_string(),
    };
    let made = links.order().iter().filter(|&&id| plan.belongs(id)).flat_map(|&id| &links.node(id).results);
    let mut between = made.flatten().filter(|&&tensor| !plan.is_output[tensor]).peekable();
    if between.peek().is_none() {
        return "no tensor is between two nodes".to_owned();
    }
    let refused = between.find_map(|&tensor| Some((tensor, plan.refusal(tensor)?)));
    match refused {
        Some((tensor, reason)) => format!("tensor '{}' cannot cross: {reason}", links.name(tensor)),
        None => format!("at every place more than {CROSSING_MAX} tensors would cross"),
    }
}

/// Returns the places between at most `count` ranges of about equal time: near each, the one where the fewest bytes
/// cross.
pub fn between_ranges(places: &[LegalCut], count: usize) -> Vec<&LegalCut> {
    let mut chosen: Vec<&LegalCut> = Vec::new();
    for number in 1..count {
        let aim = number as f64 / count as f64;
        // Up to half of a range away, so that no place is near two.
        let near = places.iter().filter(|place| (place.cost_before - aim).abs() < 0.5 / count as f64);
        let distance = |place: &LegalCut| (place.cost_before - aim).abs();
        chosen.extend(near.min_by(|one, other| {
            let by_bytes = one.crossing_bytes.total_cmp(&other.crossing_bytes);
            by_bytes.then(distance(one).total_cmp(&distance(other)))
        }));
    }
    chosen
}

/// Returns the tensors at which a cut is possible, in an order in which several can be combined.
pub fn legal_cuts(model: &Model) -> Vec<LegalCut> {
    let Some(graph) = &model.0.graph else { return Vec::new() };
    let links = Links::new(graph);
    Plan::new(&model.0, graph, &links, &[]).map_or(Vec::new(), |plan| Sweep::by_name(&plan).legal_cuts(&plan))
}
