//! Length groups of Policy I (DVABatch section 7.2): which requests are padded to the same length. The bounds are
//! configured, or chosen by dynamic programming over the observed lengths.

/// Number of arrivals after which bounds are chosen again.
const PERIOD: u32 = 256;
/// Maximum number of groups if not configured.
const DEFAULT_GROUPS: u32 = 8;
/// Observed lengths are exact up to this one, and rounded up in steps of an eighth above.
const EXACT: u32 = 64;

/// Upper bounds of the length groups of one version.
#[derive(Debug)]
pub struct LengthGroups {
    /// Ascending. A longer request is in a group of its own length.
    bounds: Vec<u32>,
    most: usize,
    /// Observed lengths with their weights, ascending; empty if the bounds are configured.
    observed: Vec<(u32, f64)>,
    follows: bool,
    since: u32,
}

impl LengthGroups {
    /// Creates groups with these upper bounds, or, if there are none, at most `most` chosen groups (0 means 8).
    pub fn new(bounds: &[u32], most: u32) -> Self {
        let mut bounds = bounds.to_vec();
        bounds.sort_unstable();
        bounds.dedup();
        let most = if most == 0 { DEFAULT_GROUPS } else { most };
        Self { follows: bounds.is_empty(), bounds, most: most as usize, observed: Vec::new(), since: 0 }
    }

    /// Observes a request's length, and returns its padded length.
    pub(crate) fn round(&mut self, length: u32) -> u32 {
        if self.follows {
            self.observe(length);
        }
        let at = self.bounds.partition_point(|&bound| bound < length);
        self.bounds.get(at).copied().unwrap_or_else(|| coarse(length))
    }

    fn observe(&mut self, length: u32) {
        let length = coarse(length);
        match self.observed.binary_search_by_key(&length, |&(known, _)| known) {
            Ok(at) => self.observed[at].1 += 1.0,
            Err(at) => self.observed.insert(at, (length, 1.0)),
        }
        self.since += 1;
        if self.since == PERIOD {
            self.since = 0;
            self.bounds = best_bounds(&self.observed, self.most);
            // Old observations decay, so that the bounds follow changes.
            self.observed.iter_mut().for_each(|(_, weight)| *weight /= 2.0);
            self.observed.retain(|&(_, weight)| weight > 0.5);
        }
    }
}

fn coarse(length: u32) -> u32 {
    if length <= EXACT {
        return length;
    }
    let step = length.next_power_of_two() / 16;
    length.div_ceil(step).saturating_mul(step)
}

/// For each number of shortest lengths: the least sum of their padded lengths, and where the last group begins.
type Least = Vec<(f64, usize)>;

/// Chooses at most `most` of the lengths as bounds so that the sum of all padded lengths is least.
fn best_bounds(observed: &[(u32, f64)], most: usize) -> Vec<u32> {
    let count = observed.len();
    let mut weights = vec![0.0];
    for &(_, weight) in observed {
        weights.push(weights.last().unwrap_or(&0.0) + weight);
    }
    let one = |end: usize| if end == 0 { 0.0 } else { weights[end] * f64::from(observed[end - 1].0) };
    let mut least: Vec<Least> = vec![(0..=count).map(|end| (one(end), 0)).collect()];
    for _ in 1..most.min(count) {
        let mut row = vec![(0.0, 0); count + 1];
        if let Some(fewer) = least.last() {
            add_group(observed, &weights, fewer, &mut row[1..], 1, (0, count));
        }
        least.push(row);
    }
    let mut end = count;
    let mut bounds = Vec::new();
    for row in least.iter().rev() {
        if end > 0 {
            bounds.push(observed[end - 1].0);
            end = row[end].1;
        }
    }
    bounds.reverse();
    bounds
}

/// Fills `row`, whose first entry is for the `from` shortest lengths, from the sums with one group fewer. The best
/// start of the last group does not decrease with the number of lengths, since a longer bound costs more. So the
/// solution for the middle entry narrows the search (`among`) on both sides: n log n steps instead of n².
fn add_group(
    observed: &[(u32, f64)],
    weights: &[f64],
    fewer: &Least,
    row: &mut [(f64, usize)],
    from: usize,
    among: (usize, usize),
) {
    let middle = row.len() / 2;
    let end = from + middle;
    let sum = |start: usize| fewer[start].0 + (weights[end] - weights[start]) * f64::from(observed[end - 1].0);
    let starts = (among.0..=among.1.min(end - 1)).map(|start| (sum(start), start));
    let Some(best) = starts.min_by(|one, two| one.0.total_cmp(&two.0)) else { return };
    let (shorter, rest) = row.split_at_mut(middle);
    let Some((own, longer)) = rest.split_first_mut() else { return };
    *own = best;
    if !shorter.is_empty() {
        add_group(observed, weights, fewer, shorter, from, (among.0, best.1));
    }
    if !longer.is_empty() {
        add_group(observed, weights, fewer, longer, end + 1, (best.1, among.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_bounds_stay() {
        let mut groups = LengthGroups::new(&[32, 8, 128], 0);
        let rounded: Vec<u32> = [1, 8, 9, 128, 200].into_iter().map(|length| groups.round(length)).collect();
        assert_eq!(rounded, [8, 8, 32, 128, 208], "what is longer than all bounds is rounded for itself");
    }

    #[test]
    fn bounds_pad_as_little_as_may_be() {
        let observed = [(5, 100.0), (6, 100.0), (20, 10.0), (21, 10.0), (60, 1.0)];
        assert_eq!(best_bounds(&observed, 1), [60]);
        assert_eq!(best_bounds(&observed, 2), [6, 60]);
        assert_eq!(best_bounds(&observed, 3), [6, 21, 60]);
        assert_eq!(best_bounds(&observed, 9), [5, 6, 20, 21, 60], "no more groups than lengths");
        assert!(best_bounds(&[], 4).is_empty());
    }

    #[test]
    fn the_narrowed_search_finds_what_a_full_one_does() {
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let count = 1 + draw(8) as u32;
            let observed: Vec<(u32, f64)> =
                (0..count).map(|at| (1 + 7 * at + draw(7) as u32, 1.0 + draw(9) as f64)).collect();
            for most in 1..=4 {
                let least =
                    all_bounds(&observed, most).map(|bounds| padded(&observed, &bounds)).fold(f64::INFINITY, f64::min);
                assert_eq!(padded(&observed, &best_bounds(&observed, most)), least, "{observed:?} in {most} groups");
            }
        }
    }

    /// Returns every choice of at most `most` bounds that includes the longest length.
    fn all_bounds(observed: &[(u32, f64)], most: usize) -> impl Iterator<Item = Vec<u32>> + '_ {
        let longest = observed.len() - 1;
        (0..1_u32 << longest).filter(move |choice| choice.count_ones() < most as u32).map(move |choice| {
            (0..=longest).filter(|&at| at == longest || choice >> at & 1 == 1).map(|at| observed[at].0).collect()
        })
    }

    /// Returns the sum of the lengths, each padded to the next bound.
    fn padded(observed: &[(u32, f64)], bounds: &[u32]) -> f64 {
        let bound = |length: u32| bounds.iter().find(|&&bound| bound >= length).copied().unwrap_or(u32::MAX);
        observed.iter().map(|&(length, weight)| weight * f64::from(bound(length))).sum()
    }

    #[test]
    fn bounds_follow_what_arrives() {
        let mut groups = LengthGroups::new(&[], 2);
        for _ in 0..PERIOD / 2 {
            groups.round(10);
            groups.round(50);
        }
        assert_eq!((groups.round(3), groups.round(11)), (10, 50));
        for _ in 0..8 * PERIOD {
            groups.round(30);
        }
        assert_eq!((groups.round(3), groups.round(29)), (30, 30), "what was seen long ago fades");
    }
}
