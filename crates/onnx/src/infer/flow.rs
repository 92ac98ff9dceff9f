//! Determines how outputs depend on the rows, from the operands and the rule of the operator.

use super::{
    call::{Call, Outcome, Track},
    datatype,
    fact::{Fact, Flow, Mixing, Origin, RANK_MAX, VALUES_MAX},
    ops::{is_repeatable, is_shape_operand},
    size::{Dim, Size, Symbols},
};
use crate::links::NodeId;

const UNFOLLOWED: &str = "is an operation through which rows cannot be followed";

pub(super) fn mixed(origin: Origin, cause: &'static str) -> Flow {
    Flow::Mixed(Mixing { origin, cause })
}

/// Returns the flow if the operands alone determine it, without the rule.
pub(super) fn inherited_flow(call: &Call<'_>, id: NodeId, outer: impl Iterator<Item = Flow>) -> Option<Flow> {
    let mut all_constant = true;
    for flow in outer {
        match flow {
            Flow::Mixed(_) => return Some(flow),
            Flow::Constant => {}
            Flow::Count | Flow::Rows(_) => all_constant = false,
        }
    }
    if all_constant {
        let flow = if is_repeatable(call.node) { Flow::Constant } else { mixed(Origin::Node(id), UNFOLLOWED) };
        return Some(flow);
    }
    for (index, operand) in call.operands.iter().enumerate() {
        let Some(operand) = operand else { continue };
        let by_value = operand.value.as_ref().is_some_and(|value| value.iter().all(Option::is_some));
        match (operand.flow, is_shape_operand(call.node, index)) {
            (Flow::Rows(_), true) => return Some(mixed(Origin::Node(id), "takes a shape from the rows")),
            (Flow::Count, shape) if !shape || !by_value => {
                return Some(mixed(Origin::Node(id), "computes with the number of rows"));
            }
            _ => {}
        }
    }
    None
}

/// Combines the outcome of the rule and the flow of the operands into the fact of one output.
pub(super) fn conclude(
    call: &Call<'_>,
    index: usize,
    id: NodeId,
    outcome: Option<Outcome>,
    inherited: Option<Flow>,
    symbols: &Symbols,
) -> Fact {
    let datatype = datatype::of_output(call, index);
    let Outcome { dims, value, track } = outcome.unwrap_or(Outcome { dims: None, value: None, track: Err(UNFOLLOWED) });
    let sound = |dims: &Vec<Dim>| {
        let negative = |dim: &Dim| dim.as_ref().and_then(Size::known).is_some_and(|length| length < 0);
        dims.len() <= RANK_MAX && !dims.iter().any(negative)
    };
    let dims = dims.filter(sound);
    let value = value.filter(|value| value.len() <= VALUES_MAX);
    let sizes = value.as_ref().and_then(|value| value.iter().map(Option::as_ref).collect::<Option<Vec<&Size>>>());
    let flow = match (sizes, inherited) {
        // Individually known elements do not depend on the contents of rows.
        (Some(sizes), _) if sizes.iter().any(|size| size.counts_rows(symbols)) => Flow::Count,
        (Some(_), _) => Flow::Constant,
        (None, Some(flow)) => flow,
        // The elements of a shape are known as far as possible above; they never depend on the contents of rows.
        (None, None) if matches!(call.node.op_type(), "Shape" | "Size") => Flow::Count,
        (None, None) => followed(call, id, dims.as_deref(), track, symbols),
    };
    let counts = |dims: &Vec<Dim>| dims.iter().flatten().any(|length| length.counts_rows(symbols));
    let flow = match flow {
        Flow::Constant if dims.as_ref().is_some_and(counts) => mixed(Origin::Node(id), "counts the rows"),
        flow => flow,
    };
    Fact { datatype, dims, value, reals: None, flow }
}

/// Returns the flow by the rule, if the shape is consistent with it: the length of the axis is a multiple of the number
/// of rows, and no other length depends on that number.
fn followed(call: &Call<'_>, id: NodeId, dims: Option<&[Dim]>, track: Track, symbols: &Symbols) -> Flow {
    let lost = |cause| mixed(Origin::Node(id), cause);
    let axis = match track {
        Ok(Some(axis)) => axis,
        Ok(None) if call.operands.iter().flatten().any(|operand| operand.rows().is_some()) => return lost(UNFOLLOWED),
        Ok(None) => return Flow::Constant,
        Err(cause) => return lost(cause),
    };
    let dims = dims.unwrap_or_default();
    let is_multiple = dims.get(axis).and_then(Option::as_ref).is_some_and(|length| length.is_batch_multiple(symbols));
    let counted = |(at, dim): (usize, &Dim)| at != axis && dim.as_ref().is_some_and(|it| it.counts_rows(symbols));
    if !is_multiple || dims.iter().enumerate().any(counted) {
        return lost("makes a tensor whose shape does not show where the rows are");
    }
    Flow::Rows(axis)
}
