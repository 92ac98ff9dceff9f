//! Latency tables of models: which sizes are measured and how often, what they tell, what is chosen by them, what is
//! kept, and where it lies on disk.
//!
//! Stands below `repository`, which compiles the models and runs the trials, and above `batching`, whose cost tables
//! and policies it speaks of. Here must not live: programs, threads, the clock (who measures brings the times).

mod choose;
mod doubt;
mod find;
mod measure;
mod sizes;
mod store;
mod table;

pub use choose::{BOUNDARY_NS, Choice, ChosenPolicy, choose};
pub use find::{Findings, JOINING_PAYS};
pub use measure::{Halt, measure};
pub use sizes::{LENGTHS, Size, row_buckets, sizes};
pub use store::{Key, Store, StoreError, default_directory, digest};
pub use table::{CutTable, Point, Profile};

#[cfg(test)]
mod tests;
