//! Tasks of stages on the simulated device, with one buffer per pair of each boundary (DVABatch section 6.1).

use paternoster_batching::{Knobs, Lease, Task};
use paternoster_device::{Access, BufferId, BufferRows, Device, Region};
use paternoster_model::{Dims, Next, RowOutcome};
use paternoster_testing::sim::{RowSource, Sim, Work, external};

use super::{
    counts::Counts,
    planted::Planted,
    rows_of,
    values::{ROW_BYTES, bytes, value, whole},
};
use crate::{
    OutputTensor, Response,
    job::{Job, Outputs},
    pieces::Piece,
    stages::Programs,
};

/// The buffers of a version, by boundary and pair.
pub(super) struct Arenas {
    pairs: Vec<Vec<Pair>>,
    max_rows: u32,
    planted: Option<Planted>,
}

struct Pair {
    buffer: BufferId,
    /// The batch that wrote it last.
    owner: Option<u64>,
}

impl Arenas {
    /// Returns the rows that a version needs.
    pub(super) fn rows(knobs: &Knobs) -> u64 {
        (knobs.stages.len() as u64 - 1) * u64::from(knobs.buffer_pairs) * u64::from(knobs.max_batch_rows)
    }

    pub(super) fn new(sim: &mut Sim, knobs: &Knobs, planted: Option<Planted>) -> Self {
        let max_rows = knobs.max_batch_rows;
        let mut pair = || Pair { buffer: sim.allocate(max_rows, ROW_BYTES).expect("a small buffer"), owner: None };
        let pairs = (1..knobs.stages.len()).map(|_| (0..knobs.buffer_pairs).map(|_| pair()).collect()).collect();
        Self { pairs, max_rows, planted }
    }

    pub(super) fn into_buffers(self) -> (Vec<BufferId>, u64) {
        let buffers: Vec<BufferId> = self.pairs.iter().flatten().map(|pair| pair.buffer).collect();
        let rows = buffers.len() as u64 * u64::from(self.max_rows);
        (buffers, rows)
    }

    /// Poisons the buffers of batches when no request is left.
    pub(super) fn rest(&mut self, sim: &mut Sim) -> Result<(), String> {
        self.pairs.iter_mut().flatten().try_for_each(|pair| {
            pair.owner = None;
            sim.poison(&Region::new(pair.buffer, 0..self.max_rows)).map_err(|error| error.to_string())
        })
    }

    /// Returns the accesses of a task and its work: its rows at their places in the pairs, and its outputs.
    pub(super) fn work(
        &mut self,
        sim: &mut Sim,
        counts: &mut Counts,
        job: &Job,
        mut work: Work,
        out: BufferId,
    ) -> Result<(Vec<Access>, Work), String> {
        let task = &job.task;
        let mut places: Vec<u32> = rows_of(task).map(|(.., at)| at).collect();
        let rows = places.len() as u32;
        counts.partial_rows += u64::from(places.windows(2).any(|pair| pair[0] + 1 != pair[1]));
        if self.planted == Some(Planted::RowOffsetZero) {
            places = (0..rows).collect();
        }
        let read_at = named(&places);
        if self.planted == Some(Planted::SwappedRows) && rows > 1 {
            places.swap(0, 1);
        }
        let mut accesses = Vec::new();
        for (at, lease) in task.reads.iter().enumerate() {
            let lease = self.misled(*lease, at == 0);
            accesses.push(Access::read(self.pair(task, lease)?.buffer, read_at.clone()));
        }
        let fan_in = accesses.len() as u16;
        let mut written = 1;
        if let Some(lease) = task.writes {
            let max_rows = self.max_rows;
            let lease = self.misled(lease, false);
            let pair = self.pair(task, lease)?;
            if pair.owner != Some(task.batch) {
                counts.pairs_reused += u64::from(pair.owner.is_some());
                pair.owner = Some(task.batch);
                sim.poison(&Region::new(pair.buffer, 0..max_rows)).map_err(|error| error.to_string())?;
            }
            accesses.push(Access::write(pair.buffer, named(&places)));
            written = 2;
        }
        accesses.push(whole(out, rows));
        work.fan_in = u32::from(fan_in.max(1));
        for _ in 0..written {
            if fan_in == 0 {
                work.sources.extend(inputs(job).map(|(number, row)| RowSource::External(external(number, row))));
            } else {
                work.sources
                    .extend((0..rows).flat_map(|row| (0..fan_in).map(move |access| RowSource::Row { access, row })));
            }
        }
        Ok((accesses, work))
    }

    /// Returns a lease as a planted fault changes it.
    fn misled(&self, lease: Lease, is_first_read: bool) -> Lease {
        match self.planted {
            Some(Planted::ForeignLease) if is_first_read => {
                Lease { pair: (lease.pair + 1) % self.pairs[usize::from(lease.boundary)].len() as u16, ..lease }
            }
            Some(Planted::CreditTwice) => Lease { pair: 0, ..lease },
            _ => lease,
        }
    }

    fn pair(&mut self, task: &Task, lease: Lease) -> Result<&mut Pair, String> {
        let pairs = self.pairs.get_mut(usize::from(lease.boundary));
        let pair = pairs.and_then(|pairs| pairs.get_mut(usize::from(lease.pair)));
        pair.ok_or_else(|| format!("{:?} names {lease:?}, which does not exist", task.id))
    }
}

/// For each row of a task, the numbers of its request and of the row, as the request encodes them; for a decoupled
/// request, the number of its earlier responses.
fn inputs(job: &Job) -> impl Iterator<Item = (u64, u64)> + '_ {
    let is_decoupled = job.model.spec.decoupled;
    job.members.iter().flat_map(move |member| {
        let data = member.payload.inputs[0].as_ref().map_or(&[][..], |input| &input.data);
        (member.span.start..member.span.start + member.span.count).map(move |row| {
            let own = value(data, 2 * row as usize + 1);
            (value(data, 2 * row as usize), if is_decoupled { u64::from(member.step) } else { own })
        })
    })
}

/// Whether a task reads rows that another, of an earlier stage, writes.
pub(super) fn needs(task: &Task, other: &Task) -> bool {
    let reads_it = other.writes.is_some_and(|lease| task.reads.contains(&lease));
    task.model == other.model
        && task.batch == other.batch
        && reads_it
        && rows_of(task).any(|(req, row, _)| rows_of(other).any(|(own, own_row, _)| (own, own_row) == (req, row)))
}

/// Returns the parts of responses in a task's outputs.
pub(super) fn outputs(programs: &Programs, job: &Job, values: &[u64], outcomes: &[RowOutcome]) -> Outputs {
    let tensor = |values: &[u64]| OutputTensor {
        shape: Dims::from_slice(&[values.len() as i64, 1]),
        data: bytes(values.iter().copied()),
    };
    let mut outputs = Outputs::default();
    let mut at = 0;
    for (part, member) in job.members.iter().enumerate() {
        let own = at..at + member.span.count as usize;
        at = own.end;
        if let Programs::Whole(_) = programs {
            outputs.responses.push(Response { outputs: vec![tensor(&values[own])] });
            continue;
        }
        for (row, place) in (member.span.start..).zip(own) {
            let is_done = match outcomes[place].next {
                Next::Done => true,
                Next::On => job.task.writes.is_none(),
                Next::Skip(_) | Next::Pause | Next::Failed => false,
            };
            if is_done {
                let piece = Piece { output: 0, rows: row..row + 1, tensor: tensor(&values[place..=place]) };
                outputs.pieces.push((part, piece));
            }
        }
    }
    outputs
}

/// Names places as a range if they are contiguous.
fn named(places: &[u32]) -> BufferRows {
    match (places.first(), places.windows(2).all(|pair| pair[0] + 1 == pair[1])) {
        (Some(&first), true) => (first..first + places.len() as u32).into(),
        _ => BufferRows::List(places.into()),
    }
}
