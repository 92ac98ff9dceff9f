//! The server and its commands as a whole: the front ends, engines and policies on real models, profiles, and bench.
//!
//! One program, because each would link everything.

mod bench;
mod external_weights;
mod grpc;
mod openvino;
mod policies;
mod profile;
