//! Writes the source of a plan's kernels, in the vocabulary of `kernels/README.md`. Shapes are constants in the source;
//! addresses and numbers of rows are arguments.

mod reduction;
mod space;
mod writer;

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use self::writer::Writer;
use super::{
    fuse::Step,
    ir::{Buffer, BufferId, Count, Function, Half, Kind, Node, NodeId, Strides, Work},
};

/// Maximum number of threads per block.
pub(super) const THREADS: usize = 256;
/// Name of the kernel that runs first: it computes the row counts that other kernels read, and clears the faults.
pub(super) const HEAD: &str = "head";
/// Beginning of every program.
const FUNCTIONS: &str = include_str!("functions.h");

/// A generated kernel. Its arguments are `live`, `rows`, these buffers, and `faults` if it records them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Generated {
    /// Its name in the program.
    pub name: String,
    /// Its buffers, in the order of its parameters.
    pub buffers: Vec<BufferId>,
    /// Whether `faults` is its last parameter.
    pub notes_faults: bool,
    /// Whether it runs for every row.
    pub by_rows: bool,
    /// Number of blocks per row.
    pub blocks: usize,
    /// Number of threads per block.
    pub threads: usize,
}

/// The kernels of a plan.
#[derive(Debug)]
pub(super) struct Program {
    /// Their source.
    pub text: String,
    /// The kernel of each step; `None` if it is not generated.
    pub kernels: Vec<Option<Generated>>,
    /// Whether [`HEAD`] runs before them.
    pub has_head: bool,
}

/// Writes a plan's program: the head, if counts or faults need one, and a kernel for each generated step. Steps that do
/// the same with other buffers, such as the layers of a network, share a kernel.
pub(super) fn program(work: &Work, steps: &[Step], counts: &[Count], has_batch: bool) -> Program {
    let clears_faults = has_one_lookup(work, steps);
    let mut text = FUNCTIONS.to_owned();
    let mut names: HashMap<String, String> = HashMap::new();
    let mut generated = Vec::new();
    for step in steps {
        let mut writer = Writer::new(work, has_batch, clears_faults);
        let (body, mut kernel) = match step {
            Step::Kernel(kernel) => writer.pointwise(kernel),
            Step::Reduce(reduce) => writer.reduction(reduce),
            Step::Product(_) | Step::Convolution(_) | Step::Rowwise(_) | Step::Attention(_) => {
                generated.push(None);
                continue;
            }
        };
        let next = names.len();
        let name = names.entry(body).or_insert_with_key(|body| {
            let name = format!("kernel_{next}");
            let _ = write!(text, "\nKERNEL({name}, {THREADS}, {body}");
            name
        });
        kernel.name.clone_from(name);
        generated.push(Some(kernel));
    }
    let notes_faults = generated.iter().flatten().any(|kernel| kernel.notes_faults);
    let has_head = !counts.is_empty() || notes_faults && !clears_faults;
    if has_head {
        text += &head(counts);
    }
    Program { text, kernels: generated, has_head }
}

/// Returns whether only one kernel looks something up, with one index per row, as a token embedding does. That kernel
/// can then write the row's fault in either case, so that no head has to clear it.
fn has_one_lookup(work: &Work, steps: &[Step]) -> bool {
    let mut found = HashSet::new();
    for (at, step) in steps.iter().enumerate() {
        let (by_rows, nodes): (bool, Vec<NodeId>) = match step {
            Step::Kernel(kernel) => {
                let stores = kernel.sections.iter().flat_map(|section| &section.stores);
                (kernel.by_rows, stores.map(|(_, node)| *node).collect())
            }
            Step::Reduce(reduce) => (reduce.by_rows, vec![reduce.node]),
            Step::Product(_) | Step::Convolution(_) | Step::Rowwise(_) | Step::Attention(_) => continue,
        };
        let mut seen = HashSet::new();
        for node in nodes {
            work.expressions.visit(node, &mut seen, &mut |node| {
                if let Node::Lookup(lookup) = work.expressions.node(node) {
                    found.insert((at, by_rows, lookup.index, lookup.length));
                }
            });
        }
    }
    let is_the_same = |strides: &Strides| strides.iter().all(|&stride| stride == 0);
    match found.iter().collect::<Vec<_>>().as_slice() {
        &[&(_, true, index, _)] => work.expressions.strides(index).iter().all(is_the_same),
        _ => false,
    }
}

/// Writes the head, which runs in one block and writes the row counts, and `faults` unless it is null.
fn head(counts: &[Count]) -> String {
    let mut text =
        format!("\nKERNEL({HEAD}, {THREADS}, const int* live, int rows, int* counts, unsigned* faults) {{\n");
    text += "    int count = live_rows(live, rows);\n    EACH {\n";
    text += "        for (int i = TID; faults && i < rows; i += THREADS) faults[i] = 0;\n";
    for (index, Count { factor, by_rows }) in counts.iter().enumerate() {
        let rows = if *by_rows { "count * " } else { "" };
        let _ = writeln!(text, "        if (TID == 0) counts[{index}] = {rows}{factor};");
    }
    text += "        (void)count;\n    }\n}\n";
    text
}

/// Returns the distinct row counts that row kernels read. The number of live rows itself is not among them.
pub(super) fn counts(steps: &[Step]) -> Vec<Count> {
    let mut counts = Vec::new();
    for step in steps {
        if let Step::Rowwise(rowwise) = step
            && rowwise.rows != (Count { factor: 1, by_rows: true })
            && !counts.contains(&rowwise.rows)
        {
            counts.push(rowwise.rows);
        }
    }
    counts
}

/// Returns the type of a buffer's elements in memory.
fn stored_type(buffer: &Buffer) -> &'static str {
    match (buffer.half, buffer.kind) {
        (Some(Half::F16), _) => "f16",
        (Some(Half::Bf16), _) => "bf16",
        (None, Kind::Bool) => "unsigned char",
        (None, kind) => computed_type(kind),
    }
}

/// Returns the type in which values are computed.
fn computed_type(kind: Kind) -> &'static str {
    match kind {
        Kind::F32 => "float",
        Kind::I64 => "i64",
        Kind::I32 => "int",
        Kind::Bool => "bool",
    }
}

/// Returns a constant as source text, exact to the bit.
fn literal(kind: Kind, bits: u64) -> String {
    match kind {
        Kind::F32 => format!("bits_float({:#x}u)", bits as u32),
        Kind::I64 => format!("i64({bits:#x}ull)"),
        Kind::I32 => format!("int({:#x}u)", bits as u32),
        Kind::Bool => (bits != 0).to_string(),
    }
}

fn call(function: Function, operands: &[&str]) -> String {
    format!("{}({})", function.name(), operands.join(", "))
}
