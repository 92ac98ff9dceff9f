//! The server and its commands as a whole: the front ends, engines and policies on real models, profiles, and bench.
//!
//! One program, because each would link everything. What must be alone in a process is beside this folder.

mod bench;
mod external_weights;
mod grpc;
mod openvino;
mod policies;
mod profile;
mod wire_size;
