//! Turns tasks of stages into launches: writes the rows that requests bring, and lists where the other rows lie.

use std::sync::Arc;

use paternoster_batching::{Lease, RowSpan, Task};
use paternoster_device::{
    Access, BufferRows, DeviceError,
    cuda::{Address, Cuda, ImportedSlice},
};
use paternoster_engine::RunSize;
use paternoster_model::element_count;

use super::{
    Boundary, HOST_ROWS, Stages, buffers,
    layout::{Input, ReadFrom},
    outputs::StageReader,
};
use crate::{
    cuda::{
        graph::{GraphSize, OnCard},
        parameters::{Parameters, Ring, Section},
        version::{CardVersion, Filled, Reader, free},
    },
    gather::{Rows as Given, copy_rows},
    job::Job,
    record::Payload,
};

impl CardVersion for Stages {
    fn programs(&mut self) -> &mut [OnCard] {
        &mut self.stages
    }

    fn size(&self, job: &Job) -> Option<GraphSize> {
        let bucket = &job.task.bucket;
        self.layout.lengths_for(&bucket.class).map(|lengths| RunSize { rows: bucket.rows, lengths }.into())
    }

    fn fill(&mut self, job: &Job, size: GraphSize, section: &mut Section) -> Result<Filled, String> {
        let lengths = size.run.lengths;
        let task = &job.task;
        let number = usize::from(task.cell.0);
        let layout = self.layout.stages.get(number).ok_or_else(|| format!("there is no stage {number}"))?;
        let rows = task.row_count() as usize;
        let mut parameters = Parameters::new(self.stages[number].around.lists, task.bucket.rows, rows);
        let first = section.first_row as i32;
        // Rings span all sections, so a task's rows are numbered from its section's first row.
        (0..rows).for_each(|row| parameters.name(HOST_ROWS, row, first + row as i32));
        let mut row = 0;
        for member in &job.members {
            let count = member.span.count as usize;
            for (axis, &length) in member.payload.lengths.iter().take(self.layout.axes()).enumerate() {
                let length = i32::try_from(length).unwrap_or(i32::MAX);
                (row..row + count).for_each(|row| parameters.name(layout.lengths(axis), row, length));
            }
            row += count;
        }
        let mut accesses = Vec::new();
        for &boundary in &layout.reads {
            let lease = task.reads.iter().find(|lease| lease.boundary == boundary);
            let lease = *lease.ok_or_else(|| format!("the batch keeps nothing at boundary {boundary}"))?;
            let named = self.named(task, lease, &mut parameters, layout.reads(boundary))?;
            // The core assumes that earlier tasks ran. If one failed before its launch, these rows hold another batch's
            // data.
            self.check_written(task, lease, &named)?;
            let named: BufferRows = BufferRows::List(named.into());
            let tensors = &self.boundaries[usize::from(boundary)].tensors;
            accesses.extend(tensors.iter().map(|kept| Access::read(kept.buffer, named.clone())));
        }
        if let Some(lease) = task.writes {
            let named: BufferRows = BufferRows::List(self.named(task, lease, &mut parameters, layout.writes())?.into());
            let tensors = &self.boundaries[usize::from(lease.boundary)].tensors;
            accesses.extend(tensors.iter().map(|kept| Access::write(kept.buffer, named.clone())));
        }
        let mut ring = 0;
        for input in &layout.inputs {
            let ReadFrom::Request(number) = input.from else { continue };
            let to = section.brought[ring].bytes_mut();
            let places = |payload: &Payload| payload.on_card.as_ref()?.input(number).map(ImportedSlice::address);
            // Rows that lie on the card keep their row of the ring, unused, so one list of row numbers serves all
            // inputs.
            place(job, &mut parameters, Ring::Brought(ring), input.row_bytes.pitch(), places);
            ring += 1;
            self.bring(job, number, input, lengths, to).ok_or_else(|| {
                let name = &self.spec.inputs[number].name;
                format!("input '{name}' of model '{}' does not have the rows that its shape says", self.spec.name)
            })?;
        }
        for (ring, output) in layout.outputs.iter().filter(|output| output.is_fetched).enumerate() {
            let Some(number) = output.reply else { continue };
            let places = |payload: &Payload| payload.on_card.as_ref()?.output(number).map(ImportedSlice::address);
            place(job, &mut parameters, Ring::Fetched(ring), output.row_bytes.pitch(), places);
        }
        let is_taken = layout.answers;
        Ok(Filled { parameters: parameters.finish(section, true), accesses, is_taken, ..Filled::default() })
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

/// Gives rows of tensors that lie on the card places of their own, so they are read or written there. `first` returns
/// the address where a request's tensor begins, if it lies on the card.
fn place(
    job: &Job,
    parameters: &mut Parameters,
    ring: Ring,
    row_bytes: usize,
    first: impl Fn(&Payload) -> Option<Address>,
) {
    let mut row = 0;
    for member in &job.members {
        let (start, count) = (member.span.start as usize, member.span.count as usize);
        if let Some(first) = first(&member.payload) {
            (0..count).for_each(|own| parameters.place(ring, row + own, first.offset((start + own) * row_bytes)));
        }
        row += count;
    }
}

impl Stages {
    /// Writes an input's rows to `to`, each padded to the lengths of this index. Rows on the card are skipped. Returns
    /// `None` if a request has fewer rows than its shape says.
    fn bring(&self, job: &Job, number: usize, input: &Input, lengths: usize, mut to: &mut [u8]) -> Option<()> {
        let spec = &self.spec.inputs[number];
        let (row_bytes, pitch) = (input.row_bytes.at(lengths), input.row_bytes.pitch());
        let dims = spec.dims_at(&self.layout.lengths[lengths]);
        let size = spec.datatype.size_bytes()?;
        for member in &job.members {
            let given = member.payload.inputs.get(number)?.as_ref()?;
            let own = &given.shape[usize::from(self.spec.has_batch_axis())..];
            let own_bytes = element_count(own)?.checked_mul(size)?;
            let (start, count) = (member.span.start as usize, member.span.count as usize);
            let (into, rest) = to.split_at_mut_checked(count * pitch)?;
            to = rest;
            if member.payload.on_card.as_ref().is_some_and(|tensors| tensors.input(number).is_some()) {
                continue;
            }
            let data = given.data.get(start * own_bytes..(start + count) * own_bytes)?;
            if own_bytes == pitch {
                into.copy_from_slice(data);
                continue;
            }
            for (row, into) in into.chunks_exact_mut(pitch).enumerate() {
                let data = &data[row * own_bytes..][..own_bytes];
                copy_rows([Given { count: 1, dims: own, data }], spec, (&dims, size), &mut into[..row_bytes]);
            }
        }
        Some(())
    }

    /// Returns the rows of a task in a lease, and sets them in a list of the task's parameters.
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

    /// Checks that the task's own batch wrote the rows that it reads.
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
