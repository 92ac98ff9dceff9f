//! The policy of a configuration: its knobs as the core takes them. Knobs that contradict each other are refused with
//! what would work; those of policies that are not chosen play no part.

use super::{
    ConfigError, Origin,
    knobs::{self, Knob},
    params::{self, PolicyName},
    pb::{self, model_config::SchedulingChoice},
    sequences,
    stages::StageRequest,
    unfold,
};
use crate::batching::{
    AdaptiveKnobs, CellularKnobs, DiversityKnobs, InputDiversity, LazyCellKnobs, LazyKnobs, LoadDiversity, Ns,
    OperatorDiversity, PartOrder, Policy, Predictor, SequenceKnobs, WindowKnobs,
};

/// Longer delays count as this: 292 years, which added to any clock still fits.
const MAX_DELAY_NS: Ns = i64::MAX as Ns;

/// A configuration, and where its parts came from.
#[derive(Clone, Copy)]
struct Source<'c> {
    config: &'c pb::ModelConfig,
    origin: &'c Origin,
}

/// Reads the policy of a completed configuration whose `stages` were read.
///
/// # Errors
/// When a knob is not of its form or contradicts another.
pub fn read(config: &pb::ModelConfig, stages: &StageRequest, origin: &Origin) -> Result<Policy, ConfigError> {
    let source = Source { config, origin };
    let path = format!("parameters[{}]", params::POLICY);
    let named = params::policy(config).map_err(|fault| origin.error(&path, fault))?;
    let batching = match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => Some(batching),
        _ => None,
    };
    let has_sequences = sequences::given(config).is_some();
    if unfold::is_given(config) || has_sequences {
        return match named {
            None | Some(PolicyName::Auto | PolicyName::Cellular) => source.cellular(batching).map(Policy::Cellular),
            Some(PolicyName::Lazy) => source.lazy_cells(batching).map(Policy::Cellular),
            Some(name) => {
                let what = if has_sequences { "sequences" } else { "cells" };
                let message =
                    format!("the policy '{}' does not go with {what}: expected auto, cellular or lazy", name.as_str());
                Err(origin.error(&path, message))
            }
        };
    }
    match (named, batching) {
        (Some(PolicyName::Cellular), _) => {
            let message = "the policy 'cellular' needs 'cells' and 'unfold', which say what requests unfold into";
            Err(origin.error(&path, message))
        }
        (Some(name @ (PolicyName::Adaptive | PolicyName::Lazy | PolicyName::Diversity)), batching) => {
            source.needs_batches(name)?;
            source.without_window(name, batching)?;
            match name {
                PolicyName::Adaptive => source.adaptive().map(Policy::Adaptive),
                PolicyName::Lazy => source.lazy().map(Policy::Lazy),
                _ => source.diversity(stages).map(Policy::Diversity),
            }
        }
        (Some(PolicyName::Serial), _) | (_, None) => Ok(Policy::Serial),
        (Some(PolicyName::Auto), Some(_)) if source.is_grouped_by_runs() => {
            let input = InputDiversity { by_runs: true, ..InputDiversity::default() };
            Ok(Policy::Diversity(DiversityKnobs { input: Some(input), ..DiversityKnobs::default() }))
        }
        (Some(PolicyName::Auto), Some(batching)) => {
            Ok(Policy::Window(WindowKnobs { max_queue_delay_ns: 0, ..window(batching) }))
        }
        (_, Some(batching)) => Ok(Policy::Window(window(batching))),
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
    fn without_window(self, name: PolicyName, batching: Option<&pb::ModelDynamicBatching>) -> Result<(), ConfigError> {
        let policy = name.as_str();
        let Some(batching) = batching else { return Ok(()) };
        if !batching.preferred_batch_size.is_empty() {
            // A model of cells has no other policy to choose.
            let other = if name == PolicyName::Cellular { "" } else { ", or choose the policy 'window'" };
            let message = format!("the policy '{policy}' has no preferred sizes: remove them{other}");
            return Err(self.origin.error("dynamic_batching.preferred_batch_size", message));
        }
        if batching.max_queue_delay_microseconds > 0 {
            let own = match name {
                PolicyName::Adaptive => format!("give '{}' instead", knobs::ADAPTIVE_DELAY.key),
                PolicyName::Cellular => "remove it".to_owned(),
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

    fn needs_batches(self, name: PolicyName) -> Result<(), ConfigError> {
        if self.config.max_batch_size > 0 {
            return Ok(());
        }
        let message = format!("the policy '{}' needs a max_batch_size of at least 1, but it is 0", name.as_str());
        Err(self.origin.error(&format!("parameters[{}]", params::POLICY), message))
    }

    /// Cells and segments are left out: they are numbered once the programs are known.
    fn cellular(self, batching: Option<&pb::ModelDynamicBatching>) -> Result<CellularKnobs, ConfigError> {
        let Self { config, origin } = self;
        self.without_window(PolicyName::Cellular, batching)?;
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
        let of_batches = [knobs::LAZY_PREDICTOR.key, knobs::LAZY_DEPTH.key];
        if let Some(key) = of_batches.into_iter().find(|key| self.config.parameters.contains_key(*key)) {
            let message = "requests that unfold into cells are in no stack of batches: remove this";
            return Err(self.origin.error(&format!("parameters[{key}]"), message));
        }
        let LazyKnobs { max_catch_up_ns, reject_late, .. } = self.lazy()?;
        let lazy = Some(LazyCellKnobs { max_catch_up_ns, reject_late });
        Ok(CellularKnobs { lazy, ..self.cellular(batching)? })
    }

    fn sequences(self) -> Result<Option<SequenceKnobs>, ConfigError> {
        let Self { config, origin } = self;
        if sequences::given(config).is_none() {
            return Ok(None);
        }
        let rows = match unfold::read(config, origin)? {
            Some(unfold) => unfold.max_rows(),
            None => u32::try_from(config.max_batch_size).unwrap_or(0),
        };
        Ok(sequences::limits(config, rows.max(1), instances(config)))
    }

    fn adaptive(self) -> Result<AdaptiveKnobs, ConfigError> {
        let Self { config, origin } = self;
        let default = AdaptiveKnobs::default();
        let paper = knobs::ADAPTIVE_MODE.read(config, origin)? == Some("paper");
        if paper {
            self.needs_default_mode(&knobs::ADAPTIVE_HEADROOM)?;
            self.needs_default_mode(&knobs::ADAPTIVE_AVERAGE)?;
        }
        Ok(AdaptiveKnobs {
            headroom: knobs::ADAPTIVE_HEADROOM.read(config, origin)?.unwrap_or(default.headroom),
            average_ns: knobs::ADAPTIVE_AVERAGE.read(config, origin)?.map_or(default.average_ns, from_ms),
            max_queue_delay_ns: knobs::ADAPTIVE_DELAY.read(config, origin)?.map_or(default.max_queue_delay_ns, from_us),
            paper,
        })
    }

    fn lazy(self) -> Result<LazyKnobs, ConfigError> {
        let Self { config, origin } = self;
        let default = LazyKnobs::default();
        let reject_late = knobs::LAZY_REJECT.read(config, origin)?.unwrap_or(default.reject_late);
        if reject_late && !knobs::LATENCY_OBJECTIVE.is_given(config) {
            let message = format!(
                "late are requests that miss the objective, but there is none: give '{}', or remove this",
                knobs::LATENCY_OBJECTIVE.key
            );
            return Err(origin.error(&knobs::LAZY_REJECT.path(), message));
        }
        let predictor = match knobs::LAZY_PREDICTOR.read(config, origin)? {
            Some("paper") => Predictor::Paper,
            _ => default.predictor,
        };
        Ok(LazyKnobs {
            predictor,
            max_depth: knobs::LAZY_DEPTH.read(config, origin)?.map_or(default.max_depth, narrow),
            max_catch_up_ns: knobs::LAZY_CATCH_UP.read(config, origin)?.map(from_ms),
            reject_late,
        })
    }

    /// Without a word, Policy I is on where there is something to group, and Policy III where Policy I is not
    /// (DVABatch section 7.2: groups that run in parallel already let requests in at any time).
    fn diversity(self, stages: &StageRequest) -> Result<DiversityKnobs, ConfigError> {
        let origin = self.origin;
        let input_knobs =
            [knobs::INPUT_GROUPS.key, knobs::INPUT_BOUNDS.key, knobs::INPUT_WINDOW.key, knobs::INPUT_MODE.key];
        let operator_knobs = [knobs::OPERATOR_THRESHOLD.key, knobs::OPERATOR_ORDER.key, knobs::OPERATOR_MODE.key];
        let input = self.switch(&knobs::INPUT, &input_knobs)?;
        let operator = self.switch(&knobs::OPERATOR, &operator_knobs)?.unwrap_or(false);
        let load_knobs = [knobs::LOAD_AGE.key, knobs::LOAD_STAGE.key, knobs::LOAD_MODE.key];
        let load = self.switch(&knobs::LOAD, &load_knobs)?;
        let padded = self.is_padded();
        if input == Some(true) && load == Some(true) {
            let message = format!(
                "'{}' and '{}' are both on, but groups that run in parallel already take load diversity \
                 (DVABatch section 7.2): expected one of the two",
                knobs::INPUT.key,
                knobs::LOAD.key
            );
            return Err(origin.error(&self.place(&knobs::LOAD), message));
        }
        if input == Some(true) && !padded {
            let message = "requests are grouped by their padded length, but no axis of the model is padded: give an \
                           input a pad, or remove this";
            return Err(origin.error(&self.place(&knobs::INPUT), message));
        }
        let input = input.unwrap_or(padded && load != Some(true));
        let load = load.unwrap_or(!input);
        if !input && !operator && !load {
            let message = "input, operator and load are all off: expected one of them, or the policy 'window'";
            return Err(origin.error(&format!("parameters[{}]", params::POLICY), message));
        }
        Ok(DiversityKnobs {
            input: input.then(|| self.input()).transpose()?,
            operator: operator.then(|| self.operator()).transpose()?,
            load: load.then(|| self.load(stages)).transpose()?,
        })
    }

    fn input(self) -> Result<InputDiversity, ConfigError> {
        let Self { config, origin } = self;
        let bounds = knobs::INPUT_BOUNDS.read(config, origin)?;
        let groups = knobs::INPUT_GROUPS.read(config, origin)?;
        if bounds.is_some() && groups.is_some() {
            let message = format!("the groups follow from '{}': expected one of the two", knobs::INPUT_BOUNDS.key);
            return Err(origin.error(&knobs::INPUT_GROUPS.path(), message));
        }
        Ok(InputDiversity {
            bounds: bounds.unwrap_or_default(),
            max_groups: groups.map_or(0, narrow),
            window_ns: knobs::INPUT_WINDOW.read(config, origin)?.map(from_us),
            paper: knobs::INPUT_MODE.read(config, origin)? == Some("paper"),
            by_runs: false,
        })
    }

    fn operator(self) -> Result<OperatorDiversity, ConfigError> {
        let Self { config, origin } = self;
        let default = OperatorDiversity::default();
        let paper = knobs::OPERATOR_MODE.read(config, origin)? == Some("paper");
        if paper {
            self.needs_default_mode(&knobs::OPERATOR_THRESHOLD)?;
        }
        let order = match knobs::OPERATOR_ORDER.read(config, origin)? {
            Some("pipelined") => PartOrder::Pipelined,
            _ => default.order,
        };
        let threshold = knobs::OPERATOR_THRESHOLD.read(config, origin)?.unwrap_or(default.threshold);
        Ok(OperatorDiversity { threshold, order, paper })
    }

    fn load(self, stages: &StageRequest) -> Result<LoadDiversity, ConfigError> {
        let Self { config, origin } = self;
        let max_stage = knobs::LOAD_STAGE.read(config, origin)?.and_then(|stage| u16::try_from(stage).ok());
        let last = stages.count() - 1;
        if let Some(stage) = max_stage.filter(|stage| *stage > last) {
            let message = format!("expected a stage from 0 to {last}, the model's last, but found {stage}");
            return Err(origin.error(&knobs::LOAD_STAGE.path(), message));
        }
        let max_age_ns = knobs::LOAD_AGE.read(config, origin)?.map(from_ms);
        let paper = knobs::LOAD_MODE.read(config, origin)? == Some("paper");
        Ok(LoadDiversity { max_age_ns, max_stage, paper })
    }

    /// Whether a kind of diversity is switched on or off; one of its own knobs switches it on.
    fn switch(self, knob: &Knob<bool>, own: &[&str]) -> Result<Option<bool>, ConfigError> {
        let switch = knob.read(self.config, self.origin)?;
        let given = own.iter().find(|key| self.config.parameters.contains_key(**key));
        match (switch, given) {
            (Some(false), Some(key)) => {
                let message = format!("'{}' is off: remove this, or switch it on", knob.key);
                Err(self.origin.error(&format!("parameters[{key}]"), message))
            }
            (None, Some(_)) => Ok(Some(true)),
            (switch, _) => Ok(switch),
        }
    }

    /// The path of a switch that is on: its own where it is given, else that of its first knob.
    fn place(self, knob: &Knob<bool>) -> String {
        let begins = |key: &&String| key.starts_with(knob.key);
        let key = self.config.parameters.keys().filter(begins).min().map_or(knob.key, String::as_str);
        format!("parameters[{key}]")
    }

    fn needs_default_mode(self, knob: &Knob<f64>) -> Result<(), ConfigError> {
        if !knob.is_given(self.config) {
            return Ok(());
        }
        let message = "the mode 'paper' has its own: remove this, or choose the mode 'default'";
        Err(self.origin.error(&knob.path(), message))
    }
}

/// Instances of a completed configuration, at least 1.
pub(super) fn instances(config: &pb::ModelConfig) -> u32 {
    let counts = config.instance_group.iter().map(|group| u32::try_from(group.count).unwrap_or(0));
    counts.fold(0_u32, u32::saturating_add).max(1)
}

/// A bounded number as `u32`.
pub(super) fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn from_us(microseconds: u64) -> Ns {
    microseconds.saturating_mul(1000).min(MAX_DELAY_NS)
}

/// Nanoseconds of a positive number of milliseconds, at least 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn from_ms(milliseconds: f64) -> Ns {
    ((milliseconds * 1e6).round() as Ns).clamp(1, MAX_DELAY_NS)
}

#[cfg(test)]
mod tests;
