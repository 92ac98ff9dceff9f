//! Submission and cancellation of requests.

use std::{sync::Arc, time::Duration};

use paternoster_batching::{Event, ModelId, ReqId};
use paternoster_model::unfold::Unfolded;
use paternoster_observe::{
    Charge,
    budget::{Exhausted, Reservation},
};

use super::{Pool, shard::Shard};
use crate::{
    DeviceKind, InferError, InferRequest, ModelHandle,
    backend::{Order, Reports},
    cells::{UnfoldedMemory, unfold},
    clock::duration_ns,
    location::Location,
    record::Sink,
    state::{TimeLimits, Unplaced},
};

impl Pool {
    /// Sends a request to a shard of its version. Returns where it is; `None` if it was rejected.
    pub(crate) fn submit(
        self: &Arc<Self>,
        handle: &Arc<ModelHandle>,
        mut request: InferRequest,
        sink: Sink,
    ) -> Option<Location> {
        if !handle.has_sequences {
            request.sequence = None;
        }
        let graph = match graph_of(handle, &request) {
            Ok(graph) => graph,
            Err(fault) => {
                sink.refuse(InferError::Invalid(fault));
                return None;
            }
        };
        let memory = match self.memory_of(handle, &request, &graph) {
            Ok(memory) => memory,
            Err(full) => {
                sink.refuse(InferError::NoRoom(full));
                return None;
            }
        };
        let timeout = request.queue_timeout.filter(|timeout: &Duration| !timeout.is_zero());
        let queue_deadline = timeout.map(|timeout| self.now() + duration_ns(timeout));
        let deadline = request.deadline.map(|deadline| self.clock.pool_time(deadline));
        let limits = TimeLimits { queue_deadline, deadline };
        let mut request = Unplaced::new(handle, request, limits, graph, memory, sink);
        // A shard gives the request back if its device was lost meanwhile; then another one is tried.
        while let Some(shard) = self.home_of(handle, &request) {
            let ((admitted, here), after) = self.change(shard, |state, now, after| {
                let admitted = state.submit(now, request, after);
                // A request that is alone may run on the calling thread, which saves the switch to the lane's thread
                // and back.
                let alone = state.in_flight() == 1;
                let runs_here = |order: &mut Order| matches!(order, Order::Run(job) if shard.backend.runs_here(job));
                let here = if alone { after.orders.pop_if(runs_here) } else { None };
                (admitted, here)
            })?;
            self.guarded(|| self.settle(shard, after))?;
            match admitted {
                Ok(location) => {
                    if let Some(Order::Run(job)) = here {
                        let pool: Arc<dyn Reports> = Arc::<Self>::clone(self);
                        shard.backend.run_here(&pool, job);
                    }
                    return Some(location);
                }
                Err(back) => request = *back,
            }
            if self.is_stopped() {
                break;
            }
        }
        request.record.sink.refuse(if self.is_stopped() { self.refusal() } else { InferError::DeviceLost });
        None
    }

    /// Returns the memory that a request boards with: what it keeps in host memory, if any.
    ///
    /// # Errors
    /// If it can never have so much.
    fn memory_of(
        &self,
        handle: &ModelHandle,
        request: &InferRequest,
        graph: &[Unfolded],
    ) -> Result<Option<Arc<UnfoldedMemory>>, Exhausted> {
        let runs_on_host = handle.homes.iter().any(|&home| self.kinds[home] == DeviceKind::Cpu);
        let Some(cells) = handle.loaded.programs.cells().filter(|_| runs_on_host) else { return Ok(None) };
        let first = usize::from(handle.loaded.spec.has_batch_axis());
        let length = |input: usize| {
            let given = request.inputs.get(input).and_then(Option::as_ref);
            let length = given.and_then(|given| given.shape.get(first).copied());
            length.and_then(|length| usize::try_from(length).ok()).unwrap_or(1)
        };
        let bytes = cells.state_bytes(graph, length);
        let charged = request.charge.as_ref().map(Charge::bytes);
        let pending = charged.unwrap_or_else(|| Reservation::none(self.state_budget.pending()));
        self.state_budget.memory(pending, bytes).map(Some)
    }

    /// Returns the shard for a request; `None` if all shards of its version are lost.
    fn home_of(&self, handle: &ModelHandle, request: &Unplaced) -> Option<&Shard> {
        let homes = || handle.homes.iter().copied();
        let home = match (request.card(), request.sequence()) {
            (Some(card), _) => self.router.least(homes().filter(|&home| self.kinds[home].card() == Some(card))),
            (None, Some(sequence)) => self.router.of_sequence(homes(), &sequence.id),
            (None, None) => self.router.least(homes()),
        };
        home.map(|home| &self.shards[home])
    }

    /// Resumes a paused request after its client has taken the pending responses.
    pub(crate) fn resume(self: &Arc<Self>, location: &Location) {
        // A request that paused has run, so it no longer moves.
        if let Some((shard, req)) = location.now() {
            self.drive(&self.shards[shard], |state, now, after| state.client_has_read(now, req, after));
        }
    }

    pub(crate) fn cancel(self: &Arc<Self>, location: &Location) {
        location.cancel(|shard, req| self.cancel_on(&self.shards[shard], req));
    }

    /// Cancels a request on a shard, and returns whether the shard had it.
    fn cancel_on(self: &Arc<Self>, shard: &Shard, req: ReqId) -> bool {
        let cancelled = self.drive(shard, |state, now, after| {
            let is_there = state.record(req).is_some();
            state.step(now, Event::Cancelled(req), after);
            is_there
        });
        cancelled.unwrap_or(true)
    }

    pub(crate) fn retire(self: &Arc<Self>, model: ModelId, homes: &[usize]) {
        for &home in homes {
            self.drive(&self.shards[home], |state, now, after| state.step(now, Event::ModelDraining(model), after));
        }
    }
}

/// Computes the graph that a request unfolds into.
///
/// # Errors
/// If the request is invalid.
fn graph_of(handle: &ModelHandle, request: &InferRequest) -> Result<Box<[Unfolded]>, String> {
    if handle.has_sequences && request.sequence.is_none() {
        let model = &handle.loaded.spec.name;
        return Err(format!(
            "inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        ));
    }
    let graph = match handle.loaded.programs.cells() {
        None => Box::default(),
        Some(cells) => unfold(cells, &handle.loaded.spec, request.rows, &request.inputs, request.sequence.as_ref())
            .map_err(|fault| fault.to_string())?,
    };
    handle.longest.check(&handle.loaded.spec, &request.inputs, &graph)?;
    handle.indices.check(&handle.loaded.spec, &request.inputs, &graph)?;
    Ok(graph)
}
