//! The responses of a request: one, or one for each response of its decoupled steps.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_executor::{InferError, InferRequest, OutputTensor, Response};
use paternoster_model::{Dims, TensorSpec};

use super::{
    Run, Sink, StreamedResponse,
    flight::{OpenStream, chosen},
    inputs, invalid, located,
    outputs::with_rooms,
    state::State,
};
use crate::{TensorRows, graph::TensorIx, shape::leave, value::join};

impl Run {
    /// Runs a decoupled step, and what follows it for each of its responses.
    pub(super) async fn stream(&mut self, step: usize, state: State) -> Result<(), InferError> {
        let Sink::Many(_, backlog) = &self.sink else {
            let text = "a decoupled step in a pipeline that is not".to_owned();
            return Err(located(&self.pipeline, step, InferError::Engine(text)));
        };
        let backlog = backlog.clone();
        let pipeline = Arc::clone(&self.pipeline);
        let (Some(servable), binding) = self.bound(step)? else { return Ok(()) };
        let given = inputs(&binding, &state).unwrap_or_default();
        let inputs: Vec<Option<TensorRows>> = given.into_iter().map(|given| Some(given?.value)).collect();
        let mask = self.mask(step, &state)?;
        let step_of = self.observed.step_apart(!pipeline.shares_stats);
        let wanted = servable.pipeline().and_then(|inner| self.wanted_of(step, &binding, inner));
        let (_, mut requests) = self.requests(step, &binding, &inputs, mask, wanted, &step_of)?;
        let (Some((request, _)), true) = (requests.pop(), requests.is_empty()) else {
            let text = "a decoupled step takes requests of one batch whose rows do not differ".to_owned();
            return Err(located(&pipeline, step, InferError::Invalid(text)));
        };
        let trace = self.step_trace(&binding);
        let request = InferRequest { trace: trace.clone(), backlog, ..request };
        self.streams.push(OpenStream::new(servable.submit_stream(request)));
        while let Some(response) = self.next_response().await {
            let response = response.map_err(|error| located(&pipeline, step, error))?;
            if let Some(trace) = &trace {
                trace.responded();
            }
            let outputs = chosen(&pipeline, &self.demand, step, &binding, response);
            let mut room = self.charge.bytes();
            self.grow(step, &mut room, outputs.iter().flatten().map(TensorRows::bytes).sum())?;
            let mut next = state.clone();
            self.give(&mut next, step, with_rooms(outputs, room))?;
            self.drive(next).await?;
        }
        self.streams.pop();
        pipeline.expected.learn(step, step_of.timings.compute_ns());
        Ok(())
    }

    /// Returns the next response of the decoupled step that started last.
    async fn next_response(&mut self) -> Option<Result<Response, InferError>> {
        self.streams.last_mut()?.next().await
    }

    /// Sends the response of a request whose steps have all ended.
    pub(super) async fn respond(&mut self, state: &State) -> Result<(), InferError> {
        let pipeline = Arc::clone(&self.pipeline);
        let (held, joins) = (self.room.amount(), &pipeline.options.workers.joins);
        let only = self.only.take();
        let wanted: Vec<(&TensorSpec, TensorIx)> = match &only {
            Some((spec, tensor)) => vec![(spec, *tensor)],
            None => pipeline.spec.outputs.iter().zip(pipeline.graph.outputs.iter().copied()).collect(),
        };
        let mut outputs = Vec::with_capacity(wanted.len());
        for (spec, tensor) in wanted {
            if !self.demand.reads(tensor) {
                outputs.push(OutputTensor { shape: Dims::new(), data: Bytes::new() });
                continue;
            }
            let batched = pipeline.spec.has_batch_axis();
            let of_steps = TensorSpec::new(&spec.name, spec.datatype, spec.graph_dims());
            let whole = match state.value(tensor).map(|given| &given.value) {
                Some(TensorRows::Joint(tensor)) => Ok(tensor.clone()),
                Some(TensorRows::Rows(rows)) => join(rows.clone(), &of_steps, &mut self.room, joins).await,
                None => join(vec![None; if batched { self.rows } else { 1 }], &of_steps, &mut self.room, joins).await,
            };
            let output = whole.and_then(|whole| leave(whole, spec, batched));
            outputs.push(output.map_err(|fault| invalid(&format!("output '{}'", spec.name), fault))?);
        }
        let response = Response { outputs };
        self.observed.responded(matches!(self.sink, Sink::Many(..)));
        if self.observed.depth() == 0 {
            self.charge.responded();
        }
        match &mut self.sink {
            Sink::Once(slot) => *slot = Some(response),
            Sink::Many(sender, _) => {
                let is_last = self.streams.iter_mut().all(OpenStream::is_over);
                // The stream polls both ends; if the receiver is gone, so is the request.
                drop(sender.send(StreamedResponse { response, is_last }).await);
                self.room.shrink_to(held);
            }
        }
        Ok(())
    }
}
