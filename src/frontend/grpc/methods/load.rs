//! Reads RepositoryModelLoad, whose requests may be large.

use tonic::Status;

use crate::{
    frontend::{
        grpc::framing::{decode, unparsable},
        intake::{Message, ROOM_PATIENCE, Workers, no_room},
    },
    wire::{
        decode::size::{LOAD_REQUEST, SizeError, measure},
        pb,
    },
};

/// Decodes a RepositoryModelLoadRequest, which may contain files of any size. Runs outside the I/O threads and within
/// the budget of bytes. The message holds the reservation for both forms until it is dropped.
///
/// # Errors
/// INVALID_ARGUMENT for too many parameters, RESOURCE_EXHAUSTED without enough memory, INTERNAL for anything else.
pub(in crate::frontend::grpc) async fn read_load(
    workers: &Workers,
    message: &mut Message,
) -> Result<pb::RepositoryModelLoadRequest, Status> {
    let bytes = message.bytes.clone();
    let measured = move || measure(LOAD_REQUEST, &bytes, usize::MAX);
    let built = workers.run(message.bytes.len(), measured).await?.map_err(|error| match error {
        SizeError::TooMany(error) => error.into(),
        SizeError::Broken => unparsable(&error),
    })?;
    let built = built.unwrap_or(usize::MAX);
    message.held.grow_within(built, ROOM_PATIENCE).await.map_err(|error| no_room(&error))?;
    let bytes = std::mem::take(&mut message.bytes);
    workers.run(built, move || decode(bytes)).await?
}
