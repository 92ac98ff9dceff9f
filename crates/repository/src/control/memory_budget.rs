//! The memory of models within their budget: what a load will take, room for it, and models that leave because they
//! have no requests. [`crate::residency`] decides who leaves.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_observe::{ResidencyStats, budget::Reservation};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::Control;
use crate::{
    LoadAttempt, LoadError,
    prepare::FoundModel,
    residency::{Holders, Resident, Room, Wanted, room},
    table::Retired,
};

/// Bytes of a version apart from its files: session, buffers, threads' shares.
const VERSION_BYTES: usize = 1 << 20;

/// Bytes of a pipeline apart from its files.
const PIPELINE_BYTES: usize = 64 << 10;

/// The memory of a version's weights by the size of its files: an engine of the CPU compiles a graph for one run and
/// for several at once.
const COPIES: usize = 2;

/// Shortest and longest time between two looks at whether a model may leave. The load whose turn it is looks often; the
/// next one is woken.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// Most and least time between two looks for idle models.
const IDLE_LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Estimates what the versions of a model take, from their files.
pub(crate) fn estimated_bytes(found: &FoundModel) -> usize {
    let each = if found.is_pipeline() { PIPELINE_BYTES } else { VERSION_BYTES };
    found.files_bytes().saturating_mul(COPIES).saturating_add(each.saturating_mul(found.versions.len()))
}

/// The loads that wait for room, in the order in which they came. One that could have room soon goes before those that
/// came later, which might otherwise take each piece of memory that is given back.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// Those that could have room soon, with what wakes them when they become the first.
    hopeful: BTreeMap<u64, Arc<Notify>>,
}

/// The place of a load in the queue, until it is dropped.
struct Place<'a> {
    queue: &'a Queue,
    number: u64,
    turn: Arc<Notify>,
}

impl Queue {
    fn enter(&self) -> Place<'_> {
        let mut waiting = self.0.lock();
        waiting.next += 1;
        Place { queue: self, number: waiting.next, turn: Arc::default() }
    }
}

impl Place<'_> {
    fn is_behind(&self) -> bool {
        self.queue.0.lock().hopeful.first_key_value().is_some_and(|(&first, _)| first < self.number)
    }

    fn hopes(&self, is_hopeful: bool) {
        let mut waiting = self.queue.0.lock();
        if is_hopeful {
            waiting.hopeful.entry(self.number).or_insert_with(|| Arc::clone(&self.turn));
        } else if waiting.hopeful.remove(&self.number).is_some()
            && let Some((&first, next)) = waiting.hopeful.first_key_value()
            && first > self.number
        {
            next.notify_one();
        }
    }

    /// Waits for `most`, or until this place is the first of those with hope.
    async fn wait(&self, most: Duration) {
        // The caller looks again in both cases.
        let _ = timeout(most, self.turn.notified()).await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.hopes(false);
    }
}

/// Models that take no further requests, so that a load gets their memory once they have answered those they have. They
/// take requests again when this is dropped, unless they have left.
pub(crate) struct Draining<'a> {
    control: &'a Arc<Control>,
    names: Vec<String>,
}

impl Draining<'_> {
    /// Lets these models drain, and no others.
    fn set(&mut self, names: Vec<String>) {
        let former = std::mem::replace(&mut self.names, names);
        let mut table = self.control.table.lock();
        let mut has_changed = false;
        for name in former.iter().filter(|name| !self.names.contains(name)) {
            has_changed |= table.drain(name, false);
        }
        for name in &self.names {
            has_changed |= table.drain(name, true);
        }
        drop(table);
        if has_changed {
            self.control.publish();
        }
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.set(Vec::new());
    }
}

impl Control {
    /// Returns the time that the repository has been open.
    pub(crate) fn now(&self) -> Duration {
        self.opened_at.elapsed()
    }

    /// Reserves memory for the load of a model. Where requests load models, unloads others for it, and waits for half
    /// of the time that a load may take until enough of them may leave. If the model is loaded already and others do
    /// not leave room for both, what is loaded leaves first.
    ///
    /// Returns `None` if the memory of models is not limited.
    ///
    /// # Errors
    /// Fails if there is no room, with what holds the memory, or if the load is stopped.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        name: &str,
        bytes: usize,
        attempt: &LoadAttempt,
    ) -> Result<Option<Reservation>, LoadError> {
        let Some(memory) = &self.memory else { return Ok(None) };
        let mut reservation = Reservation::none(memory);
        let is_on_demand = self.options.mode.is_on_demand();
        let patience = self.options.residency.load_timeout / 2;
        let (began, mut look, place) = (Instant::now(), FIRST_LOOK, self.memory_queue.enter());
        let (since, longest_wait, mut draining) = (self.now(), patience / 2, self.draining());
        loop {
            attempt.check()?;
            let is_behind = place.is_behind();
            if !is_behind && reservation.try_grow(bytes) {
                return Ok(Some(reservation));
            }
            let (residents, now) = (self.residents(), self.now());
            let others: Vec<Resident> = residents.iter().filter(|resident| resident.name != name).cloned().collect();
            let is_loaded = others.len() < residents.len();
            let wanted = Wanted { bytes, uses: self.uses(name, now), since, longest_wait };
            let room = room(memory.capacity(), memory.used(), wanted, &others, now);
            let is_hopeful = is_on_demand && matches!(room, Room::Unload(_) | Room::Wait { until: Some(_) });
            place.hopes(is_hopeful);
            let is_first = is_hopeful && !is_behind;
            let next_look = match room {
                Room::Free if is_behind => Some(look),
                Room::Free => continue,
                Room::Unload(_) if is_on_demand && is_behind => Some(look),
                Room::Unload(names) if is_on_demand => {
                    if self.make_room(&names, &others, &mut draining).await {
                        continue;
                    }
                    // Each has a request still, or again.
                    Some(look)
                }
                Room::Wait { .. } if is_on_demand && is_loaded => {
                    tracing::info!(model = name, "unloaded before it is loaded again, for want of memory for both");
                    self.change(|table| table.make_way(name)).await;
                    continue;
                }
                Room::Wait { until } if is_on_demand => {
                    Some(until.map_or(look, |until| until.saturating_sub(now).min(look)))
                }
                Room::Unload(_) | Room::Wait { .. } | Room::Never => None,
            };
            let Some(next_look) = next_look.filter(|_| began.elapsed() < patience) else {
                memory.count_refusal();
                let (used, capacity) = (memory.used(), memory.capacity());
                let holders = Holders { residents: &residents, now, is_on_demand };
                let reason = if bytes > capacity {
                    format!("no memory: it takes {bytes} bytes, more than --memory-budget-bytes ({capacity})")
                } else {
                    let used = format!("{used} of {capacity} are used (--memory-budget-bytes)");
                    format!("no memory: it takes {bytes} bytes, but {used}, {holders}")
                };
                return Err(LoadError::memory(reason));
            };
            attempt.unless_stopped(place.wait(next_look)).await?;
            look = if is_first { FIRST_LOOK } else { (look * 2).min(LONGEST_LOOK) };
        }
    }

    /// Unloads models while more than the budget is used, as after a load that took more than its estimate.
    pub(crate) async fn return_to_budget(self: &Arc<Self>) {
        let Some(memory) = self.memory.as_ref().filter(|_| self.options.mode.is_on_demand()) else { return };
        if memory.used() <= memory.capacity() {
            return;
        }
        let (mut residents, now) = (self.residents(), self.now());
        residents.retain(|resident| resident.hold.is_none());
        let nothing = Wanted { bytes: 0, uses: f32::INFINITY, since: now, longest_wait: Duration::ZERO };
        if let Room::Unload(names) = room(memory.capacity(), memory.used(), nothing, &residents, now) {
            self.unload_all(&names, &self.stats.residency.unloaded_for_room).await;
        }
    }

    /// Returns how much a model that is to be loaded was used lately. However many requests wait for it, they count as
    /// one, since one client can send them.
    pub(crate) fn uses(&self, name: &str, now: Duration) -> f32 {
        1.0 + self.table.lock().uses(name, now)
    }

    /// Returns that no model drains.
    pub(crate) fn draining(self: &Arc<Self>) -> Draining<'_> {
        Draining { control: self, names: Vec::new() }
    }

    /// Unloads models for a load, once none of them has requests. Returns whether one left.
    pub(crate) async fn make_room(
        self: &Arc<Self>,
        names: &[String],
        residents: &[Resident],
        draining: &mut Draining<'_>,
    ) -> bool {
        let leaving = || residents.iter().filter(|resident| names.contains(&resident.name));
        if leaving().any(|resident| resident.hold.is_some()) {
            // Requests of a pipeline need its models until it has left.
            let free = leaving().filter(|resident| resident.needed_by.is_empty());
            draining.set(free.map(|resident| resident.name.clone()).collect());
            return false;
        }
        self.unload_all(names, &self.stats.residency.unloaded_for_room).await
    }

    fn residents(&self) -> Vec<Resident> {
        let pipelines = self.dependencies.by_model();
        self.table.lock().residents(&pipelines)
    }

    /// Unloads models that may leave. Returns whether one did.
    pub(crate) async fn unload_all(self: &Arc<Self>, names: &[String], counter: &AtomicU64) -> bool {
        let mut has_left = false;
        for name in names {
            if self.let_leave(name).await {
                ResidencyStats::count(counter);
                has_left = true;
            }
        }
        has_left
    }

    /// Unloads a model, unless a request arrived meanwhile or it is being loaded.
    async fn let_leave(self: &Arc<Self>, name: &str) -> bool {
        let gate = self.gates.of(name);
        // Waiting for the turn could deadlock: its holder may itself be waiting for room.
        let Ok(_turn) = gate.turn.try_lock() else { return false };
        let mut leaving = None;
        self.change(|table| {
            // Under the table's lock: a pipeline that needs the model and is loaded from now on finds it unloaded.
            let pipelines = self.dependencies.by_model();
            leaving = table.resident(name, &pipelines);
            let may_leave = |resident: &Resident| resident.hold.is_none() && resident.needed_by.is_empty();
            if leaving.as_ref().is_some_and(may_leave) {
                self.dependencies.remove(name);
                table.unload(name)
            } else {
                leaving = None;
                Retired::new()
            }
        })
        .await;
        let Some(Resident { bytes, last_used, .. }) = leaving else { return false };
        self.places.touch(name).await;
        let unused_ms = self.now().saturating_sub(last_used).as_millis() as u64;
        tracing::info!(model = name, bytes, unused_ms, "model unloaded; the next request loads it again");
        true
    }
}

/// Unloads models without requests for `idle`, until the repository is dropped.
pub(crate) async fn unload_idle(control: Weak<Control>, idle: Duration) {
    let (shortest, longest) = IDLE_LOOKS;
    loop {
        sleep((idle / 4).clamp(shortest, longest)).await;
        let Some(control) = control.upgrade() else { return };
        let now = control.now();
        let idle = control.residents().into_iter().filter(|resident| resident.is_idle(idle, now));
        let names: Vec<String> = idle.map(|resident| resident.name).collect();
        control.unload_all(&names, &control.stats.residency.unloaded_idle).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_load_is_woken_when_the_first_leaves() {
        let queue = Queue::default();
        let (first, second, third) = (queue.enter(), queue.enter(), queue.enter());
        [&first, &second, &third].into_iter().for_each(|place| place.hopes(true));
        drop(first);
        // Would not end otherwise.
        second.wait(Duration::MAX).await;
        second.hopes(false);
        third.wait(Duration::MAX).await;
        assert!(!third.is_behind());
    }

    #[test]
    fn a_load_that_could_have_room_soon_goes_before_later_ones() {
        let queue = Queue::default();
        let (first, second) = (queue.enter(), queue.enter());
        assert!(!second.is_behind(), "the first may have room now");
        first.hopes(true);
        assert!(second.is_behind() && !first.is_behind());
        second.hopes(true);
        assert!(!first.is_behind(), "it came first");
        first.hopes(false);
        assert!(!second.is_behind(), "the first waits for requests of others, which may take long");
        first.hopes(true);
        drop(first);
        assert!(!second.is_behind() && queue.enter().is_behind());
    }
}
