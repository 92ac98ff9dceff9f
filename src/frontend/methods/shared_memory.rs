//! Shared memory: system regions are supported, CUDA regions are not.

use tonic::Status;

use crate::frontend::Services;
use crate::wire::{RequestError, pb, shared_memory::SharedMemoryError};

/// Answers SystemSharedMemoryStatus.
///
/// # Errors
/// NOT_FOUND for an unregistered region.
pub(in crate::frontend) fn system_status(
    services: &Services,
    request: pb::SystemSharedMemoryStatusRequest,
) -> Result<pb::SystemSharedMemoryStatusResponse, Status> {
    services.shared_memory.status(&request.name).map_err(refused)
}

/// Answers SystemSharedMemoryRegister.
///
/// # Errors
/// If registration is disabled, or if the region does not match the request.
pub(in crate::frontend) fn system_register(
    services: &Services,
    request: pb::SystemSharedMemoryRegisterRequest,
) -> Result<pb::SystemSharedMemoryRegisterResponse, Status> {
    let pb::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
    services.shared_memory.register(&name, &key, offset, byte_size).map_err(refused)?;
    Ok(pb::SystemSharedMemoryRegisterResponse {})
}

/// Answers SystemSharedMemoryUnregister. An unknown region is not an error; an empty name means all regions.
pub(in crate::frontend) fn system_unregister(
    services: &Services,
    request: pb::SystemSharedMemoryUnregisterRequest,
) -> pb::SystemSharedMemoryUnregisterResponse {
    services.shared_memory.unregister(&request.name);
    pb::SystemSharedMemoryUnregisterResponse {}
}

/// Answers CudaSharedMemoryStatus with no regions.
///
/// # Errors
/// NOT_FOUND if a region is named.
pub(in crate::frontend) fn cuda_status(
    request: pb::CudaSharedMemoryStatusRequest,
) -> Result<pb::CudaSharedMemoryStatusResponse, Status> {
    if request.name.is_empty() {
        return Ok(pb::CudaSharedMemoryStatusResponse::default());
    }
    Err(Status::not_found(format!("unable to find cuda shared memory region: '{}'", request.name)))
}

/// Answers CudaSharedMemoryRegister.
///
/// # Errors
/// Always.
pub(in crate::frontend) fn cuda_register(
    request: pb::CudaSharedMemoryRegisterRequest,
) -> Result<pb::CudaSharedMemoryRegisterResponse, Status> {
    Err(Status::unimplemented(format!(
        "cuda shared memory region '{}' cannot be registered: this server has no CUDA shared memory yet, use system \
         shared memory",
        request.name
    )))
}

/// Answers CudaSharedMemoryUnregister, which always succeeds, because clients call it before anything else.
pub(in crate::frontend) fn cuda_unregister(
    _: pb::CudaSharedMemoryUnregisterRequest,
) -> pb::CudaSharedMemoryUnregisterResponse {
    pb::CudaSharedMemoryUnregisterResponse {}
}

fn refused(error: SharedMemoryError) -> Status {
    RequestError::from(error).into()
}
