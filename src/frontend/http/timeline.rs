//! `GET /v2/timeline`: the recording so far, in the Chrome trace format.

use std::sync::Arc;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_TYPE};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

use super::Problem;
use crate::observe::timeline::{Recording, Timeline};

/// Maximum number of timelines written or sent at the same time, since each may take tens of megabytes. Further
/// requests wait.
const MOST_AT_ONCE: usize = 4;

/// Answers with the timeline.
#[derive(Clone)]
pub(super) struct TimelineRoute {
    timeline: Arc<Timeline>,
    room: Arc<Semaphore>,
}

/// A written timeline, which keeps its permit until it is sent or its client disconnects.
struct Written {
    json: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl TimelineRoute {
    pub(super) fn new(timeline: Arc<Timeline>) -> Self {
        Self { timeline, room: Arc::new(Semaphore::new(MOST_AT_ONCE)) }
    }

    /// Returns the timeline as of now.
    ///
    /// # Errors
    /// If none is recorded, or if it cannot be written.
    pub(super) async fn answer(self) -> Result<Response, Problem> {
        if !self.timeline.is_kept() {
            let reason = "no timeline is recorded: start the server with --timeline-file";
            return Err(Problem::new(StatusCode::NOT_FOUND, reason));
        }
        let room = self.room.acquire_owned().await.map_err(|error| Problem::internal(&error))?;
        let timeline = self.timeline;
        // On a blocking thread, because it takes long enough to delay other connections. The permit is held as long as
        // it runs, even if the client has disconnected.
        let write = move || {
            let mut json = Vec::new();
            let written =
                timeline.recording().as_ref().map(Recording::picture).unwrap_or_default().write_chrome(&mut json);
            written.map(|()| Bytes::from_owner(Written { json, _room: room }))
        };
        let json = spawn_blocking(write).await.map_err(|error| Problem::internal(&error))?;
        let json = json.map_err(|error| Problem::internal(&error))?;
        Ok(([(CONTENT_TYPE, "application/json")], Body::from(json)).into_response())
    }
}
