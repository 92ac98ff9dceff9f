//! The policy of a configuration: its knobs as the core takes them. Knobs that contradict each other are refused with
//! what would work; those of policies that are not chosen play no part.

use super::{
    ConfigError, Origin,
    knobs::{self, InConfig, narrow},
    params::{self, PolicyName},
    pb::{self, model_config::SchedulingChoice},
    sequences,
    stages::StageRequest,
    unfold,
};
use crate::batching::{
    CellularKnobs, DiversityKnobs, InputDiversity, LazyCellKnobs, LazyKnobs, Policy, PolicyKind, SequenceKnobs,
    WindowKnobs,
    knob::{GivenKnobs, KnobRefusal, from_us},
};

/// A configuration, and where its parts came from.
#[derive(Clone, Copy)]
struct Source<'c> {
    config: &'c pb::ModelConfig,
    origin: &'c Origin,
    stages: u16,
}

/// Reads the policy of a completed configuration whose `stages` were read.
///
/// # Errors
/// When a knob is not of its form or contradicts another.
pub fn read(config: &pb::ModelConfig, stages: &StageRequest, origin: &Origin) -> Result<Policy, ConfigError> {
    let source = Source { config, origin, stages: stages.count() };
    let path = format!("parameters[{}]", params::POLICY);
    let named = params::policy(config).map_err(|fault| origin.error(&path, fault))?;
    let batching = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    };
    let has_sequences = sequences::given(config).is_some();
    if unfold::is_given(config) || has_sequences {
        return match named {
            None | Some(PolicyName::Auto | PolicyName::Of(PolicyKind::Cellular)) => {
                source.cellular(batching).map(Policy::Cellular)
            }
            Some(PolicyName::Of(PolicyKind::Lazy)) => source.lazy_cells(batching).map(Policy::Cellular),
            Some(name) => {
                let what = if has_sequences { "sequences" } else { "cells" };
                let message =
                    format!("the policy '{}' does not go with {what}: expected auto, cellular or lazy", name.as_str());
                Err(origin.error(&path, message))
            }
        };
    }
    match (named, batching) {
        (Some(PolicyName::Of(PolicyKind::Cellular)), _) => {
            let message = "the policy 'cellular' needs 'cells' and 'unfold', which say what requests unfold into";
            Err(origin.error(&path, message))
        }
        (Some(PolicyName::Of(PolicyKind::Serial)), _) | (None | Some(PolicyName::Auto), None) => Ok(Policy::Serial),
        (Some(PolicyName::Auto), Some(_)) if source.is_grouped_by_runs() => {
            let input = InputDiversity { by_runs: true, ..InputDiversity::default() };
            Ok(Policy::Diversity(DiversityKnobs { input: Some(input), ..DiversityKnobs::default() }))
        }
        (Some(PolicyName::Auto), Some(batching)) => {
            Ok(Policy::Window(WindowKnobs { max_queue_delay_ns: 0, ..window(batching) }))
        }
        (None | Some(PolicyName::Of(PolicyKind::Window)), batching) => {
            Ok(batching.map_or(Policy::Serial, |batching| Policy::Window(window(batching))))
        }
        (Some(PolicyName::Of(kind)), batching) => {
            source.needs_batches(kind)?;
            source.without_window(kind, batching)?;
            source.read(kind)
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

impl Source<'_> {
    /// Refuses what only the window has, in a configuration of another batching policy.
    fn without_window(self, kind: PolicyKind, batching: Option<&pb::ModelDynamicBatching>) -> Result<(), ConfigError> {
        let policy = kind.name();
        let Some(batching) = batching else { return Ok(()) };
        if !batching.preferred_batch_size.is_empty() {
            // A model of cells has no other policy to choose.
            let other = if kind == PolicyKind::Cellular { "" } else { ", or choose the policy 'window'" };
            let message = format!("the policy '{policy}' has no preferred sizes: remove them{other}");
            return Err(self.origin.error("dynamic_batching.preferred_batch_size", message));
        }
        if batching.max_queue_delay_microseconds > 0 {
            let delay = format!("batching.{policy}.max_queue_delay_us");
            let own = match kind {
                PolicyKind::Cellular => "remove it".to_owned(),
                _ if kind.knobs().iter().any(|(key, _)| *key == delay) => format!("give '{delay}' instead"),
                _ => "remove it, or choose the policy 'window'".to_owned(),
            };
            let message = format!("the policy '{policy}' has no such delay: {own}");
            return Err(self.origin.error("dynamic_batching.max_queue_delay_microseconds", message));
        }
        Ok(())
    }

    /// Whether an axis of an input is padded.
    fn is_padded(self) -> bool {
        let has_pad = |tensor: &pb::ModelInput| {
            let key = format!("{}{}", params::PAD, tensor.name);
            self.config.parameters.contains_key(&key)
        };
        self.config.input.iter().any(has_pad)
    }

    /// Whether `auto` groups requests by what the model's runs tell: where lengths differ, and it is not said which
    /// may share a batch.
    fn is_grouped_by_runs(self) -> bool {
        let config = self.config;
        let decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
        config.max_batch_size > 1 && !decoupled && self.is_padded() && !knobs::BUCKET_WIDTH.is_given(config)
    }

    fn needs_batches(self, kind: PolicyKind) -> Result<(), ConfigError> {
        if self.config.max_batch_size > 0 {
            return Ok(());
        }
        let message = format!("the policy '{}' needs a max_batch_size of at least 1, but it is 0", kind.name());
        Err(self.origin.error(&format!("parameters[{}]", params::POLICY), message))
    }

    /// Cells and segments are left out: they are numbered once the programs are known.
    fn cellular(self, batching: Option<&pb::ModelDynamicBatching>) -> Result<CellularKnobs, ConfigError> {
        let Self { config, origin, .. } = self;
        self.without_window(PolicyKind::Cellular, batching)?;
        let max_tasks = knobs::CELLULAR_TASKS.read(config, origin)?.and_then(|tasks| u16::try_from(tasks).ok());
        let default = CellularKnobs::default();
        Ok(CellularKnobs {
            slots: knobs::CELLULAR_SLOTS.read(config, origin)?.map_or(default.slots, narrow),
            max_tasks: max_tasks.unwrap_or(default.max_tasks),
            frontier: knobs::CELLULAR_FRONTIER.read(config, origin)?.unwrap_or(default.frontier),
            merge_requests: knobs::CELLULAR_MERGE.read(config, origin)?.map(narrow),
            sequences: self.sequences()?,
            ..default
        })
    }

    /// Of LazyBatching's knobs those that say something of cells.
    fn lazy_cells(self, batching: Option<&pb::ModelDynamicBatching>) -> Result<CellularKnobs, ConfigError> {
        if let Some(key) = LazyKnobs::OF_BATCHES.into_iter().find(|key| self.config.parameters.contains_key(*key)) {
            let message = "requests that unfold into cells are in no stack of batches: remove this";
            return Err(self.origin.error(&format!("parameters[{key}]"), message));
        }
        let lazy = match self.read(PolicyKind::Lazy)? {
            Policy::Lazy(LazyKnobs { max_catch_up_ns, reject_late, .. }) => {
                Some(LazyCellKnobs { max_catch_up_ns, reject_late })
            }
            _ => None,
        };
        Ok(CellularKnobs { lazy, ..self.cellular(batching)? })
    }

    fn sequences(self) -> Result<Option<SequenceKnobs>, ConfigError> {
        let Self { config, origin, .. } = self;
        if sequences::given(config).is_none() {
            return Ok(None);
        }
        let rows = match unfold::read(config, origin)? {
            Some(unfold) => unfold.max_rows(),
            None => u32::try_from(config.max_batch_size).unwrap_or(0),
        };
        Ok(sequences::limits(config, rows.max(1), instances(config)))
    }

    /// A policy with its own knobs.
    fn read(self, kind: PolicyKind) -> Result<Policy, ConfigError> {
        let text = |key: &str| self.config.parameters.get(key).map(|parameter| parameter.string_value.as_str());
        let given = GivenKnobs {
            text: &text,
            stages: self.stages,
            is_padded: self.is_padded(),
            has_objective: knobs::LATENCY_OBJECTIVE.is_given(self.config),
        };
        let refused =
            |refusal: KnobRefusal| self.origin.error(&format!("parameters[{}]", refusal.key), refusal.message);
        kind.read(&given).map_err(refused)
    }
}

/// Instances of a completed configuration, at least 1.
pub(super) fn instances(config: &pb::ModelConfig) -> u32 {
    let counts = config.instance_group.iter().map(|group| u32::try_from(group.count).unwrap_or(0));
    counts.fold(0_u32, u32::saturating_add).max(1)
}

#[cfg(test)]
mod tests;
