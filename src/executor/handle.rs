//! Handles on the pool: loading a version, submitting a request, waiting for its answer.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{InferError, InferRequest, Response};
use crate::{batching::Knobs, engine::Program, model::ModelSpec, observe::ModelStats};

/// The executor pool of one process.
#[derive(Debug)]
pub struct Pool {}

impl Pool {
    /// Brings a compiled version up: from here on requests may be submitted to the handle.
    pub fn bring_up(self: &Arc<Self>, spec: ModelSpec, knobs: Knobs, program: Arc<dyn Program>) -> ModelHandle {
        let _ = (knobs, program);
        ModelHandle { spec: Arc::new(spec), stats: Arc::default() }
    }
}

/// One loaded version. Whoever holds it may submit; when the last holder lets go, the version leaves the pool and its
/// memory is freed.
#[derive(Debug)]
pub struct ModelHandle {
    spec: Arc<ModelSpec>,
    stats: Arc<ModelStats>,
}

impl ModelHandle {
    /// What the version takes and gives.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The version's counters.
    pub fn stats(&self) -> &Arc<ModelStats> {
        &self.stats
    }

    /// Submits a request with exactly one response. Dropping the ticket cancels the request.
    pub fn submit(self: &Arc<Self>, request: InferRequest) -> Ticket {
        let _ = request;
        Ticket {}
    }

    /// Submits a request with any number of responses. Dropping the stream cancels the request.
    pub fn submit_stream(self: &Arc<Self>, request: InferRequest) -> ResponseStream {
        let _ = request;
        ResponseStream {}
    }
}

/// The future answer of a request.
#[derive(Debug)]
pub struct Ticket {}

impl Future for Ticket {
    type Output = Result<Response, InferError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

/// The responses of a decoupled request in order.
#[derive(Debug)]
pub struct ResponseStream {}

impl ResponseStream {
    /// The next response; `None` after the last one of a request that ended well.
    ///
    /// # Errors
    /// When the request ended otherwise; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Response, InferError>> {
        None
    }
}
