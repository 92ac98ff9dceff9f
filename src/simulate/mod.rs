//! The simulator: discrete-event runs of the production [`batching::Core`](crate::batching::Core) over device tables, in virtual
//! time.
//!
//! Here live device tables ([`DeviceTable`], [`built_in`]), what arrives ([`Load`]), the event loop ([`run`]), its
//! [`Figures`], and what is asked over many runs ([`on_all_cores`], [`fewest_devices`]). Here must not live: a clock, decisions
//! about batches (they are the core's), models that run, words of the command line. A run depends on nothing but its arguments.

mod builtin;
mod capacity;
mod figures;
mod file;
mod load;
mod networks;
mod parallel;
mod profile_file;
mod recorded;
mod replay;
mod roofline;
mod run;
mod table;

#[cfg(test)]
mod tests;

pub use builtin::{BUILT_IN, built_in};
pub use capacity::fewest_devices;
pub use figures::{Figures, ModelFigures, Period};
pub use file::FileError;
pub use load::{Load, Offered};
pub use parallel::{cores, on_all_cores};
pub use recorded::{Recorded, RecordedError};
pub use replay::Replay;
pub use run::{Served, Setup, run};
pub use table::{DeviceTable, ModelTable, Steps, TableError};
