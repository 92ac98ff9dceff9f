//! Loads the models of the control mode once, at server start.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use super::{
    ControlMode, Repository, StartError,
    changes::ChangeDetector,
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
        control.begin_start(startup.names(&startup.found()), is_listing);
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
    pub async fn load(mut self) -> Result<(), StartError> {
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
            ControlMode::Poll { period } => {
                let mut detector = ChangeDetector::default();
                polling::first_poll(control, &mut detector).await;
                let task = tokio::spawn(polling::run(Arc::downgrade(control), detector, period));
                // Cannot be set already: only this method sets it, and it consumes the only `Startup`.
                let _ = repository.poller.set(task.abort_handle());
            }
        }
        control.end_start();
        Ok(())
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
            _ => found.keys().map(String::as_str).collect(),
        }
    }
}
