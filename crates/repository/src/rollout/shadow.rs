//! Runs requests on a second version, and compares its answers with those that clients get.

use std::{
    pin::pin,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_executor::{InferError, InferRequest, Response};
use paternoster_model::{ModelSpec, ShapeText};
use paternoster_observe::{
    RequestEnd, ShadowResult,
    budget::{Budget, Reservation},
};
use paternoster_pipeline::{PendingResponse, Servable};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::compare::{Difference, OutputDifference, difference};
use crate::{LoadError, ModelVersion};

/// Most requests of a model that are compared at a time, those that wait for the shadow among them. Each keeps its
/// inputs and both answers.
const MOST_AT_A_TIME: usize = 64;

/// A copy ends that takes this many times as long as the client's answer, and longer than [`SHORTEST_LIMIT`].
const LIMIT_FACTOR: u32 = 10;

/// Shortest time limit of a copy, if it leaves a lane to others.
const SHORTEST_LIMIT: Duration = Duration::from_secs(1);

/// The same if it does not.
const SHORTEST_LIMIT_ON_LAST_LANE: Duration = Duration::from_millis(50);

/// Time after which a task that was asked to stop has left its lane: it has stopped, or the lane has a new thread.
const TIME_TO_STOP: Duration = Duration::from_secs(5);

/// Answers of up to this many bytes are compared by the calling thread, which takes well below a millisecond.
const MOST_COMPARED_HERE_BYTES: usize = 256 << 10;

/// How often a difference is logged at most.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The version of a model that answers requests for comparison.
#[derive(Debug)]
pub(crate) struct Shadow {
    version: i64,
    tolerance: f64,
    /// Set when all versions are loaded.
    target: OnceLock<Target>,
    places: Arc<Semaphore>,
    /// Cancelled when the versions of the load have left.
    ended: CancellationToken,
    logged: Mutex<Option<Instant>>,
}

/// Where copies of requests run.
#[derive(Debug)]
struct Target {
    /// Does not keep the version loaded.
    version: Weak<ModelVersion>,
    /// The copies that may run at a time: fewer than there are lanes, so that one is left to others.
    running: Arc<Semaphore>,
    shortest_limit: Duration,
    /// Where the bytes of copies and answers count.
    room: Arc<Budget>,
}

/// A copy that runs. If it is dropped before its response, its place is free once its task has surely left its lane.
struct Running(Option<OwnedSemaphorePermit>);

impl Running {
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // None where the server is ending.
        if let (Some(place), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                sleep(TIME_TO_STOP).await;
                drop(place);
            });
        }
    }
}

/// A request that is to be compared.
struct Compared {
    spec: Arc<ModelSpec>,
    servable: Servable,
    copy: InferRequest,
    /// Of the copy's inputs, and then of the answers too.
    held: Reservation,
    began: Instant,
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
    pub(super) fn fits(&self, target: &ModelVersion, other: &ModelVersion) -> Result<(), LoadError> {
        let (target, other) = (target.spec(), other.spec());
        let inputs = |spec: &ModelSpec| -> Vec<String> {
            let inputs = spec.inputs.iter();
            inputs
                .map(|input| format!("'{}': {} {}", input.name, input.datatype, ShapeText(input.dims.to_vec())))
                .collect()
        };
        let (here, there) = (inputs(target), inputs(other));
        if here != there {
            return Err(LoadError::settings(format!(
                "rollout.shadow: expected the inputs of version {} ({}), but version {} has {}",
                other.version,
                there.join(", "),
                target.version,
                here.join(", ")
            )));
        }
        if target.decoupled || other.decoupled {
            let message = "rollout.shadow: answers of decoupled models are not compared: remove it";
            return Err(LoadError::settings(message));
        }
        Ok(())
    }

    /// Sets the version that answers. Only the first call has an effect.
    pub(super) fn bind(&self, target: &Arc<ModelVersion>, room: &Arc<Budget>) {
        let servable = target.servable();
        servable.stats().keep_shadow_counts();
        // The lanes of a pipeline's models are theirs.
        let own = servable.pipeline().and_then(|pipeline| pipeline.own()).unwrap_or(servable);
        let lanes = own.model().map_or(1, |model| model.lanes());
        let is_last = lanes <= 1;
        let _ = self.target.set(Target {
            version: Arc::downgrade(target),
            running: Arc::new(Semaphore::new(usize::from(lanes).saturating_sub(1).max(1))),
            shortest_limit: if is_last { SHORTEST_LIMIT_ON_LAST_LANE } else { SHORTEST_LIMIT },
            room: Arc::clone(room),
        });
    }

    /// Submits a request to a version. A copy is submitted for comparison too, unless too many are, there is no room
    /// for its bytes, a batch of clients' requests waits, or its tensors are in a card's memory, which the client may
    /// change.
    pub(crate) fn submit(self: &Arc<Self>, version: &ModelVersion, request: InferRequest) -> PendingResponse {
        let target = self.target.get().filter(|_| version.spec().version != self.version);
        let shadow = target.and_then(|target| Some((target, target.version.upgrade()?)));
        let Some((target, shadow)) = shadow else { return version.servable().submit(request) };
        let is_behind = version.servable().stats().pending() >= u64::from(version.spec().max_batch_size.max(1));
        let may_copy = !is_behind && request.on_card.is_none();
        let place = may_copy.then(|| Arc::clone(&self.places).try_acquire_owned().ok()).flatten();
        let input_bytes = request.inputs.iter().flatten().map(|input| input.data.len()).sum();
        let mut held = Reservation::none(&target.room);
        let Some(place) = place.filter(|_| held.try_grow(input_bytes)) else {
            shadow.servable().stats().shadowed(ShadowResult::Skipped);
            return version.servable().submit(request);
        };
        // The client's timeouts and priority are not for the copy, which is the least important request.
        let copy = InferRequest::new(request.rows, request.inputs.clone());
        let copy = InferRequest { priority: shadow.lowest_priority(), ..copy };
        let response = version.servable().submit(request);
        let (answered, answer) = oneshot::channel();
        // Neither the copy nor its response keeps the load: it ends with the last version.
        let (spec, servable) = (Arc::clone(version.servable().spec()), shadow.servable().clone());
        let stats = Arc::clone(servable.stats());
        let compared = Compared { spec, servable, copy, held, began: Instant::now() };
        let comparing = Arc::clone(self);
        tokio::spawn(async move {
            let ended = comparing.ended.clone();
            let result = ended.run_until_cancelled(comparing.compare(compared, answer)).await;
            stats.shadowed(result.unwrap_or(ShadowResult::Skipped));
            drop(place);
        });
        PendingResponse::Boxed(Box::pin(async move {
            let response = response.await;
            // Whether anyone compares it is not the client's concern.
            let _ = answered.send(response.clone());
            response
        }))
    }

    /// Compares a response with the one that the client gets. Ends when the client leaves, and when the copy has taken
    /// much longer than the client's answer.
    async fn compare(
        &self,
        compared: Compared,
        answer: oneshot::Receiver<Result<Response, InferError>>,
    ) -> ShadowResult {
        let Compared { spec, servable, copy, mut held, began } = compared;
        let Some(target) = self.target.get() else { return ShadowResult::Skipped };
        let (mut answer, mut running) = (pin!(answer), pin!(target.run(&servable, copy)));
        let mut second = None;
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                done = &mut running, if second.is_none() => second = Some(done),
            }
        };
        // A request that fails says nothing about the version that answers for comparison.
        let Ok(Ok(first)) = answer else { return ShadowResult::Skipped };
        let bytes: usize = first.outputs.iter().map(|output| output.data.len()).sum();
        if !held.try_grow(bytes.saturating_mul(2)) {
            return ShadowResult::Skipped;
        }
        let limit = (began.elapsed() * LIMIT_FACTOR).max(target.shortest_limit);
        let second = match second {
            Some(second) => second,
            None => match timeout_at(began + limit, running).await {
                Ok(second) => second,
                Err(_) => return ShadowResult::Skipped,
            },
        };
        let second = match second {
            Ok(second) => second,
            Err(error) if !is_of_version(&error) => return ShadowResult::Skipped,
            Err(error) => {
                self.log(&spec, &format!("it failed: {error}"));
                return ShadowResult::Failed;
            }
        };
        let (specs, tolerance) = ((Arc::clone(&spec), Arc::clone(servable.spec())), self.tolerance);
        let compare = move || difference((&first, &specs.0), (&second, &specs.1), tolerance);
        match if bytes <= MOST_COMPARED_HERE_BYTES { Ok(compare()) } else { spawn_blocking(compare).await } {
            // The server is ending.
            Err(_) => ShadowResult::Skipped,
            Ok(None) => ShadowResult::Equal,
            Ok(Some(difference)) => {
                self.log(&spec, &describe(&difference));
                ShadowResult::Different
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

impl Target {
    /// Runs a copy once it leaves a lane to others.
    async fn run(&self, servable: &Servable, copy: InferRequest) -> Result<Response, InferError> {
        // Places are never closed.
        let running = Running(Arc::clone(&self.running).acquire_owned().await.ok());
        let response = servable.submit(copy).await;
        running.ended();
        response
    }
}

/// Whether a version gives this error because of what it computes, not because of the load on the server.
fn is_of_version(error: &InferError) -> bool {
    matches!(error.end(), RequestEnd::Failed | RequestEnd::Invalid)
}

fn describe(difference: &Difference) -> String {
    let Difference { output, what } = difference;
    match what {
        OutputDifference::Missing => {
            format!("only one of the versions has the output '{output}', or with another datatype")
        }
        OutputDifference::Shape => format!("the output '{output}' has another shape"),
        OutputDifference::Elements => format!("the output '{output}' has other elements"),
        OutputDifference::Numbers { count, largest } => {
            format!("{count} numbers of the output '{output}' differ, by {largest:.3e} at most")
        }
    }
}
