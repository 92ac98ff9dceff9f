//! Turns a model directory, or what a load request carries, into versions to load: reads the configuration once and
//! picks the versions, and then completes, checks and converts the configuration for each.

mod files;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use paternoster_config::{
    CustomPolicies, Origin, Settings, check, complete, convert, generate,
    lengths::PreparedLengths,
    model::{Generate, PipelineStep, PolicyName, Text},
    pb::{self, model_config::SchedulingChoice, model_version_policy::PolicyChoice},
    pipeline, placement,
    policies::Automatic,
    sequences,
    settings::{POLICY, REPEAT},
    unfold::{self, UnfoldRequest},
    yaml,
};
use paternoster_engine::OnnxEngine;
use paternoster_model::ModelSpec;
use paternoster_onnx::{ExternalFiles, Signature, recurrent::runs_over_batch};
use paternoster_pipeline::{Pipeline, PipelineFault, PipelineOptions};

use self::files::{OPERATORS, operator_names};
use super::{
    CellProgram, EngineKind, HeldProgram, LoadAttempt, LoadError, LoadErrorKind, Opening, Options, Overrides,
    ResolvedVersion,
    configuration::{self, PBTXT, YAML},
    directory::{self, Fingerprint},
    generation, image,
    load_error::cannot_read,
    rollout::Rollout,
    text::{self, TextModel},
    warmup,
};

/// How configurations are read and completed.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    /// Whether missing settings are completed from the graph.
    pub(super) auto_complete: bool,
    /// Largest batch of a model that can batch and does not configure it.
    pub(super) default_max_batch_size: i32,
    /// Name of the configuration in `configs` to prefer.
    pub(super) config_name: Option<String>,
    /// Whether the server has CUDA cards.
    pub(super) has_cards: bool,
    /// Whether the server has a response cache.
    pub(super) has_cache: bool,
    /// Policies of other crates that configurations may name.
    pub(super) custom_policies: CustomPolicies,
}

impl Completion {
    /// The defaults of the command line, on the CPU.
    pub(super) fn without_server() -> Self {
        Self {
            auto_complete: true,
            default_max_batch_size: complete::DEFAULT_MAX_BATCH_SIZE,
            config_name: None,
            has_cards: false,
            has_cache: false,
            custom_policies: CustomPolicies::default(),
        }
    }

    /// Takes the settings from the command line.
    pub(super) fn of(options: &Options) -> Self {
        let Options {
            auto_complete,
            default_max_batch_size,
            config_name,
            has_cards,
            response_cache,
            custom_policies,
            ..
        } = options;
        Self {
            auto_complete: *auto_complete,
            default_max_batch_size: *default_max_batch_size,
            config_name: config_name.clone(),
            has_cards: *has_cards,
            has_cache: response_cache.is_some(),
            custom_policies: custom_policies.clone(),
        }
    }
}

/// A model as its directory, or what a client sent, has it: its configuration, and the versions to load.
#[derive(Debug)]
pub(super) struct FoundModel {
    name: String,
    directory: Option<PathBuf>,
    overrides: Overrides,
    settings: Settings,
    origin: Origin,
    completion: Completion,
    /// The versions in the directory or among the files of a load request.
    pub(super) available: Vec<i64>,
    /// The versions that the policy picks, ascending.
    pub(super) versions: Vec<i64>,
    /// Settings without effect.
    pub(super) hints: Vec<check::Hint>,
    /// The models that its steps run, if it is a pipeline.
    pub(super) models: Vec<String>,
    /// The program in the model's directory, if that has no version directories.
    laid_out: Option<PathBuf>,
    /// How it takes texts, if it does.
    pub(super) text: Option<Arc<TextModel>>,
    /// How requests are divided among its versions, if the configuration says so.
    pub(super) rollout: Option<Arc<Rollout>>,
}

/// A version in the files of a model, of whose program nothing has been read.
pub(super) struct FoundVersion {
    number: i64,
    /// The program; for a model of cells, with the version's directory as its file.
    pub(super) program: CellProgram,
    /// Whether that is one graph, rather than the graphs of cells or none.
    pub(super) has_graph: bool,
}

/// What was read of the graph of a version.
pub(super) struct ReadGraph {
    pub(super) signature: Signature,
    /// The program, if its shapes are known only once it is compiled.
    pub(super) held: Option<HeldProgram>,
}

/// A pipeline that is ready to serve, and its complete configuration.
pub(super) struct PlannedPipeline {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) config: Arc<pb::ModelConfig>,
}

impl FoundModel {
    /// Returns the model's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads a model's configuration and picks its versions. `given` is the configuration from the load request, if
    /// any.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or requires unsupported features, or if no version is to be loaded.
    pub(super) fn read(
        name: &str,
        directory: Option<PathBuf>,
        overrides: Overrides,
        given: Option<(Settings, Origin)>,
        completion: Completion,
    ) -> Result<Self, LoadError> {
        // As Hugging Face lays models out: without version directories, the program where exports put it.
        let laid_out = match &directory {
            Some(directory) if overrides.versions().is_none() => directory::laid_out(directory),
            _ => None,
        };
        let (mut settings, origin) = settings(name, directory.as_deref(), laid_out.is_some(), given, &completion)?;
        let mut hints = check::hints(&settings.config);
        if check::has_cache(&settings.config) && !completion.has_cache {
            hints.push(check::Hint::without_cache());
        }
        let models = pipeline::models(&settings);
        if pipeline::is_pipeline(&settings) {
            // Completion adds instances, which a pipeline may not have.
            pipeline::check(&settings, &origin)?;
        }
        complete::defaults(&mut settings, name);
        complete::kinds(&mut settings.config, completion.has_cards);
        let mut available = match (overrides.versions(), &directory) {
            (Some(versions), _) => versions,
            (None, Some(directory)) => directory::versions(directory).map_err(cannot_read(directory))?,
            (None, None) => Vec::new(),
        };
        if let (Some(program), Some(directory)) = (&laid_out, &directory) {
            available.push(1);
            complete_laid_out(&mut settings, directory, program);
        }
        let text = match (&settings.own.text, &directory) {
            (Some(section), Some(directory)) => Some(Arc::new(TextModel::read(directory, section)?)),
            (Some(_), None) => {
                return Err(origin.error("text", "a model without a directory has no tokenizer").into());
            }
            (None, _) => None,
        };
        // A pipeline has no files of its own, and version control keeps no empty directories.
        if available.is_empty() && pipeline::is_pipeline(&settings) {
            available.push(1);
        }
        let versions = pick(&settings.config, &available);
        if versions.is_empty() {
            return Err(no_version(directory.as_deref(), &available));
        }
        let rollout = Rollout::read(&settings, &versions, &origin)?.map(Arc::new);
        if overrides.versions().is_some() {
            // Versions that files replace still exist on disk, so the index must not show them as gone.
            let on_disk = directory.as_deref().map(directory::versions);
            available.extend(on_disk.and_then(Result::ok).unwrap_or_default());
        }
        let name = name.to_owned();
        Ok(Self {
            name,
            directory,
            overrides,
            settings,
            origin,
            completion,
            available,
            versions,
            hints,
            models,
            laid_out,
            text,
            rollout,
        })
    }

    /// Returns a version of a pipeline, bound to the models that are served now. `why_unserved` returns why the last
    /// load of a model failed.
    ///
    /// # Errors
    /// Returns the reason: the file, the key, what was expected and what was found.
    pub(super) fn pipeline(
        &self,
        version: i64,
        options: PipelineOptions,
        why_unserved: impl Fn(&str) -> Option<String>,
    ) -> Result<PlannedPipeline, LoadError> {
        let Self { settings, origin, .. } = self;
        check::pipeline(settings, origin)?;
        let labels = self.labels(&settings.config)?;
        let spec = convert::spec(settings, version, &labels, origin)?;
        let built_in = |step: &PipelineStep| match (step, &self.directory) {
            (PipelineStep::Image(step), _) => image::built_in(step),
            (_, Some(directory)) => text::built_in(directory, step),
            (_, None) => Err("a model without a directory has no tokenizer".into()),
        };
        let graph = pipeline::read(settings, origin, &built_in)?;
        let pipeline = Pipeline::new(spec, graph, options).map_err(|fault| {
            let why = match &fault {
                PipelineFault::Model { model, .. } => why_unserved(model),
                _ => None,
            };
            let reason = why.map_or_else(|| fault.to_string(), |why| format!("{fault}: {why}"));
            let kind = match fault {
                PipelineFault::Model { .. } => LoadErrorKind::Dependency,
                _ => LoadErrorKind::Settings,
            };
            LoadError::new(kind, pipeline::at_step(settings, fault.step(), &reason, origin))
        })?;
        let mut config = settings.shown();
        if pipeline.spec().decoupled {
            check::no_cache(&settings.config, "a decoupled model", origin)?;
            config.model_transaction_policy = Some(pb::ModelTransactionPolicy { decoupled: true });
        }
        Ok(PlannedPipeline { pipeline: Arc::new(pipeline), config: Arc::new(config) })
    }

    /// Whether it stays loaded where requests load models.
    pub(super) fn is_pinned(&self) -> bool {
        self.settings.own.pin == Some(true)
    }

    /// Returns the bytes of the files that its versions are loaded from, as far as they can be read; what a load
    /// request carries counts too.
    pub(super) fn files_bytes(&self) -> usize {
        let sent = self.overrides.files.values().map(Bytes::len).sum::<usize>();
        let read = self.directory.as_deref().map(Fingerprint::of);
        let Some(Ok(files)) = read else { return sent };
        let program =
            self.laid_out.as_deref().and_then(|program| program.strip_prefix(self.directory.as_deref()?).ok());
        // Weights beside a program have its name with an ending.
        let is_of_program = |file: &Path| {
            program.is_some_and(|program| file.to_string_lossy().starts_with(&*program.to_string_lossy()))
        };
        let is_of_version = |file: &Path| {
            let first = file.components().next().and_then(|first| first.as_os_str().to_str());
            first.and_then(directory::version_number).is_some_and(|version| self.versions.contains(&version))
        };
        let is_beside = |file: &Path| file.parent() == Some(Path::new(""));
        let on_disk = files.bytes_of(|file| is_of_version(file) || is_of_program(file) || is_beside(file));
        sent.saturating_add(usize::try_from(on_disk).unwrap_or(usize::MAX))
    }

    /// Whether a client sent its files.
    pub(super) fn is_sent(&self) -> bool {
        self.overrides.versions().is_some()
    }

    /// Whether its responses are to be cached.
    pub(super) fn has_cache(&self) -> bool {
        check::has_cache(&self.settings.config)
    }

    /// Whether it is a pipeline of other models.
    pub(super) fn is_pipeline(&self) -> bool {
        pipeline::is_pipeline(&self.settings)
    }

    /// Returns a version, of whose program nothing has been read.
    ///
    /// # Errors
    /// If there is no program, or the configuration names an engine or libraries that it cannot have.
    pub(super) fn version(&self, number: i64) -> Result<FoundVersion, LoadError> {
        let by = placement::engine(&self.settings, &self.origin)?;
        let config = &self.settings.config;
        let filename = &config.default_model_filename;
        let has_cells = self.settings.names_cells();
        // Cells have a program each and the built-in model has none, so neither has one signature for the whole model.
        if config.backend != REPEAT && !has_cells {
            let program = self.existing_program(number, filename, by)?;
            return Ok(FoundVersion { number, program, has_graph: true });
        }
        let file = if has_cells { self.version_directory(number) } else { self.program(number, filename) };
        let ((engine, precision), external, operators) = (by, ExternalFiles::None, Arc::default());
        let program = CellProgram { file, bytes: None, external, operators, engine, precision, takes_texts: false };
        Ok(FoundVersion { number, program, has_graph: false })
    }

    /// Whether completion needs the shapes of outputs that the signature of its program does not have.
    pub(super) fn lacks_shapes(&self, signature: &Signature) -> bool {
        let is_completed = self.completion.auto_complete && self.settings.own.generate.is_none();
        is_completed && complete::lacks_shapes(&self.settings.config, signature)
    }

    /// Completes, checks and converts the configuration of a version whose graph has been read.
    ///
    /// # Errors
    /// Returns the reason: the file, the key, what was expected and what was found.
    pub(super) fn resolve(
        &self,
        version: FoundVersion,
        graph: Option<ReadGraph>,
        attempt: &LoadAttempt,
    ) -> Result<ResolvedVersion, LoadError> {
        let FoundVersion { number, program, .. } = version;
        let (signature, held) = graph.map_or((None, None), |ReadGraph { signature, held }| (Some(signature), held));
        let (settings, signature) = self.completed(&program, signature)?;
        let (Settings { config, own }, origin) = (&settings, &self.origin);
        check::consistent(&settings, signature.as_ref(), origin)?;
        let labels = self.labels(config)?;
        let (mut spec, mut knobs, stages) = convert::model(&settings, number, &labels, origin)?;
        if let Some(signature) = &signature {
            convert::scalars(&mut spec, config, signature);
        }
        let (unfold, cells) = self.unfolded(number, &settings, &program, signature.as_ref())?;
        let has_cells = settings.names_cells();
        // In the latency table of a model of cells, stage numbers are cell numbers.
        let stage_count = if has_cells { u16::try_from(cells.len()).unwrap_or(u16::MAX) } else { stages.count() };
        knobs.latencies =
            own.batching.latencies.as_ref().map(|given| self.latencies(given, stage_count)).transpose()?;
        let opening = self.opening(&settings, &spec, &program, has_cells || unfold.is_some())?;
        let task_time_limit = own.batching.task_time_limit_ms;
        let is_repeat = config.backend == REPEAT;
        Ok(ResolvedVersion {
            automatic: Automatic::of(&settings, &stages, origin),
            warmup: warmup::samples(config, &spec, self.directory.as_deref(), attempt)?,
            lengths: PreparedLengths::of(&own.instance.lengths, &spec.symbols),
            task_time_limit: task_time_limit.map(|limit| Duration::from_secs_f64(limit.0 / 1e3)),
            engine: if is_repeat { EngineKind::Repeat } else { EngineKind::Onnx(program.engine) },
            placement: placement::placement(config),
            config: Arc::new(settings.shown()),
            opened: Vec::new(),
            spec,
            knobs,
            stages,
            unfold,
            cells,
            opening,
            program,
            held,
        })
    }

    /// Returns the settings as completed from a graph, and its signature unless the graph is that of a decoder, which
    /// is opened. Order matters: checks need the completed configuration, and conversion needs the checked one.
    fn completed(
        &self,
        program: &CellProgram,
        mut signature: Option<Signature>,
    ) -> Result<(Settings, Option<Signature>), LoadError> {
        let mut settings = self.settings.clone();
        if let Some(decoder) = signature.take_if(|_| settings.own.generate.is_some()) {
            generate::complete(&mut settings, &decoder, &self.origin)?;
        }
        if let Some(signature) = &signature {
            if self.completion.auto_complete {
                let is_complete = !settings.config.input.is_empty() && !settings.config.output.is_empty();
                let default_size = match &self.text {
                    Some(_) => text::DEFAULT_MAX_BATCH_SIZE,
                    // Requests joined along the steps would be answered as one sequence.
                    None if !is_complete && runs_over_batch(&program.read()?) => 0,
                    None => self.completion.default_max_batch_size,
                };
                complete::from_graph(&mut settings, signature, default_size, &self.origin)?;
            }
            if let Some(model) = self.text.as_ref().filter(|_| text::has_mask(&settings.config.input)) {
                complete::tokens_axis(&mut settings, model.pad_token());
            }
            complete::name_axes(&mut settings, signature);
        }
        complete::scheduler(&mut settings);
        Ok((settings, signature))
    }

    /// Returns how requests unfold into cells, and the cells' programs; none for a model without cells and sequences.
    fn unfolded(
        &self,
        version: i64,
        settings: &Settings,
        program: &CellProgram,
        signature: Option<&Signature>,
    ) -> Result<(Option<UnfoldRequest>, Vec<CellProgram>), LoadError> {
        let (config, origin) = (&settings.config, &self.origin);
        if let Some(unfold) = unfold::read(settings, origin)? {
            let cells = self.cells(version, &unfold)?;
            return Ok((Some(unfold), cells));
        }
        if !settings.has_sequences() {
            return Ok((None, Vec::new()));
        }
        let mut unfold = sequences::as_cells(settings, &self.initial_states(config)?, origin)?;
        if let (Some(unfold), Some(signature)) = (&mut unfold, signature) {
            unfold.cells.iter_mut().for_each(|cell| cell.tensors = sequences::tensors(config, signature));
        }
        Ok((unfold, vec![program.clone()]))
    }

    /// Returns what of the graph is served by cells: recurrent layers, if the configuration asks for that, or decides
    /// neither how requests are batched nor where the graph is cut, and clients send the tensors of the graph.
    fn opening(
        &self,
        settings: &Settings,
        spec: &ModelSpec,
        program: &CellProgram,
        unfolds: bool,
    ) -> Result<Opening, LoadError> {
        let Settings { config, own } = settings;
        if let Some(generation) = generation::generation(own, self.directory.as_deref())? {
            return Ok(Opening::Decoder(generation));
        }
        if unfolds {
            return Ok(Opening::Nothing);
        }
        let against = [
            ("'cells: off'", own.cells.is_off),
            ("'stages'", own.stages.is_some()),
            ("'exits'", !own.exits.is_empty()),
            ("padded axes", !own.pad.is_empty()),
            ("the built-in model 'repeat'", config.backend == REPEAT),
            ("an engine other than onnxruntime", program.engine != OnnxEngine::OnnxRuntime),
            // Such models are opened under a reservation that ends with the opening.
            ("a model that its load request carries", program.bytes.is_some()),
            ("a decoupled model", spec.decoupled),
        ];
        let against = against.into_iter().find(|(_, holds)| *holds).map(|(what, _)| what);
        if settings.asks_for_cells() {
            let opening = against.map_or(Ok(Opening::RecurrentLayers), Err);
            let refusal = |what| self.origin.error(POLICY, format!("the policy 'cellular' does not go with {what}"));
            return opening.map_err(|what| refusal(what).into());
        }
        Ok(match (settings.policy(), &self.settings.config.scheduling_choice) {
            _ if against.is_some() => Opening::Nothing,
            (None | Some(PolicyName::Auto), None) => Opening::RecurrentLayers,
            (None, Some(SchedulingChoice::DynamicBatching(_))) => Opening::Batches,
            _ => Opening::Nothing,
        })
    }
}

/// Returns the settings of a model, which are checked but not completed, and where they are from.
fn settings(
    name: &str,
    directory: Option<&Path>,
    is_laid_out: bool,
    given: Option<(Settings, Origin)>,
    completion: &Completion,
) -> Result<(Settings, Origin), LoadError> {
    let is_given = given.is_some();
    let read = match (given, directory) {
        (Some(given), _) => Some(given),
        (None, Some(directory)) => {
            configuration::read(directory, completion.config_name.as_deref(), &completion.custom_policies)?
        }
        (None, None) => None,
    };
    let (settings, origin) = match read {
        Some(read) => read,
        None if is_laid_out => yaml::parse("completed from the files of Hugging Face", b"{}")?,
        None if completion.auto_complete => (Settings::default(), Origin::new("completed from the graph")),
        None => return Err(LoadError::settings(format!("no {PBTXT} or {YAML}, and auto-completion is disabled"))),
    };
    check::supported(&settings.config, name, &origin)?;
    if is_given && !operator_names(&settings.config).is_empty() {
        let message = "a load request cannot name a library of operators, which would run in the server";
        return Err(origin.error(OPERATORS, message).into());
    }
    Ok((settings, origin))
}

/// Says what a model does whose directory Hugging Face laid out, unless its configuration does.
fn complete_laid_out(settings: &mut Settings, directory: &Path, program: &Path) {
    let Settings { config, own } = settings;
    if own.generate.is_some() || own.text.is_some() {
        return;
    }
    if !generation::generates(directory, &directory.join(program)) {
        own.text = Some(Text::default());
    } else if !own.cells.is_off {
        own.generate = Some(Generate::default());
        config.max_batch_size = 1;
    }
}

/// Returns the error of a model that has no version to load.
fn no_version(directory: Option<&Path>, available: &[i64]) -> LoadError {
    let place = directory.map_or_else(String::new, |path| format!(" in {}", path.display()));
    if !available.is_empty() {
        return LoadError::files(format!("the version policy picks none of the versions {available:?}{place}"));
    }
    let found = directory
        .and_then(|directory| configuration::misplaced(directory).or_else(|| configuration::misnamed(directory)));
    LoadError::files(format!("no version directory (a number above 0){place}{}", found.unwrap_or_default()))
}

/// Returns the versions that a policy picks out of `available`; both are ascending.
fn pick(config: &pb::ModelConfig, available: &[i64]) -> Vec<i64> {
    let choice = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    match choice {
        Some(PolicyChoice::All(_)) => available.to_vec(),
        Some(PolicyChoice::Specific(specific)) => {
            for missing in specific.versions.iter().filter(|version| !available.contains(version)) {
                tracing::warn!(model = %config.name, version = missing, "version of the policy is missing");
            }
            available.iter().copied().filter(|version| specific.versions.contains(version)).collect()
        }
        Some(PolicyChoice::Latest(latest)) => {
            let count = usize::try_from(latest.num_versions).unwrap_or(usize::MAX);
            available[available.len().saturating_sub(count)..].to_vec()
        }
        None => available[available.len().saturating_sub(1)..].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(choice: PolicyChoice) -> pb::ModelConfig {
        let version_policy = Some(pb::ModelVersionPolicy { policy_choice: Some(choice) });
        pb::ModelConfig { version_policy, ..Default::default() }
    }

    #[test]
    fn each_policy_picks_its_versions() {
        use pb::model_version_policy::{All, Latest, Specific};
        let there = [1, 3, 7];
        assert_eq!(pick(&pb::ModelConfig::default(), &there), [7]);
        assert_eq!(pick(&policy(PolicyChoice::Latest(Latest { num_versions: 2 })), &there), [3, 7]);
        assert_eq!(pick(&policy(PolicyChoice::Latest(Latest { num_versions: u32::MAX })), &there), there);
        assert_eq!(pick(&policy(PolicyChoice::All(All {})), &there), there);
        let specific = Specific { versions: vec![7, 1, 9] };
        assert_eq!(pick(&policy(PolicyChoice::Specific(specific)), &there), [1, 7]);
        assert!(pick(&pb::ModelConfig::default(), &[]).is_empty());
    }
}
