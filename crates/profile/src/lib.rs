//! Latency profiles of models: the sizes to measure, the measurement, findings and choices from it, and storage on
//! disk.
//!
//! Used by `repository`, which compiles the models and runs the trials. Uses the cost tables and policies of
//! `batching`. Programs, threads and clocks belong to the caller, who passes the times in.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::disallowed_types)]

mod cells;
mod choose;
mod doubt;
mod engines;
mod find;
mod measure;
mod operators;
mod sizes;
mod store;
mod table;

pub use cells::{CellSegment, CellTable, ChunkProfile, cell_costs};
pub use choose::{Choice, ChosenPolicy, choose};
pub use engines::{EnginePoint, EngineTable, EngineTimes};
pub use find::{Findings, JOINING_PAYS};
pub use measure::{Halt, measure};
pub use operators::{BOUNDARY_NS, OperatorCuts, WeighedCut};
pub use sizes::{LENGTHS, MeasuredSize, row_buckets, sizes};
pub use store::{Key, ProfileFileError, Store, StoreError, default_directory, digest, digest_of_all, hexadecimal};
pub use table::{CutTable, LatencyPoint, Profile};

#[cfg(test)]
mod tests;
