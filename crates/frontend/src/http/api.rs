//! The state that every route works on.

use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderName, request::Parts};
use paternoster_repository::{Caller, Requester};

use super::{config_json::ConfigJson, overview::Overview, timeline::TimelineRoute};
use crate::{
    Services,
    clients::{ClientPlace, Identity},
    intake::Workers,
    restricted::Restrictions,
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
    pub(super) restrictions: Arc<Restrictions>,
}

impl Api {
    /// Returns what the connection of a request holds.
    pub(super) fn holds(&self, of_request: &Extensions) -> ConnectionHolds {
        of_request.get().cloned().unwrap_or_else(|| self.services.connection(Identity::default()))
    }

    /// Returns who sends a request.
    pub(super) fn caller(&self, parts: &Parts) -> Caller {
        self.services.caller(&self.holds(&parts.extensions), &parts.headers)
    }

    /// Returns the client for which a request may load models.
    ///
    /// # Errors
    /// Returns the header that it lacks.
    pub(super) fn loader(&self, parts: &Parts) -> Result<Requester, &HeaderName> {
        self.restrictions.check_load(&parts.headers)?;
        Ok(self.services.requester(&self.holds(&parts.extensions), &parts.headers))
    }

    /// Waits for a place of a request's client; `None` if clients have no limits.
    pub(super) async fn client_place(&self, holds: &ConnectionHolds, headers: &HeaderMap) -> Option<ClientPlace> {
        self.services.client(holds, headers)?.place().await
    }
}
