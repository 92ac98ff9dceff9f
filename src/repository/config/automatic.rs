//! Choices that a configuration leaves to the server: `stages: auto` and `policy: auto`.

use super::{
    Origin,
    model::{Auto, Stages},
    sequences,
    settings::{PolicyName, Settings},
    stages::{StageCuts, StageRequest},
};

/// The settings that are chosen from a model's profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Automatic {
    /// The number of stages.
    pub stages: bool,
    /// The policy.
    pub policy: bool,
}

impl Automatic {
    /// Decides which settings the profile chooses.
    ///
    /// If the configuration sets stages or policy to `auto`, the profile also chooses the other one, unless it is
    /// given. In `config.pbtxt` a missing policy counts as given, because it means Triton's dynamic batcher. The
    /// profile chooses nothing for models that cannot be cut or cannot batch, and for models with cells or sequences.
    pub fn of(settings: &Settings, stages: &StageRequest, origin: &Origin) -> Self {
        let Settings { config, own } = settings;
        let is_auto = |stages: &Stages| *stages == Stages::Word(Auto::Auto);
        let given = own.stages.as_ref();
        let policy = settings.policy() == Some(PolicyName::Auto);
        let is_asked_for = given.is_some_and(is_auto) || policy && !origin.implies_policy;
        let unfolds = settings.has_cells() || sequences::batching(config).is_some();
        if !is_asked_for || config.max_batch_size < 1 || settings.is_decoupled() || unfolds {
            return Self::default();
        }
        Self { stages: given.is_none_or(is_auto) && stages.cuts == StageCuts::Whole, policy }
    }

    /// Whether the profile chooses anything.
    pub fn is_any(self) -> bool {
        self.stages || self.policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::config::{stages, yaml};

    fn automatic(text: &str) -> (bool, bool) {
        let (config, origin) = yaml::parse("model.yaml", text.as_bytes()).expect("it is sound");
        let stages = stages::read(&config, &origin).expect("it is sound");
        let Automatic { stages, policy } = Automatic::of(&config, &stages, &origin);
        (stages, policy)
    }

    #[test]
    fn what_is_not_named_is_chosen_where_auto_is() {
        let with = |text: &str| automatic(&format!("max_batch_size: 4\n{text}"));
        assert_eq!(with(""), (false, false), "not requested");
        assert_eq!(with("batching: { latency_objective_ms: 9 }"), (false, false));
        assert_eq!(with("stages: auto"), (true, true));
        assert_eq!(with("batching: { policy: auto }"), (true, true));
        assert_eq!(with("stages: 3\nbatching: { policy: auto }"), (false, true));
        assert_eq!(with("stages: 1\nbatching: { policy: auto }"), (false, true));
        assert_eq!(with("stages: [a, b]\nbatching: { policy: auto }"), (false, true));
        assert_eq!(with("stages: auto\nbatching: { policy: lazy }"), (true, false));
    }

    #[test]
    fn a_model_that_cannot_batch_has_nothing_to_choose() {
        assert_eq!(automatic("stages: auto"), (false, false));
        assert_eq!(automatic("max_batch_size: 4\ndecoupled: true\nstages: auto"), (false, false));
        let cells = "cells: { c: { program: c.onnx } }\nunfold: [ stage: c ]\nbatching: { policy: auto }";
        assert_eq!(automatic(cells), (false, false));
    }
}
