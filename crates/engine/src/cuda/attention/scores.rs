//! What happens to scores between the product of queries and keys and the softmax: a factor, and a mask.

use smallvec::smallvec;

use super::{Finding, KeyMask, is_whole};
use crate::cuda::{
    constants,
    ir::{BufferId, Function, Holder, Kind, Node, NodeId, Operation, Store, Strides},
};

/// A factor of scores, and the mask of their keys.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) mask: Option<KeyMask>,
}

impl Default for Scores {
    fn default() -> Self {
        Self { scale: 1.0, mask: None }
    }
}

/// Scores as they are read from an expression: `product · scale + mask`, or the mask where it is not 0.
struct Read {
    /// The buffer of the product.
    buffer: BufferId,
    scale: f32,
    /// The mask, over the index space of the scores.
    mask: Option<NodeId>,
    replaces: bool,
}

impl Finding<'_> {
    /// Reads the store of scores to which a softmax over `keys` entries is applied. Returns the buffer of the product.
    pub(super) fn scores(&mut self, store: &Store, keys: usize) -> Option<(BufferId, Scores)> {
        if !store.by_rows || store.dims.last() != Some(&keys) || !is_whole(self.work, &store.to, &store.dims) {
            return None;
        }
        let Read { buffer, scale, mask, replaces } = self.read(store, store.node)?;
        let mask = match mask {
            // The same for all heads and queries.
            Some(node) => Some(self.work.expressions.with_strides(node, &|strides, _| {
                let (key, others) = strides.split_last()?;
                others.iter().all(|&stride| stride == 0).then(|| Strides::from_slice(&[*key]))
            })?),
            None => None,
        };
        Some((buffer, Scores { scale, mask: mask.map(|node| KeyMask { node, replaces }) }))
    }

    fn read(&mut self, store: &Store, node: NodeId) -> Option<Read> {
        if self.is_product(store, node) {
            let buffer = self.work.expressions.stored(node)?.buffer;
            return Some(Read { buffer, scale: 1.0, mask: None, replaces: false });
        }
        let Node::Apply(function, operands) = self.work.expressions.node(node).clone() else { return None };
        match (function, operands.as_slice()) {
            (Function::Mul, &[left, right]) => {
                let (scores, factor) = self.with_number(left, right).or_else(|| self.with_number(right, left))?;
                self.scaled(store, scores, |scale| scale * factor, (function, node_of(right, left, scores)))
            }
            (Function::Div, &[scores, divisor]) => {
                let number = self.number(divisor)?;
                self.scaled(store, scores, |scale| scale / number, (function, divisor))
            }
            (Function::Add, &[left, right]) => {
                let of_left = self.has_product(store, left);
                let (scores, mask) = if of_left { (left, right) } else { (right, left) };
                self.masked(store, scores, mask)
            }
            (Function::Sub, &[scores, mask]) => {
                let negative = self.work.expressions.add(Kind::F32, Node::Apply(Function::Neg, smallvec![mask]));
                self.masked(store, scores, negative)
            }
            (Function::Select, &[condition, left, right]) => {
                let zero = self.work.expressions.add(Kind::F32, Node::Number(0));
                let is_left = self.has_product(store, left);
                let (scores, number) = if is_left { (left, right) } else { (right, left) };
                // Where it is 0, the mask means that the score stays.
                let number = self.number(number).filter(|&number| number != 0.0)?;
                let read = self.read(store, scores)?;
                if read.mask.is_some() || self.has_product(store, condition) {
                    return None;
                }
                // Layers that have the number in constants of their own thus share the mask.
                let number = self.work.expressions.add(Kind::F32, Node::Number(number.to_bits().into()));
                let operands =
                    if is_left { smallvec![condition, zero, number] } else { smallvec![condition, number, zero] };
                let mask = self.work.expressions.add(Kind::F32, Node::Apply(Function::Select, operands));
                Some(Read { mask: Some(mask), replaces: true, ..read })
            }
            _ => None,
        }
    }

    /// Reads scores to which a mask is added.
    fn masked(&mut self, store: &Store, scores: NodeId, mask: NodeId) -> Option<Read> {
        let read = self.read(store, scores)?;
        if read.replaces || self.has_product(store, mask) {
            return None;
        }
        let mask = match read.mask {
            Some(inner) => self.work.expressions.add(Kind::F32, Node::Apply(Function::Add, smallvec![inner, mask])),
            None => mask,
        };
        Some(Read { mask: Some(mask), ..read })
    }

    /// Reads scores that are multiplied or divided by a number, as their mask is.
    fn scaled(
        &mut self,
        store: &Store,
        scores: NodeId,
        scale: impl Fn(f32) -> f32,
        (function, number): (Function, NodeId),
    ) -> Option<Read> {
        let read = self.read(store, scores)?;
        if read.replaces {
            return None;
        }
        let apply = |mask: NodeId| Node::Apply(function, smallvec![mask, number]);
        let mask = read.mask.map(|mask| self.work.expressions.add(Kind::F32, apply(mask)));
        Some(Read { scale: scale(read.scale), mask, ..read })
    }

    /// Returns `scores` and the number, if `number` is one.
    fn with_number(&self, scores: NodeId, number: NodeId) -> Option<(NodeId, f32)> {
        self.number(number).map(|factor| (scores, factor))
    }

    /// Returns an fp32 number that is the same everywhere.
    fn number(&self, node: NodeId) -> Option<f32> {
        let expressions = &self.work.expressions;
        let bits = match expressions.node(node) {
            Node::Number(bits) => *bits,
            Node::Load(view) if view.strides.iter().all(|&stride| stride == 0) => {
                let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
                constants::bits(expressions.kind(node), bytes, usize::try_from(view.offset).ok()?)?
            }
            _ => return None,
        };
        (expressions.kind(node) == Kind::F32).then(|| f32::from_bits(bits as u32))
    }

    /// Returns whether an expression is the result of a product, at the places of the store.
    fn is_product(&self, store: &Store, node: NodeId) -> bool {
        let Some(view) = self.work.expressions.stored(node) else { return false };
        let is_product = |place: usize| matches!(self.operations[place], Operation::Product(_));
        is_whole(self.work, view, &store.dims) && self.writer(view.buffer).is_some_and(is_product)
    }

    /// Returns whether an expression reads the result of a product at the places of the store.
    fn has_product(&self, store: &Store, node: NodeId) -> bool {
        let mut found = false;
        self.work.expressions.visit(node, &mut Default::default(), &mut |node| found |= self.is_product(store, node));
        found
    }
}

/// Returns the operand of two that is not `other`.
fn node_of(first: NodeId, second: NodeId, other: NodeId) -> NodeId {
    if first == other { second } else { first }
}
