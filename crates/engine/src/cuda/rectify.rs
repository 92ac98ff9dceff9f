//! Moves what follows a convolution into its call: a bias, a sum with other images, and a rectifier.
//!
//! cuDNN computes `max(0, convolution + addend + bias)` in one call, which saves writing the convolution's result and
//! reading it again. A store of such a sum moves into the last convolution among its terms, if nothing else reads that
//! convolution's result.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    constants,
    ir::{
        BufferId, Convolution, Dims, Expressions, Function, Holder, Kind, Node, NodeId, Operation, Rectified, Store,
        Strides, View, Work, contiguous,
    },
};

/// Moves rectified sums into the convolutions among their terms.
pub(super) fn rectified(work: &mut Work) {
    let mut reads: HashMap<BufferId, usize> = HashMap::new();
    for operation in &work.operations {
        for buffer in operation.reads(&work.expressions) {
            *reads.entry(buffer).or_default() += 1;
        }
    }
    let mut done = Done { operations: Vec::new(), written: HashMap::new(), reads };
    for operation in std::mem::take(&mut work.operations) {
        let sum = match &operation {
            Operation::Store(store) => done.sum_of(work, store),
            _ => None,
        };
        match sum {
            Some(sum) => done.take(work, sum),
            None => done.push(operation),
        }
    }
    work.operations = done.operations;
}

/// The operations before the current one.
struct Done {
    operations: Vec<Operation>,
    /// Index of the last operation that writes each buffer.
    written: HashMap<BufferId, usize>,
    /// Number of operations that read each buffer.
    reads: HashMap<BufferId, usize>,
}

/// A rectified sum.
struct Sum {
    /// Index of the convolution into which it moves.
    convolution: usize,
    /// The other terms: images, and vectors with one element per channel, already summed.
    addend: Option<BufferId>,
    bias: Vec<f32>,
    to: BufferId,
}

impl Done {
    fn push(&mut self, operation: Operation) {
        for buffer in operation.writes() {
            self.written.insert(buffer, self.operations.len());
        }
        self.operations.push(operation);
    }

    fn take(&mut self, work: &mut Work, sum: Sum) {
        let Sum { convolution: place, addend, bias, to } = sum;
        let bytes: Bytes = bias.iter().flat_map(|number| number.to_le_bytes()).collect();
        if let Operation::Convolution(convolution) = &mut self.operations[place] {
            convolution.rectified = Some(Rectified { bias: work.constant(Kind::F32, bytes), addend });
            convolution.y = to;
            self.written.insert(to, place);
        }
    }

    /// Returns the sum that a store rectifies, if a convolution's call can compute it.
    fn sum_of(&self, work: &Work, store: &Store) -> Option<Sum> {
        let Node::Apply(Function::Relu, operands) = work.expressions.node(store.node) else { return None };
        let to = &store.to;
        if !is_whole(work, store, to) {
            return None;
        }
        let mut terms = Vec::new();
        for &operand in operands {
            flatten(&work.expressions, operand, &mut terms);
        }
        let views: Vec<&View> = terms.iter().map(|&term| work.expressions.stored(term)).collect::<Option<_>>()?;
        let (images, vectors): (Vec<&View>, Vec<&View>) =
            views.into_iter().partition(|view| is_whole(work, store, view));
        // The last convolution, since the other terms must be complete when it runs.
        let (place, convolution) =
            images.iter().filter_map(|view| self.free(work, view.buffer)).max_by_key(|it| it.0)?;
        let mut others = images.iter().map(|view| view.buffer).filter(|&buffer| buffer != convolution.y);
        let (addend, rest) = (others.next(), others.next());
        let is_ready = |buffer: BufferId| self.written.get(&buffer).is_none_or(|&at| at < place);
        if rest.is_some() || images.len() > 1 + usize::from(addend.is_some()) || !addend.is_none_or(is_ready) {
            return None;
        }
        let mut bias = vec![0.0; convolution.outputs];
        for view in vectors {
            add_vector(work, store, convolution, view, &mut bias)?;
        }
        Some(Sum { convolution: place, addend, bias, to: to.buffer })
    }

    /// Returns the convolution that writes a buffer, if the buffer is read once and the call applies nothing yet.
    fn free(&self, work: &Work, buffer: BufferId) -> Option<(usize, &Convolution)> {
        let place = *self.written.get(&buffer)?;
        let Operation::Convolution(convolution) = &self.operations[place] else { return None };
        let is_free = !convolution.is_transposed && convolution.rectified.is_none();
        let is_read_once = self.reads.get(&buffer) == Some(&1);
        let is_scratch = matches!(work.buffers[buffer].holder, Holder::Scratch);
        (is_free && is_read_once && is_scratch).then_some((place, convolution))
    }
}

/// Collects the terms of a sum.
pub(super) fn flatten(expressions: &Expressions, node: NodeId, terms: &mut Vec<NodeId>) {
    match expressions.node(node) {
        Node::Apply(Function::Add, operands) => {
            operands.iter().for_each(|&operand| flatten(expressions, operand, terms));
        }
        _ => terms.push(node),
    }
}

/// Returns whether a view covers its whole buffer in the order of a store's places.
pub(super) fn is_whole(work: &Work, store: &Store, view: &View) -> bool {
    let buffer = &work.buffers[view.buffer];
    let elements: usize = store.dims.iter().product();
    let is_all = buffer.by_rows == store.by_rows && buffer.elements == elements && view.offset == 0;
    is_all && buffer.kind == Kind::F32 && view.strides == contiguous(&store.dims)
}

/// Adds a constant with one element per channel to `to`; `None` if the view is something else.
fn add_vector(work: &Work, store: &Store, convolution: &Convolution, view: &View, to: &mut [f32]) -> Option<()> {
    let Holder::Constant(bytes) = &work.buffers[view.buffer].holder else { return None };
    let [height, width] = convolution.out;
    let axes = [(convolution.images.factor, 0), (convolution.outputs, 1), (height, 0), (width, 0)];
    let (dims, strides): (Dims, Strides) = axes.into_iter().filter(|(length, _)| *length != 1).unzip();
    if store.dims != dims || view.strides != strides {
        return None;
    }
    for (channel, to) in to.iter_mut().enumerate() {
        let bits = constants::bits(Kind::F32, bytes, usize::try_from(view.offset).ok()? + channel)?;
        *to += f32::from_bits(bits as u32);
    }
    Some(())
}
