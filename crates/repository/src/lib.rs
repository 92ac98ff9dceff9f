//! The model repository: model directories, their configuration, versions, loading and unloading, states and reasons.
//!
//! `repository` is what front ends call; a load whose caller drops its future is ended there.
//! `paternoster-config` turns configuration texts and graph signatures into one checked configuration. `places` lists
//! the repositories, and `stores` mirrors those in object stores to disk. `scan` and `directory` read the disk;
//! `changes` decides what changed in poll mode. `prepare` combines both into [`LoadRequest`]s, which `startup` and
//! `polling` have `control` load. Each load is an `attempt`, which can be ended early. `table` holds the state of every
//! version, and `serving` the snapshot of it that requests read. Where requests load models, `control` unloads others
//! for them, as the rule in `residency` decides. `importing` writes a model directory. `start_cache` has what is kept
//! across restarts. A load fails with a [`LoadError`]. The [`Loader`] compiles and starts versions; [`PoolLoader`] is
//! the implementation that knows the engines and the pool. It must not know the wire protocol or how requests are
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
pub use loader::{CellProgram, EngineKind, Generation, HeldProgram, LoadRequest, Loader, Opening, WarmupSample};
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
