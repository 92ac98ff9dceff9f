//! Loading what the mode says, once, when the server starts.

use std::{collections::BTreeMap, sync::Arc};

use super::{ControlMode, Repository, looks::Looks, polling, scan::Found};

/// A repository whose models of the start were not loaded yet.
#[derive(Debug)]
pub struct Startup {
    repository: Arc<Repository>,
    found: BTreeMap<String, Found>,
}

impl Startup {
    /// Notes what is to be loaded, of what was found on the disk.
    pub(super) fn begin(repository: Arc<Repository>, found: BTreeMap<String, Found>) -> Self {
        let names: Vec<&str> = match &repository.control.options.mode {
            ControlMode::Explicit { startup } if !loads_all(startup) => startup.iter().map(String::as_str).collect(),
            _ => found.keys().map(String::as_str).collect(),
        };
        repository.control.begin_start(names);
        Self { repository, found }
    }

    /// The repository, which answers for the models that are loaded already.
    pub fn repository(&self) -> &Arc<Repository> {
        &self.repository
    }

    /// Loads the models, and their versions, in parallel. A model that fails is unavailable with its reason and stops
    /// nothing. In poll mode the directories are looked at from here on.
    ///
    /// Dropping the future stops the start: loads that run are dropped when they are done, others do not begin.
    pub async fn load(self) {
        let Self { repository, found } = self;
        let control = &repository.control;
        match control.options.mode.clone() {
            ControlMode::None => control.load_all(None, found).await,
            ControlMode::Explicit { startup } => {
                control.load_all((!loads_all(&startup)).then_some(startup), found).await;
            }
            ControlMode::Poll { period } => {
                let mut looks = Looks::default();
                polling::first_look(control, &mut looks).await;
                let task = tokio::spawn(polling::run(Arc::downgrade(control), looks, period));
                // It is set here alone, and a start is used up by its load.
                let _ = repository.poller.set(task.abort_handle());
            }
        }
        control.end_start();
    }
}

fn loads_all(startup: &[String]) -> bool {
    startup.iter().any(|name| name == "*")
}
