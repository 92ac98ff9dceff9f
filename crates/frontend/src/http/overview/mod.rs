//! `GET /v2/overview`: models, load and recent batches, for the web page and `paternoster top`.
//!
//! `response` says what it contains, and `models` which models, in which order. It is computed at most twice a second
//! however many clients ask, outside the I/O threads, and is of bounded size. The load is sampled every second; batches
//! are recorded only while a client asks, and for a few seconds after.

mod models;
pub mod response;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use parking_lot::Mutex;
use paternoster_observe::{
    RECENT_SAMPLES, ResidencyReading, ResourceReading, Trends,
    budget::Budget,
    timeline::{Bounds, Excerpt, Picture, Recording, Timeline},
};
use paternoster_repository::{IndexEntry, ModelVersion, Repository};
use serde::{Deserialize, Serialize};
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use self::{
    models::{Sources, models},
    response::{LimitedResource, ModelsMemory, OnDemandState, OverviewResponse, ServerLoad, ServerState, Usage},
};
use super::{Problem, loaded_versions, shared_response::SharedResponse};
use crate::Services;

/// Maximum age of a cached response.
const FRESH: Duration = Duration::from_millis(500);

/// How often the load is sampled.
const SAMPLE: Duration = Duration::from_secs(1);

/// How long batches are recorded after the last request.
pub(super) const WATCH: Duration = Duration::from_secs(5);

/// Maximum number of batch events kept: 320 KiB, which take a fifth of a millisecond to copy.
const MOST_EVENTS: usize = 8192;

/// Limits of the excerpt shown.
const BOUNDS: Bounds = Bounds { length_ns: 5_000_000_000, rows: 24, spans: 600 };

/// Maximum number of resources shown: models name them.
const MOST_RESOURCES: usize = 16;

/// Maximum length of a reason among those of all models, and alone, in characters.
const MOST_REASON: usize = 1_000;
const MOST_REASON_ALONE: usize = 20_000;

/// What a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// Only the versions of this model, and no batches.
    model: Option<String>,
    /// Whether recent batches are wanted; by default they are.
    timeline: Option<bool>,
}

/// Computes and caches the response.
#[derive(Clone)]
pub(super) struct Overview(Arc<Shared>);

struct Shared {
    services: Arc<Services>,
    timeline: Arc<Timeline>,
    trends: Mutex<Trends>,
    with_batches: SharedResponse,
    without_batches: SharedResponse,
    watch: Mutex<Watch>,
}

/// Whether batches are being recorded for the overview.
#[derive(Default)]
struct Watch {
    /// End of the recording unless another request comes; `None` if nothing is recorded.
    until: Option<Instant>,
}

impl Overview {
    pub(super) fn new(services: Arc<Services>, timeline: Arc<Timeline>) -> Self {
        Self(Arc::new(Shared {
            services,
            timeline,
            trends: Mutex::default(),
            with_batches: SharedResponse::default(),
            without_batches: SharedResponse::default(),
            watch: Mutex::default(),
        }))
    }

    /// Samples the load of all models every second from now on, as long as the overview exists.
    pub(super) fn sample(&self) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut ticks = interval(SAMPLE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let now = ticks.tick().await.into_std();
                let Some(shared) = shared.upgrade() else { return };
                let sample = move || {
                    let loaded = loaded_versions(&shared.services.repository);
                    shared.trends.lock().sample(now, loaded);
                };
                // On a blocking thread: thousands of models take a while.
                if spawn_blocking(sample).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Returns the current overview.
    ///
    /// # Errors
    /// If it cannot be serialized.
    pub(super) async fn answer(self, query: Query) -> Result<Response, Problem> {
        let shared = Arc::clone(&self.0);
        let json = match query {
            Query { model: Some(name), .. } => {
                let written = spawn_blocking(move || shared.write_of(&name)).await;
                Bytes::from(
                    written.map_err(|error| Problem::internal(&error))?.map_err(|error| Problem::internal(&error))?,
                )
            }
            Query { timeline: Some(false), .. } => self.0.without_batches.get(FRESH, move || shared.write()).await?,
            Query { .. } => {
                self.watch();
                self.0.with_batches.get(FRESH, move || shared.write_with_batches()).await?
            }
        };
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        Ok((headers, Body::from(json)).into_response())
    }

    /// Records batches from now on, until no client has asked for [`WATCH`].
    fn watch(&self) {
        let until = Instant::now() + WATCH;
        if self.0.watch.lock().until.replace(until).is_some() {
            return;
        }
        self.0.timeline.watch(MOST_EVENTS);
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut until = until;
            loop {
                sleep_until(until).await;
                let mut watch = shared.watch.lock();
                match watch.until {
                    Some(later) if later > until => until = later,
                    _ => {
                        watch.until = None;
                        shared.timeline.unwatch();
                        return;
                    }
                }
            }
        });
    }
}

impl Shared {
    /// Writes the overview of all models with the recent batches.
    fn write_with_batches(&self) -> serde_json::Result<Vec<u8>> {
        let picture = self.timeline.latest(MOST_EVENTS).as_ref().map(Recording::picture).unwrap_or_default();
        self.write_all(Some(&picture))
    }

    /// Writes the overview of all models.
    fn write(&self) -> serde_json::Result<Vec<u8>> {
        self.write_all(None)
    }

    fn write_all(&self, picture: Option<&Picture>) -> serde_json::Result<Vec<u8>> {
        let repository = &self.services.repository;
        let answer = self.overview(repository.states(), &repository.loaded(), MOST_REASON);
        serde_json::to_vec(&Written { answer, timeline: picture.map(|picture| picture.excerpt(BOUNDS)) })
    }

    /// Writes the overview of one model.
    fn write_of(&self, name: &str) -> serde_json::Result<Vec<u8>> {
        let repository = &self.services.repository;
        let answer = self.overview(repository.states_of(name), &repository.loaded_of(name), MOST_REASON_ALONE);
        serde_json::to_vec(&answer)
    }

    fn overview(&self, states: Vec<IndexEntry>, loaded: &[Arc<ModelVersion>], most_reason: usize) -> OverviewResponse {
        let Services { server_name, repository, readiness, budgets, pool, .. } = &*self.services;
        let residency = repository.residency();
        let trends = self.trends.lock();
        let sources = Sources { loaded, memory: &residency.models, trends: &trends, most_reason };
        let (models, models_left_out) = models(states, &sources);
        drop(trends);
        OverviewResponse {
            server: ServerState {
                name: server_name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                live: readiness.live(),
                ready: readiness.ready(),
            },
            load: ServerLoad {
                pending_requests: Usage::of(&budgets.requests),
                pending_bytes: Usage::of(&budgets.bytes),
                grpc_connections: Usage::of(&budgets.grpc_connections),
                http_connections: Usage::of(&budgets.http_connections),
            },
            memory: residency.memory.map(|(used_bytes, limit)| ModelsMemory {
                used_bytes,
                limit_bytes: (limit < usize::MAX).then_some(limit),
            }),
            on_demand: on_demand(repository, &residency),
            resources: pool.resources().into_iter().take(MOST_RESOURCES).map(LimitedResource::from).collect(),
            recent_seconds: RECENT_SAMPLES,
            models,
            models_left_out,
        }
    }
}

fn on_demand(repository: &Repository, residency: &ResidencyReading) -> Option<OnDemandState> {
    if !residency.is_on_demand {
        return None;
    }
    let counts = &repository.stats().residency;
    Some(OnDemandState {
        waiting_requests: residency.waiting,
        loads: counts.loads.load(Ordering::Relaxed),
        failed_loads: counts.failed_loads.load(Ordering::Relaxed),
        unloaded_for_memory: counts.unloaded_for_room.load(Ordering::Relaxed),
        unloaded_idle: counts.unloaded_idle.load(Ordering::Relaxed),
    })
}

impl From<ResourceReading> for LimitedResource {
    fn from(ResourceReading { name, device, units, in_use, .. }: ResourceReading) -> Self {
        Self { name, device, units: Usage { used: in_use as usize, limit: units as usize } }
    }
}

impl Usage {
    fn of(budget: &Budget) -> Self {
        Self { used: budget.used(), limit: budget.capacity() }
    }
}

/// The overview, and the recent batches if they are wanted.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    answer: OverviewResponse,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Excerpt<'a>>,
}

#[cfg(test)]
mod tests;
