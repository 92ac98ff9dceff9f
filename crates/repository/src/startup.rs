//! Loads the models of the control mode once, at server start.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{BoxFuture, join_all};

use super::{
    ControlMode, Repository, StartError,
    changes::ChangeDetector,
    control::memory_budget,
    polling,
    scan::{self, Found, Listing, Scan},
};

/// A repository whose startup models have not been loaded yet.
#[derive(Debug)]
pub struct Startup {
    repository: Arc<Repository>,
    /// Of the repositories that have been scanned so far, in the order of the command line.
    listings: Vec<Listing>,
}

impl Startup {
    /// Marks the models to load, out of those found on disk.
    ///
    /// # Errors
    /// Fails if a directory cannot be read and the options do not let the server start without it.
    pub(super) fn begin(repository: Arc<Repository>, scanned: Scan) -> Result<Self, StartError> {
        let mut startup = Self { repository, listings: Vec::new() };
        startup.take_in(scanned)?;
        let control = &startup.repository.control;
        let is_listing = control.places.has_stores() && !control.options.mode.names_models();
        let found = startup.found();
        control.begin_start(startup.names(&found), is_listing);
        if control.options.mode.is_on_demand() {
            control.offer(found.keys().map(String::as_str));
        }
        Ok(startup)
    }

    /// Returns the repository, which already serves the models that have been loaded.
    pub fn repository(&self) -> &Arc<Repository> {
        &self.repository
    }

    /// Lists the stores, then loads the models and their versions in parallel. A model that fails is unavailable with
    /// its reason and does not stop the others. In poll mode, polling starts here.
    ///
    /// Dropping the future stops startup: loads in progress are dropped when they finish, and no others start.
    ///
    /// # Errors
    /// Fails if a store cannot be read and the options do not let the server start without it.
    pub fn load(mut self) -> BoxFuture<'static, Result<(), StartError>> {
        Box::pin(async move {
            if self.repository.control.places.has_stores() {
                let scanned = self.repository.control.places.scan_stores().await;
                self.take_in(scanned)?;
            }
            let found = self.found();
            let Self { repository, .. } = &self;
            let control = &repository.control;
            control.begin_start(self.names(&found), false);
            match control.options.mode.clone() {
                ControlMode::None => control.load_all(None, found).await,
                ControlMode::Explicit { startup } => {
                    let named = control.options.mode.names_models().then_some(startup);
                    control.load_all(named, found).await;
                }
                ControlMode::Poll { period } => self.poll(period).await,
                ControlMode::OnDemand { period, .. } => {
                    let names = self.stay_loaded(&found).await;
                    control.begin_start(names.iter().map(String::as_str), false);
                    control.offer(found.keys().map(String::as_str));
                    control.load_all(Some(names), found).await;
                    self.poll(period).await;
                    if let Some(idle) = control.options.residency.idle_unload {
                        tokio::spawn(memory_budget::unload_idle(Arc::downgrade(control), idle));
                    }
                }
            }
            control.end_start();
            Ok(())
        })
    }

    /// Polls once, then periodically.
    async fn poll(&self, period: Duration) {
        let control = &self.repository.control;
        let mut detector = ChangeDetector::default();
        polling::first_poll(control, &mut detector).await;
        let task = tokio::spawn(polling::run(Arc::downgrade(control), detector, period));
        // Cannot be set already: only `load` sets it, and it consumes the only `Startup`.
        let _ = self.repository.poller.set(task.abort_handle());
    }

    /// Returns the models that stay loaded where requests load the others.
    async fn stay_loaded(&self, found: &BTreeMap<String, Found>) -> Vec<String> {
        let control = &self.repository.control;
        let named = control.options.mode.startup().iter().filter(|name| *name != "*").cloned();
        let pinned = join_all(found.iter().map(async |(name, found)| {
            let stays = control.is_pinned(name, found).await || control.is_named(name);
            stays.then(|| name.clone())
        }));
        named.chain(pinned.await.into_iter().flatten()).collect()
    }

    /// Takes in what a scan found. A repository that cannot be read ends the start, unless the options allow it.
    fn take_in(&mut self, scanned: Scan) -> Result<(), StartError> {
        let control = &self.repository.control;
        for (path, listed) in scanned {
            match listed {
                Ok(mut listing) => {
                    for (name, fault) in listing.unreadable.clone() {
                        tracing::warn!(model = name, fault, "the model's directory cannot be read");
                        listing.assume_model(&path, &name);
                    }
                    self.listings.push(listing);
                }
                Err(source) if !control.options.start_unreadable => {
                    return Err(StartError::Unreadable { path, source });
                }
                Err(fault) => {
                    let repository = path.display();
                    tracing::error!(%repository, %fault, "model repository cannot be read; the server is not live");
                    control.stats.failed_scans.fetch_add(1, Ordering::Relaxed);
                    control.opened.store(false, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn found(&self) -> BTreeMap<String, Found> {
        scan::merge(&self.listings)
    }

    /// Returns the models to load.
    fn names<'n>(&'n self, found: &'n BTreeMap<String, Found>) -> Vec<&'n str> {
        match &self.repository.control.options.mode {
            ControlMode::Explicit { startup } if self.repository.control.options.mode.names_models() => {
                startup.iter().map(String::as_str).collect()
            }
            // Which others stay loaded is known once their configurations are read.
            ControlMode::OnDemand { startup, .. } => {
                startup.iter().map(String::as_str).filter(|name| *name != "*").collect()
            }
            _ => found.keys().map(String::as_str).collect(),
        }
    }
}
