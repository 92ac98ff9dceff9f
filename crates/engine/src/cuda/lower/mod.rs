//! Lowers a graph's nodes, one after another, to operations.
//!
//! Pointwise operators become expressions and views change where expressions read; neither issues an operation. Only
//! what must be in memory is stored: the operands of products, convolutions and row kernels, tensors that are read at
//! other places than their own, the parts of a concatenation, and the graph's outputs.

mod call;
mod convolution;
mod fetch;
mod gather;
mod layout;
mod normalize;
mod numbers;
mod pointwise;
mod pooling;
mod product;
mod reduce;
mod resample;
mod window;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

pub(crate) use self::call::Call;
use self::numbers::Known;
use super::{
    ir::{
        Dims, ELEMENTS_MAX, Holder, Kind, Node, Operation, RowKernel, Store, Tensor, View, WEIGHT_MAX, Work,
        contiguous, elements,
    },
    views,
};

/// A node's output during lowering.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Integers that are known when the plan is made, such as shapes.
    Known(Known),
    /// A tensor.
    Tensor(Tensor),
}

/// How a node is lowered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    /// Its name in the file; may be empty.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// What it is lowered to, or why it is not.
    pub lowered: Result<String, Reason>,
}

/// Why a node has no lowering.
pub(super) type Reason = String;
/// The outputs of a node.
pub(super) type Outcome = Result<Vec<Value>, Reason>;
/// The dims of one row, and whether every row has its own.
pub(super) type RowShape = (Dims, bool);
/// Lowers one operator.
type Rule = fn(&mut Lowering<'_>, &Call<'_>) -> Outcome;

/// A graph that is being lowered.
#[derive(Debug)]
pub(super) struct Lowering<'m> {
    /// The result so far.
    pub work: Work,
    values: HashMap<&'m str, Value>,
    /// Tensors that are unknown because a node that computes them was rejected.
    missing: HashSet<&'m str>,
    /// The graph's outputs by name, with their indices.
    outputs: HashMap<&'m str, usize>,
    /// Number of nodes and outputs that read each tensor.
    uses: HashMap<&'m str, usize>,
    /// Rejected nodes.
    refused: Vec<String>,
    /// All nodes so far.
    pub nodes: Vec<PlannedNode>,
}

/// Returns the rule of a standard operator.
fn rule(op: &str) -> Option<Rule> {
    let found = layout::rule(op).or_else(|| gather::rule(op)).or_else(|| pointwise::rule(op));
    let found = found.or_else(|| product::rule(op)).or_else(|| reduce::rule(op));
    let found = found.or_else(|| convolution::rule(op)).or_else(|| pooling::rule(op));
    found.or_else(|| normalize::rule(op)).or_else(|| resample::rule(op))
}

impl<'m> Lowering<'m> {
    /// Starts with the graph's inputs and constants, and the number of readers of each tensor.
    pub(super) fn new(
        work: Work,
        values: HashMap<&'m str, Value>,
        outputs: HashMap<&'m str, usize>,
        uses: HashMap<&'m str, usize>,
    ) -> Self {
        Self { work, values, missing: HashSet::new(), outputs, uses, refused: Vec::new(), nodes: Vec::new() }
    }

    /// Lowers a node, and records it if it is rejected.
    pub(super) fn node(&mut self, call: &Call<'m>) {
        let lowered = self.lower(call);
        let (name, operator) = (call.node.name().to_owned(), call.op().to_owned());
        self.nodes.push(PlannedNode { name, operator, lowered });
    }

    /// Lowers a node and returns what it was lowered to.
    fn lower(&mut self, call: &Call<'m>) -> Result<String, Reason> {
        let results = || call.node.output.iter().map(String::as_str);
        let Some(rule) = call.is_standard().then(|| rule(call.op())).flatten() else {
            self.refused.push(call.named(None));
            self.missing.extend(results());
            return Err("the operator has no lowering".to_owned());
        };
        // Only the first node of a chain is reported as rejected; those after it would fail in any case.
        if call.operands().any(|operand| self.missing.contains(operand)) {
            self.missing.extend(results());
            return Err("a node before it has no lowering".to_owned());
        }
        let before = self.work.operations.len();
        let known: Vec<Option<Known>> = call.node.input.iter().map(|name| self.known_of(name)).collect();
        let lowered = match numbers::folded(call, &known) {
            Some(known) => Ok(vec![Value::Known(known)]),
            None => rule(self, call),
        };
        let lowered = lowered.and_then(checked);
        match lowered {
            Ok(values) => {
                let shown = self.shown(call, before, values.first());
                let count = values.len();
                self.values.extend(results().zip(values).filter(|(name, _)| !name.is_empty()));
                self.missing.extend(results().skip(count));
                Ok(shown)
            }
            Err(reason) => {
                self.refused.push(call.named(Some(&reason)));
                self.missing.extend(results());
                Err(reason)
            }
        }
    }

    /// Describes what a node was lowered to: the operations since `before`, or the form of its value.
    fn shown(&self, call: &Call<'_>, before: usize, value: Option<&Value>) -> String {
        let operation = |operation: &Operation| match operation {
            Operation::Store(_) => "store",
            Operation::Product(_) => "matrix product",
            Operation::Convolution(_) => "convolution",
            Operation::Reduce(_) => "reduction",
            Operation::Attention(_) => "attention",
            Operation::Rowwise(rowwise) => match rowwise.kernel {
                RowKernel::Softmax => "softmax",
                RowKernel::LayerNorm { .. } => "layer_norm",
                RowKernel::ArgMax { .. } => "argmax",
            },
        };
        let mut operations: Vec<&str> = self.work.operations[before..].iter().map(operation).collect();
        operations.dedup();
        let is_lookup = |tensor: &Tensor| matches!(self.work.expressions.node(tensor.node), Node::Lookup(_));
        let own = match value {
            Some(Value::Known(_)) => Some("known beforehand"),
            Some(Value::Tensor(tensor)) if is_lookup(tensor) => Some("lookup"),
            Some(Value::Tensor(_)) if call.op() != "Identity" && pointwise::rule(call.op()).is_some() => {
                Some("pointwise")
            }
            _ if operations.is_empty() => Some("view"),
            _ => None,
        };
        operations.extend(own);
        operations.join(", ")
    }

    /// Stores the graph's outputs and returns all operations, or the rejected nodes.
    pub(super) fn finish(mut self, outputs: &[(&'m str, Kind)]) -> Result<(Work, Vec<RowShape>), Vec<String>> {
        let mut shapes = Vec::new();
        for (index, &(name, kind)) in outputs.iter().enumerate() {
            if self.missing.contains(name) {
                continue;
            }
            let stored = self.tensor_named(name).and_then(|tensor| self.give(name, index, kind, &tensor));
            match stored {
                Ok(shape) => shapes.push(shape),
                Err(reason) => self.refused.push(format!("output '{name}': {reason}")),
            }
        }
        if self.refused.is_empty() { Ok((self.work, shapes)) } else { Err(self.refused) }
    }

    fn give(&mut self, name: &str, index: usize, kind: Kind, tensor: &Tensor) -> Result<(Dims, bool), Reason> {
        if self.work.kind(tensor) != kind {
            return Err(format!("it is {:?} in the graph, expected {kind:?}", self.work.kind(tensor)));
        }
        let is_given = self.whole_buffer(tensor).is_some_and(
            |buffer| matches!(self.work.buffers[buffer].holder, Holder::Output(output) if output == index),
        );
        if !is_given {
            // If an output has several names, the first one got the buffer when it was stored; the others are copies.
            let buffer = self.work.buffer(kind, tensor.by_rows, tensor.elements(), Holder::Output(index));
            let to = View { buffer, offset: 0, strides: contiguous(&tensor.dims) };
            self.store_to(tensor, to);
            if let Some((&name, _)) = self.outputs.get_key_value(name) {
                let stored = self.work.whole(buffer, &tensor.dims);
                self.values.insert(name, Value::Tensor(stored));
            }
        }
        Ok((tensor.dims.clone(), tensor.by_rows))
    }

    /// Returns the integers of a value if they are known.
    fn known_of(&self, name: &str) -> Option<Known> {
        match self.values.get(name)? {
            Value::Known(known) => Some(known.clone()),
            Value::Tensor(tensor) => numbers::read(&self.work, tensor),
        }
    }

    /// Returns the integers of an operand, none of which may be a number of rows.
    fn numbers(&self, call: &Call<'_>, index: usize, what: &str) -> Result<Vec<i64>, Reason> {
        let known = call.operand(index).and_then(|name| self.known_of(name));
        known.and_then(|known| known.fixed()).ok_or_else(|| format!("its {what} is not known when the plan is made"))
    }

    /// Returns integers that older opsets have as an attribute and newer ones as an operand; `None` if there is
    /// neither.
    fn listed(&self, call: &Call<'_>, attribute: &str, index: usize) -> Result<Option<Vec<i64>>, Reason> {
        match call.ints(attribute) {
            Some(ints) => Ok(Some(ints.to_vec())),
            None if call.operand(index).is_none() => Ok(None),
            None => self.numbers(call, index, attribute).map(Some),
        }
    }

    /// Returns an operand as a tensor.
    fn tensor(&mut self, call: &Call<'_>, index: usize) -> Result<Tensor, Reason> {
        let name = call.operand(index).ok_or_else(|| format!("it has no operand {index}"))?;
        self.tensor_named(name)
    }

    fn tensor_named(&mut self, name: &str) -> Result<Tensor, Reason> {
        match self.values.get(name) {
            Some(Value::Tensor(tensor)) => Ok(tensor.clone()),
            Some(Value::Known(known)) => {
                let known = known.clone();
                known.constant(&mut self.work).ok_or_else(|| format!("it needs the number of rows in '{name}'"))
            }
            None => Err(format!("nothing defines '{name}'")),
        }
    }

    /// Returns all operands. Stores them first if the expression over them would become too large.
    fn tensors(&mut self, call: &Call<'_>) -> Result<Vec<Tensor>, Reason> {
        if call.node.input.is_empty() {
            return Err("it has no operands".to_owned());
        }
        let mut tensors: Vec<Tensor> =
            (0..call.node.input.len()).map(|index| self.tensor(call, index)).collect::<Result<_, _>>()?;
        let weight = |tensor: &Tensor| self.work.expressions.weight(tensor.node);
        if tensors.iter().fold(1_u32, |sum, tensor| sum.saturating_add(weight(tensor))) > WEIGHT_MAX {
            for (index, tensor) in tensors.iter_mut().enumerate() {
                *tensor = self.stored(call, index)?.1;
            }
        }
        Ok(tensors)
    }

    /// Returns an operand in a contiguous buffer of its own, from which later nodes read it too.
    fn stored(&mut self, call: &Call<'_>, index: usize) -> Result<(usize, Tensor), Reason> {
        let tensor = self.tensor(call, index)?;
        if let Some(buffer) = self.whole_buffer(&tensor) {
            return Ok((buffer, tensor));
        }
        let name = call.operand(index).unwrap_or_default();
        let (buffer, stored) = self.store(&tensor, name);
        if let Some(value) = self.values.get_mut(name) {
            *value = Value::Tensor(stored.clone());
        }
        Ok((buffer, stored))
    }

    /// Stores a tensor in a buffer of its own, which is the caller's if `name` is an output.
    fn store(&mut self, tensor: &Tensor, name: &str) -> (usize, Tensor) {
        let buffer = self.buffer_for(name, self.work.kind(tensor), tensor.by_rows, tensor.elements());
        let to = View { buffer, offset: 0, strides: contiguous(&tensor.dims) };
        self.store_to(tensor, to);
        (buffer, self.work.whole(buffer, &tensor.dims))
    }

    /// Returns a new buffer for the tensor of this name.
    fn buffer_for(&mut self, name: &str, kind: Kind, by_rows: bool, elements: usize) -> usize {
        let is_taken = |index: usize| {
            let given = |holder: &Holder| matches!(holder, Holder::Output(output) if *output == index);
            self.work.buffers.iter().any(|buffer| given(&buffer.holder))
        };
        let output = self.outputs.get(name).copied().filter(|&index| !is_taken(index));
        let holder = output.map_or(Holder::Scratch, Holder::Output);
        self.work.buffer(kind, by_rows, elements, holder)
    }

    /// Stores a tensor through a view with as many axes.
    fn store_to(&mut self, tensor: &Tensor, to: View) {
        let strides = tensor.dims.iter().zip(&to.strides).filter(|(length, _)| **length != 1).map(|(_, &it)| it);
        let to = View { strides: strides.collect(), ..to };
        let Tensor { by_rows, dims, node } =
            views::without_axes(&mut self.work.expressions, tensor, |axis| tensor.dims[axis] == 1);
        self.work.operations.push(Operation::Store(Store { by_rows, dims, node, to }));
    }

    /// Returns the buffer that a tensor fills.
    fn whole_buffer(&self, tensor: &Tensor) -> Option<usize> {
        let view = self.work.expressions.stored(tensor.node)?;
        let buffer = &self.work.buffers[view.buffer];
        let lies_so = views::merged(&tensor.dims, &view.strides);
        let is_whole = view.offset == 0 && buffer.elements == tensor.elements() && buffer.by_rows == tensor.by_rows;
        let is_dense = lies_so.is_empty() || lies_so == [(tensor.elements(), 1)];
        (is_whole && is_dense).then_some(view.buffer)
    }

    /// Returns a constant tensor.
    fn constant(&mut self, numbers: &[f32], dims: &[usize]) -> Tensor {
        let buffer = self.constant_buffer(numbers);
        self.work.whole(buffer, dims)
    }

    fn constant_buffer(&mut self, numbers: &[f32]) -> usize {
        let bytes: Bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.work.constant(Kind::F32, bytes)
    }

    /// Returns the number of nodes and outputs that read a tensor.
    fn uses(&self, name: &str) -> usize {
        self.uses.get(name).copied().unwrap_or(0)
    }

    /// Returns a tensor with the same number everywhere.
    fn number(&mut self, kind: Kind, bits: u64, by_rows: bool, dims: &[usize]) -> Tensor {
        let node = self.work.expressions.add(kind, Node::Number(bits));
        Tensor { by_rows, dims: Dims::from_slice(dims), node }
    }
}

/// Rejects tensors with too many elements. Since operands were checked, no result exceeds the product of two of them.
fn checked(values: Vec<Value>) -> Outcome {
    for value in &values {
        if let Value::Tensor(tensor) = value
            && elements(&tensor.dims).is_none()
        {
            return Err(format!(
                "its result has the axes {:?}, expected fewer than {ELEMENTS_MAX} elements",
                tensor.dims
            ));
        }
    }
    Ok(values)
}

/// Returns the axis for a number, where negative ones count from the end.
fn axis_of(axis: i64, rank: usize) -> Result<usize, Reason> {
    let from_end = if axis < 0 { axis + rank as i64 } else { axis };
    let found = usize::try_from(from_end).ok().filter(|&axis| axis < rank);
    found.ok_or_else(|| format!("it has no axis {axis} of {rank}"))
}

/// As [`axis_of`], but rejects the batch axis.
fn inner_axis(axis: i64, tensor: &Tensor, rank: usize) -> Result<usize, Reason> {
    match axis_of(axis, rank)? {
        0 if tensor.by_rows => Err("it mixes or moves the rows of a batch".to_owned()),
        axis => Ok(axis),
    }
}
