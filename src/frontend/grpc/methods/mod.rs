//! The methods of `inference.GRPCInferenceService`, one file a group. Here must not live: how calls travel (`framing`,
//! `transport`).

mod infer;
mod intake;
mod log;
mod model;
mod repository;
mod server;
mod shared_memory;
mod statistics;
mod stream;
mod trace;
mod unresolved;

use std::sync::Arc;

pub(super) use infer::infer;
pub(super) use log::log_settings;
pub(super) use model::{model_config, model_metadata, model_ready};
pub(super) use repository::{index, load, read_load, unload};
pub use server::server_metadata;
pub(super) use server::{metadata, server_live, server_ready};
pub(super) use shared_memory::{
    cuda_register, cuda_status, cuda_unregister, system_register, system_status, system_unregister,
};
pub(super) use statistics::model_statistics;
pub(super) use stream::{InferStream, StreamBounds};
pub(super) use trace::trace_setting;

use crate::{
    budget::Budgets, executor::Backlog, frontend::Readiness, observe::Logging, repository::Repository,
    wire::SharedMemory,
};

/// What the methods work on.
#[derive(Debug)]
pub struct Services {
    /// What the server calls itself in its metadata.
    pub server_name: String,
    /// The models.
    pub repository: Arc<Repository>,
    /// Whether the server wants traffic; shared with the HTTP front end.
    pub readiness: Arc<Readiness>,
    /// The regions that clients registered.
    pub shared_memory: Arc<SharedMemory>,
    /// Replies that wait for their clients.
    pub backlog: Arc<Backlog>,
    /// The process's log.
    pub log: Logging,
    /// What all clients together may hold.
    pub budgets: Budgets,
}
