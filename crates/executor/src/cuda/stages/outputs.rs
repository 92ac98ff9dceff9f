//! Outputs of tasks of stages, as the host reads them.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_engine::{BatchOutput, RowFailure};
use paternoster_model::{Lengths, ModelSpec, Next, RowOutcome};
use smallvec::SmallVec;

use super::layout::Layout;
use crate::{
    StagePrograms,
    cuda::{
        parameters::Section,
        version::{Ended, Reader},
    },
    exits::RanStage,
    gather::{Part, with_rows},
    job::{Job, Member, Outputs},
    scatter::{BatchLengths, scatter},
    stages::Programs,
};

/// Reads the sections of a version's completed tasks.
pub(super) struct StageReader {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) programs: StagePrograms,
    pub(super) layout: Arc<Layout>,
}

impl Reader for StageReader {
    fn ran(&self, job: &Job, section: &Section, mut failures: Vec<RowFailure>) -> Ended {
        let rows = job.task.row_count() as usize;
        let mut outcomes = Vec::new();
        for row in (0..rows).filter(|&row| section.is_faulty(row)) {
            outcomes.resize(rows, RowOutcome { next: Next::On, emitted: false });
            outcomes[row].next = Next::Failed;
            failures.push(RowFailure { row: row as u32, reason: "an index is beyond its table".to_owned() });
        }
        let Programs::Cut(stages) = &self.programs.0 else { return Ended { outcomes, failures } };
        let number = usize::from(job.task.cell.0);
        let (parts, own) = parts_of(job);
        // Only the values of exits are read here, which have no lengths.
        let lengths = BatchLengths { padded: &job.task.bucket.class.0, own: &own };
        let answers = RanStage { spec: &self.spec, stages, number, parts: &parts, lengths };
        // Loading checked that each exit's value is one FP32, so this does not fail.
        let taken = answers.exits_taken(|output| self.values(job, section, output)).unwrap_or_default();
        let outcomes = answers.outcomes(&taken, outcomes);
        Ended { outcomes, failures }
    }

    fn take(&self, job: &Job, section: &Section, _: usize) -> Result<Outputs, String> {
        let (parts, own) = parts_of(job);
        let rows = job.task.row_count() as usize;
        let number = usize::from(job.task.cell.0);
        let at = self.layout.lengths_for(&job.task.bucket.class).ok_or("it is longer than any that are prepared")?;
        let lengths = BatchLengths { padded: &self.layout.lengths[at], own: &own };
        let made = self.layout.stages[number].outputs.iter().enumerate().map(|(output, own)| {
            let (row_bytes, pitch) = (own.row_bytes.at(at), own.row_bytes.pitch());
            let data = self.values(job, section, output).unwrap_or_default();
            let data = if row_bytes == pitch {
                Bytes::copy_from_slice(data)
            } else {
                Bytes::from_iter(data.chunks_exact(pitch).flat_map(|row| &row[..row_bytes]).copied())
            };
            let dims = &own.dims[at];
            let shape = if self.spec.has_batch_axis() { with_rows(rows, dims) } else { dims.clone() };
            BatchOutput { shape, data }
        });
        let made: Vec<BatchOutput> = made.collect();
        let mut outputs = Outputs::default();
        match &self.programs.0 {
            Programs::Cut(stages) => {
                let answers = RanStage { spec: &self.spec, stages, number, parts: &parts, lengths };
                let taken = answers.exits_taken(|output| self.values(job, section, output))?;
                outputs.pieces = answers.pieces(&taken, &made)?;
            }
            _ => outputs.responses = scatter(&self.spec, &parts, lengths, &made)?,
        }
        forget_placed(job, &mut outputs);
        job.detach_responses(&mut outputs);
        Ok(outputs)
    }
}

impl StageReader {
    /// Returns the rows of an output that the host reads, at the pitch of the longest.
    fn values<'s>(&self, job: &Job, section: &'s Section, output: usize) -> Option<&'s [u8]> {
        let outputs = &self.layout.stages[usize::from(job.task.cell.0)].outputs;
        let own = outputs.get(output).filter(|own| own.is_fetched)?;
        let ring = outputs[..output].iter().filter(|other| other.is_fetched).count();
        section.fetched[ring].bytes().get(..job.task.row_count() as usize * own.row_bytes.pitch())
    }
}

/// Clears the data of outputs that lie on the card: the section's rows for them were not written.
fn forget_placed(job: &Job, outputs: &mut Outputs) {
    let is_placed = |part: usize, output: usize| job.members[part].payload.is_placed(output);
    for (part, response) in outputs.responses.iter_mut().enumerate() {
        for (output, tensor) in response.outputs.iter_mut().enumerate() {
            if is_placed(part, output) {
                tensor.data = Bytes::new();
            }
        }
    }
    for (part, piece) in &mut outputs.pieces {
        if is_placed(*part, piece.output) {
            piece.tensor.data = Bytes::new();
        }
    }
}

fn parts_of(job: &Job) -> (SmallVec<[Part<'_>; 8]>, SmallVec<[&Lengths; 8]>) {
    let lengths = job.members.iter().map(|member| &member.payload.lengths);
    (job.members.iter().map(Member::part).collect(), lengths.collect())
}
