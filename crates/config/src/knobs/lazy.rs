//! The section `lazy`.

use paternoster_batching::{LazyKnobs, Predictor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FromSettings, Milliseconds, ModelTraits, Whole};
use crate::SettingError;

/// Knobs of `lazy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LazySettings {
    /// The predictor of remaining times: `table` (default) or `paper`.
    pub predictor: Option<PredictorName>,
    /// Maximum number of entries in the batch table's stack. Default: 4.
    pub max_depth: Option<Whole<u32, 1, 64>>,
    /// Maximum total time that an entry waits for later ones, in milliseconds. Default: half the time of the whole
    /// model with the largest batch.
    pub max_catch_up_ms: Option<Milliseconds>,
    /// Whether late requests are rejected.
    pub reject_late: Option<bool>,
}

/// The name of a predictor that configurations may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", try_from = "String")]
#[schemars(
    rename = "Predictor",
    description = "How the slack of a request is predicted (LazyBatching section IV-C). A configuration names one of \
                   the first two."
)]
pub enum PredictorName {
    /// Equation 2: the sum of all requests' times at batch size 1; of the elapsed time, only the wait in the queue
    /// counts.
    Paper,
    /// Measured latency per stage and batch size, at the 99th percentile, corrected online.
    Table,
}

impl From<PredictorName> for Predictor {
    fn from(name: PredictorName) -> Self {
        match name {
            PredictorName::Paper => Self::Paper,
            PredictorName::Table => Self::Table,
        }
    }
}

impl TryFrom<String> for PredictorName {
    type Error = SettingError;

    fn try_from(name: String) -> Result<Self, SettingError> {
        match name.as_str() {
            "table" => Ok(Self::Table),
            "paper" => Ok(Self::Paper),
            "oracle" => {
                Err("the predictor 'oracle' is for simulation only, where latencies are known exactly; expected \
                     table or paper"
                    .into())
            }
            _ => Err(format!("expected table or paper, but found '{name}'").into()),
        }
    }
}

impl FromSettings for LazyKnobs {
    type Settings = LazySettings;

    fn read(settings: &LazySettings, model: ModelTraits) -> Result<Self, SettingError> {
        let default = Self::default();
        let reject_late = rejects_late("lazy.reject_late", settings.reject_late, model)?;
        Ok(Self {
            predictor: settings.predictor.map_or(default.predictor, Predictor::from),
            max_depth: settings.max_depth.map_or(default.max_depth, |depth| depth.0),
            max_catch_up_ns: settings.max_catch_up_ms.map(Milliseconds::ns),
            reject_late,
        })
    }
}

/// Reads the knob `key`: whether requests that can no longer meet the objective are rejected. Default: no.
pub(super) fn rejects_late(key: &str, given: Option<bool>, model: ModelTraits) -> Result<bool, SettingError> {
    let rejects = given.unwrap_or(false);
    if rejects && !model.has_objective {
        let message = "late are requests that miss the objective, but there is none: give \
                       'batching.latency_objective_ms', or remove this";
        return Err(SettingError::from(message).at(key));
    }
    Ok(rejects)
}
