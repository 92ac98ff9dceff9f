//! Images in, tensors out: decoding, resizing, cropping and normalising.
//!
//! `header` reads how large an image is without decoding it, and `plan` says from that what each step after it needs.
//! `decode` turns the bytes into pixels, with `jpeg` and `orientation`, and `elements` pixels into the elements of a
//! tensor. `step` is the built-in step of pipelines around them.
//!
//! Protocols, model repositories, files and engines must not live here.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod decode;
mod elements;
mod header;
mod jpeg;
mod orientation;
mod plan;
mod step;

pub use elements::{Color, Elements, Layout, Normalization};
pub use plan::{Resize, Size};
pub use step::{DEFAULT_MAX_PIXELS, IMAGE, ImageOptions, ImageStep, PIXELS, Resample};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
