//! The state that every route works on.

use std::sync::Arc;

use http::{Extensions, HeaderMap};

use super::{config_json::ConfigJson, overview::Overview, timeline::TimelineRoute};
use crate::frontend::{
    Services,
    clients::{ClientPlace, Identity},
    intake::Workers,
    services::ConnectionHolds,
};

/// The state of the HTTP port's routes, shared by all requests.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) services: Arc<Services>,
    pub(super) workers: Arc<Workers>,
    /// Maximum bytes of a request's JSON, of raw input, and of what a body is decompressed to.
    pub(super) max_input_bytes: usize,
    pub(super) config_json: ConfigJson,
    pub(super) timeline: TimelineRoute,
    pub(super) overview: Overview,
}

impl Api {
    /// Returns what the connection of a request holds.
    pub(super) fn holds(&self, of_request: &Extensions) -> ConnectionHolds {
        of_request.get().cloned().unwrap_or_else(|| self.services.connection(Identity::default()))
    }

    /// Waits for a place of a request's client; `None` if clients have no limits.
    pub(super) async fn client_place(&self, holds: &ConnectionHolds, headers: &HeaderMap) -> Option<ClientPlace> {
        self.services.client(holds, headers)?.place().await
    }
}
