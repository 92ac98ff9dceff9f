//! How a version settles on devices: where, with what memory, and with room that others leave.

use std::{sync::Arc, time::Duration};

use paternoster_batching::{Knobs, ModelId};
use paternoster_device::MemoryShortage;

use super::Pool;
use crate::{
    Placement,
    backend::{CannotHold, Order},
    version::ServedVersion,
};

/// How a version is brought up.
#[derive(Clone, Default)]
pub struct BringUp<'a> {
    /// The devices that may serve it.
    pub placement: Placement,
    /// Time limit of its tasks; `None`: that of the pool ([`super::PoolOptions::task_time_limit`]).
    pub task_time_limit: Option<Duration>,
    /// Is told if a card lacks memory.
    pub on_shortage: Option<&'a OnShortage<'a>>,
}

/// Is told which card lacks memory, by its number in the driver. Returns whether the version is not to go to the CPU in
/// its place.
pub type OnShortage<'a> = dyn Fn(u16, MemoryShortage) -> bool + 'a;

/// Why a version has no devices.
pub(super) struct Unsettled {
    pub(super) reason: String,
    /// The card that lacks memory, and how much.
    pub(super) lacking: Option<(u16, MemoryShortage)>,
}

impl Pool {
    /// Chooses devices, and reserves what the version needs on each. Returns the devices, and the version's knobs on
    /// each.
    ///
    /// # Errors
    /// See [`Self::load`].
    pub(super) fn settle_in(
        self: &Arc<Self>,
        id: ModelId,
        loaded: &ServedVersion,
        knobs: &Knobs,
        among: Vec<usize>,
    ) -> Result<(Box<[usize]>, Vec<Knobs>), Unsettled> {
        let homes = homes_of(id, knobs, among);
        let stands_in = |&home: &usize| self.router.group_of(home).any(|device| !homes.contains(&device));
        let knobs = Knobs { stays: homes.iter().any(stands_in), ..knobs.clone() };
        let model = &loaded.spec.name;
        let registered = self.limiter.as_ref().map(|limiter| limiter.register(id, model, &knobs.rate_limiter, &homes));
        let refused = |fault| Unsettled { reason: format!("model '{model}': rate_limiter: {fault}"), lacking: None };
        let freed = registered.transpose().map_err(refused)?;
        let home_knobs = self.load(id, loaded, &homes, &knobs);
        if let (Err(_), Some(limiter)) = (&home_knobs, &self.limiter) {
            limiter.unregister(id);
        }
        self.wake_for_units(freed.unwrap_or_default());
        Ok((homes, home_knobs?))
    }

    /// Reserves what a version needs on each of its devices. Returns its knobs on each.
    ///
    /// # Errors
    /// If a device lacks a resource. Nothing is reserved then.
    fn load(
        self: &Arc<Self>,
        id: ModelId,
        loaded: &ServedVersion,
        homes: &[usize],
        knobs: &Knobs,
    ) -> Result<Vec<Knobs>, Unsettled> {
        let mut home_knobs = Vec::with_capacity(homes.len());
        for &home in homes {
            let mut knobs = knobs.clone();
            if let Err(fault) = self.shards[home].backend.load(id, loaded, &mut knobs) {
                for &home in &homes[..home_knobs.len()] {
                    let shard = &self.shards[home];
                    shard.queue(&mut vec![Order::Unload(id)]);
                    shard.issue(self);
                }
                loaded.stats.left_cards();
                let CannotHold { reason, shortage } = fault;
                return Err(Unsettled {
                    reason: format!("device {home} cannot hold model '{}': {reason}", loaded.spec.name),
                    lacking: self.kinds[home].card().zip(shortage),
                });
            }
            home_knobs.push(knobs);
        }
        Ok(home_knobs)
    }
}

/// Returns the shards that a version is loaded on: all of these, or, if its requests must stay together, one of them,
/// chosen round robin by id.
fn homes_of(id: ModelId, knobs: &Knobs, among: Vec<usize>) -> Box<[usize]> {
    if knobs.is_bound() { Box::new([among[id.0 as usize % among.len()]]) } else { among.into() }
}
