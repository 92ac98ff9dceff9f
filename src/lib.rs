//! Paternoster: an inference server whose batches requests board and leave while they run.
//!
//! Modules are listed as data flows through them; a module imports only from modules below it (`docs/architecture.md`).
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Modules that read a clock say here what for.
#![warn(clippy::disallowed_types)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example models and with drawn loads: they need the feature 'tools'");

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(feature = "tools")]
#[allow(clippy::disallowed_types, reason = "it measures")]
pub mod bench;
#[allow(clippy::disallowed_types, reason = "it reports how long starting takes")]
pub mod cli;
#[allow(clippy::disallowed_types, reason = "connections and calls have deadlines")]
pub mod frontend;
pub mod wire;

#[allow(clippy::disallowed_types, reason = "loads, polls and profiles take time")]
pub mod repository;

pub mod profile;

#[doc(no_inline)]
pub use paternoster_batching::{self as batching, router};
#[doc(no_inline)]
pub use paternoster_device as device;
#[doc(no_inline)]
pub use paternoster_engine as engine;
#[doc(no_inline)]
pub use paternoster_executor as executor;
#[cfg(feature = "image")]
#[doc(no_inline)]
pub use paternoster_image as image;
#[cfg(feature = "tools")]
#[doc(no_inline)]
pub use paternoster_lab::{report, simulate, workload};
#[doc(no_inline)]
pub use paternoster_model as model;
#[doc(no_inline)]
pub use paternoster_observe::{self as observe, budget};
#[doc(no_inline)]
pub use paternoster_onnx as onnx;
#[doc(no_inline)]
pub use paternoster_pipeline as pipeline;
#[cfg(feature = "text")]
#[doc(no_inline)]
pub use paternoster_text as text;
