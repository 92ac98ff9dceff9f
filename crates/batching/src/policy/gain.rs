//! Whether newcomers should join a batch in progress, judged by mean latency. In the papers they join whenever no
//! target is missed. If the engine gains little from batching, that only delays the requests that came first.

use paternoster_model::CellId;

use super::{
    View,
    forecast::{Run, gain_ns},
};
use crate::{
    Ns, ShapeClass,
    cost::Quantile,
    ids::RequestIx,
    ledger::Request,
    table::batch::{Part, Step},
};

/// Returns the stage at which newcomers catch up with a step: the stage that it waits for, or the stage behind the one
/// that it runs.
pub(super) fn meets_at(step: &Step) -> CellId {
    CellId(step.next.0 + u16::from(!step.is_queued()))
}

/// Whether the mean completion time of a batch's rows and of `rows` newcomers does not grow if these catch up, compared
/// with running as a batch of their own, padded to their `own` class. Unknown times count as a gain.
pub(super) fn is_gain(view: &View<'_>, part: &Part, class: &ShapeClass, rows: u32, own: &ShapeClass) -> bool {
    mean_gain_ns(view, part, class, rows, own).is_none_or(|gain_ns| gain_ns >= 0.0)
}

/// Whether a request may join a batch of this class: it fits into the padded shape and, where run times decide which
/// lengths share a batch, its padding costs no more than its share of a run of shorter ones.
pub(super) fn may_pad(view: &View<'_>, request: &Request, class: &ShapeClass) -> bool {
    if request.lengths.iter().zip(&class.0).any(|(length, padded)| length > padded) {
        return false;
    }
    if view.pending.by_length.is_none() || request.lengths == class.0 {
        return true;
    }
    let own = ShapeClass(request.lengths.clone());
    let (alone_ns, padded_ns) = (view.costs.share_ns(request.rows, &own), view.costs.added_ns(request.rows, class));
    alone_ns.zip(padded_ns).is_some_and(|(alone_ns, padded_ns)| padded_ns <= alone_ns)
}

/// Returns the padded shape that holds these requests.
pub(super) fn class_of(view: &View<'_>, request_ixs: &[RequestIx]) -> ShapeClass {
    let mut class = ShapeClass::default();
    request_ixs.iter().for_each(|&request_ix| view.ledger[request_ix].lengthen(&mut class));
    class
}

/// Returns by how much the sum of all rows' completion times shrinks if the newcomers join.
///
/// Newcomers that do not join can take the lane at once if the batch itself runs on another. Otherwise they wait until
/// the batch, or a batch on another lane, is done.
fn mean_gain_ns(view: &View<'_>, part: &Part, class: &ShapeClass, rows: u32, own: &ShapeClass) -> Option<f64> {
    let aboard: u32 = awaited(part).map(Step::row_count).sum();
    let apart_ns = view.costs.staircase(staircase(part), class, Quantile::Mean)?;
    let alone_ns = view.costs.whole(rows, own, Quantile::Mean)?;
    let pushed = std::iter::once((view.stages.entry(), rows)).chain(staircase(part));
    let together_ns = view.costs.staircase(pushed, class, Quantile::Mean)?;
    let runs = awaited(part).any(|step| !step.is_queued());
    let waits_ns = if runs && view.lane_is_idle && view.enterable { 0 } else { apart_ns / u64::from(view.lanes) };
    let (batch, newcomers) = (Run { rows: aboard, ns: apart_ns as f64 }, Run { rows, ns: alone_ns as f64 });
    Some(gain_ns(batch, newcomers, waits_ns as f64, together_ns as f64, 0.0))
}

/// Returns the steps that have live rows, from the foot up: the stage that each waits for or runs next, and its rows.
fn staircase(part: &Part) -> impl Iterator<Item = (CellId, u32)> {
    awaited(part).rev().map(|step| (meets_at(step), step.row_count()))
}

/// Returns the steps that have live rows.
fn awaited(part: &Part) -> impl DoubleEndedIterator<Item = &Step> {
    part.steps.iter().filter(|step| !step.is_forsaken)
}

/// Returns the longest time that any step of a batch has waited and would wait for newcomers.
pub(super) fn longest_wait_ns(view: &View<'_>, part: &Part, class: &ShapeClass, rows: u32) -> Option<Ns> {
    let entry = view.stages.entry();
    let waits = part.steps.iter().map(|step| {
        let catch_up_ns = view.costs.between(entry, meets_at(step), rows, class, Quantile::Mean)?;
        Some(step.waits_ns + catch_up_ns)
    });
    waits.max().flatten()
}
