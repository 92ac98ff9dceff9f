//! A graph compiled for a run at a time on all threads, and for a run on each lane.

use std::sync::Arc;

use tracing::warn;

use super::{
    api::Api,
    compiled::{Compiled, hint},
    core::Core,
    requests::{Requests, Taken},
};
use crate::{
    EngineError, Precision, StopSignal,
    running::{CountedGraph, MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
};

/// A graph, its precision, and the threads and lanes of the engine.
pub(super) struct Source<'a> {
    pub(super) graph: &'a [u8],
    pub(super) precision: Precision,
    pub(super) threads: usize,
    pub(super) lanes: usize,
}

/// A compiled graph, for a single run and for runs that share the cores.
pub(super) struct CompiledGraph {
    /// One run at a time, on all threads.
    single: Streams,
    /// A run on each lane, each on its share of the threads. `None` if there is one lane or one thread, or if the graph
    /// is too large to be kept twice.
    shared: Option<Streams>,
    running: Arc<RunsInProgress>,
    _counted: CountedGraph,
}

/// A compiled graph and its infer requests, one for each stream.
struct Streams {
    // Declared first, so that they are dropped before the graph that they were created from.
    requests: Arc<Requests>,
    compiled: Compiled,
}

impl CompiledGraph {
    /// Compiles a graph, and logs if the processor does not support the precision.
    ///
    /// # Errors
    /// Fails if OpenVINO rejects the graph; the message names the operator.
    pub(super) fn new(
        core: &Arc<Core>,
        running: &Arc<RunsInProgress>,
        source: &Source<'_>,
    ) -> Result<Self, EngineError> {
        let counted = CountedGraph::new(running);
        let single = Streams::new(core, 1, source)?;
        let used = single.compiled.property(c"INFERENCE_PRECISION_HINT")?;
        let asked = hint(source.precision).to_string_lossy();
        if used != asked {
            warn!(requested = &*asked, used, "the CPU lacks the requested precision; OpenVINO uses another");
        }
        let streams = source.lanes.min(source.threads);
        let shared = (streams > 1 && source.graph.len() <= MAX_COPIED_BYTES)
            .then(|| Streams::new(core, streams, source))
            .transpose()
            // The model runs without it; there may just be no memory for a second copy of the weights.
            .unwrap_or_else(|error| {
                warn!(%error, "cannot compile a graph for runs that share the cores; its runs take turns");
                None
            })
            // Programs find their tensors by the ports' places, which are those of `single`.
            .filter(|shared| shared.compiled.has_ports_of(&single.compiled));
        Ok(Self { single, shared, running: Arc::clone(running), _counted: counted })
    }

    pub(super) fn api(&self) -> &'static Api {
        self.single.compiled.api()
    }

    /// Returns the compiled model that describes the inputs and outputs.
    pub(super) fn ports(&self) -> &Compiled {
        &self.single.compiled
    }

    /// Takes an infer request for a run that starts now. Both are held until the run ends.
    ///
    /// # Errors
    /// Fails if the run is stopped while it waits for a request.
    pub(super) fn begin_run(&self, stop: &StopSignal) -> Result<(Taken<'_>, RunInProgress<'_>), EngineError> {
        let (run, runs) = self.running.begin();
        let streams = self.shared.as_ref().filter(|_| runs > 1).unwrap_or(&self.single);
        Ok((streams.requests.take(stop)?, run))
    }
}

impl Streams {
    fn new(core: &Arc<Core>, streams: usize, source: &Source<'_>) -> Result<Self, EngineError> {
        let compiled = Compiled::new(core, streams, source.threads, source.precision, source.graph)?;
        let requests = Arc::new(Requests::new(&compiled, streams)?);
        Ok(Self { requests, compiled })
    }
}
