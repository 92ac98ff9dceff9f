//! A task of a stage made into a launch: the rows that its requests bring, and where the others lie.

use std::sync::Arc;

use super::{Boundary, HOST_ROWS, Stages, buffers, layout::ReadFrom, outputs::StageReader};
use crate::{
    batching::{Lease, RowSpan, Task},
    device::{Access, DeviceError, Rows, cuda::Cuda},
    executor::{
        cuda::{
            graph::{OnCard, Parameters, Section},
            version::{Filled, Reader, Version, free},
        },
        job::{Job, Member},
    },
};

impl Version for Stages {
    fn programs(&mut self) -> &mut [OnCard] {
        &mut self.stages
    }

    fn fill(&self, job: &Job, section: &mut Section) -> Result<Filled, String> {
        let task = &job.task;
        let number = usize::from(task.cell.0);
        let layout = self.layout.stages.get(number).ok_or_else(|| format!("there is no stage {number}"))?;
        let rows = task.row_count() as usize;
        let mut parameters = Parameters::new(&self.stages[number].around, task.bucket.rows, rows);
        let first = section.first_row as i32;
        (0..rows).for_each(|row| parameters.name(HOST_ROWS, row, first + row as i32));
        let mut accesses = Vec::new();
        for &boundary in &layout.reads {
            let lease = task.reads.iter().find(|lease| lease.boundary == boundary);
            let lease = *lease.ok_or_else(|| format!("the batch keeps nothing at boundary {boundary}"))?;
            let named = self.named(task, lease, &mut parameters, layout.reads(boundary))?;
            self.check_written(task, lease, &named)?;
            let named: Rows = Rows::List(named.into());
            let tensors = &self.boundaries[usize::from(boundary)].tensors;
            accesses.extend(tensors.iter().map(|kept| Access::read(kept.buffer, named.clone())));
        }
        if let Some(lease) = task.writes {
            let named: Rows = Rows::List(self.named(task, lease, &mut parameters, layout.writes())?.into());
            let tensors = &self.boundaries[usize::from(lease.boundary)].tensors;
            accesses.extend(tensors.iter().map(|kept| Access::write(kept.buffer, named.clone())));
        }
        let mut ring = 0;
        for input in &layout.inputs {
            let ReadFrom::Request(number) = input.from else { continue };
            let mut to = section.brought[ring].bytes_mut();
            ring += 1;
            for member in &job.members {
                let own = brought(member, number, input.row_bytes);
                let own = own.ok_or_else(|| {
                    let name = &self.spec.inputs[number].name;
                    format!("input '{name}' of model '{}' does not have the rows that its shape says", self.spec.name)
                })?;
                let (into, rest) = to.split_at_mut(own.len());
                into.copy_from_slice(own);
                to = rest;
            }
        }
        let is_taken = layout.answers;
        Ok(Filled { parameters: parameters.finish(section), accesses, failures: Vec::new(), is_taken })
    }

    fn issued(&mut self, task: &Task) {
        let Some(lease) = task.writes else { return };
        for span in &task.rows {
            let Some(first) = self.rows(lease, span.at, span.count) else { continue };
            let Boundary { written_by, .. } = &mut self.boundaries[usize::from(lease.boundary)];
            for number in 0..span.count {
                written_by[(first + number) as usize] = Some((task.batch, span.req, span.start + number));
            }
        }
    }

    fn reader(&self) -> Arc<dyn Reader> {
        let (spec, programs) = (Arc::clone(&self.spec), self.programs.clone());
        Arc::new(StageReader { spec, programs, layout: Arc::clone(&self.layout) })
    }

    fn free(self: Box<Self>, card: &mut Cuda) -> Result<(), DeviceError> {
        free(card, buffers(&self.boundaries))
    }
}

impl Stages {
    /// The rows of a task in a lease, which a list of its parameters names.
    fn named(&self, task: &Task, lease: Lease, parameters: &mut Parameters, list: usize) -> Result<Vec<u32>, String> {
        let mut named = Vec::with_capacity(task.row_count() as usize);
        for RowSpan { at, count, .. } in &task.rows {
            let first = self.rows(lease, *at, *count);
            let first = first.ok_or_else(|| format!("{:?} names rows of {lease:?} that do not exist", task.id))?;
            named.extend(first..first + count);
        }
        for (row, at) in named.iter().enumerate() {
            parameters.name(list, row, *at as i32);
        }
        Ok(named)
    }

    /// Whether the rows that a task reads are those that its own batch wrote.
    fn check_written(&self, task: &Task, lease: Lease, named: &[u32]) -> Result<(), String> {
        let written_by = &self.boundaries[usize::from(lease.boundary)].written_by;
        let rows = task.rows.iter().flat_map(|span| (0..span.count).map(|row| (span.req, span.start + row)));
        for ((req, row), at) in rows.zip(named) {
            if written_by[*at as usize] != Some((task.batch, req, row)) {
                return Err(format!("row {row} of {req:?} has not run stage {}", lease.boundary));
            }
        }
        Ok(())
    }
}

/// The rows of a request's input that are in a task.
fn brought(member: &Member, input: usize, row_bytes: usize) -> Option<&[u8]> {
    let data = &member.payload.inputs.get(input)?.as_ref()?.data;
    let (start, count) = (member.span.start as usize, member.span.count as usize);
    data.get(start * row_bytes..(start + count) * row_bytes)
}
