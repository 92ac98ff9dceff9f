//! The driver under the others: a core in virtual time, what it runs, and how requests ended. Each step is checked
//! against the invariants.

use crate::{Action, Actions, Core, End, Event, Ns, ReqId, Task, core::invariants};

/// A core and the time.
#[derive(Debug, Default)]
pub(super) struct Driver {
    pub(super) core: Core,
    pub(super) now: Ns,
    /// When the core wants to be woken.
    pub(super) wake: Option<Ns>,
    /// Tasks that run, in launch order, with the time of their launch.
    pub(super) running: Vec<(Ns, Task)>,
    /// Ended requests, with the time and the kind of end.
    pub(super) ends: Vec<(ReqId, Ns, End)>,
}

impl Driver {
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
                Action::Launch(task) => self.running.push((self.now, task.clone())),
                Action::Finish { req, end } => self.ends.push((*req, self.now, *end)),
                Action::WakeAt(at) => self.wake = Some(*at),
                _ => {}
            }
        }
        if let Err(broken) = invariants::check(&self.core) {
            panic!("at {}: {broken}", self.now);
        }
        actions
    }

    /// Advances time to the next wake, or to `until` if that comes first. Returns whether the core must be woken now.
    pub(super) fn pass(&mut self, until: Ns) -> bool {
        let wake = self.wake.filter(|&wake| wake <= until);
        self.now = self.now.max(wake.unwrap_or(until));
        wake.is_some()
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
