//! A pipeline whose steps are bound to their models.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use paternoster_executor::InferRequest;
use paternoster_model::{DataType, ModelSpec, SymbolId};
use paternoster_observe::{MAX_STEPS_WITHIN, ModelStats, RequestBudgets, TooManySteps};

use super::{
    BindingFault, BuiltIn, PipelineGraph, Runs, Servable, Workers,
    binding::{Binding, TensorKind, bind},
    demand::Demand,
    expected::ExpectedTimes,
    graph::{MAX_DEPTH, TensorIx, too_deep},
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
    /// What requests that are derived from clients' requests are charged to, with all that passes between steps.
    pub budgets: RequestBudgets,
    /// The worker threads of built-in steps.
    pub workers: Workers,
}

impl fmt::Debug for PipelineOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PipelineOptions").field("budgets", &self.budgets).finish_non_exhaustive()
    }
}

/// How the steps are bound, by step.
type Bindings = Vec<Arc<Binding>>;

/// A pipeline that takes requests.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) stats: Arc<ModelStats>,
    pub(crate) graph: PipelineGraph,
    /// To the versions that were seen last: a model may be reloaded with another specification.
    bindings: ArcSwap<Bindings>,
    /// By tensor. Their datatypes never change, whatever is reloaded.
    pub(crate) kinds: Vec<TensorKind>,
    /// What a request needs that wants all outputs.
    pub(crate) demand: Arc<Demand>,
    /// Steps in an order in which each comes after those that it reads from.
    pub(crate) order: Vec<usize>,
    /// How long steps take.
    pub(crate) expected: ExpectedTimes,
    /// By step, for traces.
    pub(crate) step_names: Arc<[String]>,
    pub(crate) options: PipelineOptions,
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

/// Binds all steps of a graph to these specifications, one for each step. Also returns what is known of the tensors.
/// `order` has each step after those that it reads from.
fn bind_all(
    spec: &ModelSpec,
    graph: &PipelineGraph,
    order: &[usize],
    specs: &[Arc<ModelSpec>],
) -> Result<(Bindings, Vec<TensorKind>), PipelineFault> {
    let batched = spec.has_batch_axis();
    let mut kinds: Vec<Option<TensorKind>> = vec![None; graph.tensors.len()];
    for (kind, input) in kinds.iter_mut().zip(&spec.inputs) {
        *kind = Some(TensorKind::within(input, batched));
    }
    let mut bindings: Vec<Option<Arc<Binding>>> = vec![None; graph.steps.len()];
    for &number in order {
        let step = &graph.steps[number];
        if matches!(step.runs, Runs::BuiltIn(_)) && !batched {
            let reason = format!("{} needs a batch axis, and max_batch_size is 0", step.runs);
            return Err(PipelineFault::Condition { step: number, reason });
        }
        let fault = |fault| PipelineFault::Binding { step: number, runs: step.runs.to_string(), fault };
        if specs[number].decoupled && !spec.decoupled {
            return Err(fault(BindingFault::Decoupled));
        }
        bindings[number] = Some(Arc::new(bind(step, &specs[number], &graph.tensors, &mut kinds).map_err(fault)?));
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
        let wanted = TensorKind::within(output, batched);
        if let Some(difference) = kinds[tensor].as_ref().and_then(|kind| wanted.mismatch(kind)) {
            return Err(PipelineFault::Output { output: output.name.clone(), difference });
        }
    }
    // Every tensor is an input or given by a step of the order, and each step is in the order.
    Ok((bindings.into_iter().flatten().collect(), kinds.into_iter().flatten().collect()))
}

impl Pipeline {
    /// Binds the steps of a graph to the models that are served now. The pipeline is decoupled if one of its steps is.
    ///
    /// # Errors
    /// If a model is not served, or does not fit its step.
    pub fn new(mut spec: ModelSpec, graph: PipelineGraph, options: PipelineOptions) -> Result<Self, PipelineFault> {
        let (mut own_stats, mut extent) = (None, Extent::default());
        let mut specs = Vec::with_capacity(graph.steps.len());
        for (number, step) in graph.steps.iter().enumerate() {
            specs.push(match &step.runs {
                Runs::BuiltIn(built_in) => Arc::new(spec_of(built_in.as_ref())),
                Runs::Own(servable) => {
                    own_stats = Some(Arc::clone(servable.stats()));
                    Arc::clone(servable.spec())
                }
                Runs::Served { model, version } => {
                    let no_model = |reason| PipelineFault::Model { step: number, model: model.clone(), reason };
                    let servable = options.models.resolve(model, *version).map_err(no_model)?;
                    if let Some(inner) = servable.pipeline() {
                        extent.add(inner.extent(&mut Vec::new()));
                    }
                    let with_this =
                        Extent { depth: extent.depth + 1, steps: extent.steps.saturating_add(graph.steps.len()) };
                    if let Some(reason) = with_this.fault(graph.noun) {
                        return Err(no_model(reason));
                    }
                    Arc::clone(servable.spec())
                }
            });
        }
        spec.decoupled |= specs.iter().any(|step| step.decoupled);
        let order = graph.order();
        let (bindings, kinds) = bind_all(&spec, &graph, &order, &specs)?;
        let step_names = graph.steps.iter().map(|step| step.runs.name().to_owned()).collect();
        let demand = Arc::new(Demand::new(&graph, &graph.outputs));
        let (stats, shares_stats) = match own_stats {
            Some(stats) => (stats, true),
            None => (Arc::new(ModelStats::new(spec.max_batch_size)), false),
        };
        Ok(Self {
            bindings: ArcSwap::from_pointee(bindings),
            spec: Arc::new(spec),
            stats,
            expected: ExpectedTimes::new(graph.steps.len()),
            order,
            graph,
            kinds,
            demand,
            step_names,
            options,
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

    /// Returns what its requests are charged to.
    pub fn budgets(&self) -> &RequestBudgets {
        &self.options.budgets
    }

    /// Returns the worker threads of built-in steps.
    pub fn workers(&self) -> &Workers {
        &self.options.workers
    }

    /// Returns why it cannot answer requests now; `None` if it can.
    pub fn fault(&self) -> Option<String> {
        let noun = self.graph.noun;
        self.extent(&mut Vec::new()).fault(noun).or_else(|| self.fault_within(&mut Vec::new()))
    }

    /// As [`Self::fault`], within pipelines that need this one. `seen` has those that were looked at before, each once.
    fn fault_within(&self, seen: &mut Vec<*const Self>) -> Option<String> {
        if seen.contains(&std::ptr::from_ref(self)) {
            return None;
        }
        seen.push(self);
        let mut specs = self.known_specs();
        for (number, step) in self.graph.steps.iter().enumerate() {
            let (fault, place) = match &step.runs {
                Runs::BuiltIn(_) => continue,
                Runs::Own(servable) => (servable.fault(), String::new()),
                Runs::Served { model, version } => match self.options.models.resolve(model, *version) {
                    Err(reason) => (Some(reason), String::new()),
                    Ok(servable) => {
                        specs[number] = Arc::clone(servable.spec());
                        let fault = match servable.pipeline() {
                            Some(inner) => inner.fault_within(seen),
                            None => servable.fault(),
                        };
                        (fault, format!("{}: ", step.runs))
                    }
                },
            };
            if let Some(fault) = fault {
                let is_own = matches!(step.runs, Runs::Own(_));
                return Some(if is_own { fault } else { format!("step {number}: {place}{fault}") });
            }
        }
        let bound = self.bindings.load();
        if specs.iter().zip(bound.iter()).all(|(now, known)| Arc::ptr_eq(now, &known.spec)) {
            return None;
        }
        let fault = self.bind(&specs).err()?;
        Some(match &fault {
            PipelineFault::Binding { step, runs, fault } => format!("step {step}: {runs}: {NO_LONGER}: {fault}"),
            fault => format!("{NO_LONGER}: {fault}"),
        })
    }

    /// Returns its extent now; a depth of more than [`MAX_DEPTH`] if a pipeline is within itself. `seen` has those that
    /// were looked at before; without their extent, they are being looked at.
    fn extent(&self, seen: &mut Vec<(*const Self, Option<Extent>)>) -> Extent {
        let this = std::ptr::from_ref(self);
        if let Some((_, extent)) = seen.iter().find(|(known, _)| *known == this) {
            return extent.unwrap_or(Extent { depth: MAX_DEPTH, steps: 0 });
        }
        let place = seen.len();
        seen.push((this, None));
        let mut within = Extent { depth: 0, steps: self.graph.steps.len() };
        for (model, version) in self.models() {
            if let Ok(servable) = self.options.models.resolve(model, version)
                && let Some(inner) = servable.pipeline()
            {
                within.add(inner.extent(seen));
            }
        }
        let extent = Extent { depth: within.depth + 1, ..within };
        seen[place].1 = Some(extent);
        extent
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

    /// Returns the labels of an output that a step gives; `None` if there are none.
    pub(crate) fn labels_of_steps(&self, output: usize, depth: usize) -> Option<Arc<[String]>> {
        let given = *self.graph.outputs.get(output).filter(|_| depth < MAX_DEPTH)?;
        let labels = self.graph.steps.iter().filter_map(|step| {
            let (port, _) = step.outputs.iter().find(|(_, tensor)| *tensor == given)?;
            let servable = match &step.runs {
                Runs::BuiltIn(_) => return None,
                Runs::Own(servable) => servable.clone(),
                Runs::Served { model, version } => self.options.models.resolve(model, *version).ok()?,
            };
            Some(servable.labels_at(servable.spec().output_index(port)?, depth + 1))
        });
        labels.into_iter().find(|labels| !labels.is_empty())
    }

    /// Submits a request that has exactly one response. Dropping the future cancels all steps.
    pub fn submit(self: &Arc<Self>, request: InferRequest) -> Future {
        Box::pin(run::once(Arc::clone(self), request, None))
    }

    /// Returns a tensor that a step gives, and its datatype.
    pub fn tensor(&self, name: &str) -> Option<(TensorIx, DataType)> {
        let number = self.graph.tensors.iter().position(|tensor| tensor == name)?;
        (!self.graph.producers[number].is_empty()).then(|| (number, self.kinds[number].datatype))
    }

    /// Submits a request whose response is one tensor that a step gives, in place of the outputs.
    pub fn submit_for(self: &Arc<Self>, tensor: TensorIx, request: InferRequest) -> Future {
        Box::pin(run::once(Arc::clone(self), request, Some(tensor)))
    }

    /// Returns the name of the tensor that an input of a built-in step receives, of the first step that fits.
    pub fn input_of(&self, fits: impl Fn(&dyn BuiltIn) -> bool, port: &str) -> Option<&str> {
        let step = self.graph.steps.iter().find(|step| match &step.runs {
            Runs::BuiltIn(step) => fits(&**step),
            Runs::Served { .. } | Runs::Own(_) => false,
        })?;
        let (_, tensor) = step.inputs.iter().find(|(name, _)| name == port)?;
        Some(&self.graph.tensors[*tensor])
    }

    /// Submits a request with any number of responses. Dropping the stream cancels all steps.
    pub fn submit_stream(self: &Arc<Self>, request: InferRequest) -> PipelineStream {
        PipelineStream::new(|sender| run::many(Arc::clone(self), request, sender))
    }

    /// Returns the binding of a step to a specification, which is another one once its model is reloaded: then the
    /// whole pipeline must fit the models that are served now.
    ///
    /// # Errors
    /// If it does not, with the reason.
    pub(crate) fn binding(&self, step: usize, spec: &Arc<ModelSpec>) -> Result<Arc<Binding>, String> {
        let known = self.known_binding(step);
        if Arc::ptr_eq(&known.spec, spec) {
            return Ok(known);
        }
        let mut specs = self.known_specs();
        for (number, other) in self.graph.steps.iter().enumerate() {
            if let Runs::Served { model, version } = &other.runs
                && let Ok(servable) = self.options.models.resolve(model, *version)
            {
                specs[number] = Arc::clone(servable.spec());
            }
        }
        specs[step] = Arc::clone(spec);
        let bindings = self.bind(&specs).map_err(|fault| match fault {
            PipelineFault::Binding { step: at, fault, .. } if at == step => format!("{NO_LONGER}: {fault}"),
            fault => format!("the {} does not fit its models any more: {fault}", self.graph.noun),
        })?;
        let bound = Arc::clone(&bindings[step]);
        self.bindings.store(Arc::new(bindings));
        Ok(bound)
    }

    /// Binds all steps to these specifications, as when it was loaded. Tensors keep their datatypes: requests on their
    /// way have some of them.
    fn bind(&self, specs: &[Arc<ModelSpec>]) -> Result<Bindings, PipelineFault> {
        let (bindings, kinds) = bind_all(&self.spec, &self.graph, &self.order, specs)?;
        for (number, step) in self.graph.steps.iter().enumerate() {
            for (port, tensor) in &step.outputs {
                let (known, now) = (self.kinds[*tensor].datatype, kinds[*tensor].datatype);
                if known != now {
                    let difference = format!("expected datatype {known}, but it has {now}");
                    let (what, port, tensor) = ("output", port.clone(), self.graph.tensors[*tensor].clone());
                    let fault = BindingFault::Mismatch { what, port, tensor, difference };
                    return Err(PipelineFault::Binding { step: number, runs: step.runs.to_string(), fault });
                }
            }
        }
        Ok(bindings)
    }

    /// Returns the specifications that the steps are bound to.
    fn known_specs(&self) -> Vec<Arc<ModelSpec>> {
        self.bindings.load().iter().map(|binding| Arc::clone(&binding.spec)).collect()
    }

    /// Returns how a step was bound last.
    pub(crate) fn known_binding(&self, step: usize) -> Arc<Binding> {
        Arc::clone(&self.bindings.load()[step])
    }
}

/// What is said of a step that fitted its model when the pipeline was loaded.
const NO_LONGER: &str = "it does not fit any more";

/// How many pipelines are within each other, and how many steps they run in all for one request.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    depth: usize,
    steps: usize,
}

impl Extent {
    /// Adds a pipeline that a step runs.
    fn add(&mut self, inner: Self) {
        self.depth = self.depth.max(inner.depth);
        self.steps = self.steps.saturating_add(inner.steps);
    }

    /// Returns why it is too large, if it is. Messages call pipelines by this noun.
    fn fault(self, noun: &str) -> Option<String> {
        if self.depth > MAX_DEPTH {
            return Some(too_deep(noun));
        }
        (self.steps > MAX_STEPS_WITHIN).then(|| TooManySteps.to_string())
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
