//! What answers requests, whatever the transport.

use std::sync::Arc;

use super::Readiness;
use crate::{
    budget::{Budget, Budgets},
    executor::Backlog,
    observe::{Logging, trace::Tracer},
    repository::Repository,
    wire::SharedMemory,
};

/// What the methods work on.
#[derive(Clone, Debug)]
pub struct Services {
    /// What the server calls itself in its metadata.
    pub server_name: String,
    /// The models.
    pub repository: Arc<Repository>,
    /// Whether the server wants traffic.
    pub readiness: Arc<Readiness>,
    /// The regions that clients registered.
    pub shared_memory: Arc<SharedMemory>,
    /// Replies that wait for their clients.
    pub backlog: Arc<Backlog>,
    /// The process's log.
    pub log: Logging,
    /// Decides which requests are traced.
    pub tracer: Arc<Tracer>,
    /// What all clients together may hold.
    pub budgets: Budgets,
}

/// What the calls of one connection hold together.
#[derive(Clone, Debug)]
pub(super) struct ConnectionHolds {
    /// The part of the budget of bytes that their messages take their room from.
    pub(super) share: Arc<Budget>,
    /// Replies that wait for the client.
    pub(super) backlog: Arc<Backlog>,
}

impl Services {
    /// What the calls of a new connection hold together.
    pub(super) fn connection(&self) -> ConnectionHolds {
        ConnectionHolds { share: Budget::share_of(&self.budgets.bytes), backlog: self.backlog.connection() }
    }
}
