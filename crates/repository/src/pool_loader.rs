//! The server's [`Loader`]: compiles a version's programs, runs its warm-up requests, and starts it in the executor
//! pool.

use std::{borrow::Cow, collections::HashSet, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use paternoster_batching::Knobs;
use paternoster_config::{
    pb::model_config::SchedulingChoice,
    stages::{StageCuts, StageRequest},
};
use paternoster_device::MemoryShortage;
use paternoster_engine::{
    EngineError, Engines, OnnxEngine, Program, Repeat, RepeatElements, StopSignal, onnxruntime::OnnxProgram,
};
use paternoster_executor::{BringUp, ModelHandle, Placement, Pool, Site, StagePrograms, WarmUp};
use paternoster_model::{ModelSpec, TensorSpec};
use paternoster_observe::{LatencyMetrics, StartCacheReading};
use paternoster_onnx::{SealedModel, Signature};
use paternoster_profile::{Key, Store};
use tracing::warn;

use super::{
    CellProgram, EngineKind, HeldProgram, Isolation, LoadAttempt, LoadError, LoadErrorKind, LoadPlace, Loader, Opening,
    ResolvedVersion, TrialLimits, WarmupSample,
    attempt::CardLack,
    cells, exported_cells,
    loader::version_latencies,
    opening::Opener,
    plans::{self, Compiled},
    staging,
};

/// A version whose programs are compiled: what is placed in the pool.
struct OpenedVersion<'a> {
    version: Cow<'a, ResolvedVersion>,
    programs: StagePrograms,
    /// Those of the version, with what its programs say of cells and stages.
    knobs: Knobs,
    opener: Opener<'a>,
}

/// The [`Loader`] of the server.
#[derive(Debug)]
pub struct PoolLoader {
    pub(super) pool: Arc<Pool>,
    /// The engines that could be found. Models that need none of the missing ones are still served.
    pub(super) engines: Engines,
    /// Stored profiles, for models with `auto` settings; without a store they are served as if they had no profile.
    pub(super) profiles: Option<Store>,
    /// Longest time to measure a model without a profile while it serves; `None` turns background profiles off.
    pub(super) background: Option<Duration>,
    /// How models are tried in a separate process first, if at all.
    isolation: Option<Isolation>,
    /// Limit of all trial runs of a load together; `None`: no limit.
    trial_time: Option<Duration>,
    /// Which latencies of the versions are recorded for the metrics.
    latencies: LatencyMetrics,
    /// Models with a scheduler run nothing until this many requests wait for the first time; 0 turns that off.
    hold_until_waiting: u32,
    hold_until_backlog: u32,
    /// Why the server has no CUDA cards.
    no_cards: String,
    /// Whether models that require cards run on the CPU if there are none.
    allows_cpu_fallback: bool,
    /// Keys measured in the background, so that each is measured once, even if its stored profile is removed.
    pub(super) measured: Mutex<HashSet<Key>>,
}

impl PoolLoader {
    /// Creates a loader for a pool. Models that need a missing engine are rejected with the reason.
    pub fn new(pool: Arc<Pool>, engines: impl Into<Engines>) -> Self {
        Self {
            pool,
            engines: engines.into(),
            profiles: None,
            background: None,
            isolation: None,
            trial_time: None,
            latencies: LatencyMetrics::default(),
            hold_until_waiting: 0,
            hold_until_backlog: 0,
            no_cards: "the server was started without".to_owned(),
            allows_cpu_fallback: false,
            measured: Mutex::default(),
        }
    }

    /// Serves models with `auto` settings as their profiles in `store` advise.
    #[must_use]
    pub fn with_profiles(mut self, store: Store) -> Self {
        self.profiles = Some(store);
        self
    }

    /// Measures models with `auto` settings and no profile while they serve, each for at most `limit`.
    #[must_use]
    pub fn with_background_profiles(mut self, limit: Duration) -> Self {
        self.background = Some(limit);
        self
    }

    /// Records these latencies of the versions for the metrics.
    #[must_use]
    pub fn with_latencies(mut self, latencies: LatencyMetrics) -> Self {
        self.latencies = latencies;
        self
    }

    /// Holds models with a dynamic or sequence batcher until this many requests wait for the first time, and in the
    /// backlog of sequences; 0 turns that off. Implements Triton's `TRITONSERVER_DELAY_SCHEDULER` and
    /// `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`, for tests that need a full queue.
    #[must_use]
    pub fn with_held_schedulers(mut self, until_waiting: u32, until_backlog: u32) -> Self {
        (self.hold_until_waiting, self.hold_until_backlog) = (until_waiting, until_backlog);
        self
    }

    /// Sets why there are no CUDA cards, and whether models that require some run on the CPU instead.
    #[must_use]
    pub fn without_cards(mut self, reason: String, allows_cpu_fallback: bool) -> Self {
        (self.no_cards, self.allows_cpu_fallback) = (reason, allows_cpu_fallback);
        self
    }

    /// Opens models in a separate process first, and here only those that it opened.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Option<Isolation>) -> Self {
        self.isolation = isolation;
        self
    }

    /// Limits the time of all trial runs of a load together: warm-up requests and the example request of a model of
    /// cells.
    #[must_use]
    pub fn with_trial_time(mut self, limit: Option<Duration>) -> Self {
        self.trial_time = limit;
        self
    }

    pub(super) fn opener<'a>(&'a self, attempt: &'a LoadAttempt) -> Opener<'a> {
        Opener::new(&self.engines, self.isolation.as_ref(), attempt)
    }

    /// Returns the time limits of a version's trial runs. Each run has the limit of the version's tasks.
    pub(super) fn trial_limits(&self, resolved: &ResolvedVersion) -> TrialLimits {
        let each = resolved.task_time_limit.unwrap_or(self.pool.task_time_limit());
        TrialLimits { each: (!each.is_zero()).then_some(each), all: self.trial_time }
    }

    /// Opens a version, runs its warm-up requests and places it in the pool.
    fn bring_up(&self, version: &ResolvedVersion, attempt: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let opened = self.open(self.on_devices(version)?, attempt)?;
        self.warm_up(&opened, attempt)?;
        self.place(opened, attempt)
    }

    /// Rejects a model that requires cards if there are none, or moves it to the CPU if that is allowed.
    fn on_devices<'a>(&self, version: &'a ResolvedVersion) -> Result<Cow<'a, ResolvedVersion>, LoadError> {
        if !version.placement.needs_cards() || self.pool.has_cards() {
            return Ok(Cow::Borrowed(version));
        }
        let (model, reason) = (&version.spec.name, &self.no_cards);
        if !self.allows_cpu_fallback {
            let message = format!(
                "an instance group of model '{model}' has kind KIND_GPU but no GPU is available: {reason}; expected \
                 KIND_CPU or KIND_AUTO, or a server with --allow-cpu-fallback"
            );
            return Err(LoadError::new(LoadErrorKind::Cards, message));
        }
        warn!(model, reason, "its instances of kind KIND_GPU run on the CPU");
        Ok(Cow::Owned(ResolvedVersion { placement: Placement::On(vec![Site::Cpu]), ..version.clone() }))
    }

    /// Compiles the programs of a version.
    fn open<'a>(
        &'a self,
        version: Cow<'a, ResolvedVersion>,
        attempt: &'a LoadAttempt,
    ) -> Result<OpenedVersion<'a>, LoadError> {
        let opener = self.opener(attempt);
        let (programs, knobs) = match &version.unfold {
            Some(unfold) => {
                let (programs, knobs) =
                    cells::compile(&self.pool, &opener, self.trial_limits(&version), &version, unfold)?;
                let knobs = self.bound_batches(&version, unfold, &programs, knobs, attempt);
                (programs, knobs)
            }
            None => (self.compile(&version, &opener)?, version.knobs.clone()),
        };
        // Before warm-up, where a padding value that is no valid index would fail with a less clear message.
        programs.admit_padding(&version.spec).map_err(LoadError::settings)?;
        Ok(OpenedVersion { version, programs, knobs, opener })
    }

    /// Runs the warm-up requests of a version.
    fn warm_up(&self, opened: &OpenedVersion<'_>, attempt: &LoadAttempt) -> Result<(), LoadError> {
        let OpenedVersion { version, programs, .. } = opened;
        for sample in &version.warmup {
            let WarmupSample { rows, inputs, program_inputs, .. } = sample;
            for _ in 0..sample.count {
                let run = |stop: &StopSignal| {
                    let batch = WarmUp { rows: *rows, inputs, program_inputs, stop };
                    self.pool.warm_up(&version.spec, programs, batch).map_err(LoadError::engine)
                };
                let ended = attempt.trial(self.trial_limits(version), run);
                ended.map_err(|error| error.within(LoadPlace::Sample(sample.name.clone())))?;
            }
        }
        Ok(())
    }

    /// Places a version on the lanes and cards of the pool.
    fn place(&self, opened: OpenedVersion<'_>, attempt: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let OpenedVersion { version, programs, mut knobs, opener } = opened;
        let ResolvedVersion { spec, config, placement, task_time_limit, .. } = &*version;
        // As in Triton, the setting concerns models with a scheduler of their own only.
        let has_batcher = matches!(
            config.scheduling_choice,
            Some(SchedulingChoice::DynamicBatching(_) | SchedulingChoice::SequenceBatching(_))
        );
        if has_batcher {
            knobs.queueing.hold_until_waiting = self.hold_until_waiting;
            knobs.queueing.hold_until_backlog = self.hold_until_backlog;
        }
        let may_wait = placement.needs_cards();
        let on_shortage =
            |card: u16, shortage: MemoryShortage| attempt.lacks_on_card(CardLack { card, shortage, may_wait });
        let (placement, task_time_limit) = (placement.clone(), *task_time_limit);
        let options = BringUp { placement, task_time_limit, on_shortage: Some(&on_shortage) };
        let handle = self.pool.bring_up_on(spec.clone(), knobs, programs, &options).map_err(LoadError::engine)?;
        handle.stats().keep_latencies(version_latencies(&self.latencies, config));
        opener.settle();
        Ok(Arc::new(handle))
    }

    /// Returns a version as it is served by cells: a decoder, or recurrent layers, if it has any that can be opened.
    ///
    /// # Errors
    /// Returns the reason if a decoder cannot be opened, or recurrent layers where the configuration asks for cells.
    pub(super) fn by_cells(
        &self,
        resolved: &ResolvedVersion,
        attempt: &LoadAttempt,
    ) -> Result<Option<ResolvedVersion>, LoadError> {
        if let Opening::Decoder(generation) = &resolved.opening {
            return exported_cells::decoder(resolved, generation, &self.opener(attempt)).map(Some);
        }
        let is_asked = resolved.asks_for_cells();
        if self.pool.has_cards() && resolved.placement.may_need_cards() {
            let reason = "recurrent layers have no plan for cards: give the model CPU instances (KIND_CPU)";
            return if is_asked { Err(exported_cells::stays_whole(resolved, reason)) } else { Ok(None) };
        }
        match exported_cells::by_cells(resolved, &self.opener(attempt)) {
            // What cannot be opened is refused with the reason when the whole is loaded.
            Err(_) if !is_asked => Ok(None),
            opened => opened,
        }
    }

    pub(super) fn compile(&self, resolved: &ResolvedVersion, opener: &Opener<'_>) -> Result<StagePrograms, LoadError> {
        match resolved.engine {
            EngineKind::Repeat => {
                let spec = &resolved.spec;
                let program: Result<Arc<dyn Program>, EngineError> = if RepeatElements::is_meant(spec) {
                    RepeatElements::compile(spec).map(|program| Arc::new(program) as Arc<dyn Program>)
                } else {
                    Repeat::compile(spec).map(|program| Arc::new(program) as Arc<dyn Program>)
                };
                plans::of_built_in(&self.pool, resolved, program?)
            }
            EngineKind::Onnx(engine) => {
                let program = &resolved.program;
                let model = opener.open(program, program.read()?, &resolved.stages)?;
                let refused = |error: LoadError| error.within(LoadPlace::Program(program.file.clone()));
                let optional = resolved.spec.inputs.iter().find(|input| input.optional);
                if let (OnnxEngine::OpenVino, Some(input)) = (engine, optional) {
                    let name = &input.name;
                    let message = format!("input '{name}' is optional, which the engine openvino does not allow");
                    return Err(refused(LoadError::settings(message)));
                }
                if resolved.stages.cuts != StageCuts::Whole
                    && let Some(name) = given_default(&model, &resolved.spec)
                {
                    return Err(refused(LoadError::settings(format!(
                        "input '{name}' has a default in the graph, which a model that is cut into stages cannot replace"
                    ))));
                }
                if resolved.stages.cuts == StageCuts::Whole {
                    return whole(&self.pool, opener, &model, resolved).map_err(refused);
                }
                stages(&self.pool, opener, &model, resolved).map_err(refused)
            }
        }
    }
}

/// Returns an input of the specification that has a default in the graph, if any.
fn given_default<'a>(model: &'a SealedModel, spec: &ModelSpec) -> Option<&'a str> {
    let mut inputs = model.inputs().into_iter().filter(|input| input.has_default);
    inputs.find(|input| spec.input_index(input.name).is_some()).map(|input| input.name)
}

/// Compiles a model as a whole.
fn whole(
    pool: &Pool,
    opener: &Opener<'_>,
    model: &SealedModel,
    resolved: &ResolvedVersion,
) -> Result<StagePrograms, LoadError> {
    let spec = &resolved.spec;
    let (inputs, outputs) = OnnxProgram::ports_of(spec);
    let program = opener.compile(&resolved.program, model, &inputs, &outputs)?;
    let compiled = Compiled {
        place: None,
        program,
        model,
        inputs: spec.inputs.clone(),
        outputs: spec.outputs.clone(),
        has_batch_axis: spec.has_batch_axis(),
        batches: None,
        lengths: None,
    };
    plans::of_version(pool, opener.engines(), resolved, &[compiled], &|mut programs| {
        programs.pop().map(StagePrograms::from).ok_or_else(|| LoadError::internal("it has no program"))
    })
}

/// Cuts a model into stages and compiles them.
fn stages(
    pool: &Pool,
    opener: &Opener<'_>,
    model: &SealedModel,
    resolved: &ResolvedVersion,
) -> Result<StagePrograms, LoadError> {
    let (plan, graphs) = staging::cut_into_stages(model.model(), &resolved.spec, &resolved.stages)?;
    let parts: Vec<SealedModel> = graphs.into_iter().map(|graph| model.part(graph)).collect();
    let mut compiled = Vec::with_capacity(parts.len());
    for (number, (stage, part)) in plan.stages.iter().zip(&parts).enumerate() {
        let place = LoadPlace::Stage(number);
        let (inputs, outputs) = StagePrograms::ports(stage);
        let program =
            opener.compile(&resolved.program, part, &inputs, &outputs).map_err(|error| error.within(place.clone()))?;
        let (inputs, outputs) = StagePrograms::tensors(stage);
        let owned = |tensors: Vec<&TensorSpec>| tensors.into_iter().cloned().collect();
        let (inputs, outputs) = (owned(inputs), owned(outputs));
        let (batches, lengths) = (None, None);
        let place = Some(place);
        compiled.push(Compiled {
            place,
            program,
            model: part,
            inputs,
            outputs,
            has_batch_axis: true,
            batches,
            lengths,
        });
    }
    plans::of_version(pool, opener.engines(), resolved, &compiled, &|programs| {
        StagePrograms::cut(&resolved.spec, plan.clone(), programs).map_err(LoadError::graph)
    })
}

impl Loader for PoolLoader {
    fn latencies(&self) -> LatencyMetrics {
        self.latencies.clone()
    }

    fn load(&self, resolved: ResolvedVersion, attempt: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        if let Some(opened) = self.by_cells(&resolved, attempt)? {
            let advised = self.by_profile(&opened).unwrap_or(opened);
            match self.bring_up(&advised, attempt) {
                Ok(handle) => return Ok(handle),
                // No part of a decoder alone generates.
                Err(reason) if resolved.opening != Opening::RecurrentLayers || resolved.asks_for_cells() => {
                    return Err(reason);
                }
                Err(reason) => {
                    // A load that was stopped is not tried again.
                    attempt.check()?;
                    let model = resolved.spec.name.as_str();
                    warn!(model, reason = reason.to_string(), "load by cells failed; loading the graph as a whole");
                }
            }
        }
        if let Some(advised) = self.by_profile(&resolved) {
            match self.bring_up(&advised, attempt) {
                Ok(handle) => return Ok(handle),
                Err(reason) => {
                    // A load that was stopped is not tried again.
                    attempt.check()?;
                    let model = resolved.spec.name.as_str();
                    warn!(
                        model,
                        reason = reason.to_string(),
                        "load with the profile's advice failed; loading without it"
                    );
                }
            }
        }
        self.bring_up(&resolved, attempt)
    }

    fn start_cache(&self) -> Option<StartCacheReading> {
        Some(self.isolation.as_ref()?.cache.as_ref()?.reading())
    }

    fn may_profile(&self, resolved: &ResolvedVersion) -> bool {
        let sent = resolved.program.bytes.is_some() || resolved.cells.iter().any(|cell| cell.bytes.is_some());
        let has_file = resolved.engine != EngineKind::Repeat && !sent;
        has_file && self.profiles.is_some() && self.background.is_some() && resolved.automatic.is_any()
    }

    fn profile(&self, resolved: &ResolvedVersion, is_wanted: &dyn Fn() -> bool) -> Result<bool, LoadError> {
        self.profile_while_serving(resolved, is_wanted)
    }

    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, LoadError> {
        Ok(match bytes {
            Some(bytes) => Signature::from_bytes(&program.display().to_string(), bytes)?,
            None => Signature::read(program)?,
        })
    }

    fn infer_shapes(
        &self,
        program: &CellProgram,
        signature: &mut Signature,
        attempt: &LoadAttempt,
    ) -> Result<Option<HeldProgram>, LoadError> {
        let opener = self.opener(attempt);
        let model = opener.open(program, program.read()?, &StageRequest::default())?;
        let refused = |error: LoadError| error.within(LoadPlace::Program(program.file.clone()));
        let program = opener.infer_shapes(program, &model, signature).map_err(refused)?;
        let memory = opener.settled();
        Ok(program.map(|program| HeldProgram { _program: program, _memory: memory.into() }))
    }
}
