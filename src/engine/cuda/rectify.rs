//! Moves what follows a convolution into its call: a bias, a sum with other images, and a rectifier.
//!
//! cuDNN computes `max(0, convolution + addend + bias)` at once, so that what the convolution gives is not written and
//! read again. A store of such a sum goes into the last convolution that it is of, if nothing else reads what that
//! gives.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    constants,
    ir::{
        BufferId, Convolution, Dims, Expressions, Function, Holder, Kind, Node, NodeId, Operation, Rectified, Store,
        Strides, View, Work, contiguous,
    },
};

/// Moves rectified sums into the convolutions that they are of.
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

/// Operations that are done before the one at hand.
struct Done {
    operations: Vec<Operation>,
    /// Which one completes a buffer.
    written: HashMap<BufferId, usize>,
    /// How many operations read a buffer.
    reads: HashMap<BufferId, usize>,
}

/// A rectified sum.
struct Sum {
    /// The convolution that it goes into.
    convolution: usize,
    /// What else is added: images, and vectors of an element for each channel.
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

    /// The sum that a store rectifies, if it is one that a convolution can take.
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

    /// The convolution that gives a buffer which is read once, if nothing follows it yet.
    fn free(&self, work: &Work, buffer: BufferId) -> Option<(usize, &Convolution)> {
        let place = *self.written.get(&buffer)?;
        let Operation::Convolution(convolution) = &self.operations[place] else { return None };
        let is_free = !convolution.is_transposed && convolution.rectified.is_none();
        let is_read_once = self.reads.get(&buffer) == Some(&1);
        let is_scratch = matches!(work.buffers[buffer].holder, Holder::Scratch);
        (is_free && is_read_once && is_scratch).then_some((place, convolution))
    }
}

/// The terms of a sum.
fn flatten(expressions: &Expressions, node: NodeId, terms: &mut Vec<NodeId>) {
    match expressions.node(node) {
        Node::Apply(Function::Add, operands) => {
            operands.iter().for_each(|&operand| flatten(expressions, operand, terms));
        }
        _ => terms.push(node),
    }
}

/// Whether a view is of all of its buffer, place by place of a store.
fn is_whole(work: &Work, store: &Store, view: &View) -> bool {
    let buffer = &work.buffers[view.buffer];
    let elements: usize = store.dims.iter().product();
    let is_all = buffer.by_rows == store.by_rows && buffer.elements == elements && view.offset == 0;
    is_all && buffer.kind == Kind::F32 && view.strides == contiguous(&store.dims)
}

/// Adds a constant with an element for each channel; `None` where a view is of something else.
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
