//! `GET /v2/timeline`: the recording so far, in the Chrome trace format.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{
    StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use paternoster_observe::timeline::{Recording, Timeline};
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

use super::Problem;

/// Maximum number of timelines in memory, since each may take tens of megabytes. While clients read as many, others get
/// the latest of them.
const MOST_KEPT: usize = 4;

/// How long a timeline is sent. Clients that read more slowly are disconnected, so that others get a newer one.
const LONGEST_SEND: Duration = Duration::from_secs(120);

/// Maximum size of a piece that is sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Answers with the timeline.
#[derive(Clone)]
pub(super) struct TimelineRoute {
    timeline: Arc<Timeline>,
    /// The timelines that are being sent, oldest first. Locked while one is written.
    kept: Arc<Mutex<Vec<Weak<Written>>>>,
}

/// A written timeline.
struct Written {
    json: Vec<u8>,
    began: Instant,
}

/// The share of a written timeline that one client reads.
struct Share(Arc<Written>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0.json
    }
}

impl TimelineRoute {
    pub(super) fn new(timeline: Arc<Timeline>) -> Self {
        Self { timeline, kept: Arc::default() }
    }

    /// Returns the timeline as of now, or an earlier one while clients read as many as are kept.
    ///
    /// # Errors
    /// If none is recorded, or if it cannot be written.
    pub(super) async fn answer(self) -> Result<Response, Problem> {
        if !self.timeline.is_kept() {
            let reason = "no timeline is recorded: start the server with --timeline-file";
            return Err(Problem::new(StatusCode::NOT_FOUND, reason));
        }
        let written = self.written().await?;
        let until = written.began + LONGEST_SEND;
        let bytes = Bytes::from_owner(Share(written));
        let headers = [(CONTENT_TYPE, "application/json".to_owned()), (CONTENT_LENGTH, bytes.len().to_string())];
        let pieces = stream::iter((0..bytes.len()).step_by(PIECE_BYTES)).map(move |at| {
            let late = || io::Error::new(io::ErrorKind::TimedOut, "the timeline is read too slowly");
            (Instant::now() < until).then(|| bytes.slice(at..bytes.len().min(at + PIECE_BYTES))).ok_or_else(late)
        });
        Ok((headers, Body::from_stream(pieces)).into_response())
    }

    async fn written(self) -> Result<Arc<Written>, Problem> {
        let asked = Instant::now();
        let mut kept = self.kept.lock_owned().await;
        kept.retain(|written| written.strong_count() > 0);
        // Clients that wait for a timeline to be written share the next one.
        let latest = kept.last().and_then(Weak::upgrade);
        if let Some(latest) = latest.filter(|latest| latest.began >= asked || kept.len() >= MOST_KEPT) {
            return Ok(latest);
        }
        let (timeline, began) = (self.timeline, Instant::now());
        // On a blocking thread, because it takes long enough to delay other connections. The lock is held as long as it
        // runs, even if the client has disconnected.
        let write = move || {
            let mut json = Vec::new();
            let recording = timeline.recording();
            recording.as_ref().map(Recording::picture).unwrap_or_default().write_chrome(&mut json)?;
            let written = Arc::new(Written { json, began });
            kept.push(Arc::downgrade(&written));
            Ok::<_, io::Error>(written)
        };
        let written = spawn_blocking(write).await.map_err(|error| Problem::internal(&error))?;
        written.map_err(|error| Problem::internal(&error))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn recorded() -> TimelineRoute {
        let timeline = Timeline::on(10);
        timeline.arrived(1_000, 1, 0, 1);
        TimelineRoute::new(Arc::new(timeline))
    }

    #[tokio::test]
    async fn readers_that_do_not_read_keep_nobody_from_a_timeline() {
        let route = recorded();
        let mut unread = Vec::new();
        for _ in 0..2 * MOST_KEPT {
            unread.push(route.clone().answer().await.expect("an answer"));
        }
        assert_eq!(route.kept.lock().await.len(), MOST_KEPT, "memory stays bounded");
        let last = route.clone().answer().await.expect("an answer").into_body();
        assert!(!last.collect().await.expect("it is read in time").to_bytes().is_empty());
        drop(unread);
        drop(route.clone().answer().await);
        assert_eq!(route.kept.lock().await.len(), 1, "what nobody reads is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_too_slowly_is_cut_off() {
        let mut body = recorded().answer().await.expect("an answer").into_body();
        tokio::time::advance(LONGEST_SEND).await;
        assert!(body.frame().await.expect("an end").is_err());
    }
}
