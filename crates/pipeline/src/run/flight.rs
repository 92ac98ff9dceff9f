//! What is in flight of a request: the requests of its steps, and the responses of decoupled ones.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Instant};

use futures_util::{FutureExt, stream::FuturesUnordered};
use paternoster_executor::{InferError, InferRequest, OutputTensor, Response};
use paternoster_model::InputTensor;
use paternoster_observe::{Charge, StepTimings, budget::Reservation};

use super::{located, spread::Parts};
use crate::{Pipeline, Responses, Servable, TensorRows, binding::Binding, demand::Demand};

/// The steps of a request that have started and not ended.
pub(super) struct Flight {
    /// Requests and built-in steps that are running.
    pub(super) answers: FuturesUnordered<Pin<Box<dyn Future<Output = StepResponse> + Send>>>,
    /// By step.
    pub(super) running: Vec<Option<Running>>,
    /// Requests of steps that wait for places.
    pub(super) waiting: VecDeque<PartRequest>,
}

/// A step that has started.
pub(super) struct Running {
    pub(super) binding: Arc<Binding>,
    pub(super) started: Instant,
    /// Of its executions.
    pub(super) timings: Arc<StepTimings>,
    pub(super) parts: Parts,
    pub(super) left: usize,
    /// By request of the step: its outputs, in their order; `None` for those that are not read.
    pub(super) results: Vec<Option<Vec<Option<TensorRows>>>>,
    /// Holds the bytes of its requests, then also those of the results.
    pub(super) room: Reservation,
    /// Those of its inputs.
    _inputs: Vec<Arc<Reservation>>,
}

/// A request of a step.
pub(super) struct PartRequest {
    pub(super) step: usize,
    pub(super) part: usize,
    pub(super) servable: Servable,
    pub(super) binding: Arc<Binding>,
    pub(super) request: InferRequest,
    /// The bytes of its outputs, as far as they are known before it runs. A pipeline reserves its outputs itself.
    pub(super) output_bytes: usize,
}

/// A request of a step that has ended.
pub(super) struct StepResponse {
    pub(super) step: usize,
    pub(super) part: usize,
    /// What was reserved for the outputs before they were there.
    pub(super) room: Reservation,
    pub(super) result: Result<Vec<Option<TensorRows>>, InferError>,
}

impl Flight {
    /// Returns about the bytes that it takes, without what runs.
    pub(super) fn bytes(pipeline: &Pipeline) -> usize {
        pipeline.graph.steps.len() * size_of::<Option<Running>>()
    }

    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let running = pipeline.graph.steps.iter().map(|_| None).collect();
        Self { answers: FuturesUnordered::new(), running, waiting: VecDeque::new() }
    }

    /// Adds what answers for a step, which keeps its place until then.
    pub(super) fn add(&self, answer: impl Future<Output = StepResponse> + Send + 'static, place: Option<Reservation>) {
        self.answers.push(Box::pin(async move {
            let _place = place;
            answer.await
        }));
    }

    /// Submits a request of a step, with room for its outputs.
    pub(super) fn submit(
        &self,
        pipeline: &Arc<Pipeline>,
        demand: &Arc<Demand>,
        part: PartRequest,
        (room, place): (Reservation, Option<Reservation>),
    ) {
        let PartRequest { step, part, servable, binding, request, .. } = part;
        let (pipeline, demand) = (Arc::clone(pipeline), Arc::clone(demand));
        let trace = request.trace.clone();
        let response = servable.submit(request);
        let answer = async move {
            let response = response.await;
            if let Some(trace) = trace {
                trace.responded();
            }
            let result = response.map(|response| chosen(&pipeline, &demand, step, &binding, response));
            StepResponse { step, part, room, result: result.map_err(|error| located(&pipeline, step, error)) }
        };
        self.add(answer, place);
    }
}

impl Running {
    pub(super) fn new(charge: &Charge, binding: Arc<Binding>, started: Instant, inputs: Vec<Arc<Reservation>>) -> Self {
        Self {
            binding,
            started,
            timings: Arc::default(),
            parts: Parts::Joint,
            left: 0,
            results: Vec::new(),
            room: charge.bytes(),
            _inputs: inputs,
        }
    }

    /// Waits for this number of answers.
    pub(super) fn expect(&mut self, count: usize) {
        self.left = count;
        self.results = (0..count).map(|_| None).collect();
    }
}

/// Returns the outputs of a response that are read, in the order of the step's.
pub(super) fn chosen(
    pipeline: &Pipeline,
    demand: &Demand,
    step: usize,
    binding: &Binding,
    response: Response,
) -> Vec<Option<TensorRows>> {
    let outputs = binding.outputs.iter().zip(&pipeline.graph.steps[step].outputs);
    let value = |(&output, &(_, tensor)): (&usize, &(String, usize))| {
        let OutputTensor { shape, data } = demand.reads(tensor).then(|| response.outputs[output].clone())?;
        Some(TensorRows::Joint(InputTensor { shape, data }))
    };
    outputs.map(value).collect()
}

/// The responses of a decoupled step, the next of which may be there already.
pub(super) struct OpenStream {
    responses: Responses,
    next: Option<Option<Result<Response, InferError>>>,
}

impl OpenStream {
    pub(super) fn new(responses: Responses) -> Self {
        Self { responses, next: None }
    }

    /// Returns the next response; `None` after the last one.
    pub(super) async fn next(&mut self) -> Option<Result<Response, InferError>> {
        match self.next.take() {
            Some(next) => next,
            None => self.responses.next().await,
        }
    }

    /// Whether it is known that no further response comes.
    pub(super) fn is_over(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.responses.next().now_or_never();
        }
        matches!(self.next, Some(None))
    }
}
