//! Symbolic shape inference: determines the element type and shape of every tensor of a graph, and how it depends on
//! the rows of a batch.
//!
//! Lengths are numbers, symbols of the graph's inputs, or expressions of these. Small integer tensors are tracked
//! element by element, so that shapes computed from other shapes are known as well. Outputs of unknown operators are
//! unknown, unless the file declares them.
//!
//! The batch is axis 0 of the inputs: its symbol, and the symbols that other inputs have there instead, unless an input
//! has that symbol on another axis. If all inputs have the same symbol there, it is the batch, and on other axes it
//! counts as another length, about which nothing is known. A tensor is *by rows* if its row i depends only on the rows
//! i of the inputs. If operators move, group or mix the rows, the place and the cause are recorded.
//!
//! The same rules follow the steps of a sequence instead of the rows of a batch (`steps`).

mod call;
mod datatype;
mod fact;
mod flow;
mod meet;
mod ops;
mod scan;
pub(crate) mod size;
pub(crate) mod steps;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;

use paternoster_model::DataType;

use self::{
    call::Call,
    fact::RANK_MAX,
    flow::{conclude, inherited_flow, mixed},
    size::{BATCH, Dim, Size, Symbol, Symbols},
    steps::Steps,
};
pub(super) use self::{
    call::axis_of,
    fact::{Fact, Flow, Origin, VALUES_MAX},
    ops::{has_gates, is_repeatable, is_standard},
    scan::{ScanForm, has_states},
};
use super::{
    Model, Port, PortDim,
    links::{Links, NodeId, TensorId},
    nodes::standard_opset,
    pb,
};

/// What is known about the tensors of a graph.
#[derive(Debug)]
pub struct Inference {
    pub(super) tensors: HashMap<String, TensorInfo>,
    /// Lengths of the outputs' axes, as text.
    lengths: HashMap<String, Vec<Option<String>>>,
}

/// What is known about a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type; `None` if it is unknown or not supported by the protocol.
    pub datatype: Option<DataType>,
    /// Shape; `None` if not even the rank is known. Lengths computed from symbols are reported as unknown.
    pub dims: Option<Vec<PortDim>>,
    /// How the tensor depends on the rows of a batch.
    pub rows: RowDependence,
}

/// How a tensor depends on the rows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowDependence {
    /// Axis 0 is the batch, and row i depends only on the rows i of the inputs.
    PerRow,
    /// Like `PerRow`, but another axis is the batch.
    Moved {
        /// The axis.
        axis: usize,
    },
    /// Contains the rows in order along an axis, but several entries per row.
    Grouped {
        /// The axis.
        axis: usize,
    },
    /// Does not depend on the rows; may depend on lengths of the request.
    Constant,
    /// A shape that contains the number of rows.
    Count,
    /// Rows may depend on each other.
    Mixed {
        /// The first node that mixes them, or the tensor that is not by rows.
        origin: String,
        /// How the node mixes them.
        cause: &'static str,
    },
}

/// Infers the tensors of a model. Never fails: whatever cannot be determined is unknown.
pub fn infer(model: &Model) -> Inference {
    let Some(graph) = &model.0.graph else {
        return Inference { tensors: HashMap::new(), lengths: HashMap::new() };
    };
    let links = Links::new(graph);
    let facts = Facts::of(&model.0, graph, &links);
    let all = (0..links.tensors()).map(|tensor| (links.name(tensor).to_owned(), facts.info(graph, &links, tensor)));
    let lengths = graph.output.iter().filter_map(|output| {
        let dims = facts.fact(links.find(output.name())?).dims.as_ref()?;
        let text = |dim: &Dim| facts.symbols.text(dim.as_ref()?);
        Some((output.name().to_owned(), dims.iter().map(text).collect()))
    });
    Inference { tensors: all.collect(), lengths: lengths.collect() }
}

impl Inference {
    /// Returns what is known about a tensor; `None` if the graph has no tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Returns the lengths of an output's axes, each as a number, the name of an axis of an input, or an
    /// [expression](paternoster_model::AxisLength) of such names; `None` for one that is unknown or depends on the
    /// number of rows. `None` if not even the rank is known.
    pub fn output_lengths(&self, name: &str) -> Option<&[Option<String>]> {
        self.lengths.get(name).map(Vec::as_slice)
    }
}

/// Whether an operator needs the number of rows to equal a length to which the file gives the same name. Requests of
/// such a graph cannot share a batch.
pub(super) fn needs_square(model: &Model) -> bool {
    let Some(graph) = &model.0.graph else { return false };
    let links = Links::new(graph);
    let facts = Facts::of(&model.0, graph, &links);
    let Some(namesake) = facts.symbols.namesake() else { return false };
    let is = |dim: &Dim, symbol: Symbol| dim.as_ref().and_then(Size::symbol) == Some(symbol);
    let equates =
        |(left, right): (&Dim, &Dim)| is(left, BATCH) && is(right, namesake) || is(left, namesake) && is(right, BATCH);
    links.order().iter().any(|&id| {
        let operands =
            links.node(id).operands.iter().flatten().filter_map(|&tensor| facts.fact(tensor).dims.as_deref());
        ops::equal_lengths(&graph.node[id], &operands.collect::<Vec<_>>()).into_iter().any(equates)
    })
}

/// Facts about all tensors, by number.
#[derive(Debug)]
pub(super) struct Facts {
    pub symbols: Symbols,
    facts: Vec<Fact>,
    /// Where the steps of a sequence are followed instead of the rows.
    steps: Option<Steps>,
}

impl Facts {
    pub(super) fn of(model: &pb::ModelProto, graph: &pb::GraphProto, links: &Links<'_>) -> Self {
        Self::follow_all(model, graph, links, batch_symbols(graph), None)
    }

    fn follow_all(
        model: &pb::ModelProto,
        graph: &pb::GraphProto,
        links: &Links<'_>,
        symbols: Symbols,
        steps: Option<Steps>,
    ) -> Self {
        let unknown = |tensor| Fact::opaque(mixed(Origin::Tensor(tensor), "is not defined by the graph"));
        let mut found = Self { symbols, facts: (0..links.tensors()).map(unknown).collect(), steps };
        for input in &graph.input {
            if let Some(tensor) = links.find(input.name()) {
                found.facts[tensor] = found.input(input, tensor);
            }
        }
        found.weights(graph, links);
        let declared = graph.value_info.iter().chain(&graph.output).map(|info| (info.name(), info)).collect();
        let opset = standard_opset(model);
        for &id in links.order() {
            found.follow(graph, links, id, opset, &declared);
        }
        found
    }

    fn weights(&mut self, graph: &pb::GraphProto, links: &Links<'_>) {
        for weight in &graph.initializer {
            if let Some(tensor) = links.find(weight.name()) {
                self.facts[tensor] = Fact::of_tensor(weight);
            }
        }
        for sparse in &graph.sparse_initializer {
            if let Some(tensor) = sparse.values.as_ref().and_then(|values| links.find(values.name())) {
                self.facts[tensor] = Fact::opaque(Flow::Constant);
            }
        }
    }

    pub(super) fn fact(&self, tensor: TensorId) -> &Fact {
        &self.facts[tensor]
    }

    fn input(&mut self, info: &pb::ValueInfoProto, tensor: TensorId) -> Fact {
        let port = Port::decode(info.clone());
        let dims = port.dims.filter(|dims| dims.len() <= RANK_MAX);
        if let Some(steps) = &self.steps {
            return steps.input(tensor, port.datatype, dims, &mut self.symbols);
        }
        let dims: Option<Vec<Dim>> = dims.map(|dims| {
            let decoded = dims.iter().enumerate().map(|(axis, dim)| match dim {
                PortDim::Fixed(length @ 0..) => Size::from(*length),
                PortDim::Symbol(name) if axis == 0 => self.symbols.named(name).into(),
                PortDim::Symbol(name) => self.symbols.behind_batch(name).into(),
                PortDim::Fixed(_) | PortDim::Unknown if axis == 0 => BATCH.into(),
                PortDim::Fixed(_) | PortDim::Unknown => self.symbols.fresh().into(),
            });
            decoded.map(Some).collect()
        });
        let has_batch = dims.as_ref().is_some_and(|dims| matches!(dims.first(), Some(Some(size)) if size.is_batch()));
        let flow = if has_batch { Flow::Rows(0) } else { mixed(Origin::Tensor(tensor), "has no batch axis") };
        Fact { datatype: port.datatype, dims, value: None, reals: None, flow }
    }

    fn follow(
        &mut self,
        graph: &pb::GraphProto,
        links: &Links<'_>,
        id: NodeId,
        opset: i64,
        declared: &HashMap<&str, &pb::ValueInfoProto>,
    ) {
        let (node, tensors) = (&graph.node[id], links.node(id));
        let Self { symbols, facts, steps } = self;
        let operands = tensors.operands.iter().map(|it| it.map(|it| &facts[it])).collect();
        let call = Call { node, opset, operands, follows_steps: steps.is_some() };
        let mut made: Vec<Fact> = if node.op_type() == "Constant" && ops::is_standard(node) {
            vec![constant(&call)]
        } else {
            let outer = tensors.reads.iter().map(|&tensor| facts[tensor].flow);
            let recurs = ops::recurs(&call) || scan::recurs(&call);
            let inherited = if recurs { None } else { inherited_flow(&call, id, outer) };
            let around = |name: &str| Some(facts[links.find(name)?].clone());
            let (rule, mut datatypes) = match scan::outcomes(&call, symbols, &around) {
                Some(scanned) => scanned.into_iter().unzip(),
                None => (ops::outcomes(&call, symbols).unwrap_or_default(), Vec::new()),
            };
            datatypes.resize(tensors.results.len(), None);
            let mut rule = rule.into_iter();
            let results = datatypes.into_iter().enumerate();
            let concluded = results.map(|(index, datatype)| {
                let fact = conclude(&call, index, id, rule.next(), inherited, symbols);
                Fact { datatype: fact.datatype.or(datatype), ..fact }
            });
            concluded.collect()
        };
        for (result, fact) in tensors.results.iter().zip(made.drain(..)) {
            let Some(tensor) = *result else { continue };
            let fact = match declared.get(links.name(tensor)) {
                Some(info) => self.completed(fact, info),
                None => fact,
            };
            self.facts[tensor] = match &mut self.steps {
                Some(steps) => steps.resumed(id, fact, &self.symbols),
                None => fact,
            };
        }
    }

    /// Fills in unknown parts from the file's declaration.
    fn completed(&mut self, mut fact: Fact, info: &pb::ValueInfoProto) -> Fact {
        if fact.datatype.is_some() && fact.dims.as_ref().is_some_and(|dims| dims.iter().all(Option::is_some)) {
            return fact;
        }
        let port = Port::decode(info.clone());
        fact.datatype = fact.datatype.or(port.datatype);
        let Some(dims) = port.dims.filter(|dims| dims.len() <= RANK_MAX) else { return fact };
        let own = fact.dims.take().unwrap_or_else(|| vec![None; dims.len()]);
        if own.len() != dims.len() {
            fact.dims = Some(own);
            return fact;
        }
        let decoded = own.into_iter().zip(dims).map(|(own, dim)| match (own, dim) {
            (Some(own), _) => Some(own),
            (None, PortDim::Fixed(length @ 0..)) => Some(Size::from(length)),
            (None, PortDim::Symbol(name)) if self.symbols.is_ambiguous(&name) => None,
            (None, PortDim::Symbol(name)) => Some(self.symbols.declared(&name).into()),
            (None, _) => None,
        });
        fact.dims = Some(decoded.collect());
        fact
    }

    /// Returns the shape in public form; `None` if not even the rank is known.
    pub(super) fn port_dims(&self, tensor: TensorId) -> Option<Vec<PortDim>> {
        let dim = |dim: &Dim| match dim {
            Some(size) => match (size.known(), size.symbol().and_then(|symbol| self.symbols.name(symbol))) {
                (Some(length), _) => PortDim::Fixed(length),
                (None, Some(name)) => PortDim::Symbol(name.to_owned()),
                (None, None) => PortDim::Unknown,
            },
            None => PortDim::Unknown,
        };
        self.facts[tensor].dims.as_ref().map(|dims| dims.iter().map(dim).collect())
    }

    /// Returns how a tensor depends on the rows.
    pub(super) fn rows(&self, graph: &pb::GraphProto, links: &Links<'_>, tensor: TensorId) -> RowDependence {
        let fact = &self.facts[tensor];
        let is_batch = |axis: usize| {
            let length = fact.dims.as_ref().and_then(|dims| dims.get(axis)?.as_ref());
            length.is_some_and(Size::is_batch)
        };
        match fact.flow {
            Flow::Constant => RowDependence::Constant,
            Flow::Count => RowDependence::Count,
            Flow::Rows(axis) if !is_batch(axis) => RowDependence::Grouped { axis },
            Flow::Rows(0) => RowDependence::PerRow,
            Flow::Rows(axis) => RowDependence::Moved { axis },
            Flow::Mixed(mixing) => {
                let origin = match mixing.origin {
                    Origin::Node(id) => format!("node {}", node_label(&graph.node[id], id)),
                    Origin::Tensor(tensor) => format!("tensor '{}'", links.name(tensor)),
                };
                RowDependence::Mixed { origin, cause: mixing.cause }
            }
        }
    }

    fn info(&self, graph: &pb::GraphProto, links: &Links<'_>, tensor: TensorId) -> TensorInfo {
        TensorInfo {
            datatype: self.facts[tensor].datatype,
            dims: self.port_dims(tensor),
            rows: self.rows(graph, links, tensor),
        }
    }
}

/// Returns the label of a node in messages: its name, or its number and operator.
fn node_label(node: &pb::NodeProto, id: NodeId) -> String {
    match node.name() {
        "" => format!("{id} ({})", node.op_type()),
        name => format!("'{name}' ({})", node.op_type()),
    }
}

/// Returns the symbols of a graph, with one symbol for the batch of all inputs.
fn batch_symbols(graph: &pb::GraphProto) -> Symbols {
    let weights: std::collections::HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let given = graph.input.iter().filter(|input| !weights.contains(input.name()));
    let shapes: Vec<Vec<PortDim>> = given.filter_map(|input| Port::decode(input.clone()).dims).collect();
    let name = |dim: &PortDim| match dim {
        PortDim::Symbol(name) => Some(name.clone()),
        PortDim::Fixed(_) | PortDim::Unknown => None,
    };
    let mut elsewhere: std::collections::HashSet<String> =
        shapes.iter().flat_map(|dims| dims.iter().skip(1)).filter_map(name).collect();
    if let Some(Some(PortDim::Symbol(first))) = shapes.first().map(|dims| dims.first())
        && shapes.iter().all(|dims| matches!(dims.first(), Some(PortDim::Symbol(name)) if name == first))
    {
        elsewhere.remove(first);
    }
    let mut aliases = shapes.iter().filter_map(|dims| name(dims.first()?)).filter(|name| !elsewhere.contains(name));
    let batch = aliases.next().unwrap_or_else(|| {
        let mut unused = "batch".to_owned();
        while elsewhere.contains(&unused) {
            unused.push('_');
        }
        unused
    });
    let aliases: Vec<String> = aliases.collect();
    Symbols::new(batch, aliases)
}

fn constant(call: &Call<'_>) -> Fact {
    if let Some(tensor) = call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        return Fact::of_tensor(tensor);
    }
    let listed = |count: usize| Some(vec![Some(Size::from(count as i64))]);
    let whole = |ints: &[i64]| ints.iter().map(|&number| Some(Size::from(number))).collect::<Vec<Dim>>();
    let mut fact = Fact::opaque(Flow::Constant);
    if let Some(number) = call.int("value_int") {
        let value = Some(whole(&[number]));
        fact = Fact { datatype: Some(DataType::Int64), dims: Some(Vec::new()), value, ..fact };
    } else if let Some(ints) = call.ints("value_ints") {
        let value = (ints.len() <= VALUES_MAX).then(|| whole(ints));
        fact = Fact { datatype: Some(DataType::Int64), dims: listed(ints.len()), value, ..fact };
    } else if call.attribute("value_float").is_some() {
        fact = Fact { datatype: Some(DataType::Fp32), dims: Some(Vec::new()), ..fact };
    } else if let Some(floats) = call.attribute("value_floats").map(|attribute| &attribute.floats) {
        let reals = (floats.len() <= VALUES_MAX).then(|| floats.clone());
        fact = Fact { datatype: Some(DataType::Fp32), dims: listed(floats.len()), reals, ..fact };
    }
    fact
}

/// Returns the number of elements, given the values of symbols and `open` for unknown lengths.
pub(super) fn elements(dims: &[Dim], open: f64, value: impl Fn(Symbol) -> f64) -> f64 {
    dims.iter().map(|dim| dim.as_ref().map_or(open, |size| size.evaluate(&value))).product()
}
