//! The section `adaptive`.

use paternoster_batching::AdaptiveKnobs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FromSettings, Microseconds, Milliseconds, Mode, ModelTraits, Within};
use crate::SettingError;

/// Knobs of `adaptive`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveSettings {
    /// Margin over the measured rate that the preferred batch size must sustain. Default: 0.15.
    pub headroom: Option<Within<0, 10>>,
    /// Averaging time of the rate, in milliseconds. Default: 30.
    pub average_ms: Option<Milliseconds>,
    /// Maximum wait of a partial batch, in microseconds. Default: 100000.
    pub max_queue_delay_us: Option<Microseconds>,
    /// `default`, or the paper's own rules.
    pub mode: Option<Mode>,
}

impl FromSettings for AdaptiveKnobs {
    type Settings = AdaptiveSettings;

    fn read(settings: &AdaptiveSettings, _: ModelTraits) -> Result<Self, SettingError> {
        let AdaptiveSettings { headroom, average_ms, max_queue_delay_us, mode } = settings;
        let default = Self::default();
        let fixed = [("adaptive.headroom", headroom.is_some()), ("adaptive.average_ms", average_ms.is_some())];
        Ok(Self {
            paper: Mode::is_paper(*mode, &fixed)?,
            headroom: headroom.map_or(default.headroom, |headroom| headroom.0),
            average_ns: average_ms.map_or(default.average_ns, Milliseconds::ns),
            max_queue_delay_ns: max_queue_delay_us.map_or(default.max_queue_delay_ns, Microseconds::us),
        })
    }
}
