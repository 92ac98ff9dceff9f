//! How many steps decoders really take. Their number is known only at the end; a limit, which the model declares, may
//! be far above it.

use super::SegmentKnobs;

/// The share of requests that is meant by "probably" (LazyBatching section IV-C: N = 90 %): a request probably takes at
/// most as many steps as this share of like requests, and at least as many as all but this share.
pub(super) const PROBABLY: f64 = 0.9;

/// The share of requests that is meant by the steps of a typical request.
pub(super) const MEDIAN: f64 = 0.5;

/// Share of an observation's weight that remains after the next one, so about 128 requests count.
const KEPT: f64 = 1.0 - 1.0 / 128.0;

/// Weight of the steps that the configuration expects.
const EXPECTED: f64 = 4.0;

/// Total weight below which nothing is known.
const LEAST: f64 = 0.5;

/// Numbers of steps up to this one are counted exactly, larger ones in steps of a sixteenth of an octave.
const EXACT: u32 = 64;

/// The steps that requests took in each segment whose steps are not known in advance.
#[derive(Debug)]
pub(super) struct StepCounts {
    /// By segment; empty for the others.
    segments: Vec<Vec<Bin>>,
    /// Steps that the configuration expects, by segment.
    expected: Vec<Option<u32>>,
}

/// Requests whose inputs are about equally long, judged by the most nodes that their graphs may have.
#[derive(Debug)]
struct Bin {
    number: u32,
    /// Steps, ascending, with their weights.
    counts: Vec<(u32, f64)>,
}

impl StepCounts {
    pub(super) fn new(segments: &[SegmentKnobs]) -> Self {
        let expected = |segment: &SegmentKnobs| match segment {
            SegmentKnobs::Decode { expected_steps, .. } => *expected_steps,
            _ => None,
        };
        Self {
            segments: segments.iter().map(|_| Vec::new()).collect(),
            expected: segments.iter().map(expected).collect(),
        }
    }

    /// Adds a request that took `steps` steps in a segment. Its graph has at most `most_nodes` nodes.
    pub(super) fn learn(&mut self, segment: usize, most_nodes: u32, steps: u32) {
        let expected = self.expected[segment];
        let bins = &mut self.segments[segment];
        let number = number(most_nodes);
        let at = bins.partition_point(|bin| bin.number < number);
        if bins.get(at).is_none_or(|bin| bin.number != number) {
            bins.insert(
                at,
                Bin { number, counts: expected.map(|steps| (coarse(steps), EXPECTED)).into_iter().collect() },
            );
        }
        bins[at].fade();
        bins[at].add(coarse(steps));
    }

    /// Lets what is known of such requests fade a little. Requests that are refused take no steps, so without this a
    /// refusal could never be found wrong.
    pub(super) fn fade(&mut self, most_nodes: u32) {
        let number = number(most_nodes);
        self.segments.iter_mut().flatten().filter(|bin| bin.number == number).for_each(Bin::fade);
    }

    /// Returns the number of steps beyond the first `run` that a `share` of like requests do not exceed; `None` if
    /// nothing is known of them.
    pub(super) fn left(&self, segment: usize, most_nodes: u32, run: u32, share: f64) -> Option<u32> {
        let number = number(most_nodes);
        let bin = self.segments[segment].iter().find(|bin| bin.number == number);
        let steps = match bin {
            Some(bin) => bin.quantile(run, share)?,
            None => self.expected[segment].filter(|steps| *steps > run)?,
        };
        Some(steps - run)
    }
}

impl Bin {
    fn fade(&mut self) {
        self.counts.iter_mut().for_each(|(_, weight)| *weight *= KEPT);
        self.counts.retain(|(_, weight)| *weight > 1e-3);
    }

    fn add(&mut self, steps: u32) {
        match self.counts.binary_search_by_key(&steps, |&(known, _)| known) {
            Ok(at) => self.counts[at].1 += 1.0,
            Err(at) => self.counts.insert(at, (steps, 1.0)),
        }
    }

    /// Returns the steps that a share of the requests with more than `run` steps do not exceed.
    fn quantile(&self, run: u32, share: f64) -> Option<u32> {
        let longer = &self.counts[self.counts.partition_point(|&(steps, _)| steps <= run)..];
        let all: f64 = longer.iter().map(|(_, weight)| weight).sum();
        if all < LEAST {
            return None;
        }
        let mut sum = 0.0;
        let found = longer.iter().find(|(_, weight)| {
            sum += weight;
            sum >= share * all
        });
        found.or(longer.last()).map(|&(steps, _)| steps)
    }
}

/// Returns the bin of a graph's size: an eighth of an octave.
fn number(most_nodes: u32) -> u32 {
    let nodes = most_nodes.max(1);
    let octave = nodes.ilog2();
    let eighth = if octave >= 3 { nodes >> (octave - 3) } else { nodes << (3 - octave) } & 7;
    octave * 8 + eighth
}

/// Rounds a number of steps up.
fn coarse(steps: u32) -> u32 {
    if steps <= EXACT {
        return steps;
    }
    let step = 1 << (steps.ilog2() - 4);
    steps.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use paternoster_model::CellId;

    use super::*;

    fn decoder(expected_steps: Option<u32>) -> StepCounts {
        StepCounts::new(&[SegmentKnobs::Decode { cell: CellId(0), expected_steps }])
    }

    fn learned(steps: impl IntoIterator<Item = u32>) -> StepCounts {
        let mut counts = decoder(None);
        steps.into_iter().for_each(|steps| counts.learn(0, 100, steps));
        counts
    }

    #[test]
    fn before_the_first_request_only_what_is_configured_is_known() {
        assert_eq!(decoder(None).left(0, 100, 0, PROBABLY), None);
        let counts = decoder(Some(30));
        assert_eq!(counts.left(0, 100, 0, PROBABLY), Some(30));
        assert_eq!(counts.left(0, 100, 12, PROBABLY), Some(18));
        assert_eq!(counts.left(0, 100, 30, PROBABLY), None, "it has taken more than expected");
    }

    #[test]
    fn what_requests_take_replaces_what_was_expected() {
        let mut counts = decoder(Some(90));
        (0..100).for_each(|_| counts.learn(0, 100, 9));
        assert_eq!(counts.left(0, 100, 0, PROBABLY), Some(9));
    }

    #[test]
    fn steps_already_run_leave_out_the_shorter_requests() {
        let counts = learned([10, 20, 20, 20, 20, 20, 20, 20, 20, 40].repeat(10));
        // Those of 10 steps came first, so they count a little less than a tenth.
        assert_eq!(counts.left(0, 100, 0, 0.09), Some(10));
        assert_eq!(counts.left(0, 100, 0, 0.5), Some(20));
        assert_eq!(counts.left(0, 100, 10, 0.5), Some(10));
        assert_eq!(counts.left(0, 100, 20, 0.5), Some(20), "only those of 40 are left");
        assert_eq!(counts.left(0, 100, 40, 0.5), None);
    }

    #[test]
    fn longer_inputs_are_counted_apart() {
        let mut counts = learned([8].repeat(20));
        (0..20).for_each(|_| counts.learn(0, 200, 50));
        assert_eq!([100, 200].map(|nodes| counts.left(0, nodes, 0, PROBABLY)), [Some(8), Some(50)]);
    }

    #[test]
    fn a_drift_is_followed() {
        let mut counts = learned([50].repeat(1_000));
        (0..400).for_each(|_| counts.learn(0, 100, 5));
        assert_eq!(counts.left(0, 100, 0, PROBABLY), Some(5));
    }

    #[test]
    fn what_is_not_confirmed_is_forgotten() {
        let mut counts = learned([50].repeat(1_000));
        (0..800).for_each(|_| counts.fade(100));
        assert_eq!(counts.left(0, 100, 0, PROBABLY), None);
    }
}
