//! Turns tasks of nodes into launches.

use std::sync::Arc;

use paternoster_batching::{ReqId, SequenceNo, Task, TaskId};
use paternoster_device::{DeviceError, cuda::Cuda};
use paternoster_engine::RunSize;
use paternoster_model::{
    Lengths,
    unfold::{CellInputSource, Start, Tensor},
};
use smallvec::SmallVec;

use super::{
    Cells,
    layout::ReadFrom,
    outputs::{CellReader, is_last, nodes_of},
    sequences::OfSequence,
    task_builder::TaskBuilder,
};
use crate::{
    cells::Node,
    cuda::{
        graph::{GraphSize, OnCard},
        parameters::Section,
        version::{CardVersion, Filled, Reader, Untaken, free},
    },
    job::Job,
};

impl CardVersion for Cells {
    fn programs(&mut self) -> &mut [OnCard] {
        &mut self.cells
    }

    fn size(&self, job: &Job) -> Option<GraphSize> {
        let cell = usize::from(job.task.cell.0);
        let layout = self.layout.cells.get(cell)?;
        // A member without such a node fails later, in `fill`.
        let nodes = (0..job.members.len()).filter_map(|member| self.node(job, member).ok());
        let (mut longest, mut rows) = (Lengths::from_elem(0, layout.axes), 0);
        for node in nodes {
            let own = self.layout.own_lengths(&self.programs, cell, &node);
            longest.iter_mut().zip(own).for_each(|(longest, own)| *longest = own.max(*longest));
            rows += self.layout.node_rows(&self.programs, cell, &node);
        }
        // Nodes that go over rows have several rows each, so their graph is chosen by the sum of rows, not by the
        // bucket of nodes.
        let rows = if layout.by_rows {
            self.sizes[cell].iter().copied().find(|&size| rows <= size as usize)?
        } else {
            job.task.bucket.rows
        };
        let most = job.members.iter().map(|member| member.span.count).max().unwrap_or(1);
        let steps = self.steps[cell].iter().copied().find(|&steps| most <= steps)?;
        Some(GraphSize { run: RunSize { rows, lengths: layout.lengths_for(&longest)? }, steps })
    }

    /// A request of a sequence may begin while tasks of an earlier one that was cancelled still run.
    fn keeps_order(&self) -> bool {
        self.layout.has_sequences()
    }

    fn must_wait(&self, job: &Job, unread_outputs: &Untaken) -> bool {
        // A member without such a node fails later, in `fill`.
        let reads_it = |member: &usize| self.node(job, *member).is_ok_and(|node| self.reads_emitted(job, &node));
        let begins = |source: &CellInputSource| matches!(source, CellInputSource::Carried { is_kept: true, .. });
        let mut nodes = (0..job.members.len()).filter_map(|member| self.node(job, member).ok());
        // The state that the sequence's previous request left is known once the host has taken it.
        let waits = nodes.any(|node| {
            node.place.node == 0
                && node.unfolded_state.waits_for_sequence()
                && node.node_type().inputs.iter().any(begins)
        });
        let members = job.members.iter().enumerate();
        waits
            || members
                .filter(|(_, member)| unread_outputs.has(member.span.req))
                .map(|(number, _)| number)
                .any(|member| reads_it(&member))
    }

    fn fill(&mut self, job: &Job, size: GraphSize, section: &mut Section) -> Result<Filled, String> {
        let cell = usize::from(job.task.cell.0);
        let nodes = job
            .members
            .iter()
            .map(|member| nodes_of(member, &self.programs, cell).collect::<Result<SmallVec<[Node<'_>; 1]>, String>>());
        let nodes: SmallVec<[SmallVec<[Node<'_>; 1]>; 32]> = nodes.collect::<Result<_, _>>()?;
        let rows = nodes.iter().flat_map(|nodes| nodes.first());
        let rows = rows.map(|node| self.layout.node_rows(&self.programs, cell, node)).sum();
        let mut after = SmallVec::new();
        self.sequences.begin_task();
        let members = nodes.iter().zip(&job.members);
        let of_sequences = members.map(|(nodes, member)| self.of_sequence(nodes, member.span.req, &mut after));
        let of_sequences: SmallVec<[OfSequence; 32]> = of_sequences.collect();
        let mut task = TaskBuilder::new(self, cell, size, rows, section);
        for ((member, nodes), of_sequence) in job.members.iter().zip(nodes).zip(of_sequences) {
            task.add(&member.span, &nodes, of_sequence)?;
        }
        Ok(Filled { after, ..task.finish() })
    }

    fn issued(&mut self, task: &Task) {
        self.sequences.issued(task.id);
        for span in &task.rows {
            self.slots.write(span.slot, span.req, span.start + span.count - 1);
        }
    }

    fn sequence_over(&mut self, sequence: SequenceNo) {
        self.sequences.over(sequence);
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(CellReader { programs: Arc::clone(&self.programs), layout: Arc::clone(&self.layout) })
    }

    fn free(self: Box<Self>, card: &mut Cuda) -> Result<(), DeviceError> {
        free(card, self.memory())
    }
}

impl Cells {
    /// Returns what a request's nodes have of its sequence on the card. Adds the tasks that they must come after to
    /// `after`.
    fn of_sequence(&mut self, nodes: &[Node<'_>], req: ReqId, after: &mut SmallVec<[TaskId; 2]>) -> OfSequence {
        let sequence = nodes.first().and_then(|node| node.unfolded_state.sequence_number());
        let Some(sequence) = sequence.filter(|_| self.layout.has_sequences()) else { return OfSequence::Nothing };
        let Some(slot) = self.sequences.open(sequence) else { return OfSequence::NoSlot };
        // The tasks in between read and write only the slot of the request.
        if nodes.iter().any(|node| node.place.node == 0 || is_last(node)) {
            after.extend(self.sequences.touch(slot, req).iter().copied());
        }
        OfSequence::Slot(slot)
    }

    /// Returns the first node that a member of a task runs.
    ///
    /// # Errors
    /// If its request has no such node.
    fn node<'a>(&self, job: &'a Job, member: usize) -> Result<Node<'a>, String> {
        let mut nodes = nodes_of(&job.members[member], &self.programs, usize::from(job.task.cell.0));
        nodes.next().ok_or("a member of a task runs no node")?
    }

    /// Returns whether a node reads an earlier segment's output through the host.
    fn reads_emitted(&self, job: &Job, node: &Node<'_>) -> bool {
        let layout = &self.layout.cells[usize::from(job.task.cell.0)];
        let programs = &node.unfolded_state.programs;
        let emitted = |tensor: &Tensor| matches!(tensor, Tensor::Emitted(_));
        layout.inputs.iter().zip(&node.node_type().inputs).any(|(input, source)| match source {
            CellInputSource::Whole(tensor)
            | CellInputSource::Rows(tensor)
            | CellInputSource::Step { of: tensor, .. } => emitted(tensor) && input.from == ReadFrom::Host,
            CellInputSource::Length(Tensor::Emitted(emitted)) => !self.layout.has_length(programs, *emitted),
            CellInputSource::Carried { start: start @ Start::Tensor(tensor), .. } => {
                node.place.node == 0 && emitted(tensor) && self.layout.begins_in(&self.programs, start).is_none()
            }
            _ => false,
        })
    }
}
