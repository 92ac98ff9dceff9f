//! A map by priority level. There may be 2^64 - 1 levels; only levels in use take memory.

use std::collections::BTreeMap;

/// A map by priority level, highest first. A single level, the usual case, is stored inline. Several are in a tree, so
/// that clients that use many levels do not slow down the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Levels<T> {
    /// The only entry, as long as there is just one.
    lone: Option<(u64, T)>,
    /// All entries as soon as there are two, until none is left.
    several: BTreeMap<u64, T>,
}

impl<T> Levels<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.lone.is_none() && self.several.is_empty()
    }

    pub(crate) fn get(&self, level: u64) -> Option<&T> {
        match &self.lone {
            Some((own, entry)) => (*own == level).then_some(entry),
            None => self.several.get(&level),
        }
    }

    /// Returns all entries, highest level first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let lone = self.lone.iter().map(|(level, entry)| (*level, entry));
        lone.chain(self.several.iter().map(|(level, entry)| (*level, entry)))
    }

    pub(crate) fn remove(&mut self, level: u64) {
        if self.lone.as_ref().is_some_and(|(own, _)| *own == level) {
            self.lone = None;
        } else {
            self.several.remove(&level);
        }
    }
}

impl<T: Default> Levels<T> {
    /// Returns the entry of a level; creates it if missing.
    pub(crate) fn entry(&mut self, level: u64) -> &mut T {
        if self.lone.as_ref().is_none_or(|(own, _)| *own != level) && !self.is_empty() {
            self.several.extend(self.lone.take());
            return self.several.entry(level).or_default();
        }
        let (_, entry) = self.lone.get_or_insert_with(|| (level, T::default()));
        entry
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((prop::sample::select(vec![1, 2, 3, u64::MAX]), any::<bool>()), 0..40),
        ) {
            let (mut levels, mut map) = (Levels::<u32>::default(), BTreeMap::<u64, u32>::new());
            for (level, adds) in steps {
                if adds {
                    *levels.entry(level) += 1;
                    *map.entry(level).or_default() += 1;
                } else {
                    levels.remove(level);
                    map.remove(&level);
                }
                prop_assert_eq!(levels.is_empty(), map.is_empty());
                prop_assert_eq!(levels.get(level), map.get(&level));
                prop_assert_eq!(levels.iter().next(), map.iter().next().map(|(level, entry)| (*level, entry)));
                prop_assert!(levels.iter().eq(map.iter().map(|(level, entry)| (*level, entry))));
            }
        }
    }
}
