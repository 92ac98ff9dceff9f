//! Measures a version's latencies: compiles it whole and cut into stages, and runs trials beside the pool's lanes.

use std::{
    cell::Cell,
    io,
    panic::resume_unwind,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use paternoster_batching::Ns;
use paternoster_config::{
    stages::{StageCuts, StageRequest},
    unfold::UnfoldRequest,
};
use paternoster_executor::{StagePrograms, WarmUp};
use paternoster_model::{InputTensor, ModelSpec};
use paternoster_observe::machine;
use paternoster_profile::{
    CutTable, Findings, Halt, Key, LENGTHS, MeasuredSize, Profile, Store, choose, digest_of_all, measure, sizes,
};
use tracing::info_span;

use super::{
    EngineKind, LoadAttempt, LoadError, Loader, Overrides, PoolLoader, ResolvedVersion, TrialLimits, prepare,
    resolving::resolve, scan, stores::is_remote, warmup,
};

/// Numbers of stages to measure in addition to the whole model, if the configuration leaves them open.
pub const STAGE_COUNTS: [u16; 3] = [2, 4, 8];

/// Shares of the budget for the whole model, alone and on all lanes at once; the cuts share the rest equally.
const WHOLE_SHARE: f64 = 0.4;
const SIDE_BY_SIDE_SHARE: f64 = 0.2;

/// Largest batch to measure side by side, and the number of consecutive runs on each lane. Several runs, because at the
/// first's beginning and the last's end a lane may be alone.
const MOST_SIDE_BY_SIDE: u32 = 8;
const RUNS_IN_A_ROW: u32 = 4;

/// Longest pause after a run, and longest wait for requests in flight, when measuring beside a server.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// How to measure a version.
#[derive(Clone, Copy)]
pub struct Trials<'a> {
    /// Time for all runs together, without compilation.
    pub budget: Duration,
    /// Called before each run with what is measured and the size. May block, to let others run first; `false` stops the
    /// measurement.
    pub before_run: &'a dyn Fn(&str, MeasuredSize) -> bool,
    /// Decides from the latencies of the whole model whether to measure it in stages too, if the configuration leaves
    /// that open.
    pub wants_stages: &'a dyn Fn(&Profile) -> bool,
    /// Whether ranges of operators are measured too, and the cut where their preferred batches change.
    pub by_operators: bool,
}

/// Returns whether batching pays enough, by a profile of the whole model, for stages to be useful.
pub fn joining_pays(profile: &Profile) -> bool {
    Findings::of(profile).is_some_and(|found| found.load_diversity && !found.runs_best_one_by_one())
}

/// Reads the latest version of a model in a repository, as a server would load it.
///
/// # Errors
/// Returns the reason if there is no such model, or if its configuration or program cannot be used.
pub fn read_model(repository: &Path, name: &str, loader: &dyn Loader) -> Result<ResolvedVersion, LoadError> {
    if is_remote(repository) {
        let place = repository.display();
        let message = format!("{place} is in an object store, which only 'paternoster serve' reads: name a directory");
        return Err(LoadError::files(message));
    }
    let roots = [repository.to_owned()];
    let Some(scan::Found::At(found)) = scan::find(&roots, name)? else {
        let known: Vec<String> = scan::names(&scan::scan(&roots)).into_iter().collect();
        let known = if known.is_empty() { "no models".to_owned() } else { known.join(", ") };
        let message = format!("there is no model '{name}' in '{}'; it has {known}", repository.display());
        return Err(LoadError::files(message));
    };
    let completion = prepare::Completion::without_server();
    let found_model = prepare::FoundModel::read(name, Some(found), Overrides::default(), None, completion)?;
    let latest = found_model.versions.last().copied();
    let latest = latest.ok_or_else(|| LoadError::files(format!("model '{name}' has no versions")))?;
    resolve(&found_model, latest, loader, &LoadAttempt::of_repository())
}

impl PoolLoader {
    /// Returns the key under which the profile of a version is stored.
    ///
    /// # Errors
    /// Fails if the version cannot be measured: it has no file, or its engine is missing.
    pub fn profile_key(&self, resolved: &ResolvedVersion) -> Result<Key, LoadError> {
        let EngineKind::Onnx(engine) = resolved.engine else {
            return Err(LoadError::graph(format!("model '{}' has no graph to measure", resolved.spec.name)));
        };
        if resolved.program.bytes.is_some() || resolved.cells.iter().any(|cell| cell.bytes.is_some()) {
            let message = format!("model '{}' came with its load request, and has no file", resolved.spec.name);
            return Err(LoadError::files(message));
        }
        if let Some(unfold) = &resolved.unfold {
            return self.cells_key(resolved, unfold);
        }
        let engine = self.engines.describe(engine, resolved.program.precision)?;
        let cuts = match &resolved.stages.cuts {
            StageCuts::Whole => String::new(),
            StageCuts::Parts(count) => format!(", {count} stages"),
            StageCuts::At(tensors) => format!(", cut at {}", tensors.join(", ")),
        };
        let padded = resolved.spec.symbols.join(", ");
        let (rows, lanes) = (resolved.spec.max_batch_size, self.pool.lanes());
        let configuration = format!("batches of {rows} on {lanes} lanes, padded axes [{padded}]{cuts}");
        key(&[&resolved.program.file], &engine, configuration)
    }

    /// Returns a version as it is served: by cells if its graph has recurrent layers that can be opened, else
    /// as it is.
    pub fn as_served(&self, resolved: ResolvedVersion) -> ResolvedVersion {
        self.by_cells(&resolved, &LoadAttempt::of_repository()).ok().flatten().unwrap_or(resolved)
    }

    /// Returns the profile of a version, if there is one that can be trusted.
    pub(super) fn trusted_profile(&self, resolved: &ResolvedVersion) -> Option<Profile> {
        let store = self.profiles.as_ref().filter(|store| !store.is_empty())?;
        let name = &resolved.spec.name;
        let key = match self.profile_key(resolved) {
            Ok(key) => key,
            Err(reason) => {
                tracing::debug!(model = name, reason = reason.to_string(), "no profile");
                return None;
            }
        };
        let profile = store.read(&key)?;
        if let Some(doubt) = profile.doubt() {
            let file = store.path(&key);
            tracing::warn!(
                model = name,
                file = %file.display(),
                reason = %doubt,
                "profile is not trusted; serving without it"
            );
            return None;
        }
        Some(profile)
    }

    /// Returns a version as its profile advises; `None` if the configuration leaves nothing open or there
    /// is no profile that can be trusted.
    pub fn by_profile(&self, resolved: &ResolvedVersion) -> Option<ResolvedVersion> {
        if let Some(unfold) = &resolved.unfold {
            return self.cells_by_profile(resolved, unfold);
        }
        let profile = resolved.automatic.is_any().then(|| self.trusted_profile(resolved)).flatten()?;
        let choice = choose(&profile, resolved.fixed_stages())?;
        let (mut stages, mut knobs) = (resolved.stages.clone(), resolved.knobs.clone());
        // With an objective, `auto` goes by slack rather than by what the profile chooses for mean latency.
        let chooses_policy = resolved.automatic.policy && resolved.knobs.objective_ns.is_none();
        // Stages pay only if requests may join at their boundaries, which not every policy allows.
        let joins = resolved.knobs.policy.lets_join();
        if resolved.automatic.stages && choice.stages > 1 && (chooses_policy || joins) {
            stages.cuts = match &choice.cut_at[..] {
                [] => StageCuts::Parts(choice.stages),
                tensors => StageCuts::At(tensors.to_vec()),
            };
        }
        if chooses_policy {
            knobs.policy = choice.policy.knobs();
        }
        if knobs.latencies.is_none() {
            let cut = match &stages.cuts {
                StageCuts::At(tensors) => profile.cut_at(tensors),
                StageCuts::Whole | StageCuts::Parts(_) => profile.cut(usize::from(stages.count())),
            };
            knobs.latencies = cut.map(|cut| profile.costs(cut));
        }
        tracing::info!(
            model = resolved.spec.name,
            stages = stages.count(),
            policy = if chooses_policy { choice.policy.name() } else { knobs.policy.name() },
            reasons = choice.reasons.join("; "),
            "profile applied"
        );
        Some(ResolvedVersion { stages, knobs, ..resolved.clone() })
    }

    /// Implements [`Loader::profile`].
    pub(super) fn profile_while_serving(
        &self,
        resolved: &ResolvedVersion,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, LoadError> {
        let (Some(store), Some(budget)) = (&self.profiles, self.background) else { return Ok(false) };
        let resolved = &self.as_served(resolved.clone());
        let name = &resolved.spec.name;
        let key = self.profile_key(resolved)?;
        if !is_wanted() || self.measured.lock().contains(&key) || is_believed(store, &key) {
            return Ok(false);
        }
        tracing::info!(model = name, "no profile; measuring while the model serves");
        let run_begins: Cell<Option<Instant>> = Cell::new(None);
        let before_run = |_: &str, _: MeasuredSize| {
            let took = run_begins.get().map_or(Duration::ZERO, |begins| begins.elapsed());
            self.make_way(took);
            run_begins.set(Some(Instant::now()));
            is_wanted()
        };
        let trials = Trials { budget, before_run: &before_run, wants_stages: &joining_pays, by_operators: true };
        let profile = match self.measure(resolved, trials) {
            Ok(profile) => profile,
            Err(Halt::GivenUp) => return Ok(false),
            Err(Halt::Failed(reason)) => return Err(LoadError::engine(reason)),
        };
        let file = store.write(&key, &profile).map_err(LoadError::files)?;
        self.measured.lock().insert(key);
        tracing::info!(model = name, file = %file.display(), "profile stored");
        let advised = self.by_profile(resolved);
        let served = |resolved: &ResolvedVersion| {
            (
                resolved.stages.clone(),
                resolved.knobs.policy.clone(),
                resolved.unfold.as_ref().map(UnfoldRequest::batches),
            )
        };
        Ok(advised.is_some_and(|advised| served(&advised) != served(resolved)))
    }

    /// Pauses for requests: for as long as the last run took, and while requests are in flight. Both are bounded, since
    /// a server may never be idle.
    #[expect(clippy::disallowed_methods, reason = "a share of the time is left to others, by the clock")]
    fn make_way(&self, took: Duration) {
        thread::sleep(took.min(LONGEST_PAUSE));
        let began = Instant::now();
        while self.pool.in_flight() > 0 && began.elapsed() < LONGEST_WAIT {
            thread::sleep(LONGEST_WAIT / 20);
        }
    }

    /// Measures a version whole, and in the stages that its configuration sets, or in 2, 4 and 8 stages if it leaves
    /// them open, and cut where the preferred batches of its operators change. Numbers of stages into which the graph
    /// cannot be cut are skipped. Of a model of cells, measures each
    /// cell.
    ///
    /// Runs on the calling thread, outside the lanes and the statistics.
    ///
    /// # Errors
    /// Returns the reason if the version cannot be compiled or its smallest batch fails, and [`Halt::GivenUp`] if
    /// `before_run` stopped it.
    pub fn measure(&self, resolved: &ResolvedVersion, trials: Trials<'_>) -> Result<Profile, Halt> {
        let spec = &resolved.spec;
        let _within = info_span!("profile", model = spec.name, version = spec.version).entered();
        if let Some(unfold) = &resolved.unfold {
            return self.measure_cells(resolved, unfold, trials);
        }
        let budget = trials.budget;
        let lengths = if spec.symbols.is_empty() { &[][..] } else { &LENGTHS };
        let all = sizes(spec.max_batch_size, lengths);
        let programs = self.compile_cut(resolved, StageCuts::Whole)?;
        let whole = self.measure_cut(resolved, &programs, &all, budget.mul_f64(WHOLE_SHARE), 1, trials)?;
        // The cuts are measured at fewer lengths, since there are more of them.
        let few = if spec.symbols.is_empty() { Vec::new() } else { whole.few_lengths() };
        let mut profile = Profile {
            model: spec.name.clone(),
            max_rows: spec.max_batch_size,
            padded_axes: u32::try_from(spec.symbols.len()).unwrap_or(u32::MAX),
            cuts: vec![whole],
            ..Profile::default()
        };
        let lanes = self.pool.lanes();
        if spec.has_batch_axis() && spec.symbols.is_empty() && lanes > 1 {
            let small = sizes(spec.max_batch_size.min(MOST_SIDE_BY_SIDE), &[]);
            let share = budget.mul_f64(SIDE_BY_SIDE_SHARE);
            match self.measure_cut(resolved, &programs, &small, share, lanes, trials) {
                Ok(mut table) => profile.side_by_side = table.stages.pop().unwrap_or_default(),
                // The model runs alone; running it several times at once may exceed the memory.
                Err(Halt::Failed(reason)) => tracing::debug!(reason, "not measured side by side"),
                Err(halt) => return Err(halt),
            }
        }
        // Frees their memory before the cuts are compiled.
        drop(programs);
        let is_open = resolved.stages.cuts == StageCuts::Whole;
        let cuts = match &resolved.stages.cuts {
            StageCuts::Whole if spec.has_batch_axis() && !spec.decoupled && (trials.wants_stages)(&profile) => {
                STAGE_COUNTS.into_iter().map(StageCuts::Parts).collect()
            }
            StageCuts::Whole => Vec::new(),
            asked => vec![asked.clone()],
        };
        let by_operators = is_open && !cuts.is_empty() && trials.by_operators;
        // The ranges and their cut are two more.
        let count = cuts.len() + if by_operators { 2 } else { 0 };
        let share = budget.mul_f64((1.0 - WHOLE_SHARE - SIDE_BY_SIDE_SHARE) / count.max(1) as f64);
        let staged = sizes(spec.max_batch_size, &few);
        for cut in cuts {
            let at = if let StageCuts::At(tensors) = &cut { tensors.clone() } else { Vec::new() };
            let measured = self
                .compile_cut(resolved, cut)
                .and_then(|programs| self.measure_cut(resolved, &programs, &staged, share, 1, trials));
            match measured {
                Ok(table) => profile.cuts.push(CutTable { at, ..table }),
                // Not every graph can be cut into that many stages.
                Err(Halt::Failed(reason)) if is_open => tracing::debug!(reason, "not measured in stages"),
                Err(halt) => return Err(halt),
            }
        }
        if by_operators {
            self.measure_operators(resolved, &mut profile, &staged, share, trials)?;
        }
        Ok(profile)
    }

    pub(super) fn compile_cut(&self, resolved: &ResolvedVersion, cuts: StageCuts) -> Result<StagePrograms, Halt> {
        // Exits belong to the configured stages and have no meaning in other cuts.
        let exits = if cuts == resolved.stages.cuts { resolved.stages.exits.clone() } else { Vec::new() };
        let wanted = ResolvedVersion { stages: StageRequest { cuts, exits }, ..resolved.clone() };
        Ok(self.compile(&wanted, &self.opener(&LoadAttempt::of_repository()))?)
    }

    /// Measures programs on `at_once` threads at the same time.
    pub(super) fn measure_cut(
        &self,
        resolved: &ResolvedVersion,
        programs: &StagePrograms,
        sizes: &[MeasuredSize],
        budget: Duration,
        at_once: u16,
        trials: Trials<'_>,
    ) -> Result<CutTable, Halt> {
        let spec = &resolved.spec;
        let what = match programs.count() {
            1 if at_once > 1 => format!("{at_once} side by side"),
            1 => "whole".to_owned(),
            count => format!("{count} stages"),
        };
        let inputs = &|size| warmup::random_inputs(spec, size);
        self.measure_programs(&Subject { resolved, spec, programs, what, inputs, at_once }, sizes, budget, trials)
    }

    pub(super) fn measure_programs(
        &self,
        subject: &Subject<'_>,
        sizes: &[MeasuredSize],
        budget: Duration,
        trials: Trials<'_>,
    ) -> Result<CutTable, Halt> {
        let Subject { resolved, spec, programs, what, inputs, at_once } = subject;
        let _within = info_span!("measure", what, sizes = sizes.len()).entered();
        // The budget bounds all runs together.
        let limits = TrialLimits { all: None, ..self.trial_limits(resolved) };
        let attempt = LoadAttempt::of_repository();
        let began = Instant::now();
        let mut last = None;
        measure(
            programs.count(),
            sizes,
            budget,
            || began.elapsed(),
            |size| {
                if !(trials.before_run)(what, size) {
                    return Err(Halt::GivenUp);
                }
                // Sizes repeat many times, so inputs are built once per size.
                if last.as_ref().is_none_or(|(made_for, _)| *made_for != size) {
                    last = Some((size, inputs(size)?));
                }
                let made = last.as_ref().map_or(&[][..], |(_, made)| made);
                let took_ns = attempt.trial(limits, |stop| {
                    let batch = WarmUp { rows: size.rows, inputs: made, program_inputs: &[], stop };
                    let run = || self.pool.warm_up(spec, programs, batch).map_err(LoadError::engine);
                    if *at_once > 1 { side_by_side(*at_once, run).map(|ns| vec![ns]) } else { run() }
                });
                Ok(took_ns?)
            },
        )
    }
}

/// Builds the inputs of a batch of a size.
type Inputs<'a> = &'a dyn Fn(MeasuredSize) -> Result<Vec<Option<InputTensor>>, LoadError>;

/// What is measured.
pub(super) struct Subject<'a> {
    /// The version.
    pub(super) resolved: &'a ResolvedVersion,
    /// What its batches look like.
    pub(super) spec: &'a ModelSpec,
    pub(super) programs: &'a StagePrograms,
    /// Its name for people.
    pub(super) what: String,
    pub(super) inputs: Inputs<'a>,
    /// Number of threads that run it at the same time.
    pub(super) at_once: u16,
}

/// Returns the key of a version that runs these files.
pub(super) fn key(programs: &[&Path], engine: &str, configuration: String) -> Result<Key, LoadError> {
    let unreadable = |error: io::Error| {
        let names: Vec<String> = programs.iter().map(|program| format!("'{}'", program.display())).collect();
        LoadError::files(format!("cannot read {}: {error}", names.join(", ")))
    };
    let model_sha256 = digest_of_all(programs).map_err(unreadable)?;
    Ok(Key { model_sha256, device: machine(), engine: engine.to_owned(), configuration })
}

/// Returns whether the store has a trusted profile, so that nothing need be measured.
fn is_believed(store: &Store, key: &Key) -> bool {
    store.read(key).is_some_and(|profile| profile.doubt().is_none())
}

/// Returns the time per run, in nanoseconds, while `threads` threads run it repeatedly.
fn side_by_side<T>(threads: u16, run: impl Fn() -> Result<T, LoadError> + Sync) -> Result<Ns, LoadError> {
    let began = Instant::now();
    thread::scope(|scope| {
        let in_a_row = || (0..RUNS_IN_A_ROW).try_for_each(|_| run().map(drop));
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(in_a_row)).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Result<Vec<()>, LoadError>>()
    })?;
    Ok(Ns::try_from(began.elapsed().as_nanos()).unwrap_or(Ns::MAX) / Ns::from(RUNS_IN_A_ROW))
}
