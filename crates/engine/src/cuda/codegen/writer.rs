//! Writes the source of one kernel: values, elements of buffers, sections.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use super::{Generated, THREADS, call, computed_type, literal, space::Space, stored_type};
use crate::cuda::{
    constants,
    fuse::{Kernel, Section},
    ir::{Buffer, BufferId, Expressions, Fetch, Holder, Index, Kind, Lookup, Node, NodeId, Place, Strides, View, Work},
};

/// Writes one kernel.
pub(super) struct Writer<'w> {
    work: &'w Work,
    /// The loop body, which runs for every row.
    pub text: String,
    buffers: Vec<BufferId>,
    notes_faults: bool,
    has_batch: bool,
    clears_faults: bool,
}

impl<'w> Writer<'w> {
    /// Starts a kernel. With `clears_faults`, its lookup writes the row's fault in either case.
    pub(super) fn new(work: &'w Work, has_batch: bool, clears_faults: bool) -> Self {
        Self { work, text: String::new(), buffers: Vec::new(), notes_faults: false, has_batch, clears_faults }
    }

    /// Returns the expressions of the plan.
    pub(super) fn expressions(&self) -> &'w Expressions {
        &self.work.expressions
    }

    /// Appends a line.
    pub(super) fn line(&mut self, depth: usize, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", 4 * depth);
    }

    /// Returns the parameter name of a buffer.
    fn name(&mut self, buffer: BufferId) -> String {
        let place = self.buffers.iter().position(|&known| known == buffer).unwrap_or_else(|| {
            self.buffers.push(buffer);
            self.buffers.len() - 1
        });
        format!("b{place}")
    }

    /// Returns the value of a view's element, at an additional offset of `more`.
    fn value(&mut self, view: &View, terms: Vec<String>, more: Option<String>) -> String {
        let Buffer { kind, half, .. } = self.work.buffers[view.buffer];
        let element = self.element(view, terms, more);
        match (half, kind) {
            (Some(_), _) => format!("to_float({element})"),
            (None, Kind::Bool) => format!("{element} != 0"),
            (None, _) => element,
        }
    }

    /// Returns a statement that stores a value as an element of a view.
    pub(super) fn stored(&mut self, view: &View, terms: Vec<String>, value: &str) -> String {
        let element = self.element(view, terms, None);
        match self.work.buffers[view.buffer].half {
            Some(_) => format!("round_to({value}, {element});"),
            None => format!("{element} = {value};"),
        }
    }

    /// Returns an element of a view, at an additional offset of `more`.
    fn element(&mut self, view: &View, terms: Vec<String>, more: Option<String>) -> String {
        let buffer = &self.work.buffers[view.buffer];
        let row = buffer.by_rows.then(|| match buffer.elements {
            1 => "row".to_owned(),
            elements => format!("i64(row) * {elements}"),
        });
        let offset = (view.offset != 0).then(|| view.offset.to_string());
        let place: Vec<String> = row.into_iter().chain(more).chain(terms).chain(offset).collect();
        let place = if place.is_empty() { "0".to_owned() } else { place.join(" + ") };
        format!("{}[{place}]", self.name(view.buffer))
    }

    /// Returns the value of a constant view that is the same everywhere.
    fn constant(&self, kind: Kind, view: &View) -> Option<String> {
        let Holder::Constant(bytes) = &self.work.buffers[view.buffer].holder else { return None };
        if view.strides.iter().any(|&stride| stride != 0) {
            return None;
        }
        constants::bits(kind, bytes, usize::try_from(view.offset).ok()?).map(|bits| literal(kind, bits))
    }

    /// Writes code that computes expressions at a place, and returns the names of their values. `offset` returns the
    /// offset of the place in a view with given strides. Values are numbered in order of appearance, so that kernels
    /// that compute the same have equal text.
    pub(super) fn compute(
        &mut self,
        depth: usize,
        nodes: &[NodeId],
        by_rows: bool,
        offset: &dyn Fn(&Strides) -> Vec<String>,
    ) -> Vec<String> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for &node in nodes {
            self.expressions().visit(node, &mut seen, &mut |node| order.push(node));
        }
        let mut names: HashMap<NodeId, String> = HashMap::new();
        for node in order {
            let kind = self.expressions().kind(node);
            let declared = computed_type(kind);
            let number = names.len();
            let value = match self.expressions().node(node) {
                Node::Number(bits) => literal(kind, *bits),
                Node::Load(view) => match self.constant(kind, view) {
                    Some(constant) => constant,
                    None => self.value(view, offset(&view.strides), None),
                },
                Node::Lookup(Lookup { table, stride, length, index }) => {
                    // An index out of range gives 0, and marks the row as faulty.
                    self.line(depth, &format!("i64 at{number} = entry_of({}, {length});", names[index]));
                    if by_rows || !self.has_batch {
                        self.notes_faults = true;
                        let note = if self.clears_faults {
                            format!("faults[row] = at{number} < 0 ? FAULT_ID : 0;")
                        } else {
                            format!("if (at{number} < 0) faults[row] = FAULT_ID;")
                        };
                        self.line(depth, &note);
                    }
                    let element = self.value(table, offset(&table.strides), Some(format!("at{number} * {stride}")));
                    format!("at{number} < 0 ? {declared}(0) : {declared}({element})")
                }
                Node::Place(Place { offset: first, strides }) => {
                    let mut terms = offset(strides);
                    if *first != 0 || terms.is_empty() {
                        terms.push(first.to_string());
                    }
                    terms.join(" + ")
                }
                Node::Fetch(Fetch { from, indices, outside }) => {
                    let name = |index: &Index| &names[&index.node];
                    let inside = indices.iter().map(|it| format!("unsigned({}) < {}u", name(it), it.length));
                    let inside: Vec<String> = inside.collect();
                    let mut terms: Vec<String> =
                        indices.iter().map(|it| format!("{} * {}", name(it), it.stride)).collect();
                    terms.extend(offset(&from.strides));
                    let element = self.value(from, terms, None);
                    format!("{} ? {declared}({element}) : {}", inside.join(" && "), literal(kind, *outside))
                }
                Node::Apply(function, operands) => {
                    let operands: Vec<&str> = operands.iter().map(|operand| names[operand].as_str()).collect();
                    call(*function, &operands)
                }
            };
            self.line(depth, &format!("{declared} v{number} = {value};"));
            names.insert(node, format!("v{number}"));
        }
        nodes.iter().map(|node| names[node].clone()).collect()
    }

    /// Returns the strides of everything on which the expressions depend.
    pub(super) fn strides(&self, nodes: impl Iterator<Item = NodeId>) -> Vec<Strides> {
        nodes.flat_map(|node| self.expressions().strides(node)).collect()
    }

    fn section(&mut self, section: &Section, by_rows: bool) -> usize {
        let nodes: Vec<NodeId> = section.stores.iter().map(|(_, node)| *node).collect();
        let mut strides = self.strides(nodes.iter().copied());
        strides.extend(section.stores.iter().map(|(to, _)| to.strides.clone()));
        let space = Space::new(&section.dims, &strides.iter().collect::<Vec<_>>());
        let elements = space.elements();
        self.line(2, "EACH {");
        self.line(3, &format!("for (int i = blockIdx.y * THREADS + TID; i < {elements}; i += gridDim.y * THREADS) {{"));
        self.line(4, &space.places("x", "i"));
        let values = self.compute(4, &nodes, by_rows, &|strides| space.offset("x", strides));
        for ((to, _), value) in section.stores.iter().zip(values) {
            let stored = self.stored(to, space.offset("x", &to.strides), &value);
            self.line(4, &stored);
        }
        self.line(3, "}");
        self.line(2, "}");
        elements
    }

    /// Writes a kernel of stores, in which each thread computes one element at a time. Returns its text after the name,
    /// and its launch data.
    pub(super) fn pointwise(&mut self, kernel: &Kernel) -> (String, Generated) {
        let sections = kernel.sections.iter();
        let most = sections.map(|section| self.section(section, kernel.by_rows)).max().unwrap_or(0);
        let written: HashSet<BufferId> =
            kernel.sections.iter().flat_map(|it| &it.stores).map(|(to, _)| to.buffer).collect();
        let threads = most.next_multiple_of(32).clamp(32, THREADS);
        self.finish(kernel.by_rows, &written, "", most.div_ceil(threads), threads)
    }

    /// Completes the kernel with its parameters, which are known once the body is written.
    pub(super) fn finish(
        &mut self,
        by_rows: bool,
        written: &HashSet<BufferId>,
        registers: &str,
        blocks: usize,
        threads: usize,
    ) -> (String, Generated) {
        let mut text = "const int* live, int rows".to_owned();
        for (place, buffer) in self.buffers.iter().enumerate() {
            let constness = if written.contains(buffer) { "" } else { "const " };
            let _ = write!(text, ", {constness}{}* b{place}", stored_type(&self.work.buffers[*buffer]));
        }
        text += if self.notes_faults { ", unsigned* faults) {\n" } else { ") {\n" };
        text += if by_rows { "    int count = live_rows(live, rows);\n" } else { "    int count = 1;\n" };
        text += registers;
        text += "    for (int row = blockIdx.x; row < count; row += gridDim.x) {\n";
        text += &self.text;
        text += "    }\n}\n";
        let (buffers, notes_faults) = (std::mem::take(&mut self.buffers), self.notes_faults);
        (text, Generated { name: String::new(), buffers, notes_faults, by_rows, blocks, threads })
    }
}
