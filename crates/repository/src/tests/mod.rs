//! Tests of the repository with real directories and a fake loader.

mod background;
mod control;
mod fake;
mod modes;
mod on_demand;
mod preparing;
pub(crate) mod refusals;
mod rollout;
mod scans;
mod startup;
