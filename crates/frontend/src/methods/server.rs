//! ServerLive, ServerReady, ServerMetadata.

use paternoster_wire::pb;

use crate::Services;

/// Extension of servers that have CUDA cards.
const CUDA_SHARED_MEMORY: &str = "cuda_shared_memory";

/// Implemented extensions of the protocol.
const EXTENSIONS: [&str; 12] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// Answers ServerLive.
pub(crate) fn server_live(services: &Services, _: pb::ServerLiveRequest) -> pb::ServerLiveResponse {
    pb::ServerLiveResponse { live: services.readiness.live() }
}

/// Answers ServerReady.
pub(crate) fn server_ready(services: &Services, _: pb::ServerReadyRequest) -> pb::ServerReadyResponse {
    pb::ServerReadyResponse { ready: services.readiness.ready() }
}

/// Answers ServerMetadata.
pub(crate) fn metadata(services: &Services, _: pb::ServerMetadataRequest) -> pb::ServerMetadataResponse {
    let mut metadata = server_metadata(&services.server_name);
    if services.shared_memory.has_cards() {
        metadata.extensions.push(CUDA_SHARED_MEMORY.to_owned());
    }
    metadata
}

/// Returns the metadata of a server with this name and without CUDA cards.
pub fn server_metadata(name: &str) -> pb::ServerMetadataResponse {
    pb::ServerMetadataResponse {
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    }
}
