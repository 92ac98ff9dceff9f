//! Chooses stages and policy by a profile. Every choice comes with its reason.

use serde::Serialize;

use super::{CutTable, Findings, Profile, find, row_buckets};
use crate::batching::{DiversityKnobs, InputDiversity, LoadDiversity, Ns, OperatorDiversity, Policy};

/// What a boundary between two stages costs a request, beyond what the stages' own times show: the step of the core and
/// the way to the lane.
pub const BOUNDARY_NS: Ns = 5_000;

/// Stages may take this much of the whole model's time, alone and in a batch of eight. Joining on the way takes some
/// per cent off the mean at best; engines that fuse across the cut lose more.
const CUT_COSTS: f64 = 1.02;

/// How a model is to be served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Number of stages, at least 1.
    pub stages: u16,
    /// Sizes of batches that were looked at: the buckets of a device that has some.
    pub batch_buckets: Vec<u32>,
    /// How batches are formed.
    pub policy: ChosenPolicy,
    /// Why, a line each.
    pub reasons: Vec<String>,
}

/// The policies that are chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChosenPolicy {
    /// `serial`.
    Serial,
    /// `diversity`, with Policy II on: it splits only what runs as fast in parts.
    Diversity {
        /// Policy I.
        input: bool,
        /// Policy III.
        load: bool,
    },
}

impl ChosenPolicy {
    /// The policy as the core takes it.
    pub fn knobs(self) -> Policy {
        let Self::Diversity { input, load } = self else { return Policy::Serial };
        Policy::Diversity(DiversityKnobs {
            input: input.then(InputDiversity::default),
            operator: Some(OperatorDiversity::default()),
            load: load.then(LoadDiversity::default),
        })
    }

    /// In the words of `model.yaml`.
    pub fn describe(self) -> String {
        let Self::Diversity { input, load } = self else { return "serial".to_owned() };
        let kinds = [("input", input), ("operator", true), ("load", load)];
        let on: Vec<&str> = kinds.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
        format!("diversity ({})", on.join(", "))
    }
}

/// Chooses by a profile; `fixed` is the number of stages where the configuration names it.
///
/// Where lanes that all run the model do best with one row each, the policy is `serial`: they have the device to share
/// already, and batches only make requests wait for each other. Else it is `diversity`: each of its rules acts only
/// where the measured times say that completion times become shorter by it, so that it is `window` with delay 0 where
/// none does. What is chosen is which rules have something to do, and the stages:
///
/// - Policy II, always. With one stage it boards no more than the device takes as well in parts.
/// - Policy I where requests differ in length. Its groups run in parallel, which resolves load diversity too (DVABatch
///   section 7.2): one stage, unless it pays that stages run batches of different sizes.
/// - Else Policy III where joining pays, in the number of stages for which a request that comes at a random moment
///   completes earliest, of those that make no batch slower than by 2 %: the time of all stages, [`BOUNDARY_NS`] for
///   each boundary, and half of the first stage, for which it waits.
///
/// `None` if the profile says nothing of one row.
pub fn choose(profile: &Profile, fixed: Option<u16>) -> Option<Choice> {
    let found = Findings::of(profile)?;
    let share = found.together_share();
    let (rows, alone_us) = (found.together_rows, found.alone_ns as f64 / 1e3);
    let mut reasons = vec![format!(
        "batching {}: T({rows})/{rows} is {share:.2} of T(1) = {alone_us:.0} µs, and joining pays up to {:.2}",
        if found.load_diversity { "gains" } else { "gains little" },
        find::JOINING_PAYS,
    )];
    let stages = match fixed {
        Some(stages) => stages,
        None if !found.load_diversity || found.runs_best_one_by_one() => {
            reasons.push("one stage: boundaries would cost and nobody would join at them".to_owned());
            1
        }
        None if found.input_diversity => stages_by_operators(profile, &found, &mut reasons),
        None => stages_by_wait(profile, &found, &mut reasons),
    };
    let policy = policy(&found, stages);
    reasons.extend(why(policy).iter().map(|&reason| reason.to_owned()));
    Some(Choice { stages, batch_buckets: row_buckets(profile.max_rows), policy, reasons })
}

fn policy(found: &Findings, stages: u16) -> ChosenPolicy {
    let input = found.input_diversity;
    match !input && found.runs_best_one_by_one() {
        true => ChosenPolicy::Serial,
        false => ChosenPolicy::Diversity { input, load: !input && found.load_diversity && stages > 1 },
    }
}

fn why(policy: ChosenPolicy) -> &'static [&'static str] {
    const PARTS: &str = "no more boards together, or stays together, than the device takes as well in parts";
    match policy {
        ChosenPolicy::Serial => &["while all lanes are busy, no batch is 5 % faster a row than requests one by one"],
        ChosenPolicy::Diversity { input: true, .. } => &[
            "requests differ in length: those of like length travel together, where that is faster than padding",
            PARTS,
        ],
        ChosenPolicy::Diversity { load: true, .. } => {
            &["lengths are alike: newcomers join the newest batch (it is stretched)", PARTS]
        }
        ChosenPolicy::Diversity { .. } => {
            &["lengths are alike and nobody joins on the way: what waits boards at once", PARTS]
        }
    }
}

/// The fewest stages in which it pays to run batches of different sizes; one where it does not.
fn stages_by_operators(profile: &Profile, found: &Findings, reasons: &mut Vec<String>) -> u16 {
    let diverse = |cut: &&CutTable| find::are_diverse(profile, cut, found.length);
    let fewest = profile.cuts.iter().filter(diverse).map(|cut| cut.stages.len()).min();
    let stages = fewest.and_then(|count| u16::try_from(count).ok()).unwrap_or(1);
    reasons.push(match stages {
        1 => "one stage: groups of like length run in parallel, so nobody needs to join at a boundary".to_owned(),
        count => format!("{count} stages: the fewest that gain by batches of different sizes"),
    });
    stages
}

/// The number of stages with which a request completes earliest, of those that cost next to nothing.
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
            "cuts that make a batch of 1 or {} more than {:.0} % slower are left out: everybody would pay for those who join",
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

/// When a lone request that comes at a random moment of others' run is expected to complete.
fn expected_ns(cut: &CutTable, length: u32) -> Option<f64> {
    let first = cut.point(0, 1, length)?.median_ns as f64;
    let boundaries = cut.stages.len().saturating_sub(1) as f64;
    Some(first / 2.0 + cut.total_ns(1, length)? as f64 + boundaries * BOUNDARY_NS as f64)
}

#[cfg(test)]
mod tests;
