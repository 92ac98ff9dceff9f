//! Poll mode: polls the repositories periodically and loads what changed.
//!
//! A change is acted on once two polls in a row see the same, so that a model that is still being copied is left alone.
//! After a poll that saw a change, the next one follows soon. [`super::changes`] decides what polls mean.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    changes::{ChangeDetector, Changes, PollResult},
    control::{Control, Demand},
};

/// Longest time until the next poll after one that saw a change.
const SETTLE: Duration = Duration::from_secs(1);

/// Shortest period, so that a period of zero does not keep a processor busy.
const SHORTEST: Duration = Duration::from_millis(100);

async fn poll(control: &Control) -> Option<PollResult> {
    match control.places.poll().await {
        Ok(poll) => Some(poll),
        Err(fault) => {
            tracing::error!(%fault, "polling the model repositories failed");
            None
        }
    }
}

/// Polls at startup and acts at once on everything found.
pub(super) async fn first_poll(control: &Arc<Control>, detector: &mut ChangeDetector) {
    let Some(poll) = poll(control).await else { return };
    let changes = detector.first(poll);
    act(control, detector, changes, Demand::Start).await;
}

/// Polls once and acts. Returns whether the next poll should follow soon.
pub(super) async fn poll_again(control: &Arc<Control>, detector: &mut ChangeDetector) -> bool {
    let Some(poll) = poll(control).await else { return false };
    let changes = detector.again(poll);
    let unsettled = changes.unsettled;
    act(control, detector, changes, Demand::Poll).await;
    unsettled
}

async fn act(control: &Arc<Control>, detector: &mut ChangeDetector, changes: Changes, demand: Demand) {
    for (directory, reason) in &changes.warnings {
        tracing::warn!(directory = %directory.display(), reason, "unreadable directory; its models stay as they are");
    }
    for directory in &changes.recovered {
        tracing::info!(directory = %directory.display(), "directory is readable again");
    }
    control.stats.failed_scans.fetch_add(changes.failed as u64, Ordering::Relaxed);
    let is_on_demand = control.options.mode.is_on_demand();
    if is_on_demand && !changes.load.is_empty() {
        control.offer(changes.load.keys().map(String::as_str));
    }
    let mut tasks = JoinSet::new();
    for (name, found) in changes.load {
        // What stays loaded was loaded at the start.
        if is_on_demand && demand == Demand::Start {
            continue;
        }
        let control = control.clone();
        tasks.spawn(async move {
            let was_there = if is_on_demand {
                control.directory_changed(&name, found).await
            } else {
                control.load_found(&name, Some(found), demand).await
            };
            (!was_there).then_some(name)
        });
    }
    for name in changes.unload {
        let control = control.clone();
        tasks.spawn(async move {
            if is_on_demand {
                control.withdraw(&name).await;
            } else {
                control.unload(&name).await;
            }
            control.places.forget(&name).await;
            None
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Some(not_there)) = ended {
            detector.try_again(&not_there);
        }
    }
    // After the loads above: a server must not be ready before the models of a repository that was unreadable at
    // startup.
    if detector.is_complete() {
        control.open();
    }
}

/// Polls until the repository is dropped.
pub(super) async fn run(control: Weak<Control>, mut detector: ChangeDetector, period: Duration) {
    let period = period.max(SHORTEST);
    let mut wait = period;
    loop {
        tokio::time::sleep(wait).await;
        let Some(control) = control.upgrade() else { return };
        let unsettled = poll_again(&control, &mut detector).await;
        wait = if unsettled { period.min(SETTLE) } else { period };
    }
}
