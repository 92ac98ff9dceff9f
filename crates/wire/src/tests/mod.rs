//! Shared test utilities of this module, and tests that span it: the outcomes measured on Triton, and fuzzing.

mod arbitrary;
mod cases;
mod fuzz;
pub(crate) mod requests;
pub(crate) mod shm;
pub(crate) mod strings;

pub(crate) use super::models;
