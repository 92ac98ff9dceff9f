//! Triton's rate limiter: named resources, of each device or of all together, that the cores of a pool share. A task
//! runs only while it holds the units that its version asks for.
//!
//! A core takes units when a lane is given to a group, and gives them back when the task ends. A group that lacks units
//! waits here, while other groups get the lane. Groups wait in the order of start-time fair queueing (Goyal, Vin and
//! Cheng, 1996), in which each task costs a group its priority: a group of priority 2 starts half as many tasks as one
//! of priority 1, and time for which a group wanted nothing is not owed. Units that a waiting group needs are kept for
//! it as they are returned, so a group that needs many is not overtaken forever by groups that need few; units beyond
//! that go to the next. The order is total and a task takes all its units at once, so there is no deadlock.
//!
//! A group whose task ends and that wants another one takes its place in the order before the units of the task go to
//! those that wait. Otherwise groups that run one task at a time would take turns, whatever their priorities.
//!
//! A group is called once all its units are there. If its core has no open lane then, the group yields: no units are
//! kept for it, and it keeps its place in the order. If its next lane opens while units lack again, that lane is kept
//! for it: it runs as soon as the tasks that hold its units end.
//!
//! The lock is held for a few operations on small tables, and never together with another one of this crate.

mod tables;

use parking_lot::Mutex;
use smallvec::SmallVec;

pub use self::tables::Resource;
use self::tables::{Instance, Phase, Tables, Wait};
pub(super) use self::tables::{Needs, Wakes};
use super::{
    Instant, ModelId,
    hold::hold,
    ids::{GroupIx, InstanceIx, StartTag},
};

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

/// The units that the tasks of a group need.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) instance: InstanceIx,
    pub(super) needs: Needs,
    /// Place of the group in the order, if it waits.
    pub(super) waits_at: Option<StartTag>,
    /// Whether it has yielded since it began to wait.
    pub(super) has_yielded: bool,
}

/// How many tasks of a version units allow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskLimits {
    /// In addition to those that run.
    pub(super) additional: u32,
    /// In total.
    pub(super) total: u32,
}

impl TaskLimits {
    /// The limits of a version that needs no units.
    pub(super) const NONE: Self = Self { additional: u32::MAX, total: u32::MAX };
}

/// The resources of a pool.
#[derive(Debug)]
pub struct RateLimiter {
    /// As given; resources that none names have as many units as the most demanding version asks for.
    amounts: Vec<ResourceAmount>,
    /// Name of each core's device. Cores with the same name share a device.
    devices: Vec<String>,
    tables: Mutex<Tables>,
}

impl RateLimiter {
    /// Creates the resources of cores on these devices, one name per core.
    pub fn new(amounts: Vec<ResourceAmount>, devices: impl IntoIterator<Item = String>) -> Self {
        Self { amounts, devices: devices.into_iter().collect(), tables: Mutex::default() }
    }

    /// Registers a version of the named model on these cores. Must be called before
    /// [`Event::ModelUp`](super::Event::ModelUp); the cores remove the version when it is drained. Returns the cores
    /// with groups that may run now, because a resource has more units; send them
    /// [`Event::UnitsFreed`](super::Event::UnitsFreed).
    ///
    /// # Errors
    /// If a resource has fewer units than a task of the version needs, or is global for one version and not for
    /// another. The text names the resource and the other model. Nothing is registered then.
    pub fn register(
        &self,
        model: ModelId,
        model_name: &str,
        knobs: &RateLimiterKnobs,
        cores: &[usize],
    ) -> Result<Vec<usize>, String> {
        let demands: Vec<&ResourceDemand> = knobs.resources.iter().filter(|demand| demand.count > 0).collect();
        if demands.is_empty() {
            return Ok(Vec::new());
        }
        let tables = &mut *self.tables.lock();
        let device_of = |core: usize| self.devices.get(core).cloned().unwrap_or_default();
        for demand in &demands {
            let ResourceDemand { name, is_global, count } = demand;
            tables.check_scope(model_name, name, *is_global)?;
            for &core in cores {
                let device = (!is_global).then(|| device_of(core));
                if let Some(units) = self.given(name, device.as_deref()).filter(|units| units < count) {
                    let place = device.map_or_else(String::new, |device| format!(" on device {device}"));
                    return Err(format!(
                        "resource '{name}' is limited to {units}{place} (--rate-limit-resource), but a batch needs \
                         {count}"
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
                name: model_name.to_owned(),
                core,
                needs,
                priority: u64::from(knobs.priority.max(1)),
                finish_tag: 0,
                tasks: 0,
                wait: None,
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
    pub fn resources(&self) -> Vec<Resource> {
        let tables = self.tables.lock();
        let mut resources: Vec<Resource> = tables.resources.iter().map(|(_, resource)| resource.clone()).collect();
        resources.sort_unstable_by(|one, other| (&one.name, &one.device).cmp(&(&other.name, &other.device)));
        resources
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
            let Some(Wait { tag, phase, .. }) = instance.wait else { continue };
            hold!(tables.order.get(&tag) == Some(&ix), "instance {ix} waits at {tag:?}, where it is not found");
            hold!(phase != Phase::Lacks || !tables.fits(ix, tag), "instance {ix} may run and is not called");
        }
        let waiting = tables.instances.iter().filter(|(_, instance)| instance.wait.is_some()).count();
        hold!(waiting == tables.order.len(), "{waiting} instances wait, of {}", tables.order.len());
        Ok(())
    }

    /// Returns the number of called instances whose cores have not answered yet.
    #[cfg(test)]
    pub(super) fn calls(&self) -> usize {
        let tables = self.tables.lock();
        let waits = tables.instances.iter().filter_map(|(_, instance)| instance.wait);
        waits.filter(|wait| wait.phase == Phase::Called).count()
    }

    /// Returns what tasks of a version need on a core; `None` if they need no units.
    pub(super) fn claim(&self, model: ModelId, core: usize) -> Option<Claim> {
        let tables = self.tables.lock();
        let mut instances = tables.instances.iter();
        let (ix, instance) = instances.find(|(_, instance)| (instance.model, instance.core) == (model, core))?;
        Some(Claim { instance: ix, needs: instance.needs.clone(), waits_at: None, has_yielded: false })
    }

    /// Takes the units of one task.
    ///
    /// # Errors
    /// If units lack, or are kept for groups before it. The instance waits from now on, at the returned place.
    pub(super) fn take(&self, ix: InstanceIx, now: Instant) -> Result<TaskLimits, StartTag> {
        let tables = &mut *self.tables.lock();
        let tag = tables.instances[ix].wait.map_or_else(|| tables.next_tag(ix), |wait| wait.tag);
        if !tables.fits(ix, tag) {
            tables.wait(ix, tag, now);
            return Err(tag);
        }
        tables.leave_order(ix, now);
        tables.virtual_time = tables.virtual_time.max(tag.0);
        let Instance { needs, finish_tag, priority, tasks, .. } = &mut tables.instances[ix];
        *finish_tag = tag.0.saturating_add(*priority);
        *tasks += 1;
        let mut limits = TaskLimits::NONE;
        for &(resource, count) in &*needs {
            let resource = &mut tables.resources[resource];
            resource.in_use += count;
            limits.additional = limits.additional.min(resource.free() / count);
            limits.total = limits.total.min(resource.units() / count);
        }
        Ok(limits)
    }

    /// Keeps no more units for a waiting instance, which has no open lane. It keeps its place in the order.
    pub(super) fn yield_units(&self, ix: InstanceIx, now: Instant) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.count_wait(ix, now);
        if let Some(wait) = &mut tables.instances[ix].wait {
            wait.phase = Phase::Yielded;
        }
        tables.call()
    }

    /// Takes back the units of a task that has ended. [`Self::call`] gives them to those that wait.
    pub(super) fn give_back(&self, ix: InstanceIx) {
        self.tables.lock().give_back(ix);
    }

    /// Puts an instance whose task has ended, and that wants another one, into the order, if others wait there for what
    /// it needs. Returns its place.
    pub(super) fn line_up(&self, ix: InstanceIx, now: Instant) -> Option<StartTag> {
        let tables = &mut *self.tables.lock();
        let tag = tables.is_contested(ix).then(|| tables.next_tag(ix))?;
        tables.wait(ix, tag, now);
        Some(tag)
    }

    /// Calls the instances that may run since units were given back.
    pub(super) fn call(&self) -> Wakes {
        self.tables.lock().call()
    }

    /// Gives back units for which there was no task after all, which costs no chance.
    pub(super) fn decline(&self, ix: InstanceIx) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.give_back(ix);
        let Instance { finish_tag, priority, .. } = &mut tables.instances[ix];
        *finish_tag = finish_tag.saturating_sub(*priority);
        tables.call()
    }

    /// Removes an instance that does not want a task any more from the order.
    pub(super) fn withdraw(&self, ix: InstanceIx, now: Instant) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.leave_order(ix, now);
        tables.call()
    }

    /// Removes an instance, which holds no units.
    pub(super) fn remove(&self, ix: InstanceIx, now: Instant) -> Wakes {
        let tables = &mut *self.tables.lock();
        tables.leave_order(ix, now);
        let instance = tables.instances.remove(ix);
        debug_assert_eq!(instance.tasks, 0, "{:?} is removed while its tasks run", instance.model);
        self.size(tables);
        tables.call()
    }

    /// Returns those of these groups whose instances have been called.
    pub(super) fn called(&self, groups: impl Iterator<Item = (GroupIx, InstanceIx)>) -> SmallVec<[GroupIx; 4]> {
        let tables = self.tables.lock();
        let is_called = |ix: InstanceIx| tables.instances[ix].wait.is_some_and(|wait| wait.phase == Phase::Called);
        groups.filter(|(_, ix)| is_called(*ix)).map(|(group, _)| group).collect()
    }

    /// Returns the units that the operator gave to a device, or to all together; `None` if none are given to any.
    /// As in Triton, the largest amount that applies counts, a global resource has no device, and a device has none of
    /// a resource that is given to other devices alone.
    fn given(&self, name: &str, device: Option<&str>) -> Option<u32> {
        let amounts = self.amounts.iter().filter(|amount| amount.name == name);
        let units = amounts.map(|amount| match (device, &amount.device) {
            (Some(device), Some(named)) if device != named => 0,
            _ => amount.count,
        });
        units.max()
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
