//! Chooses stages and policy by a profile. Every choice comes with its reason.

use serde::Serialize;

use super::{CutTable, Findings, Profile, find, row_buckets};
use crate::batching::{DiversityKnobs, InputDiversity, LoadDiversity, Ns, OperatorDiversity, Policy, WindowKnobs};

/// What a boundary between two stages costs a request, beyond what the stages' own times show: the step of the core and
/// the way to the lane.
pub const BOUNDARY_NS: Ns = 5_000;

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

/// A policy that a profile may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum ChosenPolicy {
    /// `window` with delay 0.
    Window,
    /// `diversity`.
    Diversity {
        /// Policy I.
        input: bool,
        /// Policy II.
        operator: bool,
        /// Policy III.
        load: bool,
    },
}

impl ChosenPolicy {
    /// The policy as the core takes it.
    pub fn knobs(self) -> Policy {
        match self {
            Self::Window => Policy::Window(WindowKnobs::default()),
            Self::Diversity { input, operator, load } => Policy::Diversity(DiversityKnobs {
                input: input.then(InputDiversity::default),
                operator: operator.then(OperatorDiversity::default),
                load: load.then(LoadDiversity::default),
            }),
        }
    }

    /// In the words of `model.yaml`.
    pub fn describe(self) -> String {
        match self {
            Self::Window => "window, delay 0".to_owned(),
            Self::Diversity { input, operator, load } => {
                let kinds = [("input", input), ("operator", operator), ("load", load)];
                let on: Vec<&str> = kinds.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
                format!("diversity ({})", on.join(", "))
            }
        }
    }
}

/// Chooses by a profile; `fixed` is the number of stages where the configuration names it.
///
/// - Where joining does not pay: one stage, `window` with delay 0.
/// - Else, where requests differ in length: `diversity` with Policy I. Its groups run in parallel, which resolves load
///   diversity too (DVABatch section 7.2), so stages would gain nothing: one, unless the operators are diverse.
/// - Else `diversity` with Policy III, in the number of stages for which a request that comes at a random moment completes
///   earliest: the time of all stages, [`BOUNDARY_NS`] for each boundary, and half of the first stage, for which it waits.
/// - Policy II where the chosen stages prefer batches that differ by a factor of two.
///
/// `None` if the profile says nothing of one row.
pub fn choose(profile: &Profile, fixed: Option<u16>) -> Option<Choice> {
    let found = Findings::of(profile)?;
    let batch_buckets = row_buckets(profile.max_rows);
    let share = found.together_share();
    let (rows, alone_us) = (found.together_rows, found.alone_ns as f64 / 1e3);
    let mut reasons = vec![format!(
        "batching {}: T({rows})/{rows} is {share:.2} of T(1) = {alone_us:.0} µs, and joining pays up to {:.2}",
        if found.load_diversity { "gains" } else { "gains little" },
        find::JOINING_PAYS,
    )];
    if !found.load_diversity {
        reasons.push("so whatever waits boards at once: window with delay 0".to_owned());
        if fixed.is_none() {
            reasons.push("one stage: boundaries would cost and nobody would join at them".to_owned());
        }
        let stages = fixed.unwrap_or(1);
        return Some(Choice { stages, batch_buckets, policy: ChosenPolicy::Window, reasons });
    }
    let stages = match fixed {
        Some(stages) => stages,
        None if found.input_diversity => stages_by_operators(profile, &found, &mut reasons),
        None => stages_by_wait(profile, &found, &mut reasons),
    };
    let chosen = profile.cut(usize::from(stages));
    let diverse = chosen.filter(|cut| find::are_diverse(cut, found.length));
    let operator = diverse.is_some();
    if let Some(cut) = diverse {
        let preferred = find::preferred(cut, found.length);
        reasons.push(format!("batches are split where it pays: the stages prefer {preferred:?} rows"));
    }
    let input = found.input_diversity;
    let load = !input && stages > 1;
    match (input, load) {
        (true, _) => reasons.push("requests differ in length: those of like length travel together".to_owned()),
        (_, true) => reasons.push("lengths are alike: newcomers join the newest batch (it is stretched)".to_owned()),
        (false, false) => reasons.push("one stage has no boundary to join at: window with delay 0".to_owned()),
    }
    let policy = if input || load || operator && stages > 1 {
        ChosenPolicy::Diversity { input, operator, load }
    } else {
        ChosenPolicy::Window
    };
    Some(Choice { stages, batch_buckets, policy, reasons })
}

/// The fewest stages in which operators are diverse; one where they are not.
fn stages_by_operators(profile: &Profile, found: &Findings, reasons: &mut Vec<String>) -> u16 {
    let diverse = |cut: &&CutTable| find::are_diverse(cut, found.length);
    let fewest = profile.cuts.iter().filter(diverse).map(|cut| cut.stages.len()).min();
    let stages = fewest.and_then(|count| u16::try_from(count).ok()).unwrap_or(1);
    reasons.push(match stages {
        1 => "one stage: groups of like length run in parallel, so nobody needs to join at a boundary".to_owned(),
        count => format!("{count} stages: the fewest whose preferred batch sizes differ by a factor of two"),
    });
    stages
}

/// The number of stages with which a request completes earliest.
fn stages_by_wait(profile: &Profile, found: &Findings, reasons: &mut Vec<String>) -> u16 {
    let weighed = profile.cuts.iter().filter_map(|cut| Some((cut.stages.len(), expected_ns(cut, found.length)?)));
    let weighed: Vec<(usize, f64)> = weighed.collect();
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
