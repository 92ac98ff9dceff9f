//! Pending requests: first in, first out in each priority level, with the delayed queue of `DELAY` behind it; any
//! request leaves in O(1). Batch sizes count rows, `max_queue_size` counts requests.
//!
//! Requests that may share a batch (their keys agree, and their lengths round up to the same class) stand in one *line*.
//! A request that may not join the batch being formed is in another line and does not hold it up, nor is held up by it.

use std::collections::BTreeMap;

use slab::Slab;

use super::{
    BatchKey, Lengths, Ns, ShapeClass,
    ledger::{Ledger, Slot, Stand},
    lengths::LengthGroups,
    levels::Levels,
    list::{InQueue, List},
    queue_rules::QueueRules,
    targets::Targets,
};

/// Index of a line among its group's lines.
pub(super) type LineIx = u32;

/// The line of requests whose turn in their sequence has not come: none of them boards.
pub(super) const HELD: LineIx = LineIx::MAX;

/// How lengths are rounded up; requests of equal rounded lengths are mates.
#[derive(Debug)]
pub(super) enum Rounding {
    /// Any lengths are mates.
    Any,
    /// To multiples.
    Width(u32),
    /// The first length to the end of its group (DVABatch's Policy I); others as they are.
    Groups(LengthGroups),
}

/// What the requests of a line have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mates {
    pub(super) key: BatchKey,
    pub(super) class: ShapeClass,
}

impl Mates {
    /// Requests of equal keys whose lengths round up to the same.
    pub(super) fn new(key: BatchKey, lengths: &Lengths, rounding: &mut Rounding) -> Self {
        let class = match rounding {
            Rounding::Any => Lengths::new(),
            Rounding::Width(width) => {
                lengths.iter().map(|length| length.div_ceil(*width).saturating_mul(*width)).collect()
            }
            Rounding::Groups(groups) => {
                let mut class = lengths.clone();
                class.iter_mut().take(1).for_each(|length| *length = groups.round(*length));
                class
            }
        };
        Self { key, class: ShapeClass(class) }
    }

    /// Equality without a call of `memcmp` each for what is mostly empty.
    fn agree(&self, other: &Self) -> bool {
        let ((one, two), (own, their)) = ((&self.key.0, &other.key.0), (&self.class.0, &other.class.0));
        one.len() == two.len()
            && own.len() == their.len()
            && one.iter().zip(two).all(|(one, two)| one == two)
            && own.iter().zip(their).all(|(own, their)| own == their)
    }
}

/// The requests of one level in a line.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) fresh: List<InQueue>,
    /// Requests past their queue timeout, under `DELAY`: behind the fresh ones of their level, before the next level.
    pub(super) delayed: List<InQueue>,
}

impl Default for Level {
    fn default() -> Self {
        Self { fresh: List::new(), delayed: List::new() }
    }
}

/// Where a line stands among the lines of its group: by the level of its first request, fresh before delayed, then by
/// order of arrival.
pub(super) type Rank = (u64, bool, u64);

/// Requests that may share a batch.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) mates: Mates,
    /// Levels with requests.
    pub(super) levels: Levels<Level>,
    pub(super) rows: u64,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Its requests in the order in which they board.
    pub(super) fn iter<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = Slot> + 'a {
        self.levels.iter().flat_map(|(_, level)| level.fresh.iter(ledger).chain(level.delayed.iter(ledger)))
    }

    /// How many requests from its head have no more than `rows` rows together.
    pub(super) fn first_within(&self, rows: u32, ledger: &Ledger) -> u32 {
        let mut left = rows;
        let fits = self.iter(ledger).take_while(|&slot| match left.checked_sub(ledger[slot].rows) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        fits.count() as u32
    }

    pub(super) fn rank(&self, ledger: &Ledger) -> Option<Rank> {
        let (level, delayed, slot) = self.first()?;
        Some((level, delayed, ledger[slot].seq))
    }

    /// Level of the request that boards next, whether it is delayed, and its slot.
    fn first(&self) -> Option<(u64, bool, Slot)> {
        let (number, level) = self.levels.first()?;
        match level.fresh.head() {
            Some(slot) => Some((number, false, slot)),
            None => Some((number, true, level.delayed.head()?)),
        }
    }

    /// Arrival of its oldest request. Fresh requests stand in order of arrival, delayed ones in order of timeout.
    pub(super) fn oldest(&self, ledger: &Ledger) -> Option<Ns> {
        let heads = self.levels.iter().filter_map(|(_, level)| level.fresh.head());
        let delayed = self.levels.iter().flat_map(|(_, level)| level.delayed.iter(ledger));
        heads.chain(delayed).map(|slot| ledger[slot].arrived).min()
    }

    fn drop_level_if_empty(&mut self, level: u64) {
        if self.levels.get(level).is_some_and(|entry| entry.fresh.is_empty() && entry.delayed.is_empty()) {
            self.levels.remove(level);
        }
    }
}

/// All requests of a group that are in no batch yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) rules: QueueRules,
    pub(super) lines: Slab<Line>,
    /// Requests behind others of their sequence; they count as those in lines do.
    pub(super) held: Line,
    pub(super) by_mates: BTreeMap<Mates, LineIx>,
    /// The line of the latest arrival: most arrivals are its mates and need no search.
    recent: Option<LineIx>,
    /// One empty line may stay, so that a group whose requests are all alike does not make one for each.
    spare: Option<LineIx>,
    /// How many requests wait at each level, delayed ones included; none at the levels that are missing.
    pub(super) by_level: Levels<u32>,
    pub(super) requests: usize,
    pub(super) rows: u64,
    /// Of the requests, those that are held.
    held_requests: usize,
    /// Those that are not held by their targets, where anything asks for that.
    pub(super) targets: Option<Targets>,
}

impl Pending {
    pub(super) fn new(rules: QueueRules, targets: Option<Targets>) -> Self {
        Self {
            rules,
            lines: Slab::new(),
            held: Line::default(),
            by_mates: BTreeMap::new(),
            recent: None,
            spare: None,
            by_level: Levels::default(),
            requests: 0,
            rows: 0,
            held_requests: 0,
            targets,
        }
    }

    pub(super) fn line(&self, line: LineIx) -> Option<&Line> {
        self.lines.get(line as usize)
    }

    /// The line of these mates, if any of them wait.
    pub(super) fn waiting_with(&self, mates: &Mates) -> Option<LineIx> {
        let line = *self.by_mates.get(mates)?;
        self.line(line).filter(|entry| !entry.is_empty()).map(|_| line)
    }

    /// The requests of a line by level, fresh before delayed, then the earliest targets first. For groups that keep
    /// targets.
    pub(super) fn by_target(&self, line: LineIx) -> impl Iterator<Item = Slot> + '_ {
        self.targets.iter().flat_map(move |targets| targets.of_line(line))
    }

    fn line_mut(&mut self, line: LineIx) -> &mut Line {
        if line == HELD { &mut self.held } else { &mut self.lines[line as usize] }
    }

    /// Requests that may board.
    pub(super) fn ready(&self) -> usize {
        self.requests - self.held_requests
    }

    /// The highest level at which a request waits.
    pub(super) fn best_level(&self) -> Option<u64> {
        self.by_level.first().map(|(level, _)| level)
    }

    /// Whether the level holds its largest number of requests.
    pub(super) fn is_full(&self, level: u64) -> bool {
        let limit = self.rules.queue_of(level).max_queue_size;
        limit != 0 && self.by_level.get(level).is_some_and(|waiting| *waiting >= limit)
    }

    /// The line for these mates, made if need be.
    pub(super) fn line_for(&mut self, mates: Mates) -> LineIx {
        if let Some(recent) = self.recent
            && self.line(recent).is_some_and(|line| line.mates.agree(&mates))
        {
            return recent;
        }
        let lines = &mut self.lines;
        let line = *self
            .by_mates
            .entry(mates)
            .or_insert_with_key(|mates| lines.insert(Line { mates: mates.clone(), ..Line::default() }) as LineIx);
        self.recent = Some(line);
        line
    }

    /// Puts a request of the ledger at the end of its level in `line`.
    pub(super) fn push(&mut self, ledger: &mut Ledger, slot: Slot, line: LineIx) {
        let request = &mut ledger[slot];
        request.stand = Stand::Queued { line, delayed: false };
        let (level, rows) = (request.level, u64::from(request.rows));
        let entry = self.line_mut(line);
        entry.rows += rows;
        entry.levels.entry(level).fresh.push_back(ledger, slot);
        *self.by_level.entry(level) += 1;
        self.requests += 1;
        self.rows += rows;
        self.held_requests += usize::from(line == HELD);
        if let Some(targets) = self.targets.as_mut().filter(|_| line != HELD) {
            targets.insert(line, slot, &ledger[slot], false);
        }
        if self.spare == Some(line) {
            self.spare = None;
        }
    }

    /// Takes a request out of its line, which stays even if empty until it is `retired`.
    pub(super) fn remove(&mut self, ledger: &mut Ledger, slot: Slot) {
        let request = &ledger[slot];
        let Stand::Queued { line, delayed } = request.stand else {
            debug_assert!(false, "only a queued request leaves the queue");
            return;
        };
        let (level, rows) = (request.level, u64::from(request.rows));
        let entry = self.line_mut(line);
        entry.rows -= rows;
        let lists = entry.levels.entry(level);
        if delayed {
            lists.delayed.remove(ledger, slot)
        } else {
            lists.fresh.remove(ledger, slot)
        }
        entry.drop_level_if_empty(level);
        let waiting = self.by_level.entry(level);
        *waiting -= 1;
        if *waiting == 0 {
            self.by_level.remove(level);
        }
        self.requests -= 1;
        self.rows -= rows;
        self.held_requests -= usize::from(line == HELD);
        if let Some(targets) = self.targets.as_mut().filter(|_| line != HELD) {
            targets.remove(line, slot, &ledger[slot], delayed);
        }
    }

    /// Takes the request out of `line` that boards next.
    pub(super) fn pop(&mut self, ledger: &mut Ledger, line: LineIx) -> Option<Slot> {
        let (_, _, slot) = self.lines[line as usize].first()?;
        self.remove(ledger, slot);
        Some(slot)
    }

    /// Moves a fresh request behind the others of its level (`DELAY`).
    pub(super) fn delay(&mut self, ledger: &mut Ledger, slot: Slot, line: LineIx) {
        let level = self.line_mut(line).levels.entry(ledger[slot].level);
        level.fresh.remove(ledger, slot);
        level.delayed.push_back(ledger, slot);
        ledger[slot].stand = Stand::Queued { line, delayed: true };
        if let Some(targets) = self.targets.as_mut().filter(|_| line != HELD) {
            targets.remove(line, slot, &ledger[slot], false);
            targets.insert(line, slot, &ledger[slot], true);
        }
    }

    /// Forgets a line if it is empty, or keeps it as the spare one instead of the last.
    pub(super) fn retire(&mut self, line: LineIx) {
        if line == HELD || self.spare == Some(line) || !self.lines[line as usize].is_empty() {
            return;
        }
        if let Some(previous) = self.spare.replace(line) {
            let removed = self.lines.remove(previous as usize);
            self.by_mates.remove(&removed.mates);
            if self.recent == Some(previous) {
                self.recent = None;
            }
        }
    }
}
