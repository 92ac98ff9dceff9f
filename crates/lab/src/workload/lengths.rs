//! Lengths of sequences: tokens, words or samples of one request.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, LogNormal};

/// 512 lengths with the mean 22 and at most 104: lognormal(3.0, 0.65), rounded, as numpy's `default_rng(7)` draws them.
const CLOSED_22: &str = include_str!("closed-22.txt");
/// So many draws above the limit in a row mean that nothing below it can be expected.
const MOST_DRAWS: usize = 10_000;

/// How long the sequences of requests are.
#[derive(Clone, Debug, PartialEq)]
pub enum LengthDistribution {
    /// All the same.
    Fixed(u32),
    /// Drawn from a lognormal distribution and rounded; not below `min`.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The least length.
        min: u32,
        /// The greatest length.
        max: u32,
        /// How a length is replaced that is above `max`.
        above: Above,
    },
    /// These in turn, again and again.
    Recorded(Vec<u32>),
}

/// How a length is replaced that is above the greatest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// It is the greatest one.
    Clip,
    /// It is drawn again.
    Resample,
}

impl LengthDistribution {
    /// Names of published workloads.
    pub const NAMES: [&str; 8] =
        ["wmt15", "wmt15-50", "wmt15-100", "fixed-24", "closed-22", "wmt19", "glue-short", "glue-pair"];

    /// A published workload by its name:
    /// - `wmt15`: sentences, mean 24, 99 % under 100, at most 330 (BatchMaker §7.2); `wmt15-50` and `wmt15-100` without
    ///   those above 50 and 100, `fixed-24` with all at the mean (fig. 11).
    /// - `closed-22`: 512 recorded lengths, mean 22, at most 104.
    /// - `wmt19`: sentences to translate, 70 % under 20 words, 90 % under 30, at most 80 (LazyBatching fig. 11).
    /// - `glue-short`, `glue-pair`: single sentences, mostly 5 to 20 tokens; pairs of sentences, median 55, up to 290.
    pub fn named(name: &str) -> Option<Self> {
        let clipped = |mu, sigma, min, max| Self::LogNormal { mu, sigma, min, max, above: Above::Clip };
        let wmt15_below = |max| Self::LogNormal { mu: 2.954, sigma: 0.67, min: 1, max, above: Above::Resample };
        Some(match name {
            "wmt15" => clipped(2.954, 0.67, 1, 330),
            "wmt15-50" => wmt15_below(50),
            "wmt15-100" => wmt15_below(100),
            "fixed-24" => Self::Fixed(24),
            "closed-22" => Self::Recorded(CLOSED_22.split_whitespace().filter_map(|word| word.parse().ok()).collect()),
            "wmt19" => clipped(2.715, 0.51, 1, 80),
            "glue-short" => clipped(2.4, 0.6, 3, 128),
            "glue-pair" => clipped(4.0, 0.5, 12, 290),
            _ => return None,
        })
    }

    /// The greatest length that can be drawn; none where there are only those given.
    pub fn most(&self) -> Option<u32> {
        match self {
            Self::LogNormal { max, .. } => Some(*max),
            Self::Fixed(_) | Self::Recorded(_) => None,
        }
    }

    /// Lengths without end, the same for the same seed. Fixed and recorded ones do not depend on it. Nothing comes
    /// where nothing can: from no recorded lengths, or from a distribution without a positive, finite `sigma`.
    pub fn sampler(&self, seed: u64) -> impl Iterator<Item = u32> + Send + use<> {
        let lengths: Box<dyn Iterator<Item = u32> + Send> = match self.clone() {
            Self::Fixed(length) => Box::new(std::iter::repeat(length)),
            Self::LogNormal { mu, sigma, min, max, above } => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let distribution = LogNormal::new(mu, sigma).ok().filter(|_| min <= max);
                Box::new(std::iter::from_fn(move || {
                    let mut draw = || distribution.map(|lengths| lengths.sample(&mut random).round());
                    let first = draw()?;
                    let mut drawn = first;
                    for _ in 0..MOST_DRAWS {
                        if drawn <= f64::from(max) || above == Above::Clip {
                            break;
                        }
                        drawn = draw()?;
                    }
                    Some(drawn.clamp(f64::from(min), f64::from(max)) as u32)
                }))
            }
            Self::Recorded(lengths) => Box::new(lengths.into_iter().cycle()),
        };
        lengths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn named(name: &str) -> LengthDistribution {
        LengthDistribution::named(name).expect("it has a name")
    }

    fn drawn(name: &str) -> Vec<u32> {
        let mut lengths: Vec<u32> = named(name).sampler(SEED).take(200_000).collect();
        lengths.sort_unstable();
        lengths
    }

    fn mean(lengths: &[u32]) -> f64 {
        lengths.iter().map(|&length| f64::from(length)).sum::<f64>() / lengths.len() as f64
    }

    /// Share of lengths from `from` to `to`, both included.
    fn share(lengths: &[u32], from: u32, to: u32) -> f64 {
        lengths.iter().filter(|length| (from..=to).contains(*length)).count() as f64 / lengths.len() as f64
    }

    fn assert_between(got: f64, from: f64, to: f64) {
        assert!((from..=to).contains(&got), "{got} is not between {from} and {to}");
    }

    #[test]
    fn wmt15_has_the_published_statistics() {
        let lengths = drawn("wmt15");
        assert_between(mean(&lengths), 23.5, 24.5);
        assert_between(share(&lengths, 1, 99), 0.985, 0.997);
        assert!(lengths.iter().all(|length| (1..=330).contains(length)));
    }

    #[test]
    fn wmt15_below_a_limit_has_no_heap_at_the_limit() {
        for (name, limit) in [("wmt15-50", 50), ("wmt15-100", 100)] {
            let (below, whole) = (drawn(name), drawn("wmt15"));
            assert_eq!(below.last(), Some(&limit), "{name} reaches its limit");
            let expected = share(&whole, limit, limit) / share(&whole, 1, limit);
            assert_between(share(&below, limit, limit), 0.6 * expected, 1.6 * expected);
        }
    }

    #[test]
    fn closed_22_has_the_published_statistics() {
        let LengthDistribution::Recorded(lengths) = named("closed-22") else { panic!("it is recorded") };
        assert_eq!(lengths.len(), 512);
        assert_eq!(lengths.iter().max(), Some(&104));
        assert_between(mean(&lengths), 21.5, 22.5);
    }

    #[test]
    fn wmt19_has_the_published_statistics() {
        let lengths = drawn("wmt19");
        assert_between(share(&lengths, 1, 19), 0.66, 0.74);
        assert_between(share(&lengths, 1, 29), 0.88, 0.92);
        assert!(lengths.iter().all(|length| (1..=80).contains(length)));
    }

    #[test]
    fn glue_has_the_published_statistics() {
        let short = drawn("glue-short");
        assert_between(share(&short, 5, 20), 0.7, 1.0);
        assert!(share(&short, 101, 128) > 0.0, "some are over 100");
        assert_eq!((short.first(), short.last()), (Some(&3), Some(&128)));
        let pair = drawn("glue-pair");
        assert_between(f64::from(pair[pair.len() / 2]), 53.0, 57.0);
        assert_eq!((pair.first(), pair.last()), (Some(&12), Some(&290)));
    }

    #[test]
    fn the_seed_fixes_the_lengths() {
        let some = |seed| named("wmt15").sampler(seed).take(100).collect::<Vec<_>>();
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }

    #[test]
    fn recorded_lengths_come_in_turn_and_fixed_ones_stay() {
        let recorded = LengthDistribution::Recorded(vec![3, 1, 2]);
        assert_eq!(recorded.sampler(SEED).take(5).collect::<Vec<_>>(), [3, 1, 2, 3, 1]);
        assert_eq!(named("fixed-24").sampler(SEED).take(3).collect::<Vec<_>>(), [24, 24, 24]);
    }

    #[test]
    fn every_name_is_known_and_no_other() {
        for name in LengthDistribution::NAMES {
            assert!(named(name).sampler(SEED).next().is_some(), "{name}");
        }
        assert_eq!(LengthDistribution::named("trees"), None, "trees are no lengths");
    }

    #[test]
    fn a_distribution_that_gives_nothing_ends() {
        let lengths = |sigma, min, max, mu| {
            LengthDistribution::LogNormal { mu, sigma, min, max, above: Above::Resample }.sampler(SEED).next()
        };
        assert_eq!(lengths(f64::NAN, 1, 9, 1.0), None);
        assert_eq!(lengths(1.0, 9, 1, 1.0), None, "no length lies between 9 and 1");
        assert_eq!(lengths(0.0, 1, 9, 50.0), Some(9), "all draws are above");
        assert_eq!(LengthDistribution::Recorded(vec![]).sampler(SEED).next(), None);
    }
}
