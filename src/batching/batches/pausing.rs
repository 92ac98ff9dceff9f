//! Paused rows: their client has more responses pending than it takes, so no further response is made. They are in no
//! batch and occupy no lane. Their request still ends at its deadline or when the client cancels it.

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
