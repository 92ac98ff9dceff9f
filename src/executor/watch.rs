//! What runs on each lane: whether a live request needs it, whether it ends in time, and whether it stops when it
//! should.

use std::sync::Arc;

use super::loaded::Loaded;
use crate::{
    batching::{LaneId, Ns, ReqId, TaskId},
    engine::StopSignal,
    observe::LaneCounts,
};

/// The tasks on all lanes, and those that lanes have left behind.
pub(super) struct Watch {
    lanes: Vec<Lane>,
    /// Time in which a task must return once its stop signal is raised.
    grace_ns: Ns,
    /// Tasks that did not return in time, whose lanes go on without them.
    abandoned: Vec<(Flight, StopReason)>,
    /// Most of them at a time.
    most_abandoned: usize,
    /// When the next look is due; none where it would find nothing.
    look_at: Option<Ns>,
    counts: LaneCounts,
}

#[derive(Default)]
struct Lane {
    stop: Arc<StopSignal>,
    /// The requests of its task, each as often as the task has spans of it.
    requests: Vec<ReqId>,
    task: Option<(Flight, Progress)>,
}

/// A task on a lane.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) task: TaskId,
    pub(super) loaded: Arc<Loaded>,
    pub(super) stage: u16,
    pub(super) since: Ns,
    /// How long it may be on its lane; `None`: without limit.
    pub(super) limit_ns: Option<Ns>,
}

/// ## Running => Stopping => (returned | Lost => (returned | abandoned => returned))
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// Its stop signal was raised at this time.
    Stopping(StopReason, Ns),
    /// It did not stop, and the core does without its lane.
    Lost(StopReason),
}

/// Why a task is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All its requests have ended.
    Unwanted,
    /// It ran past its time limit.
    Overdue,
}

/// How a task returned: in time or after its stop signal was raised.
pub(super) enum Returned {
    /// Without a stop signal.
    InTime,
    /// After its stop signal was raised; `lost`: the core does without its lane by now.
    Stopped { flight: Flight, reason: StopReason, lost: bool },
    /// After its lane went on without it.
    Abandoned(Flight),
}

/// What a look finds: a task whose stop signal it raises, or one that has not returned within the grace.
pub(super) enum Found {
    Overdue(Flight),
    Lost(Flight, StopReason),
}

impl Watch {
    /// Lanes without tasks, of which as many as there are lanes may be abandoned at a time.
    pub(super) fn new(lanes: u16, grace_ns: Ns) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            grace_ns,
            abandoned: Vec::new(),
            most_abandoned: usize::from(lanes),
            look_at: None,
            counts: LaneCounts::default(),
        }
    }

    /// Records a task that goes to a lane. Returns its stop signal, and the time of the next look if that becomes
    /// earlier.
    pub(super) fn launched(
        &mut self,
        lane: LaneId,
        flight: Flight,
        requests: impl Iterator<Item = ReqId>,
    ) -> (Arc<StopSignal>, Option<Ns>) {
        let look = flight.limit_ns.and_then(|limit_ns| self.arm(flight.since.saturating_add(limit_ns)));
        let Some(lane) = self.lanes.get_mut(usize::from(lane.0)) else { return (Arc::default(), look) };
        lane.requests.clear();
        lane.requests.extend(requests);
        lane.task = Some((flight, Progress::Running));
        (Arc::clone(&lane.stop), look)
    }

    /// Stops tasks that have no live request any more. Returns how many, and the time of the next look if that becomes
    /// earlier.
    pub(super) fn stop_unwanted(&mut self, now: Ns, is_live: impl Fn(ReqId) -> bool) -> (usize, Option<Ns>) {
        let mut stopped = 0;
        for Lane { stop, requests, task } in &mut self.lanes {
            if let Some((_, progress @ Progress::Running)) = task
                && !requests.iter().any(|&req| is_live(req))
            {
                stop.raise();
                *progress = Progress::Stopping(StopReason::Unwanted, now);
                stopped += 1;
            }
        }
        self.counts.unwanted += stopped as u64;
        let look = if stopped == 0 { None } else { self.arm(now.saturating_add(self.grace_ns)) };
        (stopped, look)
    }

    /// Takes a task off its lane.
    pub(super) fn returned(&mut self, lane: LaneId, task: TaskId) -> Returned {
        let entry = self.lanes.get_mut(usize::from(lane.0));
        if let Some(entry) = entry
            && let Some((flight, progress)) = entry.task.take_if(|(flight, _)| flight.task == task)
        {
            let (reason, lost) = match progress {
                Progress::Running => return Returned::InTime,
                Progress::Stopping(reason, _) => (reason, false),
                Progress::Lost(reason) => (reason, true),
            };
            entry.stop.clear();
            return Returned::Stopped { flight, reason, lost };
        }
        let at = self.abandoned.iter().position(|(flight, _)| flight.task == task);
        at.map_or(Returned::InTime, |at| Returned::Abandoned(self.abandoned.swap_remove(at).0))
    }

    /// Stops tasks whose time is over, and gives up those that have not returned within the grace.
    pub(super) fn look(&mut self, now: Ns) -> Vec<(LaneId, Found)> {
        let mut found = Vec::new();
        for (id, Lane { stop, task, .. }) in (0..).map(LaneId).zip(&mut self.lanes) {
            let Some((flight, progress)) = task else { continue };
            if due(flight, *progress, self.grace_ns).is_none_or(|due| now < due) {
                continue;
            }
            match *progress {
                Progress::Running => {
                    stop.raise();
                    *progress = Progress::Stopping(StopReason::Overdue, now);
                    self.counts.overdue += 1;
                    found.push((id, Found::Overdue(flight.clone())));
                }
                Progress::Stopping(reason, _) => {
                    *progress = Progress::Lost(reason);
                    found.push((id, Found::Lost(flight.clone(), reason)));
                }
                Progress::Lost(_) => {}
            }
        }
        found
    }

    /// When to look again.
    pub(super) fn next_look(&mut self) -> Option<Ns> {
        let tasks = self.lanes.iter().filter_map(|lane| lane.task.as_ref());
        self.look_at = tasks.filter_map(|(flight, progress)| due(flight, *progress, self.grace_ns)).min();
        self.look_at
    }

    /// Takes the task off a lost lane, which goes on without it, unless too many tasks are abandoned already. Returns
    /// the lane, its task, and why that was to stop.
    pub(super) fn abandon(&mut self) -> Option<(LaneId, Flight, StopReason)> {
        if self.abandoned.len() >= self.most_abandoned {
            return None;
        }
        let is_lost = |lane: &Lane| matches!(lane.task, Some((_, Progress::Lost(_))));
        let at = self.lanes.iter().position(is_lost)?;
        let Some((flight, Progress::Lost(reason))) = self.lanes[at].task.take() else { return None };
        // The task keeps its own signal, which stays raised.
        self.lanes[at].stop = Arc::default();
        let lane = LaneId(at as u16);
        self.abandoned.push((flight.clone(), reason));
        self.counts.replaced += 1;
        Some((lane, flight, reason))
    }

    /// Takes [`Self::abandon`] back. Returns why the task was to stop, unless it has returned meanwhile.
    pub(super) fn keep(&mut self, lane: LaneId, task: TaskId) -> Option<StopReason> {
        self.counts.replaced -= 1;
        let at = self.abandoned.iter().position(|(flight, _)| flight.task == task)?;
        let (flight, reason) = self.abandoned.swap_remove(at);
        self.lanes[usize::from(lane.0)].task = Some((flight, Progress::Lost(reason)));
        Some(reason)
    }

    /// Raises the stop signals of all lanes.
    pub(super) fn stop_all(&self) {
        self.lanes.iter().for_each(|lane| lane.stop.raise());
    }

    /// How the lanes are.
    pub(super) fn counts(&self) -> LaneCounts {
        let is_stuck = |lane: &&Lane| {
            matches!(lane.task, Some((_, Progress::Stopping(StopReason::Overdue, _) | Progress::Lost(_))))
        };
        let stuck = self.lanes.iter().filter(is_stuck).count() as u64;
        LaneCounts { stuck, abandoned: self.abandoned.len() as u64, ..self.counts }
    }

    /// Brings the next look forward. Returns its time, unless there is one by then.
    fn arm(&mut self, at: Ns) -> Option<Ns> {
        if self.look_at.is_some_and(|look_at| look_at <= at) {
            return None;
        }
        self.look_at = Some(at);
        self.look_at
    }
}

/// When the next look after a task is due.
fn due(flight: &Flight, progress: Progress, grace_ns: Ns) -> Option<Ns> {
    match progress {
        Progress::Running => Some(flight.since.saturating_add(flight.limit_ns?)),
        Progress::Stopping(_, told) => Some(told.saturating_add(grace_ns)),
        Progress::Lost(_) => None,
    }
}

#[cfg(test)]
mod tests;
