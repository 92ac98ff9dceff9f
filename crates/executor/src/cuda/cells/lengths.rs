//! Lengths of a request's tensors. The host cannot read them from the card. They follow from the request's inputs, the
//! steps of its segments, and the lengths that programs derive from those of their inputs.

use paternoster_model::{
    Lengths,
    unfold::{CellInputSource, Nodes, Segment, Tensor, Unfolded},
};

use super::{
    layout::{CellLayout, Layout, OutputLength},
    spans::Span,
    taking::keeps_of,
};
use crate::cells::{CellPrograms, Node, NodePlace, UnfoldedState};

/// The sizes from which a request's lengths follow.
pub(super) trait Sizes {
    /// Returns the length of a request's input along its first axis.
    fn input(&self, input: usize) -> Option<u32>;

    /// Returns the maximum number of a segment's nodes whose outputs count.
    fn nodes(&self, segment: usize) -> u32;
}

/// A request that is running. Loops that have ended count the steps that they took.
impl Sizes for UnfoldedState {
    fn input(&self, input: usize) -> Option<u32> {
        self.input_length(input).and_then(|length| u32::try_from(length).ok())
    }

    fn nodes(&self, segment: usize) -> u32 {
        self.steps_of(segment)
    }
}

/// A request before its first node. Each segment counts the most nodes that it can have.
pub(super) struct Submission<'a> {
    /// Indexed by input of the model.
    pub(super) lengths: &'a [Option<u32>],
    pub(super) graph: &'a [Unfolded],
}

impl Sizes for Submission<'_> {
    fn input(&self, input: usize) -> Option<u32> {
        self.lengths.get(input).copied().flatten()
    }

    fn nodes(&self, segment: usize) -> u32 {
        self.graph.get(segment).map_or(0, Unfolded::nodes)
    }
}

impl Layout {
    /// Returns the length of a request's tensor along its first axis. All segments that it depends on must have ended.
    /// `None` if the length is known only from the tensor itself.
    pub(super) fn length_of(&self, programs: &CellPrograms, sizes: &dyn Sizes, tensor: Tensor) -> Option<u32> {
        let emitted = match tensor {
            Tensor::Input(input) => return sizes.input(input),
            Tensor::Emitted(emitted) => emitted,
        };
        let segment = &programs.unfolding.segments[emitted.segment];
        let emit = &segment.emits[emitted.emit];
        if segment.nodes != Nodes::Stage {
            return self.spans.of((emitted.segment, emit.output)).map(|_| sizes.nodes(emitted.segment));
        }
        self.length_left(programs, sizes, segment, emit.output)
    }

    /// Returns the length of a stage's output along its first axis.
    pub(super) fn length_left(
        &self,
        programs: &CellPrograms,
        sizes: &dyn Sizes,
        segment: &Segment,
        output: usize,
    ) -> Option<u32> {
        let own = &segment.types[0];
        if own.goes_over_rows() {
            return self.rows_of(programs, sizes, &own.inputs);
        }
        let layout = &self.cells[own.cell];
        match layout.output_length(output) {
            OutputLength::Axis(axis) => self.own_length(programs, sizes, layout, &own.inputs, axis, 0),
            OutputLength::Fixed | OutputLength::Unknown => None,
        }
    }

    /// Returns the number of rows of a node that goes over the rows of tensors.
    pub(super) fn rows_of(
        &self,
        programs: &CellPrograms,
        sizes: &dyn Sizes,
        inputs: &[CellInputSource],
    ) -> Option<u32> {
        inputs.iter().find_map(|source| match source {
            CellInputSource::Rows(tensor) => self.length_of(programs, sizes, *tensor),
            _ => None,
        })
    }

    /// Returns the length of a cell's axis for the node at index `node` of its segment.
    fn own_length(
        &self,
        programs: &CellPrograms,
        sizes: &dyn Sizes,
        layout: &CellLayout,
        inputs: &[CellInputSource],
        axis: usize,
        node: u32,
    ) -> Option<u32> {
        let mut of_axis = layout.inputs.iter().zip(inputs).filter(|(input, _)| input.axis == Some(axis));
        of_axis.find_map(|(_, source)| self.length_read(programs, sizes, source, node))
    }

    /// Returns the length of what an input reads, for the node at index `node` of its segment.
    pub(super) fn length_read(
        &self,
        programs: &CellPrograms,
        sizes: &dyn Sizes,
        source: &CellInputSource,
        node: u32,
    ) -> Option<u32> {
        match source {
            CellInputSource::Grown { .. } => Some(node),
            CellInputSource::Whole(tensor) => self.length_of(programs, sizes, *tensor),
            _ => None,
        }
    }

    /// Returns the length of each of a cell's axes for a node.
    pub(super) fn own_lengths(&self, programs: &CellPrograms, cell: usize, node: &Node<'_>) -> Lengths {
        let layout = &self.cells[cell];
        let Node { unfolded_state, place: NodePlace { node: number, .. } } = *node;
        let inputs = &node.node_type().inputs;
        let own = |axis| self.own_length(programs, unfolded_state, layout, inputs, axis, number as u32);
        (0..layout.axes).map(|axis| own(axis).unwrap_or(0)).collect()
    }

    /// Returns the number of a node's rows in a task of its cell.
    pub(super) fn node_rows(&self, programs: &CellPrograms, cell: usize, node: &Node<'_>) -> usize {
        if !self.cells[cell].by_rows {
            return 1;
        }
        self.rows_of(programs, node.unfolded_state, &node.node_type().inputs).unwrap_or(0) as usize
    }

    /// Returns the span to which nodes of a segment's type write an output of their cell.
    pub(super) fn span_written(
        &self,
        programs: &CellPrograms,
        segment: usize,
        role: usize,
        output: usize,
    ) -> Option<Span> {
        keeps_of(programs, segment, role, output).find_map(|keep| self.spans.of((segment, keep.outputs[0])))
    }

    /// Checks that a request of these sizes is within the lengths that the version's graphs were captured for.
    ///
    /// # Errors
    /// If it is not; the text has the segment, the input or output, and the limit.
    pub(super) fn check_request(&self, programs: &CellPrograms, sizes: &dyn Sizes) -> Result<(), String> {
        for (number, segment) in programs.unfolding.segments.iter().enumerate() {
            let within = |what: &str, length: u32, most: u32| {
                let name = &segment.name;
                if length <= most {
                    return Ok(());
                }
                Err(format!(
                    "segment '{name}' would have {length} entries of '{what}', expected at most {most}, the most that \
                     the model is prepared for on cards (instance.lengths)"
                ))
            };
            let last = sizes.nodes(number).saturating_sub(1);
            for own in &segment.types {
                let (layout, spec) = (&self.cells[own.cell], &programs.unfolding.cells[own.cell]);
                for ((input, source), spec) in layout.inputs.iter().zip(&own.inputs).zip(&spec.inputs) {
                    let length = self.length_read(programs, sizes, source, last);
                    if let (Some(axis), Some(length)) = (input.axis, length) {
                        within(&spec.name, length, layout.longest(axis))?;
                    }
                }
                if own.goes_over_rows()
                    && let Some(rows) = self.rows_of(programs, sizes, &own.inputs)
                {
                    within(&spec.inputs[0].name, rows, programs.most_steps)?;
                }
            }
            for ((_, output), span) in self.spans.iter().filter(|((own, _), _)| *own == number) {
                let spec = &programs.unfolding.cells[segment.types[0].cell].outputs[output];
                let is_emitted = segment.emits.iter().any(|emit| emit.output == output);
                let length = match segment.nodes {
                    Nodes::Stage => self.length_left(programs, sizes, segment, output).unwrap_or(0),
                    _ if is_emitted => sizes.nodes(number),
                    // No later step reads the last step's entry.
                    _ => last,
                };
                within(&spec.name, length, span.most)?;
            }
        }
        Ok(())
    }
}
