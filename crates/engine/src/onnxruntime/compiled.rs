//! A compiled graph: a session whose runs use all of ONNX Runtime's threads, and one whose runs use the calling thread.
//!
//! Each run takes one of them when it starts. See `running`, and docs/decisions/0057-graphs-compiled-for-one-thread.md.

use std::{fmt, sync::Arc};

use ort::{environment::Environment, session::Session, value::ValueType};
use paternoster_onnx::{PortDim, SealedModel};
use tracing::warn;

use super::{
    cuda_provider::CudaProvider,
    one_thread::{Background, OneThread, Source, single_threaded},
    session::{SharedSession, builder, commit},
    weights::Weights,
};
use crate::{
    EngineError,
    running::{MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
    sessions::Origin,
};

/// What all graphs of a runtime are compiled in.
#[derive(Clone, Debug)]
pub(super) struct SessionContext {
    pub(super) environment: Environment,
    /// Threads that one run may use.
    pub(super) threads: usize,
    /// Runs that take place at the same time.
    pub(super) lanes: usize,
    /// Whether sessions allocate from one arena of limited size.
    pub(super) has_arena: bool,
    pub(super) running: Arc<RunsInProgress>,
    /// Where graphs are compiled for one thread.
    pub(super) background: Arc<Background>,
}

/// The sessions of a graph.
pub(super) struct CompiledGraph {
    session: SharedSession,
    /// Runs on the calling thread. `None` if no run would take it, if the graph runs on a card, or if its weights are
    /// too large to be kept twice.
    single: Option<OneThread>,
    threads: usize,
    running: Arc<RunsInProgress>,
}

impl CompiledGraph {
    /// Compiles a graph, which is the encoded form of `model`, with its external weights and the libraries of its
    /// custom operators.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects it.
    pub(super) fn new(
        context: &SessionContext,
        (model, graph, weights): (&SealedModel, &[u8], Weights),
        origin: Origin,
        provider: Option<CudaProvider>,
    ) -> Result<Self, EngineError> {
        let &SessionContext { ref environment, threads, lanes, has_arena, ref running, ref background } = context;
        let (weights, operators) = (Arc::new(weights), model.operators());
        let mut builder = builder(environment, has_arena)?;
        // Runs on a card leave the cores to others.
        let (running, may_share) = match provider {
            Some(provider) => {
                provider.append(&mut builder)?;
                (Arc::default(), false)
            }
            None => (Arc::clone(running), runs_on_one_thread(lanes, threads)),
        };
        let session = commit(builder, graph, &weights, operators)?;
        let single = if !may_share || graph.len() + weights.bytes() > MAX_COPIED_BYTES {
            None
        } else if let Some(file) = model.file() {
            let (environment, file, operators) = (environment.clone(), file.clone(), operators.to_vec());
            let file_bytes = graph.len();
            let source = Source { environment, has_arena, file, file_bytes, origin, weights, operators };
            Some(OneThread::later(source, background))
        } else {
            let single = single_threaded(environment, has_arena);
            let single = single.and_then(|builder| commit(builder, graph, &weights, operators));
            // The model runs without it; there may just be no memory for a second copy of the weights.
            let single = single.inspect_err(|error| {
                warn!(%error, "cannot compile a graph for one thread; all its runs use all threads");
            });
            single.ok().map(|session| OneThread::compiled(session, background))
        };
        Ok(Self { session, single, threads, running })
    }

    /// Returns the names and types of the graph's inputs, with those that have a default.
    pub(super) fn inputs(&self) -> Vec<(String, ValueType)> {
        let needed = self.session.session().inputs().iter().map(|port| (port.name().to_owned(), port.dtype().clone()));
        let optional = self.session.session().overridable_initializers();
        needed.chain(optional.iter().map(|port| (port.name().to_owned(), port.dtype().clone()))).collect()
    }

    /// Returns the names and types of the graph's outputs.
    pub(super) fn outputs(&self) -> Vec<(String, ValueType)> {
        self.session.session().outputs().iter().map(|port| (port.name().to_owned(), port.dtype().clone())).collect()
    }

    /// Returns the shape of an output as ONNX Runtime infers it; `None` if it does not know the rank.
    pub(super) fn output_dims(&self, name: &str) -> Option<Vec<PortDim>> {
        let port = self.session.session().outputs().iter().find(|port| port.name() == name)?;
        let ValueType::Tensor { shape, dimension_symbols, .. } = port.dtype() else { return None };
        let dims = shape.iter().zip(dimension_symbols.iter());
        let dims = dims.map(|(&length, name)| match length {
            0.. => PortDim::Fixed(length),
            _ => PortDim::named(name),
        });
        // Its interface shows an unknown rank like that of a scalar.
        (!shape.is_empty()).then(|| dims.collect())
    }

    /// Returns whether there is a session for runs on the calling thread.
    pub(super) fn is_compiled_for_one_thread(&self) -> bool {
        self.single.as_ref().is_some_and(OneThread::is_compiled)
    }

    /// Returns the session for a run that starts now. The guard is held until the run ends.
    pub(super) fn begin_run(&self) -> (&Session, RunInProgress<'_>) {
        let (run, runs) = self.running.begin();
        let single = self.single.as_ref().filter(|_| runs_on_one_thread(runs, self.threads));
        (single.and_then(OneThread::get).unwrap_or(self.session.session()), run)
    }
}

impl fmt::Debug for CompiledGraph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CompiledGraph").field("session", self.session.session()).finish_non_exhaustive()
    }
}

/// Returns whether one of `runs` runs in progress should use one thread: if all of them, with one thread each, occupy
/// more than half of the threads. ONNX Runtime has nothing between one thread and all: the runs of a session share its
/// threads.
fn runs_on_one_thread(runs: usize, threads: usize) -> bool {
    threads > 1 && runs > 1 && 2 * runs > threads
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
