//! The pool on CUDA cards, on the libraries that stand in for CUDA's. Values of requests depend on every node that they
//! passed.

mod attending;
mod captured;
#[path = "../common/fake_control.rs"]
#[expect(dead_code, reason = "single calls are the device's own tests' matter")]
mod fake_control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod folding;
mod mixing;
mod models;
mod order;
mod padded;
mod placed;
#[path = "../simulated/rng.rs"]
#[expect(dead_code, reason = "what is drawn here is uniform")]
mod rng;
mod running;
#[path = "../common/runtime.rs"]
mod runtime;
mod sequences;
mod several;
mod staged;
mod stages;
mod together;
mod waiting;
