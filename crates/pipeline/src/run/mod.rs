//! Runs one request through a pipeline.
//!
//! A step starts when every tensor that it reads is complete. `spread` says how its rows become requests of its model,
//! `work` runs the steps of the server itself, `outputs` puts together what they give, and `responses` answers. `state`
//! and `flight` are how far a request is, and what of it is under way.

mod flight;
mod outputs;
mod responses;
mod spread;
mod state;
#[cfg(test)]
mod tests;
mod work;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use paternoster_executor::{Backlog, InferError, InferRequest, Response};
use paternoster_model::{InSequence, InputTensor, TensorSpec};
use paternoster_observe::{
    Charge, ObservedSteps, RequestEnd,
    budget::{Exhausted, Reservation},
    trace::RequestTrace,
};
use smallvec::SmallVec;
use tokio::{sync::mpsc, task::consume_budget};

use self::{
    flight::{Flight, OpenStream, PartRequest, Running, StepResponse},
    state::{State, TensorValue},
};
use super::{
    Pipeline, Runs, Servable, TensorRows, ValueFault,
    binding::{Binding, TensorKind},
    demand::Demand,
    graph::{MAX_DEPTH, TensorIx, too_deep},
    shape::with_rank,
};

/// Bytes that a request of a step takes beside its tensors, in all layers together.
const PART_BYTES: usize = 1 << 10;

/// The part of a turn on its thread that a start takes, in units of tokio's budget of 128: about ten microseconds.
const START_UNITS: usize = 1;

/// The same for a built-in step that runs at once, which takes well below a millisecond.
const BUILT_IN_UNITS: usize = 16;

/// Runs a request that has one response: the outputs, or one tensor in their place. It counts from now on, even if the
/// future is never polled.
pub(crate) fn once(
    pipeline: Arc<Pipeline>,
    request: InferRequest,
    only: Option<TensorIx>,
) -> impl Future<Output = Result<Response, InferError>> + Send {
    let (mut run, state) = Run::begin(pipeline, request, only, Sink::Once(None));
    async move {
        let outcome = run.finish(state).await;
        let Run { sink, observed, .. } = run;
        let response = match (outcome, sink) {
            (Err(error), _) => Err(error),
            (Ok(()), Sink::Once(Some(response))) => Ok(response),
            (Ok(()), _) => Err(InferError::Engine("the pipeline gave no response".to_owned())),
        };
        observed.ended(end_of(response.as_ref().err()));
        response
    }
}

fn end_of(error: Option<&InferError>) -> RequestEnd {
    error.map_or(RequestEnd::Completed, InferError::end)
}

/// Runs a request that has any number of responses. It counts from now on.
pub(crate) fn many(
    pipeline: Arc<Pipeline>,
    mut request: InferRequest,
    sender: mpsc::Sender<StreamedResponse>,
) -> impl Future<Output = Result<(), InferError>> + Send {
    let backlog = request.backlog.take();
    let (mut run, state) = Run::begin(pipeline, request, None, Sink::Many(sender, backlog));
    async move {
        let outcome = run.finish(state).await;
        run.observed.ended(end_of(outcome.as_ref().err()));
        outcome
    }
}

/// One of several responses.
#[derive(Debug)]
pub(crate) struct StreamedResponse {
    pub(crate) response: Response,
    /// Whether no step is in flight that may give another one.
    pub(crate) is_last: bool,
}

enum Sink {
    Once(Option<Response>),
    Many(mpsc::Sender<StreamedResponse>, Option<Arc<Backlog>>),
}

/// What all steps of a request share.
struct Run {
    pipeline: Arc<Pipeline>,
    demand: Arc<Demand>,
    rows: usize,
    priority: u64,
    queue_timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// By step: the time that is needed between its end and the deadline; empty without one.
    needed_after: Vec<Duration>,
    sequence: Option<InSequence>,
    charge: Charge,
    /// Holds the bytes of the request's state, and of rows that are joined for a response.
    room: Reservation,
    /// Why there is no room for its state, if there is none.
    refused: Option<Exhausted>,
    observed: ObservedSteps,
    sink: Sink,
    /// The responses of decoupled steps that it follows, the first step's first.
    streams: Vec<OpenStream>,
    /// What is sent in place of the outputs.
    only: Option<(TensorSpec, TensorIx)>,
}

impl Run {
    fn begin(
        pipeline: Arc<Pipeline>,
        request: InferRequest,
        only: Option<TensorIx>,
        sink: Sink,
    ) -> (Self, Option<State>) {
        let InferRequest { rows, inputs, priority, queue_timeout, deadline, needed_after, sequence, .. } = request;
        let InferRequest { trace, step_of, missed_ns, charge, wanted_outputs, .. } = request;
        let observed = ObservedSteps::begin(&pipeline.stats, rows, step_of).missed(missed_ns);
        let observed = observed.traced(trace, &pipeline.step_names);
        let observed = if pipeline.shares_stats { observed } else { observed.counted_as_execution() };
        let rows = rows as usize;
        let charge = charge.unwrap_or_else(|| Charge::new(&pipeline.options.budgets, rows));
        let mut room = charge.bytes();
        let refused = room.grow_now(State::bytes(&pipeline) + Flight::bytes(&pipeline)).err();
        let demand = match (only, &wanted_outputs) {
            (None, None) => Arc::clone(&pipeline.demand),
            (Some(only), _) => Arc::new(Demand::new(&pipeline.graph, &[only])),
            (None, Some(wanted)) => {
                let wanted: Vec<TensorIx> = wanted.iter().map(|&output| pipeline.graph.outputs[output]).collect();
                Arc::new(Demand::new(&pipeline.graph, &wanted))
            }
        };
        let state = refused.is_none().then(|| State::new(&pipeline, &demand, inputs));
        let needed_after = match deadline {
            None => Vec::new(),
            Some(_) => {
                let behind = pipeline.expected.after(&pipeline.graph, &pipeline.order);
                behind.into_iter().map(|behind| behind.saturating_add(needed_after)).collect()
            }
        };
        let only = only.map(|tensor| {
            let TensorKind { datatype, dims, .. } = &pipeline.kinds[tensor];
            let dims = dims.get(1..).unwrap_or_default();
            (TensorSpec::new(&pipeline.graph.tensors[tensor], *datatype, dims), tensor)
        });
        let streams = Vec::new();
        let run = Self {
            pipeline,
            demand,
            rows,
            priority,
            queue_timeout,
            deadline,
            needed_after,
            sequence,
            charge,
            room,
            refused,
            observed,
            sink,
            streams,
            only,
        };
        (run, state)
    }

    async fn finish(&mut self, state: Option<State>) -> Result<(), InferError> {
        let outcome = match (self.refused, state) {
            (None, Some(state)) => match self.check_built_in(&state) {
                Ok(()) => self.drive(state).await,
                Err(error) => Err(error),
            },
            (None, None) => Ok(()),
            (Some(full), _) => Err(InferError::NoRoom(full)),
        };
        if outcome.as_ref().is_err_and(|error| *error.cause() == InferError::Late) {
            self.pipeline.expected.doubt();
        }
        outcome
    }

    /// Runs what is left of a request. A decoupled step runs once all others that can have run; what follows it runs
    /// for each of its responses, one after the other.
    fn drive(&mut self, mut state: State) -> Pin<Box<dyn Future<Output = Result<(), InferError>> + Send + '_>> {
        Box::pin(async move {
            let pipeline = Arc::clone(&self.pipeline);
            let mut flight = Flight::new(&pipeline);
            loop {
                self.start_all(&mut state, &mut flight).await?;
                let Some(StepResponse { step, part, mut room, result }) = flight.answers.next().await else { break };
                let Some(mut running) = flight.running[step].take() else { continue };
                let outputs = result?;
                let bytes: usize = outputs.iter().flatten().map(TensorRows::bytes).sum();
                let unexpected = bytes.saturating_sub(room.amount());
                self.grow(step, &mut room, unexpected)?;
                room.shrink_to(bytes);
                running.room.absorb(room);
                running.results[part] = Some(outputs);
                running.left -= 1;
                if running.left > 0 {
                    flight.running[step] = Some(running);
                    continue;
                }
                self.observed.ran(step, running.started);
                pipeline.expected.learn(step, running.timings.compute_ns() / running.results.len().max(1) as u64);
                let outputs = self.collect(step, running).await?;
                self.give(&mut state, step, outputs)?;
            }
            drop(flight);
            match state.streams.pop() {
                None => self.respond(&state).await,
                Some(step) => self.stream(step, state).await,
            }
        })
    }

    /// Starts steps that are ready, and requests of steps that have started, as long as there are places for them and
    /// room for their outputs. The first request in flight needs no place, so that every request of a client goes on
    /// whatever others do.
    async fn start_all(&mut self, state: &mut State, flight: &mut Flight) -> Result<(), InferError> {
        while !(flight.waiting.is_empty() && state.ready.is_empty()) {
            let place = if flight.answers.is_empty() { None } else { self.charge.place() };
            if place.is_none() && !flight.answers.is_empty() {
                break;
            }
            let units = if let Some(part) = flight.waiting.pop_front() {
                let mut room = self.charge.bytes();
                if flight.answers.is_empty() {
                    self.grow(part.step, &mut room, part.output_bytes)?;
                } else if !room.try_grow(part.output_bytes) {
                    flight.waiting.push_front(part);
                    break;
                }
                flight.submit(&self.pipeline, &self.demand, part, (room, place));
                START_UNITS
            } else if let Some(step) = state.ready.pop_front() {
                let is_built_in = matches!(self.pipeline.graph.steps[step].runs, Runs::BuiltIn(_));
                self.start(step, state, flight, place)?;
                if is_built_in { BUILT_IN_UNITS } else { START_UNITS }
            } else {
                break;
            };
            for _ in 0..units {
                consume_budget().await;
            }
        }
        Ok(())
    }

    /// Starts a step whose tensors are complete. A step of a model leaves its requests to be submitted. No row may run
    /// it; a decoupled one is left for later.
    fn start(
        &mut self,
        step: usize,
        state: &mut State,
        flight: &mut Flight,
        place: Option<Reservation>,
    ) -> Result<(), InferError> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(InferError::Expired);
        }
        // Models may be reloaded as pipelines after this one was checked.
        let unavailable = |text: String| located(&self.pipeline, step, InferError::Unavailable(text));
        if self.observed.depth() >= MAX_DEPTH {
            return Err(unavailable(too_deep(self.pipeline.graph.noun)));
        }
        self.charge.start_step().map_err(|too_many| unavailable(too_many.to_string()))?;
        let (pipeline, started) = (Arc::clone(&self.pipeline), Instant::now());
        let (servable, binding) = self.bound(step)?;
        let mask = self.mask(step, state)?;
        let is_skipped = mask.as_ref().is_some_and(|mask| !mask.contains(&true));
        if !is_skipped {
            self.check_given(step, &binding, state)?;
        }
        let Some(given) = inputs(&binding, state).filter(|_| !is_skipped) else {
            state.read_by(&pipeline, step);
            return self.skip(step, state);
        };
        if binding.spec.decoupled {
            state.streams.push(step);
            return Ok(());
        }
        state.read_by(&pipeline, step);
        let rooms = given.iter().flatten().flat_map(|given| given.rooms.iter().cloned()).collect();
        let inputs: Vec<Option<TensorRows>> = given.into_iter().map(|given| Some(given?.value)).collect();
        let mut running = Running::new(&self.charge, binding, started, rooms);
        let Some(servable) = servable else {
            running.expect(1);
            let answer = self.built_in(step, inputs, mask, &running.timings)?;
            flight.running[step] = Some(running);
            flight.add(answer, place);
            return Ok(());
        };
        self.grow(step, &mut running.room, self.rows * PART_BYTES)?;
        let step_of = self.observed.step_apart(!pipeline.shares_stats);
        running.timings = Arc::clone(&step_of.timings);
        let wanted = servable.pipeline().and_then(|inner| self.wanted_of(step, &running.binding, inner));
        let (parts, requests) = self.requests(step, &running.binding, &inputs, mask, wanted, &step_of)?;
        if requests.is_empty() {
            return self.skip(step, state);
        }
        running.room.shrink_to(requests.len() * PART_BYTES);
        running.parts = parts;
        running.expect(requests.len());
        let reserves = servable.pipeline().is_some();
        let part = |(part, (request, output_bytes))| {
            let (servable, binding) = (servable.clone(), Arc::clone(&running.binding));
            let request = InferRequest { trace: self.step_trace(&binding), ..request };
            let output_bytes = if reserves { 0 } else { output_bytes };
            PartRequest { step, part, servable, binding, request, output_bytes }
        };
        flight.waiting.extend(requests.into_iter().enumerate().map(part));
        flight.running[step] = Some(running);
        Ok(())
    }

    /// Checks that the request has what a step requires of it. What earlier steps give may be absent: they may have
    /// been skipped.
    fn check_given(&self, step: usize, binding: &Binding, state: &State) -> Result<(), InferError> {
        let bound = binding.inputs.iter().zip(&binding.spec.inputs).filter(|(_, wanted)| !wanted.optional);
        for (&tensor, wanted) in bound {
            let Some(tensor) = tensor.filter(|&tensor| state.value(tensor).is_none()) else { continue };
            if let Some(input) = self.pipeline.spec.inputs.get(tensor) {
                let (wanted, given) = (&wanted.name, &input.name);
                let text = format!("its input '{wanted}' is required, and the request leaves out '{given}'");
                return Err(located(&self.pipeline, step, InferError::Invalid(text)));
            }
        }
        Ok(())
    }

    /// Returns the version that a step runs, and how it is bound to it; no version for a built-in step.
    fn bound(&self, step: usize) -> Result<(Option<Servable>, Arc<Binding>), InferError> {
        let unavailable = |reason: String| located(&self.pipeline, step, InferError::Unavailable(reason));
        let servable = match &self.pipeline.graph.steps[step].runs {
            Runs::BuiltIn(_) => return Ok((None, self.pipeline.known_binding(step))),
            Runs::Own(servable) => servable.clone(),
            Runs::Served { model, version } => {
                self.pipeline.options.models.resolve(model, *version).map_err(unavailable)?
            }
        };
        let binding = self.pipeline.binding(step, servable.spec()).map_err(unavailable)?;
        Ok((Some(servable), binding))
    }

    /// Reserves room for what a step is given or gives.
    fn grow(&self, step: usize, room: &mut Reservation, bytes: usize) -> Result<(), InferError> {
        room.grow_now(bytes).map_err(|full| located(&self.pipeline, step, InferError::NoRoom(full)))
    }

    /// Starts the trace of a request of a step, if this one's is traced, and clients know the step's model by its name.
    fn step_trace(&self, binding: &Binding) -> Option<Arc<RequestTrace>> {
        let spec = &binding.spec;
        if self.pipeline.shares_stats { None } else { self.observed.step_trace(&spec.name, spec.version) }
    }

    fn fault(&self, step: usize, tensor: TensorIx, fault: ValueFault) -> InferError {
        located(&self.pipeline, step, invalid(&format!("tensor '{}'", self.pipeline.graph.tensors[tensor]), fault))
    }

    /// Returns the outputs of a pipeline that a step reads; `None` for all of them.
    fn wanted_of(&self, step: usize, binding: &Binding, inner: &Pipeline) -> Option<SmallVec<[usize; 4]>> {
        let outputs = binding.outputs.iter().zip(&self.pipeline.graph.steps[step].outputs);
        let read = outputs.filter(|(_, (_, tensor))| self.demand.reads(*tensor)).map(|(&output, _)| output);
        let mut wanted: SmallVec<[usize; 4]> = read.collect();
        wanted.sort_unstable();
        wanted.dedup();
        (wanted.len() < inner.spec.outputs.len()).then_some(wanted)
    }

    /// Records that no row runs a step.
    fn skip(&self, step: usize, state: &mut State) -> Result<(), InferError> {
        self.pipeline.expected.learn(step, 0);
        self.give(state, step, Vec::new())
    }

    fn give(&self, state: &mut State, step: usize, outputs: Vec<Option<TensorValue>>) -> Result<(), InferError> {
        let given = state.give(&self.pipeline, &self.demand, step, self.rows, outputs);
        given.map_err(|(tensor, fault)| self.fault(step, tensor, fault))
    }
}

/// Returns the inputs of a step; `None` if one that its model requires is absent.
fn inputs(binding: &Binding, state: &State) -> Option<Vec<Option<TensorValue>>> {
    let bound = binding.inputs.iter().zip(&binding.spec.inputs);
    let batch = usize::from(binding.spec.has_batch_axis());
    let inputs = bound.map(|(tensor, wanted)| match tensor.and_then(|tensor| state.value(tensor).cloned()) {
        None if !wanted.optional => None,
        Some(TensorValue { value: TensorRows::Joint(tensor), rooms }) => {
            let value = TensorRows::Joint(with_rank(tensor, batch + wanted.dims.len()));
            Some(Some(TensorValue { value, rooms }))
        }
        value => Some(value),
    });
    inputs.collect()
}

fn joint(value: &TensorRows) -> Option<InputTensor> {
    match value {
        TensorRows::Joint(tensor) => Some(tensor.clone()),
        TensorRows::Rows(_) => None,
    }
}

/// Returns the error of a request that has a tensor whose rows cannot be cut or joined.
fn invalid(tensor: &str, fault: ValueFault) -> InferError {
    match fault {
        ValueFault::NoRoom(full) => InferError::NoRoom(full),
        ValueFault::Failed(text) => InferError::Engine(text),
        fault => InferError::Invalid(format!("{tensor}: {fault}")),
    }
}

/// Says in which step of which pipeline a request failed, if that is not the only model. What ends the request wherever
/// it is keeps its text: clients know it by that.
fn located(pipeline: &Pipeline, step: usize, error: InferError) -> InferError {
    let is_of_step = !matches!(
        error,
        InferError::Expired
            | InferError::Cancelled
            | InferError::Unread(_)
            | InferError::ShuttingDown
            | InferError::SchedulerFailed
    );
    if pipeline.shares_stats || !is_of_step {
        return error;
    }
    let (noun, name) = (pipeline.graph.noun, &pipeline.spec.name);
    let place = format!("in {noun} '{name}', step {step} ({})", pipeline.graph.steps[step].runs);
    InferError::InStep { place, error: Box::new(error) }
}
