//! Poll mode: looks at the directories again and again and loads what changed.
//!
//! A change is acted on when two looks in a row see the same, so that a model that is still being copied is left alone;
//! after a look that saw something new the next one comes soon.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    control::{Control, blocking},
    directory::{self, Fingerprint, Found},
};

/// The next look after one that saw something new, where the period is longer.
const SETTLE: Duration = Duration::from_secs(1);

/// The shortest period, so that a period of nothing does not keep a processor busy.
const SHORTEST: Duration = Duration::from_millis(100);

/// What a look saw of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    found: Found,
    print: Fingerprint,
}

/// What was seen and what was acted on, by model.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: BTreeMap<String, Sight>,
    acted: BTreeMap<String, Sight>,
}

/// What a look asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    load: BTreeMap<String, Found>,
    unload: BTreeSet<String>,
    /// Something changed since the last look.
    unsettled: bool,
}

impl Looks {
    /// ## (last, acted) => (current, acted + settled)
    fn judge(&mut self, current: BTreeMap<String, Sight>) -> Verdict {
        let mut verdict = Verdict::default();
        for (name, sight) in &current {
            if self.acted.get(name) == Some(sight) {
                continue;
            }
            if self.last.get(name) == Some(sight) {
                verdict.load.insert(name.clone(), sight.found.clone());
                self.acted.insert(name.clone(), sight.clone());
            } else {
                verdict.unsettled = true;
            }
        }
        let gone = self.acted.keys().filter(|name| !current.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            if self.last.contains_key(&name) {
                verdict.unsettled = true;
            } else {
                self.acted.remove(&name);
                verdict.unload.insert(name);
            }
        }
        self.last = current;
        verdict
    }
}

fn look(control: &Control) -> BTreeMap<String, Sight> {
    let found = directory::scan(&control.options.repositories);
    let sights = found.into_iter().map(|(name, found)| {
        let print = match &found {
            Found::At(directory) => Fingerprint::of(directory),
            Found::Twice(..) => Fingerprint::default(),
        };
        (name, Sight { found, print })
    });
    sights.collect()
}

async fn look_blocking(control: &Arc<Control>) -> Option<BTreeMap<String, Sight>> {
    let worker = control.clone();
    match blocking(move || look(&worker)).await {
        Ok(current) => Some(current),
        Err(fault) => {
            tracing::error!(%fault, "the model repositories could not be looked at");
            None
        }
    }
}

/// The look at the start: acts at once on whatever there is.
pub(super) async fn first_look(control: &Arc<Control>, looks: &mut Looks) {
    let Some(current) = look_blocking(control).await else { return };
    looks.last.clone_from(&current);
    let verdict = looks.judge(current);
    act(control, verdict).await;
}

/// Looks once and acts; whether the next look should come soon.
pub(super) async fn look_again(control: &Arc<Control>, looks: &mut Looks) -> bool {
    let Some(current) = look_blocking(control).await else { return false };
    let verdict = looks.judge(current);
    let unsettled = verdict.unsettled;
    act(control, verdict).await;
    unsettled
}

async fn act(control: &Arc<Control>, verdict: Verdict) {
    let mut tasks = JoinSet::new();
    for (name, found) in verdict.load {
        let control = control.clone();
        tasks.spawn(async move { control.load_found(&name, Some(found)).await });
    }
    for name in verdict.unload {
        let control = control.clone();
        tasks.spawn(async move { control.unload(&name).await });
    }
    while tasks.join_next().await.is_some() {}
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sights(models: &[(&str, &str)]) -> BTreeMap<String, Sight> {
        let sights = models.iter().map(|(name, place)| {
            let sight = Sight { found: Found::At((*place).into()), print: Fingerprint::default() };
            ((*name).to_owned(), sight)
        });
        sights.collect()
    }

    #[test]
    fn a_change_is_acted_on_once_it_holds_still() {
        let mut looks = Looks::default();
        assert!(looks.judge(sights(&[("a", "half")])).unsettled, "new");
        assert!(looks.judge(sights(&[("a", "more")])).unsettled, "still being written");
        let verdict = looks.judge(sights(&[("a", "more")]));
        assert_eq!(verdict.load.keys().collect::<Vec<_>>(), ["a"], "it held still");
        assert_eq!(looks.judge(sights(&[("a", "more")])), Verdict::default(), "and is loaded once");
    }

    #[test]
    fn a_model_that_is_gone_for_two_looks_is_unloaded() {
        let mut looks = Looks::default();
        for _ in 0..2 {
            looks.judge(sights(&[("a", "x"), ("b", "x")]));
        }
        let first = looks.judge(sights(&[("b", "x")]));
        assert!(first.unload.is_empty() && first.unsettled, "it may only be moved aside");
        let second = looks.judge(sights(&[("b", "x")]));
        assert_eq!(second.unload.iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(looks.judge(sights(&[("b", "x")])), Verdict::default());
    }

    #[test]
    fn a_model_that_comes_back_unchanged_is_not_loaded_again() {
        let mut looks = Looks::default();
        for _ in 0..2 {
            looks.judge(sights(&[("a", "x")]));
        }
        looks.judge(sights(&[]));
        assert_eq!(looks.judge(sights(&[("a", "x")])), Verdict::default());
    }
}
