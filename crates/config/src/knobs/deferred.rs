//! The section `deferred`.

use paternoster_batching::DeferredKnobs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FromSettings, Milliseconds, ModelTraits, lazy::rejects_late};
use crate::SettingError;

/// Knobs of `deferred`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeferredSettings {
    /// Time between the predicted end of a batch and the earliest target of its requests, in milliseconds. Default: a
    /// tenth of the time from a request's arrival to its target.
    pub margin_ms: Option<Milliseconds>,
    /// Whether batches start as soon as a lane is idle, so that nothing is deferred but late requests. Default:
    /// `false`.
    pub eager: Option<bool>,
    /// Whether late requests are rejected.
    pub reject_late: Option<bool>,
}

impl FromSettings for DeferredKnobs {
    type Settings = DeferredSettings;

    fn read(settings: &DeferredSettings, model: ModelTraits) -> Result<Self, SettingError> {
        Ok(Self {
            margin_ns: settings.margin_ms.map(Milliseconds::ns),
            eager: settings.eager.unwrap_or(false),
            reject_late: rejects_late("deferred.reject_late", settings.reject_late, model)?,
        })
    }
}
