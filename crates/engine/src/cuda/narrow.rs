//! Keeps intermediate tensors in 16 bits, so that products and convolutions read and write half types. Values are
//! computed in fp32 and rounded when they are stored.
//!
//! Some buffers stay fp32: inputs and outputs, the results of reductions, the operands of ArgMax, masks of attention,
//! and what integers and truth values are computed from, such as indices. If a product, a convolution or attention
//! reads one of these as its operand, it is rounded into a separate buffer first.

use std::collections::{HashMap, HashSet};

use super::ir::{
    Attention, Buffer, BufferId, Convolution, Dims, Function, Half, Holder, Kind, Node, Operation, Product, Rectified,
    RowKernel, Rowwise, Store, View, Work, contiguous,
};

/// Rounds every buffer that may be rounded.
pub(super) fn narrowed(work: &mut Work, half: Half) {
    let operations = std::mem::take(&mut work.operations);
    let wide = wide(work, &operations);
    let tables = tables(work, &operations);
    for (id, buffer) in work.buffers.iter_mut().enumerate() {
        let is_between = matches!(buffer.holder, Holder::Scratch) && buffer.kind == Kind::F32 && !wide.contains(&id);
        if is_between || tables.contains(&id) {
            buffer.half = Some(half);
        }
    }
    let mut narrowing = Narrowing { work, half, done: Vec::new(), rounded: HashMap::new() };
    for operation in operations {
        narrowing.take(operation);
    }
    let done = narrowing.done;
    work.operations = done;
}

/// Returns the intermediate buffers that stay fp32.
fn wide(work: &Work, operations: &[Operation]) -> HashSet<BufferId> {
    let mut wide = HashSet::new();
    for operation in operations {
        match operation {
            Operation::Store(store) => exact(work, store.node, &mut wide),
            Operation::Reduce(reduce) => {
                exact(work, reduce.node, &mut wide);
                wide.insert(reduce.to);
            }
            Operation::Rowwise(Rowwise { kernel: RowKernel::ArgMax { .. }, from, .. }) => {
                wide.insert(*from);
            }
            Operation::Product(Product { bias: Some(bias), .. }) => {
                wide.insert(*bias);
            }
            Operation::Attention(Attention { mask: Some(mask), .. }) => {
                wide.insert(mask.buffer);
            }
            Operation::Attention(_) | Operation::Product(_) | Operation::Convolution(_) | Operation::Rowwise(_) => {}
        }
    }
    // Row kernels read and write one type, so fp32 on one side makes the other fp32 too, until nothing changes.
    let is_wide = |buffer: BufferId, wide: &HashSet<BufferId>| {
        !matches!(work.buffers[buffer].holder, Holder::Scratch) || wide.contains(&buffer)
    };
    let mut before = usize::MAX;
    while before != wide.len() {
        before = wide.len();
        for operation in operations {
            if let Operation::Rowwise(Rowwise { from, to, .. }) = operation
                && (is_wide(*from, &wide) || is_wide(*to, &wide))
            {
                wide.extend([*from, *to]);
            }
        }
    }
    wide
}

/// Adds the buffers from which an expression computes integers and truth values.
fn exact(work: &Work, node: usize, wide: &mut HashSet<BufferId>) {
    let expressions = &work.expressions;
    expressions.visit(node, &mut HashSet::new(), &mut |node| {
        if let Node::Apply(Function::ToI64 | Function::ToI32 | Function::ToBool, operands) = expressions.node(node) {
            wide.extend(operands.iter().flat_map(|&operand| expressions.buffers(operand)));
        }
    });
}

/// Returns the constant tables from which only lookups and fetches read, but no row kernel or bias.
fn tables(work: &Work, operations: &[Operation]) -> HashSet<BufferId> {
    let mut tables = HashSet::new();
    for operation in operations {
        if let Operation::Store(Store { node, .. }) = operation {
            tables.extend(work.expressions.tables(*node));
        }
    }
    tables.retain(|&table| {
        let Buffer { kind, holder, .. } = &work.buffers[table];
        matches!(holder, Holder::Constant(_)) && *kind == Kind::F32
    });
    for operation in operations {
        match operation {
            Operation::Rowwise(rowwise) => tables.retain(|table| !rowwise.reads().contains(table)),
            Operation::Product(Product { bias: Some(bias), .. }) => tables.retain(|table| table != bias),
            _ => {}
        }
    }
    tables
}

/// Rewrites operations to read and write half types.
struct Narrowing<'w> {
    work: &'w mut Work,
    half: Half,
    done: Vec<Operation>,
    /// The buffer with the rounded elements, by fp32 buffer.
    rounded: HashMap<BufferId, BufferId>,
}

impl Narrowing<'_> {
    fn take(&mut self, operation: Operation) {
        let operation = match operation {
            Operation::Product(product) => Operation::Product(self.product(product)),
            Operation::Convolution(convolution) => return self.convolution(convolution),
            Operation::Rowwise(rowwise) => Operation::Rowwise(self.rowwise(rowwise)),
            Operation::Attention(attention) => return self.attention(attention),
            Operation::Store(_) | Operation::Reduce(_) => operation,
        };
        self.done.push(operation);
    }

    fn is_half(&self, buffer: BufferId) -> bool {
        self.work.buffers[buffer].half.is_some()
    }

    fn product(&mut self, mut product: Product) -> Product {
        product.a.buffer = self.rounded(product.a.buffer);
        product.b.buffer = self.rounded(product.b.buffer);
        if self.is_half(product.d) {
            product.bias = product.bias.map(|bias| self.rounded(bias));
        }
        product
    }

    /// Rewrites a convolution, all of whose operands have one type.
    fn convolution(&mut self, mut convolution: Convolution) {
        convolution.x = self.rounded(convolution.x);
        convolution.w = self.rounded(convolution.w);
        convolution.rectified = convolution.rectified.map(|Rectified { bias, addend }| Rectified {
            bias: self.rounded(bias),
            addend: addend.map(|addend| self.rounded(addend)),
        });
        // An fp32 result is computed in a half buffer first and then widened.
        let y = convolution.y;
        if self.is_half(y) {
            return self.done.push(Operation::Convolution(convolution));
        }
        convolution.y = self.like(y, Some(self.half), Holder::Scratch);
        let computed = convolution.y;
        self.done.push(Operation::Convolution(convolution));
        self.copy(computed, y);
    }

    /// Rewrites attention, whose operands and result have one type. Its mask stays fp32.
    fn attention(&mut self, mut attention: Attention) {
        let Attention { q, k, v, out, .. } = &mut attention;
        for vectors in [q, k, v] {
            vectors.buffer = self.rounded(vectors.buffer);
        }
        let result = out.buffer;
        let is_half = self.is_half(result);
        if !is_half {
            out.buffer = self.like(result, Some(self.half), Holder::Scratch);
        }
        let computed = out.buffer;
        self.done.push(Operation::Attention(attention));
        if !is_half {
            self.copy(computed, result);
        }
    }

    fn rowwise(&mut self, mut rowwise: Rowwise) -> Rowwise {
        if let RowKernel::LayerNorm { scale, bias, .. } = &mut rowwise.kernel
            && self.is_half(rowwise.from)
        {
            *scale = self.rounded(*scale);
            *bias = bias.map(|bias| self.rounded(bias));
        }
        rowwise
    }

    /// Returns the buffer with the rounded elements of another, and creates it if necessary.
    fn rounded(&mut self, buffer: BufferId) -> BufferId {
        if self.is_half(buffer) {
            return buffer;
        }
        if let Some(&known) = self.rounded.get(&buffer) {
            return known;
        }
        let constant = match &self.work.buffers[buffer].holder {
            holder @ Holder::Constant(_) => Some(holder.clone()),
            Holder::Input(_) | Holder::Output(_) | Holder::Scratch => None,
        };
        let is_constant = constant.is_some();
        let rounded = self.like(buffer, Some(self.half), constant.unwrap_or(Holder::Scratch));
        if !is_constant {
            self.copy(buffer, rounded);
        }
        self.rounded.insert(buffer, rounded);
        rounded
    }

    /// Creates a buffer of the same size as another.
    fn like(&mut self, buffer: BufferId, half: Option<Half>, holder: Holder) -> BufferId {
        let Buffer { kind, by_rows, elements, .. } = self.work.buffers[buffer];
        let new = self.work.buffer(kind, by_rows, elements, holder);
        self.work.buffers[new].half = half;
        new
    }

    /// Copies the elements of a buffer to another.
    fn copy(&mut self, from: BufferId, to: BufferId) {
        let Buffer { by_rows, elements, .. } = self.work.buffers[from];
        let dims: Dims = Some(elements).into_iter().filter(|&elements| elements != 1).collect();
        let node = self.work.whole(from, &dims).node;
        let to = View { buffer: to, offset: 0, strides: contiguous(&dims) };
        self.done.push(Operation::Store(Store { by_rows, dims, node, to }));
    }
}
