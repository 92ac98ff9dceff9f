//! Model repositories in object stores (S3, Google Cloud Storage, Azure), mirrored into local directories.
//!
//! [`Location`] parses `--model-repository`; `credentials` and `profiles` read the environment; `client` connects to
//! the store. `listing` lists objects, from `pages` whose keys can all be read; `keys` rejects keys that cannot be
//! files, and [`Mirror`] fetches models into the [`Cache`], whose size `room` bounds. The rest of the repository sees
//! plain directories. This module must not know what a model is, or when one is loaded.

mod cache;
mod client;
mod credentials;
mod fault;
mod keys;
mod listing;
mod location;
mod mirror;
mod object;
mod pages;
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
pub(crate) mod tests;
