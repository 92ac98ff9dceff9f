//! The requests of a run: when they arrive, for which model, and how long they are.

use std::sync::Arc;

use paternoster_batching::Instant;
use paternoster_model::unfold::Topology;

use crate::workload::{Arrivals, LengthDistribution, Translations, Trees};

/// One request before it arrives, with one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Arrival time; the run starts at the epoch.
    pub at: Instant,
    /// Index of its model in the [`Setup`](super::Setup).
    pub model: u16,
    /// Length of its input; 0 if its model has no lengths.
    pub length: u32,
    /// Number of elements of its output, if its model decodes. Unknown to the core until the last of them.
    pub decoded: u32,
    /// Its tree, if its model has trees.
    pub tree: Option<Arc<Topology>>,
}

/// The inputs of a model's requests.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestInputs {
    /// All requests are alike.
    Alike,
    /// An input of random length.
    OfLength(LengthDistribution),
    /// An input of random length, and an output of similar length.
    Translated(LengthDistribution),
    /// A tree.
    Tree(Trees),
}

/// The requests of a run, as distributions.
#[derive(Clone, Debug)]
pub struct SimulatedLoad {
    /// Arrival times, for all models together.
    pub arrivals: Arrivals,
    /// For each model, its share of the requests (at least one share is above 0) and their inputs.
    pub models: Vec<(f64, RequestInputs)>,
    /// Lengths in arrival order, from a trace; they replace the lengths of the models.
    pub traced: Option<Vec<u32>>,
    /// Number of requests that wait from the start; the arrivals follow them.
    pub backlog: u64,
}

impl SimulatedLoad {
    /// Returns the first `count` requests for a seed, in order of time; fewer if no more arrive.
    pub fn requests(&self, seed: u64, count: u64) -> impl Iterator<Item = Offered> {
        let total: f64 = self.models.iter().map(|(share, _)| share).sum();
        let models = (1_u64..).zip(&self.models);
        let mut samplers: Vec<Sampler> =
            models.map(|(stream, (_, inputs))| Sampler::new(inputs, mix(seed ^ mix(stream)))).collect();
        let [backlog, count] = [self.backlog, count].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let times = std::iter::repeat_n(0, backlog).chain(self.arrivals.times(seed)).take(count);
        (0_u64..).zip(times).map(move |(number, at)| {
            let mut left = unit(mix(mix(seed).wrapping_add(number))) * total;
            let mut model = 0;
            for (index, (share, _)) in self.models.iter().enumerate().filter(|(_, (share, _))| *share > 0.0) {
                model = index;
                left -= share;
                if left < 0.0 {
                    break;
                }
            }
            let traced = self.traced.as_ref().and_then(|traced| traced.get(number as usize).copied());
            Offered { at: Instant::from_ns(at), model: model as u16, ..samplers[model].draw(traced) }
        })
    }
}

/// Draws the inputs of a model's requests.
struct Sampler {
    lengths: Option<Box<dyn Iterator<Item = u32> + Send>>,
    /// The translations, and the longest where the sentence comes from the distribution.
    translations: Option<(Translations, u32)>,
    trees: Option<Box<dyn Iterator<Item = Topology> + Send>>,
}

impl Sampler {
    fn new(inputs: &RequestInputs, seed: u64) -> Self {
        let lengths = match inputs {
            RequestInputs::OfLength(lengths) | RequestInputs::Translated(lengths) => Some(lengths),
            RequestInputs::Alike | RequestInputs::Tree(_) => None,
        };
        let translated = lengths.filter(|_| matches!(inputs, RequestInputs::Translated(_)));
        let trees = if let RequestInputs::Tree(trees) = inputs { Some(trees) } else { None };
        Self {
            lengths: lengths.map(|lengths| Box::new(lengths.sampler(seed)) as Box<_>),
            translations: translated.map(|lengths| (Translations::new(mix(seed)), lengths.most().unwrap_or(u32::MAX))),
            trees: trees.map(|trees| Box::new(trees.sampler(seed)) as Box<_>),
        }
    }

    /// Draws a request, without its time and model. `traced` replaces its length.
    fn draw(&mut self, traced: Option<u32>) -> Offered {
        let drawn = self.lengths.as_mut().map(|lengths| lengths.next().unwrap_or(1));
        let length = drawn.map_or(0, |drawn| traced.unwrap_or(drawn));
        let decoded = self.translations.as_mut().map_or(0, |(translations, most)| {
            // The bound of the distribution is not one of a trace.
            translations.of(length, traced.map_or(*most, |_| u32::MAX))
        });
        let tree = self.trees.as_mut().and_then(Iterator::next).map(Arc::new);
        Offered { length, decoded, tree, ..Offered::default() }
    }
}

/// Converts random bits to a number from 0 up to but excluding 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// The mixer of SplitMix64. The model of a request depends only on the seed and on its number.
fn mix(input: u64) -> u64 {
    let stepped = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let folded = (stepped ^ (stepped >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (folded ^ (folded >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_shared_among_the_models_and_fixed_by_the_seed() {
        let load = SimulatedLoad {
            arrivals: Arrivals::Poisson { rate: 1000.0 },
            models: vec![
                (3.0, RequestInputs::OfLength(LengthDistribution::Fixed(7))),
                (1.0, RequestInputs::Alike),
                (0.0, RequestInputs::Alike),
            ],
            traced: None,
            backlog: 0,
        };
        let first: Vec<Offered> = load.requests(5, 20_000).collect();
        assert_eq!(first, load.requests(5, 20_000).collect::<Vec<_>>());
        assert_ne!(first, load.requests(6, 20_000).collect::<Vec<_>>());
        let of = |model| first.iter().filter(|offered| offered.model == model).count();
        assert!((14_700..15_300).contains(&of(0)) && of(2) == 0, "three quarters are for the first: {}", of(0));
        assert!(first.iter().all(|offered| offered.length == if offered.model == 0 { 7 } else { 0 }));
    }

    #[test]
    fn a_traces_lengths_stay_with_its_arrivals() {
        let load = SimulatedLoad {
            arrivals: Arrivals::At(vec![10, 20, 30]),
            models: vec![(1.0, RequestInputs::Translated(LengthDistribution::Fixed(1)))],
            traced: Some(vec![4, 5, 6]),
            backlog: 0,
        };
        let found: Vec<Offered> = load.requests(1, 9).collect();
        let of = |offered: &Offered| (offered.at.as_ns(), offered.length);
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [(10, 4), (20, 5), (30, 6)]);
        assert!(found.iter().all(|offered| offered.decoded.abs_diff(offered.length) <= 3), "{found:?}");
    }

    #[test]
    fn outputs_of_a_trace_are_not_bounded_by_the_lengths_that_it_replaces() {
        let lengths = LengthDistribution::named("wmt15").expect("a known workload");
        let most = lengths.most().expect("it has a bound");
        let load = SimulatedLoad {
            arrivals: Arrivals::At((0..100).collect()),
            models: vec![(1.0, RequestInputs::Translated(lengths))],
            traced: Some(vec![most * 10; 100]),
            backlog: 0,
        };
        let decoded: Vec<u32> = load.requests(1, 100).map(|offered| offered.decoded).collect();
        let mean = decoded.iter().sum::<u32>() / 100;
        assert!(mean.abs_diff(most * 10) < most, "{mean}");
        let drawn = SimulatedLoad { traced: None, ..load };
        assert!(drawn.requests(1, 100).all(|offered| offered.decoded <= most));
    }
}
