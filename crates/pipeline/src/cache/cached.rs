//! A version whose responses are cached.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use parking_lot::Mutex;
use paternoster_executor::{BacklogShare, InferError, InferRequest, Response};
use paternoster_model::ModelSpec;
use paternoster_observe::ObservedHit;

use super::{Key, ResponseCache};
use crate::{PendingResponse, Servable};

/// Inputs up to this many bytes are hashed by the calling thread, which takes well below a millisecond.
const MOST_HASHED_HERE_BYTES: usize = 256 << 10;

/// A version with a cache in front of it.
///
/// Requests of sequences go past the cache, as do those with tensors in a card's memory and all of decoupled versions.
/// Equal requests in flight at the same time all run. Only the responses of requests that succeed are kept.
#[derive(Debug)]
pub struct Cached {
    inner: Servable,
    cache: Arc<ResponseCache>,
    load: Mutex<Load>,
}

/// The version as it was loaded, and what its steps ran when it was asked last.
#[derive(Debug)]
struct Load {
    /// Keys begin with it.
    number: u64,
    /// A reload of a model that a step runs gives it another specification. Kept, so that no other one is put in its
    /// place in memory.
    within: Vec<Arc<ModelSpec>>,
}

impl Cached {
    /// Puts a cache in front of a version that has just been loaded.
    pub fn new(inner: Servable, cache: Arc<ResponseCache>) -> Self {
        inner.stats().keep_cache_counts();
        let load = Mutex::new(Load { number: cache.next_load(), within: Vec::new() });
        Self { inner, cache, load }
    }

    pub(crate) fn inner(&self) -> &Servable {
        &self.inner
    }

    pub(crate) fn submit(self: &Arc<Self>, mut request: InferRequest) -> PendingResponse {
        // A model's response has all outputs.
        request.wanted_outputs = request.wanted_outputs.filter(|_| self.inner.pipeline().is_some());
        if request.sequence.is_some() || request.on_card.is_some() || self.inner.spec().decoupled {
            return self.inner.submit(request);
        }
        let began = Instant::now();
        let Some(load) = self.load() else {
            // There is no key. A step may yet find its model, so the request counts as one that was looked up.
            let missed_ns = Some(nanoseconds_since(began));
            return self.inner.submit(InferRequest { missed_ns, ..request });
        };
        if request.inputs.iter().flatten().map(|input| input.data.len()).sum::<usize>() <= MOST_HASHED_HERE_BYTES {
            let key = Key::of(load, &request);
            return self.look_up(key, began, request);
        }
        let cached = Arc::clone(self);
        let hashing = tokio::task::spawn_blocking(move || (Key::of(load, &request), request));
        PendingResponse::Boxed(Box::pin(async move {
            let hashed =
                hashing.await.map_err(|error| InferError::Engine(format!("the key cannot be hashed: {error}")));
            let (key, request) = hashed?;
            cached.look_up(key, began, request).await
        }))
    }

    /// Returns the number of the load that keys begin with; `None` while the model of a step is not served.
    fn load(&self) -> Option<u64> {
        let mut within = Vec::new();
        if let Some(pipeline) = self.inner.pipeline() {
            pipeline.specs_within(&mut within)?;
        }
        let mut load = self.load.lock();
        let is_same = load.within.len() == within.len()
            && load.within.iter().zip(&within).all(|(known, now)| Arc::ptr_eq(known, now));
        if !is_same {
            *load = Load { number: self.cache.next_load(), within };
        }
        Some(load.number)
    }

    fn look_up(self: &Arc<Self>, key: Key, began: Instant, request: InferRequest) -> PendingResponse {
        let found = self.cache.get(&key);
        let looked_up_ns = nanoseconds_since(began);
        let response = match found {
            Some(response) => {
                ObservedHit { began, looked_up_ns, trace: request.trace }.answered(self.inner.stats());
                let waiting = request.backlog.map(|backlog| backlog.hold(response.kept_bytes()));
                LookedUp::Hit(Some((response, waiting)))
            }
            None => {
                let request = InferRequest { missed_ns: Some(looked_up_ns), ..request };
                let response = self.inner.submit(request);
                LookedUp::Miss { response, cached: Arc::clone(self), key, looked_up_ns }
            }
        };
        PendingResponse::Cached(Box::new(CachedResponse(response)))
    }
}

/// The response to a request that was looked up.
pub struct CachedResponse(LookedUp);

enum LookedUp {
    /// It was there; `None` once it was taken. Until then it counts as a response that waits.
    Hit(Option<(Response, Option<BacklogShare>)>),
    /// It was not: it goes there, if the request succeeds.
    Miss { response: PendingResponse, cached: Arc<Cached>, key: Key, looked_up_ns: u64 },
}

impl CachedResponse {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Response, InferError>> {
        match &mut self.0 {
            LookedUp::Hit(found) => {
                let taken = found.take().map(|(response, _)| response);
                Poll::Ready(taken.ok_or_else(|| InferError::Engine("the response was taken before".to_owned())))
            }
            LookedUp::Miss { response, cached, key, looked_up_ns } => {
                let answer = ready!(Future::poll(Pin::new(response), context));
                if let Ok(response) = &answer {
                    let began = Instant::now();
                    cached.cache.insert(*key, response);
                    cached.inner.stats().cache_kept(*looked_up_ns, nanoseconds_since(began));
                }
                Poll::Ready(answer)
            }
        }
    }
}

fn nanoseconds_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
