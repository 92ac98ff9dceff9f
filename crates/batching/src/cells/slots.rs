//! State slots of requests. A slot is a number, which a device maps to a row of a table.

use paternoster_model::unfold::Unfolded;
use smallvec::SmallVec;

use crate::hold::hold;

/// The slots of one request. A chain's single slot needs no allocation.
pub(super) type HeldSlots = SmallVec<[u32; 4]>;

/// Returns the number of slots that a request reserves: the maximum over its segments.
pub(crate) fn slots(graph: &[Unfolded]) -> u32 {
    // A chain overwrites a single slot; in a tree each node has its own.
    let held = |unfolded: &Unfolded| match unfolded {
        Unfolded::Steps(_) => 1,
        Unfolded::Tree(topology) => topology.nodes(),
    };
    graph.iter().map(held).max().unwrap_or(1)
}

/// The free slots of a version.
///
/// The slot freed last is reused first, since its state is the most likely to be cached. If no freed slot is left, the
/// lowest number never used is next. So numbers stay as low as possible, and slots that are never needed take no
/// memory.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// Total number of slots.
    all: u32,
    /// The lowest slot that was never used.
    fresh: u32,
    /// Freed slots, the latest last.
    freed: Vec<u32>,
}

impl FreeSlots {
    pub(super) fn new(all: u32) -> Self {
        Self { all, fresh: 0, freed: Vec::new() }
    }

    /// Returns the number of free slots.
    pub(super) fn count(&self) -> u32 {
        self.all - self.fresh + self.freed.len() as u32
    }

    /// Takes `count` slots. The caller has checked that enough are free.
    pub(super) fn take(&mut self, count: u32) -> HeldSlots {
        debug_assert!(count <= self.count(), "{count} slots are taken of {}", self.count());
        let mut take_one = || {
            self.freed.pop().unwrap_or_else(|| {
                self.fresh += 1;
                self.fresh - 1
            })
        };
        (0..count).map(|_| take_one()).collect()
    }

    /// Frees a request's slots. The next request of the same size gets them in the same order.
    pub(super) fn give_back(&mut self, held: &[u32]) {
        self.freed.extend(held.iter().rev());
    }

    /// Checks that each slot is either free or held by exactly one request.
    pub(super) fn check<'a>(&'a self, held: impl Iterator<Item = &'a u32>) -> Result<(), String> {
        hold!(self.fresh <= self.all, "{} slots were given out, of {}", self.fresh, self.all);
        let mut seen = vec![false; self.fresh as usize];
        for &slot in held.chain(&self.freed) {
            let seen = seen.get_mut(slot as usize).map(|seen| std::mem::replace(seen, true));
            hold!(seen.is_some(), "slot {slot} is held or free, but was never given out");
            hold!(seen == Some(false), "slot {slot} is held or free twice");
        }
        for (slot, seen) in seen.iter().enumerate() {
            hold!(*seen, "slot {slot} is neither held nor free");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_freed_last_are_given_out_first_and_fresh_ones_in_ascending_order() {
        let mut free = FreeSlots::new(6);
        let (one, tree) = (free.take(1), free.take(3));
        assert_eq!((one.as_slice(), tree.as_slice(), free.count()), (&[0][..], &[1, 2, 3][..], 2));
        free.give_back(&one);
        free.give_back(&tree);
        assert_eq!(free.count(), 6);
        let (tree, more) = (free.take(3), free.take(3));
        assert_eq!((tree.as_slice(), more.as_slice(), free.count()), (&[1, 2, 3][..], &[0, 4, 5][..], 0));
    }

    #[test]
    fn a_version_with_any_number_of_slots_keeps_nothing_for_those_it_never_gave_out() {
        let mut free = FreeSlots::new(u32::MAX);
        for _ in 0..1_000 {
            let held = free.take(1);
            assert_eq!((held.as_slice(), held.spilled(), free.count()), (&[0][..], false, u32::MAX - 1));
            free.give_back(&held);
        }
        assert_eq!((free.freed.as_slice(), free.count()), (&[0][..], u32::MAX));
    }

    #[test]
    fn a_slot_that_is_held_twice_or_lost_is_told() {
        let mut free = FreeSlots::new(4);
        let held = free.take(3);
        assert_eq!(free.check(held.iter()), Ok(()));
        let told = |held: &[u32]| free.check(held.iter()).unwrap_err();
        assert_eq!(told(&[0, 1, 1]), "slot 1 is held or free twice");
        assert_eq!(told(&[0, 2]), "slot 1 is neither held nor free");
        assert_eq!(told(&[0, 1, 2, 3]), "slot 3 is held or free, but was never given out");
    }
}
