//! Finds attention among the operations of a graph, and makes one operation of it.
//!
//! Graphs have it as `softmax(q · kᵀ · scale + mask) · v`: a product, the store of its scaled and masked result, a
//! softmax over the keys, and another product. `kernels/attention.cu` computes all of them without storing the scores,
//! and leaves out keys that padding added. The operations are replaced only if nothing else reads what lies between
//! them, each row and head has its own keys and values, and the mask of a key is the same for all heads and queries. So
//! a mask that depends on the scores, and softmax over another axis, stay as they are.
//!
//! `scores` reads what happens between the first product and the softmax, `vectors` where queries, keys, values and
//! results lie.

mod scores;
mod vectors;

use std::collections::{HashMap, HashSet};

use self::scores::Scores;
use super::ir::{
    Attention, BufferId, Dims, Holder, Kind, Mask, NodeId, Operation, Product, RowKernel, Rowwise, Store, Strides,
    View, Work, contiguous,
};

/// Largest head that the kernel has room for, in elements.
const HEAD_SIZE_MAX: usize = 128;

/// Replaces the operations of attention. `axes` has the padded axis to which the elements of each input belong: its
/// index among the lengths of a run, or `None` if the input's elements are not those of one padded axis.
pub(super) fn attended(work: &mut Work, axes: &[Option<usize>]) {
    let mut finding = Finding::new(work, axes);
    let products: Vec<usize> = finding.products().collect();
    let mut found: HashMap<usize, Found> =
        products.into_iter().filter_map(|second| Some((second, finding.found(second)?))).collect();
    let Finding { operations, replaced, .. } = finding;
    let mut masks = HashMap::new();
    for (place, operation) in operations.into_iter().enumerate() {
        match found.remove(&place) {
            Some(Found { mut attention, mask }) => {
                attention.mask = mask.map(|of| of.stored(work, attention.keys, &mut masks));
                work.operations.push(Operation::Attention(attention));
            }
            None if replaced.contains(&place) => {}
            None => work.operations.push(operation),
        }
    }
}

/// Attention, which takes the place of the product with the values.
struct Found {
    /// The operation, without its mask.
    attention: Attention,
    /// The mask.
    mask: Option<KeyMask>,
}

/// A mask of keys as an expression over the keys of a row.
#[derive(Clone, Copy)]
struct KeyMask {
    node: NodeId,
    replaces: bool,
}

impl KeyMask {
    /// Stores the mask once for all attention that it is part of. A mask that fills a buffer is read from there.
    fn stored(self, work: &mut Work, keys: usize, known: &mut HashMap<(NodeId, usize), BufferId>) -> Mask {
        let Self { node, replaces } = self;
        if let Some(view) = work.expressions.stored(node)
            && is_whole(work, view, &[keys])
        {
            return Mask { buffer: view.buffer, replaces };
        }
        let buffer = *known.entry((node, keys)).or_insert_with(|| {
            let buffer = work.buffer(Kind::F32, true, keys, Holder::Scratch);
            let to = View { buffer, offset: 0, strides: Strides::from_slice(&[1]) };
            let dims = Dims::from_slice(&[keys]);
            work.operations.push(Operation::Store(Store { by_rows: true, dims, node, to }));
            buffer
        });
        Mask { buffer, replaces }
    }
}

/// The operations of a graph, while attention is searched for among them.
struct Finding<'w> {
    work: &'w mut Work,
    axes: &'w [Option<usize>],
    operations: Vec<Operation>,
    /// Indices of the operations that write each buffer.
    written: HashMap<BufferId, Vec<usize>>,
    /// Indices of the operations that read each buffer, as often as they read it.
    read: HashMap<BufferId, Vec<usize>>,
    /// Indices of the operations that attention replaces.
    replaced: HashSet<usize>,
}

impl<'w> Finding<'w> {
    fn new(work: &'w mut Work, axes: &'w [Option<usize>]) -> Self {
        let operations = std::mem::take(&mut work.operations);
        let (mut written, mut read) = (HashMap::new(), HashMap::new());
        for (place, operation) in operations.iter().enumerate() {
            for buffer in operation.writes() {
                written.entry(buffer).or_insert_with(Vec::new).push(place);
            }
            for buffer in operation.reads(&work.expressions) {
                read.entry(buffer).or_insert_with(Vec::new).push(place);
            }
        }
        Self { work, axes, operations, written, read, replaced: HashSet::new() }
    }

    fn products(&self) -> impl Iterator<Item = usize> {
        let is_product = |(place, operation): (usize, &Operation)| match operation {
            Operation::Product(product) => product.batches.by_rows.then_some(place),
            _ => None,
        };
        self.operations.iter().enumerate().filter_map(is_product)
    }

    /// Returns the index of the only operation that writes a buffer, if no attention has replaced it.
    fn writer(&self, buffer: BufferId) -> Option<usize> {
        match self.written.get(&buffer)?.as_slice() {
            &[place] => Some(place).filter(|place| !self.replaced.contains(place)),
            _ => None,
        }
    }

    /// Returns the index of the only operation that reads a buffer, which it does once.
    fn reader(&self, buffer: BufferId) -> Option<usize> {
        match self.read.get(&buffer)?.as_slice() {
            &[place] => Some(place).filter(|place| !self.replaced.contains(place)),
            _ => None,
        }
    }

    /// As [`Self::writer`], if the buffer is an intermediate tensor that a single operation reads.
    fn writer_for_one(&self, buffer: BufferId) -> Option<usize> {
        self.reader(buffer)?;
        let Holder::Scratch = self.work.buffers[buffer].holder else { return None };
        self.writer(buffer)
    }

    /// Returns the product that writes a buffer.
    fn product(&self, buffer: BufferId) -> Option<&Product> {
        match &self.operations[self.writer(buffer)?] {
            Operation::Product(product) => Some(product),
            _ => None,
        }
    }

    /// Returns the attention whose product with the values is the operation of this index, if it is that.
    fn found(&mut self, second: usize) -> Option<Found> {
        let Operation::Product(mixed) = &self.operations[second] else { return None };
        let mixed = mixed.clone();
        let (heads, queries, keys, head_size) = (mixed.batches.factor, mixed.m.factor, mixed.k, mixed.n);
        // A single query, as in the steps of decoders, gains nothing from the kernel's tiles of queries.
        if mixed.bias.is_some() || mixed.alpha.to_bits() != 1.0_f32.to_bits() || queries < 2 || keys < 2 {
            return None;
        }
        let softmax = self.softmax(&mixed)?;
        let Operation::Rowwise(Rowwise { from, .. }) = self.operations[softmax] else { return None };
        let before = self.writer_for_one(from)?;
        let (product, scores) = match &self.operations[before] {
            Operation::Product(_) => (before, Scores::default()),
            Operation::Store(store) => {
                let store = store.clone();
                let (buffer, scores) = self.scores(&store, keys)?;
                (self.writer_for_one(buffer)?, scores)
            }
            _ => return None,
        };
        let Operation::Product(compared) = &self.operations[product] else { return None };
        let is_first = compared.bias.is_none()
            && (compared.m, compared.n, compared.batches) == (mixed.m, keys, mixed.batches)
            && compared.k == head_size;
        let scale = compared.alpha * scores.scale;
        if !is_first || mixed.m.by_rows || head_size > HEAD_SIZE_MAX || !scale.is_finite() {
            return None;
        }
        let q = vectors::of(&compared.a, heads, false, head_size)?;
        let k = vectors::of(&compared.b, heads, true, head_size)?;
        let v = vectors::of(&mixed.b, heads, false, head_size)?;
        let (of_queries, of_keys) = ([heads, queries, head_size], [heads, keys, head_size]);
        let is_own = queries == keys && self.are_of_the_same_tokens(q, k, of_keys);
        self.replaced.extend([second, softmax, before, product]);
        let q = self.before_move(q, of_queries);
        let [k, v] = [k, v].map(|vectors| self.before_move(vectors, of_keys));
        let out = self.after_move(vectors::whole(mixed.d, of_queries), of_queries);
        let axis = scores.mask.and_then(|mask| self.axis_of(mask.node, keys));
        let attention = Attention { heads, queries, keys, head_size, scale, q, k, v, out, mask: None, axis, is_own };
        Some(Found { attention, mask: scores.mask })
    }

    /// Returns the index of the softmax over keys that computes the left operand of a product.
    fn softmax(&self, mixed: &Product) -> Option<usize> {
        let (heads, queries, keys) = (mixed.batches.factor, mixed.m.factor, mixed.k);
        let place = self.writer_for_one(mixed.a.buffer)?;
        let Operation::Rowwise(Rowwise { kernel: RowKernel::Softmax, rows, columns, .. }) = &self.operations[place]
        else {
            return None;
        };
        let shares = &mixed.a;
        let is_whole = shares.offset == 0 && shares.leading == keys && shares.batch_stride == queries * keys;
        let is_over_keys = *columns == keys && rows.by_rows && rows.factor == heads * queries;
        (is_whole && is_over_keys && !shares.is_transposed).then_some(place)
    }

    /// Returns the padded axis to which the keys of a mask belong: that of an input of which the mask reads one element
    /// for each key.
    fn axis_of(&self, mask: NodeId, keys: usize) -> Option<usize> {
        let mut axis = None;
        for view in self.work.expressions.views(mask) {
            let buffer = &self.work.buffers[view.buffer];
            let Holder::Input(input) = buffer.holder else { continue };
            if buffer.by_rows && buffer.elements == keys && view.offset == 0 && view.strides.as_slice() == [1] {
                let own = self.axes.get(input).copied().flatten()?;
                if axis.replace(own).is_some_and(|other| other != own) {
                    return None;
                }
            }
        }
        axis
    }
}

/// Returns whether a view covers a whole buffer of fp32 by rows, in the order of an index space.
fn is_whole(work: &Work, view: &View, dims: &[usize]) -> bool {
    let buffer = &work.buffers[view.buffer];
    let is_all = view.offset == 0 && buffer.elements == dims.iter().product::<usize>();
    is_all && buffer.kind == Kind::F32 && buffer.by_rows && view.strides == contiguous(dims)
}
