//! Poll mode: looks at the repositories again and again and loads what changed.
//!
//! A change is acted on when two looks in a row see the same, so that a model that is still being copied is left alone;
//! after a look that saw something new the next one comes soon. What looks mean is decided in [`super::looks`].

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    control::{Control, Demand},
    looks::{Look, Looks, Verdict},
};

/// The next look after one that saw something new, where the period is longer.
const SETTLE: Duration = Duration::from_secs(1);

/// The shortest period, so that a period of nothing does not keep a processor busy.
const SHORTEST: Duration = Duration::from_millis(100);

async fn look(control: &Control) -> Option<Look> {
    match control.places.look().await {
        Ok(look) => Some(look),
        Err(fault) => {
            tracing::error!(%fault, "the model repositories could not be looked at");
            None
        }
    }
}

/// The look at the start: acts at once on whatever there is.
pub(super) async fn first_look(control: &Arc<Control>, looks: &mut Looks) {
    let Some(look) = look(control).await else { return };
    let verdict = looks.first(look);
    act(control, looks, verdict, Demand::Start).await;
}

/// Looks once and acts; whether the next look should come soon.
pub(super) async fn look_again(control: &Arc<Control>, looks: &mut Looks) -> bool {
    let Some(look) = look(control).await else { return false };
    let verdict = looks.again(look);
    let unsettled = verdict.unsettled;
    act(control, looks, verdict, Demand::Poll).await;
    unsettled
}

async fn act(control: &Arc<Control>, looks: &mut Looks, verdict: Verdict, demand: Demand) {
    for (directory, reason) in &verdict.warnings {
        tracing::warn!(directory = %directory.display(), reason, "cannot be looked at; its models stay as they are");
    }
    for directory in &verdict.recovered {
        tracing::info!(directory = %directory.display(), "can be looked at again");
    }
    control.stats.failed_scans.fetch_add(verdict.failed as u64, Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    for (name, found) in verdict.load {
        let control = control.clone();
        tasks.spawn(async move {
            let was_there = control.load_found(&name, Some(found), demand).await;
            (!was_there).then_some(name)
        });
    }
    for name in verdict.unload {
        let control = control.clone();
        tasks.spawn(async move {
            control.unload(&name).await;
            control.places.forget(&name).await;
            None
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Some(not_there)) = ended {
            looks.try_again(&not_there);
        }
    }
    // Only now: a server is not ready before the models of a late repository are.
    if looks.is_complete() {
        control.open();
    }
}

/// Looks until the repository is gone.
pub(super) async fn run(control: Weak<Control>, mut looks: Looks, period: Duration) {
    let period = period.max(SHORTEST);
    let mut wait = period;
    loop {
        tokio::time::sleep(wait).await;
        let Some(control) = control.upgrade() else { return };
        let unsettled = look_again(&control, &mut looks).await;
        wait = if unsettled { period.min(SETTLE) } else { period };
    }
}
