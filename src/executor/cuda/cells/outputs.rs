//! What tasks of cells leave for the host.

use std::sync::Arc;

use bytes::Bytes;

use super::layout::{Layout, is_taken};
use crate::{
    batching::{Next, RowOutcome},
    engine::RowFailure,
    executor::{
        cells::{CellPrograms, Node, Row},
        cuda::{
            graph::Section,
            version::{Ended, Reader},
        },
        job::Job,
        ran::Outputs,
    },
    model::unfold::Nodes,
};

/// Reads what tasks of a version have left.
pub(super) struct CellReader {
    pub(super) programs: Arc<CellPrograms>,
    pub(super) layout: Arc<Layout>,
}

/// A task's rows.
struct Left<'a> {
    of: &'a CellReader,
    job: &'a Job,
    section: &'a Section,
}

impl Reader for CellReader {
    fn ran(&self, job: &Job, section: &Section, mut failures: Vec<RowFailure>) -> Ended {
        let left = Left { of: self, job, section };
        let refused: Vec<u32> = failures.iter().map(|failure| failure.row).collect();
        let mut outcomes = Vec::with_capacity(job.members.len());
        for row in 0..job.members.len() {
            let is_refused = refused.contains(&(row as u32));
            let is_faulty = section.is_faulty(row);
            if !is_refused && is_faulty {
                let name = &self.programs.unfolding.cells[left.cell()].name;
                let reason = format!("cell '{name}': an index is beyond its table");
                failures.push(RowFailure { row: row as u32, reason });
            }
            outcomes.push(match left.node(row).filter(|_| !is_refused && !is_faulty) {
                Some(node) => node.outcome(|output| left.row(row, output)),
                None => RowOutcome { next: Next::Failed, emitted: false },
            });
        }
        Ended { outcomes, failures, ends_rows: true }
    }

    fn take(&self, job: &Job, section: &Section, most_bytes: usize) -> Result<Outputs, String> {
        let left = Left { of: self, job, section };
        let mut outputs = Outputs::default();
        for part in 0..job.members.len() {
            let Some(node) = left.node(part) else { continue };
            let at = (node.place.segment, node.journey.role(node.place));
            let is_last = is_last(&node);
            let row = |output| is_taken(&self.programs, at, output, is_last).then(|| left.row(part, output)).flatten();
            match node.keep(row, most_bytes) {
                Ok(()) => outputs.streamed.extend(node.response(row).map(|response| (part, response))),
                Err(fault) => outputs.failures.push((part, fault)),
            }
        }
        Ok(outputs)
    }
}

impl Left<'_> {
    fn cell(&self) -> usize {
        usize::from(self.job.task.cell.0)
    }

    fn node(&self, row: usize) -> Option<Node<'_>> {
        let member = self.job.members.get(row)?;
        Node::of(member.journey.as_ref()?, member.span.start, &self.of.programs, self.cell()).ok()
    }

    /// A row of an output that the host takes.
    fn row(&self, row: usize, output: usize) -> Option<Row> {
        let fetched = &self.of.layout.cells[self.cell()].fetched;
        let ring = fetched.iter().position(|fetched| fetched.output == output)?;
        let row_bytes = fetched[ring].row_bytes;
        let bytes = &self.section.fetched[ring].bytes()[row * row_bytes..][..row_bytes];
        let spec = &self.of.programs.unfolding.cells[self.cell()].outputs[output];
        Some(Row::alone(spec.dims.clone(), Bytes::copy_from_slice(bytes)))
    }
}

/// Whether a node is the last of its segment, as far as is known before it has run.
pub(super) fn is_last(node: &Node<'_>) -> bool {
    match node.segment().nodes {
        Nodes::Stage => true,
        // Which step ends the loop is not known.
        Nodes::Decode { until: Some(_), .. } => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => node.place.node + 1 == node.place.nodes,
        Nodes::Tree { .. } => node.journey.is_root(node.place),
    }
}
