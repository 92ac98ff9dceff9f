//! Length groups of Policy I (DVABatch section 7.2): which requests are padded to the same size. The bounds follow the lengths that
//! are observed, by dynamic programming over them, or are given.

/// Arrivals after which bounds are chosen anew.
const PERIOD: u32 = 256;
/// Most groups where nobody says.
const DEFAULT_GROUPS: u32 = 8;
/// Lengths that are told apart: up to this one exactly, above in steps of an eighth.
const EXACT: u32 = 64;

/// Upper ends of the length groups of one version.
#[derive(Debug)]
pub(super) struct LengthGroups {
    /// Ascending; a longer request is a group of its own length.
    bounds: Vec<u32>,
    most: usize,
    /// Observed lengths with their weights, ascending; empty where the bounds are given.
    observed: Vec<(u32, f64)>,
    follows: bool,
    since: u32,
}

impl LengthGroups {
    /// Groups with these upper ends, or, if there are none, at most `most` chosen ones (0: 8).
    pub(super) fn new(bounds: &[u32], most: u32) -> Self {
        let mut bounds = bounds.to_vec();
        bounds.sort_unstable();
        bounds.dedup();
        let most = if most == 0 { DEFAULT_GROUPS } else { most };
        Self { follows: bounds.is_empty(), bounds, most: most as usize, observed: Vec::new(), since: 0 }
    }

    /// The padded length of a request of this length, which is taken note of.
    pub(super) fn round(&mut self, length: u32) -> u32 {
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
            // What was observed fades, so that the bounds follow.
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

/// At most `most` of the lengths as bounds, such that the padded lengths of all sum up to the least.
fn best_bounds(observed: &[(u32, f64)], most: usize) -> Vec<u32> {
    let count = observed.len();
    // least[groups][end]: the least sum over the first `end` lengths in so many groups, and where the last group begins.
    let mut least = vec![vec![(0.0_f64, 0_usize); count + 1]];
    least[0].iter_mut().skip(1).for_each(|entry| entry.0 = f64::INFINITY);
    for groups in 1..=most.min(count) {
        let mut row = vec![(f64::INFINITY, 0); count + 1];
        for end in 1..=count {
            let bound = f64::from(observed[end - 1].0);
            let mut weight = 0.0;
            for start in (0..end).rev() {
                weight += observed[start].1;
                let sum = least[groups - 1][start].0 + weight * bound;
                if sum < row[end].0 {
                    row[end] = (sum, start);
                }
            }
        }
        least.push(row);
    }
    let mut end = count;
    let mut bounds = Vec::new();
    for groups in (1..least.len()).rev() {
        if end == 0 {
            break;
        }
        bounds.push(observed[end - 1].0);
        end = least[groups][end].1;
    }
    bounds.reverse();
    bounds
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
