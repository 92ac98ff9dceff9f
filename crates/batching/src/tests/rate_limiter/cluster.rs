//! Cores that share a rate limiter, in virtual time. After each step, units in use are compared with those of the tasks
//! that run.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    Action, Arrival, Core, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, RateLimiter, RateLimiterKnobs, ReqId,
    ResourceAmount, ResourceDemand, Task, tests::pool::arrival,
};

/// Cores that share a rate limiter, their tasks, and the time.
pub(super) struct Cluster {
    pub(super) limiter: Arc<RateLimiter>,
    devices: Vec<String>,
    pub(super) cores: Vec<Core>,
    models: BTreeMap<ModelId, RateLimiterKnobs>,
    takes_ns: fn(ModelId) -> Ns,
    pub(super) now: Instant,
    /// Tasks that run: the core, the end, and the task.
    pub(super) running: Vec<(usize, Instant, Task)>,
    /// The models of all tasks in launch order, with the time and the core.
    pub(super) launches: Vec<(Ns, usize, u32)>,
    alarms: Vec<Option<Instant>>,
    /// Requests that have not ended.
    pub(super) open: Vec<(usize, ReqId)>,
    sent: u64,
}

impl Cluster {
    /// Creates a core for each device, with this number of lanes.
    pub(super) fn new(devices: &[&str], lanes: u16, amounts: &[ResourceAmount], takes_ns: fn(ModelId) -> Ns) -> Self {
        let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
        let limiter = Arc::new(RateLimiter::new(amounts.to_vec(), devices.iter().cloned()));
        let cores = (0..devices.len()).map(|core| Core::limited(Arc::clone(&limiter), core)).collect();
        let alarms = vec![None; devices.len()];
        let (models, running, launches, open) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let (now, sent) = (Instant::ZERO, 0);
        let mut cluster =
            Self { limiter, devices, cores, models, takes_ns, now, running, launches, alarms, open, sent };
        for core in 0..cluster.cores.len() {
            (0..lanes).for_each(|lane| cluster.step(core, Event::LaneUp(LaneId(lane), LaneKnobs::default())));
        }
        cluster
    }

    /// Loads a model on all cores.
    pub(super) fn up(&mut self, model: u32, knobs: Knobs) -> Result<(), String> {
        let (name, all): (_, Vec<usize>) = (format!("m{model}"), (0..self.cores.len()).collect());
        let model = ModelId(model);
        let freed = self.limiter.register(model, &name, &knobs.rate_limiter, &all)?;
        self.models.insert(model, knobs.rate_limiter.clone());
        self.wake(freed);
        all.into_iter().for_each(|core| self.step(core, Event::ModelUp(model, Box::new(knobs.clone()))));
        Ok(())
    }

    pub(super) fn send(&mut self, core: usize, model: u32) -> ReqId {
        let req = ReqId(self.sent);
        self.sent += 1;
        self.open.push((core, req));
        self.step(core, Event::Arrived(Arrival { model: ModelId(model), ..arrival(req.0) }));
        req
    }

    /// Handles an event, and those that it causes on other cores.
    pub(super) fn step(&mut self, core: usize, event: Event<'_>) {
        let freed = self.step_one(core, event);
        self.wake(freed);
    }

    /// Wakes cores with groups that may run, until there are none.
    fn wake(&mut self, cores: Vec<usize>) {
        let mut cores = VecDeque::from(cores);
        while let Some(core) = cores.pop_front() {
            cores.extend(self.step_one(core, Event::UnitsFreed));
        }
        assert_eq!(self.limiter.calls(), 0, "units are kept for a group that has no lane");
    }

    /// Handles one event, and returns the cores that may run groups because of it.
    fn step_one(&mut self, core: usize, event: Event<'_>) -> Vec<usize> {
        let mut freed = Vec::new();
        for action in self.cores[core].step(self.now, event) {
            match action {
                Action::Launch(task) => {
                    self.launches.push((self.now.as_ns(), core, task.model.0));
                    self.running.push((core, self.now + (self.takes_ns)(task.model), *task));
                }
                Action::Finish { req, .. } => self.open.retain(|&(_, open)| open != req),
                Action::UnitsFreed { core: other } => {
                    assert_ne!(other, core, "a core looks at its groups itself");
                    freed.push(other);
                }
                Action::WakeAt(at) => self.alarms[core] = Some(at),
                Action::Drained(_) => {}
                other => panic!("{other:?} is not expected"),
            }
        }
        self.check();
        freed
    }

    /// Checks the invariants, and that exactly the units of running tasks are in use.
    fn check(&self) {
        self.limiter.check().expect("the limiter's invariants hold");
        for resource in self.limiter.resources() {
            let holders = self.running.iter().filter_map(|(core, _, task)| {
                let demand = self.models[&task.model].resources.iter().find(|demand| demand.name == resource.name)?;
                let is_here = resource.device.as_ref().is_none_or(|device| *device == self.devices[*core]);
                is_here.then_some(demand.count)
            });
            let held: u32 = holders.sum();
            assert!(held <= resource.units(), "tasks run with {held} of {resource:?}");
            assert_eq!(held, resource.in_use, "{resource:?}");
        }
        for core in &self.cores {
            core.check().expect("the core's invariants hold");
        }
    }

    /// Ends a running task.
    pub(super) fn end(&mut self, at: usize, fails: bool) {
        let (core, _, task) = self.running.remove(at);
        let event = if fails { Event::Failed { task: task.id } } else { Event::Completed { task: task.id, rows: &[] } };
        self.step(core, event);
    }

    /// Advances time to the next end of a task, or alarm. Returns whether there is one.
    pub(super) fn pass(&mut self) -> bool {
        let end = (0..self.running.len()).min_by_key(|&at| self.running[at].1);
        let alarm =
            (0..self.alarms.len()).filter(|&core| self.alarms[core].is_some()).min_by_key(|&core| self.alarms[core]);
        let ends = end.map(|at| self.running[at].1);
        match (end, alarm) {
            (Some(at), _) if alarm.is_none_or(|core| ends <= self.alarms[core]) => {
                self.now = self.now.max(self.running[at].1);
                self.end(at, false);
            }
            (_, Some(core)) => {
                self.now = self.now.max(self.alarms[core].take().unwrap_or_default());
                self.step(core, Event::Wake);
            }
            (_, None) => return false,
        }
        true
    }

    pub(super) fn run_out(&mut self) {
        while self.pass() {}
        assert_eq!(self.open, [], "requests wait for nothing");
    }

    /// Returns the models that run now.
    pub(super) fn run(&self) -> Vec<u32> {
        let mut models: Vec<u32> = self.running.iter().map(|(_, _, task)| task.model.0).collect();
        models.sort_unstable();
        models
    }

    pub(super) fn in_use(&self, name: &str) -> Vec<u32> {
        let resources = self.limiter.resources().into_iter().filter(|resource| resource.name == name);
        resources.map(|resource| resource.in_use).collect()
    }
}

pub(super) fn demand(name: &str, is_global: bool, count: u32) -> ResourceDemand {
    ResourceDemand { name: name.to_owned(), is_global, count }
}

pub(super) fn amount(name: &str, count: u32, device: Option<&str>) -> ResourceAmount {
    ResourceAmount { name: name.to_owned(), count, device: device.map(str::to_owned) }
}

/// A model that runs requests one by one, up to eight at a time, and needs these resources.
pub(super) fn needs(resources: &[ResourceDemand], priority: u32) -> Knobs {
    let rate_limiter = RateLimiterKnobs { resources: resources.to_vec(), priority };
    Knobs { max_in_flight: 8, rate_limiter, ..Knobs::default() }
}
