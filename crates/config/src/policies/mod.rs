//! The policy of a configuration, with its knobs in the form that the batching core uses. Knobs that contradict each
//! other are errors that say what would work. Knobs of other policies are ignored.

use paternoster_batching::{
    AutoKnobs, CellularKnobs, LazyCellKnobs, LazyKnobs, Policy, PolicyKind, SequenceKnobs, WindowKnobs,
};

use super::{
    ConfigError, Origin, SettingError,
    knobs::{CellularSettings, FromSettings, Milliseconds, Mode, ModelTraits, from_us},
    model::{Auto, Cell, PolicyName, Stages},
    model_config,
    pb::{self, model_config::SchedulingChoice},
    sequences,
    settings::{POLICY, Settings},
    stages::{StageCuts, StageRequest},
    unfold,
};

const CELLULAR: PolicyName = PolicyName::Of(PolicyKind::Cellular);

/// A configuration, the positions of its values, and its number of stages.
#[derive(Clone, Copy)]
struct Reader<'c> {
    settings: &'c Settings,
    origin: &'c Origin,
    stages: u16,
}

/// Reads the policy of a completed configuration with `stages`.
///
/// # Errors
/// Rejects a policy that does not go with the model, and knobs that contradict each other.
pub fn read(settings: &Settings, stages: &StageRequest, origin: &Origin) -> Result<Policy, ConfigError> {
    let reader = Reader { settings, origin, stages: stages.count() };
    let config = &settings.config;
    let named = settings.policy();
    let batching = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    };
    let has_sequences = model_config::sequence_batching(config).is_some();
    if settings.has_cells() || has_sequences {
        return match named {
            None | Some(PolicyName::Auto | PolicyName::Of(PolicyKind::Cellular)) => {
                reader.cellular(batching).map(Policy::Cellular)
            }
            Some(PolicyName::Of(PolicyKind::Lazy)) => reader.lazy_cells(batching).map(Policy::Cellular),
            Some(name) => {
                let what = if has_sequences { "sequences" } else { "cells" };
                let message =
                    format!("the policy '{}' does not go with {what}: expected auto, cellular or lazy", name.as_str());
                Err(origin.error(POLICY, message))
            }
        };
    }
    match (named, batching) {
        // Whether the graph has recurrent layers shows when it is loaded.
        (_, batching) if settings.asks_for_cells() => {
            reader.needs_batches(&CELLULAR)?;
            reader.cellular(batching).map(Policy::Cellular)
        }
        (Some(name @ PolicyName::Of(PolicyKind::Serial)), batching) => {
            reader.without_window(name, batching)?;
            Ok(Policy::Serial)
        }
        (None | Some(PolicyName::Auto), None) => Ok(Policy::Serial),
        // Without a batch axis, dynamic_batching is the queue of requests that run one by one.
        (None | Some(PolicyName::Auto | PolicyName::Of(PolicyKind::Window)), _) if config.max_batch_size == 0 => {
            Ok(Policy::Serial)
        }
        (Some(PolicyName::Auto), Some(batching)) => Ok(reader.automatic(batching)),
        (None | Some(PolicyName::Of(PolicyKind::Window)), batching) => {
            Ok(batching.map_or(Policy::Serial, |batching| Policy::Window(window(batching))))
        }
        (Some(name), batching) => {
            reader.needs_batches(name)?;
            reader.without_window(name, batching)?;
            match name {
                PolicyName::Of(kind) => {
                    settings.own.batching.read(*kind, reader.traits()).map_err(|refusal| reader.refused(refusal))
                }
                PolicyName::Custom(policy) => Ok(Policy::Custom(policy.clone())),
                PolicyName::Auto | PolicyName::Other(_) => {
                    Err(origin.error(POLICY, format!("expected the name of a policy, but found '{name}'")))
                }
            }
        }
    }
}

fn window(batching: &pb::ModelDynamicBatching) -> WindowKnobs {
    let sizes = batching.preferred_batch_size.iter().filter_map(|size| u32::try_from(*size).ok());
    let mut preferred_batch_sizes: Vec<u32> = sizes.collect();
    preferred_batch_sizes.sort_unstable();
    preferred_batch_sizes.dedup();
    WindowKnobs { preferred_batch_sizes, max_queue_delay_ns: from_us(batching.max_queue_delay_microseconds) }
}

impl Reader<'_> {
    /// Returns the policy of `auto`. Preferred sizes, if any are given, need the window.
    fn automatic(self, batching: &pb::ModelDynamicBatching) -> Policy {
        let window = WindowKnobs { max_queue_delay_ns: 0, ..window(batching) };
        let largest = u32::try_from(self.settings.config.max_batch_size).unwrap_or(0);
        if window.preferred_batch_sizes.iter().all(|&size| size == largest) {
            return Policy::Auto(AutoKnobs { by_target: self.traits().has_objective });
        }
        Policy::Window(window)
    }

    /// Rejects knobs that only the policy `window` has.
    fn without_window(
        self,
        policy: &PolicyName,
        batching: Option<&pb::ModelDynamicBatching>,
    ) -> Result<(), ConfigError> {
        let Some(batching) = batching else { return Ok(()) };
        if !batching.preferred_batch_size.is_empty() {
            // A model of cells cannot choose `window`.
            let other = if *policy == CELLULAR { "" } else { ", or choose the policy 'window'" };
            let message = format!("the policy '{policy}' has no preferred sizes: remove them{other}");
            return Err(self.origin.error("dynamic_batching.preferred_batch_size", message));
        }
        if batching.max_queue_delay_microseconds > 0 {
            let own = match policy {
                PolicyName::Of(PolicyKind::Cellular) => "remove it",
                PolicyName::Of(PolicyKind::Adaptive) => "give 'batching.adaptive.max_queue_delay_us' instead",
                _ => "remove it, or choose the policy 'window'",
            };
            let message = format!("the policy '{policy}' has no such delay: {own}");
            return Err(self.origin.error("dynamic_batching.max_queue_delay_microseconds", message));
        }
        Ok(())
    }

    /// Whether an axis of an input is padded.
    fn is_padded(self) -> bool {
        let Settings { config, own } = self.settings;
        config.input.iter().any(|tensor| own.pad.contains_key(&tensor.name))
    }

    fn needs_batches(self, policy: &PolicyName) -> Result<(), ConfigError> {
        if self.settings.config.max_batch_size > 0 {
            return Ok(());
        }
        let message = format!("the policy '{policy}' needs a max_batch_size of at least 1, but it is 0");
        Err(self.origin.error(POLICY, message))
    }

    /// Reads the knobs of `cellular`. Its cells and segments stay empty until the programs are known.
    fn cellular(self, batching: Option<&pb::ModelDynamicBatching>) -> Result<CellularKnobs, ConfigError> {
        self.without_window(&CELLULAR, batching)?;
        let given = self.settings.own.batching.cellular.clone().unwrap_or_default();
        let default = CellularKnobs::default();
        let paper = given.mode == Some(Mode::Paper);
        if !paper {
            self.without_rounds(&given)?;
        } else if given.max_chunk_ms.is_some() {
            let message = "algorithm 1 of BatchMaker runs single steps: remove this, or choose the mode 'default'";
            return Err(self.origin.error("batching.cellular.max_chunk_ms", message));
        }
        Ok(CellularKnobs {
            paper,
            slots: given.slots.map_or(default.slots, |slots| slots.0),
            max_tasks: given.max_tasks.map_or(default.max_tasks, |tasks| tasks.0),
            frontier: given.frontier.unwrap_or(default.frontier),
            merge_requests: given.merge_requests.map(|requests| requests.0),
            sequences: self.sequences()?,
            window: self.window()?,
            max_chunk_ns: given.max_chunk_ms.map(Milliseconds::ns),
            ..default
        })
    }

    /// Rejects knobs of algorithm 1.
    fn without_rounds(self, given: &CellularSettings) -> Result<(), ConfigError> {
        let of_cell = |cell: &Cell| {
            let keys = [("priority", cell.priority.is_some()), ("min_followup", cell.min_followup.is_some())];
            keys.into_iter().find(|(_, is_given)| *is_given).map(|(key, _)| key)
        };
        let cells = self.settings.own.cells.iter();
        let mut of_cells = cells.filter_map(|(name, cell)| of_cell(cell).map(|key| format!("cells.{}.{key}", name.0)));
        let max_tasks = given.max_tasks.map(|_| "batching.cellular.max_tasks".to_owned());
        let Some(key) = max_tasks.or_else(|| of_cells.next()) else { return Ok(()) };
        let message = "only algorithm 1 of BatchMaker uses this: remove it, or choose 'batching.cellular.mode: paper'";
        Err(self.origin.error(&key, message))
    }

    /// Reads the knobs of `lazy` that apply to cells.
    fn lazy_cells(self, batching: Option<&pb::ModelDynamicBatching>) -> Result<CellularKnobs, ConfigError> {
        let given = self.settings.own.batching.lazy.clone().unwrap_or_default();
        let of_batches = [
            ("predictor", given.predictor.is_some()),
            ("max_depth", given.max_depth.is_some()),
            ("max_catch_up_ms", given.max_catch_up_ms.is_some()),
        ];
        if let Some((key, _)) = of_batches.into_iter().find(|(_, is_given)| *is_given) {
            let message = "requests that unfold into cells are in no stack of batches: remove this";
            return Err(self.origin.error(&format!("batching.lazy.{key}"), message));
        }
        let LazyKnobs { reject_late, .. } =
            LazyKnobs::read(&given, self.traits()).map_err(|refusal| self.refused(refusal))?;
        let cellular = self.cellular(batching)?;
        if cellular.paper {
            let message = "algorithm 1 of BatchMaker knows no slack: remove this, or choose the policy 'cellular'";
            return Err(self.origin.error("batching.cellular.mode", message));
        }
        Ok(CellularKnobs { lazy: Some(LazyCellKnobs { reject_late }), ..cellular })
    }

    fn sequences(self) -> Result<Option<SequenceKnobs>, ConfigError> {
        let config = &self.settings.config;
        if model_config::sequence_batching(config).is_none() {
            return Ok(None);
        }
        Ok(sequences::limits(config, self.most_rows()?, instances(config)))
    }

    /// Reads how long requests of sequences wait for a fuller batch.
    fn window(self) -> Result<Option<WindowKnobs>, ConfigError> {
        let config = &self.settings.config;
        let rows = model_config::sequence_batching(config).map(|_| self.most_rows()).transpose()?;
        Ok(rows.and_then(|rows| sequences::window(config, rows)))
    }

    /// Returns the largest batch of the model, or of its cells.
    fn most_rows(self) -> Result<u32, ConfigError> {
        let rows = match unfold::read(self.settings, self.origin)? {
            Some(unfold) => unfold.max_rows(),
            None => u32::try_from(self.settings.config.max_batch_size).unwrap_or(0),
        };
        Ok(rows.max(1))
    }

    fn traits(self) -> ModelTraits {
        let has_objective = self.settings.own.batching.latency_objective_ms.is_some();
        ModelTraits { stages: self.stages, is_padded: self.is_padded(), has_objective }
    }

    fn refused(self, refusal: SettingError) -> ConfigError {
        self.origin.error("batching", refusal)
    }
}

/// The settings that are chosen from a model's profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Automatic {
    /// The number of stages.
    pub stages: bool,
    /// The policy.
    pub policy: bool,
    /// The batch sizes of the cells.
    pub batch_sizes: bool,
}

impl Automatic {
    /// Decides which settings the profile chooses.
    ///
    /// If the configuration sets stages or policy to `auto`, the profile also chooses the other one, unless it is
    /// given. In `config.pbtxt` a missing policy counts as given, because it means Triton's dynamic batcher. The
    /// profile chooses nothing for models that cannot be cut or cannot batch, and for models with cells or sequences
    /// only batch sizes.
    pub fn of(settings: &Settings, stages: &StageRequest, origin: &Origin) -> Self {
        let Settings { config, own } = settings;
        let is_auto = |stages: &Stages| *stages == Stages::Word(Auto::Auto);
        let given = own.stages.as_ref();
        let policy = settings.policy() == Some(&PolicyName::Auto);
        let is_asked_for = given.is_some_and(is_auto) || policy && !origin.implies_policy;
        if is_asked_for && settings.runs_cells() {
            return Self {
                batch_sizes: own.cells.iter().any(|(_, cell)| cell.batch_sizes.is_none()),
                ..Self::default()
            };
        }
        if !is_asked_for || config.max_batch_size < 1 || settings.is_decoupled() {
            return Self::default();
        }
        let stages = given.is_none_or(is_auto) && stages.cuts == StageCuts::Whole;
        Self { stages, policy, batch_sizes: false }
    }

    /// Whether the profile chooses anything.
    pub fn is_any(self) -> bool {
        self.stages || self.policy || self.batch_sizes
    }
}

/// Returns the number of instances of a completed configuration, at least 1.
pub(super) fn instances(config: &pb::ModelConfig) -> u32 {
    let counts = config.instance_group.iter().map(|group| u32::try_from(group.count).unwrap_or(0));
    counts.fold(0_u32, u32::saturating_add).max(1)
}

#[cfg(test)]
pub(crate) mod tests;
