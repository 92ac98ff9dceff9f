//! What a front end submits requests to: a model or a pipeline, with or without a cache in front.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, LazyLock, Weak},
    task::{Context, Poll},
};

use paternoster_executor::{
    CardPorts, InferError, InferRequest, ModelHandle, Response, ResponseFuture, ResponseStream,
};
use paternoster_model::ModelSpec;
use paternoster_observe::{CardMemory, ModelStats};

use super::{
    Pipeline,
    cache::{Cached, CachedResponse},
    stream::PipelineStream,
};

pub(crate) type Future = Pin<Box<dyn std::future::Future<Output = Result<Response, InferError>> + Send>>;

/// A version that takes requests.
#[derive(Clone, Debug)]
pub enum Servable {
    /// The executor runs it.
    Model(Arc<ModelHandle>),
    /// Its steps do.
    Pipeline(Arc<Pipeline>),
    /// One of these, whose responses are cached.
    Cached(Arc<Cached>),
}

/// A version that may have been unloaded.
#[derive(Clone, Debug)]
pub enum WeakServable {
    /// A model.
    Model(Weak<ModelHandle>),
    /// A pipeline.
    Pipeline(Weak<Pipeline>),
}

impl WeakServable {
    /// Of no version.
    pub fn none() -> Self {
        Self::Model(Weak::new())
    }

    /// Whether a request still holds it.
    pub fn is_held(&self) -> bool {
        match self {
            Self::Model(handle) => handle.strong_count() > 0,
            Self::Pipeline(pipeline) => pipeline.strong_count() > 0,
        }
    }
}

impl Servable {
    /// Returns its inputs and outputs.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        match self {
            Self::Model(handle) => handle.spec(),
            Self::Pipeline(pipeline) => pipeline.spec(),
            Self::Cached(cached) => cached.inner().spec(),
        }
    }

    /// Returns the labels of an output's classes. A pipeline that has none of its own has those of the step that gives
    /// the output, as it is served now.
    pub fn labels(&self, output: usize) -> Arc<[String]> {
        self.labels_at(output, 0)
    }

    /// As [`Self::labels`], within `depth` pipelines.
    pub(crate) fn labels_at(&self, output: usize, depth: usize) -> Arc<[String]> {
        let own = self.spec().outputs.get(output).map(|spec| Arc::clone(&spec.labels)).unwrap_or_default();
        match self.pipeline() {
            Some(pipeline) if own.is_empty() => pipeline.labels_of_steps(output, depth).unwrap_or_default(),
            _ => own,
        }
    }

    /// Returns its counters.
    pub fn stats(&self) -> &Arc<ModelStats> {
        match self {
            Self::Model(handle) => handle.stats(),
            Self::Pipeline(pipeline) => pipeline.stats(),
            Self::Cached(cached) => cached.inner().stats(),
        }
    }

    /// Returns the name of the policy that batches its requests; that of its program, for a pipeline with one.
    pub fn policy(&self) -> &'static str {
        match self {
            Self::Model(handle) => handle.policy(),
            Self::Pipeline(pipeline) => pipeline.own().map_or("pipeline", Self::policy),
            Self::Cached(cached) => cached.inner().policy(),
        }
    }

    /// Returns why it cannot answer requests now; `None` if it can.
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Model(handle) => handle.fault(),
            Self::Pipeline(pipeline) => pipeline.fault(),
            Self::Cached(cached) => cached.inner().fault(),
        }
    }

    /// Whether it can answer requests now.
    pub fn is_responsive(&self) -> bool {
        self.fault().is_none()
    }

    /// Returns the tensors of requests that it reads and writes in place, in a card's memory; none for a pipeline.
    pub fn card_ports(&self) -> &CardPorts {
        static NONE: LazyLock<CardPorts> = LazyLock::new(CardPorts::default);
        match self {
            Self::Model(handle) => handle.card_ports(),
            Self::Pipeline(_) => &NONE,
            Self::Cached(cached) => cached.inner().card_ports(),
        }
    }

    /// Returns a reference that does not keep it loaded.
    pub fn downgrade(&self) -> WeakServable {
        match self {
            Self::Model(handle) => WeakServable::Model(Arc::downgrade(handle)),
            Self::Pipeline(pipeline) => WeakServable::Pipeline(Arc::downgrade(pipeline)),
            Self::Cached(cached) => cached.inner().downgrade(),
        }
    }

    /// Returns whether a request, or something else besides this reference, holds it.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Model(handle) => Arc::strong_count(handle) > 1,
            Self::Pipeline(pipeline) => Arc::strong_count(pipeline) > 1,
            Self::Cached(cached) => Arc::strong_count(cached) > 1 || cached.inner().is_shared(),
        }
    }

    /// Returns what its own program has reserved on each of its cards.
    pub fn card_memory(&self) -> Vec<CardMemory> {
        match self {
            Self::Model(handle) => handle.stats().card_memory(),
            Self::Pipeline(pipeline) => pipeline.own().map_or_else(Vec::new, Self::card_memory),
            Self::Cached(cached) => cached.inner().card_memory(),
        }
    }

    /// Returns how many of its sequences keep state for further requests.
    pub fn open_sequences(&self) -> usize {
        match self {
            Self::Model(handle) => handle.open_sequences(),
            Self::Pipeline(pipeline) => pipeline.own().map_or(0, Self::open_sequences),
            Self::Cached(cached) => cached.inner().open_sequences(),
        }
    }

    /// Returns the executor's handle of a model.
    pub fn model(&self) -> Option<&Arc<ModelHandle>> {
        match self {
            Self::Model(handle) => Some(handle),
            Self::Pipeline(_) => None,
            Self::Cached(cached) => cached.inner().model(),
        }
    }

    /// Returns the pipeline, if it is one.
    pub fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        match self {
            Self::Model(_) => None,
            Self::Pipeline(pipeline) => Some(pipeline),
            Self::Cached(cached) => cached.inner().pipeline(),
        }
    }

    /// Submits a request that has exactly one response. Dropping the response cancels the request. The response of a
    /// pipeline never waits in a backlog: its last step runs as it is taken.
    pub fn submit(&self, request: InferRequest) -> PendingResponse {
        match self {
            Self::Model(handle) => PendingResponse::Model(handle.submit(request)),
            Self::Pipeline(pipeline) => PendingResponse::Boxed(pipeline.submit(request)),
            Self::Cached(cached) => cached.submit(request),
        }
    }

    /// Submits a request with any number of responses. Dropping them cancels the request.
    pub fn submit_stream(&self, request: InferRequest) -> Responses {
        match self {
            Self::Model(handle) => Responses::Model(handle.submit_stream(request)),
            Self::Pipeline(pipeline) => Responses::Pipeline(pipeline.submit_stream(request)),
            Self::Cached(cached) => cached.inner().submit_stream(request),
        }
    }
}

/// The future response of a request.
pub enum PendingResponse {
    /// Of a model.
    Model(ResponseFuture),
    /// Of a pipeline, or of a request that takes long to be looked up in the cache.
    Boxed(Future),
    /// From the cache, or of a request whose response goes there.
    Cached(Box<CachedResponse>),
}

impl std::future::Future for PendingResponse {
    type Output = Result<Response, InferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Model(response) => Pin::new(response).poll(context),
            Self::Boxed(response) => response.as_mut().poll(context),
            Self::Cached(response) => response.poll(context),
        }
    }
}

/// The responses of a decoupled request, in order.
#[derive(Debug)]
pub enum Responses {
    /// Of a model.
    Model(ResponseStream),
    /// Of a pipeline.
    Pipeline(PipelineStream),
}

impl Responses {
    /// Returns the next response; `None` after the last response of a successful request.
    ///
    /// # Errors
    /// If the request ended otherwise; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Response, InferError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Whether the response that was returned last is known to be the last one. If not, the end may still follow it.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Model(_) => false,
            Self::Pipeline(responses) => responses.is_over(),
        }
    }

    /// Polls for the next response; see [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Response, InferError>>> {
        match self {
            Self::Model(responses) => responses.poll_next(context),
            Self::Pipeline(responses) => responses.poll_next(context),
        }
    }
}
