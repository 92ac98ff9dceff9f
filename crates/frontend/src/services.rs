//! The services that answer requests, for all transports.

use std::sync::Arc;

use http::HeaderMap;
use paternoster_executor::{Backlog, InferRequest, Pool};
use paternoster_observe::{
    Logging,
    budget::{Budget, Budgets},
    trace::Tracer,
};
use paternoster_repository::{Caller, ModelVersion, Repository, Requester};
use paternoster_wire::{
    RequestError, ResponsePlan, SharedMemory, decode,
    pb::ModelInferRequest,
    plan::{OutputForm, OutputPlan, SelectedOutputs},
};

use super::{
    Clients, Readiness,
    clients::{Client, Identity},
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
    /// Responses that wait for the client.
    pub(super) backlog: Arc<Backlog>,
    /// What its calls have in common.
    pub(super) identity: Identity,
}

impl Services {
    /// Checks a request against the version that serves it.
    ///
    /// # Errors
    /// As [`decode::decode`].
    pub(super) fn decode(
        &self,
        version: &ModelVersion,
        request: ModelInferRequest,
    ) -> Result<(InferRequest, ResponsePlan), RequestError> {
        let servable = version.servable();
        let (request, mut reply) =
            decode::decode_for(request, version.spec(), &self.shared_memory, servable.card_ports())?;
        let is_ensemble = servable.pipeline().is_some_and(|pipeline| pipeline.own().is_none());
        if is_ensemble {
            reply.name_sequence(request.sequence.as_ref());
            if let SelectedOutputs::Some(plans) = &mut reply.outputs {
                for OutputPlan { index, form } in plans {
                    if let OutputForm::Classes { labels, .. } = form {
                        *labels = servable.labels(*index);
                    }
                }
            }
        }
        Ok((request, reply))
    }

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

    /// Returns among which clients the loads are divided that a call waits for: those that have limits, or else
    /// connections.
    pub(super) fn requester(&self, holds: &ConnectionHolds, headers: &HeaderMap) -> Requester {
        match self.clients.as_ref().filter(|_| self.repository.is_on_demand()) {
            Some(clients) => Requester::Client(clients.key(&holds.identity, headers)),
            None => Requester::Connection(Arc::as_ptr(&holds.share).addr()),
        }
    }

    /// Returns who sends a call for inference.
    pub(super) fn caller(&self, holds: &ConnectionHolds, headers: &HeaderMap) -> Caller {
        self.repository.caller(headers, self.requester(holds, headers))
    }
}
