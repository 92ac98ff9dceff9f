//! Tests across all forms of a configuration: what every reader answers, and that all forms mean the same.

mod corpus;
mod round_trip;
