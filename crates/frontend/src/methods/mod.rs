//! The protocol's methods except inference, one file per group: messages in, messages out. gRPC sends them as they are,
//! HTTP as JSON. Independent of the transport.

mod log;
mod model;
mod repository;
mod server;
mod shared_memory;
mod statistics;
mod trace;
mod unresolved;

pub(super) use log::log_settings;
pub(super) use model::{Undescribed, described, model_config, model_metadata, model_ready};
pub(super) use repository::{index, load, unload};
pub use server::server_metadata;
pub(super) use server::{metadata, server_live, server_ready};
pub(super) use shared_memory::{
    cuda_register, cuda_status, cuda_unregister, system_register, system_status, system_unregister,
};
pub(super) use statistics::{gather, model_statistics, versions};
pub(super) use trace::trace_setting;
pub(super) use unresolved::unresolved;
