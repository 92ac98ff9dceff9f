//! A pipeline whose steps are bound to their models.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use paternoster_executor::InferRequest;
use paternoster_model::{ModelSpec, SymbolId};
use paternoster_observe::{ModelStats, budget::Budget};
use tokio::sync::Semaphore;

use super::{
    BindingFault, BuiltIn, Graph, Runs, Servable,
    binding::{Binding, TensorKind, bind},
    expected::ExpectedTimes,
    graph::MAX_DEPTH,
    run,
    servable::Future,
    stream::PipelineStream,
};

/// The models that are served now.
pub trait Models: Send + Sync {
    /// Returns a version of a model; the latest without a number.
    ///
    /// # Errors
    /// If it is not served, with the reason.
    fn resolve(&self, model: &str, version: Option<i64>) -> Result<Servable, String>;
}

/// What the steps of a pipeline need.
#[derive(Clone)]
pub struct PipelineOptions {
    /// The models that steps name.
    pub models: Arc<dyn Models>,
    /// Limits the bytes of all tensors that pass between steps.
    pub room: Arc<Budget>,
    /// Limits the worker threads that built-in steps use at a time.
    pub workers: Arc<Semaphore>,
    /// Limits those of steps that take long, so that others need not wait for them.
    pub long_workers: Arc<Semaphore>,
}

impl fmt::Debug for PipelineOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PipelineOptions").field("room", &self.room).finish_non_exhaustive()
    }
}

/// A pipeline that takes requests.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) stats: Arc<ModelStats>,
    pub(crate) graph: Graph,
    /// By step, for the version that was seen last: a model may be reloaded with another specification.
    bindings: Vec<ArcSwap<Binding>>,
    /// By tensor.
    pub(crate) kinds: Vec<TensorKind>,
    /// By step: the number of tensors that it waits for.
    pub(crate) waits_for: Vec<usize>,
    /// Steps in an order in which each comes after those that it reads from.
    pub(crate) order: Vec<usize>,
    /// How long steps take.
    pub(crate) expected: ExpectedTimes,
    /// By step, for traces.
    pub(crate) step_names: Arc<[String]>,
    pub(crate) options: PipelineOptions,
    /// The number of pipelines within each other, itself included, when it was loaded.
    depth: usize,
    /// Whether its statistics are those of a version that belongs to it, which counts its executions itself.
    pub(crate) shares_stats: bool,
}

/// Why a pipeline cannot be served.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PipelineFault {
    /// A model is not there.
    #[error("step {step}: {reason}")]
    Model {
        /// The step, counted from 0.
        step: usize,
        /// The model.
        model: String,
        /// Why there is none.
        reason: String,
    },
    /// A step does not fit its model.
    #[error("step {step} ({runs}): {fault}")]
    Binding {
        /// The step, counted from 0.
        step: usize,
        /// What it runs.
        runs: String,
        /// What does not fit.
        fault: BindingFault,
    },
    /// A condition does not go with its tensor, or with a pipeline without a batch axis.
    #[error("step {step}: {reason}")]
    Condition {
        /// The step, counted from 0.
        step: usize,
        /// Why not.
        reason: String,
    },
    /// An output differs from what its step gives.
    #[error("output '{output}': {difference}")]
    Output {
        /// The output.
        output: String,
        /// What was expected, and what was found.
        difference: String,
    },
}

impl PipelineFault {
    /// Returns the step at fault, if one is.
    pub fn step(&self) -> Option<usize> {
        match self {
            Self::Model { step, .. } | Self::Binding { step, .. } | Self::Condition { step, .. } => Some(*step),
            Self::Output { .. } => None,
        }
    }
}

impl Pipeline {
    /// Binds the steps of a graph to the models that are served now. The pipeline is decoupled if one of its steps is.
    ///
    /// # Errors
    /// If a model is not served, or does not fit its step.
    pub fn new(mut spec: ModelSpec, graph: Graph, options: PipelineOptions) -> Result<Self, PipelineFault> {
        let batched = spec.has_batch_axis();
        let mut kinds: Vec<Option<TensorKind>> = vec![None; graph.tensors.len()];
        for (kind, input) in kinds.iter_mut().zip(&spec.inputs) {
            *kind = Some(TensorKind::of(input, batched));
        }
        let mut bindings: Vec<Option<Binding>> = graph.steps.iter().map(|_| None).collect();
        let (mut own_stats, mut depth) = (None, 1);
        let order = graph.order();
        for &number in &order {
            let step = &graph.steps[number];
            let model_spec = match &step.runs {
                Runs::BuiltIn(built_in) => {
                    if !batched {
                        let reason = format!("{} needs a batch axis, and max_batch_size is 0", step.runs);
                        return Err(PipelineFault::Condition { step: number, reason });
                    }
                    Arc::new(spec_of(built_in.as_ref()))
                }
                Runs::Own(servable) => {
                    own_stats = Some(Arc::clone(servable.stats()));
                    Arc::clone(servable.spec())
                }
                Runs::Served { model, version } => {
                    let no_model =
                        |model: &str, reason| PipelineFault::Model { step: number, model: model.to_owned(), reason };
                    let servable = options.models.resolve(model, *version);
                    let servable = servable.map_err(|reason| no_model(model, reason))?;
                    if let Some(inner) = servable.pipeline() {
                        depth = depth.max(inner.depth + 1);
                        if depth > MAX_DEPTH {
                            let reason = format!("pipelines are nested more than {MAX_DEPTH} deep");
                            return Err(no_model(model, reason));
                        }
                    }
                    Arc::clone(servable.spec())
                }
            };
            spec.decoupled |= model_spec.decoupled;
            let bound = bind(step, &model_spec, &graph.tensors, &mut kinds)
                .map_err(|fault| PipelineFault::Binding { step: number, runs: step.runs.to_string(), fault })?;
            bindings[number] = Some(bound);
            if let Some((tensor, condition)) = &step.when {
                let fits = kinds[*tensor].as_ref().is_some_and(|kind| condition.test.fits(kind.datatype));
                let reason = match (batched, fits) {
                    (false, _) => "a condition needs a batch axis, and max_batch_size is 0".to_owned(),
                    (_, false) => format!("the condition compares strings with numbers in '{}'", condition.tensor),
                    (true, true) => continue,
                };
                return Err(PipelineFault::Condition { step: number, reason });
            }
        }
        for (output, &tensor) in spec.outputs.iter().zip(&graph.outputs) {
            let wanted = TensorKind::of(output, batched);
            if let Some(difference) = kinds[tensor].as_ref().and_then(|kind| wanted.mismatch(kind)) {
                return Err(PipelineFault::Output { output: output.name.clone(), difference });
            }
        }
        let step_names = graph.steps.iter().map(|step| step.runs.name().to_owned()).collect();
        let waits_for = (0..graph.steps.len()).map(|step| graph.reads(step)).collect();
        // Every tensor is an input or given by a step of the order, and each step is in the order.
        let (kinds, bindings) = (kinds.into_iter().flatten().collect(), bindings.into_iter().flatten());
        let (stats, shares_stats) = match own_stats {
            Some(stats) => (stats, true),
            None => (Arc::new(ModelStats::new(spec.max_batch_size)), false),
        };
        Ok(Self {
            bindings: bindings.map(ArcSwap::from_pointee).collect(),
            spec: Arc::new(spec),
            stats,
            expected: ExpectedTimes::new(graph.steps.len()),
            order,
            graph,
            kinds,
            waits_for,
            step_names,
            options,
            depth,
            shares_stats,
        })
    }

    /// Returns its inputs and outputs.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// Returns its counters.
    pub fn stats(&self) -> &Arc<ModelStats> {
        &self.stats
    }

    /// Returns the names of the models that its steps run, and the versions they name.
    pub fn models(&self) -> impl Iterator<Item = (&str, Option<i64>)> {
        self.graph.steps.iter().filter_map(|step| match &step.runs {
            Runs::Served { model, version } => Some((model.as_str(), *version)),
            Runs::Own(_) | Runs::BuiltIn(_) => None,
        })
    }

    /// Returns the version that belongs to it, if one does.
    pub fn own(&self) -> Option<&Servable> {
        self.graph.steps.iter().find_map(|step| match &step.runs {
            Runs::Own(servable) => Some(servable),
            Runs::Served { .. } | Runs::BuiltIn(_) => None,
        })
    }

    /// Returns the steps that the server computes itself, in the order of the configuration.
    pub fn built_in(&self) -> impl Iterator<Item = &Arc<dyn BuiltIn>> {
        self.graph.steps.iter().filter_map(|step| match &step.runs {
            Runs::BuiltIn(step) => Some(step),
            Runs::Served { .. } | Runs::Own(_) => None,
        })
    }

    /// Returns why it cannot answer requests now; `None` if it can.
    pub fn fault(&self) -> Option<String> {
        self.fault_within(&mut Vec::new())
    }

    /// As [`Self::fault`], within pipelines that need this one. `seen` has those that were looked at before, each once.
    pub(crate) fn fault_within(&self, seen: &mut Vec<*const Self>) -> Option<String> {
        if seen.contains(&std::ptr::from_ref(self)) {
            return None;
        }
        seen.push(self);
        self.graph.steps.iter().enumerate().find_map(|(number, step)| {
            let resolved = match &step.runs {
                Runs::BuiltIn(_) => return None,
                Runs::Own(servable) => return servable.fault(),
                Runs::Served { model, version } => self.options.models.resolve(model, *version),
            };
            let fault = match resolved {
                Err(reason) => reason,
                Ok(servable) => {
                    let fault = self.binding(number, servable.spec()).err().or_else(|| match servable.pipeline() {
                        Some(inner) => inner.fault_within(seen),
                        None => servable.fault(),
                    });
                    format!("{}: {}", step.runs, fault?)
                }
            };
            Some(format!("step {number}: {fault}"))
        })
    }

    /// Collects the specifications of the versions that its steps would run now, and those of the steps of these.
    /// `None` if one of them is not served.
    pub(crate) fn specs_within(&self, found: &mut Vec<Arc<ModelSpec>>) -> Option<()> {
        for step in &self.graph.steps {
            let Runs::Served { model, version } = &step.runs else { continue };
            let servable = self.options.models.resolve(model, *version).ok()?;
            if found.iter().any(|known| Arc::ptr_eq(known, servable.spec())) {
                continue;
            }
            found.push(Arc::clone(servable.spec()));
            if let Some(inner) = servable.pipeline() {
                inner.specs_within(found)?;
            }
        }
        Some(())
    }

    /// Submits a request that has exactly one response. Dropping the future cancels all steps.
    pub fn submit(self: &Arc<Self>, request: InferRequest) -> Future {
        Box::pin(run::once(Arc::clone(self), request))
    }

    /// Submits a request with any number of responses. Dropping the stream cancels all steps.
    pub fn submit_stream(
        self: &Arc<Self>,
        request: InferRequest,
        backlog: &Arc<paternoster_executor::Backlog>,
    ) -> PipelineStream {
        PipelineStream::new(|sender| run::many(Arc::clone(self), request, Arc::clone(backlog), sender))
    }

    /// Returns the binding of a step to a specification, which is another one once its model is reloaded.
    ///
    /// # Errors
    /// If the step does not fit it, with the reason.
    pub(crate) fn binding(&self, step: usize, spec: &Arc<ModelSpec>) -> Result<Arc<Binding>, String> {
        let known = self.bindings[step].load_full();
        if Arc::ptr_eq(&known.spec, spec) {
            return Ok(known);
        }
        let mut kinds: Vec<Option<TensorKind>> = self.kinds.iter().cloned().map(Some).collect();
        let bound = bind(&self.graph.steps[step], spec, &self.graph.tensors, &mut kinds)
            .map_err(|fault| format!("it does not fit any more: {fault}"))?;
        let bound = Arc::new(bound);
        self.bindings[step].store(Arc::clone(&bound));
        Ok(bound)
    }

    /// Returns the binding of a built-in step.
    pub(crate) fn known_binding(&self, step: usize) -> Arc<Binding> {
        self.bindings[step].load_full()
    }
}

/// Returns the specification of a built-in step, which takes any number of rows.
fn spec_of(built_in: &dyn super::BuiltIn) -> ModelSpec {
    ModelSpec {
        name: built_in.kind().to_owned(),
        version: 1,
        max_batch_size: u32::MAX,
        inputs: built_in.inputs().to_vec(),
        outputs: built_in.outputs().to_vec(),
        symbols: symbols(built_in),
        decoupled: false,
    }
}

/// A name for each axis that the inputs of a built-in step share.
fn symbols(built_in: &dyn super::BuiltIn) -> Vec<String> {
    let ids = built_in.inputs().iter().flat_map(|input| input.symbols.iter().flatten());
    let most = ids.map(|SymbolId(number)| number + 1).max().unwrap_or(0);
    (0..most).map(|number| format!("axis {number}")).collect()
}
