//! Model repositories in object stores: S3, Google Cloud Storage and Azure, mirrored into local folders.
//!
//! [`Location`] is what `--model-repository` says, `credentials` and `profiles` what the environment says; `client`
//! opens the store. `listing` asks it what it has, `keys` refuses what no folder may hold, and [`Mirror`] fetches a
//! model into the [`Cache`], whose `room` is bounded. The rest of the repository sees plain folders. Here must not
//! live: what a model is, when one is loaded.

mod cache;
mod client;
mod credentials;
mod fault;
mod keys;
mod listing;
mod location;
mod mirror;
mod object;
mod profiles;
mod room;
mod snapshot;

pub(super) use cache::Cache;
pub(super) use credentials::Credentials;
pub(super) use fault::StoreFault;
pub(super) use location::{Location, is_remote};
pub(super) use mirror::{Mirror, PARALLEL_REQUESTS};
pub(super) use object::Object;
pub(super) use room::LetGo;

#[cfg(test)]
mod tests;
