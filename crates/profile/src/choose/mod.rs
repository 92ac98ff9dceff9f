//! Chooses stages and policy from a profile, with a reason for each choice.

use paternoster_batching::{AUTO, AutoKnobs, Policy, PolicyKind};
use serde::Serialize;

use super::{
    CutTable, Findings, OperatorCuts, Profile, find,
    operators::{self, BOUNDARY_NS},
    row_buckets,
};

/// Maximum time of the staged model relative to the whole model, for one row and for a batch of eight. Joining at stage
/// boundaries shortens the mean by only a few percent, and engines that fuse operators across the cut lose more than
/// that.
const CUT_COSTS: f64 = 1.02;

/// The chosen way to serve a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Number of stages, at least 1.
    pub stages: u16,
    /// Tensors to cut at; empty: stages of equal time.
    pub cut_at: Vec<String>,
    /// Batch sizes that were considered: the buckets, for a device that has some.
    pub batch_buckets: Vec<u32>,
    /// How batches are formed.
    pub policy: ChosenPolicy,
    /// Reasons, one line each.
    pub reasons: Vec<String>,
}

/// The policies to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChosenPolicy {
    /// `serial`.
    Serial,
    /// `auto`.
    Auto,
}

impl ChosenPolicy {
    /// Returns the policy for the core, for a model without an objective.
    pub fn knobs(self) -> Policy {
        match self {
            Self::Serial => Policy::Serial,
            Self::Auto => Policy::Auto(AutoKnobs::default()),
        }
    }

    /// Returns the name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => PolicyKind::Serial.name(),
            Self::Auto => AUTO,
        }
    }
}

/// Chooses from a profile; `fixed` is the number of stages, if the configuration sets it.
///
/// If lanes that all run the model are fastest with one row each, the policy is `serial`: the lanes already share the
/// device, and batching would only make requests wait for each other. Otherwise it is `auto`, each part of which acts
/// only if the measured times predict that it shortens completion times. The choice is therefore the number of stages:
///
/// - Where the preferred batches of operators change, if that was weighed ([`OperatorCuts`]) and measured to make rows
///   complete earlier; else stages of equal time.
/// - If requests differ in length, batches of like lengths run in parallel, which also resolves load diversity
///   (DVABatch section 7.2): one stage, unless running stages with batches of different sizes pays off.
/// - Otherwise, if joining pays off, the number of stages that minimizes the expected completion time of a request that
///   arrives at a random moment, among those that slow no batch down by more than 2 %: the time of all stages,
///   [`BOUNDARY_NS`] per boundary, and half of the first stage, for which it waits.
///
/// Returns `None` if the profile has no time for one row.
pub fn choose(profile: &Profile, fixed: Option<u16>) -> Option<Choice> {
    let found = Findings::of(profile)?;
    let share = found.together_share();
    let (rows, alone_us) = (found.together_rows, found.alone_ns as f64 / 1e3);
    let mut reasons = vec![format!(
        "batching {}: T({rows})/{rows} is {share:.2} of T(1) = {alone_us:.0} µs, and joining pays up to {:.2}",
        if found.load_diversity { "gains" } else { "gains little" },
        find::JOINING_PAYS,
    )];
    let gains = found.load_diversity && !found.runs_best_one_by_one();
    let by_operators = (fixed.is_none() && gains).then(|| cut_by_operators(profile, &found, &mut reasons)).flatten();
    let cut_at = by_operators.map_or_else(Vec::new, |cut| cut.at.clone());
    let stages = match (fixed, by_operators) {
        (Some(stages), _) => stages,
        (None, Some(cut)) => u16::try_from(cut.stages.len()).unwrap_or(1),
        (None, None) if !gains => {
            reasons.push("one stage: boundaries would cost time, and no request would join at them".to_owned());
            1
        }
        (None, None) if found.input_diversity => stages_by_operators(profile, &found, &mut reasons),
        (None, None) => stages_by_wait(profile, &found, &mut reasons),
    };
    let policy = policy(&found);
    reasons.extend(why(policy, &found, stages).into_iter().map(str::to_owned));
    Some(Choice { stages, cut_at, batch_buckets: row_buckets(profile.max_rows), policy, reasons })
}

fn policy(found: &Findings) -> ChosenPolicy {
    if !found.input_diversity && found.runs_best_one_by_one() { ChosenPolicy::Serial } else { ChosenPolicy::Auto }
}

fn why(policy: ChosenPolicy, found: &Findings, stages: u16) -> Vec<&'static str> {
    const PARTS: &str = "no more boards together, or stays together, than the device takes as well in parts";
    let batches = if found.input_diversity {
        "requests differ in length: those of like length share a batch where that is faster than padding"
    } else if stages > 1 {
        "lengths are alike: newcomers join the newest batch (it is stretched)"
    } else {
        "lengths are alike and no request joins a running batch: waiting requests board at once"
    };
    match policy {
        ChosenPolicy::Serial => vec!["while all lanes are busy, no batch is 5 % faster a row than requests one by one"],
        ChosenPolicy::Auto => vec![batches, PARTS],
    }
}

/// Returns the cut where preferred batches change, if its measured times keep what was weighed.
fn cut_by_operators<'p>(profile: &'p Profile, found: &Findings, reasons: &mut Vec<String>) -> Option<&'p CutTable> {
    let (whole, cut) = (profile.whole()?, profile.by_operators.as_ref()?);
    let weighed = OperatorCuts::of(whole, profile.ranges.as_ref()?, found.length)?;
    let mean_ns = operators::mean_ns(cut, weighed.rows, found.length)?;
    let pays = mean_ns <= operators::PAYS * weighed.whole_ns;
    reasons.push(format!(
        "{}cut where preferred batches change, at {}: a row of a batch of {} is done after {:.0} µs on average instead of \
         {:.0}",
        if pays { "" } else { "not " },
        cut.at.join(", "),
        weighed.rows,
        mean_ns / 1e3,
        weighed.whole_ns / 1e3,
    ));
    pays.then_some(cut)
}

/// Returns the fewest stages for which batches of different sizes pay off; 1 if there is no such number.
fn stages_by_operators(profile: &Profile, found: &Findings, reasons: &mut Vec<String>) -> u16 {
    let diverse = |cut: &&CutTable| find::are_diverse(profile, cut, found.length);
    let fewest = profile.cuts.iter().filter(diverse).map(|cut| cut.stages.len()).min();
    let stages = fewest.and_then(|count| u16::try_from(count).ok()).unwrap_or(1);
    reasons.push(match stages {
        1 => "one stage: groups of like length run in parallel, so no request needs to join at a boundary".to_owned(),
        count => format!("{count} stages: the fewest that gain by batches of different sizes"),
    });
    stages
}

/// Returns the number of stages with the earliest expected completion, among those with negligible cost.
fn stages_by_wait(profile: &Profile, found: &Findings, reasons: &mut Vec<String>) -> u16 {
    let whole = profile.whole();
    let costs_nothing = |cut: &&CutTable| {
        let slower = |rows| {
            let whole_ns = whole?.total_ns(rows, found.length)? as f64;
            Some(cut.total_ns(rows, found.length)? as f64 / whole_ns)
        };
        cut.stages.len() == 1
            || [1, found.together_rows].into_iter().all(|rows| slower(rows).is_some_and(|slower| slower <= CUT_COSTS))
    };
    let cheap = profile.cuts.iter().filter(costs_nothing);
    let weighed: Vec<(usize, f64)> =
        cheap.filter_map(|cut| Some((cut.stages.len(), expected_ns(cut, found.length)?))).collect();
    if weighed.len() < profile.cuts.len() {
        reasons.push(format!(
            "cuts that make a batch of 1 or {} more than {:.0} % slower are left out: all requests would pay for those \
             that join",
            found.together_rows,
            100.0 * (CUT_COSTS - 1.0),
        ));
    }
    let best = weighed.iter().min_by(|one, two| one.1.total_cmp(&two.1)).map_or(1, |(count, _)| *count);
    let each: Vec<String> = weighed.iter().map(|(count, ns)| format!("{count}: {:.0} µs", ns / 1e3)).collect();
    reasons.push(format!(
        "{best} stage{}: half of the first stage to wait, all stages, and {} µs a boundary make {}",
        if best == 1 { "" } else { "s" },
        BOUNDARY_NS / 1_000,
        each.join(", "),
    ));
    u16::try_from(best).unwrap_or(1)
}

/// Returns the expected completion time of a single request that arrives at a random moment while others run.
fn expected_ns(cut: &CutTable, length: u32) -> Option<f64> {
    let first = cut.point(0, 1, length)?.median_ns as f64;
    let boundaries = cut.stages.len().saturating_sub(1) as f64;
    Some(first / 2.0 + cut.total_ns(1, length)? as f64 + boundaries * BOUNDARY_NS as f64)
}

#[cfg(test)]
mod tests;
