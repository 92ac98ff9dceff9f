//! Cuts into a given number of stages of equal estimated time.

use std::collections::VecDeque;

use super::{
    CutError, STAGES_MAX,
    assign::Stages,
    plan::Plan,
    sweep::{Place, Sweep},
};

/// How much longer than optimal the longest stage may be to reduce crossing bytes.
const TOLERANCE: f64 = 1.05;
/// Number of bisection steps in the search for the shortest possible longest stage.
const HALVINGS: usize = 60;

pub(super) fn assign(plan: &Plan<'_>, parts: usize) -> Result<Stages, CutError> {
    if !(1..=STAGES_MAX).contains(&parts) {
        return Err(CutError::Count { asked: parts });
    }
    let sweep = Sweep::by_position(plan);
    let possible = sweep.places.len() + 1;
    if parts > possible {
        return Err(CutError::Parts { asked: parts, possible });
    }
    let chosen = choose(&sweep.places, sweep.cost, parts - 1);
    let mut of = vec![0; plan.graph.node.len()];
    let mut stage = 0;
    for (position, &id) in sweep.order.iter().enumerate() {
        of[id] = stage;
        if chosen.get(stage) == Some(&position) {
            stage += 1;
        }
    }
    Ok(Stages { count: parts, of })
}

/// Returns the positions of `count` cuts. Minimizes the crossing bytes among cuts whose longest stage is within the
/// tolerance of the shortest possible.
fn choose(places: &[Place], total: f64, count: usize) -> Vec<usize> {
    let best = shortest_bound(places, total, count);
    let bound = best * TOLERANCE;
    // By number of cuts and last place: the fewest crossing bytes, and the previous place.
    let mut bytes: Vec<f64> = places
        .iter()
        .map(|place| if place.cost_before <= bound { place.crossing_bytes } else { f64::INFINITY })
        .collect();
    let mut before: Vec<Vec<usize>> = Vec::with_capacity(count);
    for _ in 1..count {
        let mut next = vec![f64::INFINITY; places.len()];
        let mut from = vec![usize::MAX; places.len()];
        let mut window: VecDeque<usize> = VecDeque::new();
        for at in 1..places.len() {
            while window.back().is_some_and(|&last| bytes[last] > bytes[at - 1]) {
                window.pop_back();
            }
            window.push_back(at - 1);
            while window.front().is_some_and(|&first| places[at].cost_before - places[first].cost_before > bound) {
                window.pop_front();
            }
            if let Some(&first) = window.front() {
                next[at] = bytes[first] + places[at].crossing_bytes;
                from[at] = first;
            }
        }
        before.push(from);
        bytes = next;
    }
    let fits = |at: &usize| total - places[*at].cost_before <= bound;
    let last = (0..places.len()).filter(fits).min_by(|left, right| bytes[*left].total_cmp(&bytes[*right]));
    let mut chosen: Vec<usize> = last.into_iter().take(count).collect();
    for from in before.iter().rev() {
        chosen.extend(chosen.last().map(|&at| from[at]).filter(|&at| at != usize::MAX));
    }
    chosen.reverse();
    chosen.into_iter().map(|at| places[at].position).collect()
}

/// Returns the length of the shortest possible longest stage with `count` cuts, rounded up slightly.
fn shortest_bound(places: &[Place], total: f64, count: usize) -> f64 {
    let (mut low, mut high) = (0.0, total);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if suffices(places, total, count, middle) { high = middle } else { low = middle }
    }
    high
}

/// Returns whether `count` cuts suffice to keep every stage within `bound`. Additional cuts never make a stage longer.
fn suffices(places: &[Place], total: f64, count: usize, bound: f64) -> bool {
    let (mut begun, mut used, mut reached) = (0.0, 0, 0.0);
    for end in places.iter().map(|place| place.cost_before).chain([total]) {
        if end - begun > bound {
            (begun, used) = (reached, used + 1);
        }
        if end - begun > bound || used > count {
            return false;
        }
        reached = end;
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(steps: &[(u8, u8)]) -> (Vec<Place>, f64) {
        let mut cost_before = 0.0;
        let mut places = Vec::new();
        for (position, &(cost, bytes)) in steps.iter().enumerate() {
            cost_before += f64::from(cost);
            places.push(Place { position, cost_before, crossing_bytes: f64::from(bytes) });
        }
        (places, cost_before + 1.0)
    }

    /// Returns the longest stage and the crossing bytes.
    fn measure(places: &[Place], total: f64, chosen: &[usize]) -> (f64, f64) {
        let ends = chosen.iter().map(|&at| places[at].cost_before).chain([total]);
        let (longest, _) = ends.fold((0.0_f64, 0.0), |(longest, begun), end| (longest.max(end - begun), end));
        (longest, chosen.iter().map(|&at| places[at].crossing_bytes).sum())
    }

    /// Returns all ascending selections of `count` out of `length` places.
    fn all(length: usize, count: usize) -> Vec<Vec<usize>> {
        if count == 0 {
            return vec![Vec::new()];
        }
        let shorter = all(length, count - 1).into_iter();
        shorter
            .flat_map(|head| {
                let from = head.last().map_or(0, |&last| last + 1);
                (from..length).map(move |at| [head.clone(), vec![at]].concat())
            })
            .collect()
    }

    proptest! {
        #[test]
        fn no_other_cuts_are_better(steps in prop::collection::vec((0_u8..20, 1_u8..10), 1..9), count in 0_usize..5) {
            prop_assume!(count <= steps.len());
            let (places, total) = places(&steps);
            let chosen = choose(&places, total, count);
            prop_assert_eq!(chosen.len(), count);
            prop_assert!(chosen.is_sorted_by(|left, right| left < right));
            let tried: Vec<(f64, f64)> =
                all(places.len(), count).iter().map(|other| measure(&places, total, other)).collect();
            let shortest = tried.iter().map(|(longest, _)| *longest).fold(f64::INFINITY, f64::min);
            let near = tried.iter().filter(|(longest, _)| *longest <= shortest * TOLERANCE * (1.0 - 1e-9));
            let fewest = near.map(|(_, bytes)| *bytes).fold(f64::INFINITY, f64::min);
            let (longest, bytes) = measure(&places, total, &chosen);
            prop_assert!(longest <= shortest * TOLERANCE * (1.0 + 1e-9), "{longest} for {shortest}");
            prop_assert!(bytes <= fewest, "{bytes} for {fewest}");
        }
    }

    #[test]
    fn near_equal_times_are_decided_by_what_crosses() {
        let (places, total) = places(&[(50, 9), (2, 1), (48, 9)]);
        assert_eq!(choose(&places, total, 1), [1], "52 and 49 instead of 50 and 51");
    }
}
