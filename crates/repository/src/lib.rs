//! The model repository: model directories, their configuration, versions, loading and unloading, states and reasons.
//!
//! A load is a line of values, each made once from the one before:
//!
//! 1. Found: `prepare` reads the configuration of a model directory and picks the versions (`prepare::FoundModel`).
//! 2. Resolved: `resolving` has a version's graph read and its settings completed and checked ([`ResolvedVersion`]).
//! 3. Opened: the [`Loader`] compiles its programs and tries them. `exported_cells` and `profiling` may make another
//!    resolved version first.
//! 4. Placed: the loader puts it on the lanes and cards of the pool, as a `ModelHandle` of the executor.
//! 5. Serving: it becomes a [`ModelVersion`] of `table`, whose snapshot in `serving` requests read.
//!
//! Around that line, `control` has the turns of loads, dependencies, memory and refusals, and an `attempt` may end it
//! early. It fails with a [`LoadError`]. [`PoolLoader`] is the loader that knows the engines and the pool.
//!
//! `repository` is what front ends call; a load whose caller drops its future is ended there.
//! `paternoster-config` turns configuration texts and graph signatures into one checked configuration. `places` lists
//! the repositories, and `stores` mirrors those in object stores to disk. `scan` and `directory` read the disk;
//! `changes` decides what changed in poll mode. `startup` and `polling` have `control` load models. Where requests load
//! models, `control` unloads others for them, as the rule in `residency` decides. `importing` writes a model directory.
//! `start_cache` has what is kept across restarts. The repository must not know the wire protocol or how requests are
//! batched.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod attempt;
mod background;
mod blocking;
mod bounded_file;
mod cell_profiling;
mod cells;
mod changes;
mod comparing;
mod configuration;
mod control;
mod directory;
mod error;
mod exported_cells;
mod gates;
mod generation;
#[cfg(feature = "image")]
mod image;
#[cfg(not(feature = "image"))]
#[path = "without_image.rs"]
mod image;
#[cfg(feature = "text")]
mod importing;
mod isolation;
mod load_error;
mod loader;
mod mapped;
mod opening;
mod operator_profiling;
mod options;
mod overrides;
mod places;
mod plans;
mod polling;
mod pool_loader;
mod prepare;
mod profiling;
mod repository;
mod residency;
mod resolving;
mod rollout;
mod scan;
mod serving;
mod staging;
mod start_cache;
mod startup;
mod stores;
mod table;
#[cfg(feature = "text")]
mod text;
#[cfg(not(feature = "text"))]
#[path = "without_text.rs"]
mod text;
mod version;
mod warmup;

pub use attempt::{LoadAttempt, TrialLimits};
pub use configuration::emptiness;
pub use control::on_demand::Requester;
pub use error::{ControlError, ResolveError, StartError};
#[cfg(feature = "text")]
pub use importing::{Imported, import};
pub use isolation::{Isolation, IsolationScope, open_alone};
pub use load_error::{LoadError, LoadErrorKind, LoadPlace};
pub use loader::{CellProgram, EngineKind, Generation, HeldProgram, Loader, Opening, ResolvedVersion, WarmupSample};
pub use options::{ControlMode, Options, ResidencyOptions};
pub use overrides::Overrides;
pub use pool_loader::PoolLoader;
pub use profiling::{STAGE_COUNTS, Trials, joining_pays, read_model};
pub use repository::Repository;
pub use rollout::Caller;
pub use staging::cut_into_stages;
pub use start_cache::StartCache;
pub use startup::Startup;
pub use table::IndexEntry;
pub use version::ModelVersion;
pub use warmup::OPEN_LENGTH;

#[cfg(test)]
mod tests;
