//! Policies: what happens at each boundary of a batch. Each is one file, and one line in the table below; names,
//! knobs and forms of configurations, start-up tables, simulator and tests take what they need of a policy from there.
//! docs/adding-a-policy.md says how another is added.

mod adaptive;
mod candidate;
mod contract;
mod diversity;
mod forecast;
mod gain;
mod lazy;
pub(super) mod monitor;
mod rate;
mod serial;
pub(super) mod slack;
mod window;

pub(super) use self::contract::{BatchLimits, BatchPolicy, Decision, PolicyKnobs, Requirements, Selection, View};
use self::serial::Serial;
pub use self::{adaptive::*, diversity::*, lazy::*, window::*};
use super::{
    CellularKnobs,
    knob::{GivenKnobs, KnobEntry, KnobRefusal},
};

macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident($knobs:ty),)*) => {
        /// The policy of a model version.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Policy {
            /// One request at a time.
            Serial,
            $($(#[$doc])* $kind($knobs),)*
            /// Requests unfold into cells, of which tasks are formed again at every step (BatchMaker).
            Cellular(CellularKnobs),
        }

        /// A policy without its knobs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PolicyKind {
            /// One request at a time.
            Serial,
            $($(#[$doc])* $kind,)*
            /// Requests unfold into cells, of which tasks are formed again at every step (BatchMaker).
            Cellular,
        }

        impl PolicyKind {
            /// All policies.
            pub const ALL: &'static [Self] = &[Self::Serial, $(Self::$kind,)* Self::Cellular];

            /// The policies over batches, each with the defaults of its knobs.
            pub fn over_batches() -> impl Iterator<Item = Policy> {
                let kinds = Self::ALL.iter().filter(|kind| **kind != Self::Cellular);
                kinds.filter_map(|kind| kind.read(&GivenKnobs::NONE).ok())
            }

            /// The name in configurations.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Serial => "serial",
                    $(Self::$kind => <$knobs>::NAME,)*
                    Self::Cellular => "cellular",
                }
            }

            /// Its knobs in configurations, with the forms of their values. Those of `cellular` are with the other
            /// parameters of cells.
            pub fn knobs(self) -> &'static [KnobEntry] {
                match self {
                    Self::Serial | Self::Cellular => &[],
                    $(Self::$kind => <$knobs>::KNOBS,)*
                }
            }

            /// The policy with the knobs that a configuration gives.
            ///
            /// # Errors
            /// When a knob is not of its form or contradicts another.
            pub fn read(self, given: &GivenKnobs<'_>) -> Result<Policy, KnobRefusal> {
                match self {
                    Self::Serial => Ok(Policy::Serial),
                    $(Self::$kind => <$knobs>::read(given).map(Policy::$kind),)*
                    Self::Cellular => Ok(Policy::Cellular(CellularKnobs::default())),
                }
            }
        }

        impl Policy {
            /// Which policy it is.
            pub fn kind(&self) -> PolicyKind {
                match self {
                    Self::Serial => PolicyKind::Serial,
                    $(Self::$kind(_) => PolicyKind::$kind,)*
                    Self::Cellular(_) => PolicyKind::Cellular,
                }
            }

            /// What it asks of its version.
            pub(super) fn requirements(&self) -> Requirements {
                match self {
                    Self::Serial => Serial::requirements(),
                    $(Self::$kind(knobs) => knobs.requirements(),)*
                    Self::Cellular(_) => Requirements { shares_batches: false, ..Requirements::default() },
                }
            }

            /// The policy at work, over batches. Cells have none to decide about.
            pub(super) fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
                match self {
                    Self::Serial | Self::Cellular(_) => Box::new(Serial),
                    $(Self::$kind(knobs) => knobs.start(limits),)*
                }
            }
        }
    };
}

policies! {
    /// Triton's dynamic batcher.
    Window(WindowKnobs),
    /// Batch sizes follow the request rate (Efficient Adaptive Batching).
    Adaptive(AdaptiveKnobs),
    /// Late requests catch up while the slack allows it (LazyBatching).
    Lazy(LazyKnobs),
    /// Batches are stretched, split and run in groups of like length (DVABatch).
    Diversity(DiversityKnobs),
}

impl Policy {
    /// Whether requests may join a batch between its stages, so that stages are of use.
    pub fn lets_join(&self) -> bool {
        self.requirements().joins
    }
}
