//! Loads the models of the control mode once, at server start.

use std::{collections::BTreeMap, sync::Arc};

use super::{ControlMode, Repository, changes::ChangeDetector, polling, scan::Found};

/// A repository whose startup models have not been loaded yet.
#[derive(Debug)]
pub struct Startup {
    repository: Arc<Repository>,
    found: BTreeMap<String, Found>,
}

impl Startup {
    /// Marks the models to load, out of those found on disk.
    pub(super) fn begin(repository: Arc<Repository>, found: BTreeMap<String, Found>) -> Self {
        let names: Vec<&str> = match &repository.control.options.mode {
            ControlMode::Explicit { startup } if !loads_all(startup) => startup.iter().map(String::as_str).collect(),
            _ => found.keys().map(String::as_str).collect(),
        };
        repository.control.begin_start(names);
        Self { repository, found }
    }

    /// Returns the repository, which already serves the models that have been loaded.
    pub fn repository(&self) -> &Arc<Repository> {
        &self.repository
    }

    /// Loads the models and their versions in parallel. A model that fails is unavailable with its reason and does not
    /// stop the others. In poll mode, polling starts here.
    ///
    /// Dropping the future stops startup: loads in progress are dropped when they finish, and no others start.
    pub async fn load(self) {
        let Self { repository, found } = self;
        let control = &repository.control;
        match control.options.mode.clone() {
            ControlMode::None => control.load_all(None, found).await,
            ControlMode::Explicit { startup } => {
                control.load_all((!loads_all(&startup)).then_some(startup), found).await;
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
    }
}

fn loads_all(startup: &[String]) -> bool {
    startup.iter().any(|name| name == "*")
}
