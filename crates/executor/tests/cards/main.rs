//! The pool on CUDA cards, on the libraries that stand in for CUDA's. Values of requests depend on every node that they
//! passed.

mod attending;
mod captured;
mod chunks;
mod folding;
mod mixing;
mod models;
mod order;
mod padded;
mod placed;
mod running;
mod sequences;
mod several;
mod staged;
mod stages;
mod together;
mod waiting;

use paternoster_testing::rng;
