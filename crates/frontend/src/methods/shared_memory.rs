//! Memory that clients share: system regions, and regions of CUDA cards.

use std::sync::Arc;

use paternoster_wire::{RequestError, pb, shared_memory::SharedMemoryError};
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::Services;

/// Answers SystemSharedMemoryStatus.
///
/// # Errors
/// NOT_FOUND for an unregistered region.
pub(crate) fn system_status(
    services: &Services,
    request: pb::SystemSharedMemoryStatusRequest,
) -> Result<pb::SystemSharedMemoryStatusResponse, Status> {
    services.shared_memory.status(&request.name).map_err(refused)
}

/// Answers SystemSharedMemoryRegister.
///
/// # Errors
/// If registration is disabled, or if the region does not match the request.
pub(crate) fn system_register(
    services: &Services,
    request: pb::SystemSharedMemoryRegisterRequest,
) -> Result<pb::SystemSharedMemoryRegisterResponse, Status> {
    let pb::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
    services.shared_memory.register(&name, &key, offset, byte_size).map_err(refused)?;
    Ok(pb::SystemSharedMemoryRegisterResponse {})
}

/// Answers SystemSharedMemoryUnregister. An unknown region is not an error; an empty name means all regions.
pub(crate) fn system_unregister(
    services: &Services,
    request: pb::SystemSharedMemoryUnregisterRequest,
) -> pb::SystemSharedMemoryUnregisterResponse {
    services.shared_memory.unregister(&request.name);
    pb::SystemSharedMemoryUnregisterResponse {}
}

/// Answers CudaSharedMemoryStatus.
///
/// # Errors
/// NOT_FOUND for a region that is not registered.
pub(crate) fn cuda_status(
    services: &Services,
    request: pb::CudaSharedMemoryStatusRequest,
) -> Result<pb::CudaSharedMemoryStatusResponse, Status> {
    services.shared_memory.cuda_status(&request.name).map_err(refused)
}

/// Answers CudaSharedMemoryRegister. The driver may take seconds to open the memory, so a thread that may block does
/// it: other clients share this one.
///
/// # Errors
/// If registration is disabled, if there is no such card, or if the region does not match the request.
pub(crate) async fn cuda_register(
    services: &Services,
    request: pb::CudaSharedMemoryRegisterRequest,
) -> Result<pb::CudaSharedMemoryRegisterResponse, Status> {
    let pb::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size } = request;
    let memory = Arc::clone(&services.shared_memory);
    let register = move || memory.register_cuda(&name, &raw_handle, device_id, byte_size);
    let registered = spawn_blocking(register).await;
    registered
        .map_err(|fault| Status::internal(format!("registering the region failed: {fault}")))?
        .map_err(refused)?;
    Ok(pb::CudaSharedMemoryRegisterResponse {})
}

/// Answers CudaSharedMemoryUnregister. An unknown region is no error; an empty name means all regions.
pub(crate) fn cuda_unregister(
    services: &Services,
    request: pb::CudaSharedMemoryUnregisterRequest,
) -> pb::CudaSharedMemoryUnregisterResponse {
    services.shared_memory.unregister_cuda(&request.name);
    pb::CudaSharedMemoryUnregisterResponse {}
}

fn refused(error: SharedMemoryError) -> Status {
    RequestError::from(error).into()
}
