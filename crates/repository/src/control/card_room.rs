//! Room for loads in the memory of cards, where requests load models: the least recently used models leave a card that
//! lacks memory, as [`crate::residency`] decides. How much a load needs is known only while it reserves
//! memory, so it is tried again after others have left. While it waits, it has neither memory of cards nor a loader
//! thread.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::OwnedMutexGuard,
    time::{sleep, timeout},
};
use tracing::info;

use super::Control;
use crate::{
    LoadAttempt, LoadError, ModelVersion, ResolvedVersion,
    attempt::CardLack,
    blocking::blocking,
    prepare::FoundModel,
    residency::{Hold, Holders, Resident, Room, Wanted, room},
};

/// How often models are looked at that may leave.
const LOOK: Duration = Duration::from_millis(100);

/// How often a load is tried again without a model that has left: memory may be given back later.
const RETRY: Duration = Duration::from_secs(2);

/// How long a load that needs more than a card has evicts no others again. Its files may change.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// What loads that need room on cards share.
#[derive(Debug, Default)]
pub(crate) struct CardRoom {
    /// Held by the load that others leave a card for, so that loads do not take from each other what was given back.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Bytes that loads needed which were more than the card has, and when that was found, by model.
    too_large: Mutex<HashMap<String, (Instant, usize)>>,
}

/// Versions, and what they were loaded from.
pub(crate) type Unprofiled = Vec<(Weak<ModelVersion>, ResolvedVersion)>;

/// What became of the versions of a model.
pub(crate) struct Tried {
    pub(crate) results: BTreeMap<i64, Result<Arc<ModelVersion>, LoadError>>,
    /// What versions were loaded from that profiling may pay off for.
    pub(crate) unprofiled: Unprofiled,
    /// How long the slowest took.
    pub(crate) took: Duration,
}

impl Tried {
    fn first_failure(&self) -> Option<LoadError> {
        self.results.values().find_map(|result| result.as_ref().err().cloned())
    }

    /// Returns that all versions failed for one reason.
    pub(crate) fn failed(found: &FoundModel, error: &LoadError) -> Self {
        let results = found.versions.iter().map(|&version| (version, Err(error.clone()))).collect();
        Self { results, unprofiled: Vec::new(), took: Duration::ZERO }
    }
}

/// A load that others leave a card for.
struct Waiting<'a> {
    name: &'a str,
    attempt: &'a LoadAttempt,
    began: Instant,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Control {
    /// Loads all versions of a model. Where requests load models, others leave a card that lacks memory for it.
    pub(crate) async fn load_with_card_room(
        self: &Arc<Self>,
        name: &str,
        found: &Arc<FoundModel>,
        attempt: &Arc<LoadAttempt>,
    ) -> Tried {
        attempt.allow_card_room(self.options.mode.is_on_demand());
        let mut tried = self.load_versions(name, found, attempt).await;
        let mut waiting = Waiting { name, attempt, began: Instant::now(), turn: None };
        // A load may have lacked memory with the profile's advice, and succeeded without it.
        while let (Some(lack), Some(reason)) = (attempt.card_lack(), tried.first_failure()) {
            // Two loads that each keep a version would wait for each other.
            let _ = blocking(move || drop(tried)).await;
            if let Err(why) = self.make_room_on_card(lack, &mut waiting).await {
                if let Err(stopped) = attempt.check() {
                    attempt.begin_try();
                    return Tried::failed(found, &stopped);
                }
                if lack.may_wait {
                    return Tried::failed(found, &LoadError::memory(format!("{reason}; {why}")));
                }
                info!(model = name, card = lack.card, reason = why.to_string(), "no room on the card");
                attempt.allow_card_room(false);
            }
            tried = self.load_versions(name, found, attempt).await;
        }
        tried
    }

    /// Unloads models for a load, or waits until it may be tried again.
    ///
    /// # Errors
    /// If too little may leave, now or in time, with what holds the memory; or if the load is stopped.
    async fn make_room_on_card(self: &Arc<Self>, lack: CardLack, waiting: &mut Waiting<'_>) -> Result<(), LoadError> {
        let CardLack { card, shortage, may_wait } = lack;
        let &mut Waiting { name, attempt, began, .. } = waiting;
        let (needed_bytes, most_bytes) = (shortage.needed_bytes, shortage.most_bytes);
        let too_large =
            |bytes: usize| LoadError::memory(format!("its loads need {bytes} bytes, more than all of that"));
        let known = self.card_room.too_large.lock().get(name).copied();
        if let Some((_, bytes)) = known.filter(|&(at, bytes)| at.elapsed() < KNOWN_FOR && bytes > most_bytes) {
            return Err(too_large(bytes));
        }
        if needed_bytes > most_bytes {
            let mut known = self.card_room.too_large.lock();
            known.retain(|_, (at, _)| at.elapsed() < KNOWN_FOR);
            known.insert(name.to_owned(), (Instant::now(), needed_bytes));
            return Err(too_large(needed_bytes));
        }
        let patience = if may_wait { self.options.residency.load_timeout / 2 } else { Duration::ZERO };
        let left = || patience.saturating_sub(began.elapsed());
        if waiting.turn.is_none() {
            let turn = Arc::clone(&self.card_room.turn);
            if let Ok(turn) = Arc::clone(&turn).try_lock_owned() {
                waiting.turn = Some(turn);
            } else if self.residents_on(card).iter().any(|resident| resident.name == name && resident.bytes > 0) {
                // The load before it may wait for this model to leave, which cannot leave while it is loaded again.
                self.make_way_on_card(name, card).await;
                return Ok(());
            } else {
                let turn = attempt.unless_stopped(timeout(left(), turn.lock_owned())).await?;
                waiting.turn = Some(turn.map_err(|_| LoadError::memory("other loads wait for its memory"))?);
                // The load before it may have left enough.
                return Ok(());
            }
        }
        let retry_at = Instant::now() + RETRY;
        let mut draining = self.draining();
        loop {
            let (residents, now) = (self.residents_on(card), self.now());
            let others: Vec<Resident> = residents.iter().filter(|resident| resident.name != name).cloned().collect();
            let stays = |resident: &&Resident| resident.hold.is_some_and(Hold::is_permanent);
            let permanent: usize = others.iter().filter(stays).map(|resident| resident.bytes).sum();
            let lacking = needed_bytes.saturating_add(shortage.reserved_bytes).saturating_sub(most_bytes);
            let since = now.saturating_sub(began.elapsed());
            let uses = self.uses(name, now);
            let wanted = Wanted { bytes: lacking, uses, since, longest_wait: patience / 2 };
            let until = match leaving(&others, wanted, now) {
                Room::Unload(names) if self.make_room(&names, &others, &mut draining).await => return Ok(()),
                // Each has a request still, or again.
                Room::Unload(_) => None,
                _ if others.len() < residents.len() => {
                    self.make_way_on_card(name, card).await;
                    return Ok(());
                }
                Room::Wait { until } => until,
                Room::Free | Room::Never => None,
            };
            if left().is_zero() || needed_bytes.saturating_add(permanent) > most_bytes {
                let held: Vec<Resident> = residents.into_iter().filter(|resident| resident.bytes > 0).collect();
                let holders = Holders { residents: &held, now, is_on_demand: true };
                return Err(LoadError::memory(holders.to_string()));
            }
            if Instant::now() >= retry_at {
                return Ok(());
            }
            let look = until.map_or(LOOK, |until| until.saturating_sub(now).min(LOOK));
            attempt.unless_stopped(sleep(look.max(Duration::from_millis(1)))).await?;
        }
    }

    async fn make_way_on_card(self: &Arc<Self>, name: &str, card: u16) {
        info!(model = name, card, "unloaded before it is loaded again, for want of memory for both");
        self.change(|table| table.make_way(name)).await;
    }

    /// Returns the loaded models, with what each has reserved of a card.
    fn residents_on(&self, card: u16) -> Vec<Resident> {
        let pipelines = self.dependencies.by_model();
        self.table.lock().residents_on(card, &pipelines)
    }
}

/// Decides which models leave a card: as many as free what is lacking, or else as free anything, since a part of what a
/// model has reserved may stay for others, and be counted for none.
fn leaving(others: &[Resident], lacking: Wanted, now: Duration) -> Room {
    let reserved: usize = others.iter().map(|resident| resident.bytes).sum();
    let wanted = |bytes: usize| room(reserved, reserved, Wanted { bytes, ..lacking }, others, now);
    match wanted(lacking.bytes.clamp(1, reserved.max(1))) {
        Room::Unload(names) => Room::Unload(names),
        _ => wanted(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::Uses;

    const NOW: Duration = Duration::from_secs(9);

    /// A load that lacks this much and has not waited.
    fn lacks(bytes: usize) -> Wanted {
        Wanted { bytes, uses: 1.0, since: NOW, longest_wait: NOW }
    }

    fn resident(name: &str, bytes: usize, last_used: u64) -> Resident {
        Resident {
            name: name.to_owned(),
            bytes,
            loaded_at: Duration::ZERO,
            load_took: Duration::from_millis(1),
            last_used: Duration::from_secs(last_used),
            uses: Uses::default(),
            hold: None,
            needed_by: Vec::new(),
        }
    }

    fn names(room: Room) -> Vec<String> {
        if let Room::Unload(names) = room { names } else { Vec::new() }
    }

    #[test]
    fn models_without_memory_of_the_card_stay() {
        let others = [resident("cpu", 0, 1), resident("old", 4, 2), resident("new", 4, 3)];
        assert_eq!(names(leaving(&others, lacks(4), NOW)), ["old"]);
        assert_eq!(names(leaving(&others, lacks(5), NOW)), ["old", "new"]);
        assert_eq!(names(leaving(&others, lacks(40), NOW)), ["old", "new"], "the workspace counts for no model");
    }

    #[test]
    fn a_pipeline_leaves_with_its_model() {
        let mut model = resident("model", 4, 1);
        model.needed_by = vec!["pipeline".to_owned()];
        let others = [model, resident("pipeline", 0, 2), resident("cpu", 0, 0)];
        assert_eq!(names(leaving(&others, lacks(4), NOW)), ["pipeline", "model"]);
    }

    #[test]
    fn if_not_enough_may_leave_one_leaves_that_may() {
        let mut busy = resident("busy", 30, 1);
        busy.hold = Some(Hold::Busy);
        let others = [busy, resident("idle", 4, 2)];
        assert_eq!(names(leaving(&others, lacks(20), NOW)), ["idle"]);
        assert_eq!(leaving(&others[..1], lacks(20), NOW), Room::Wait { until: None });
        assert_eq!(leaving(&[], lacks(20), NOW), Room::Never);
    }
}
