//! What a plan is made of: buffers, expressions over their elements, and operations in order.
//!
//! Everything is said of one row. Of a graph's tensor `[batch, …]`, axis 0 holds `k` entries a row (`k` is 1 but for
//! graphs that merge axes), and the dims here are `[k, …]`; that there is such a row for each request's is `by_rows`. So
//! no shape depends on how many rows there are, and an operation is the same for each of them.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::model::DataType;

/// Lengths of a tensor's axes, of one row.
pub type Dims = SmallVec<[usize; 4]>;
/// Elements from one entry of an axis to the next.
pub type Strides = SmallVec<[i64; 4]>;

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// FP32.
    F32,
    /// INT64.
    I64,
    /// INT32.
    I32,
    /// BOOL, a byte each.
    Bool,
}

impl Kind {
    /// That of a datatype; `None` where no kernel knows it.
    pub fn of(datatype: DataType) -> Option<Self> {
        match datatype {
            DataType::Fp32 => Some(Self::F32),
            DataType::Int64 => Some(Self::I64),
            DataType::Int32 => Some(Self::I32),
            DataType::Bool => Some(Self::Bool),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::Bool => 1,
        }
    }

    /// Whether it is a whole number or a truth value.
    pub fn is_whole(self) -> bool {
        self != Self::F32
    }
}

/// A buffer, by its place in [`Work::buffers`].
pub type BufferId = usize;
/// An expression, by its place in [`Expressions`].
pub type NodeId = usize;

/// Memory for a tensor, row-major without gaps.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What it holds.
    pub kind: Kind,
    /// Whether there is one for each row.
    pub by_rows: bool,
    /// Elements of one row, or of all where it is not by rows.
    pub elements: usize,
    /// Where its contents come from.
    pub holder: Holder,
}

/// Where a buffer's contents come from.
#[derive(Clone, Debug)]
pub enum Holder {
    /// The caller's input of this number.
    Input(usize),
    /// An operation; the caller reads it as its output of this number.
    Output(usize),
    /// The graph.
    Constant(Bytes),
    /// An operation.
    Scratch,
}

/// A tensor within a buffer. A view of a buffer by rows begins `elements` later for each row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Its first element.
    pub offset: i64,
    /// By axis of what is read or written through it.
    pub strides: Strides,
}

/// An element of a tensor, as computed from the elements of others at the same place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The same everywhere: the bits of an f32, or an i64.
    Number(u64),
    /// What is stored.
    Load(View),
    /// The entry of a table's axis that an index names.
    Lookup(Lookup),
    /// A function of others.
    Apply(Function, SmallVec<[NodeId; 3]>),
}

/// Reads one entry of an axis of `length` entries, by an index, which counts from the end where it is negative.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The tensor at the entry 0.
    pub table: View,
    /// From one entry to the next.
    pub stride: i64,
    /// Entries.
    pub length: i64,
    /// The index.
    pub index: NodeId,
}

macro_rules! functions {
    ($($function:ident: $name:literal,)+) => {
        /// What kernels compute of elements, by the names in `functions.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Function {
            $(#[doc = $name] $function,)+
        }

        impl Function {
            /// Its name in `functions.h`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$function => $name,)+
                }
            }
        }
    };
}

functions! {
    Add: "plus", Sub: "minus", Mul: "times", Div: "over", Mod: "modulo", Remainder: "remainder_of", Pow: "power",
    Max: "larger", Min: "smaller", Neg: "negative", Abs: "magnitude", Sign: "sign_of", Sqrt: "root", Exp: "exponential",
    Log: "logarithm", Sin: "sine", Cos: "cosine", Floor: "rounded_down", Ceil: "rounded_up", Round: "rounded",
    Sigmoid: "sigmoid", Tanh: "tanhf", Erf: "erff", Relu: "rectified", Not: "is_not", And: "both", Or: "either",
    Xor: "one_of", Equal: "equals", Less: "is_less", AtMost: "is_at_most", Select: "select", ToF32: "to_f32", ToI64: "to_i64",
    ToI32: "to_i32", ToBool: "to_bool",
}

/// The weight from which on an expression is computed once and stored. Most cells have a dozen operators.
pub const WEIGHT_MAX: u32 = 192;

/// Expressions, each once: equal ones have the same number.
#[derive(Debug, Default)]
pub struct Expressions {
    nodes: Vec<(Kind, Node)>,
    /// Operators that an expression computes, counted as often as they occur.
    weights: Vec<u32>,
    known: HashMap<(Kind, Node), NodeId>,
}

impl Expressions {
    /// Adds an expression, unless it is there.
    pub fn add(&mut self, kind: Kind, node: Node) -> NodeId {
        if let Some(&known) = self.known.get(&(kind, node.clone())) {
            return known;
        }
        let weight = match &node {
            Node::Number(_) | Node::Load(_) => 0,
            Node::Lookup(lookup) => self.weights[lookup.index].saturating_add(1),
            Node::Apply(_, operands) => operands.iter().fold(1_u32, |sum, &it| sum.saturating_add(self.weights[it])),
        };
        self.nodes.push((kind, node.clone()));
        self.weights.push(weight);
        self.known.insert((kind, node), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// What an expression gives.
    pub fn kind(&self, node: NodeId) -> Kind {
        self.nodes[node].0
    }

    /// An expression.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node].1
    }

    /// How many operators it computes, as if it were a tree.
    pub fn weight(&self, node: NodeId) -> u32 {
        self.weights[node]
    }

    /// The view, where an expression is no more than what is stored.
    pub fn stored(&self, node: NodeId) -> Option<&View> {
        match self.node(node) {
            Node::Load(view) => Some(view),
            _ => None,
        }
    }

    /// Visits an expression and all that it is made of, each once and after what it is made of.
    pub fn visit(&self, node: NodeId, seen: &mut HashSet<NodeId>, visit: &mut impl FnMut(NodeId)) {
        if !seen.insert(node) {
            return;
        }
        match self.node(node) {
            Node::Number(_) | Node::Load(_) => {}
            Node::Lookup(lookup) => self.visit(lookup.index, seen, visit),
            Node::Apply(_, operands) => operands.iter().for_each(|&operand| self.visit(operand, seen, visit)),
        }
        visit(node);
    }

    /// The views that an expression reads.
    pub fn views(&self, node: NodeId) -> Vec<View> {
        let mut views = Vec::new();
        self.visit(node, &mut HashSet::new(), &mut |node| match self.node(node) {
            Node::Load(view) | Node::Lookup(Lookup { table: view, .. }) => views.push(view.clone()),
            Node::Number(_) | Node::Apply(..) => {}
        });
        views
    }

    /// The same expression of other views; `None` where `change` has none for one of them.
    pub fn with_views(&mut self, node: NodeId, change: &mut impl FnMut(&View) -> Option<View>) -> Option<NodeId> {
        self.rewrite(node, &mut HashMap::new(), &mut |expressions, kind, view| {
            change(view).map(|view| expressions.add(kind, Node::Load(view)))
        })
    }

    /// The same expression with others in the place of what is loaded. Tables of lookups are given as loads, and stay
    /// views.
    pub fn rewrite(
        &mut self,
        node: NodeId,
        done: &mut HashMap<NodeId, NodeId>,
        change: &mut impl FnMut(&mut Self, Kind, &View) -> Option<NodeId>,
    ) -> Option<NodeId> {
        if let Some(&known) = done.get(&node) {
            return Some(known);
        }
        let (kind, old) = self.nodes[node].clone();
        let new = match old {
            Node::Number(_) => node,
            Node::Load(view) => change(self, kind, &view)?,
            Node::Lookup(lookup) => {
                let changed = change(self, kind, &lookup.table)?;
                let table = self.stored(changed)?.clone();
                let index = self.rewrite(lookup.index, done, change)?;
                self.add(kind, Node::Lookup(Lookup { table, index, ..lookup }))
            }
            Node::Apply(function, operands) => {
                let operands = operands.iter().map(|&operand| self.rewrite(operand, done, change));
                let operands = operands.collect::<Option<_>>()?;
                self.add(kind, Node::Apply(function, operands))
            }
        };
        done.insert(node, new);
        Some(new)
    }
}

/// A tensor that a graph computes: an expression at each place of an index space.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Whether there is one for each row.
    pub by_rows: bool,
    /// Of one row.
    pub dims: Dims,
    /// The expression of its elements.
    pub node: NodeId,
}

impl Tensor {
    /// Elements of one row.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A number that may count rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Count {
    /// The number, or how many for each row.
    pub factor: usize,
    /// Whether it is for each row.
    pub by_rows: bool,
}

impl Count {
    /// The number for `rows` rows.
    pub fn of(self, rows: usize) -> usize {
        if self.by_rows { self.factor * rows } else { self.factor }
    }
}

/// What writes buffers. In each list of operations, one comes after what it reads is written.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Elements are computed and stored.
    Store(Store),
    /// A matrix product.
    Product(Product),
    /// One of the written kernels over the rows of a matrix.
    Rowwise(Rowwise),
    /// Elements are computed and summed up.
    Reduce(Reduce),
}

/// Computes an expression at each place and stores it.
#[derive(Clone, Debug)]
pub struct Store {
    /// Whether it is done for each row.
    pub by_rows: bool,
    /// The places, without axes of length 1.
    pub dims: Dims,
    /// The expression.
    pub node: NodeId,
    /// Where it goes.
    pub to: View,
}

/// A factor of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Where it lies.
    pub buffer: BufferId,
    /// Its first element.
    pub offset: i64,
    /// From row to row, or from column to column where it lies by columns.
    pub leading: usize,
    /// It lies by columns.
    pub is_transposed: bool,
    /// From one matrix of the batch to the next.
    pub batch_stride: usize,
}

/// A matrix product: `d = alpha · a · b + bias`.
#[derive(Clone, Debug)]
pub struct Product {
    /// Rows of `a`.
    pub m: Count,
    /// Columns of `b`.
    pub n: usize,
    /// Columns of `a`.
    pub k: usize,
    /// How many there are.
    pub batches: Count,
    /// Left.
    pub a: Factor,
    /// Right.
    pub b: Factor,
    /// A constant buffer of `n` elements.
    pub bias: Option<BufferId>,
    /// What the product is multiplied by.
    pub alpha: f32,
    /// Where it goes.
    pub d: BufferId,
}

/// A written kernel over the rows of a matrix, of which `rows.factor` belong to each of the batch's.
#[derive(Clone, Debug)]
pub struct Rowwise {
    /// Which one.
    pub kernel: RowKernel,
    /// Rows of the matrix.
    pub rows: Count,
    /// Its columns.
    pub columns: usize,
    /// What it reads.
    pub from: BufferId,
    /// What it writes.
    pub to: BufferId,
}

/// Kernels over the rows of a matrix.
#[derive(Clone, Debug)]
pub enum RowKernel {
    /// `softmax`.
    Softmax,
    /// `layer_norm`.
    LayerNorm {
        /// What keeps a variance of zero from dividing by zero.
        epsilon: f32,
        /// `[columns]`.
        scale: BufferId,
        /// `[columns]`.
        bias: Option<BufferId>,
    },
    /// `argmax_i64`.
    ArgMax {
        /// What it writes beside the places.
        done: BufferId,
    },
}

/// What elements become one by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Computes an expression and reduces it over its last axes.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// How.
    pub reduction: Reduction,
    /// Whether it is done for each row.
    pub by_rows: bool,
    /// The places of the results.
    pub outer: Dims,
    /// What is reduced at each of them.
    pub inner: Dims,
    /// The expression, over `outer` and `inner`.
    pub node: NodeId,
    /// Where results go, without gaps.
    pub to: BufferId,
}

/// A graph as operations.
#[derive(Debug, Default)]
pub struct Work {
    /// All memory.
    pub buffers: Vec<Buffer>,
    /// All expressions.
    pub expressions: Expressions,
    /// What is done, in order.
    pub operations: Vec<Operation>,
}

impl Work {
    /// A new buffer.
    pub fn buffer(&mut self, kind: Kind, by_rows: bool, elements: usize, holder: Holder) -> BufferId {
        self.buffers.push(Buffer { kind, by_rows, elements, holder });
        self.buffers.len() - 1
    }

    /// A constant buffer.
    pub fn constant(&mut self, kind: Kind, bytes: Bytes) -> BufferId {
        self.buffer(kind, false, bytes.len() / kind.bytes(), Holder::Constant(bytes))
    }

    /// A tensor that fills a buffer.
    pub fn whole(&mut self, buffer: BufferId, dims: &[usize]) -> Tensor {
        let Buffer { kind, by_rows, .. } = self.buffers[buffer];
        let view = View { buffer, offset: 0, strides: contiguous(dims) };
        Tensor { by_rows, dims: Dims::from_slice(dims), node: self.expressions.add(kind, Node::Load(view)) }
    }

    /// What a tensor holds.
    pub fn kind(&self, tensor: &Tensor) -> Kind {
        self.expressions.kind(tensor.node)
    }
}

/// The strides of a tensor without gaps.
pub fn contiguous(dims: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as i64;
    }
    strides
}
