//! The source of a plan's kernels, in the vocabulary of `kernels/README.md`. Shapes are numbers in the text; memory, and
//! how many rows there are, are arguments.

use std::{collections::HashSet, fmt::Write as _};

use super::{
    constants,
    fuse::{Kernel, Section, Step},
    ir::{
        BufferId, Count, Expressions, Function, Holder, Kind, Lookup, Node, NodeId, Reduce, Reduction, Strides, View,
        Work,
    },
};

/// Threads of a block, at most.
pub const THREADS: usize = 256;
/// What every program begins with.
const FUNCTIONS: &str = include_str!("functions.h");

/// A kernel that was generated. Its arguments are `live`, `rows`, these buffers, and `faults` where it notes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Its name in the program.
    pub name: String,
    /// Its buffers, in the order of its parameters.
    pub buffers: Vec<BufferId>,
    /// Whether `faults` is its last parameter.
    pub notes_faults: bool,
    /// Whether it runs for each row.
    pub by_rows: bool,
    /// Blocks that a row has work for.
    pub blocks: usize,
    /// Threads of each.
    pub threads: usize,
}

/// The head of a plan: counts of rows for the kernels that take them, and no faults.
pub const HEAD: &str = "head";

fn stored_type(kind: Kind) -> &'static str {
    match kind {
        Kind::F32 => "float",
        Kind::I64 => "i64",
        Kind::I32 => "int",
        Kind::Bool => "unsigned char",
    }
}

fn computed_type(kind: Kind) -> &'static str {
    if kind == Kind::Bool { "bool" } else { stored_type(kind) }
}

/// A number in the program, to the bit.
fn literal(kind: Kind, bits: u64) -> String {
    match kind {
        Kind::F32 => format!("bits_float({:#x}u)", bits as u32),
        Kind::I64 => format!("i64({bits:#x}ull)"),
        Kind::I32 => format!("int({:#x}u)", bits as u32),
        Kind::Bool => (bits != 0).to_string(),
    }
}

/// Writes a plan's program: the head, where `counts` or faults need one, and a kernel for each step that has none of its
/// own. By step.
pub fn program(work: &Work, steps: &[Step], counts: &[Count], has_batch: bool) -> (String, Vec<Option<Generated>>) {
    let mut text = FUNCTIONS.to_owned();
    let generated: Vec<Option<Generated>> = steps
        .iter()
        .enumerate()
        .map(|(at, step)| {
            let mut writer = Writer { work, text: String::new(), buffers: Vec::new(), notes_faults: false, has_batch };
            let made = match step {
                Step::Kernel(kernel) => writer.pointwise(&format!("pointwise_{at}"), kernel),
                Step::Reduce(reduce) => writer.reduction(&format!("reduce_{at}"), reduce),
                Step::Product(_) | Step::Rowwise(_) => return None,
            };
            text += &made.0;
            Some(made.1)
        })
        .collect();
    let notes_faults = generated.iter().flatten().any(|kernel| kernel.notes_faults);
    if !counts.is_empty() || notes_faults {
        text += &head(counts);
    }
    (text, generated)
}

/// One block: the counts of rows, and `faults`, unless it is null.
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

/// Writes one kernel.
struct Writer<'w> {
    work: &'w Work,
    text: String,
    buffers: Vec<BufferId>,
    notes_faults: bool,
    has_batch: bool,
}

/// An index space, with axes that all views walk as one made one.
struct Space {
    /// Lengths, and which axis of the views each is the last of.
    axes: Vec<(usize, usize)>,
}

impl Space {
    fn new(dims: &[usize], views: &[&Strides]) -> Self {
        let mut axes: Vec<(usize, usize)> = Vec::new();
        for (axis, &length) in dims.iter().enumerate().filter(|(_, length)| **length != 1) {
            let goes_on = |strides: &&Strides, last: usize| strides[last] == strides[axis] * length as i64;
            match axes.last_mut() {
                Some((before, last)) if views.iter().all(|strides| goes_on(strides, *last)) => {
                    *before *= length;
                    *last = axis;
                }
                _ => axes.push((length, axis)),
            }
        }
        Self { axes }
    }

    fn elements(&self) -> usize {
        self.axes.iter().map(|(length, _)| length).product()
    }

    /// The places along each axis, from one number.
    fn places(&self, prefix: &str, index: &str) -> String {
        let mut inner: usize = 1;
        let mut text = String::new();
        for (number, (length, _)) in self.axes.iter().enumerate().rev() {
            let over = if inner == 1 { index.to_owned() } else { format!("{index} / {inner}") };
            let within = if number == 0 { over } else { format!("{over} % {length}") };
            let _ = write!(text, "int {prefix}{number} = {within}; ");
            inner *= length;
        }
        text.trim_end().to_owned()
    }

    /// How far into a view a place is.
    fn offset(&self, prefix: &str, strides: &Strides) -> Vec<String> {
        let term = |(number, (_, axis)): (usize, &(usize, usize))| match strides[*axis] {
            0 => None,
            1 => Some(format!("{prefix}{number}")),
            stride => Some(format!("{prefix}{number} * {stride}")),
        };
        self.axes.iter().enumerate().filter_map(term).collect()
    }
}

impl Writer<'_> {
    fn expressions(&self) -> &Expressions {
        &self.work.expressions
    }

    /// The parameter of a buffer.
    fn name(&mut self, buffer: BufferId) -> String {
        let place = self.buffers.iter().position(|&known| known == buffer).unwrap_or_else(|| {
            self.buffers.push(buffer);
            self.buffers.len() - 1
        });
        format!("b{place}")
    }

    /// An element of a view, `more` elements further on.
    fn element(&mut self, view: &View, terms: Vec<String>, more: Option<String>) -> String {
        let buffer = &self.work.buffers[view.buffer];
        let row = buffer.by_rows.then(|| format!("i64(row) * {}", buffer.elements));
        let offset = (view.offset != 0).then(|| view.offset.to_string());
        let place: Vec<String> = row.into_iter().chain(more).chain(terms).chain(offset).collect();
        let place = if place.is_empty() { "0".to_owned() } else { place.join(" + ") };
        format!("{}[{place}]", self.name(view.buffer))
    }

    /// The constant of a view that has the same everywhere.
    fn constant(&self, kind: Kind, view: &View) -> Option<String> {
        let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
        if view.strides.iter().any(|&stride| stride != 0) {
            return None;
        }
        constants::bits(kind, bytes, usize::try_from(view.offset).ok()?).map(|bits| literal(kind, bits))
    }

    /// Computes expressions at a place; `offset` says how far into a view with these strides it is.
    fn compute(&mut self, indent: &str, nodes: &[NodeId], by_rows: bool, offset: &dyn Fn(&Strides) -> Vec<String>) {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for &node in nodes {
            self.expressions().visit(node, &mut seen, &mut |node| order.push(node));
        }
        for node in order {
            let kind = self.expressions().kind(node);
            let value = match self.expressions().node(node).clone() {
                Node::Number(bits) => literal(kind, bits),
                Node::Load(view) => match self.constant(kind, &view) {
                    Some(constant) => constant,
                    None => {
                        let element = self.element(&view, offset(&view.strides), None);
                        if kind == Kind::Bool { format!("{element} != 0") } else { element }
                    }
                },
                Node::Lookup(Lookup { table, stride, length, index }) => {
                    let _ = writeln!(self.text, "{indent}i64 at{node} = entry_of(v{index}, {length});");
                    if by_rows || !self.has_batch {
                        self.notes_faults = true;
                        let _ = writeln!(self.text, "{indent}if (at{node} < 0) faults[row] = FAULT_ID;");
                    }
                    let element = self.element(&table, offset(&table.strides), Some(format!("at{node} * {stride}")));
                    format!("at{node} < 0 ? {}(0) : {}({element})", computed_type(kind), computed_type(kind))
                }
                Node::Apply(function, operands) => {
                    let operands: Vec<String> = operands.iter().map(|operand| format!("v{operand}")).collect();
                    call(function, &operands)
                }
            };
            let _ = writeln!(self.text, "{indent}{} v{node} = {value};", computed_type(kind));
        }
    }

    /// The strides of all that expressions read.
    fn strides(&self, nodes: impl Iterator<Item = NodeId>) -> Vec<Strides> {
        nodes.flat_map(|node| self.expressions().views(node)).map(|view| view.strides).collect()
    }

    fn section(&mut self, section: &Section, by_rows: bool) -> usize {
        let nodes: Vec<NodeId> = section.stores.iter().map(|(_, node)| *node).collect();
        let mut strides = self.strides(nodes.iter().copied());
        strides.extend(section.stores.iter().map(|(to, _)| to.strides.clone()));
        let space = Space::new(&section.dims, &strides.iter().collect::<Vec<_>>());
        let elements = space.elements();
        let indent = " ".repeat(16);
        let _ = writeln!(
            self.text,
            "        EACH {{\n            for (int i = blockIdx.y * THREADS + TID; i < {elements}; \
             i += gridDim.y * THREADS) {{"
        );
        if !space.axes.is_empty() {
            let _ = writeln!(self.text, "{indent}{}", space.places("x", "i"));
        }
        self.compute(&indent, &nodes, by_rows, &|strides| space.offset("x", strides));
        for (to, node) in &section.stores {
            let element = self.element(to, space.offset("x", &to.strides), None);
            let _ = writeln!(self.text, "{indent}{element} = v{node};");
        }
        self.text += "            }\n        }\n";
        elements
    }

    fn pointwise(&mut self, name: &str, kernel: &Kernel) -> (String, Generated) {
        let sections = kernel.sections.iter();
        let most = sections.map(|section| self.section(section, kernel.by_rows)).max().unwrap_or(0);
        let written: HashSet<BufferId> =
            kernel.sections.iter().flat_map(|it| &it.stores).map(|(to, _)| to.buffer).collect();
        let threads = most.next_multiple_of(32).clamp(32, THREADS);
        self.finish(name, kernel.by_rows, &written, "", (most.div_ceil(threads), threads))
    }

    fn reduction(&mut self, name: &str, reduce: &Reduce) -> (String, Generated) {
        let Reduce { reduction, by_rows, outer, inner, node, to } = reduce;
        let kind = self.expressions().kind(*node);
        let all: Vec<Strides> = self.strides([*node].into_iter());
        let parts = |range: std::ops::Range<usize>| -> Vec<Strides> {
            all.iter().map(|strides| Strides::from_slice(&strides[range.clone()])).collect()
        };
        let (of_outer, of_inner) = (parts(0..outer.len()), parts(outer.len()..outer.len() + inner.len()));
        let outer_space = Space::new(outer, &of_outer.iter().collect::<Vec<_>>());
        let inner_space = Space::new(inner, &of_inner.iter().collect::<Vec<_>>());
        let (results, count) = (outer_space.elements(), inner_space.elements());
        // Threads side by side read side by side: along the results where these lie so, else along what is reduced.
        let results_lie_so = outer_space.axes.last().is_some_and(|(_, axis)| of_outer.iter().any(|it| it[*axis] == 1));
        let by_blocks = kind == Kind::F32 && count >= 32 && !results_lie_so;
        let start = match (reduction, kind) {
            (Reduction::Sum, _) => literal(kind, 0),
            (Reduction::Max, Kind::F32) => "-bits_float(0x7f800000u)".to_owned(),
            (Reduction::Min, Kind::F32) => "bits_float(0x7f800000u)".to_owned(),
            (Reduction::Max, Kind::I64) => literal(kind, i64::MIN.cast_unsigned()),
            (Reduction::Min, Kind::I64) => literal(kind, i64::MAX.cast_unsigned()),
            (Reduction::Max, _) => literal(kind, 0x8000_0000),
            (Reduction::Min, _) => literal(kind, 0x7fff_ffff),
        };
        let function = match reduction {
            Reduction::Sum => Function::Add,
            Reduction::Max => Function::Max,
            Reduction::Min => Function::Min,
        };
        let offset = |strides: &Strides| -> Vec<String> {
            let (own, rest) = strides.split_at(outer.len());
            let mut terms = outer_space.offset("x", &Strides::from_slice(own));
            terms.extend(inner_space.offset("y", &Strides::from_slice(rest)));
            terms
        };
        let result = View { buffer: *to, offset: 0, strides: Strides::from_slice(&[1]) };
        let declared = computed_type(kind);
        let outer_places = outer_space.places("x", "o");
        let inner_places = inner_space.places("y", "i");
        let indent = " ".repeat(20);
        if by_blocks {
            let _ = writeln!(
                self.text,
                "        for (int o = blockIdx.y; o < {results}; o += gridDim.y) {{\n            {outer_places}\n            \
                 EACH {{\n                part() = {start};\n                for (int i = TID; i < {count}; i += THREADS) \
                 {{\n{indent}{inner_places}"
            );
            self.compute(&indent, &[*node], *by_rows, &offset);
            let (own, over_block) = match reduction {
                Reduction::Sum => (call(function, &["part()".to_owned(), format!("v{node}")]), "BLOCK_SUM(part)"),
                Reduction::Max => (call(function, &["part()".to_owned(), format!("v{node}")]), "BLOCK_MAX(part)"),
                // The smallest is the largest of the negatives.
                Reduction::Min => (call(function, &["part()".to_owned(), format!("v{node}")]), "-BLOCK_MAX(part)"),
            };
            let _ = writeln!(self.text, "{indent}part() = {own};\n                }}");
            if *reduction == Reduction::Min {
                self.text += "                part() = -part();\n";
            }
            let element = self.element(&result, vec!["o".to_owned()], None);
            let _ = writeln!(
                self.text,
                "            }}\n            float whole = {over_block};\n            EACH {{\n                \
                 if (TID == 0) {element} = whole;\n            }}\n        }}"
            );
        } else {
            let _ = writeln!(
                self.text,
                "        EACH {{\n            for (int o = blockIdx.y * THREADS + TID; o < {results}; \
                 o += gridDim.y * THREADS) {{\n                {outer_places}\n                {declared} whole = {start};\n\
                 {:16}for (int i = 0; i < {count}; ++i) {{\n{indent}{inner_places}",
                ""
            );
            self.compute(&indent, &[*node], *by_rows, &offset);
            let own = call(function, &["whole".to_owned(), format!("v{node}")]);
            let element = self.element(&result, vec!["o".to_owned()], None);
            let _ = writeln!(
                self.text,
                "{indent}whole = {own};\n                }}\n                {element} = whole;\n            }}\n        }}"
            );
        }
        let shape = if by_blocks {
            (results, count.next_multiple_of(32).min(THREADS))
        } else {
            let threads = results.next_multiple_of(32).clamp(32, THREADS);
            (results.div_ceil(threads), threads)
        };
        let registers = if by_blocks { "    Reg<float> part;\n" } else { "" };
        self.finish(name, *by_rows, &HashSet::from([*to]), registers, shape)
    }

    /// Puts the parameters before what was written.
    fn finish(
        &mut self,
        name: &str,
        by_rows: bool,
        written: &HashSet<BufferId>,
        registers: &str,
        (blocks, threads): (usize, usize),
    ) -> (String, Generated) {
        let mut text = format!("\nKERNEL({name}, {THREADS}, const int* live, int rows");
        for (place, buffer) in self.buffers.iter().enumerate() {
            let constness = if written.contains(buffer) { "" } else { "const " };
            let _ = write!(text, ", {constness}{}* b{place}", stored_type(self.work.buffers[*buffer].kind));
        }
        text += if self.notes_faults { ", unsigned* faults) {\n" } else { ") {\n" };
        text += if by_rows { "    int count = live_rows(live, rows);\n" } else { "    int count = 1;\n" };
        text += registers;
        text += "    for (int row = blockIdx.x; row < count; row += gridDim.x) {\n";
        text += &self.text;
        text += "    }\n}\n";
        let buffers = self.buffers.clone();
        let notes_faults = self.notes_faults;
        (text, Generated { name: name.to_owned(), buffers, notes_faults, by_rows, blocks, threads })
    }
}

fn call(function: Function, operands: &[String]) -> String {
    format!("{}({})", function.name(), operands.join(", "))
}

/// The counts of rows that kernels over rows are told, each once; `live` itself is none of them.
pub fn counts(steps: &[Step]) -> Vec<Count> {
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
