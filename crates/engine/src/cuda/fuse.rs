//! Merges stores into few kernels.
//!
//! A store moves into the last kernel that comes after everything it reads. If that kernel has the same index space,
//! the store reuses the values computed there rather than load them again. Otherwise it becomes a separate section,
//! which still saves a launch. Sections of a kernel run in no particular order, so none may read what another writes.

use std::collections::HashSet;

use super::ir::{
    Attention, BufferId, Convolution, Dims, Expressions, Node, NodeId, Operation, Product, Reduce, Rowwise, Store,
    View, Work,
};

/// Most stores of a kernel: each buffer needs a pointer, and the driver accepts 4 KB of arguments.
const STORES_MAX: usize = 64;

/// Most launches that a store may be moved across, which bounds the time for large graphs.
const STEPS_BACK_MAX: usize = 64;

/// One launch.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A generated kernel of stores.
    Kernel(Kernel),
    /// A matrix product.
    Product(Product),
    /// A convolution.
    Convolution(Convolution),
    /// A handwritten row kernel.
    Rowwise(Rowwise),
    /// Attention.
    Attention(Attention),
    /// A generated reduction.
    Reduce(Reduce),
}

/// A generated kernel of stores.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    /// Whether it runs for every row.
    pub by_rows: bool,
    /// Its sections, one for each index space.
    pub sections: Vec<Section>,
}

/// Stores over one index space.
#[derive(Clone, Debug)]
pub(super) struct Section {
    /// The index space.
    pub dims: Dims,
    /// Each expression and where it is stored.
    pub stores: Vec<(View, NodeId)>,
}

impl Step {
    /// Returns the buffers that it writes.
    pub(super) fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Kernel(kernel) => kernel.stores().map(|(to, _)| to.buffer).collect(),
            Self::Product(product) => vec![product.d],
            Self::Convolution(convolution) => vec![convolution.y],
            Self::Rowwise(rowwise) => rowwise.writes(),
            Self::Attention(attention) => vec![attention.out.buffer],
            Self::Reduce(reduce) => vec![reduce.to],
        }
    }

    /// Returns the buffers that it reads.
    pub(super) fn reads(&self, expressions: &Expressions) -> Vec<BufferId> {
        match self {
            Self::Kernel(kernel) => kernel.stores().flat_map(|(_, node)| expressions.buffers(*node)).collect(),
            Self::Product(product) => product.reads(),
            Self::Convolution(convolution) => convolution.reads(),
            Self::Rowwise(rowwise) => rowwise.reads(),
            Self::Attention(attention) => attention.reads(),
            Self::Reduce(reduce) => expressions.buffers(reduce.node),
        }
    }
}

impl Kernel {
    fn stores(&self) -> impl Iterator<Item = &(View, NodeId)> {
        self.sections.iter().flat_map(|section| &section.stores)
    }

    /// Adds a store to the kernel if possible, and returns whether it was.
    fn take(&mut self, store: &Store, expressions: &mut Expressions) -> bool {
        let written: HashSet<BufferId> = self.stores().map(|(to, _)| to.buffer).collect();
        if self.by_rows != store.by_rows || self.stores().count() >= STORES_MAX {
            return false;
        }
        let section = self.sections.iter().position(|section| section.dims == store.dims);
        // Values at this place of the index space are in registers; those at other places may not have been written
        // yet.
        if !expressions.tables(store.node).is_disjoint(&written) {
            return false;
        }
        let computed = section.map(|section| self.sections[section].stores.clone()).unwrap_or_default();
        // Replaces reads of what this kernel writes by the expressions behind it, and gives up if another section
        // writes it.
        let node = expressions.rewrite(store.node, &mut |expressions, kind, view| {
            if !written.contains(&view.buffer) {
                return Some(expressions.add(kind, Node::Load(view.clone())));
            }
            computed.iter().find(|(to, _)| to == view).map(|(_, node)| *node)
        });
        let Some(node) = node else { return false };
        let entry = (store.to.clone(), node);
        match section {
            Some(section) => self.sections[section].stores.push(entry),
            None => self.sections.push(Section { dims: store.dims.clone(), stores: vec![entry] }),
        }
        true
    }
}

/// Turns the operations of a graph into launches.
pub(super) fn fused(work: &mut Work) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for operation in std::mem::take(&mut work.operations) {
        let store = match operation {
            Operation::Store(store) => store,
            Operation::Product(product) => {
                steps.push(Step::Product(product));
                continue;
            }
            Operation::Convolution(convolution) => {
                steps.push(Step::Convolution(convolution));
                continue;
            }
            Operation::Rowwise(rowwise) => {
                steps.push(Step::Rowwise(rowwise));
                continue;
            }
            Operation::Attention(attention) => {
                steps.push(Step::Attention(attention));
                continue;
            }
            Operation::Reduce(reduce) => {
                steps.push(Step::Reduce(reduce));
                continue;
            }
        };
        let reads: HashSet<BufferId> = work.expressions.buffers(store.node).into_iter().collect();
        let mut is_taken = false;
        // Searches backwards for a kernel to join, and stops at a step that writes what the store reads.
        for step in steps.iter_mut().rev().take(STEPS_BACK_MAX) {
            if let Step::Kernel(kernel) = step
                && kernel.take(&store, &mut work.expressions)
            {
                is_taken = true;
                break;
            }
            if step.writes().iter().any(|buffer| reads.contains(buffer)) {
                break;
            }
        }
        if !is_taken {
            let Store { by_rows, dims, node, to } = store;
            let sections = vec![Section { dims, stores: vec![(to, node)] }];
            steps.push(Step::Kernel(Kernel { by_rows, sections }));
        }
    }
    steps
}
