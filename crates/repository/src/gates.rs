//! The order of the loads and unloads of each model: they run one after another, and an unload ends the loads before
//! it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::LoadAttempt;

/// The gates of all models by name.
#[derive(Debug, Default)]
pub(super) struct Gates(Mutex<HashMap<String, Arc<Gate>>>);

/// Serializes the loads and unloads of one model.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Held by the load or unload whose turn it is.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// Loads that are queued or in progress.
    attempts: Mutex<Vec<Weak<LoadAttempt>>>,
}

impl Gates {
    /// Returns the gate of a model.
    pub(super) fn of(&self, name: &str) -> Arc<Gate> {
        let mut gates = self.0.lock();
        // Gates that nothing holds or waits for are dropped, so that requests for invented names leave nothing behind.
        gates.retain(|_, gate| Arc::strong_count(gate) > 1 || gate.is_in_use());
        gates.entry(name.to_owned()).or_default().clone()
    }

    /// Ends all loads of all models.
    pub(super) fn stop_all(&self, reason: &str) {
        let gates: Vec<Arc<Gate>> = self.0.lock().values().cloned().collect();
        gates.iter().for_each(|gate| gate.stop(reason));
    }
}

impl Gate {
    /// Returns whether someone has its turn, or a load is registered.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.turn) > 1 || self.attempts.lock().iter().any(|attempt| attempt.strong_count() > 0)
    }

    /// Registers a load, so that [`Self::stop`] ends it.
    pub(super) fn register(&self, attempt: &Arc<LoadAttempt>) {
        let mut attempts = self.attempts.lock();
        attempts.retain(|attempt| attempt.strong_count() > 0);
        attempts.push(Arc::downgrade(attempt));
    }

    /// Ends the loads that are queued or in progress.
    pub(super) fn stop(&self, reason: &str) {
        let attempts = std::mem::take(&mut *self.attempts.lock());
        attempts.iter().filter_map(Weak::upgrade).for_each(|attempt| attempt.stop(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_lasts_as_long_as_it_is_held_or_a_load_is_registered() {
        let gates = Gates::default();
        let attempt = LoadAttempt::of_repository();
        gates.of("loading").register(&attempt);
        let turn = Arc::clone(&gates.of("held").turn).try_lock_owned().expect("nobody else has it");
        drop(gates.of("idle"));
        let names = |gates: &Gates| {
            let mut names: Vec<String> = gates.0.lock().keys().cloned().collect();
            names.sort();
            names
        };
        drop(gates.of("other"));
        assert_eq!(names(&gates), ["held", "loading", "other"]);
        assert!(gates.of("held").turn.try_lock().is_err(), "it is the same gate");
        gates.of("loading").stop("the model is being unloaded");
        assert_eq!(attempt.unwanted(), Some("the model is being unloaded"));
        drop((attempt, turn));
        drop(gates.of("other"));
        assert_eq!(names(&gates), ["other"]);
    }
}
