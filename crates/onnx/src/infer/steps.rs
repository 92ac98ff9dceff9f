//! Follows the steps of a sequence through a graph, by the rules for the rows of a batch.
//!
//! A tensor is *by steps* if its entry i along an axis depends only on the entries i of the inputs, and on nothing else
//! that has steps. Recurrent layers along that axis count as by steps: their states are what passes from step to step.
//! An operator that needs all steps at once is a *barrier*. Its results are complete only when it has seen the whole
//! sequence; what follows is followed from them as from inputs.

use std::collections::HashSet;

use paternoster_model::DataType;

use super::{
    Facts,
    fact::{Fact, Flow, Origin},
    flow::mixed,
    size::{BATCH, Dim, Size, Symbol, Symbols},
};
use crate::{
    Port, PortDim,
    links::{Links, NodeId, TensorId},
    pb,
};

/// Which axes have the steps, and where following them starts again.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Inputs, with their axes of steps.
    axes: HashSet<(TensorId, usize)>,
    /// The number of rows, which is a length like any other here.
    rows: Symbol,
    barriers: HashSet<NodeId>,
}

impl Steps {
    /// Returns the fact of an input of the graph.
    pub(super) fn input(
        &self,
        tensor: TensorId,
        datatype: Option<DataType>,
        dims: Option<Vec<PortDim>>,
        symbols: &mut Symbols,
    ) -> Fact {
        let length = |(axis, dim): (usize, PortDim)| match dim {
            _ if self.axes.contains(&(tensor, axis)) => Size::from(BATCH),
            PortDim::Fixed(length @ 0..) => Size::from(length),
            _ if axis == 0 => self.rows.into(),
            PortDim::Symbol(name) => symbols.behind_batch(&name).into(),
            PortDim::Fixed(_) | PortDim::Unknown => symbols.fresh().into(),
        };
        let dims: Option<Vec<Dim>> = dims.map(|dims| dims.into_iter().enumerate().map(length).map(Some).collect());
        let fact = Fact { datatype, dims, value: None, reals: None, flow: Flow::Constant };
        match &fact.dims {
            Some(dims) => Fact { flow: flow_of(dims, symbols).unwrap_or(unfollowed(tensor)), ..fact },
            None => Fact { flow: unfollowed(tensor), ..fact },
        }
    }

    /// Returns the fact of a node's result. A result that is not by steps is a barrier's.
    pub(super) fn resumed(&mut self, node: NodeId, fact: Fact, symbols: &Symbols) -> Fact {
        if !matches!(fact.flow, Flow::Mixed(_)) {
            return fact;
        }
        self.barriers.insert(node);
        let flow = fact.dims.as_ref().and_then(|dims| flow_of(dims, symbols)).unwrap_or(fact.flow);
        Fact { flow, ..fact }
    }
}

fn unfollowed(tensor: TensorId) -> Flow {
    mixed(Origin::Tensor(tensor), "has more than one axis of steps, or an unknown shape")
}

/// Returns the flow of a complete tensor: along its axis of steps, or constant if it has none. `None` if a length is
/// unknown or depends on the steps otherwise.
fn flow_of(dims: &[Dim], symbols: &Symbols) -> Option<Flow> {
    let mut found = None;
    for (axis, dim) in dims.iter().enumerate() {
        let length = dim.as_ref()?;
        if length.is_batch() && found.is_none() {
            found = Some(axis);
        } else if length.counts_rows(symbols) {
            return None;
        }
    }
    Some(found.map_or(Flow::Constant, Flow::Rows))
}

impl Facts {
    /// Returns facts in which the rows are the steps of a sequence. `axes` are the axes of inputs that have them.
    pub(crate) fn of_steps(
        model: &pb::ModelProto,
        graph: &pb::GraphProto,
        links: &Links<'_>,
        axes: HashSet<(TensorId, usize)>,
    ) -> Self {
        // Names that other axes have too stand for none. The steps have no name: a length that the file declares for an
        // inner tensor must not be taken for theirs.
        let (mut of_rows, mut of_others, mut taken) = (Vec::new(), HashSet::new(), HashSet::new());
        for port in graph.input.iter().map(Port::of) {
            for (axis, dim) in port.dims.into_iter().flatten().enumerate() {
                let PortDim::Symbol(name) = dim else { continue };
                taken.insert(name.clone());
                if axis == 0 {
                    of_rows.push(name);
                } else {
                    of_others.insert(name);
                }
            }
        }
        let mut unused = String::from("steps");
        while taken.contains(&unused) {
            unused.push('_');
        }
        let mut symbols = Symbols::new(unused, []);
        let rows = symbols.fresh();
        of_rows.iter().filter(|name| !of_others.contains(*name)).for_each(|name| symbols.alias(name, rows));
        let steps = Steps { axes, rows, barriers: HashSet::new() };
        Self::follow_all(model, graph, links, symbols, Some(steps))
    }

    /// Returns whether a node needs all steps at once.
    pub(crate) fn is_barrier(&self, node: NodeId) -> bool {
        self.steps.as_ref().is_some_and(|steps| steps.barriers.contains(&node))
    }
}
