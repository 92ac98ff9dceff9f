//! A compiled graph: a session whose runs use all of ONNX Runtime's threads, and one whose runs use the calling thread.
//!
//! Each run takes one of them when it starts. See `running`, and docs/decisions/0057-graphs-compiled-for-one-thread.md.

use std::{fmt, sync::Arc};

use ort::{
    environment::Environment,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
};

use super::{cuda_provider::CudaProvider, library::Runtime, weights::Weights};
use crate::engine::{
    EngineError,
    running::{MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
};

/// The sessions of a graph, and the weights that they refer to.
pub(super) struct CompiledGraph {
    // Both sessions are dropped before the weights.
    session: Session,
    /// Runs on the calling thread. `None` if the runtime has only one thread, if the graph runs on a card, or if its
    /// weights are too large to be kept twice.
    single: Option<Session>,
    #[allow(dead_code, reason = "the sessions refer to them")]
    weights: Weights,
    running: Arc<RunsInProgress>,
}

impl CompiledGraph {
    /// Compiles a graph with the weights beside it.
    ///
    /// # Errors
    /// If ONNX Runtime refuses it.
    pub(super) fn new(
        runtime: &Runtime,
        graph: &[u8],
        weights: Weights,
        provider: Option<CudaProvider>,
    ) -> Result<Self, EngineError> {
        let running = Arc::clone(runtime.running());
        let wants_single = provider.is_none() && runtime.threads() > 1;
        let mut builder = builder(runtime)?;
        if let Some(provider) = provider {
            provider.append(&mut builder)?;
        }
        let session = commit(builder, graph, &weights)?;
        let single = (wants_single && graph.len() + weights.bytes() <= MAX_COPIED_BYTES)
            .then(|| commit(single_threaded(runtime)?, graph, &weights))
            .transpose()?;
        Ok(Self { session, single, weights, running })
    }

    /// The session that describes the graph's inputs and outputs.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session that a run takes which starts now. The guard is held until the run ends.
    pub(super) fn begin_run(&self) -> (&Session, RunInProgress<'_>) {
        let (run, alone) = self.running.begin();
        (self.single.as_ref().filter(|_| alone).unwrap_or(&self.session), run)
    }
}

impl fmt::Debug for CompiledGraph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CompiledGraph").field("session", &self.session).finish_non_exhaustive()
    }
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

fn commit(mut builder: SessionBuilder, graph: &[u8], weights: &Weights) -> Result<Session, EngineError> {
    // SAFETY: the weights move with the session into a `CompiledGraph`, which drops the session first.
    unsafe { weights.share(&mut builder)? };
    builder.commit_from_memory(graph).map_err(refused)
}

fn refused(error: ort::Error) -> EngineError {
    EngineError(format!("onnx runtime error: {}", error.message()))
}
