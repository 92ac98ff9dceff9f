//! Runs requests on a second version, and compares its answers with those that clients get.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};
use tokio_util::sync::CancellationToken;

use super::compare::{Difference, What, difference};
use crate::{
    executor::{Backlog, InferError, InferRequest, Response},
    model::{ModelSpec, ShapeText},
    observe::{RequestEnd, ShadowResult},
    pipeline::{PendingResponse, Servable},
    repository::ModelVersion,
};

/// Most requests of a model that run for comparison at a time. Each keeps its inputs and the client's answer.
const MOST_AT_A_TIME: usize = 64;

/// Answers of up to this many bytes are compared by the calling thread, which takes well below a millisecond.
const MOST_COMPARED_HERE_BYTES: usize = 256 << 10;

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
    /// Cancelled when the versions of the load have left.
    ended: CancellationToken,
    logged: Mutex<Option<Instant>>,
}

impl Shadow {
    pub(super) fn new(version: i64, tolerance: f64) -> Self {
        let places = Arc::new(Semaphore::new(MOST_AT_A_TIME));
        let (target, ended) = (OnceLock::new(), CancellationToken::new());
        Self { version, tolerance, target, places, ended, logged: Mutex::default() }
    }

    /// Ends what runs for comparison.
    pub(super) fn end(&self) {
        self.ended.cancel();
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

    /// Submits a request to a version. It is submitted for comparison too, unless too many are, a batch of requests
    /// waits there already, or its tensors are in a card's memory, which the client may change.
    pub(super) fn submit(
        self: &Arc<Self>,
        version: &ModelVersion,
        request: InferRequest,
        backlog: Option<&Arc<Backlog>>,
    ) -> PendingResponse {
        let target = self.target.get().and_then(Weak::upgrade).filter(|_| version.spec().version != self.version);
        let Some(target) = target else { return version.submit_alone(request, backlog) };
        let stats = target.servable().stats();
        // Clients that the version answers wait for one batch of copies at most.
        let has_room = stats.pending() < u64::from(target.spec().max_batch_size.max(1));
        let may_copy = has_room && request.on_card.is_none();
        let place = Arc::clone(&self.places).try_acquire_owned().ok().filter(|_| may_copy);
        let Some(place) = place else {
            stats.shadowed(ShadowResult::Skipped);
            return version.submit_alone(request, backlog);
        };
        // The client's timeouts and priority are not for the copy, which is the least important request.
        let copy = InferRequest::new(request.rows, request.inputs.clone());
        let copy = InferRequest { priority: target.lowest_priority(), ..copy };
        let response = version.submit_alone(request, backlog);
        let (answered, answer) = oneshot::channel();
        // Neither the copy nor its answer keeps the load: it ends with the last version.
        let (spec, servable) = (Arc::clone(version.servable().spec()), target.servable().clone());
        let (second, comparing) = (target.submit_alone(copy, None), Arc::clone(self));
        tokio::spawn(async move {
            let ended = comparing.ended.clone();
            let compared = ended.run_until_cancelled(comparing.compare(&spec, &servable, second, answer)).await;
            if compared.is_none() {
                servable.stats().shadowed(ShadowResult::Skipped);
            }
            drop(place);
        });
        PendingResponse::Boxed(Box::pin(async move {
            let response = response.await;
            // Whether anyone compares it is not the client's concern.
            let _ = answered.send(response.clone());
            response
        }))
    }

    /// Compares an answer with the one that the client gets. Ends when the client leaves.
    async fn compare(
        &self,
        spec: &Arc<ModelSpec>,
        servable: &Servable,
        second: PendingResponse,
        answer: oneshot::Receiver<Result<Response, InferError>>,
    ) {
        let stats = servable.stats();
        let Ok(answer) = answer.await else { return stats.shadowed(ShadowResult::Skipped) };
        // A request that fails says nothing about the version that answers for comparison.
        let Ok(first) = answer else { return stats.shadowed(ShadowResult::Skipped) };
        let second = match second.await {
            Ok(second) => second,
            Err(error) if !is_of_version(&error) => return stats.shadowed(ShadowResult::Skipped),
            Err(error) => {
                stats.shadowed(ShadowResult::Failed);
                return self.log(spec, &format!("it failed: {error}"));
            }
        };
        let (specs, tolerance) = ((Arc::clone(spec), Arc::clone(servable.spec())), self.tolerance);
        let bytes: usize = first.outputs.iter().map(|output| output.data.len()).sum();
        let compare = move || difference((&first, &specs.0), (&second, &specs.1), tolerance);
        let compared = if bytes <= MOST_COMPARED_HERE_BYTES { Ok(compare()) } else { spawn_blocking(compare).await };
        match compared {
            // The server is ending.
            Err(_) => stats.shadowed(ShadowResult::Skipped),
            Ok(None) => stats.shadowed(ShadowResult::Equal),
            Ok(Some(difference)) => {
                stats.shadowed(ShadowResult::Different);
                self.log(spec, &describe(&difference));
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
        tracing::warn!(model, version, shadow, difference, "a request for comparison had another result");
    }
}

/// Whether a version gives this error because of what it computes, not because of the load on the server.
fn is_of_version(error: &InferError) -> bool {
    matches!(error.end(), RequestEnd::Failed | RequestEnd::Invalid)
}

fn describe(difference: &Difference) -> String {
    let Difference { output, what } = difference;
    match what {
        What::Missing => format!("only one of the versions has the output '{output}', or with another datatype"),
        What::Shape => format!("the output '{output}' has another shape"),
        What::Elements => format!("the output '{output}' has other elements"),
        What::Numbers { count, largest } => {
            format!("{count} numbers of the output '{output}' differ, by {largest:.3e} at most")
        }
    }
}
