//! Places of rows in the buffers of a batch.

use smallvec::SmallVec;

/// Set of the taken places in a batch's buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    taken: SmallVec<[u64; 1]>,
    /// Number of places.
    size: u32,
    free: u32,
}

const WORD: u32 = u64::BITS;

impl Places {
    pub(crate) fn new(size: u32) -> Self {
        Self { taken: SmallVec::from_elem(0, size.div_ceil(WORD) as usize), size, free: size }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Takes the lowest run of `count` free places; `None` if there is no such run.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        if count > self.free {
            return None;
        }
        let mut at = 0;
        while at + count <= self.size {
            match (at..at + count).rev().find(|&place| self.is_taken(place)) {
                // The range is searched from its end, so the next candidate starts after the last taken place.
                Some(taken) => at = taken + 1,
                None => {
                    (at..at + count).for_each(|place| self.taken[(place / WORD) as usize] |= 1 << (place % WORD));
                    self.free -= count;
                    return Some(at);
                }
            }
        }
        None
    }

    pub(crate) fn give_back(&mut self, at: u32, count: u32) {
        for place in at..at + count {
            debug_assert!(self.is_taken(place), "place {place} is given back twice");
            self.taken[(place / WORD) as usize] &= !(1 << (place % WORD));
        }
        self.free += count;
    }

    pub(crate) fn is_taken(&self, place: u32) -> bool {
        self.taken.get((place / WORD) as usize).is_some_and(|word| word >> (place % WORD) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_in_a_row_from_the_lowest() {
        let mut places = Places::new(70);
        assert_eq!(places.take(3), Some(0));
        assert_eq!(places.take(66), Some(3));
        assert_eq!(places.take(2), None, "one is left");
        places.give_back(1, 1);
        assert_eq!(places.take(2), None, "two are left, but not in a row");
        assert_eq!(places.take(1), Some(1));
        assert_eq!(places.take(1), Some(69));
        assert_eq!(places.free(), 0);
    }
}
