//! Outputs of tasks of cells, as the host reads them.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::RowSpan;
use paternoster_engine::RowFailure;
use paternoster_model::{Dims, Next, RowOutcome, element_count, unfold::Nodes};
use smallvec::SmallVec;

use super::layout::{Layout, OutputLength};
use crate::{
    cells::{CellPrograms, Node, Row},
    cuda::{
        parameters::Section,
        version::{Ended, Reader},
    },
    job::{Job, Member, Outputs},
};

/// Reads the sections of a version's completed tasks.
pub(super) struct CellReader {
    pub(super) programs: Arc<CellPrograms>,
    pub(super) layout: Arc<Layout>,
}

/// The rows of a completed task.
struct CompletedRows<'a> {
    of: &'a CellReader,
    cell: usize,
    section: &'a Section,
    /// Indexed by member.
    members: Vec<CompletedNodes<'a>>,
}

/// The nodes of one member: none if its request has no such nodes.
type CompletedNodes<'a> = SmallVec<[CompletedNode<'a>; 1]>;

/// A node, the index of its first row, and the number of its rows.
struct CompletedNode<'a> {
    node: Node<'a>,
    at: usize,
    rows: usize,
}

impl Reader for CellReader {
    fn ran(&self, job: &Job, section: &Section, mut failures: Vec<RowFailure>) -> Ended {
        let left = CompletedRows::new(self, job, section);
        let refused: Vec<u32> = failures.iter().map(|failure| failure.row).collect();
        let mut outcomes = Vec::with_capacity(job.members.len());
        for (member, nodes) in left.members.iter().enumerate() {
            let is_refused = refused.contains(&(member as u32));
            let mut rows = nodes.iter().flat_map(|own| own.at..own.at + own.rows);
            let is_faulty = rows.any(|row| section.is_faulty(row));
            if !is_refused && is_faulty {
                let name = &self.programs.unfolding.cells[left.cell].name;
                let reason = format!("cell '{name}': an index is beyond its table");
                failures.push(RowFailure { row: member as u32, reason });
            }
            outcomes.push(match nodes.last().filter(|_| !is_refused && !is_faulty) {
                Some(own) => own.node.outcome(|output| left.row(own, output)),
                None => RowOutcome { next: Next::Failed, emitted: false },
            });
        }
        Ended { outcomes, failures }
    }

    fn take(&self, job: &Job, section: &Section, most_bytes: usize) -> Result<Outputs, String> {
        let left = CompletedRows::new(self, job, section);
        let mut outputs = Outputs::default();
        for (member, nodes) in left.members.iter().enumerate() {
            for own in nodes {
                let node = &own.node;
                let (segment, role) = (node.place.segment, node.unfolded_state.role(node.place));
                let is_last = is_last(node);
                let is_taken = |output| self.layout.host_reads.is_taken(&self.programs, segment, role, output, is_last);
                let row = |output| is_taken(output).then(|| left.row(own, output)).flatten();
                if let Err(fault) = node.keep(row, most_bytes) {
                    outputs.failures.push((member, fault));
                    break;
                }
                outputs.streamed.extend(node.response(row).map(|response| (member, response)));
            }
        }
        Ok(outputs)
    }
}

impl<'a> CompletedRows<'a> {
    fn new(of: &'a CellReader, job: &'a Job, section: &'a Section) -> Self {
        let cell = usize::from(job.task.cell.0);
        let rows_of_step = job.task.bucket.rows as usize;
        let mut first_row = 0;
        let members = job.members.iter().map(|member| {
            let nodes = nodes_of(member, &of.programs, cell).map_while(Result::ok).enumerate();
            let nodes: CompletedNodes<'_> = nodes
                .map(|(step, node)| {
                    let rows = of.layout.node_rows(&of.programs, cell, &node);
                    CompletedNode { node, at: first_row + step * rows_of_step, rows }
                })
                .collect();
            first_row += nodes.first().map_or(0, |own| own.rows);
            nodes
        });
        let members = members.collect();
        Self { of, cell, section, members }
    }

    /// Returns a node's value of an output that the host takes. If the cell goes over rows, the node's rows are joined
    /// along a first axis.
    fn row(&self, of: &CompletedNode<'_>, output: usize) -> Option<Row> {
        let CompletedNode { node, at, rows } = of;
        let layout = &self.of.layout.cells[self.cell];
        let ring = layout.fetched.iter().position(|fetched| fetched.output == output)?;
        let pitch = layout.fetched[ring].row_bytes.pitch();
        let spec = &self.of.programs.unfolding.cells[self.cell].outputs[output];
        let mut dims = spec.dims.clone();
        if let (OutputLength::Axis(axis), Some(first)) = (layout.output_length(output), dims.first_mut()) {
            let own = self.of.layout.own_lengths(&self.of.programs, self.cell, node);
            *first = i64::from(own[axis]);
        }
        if layout.by_rows {
            let of_row = std::mem::take(&mut dims);
            dims = Dims::from_slice(&[*rows as i64]);
            dims.extend_from_slice(&of_row);
        }
        let bytes = element_count(&dims)?.checked_mul(spec.datatype.size_bytes()?)?;
        let bytes = self.section.fetched[ring].bytes().get(at * pitch..at * pitch + bytes)?;
        Some(Row::alone(dims, Bytes::copy_from_slice(bytes)))
    }
}

/// Returns the nodes that a member of a task runs, one after another.
pub(super) fn nodes_of<'a>(
    member: &'a Member,
    programs: &CellPrograms,
    cell: usize,
) -> impl Iterator<Item = Result<Node<'a>, String>> {
    let RowSpan { start, count, .. } = member.span;
    (start..start + count).map(move |number| {
        let unfolded_state = member.unfolded_state.as_ref().ok_or("a request has not unfolded")?;
        Node::of(unfolded_state, number, 1, programs, cell)
    })
}

/// Returns whether a node may be the last of its segment, as far as is known before it runs.
pub(super) fn is_last(node: &Node<'_>) -> bool {
    match node.segment().nodes {
        Nodes::Stage => true,
        // Any step may end the loop.
        Nodes::Decode { until: Some(_), .. } => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => node.place.node + 1 == node.place.nodes,
        Nodes::Tree { .. } => node.unfolded_state.is_root(node.place),
    }
}
