//! Runs one request through a pipeline.
//!
//! A step starts when every tensor that it reads is complete. `spread` says how its rows become requests of its model,
//! and `work` runs the steps of the server itself.

mod spread;
#[cfg(test)]
mod tests;
mod work;

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use paternoster_executor::{Backlog, InferError, InferRequest, InputTensor, OutputTensor, Response};
use paternoster_model::{InSequence, TensorSpec};
use paternoster_observe::{ObservedSteps, RequestEnd, StepTimings, budget::Reservation};
use tokio::sync::mpsc;

use self::spread::Parts;
use super::{
    Pipeline, Runs, Servable, Value, ValueFault,
    binding::{Binding, TensorKind},
    graph::{MAX_DEPTH, TensorIx},
    value::join,
};

/// Runs a request that has one response: the outputs, or one tensor in their place. It counts from now on, even if the
/// future is never polled.
pub(crate) fn once(
    pipeline: Arc<Pipeline>,
    request: InferRequest,
    only: Option<TensorIx>,
) -> impl Future<Output = Result<Response, InferError>> + Send {
    let (mut run, state) = Run::begin(pipeline, request, Sink::Once(None));
    run.only = only.map(|tensor| {
        let TensorKind { datatype, dims } = &run.pipeline.kinds[tensor];
        let dims = dims.get(1..).unwrap_or_default();
        (TensorSpec::new(&run.pipeline.graph.tensors[tensor], *datatype, dims), tensor)
    });
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
    request: InferRequest,
    backlog: Arc<Backlog>,
    sender: mpsc::Sender<Response>,
) -> impl Future<Output = Result<(), InferError>> + Send {
    let (mut run, state) = Run::begin(pipeline, request, Sink::Many(sender, backlog));
    async move {
        let outcome = run.finish(state).await;
        run.observed.ended(end_of(outcome.as_ref().err()));
        outcome
    }
}

enum Sink {
    Once(Option<Response>),
    Many(mpsc::Sender<Response>, Arc<Backlog>),
}

/// What all steps of a request share.
struct Run {
    pipeline: Arc<Pipeline>,
    rows: usize,
    priority: u64,
    queue_timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// By step: the time that is needed between its end and the deadline; empty without one.
    needed_after: Vec<Duration>,
    sequence: Option<InSequence>,
    /// Holds the bytes of the tensors that steps gave.
    room: Reservation,
    observed: ObservedSteps,
    sink: Sink,
    /// What is sent in place of the outputs.
    only: Option<(TensorSpec, TensorIx)>,
}

/// How far a request is.
#[derive(Clone)]
struct State {
    tensors: Vec<TensorState>,
    /// By step: the number of tensors that it waits for.
    missing: Vec<usize>,
    ready: VecDeque<usize>,
    /// Decoupled steps that are ready.
    streams: Vec<usize>,
}

#[derive(Clone)]
struct TensorState {
    /// Steps that may still give it.
    producers: usize,
    /// `None` if no step gave it, or the request left it out.
    value: Option<Value>,
}

/// A step whose requests are in flight.
struct Running {
    binding: Arc<Binding>,
    started: Instant,
    /// Of its executions.
    timings: Arc<StepTimings>,
    parts: Parts,
    left: usize,
    results: Vec<Option<Vec<Value>>>,
}

/// A request of a step that has ended.
struct Done {
    step: usize,
    part: usize,
    result: Result<Vec<Value>, InferError>,
}

type InFlight = FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>;

impl State {
    fn new(pipeline: &Pipeline, inputs: Vec<Option<InputTensor>>) -> Self {
        let tensors = pipeline.graph.producers.iter().map(|&producers| TensorState { producers, value: None });
        let missing = pipeline.waits_for.clone();
        let ready = (0..missing.len()).filter(|&step| missing[step] == 0).collect();
        let mut state = Self { tensors: tensors.collect(), missing, ready, streams: Vec::new() };
        let count = inputs.len();
        for (tensor, input) in inputs.into_iter().enumerate() {
            state.tensors[tensor].value = input.map(Value::Joint);
        }
        (0..count).for_each(|tensor| state.completed(pipeline, tensor));
        state
    }

    fn completed(&mut self, pipeline: &Pipeline, tensor: TensorIx) {
        for &reader in &pipeline.graph.readers[tensor] {
            self.missing[reader] -= 1;
            if self.missing[reader] == 0 {
                self.ready.push_back(reader);
            }
        }
    }

    /// Stores the outputs of a step; `None` if it did not run.
    fn give(&mut self, pipeline: &Pipeline, step: usize, outputs: Option<Vec<Value>>) {
        let mut outputs = outputs.map(Vec::into_iter);
        for (_, tensor) in &pipeline.graph.steps[step].outputs {
            let given = outputs.as_mut().and_then(Iterator::next);
            let state = &mut self.tensors[*tensor];
            state.value = match (state.value.take(), given) {
                (Some(Value::Rows(known)), Some(Value::Rows(more))) => {
                    Some(Value::Rows(known.into_iter().zip(more).map(|(known, more)| known.or(more)).collect()))
                }
                (known, given) => known.or(given),
            };
            state.producers -= 1;
            if state.producers == 0 {
                self.completed(pipeline, *tensor);
            }
        }
    }
}

impl Run {
    fn begin(pipeline: Arc<Pipeline>, request: InferRequest, sink: Sink) -> (Self, State) {
        let InferRequest { rows, inputs, priority, queue_timeout, deadline, needed_after, sequence, .. } = request;
        let InferRequest { trace, step_of, missed_ns, .. } = request;
        let observed = ObservedSteps::begin(&pipeline.stats, rows, step_of).missed(missed_ns);
        let observed = observed.traced(trace, &pipeline.step_names);
        let observed = if pipeline.shares_stats { observed } else { observed.counted_as_execution() };
        let room = Reservation::none(&pipeline.options.room);
        let state = State::new(&pipeline, inputs);
        let needed_after = match deadline {
            None => Vec::new(),
            Some(_) => {
                let behind = pipeline.expected.after(&pipeline.graph, &pipeline.order);
                behind.into_iter().map(|behind| behind.saturating_add(needed_after)).collect()
            }
        };
        let rows = rows as usize;
        let only = None;
        let run = Self {
            pipeline,
            rows,
            priority,
            queue_timeout,
            deadline,
            needed_after,
            sequence,
            room,
            observed,
            sink,
            only,
        };
        (run, state)
    }

    async fn finish(&mut self, state: State) -> Result<(), InferError> {
        let outcome = self.drive(state).await;
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
            let mut in_flight = InFlight::new();
            let mut running: Vec<Option<Running>> = pipeline.graph.steps.iter().map(|_| None).collect();
            loop {
                while let Some(step) = state.ready.pop_front() {
                    if let Some(started) = self.start(step, &mut state, &in_flight)? {
                        running[step] = Some(started);
                    }
                }
                let Some(Done { step, part, result }) = in_flight.next().await else { break };
                let Some(mut work) = running[step].take() else { continue };
                work.results[part] = Some(result?);
                work.left -= 1;
                if work.left > 0 {
                    running[step] = Some(work);
                    continue;
                }
                self.observed.ran(step, work.started);
                pipeline.expected.learn(step, work.timings.compute_ns() / work.results.len().max(1) as u64);
                let outputs = self.collect(step, work)?;
                state.give(&pipeline, step, Some(outputs));
            }
            drop(in_flight);
            match state.streams.pop() {
                None => self.respond(&state).await,
                Some(step) => self.stream(step, state).await,
            }
        })
    }

    /// Starts a step whose tensors are complete. Returns its requests in flight; none if no row runs it, or if it is
    /// decoupled.
    fn start(&mut self, step: usize, state: &mut State, in_flight: &InFlight) -> Result<Option<Running>, InferError> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(InferError::Expired);
        }
        // Models may be reloaded as pipelines after this one was checked.
        if self.observed.depth() >= MAX_DEPTH {
            let text = format!("pipelines are nested more than {MAX_DEPTH} deep");
            return Err(located(&self.pipeline, step, InferError::Unavailable(text)));
        }
        let (pipeline, started) = (Arc::clone(&self.pipeline), Instant::now());
        let (servable, binding) = self.bound(step)?;
        let skip = |state: &mut State| {
            pipeline.expected.learn(step, 0);
            state.give(&pipeline, step, None);
            Ok(None)
        };
        let mask = self.mask(step, state)?;
        if mask.as_ref().is_some_and(|mask| !mask.contains(&true)) {
            return skip(state);
        }
        self.check_given(step, &binding, state)?;
        let Some(inputs) = inputs(&binding, state) else { return skip(state) };
        let Some(servable) = servable else {
            let (timings, parts) = (Arc::default(), Parts::Joint);
            let results = self.built_in(step, inputs, mask, &timings, in_flight)?;
            return Ok(Some(Running { binding, started, timings, parts, left: 1, results }));
        };
        if binding.spec.decoupled {
            state.streams.push(step);
            return Ok(None);
        }
        let step_of = self.observed.step_apart(!pipeline.shares_stats);
        let (parts, requests) = self.requests(step, &binding, &inputs, mask, &step_of)?;
        if requests.is_empty() {
            return skip(state);
        }
        let left = requests.len();
        for (part, request) in requests.into_iter().enumerate() {
            let answer = servable.submit(request);
            let (binding, pipeline) = (Arc::clone(&binding), Arc::clone(&pipeline));
            in_flight.push(Box::pin(async move {
                let result = answer.await.map(|response| chosen(&binding, response));
                Done { step, part, result: result.map_err(|error| located(&pipeline, step, error)) }
            }));
        }
        let results = (0..left).map(|_| None).collect();
        Ok(Some(Running { binding, started, timings: step_of.timings, parts, left, results }))
    }

    /// Checks that the request has what a step requires of it. What earlier steps give may be absent: they may have
    /// been skipped.
    fn check_given(&self, step: usize, binding: &Binding, state: &State) -> Result<(), InferError> {
        let bound = binding.inputs.iter().zip(&binding.spec.inputs).filter(|(_, wanted)| !wanted.optional);
        for (&tensor, wanted) in bound {
            let Some(tensor) = tensor.filter(|&tensor| state.tensors[tensor].value.is_none()) else { continue };
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

    /// Reserves room for what a step gave.
    fn grow(&mut self, step: usize, bytes: usize) -> Result<(), InferError> {
        self.room.grow_now(bytes).map_err(|full| located(&self.pipeline, step, InferError::NoRoom(full)))
    }

    fn fault(&self, step: usize, tensor: TensorIx, fault: ValueFault) -> InferError {
        located(&self.pipeline, step, invalid(&format!("tensor '{}'", self.pipeline.graph.tensors[tensor]), fault))
    }

    /// Puts the outputs of a step's requests together, and reserves room for them.
    fn collect(&mut self, step: usize, work: Running) -> Result<Vec<Value>, InferError> {
        let Running { binding, parts, results, .. } = work;
        let mut results: Vec<Vec<Value>> = results.into_iter().flatten().collect();
        let outputs = match (parts, results.len()) {
            (Parts::Joint, 1) => results.pop().unwrap_or_default(),
            (Parts::Joint, _) => self.joined(step, &binding, &results)?,
            (Parts::Rows(rows), _) => {
                let mut outputs: Vec<Vec<Option<InputTensor>>> = vec![vec![None; self.rows]; binding.outputs.len()];
                for (row, result) in rows.into_iter().zip(results) {
                    for (output, value) in outputs.iter_mut().zip(result) {
                        output[row] = joint(&value);
                    }
                }
                outputs.into_iter().map(Value::Rows).collect()
            }
        };
        let read = |&(_, (_, tensor)): &(&Value, &(String, TensorIx))| !self.pipeline.graph.readers[*tensor].is_empty();
        let passed = outputs.iter().zip(&self.pipeline.graph.steps[step].outputs).filter(read);
        let bytes = passed.map(|(value, _)| value.bytes()).sum();
        self.grow(step, bytes)?;
        Ok(outputs)
    }

    /// Joins the outputs of consecutive rows.
    fn joined(&mut self, step: usize, binding: &Binding, results: &[Vec<Value>]) -> Result<Vec<Value>, InferError> {
        let mut outputs = Vec::with_capacity(binding.outputs.len());
        for (number, &output) in binding.outputs.iter().enumerate() {
            let parts: Vec<Option<InputTensor>> = results.iter().map(|result| joint(&result[number])).collect();
            let joined = join(&parts, &binding.spec.outputs[output], &mut self.room);
            let tensor = self.pipeline.graph.steps[step].outputs[number].1;
            outputs.push(Value::Joint(joined.map_err(|fault| self.fault(step, tensor, fault))?));
        }
        Ok(outputs)
    }

    /// Runs a decoupled step, and what follows it for each of its responses.
    async fn stream(&mut self, step: usize, state: State) -> Result<(), InferError> {
        let Sink::Many(_, backlog) = &self.sink else {
            let text = "a decoupled step in a pipeline that is not".to_owned();
            return Err(located(&self.pipeline, step, InferError::Engine(text)));
        };
        let backlog = Arc::clone(backlog);
        let pipeline = Arc::clone(&self.pipeline);
        let (Some(servable), binding) = self.bound(step)? else { return Ok(()) };
        let inputs = inputs(&binding, &state).unwrap_or_default();
        let mask = self.mask(step, &state)?;
        let step_of = self.observed.step_apart(!pipeline.shares_stats);
        let (_, mut requests) = self.requests(step, &binding, &inputs, mask, &step_of)?;
        let (Some(request), true) = (requests.pop(), requests.is_empty()) else {
            let text = "a decoupled step takes requests of one batch whose rows do not differ".to_owned();
            return Err(located(&pipeline, step, InferError::Invalid(text)));
        };
        let mut responses = servable.submit_stream(request, &backlog);
        let held = self.room.amount();
        while let Some(response) = responses.next().await {
            let response = response.map_err(|error| located(&pipeline, step, error))?;
            let outputs = chosen(&binding, response);
            self.grow(step, outputs.iter().map(Value::bytes).sum())?;
            let mut next = state.clone();
            next.give(&pipeline, step, Some(outputs));
            self.drive(next).await?;
            self.room.shrink_to(held);
        }
        pipeline.expected.learn(step, step_of.timings.compute_ns());
        Ok(())
    }

    /// Sends the response of a request whose steps have all ended.
    async fn respond(&mut self, state: &State) -> Result<(), InferError> {
        let pipeline = Arc::clone(&self.pipeline);
        let mut outputs = Vec::with_capacity(pipeline.graph.outputs.len());
        let only = self.only.take();
        let wanted: Vec<(&TensorSpec, TensorIx)> = match &only {
            Some((spec, tensor)) => vec![(spec, *tensor)],
            None => pipeline.spec.outputs.iter().zip(pipeline.graph.outputs.iter().copied()).collect(),
        };
        for (spec, tensor) in wanted {
            let rows = if pipeline.spec.has_batch_axis() { self.rows } else { 1 };
            let joined = match &state.tensors[tensor].value {
                Some(Value::Joint(tensor)) => Ok(tensor.clone()),
                Some(Value::Rows(rows)) => join(rows, spec, &mut self.room),
                None => join(&vec![None; rows], spec, &mut self.room),
            };
            let InputTensor { shape, data } =
                joined.map_err(|fault| invalid(&format!("output '{}'", spec.name), fault))?;
            outputs.push(OutputTensor { shape, data });
        }
        let response = Response { outputs };
        self.observed.responded(matches!(self.sink, Sink::Many(..)));
        match &mut self.sink {
            Sink::Once(slot) => *slot = Some(response),
            // The stream polls both ends; if the receiver is gone, so is the request.
            Sink::Many(sender, _) => drop(sender.send(response).await),
        }
        Ok(())
    }
}

/// Returns the inputs of a step; `None` if one that its model requires is absent.
fn inputs(binding: &Binding, state: &State) -> Option<Vec<Option<Value>>> {
    let bound = binding.inputs.iter().zip(&binding.spec.inputs);
    let inputs = bound.map(|(tensor, wanted)| match tensor.and_then(|tensor| state.tensors[tensor].value.clone()) {
        None if !wanted.optional => None,
        value => Some(value),
    });
    inputs.collect()
}

fn joint(value: &Value) -> Option<InputTensor> {
    match value {
        Value::Joint(tensor) => Some(tensor.clone()),
        Value::Rows(_) => None,
    }
}

/// Returns the outputs of a response that the step uses.
fn chosen(binding: &Binding, response: Response) -> Vec<Value> {
    let value = |&output: &usize| {
        let OutputTensor { shape, data } = response.outputs[output].clone();
        Value::Joint(InputTensor { shape, data })
    };
    binding.outputs.iter().map(value).collect()
}

/// Returns the error of a request that has a tensor whose rows cannot be cut or joined.
fn invalid(tensor: &str, fault: ValueFault) -> InferError {
    match fault {
        ValueFault::NoRoom(full) => InferError::NoRoom(full),
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
    let place = format!("in pipeline '{}', step {step} ({})", pipeline.spec.name, pipeline.graph.steps[step].runs);
    InferError::InStep { place, error: Box::new(error) }
}
