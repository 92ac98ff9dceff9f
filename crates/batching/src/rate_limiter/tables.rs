//! The tables behind the limiter's lock: resources, the versions that need them, and the order of those that wait.

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::SmallVec;

use crate::{
    Instant, ModelId, Ns,
    ids::{InstanceIx, StartTag},
};

/// A resource of one device, or a global one, and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Name of the resource.
    pub name: String,
    /// The device; `None` for a global resource.
    pub device: Option<String>,
    /// Units that tasks hold.
    pub in_use: u32,
    /// Time that groups have waited for units with a lane at hand, summed over the groups, in nanoseconds.
    pub waited_ns: Ns,
    /// Number of units, unless more are in use.
    pub(super) wanted: u32,
    /// Free units that are kept for no waiting group. Valid only while groups are called.
    unreserved: u32,
}

impl Resource {
    /// Returns the number of units. It falls below those in use only as they are returned.
    pub fn units(&self) -> u32 {
        self.wanted.max(self.in_use)
    }

    pub(super) fn free(&self) -> u32 {
        self.units() - self.in_use
    }
}

/// Cores with groups that waited for units and may run now.
pub(crate) type Wakes = SmallVec<[usize; 2]>;

/// Units by resource, ascending.
pub(crate) type Needs = SmallVec<[(usize, u32); 2]>;

/// A version on one core.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) model: ModelId,
    /// Name of the model.
    pub(super) name: String,
    pub(super) core: usize,
    pub(super) needs: Needs,
    /// What a task costs in the order.
    pub(super) priority: u64,
    /// Finish tag of its last task.
    pub(super) finish_tag: u64,
    /// Number of its tasks that hold units.
    pub(super) tasks: u32,
    pub(super) wait: Option<Wait>,
}

/// The wait of an instance in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) tag: StartTag,
    /// Start of the wait for units, unless the instance has yielded.
    pub(super) since: Instant,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It lacks units. Those that are returned are kept for it.
    Lacks,
    /// Its units are there and kept for it. Its core has not answered yet.
    Called,
    /// Its core had no open lane when its units were there. None are kept for it.
    Yielded,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) resources: Slab<Resource>,
    pub(super) instances: Slab<Instance>,
    /// Instances that wait.
    pub(super) order: BTreeMap<StartTag, InstanceIx>,
    /// Highest start tag of any task.
    pub(super) virtual_time: u64,
    pub(super) arrivals: u64,
}

impl Instance {
    /// Returns the units of a resource that a task needs.
    pub(super) fn need(&self, resource: usize) -> Option<u32> {
        self.needs.iter().find(|(needed, _)| *needed == resource).map(|&(_, count)| count)
    }

    /// Whether units are kept for it.
    fn reserves(&self) -> bool {
        self.wait.is_some_and(|wait| wait.phase != Phase::Yielded)
    }
}

impl Tables {
    /// Returns a resource, which is added if there is none of the name on the device.
    pub(super) fn resource(&mut self, name: &str, device: Option<String>) -> usize {
        let known = self.resources.iter().find(|(_, other)| other.name == name && other.device == device);
        if let Some((ix, _)) = known {
            return ix;
        }
        let name = name.to_owned();
        self.resources.insert(Resource { name, device, in_use: 0, waited_ns: 0, wanted: 0, unreserved: 0 })
    }

    /// Checks that a resource is global for all versions or for none.
    ///
    /// # Errors
    /// Names a model for which it is the opposite.
    pub(super) fn check_scope(&self, model_name: &str, name: &str, is_global: bool) -> Result<(), String> {
        let differs = |resource: &Resource| resource.name == name && resource.device.is_none() != is_global;
        let resources = self.resources.iter().filter(|(_, resource)| differs(resource));
        let users = |ix: usize| self.instances.iter().filter(move |(_, instance)| instance.need(ix).is_some());
        let mut models = resources.flat_map(|(ix, _)| users(ix)).map(|(_, user)| user.name.as_str()).peekable();
        if models.peek().is_none() {
            return Ok(());
        }
        let (here, there) = if is_global { ("global", "per device") } else { ("per device", "global") };
        let expected = "expected global or per device in all models";
        Err(match models.find(|&other| other != model_name) {
            Some(other) => format!("resource '{name}' is {here} here and {there} in model '{other}'; {expected}"),
            None => format!(
                "resource '{name}' is {here} here and {there} in the loaded version of this model; {expected}: unload \
                 it first"
            ),
        })
    }

    /// Returns the place of an instance's next task in the order.
    pub(super) fn next_tag(&mut self, ix: InstanceIx) -> StartTag {
        self.arrivals += 1;
        (self.instances[ix].finish_tag.max(self.virtual_time), self.arrivals)
    }

    /// Puts an instance into the order, or records that it lacks units again.
    pub(super) fn wait(&mut self, ix: InstanceIx, tag: StartTag, now: Instant) {
        let wait = &mut self.instances[ix].wait;
        let since = wait.filter(|wait| wait.phase != Phase::Yielded).map_or(now, |wait| wait.since);
        *wait = Some(Wait { tag, since, phase: Phase::Lacks });
        self.order.insert(tag, ix);
    }

    /// Whether another instance waits for a resource that this one needs.
    pub(super) fn is_contested(&self, ix: InstanceIx) -> bool {
        let needs = &self.instances[ix].needs;
        let mut others = self.order.values().map(|&other| &self.instances[other]);
        others.any(|other| needs.iter().any(|&(resource, _)| other.need(resource).is_some()))
    }

    /// Whether an instance at this place may take its units: enough are left besides those kept for the ones before it.
    pub(super) fn fits(&self, ix: InstanceIx, tag: StartTag) -> bool {
        let mut left = Needs::new();
        for &(resource, count) in &self.instances[ix].needs {
            let Some(rest) = self.resources[resource].free().checked_sub(count) else { return false };
            left.push((resource, rest));
        }
        for (_, &other) in self.order.range(..tag) {
            let other = &self.instances[other];
            if !other.reserves() {
                continue;
            }
            for (resource, rest) in &mut left {
                let Some(less) = rest.checked_sub(other.need(*resource).unwrap_or(0)) else { return false };
                *rest = less;
            }
        }
        true
    }

    /// Adds the time since an instance began to wait for units to those of its resources.
    pub(super) fn count_wait(&mut self, ix: InstanceIx, now: Instant) {
        let Instance { needs, wait, .. } = &self.instances[ix];
        let Some(Wait { since, .. }) = wait.filter(|wait| wait.phase != Phase::Yielded) else { return };
        for &(resource, _) in needs {
            self.resources[resource].waited_ns += now.since(since);
        }
    }

    pub(super) fn leave_order(&mut self, ix: InstanceIx, now: Instant) {
        self.count_wait(ix, now);
        if let Some(wait) = self.instances[ix].wait.take() {
            self.order.remove(&wait.tag);
        }
    }

    pub(super) fn give_back(&mut self, ix: InstanceIx) {
        let Instance { needs, tasks, .. } = &mut self.instances[ix];
        *tasks -= 1;
        for &(resource, count) in &*needs {
            self.resources[resource].in_use -= count;
        }
    }

    /// Calls the waiting instances that may run now, and returns their cores. Visits the order only up to where no unit
    /// is left.
    pub(super) fn call(&mut self) -> Wakes {
        let Self { resources, instances, order, .. } = self;
        let mut with_units = 0;
        for (_, resource) in resources.iter_mut() {
            resource.unreserved = resource.free();
            with_units += usize::from(resource.unreserved > 0);
        }
        let mut wakes = Wakes::new();
        for &ix in order.values() {
            if with_units == 0 {
                break;
            }
            let instance = &mut instances[ix];
            if !instance.reserves() {
                continue;
            }
            let mut may_run = true;
            for &(resource, count) in &instance.needs {
                let unreserved = &mut resources[resource].unreserved;
                may_run &= *unreserved >= count;
                with_units -= usize::from((1..=count).contains(&*unreserved));
                *unreserved = unreserved.saturating_sub(count);
            }
            let Instance { wait: Some(wait), core, .. } = instance else { continue };
            if may_run && wait.phase == Phase::Lacks {
                wait.phase = Phase::Called;
                if !wakes.contains(core) {
                    wakes.push(*core);
                }
            }
        }
        wakes
    }
}
