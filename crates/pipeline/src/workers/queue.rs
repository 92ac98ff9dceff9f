//! Which of the work that waits for a thread is next. Nothing here waits, or reads a clock.

use std::{array, collections::BTreeMap, time::Duration};

/// Turns are of one class if their lengths differ by less than a factor of two: below 1 ms, below 2, below 4, and so
/// on.
const CLASSES: usize = 16;

/// Turns up to this class, of less than 64 ms, may take all threads.
const MOST_SHORT: usize = 6;

/// Turns that are this many classes longer, by a factor of eight, may take one thread less.
const CLASSES_FOR_EACH_THREAD: usize = 3;

/// How often work that could have begun lets shorter work that came later go first.
const MOST_PASSED: u32 = 3;

/// A class of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(usize);

impl Class {
    /// Returns the class of turns of about this length.
    pub(super) fn of(length: Duration) -> Self {
        let power = length.as_millis().checked_ilog2();
        Self(power.map_or(0, |power| power as usize + 1).min(CLASSES - 1))
    }

    /// Returns the number of threads that turns of this class and longer ones may take together.
    fn threads(self, all: usize) -> usize {
        let kept = self.0.saturating_sub(MOST_SHORT).div_ceil(CLASSES_FOR_EACH_THREAD);
        all.saturating_sub(kept).max(1)
    }
}

/// Work that waits for one of some threads. Shorter turns go first. The longer turns are, the fewer threads they take,
/// so that shorter ones need not wait for them. Within a class, the order is that of arrival.
#[derive(Debug)]
pub(super) struct Queue<T> {
    threads: usize,
    /// Turns that have a thread, by class.
    running: [usize; CLASSES],
    /// What waits, by class and number.
    waiting: [BTreeMap<u64, T>; CLASSES],
    /// How often the first of each class could have begun, and another did.
    passed: [u32; CLASSES],
    next_number: u64,
}

impl<T> Queue<T> {
    pub(super) fn new(threads: usize) -> Self {
        let waiting = array::from_fn(|_| BTreeMap::new());
        Self { threads, running: [0; CLASSES], waiting, passed: [0; CLASSES], next_number: 0 }
    }

    /// Adds work that waits for a turn. Returns its number.
    pub(super) fn enter(&mut self, class: Class, work: T) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting[class.0].insert(number, work);
        number
    }

    /// Removes work, whether it waits or its turn has begun.
    pub(super) fn leave(&mut self, class: Class, number: u64) {
        if self.waiting[class.0].remove(&number).is_none() {
            self.running[class.0] -= 1;
        }
    }

    /// Begins a turn, if there is a thread for work that waits. Returns that work.
    pub(super) fn begin_next(&mut self) -> Option<T> {
        let may_begin = (0..CLASSES).take_while(|&class| self.has_thread(Class(class)));
        let first = may_begin.filter_map(|class| Some((*self.waiting[class].first_key_value()?.0, class)));
        let first: Vec<(u64, usize)> = first.collect();
        let overdue = first.iter().filter(|(_, class)| self.passed[*class] >= MOST_PASSED).min();
        let &(number, class) = overdue.or(first.first())?;
        for &(_, other) in first.iter().filter(|(_, other)| *other > class) {
            self.passed[other] += 1;
        }
        self.passed[class] = 0;
        self.running[class] += 1;
        self.waiting[class].remove(&number)
    }

    /// Whether turns of this class leave enough threads to shorter ones, given that those of all shorter classes do.
    fn has_thread(&self, class: Class) -> bool {
        self.running[class.0..].iter().sum::<usize>() < class.threads(self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(ms: u64) -> Class {
        Class::of(Duration::from_millis(ms))
    }

    /// A queue whose work is known by the length of its turn in milliseconds.
    struct Turns {
        queue: Queue<u64>,
        /// Length and number.
        entered: Vec<(u64, u64)>,
    }

    impl Turns {
        fn new(threads: usize) -> Self {
            Self { queue: Queue::new(threads), entered: Vec::new() }
        }

        fn enter(&mut self, ms: u64) {
            let number = self.queue.enter(class(ms), ms);
            self.entered.push((ms, number));
        }

        /// Begins all turns that there are threads for; returns their lengths in order.
        fn begin(&mut self) -> Vec<u64> {
            std::iter::from_fn(|| self.queue.begin_next()).collect()
        }

        /// Ends the first turn of this length, or work of it that waits.
        fn leave(&mut self, ms: u64) {
            let place = self.entered.iter().position(|(other, _)| *other == ms).expect("it is there");
            let (ms, number) = self.entered.remove(place);
            self.queue.leave(class(ms), number);
        }
    }

    #[test]
    fn classes_are_a_factor_of_two_apart() {
        let of = |micros| Class::of(Duration::from_micros(micros)).0;
        assert_eq!([0, 999, 1000, 1999, 2000, 4000].map(of), [0, 0, 1, 1, 2, 3]);
        assert_eq!([63_999, 64_000, 512_000, 4_096_000].map(of), [MOST_SHORT, 7, 10, 13]);
        assert_eq!(Class::of(Duration::MAX).0, CLASSES - 1);
    }

    #[test]
    fn shorter_turns_go_first_and_equal_ones_in_order_of_arrival() {
        let mut turns = Turns::new(1);
        [40, 3, 9, 2, 500].into_iter().for_each(|ms| turns.enter(ms));
        let mut order: Vec<u64> = Vec::new();
        while let [ms] = turns.begin()[..] {
            order.push(ms);
            turns.leave(ms);
        }
        assert_eq!(order, [3, 2, 9, 40, 500]);
    }

    #[test]
    fn the_longer_turns_are_the_fewer_threads_they_take() {
        let begun = |ms, threads| {
            let mut turns = Turns::new(threads);
            (0..9).for_each(|_| turns.enter(ms));
            turns.begin().len()
        };
        assert_eq!([1, 63, 64, 511, 512, 4095, 4096, 1 << 20].map(|ms| begun(ms, 5)), [5, 5, 4, 4, 3, 3, 2, 2]);
        assert_eq!([1, 63, 64, 1 << 20].map(|ms| begun(ms, 2)), [2, 2, 1, 1]);
        assert_eq!([1, 1 << 20].map(|ms| begun(ms, 1)), [1, 1]);
    }

    #[test]
    fn longer_turns_count_among_shorter_ones() {
        let mut turns = Turns::new(4);
        [600, 600, 600, 100, 100, 100].into_iter().for_each(|ms| turns.enter(ms));
        assert_eq!(turns.begin(), [100, 100, 100], "three of four threads in all");
        turns.leave(100);
        assert_eq!(turns.begin(), [600]);
        [1, 1].into_iter().for_each(|ms| turns.enter(ms));
        assert_eq!(turns.begin(), [1], "one thread is left for short turns");
        turns.leave(600);
        assert_eq!(turns.begin(), [1]);
        turns.leave(100);
        turns.leave(1);
        assert_eq!(turns.begin(), [600, 600], "two of them at most");
    }

    /// With as much short work as the threads can do, long work still goes on, and waits no longer than a fixed number
    /// of turns.
    #[test]
    fn long_work_is_not_starved_by_short_work() {
        for threads in [1, 2, 3, 5] {
            let mut turns = Turns::new(threads);
            [2000, 300, 40].into_iter().for_each(|ms| turns.enter(ms));
            let mut order: Vec<u64> = Vec::new();
            for _ in 0..40 {
                // There are always more of them than threads.
                while turns.entered.iter().filter(|(ms, _)| *ms < 8).count() < 2 * threads + 2 {
                    let ms = if turns.entered.len().is_multiple_of(2) { 1 } else { 5 };
                    turns.enter(ms);
                }
                let begun = turns.begin();
                order.extend(&begun);
                begun.into_iter().for_each(|ms| turns.leave(ms));
            }
            for ms in [40, 300, 2000] {
                let place = order.iter().position(|other| *other == ms).expect("it has begun");
                assert!(place <= 16 * threads, "{threads} threads, {ms} ms: {place} turns were before it");
            }
        }
    }

    #[test]
    fn work_that_leaves_is_not_begun_and_its_thread_is_free() {
        let mut turns = Turns::new(1);
        [1, 2, 3].into_iter().for_each(|ms| turns.enter(ms));
        assert_eq!(turns.begin(), [1]);
        turns.leave(2);
        assert_eq!(turns.begin(), [0; 0]);
        turns.leave(1);
        assert_eq!(turns.begin(), [3]);
    }
}
