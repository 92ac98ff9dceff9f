//! Outputs of tasks of cells, as the host reads them.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::{Next, RowOutcome};
use paternoster_engine::RowFailure;
use paternoster_model::{Dims, element_count, unfold::Nodes};

use super::layout::{Layout, OutputLength};
use crate::{
    cells::{CellPrograms, Node, Row},
    cuda::{
        parameters::Section,
        version::{Ended, Reader},
    },
    job::Job,
    job::Outputs,
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
    /// For each member: its node, if its request has one, the index of its first row, and the number of its rows.
    nodes: Vec<(Option<Node<'a>>, usize, usize)>,
}

impl Reader for CellReader {
    fn ran(&self, job: &Job, section: &Section, mut failures: Vec<RowFailure>) -> Ended {
        let left = CompletedRows::new(self, job, section);
        let refused: Vec<u32> = failures.iter().map(|failure| failure.row).collect();
        let mut outcomes = Vec::with_capacity(job.members.len());
        for (member, (node, at, rows)) in left.nodes.iter().enumerate() {
            let is_refused = refused.contains(&(member as u32));
            let is_faulty = (*at..at + rows).any(|row| section.is_faulty(row));
            if !is_refused && is_faulty {
                let name = &self.programs.unfolding.cells[left.cell].name;
                let reason = format!("cell '{name}': an index is beyond its table");
                failures.push(RowFailure { row: member as u32, reason });
            }
            outcomes.push(match node.filter(|_| !is_refused && !is_faulty) {
                Some(node) => node.outcome(|output| left.row(member, output)),
                None => RowOutcome { next: Next::Failed, emitted: false },
            });
        }
        Ended { outcomes, failures }
    }

    fn take(&self, job: &Job, section: &Section, most_bytes: usize) -> Result<Outputs, String> {
        let left = CompletedRows::new(self, job, section);
        let mut outputs = Outputs::default();
        for (member, (node, ..)) in left.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let at = (node.place.segment, node.journey.role(node.place));
            let is_last = is_last(node);
            let is_taken = |output| self.layout.host_reads.is_taken(&self.programs, at, output, is_last);
            let row = |output| is_taken(output).then(|| left.row(member, output)).flatten();
            match node.keep(row, most_bytes) {
                Ok(()) => outputs.streamed.extend(node.response(row).map(|response| (member, response))),
                Err(fault) => outputs.failures.push((member, fault)),
            }
        }
        Ok(outputs)
    }
}

impl<'a> CompletedRows<'a> {
    fn new(of: &'a CellReader, job: &'a Job, section: &'a Section) -> Self {
        let cell = usize::from(job.task.cell.0);
        let mut at = 0;
        let nodes = job.members.iter().map(|member| {
            let journey = member.journey.as_ref();
            let node = journey
                .and_then(|journey| Node::of(journey, (member.span.start, member.span.count), &of.programs, cell).ok());
            let rows = node.as_ref().map_or(0, |node| of.layout.node_rows(&of.programs, cell, node));
            at += rows;
            (node, at - rows, rows)
        });
        let nodes = nodes.collect();
        Self { of, cell, section, nodes }
    }

    /// Returns a member's value of an output that the host takes. If the cell goes over rows, the member's rows are
    /// joined along a first axis.
    fn row(&self, member: usize, output: usize) -> Option<Row> {
        let (node, at, rows) = self.nodes.get(member)?;
        let layout = &self.of.layout.cells[self.cell];
        let ring = layout.fetched.iter().position(|fetched| fetched.output == output)?;
        let pitch = layout.fetched[ring].row_bytes.pitch();
        let spec = &self.of.programs.unfolding.cells[self.cell].outputs[output];
        let mut dims = spec.dims.clone();
        if let (OutputLength::Axis(axis), Some(first)) = (layout.output_length(output), dims.first_mut()) {
            let own = self.of.layout.own_lengths(&self.of.programs, self.cell, node.as_ref()?);
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

/// Returns whether a node may be the last of its segment, as far as is known before it runs.
pub(super) fn is_last(node: &Node<'_>) -> bool {
    match node.segment().nodes {
        Nodes::Stage => true,
        // Any step may end the loop.
        Nodes::Decode { until: Some(_), .. } => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => node.place.node + 1 == node.place.nodes,
        Nodes::Tree { .. } => node.journey.is_root(node.place),
    }
}
