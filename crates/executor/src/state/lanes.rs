//! Tasks that must stop, because all their requests have ended or their time limit has passed; and lanes that continue
//! without a hung task.

use std::time::Duration;

use paternoster_batching::{End, Event, Instant, LaneId};
use paternoster_observe::LaneCounts;
use tracing::{debug, error, info, warn};

use super::{Effects, State, find};
use crate::{
    InferError,
    watch::{Found, InFlightTask, StopReason},
};

/// A change in the state of a task that must stop. Each is logged and may change whether the server is ready.
pub(crate) struct Incident {
    lane: LaneId,
    flight: InFlightTask,
    kind: IncidentKind,
}

#[derive(Clone, Copy)]
enum IncidentKind {
    Overdue,
    Lost,
    Abandoned,
    Returned,
}

/// Whether versions and lanes respond, as readiness needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responsiveness {
    /// Counts each time that a version stops or starts being [responsive](crate::ModelHandle::is_responsive).
    pub changes: u64,
    /// Number of lanes that are occupied by a task past its time limit, or lost to one.
    pub stuck_lanes: u64,
    /// Number of devices that are permanently lost.
    pub lost_devices: u64,
    /// Whether the scheduler has panicked: nothing is served any more, and the process must end.
    pub failed: bool,
}

/// A lane that needs a new thread, and the task that occupies the old one.
pub(crate) struct Replacement {
    pub(crate) lane: LaneId,
    pub(crate) flight: InFlightTask,
}

impl Incident {
    pub(crate) fn returned(lane: LaneId, flight: InFlightTask) -> Self {
        Self { lane, flight, kind: IncidentKind::Returned }
    }

    /// Logs the incident.
    pub(crate) fn report(&self, now: Instant, device: usize) {
        let InFlightTask { loaded, stage, since, .. } = &self.flight;
        let (model, version, lane) = (&loaded.spec.name, loaded.spec.version, self.lane.0);
        let seconds = Duration::from_nanos(now.since(*since)).as_secs_f64();
        match self.kind {
            IncidentKind::Overdue => {
                warn!(model = %model, version, stage, device, lane, seconds, "task stopped: its time is over");
            }
            IncidentKind::Lost => error!(model = %model, version, stage, device, lane, seconds, "task does not stop"),
            IncidentKind::Abandoned => {
                warn!(model = %model, version, stage, device, lane, seconds, "lane continues on a new thread");
            }
            IncidentKind::Returned => {
                info!(model = %model, version, stage, device, lane, seconds, "stopped task returned")
            }
        }
    }
}

impl InFlightTask {
    /// Returns the error for the task's requests of this model, which may differ from the task's own model.
    pub(crate) fn overdue_reason(&self, model: &str) -> String {
        format!("model '{model}' does not respond: {}", self.loaded.hangs.reason_of(usize::from(self.stage)))
    }
}

impl State {
    /// Stops tasks whose requests have all ended, because their results are not needed.
    pub(crate) fn stop_unwanted(&mut self, now: Instant, after: &mut Effects) {
        let requests = &self.requests;
        let is_live = |req| find(requests, req).is_some();
        let (stopped, check_at) = self.watch.stop_unwanted(now, is_live);
        after.lanes_changed |= stopped > 0;
        after.watch_at = check_at.or(after.watch_at);
        if stopped > 0 {
            debug!(tasks = stopped, "tasks stopped early: all their requests have ended");
        }
    }

    /// Stops tasks past their limit. If a task does not stop, its lane is taken from the core until the task returns or
    /// a new thread serves the lane.
    pub(crate) fn look_at_lanes(&mut self, now: Instant, after: &mut Effects) {
        if self.stopped {
            return;
        }
        for (lane, found) in self.watch.check(now) {
            match found {
                Found::Overdue(flight) => {
                    flight.loaded.hangs.began(flight.stage);
                    after.incidents.push(Incident { lane, flight, kind: IncidentKind::Overdue });
                }
                Found::Lost(flight, reason) => {
                    let before = after.ended.len();
                    self.step(now, Event::LaneLost(lane), after);
                    if reason == StopReason::Overdue {
                        // Requests that ended in this step failed because of the overdue task, so they get its reason.
                        for (record, _) in &mut after.ended[before..] {
                            let model = &record.handle.loaded.spec.name;
                            record.error.get_or_insert_with(|| flight.overdue_reason(model));
                        }
                    }
                    after.incidents.push(Incident { lane, flight, kind: IncidentKind::Lost });
                }
            }
        }
        self.abandon_lost(after);
        after.watch_at = self.watch.next_check();
    }

    /// Lets lost lanes continue without their tasks, up to the allowed number of abandoned tasks.
    pub(crate) fn abandon_lost(&mut self, after: &mut Effects) {
        while let Some((lane, flight, reason)) = self.watch.abandon() {
            // The model's other tasks have a lane again.
            if reason == StopReason::Overdue {
                flight.loaded.hangs.ended(flight.stage);
            }
            after.incidents.push(Incident { lane, flight: flight.clone(), kind: IncidentKind::Abandoned });
            after.replacements.push(Replacement { lane, flight });
        }
    }

    /// Puts a lane back into service.
    pub(crate) fn lane_up(&mut self, now: Instant, lane: LaneId, after: &mut Effects) {
        if !self.lost {
            self.step(now, Event::LaneUp(lane, self.lane_knobs), after);
        }
    }

    /// Handles the loss of the device. Its requests fail, except those that can move to another device.
    pub(crate) fn device_lost(&mut self, now: Instant, after: &mut Effects) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        self.watch.stop_all();
        let before = after.ended.len();
        self.step(now, Event::DeviceLost, after);
        let failed = after.ended.extract_if(before.., |(_, end)| *end == End::Failed);
        after.refused.extend(failed.map(|(record, _)| (record, InferError::DeviceLost)));
        let unread_outputs = self.take_ended();
        after.refused.extend(unread_outputs.into_iter().map(|record| (record, InferError::DeviceLost)));
    }

    /// Makes a lane that got no new thread wait for its task, unless the task has returned.
    pub(crate) fn lane_not_replaced(
        &mut self,
        now: Instant,
        Replacement { lane, flight }: Replacement,
        after: &mut Effects,
    ) {
        let Some(reason) = self.watch.keep(lane, flight.task) else { return self.lane_up(now, lane, after) };
        if reason == StopReason::Overdue {
            flight.loaded.hangs.began(flight.stage);
        }
        after.incidents.push(Incident { lane, flight, kind: IncidentKind::Lost });
    }

    /// Returns the lanes' counts.
    pub(crate) fn lane_counts(&self) -> LaneCounts {
        self.watch.counts()
    }
}
