//! The simulator: discrete-event runs of the production [`batching::Core`](paternoster_batching::Core) over device
//! tables, in virtual time.
//!
//! This module has device tables ([`DeviceTable`], [`built_in`]), loads ([`SimulatedLoad`]), the event loop ([`run`]),
//! its results ([`SimulatedFigures`]), and helpers for many runs ([`on_all_cores`], [`fewest_devices`]). It must not
//! use a clock, decide about batches (the core does), run models, or print. A run depends only on its arguments.

mod builtin;
mod capacity;
mod cell_file;
mod cells;
mod figures;
mod file;
mod file_error;
mod lanes;
mod load;
mod networks;
mod parallel;
mod profile_file;
mod published;
mod recorded;
mod replay;
mod roofline;
mod run;
mod setup;
mod surface;
mod table;
mod v100;

#[cfg(test)]
mod tests;

pub use builtin::{BUILT_IN, built_in};
pub use capacity::fewest_devices;
pub use cells::{CellGraph, SimulatedSegment};
pub use figures::{ModelFigures, Period, SimulatedFigures};
pub use file_error::FileError;
pub use load::{Offered, RequestInputs, SimulatedLoad};
pub use parallel::{cores, on_all_cores};
pub use recorded::{Recorded, RecordedError, RecordedTask};
pub use replay::Replay;
pub use run::run;
pub use setup::{Served, Setup};
pub use table::{DeviceTable, ModelTable, TableError, UnrolledLoop};
