//! Where queries, keys, values and results lie. Graphs put heads before tokens by moves of their own; the kernel reads
//! and writes tensors as they lie before and after those moves.

use super::{Finding, is_whole};
use crate::cuda::ir::{BufferId, Count, Factor, Holder, Kind, Operation, Product, Store, Vectors, View};

/// Returns the vectors of an operand whose rows are tokens, or whose columns are if `by_columns`. `None` if the
/// elements of a vector are not adjacent.
pub(super) fn of(factor: &Factor, heads: usize, by_columns: bool, head_size: usize) -> Option<Vectors> {
    let Factor { buffer, offset, leading, is_transposed, batch_stride } = *factor;
    let token = match is_transposed == by_columns {
        true => leading,
        false if head_size == 1 => 1,
        false => return None,
    };
    let offset = usize::try_from(offset).ok()?;
    Some(Vectors { buffer, offset, row: heads * batch_stride, head: batch_stride, token })
}

/// Returns vectors that fill a buffer, by heads and then by tokens.
pub(super) fn whole(buffer: BufferId, [heads, tokens, head_size]: [usize; 3]) -> Vectors {
    let head = tokens * head_size;
    Vectors { buffer, offset: 0, row: heads * head, head, token: head_size }
}

/// Returns the strides of `other` along the axes of head, token and element that `view` has for these vectors; `None`
/// if the axes of a store are not these three.
fn strides_of(vectors: Vectors, lengths: [usize; 3], dims: &[usize], view: &View, other: &View) -> Option<[usize; 3]> {
    let own = [vectors.head, vectors.token, 1];
    let mut found = [0; 3];
    let mut axes = 0;
    for (axis, (&length, &stride)) in lengths.iter().zip(&own).enumerate().filter(|(_, (length, _))| **length != 1) {
        let is_it = |at: &usize| view.strides[*at] == stride as i64 && dims[*at] == length;
        let at = (0..dims.len()).find(is_it)?;
        found[axis] = usize::try_from(other.strides[at]).ok()?;
        axes += 1;
    }
    // A store has no axes of length 1, so these are all of them.
    (axes == dims.len() && vectors.offset as i64 == view.offset).then_some(found)
}

impl Finding<'_> {
    /// Returns where vectors lie before a store that only moves them. The store is not needed then, if nothing else
    /// reads what it stores.
    pub(super) fn before_move(&mut self, vectors: Vectors, lengths: [usize; 3]) -> Vectors {
        let moved = || {
            let place = self.sole_writer(vectors.buffer)?;
            let store = self.whole_store(place)?;
            let from = self.work.expressions.stored(store.node)?;
            let buffer = &self.work.buffers[from.buffer];
            let [head, token, element] = strides_of(vectors, lengths, &store.dims, &store.to, from)?;
            let offset = usize::try_from(from.offset).ok()?;
            let row = if buffer.by_rows { buffer.elements } else { 0 };
            let is_plain = buffer.kind == Kind::F32 && (element == 1 || lengths[2] == 1);
            is_plain.then_some((place, Vectors { buffer: from.buffer, offset, row, head, token }))
        };
        let Some((place, vectors)) = moved() else { return vectors };
        self.replaced.insert(place);
        vectors
    }

    /// Returns where results lie after the move of the only store that reads them, which is not needed then.
    pub(super) fn after_move(&mut self, vectors: Vectors, lengths: [usize; 3]) -> Vectors {
        let moved = || {
            let place = self.reader(vectors.buffer)?;
            let store = self.whole_store(place)?;
            let (Holder::Scratch, to) = (&self.work.buffers[store.to.buffer].holder, &store.to) else { return None };
            self.writer(to.buffer)?;
            let from = self.work.expressions.stored(store.node)?;
            let [head, token, element] = strides_of(vectors, lengths, &store.dims, from, to)?;
            let row = self.work.buffers[to.buffer].elements;
            let is_plain = element == 1 || lengths[2] == 1;
            is_plain.then_some((place, Vectors { buffer: to.buffer, offset: 0, row, head, token }))
        };
        let is_between = matches!(self.work.buffers[vectors.buffer].holder, Holder::Scratch);
        let Some((place, vectors)) = is_between.then(moved).flatten() else { return vectors };
        self.replaced.insert(place);
        vectors
    }

    /// Returns the index of the operation that writes an intermediate tensor, if only a replaced operation reads it.
    fn sole_writer(&self, buffer: BufferId) -> Option<usize> {
        let is_read_once = self.read.get(&buffer).is_some_and(|places| places.len() == 1);
        let is_between = matches!(self.work.buffers[buffer].holder, Holder::Scratch);
        (is_read_once && is_between).then(|| self.writer(buffer)).flatten()
    }

    /// Returns a store by rows that fills a buffer.
    fn whole_store(&self, place: usize) -> Option<&Store> {
        let Operation::Store(store) = &self.operations[place] else { return None };
        (store.by_rows && is_whole(self.work, &store.to, &store.dims)).then_some(store)
    }

    /// Returns whether queries and keys are computed from the same tokens: from products with the same left operand, of
    /// which each token has one row.
    pub(super) fn are_of_the_same_tokens(&self, q: Vectors, k: Vectors, lengths: [usize; 3]) -> bool {
        let [of_q, of_k] = [q, k].map(|vectors| self.projection(vectors, lengths));
        of_q.zip(of_k).is_some_and(|(of_q, of_k)| of_q.a == of_k.a)
    }

    /// Returns the product from whose row of the same number each token's vectors are computed, beside constants.
    fn projection(&self, vectors: Vectors, [heads, tokens, head_size]: [usize; 3]) -> Option<&Product> {
        if let Some(product) = self.product(vectors.buffer) {
            let strides = [vectors.head, vectors.token, 1].map(|stride| stride as i64);
            let own =
                View { buffer: vectors.buffer, offset: vectors.offset as i64, strides: strides.as_slice().into() };
            return is_by_token(product, &own, 1, &[heads, tokens, head_size]).then_some(product);
        }
        let store = self.whole_store(self.writer(vectors.buffer)?)?;
        let token = |at: &usize| store.to.strides[*at] == vectors.token as i64 && store.dims[*at] == tokens;
        let token = (0..store.dims.len()).find(token)?;
        let mut views = self.work.expressions.views(store.node).into_iter();
        let is_constant = |view: &View| matches!(self.work.buffers[view.buffer].holder, Holder::Constant(_));
        let view = views.find(|view| !is_constant(view))?;
        let product = self.product(view.buffer)?;
        let is_alone = views.all(|view| is_constant(&view));
        (is_alone && is_by_token(product, &view, token, &store.dims)).then_some(product)
    }
}

/// Returns whether a view of a product's result reads only the row of the same number for each entry of an axis.
fn is_by_token(product: &Product, view: &View, token: usize, dims: &[usize]) -> bool {
    let others = (0..dims.len()).filter(|&axis| axis != token);
    let last = others.map(|axis| (dims[axis] as i64 - 1) * view.strides[axis]).sum::<i64>() + view.offset;
    let (columns, batches) = (product.n as i64, product.batches);
    let is_within = view.offset >= 0 && view.strides.iter().all(|&stride| stride >= 0) && last < columns;
    let is_one = product.m == Count { factor: dims[token], by_rows: true } && batches.factor == 1 && !batches.by_rows;
    is_within && is_one && view.strides[token] == columns
}
