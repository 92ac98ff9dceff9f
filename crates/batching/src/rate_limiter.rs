//! Triton's rate limiter: named resources, of each device or of all together, that the cores of a pool share. A task
//! runs only while it holds the units that its version asks for.
//!
//! A core takes units when a lane is given to a group, and gives them back when the task ends. A group for which units
//! lack waits here, while other groups get the lane. Groups wait in the order of start-time fair queueing (Goyal, Vin
//! and Cheng, 1996), in which each task costs a group its priority: a group of priority 2 starts half as many tasks as
//! one of priority 1, and time for which a group wanted nothing is not owed. Units that a waiting group needs are kept
//! for it as they are returned, so a group that needs many is not overtaken for ever by groups that need few; units
//! beyond that go to the next. The order is total and a task takes all its units at once, so there is no deadlock.
//!
//! The lock is held for a few operations on small tables, and never together with another one of this crate.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use slab::Slab;
use smallvec::SmallVec;

use super::{ModelId, Ns, hold::hold, ids::InstanceIx};

/// A version's settings for the rate limiter (Triton's `instance_group.rate_limiter`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimiterKnobs {
    /// What each task holds while it runs, by name; none twice.
    pub resources: Vec<ResourceDemand>,
    /// A version of priority n has 1 / n of the chances to start a task of one of priority 1. 0 counts as 1.
    pub priority: u32,
}

/// Units of a resource that a task holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceDemand {
    /// Name of the resource.
    pub name: String,
    /// Whether all devices share its units; otherwise each device has its own.
    pub is_global: bool,
    /// Number of units.
    pub count: u32,
}

/// Units of a resource that there are, as the operator gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceAmount {
    /// Name of the resource.
    pub name: String,
    /// Number of units.
    pub count: u32,
    /// The device that has them; `None`: each device, or all together if the resource is global.
    pub device: Option<String>,
}

/// A resource and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceUse {
    /// Name of the resource.
    pub name: String,
    /// The device; `None` for a global resource.
    pub device: Option<String>,
    /// Number of units.
    pub units: u32,
    /// Units that tasks hold.
    pub in_use: u32,
    /// Time that groups have waited for units with a lane at hand, summed over the groups, in nanoseconds.
    pub waited_ns: Ns,
}

/// Cores with groups that waited for units and may run now.
pub(super) type Wakes = SmallVec<[usize; 2]>;

/// Units by resource, ascending.
pub(super) type Needs = SmallVec<[(usize, u32); 2]>;

/// The units that the tasks of a group need.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) instance: InstanceIx,
    pub(super) needs: Needs,
    /// Whether the group has a place in the order.
    pub(super) waits: bool,
}

/// How many tasks of a version units allow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// In addition to those that run.
    pub(super) more: u32,
    /// In all.
    pub(super) most: u32,
}

impl Room {
    /// The room of a version that needs no units.
    pub(super) const UNLIMITED: Self = Self { more: u32::MAX, most: u32::MAX };
}

/// The resources of a pool.
#[derive(Debug)]
pub struct RateLimiter {
    /// As given; other resources have as many units as the most demanding version asks for.
    amounts: Vec<ResourceAmount>,
    /// Name of each core's device. Cores with the same name share a device.
    devices: Vec<String>,
    tables: Mutex<Tables>,
}

/// A resource of one device, or a global one.
#[derive(Debug)]
struct Resource {
    name: String,
    device: Option<String>,
    /// Number of units, unless more are in use.
    wanted: u32,
    in_use: u32,
    waited_ns: Ns,
}

impl Resource {
    /// Returns the number of units. It falls below those in use only as they are returned.
    fn units(&self) -> u32 {
        self.wanted.max(self.in_use)
    }

    fn free(&self) -> u32 {
        self.units() - self.in_use
    }
}

/// A version on one core.
#[derive(Debug)]
struct Instance {
    model: ModelId,
    core: usize,
    needs: Needs,
    /// What a task costs in the order.
    priority: u64,
    /// Start tag of its next task, unless the order has passed it.
    next: u64,
    /// Number of its tasks that hold units.
    tasks: u32,
    waiting: Option<Waiting>,
}

/// A group that waits for units.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    place: Place,
    since: Ns,
    /// Whether its core knows that it may run.
    is_called: bool,
}

/// A place in the order: the start tag, then the order of arrival.
pub(super) type Place = (u64, u64);

#[derive(Debug, Default)]
struct Tables {
    resources: Slab<Resource>,
    instances: Slab<Instance>,
    waiting: BTreeMap<Place, InstanceIx>,
    /// Highest start tag of any task.
    passed: u64,
    arrivals: u64,
}

impl RateLimiter {
    /// Creates the resources of cores on these devices, one name per core.
    pub fn new(amounts: Vec<ResourceAmount>, devices: impl IntoIterator<Item = String>) -> Self {
        Self { amounts, devices: devices.into_iter().collect(), tables: Mutex::default() }
    }

    /// Registers a version on these cores. Must be called before [`Event::ModelUp`](super::Event::ModelUp); the cores
    /// remove the version when it is drained. Returns the cores with groups that may run now, because a resource has
    /// got more units; send them [`Event::UnitsFreed`](super::Event::UnitsFreed).
    ///
    /// # Errors
    /// If a resource has fewer units than a task of the version needs, or is global for one version and not for
    /// another. The text names it. Nothing is registered then.
    pub fn register(&self, model: ModelId, knobs: &RateLimiterKnobs, cores: &[usize]) -> Result<Vec<usize>, String> {
        let demands: Vec<&ResourceDemand> = knobs.resources.iter().filter(|demand| demand.count > 0).collect();
        if demands.is_empty() {
            return Ok(Vec::new());
        }
        let tables = &mut *self.tables.lock();
        let device_of = |core: usize| self.devices.get(core).cloned().unwrap_or_default();
        for demand in &demands {
            let ResourceDemand { name, is_global, count } = demand;
            let differs = |other: &Resource| other.name == *name && other.device.is_none() != *is_global;
            if tables.resources.iter().any(|(_, other)| differs(other)) {
                let (own, other) = if *is_global { ("global", "per device") } else { ("per device", "global") };
                return Err(format!("resource '{name}' is {own} here and {other} in a loaded model; expected one"));
            }
            for &core in cores {
                let device = (!is_global).then(|| device_of(core));
                if let Some(units) = self.given(name, device.as_deref()).filter(|units| units < count) {
                    let place = device.map_or_else(String::new, |device| format!(" on device {device}"));
                    return Err(format!(
                        "resource '{name}' is limited to {units}{place} (--rate-limit-resource), but a batch needs {count}"
                    ));
                }
            }
        }
        for &core in cores {
            let needs = demands.iter().map(|demand| {
                let device = (!demand.is_global).then(|| device_of(core));
                (tables.resource(&demand.name, device), demand.count)
            });
            let mut needs: Needs = needs.collect();
            needs.sort_unstable();
            tables.instances.insert(Instance {
                model,
                core,
                needs,
                priority: u64::from(knobs.priority.max(1)),
                next: 0,
                tasks: 0,
                waiting: None,
            });
        }
        self.size(tables);
        Ok(tables.call().into_vec())
    }

    /// Reverts [`Self::register`] for a version that no core has.
    pub fn unregister(&self, model: ModelId) {
        let tables = &mut *self.tables.lock();
        tables.instances.retain(|_, instance| instance.model != model);
        self.size(tables);
    }

    /// Returns all resources that loaded versions name, by name and device.
    pub fn usage(&self) -> Vec<ResourceUse> {
        let tables = self.tables.lock();
        let read = tables.resources.iter().map(|(_, resource)| ResourceUse {
            name: resource.name.clone(),
            device: resource.device.clone(),
            units: resource.units(),
            in_use: resource.in_use,
            waited_ns: resource.waited_ns,
        });
        let mut read: Vec<ResourceUse> = read.collect();
        read.sort_unstable_by(|one, other| (&one.name, &one.device).cmp(&(&other.name, &other.device)));
        read
    }

    /// Checks the invariants between two operations: units in use are those of tasks and are at most as many as there
    /// are, and every group that may run has been called.
    ///
    /// # Errors
    /// Describes the first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        let tables = self.tables.lock();
        for (ix, Resource { name, wanted, in_use, .. }) in &tables.resources {
            let holders =
                tables.instances.iter().filter_map(|(_, instance)| Some((instance.need(ix)?, instance.tasks)));
            let (mut held, mut most) = (0, 0);
            for (count, tasks) in holders {
                (held, most) = (held + count * tasks, most.max(count));
            }
            hold!(held == *in_use, "{in_use} units of '{name}' are in use, of which tasks hold {held}");
            hold!(most > 0 && most <= *wanted, "'{name}' has {wanted} units, but a task needs {most}");
        }
        for (ix, instance) in &tables.instances {
            let place = instance.waiting.map(|waiting| waiting.place);
            let filed = place.is_none_or(|place| tables.waiting.get(&place) == Some(&ix));
            hold!(filed, "instance {ix} waits at {place:?}, where it is not found");
            let is_called = instance.waiting.is_none_or(|waiting| waiting.is_called || !tables.fits(ix, waiting.place));
            hold!(is_called, "instance {ix} may run and is not called");
        }
        let waiting = tables.instances.iter().filter(|(_, instance)| instance.waiting.is_some()).count();
        hold!(waiting == tables.waiting.len(), "{waiting} instances wait, of {}", tables.waiting.len());
        Ok(())
    }

    /// Returns what tasks of a version need on a core; `None` if they need no units.
    pub(super) fn claim(&self, model: ModelId, core: usize) -> Option<Claim> {
        let tables = self.tables.lock();
        let mut instances = tables.instances.iter();
        let (ix, instance) = instances.find(|(_, instance)| (instance.model, instance.core) == (model, core))?;
        Some(Claim { instance: ix, needs: instance.needs.clone(), waits: false })
    }

    /// Takes the units of one task. Where they lack, or are kept for groups before it, the instance waits from now on
    /// and `None` is returned.
    pub(super) fn take(&self, ix: InstanceIx, now: Ns) -> Option<Room> {
        let tables = &mut *self.tables.lock();
        let place = match tables.instances[ix].waiting {
            Some(waiting) => waiting.place,
            None => {
                tables.arrivals += 1;
                (tables.instances[ix].next.max(tables.passed), tables.arrivals)
            }
        };
        if !tables.fits(ix, place) {
            let waiting = &mut tables.instances[ix].waiting;
            let since = waiting.map_or(now, |waiting| waiting.since);
            *waiting = Some(Waiting { place, since, is_called: false });
            tables.waiting.insert(place, ix);
            return None;
        }
        tables.leave_order(ix, now);
        tables.passed = tables.passed.max(place.0);
        let Instance { needs, next, priority, tasks, .. } = &mut tables.instances[ix];
        *next = place.0.saturating_add(*priority);
        *tasks += 1;
        let mut room = Room::UNLIMITED;
        for &(resource, count) in &*needs {
            let resource = &mut tables.resources[resource];
            resource.in_use += count;
            let (more, most) = (resource.free() / count, resource.units() / count);
            room = Room { more: room.more.min(more), most: room.most.min(most) };
        }
        Some(room)
    }

    /// Gives back the units of a task that has ended.
    pub(super) fn give_back(&self, ix: InstanceIx) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.give_back(ix);
        tables.call()
    }

    /// Gives back units for which there was no task after all, which costs no chance.
    pub(super) fn decline(&self, ix: InstanceIx) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.give_back(ix);
        let Instance { next, priority, .. } = &mut tables.instances[ix];
        *next = next.saturating_sub(*priority);
        tables.call()
    }

    /// Removes an instance that does not want a task any more from the order.
    pub(super) fn withdraw(&self, ix: InstanceIx, now: Ns) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.leave_order(ix, now);
        tables.call()
    }

    /// Removes an instance, which holds no units.
    pub(super) fn remove(&self, ix: InstanceIx, now: Ns) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.leave_order(ix, now);
        let instance = tables.instances.remove(ix);
        debug_assert_eq!(instance.tasks, 0, "{:?} is removed while its tasks run", instance.model);
        self.size(tables);
        tables.call()
    }

    /// Returns the place of a waiting instance that has been called.
    pub(super) fn called(&self, ix: InstanceIx) -> Option<Place> {
        let tables = self.tables.lock();
        tables.instances[ix].waiting.filter(|waiting| waiting.is_called).map(|waiting| waiting.place)
    }

    /// Returns the units that the operator gave to a device, or to all together. As in Triton, the largest amount that
    /// applies counts, and a global resource has no device.
    fn given(&self, name: &str, device: Option<&str>) -> Option<u32> {
        let amounts = self.amounts.iter().filter(|amount| amount.name == name);
        let applies = |amount: &&ResourceAmount| match (device, &amount.device) {
            (None, _) | (Some(_), None) => true,
            (Some(device), Some(named)) => device == named,
        };
        amounts.filter(applies).map(|amount| amount.count).max()
    }

    /// Sets the units of each resource after the versions have changed, and removes those that none names.
    fn size(&self, tables: &mut Tables) {
        let Tables { resources, instances, .. } = tables;
        resources.retain(|ix, resource| {
            let most = instances.iter().filter_map(|(_, instance)| instance.need(ix)).max();
            let given = self.given(&resource.name, resource.device.as_deref());
            resource.wanted = given.or(most).unwrap_or(0);
            most.is_some()
        });
    }
}

impl Instance {
    /// Returns the units of a resource that a task needs.
    fn need(&self, resource: usize) -> Option<u32> {
        self.needs.iter().find(|(own, _)| *own == resource).map(|&(_, count)| count)
    }
}

impl Tables {
    /// Returns a resource, which is added if there is none of the name on the device.
    fn resource(&mut self, name: &str, device: Option<String>) -> usize {
        let known = self.resources.iter().find(|(_, other)| other.name == name && other.device == device);
        if let Some((ix, _)) = known {
            return ix;
        }
        self.resources.insert(Resource { name: name.to_owned(), device, wanted: 0, in_use: 0, waited_ns: 0 })
    }

    /// Whether an instance at this place may take its units: what those before it wait for is left.
    fn fits(&self, ix: InstanceIx, place: Place) -> bool {
        let before = || self.waiting.range(..place).map(|(_, &other)| &self.instances[other]);
        self.instances[ix].needs.iter().all(|&(resource, count)| {
            let kept: u64 = before().filter_map(|other| other.need(resource)).map(u64::from).sum();
            kept + u64::from(count) <= u64::from(self.resources[resource].free())
        })
    }

    fn leave_order(&mut self, ix: InstanceIx, now: Ns) {
        let Instance { needs, waiting, .. } = &mut self.instances[ix];
        let Some(Waiting { place, since, .. }) = waiting.take() else { return };
        self.waiting.remove(&place);
        for &(resource, _) in &*needs {
            self.resources[resource].waited_ns += now.saturating_sub(since);
        }
    }

    fn give_back(&mut self, ix: InstanceIx) {
        let Instance { needs, tasks, .. } = &mut self.instances[ix];
        *tasks -= 1;
        for &(resource, count) in &*needs {
            self.resources[resource].in_use -= count;
        }
    }

    /// Calls the waiting instances that may run now, and returns their cores.
    fn call(&mut self) -> Wakes {
        let mut wakes = Wakes::new();
        for (&place, &ix) in &self.waiting {
            let may_run = self.fits(ix, place);
            let Instance { waiting: Some(waiting), core, .. } = &mut self.instances[ix] else { continue };
            if may_run && !std::mem::replace(&mut waiting.is_called, true) && !wakes.contains(core) {
                wakes.push(*core);
            }
        }
        wakes
    }
}
