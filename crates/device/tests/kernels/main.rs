//! The CUDA kernels' numerics, checked on the host. `kernels/*.cu` are compiled as C++ and compared with references in
//! double precision, for each element type, ragged sizes and launches, with padding rows full of NaN.

mod address_sanitizer;
mod array;
mod attention;
mod conversions;
mod library;
mod numbers;
mod reductions;
mod rows;
mod rules;
