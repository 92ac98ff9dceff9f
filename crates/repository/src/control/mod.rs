//! What loads, unloads and polls share. Unloads models, and publishes what became of loads.
//!
//! Each part has what [`Control`] does in one respect: `loading` loads models, `dependencies` knows what pipelines
//! need, `memory_budget` makes room for loads and `card_room` on cards, and `on_demand` begins the loads that requests
//! wait for. The parts use each other through [`Control`]. When loads happen is decided elsewhere.

pub(crate) mod card_room;
pub(crate) mod dependencies;
pub(crate) mod loading;
pub(crate) mod memory_budget;
pub(crate) mod on_demand;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use paternoster_config::{Origin, Settings};
use paternoster_observe::{RepositoryStats, budget::Budget};
use paternoster_pipeline::Workers;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use self::{card_room::CardRoom, dependencies::Dependencies, on_demand::OnDemand};
use super::{
    ControlError, LoadError, Loader, Options,
    directory::Fingerprint,
    gates::Gates,
    places::Places,
    serving::Serving,
    table::{Retired, Table},
};

/// Why a model is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// It was named by the command line.
    Named,
    /// Its directory existed at startup.
    Start,
    /// Its directory appeared or changed while the server was running.
    Poll,
    /// A client asked for it, or its profile advises other settings. Readiness does not depend on the load.
    Client,
    /// A request needs it, if it is not loaded. Readiness does not depend on the load.
    Request,
}

impl Demand {
    /// Returns whether readiness waits for what is loaded.
    fn concerns_readiness(self) -> bool {
        !matches!(self, Self::Client | Self::Request)
    }
}

/// State shared by loads, unloads and polls. `table` is authoritative; `serving` is the snapshot of it that requests
/// read.
pub(crate) struct Control {
    pub(crate) options: Options,
    pub(crate) places: Places,
    pub(crate) loader: Arc<dyn Loader>,
    pub(crate) table: Mutex<Table>,
    pub(crate) serving: ArcSwap<Serving>,
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) gates: Gates,
    /// Limits the number of loader threads.
    pub(crate) loads: Arc<Semaphore>,
    /// Limits the loader threads for what clients send, so that models of the repository keep one.
    pub(crate) loads_of_clients: Arc<Semaphore>,
    /// Limits the loads and unloads of clients that are queued or in progress.
    pub(crate) pending: Arc<Budget>,
    /// Configurations that load requests gave in place of the directory's own, by model.
    pub(crate) kept: Mutex<HashMap<String, Kept>>,
    /// Whether every repository has been readable at least once.
    pub(crate) opened: AtomicBool,
    pub(crate) stats: Arc<RepositoryStats>,
    /// Hints that were logged, by model and key, so that each is logged once.
    pub(crate) warned: Mutex<BTreeSet<(String, String)>>,
    /// What pipelines need.
    pub(crate) dependencies: Dependencies,
    /// The loads that wait for memory.
    pub(crate) memory_queue: memory_budget::Queue,
    /// Held by the pipeline whose models are being loaded for it, where requests load models.
    pub(crate) assembling: Arc<tokio::sync::Mutex<()>>,
    /// What loads that need room on cards share.
    pub(crate) card_room: CardRoom,
    /// The worker threads of built-in steps.
    pub(crate) workers: Workers,
    /// Serializes profiles that are measured in the background.
    pub(crate) profiling: Arc<tokio::sync::Mutex<()>>,
    /// Loads that requests began.
    pub(crate) on_demand: OnDemand,
    /// Memory of models; `None`: no limit.
    pub(crate) memory: Option<Arc<Budget>>,
    pub(crate) opened_at: Instant,
}

/// A configuration from a load request. It applies to later loads until an unload, unless the directory changes: the
/// later of the two wins.
pub(crate) struct Kept {
    pub(crate) config: (Settings, Origin),
    /// The directory's fingerprint at that load.
    pub(crate) fingerprint: Fingerprint,
}

impl Control {
    /// Unloads a model, and ends its loads that are queued or in progress. Does nothing for a model that was never
    /// loaded.
    pub(crate) async fn unload(self: &Arc<Self>, name: &str) {
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
    pub(crate) fn close(&self) -> Retired {
        let retired = self.table.lock().close();
        self.gates.stop_all("the server is shutting down");
        self.publish();
        retired
    }

    /// Marks the models to load at startup. While `is_listing`, there may be others.
    pub(crate) fn begin_start<'n>(&self, names: impl IntoIterator<Item = &'n str>, is_listing: bool) {
        self.table.lock().begin_start(names, is_listing);
        self.publish();
    }

    /// Marks the end of startup: a load of every startup model was tried.
    pub(crate) fn end_start(&self) {
        self.table.lock().end_start();
        self.publish();
    }

    /// Marks that every repository has been readable, and notifies on the first call.
    pub(crate) fn open(&self) {
        if !self.opened.swap(true, Ordering::Relaxed) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn refuse(&self, name: &str, error: LoadError, asked: bool) -> Result<(), ControlError> {
        self.table.lock().refuse(name, &error.to_string(), asked);
        self.publish();
        Err(error.into_control(name))
    }

    /// Changes the table, publishes it, and drops retired versions on a thread that may block.
    pub(crate) async fn change(&self, change: impl FnOnce(&mut Table) -> Retired) {
        let retired = change(&mut self.table.lock());
        self.publish();
        if !retired.is_empty() {
            // Waiting for the drop means that when an unload returns, the memory is free unless requests still hold the
            // version.
            drop(tokio::task::spawn_blocking(move || drop(retired)).await);
        }
    }

    pub(crate) fn publish(&self) {
        // Built and stored under the lock, so that the newer of two concurrent changes is published last.
        let mut table = self.table.lock();
        let old = self.serving.swap(Arc::new(table.serving()));
        drop(table);
        drop(old);
        self.changes.send_modify(|count| *count += 1);
    }
}
