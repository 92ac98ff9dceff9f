//! Moves the sum of a residual connection into the layer normalisation that follows it, which saves a launch, and
//! writing the sum where nothing else reads it. A bias in the sum moves into the product that it follows.

use std::collections::HashMap;

use super::{
    ir::{Buffer, BufferId, Count, Holder, Operation, Product, RowKernel, Rowwise, Store, View, Work},
    rectify::{flatten, is_whole},
};

/// A sum that a normalisation can compute.
struct Sum {
    /// Index of its store among the operations.
    store: usize,
    terms: [BufferId; 2],
    /// A vector that is added to each row, and the product into which it moves, by its index.
    bias: Option<(BufferId, usize)>,
}

/// Moves sums into the normalisations that read them.
pub(super) fn normalized(work: &mut Work) {
    let mut readers: HashMap<BufferId, Vec<usize>> = HashMap::new();
    let mut writers: HashMap<BufferId, usize> = HashMap::new();
    for (place, operation) in work.operations.iter().enumerate() {
        for buffer in operation.reads(&work.expressions) {
            readers.entry(buffer).or_default().push(place);
        }
        writers.extend(operation.writes().into_iter().map(|buffer| (buffer, place)));
    }
    let mut is_moved = vec![false; work.operations.len()];
    for place in 0..work.operations.len() {
        let Operation::Rowwise(Rowwise { kernel: RowKernel::LayerNorm { .. }, from, to, columns, .. }) =
            work.operations[place]
        else {
            continue;
        };
        // What else reads the sum must come after the operation that will write it.
        if readers[&from].iter().any(|&reader| reader < place) {
            continue;
        }
        let Some(Sum { store, terms: [x, addend], bias }) = sum_of(work, &readers, &writers, from, columns) else {
            continue;
        };
        let half = work.buffers[from].half;
        if [x, addend, to].iter().any(|&buffer| work.buffers[buffer].half != half) {
            continue;
        }
        if let Some((vector, product)) = bias {
            let vector = Buffer { half, ..work.buffers[vector].clone() };
            work.buffers.push(vector);
            let vector = work.buffers.len() - 1;
            if let Operation::Product(product) = &mut work.operations[product] {
                product.bias = Some(vector);
            }
        }
        is_moved[store] = true;
        let is_read_again = readers[&from].len() > 1;
        if let Operation::Rowwise(rowwise) = &mut work.operations[place]
            && let RowKernel::LayerNorm { residual, sum, .. } = &mut rowwise.kernel
        {
            (*residual, *sum, rowwise.from) = (Some(addend), is_read_again.then_some(from), x);
        }
    }
    let mut is_moved = is_moved.into_iter();
    work.operations.retain(|_| !is_moved.next().unwrap_or(false));
}

/// Returns the sum of two buffers, element by element, that a buffer holds; with a bias for each of `columns` columns
/// if the product that writes one of them has none yet.
fn sum_of(
    work: &Work,
    readers: &HashMap<BufferId, Vec<usize>>,
    writers: &HashMap<BufferId, usize>,
    buffer: BufferId,
    columns: usize,
) -> Option<Sum> {
    let place = *writers.get(&buffer)?;
    let Operation::Store(store) = &work.operations[place] else { return None };
    if !matches!(work.buffers[buffer].holder, Holder::Scratch) || !is_whole(work, store, &store.to) {
        return None;
    }
    let mut terms = Vec::new();
    flatten(&work.expressions, store.node, &mut terms);
    let views: Vec<&View> = terms.iter().map(|&term| work.expressions.stored(term)).collect::<Option<_>>()?;
    let (whole, vectors): (Vec<&View>, Vec<&View>) = views.into_iter().partition(|view| is_whole(work, store, view));
    let &[first, second] = whole.as_slice() else { return None };
    let terms = [first.buffer, second.buffer];
    match vectors[..] {
        [] => Some(Sum { store: place, terms, bias: None }),
        [vector] if is_vector(work, store, vector, columns) => {
            let takes_it = |term: &BufferId| {
                let product = *writers.get(term)?;
                let is_read_once = readers.get(term).is_some_and(|readers| readers.len() == 1);
                let Operation::Product(Product { n, batches, bias: None, .. }) = &work.operations[product] else {
                    return None;
                };
                let is_single = *batches == Count { factor: 1, by_rows: false };
                (is_read_once && is_single && *n == columns).then_some(product)
            };
            let product = terms.iter().find_map(takes_it)?;
            Some(Sum { store: place, terms, bias: Some((vector.buffer, product)) })
        }
        _ => None,
    }
}

/// Returns whether a view is a whole constant with an element for each column, the last axis of a store's places.
fn is_vector(work: &Work, store: &Store, view: &View, columns: usize) -> bool {
    let Buffer { holder, elements, .. } = &work.buffers[view.buffer];
    let is_by_column = match view.strides.as_slice() {
        [others @ .., 1] => others.iter().all(|&stride| stride == 0),
        _ => false,
    };
    let is_constant = matches!(holder, Holder::Constant(_)) && *elements == columns && view.offset == 0;
    is_constant && is_by_column && store.dims.last() == Some(&columns)
}
