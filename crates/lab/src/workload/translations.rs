//! Lengths of translations.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, Normal};

/// Part of a sentence's length by which that of its translation differs: the standard deviation of German and English
/// sentences.
const SPREAD: f64 = 0.15;

/// Draws how long translations are: as long as the sentence on average.
#[derive(Debug)]
pub struct Translations {
    random: ChaCha8Rng,
    factors: Option<Normal<f64>>,
}

impl Translations {
    /// The same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), factors: Normal::new(1.0, SPREAD).ok() }
    }

    /// The length of a translation of a sentence of this length, at least 1 and at most `most`.
    pub fn of(&mut self, length: u32, most: u32) -> u32 {
        let factor = self.factors.map_or(1.0, |factors| factors.sample(&mut self.random));
        (f64::from(length) * factor).round().clamp(1.0, f64::from(most.max(1))) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, length: u32) -> Vec<u32> {
        let mut translations = Translations::new(seed);
        (0..20_000).map(|_| translations.of(length, 330)).collect()
    }

    #[test]
    fn translations_are_as_long_as_their_sentences_on_average() {
        let parts: Vec<f64> = drawn(7, 100).iter().map(|length| f64::from(*length) / 100.0).collect();
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        let variance = parts.iter().map(|part| (part - mean) * (part - mean)).sum::<f64>() / parts.len() as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((variance.sqrt() - 0.15).abs() < 0.005, "{}", variance.sqrt());
    }

    #[test]
    fn none_is_empty_and_none_longer_than_the_longest() {
        assert!(drawn(7, 1).iter().all(|length| *length == 1 || *length == 2));
        assert_eq!(drawn(7, 330).iter().max(), Some(&330));
        assert_eq!(Translations::new(7).of(100, 5), 5);
    }

    #[test]
    fn the_seed_fixes_them() {
        assert_eq!(drawn(1, 24), drawn(1, 24));
        assert_ne!(drawn(1, 24), drawn(2, 24));
    }
}
