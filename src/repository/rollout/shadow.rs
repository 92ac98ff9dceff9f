//! Runs requests on a second version, and compares its answers with those that clients get.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::compare::{Difference, What, difference};
use crate::{
    executor::{Backlog, InferError, InferRequest, Response},
    model::{ModelSpec, ShapeText},
    observe::{ModelStats, ShadowResult},
    pipeline::PendingResponse,
    repository::ModelVersion,
};

/// Most requests of a model that run for comparison at a time. Each keeps its inputs and the client's answer.
const MOST_AT_A_TIME: usize = 64;

/// How often a difference is logged at most.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The version of a model that answers requests for comparison.
#[derive(Debug)]
pub(super) struct Shadow {
    version: i64,
    tolerance: f64,
    /// Set when all versions are loaded. Does not keep the version loaded.
    target: OnceLock<Weak<ModelVersion>>,
    places: Arc<Semaphore>,
    logged: Mutex<Option<Instant>>,
}

impl Shadow {
    pub(super) fn new(version: i64, tolerance: f64) -> Self {
        let places = Arc::new(Semaphore::new(MOST_AT_A_TIME));
        Self { version, tolerance, target: OnceLock::new(), places, logged: Mutex::default() }
    }

    pub(super) fn version(&self) -> i64 {
        self.version
    }

    /// Checks that a version takes the requests of another one.
    ///
    /// # Errors
    /// Returns what differs.
    pub(super) fn fits(&self, target: &ModelVersion, other: &ModelVersion) -> Result<(), String> {
        let (target, other) = (target.spec(), other.spec());
        let inputs = |spec: &ModelSpec| -> Vec<String> {
            let inputs = spec.inputs.iter();
            inputs
                .map(|input| format!("'{}': {} {}", input.name, input.datatype, ShapeText(input.dims.to_vec())))
                .collect()
        };
        let (here, there) = (inputs(target), inputs(other));
        if here != there {
            return Err(format!(
                "rollout.shadow: expected the inputs of version {} ({}), but version {} has {}",
                other.version,
                there.join(", "),
                target.version,
                here.join(", ")
            ));
        }
        if target.decoupled || other.decoupled {
            return Err("rollout.shadow: answers of decoupled models are not compared: remove it".to_owned());
        }
        Ok(())
    }

    /// Sets the version that answers. Only the first call has an effect.
    pub(super) fn bind(&self, target: &Arc<ModelVersion>) {
        target.servable().stats().keep_shadow_counts();
        let _ = self.target.set(Arc::downgrade(target));
    }

    /// Submits a request to a version. It is submitted for comparison too, unless too many are or its tensors are
    /// in a card's memory, which the client may change.
    pub(super) fn submit(
        self: &Arc<Self>,
        version: &ModelVersion,
        request: InferRequest,
        backlog: Option<&Arc<Backlog>>,
    ) -> PendingResponse {
        let target = self.target.get().and_then(Weak::upgrade).filter(|_| version.spec().version != self.version);
        let Some(target) = target else { return version.submit_alone(request, backlog) };
        let stats = target.servable().stats();
        let place = Arc::clone(&self.places).try_acquire_owned().ok().filter(|_| request.on_card.is_none());
        let Some(place) = place else {
            stats.shadowed(ShadowResult::Skipped);
            return version.submit_alone(request, backlog);
        };
        // The client's timeouts and priority are not for the copy, which is the least important request.
        let copy = InferRequest::new(request.rows, request.inputs.clone());
        let copy = InferRequest { priority: target.lowest_priority(), ..copy };
        let response = version.submit_alone(request, backlog);
        let (answered, answer) = oneshot::channel();
        tokio::spawn(Arc::clone(self).compare(Arc::clone(version.servable().spec()), target, copy, answer, place));
        PendingResponse::Boxed(Box::pin(async move {
            let response = response.await;
            // Whether anyone compares it is not the client's concern.
            let _ = answered.send(response.clone());
            response
        }))
    }

    /// Runs a request, and compares its answer with the one that the client gets. Ends when the client leaves.
    async fn compare(
        self: Arc<Self>,
        spec: Arc<ModelSpec>,
        target: Arc<ModelVersion>,
        request: InferRequest,
        answer: oneshot::Receiver<Result<Response, InferError>>,
        _place: OwnedSemaphorePermit,
    ) {
        let second = target.submit_alone(request, None);
        let stats: &ModelStats = target.servable().stats();
        let Ok(answer) = answer.await else { return stats.shadowed(ShadowResult::Skipped) };
        // A request that fails says nothing about the version that answers for comparison.
        let Ok(first) = answer else { return stats.shadowed(ShadowResult::Skipped) };
        let second = match second.await {
            Ok(second) => second,
            Err(error) => {
                stats.shadowed(ShadowResult::Failed);
                return self.log(&spec, &format!("it failed: {error}"));
            }
        };
        match difference((&first, &spec), (&second, target.spec()), self.tolerance) {
            None => stats.shadowed(ShadowResult::Equal),
            Some(difference) => {
                stats.shadowed(ShadowResult::Different);
                self.log(&spec, &describe(&difference));
            }
        }
    }

    /// Logs one of the differences of a minute; metrics count all.
    fn log(&self, spec: &ModelSpec, difference: &str) {
        let mut logged = self.logged.lock();
        if logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            return;
        }
        *logged = Some(Instant::now());
        let (model, version, shadow) = (&spec.name, spec.version, self.version);
        tracing::warn!(model, version, shadow, difference, "the version for comparison answered differently");
    }
}

fn describe(difference: &Difference) -> String {
    let Difference { output, what } = difference;
    match what {
        What::Missing => format!("it has no output '{output}' of that datatype"),
        What::Shape => format!("the output '{output}' has another shape"),
        What::Elements => format!("the output '{output}' has other elements"),
        What::Numbers { count, largest } => {
            format!("{count} numbers of the output '{output}' differ, by {largest:.3e} at most")
        }
    }
}
