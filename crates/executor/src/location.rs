//! Tracks which device a request is on. Most versions are loaded on one device; with several, requests that have not
//! boarded may move.

use std::sync::Arc;

use parking_lot::Mutex;
use paternoster_batching::ReqId;

/// Where the caller that submitted a request finds it.
#[derive(Clone, Debug)]
pub(super) enum Location {
    /// On this device until it ends.
    Fixed(usize, ReqId),
    /// On the device that is recorded there.
    Movable(Arc<CurrentShard>),
}

/// The current device of a request that may move.
#[derive(Debug)]
pub(super) struct CurrentShard(Mutex<CurrentDevice>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CurrentDevice {
    /// On a device, under this id.
    On(usize, ReqId),
    /// On the way to another device.
    Moving {
        /// Whether the client has cancelled it meanwhile.
        given_up: bool,
    },
}

impl CurrentShard {
    /// Creates the entry of a request that is on no device yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(CurrentDevice::Moving { given_up: false })))
    }

    /// Records that a device has taken the request, and returns whether the client has cancelled it meanwhile. Must be
    /// called under the device's lock.
    pub(super) fn arrive(&self, device: usize, req: ReqId) -> bool {
        std::mem::replace(&mut *self.0.lock(), CurrentDevice::On(device, req))
            == CurrentDevice::Moving { given_up: true }
    }

    /// Records that the request leaves its device. Must be called under that device's lock.
    pub(super) fn leave(&self) {
        *self.0.lock() = CurrentDevice::Moving { given_up: false };
    }
}

impl Location {
    /// Returns where the request is; `None` while it moves.
    pub(super) fn now(&self) -> Option<(usize, ReqId)> {
        match self {
            Self::Fixed(device, req) => Some((*device, *req)),
            Self::Movable(current_shard) => match *current_shard.0.lock() {
                CurrentDevice::On(device, req) => Some((device, req)),
                CurrentDevice::Moving { .. } => None,
            },
        }
    }

    /// Cancels the request on its device by calling `cancel`, which returns whether the device still had it. A request
    /// that is moving is cancelled on arrival.
    pub(super) fn cancel(&self, cancel: impl Fn(usize, ReqId) -> bool) {
        let mut asked = None;
        loop {
            match self {
                Self::Fixed(device, req) => {
                    cancel(*device, *req);
                    return;
                }
                Self::Movable(current_shard) => {
                    let mut place = current_shard.0.lock();
                    match &mut *place {
                        CurrentDevice::Moving { given_up } => {
                            *given_up = true;
                            return;
                        }
                        // The device did not have it and it has not moved, so it has ended.
                        CurrentDevice::On(device, req) if asked == Some((*device, *req)) => return,
                        CurrentDevice::On(device, req) => asked = Some((*device, *req)),
                    }
                }
            }
            if asked.is_some_and(|(device, req)| cancel(device, req)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_request_that_moves_is_given_up_where_it_arrives() {
        let current_shard = CurrentShard::new();
        let location = Location::Movable(Arc::clone(&current_shard));
        assert!(!current_shard.arrive(0, ReqId(7)));
        assert_eq!(location.now(), Some((0, ReqId(7))));
        current_shard.leave();
        location.cancel(|_, _| unreachable!("no device has it"));
        assert_eq!(location.now(), None);
        assert!(current_shard.arrive(1, ReqId(8)), "the taker learns of it");
    }

    #[test]
    fn a_request_that_has_just_moved_is_followed() {
        let current_shard = CurrentShard::new();
        current_shard.arrive(0, ReqId(7));
        let asked = RefCell::new(Vec::new());
        Location::Movable(Arc::clone(&current_shard)).cancel(|device, req| {
            if device == 0 {
                current_shard.leave();
                current_shard.arrive(1, ReqId(9));
            }
            asked.borrow_mut().push((device, req.0));
            device == 1
        });
        assert_eq!(*asked.borrow(), [(0, 7), (1, 9)]);
    }

    #[test]
    fn a_request_that_has_ended_is_asked_for_once() {
        let current_shard = CurrentShard::new();
        current_shard.arrive(2, ReqId(7));
        for location in [Location::Fixed(2, ReqId(7)), Location::Movable(current_shard)] {
            let asked = RefCell::new(0);
            location.cancel(|_, _| {
                *asked.borrow_mut() += 1;
                false
            });
            assert_eq!(*asked.borrow(), 1);
        }
    }
}
