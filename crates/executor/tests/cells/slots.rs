//! Slots as a device uses them: a table of states for each segment of each version. Tasks say which slots are written;
//! a node reads the slots that its children wrote.

use std::collections::BTreeMap;

use paternoster_batching::{RowSpan, Task};

/// A fault planted in the slots of a task, between the core and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// All requests of a version have the same slot.
    OneForAll,
    /// Two rows of a task name each other's slots.
    Swapped,
    /// A request continues in another slot than it began in.
    Moved,
    /// All nodes of a tree have the same slot.
    OneForATree,
    /// A slot beyond those of the version.
    Beyond,
    /// An ended request's slot is given to the next while a row of it is in flight.
    ReturnedEarly,
}

/// The holders and contents of slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    planted: Option<Planted>,
    /// The request that holds a slot, keyed by model and slot.
    holders: BTreeMap<(usize, u32), u64>,
    /// A request's slots, keyed by request and place: 0 for a chain, the node for a tree.
    of_request: BTreeMap<(u64, u32), u32>,
    /// Keyed by model, segment and slot.
    states: BTreeMap<(usize, usize, u32), u64>,
    /// For the fault `ReturnedEarly`: a slot for each model that was returned early, and the requests that got one.
    early: BTreeMap<usize, u32>,
    stolen: BTreeMap<u64, u32>,
}

impl Slots {
    pub(super) fn new(planted: Option<Planted>) -> Self {
        Self { planted, ..Self::default() }
    }

    /// Plants the fault in a task; `model` returns the model of a request.
    pub(super) fn plant(&mut self, task: &mut Task, model: impl Fn(u64) -> usize) {
        let id = task.id.0 as u32;
        match self.planted {
            Some(Planted::OneForAll) => task.rows.iter_mut().for_each(|row| row.slot = 0),
            Some(Planted::Moved) => task.rows.iter_mut().for_each(|row| row.slot = (row.slot + id) % 6),
            Some(Planted::Beyond) => task.rows.iter_mut().for_each(|row| row.slot += 60),
            Some(Planted::OneForATree) => {
                let first = |row: &RowSpan| self.of_request.range((row.req.0, 0)..).next();
                let of_own =
                    |row: &RowSpan| first(row).filter(|((req, _), _)| *req == row.req.0).map(|(_, slot)| *slot);
                task.rows.iter_mut().for_each(|row| row.slot = of_own(row).unwrap_or(row.slot));
            }
            Some(Planted::Swapped) => {
                if let [first, .., last] = task.rows.as_mut_slice() {
                    std::mem::swap(&mut first.slot, &mut last.slot);
                }
            }
            Some(Planted::ReturnedEarly) => {
                for row in &mut task.rows {
                    let is_new = self.of_request.range((row.req.0, 0)..=(row.req.0, u32::MAX)).next().is_none();
                    if is_new && let Some(slot) = self.early.remove(&model(row.req.0)) {
                        self.stolen.insert(row.req.0, slot);
                    }
                    row.slot = self.stolen.get(&row.req.0).copied().unwrap_or(row.slot);
                }
            }
            None => {}
        }
    }

    /// Records the launch of a row with this place among its request's slots, in a model with `all` slots. Checks that
    /// it is the slot that the request had there before, and that no other request or place has it.
    pub(super) fn launched(&mut self, model: usize, all: u32, place: u32, row: &RowSpan) -> Result<(), String> {
        if row.slot >= all {
            return Err(format!("{row:?} names a slot beyond the {all} of model {model}"));
        }
        let before = *self.of_request.entry((row.req.0, place)).or_insert(row.slot);
        if before != row.slot {
            return Err(format!("{row:?} goes on in another slot than {before}"));
        }
        let holder = *self.holders.entry((model, row.slot)).or_insert(row.req.0);
        if holder != row.req.0 {
            return Err(format!("{row:?} names a slot of request {holder}"));
        }
        let own = self.of_request.range((row.req.0, 0)..=(row.req.0, u32::MAX));
        match own.into_iter().find(|((_, other), slot)| *other != place && **slot == row.slot) {
            Some(((_, other), _)) => Err(format!("{row:?} names the slot of node {other}")),
            None => Ok(()),
        }
    }

    pub(super) fn write(&mut self, model: usize, segment: usize, slot: u32, state: u64) {
        self.states.insert((model, segment, slot), state);
    }

    /// Returns the contents of a request's slot, and checks that they are what was last written for the request.
    pub(super) fn read(
        &self,
        model: usize,
        segment: usize,
        req: u64,
        place: u32,
        expected: u64,
    ) -> Result<u64, String> {
        let slot = self.of_request.get(&(req, place));
        let slot = *slot.ok_or_else(|| format!("request {req} has no slot for node {place}"))?;
        match self.states.get(&(model, segment, slot)) {
            Some(&found) if found == expected => Ok(found),
            found => Err(format!("slot {slot} of request {req} holds {found:?}, not the {expected} written for it")),
        }
    }

    /// Records the end of a request that has rows in flight.
    pub(super) fn ended_in_flight(&mut self, model: usize, req: u64) {
        if let Some(&slot) = self.of_request.get(&(req, 0)) {
            self.early.insert(model, slot);
        }
    }

    /// Frees the slots of a request that has ended and has no row in flight.
    pub(super) fn release(&mut self, model: usize, req: u64) {
        let places: Vec<u32> =
            self.of_request.range((req, 0)..=(req, u32::MAX)).map(|((_, place), _)| *place).collect();
        for slot in places.into_iter().filter_map(|place| self.of_request.remove(&(req, place))) {
            self.holders.remove(&(model, slot));
            self.states.retain(|(own, _, of_slot), _| (*own, *of_slot) != (model, slot));
        }
    }
}
