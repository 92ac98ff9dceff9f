//! A driver that checks each step against the oracle.

use std::collections::BTreeSet;

use paternoster_model::RowOutcome;

use super::{
    driver::{Driver, drives},
    oracle::Oracle,
};
use crate::{
    Action, Actions, Arrival, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy, QueueKnobs, QueueingKnobs,
    ReqId, Task, TaskId, WindowKnobs,
};

/// A driver, and what the oracle knows.
#[derive(Debug, Default)]
pub(super) struct Pool {
    driver: Driver,
    pub(super) oracle: Oracle,
    idle: BTreeSet<LaneId>,
    draining: BTreeSet<ModelId>,
    pub(super) drained: BTreeSet<ModelId>,
}

drives!(Pool);

/// Triton's `dynamic_batching`: the knobs of the queue and of the window together.
#[derive(Clone, Debug, Default)]
pub(super) struct DynamicBatching {
    pub(super) preferred_batch_sizes: Vec<u32>,
    pub(super) max_queue_delay_ns: Ns,
    pub(super) preserve_ordering: bool,
    pub(super) priority_levels: u64,
    pub(super) default_priority_level: u64,
    pub(super) default_queue: QueueKnobs,
    pub(super) level_queues: Vec<(u64, QueueKnobs)>,
    pub(super) bucket_width: u32,
}

/// A window of `max_batch_rows` rows without delay or limits, for tests to change.
pub(super) fn window(max_batch_rows: u32, batching: DynamicBatching) -> Knobs {
    let DynamicBatching { preferred_batch_sizes, max_queue_delay_ns, .. } = batching;
    let queueing = QueueingKnobs {
        preserve_ordering: batching.preserve_ordering,
        priority_levels: batching.priority_levels,
        default_priority_level: batching.default_priority_level,
        default_queue: batching.default_queue,
        level_queues: batching.level_queues,
        bucket_width: Some(batching.bucket_width),
        hold_until_waiting: 0,
        hold_until_backlog: 0,
    };
    let policy = Policy::Window(WindowKnobs { preferred_batch_sizes, max_queue_delay_ns });
    Knobs { max_batch_rows, max_in_flight: 8, queueing, policy, ..Knobs::default() }
}

pub(super) fn serial() -> Knobs {
    Knobs { max_batch_rows: 8, max_in_flight: 8, ..Knobs::default() }
}

/// A request of one row without options.
pub(super) fn arrival(req: u64) -> Arrival {
    Arrival::new(ReqId(req), ModelId(0), 1)
}

impl Pool {
    /// Creates a pool of models 0, 1, … with these knobs on `lanes` lanes.
    pub(super) fn new(lanes: u16, models: impl IntoIterator<Item = Knobs>) -> Self {
        let mut pool = Self::default();
        for (model, knobs) in (0..).zip(models) {
            pool.model_up(ModelId(model), knobs);
        }
        for lane in 0..lanes {
            pool.idle.insert(LaneId(lane));
            pool.act(Event::LaneUp(LaneId(lane), LaneKnobs::default()));
        }
        pool
    }

    pub(super) fn model_up(&mut self, model: ModelId, knobs: Knobs) -> Actions {
        self.oracle.models.entry(model).or_insert_with(|| knobs.clone());
        self.act(Event::ModelUp(model, Box::new(knobs)))
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) -> Actions {
        self.oracle.pass(self.driver.now);
        self.oracle.arrive(arrival.clone(), self.driver.now);
        self.act(Event::Arrived(arrival))
    }

    pub(super) fn cancel(&mut self, req: ReqId) -> Actions {
        self.oracle.pass(self.driver.now);
        self.oracle.cancel(req);
        self.act(Event::Cancelled(req))
    }

    pub(super) fn resume(&mut self, req: ReqId) -> Actions {
        self.oracle.pass(self.driver.now);
        self.oracle.resume(req);
        self.act(Event::Resumed(req))
    }

    pub(super) fn complete(&mut self, task: TaskId, rows: &[RowOutcome]) -> Actions {
        self.land(task, Some(rows));
        self.act(Event::Completed { task, rows })
    }

    pub(super) fn fail(&mut self, task: TaskId) -> Actions {
        self.land(task, None);
        self.act(Event::Failed { task })
    }

    fn land(&mut self, task: TaskId, outcomes: Option<&[RowOutcome]>) {
        self.oracle.pass(self.driver.now);
        if let Some(task) = self.oracle.running.get(&task) {
            self.idle.insert(task.lane);
        }
        self.oracle.land(task, outcomes);
    }

    pub(super) fn drain(&mut self, model: ModelId) -> Actions {
        self.oracle.release(model);
        if self.oracle.models.contains_key(&model) {
            self.draining.insert(model);
        }
        self.act(Event::ModelDraining(model))
    }

    pub(super) fn wake(&mut self) -> Actions {
        self.act(Event::Wake)
    }

    /// Advances time, with every wake at its time.
    pub(super) fn pass_to(&mut self, until: Instant) {
        while self.pass(until) {
            self.wake();
        }
    }

    pub(super) fn running(&self) -> Vec<Task> {
        self.running.iter().map(|(_, task)| task.clone()).collect()
    }

    fn act(&mut self, event: Event<'_>) -> Actions {
        self.oracle.pass(self.driver.now);
        let mut announced = self.wake.filter(|_| !matches!(event, Event::Wake));
        let actions = self.driver.act(event);
        for action in &actions {
            if let Action::WakeAt(at) = action {
                let before = announced.replace(*at);
                assert!(before.is_none_or(|wake| *at < wake), "a wake at {at:?} is announced after {before:?}");
            }
            self.take(action);
        }
        self.oracle.check_quiet(self.driver.now, self.idle.len());
        for model in &self.draining {
            let busy = self.oracle.is_busy(*model);
            assert!(busy, "{model:?} has nothing left and is not drained");
        }
        actions
    }

    fn take(&mut self, action: &Action) {
        match action {
            Action::Launch(task) => {
                assert!(self.idle.remove(&task.lane), "{:?} is launched on a lane that is not idle", task.id);
                self.oracle.launch(task, self.driver.now);
            }
            Action::Emit { req, step } => self.oracle.emit(*req, *step),
            Action::Finish { req, end } => self.oracle.finish(*req, *end),
            Action::Joined { .. } | Action::SequenceOver { .. } => panic!("no version here has sequences"),
            Action::Recalled(arrival) => panic!("{:?} leaves, and nobody has asked it to", arrival.req),
            Action::Drained(model) => {
                assert!(self.draining.remove(model), "{model:?} drained without being asked to");
                assert!(!self.oracle.is_busy(*model), "{model:?} has a request or a task left and is drained");
                self.oracle.models.remove(model);
                self.drained.insert(*model);
            }
            Action::UnitsFreed { .. } | Action::WakeAt(_) => {}
        }
    }
}
