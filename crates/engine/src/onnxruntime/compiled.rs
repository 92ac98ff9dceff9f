//! A compiled graph: a session whose runs use several threads, and one whose runs use the calling thread.
//!
//! Each run takes one of them when it starts: by the runs in progress (`running`), and if there are none by what was
//! learned (`lone_runs`). See docs/decisions/0057-graphs-compiled-for-one-thread.md.
#![expect(clippy::disallowed_types, reason = "which threads are faster is measured where it is chosen")]

use std::{fmt, sync::Arc, time::Instant};

use ort::{environment::Environment, session::Session, value::ValueType};
use paternoster_onnx::{PortDim, SealedModel};
use tracing::warn;

use super::{
    awake::{OwnThreads, Reserved, awake_within_runs, sleep_until_first_run},
    cuda_provider::CudaProvider,
    lone_runs::{LoneRuns, Threads},
    one_thread::{Background, OneThread, Source, single_threaded},
    session::{Form, SharedSession, builder, commit},
    weights::Weights,
};
use crate::{
    EngineError, SMALL_MODEL_BYTES,
    running::{CountedGraph, MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
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
    pub(super) own_threads: Arc<OwnThreads>,
}

/// A run that has begun: its session, and what is learned when it ends.
pub(super) struct Run<'a> {
    session: &'a Session,
    in_progress: RunInProgress<'a>,
    /// If nothing else ran at its start: what learns, the size of its inputs in bytes, its threads and its start.
    alone: Option<(&'a LoneRuns, usize, Threads, Instant)>,
}

impl Run<'_> {
    pub(super) fn session(&self) -> &Session {
        self.session
    }

    /// Ends the run. The time of one that failed says nothing.
    pub(super) fn end(self, succeeded: bool) {
        if let Some((learns, bytes, threads, start)) = self.alone
            && succeeded
            && self.in_progress.is_only()
        {
            learns.record(bytes, threads, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
}

/// The sessions of a graph.
pub(super) struct CompiledGraph {
    session: SharedSession,
    /// Runs on the calling thread. `None` if no run would take it, if the graph runs on a card, or if its weights are
    /// too large to be kept twice.
    single: Option<OneThread>,
    threads: usize,
    running: Arc<RunsInProgress>,
    lone_runs: LoneRuns,
    // Dropped after the session, whose threads they are.
    _own_threads: Option<Reserved>,
    _counted: CountedGraph,
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
        let &SessionContext {
            ref environment,
            threads,
            lanes,
            has_arena,
            ref running,
            ref background,
            ref own_threads,
        } = context;
        let (weights, operators) = (Arc::new(weights), model.operators());
        let counted = CountedGraph::new(running);
        let form = Form { has_arena, has_halves: model.model().has_halves() };
        let mut builder = builder(environment, form)?;
        let bytes = graph.len() + weights.bytes();
        // Lone runs may take the calling thread on any machine, but only the graph of a file can be compiled for it
        // when that turns out to be faster.
        let may_run_on_one = runs_on_one_thread(lanes, threads) || threads > 1 && model.file().is_some();
        // Runs on a card leave the cores to others.
        let (running, may_run_on_one) = match provider {
            Some(provider) => {
                provider.append(&mut builder)?;
                (Arc::default(), false)
            }
            None => (Arc::clone(running), may_run_on_one && bytes <= MAX_COPIED_BYTES),
        };
        // A small graph's operators are not worth other threads, and threads that stay awake must be avoidable.
        let has_own_threads = may_run_on_one && bytes > SMALL_MODEL_BYTES;
        let own_threads = if has_own_threads { own_threads.reserve(threads) } else { None };
        if own_threads.is_some() {
            builder = awake_within_runs(builder, threads)?;
        }
        let session = commit(builder, graph, &weights, operators)?;
        if own_threads.is_some() {
            sleep_until_first_run(session.session());
        }
        let single = if !may_run_on_one {
            None
        } else if let Some(file) = model.file() {
            let (environment, file, operators) = (environment.clone(), file.clone(), operators.to_vec());
            let file_bytes = graph.len();
            let source = Source { environment, form, file, file_bytes, origin, weights, operators };
            Some(OneThread::later(source, background))
        } else {
            let single = single_threaded(environment, form);
            let single = single.and_then(|builder| commit(builder, graph, &weights, operators));
            // The model runs without it; there may just be no memory for a second copy of the weights.
            let single = single.inspect_err(|error| {
                warn!(%error, "cannot compile a graph for one thread; all its runs use all threads");
            });
            single.ok().map(|session| OneThread::compiled(session, background))
        };
        Ok(Self {
            session,
            single,
            threads,
            running,
            lone_runs: LoneRuns::default(),
            _own_threads: own_threads,
            _counted: counted,
        })
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

    /// Begins a run whose inputs have `bytes`, and chooses its session.
    pub(super) fn begin_run(&self, bytes: usize) -> Run<'_> {
        let (in_progress, runs) = self.running.begin();
        let all = self.session.session();
        let Some(single) = &self.single else { return Run { session: all, in_progress, alone: None } };
        if runs > 1 {
            let one = if runs_on_one_thread(runs, self.threads) { single.get() } else { None };
            return Run { session: one.unwrap_or(all), in_progress, alone: None };
        }
        let (threads, is_worth_one) = self.lone_runs.choose(bytes, single.is_compiled());
        let one = if is_worth_one || threads == Threads::One { single.get() } else { None };
        let one = one.filter(|_| threads == Threads::One);
        let threads = if one.is_some() { Threads::One } else { Threads::All };
        let alone = Some((&self.lone_runs, bytes, threads, Instant::now()));
        Run { session: one.unwrap_or(all), in_progress, alone }
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
