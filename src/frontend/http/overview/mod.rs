//! `GET /v2/overview`: models, load and recent batches, for the web page.
//!
//! It is computed at most twice a second however many clients ask, outside the I/O threads, and is of bounded size.
//! Batches are recorded only while a client asks, and for a few seconds after.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{Problem, shared_answer::SharedAnswer};
use crate::{
    budget::Budget,
    frontend::Services,
    observe::{
        BatchStats, Histogram,
        timeline::{Bounds, Excerpt, Recording, Timeline},
    },
    repository::{IndexEntry, ModelVersion},
};

/// Maximum age of a cached response.
const FRESH: Duration = Duration::from_millis(500);

/// How long batches are recorded after the last request.
pub(super) const WATCH: Duration = Duration::from_secs(5);

/// Maximum number of batch events kept: 320 KiB, which take a fifth of a millisecond to copy.
const MOST_EVENTS: usize = 8192;

/// Limits of the excerpt shown.
const BOUNDS: Bounds = Bounds { length_ns: 5_000_000_000, rows: 24, spans: 600 };

/// Maximum number of model versions shown.
const MOST_MODELS: usize = 256;

/// Maximum number of batch sizes shown per version; the most frequent ones are shown.
const MOST_SIZES: usize = 32;

/// Maximum length of a reason, in characters.
const MOST_REASON: usize = 300;

/// Computes and caches the response.
#[derive(Clone)]
pub(super) struct Overview(Arc<Shared>);

struct Shared {
    services: Arc<Services>,
    timeline: Arc<Timeline>,
    last: SharedAnswer,
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
        Self(Arc::new(Shared { services, timeline, last: SharedAnswer::default(), watch: Mutex::default() }))
    }

    /// Returns the current overview.
    ///
    /// # Errors
    /// If it cannot be serialized.
    pub(super) async fn answer(self) -> Result<Response, Problem> {
        self.watch();
        let json = self.json().await?;
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        Ok((headers, Body::from(json)).into_response())
    }

    async fn json(&self) -> Result<Bytes, Problem> {
        let shared = Arc::clone(&self.0);
        self.0.last.get(FRESH, move || shared.write()).await
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
    fn write(&self) -> serde_json::Result<Vec<u8>> {
        let Services { server_name, repository, readiness, budgets, .. } = &*self.services;
        let loaded = repository.loaded();
        let (models, models_left_out) = models(repository.states(), &loaded);
        let picture = self.timeline.latest(MOST_EVENTS).as_ref().map(Recording::picture);
        let picture = picture.unwrap_or_default();
        let written = Written {
            server: Server {
                name: server_name,
                version: env!("CARGO_PKG_VERSION"),
                live: readiness.live(),
                ready: readiness.ready(),
            },
            load: Load {
                pending_requests: Used::of(&budgets.requests),
                pending_bytes: Used::of(&budgets.bytes),
                grpc_connections: Used::of(&budgets.grpc_connections),
                http_connections: Used::of(&budgets.http_connections),
            },
            duration_bounds_us: Histogram::of_durations().cumulative().map(|(bound_ns, _)| bound_ns / 1_000).collect(),
            models,
            models_left_out,
            timeline: picture.excerpt(BOUNDS),
        };
        serde_json::to_vec(&written)
    }
}

#[derive(Serialize)]
struct Written<'a> {
    server: Server<'a>,
    load: Load,
    /// Bounds of [`Model::durations`].
    duration_bounds_us: Vec<u64>,
    models: Vec<Model>,
    models_left_out: usize,
    timeline: Excerpt<'a>,
}

#[derive(Serialize)]
struct Server<'a> {
    name: &'a str,
    version: &'a str,
    live: bool,
    ready: bool,
}

#[derive(Serialize)]
struct Load {
    pending_requests: Used,
    pending_bytes: Used,
    grpc_connections: Used,
    http_connections: Used,
}

#[derive(Serialize)]
struct Used {
    used: usize,
    limit: usize,
}

impl Used {
    fn of(budget: &Budget) -> Self {
        Self { used: budget.used(), limit: budget.capacity() }
    }
}

/// A version, or a model without versions. Counts start when the version was loaded.
#[derive(Debug, PartialEq, Serialize)]
struct Model {
    name: String,
    version: String,
    state: &'static str,
    reason: String,
    waiting: u64,
    succeeded: u64,
    failed: u64,
    executions: u64,
    executed_rows: u64,
    batch_sizes: Vec<Size>,
    /// The policy that batches its requests; empty if it does not serve.
    policy: &'static str,
    /// Number of answered requests that took at most each bound.
    durations: Vec<u64>,
    /// Total time that answered requests waited.
    queue_us: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Size {
    rows: u64,
    executions: u64,
}

/// Returns the first models, and how many more there are.
fn models(states: Vec<IndexEntry>, loaded: &[Arc<ModelVersion>]) -> (Vec<Model>, usize) {
    let key = |version: &ModelVersion| (version.spec().name.clone(), version.spec().version.to_string());
    let mut loaded: HashMap<_, _> = loaded.iter().map(|version| (key(version), version)).collect();
    let left_out = states.len().saturating_sub(MOST_MODELS);
    let shown = states.into_iter().take(MOST_MODELS).map(|IndexEntry { name, version, state, reason }| {
        let serving = loaded.remove(&(name.clone(), version.clone()));
        let counted = serving.map(|serving| serving.servable().stats());
        let reading = counted.map(|counted| counted.reading());
        let waiting = counted.map(|counted| counted.pending()).unwrap_or_default();
        let durations =
            reading.as_ref().map(|read| read.request_duration.cumulative().map(|(_, count)| count).collect());
        let stats = reading.map(|read| read.stats).unwrap_or_default();
        Model {
            name,
            version,
            state,
            reason: reason.chars().take(MOST_REASON).collect(),
            waiting,
            succeeded: stats.inference_stats.success.count,
            failed: stats.inference_stats.fail.count,
            executions: stats.execution_count,
            executed_rows: stats.batch_stats.iter().map(|size| size.batch_size * size.compute_infer.count).sum(),
            batch_sizes: sizes(stats.batch_stats),
            policy: serving.map(|serving| serving.servable().policy()).unwrap_or_default(),
            durations: durations.unwrap_or_default(),
            queue_us: stats.inference_stats.queue.ns / 1_000,
        }
    });
    (shown.collect(), left_out)
}

/// Returns the most frequent sizes, ascending.
fn sizes(mut ran: Vec<BatchStats>) -> Vec<Size> {
    ran.sort_by_key(|size| std::cmp::Reverse(size.compute_infer.count));
    ran.truncate(MOST_SIZES);
    ran.sort_by_key(|size| size.batch_size);
    ran.iter().map(|size| Size { rows: size.batch_size, executions: size.compute_infer.count }).collect()
}

#[cfg(test)]
mod tests;
