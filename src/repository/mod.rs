//! The model repository: model directories, their configuration, versions, loading and unloading, states and reasons.
//! Knows nothing of the wire.

pub mod config;
