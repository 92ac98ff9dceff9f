//! Batching policies: each decides what happens when a lane is offered at a stage boundary. A policy is one file and
//! one line in the table below. Configuration, start-up tables, the simulator and the tests take names, knobs and forms
//! of the policies from that table. `docs/adding-a-policy.md` describes how to add one.

mod adaptive;
mod auto;
mod candidate;
mod contract;
mod deferred;
mod diversity;
mod forecast;
mod gain;
mod lazy;
pub(super) mod monitor;
pub(super) mod queue_delay;
mod serial;
mod sizes;
pub(super) mod slack;
mod view;
mod window;

use self::serial::Serial;
pub use self::{
    auto::AutoKnobs,
    contract::{BatchLimits, BatchPolicy, CustomPolicy, Decision, PolicyKnobs, Requirements, Selection, View},
    deferred::DeferredKnobs,
    diversity::*,
    lazy::LazyKnobs,
    monitor::AdaptiveKnobs,
    slack::Predictor,
    view::{BatchView, Candidates, PartView, RequestView, SubQueueView},
    window::WindowKnobs,
};
use super::CellularKnobs;

/// The table of policies over batches. Calls a macro with a line for each: what it does, which the JSON schema says of
/// its section too, the field of its section, its name in configurations, its variant and its knobs.
#[macro_export]
macro_rules! with_policies {
    ($with:ident) => {
        $with! {
            /// Triton's dynamic batcher. The queue's keys may be here too, unless there is `queueing`.
            window "window": Window(WindowKnobs),
            /// The batch size follows the request rate (Efficient Adaptive Batching).
            adaptive "adaptive": Adaptive(AdaptiveKnobs),
            /// Newcomers catch up with the batch in progress as long as slack allows (LazyBatching).
            lazy "lazy": Lazy(LazyKnobs),
            /// Batches are stretched, split, and grouped by length (DVABatch).
            diversity "diversity": Diversity(DiversityKnobs),
            /// Batches start as late as the objective allows, on as few lanes as possible (Symphony).
            deferred "deferred": Deferred(DeferredKnobs),
        }
    };
}

macro_rules! policies {
    ($($(#[$doc:meta])* $section:ident $name:tt: $kind:ident($knobs:ident),)*) => {
        /// The policy of a model version.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Policy {
            /// One request at a time.
            Serial,
            /// What the known times say to be fastest, by the parts of the policies below.
            Auto(AutoKnobs),
            $($(#[$doc])* $kind($knobs),)*
            /// Requests unfold into cells, and tasks are formed again at every step (BatchMaker).
            Cellular(CellularKnobs),
            /// A policy over batches of another crate.
            Custom(CustomPolicy),
        }

        /// A policy of this crate without its knobs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PolicyKind {
            /// One request at a time.
            Serial,
            $($(#[$doc])* $kind,)*
            /// Requests unfold into cells, and tasks are formed at every step (BatchMaker).
            Cellular,
        }

        impl PolicyKind {
            /// All policies.
            pub const ALL: &'static [Self] = &[Self::Serial, $(Self::$kind,)* Self::Cellular];

            /// Returns the policies over batches, each with default knobs, `auto` last.
            pub fn over_batches() -> impl Iterator<Item = Policy> {
                let kinds = Self::ALL.iter().filter(|kind| **kind != Self::Cellular);
                kinds.map(|kind| kind.plain()).chain([Policy::Auto(AutoKnobs::default())])
            }

            /// Returns the name used in configurations.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Serial => "serial",
                    $(Self::$kind => $name,)*
                    Self::Cellular => "cellular",
                }
            }

            /// Returns the policy with default knobs.
            fn plain(self) -> Policy {
                match self {
                    Self::Serial => Policy::Serial,
                    $(Self::$kind => Policy::$kind(<$knobs>::plain()),)*
                    Self::Cellular => Policy::Cellular(CellularKnobs::default()),
                }
            }
        }

        impl Policy {
            /// Returns its name in configurations; for cells that is `cellular` or `lazy`.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Serial => PolicyKind::Serial.name(),
                    Self::Auto(_) => AUTO,
                    $(Self::$kind(_) => PolicyKind::$kind.name(),)*
                    Self::Cellular(cellular) if cellular.lazy.is_some() => PolicyKind::Lazy.name(),
                    Self::Cellular(_) => PolicyKind::Cellular.name(),
                    Self::Custom(policy) => policy.name(),
                }
            }

            /// Returns what the policy requires of its version.
            pub(super) fn requirements(&self) -> Requirements {
                match self {
                    Self::Serial => Serial::requirements(),
                    Self::Auto(knobs) => knobs.requirements(),
                    $(Self::$kind(knobs) => knobs.requirements(),)*
                    Self::Cellular(_) => Requirements { shares_batches: false, ..Requirements::default() },
                    Self::Custom(policy) => policy.knobs().requirements(),
                }
            }

            /// Creates the policy over batches for one version. `cellular` has no such policy; `serial` takes its place
            /// and is never asked.
            pub(super) fn start(&self, limits: BatchLimits) -> Box<dyn BatchPolicy> {
                match self {
                    Self::Serial | Self::Cellular(_) => Box::new(Serial),
                    Self::Auto(knobs) => knobs.start(limits),
                    $(Self::$kind(knobs) => knobs.start(limits),)*
                    Self::Custom(policy) => policy.knobs().start(limits),
                }
            }
        }
    };
}

/// The name of the policy without knobs of a configuration.
pub const AUTO: &str = "auto";

with_policies!(policies);

impl Policy {
    /// Whether requests may join a batch between its stages, so that cutting the model into stages is useful.
    pub fn lets_join(&self) -> bool {
        self.requirements().joins
    }
}
