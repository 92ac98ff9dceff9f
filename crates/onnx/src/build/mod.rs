//! Builds graphs: tensors are values, operators are calls, and mistakes are reported when the graph is finished.
//!
//! ```
//! use paternoster_model::DataType;
//! use paternoster_onnx::build::Graph;
//!
//! let mut graph = Graph::new("affine");
//! let x = graph.input("x", DataType::Fp32, &["batch".into(), 16.into()]);
//! let scale = graph.constant("scale", &[16], &[2.0_f32; 16]);
//! let product = graph.op("Mul", &[&x, &scale]).value();
//! let y = graph.op("Relu", &[&product]).named("y").value();
//! graph.output(&y, DataType::Fp32, &["batch".into(), 16.into()]);
//! let model = graph.finish().expect("every tensor is defined exactly once");
//! # assert_eq!(model.0.graph.expect("a graph").node.len(), 2);
//! ```

use std::{collections::HashMap, fmt, sync::Arc};

use bytes::Bytes;
use paternoster_model::DataType;

use super::{
    Model, PortDim, check, pb,
    port::{declare, elem_of},
};
pub use super::{attribute::Attribute, check::BuildError, element::Element};

/// Version of the standard operator set in built graphs: the first with `LayerNormalization`.
pub const OPSET: i64 = 17;
/// Version of the file format that corresponds to [`OPSET`].
pub const IR_VERSION: i64 = 8;

/// A tensor of a graph under construction: its name, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value(Arc<str>);

impl Value {
    /// Refers to a tensor by name, wherever it is defined. If nothing defines the name, finishing the graph fails.
    pub fn by_name(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name of the tensor.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A graph under construction.
///
/// Nodes are stored in the order of the calls, which therefore is their order of execution. Names that the caller does
/// not choose are generated from the operator and the current [scope](Self::scope).
#[derive(Debug)]
pub struct Graph {
    proto: pb::GraphProto,
    scopes: Vec<String>,
    /// Number of times each generated name was requested.
    issued: HashMap<String, u32>,
    lengths: Vec<check::DataLength>,
}

impl Graph {
    /// Creates an empty graph.
    pub fn new(name: &str) -> Self {
        let proto = pb::GraphProto { name: Some(name.to_owned()), ..Default::default() };
        Self { proto, scopes: Vec::new(), issued: HashMap::new(), lengths: Vec::new() }
    }

    /// Creates an empty graph for an attribute of a node of this one, such as the body of a `Loop`. It may use this
    /// graph's tensors. Its own names, including inputs, are prefixed with `name`.
    pub fn subgraph(&self, name: &str) -> Self {
        let mut inner = Self::new(name);
        inner.scopes.clone_from(&self.scopes);
        inner.scopes.push(name.to_owned());
        inner
    }

    /// Prefixes the names that `build` creates: `scope/name`.
    pub fn scope<T>(&mut self, scope: impl Into<String>, build: impl FnOnce(&mut Self) -> T) -> T {
        self.enter(scope);
        let result = build(self);
        self.leave();
        result
    }

    pub(super) fn enter(&mut self, scope: impl Into<String>) {
        self.scopes.push(scope.into());
    }

    pub(super) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// Returns a name in the current scope.
    pub fn scoped(&self, name: &str) -> String {
        let mut full = self.scopes.join("/");
        if !full.is_empty() {
            full.push('/');
        }
        full + name
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, datatype: DataType, dims: &[PortDim]) -> Value {
        let name = self.scoped(name);
        self.proto.input.push(declare(&name, datatype, dims));
        Value(name.into())
    }

    /// Declares a tensor as an output.
    pub fn output(&mut self, value: &Value, datatype: DataType, dims: &[PortDim]) {
        self.proto.output.push(declare(value.name(), datatype, dims));
    }

    /// Adds a constant tensor in row-major order, named in the current scope.
    pub fn constant<E: Element>(&mut self, name: &str, dims: &[usize], values: &[E]) -> Value {
        let mut data = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|value| value.write_le(&mut data));
        self.raw(name, E::DATATYPE, dims, data.into())
    }

    /// Adds a constant vector with a generated name, such as a shape or an axis.
    pub fn literal<E: Element>(&mut self, values: &[E]) -> Value {
        let name = self.fresh("literal");
        let mut data = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|value| value.write_le(&mut data));
        self.add_raw(name, E::DATATYPE, &[values.len()], data.into())
    }

    /// Adds a constant scalar.
    pub fn scalar<E: Element>(&mut self, value: E) -> Value {
        let name = self.fresh("scalar");
        let mut data = Vec::new();
        value.write_le(&mut data);
        self.add_raw(name, E::DATATYPE, &[], data.into())
    }

    /// Adds a constant tensor from little-endian elements in row-major order, without copying them.
    pub fn raw(&mut self, name: &str, datatype: DataType, dims: &[usize], data: Bytes) -> Value {
        let name = self.scoped(name);
        self.add_raw(name, datatype, dims, data)
    }

    fn add_raw(&mut self, name: String, datatype: DataType, dims: &[usize], data: Bytes) -> Value {
        self.lengths.extend(check::DataLength::of(&name, datatype, dims, data.len()));
        self.proto.initializer.push(pb::TensorProto {
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            data_type: Some(elem_of(datatype).into()),
            name: Some(name.clone()),
            raw_data: Some(data),
            ..Default::default()
        });
        Value(name.into())
    }

    /// Calls an operator of the standard.
    pub fn op(&mut self, op: &str, inputs: &[&Value]) -> Node<'_> {
        let proto = pb::NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.iter().map(|value| value.name().to_owned()).collect(),
            ..Default::default()
        };
        Node { graph: self, proto, name: None }
    }

    /// Returns a new name.
    fn fresh(&mut self, base: &str) -> String {
        let name = self.scoped(base);
        let count = self.issued.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}_{count}") }
    }

    /// Checks the graph and converts it to a model.
    ///
    /// # Errors
    /// If a tensor is used before it is defined, a name is defined twice, a constant's data does not fit its shape, or
    /// there is no output.
    pub fn finish(self) -> Result<Model, BuildError> {
        check::check(&self.proto, &self.lengths)?;
        Ok(Model(pb::ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some("paternoster".to_owned()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            graph: Some(self.proto),
            opset_import: vec![pb::OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET) }],
            ..Default::default()
        }))
    }
}

/// An operator call under construction; [`value`](Self::value) or [`values`](Self::values) adds it to the graph.
#[derive(Debug)]
#[must_use = "a node is added to the graph by `value` or `values`"]
pub struct Node<'g> {
    graph: &'g mut Graph,
    proto: pb::NodeProto,
    name: Option<String>,
}

impl Node<'_> {
    /// Omits the next optional input.
    pub fn skip(mut self) -> Self {
        self.proto.input.push(String::new());
        self
    }

    /// Adds another input.
    pub fn with(mut self, input: &Value) -> Self {
        self.proto.input.push(input.name().to_owned());
        self
    }

    /// Sets an attribute: a number, a text, a list of numbers or a sub-graph.
    pub fn attr(mut self, name: &str, value: impl Into<Attribute>) -> Self {
        self.proto.attribute.push(value.into().into_proto(name, &mut self.graph.lengths));
        self
    }

    /// Names the node and its first output, without the scope.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Adds the node and returns its only output.
    pub fn value(self) -> Value {
        let [value] = self.values();
        value
    }

    /// Adds the node and returns its first `N` outputs.
    pub fn values<const N: usize>(mut self) -> [Value; N] {
        let op = self.proto.op_type.clone().unwrap_or_default();
        let base = self.name.take().unwrap_or_else(|| self.graph.fresh(&op));
        let outputs: [Value; N] = std::array::from_fn(|index| match index {
            0 => Value(base.as_str().into()),
            _ => Value(format!("{base}.{index}").into()),
        });
        self.proto.output = outputs.iter().map(|value| value.name().to_owned()).collect();
        self.proto.name = Some(base);
        self.graph.proto.node.push(self.proto);
        outputs
    }
}

impl From<Graph> for Attribute {
    fn from(graph: Graph) -> Self {
        Self::Graph(Box::new(graph.proto), graph.lengths)
    }
}

#[cfg(test)]
mod tests;
