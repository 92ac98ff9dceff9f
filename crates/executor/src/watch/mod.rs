//! Watches the tasks on each lane: whether a live request needs them, whether they end in time, and whether they stop
//! when asked to.

use std::{collections::VecDeque, sync::Arc};

use paternoster_batching::{Instant, LaneId, Ns, ReqId, TaskId};
use paternoster_engine::StopSignal;
use paternoster_observe::LaneCounts;

use super::version::ServedVersion;

/// The tasks on all lanes, and the abandoned ones.
pub(super) struct Watch {
    lanes: Vec<Lane>,
    /// Time within which a task must return once its stop signal is raised.
    grace_ns: Ns,
    /// Tasks that did not return in time and whose lanes continue without them.
    abandoned: Vec<(InFlightTask, StopReason)>,
    /// Maximum number of abandoned tasks.
    most_abandoned: usize,
    /// Time of the next check; `None` if there is nothing to check.
    check_at: Option<Instant>,
    counts: LaneCounts,
}

/// The tasks on a lane in execution order. Only the first one runs, so only its time counts.
#[derive(Default)]
struct Lane {
    tasks: VecDeque<OnLane>,
    /// Reusable stop signals and request lists of earlier tasks.
    spare: Vec<(Arc<StopSignal>, Vec<ReqId>)>,
}

struct OnLane {
    flight: InFlightTask,
    progress: Progress,
    stop: Arc<StopSignal>,
    /// The requests of the task, each as often as it has spans in it.
    requests: Vec<ReqId>,
}

/// A task on a lane.
#[derive(Clone)]
pub(super) struct InFlightTask {
    pub(super) task: TaskId,
    pub(super) loaded: Arc<ServedVersion>,
    pub(super) stage: u16,
    pub(super) since: Instant,
    /// Time limit on its lane; `None`: no limit.
    pub(super) limit_ns: Option<Ns>,
}

/// ## Running => Stopping => (returned | Lost => (returned | abandoned => returned))
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// Its stop signal was raised at this time.
    Stopping(StopReason, Instant),
    /// It did not stop, and the core has given up its lane.
    Lost(StopReason),
}

/// Why a task must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All its requests have ended.
    Unwanted,
    /// It exceeded its time limit.
    Overdue,
}

/// How a task returned.
pub(super) enum Returned {
    /// Without a stop signal.
    InTime,
    /// After its stop signal was raised. `lost`: the core has given up its lane meanwhile.
    Stopped { flight: InFlightTask, reason: StopReason, lost: bool },
    /// After its lane had continued without it.
    Abandoned(InFlightTask),
}

/// A finding of a check: a task whose stop signal was raised now, or one that did not return within the grace period.
pub(super) enum Found {
    Overdue(InFlightTask),
    Lost(InFlightTask, StopReason),
}

impl Watch {
    /// Creates lanes without tasks. At most as many tasks may be abandoned at a time as there are lanes.
    pub(super) fn new(lanes: u16, grace_ns: Ns) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            grace_ns,
            abandoned: Vec::new(),
            most_abandoned: usize::from(lanes),
            check_at: None,
            counts: LaneCounts::default(),
        }
    }

    /// Records a task that goes to a lane. Returns its stop signal, and the time of the next check if it becomes
    /// earlier.
    pub(super) fn launched(
        &mut self,
        lane: LaneId,
        flight: InFlightTask,
        requests: impl Iterator<Item = ReqId>,
    ) -> (Arc<StopSignal>, Option<Instant>) {
        let Some(lane) = self.lanes.get_mut(usize::from(lane.0)) else { return (Arc::default(), None) };
        let (stop, mut own) = lane.spare.pop().unwrap_or_default();
        own.clear();
        own.extend(requests);
        let checks_at = due(&flight, Progress::Running, self.grace_ns).filter(|_| lane.tasks.is_empty());
        let entry = OnLane { flight, progress: Progress::Running, stop: Arc::clone(&stop), requests: own };
        lane.tasks.push_back(entry);
        (stop, checks_at.and_then(|at| self.arm(at)))
    }

    /// Records that a task has left a lane, so that the next one on it, if any, runs from now on. Returns the time of
    /// the next check if it becomes earlier.
    pub(super) fn goes_on(&mut self, lane: LaneId, now: Instant) -> Option<Instant> {
        let next = self.lanes.get_mut(usize::from(lane.0))?.tasks.front_mut()?;
        next.flight.since = next.flight.since.max(now);
        if let Progress::Stopping(_, asked_at) = &mut next.progress {
            *asked_at = (*asked_at).max(now);
        }
        let at = due(&next.flight, next.progress, self.grace_ns)?;
        self.arm(at)
    }

    /// Stops tasks that no live request needs. Returns their number, and the time of the next check if it becomes
    /// earlier.
    pub(super) fn stop_unwanted(&mut self, now: Instant, is_live: impl Fn(ReqId) -> bool) -> (usize, Option<Instant>) {
        let mut stopped = 0;
        for OnLane { progress, stop, requests, .. } in self.lanes.iter_mut().flat_map(|lane| &mut lane.tasks) {
            if *progress == Progress::Running && !requests.iter().any(|&req| is_live(req)) {
                stop.raise();
                *progress = Progress::Stopping(StopReason::Unwanted, now);
                stopped += 1;
            }
        }
        self.counts.unwanted += stopped as u64;
        let check_at = if stopped == 0 { None } else { self.arm(now + self.grace_ns) };
        (stopped, check_at)
    }

    /// Removes a task from its lane.
    pub(super) fn returned(&mut self, lane: LaneId, task: TaskId) -> Returned {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane.0))
            && let Some(at) = lane.tasks.iter().position(|entry| entry.flight.task == task)
            && let Some(OnLane { flight, progress, stop, requests }) = lane.tasks.remove(at)
        {
            if progress != Progress::Running {
                stop.clear();
            }
            lane.spare.push((stop, requests));
            return match progress {
                Progress::Running => Returned::InTime,
                Progress::Stopping(reason, _) => Returned::Stopped { flight, reason, lost: false },
                Progress::Lost(reason) => Returned::Stopped { flight, reason, lost: true },
            };
        }
        let at = self.abandoned.iter().position(|(flight, _)| flight.task == task);
        at.map_or(Returned::InTime, |at| Returned::Abandoned(self.abandoned.swap_remove(at).0))
    }

    /// Stops tasks that exceeded their time limit, and gives up those that did not return within the grace period.
    pub(super) fn check(&mut self, now: Instant) -> Vec<(LaneId, Found)> {
        let mut found = Vec::new();
        for (id, lane) in (0..).map(LaneId).zip(&mut self.lanes) {
            let Some(OnLane { flight, progress, stop, .. }) = lane.tasks.front_mut() else { continue };
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

    /// Returns the time of the next check.
    pub(super) fn next_check(&mut self) -> Option<Instant> {
        let first = self.lanes.iter().filter_map(|lane| lane.tasks.front());
        self.check_at = first.filter_map(|entry| due(&entry.flight, entry.progress, self.grace_ns)).min();
        self.check_at
    }

    /// Abandons the task of a lost lane, together with those behind it, unless too many tasks are abandoned already.
    /// Returns the lane, its task, and why the task must stop.
    pub(super) fn abandon(&mut self) -> Option<(LaneId, InFlightTask, StopReason)> {
        if self.abandoned.len() >= self.most_abandoned {
            return None;
        }
        let (at, reason) = self.lanes.iter().enumerate().find_map(|(at, lane)| match lane.tasks.front()?.progress {
            Progress::Lost(reason) => Some((at, reason)),
            Progress::Running | Progress::Stopping(..) => None,
        })?;
        // The tasks keep their own signals; the first one's stays raised.
        let tasks = std::mem::take(&mut self.lanes[at].tasks);
        let flight = tasks.front()?.flight.clone();
        self.abandoned.extend(tasks.into_iter().map(|entry| (entry.flight, reason)));
        self.counts.replaced += 1;
        Some((LaneId(at as u16), flight, reason))
    }

    /// Reverts [`Self::abandon`]. Returns why the task must stop, unless it has returned meanwhile.
    pub(super) fn keep(&mut self, lane: LaneId, task: TaskId) -> Option<StopReason> {
        self.counts.replaced -= 1;
        let at = self.abandoned.iter().position(|(flight, _)| flight.task == task)?;
        let (flight, reason) = self.abandoned.swap_remove(at);
        let progress = Progress::Lost(reason);
        let entry = OnLane { flight, progress, stop: Arc::default(), requests: Vec::new() };
        self.lanes[usize::from(lane.0)].tasks.push_front(entry);
        Some(reason)
    }

    /// Raises the stop signals of all lanes.
    pub(super) fn stop_all(&self) {
        self.lanes.iter().flat_map(|lane| &lane.tasks).for_each(|entry| entry.stop.raise());
    }

    /// Returns the lanes' counts.
    pub(super) fn counts(&self) -> LaneCounts {
        let is_stuck = |lane: &&Lane| {
            let progress = lane.tasks.front().map(|entry| entry.progress);
            matches!(progress, Some(Progress::Stopping(StopReason::Overdue, _) | Progress::Lost(_)))
        };
        let stuck = self.lanes.iter().filter(is_stuck).count() as u64;
        LaneCounts { stuck, abandoned: self.abandoned.len() as u64, ..self.counts }
    }

    /// Brings the next check forward. Returns its time, unless an earlier check is due.
    fn arm(&mut self, at: Instant) -> Option<Instant> {
        if self.check_at.is_some_and(|check_at| check_at <= at) {
            return None;
        }
        self.check_at = Some(at);
        self.check_at
    }
}

/// Returns when the next check of a task is due.
fn due(flight: &InFlightTask, progress: Progress, grace_ns: Ns) -> Option<Instant> {
    match progress {
        Progress::Running => Some(flight.since + flight.limit_ns?),
        Progress::Stopping(_, asked_at) => Some(asked_at + grace_ns),
        Progress::Lost(_) => None,
    }
}

#[cfg(test)]
mod tests;
