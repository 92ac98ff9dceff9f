//! The table of policies: one line each. Names, knobs and forms of configurations, start-up tables, simulator and tests
//! take what they need of a policy from here. docs/adding-a-policy.md says how another is added.

use super::{
    AdaptiveKnobs, CellularKnobs, CostTable, DiversityKnobs, LazyKnobs, Ns, QueueingKnobs, StageKnobs, WindowKnobs,
    knob::{GivenKnobs, KnobEntry, KnobRefusal},
    policy::{self, BatchLimits, PolicyKnobs, Requirements, Serial},
};

/// What the core knows of one model version.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// Largest batch in rows, at least 1.
    pub max_batch_rows: u32,
    /// Whether requests may share a batch at all (false for models without a batch axis).
    pub mergeable: bool,
    /// Most tasks in flight at once per device (`instance_group.count`).
    pub max_in_flight: u32,
    /// The stages in order; at least one.
    pub stages: Vec<StageKnobs>,
    /// Buffers at each boundary between two stages (DVABatch section 6.1), at least 1: with 1, one batch is between
    /// admission and the last stage's end; with 2, stages overlap.
    pub buffer_pairs: u16,
    /// The latency that requests are to stay within, from arrival to end. Steers, never kills.
    pub objective_ns: Option<Ns>,
    /// Latencies of the stages as far as they are known beforehand; they are corrected online.
    pub latencies: Option<CostTable>,
    /// Share of the device against other models, at least 1.
    pub weight: u32,
    /// Order, priorities and limits of the queue.
    pub queueing: QueueingKnobs,
    /// How batches are formed.
    pub policy: Policy,
}

impl Default for Knobs {
    /// `serial`, one stage, batches of one row.
    fn default() -> Self {
        Self {
            max_batch_rows: 1,
            mergeable: true,
            max_in_flight: 1,
            stages: vec![StageKnobs::default()],
            buffer_pairs: 2,
            objective_ns: None,
            latencies: None,
            weight: 1,
            queueing: QueueingKnobs::default(),
            policy: Policy::Serial,
        }
    }
}

macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident($knobs:ty),)*) => {
        /// The policy of a model version.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Policy {
            /// One request at a time.
            Serial,
            $($(#[$doc])* $kind($knobs),)*
            /// Requests unfold into cells, of which tasks are formed anew at every step (BatchMaker).
            Cellular(CellularKnobs),
        }

        /// A policy without its knobs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PolicyKind {
            /// One request at a time.
            Serial,
            $($(#[$doc])* $kind,)*
            /// Requests unfold into cells, of which tasks are formed anew at every step (BatchMaker).
            Cellular,
        }

        impl PolicyKind {
            /// All policies.
            pub const ALL: &'static [Self] = &[Self::Serial, $(Self::$kind,)* Self::Cellular];

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
            pub(super) fn start(&self, limits: BatchLimits) -> Box<dyn policy::Policy> {
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
