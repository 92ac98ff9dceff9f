//! Which groups of like length board together (Policy I). Groups save padding, but each is a run of its own that the others wait
//! for: where the engine gains more from a larger batch than padding costs, neighbours had better share one.

use smallvec::SmallVec;

use super::{View, heads::Heads};
use crate::batching::{
    Ns, ShapeClass,
    cost::Quantile,
    pending::{Line, LineIx},
    travel::lengthen,
};

/// Lines that are looked at, in the order of their turns: with many keys there may be thousands.
const LOOKED_AT: usize = 9;

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
                self.class = joint(&self.class, &guests.class);
                self.bound = joint(&self.bound, &guests.bound);
                self.rows += guests.rows;
                self.from.extend(guests.from);
            }
        }
        self
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
