//! `batching`: the name of the policy, settings common to all policies, the queue, and a section of knobs for each
//! policy.

use std::{convert::Infallible, fmt, str::FromStr};

use paternoster_batching::{AUTO, CellularKnobs, CustomPolicy, Policy, PolicyKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StageNumber;
use crate::{
    SettingError,
    custom_policies::CustomPolicies,
    knobs::{
        Above0, CellularSettings, Count, DAY_MS, DAY_US, FromSettings, Long, Milliseconds, ModelTraits, Positive,
        QueueSettings, QueueingSettings, Whole, Within,
    },
    nearest::{alternatives, suggestion},
    values::{Keywords, Parsed},
};

macro_rules! batching {
    ($($(#[$doc:meta])* $section:ident $name:tt: $kind:ident($knobs:ident),)*) => {
        /// How requests share batches.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct Batching {
            /// The policy. Default: `auto`.
            pub policy: Option<Parsed<PolicyName>>,
            /// Target latency of a request, in milliseconds.
            pub latency_objective_ms: Option<Milliseconds>,
            /// Weight of the model's share of the device, relative to other models. Default: 1.
            pub weight: Option<Whole<u32, 1, 1_000>>,
            /// Buffers at each boundary between two stages. Default: 2.
            pub buffer_pairs: Option<Whole<u16, 1, 16>>,
            /// How long a task may run before it is asked to stop, in milliseconds; 0: no limit. Default: the server's
            /// limit.
            pub task_time_limit_ms: Option<Within<0, DAY_MS>>,
            /// Measured times of stages or cells: the name of a file in the model's directory, or a list.
            pub latencies: Option<LatencySettings>,
            /// The queue, for every policy.
            pub queueing: Option<QueueingSettings>,
            /// An empty mapping, because `serial` has no knobs.
            pub serial: Option<NoKnobs>,
            $(
                $(#[$doc])*
                #[serde(rename = $name)]
                pub $section: Option<<paternoster_batching::$knobs as FromSettings>::Settings>,
            )*
            /// Knobs of `cellular` (BatchMaker).
            pub cellular: Option<CellularSettings>,
            /// `queueing.bucket_width` as a parameter.
            #[schemars(skip)]
            pub bucket_width: Option<Count>,
            /// `sequence_batching.queue` as parameters.
            #[schemars(skip)]
            pub sequences: Option<QueueSettings>,
        }

        impl Batching {
            /// Reads the knobs of a policy over batches.
            ///
            /// # Errors
            /// If a knob contradicts another or the model.
            pub fn read(&self, kind: PolicyKind, model: ModelTraits) -> Result<Policy, SettingError> {
                match kind {
                    PolicyKind::Serial => Ok(Policy::Serial),
                    PolicyKind::Cellular => Ok(Policy::Cellular(CellularKnobs::default())),
                    $(PolicyKind::$kind => {
                        let settings = self.$section.clone().unwrap_or_default();
                        paternoster_batching::$knobs::read(&settings, model).map(Policy::$kind)
                    })*
                }
            }

            /// Removes the sections of policies that are not chosen.
            pub fn keep_chosen(&mut self, is_chosen: impl Fn(PolicyKind) -> bool) {
                self.serial.take_if(|_| !is_chosen(PolicyKind::Serial));
                self.cellular.take_if(|_| !is_chosen(PolicyKind::Cellular));
                $(self.$section.take_if(|_| !is_chosen(PolicyKind::$kind));)*
            }
        }
    };
}

paternoster_batching::with_policies!(batching);

/// An empty mapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKnobs {}

/// Measured times of stages or cells.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "WrittenLatencies")]
#[schemars(with = "WrittenLatencies", inline)]
pub enum LatencySettings {
    /// The name of a file in the model's directory.
    File(String),
    /// The times themselves.
    Here(Vec<Latency>),
}

/// The written form of [`Latencies`]. The text is the name of a file or a table.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of a file, or a list of latencies")]
#[schemars(untagged, inline)]
pub(crate) enum WrittenLatencies {
    #[serde(rename = "#text")]
    Text(String),
    #[serde(rename = "#list")]
    List(Vec<Latency>),
}

/// The measured time of a stage for one size.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The stage, from 0.
    pub stage: StageNumber,
    /// Rows of the batch.
    pub rows: Positive,
    /// The padded length, or the product of several padded axes. Default: 0, for a model without padding.
    pub length: Option<Long>,
    /// The latency in microseconds.
    pub latency_us: Above0<{ DAY_US as i64 }>,
}

impl Batching {
    /// Puts the policy of another crate in the place of its name.
    ///
    /// # Errors
    /// If a name is that of no policy.
    pub fn find_policy(&mut self, policies: &CustomPolicies) -> Result<(), SettingError> {
        let Some(Parsed(PolicyName::Other(name))) = &self.policy else { return Ok(()) };
        let policy = policies.find(name).ok_or_else(|| {
            let names: Vec<&str> = PolicyName::keywords().into_iter().chain(policies.names()).collect();
            let hint = suggestion(name, names.iter().copied());
            SettingError::unknown(format!("expected {}, but found '{name}'{hint}", alternatives(&names)))
        })?;
        self.policy = Some(Parsed(PolicyName::Custom(policy.clone())));
        Ok(())
    }
}

/// The name of a policy, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// The server chooses the policy.
    Auto,
    /// One policy.
    Of(PolicyKind),
    /// A policy of another crate.
    Custom(CustomPolicy),
    /// Another name, until [`Batching::find_policy`] finds or refuses it.
    Other(Box<str>),
}

impl PolicyName {
    /// Iterates over all names of this server.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Auto).chain(PolicyKind::ALL.iter().copied().map(Self::Of))
    }

    /// Returns the name that configurations use.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Auto => AUTO,
            Self::Of(kind) => kind.name(),
            Self::Custom(policy) => policy.name(),
            Self::Other(name) => name,
        }
    }

    /// Whether the knobs of a policy apply where this one is chosen. Those of `cellular` do under `auto`, which means
    /// that policy for models of cells and recurrent layers, and under `lazy` for a model that `unfolds` into cells.
    pub fn has_knobs_of(&self, kind: PolicyKind, unfolds: bool) -> bool {
        let by_cells = *self == Self::Auto || unfolds && *self == Self::Of(PolicyKind::Lazy);
        *self == Self::Of(kind) || by_cells && kind == PolicyKind::Cellular
    }

    /// Whether the policy may wait for preferred batch sizes, up to a delay.
    pub fn has_window(&self) -> bool {
        matches!(self, Self::Auto | Self::Of(PolicyKind::Window))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    /// None is refused here: other crates' policies are not known.
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(Self::all().find(|policy| policy.as_str() == name).unwrap_or_else(|| Self::Other(name.into())))
    }
}

impl Keywords for PolicyName {
    fn keywords() -> Vec<&'static str> {
        std::iter::once(AUTO).chain(PolicyKind::ALL.iter().map(|kind| kind.name())).collect()
    }
}
