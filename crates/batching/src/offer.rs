//! The offer of a lane to a version: what the core passes in, and what the version answers.

use paternoster_model::CellId;

use super::{Instant, Ns};

/// The state of the pool when a version is offered a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolView<'a> {
    /// Least slack of any other model, `None` without targets.
    pub(super) neighbours_slack_ns: Option<Ns>,
    /// Number of lanes in service.
    pub(super) lanes: u32,
    /// Number of other lanes that are idle.
    pub(super) idle_besides: u32,
    /// How long a task may take; `None`: as long as it does.
    pub(super) limit: Option<TimeLimit>,
    /// For each cell type, the number of nodes that other versions could add to a task of it. Types with none are left
    /// out.
    pub(super) brought: &'a [(CellId, u64)],
}

/// A limit on the time of a task that would take the last lane. A task of more than one row is cut to as many rows as
/// are predicted to end in time; a single row may take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeLimit {
    pub(super) most_ns: Ns,
    /// The time before which no single row may take longer; `None` if one may now.
    pub(super) longer_from: Option<Instant>,
}

/// A version's answer to an offered lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferOutcome {
    /// Launched a task, with its predicted duration if known.
    Launched(Option<Ns>),
    /// Has nothing to launch before this time.
    NotBefore(Instant),
    /// Has nothing to launch.
    Nothing,
}
