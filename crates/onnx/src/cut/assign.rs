//! Assigns nodes to stages for cuts at named tensors.

use std::collections::HashMap;

use super::{
    CutError, STAGES_MAX,
    plan::{Part, Plan},
    sweep::Sweep,
};
use crate::links::{NodeId, TensorId};

/// The stage of every node. The entries of nodes that belong to no stage are meaningless.
#[derive(Debug)]
pub(super) struct Stages {
    pub count: usize,
    pub of: Vec<usize>,
}

pub(super) fn assign(plan: &Plan<'_>, names: &[String]) -> Result<Stages, CutError> {
    let count = names.len() + 1;
    if count > STAGES_MAX {
        return Err(CutError::Count { asked: count });
    }
    let tensors = named_tensors(plan, names)?;
    let mut stage_of: Vec<Option<usize>> = vec![None; plan.graph.node.len()];
    for (stage, &(tensor, maker)) in tensors.iter().enumerate() {
        if let Some(earlier) = stage_of[maker] {
            let (tensor, before) = (names[stage].clone(), names[earlier].clone());
            let same_node = tensors[earlier].1 == maker;
            return Err(if same_node {
                CutError::Empty { tensor, before }
            } else {
                CutError::Order { tensor, before }
            });
        }
        if let Some(reason) = plan.refusal(tensor) {
            return Err(crossing(plan, names, stage, tensor, reason));
        }
        take(plan, &mut stage_of, maker, stage);
    }
    let stages = Stages { count, of: settle(plan, stage_of, count) };
    check(plan, names, &stages)?;
    Ok(stages)
}

/// Returns the named tensors and the nodes that produce them.
fn named_tensors(plan: &Plan<'_>, names: &[String]) -> Result<Vec<(TensorId, NodeId)>, CutError> {
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let tensor = plan.find(name)?;
        let name = name.clone();
        let edge = |what: &'static str| CutError::Edge { tensor: name.clone(), what };
        if plan.output_at.contains_key(&tensor) {
            return Err(edge("an output"));
        }
        let Some(maker) = plan.links.maker(tensor) else {
            let is_weight = plan.graph.initializer.iter().any(|weight| weight.name() == name);
            return Err(edge(if is_weight { "a weight" } else { "an input" }));
        };
        if !seen.insert(tensor) {
            return Err(CutError::Twice { tensor: name });
        }
        match plan.parts[maker] {
            Part::Unneeded => return Err(CutError::Unneeded { tensor: name }),
            Part::Repeated => {
                let reason = "it follows from weights and shapes alone, so that every stage computes it itself";
                return Err(crossing(plan, std::slice::from_ref(&name), 0, tensor, reason.to_owned()));
            }
            Part::Own | Part::Exit => found.push((tensor, maker)),
        }
    }
    Ok(found)
}

/// Assigns a node and its dependencies to a stage, except those that an earlier stage already has.
fn take(plan: &Plan<'_>, stage_of: &mut [Option<usize>], node: NodeId, stage: usize) {
    let mut waiting = vec![node];
    while let Some(id) = waiting.pop() {
        if stage_of[id].is_none() {
            stage_of[id] = Some(stage);
            waiting.extend(plan.links.node(id).reads.iter().filter_map(|&tensor| plan.links.maker(tensor)));
        }
    }
}

/// Assigns the other nodes: to the last stage, or, if only extra outputs need them, to the stage of their operands.
fn settle(plan: &Plan<'_>, mut stage_of: Vec<Option<usize>>, count: usize) -> Vec<usize> {
    let mut earliest = vec![0; stage_of.len()];
    for &id in plan.links.order() {
        let makers = plan.links.node(id).reads.iter().filter_map(|&tensor| plan.links.maker(tensor));
        let after = makers.map(|maker| earliest[maker]).max().unwrap_or(0);
        let stage = match (plan.parts[id], stage_of[id]) {
            (Part::Own, stage) => stage.unwrap_or(count - 1),
            (Part::Exit, Some(stage)) => stage,
            _ => after,
        };
        earliest[id] = stage;
        stage_of[id] = Some(stage);
    }
    earliest
}

fn check(plan: &Plan<'_>, names: &[String], stages: &Stages) -> Result<(), CutError> {
    let last = stages.count - 1;
    let last_reads = plan.last_reads(|id| stages.of[id], last);
    for &id in plan.links.order() {
        for &tensor in plan.links.node(id).results.iter().flatten().filter(|_| plan.belongs(id)) {
            let stage = stages.of[id];
            let leaves = last_reads[tensor] > Some(stage) || plan.is_output[tensor] && stage < last;
            if let Some(reason) = plan.refusal(tensor).filter(|_| leaves) {
                return Err(crossing(plan, names, stage, tensor, reason));
            }
        }
    }
    Ok(())
}

fn crossing(plan: &Plan<'_>, names: &[String], stage: usize, tensor: TensorId, reason: String) -> CutError {
    let rank: HashMap<NodeId, usize> = plan.links.order().iter().enumerate().map(|(at, &id)| (id, at)).collect();
    let at = |tensor: TensorId| plan.links.maker(tensor).map(|maker| rank[&maker]);
    let own = names.get(stage).and_then(|name| plan.links.find(name)).and_then(at);
    let named = Sweep::by_name(plan).named_places(plan);
    let before = named.iter().rev().find(|(_, place)| at(*place) < own);
    let after = named.iter().find(|(_, place)| at(*place) > own);
    let nearest = before.into_iter().chain(after).map(|(_, place)| plan.links.name(*place).to_owned()).collect();
    let place = names.get(stage).map_or(String::new(), |name| format!("at '{name}'"));
    CutError::Crossing { place, tensor: plan.links.name(tensor).to_owned(), reason, nearest }
}
