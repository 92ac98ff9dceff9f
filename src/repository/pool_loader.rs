//! Loads versions onto the executor pool: compiles the program, warms it up, brings it up.

use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tracing::warn;

use super::{
    CellProgram, EngineKind, Isolation, LoadRequest, Loader, StageCuts, WarmupSample, cells,
    config::pb::{
        self,
        model_config::SchedulingChoice,
        model_metrics::{MetricControl, metric_control::MetricOptions},
    },
    opening::Opener,
    plans::{self, Compiled, Plans},
    staging,
};
use crate::{
    engine::{
        EngineError, Engines, OnnxEngine, Program, Repeat, RepeatElements,
        onnxruntime::{CudaProvider, OnnxProgram},
    },
    executor::{ModelHandle, Placement, Pool, Site, StagePrograms, WarmUp},
    model::TensorSpec,
    observe::{FIRST_RESPONSE_HISTOGRAM, LatencyMetrics, VersionLatencies},
    onnx::{SealedModel, Signature},
    profile::{Key, Store},
};

/// The loader of the server.
#[derive(Debug)]
pub struct PoolLoader {
    pub(super) pool: Arc<Pool>,
    /// A server without one still serves what does not need it.
    pub(super) engines: Engines,
    /// Where the profiles of models lie that say `auto`; without it they are served as if they were not profiled.
    pub(super) profiles: Option<Store>,
    /// How long a model that has none may be measured while it serves; without it none is.
    pub(super) background: Option<Duration>,
    /// How models are tried in a process of their own, if they are.
    isolation: Option<Isolation>,
    /// Which latencies of the versions are kept for the metrics.
    latencies: LatencyMetrics,
    /// Models with a scheduler run nothing before this many requests wait; 0: they run as requests come.
    hold_until_waiting: u32,
    /// Why there are no CUDA cards.
    no_cards: String,
    /// Models that ask for cards run on the CPU where there are none.
    allows_cpu_fallback: bool,
    /// What was measured in the background: not again, whatever becomes of its file.
    pub(super) measured: Mutex<HashSet<Key>>,
}

impl PoolLoader {
    /// A loader for a pool; models that need an engine are refused with the reason if it is not there.
    pub fn new(pool: Arc<Pool>, engines: impl Into<Engines>) -> Self {
        Self {
            pool,
            engines: engines.into(),
            profiles: None,
            background: None,
            isolation: None,
            latencies: LatencyMetrics::default(),
            hold_until_waiting: 0,
            no_cards: "the server was started without".to_owned(),
            allows_cpu_fallback: false,
            measured: Mutex::default(),
        }
    }

    /// Serves models that say `auto` as their profiles in a directory advise.
    #[must_use]
    pub fn with_profiles(mut self, store: Store) -> Self {
        self.profiles = Some(store);
        self
    }

    /// Measures models that say `auto` and have no profile while they serve, each for so long at most.
    #[must_use]
    pub fn with_background_profiles(mut self, limit: Duration) -> Self {
        self.background = Some(limit);
        self
    }

    /// Keeps these latencies of the versions for the metrics.
    #[must_use]
    pub fn with_latencies(mut self, latencies: LatencyMetrics) -> Self {
        self.latencies = latencies;
        self
    }

    /// Lets models with a dynamic or sequence batcher run nothing before this many requests wait, once; 0: they run as
    /// requests come. Triton's TRITONSERVER_DELAY_SCHEDULER, for tests that need a full queue.
    #[must_use]
    pub fn with_held_schedulers(mut self, until_waiting: u32) -> Self {
        self.hold_until_waiting = until_waiting;
        self
    }

    /// Says why there are no CUDA cards, and whether models that ask for some run on the CPU then.
    #[must_use]
    pub fn without_cards(mut self, reason: String, allows_cpu_fallback: bool) -> Self {
        (self.no_cards, self.allows_cpu_fallback) = (reason, allows_cpu_fallback);
        self
    }

    /// Opens models in a process of their own first, and only those here that survive it.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Option<Isolation>) -> Self {
        self.isolation = isolation;
        self
    }

    pub(super) fn opener(&self) -> Opener<'_> {
        Opener { engines: &self.engines, isolation: self.isolation.as_ref() }
    }

    /// Refuses a model that asks for cards where there are none, or lets it run on the CPU.
    fn place(&self, request: &mut LoadRequest) -> Result<(), String> {
        if !request.placement.needs_cards() || self.pool.has_cards() {
            return Ok(());
        }
        let (model, reason) = (&request.spec.name, &self.no_cards);
        if !self.allows_cpu_fallback {
            return Err(format!(
                "an instance group of model '{model}' has kind KIND_GPU but no GPU is available: {reason}; expected \
                 KIND_CPU or KIND_AUTO, or a server with --allow-cpu-fallback"
            ));
        }
        warn!(model, reason, "its instances of kind KIND_GPU run on the CPU");
        request.placement = Placement::On(vec![Site::Cpu]);
        Ok(())
    }

    fn bring_up(&self, mut request: LoadRequest) -> Result<Arc<ModelHandle>, String> {
        self.place(&mut request)?;
        let programs = match request.unfold.take() {
            Some(unfold) => cells::compile(&self.pool, &self.opener(), &mut request, &unfold)?,
            None => self.compile(&request)?,
        };
        programs.admit_padding(&request.spec)?;
        for sample in &request.warmup {
            let WarmupSample { rows, inputs, program_inputs, .. } = sample;
            for _ in 0..sample.count {
                self.pool
                    .warm_up(&request.spec, &programs, WarmUp { rows: *rows, inputs, program_inputs })
                    .map_err(|reason| format!("warmup sample '{}' failed: {reason}", sample.name))?;
            }
        }
        let LoadRequest { spec, mut knobs, task_time_limit, config, placement, .. } = request;
        let has_batcher = matches!(
            config.scheduling_choice,
            Some(SchedulingChoice::DynamicBatching(_) | SchedulingChoice::SequenceBatching(_))
        );
        if has_batcher {
            knobs.queueing.hold_until_waiting = self.hold_until_waiting;
        }
        let bounds_ms = first_response_bounds(&config);
        let latencies = VersionLatencies::new(&self.latencies, spec.decoupled, bounds_ms);
        let handle = self.pool.bring_up_on(spec, knobs, programs, task_time_limit, &placement)?;
        handle.stats().keep_latencies(latencies);
        Ok(Arc::new(handle))
    }

    pub(super) fn compile(&self, request: &LoadRequest) -> Result<StagePrograms, String> {
        match request.engine {
            EngineKind::Repeat => {
                let spec = &request.spec;
                let program: Result<Arc<dyn Program>, EngineError> = if RepeatElements::is_meant(spec) {
                    RepeatElements::compile(spec).map(|program| Arc::new(program) as Arc<dyn Program>)
                } else {
                    Repeat::compile(spec).map(|program| Arc::new(program) as Arc<dyn Program>)
                };
                program.map(Into::into).map_err(|error| error.to_string())
            }
            EngineKind::Onnx(engine) => {
                let opener = self.opener();
                let program = request.whole_program();
                let model = opener.open(&program, program.read()?, &request.stages)?;
                let refused = |error: String| format!("cannot load '{}': {error}", request.program.display());
                let optional = request.spec.inputs.iter().find(|input| input.optional);
                if let (OnnxEngine::OpenVino, Some(input)) = (engine, optional) {
                    let name = &input.name;
                    return Err(refused(format!(
                        "input '{name}' is optional, which the engine openvino does not allow"
                    )));
                }
                if request.stages.cuts == StageCuts::Whole {
                    return whole(&self.pool, &opener, &program, &model, request).map_err(refused);
                }
                stages(&self.pool, &opener, &program, &model, request).map_err(refused)
            }
        }
    }
}

/// The bounds that a model's `model_metrics` names for the time to the first response; the last ones count.
fn first_response_bounds(config: &pb::ModelConfig) -> Option<&[f64]> {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control).rev();
    let named = |control: &&MetricControl| {
        control.metric_identifier.as_ref().is_some_and(|metric| metric.family == FIRST_RESPONSE_HISTOGRAM)
    };
    controls.filter(named).find_map(|control| match control.metric_options.as_ref()? {
        MetricOptions::HistogramOptions(options) => Some(options.buckets.as_slice()),
    })
}

/// Compiles a model as it is.
fn whole(
    pool: &Pool,
    opener: &Opener<'_>,
    program: &CellProgram,
    model: &SealedModel,
    request: &LoadRequest,
) -> Result<StagePrograms, String> {
    let spec = &request.spec;
    let (inputs, outputs) = OnnxProgram::ports_of(spec);
    let program = opener.compile(program, model, &inputs, &outputs).map_err(|error| error.to_string())?;
    let compiled = Compiled {
        name: String::new(),
        program,
        model,
        inputs: spec.inputs.clone(),
        outputs: spec.outputs.clone(),
        has_batch_axis: spec.has_batch_axis(),
        lengths: None,
    };
    plans::of_whole(pool, request, compiled, &|| {
        let card = request.placement.card().or_else(|| pool.cards().next()).ok_or("there is no CUDA card")?;
        let on_card = opener.engines.runtime().and_then(|runtime| {
            let provider = CudaProvider::of(runtime, card, request.precision)?;
            OnnxProgram::compile_on_card(runtime, model, &inputs, &outputs, provider)
        });
        on_card.map(|program| Arc::new(program) as Arc<dyn Program>).map_err(|error| error.to_string())
    })
}

/// Cuts a model and compiles its stages.
fn stages(
    pool: &Pool,
    opener: &Opener<'_>,
    program: &CellProgram,
    model: &SealedModel,
    request: &LoadRequest,
) -> Result<StagePrograms, String> {
    let (plan, graphs) = staging::cut_into_stages(model.model(), &request.spec, &request.stages)?;
    let parts: Vec<SealedModel> = graphs.into_iter().map(|graph| model.part(graph)).collect();
    let mut compiled = Vec::with_capacity(parts.len());
    for (number, (stage, part)) in plan.stages.iter().zip(&parts).enumerate() {
        let name = format!("stage {number}");
        let (inputs, outputs) = StagePrograms::ports(stage);
        let program = opener.compile(program, part, &inputs, &outputs).map_err(|error| format!("{name}: {error}"))?;
        let (inputs, outputs) = StagePrograms::tensors(stage);
        let owned = |tensors: Vec<&TensorSpec>| tensors.into_iter().cloned().collect();
        let (inputs, outputs) = (owned(inputs), owned(outputs));
        let lengths = None;
        compiled.push(Compiled { name, program, model: part, inputs, outputs, has_batch_axis: true, lengths });
    }
    let (plans, programs) = Plans::of(pool, request, compiled)?;
    let programs = StagePrograms::cut(&request.spec, plan, programs)?;
    plans.explain(&request.spec, &programs);
    Ok(programs)
}

impl Loader for PoolLoader {
    fn load(&self, request: LoadRequest) -> Result<Arc<ModelHandle>, String> {
        if let Some(advised) = self.by_profile(&request) {
            match self.bring_up(advised) {
                Ok(handle) => return Ok(handle),
                Err(reason) => {
                    let model = request.spec.name.as_str();
                    warn!(model, reason, "cannot be served as its profile advises");
                }
            }
        }
        self.bring_up(request)
    }

    fn may_profile(&self, request: &LoadRequest) -> bool {
        let is_whole = request.engine != EngineKind::Repeat && request.unfold.is_none();
        let has_file = is_whole && request.override_bytes.is_none();
        has_file && self.profiles.is_some() && self.background.is_some() && request.automatic.is_any()
    }

    fn profile(&self, request: &LoadRequest, is_wanted: &dyn Fn() -> bool) -> Result<bool, String> {
        self.profile_while_serving(request, is_wanted)
    }

    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, String> {
        let signature = match bytes {
            Some(bytes) => Signature::from_bytes(&program.display().to_string(), bytes),
            None => Signature::read(program),
        };
        signature.map_err(|error| error.to_string())
    }
}
