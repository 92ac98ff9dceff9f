//! The repository against real directories and a loader that loads nothing.

mod background;
mod control;
mod fake;
mod modes;
mod preparing;
mod scans;
mod startup;
