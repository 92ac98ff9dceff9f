//! The driver under the others: a core in virtual time, what it runs, and how requests ended.

use crate::{
    Action, Actions, Core, End, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, ReqId, Task, core::invariants,
};

/// A core and the time.
#[derive(Debug, Default)]
pub(super) struct Driver {
    pub(super) core: Core,
    pub(super) now: Instant,
    /// When the core wants to be woken.
    pub(super) wake: Option<Instant>,
    /// Tasks that run, in launch order, with the time of their launch.
    pub(super) running: Vec<(Instant, Task)>,
    /// Ended requests, with the time and the kind of end.
    pub(super) ends: Vec<(ReqId, Instant, End)>,
    /// Whether runs are too long to check each step against the invariants.
    pub(super) is_long: bool,
}

/// What is due next.
#[derive(Debug)]
pub(super) enum Due {
    /// A task ends.
    End(Task),
    /// The core wants to be woken.
    Wake,
}

impl Driver {
    /// Creates a core with model 0 on lanes that take one task at a time, for a long run.
    pub(super) fn long(knobs: Knobs, lanes: u16) -> Self {
        let mut driver = Self { is_long: true, ..Self::default() };
        driver.act(Event::ModelUp(ModelId(0), Box::new(knobs)));
        for lane in 0..lanes {
            driver.act(Event::LaneUp(LaneId(lane), LaneKnobs::default()));
        }
        driver
    }

    pub(super) fn act(&mut self, event: Event<'_>) -> Actions {
        match event {
            Event::Wake => self.wake = None,
            Event::Completed { task, .. } | Event::Failed { task } => self.running.retain(|(_, own)| own.id != task),
            Event::LaneLost(lane) => self.running.retain(|(_, own)| own.lane != lane),
            _ => {}
        }
        let actions = self.core.step(self.now, event);
        for action in &actions {
            match action {
                Action::Launch(task) => self.running.push((self.now, Task::clone(task))),
                Action::Finish { req, end } => self.ends.push((*req, self.now, *end)),
                Action::WakeAt(at) => self.wake = Some(*at),
                _ => {}
            }
        }
        if !self.is_long
            && let Err(broken) = invariants::check(&self.core)
        {
            panic!("at {:?}: {broken}", self.now);
        }
        actions
    }

    /// Advances time to the next wake, or to `until` if that comes first. Returns whether the core must be woken now.
    pub(super) fn pass(&mut self, until: Instant) -> bool {
        let wake = self.wake.filter(|&wake| wake <= until);
        self.now = self.now.max(wake.unwrap_or(until));
        wake.is_some()
    }

    /// Advances time to what is due first, or to `until` if nothing is by then. Of what is due together, tasks end
    /// first, by lane.
    pub(super) fn next(&mut self, until: Instant, takes_ns: impl Fn(&Task) -> Ns) -> Option<Due> {
        let ends = self.running.iter().map(|(launched, task)| (*launched + takes_ns(task), task));
        let first = ends.min_by_key(|(ends, task)| (*ends, task.lane));
        match first.filter(|(ends, _)| *ends <= until && self.wake.is_none_or(|wake| *ends <= wake)) {
            Some((ends, task)) => {
                let task = task.clone();
                self.now = ends;
                Some(Due::End(task))
            }
            None => self.pass(until).then_some(Due::Wake),
        }
    }
}

/// Lets a driver of more be used as the one under it.
macro_rules! drives {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = Driver;

            fn deref(&self) -> &Driver {
                &self.driver
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Driver {
                &mut self.driver
            }
        }
    };
}
pub(super) use drives;
