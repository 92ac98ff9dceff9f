//! Rows that wait for the client of their request: it has more responses than it takes, so no further one is made. They are
//! in no batch and hold no lane, and their request still ends by its deadline, or when the client gives it up.

use super::{
    PartOrder,
    batch::Seat,
    group::{Group, Turn},
    landing::append,
    ledger::Slot,
    table::Blueprint,
    travel::longest,
};

impl Group {
    // ## running => paused
    pub(super) fn pause(&mut self, seat: &Seat, row: u32) {
        append(self.paused.entry(seat.slot).or_default(), seat, row);
    }

    // ## paused => queued, in a batch of their own
    pub(super) fn resume(&mut self, turn: &mut Turn<'_>, slot: Slot) {
        let Some(rows) = self.paused.remove(&slot) else { return };
        let (class, level) = (longest(&rows, turn.ledger), turn.ledger[slot].level);
        let order = PartOrder::DepthFirst;
        let plan = Blueprint { mates: Default::default(), class, level, turn: None, order, sealed: true };
        let batch = self.table.new_batch(turn.now, plan, self.pipeline.entry(), rows);
        self.table.enqueue(batch);
    }
}
