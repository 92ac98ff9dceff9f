//! The rate limiter of a pool: the devices that its resources belong to, wakes, warnings and readings.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering},
};

use paternoster_batching::{Event, RateLimiter, Resource, ResourceAmount};
use paternoster_observe::ResourceReading;
use tracing::warn;

use super::Pool;
use crate::{DeviceKind, placement::CPU};

/// Creates the rate limiter of a pool with these devices. Warns of amounts for other devices.
pub(super) fn rate_limiter(amounts: &[ResourceAmount], kinds: &[DeviceKind]) -> RateLimiter {
    let devices: Vec<String> = kinds.iter().map(|kind| kind.resource_name()).collect();
    for (resource, device) in of_unknown_devices(amounts, &devices) {
        warn!(resource, device, "there is no such device: the units count only if the resource is global");
    }
    RateLimiter::new(with_cpu(amounts), devices)
}

/// Returns the resources that are given to devices that do not exist, with the devices.
fn of_unknown_devices<'a>(
    amounts: &'a [ResourceAmount],
    devices: &'a [String],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_known = move |device: &str| device == ZERO || devices.iter().any(|known| known == device);
    let given = amounts.iter().filter_map(|amount| Some((amount.name.as_str(), amount.device.as_deref()?)));
    given.filter(move |(_, device)| !is_known(device))
}

/// The device on which Triton's models on the CPU run, and the first card.
const ZERO: &str = "0";

/// Gives the CPU what is given to device 0.
fn with_cpu(amounts: &[ResourceAmount]) -> Vec<ResourceAmount> {
    let of_zero = amounts.iter().filter(|amount| amount.device.as_deref() == Some(ZERO));
    let of_cpu = of_zero.map(|amount| ResourceAmount { device: Some(CPU.to_owned()), ..amount.clone() });
    of_cpu.chain(amounts.iter().cloned()).collect()
}

impl Pool {
    /// Wakes shards with versions that waited for units and may run now, and those that may run because of them.
    pub(super) fn wake_for_units(self: &Arc<Self>, shards: Vec<usize>) {
        // Not by recursion: versions that have no lane pass the call on, one after the other.
        let mut shards = VecDeque::from(shards);
        while let Some(shard) = shards.pop_front() {
            let shard = &self.shards[shard];
            let woken = self.change(shard, |state, now, after| state.step(now, Event::UnitsFreed, after));
            let Some(((), mut after)) = woken else { return };
            shards.extend(mem::take(&mut after.units_freed));
            if self.guarded(|| self.settle(shard, after)).is_none() {
                return;
            }
        }
    }

    /// Logs once that settings for the rate limiter have no effect.
    pub(super) fn warn_of_missing_limiter(&self, model: &str) {
        if !self.lacks_limiter.swap(true, Ordering::Relaxed) {
            warn!(model, "rate_limiter has no effect, here and in other models: the rate limiter is off");
        }
    }

    /// Whether versions may wait for resources.
    pub fn has_rate_limiter(&self) -> bool {
        self.limiter.is_some()
    }

    /// Returns the resources of the rate limiter and their use; empty without one.
    pub fn resources(&self) -> Vec<ResourceReading> {
        let resources = self.limiter.iter().flat_map(|limiter| limiter.resources());
        resources.map(reading).collect()
    }
}

fn reading(resource: Resource) -> ResourceReading {
    let units = resource.units();
    let Resource { name, device, in_use, waited_ns, .. } = resource;
    let device = device.unwrap_or_else(|| "global".to_owned());
    ResourceReading { name, device, units, in_use, waited_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(name: &str, device: Option<&str>) -> ResourceAmount {
        ResourceAmount { name: name.to_owned(), count: 2, device: device.map(str::to_owned) }
    }

    #[test]
    fn amounts_for_devices_that_do_not_exist_are_found() {
        let amounts = [
            amount("a", None),
            amount("b", Some("0")),
            amount("c", Some("1")),
            amount("d", Some("7")),
            amount("e", Some("cpu")),
        ];
        let unknown = |devices: &[&str]| -> Vec<String> {
            let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
            of_unknown_devices(&amounts, &devices).map(|(name, device)| format!("{name} on {device}")).collect()
        };
        assert_eq!(unknown(&["cpu", "cpu"]), ["c on 1", "d on 7"], "device 0 is the CPU too");
        assert_eq!(unknown(&["0", "1", "cpu"]), ["d on 7"]);
    }
}
