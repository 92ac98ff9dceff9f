//! A lane that is offered to a version: what the version sees of the pool, and what it answers.

use super::{CellId, Ns};

/// What a version sees of the pool as it is offered a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolView<'a> {
    /// Time that other models can spare before one of their targets is missed; none without targets.
    pub(super) neighbours_slack_ns: Option<Ns>,
    /// Lanes there are.
    pub(super) lanes: u32,
    /// Other lanes that have nothing to do.
    pub(super) idle_besides: u32,
    /// By cell type: nodes of other versions that would share a task of it; only those that some would.
    pub(super) brought: &'a [(CellId, u64)],
}

/// What a version makes of an offered lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It launched a task there, predicted to take so long.
    Launched(Option<Ns>),
    /// It has nothing to launch before this time.
    NotBefore(Ns),
    /// It has nothing to launch.
    Nothing,
}
