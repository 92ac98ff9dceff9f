//! Which groups of like length board together (Policy I). Groups save padding, but each is a run of its own that
//! the others wait for: where the engine gains more from a larger batch than padding costs, neighbours had better
//! share one. Where times are known beforehand groups are few, and asked in the order of their turns; else each
//! length is a group, and the nearest are asked first.

use std::{iter::Peekable, ops::Bound};

use smallvec::SmallVec;

use super::{View, heads::Heads};
use crate::batching::{
    Ns, ShapeClass,
    cost::{Quantile, length_of},
    pending::{Line, LineIx, Mates},
    travel::lengthen,
};

/// Lines that are looked at, in the order of their turns: with many keys there may be thousands.
const LOOKED_AT: usize = 9;

/// Lengths that are looked at on each side.
const NEAR_LOOKED_AT: usize = 32;

/// Requests that board as one batch: so many from the head of each line, the line whose turn it is first.
#[derive(Debug)]
pub(super) struct Party {
    pub(super) from: SmallVec<[(LineIx, u32); 4]>,
    pub(super) rows: u32,
    /// Longest of the requests, in each axis.
    class: ShapeClass,
    /// The same, rounded up as their groups are: of these there are few, so that what is found out about one can be kept.
    pub(super) bound: ShapeClass,
}

impl Party {
    /// The first requests of one line, as many as have no more than `room` rows together.
    pub(super) fn of_line(view: &View<'_>, line: LineIx, entry: &Line, room: u32) -> Self {
        let mut class = ShapeClass::default();
        let (mut requests, mut rows) = (0, 0);
        for slot in entry.iter(view.ledger) {
            let request = &view.ledger[slot];
            if request.rows > room - rows {
                break;
            }
            requests += 1;
            rows += request.rows;
            lengthen(&mut class, request);
        }
        Self { from: SmallVec::from_slice(&[(line, requests)]), rows, class, bound: view.class_of(entry) }
    }

    /// Lets others of the same keys and the same level aboard, in the order of their turns, as long as that makes the sum of all
    /// completion times no longer. Where times are not known, groups stay apart.
    pub(super) fn invite(mut self, view: &View<'_>, heads: &Heads, room: u32) -> Self {
        let [(first, _)] = self.from[..] else { return self };
        let Some(host) = view.pending.line(first) else { return self };
        let level = view.level_of(first);
        for (line, entry) in heads.lines(view.pending).take(LOOKED_AT) {
            if self.rows >= room {
                break;
            }
            if line == first || entry.mates.key != host.mates.key || view.level_of(line) != level {
                continue;
            }
            let guests = Self::of_line(view, line, entry, room - self.rows);
            if guests.rows > 0 && self.gains_by(view, &guests) == Some(true) {
                self.take_along(guests);
            }
        }
        self
    }

    /// Lets others of the same keys and the same level aboard, the nearest lengths first, as long as all that wait
    /// complete no later by it on average: these, and the rows `behind` them, from which the guests come. Times are
    /// those that padded tokens foretell; where they are not known, lengths stay apart.
    pub(super) fn invite_near(mut self, view: &View<'_>, room: u32, behind: f64) -> Self {
        let [(first, _)] = self.from[..] else { return self };
        let Some(host) = view.pending.line(first) else { return self };
        let level = view.level_of(first);
        let joins = |&(mates, &line): &(&Mates, &LineIx)| mates.key == host.mates.key && view.level_of(line) == level;
        let lines = |from: Bound<&Mates>, to| view.pending.by_mates.range::<Mates, _>((from, to));
        let of_key = |&(mates, _): &(&Mates, &LineIx)| mates.key == host.mates.key;
        let shorter = lines(Bound::Unbounded, Bound::Excluded(&host.mates)).rev().take_while(of_key);
        let longer = lines(Bound::Excluded(&host.mates), Bound::Unbounded).take_while(of_key);
        let mut shorter = shorter.take(NEAR_LOOKED_AT).filter(joins).peekable();
        let mut longer = longer.take(NEAR_LOOKED_AT).filter(joins).peekable();
        let (mut asks_shorter, mut asks_longer) = (true, true);
        while self.rows < room {
            let below = asks_shorter.then(|| self.next_of(view, &mut shorter, room)).flatten();
            let above = asks_longer.then(|| self.next_of(view, &mut longer, room)).flatten();
            let takes_below = match (&below, &above) {
                (Some(below), Some(above)) => self.padding(below) <= self.padding(above),
                (below, _) => below.is_some(),
            };
            let Some(guests) = (if takes_below { below } else { above }) else { break };
            let is_gain = self.gains_by_runs(view, &guests, behind) == Some(true);
            if is_gain {
                self.take_along(guests);
            }
            // Lengths that are further away on a side gain less.
            if takes_below {
                shorter.next();
                asks_shorter = is_gain;
            } else {
                longer.next();
                asks_longer = is_gain;
            }
        }
        self
    }

    /// The requests of the next line that would fit.
    fn next_of<'m>(
        &self,
        view: &View<'_>,
        lines: &mut Peekable<impl Iterator<Item = (&'m Mates, &'m LineIx)>>,
        room: u32,
    ) -> Option<Self> {
        loop {
            let &(_, &line) = lines.peek()?;
            let guests = view.pending.line(line).map(|entry| Self::of_line(view, line, entry, room - self.rows));
            match guests.filter(|guests| guests.rows > 0) {
                Some(guests) => return Some(guests),
                None => lines.next(),
            };
        }
    }

    /// Elements that a joint batch is padded by, beyond what the two are.
    fn padding(&self, guests: &Self) -> u64 {
        let tokens = |rows: u32, class: &ShapeClass| u64::from(rows).saturating_mul(length_of(class));
        let joint = tokens(self.rows + guests.rows, &joint(&self.class, &guests.class));
        joint.saturating_sub(tokens(self.rows, &self.class)).saturating_sub(tokens(guests.rows, &guests.class))
    }

    /// Whether all, and the rows `behind` them, complete no later on average if the guests join than if they leave
    /// later, as [`Self::gains_by`]. Guests that leave later share a batch as well, so that only their part of its
    /// fixed time counts.
    fn gains_by_runs(&self, view: &View<'_>, guests: &Self, behind: f64) -> Option<bool> {
        let own_ns = view.costs.by_tokens(self.rows, &self.class)?;
        let guests_ns = view.costs.share_by_tokens(guests.rows, &guests.class)?;
        let joint_ns = view.costs.by_tokens(self.rows + guests.rows, &joint(&self.class, &guests.class))?;
        let lanes = f64::from(view.lanes.max(1));
        let wait_ns = if view.idle_besides > 0 { 0.0 } else { own_ns / lanes };
        let (own, others, behind) = (f64::from(self.rows), f64::from(guests.rows), behind / lanes);
        let apart = own * own_ns + others * (wait_ns + guests_ns) + behind * (own_ns + guests_ns);
        Some((own + others + behind) * joint_ns <= apart)
    }

    fn take_along(&mut self, guests: Self) {
        self.class = joint(&self.class, &guests.class);
        self.bound = joint(&self.bound, &guests.bound);
        self.rows += guests.rows;
        self.from.extend(guests.from);
    }

    /// Whether all complete no later on average in one batch than in two, of which the second has a lane at once where one idles, and
    /// else waits for the first lane that becomes free.
    fn gains_by(&self, view: &View<'_>, guests: &Self) -> Option<bool> {
        let whole = |rows, class| view.costs.whole(rows, class, Quantile::Mean);
        let own_ns = whole(self.rows, &self.class)?;
        let guests_ns = whole(guests.rows, &guests.class)?;
        let joint_ns = whole(self.rows + guests.rows, &joint(&self.class, &guests.class))?;
        let wait_ns = if view.idle_besides > 0 { 0 } else { own_ns / Ns::from(view.lanes) };
        let (own, others) = (Ns::from(self.rows), Ns::from(guests.rows));
        Some((own + others) * joint_ns <= own * own_ns + others * (wait_ns + guests_ns))
    }
}

/// The shape that holds both.
fn joint(one: &ShapeClass, two: &ShapeClass) -> ShapeClass {
    let axes = one.0.len().max(two.0.len());
    let length = |class: &ShapeClass, axis: usize| class.0.get(axis).copied().unwrap_or(0);
    ShapeClass((0..axes).map(|axis| length(one, axis).max(length(two, axis))).collect())
}
