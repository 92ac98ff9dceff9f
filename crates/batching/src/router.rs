//! Routing of requests to devices. Each device has its own core and shares no lock with the others. After each step it
//! publishes its load, which the router compares. The executor and the simulator use the same router.
//!
//! - A request goes to the device that is expected to finish its work first; a request of a sequence goes to the
//!   sequence's device.
//! - An idle device takes requests that have not boarded from the busiest device.
//! - Devices form groups; the devices of one group are interchangeable.
//! - A device that is lost, or has no lane in service, gets no requests.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use paternoster_model::CorrelationId;

use crate::{DeviceLoad, Ns};

/// A move of requests from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Number of the device that gives up requests.
    pub from: usize,
    /// Number of the device that takes them.
    pub to: usize,
}

/// The published loads of all devices.
#[derive(Debug)]
pub struct Router {
    devices: Box<[Published]>,
}

/// The published load of one device. Aligned to its own cache lines, since every step writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Published {
    group: u16,
    /// Expected time until the device has finished its work, averaged over its lanes.
    backlog_ns: AtomicU64,
    may_leave: AtomicUsize,
    lanes: AtomicUsize,
    idle_lanes: AtomicUsize,
    is_lost: AtomicBool,
}

impl Router {
    /// Creates a router for devices of these groups. They have published nothing yet, so they have no lanes.
    pub fn new(groups: impl IntoIterator<Item = u16>) -> Self {
        let devices = groups.into_iter().map(|group| Published { group, ..Published::default() });
        Self { devices: devices.collect() }
    }

    /// Returns the devices of this device's group, including itself.
    pub fn group_of(&self, device: usize) -> impl Iterator<Item = usize> + '_ {
        let group = self.devices.get(device).map(|device| device.group);
        (0..self.devices()).filter(move |&other| Some(self.devices[other].group) == group)
    }

    /// Returns the number of devices, including lost ones.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Publishes the load of a device after a step. Must be called in the order of its steps.
    pub fn publish(&self, device: usize, load: DeviceLoad) {
        let Some(published) = self.devices.get(device) else { return };
        published.backlog_ns.store(load.expected_ns / load.lanes.max(1) as Ns, Ordering::Relaxed);
        published.may_leave.store(load.may_leave, Ordering::Relaxed);
        published.lanes.store(load.lanes, Ordering::Relaxed);
        published.idle_lanes.store(load.idle_lanes, Ordering::Relaxed);
    }

    /// Marks a device as permanently lost.
    pub fn lose(&self, device: usize) {
        if let Some(published) = self.devices.get(device) {
            published.is_lost.store(true, Ordering::Release);
        }
    }

    /// Returns the number of lost devices.
    pub fn lost(&self) -> usize {
        self.devices.iter().filter(|device| device.is_lost()).count()
    }

    /// Returns the device of `among` that is expected to finish its work first; ties go to the first one. Returns a
    /// device without lanes only if none has any, and `None` if all are lost.
    pub fn least(&self, among: impl IntoIterator<Item = usize>) -> Option<usize> {
        let there = self.there(among);
        let least = there.min_by_key(|(_, device)| {
            (device.lanes.load(Ordering::Relaxed) == 0, device.backlog_ns.load(Ordering::Relaxed))
        });
        least.map(|(number, _)| number)
    }

    /// Returns the device of a sequence by rendezvous hashing: the same for all its requests as long as that device is
    /// not lost, and evenly distributed over sequences. `None` if all are lost.
    pub fn of_sequence(&self, among: impl IntoIterator<Item = usize>, id: &CorrelationId) -> Option<usize> {
        let score = |number: usize| {
            let mut hasher = DefaultHasher::new();
            (id, number).hash(&mut hasher);
            hasher.finish()
        };
        self.there(among).map(|(number, _)| number).max_by_key(|&number| score(number))
    }

    /// Returns the move that is due after a step of `device`: to this device if it is idle, or from it to an idle
    /// device if it has more work than lanes.
    pub fn rebalance(&self, device: usize) -> Option<Move> {
        let own = self.devices.get(device)?;
        let others = || {
            let others = (0..).zip(&self.devices).filter(move |(number, _)| *number != device);
            others.filter(|(_, other)| other.group == own.group)
        };
        if own.idles() {
            let busy = others().filter(|(_, other)| other.is_behind());
            let (from, _) = busy.max_by_key(|(_, other)| other.backlog_ns.load(Ordering::Relaxed))?;
            return Some(Move { from, to: device });
        }
        if own.is_behind() {
            let (to, _) = others().find(|(_, other)| other.idles())?;
            return Some(Move { from: device, to });
        }
        None
    }

    fn there(&self, among: impl IntoIterator<Item = usize>) -> impl Iterator<Item = (usize, &Published)> {
        let devices = among.into_iter().filter_map(|number| Some((number, self.devices.get(number)?)));
        devices.filter(|(_, device)| !device.is_lost())
    }
}

impl Published {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Whether a lane is idle and no request here waits for one.
    fn idles(&self) -> bool {
        self.idle_lanes.load(Ordering::Relaxed) > 0 && self.may_leave.load(Ordering::Relaxed) == 0 && !self.is_lost()
    }

    /// Whether movable requests wait for a lane.
    fn is_behind(&self) -> bool {
        self.idle_lanes.load(Ordering::Relaxed) == 0 && self.may_leave.load(Ordering::Relaxed) > 0 && !self.is_lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(expected_ns: Ns, may_leave: usize, idle_lanes: usize) -> DeviceLoad {
        DeviceLoad { expected_ns, may_leave, lanes: 2, idle_lanes }
    }

    fn router(loads: &[DeviceLoad]) -> Router {
        let router = Router::new(loads.iter().map(|_| 0));
        loads.iter().enumerate().for_each(|(device, load)| router.publish(device, *load));
        router
    }

    #[test]
    fn a_request_goes_to_the_device_that_is_through_first() {
        let router = router(&[load(30, 0, 0), load(10, 0, 0), load(20, 0, 0), load(10, 0, 0)]);
        assert_eq!(router.least(0..4), Some(1), "the first of two");
        assert_eq!(router.least([0, 2]), Some(2), "only among those that have the model");
        router.publish(1, DeviceLoad { lanes: 1, ..load(18, 0, 0) });
        assert_eq!(router.least(0..4), Some(3), "work is shared by lanes");
        router.lose(3);
        assert_eq!(router.least(0..4), Some(2));
        router.publish(2, DeviceLoad { lanes: 0, ..load(0, 0, 0) });
        assert_eq!(router.least(0..4), Some(0), "nothing runs without a lane");
        [0, 1, 2].into_iter().for_each(|device| router.lose(device));
        assert_eq!((router.least(0..4), router.lost()), (None, 4));
    }

    #[test]
    fn nothing_moves_between_groups() {
        let router = Router::new([0, 1, 0]);
        let (busy, idle) = (load(50, 3, 0), load(0, 0, 2));
        [busy, idle, busy].into_iter().enumerate().for_each(|(device, load)| router.publish(device, load));
        assert_eq!((router.rebalance(0), router.rebalance(1)), (None, None));
        router.publish(2, idle);
        assert_eq!(router.rebalance(0), Some(Move { from: 0, to: 2 }));
        assert_eq!(router.group_of(2).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_sequence_stays_with_its_device_until_that_is_lost() {
        let router = router(&[DeviceLoad::default(); 4]);
        let ids: Vec<_> = (0..400).map(CorrelationId::Number).collect();
        let before: Vec<_> = ids.iter().map(|id| router.of_sequence(0..4, id)).collect();
        for device in 0..4 {
            let own = before.iter().filter(|own| **own == Some(device)).count();
            assert!((60..140).contains(&own), "device {device} has {own} of 400 sequences");
        }
        router.publish(2, load(1_000_000, 9, 0));
        router.lose(1);
        for (id, before) in ids.iter().zip(before) {
            let now = router.of_sequence(0..4, id);
            assert!(now == before || before == Some(1) && now != Some(1), "{id}: {before:?} then {now:?}");
        }
    }

    #[test]
    fn a_device_that_idles_takes_from_the_one_with_most_to_do() {
        let router = router(&[load(50, 3, 0), load(70, 3, 0), load(0, 0, 2), load(90, 4, 1)]);
        assert_eq!(router.rebalance(2), Some(Move { from: 1, to: 2 }), "the last has a lane of its own");
        assert_eq!(router.rebalance(0), Some(Move { from: 0, to: 2 }), "a device with fewer requests takes some");
        assert_eq!(router.rebalance(3), None, "its requests wait for something else");
        router.lose(2);
        assert_eq!((router.rebalance(0), router.rebalance(2)), (None, None));
        router.publish(0, load(0, 0, 1));
        assert_eq!(router.rebalance(0), Some(Move { from: 1, to: 0 }));
        router.lose(1);
        assert_eq!(router.rebalance(0), None, "what a lost device had is not its own any more");
    }
}
