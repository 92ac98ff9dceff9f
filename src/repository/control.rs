//! What loads, unloads and polls share. Unloads models, and publishes what became of loads.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    ControlError, Loader, Options,
    card_room::CardRoom,
    config::{Origin, Settings},
    dependencies::Dependencies,
    directory::Fingerprint,
    gates::Gates,
    memory_budget,
    on_demand::OnDemand,
    places::Places,
    serving::Serving,
    table::{Retired, Table},
};
use crate::{budget::Budget, observe::RepositoryStats};

/// State shared by loads, unloads and polls. `table` is authoritative; `serving` is the snapshot of it that requests
/// read.
pub(super) struct Control {
    pub(super) options: Options,
    pub(super) places: Places,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) table: Mutex<Table>,
    pub(super) serving: ArcSwap<Serving>,
    pub(super) changes: watch::Sender<u64>,
    pub(super) gates: Gates,
    /// Limits the number of loader threads.
    pub(super) loads: Arc<Semaphore>,
    /// Limits the loader threads for what clients send, so that models of the repository keep one.
    pub(super) loads_of_clients: Arc<Semaphore>,
    /// Limits the loads and unloads of clients that are queued or in progress.
    pub(super) pending: Arc<Budget>,
    /// Configurations that load requests gave in place of the directory's own, by model.
    pub(super) kept: Mutex<HashMap<String, Kept>>,
    /// Whether every repository has been readable at least once.
    pub(super) opened: AtomicBool,
    pub(super) stats: Arc<RepositoryStats>,
    /// Hints that were logged, by model and key, so that each is logged once.
    pub(super) warned: Mutex<BTreeSet<(String, String)>>,
    /// What pipelines need.
    pub(super) dependencies: Dependencies,
    /// The loads that wait for memory.
    pub(super) memory_queue: memory_budget::Queue,
    /// Held by the pipeline whose models are being loaded for it, where requests load models.
    pub(super) assembling: Arc<tokio::sync::Mutex<()>>,
    /// What loads that need room on cards share.
    pub(super) card_room: CardRoom,
    /// Limits the worker threads for built-in steps of pipelines.
    pub(super) workers: Arc<Semaphore>,
    /// The same for those that take long.
    pub(super) long_workers: Arc<Semaphore>,
    /// Serializes profiles that are measured in the background.
    pub(super) profiling: Arc<tokio::sync::Mutex<()>>,
    /// Loads that requests began.
    pub(super) on_demand: OnDemand,
    /// Memory of models; `None`: no limit.
    pub(super) memory: Option<Arc<Budget>>,
    pub(super) opened_at: Instant,
}

/// A configuration from a load request. It applies to later loads until an unload, unless the directory changes: the
/// later of the two wins.
pub(super) struct Kept {
    pub(super) config: (Settings, Origin),
    /// The directory's fingerprint at that load.
    pub(super) fingerprint: Fingerprint,
}

impl Control {
    /// Unloads a model, and ends its loads that are queued or in progress. Does nothing for a model that was never
    /// loaded.
    pub(super) async fn unload(self: &Arc<Self>, name: &str) {
        let gate = self.gates.of(name);
        gate.stop("the model is being unloaded");
        if !self.table.lock().knows(name) {
            return;
        }
        let _turn = gate.turn.lock().await;
        self.kept.lock().remove(name);
        self.dependencies.remove(name);
        self.change(|table| table.unload(name)).await;
        self.on_demand.forget_lack_of_memory();
        self.places.touch(name).await;
        tracing::info!(model = name, "model unloaded");
    }

    /// Unloads everything permanently and returns the versions to drop.
    pub(super) fn close(&self) -> Retired {
        let retired = self.table.lock().close();
        self.gates.stop_all("the server is shutting down");
        self.publish();
        retired
    }

    /// Marks the models to load at startup. While `is_listing`, there may be others.
    pub(super) fn begin_start<'n>(&self, names: impl IntoIterator<Item = &'n str>, is_listing: bool) {
        self.table.lock().begin_start(names, is_listing);
        self.publish();
    }

    /// Marks the end of startup: a load of every startup model was tried.
    pub(super) fn end_start(&self) {
        self.table.lock().end_start();
        self.publish();
    }

    /// Marks that every repository has been readable, and notifies on the first call.
    pub(super) fn open(&self) {
        if !self.opened.swap(true, Ordering::Relaxed) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn refuse(&self, name: &str, reason: String, asked: bool) -> Result<(), ControlError> {
        self.table.lock().refuse(name, &reason, asked);
        self.publish();
        Err(ControlError::LoadFailed { name: name.to_owned(), reason })
    }

    /// Changes the table, publishes it, and drops retired versions on a thread that may block.
    pub(super) async fn change(&self, change: impl FnOnce(&mut Table) -> Retired) {
        let retired = change(&mut self.table.lock());
        self.publish();
        if !retired.is_empty() {
            // Waiting for the drop means that when an unload returns, the memory is free unless requests still hold the
            // version.
            drop(tokio::task::spawn_blocking(move || drop(retired)).await);
        }
    }

    pub(super) fn publish(&self) {
        // Built and stored under the lock, so that the newer of two concurrent changes is published last.
        let table = self.table.lock();
        let old = self.serving.swap(Arc::new(table.serving()));
        drop(table);
        drop(old);
        self.changes.send_modify(|count| *count += 1);
    }
}
