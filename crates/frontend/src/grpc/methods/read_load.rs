//! Reads RepositoryModelLoad, whose requests may be large.

use paternoster_observe::budget::Reservation;
use paternoster_wire::{
    decode::size::{LOAD_REQUEST, SizeError, measure},
    pb,
};
use tonic::Status;

use crate::{
    grpc::messages::{decode, unparsable},
    intake::{Message, ROOM_PATIENCE, Workers, no_room},
};

/// Decodes a RepositoryModelLoadRequest, which may contain files of any size. Runs outside the I/O threads and within
/// the budget of bytes. Returns the reservation for both forms too.
///
/// # Errors
/// INVALID_ARGUMENT for too many parameters, RESOURCE_EXHAUSTED without enough memory, INTERNAL for anything else.
pub(crate) async fn read_load(
    workers: &Workers,
    message: Message,
) -> Result<(pb::RepositoryModelLoadRequest, Reservation), Status> {
    let length = message.bytes.len();
    // The reservation goes along to the workers, which go on if the client leaves.
    let measured = move || (measure(LOAD_REQUEST, &message.bytes, usize::MAX), message);
    let (built, mut message) = workers.run(length, measured).await?;
    let built = built.map_err(|error| match error {
        SizeError::TooMany(error) => error.into(),
        SizeError::Broken => unparsable(&error),
    })?;
    let built = built.unwrap_or(usize::MAX);
    message.held.grow_within(built, ROOM_PATIENCE).await.map_err(|error| no_room(&error))?;
    workers.run(built, move || decode(message.bytes).map(|request| (request, message.held))).await?
}
