//! A compiled graph: a session whose runs use all of ONNX Runtime's threads, and one whose runs use the calling thread.
//!
//! Each run takes one of them when it starts. See `running`, and docs/decisions/0057-graphs-compiled-for-one-thread.md.

use std::{fmt, path::PathBuf, sync::Arc};

use ort::{
    environment::Environment,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::ValueType,
};
use tracing::warn;

use super::{cuda_provider::CudaProvider, library::Runtime, weights::Weights};
use crate::{
    engine::{
        EngineError,
        running::{MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
    },
    onnx::PortDim,
};

/// The sessions of a graph, and the weights that they refer to.
pub(super) struct CompiledGraph {
    // Both sessions are dropped before the weights.
    session: Session,
    /// Runs on the calling thread. `None` if no run would take it, if the graph runs on a card, or if its weights are
    /// too large to be kept twice.
    single: Option<Session>,
    #[allow(dead_code, reason = "the sessions refer to them")]
    weights: Weights,
    threads: usize,
    running: Arc<RunsInProgress>,
}

impl CompiledGraph {
    /// Compiles a graph with its external weights and the libraries of its custom operators.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects it.
    pub(super) fn new(
        runtime: &Runtime,
        graph: &[u8],
        weights: Weights,
        operators: &[PathBuf],
        provider: Option<CudaProvider>,
    ) -> Result<Self, EngineError> {
        let threads = runtime.threads();
        let mut builder = builder(runtime)?;
        // Runs on a card leave the cores to others.
        let (running, may_share) = match provider {
            Some(provider) => {
                provider.append(&mut builder)?;
                (Arc::default(), false)
            }
            None => (Arc::clone(runtime.running()), runs_on_one_thread(runtime.lanes(), threads)),
        };
        let session = commit(builder, graph, &weights, operators)?;
        let single = (may_share && graph.len() + weights.bytes() <= MAX_COPIED_BYTES)
            .then(|| commit(single_threaded(runtime)?, graph, &weights, operators))
            .transpose()
            // The model runs without it; there may just be no memory for a second copy of the weights.
            .unwrap_or_else(|error| {
                warn!(%error, "cannot compile a graph for one thread; all its runs use all threads");
                None
            });
        Ok(Self { session, single, weights, threads, running })
    }

    /// Returns the names and types of the graph's inputs, with those that have a default.
    pub(super) fn inputs(&self) -> Vec<(String, ValueType)> {
        let needed = self.session.inputs().iter().map(|port| (port.name().to_owned(), port.dtype().clone()));
        let optional = self.session.overridable_initializers();
        needed.chain(optional.iter().map(|port| (port.name().to_owned(), port.dtype().clone()))).collect()
    }

    /// Returns the names and types of the graph's outputs.
    pub(super) fn outputs(&self) -> Vec<(String, ValueType)> {
        self.session.outputs().iter().map(|port| (port.name().to_owned(), port.dtype().clone())).collect()
    }

    /// Returns the shape of an output as ONNX Runtime infers it; `None` if it does not know the rank.
    pub(super) fn output_dims(&self, name: &str) -> Option<Vec<PortDim>> {
        let port = self.session.outputs().iter().find(|port| port.name() == name)?;
        let ValueType::Tensor { shape, dimension_symbols, .. } = port.dtype() else { return None };
        let dims = shape.iter().zip(dimension_symbols.iter());
        let dims = dims.map(|(&length, name)| match length {
            0.. => PortDim::Fixed(length),
            _ => PortDim::named(name),
        });
        // Its interface shows an unknown rank like that of a scalar.
        (!shape.is_empty()).then(|| dims.collect())
    }

    /// Returns the session for a run that starts now. The guard is held until the run ends.
    pub(super) fn begin_run(&self) -> (&Session, RunInProgress<'_>) {
        let (run, runs) = self.running.begin();
        let single = self.single.as_ref().filter(|_| runs_on_one_thread(runs, self.threads));
        (single.unwrap_or(&self.session), run)
    }
}

impl fmt::Debug for CompiledGraph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CompiledGraph").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Returns whether one of `runs` runs in progress should use one thread: if all of them, with one thread each, occupy
/// more than half of the threads. ONNX Runtime has nothing between one thread and all: the runs of a session share its
/// threads.
fn runs_on_one_thread(runs: usize, threads: usize) -> bool {
    threads > 1 && runs > 1 && 2 * runs > threads
}

fn builder(runtime: &Runtime) -> Result<SessionBuilder, EngineError> {
    let environment: &Environment = runtime.environment();
    Session::builder(environment)
        .and_then(|builder| builder.with_optimization_level(GraphOptimizationLevel::All).map_err(ort::Error::from))
        .and_then(|builder| match runtime.has_arena() {
            true => builder.with_env_allocators().map_err(ort::Error::from),
            false => Ok(builder),
        })
        .map_err(refused)
}

/// A session with one thread of its own is one that runs on the calling thread.
fn single_threaded(runtime: &Runtime) -> Result<SessionBuilder, EngineError> {
    let builder = builder(runtime)?.with_independent_thread_pool().map_err(ort::Error::from);
    builder.and_then(|builder| builder.with_intra_threads(1).map_err(ort::Error::from)).map_err(refused)
}

fn commit(
    mut builder: SessionBuilder,
    graph: &[u8],
    weights: &Weights,
    operators: &[PathBuf],
) -> Result<Session, EngineError> {
    for library in operators {
        let fail = |error: ort::Error| {
            EngineError(format!("cannot load the operators of '{}': {}", library.display(), error.message()))
        };
        builder = builder.with_operator_library(library).map_err(ort::Error::from).map_err(fail)?;
    }
    // SAFETY: the weights move with the session into a `CompiledGraph`, which drops the session first.
    unsafe { weights.share(&mut builder)? };
    builder.commit_from_memory(graph).map_err(refused)
}

fn refused(error: ort::Error) -> EngineError {
    EngineError(format!("onnx runtime error: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_use_one_thread_where_they_occupy_the_cores() {
        assert!(!runs_on_one_thread(1, 1) && !runs_on_one_thread(4, 1), "there is one thread");
        assert!(!runs_on_one_thread(1, 2) && runs_on_one_thread(2, 2));
        assert!(!runs_on_one_thread(2, 4) && runs_on_one_thread(3, 4));
        assert!(!runs_on_one_thread(2, 16), "two lanes leave most of 16 cores idle");
    }
}
