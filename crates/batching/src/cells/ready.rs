//! A set of small numbers that finds its first member in a few steps, however many numbers there are. Used for the
//! places of a queue that have ready nodes.

/// A set of places.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// One bit per place.
    words: Vec<u64>,
    /// One bit per word, set if the word is not 0.
    summary: Vec<u64>,
}

impl Places {
    /// Number of places per word.
    pub(super) const WORD: usize = u64::BITS as usize;

    /// Adds a place, and returns whether it was missing before.
    pub(super) fn insert(&mut self, place: u32) -> bool {
        let (word, bit) = split(place);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
            self.summary.resize(word / Self::WORD + 1, 0);
        }
        let was = self.words[word] & bit != 0;
        self.words[word] |= bit;
        let (above, above_bit) = split(word as u32);
        self.summary[above] |= above_bit;
        !was
    }

    /// Removes a place, and returns whether it was present.
    pub(super) fn remove(&mut self, place: u32) -> bool {
        let (word, bit) = split(place);
        let Some(entry) = self.words.get_mut(word).filter(|entry| **entry & bit != 0) else { return false };
        *entry &= !bit;
        if *entry == 0 {
            let (above, above_bit) = split(word as u32);
            self.summary[above] &= !above_bit;
        }
        true
    }

    /// Returns the first word, from `from` on, in which either set has a place, with the bits of both sets.
    pub(super) fn next_word(&self, other: &Self, from: usize) -> Option<(usize, u64)> {
        let at = self.first_word(from).into_iter().chain(other.first_word(from)).min()?;
        Some((at, self.words.get(at).unwrap_or(&0) | other.words.get(at).unwrap_or(&0)))
    }

    fn first_word(&self, from: usize) -> Option<usize> {
        let (above, bit) = split(from as u32);
        let first = self.summary.get(above)? & !(bit - 1);
        let found = match first {
            0 => self.summary.iter().enumerate().skip(above + 1).find(|(_, entry)| **entry != 0),
            _ => Some((above, &first)),
        };
        found.map(|(at, entry)| at * Self::WORD + entry.trailing_zeros() as usize)
    }
}

fn split(place: u32) -> (usize, u64) {
    (place as usize / Places::WORD, 1 << (place as usize % Places::WORD))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_next_word_is_found_as_in_a_sorted_set() {
        let (mut one, mut two, mut sorted) = (Places::default(), Places::default(), BTreeSet::new());
        let mut seed = 3_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (seed >> 40) as u32 % 9_000;
            let set = if place.is_multiple_of(2) { &mut one } else { &mut two };
            if seed >> 63 == 0 {
                assert_eq!(set.insert(place), sorted.insert(place));
            } else {
                assert_eq!(set.remove(place), sorted.remove(&place));
            }
            let from = (seed >> 20) as u32 % 160;
            let word_of = |place: u32| place / u64::BITS;
            let first = sorted.range(from * u64::BITS..).next().map(|&place| word_of(place));
            let expected = first.map(|word| {
                let own = sorted.iter().filter(|&&place| word_of(place) == word);
                (word as usize, own.fold(0, |bits, place| bits | 1 << (place % u64::BITS)))
            });
            assert_eq!(one.next_word(&two, from as usize), expected, "from {from}");
        }
    }
}
