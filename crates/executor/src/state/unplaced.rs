//! A request that is on no device.

use std::sync::Arc;

use paternoster_batching::{Arrival, Instant, ReqId, SharedStateMemory};
use paternoster_model::{InSequence, unfold::Unfolded};
use paternoster_observe::ObservedRequest;

use crate::{
    InferRequest, ModelHandle,
    cells::{UnfoldedMemory, UnfoldedState},
    clock::duration_ns,
    location::CurrentShard,
    record::{Payload, Record, Sink},
};

/// A request that is on no device: before its first one, or between two. A device that takes it gives it a number.
pub(crate) struct Unplaced {
    pub(crate) record: Record,
    pub(super) arrival: Arrival,
}

/// Times by which a request must have begun, and must have ended, in pool time.
#[derive(Clone, Copy, Default)]
pub(crate) struct TimeLimits {
    pub(crate) queue_deadline: Option<Instant>,
    pub(crate) deadline: Option<Instant>,
}

impl Unplaced {
    /// Creates the record of a request that was checked. `graph` is what it unfolds into, empty if requests run in
    /// batches, and `memory` what it boards with, if it needs any.
    pub(crate) fn new(
        handle: &Arc<ModelHandle>,
        request: InferRequest,
        limits: TimeLimits,
        graph: Box<[Unfolded]>,
        memory: Option<Arc<UnfoldedMemory>>,
        sink: Sink,
    ) -> Self {
        let loaded = &handle.loaded;
        let (lengths, key) = loaded.admission.measure(&request.inputs);
        let payload = Arc::new(Payload {
            rows: request.rows,
            lengths: lengths.clone(),
            inputs: request.inputs,
            on_card: request.on_card,
            backlog: request.backlog,
        });
        let unfolded_state = loaded.programs.cells().map(|cells| {
            let (has_batch_axis, sequence) = (loaded.spec.has_batch_axis(), request.sequence.clone());
            let state = UnfoldedState::new(cells, has_batch_axis, Arc::clone(&payload), &graph, sequence);
            Arc::new(state.with_memory(memory.clone()))
        });
        // Requests of sequences stay on the device that holds the sequence's state.
        let may_move = handle.homes.len() > 1 && !handle.has_sequences;
        let observed = ObservedRequest::new(request.rows, request.trace, request.step_of, request.missed_ns);
        let current_shard = may_move.then(CurrentShard::new);
        let record =
            Record::new(Arc::clone(handle), payload, unfolded_state, sink, request.charge, current_shard, observed);
        let arrival = Arrival {
            req: record.req,
            model: handle.id,
            rows: request.rows,
            lengths,
            key,
            priority: request.priority,
            queue_deadline: limits.queue_deadline,
            deadline: limits.deadline,
            needed_after_ns: duration_ns(request.needed_after),
            graph,
            sequence: request.sequence,
            first: None,
            memory: memory.map(|memory| SharedStateMemory(memory)),
        };
        Self { record, arrival }
    }

    /// The card that it has to run on, by its number among those of the driver, if tensors of it lie there.
    pub(crate) fn card(&self) -> Option<u16> {
        self.record.payload.on_card.as_ref().map(|tensors| tensors.card)
    }

    /// The sequence that it belongs to, if its version keeps state for sequences.
    pub(crate) fn sequence(&self) -> Option<&InSequence> {
        self.arrival.sequence.as_ref()
    }

    /// Gives it the number that its device knows it by.
    pub(super) fn number(&mut self, req: ReqId) {
        self.record.req = req;
        self.arrival.req = req;
    }
}
