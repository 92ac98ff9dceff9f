//! Expressions over the elements of buffers.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::{BufferId, Kind, NodeId, Strides};

/// A tensor within a buffer. In a buffer by rows, each row's view begins `elements` after that of the row before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Index of its first element in the buffer, or in the row of a buffer by rows.
    pub offset: i64,
    /// Strides by axis of the index space.
    pub strides: Strides,
}

/// How an element of a tensor is computed at a place of the index space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// A constant: the bits of an f32, or an i64.
    Number(u64),
    /// A stored element.
    Load(View),
    /// The entry of a table that an index names.
    Lookup(Lookup),
    /// A linear function of the place, as i32.
    Place(Place),
    /// A stored element at computed indices.
    Fetch(Fetch),
    /// A function of other expressions.
    Apply(Function, SmallVec<[NodeId; 3]>),
}

/// Reads one of `length` entries along an axis. A negative index counts from the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lookup {
    /// The tensor at entry 0.
    pub table: View,
    /// Distance between two entries.
    pub stride: i64,
    /// Number of entries.
    pub length: i64,
    /// The index.
    pub index: NodeId,
}

/// A linear function of the place in the index space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Value at the first place.
    pub offset: i64,
    /// Strides by axis.
    pub strides: Strides,
}

/// Reads the entries at indices that the plan itself computes, or a constant if one of them is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fetch {
    /// The tensor at entry 0 of each indexed axis.
    pub from: View,
    /// The indices, one for each indexed axis.
    pub indices: SmallVec<[Index; 2]>,
    /// Bits of the value for indices out of range, as in [`Node::Number`].
    pub outside: u64,
}

/// An index along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Index {
    /// The index, as i32.
    pub node: NodeId,
    /// Distance between two entries.
    pub stride: i64,
    /// Number of entries.
    pub length: i64,
}

macro_rules! functions {
    ($($function:ident: $name:literal,)+) => {
        /// Functions that kernels apply to elements, with their names in `functions.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Function {
            $(#[doc = $name] $function,)+
        }

        impl Function {
            /// Returns its name in `functions.h`.
            pub(crate) fn name(self) -> &'static str {
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
    Xor: "one_of", Equal: "equals", Less: "is_less", AtMost: "is_at_most", Select: "select", ToF32: "to_f32",
    ToI64: "to_i64", ToI32: "to_i32", ToBool: "to_bool",
}

/// Weight above which an expression is stored once rather than computed wherever it is read. Most cells have about a
/// dozen operators.
pub(crate) const WEIGHT_MAX: u32 = 192;

/// A set of expressions in which equal ones share one id.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    nodes: Vec<(Kind, Node)>,
    /// Number of operators of each expression, where shared ones count as often as they occur.
    weights: Vec<u32>,
    known: HashMap<(Kind, Node), NodeId>,
}

impl Expressions {
    /// Adds an expression, or returns the id of an equal one.
    pub(crate) fn add(&mut self, kind: Kind, node: Node) -> NodeId {
        if let Some(&known) = self.known.get(&(kind, node.clone())) {
            return known;
        }
        let weight = match &node {
            Node::Number(_) | Node::Load(_) | Node::Place(_) => 0,
            Node::Fetch(fetch) => fetch.indices.iter().fold(1_u32, |sum, it| sum.saturating_add(self.weights[it.node])),
            Node::Lookup(lookup) => self.weights[lookup.index].saturating_add(1),
            Node::Apply(_, operands) => operands.iter().fold(1_u32, |sum, &it| sum.saturating_add(self.weights[it])),
        };
        self.nodes.push((kind, node.clone()));
        self.weights.push(weight);
        self.known.insert((kind, node), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Returns the type of an expression's value.
    pub(crate) fn kind(&self, node: NodeId) -> Kind {
        self.nodes[node].0
    }

    /// Returns an expression.
    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node].1
    }

    /// Returns the number of operators of an expression, counted as a tree.
    pub(crate) fn weight(&self, node: NodeId) -> u32 {
        self.weights[node]
    }

    /// Returns the view if an expression only reads a stored element.
    pub(crate) fn stored(&self, node: NodeId) -> Option<&View> {
        match self.node(node) {
            Node::Load(view) => Some(view),
            _ => None,
        }
    }

    /// Visits an expression and all its operands, each once and after its own operands.
    pub(crate) fn visit(&self, node: NodeId, seen: &mut HashSet<NodeId>, visit: &mut impl FnMut(NodeId)) {
        if !seen.insert(node) {
            return;
        }
        match self.node(node) {
            Node::Number(_) | Node::Load(_) | Node::Place(_) => {}
            Node::Lookup(lookup) => self.visit(lookup.index, seen, visit),
            Node::Fetch(fetch) => fetch.indices.iter().for_each(|index| self.visit(index.node, seen, visit)),
            Node::Apply(_, operands) => operands.iter().for_each(|&operand| self.visit(operand, seen, visit)),
        }
        visit(node);
    }

    /// Returns the views that an expression reads.
    pub(crate) fn views(&self, node: NodeId) -> Vec<View> {
        let mut views = Vec::new();
        self.visit(node, &mut HashSet::new(), &mut |node| match self.node(node) {
            Node::Load(view) | Node::Lookup(Lookup { table: view, .. }) | Node::Fetch(Fetch { from: view, .. }) => {
                views.push(view.clone());
            }
            Node::Number(_) | Node::Place(_) | Node::Apply(..) => {}
        });
        views
    }

    /// Returns the buffers that an expression reads.
    pub(crate) fn buffers(&self, node: NodeId) -> Vec<BufferId> {
        self.views(node).into_iter().map(|view| view.buffer).collect()
    }

    /// Returns the buffers that an expression reads at other places than its own.
    pub(crate) fn tables(&self, node: NodeId) -> HashSet<BufferId> {
        let mut tables = HashSet::new();
        self.visit(node, &mut HashSet::new(), &mut |node| {
            if let Node::Lookup(Lookup { table: view, .. }) | Node::Fetch(Fetch { from: view, .. }) = self.node(node) {
                tables.insert(view.buffer);
            }
        });
        tables
    }

    /// Returns the strides of everything in an expression that depends on the place.
    pub(crate) fn strides(&self, node: NodeId) -> Vec<Strides> {
        let mut strides: Vec<Strides> = self.views(node).into_iter().map(|view| view.strides).collect();
        self.visit(node, &mut HashSet::new(), &mut |node| {
            if let Node::Place(place) = self.node(node) {
                strides.push(place.strides.clone());
            }
        });
        strides
    }

    /// Returns the same expression over another index space. `change` returns new strides for everything that depends
    /// on the place, and may move the offset. Returns `None` if `change` does.
    pub(crate) fn with_strides(
        &mut self,
        node: NodeId,
        change: &impl Fn(&Strides, &mut i64) -> Option<Strides>,
    ) -> Option<NodeId> {
        let changed = |mut offset: i64, strides: &Strides| {
            let strides = change(strides, &mut offset)?;
            Some(Place { offset, strides })
        };
        let on_view = &mut |expressions: &mut Self, kind: Kind, view: &View| {
            let Place { offset, strides } = changed(view.offset, &view.strides)?;
            Some(expressions.add(kind, Node::Load(View { buffer: view.buffer, offset, strides })))
        };
        let on_place = &mut |place: &Place| changed(place.offset, &place.strides);
        self.rebuilt(node, &mut HashMap::new(), on_view, on_place)
    }

    /// Returns the expression with its loads replaced by `change`. The tables of lookups and fetches are passed to
    /// `change` as loads, and must be replaced by loads.
    pub(crate) fn rewrite(
        &mut self,
        node: NodeId,
        change: &mut impl FnMut(&mut Self, Kind, &View) -> Option<NodeId>,
    ) -> Option<NodeId> {
        self.rebuilt(node, &mut HashMap::new(), change, &mut |place| Some(place.clone()))
    }

    fn rebuilt(
        &mut self,
        node: NodeId,
        done: &mut HashMap<NodeId, NodeId>,
        on_view: &mut impl FnMut(&mut Self, Kind, &View) -> Option<NodeId>,
        on_place: &mut impl FnMut(&Place) -> Option<Place>,
    ) -> Option<NodeId> {
        if let Some(&known) = done.get(&node) {
            return Some(known);
        }
        let (kind, old) = self.nodes[node].clone();
        let new = match old {
            Node::Number(_) => node,
            Node::Load(view) => on_view(self, kind, &view)?,
            Node::Place(place) => {
                let place = on_place(&place)?;
                self.add(kind, Node::Place(place))
            }
            Node::Lookup(lookup) => {
                let changed = on_view(self, kind, &lookup.table)?;
                let table = self.stored(changed)?.clone();
                let index = self.rebuilt(lookup.index, done, on_view, on_place)?;
                self.add(kind, Node::Lookup(Lookup { table, index, ..lookup }))
            }
            Node::Fetch(fetch) => {
                let changed = on_view(self, kind, &fetch.from)?;
                let from = self.stored(changed)?.clone();
                let indices = fetch
                    .indices
                    .into_iter()
                    .map(|index| self.rebuilt(index.node, done, on_view, on_place).map(|node| Index { node, ..index }));
                let indices = indices.collect::<Option<_>>()?;
                self.add(kind, Node::Fetch(Fetch { from, indices, outside: fetch.outside }))
            }
            Node::Apply(function, operands) => {
                let operands = operands.iter().map(|&operand| self.rebuilt(operand, done, on_view, on_place));
                let operands = operands.collect::<Option<_>>()?;
                self.add(kind, Node::Apply(function, operands))
            }
        };
        done.insert(node, new);
        Some(new)
    }
}
