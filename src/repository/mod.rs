//! The model repository: model directories, their configuration, versions, loading and unloading, states and reasons.
//!
//! [`config`] turns texts and graph signatures into one checked configuration; `places` knows where repositories are,
//! of which those in object stores are mirrored by `stores`; `scan` and `directory` look at the disk, `looks` says what
//! follows;
//! `prepare` joins both into [`LoadRequest`]s; `startup`, `control` and `polling` run loads; `table` holds every state
//! and `serving` the part of it that requests read. How a version is compiled and run is the [`Loader`]'s affair:
//! [`PoolLoader`] is the one that knows engines and the pool. Here must not live: the wire, batching.

mod background;
mod blocking;
mod bounded_file;
mod cells;
mod comparing;
pub mod config;
mod control;
mod directory;
mod error;
mod isolation;
mod loader;
mod looks;
mod opening;
mod options;
mod overrides;
mod places;
mod plans;
mod polling;
mod pool_loader;
mod prepare;
mod profiling;
#[allow(clippy::module_inception)]
mod repository;
mod scan;
mod serving;
mod staging;
mod startup;
mod stores;
mod table;
mod version;
mod warmup;

pub use config::automatic::Automatic;
pub use config::stages::{ExitRequest, ExitRequestTo, StageCuts, StageRequest};
pub use config::unfold::{CellPorts, CellRequest, UnfoldRequest};
pub use error::{ControlError, ResolveError, StartError};
pub use isolation::{Isolation, IsolationScope, open_alone};
pub use loader::{CellProgram, EngineKind, LoadRequest, Loader, WarmupSample};
pub use options::{ControlMode, Options};
pub use overrides::Overrides;
pub use pool_loader::PoolLoader;
pub use profiling::{STAGE_COUNTS, Trials, joining_pays, read_model};
pub use repository::Repository;
pub use startup::Startup;
pub use table::IndexEntry;
pub use version::ModelVersion;

#[cfg(test)]
mod tests;
