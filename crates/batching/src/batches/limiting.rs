//! Cuts tasks that would hold the last lane for too long, so that other models find it free soon. Requests stay whole
//! where at least one fits; otherwise the first is cut into rows, if its rows may run apart.

use paternoster_model::CellId;

use super::Batches;
use crate::{
    Instant, Ns, ShapeClass,
    ids::{PartIx, RequestIx, SubQueueIx},
    offer::TimeLimit,
    policy::Selection,
    version::StepContext,
};

/// What of some requests, in order, one task runs in time.
#[derive(Clone, Copy, Debug)]
struct Fitting {
    /// Number of requests, the last of which may be cut; at least 1.
    requests: usize,
    /// Their rows that run; at least 1.
    rows: u32,
    /// Whether these are predicted to end in time.
    is_in_time: bool,
}

impl Batches {
    /// Returns those of the selected requests that may board now: as many as are predicted to run in time, and at least
    /// one. The others stay in the queue.
    ///
    /// # Errors
    /// Returns the time before which the first must not run, because even that would take too long.
    pub(super) fn shorten(
        &self,
        context: &StepContext<'_>,
        sub_queue: SubQueueIx,
        selection: Selection,
        limit: Option<TimeLimit>,
    ) -> Result<Selection, Instant> {
        let (Some(limit), Some(entry)) = (limit, context.version.pending.sub_queue(sub_queue)) else {
            return Ok(selection);
        };
        let rows_of = |request_ix: RequestIx| (request_ix, context.ledger[request_ix].rows);
        let (entry_stage, class) = (self.stages.entry(), ShapeClass::default());
        let fitting = match &selection {
            Selection::First(count) => {
                let requests = entry.iter(context.ledger).take(*count as usize).map(rows_of);
                self.fitting(context, entry_stage, class, requests, limit.most_ns)
            }
            Selection::Named(request_ixs) => {
                let requests = request_ixs.iter().copied().map(rows_of);
                self.fitting(context, entry_stage, class, requests, limit.most_ns)
            }
        };
        if let Some(from) = limit.longer_from.filter(|_| !fitting.is_in_time) {
            return Err(from);
        }
        Ok(match selection {
            Selection::First(_) => Selection::First(fitting.requests as u32),
            Selection::Named(mut request_ixs) => {
                request_ixs.truncate(fitting.requests);
                Selection::Named(request_ixs)
            }
        })
    }

    /// Cuts the foot of a part to the rows that are predicted to run in time, and at least one. The others become
    /// another part. Returns the time before which it must not run, if even that would take too long.
    pub(super) fn cut(&mut self, context: &StepContext<'_>, ix: PartIx, limit: Option<TimeLimit>) -> Option<Instant> {
        let (limit, foot) = (limit?, self.table[ix].foot()?);
        // Buffers fix the padding of a staged batch.
        let is_staged = self.stages.boundaries() > 0;
        let class = if is_staged { self.table.batches[ix.batch].class.clone() } else { ShapeClass::default() };
        let of_request = foot.rows.chunk_by(|one, other| one.rows.req == other.rows.req);
        let requests = of_request.map(|spans| (spans[0].request_ix, spans.iter().map(|span| span.rows.count).sum()));
        let fitting = self.fitting(context, foot.next, class, requests, limit.most_ns);
        if let Some(from) = limit.longer_from.filter(|_| !fitting.is_in_time) {
            return Some(from);
        }
        if fitting.rows < foot.row_count() {
            self.table.cut(ix, fitting.rows);
        }
        None
    }

    /// Returns what of these requests, given with their rows, a task of a stage runs in time, padded to `class` or to
    /// its longest request.
    fn fitting(
        &self,
        context: &StepContext<'_>,
        stage: CellId,
        mut class: ShapeClass,
        requests: impl Iterator<Item = (RequestIx, u32)>,
        most_ns: Ns,
    ) -> Fitting {
        let mut fitting = Fitting { requests: 0, rows: 0, is_in_time: true };
        for (request_ix, own_rows) in requests {
            context.ledger[request_ix].lengthen(&mut class);
            let rows = fitting.rows + own_rows;
            let within = context.version.costs.rows_within(stage, rows, &class, most_ns);
            if within == rows {
                (fitting.requests, fitting.rows) = (fitting.requests + 1, rows);
                continue;
            }
            if fitting.requests == 0 {
                let rows = if self.parts_requests { within.max(1) } else { rows };
                fitting = Fitting { requests: 1, rows, is_in_time: within >= rows };
            }
            break;
        }
        fitting
    }
}
