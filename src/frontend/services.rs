//! The services that answer requests, for all transports.

use std::sync::Arc;

use http::HeaderMap;

use super::{
    Clients, Readiness,
    clients::{Client, Identity},
};
use crate::{
    budget::{Budget, Budgets},
    executor::{Backlog, Pool},
    observe::{Logging, trace::Tracer},
    repository::Repository,
    wire::SharedMemory,
};

/// The shared state of all methods.
#[derive(Clone, Debug)]
pub struct Services {
    /// Name of the server in its metadata.
    pub server_name: String,
    /// The models.
    pub repository: Arc<Repository>,
    /// Readiness of the server.
    pub readiness: Arc<Readiness>,
    /// The shared-memory regions that clients registered.
    pub shared_memory: Arc<SharedMemory>,
    /// What runs the models.
    pub pool: Arc<Pool>,
    /// The process's log.
    pub log: Logging,
    /// Decides which requests are traced.
    pub tracer: Arc<Tracer>,
    /// Limits on what all clients together may hold.
    pub budgets: Budgets,
    /// Limits on what each client has in progress, if there are any.
    pub clients: Option<Arc<Clients>>,
}

/// Resources shared by the calls of one connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionHolds {
    /// The connection's share of the budget of bytes.
    pub(super) share: Arc<Budget>,
    /// Replies that wait for the client.
    pub(super) backlog: Arc<Backlog>,
    /// What its calls have in common.
    pub(super) identity: Identity,
}

impl Services {
    /// Returns the resources for a new connection.
    pub(super) fn connection(&self, identity: Identity) -> ConnectionHolds {
        ConnectionHolds {
            share: Budget::share_of(&self.budgets.bytes),
            backlog: self.pool.backlog().connection(),
            identity,
        }
    }

    /// Returns the client of a call for inference; `None` if clients have no limits.
    pub(super) fn client(&self, holds: &ConnectionHolds, headers: &HeaderMap) -> Option<Client> {
        self.clients.as_ref().map(|clients| clients.client(&holds.identity, headers))
    }
}
