//! Pipelines: a request that runs through a graph of steps.
//!
//! [`PipelineGraph`] says which tensors each step reads and gives. [`Pipeline`] binds the steps to their models and
//! runs requests: `run` starts a step when its inputs are complete, and `value` is what passes between steps, as one
//! tensor for all rows or as one for each row. `workers` runs what the server computes itself. [`Servable`] is what a
//! front end submits requests to: a model or a pipeline, or either behind the responses that `cache` keeps.
//!
//! Protocols, configuration files, and what built-in steps compute must not live here.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod binding;
mod built_in;
mod cache;
mod condition;
mod demand;
mod expected;
mod graph;
mod pipeline;
mod run;
mod servable;
mod shape;
mod stream;
mod value;
mod workers;

pub use binding::BindingFault;
pub use built_in::{BuiltIn, BuiltInFault, InputRows, StepWork, Stop, run_here};
pub use cache::{Cached, ResponseCache};
pub use condition::{Condition, Test};
pub use graph::{GraphFault, PipelineGraph, PortBinding, Runs, Step, TensorIx};
pub use pipeline::{Models, Pipeline, PipelineFault, PipelineOptions};
pub use servable::{PendingResponse, Responses, Servable, WeakServable};
pub use value::{TensorRows, ValueFault, only_string};
pub use workers::{Progress, WorkerGroup, Workers};
