//! Finds tasks that do not end.

use std::{sync::Arc, time::Duration};

use tracing::{error, info};

use super::loaded::Loaded;
use crate::batching::{LaneId, Ns};

/// The tasks on all lanes, and since when they are there.
pub(super) struct Watch {
    /// How long a task may be on its lane; `None`: as long as it likes.
    limit_ns: Option<Ns>,
    /// By lane.
    flights: Vec<Option<(Flight, Standing)>>,
    /// Whether somebody looks once the limit of a task may have passed.
    looking: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InTime,
    Overdue,
}

/// A task on a lane.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) loaded: Arc<Loaded>,
    pub(super) stage: u16,
    pub(super) since: Ns,
}

impl Watch {
    pub(super) fn new(lanes: u16, limit_ns: Option<Ns>) -> Self {
        Self { limit_ns, flights: (0..lanes).map(|_| None).collect(), looking: false }
    }

    /// A task went to a lane. When to look for it, if nobody looks by then.
    pub(super) fn launched(&mut self, lane: LaneId, flight: Flight) -> Option<Ns> {
        let due = flight.since.saturating_add(self.limit_ns?);
        *self.flights.get_mut(usize::from(lane.0))? = Some((flight, Standing::InTime));
        (!std::mem::replace(&mut self.looking, true)).then_some(due)
    }

    /// A lane's task is over; what it was, if it had been found to hang.
    pub(super) fn landed(&mut self, lane: LaneId) -> Option<Hang> {
        let (flight, standing) = self.flights.get_mut(usize::from(lane.0))?.take()?;
        (standing == Standing::Overdue).then_some(Hang { lane, flight, over: true })
    }

    /// Tasks whose limit has passed since the last look.
    pub(super) fn overdue(&mut self, now: Ns) -> Vec<(LaneId, Hang)> {
        let Some(limit_ns) = self.limit_ns else { return Vec::new() };
        let mut overdue = Vec::new();
        for (lane, flight) in (0..).map(LaneId).zip(&mut self.flights) {
            if let Some((flight, standing @ Standing::InTime)) = flight
                && flight.since.saturating_add(limit_ns) <= now
            {
                *standing = Standing::Overdue;
                overdue.push((lane, Hang { lane, flight: flight.clone(), over: false }));
            }
        }
        overdue
    }

    /// When to look again; nobody looks while there is nothing to be seen.
    pub(super) fn next_look(&mut self) -> Option<Ns> {
        let limit_ns = self.limit_ns?;
        let in_time = self.flights.iter().flatten().filter(|(_, standing)| *standing == Standing::InTime);
        let first = in_time.map(|(flight, _)| flight.since).min();
        self.looking = first.is_some();
        first.map(|since| since.saturating_add(limit_ns))
    }
}

/// A task that ran past the limit.
pub(super) struct Hang {
    lane: LaneId,
    flight: Flight,
    /// Whether it came back.
    over: bool,
}

impl Hang {
    /// Marks the version and tells the program to stop.
    pub(super) fn began(&self) {
        let Flight { loaded, stage, .. } = &self.flight;
        loaded.hangs.began(*stage);
        if let Some(program) = loaded.programs.program(*stage) {
            program.terminate();
        }
    }

    /// The task came back: the version is as good as before once the last of its stage has. `resume`: its program is to
    /// run again.
    pub(super) fn ended(&self, resume: bool) {
        let Flight { loaded, stage, .. } = &self.flight;
        if loaded.hangs.ended(*stage)
            && resume
            && let Some(program) = loaded.programs.program(*stage)
        {
            program.resume();
        }
    }

    /// What requests of the task are told, that are of this model: some may be of others than the task.
    pub(super) fn reason(&self, model: &str) -> String {
        let reason = self.flight.loaded.hangs.reason().unwrap_or_default();
        format!("model '{model}' does not respond: {reason}")
    }

    /// Writes it into the log.
    pub(super) fn report(&self, now: Ns) {
        let Flight { loaded, stage, since } = &self.flight;
        let (model, version, lane) = (&loaded.spec.name, loaded.spec.version, self.lane.0);
        let seconds = Duration::from_nanos(now.saturating_sub(*since)).as_secs_f64();
        if self.over {
            info!(model = %model, version, stage, lane, seconds, "a task that did not end has ended");
        } else {
            error!(model = %model, version, stage, lane, seconds, "a task does not end; its model is not ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::Repeat, model::ModelSpec, observe::ModelStats};

    fn flight(since: Ns) -> Flight {
        let spec = ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 1,
            inputs: vec![],
            outputs: vec![],
            symbols: vec![],
            decoupled: false,
        };
        let stats = Arc::new(ModelStats::new(1));
        let loaded = Loaded::new(Arc::new(spec), stats, Arc::new(Repeat).into(), Duration::from_nanos(100));
        Flight { loaded, stage: 0, since }
    }

    #[test]
    fn a_task_is_overdue_once_when_its_limit_has_passed() {
        let mut watch = Watch::new(2, Some(100));
        assert_eq!(watch.launched(LaneId(0), flight(10)), Some(110));
        assert_eq!(watch.launched(LaneId(1), flight(50)), None, "somebody looks already");
        assert!(watch.overdue(109).is_empty());
        let overdue: Vec<LaneId> = watch.overdue(110).into_iter().map(|(lane, _)| lane).collect();
        assert_eq!(overdue, [LaneId(0)]);
        assert_eq!(watch.next_look(), Some(150));
        assert!(watch.overdue(149).is_empty(), "it was found before");
    }

    #[test]
    fn only_a_task_that_was_found_to_hang_comes_back_as_one() {
        let mut watch = Watch::new(2, Some(100));
        watch.launched(LaneId(0), flight(0));
        watch.launched(LaneId(1), flight(90));
        assert_eq!(watch.overdue(100).len(), 1);
        assert!(watch.landed(LaneId(0)).is_some());
        assert!(watch.landed(LaneId(1)).is_none());
        assert!(watch.landed(LaneId(1)).is_none(), "the lane is empty");
    }

    #[test]
    fn nobody_looks_while_all_lanes_are_idle() {
        let mut watch = Watch::new(1, Some(100));
        watch.launched(LaneId(0), flight(0));
        watch.landed(LaneId(0));
        assert_eq!(watch.next_look(), None);
        assert_eq!(watch.launched(LaneId(0), flight(500)), Some(600));
    }

    #[test]
    fn without_a_limit_nothing_is_overdue() {
        let mut watch = Watch::new(1, None);
        assert_eq!(watch.launched(LaneId(0), flight(0)), None);
        assert!(watch.overdue(Ns::MAX).is_empty());
        assert_eq!(watch.next_look(), None);
    }

    #[test]
    fn a_version_is_marked_until_the_last_hanging_task_of_a_stage_is_back() {
        let flight = flight(0);
        let hang = Hang { lane: LaneId(0), flight: flight.clone(), over: false };
        assert_eq!(flight.loaded.hangs.reason(), None);
        hang.began();
        hang.began();
        hang.ended(true);
        assert_eq!(flight.loaded.hangs.reason(), Some("a task has not ended within 100ns".to_owned()));
        hang.ended(true);
        assert_eq!(flight.loaded.hangs.reason(), None);
    }
}
