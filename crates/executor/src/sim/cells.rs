//! Tasks of cells on the simulated device. The state of a request is in its slots (BatchMaker section 5), and a node's
//! task reads it in place.
//!
//! A slot has a row for each step of a chain, so a failed node does not destroy its own input. Where each task runs one
//! step of a row, two rows are written in turn.
//!
//! The steps of a task of several are computed one after the other, from what the slots hold: the result is that of as
//! many single steps.

use std::{collections::BTreeMap, sync::Arc};

use paternoster_batching::{CellularKnobs, ReqId};
use paternoster_device::{Access, BufferId, BufferRows, Device};
use paternoster_model::{Dims, Next, RowOutcome};
use paternoster_testing::sim::{RowSource, Sim, Work, content};

use super::{
    counts::Counts,
    planted::Planted,
    values::{ROW_BYTES, START, bytes, value, whole},
    world::MOST_STEPS,
};
use crate::{
    cells::{Row, UnfoldedState},
    job::{Job, Member, Outputs},
};

/// Maximum bytes that a request's nodes may keep.
const MOST_BYTES: usize = 1 << 20;

/// The slots of a version.
pub(super) struct SlotTable {
    buffer: BufferId,
    slots: u32,
    /// Rows per slot.
    turns: u32,
    /// What each row holds.
    values: Vec<u64>,
    /// For each slot, the owner of its state.
    held_by: Vec<Option<(ReqId, u32)>>,
    /// For each request and node of a tree, its slot.
    of_node: BTreeMap<(ReqId, u32), u32>,
}

impl SlotTable {
    /// Returns the rows that a version needs.
    pub(super) fn rows(knobs: &CellularKnobs) -> u64 {
        u64::from(knobs.slots) * u64::from(turns(knobs))
    }

    pub(super) fn new(sim: &mut Sim, knobs: &CellularKnobs) -> Self {
        let (slots, turns) = (knobs.slots, turns(knobs));
        let buffer = sim.allocate(slots * turns, ROW_BYTES).expect("a small table");
        let values = vec![START; (slots * turns) as usize];
        Self { buffer, slots, turns, values, held_by: vec![None; slots as usize], of_node: BTreeMap::new() }
    }

    pub(super) fn into_buffers(self) -> (Vec<BufferId>, u64) {
        (vec![self.buffer], u64::from(self.slots * self.turns))
    }

    /// Returns the accesses of a task and its work: each node writes its row to its slot, and a copy as its output.
    pub(super) fn work(
        &mut self,
        counts: &mut Counts,
        job: &Job,
        mut work: Work,
        out: BufferId,
        planted: Option<Planted>,
    ) -> Result<(Vec<Access>, Work), String> {
        let (id, turns) = (job.task.id, self.turns);
        let moved_by = u32::from(planted == Some(Planted::NextSlot));
        let longest = job.members.iter().map(|member| member.span.count).max().unwrap_or(1);
        counts.chunks += u64::from(longest > 1);
        counts.uneven_chunks += u64::from(job.members.iter().any(|member| member.span.count < longest));
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut sources = Vec::new();
        for (at, member) in job.members.iter().enumerate() {
            let (req, number, slot) = (
                member.span.req,
                member.span.start,
                (member.span.slot + moved_by * (member.span.start % 2)) % self.slots,
            );
            let unfolded_state = unfolded_state(member)?;
            let place = unfolded_state.place(number).ok_or_else(|| format!("{id:?}: {req:?} has no node {number}"))?;
            let holder = self.held_by.get_mut(slot as usize);
            let holder = holder.ok_or_else(|| format!("{id:?} names slot {slot} of {}", self.slots))?;
            let children = unfolded_state.children(place);
            let is_tree = unfolded_state.is_tree(place.segment);
            let holds = (req, if is_tree { number } else { 0 });
            if *holder != Some(holds) {
                counts.slots_reused += u64::from(holder.is_some());
                if let Some(before) = holder.replace(holds) {
                    self.of_node.remove(&before);
                }
            }
            let mut row = |row: u32| {
                reads.push(row);
                RowSource::Row { access: 0, row: reads.len() as u32 - 1 }
            };
            let mut own: Vec<RowSource> = Vec::new();
            if is_tree {
                self.of_node.insert((req, number), slot);
                for child in children {
                    let at = self.of_node.get(&(req, *child));
                    let at = at.ok_or_else(|| format!("{id:?}: node {child} of {req:?} has no slot"))?;
                    own.push(row(*at * turns));
                }
                if children.is_empty() {
                    own.push(RowSource::External(token(member, number)));
                }
                writes.push(slot * turns);
            } else {
                let before = number.checked_sub(1).map(|before| slot * turns + before % turns);
                let state = before.map_or(RowSource::External(START), &mut row);
                let left = (place.nodes - place.node) as u32;
                if member.span.count > left {
                    return Err(format!("{id:?}: {req:?} has {left} steps from node {number} on: {:?}", member.span));
                }
                let steps = steps_of(member.span.count, longest, at + 1 == job.members.len(), planted);
                let last = token(member, number + steps - 1);
                let mut value = before.map_or(START, |before| self.values[before as usize]);
                for step in 0..steps - 1 {
                    value = content(work.program, 0, &[token(member, number + step), value]);
                }
                own.push(RowSource::External(last));
                own.push(if steps == 1 { state } else { RowSource::External(value) });
                let written = slot * turns + (number + (member.span.count - 1)) % turns;
                self.values[written as usize] = content(work.program, 0, &[last, value]);
                writes.push(written);
            }
            sources.push(own);
        }
        let accesses = self.accesses(reads, writes, out);
        work.fan_in = sources.first().map_or(1, Vec::len) as u32;
        // First for the slots, then for the outputs.
        for _ in 0..2 {
            work.sources.extend(sources.iter().flatten().copied());
        }
        Ok((accesses, work))
    }

    /// Returns the accesses of a task that reads and writes these rows of the table, and writes as many outputs.
    fn accesses(&self, reads: Vec<u32>, writes: Vec<u32>, out: BufferId) -> Vec<Access> {
        let outputs = whole(out, writes.len() as u32);
        let reads = (!reads.is_empty()).then(|| Access::read(self.buffer, BufferRows::List(reads.into())));
        let writes = Access::write(self.buffer, BufferRows::List(writes.into()));
        reads.into_iter().chain([writes, outputs]).collect()
    }
}

/// Returns the steps that the device runs of a row that has `count` in its task: another number if that is planted.
fn steps_of(count: u32, longest: u32, is_last: bool, planted: Option<Planted>) -> u32 {
    match planted {
        Some(Planted::StepTooMany) if count > 1 => count + 1,
        Some(Planted::StepsForgotten) if is_last => 1,
        Some(Planted::StepsOfOthers) => longest,
        _ => count,
    }
}

/// Returns the rows per slot.
fn turns(knobs: &CellularKnobs) -> u32 {
    if knobs.cells.iter().any(|cell| cell.chunks.is_some()) { MOST_STEPS } else { 2 }
}

/// Returns the request's data between its cells.
fn unfolded_state(member: &Member) -> Result<&Arc<UnfoldedState>, String> {
    member.unfolded_state.as_ref().ok_or_else(|| format!("{:?} has not unfolded", member.span.req))
}

/// Returns the value that a request supplies for one of its nodes.
fn token(member: &Member, number: u32) -> u64 {
    let data = member.payload.inputs[0].as_ref().map_or(&[][..], |input| &input.data);
    value(data, number as usize)
}

/// Whether a task has a node that reads a value written by a node of another task.
pub(super) fn needs(job: &Job, other: &Job) -> bool {
    job.members.iter().any(|member| {
        let Ok(unfolded_state) = unfolded_state(member) else { return false };
        let Some(place) = unfolded_state.place(member.span.start) else { return false };
        let children = unfolded_state.children(place);
        let is_tree = unfolded_state.is_tree(place.segment);
        let earlier = other.members.iter().filter(|other| other.span.req == member.span.req);
        earlier
            .map(|other| other.span.start)
            .any(|number| if is_tree { children.contains(&number) } else { number < member.span.start })
    })
}

/// Stores the nodes' values in their requests, from which the responses are built.
pub(super) fn outputs(job: &Job, values: &[u64], outcomes: &[RowOutcome]) -> Result<Outputs, String> {
    for ((member, &value), outcome) in job.members.iter().zip(values).zip(outcomes) {
        let unfolded_state = unfolded_state(member)?;
        let place = unfolded_state.place(member.span.start).ok_or("a request lacks a node")?;
        if unfolded_state.is_past_the_end(place) {
            continue;
        }
        unfolded_state.keep(place, 0, Row::alone(Dims::from_slice(&[1]), bytes([value])), MOST_BYTES)?;
        if outcome.next == Next::Done {
            unfolded_state.end(place);
        }
    }
    Ok(Outputs::default())
}
