//! The only source of randomness in simulated runs: a seed and a counter.

/// A generator by SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from 0 to below `end`, which must be at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from `from` to `to`, both included.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Returns true with a probability in thousandths.
    pub fn permille(&mut self, of_thousand: u64) -> bool {
        self.below(1000) < of_thousand
    }

    /// Returns true with a probability of one half.
    pub fn coin(&mut self) -> bool {
        self.permille(500)
    }

    /// Returns an exponentially distributed number with mean `mean`.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let unit = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        (-unit.ln() * mean as f64) as u64
    }
}

/// Returns a hash of a number.
pub fn mix(input: u64) -> u64 {
    let folded = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (folded ^ (folded >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
