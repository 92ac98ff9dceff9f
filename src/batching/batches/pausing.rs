//! Rows that wait for the client of their request: it has more responses than it takes, so no further one is made. They
//! are in no batch and hold no lane, and their request still ends by its deadline, or when the client gives it up.

use super::{Batches, launching::longest, outcomes::append};
use crate::batching::{PartOrder, ids::RequestIx, ledger::BatchSpan, table::Blueprint, version::StepContext};

impl Batches {
    // ## running => paused
    pub(in crate::batching) fn pause(&mut self, span: &BatchSpan, row: u32) {
        append(self.paused.entry(span.request_ix).or_default(), span, row);
    }

    // ## paused => queued, in a batch of their own
    pub(in crate::batching) fn resume(&mut self, context: &mut StepContext<'_>, request_ix: RequestIx) {
        let Some(rows) = self.paused.remove(&request_ix) else { return };
        let (class, level) = (longest(&rows, context.ledger), context.ledger[request_ix].level);
        let order = PartOrder::DepthFirst;
        let plan = Blueprint { batch_key: Default::default(), class, level, precedence: None, order, sealed: true };
        let part = self.table.new_batch(context.now, plan, self.pipeline.entry(), rows);
        self.table.enqueue(part);
    }
}
