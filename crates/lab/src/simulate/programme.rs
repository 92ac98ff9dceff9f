//! A dynamic programme over what waits: the bound that policies over batches are compared with. It looks at all
//! requests at each decision, for which only a simulator has time.

use std::collections::BTreeMap;

use paternoster_batching::{
    BatchLimits, BatchPolicy, CustomPolicy, Decision, Policy, PolicyKnobs, Quantile, RequestIx, RequestView, Selection,
    ShapeClass, View,
};

/// Most requests of the queue that it looks at, in boarding order.
const LOOKED_AT: usize = 256;

/// Most load in estimates of the rows that arrive until the lanes are idle; at 1 there would be no end.
const MOST_LOAD: f64 = 0.99;

/// Share of a run in the average of device time per row.
const NEWEST: f64 = 0.1;

/// Returns the policy `dynamic-programming`: the waiting requests, in the order of their lengths, are divided into the
/// batches whose sum of completion times is least, those of rows that will arrive meanwhile included, and the batch
/// with the most rows for its time runs first. A batch never waits and, in a model of several stages, runs whole.
pub fn dynamic_programming() -> Policy {
    Policy::Custom(CustomPolicy::new("dynamic-programming", Knobs))
}

#[derive(Debug)]
struct Knobs;

impl PolicyKnobs for Knobs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(Programme::default())
    }
}

/// The policy with what it knows of one version.
#[derive(Debug, Default)]
struct Programme {
    /// By padded shape, and by rows less one: nanoseconds.
    times: BTreeMap<ShapeClass, Vec<f64>>,
    /// Recent average of device time per row.
    row_ns: Option<f64>,
}

/// A batch of requests that are next to each other in the order of lengths.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// The first request, and that behind the last.
    from: usize,
    to: usize,
    rows: u32,
    ns: f64,
}

impl BatchPolicy for Programme {
    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some(sub_queue) = view.sub_queues().next() else { return Decision::Nothing };
        let level = sub_queue.level();
        let of_level = sub_queue.requests().take_while(|request| request.level() == level);
        let mut waiting: Vec<RequestView<'_>> = of_level.take(LOOKED_AT).collect();
        waiting.sort_by(|one, two| one.lengths().cmp(two.lengths()));
        let batches = self.divide(view, &waiting);
        let rate = |batch: &Batch| f64::from(batch.rows) / batch.ns;
        let Some(best) = batches.iter().max_by(|one, two| rate(one).total_cmp(&rate(two))) else {
            return sub_queue.candidates().launch(u32::MAX);
        };
        let lately = best.ns / f64::from(best.rows);
        self.row_ns = Some(self.row_ns.map_or(lately, |row_ns| row_ns + NEWEST * (lately - row_ns)));
        let chosen: Vec<RequestIx> = waiting[best.from..best.to].iter().map(RequestView::ix).collect();
        Decision::New { sub_queue: sub_queue.ix(), selection: Selection::Named(chosen), accepts_newcomers: false }
    }
}

impl Programme {
    /// Divides requests, sorted by length, into batches; into none if times are unknown.
    fn divide(&mut self, view: &View<'_>, waiting: &[RequestView<'_>]) -> Vec<Batch> {
        let lanes = f64::from(view.lanes().max(1));
        let rows_from: Vec<f64> = {
            let mut sum = 0.0;
            let sums = waiting.iter().rev().map(|request| {
                sum += f64::from(request.rows());
                sum
            });
            let mut sums: Vec<f64> = std::iter::once(0.0).chain(sums.collect::<Vec<_>>()).collect();
            sums.reverse();
            sums
        };
        let behind = self.arriving(view, rows_from[0]);
        // From the longest: the least sum of completion times of the requests from this one on, and its first batch.
        let mut least: Vec<(f64, Option<Batch>)> = vec![(0.0, None); waiting.len() + 1];
        for from in (0..waiting.len()).rev() {
            let mut best = (f64::INFINITY, None);
            let (mut rows, mut class) = (0, ShapeClass::default());
            for (to, request) in (from + 1..).zip(&waiting[from..]) {
                rows += request.rows();
                if rows > view.max_rows() && to > from + 1 {
                    break;
                }
                lengthen(&mut class, request);
                let Some(ns) = self.ns(view, rows, &class) else { return Vec::new() };
                let others = rows_from[to] + behind;
                let sum = ns * (f64::from(rows) + others / lanes) + least[to].0;
                if sum < best.0 {
                    best = (sum, Some(Batch { from, to, rows, ns }));
                }
            }
            least[from] = best;
        }
        let next = |at: &usize| least[*at].1.map(|batch| batch.to);
        std::iter::successors(Some(0), next).filter_map(|at| least[at].1).collect()
    }

    /// Returns how many rows arrive until the lanes have done `waiting` rows and those that came meanwhile.
    fn arriving(&self, view: &View<'_>, waiting: f64) -> f64 {
        let Some(row_ns) = self.row_ns else { return 0.0 };
        let load = (view.arrival_rate() * row_ns / f64::from(view.lanes().max(1))).min(MOST_LOAD);
        waiting * load / (1.0 - load)
    }

    /// Returns the time of a batch, as it was when it was first asked for: in a simulation it does not change.
    fn ns(&mut self, view: &View<'_>, rows: u32, class: &ShapeClass) -> Option<f64> {
        let at = rows as usize - 1;
        let known = self.times.get(class).and_then(|times| times.get(at)).copied().filter(|ns| !ns.is_nan());
        if known.is_some() {
            return known;
        }
        let ns = view.batch_ns(rows, class, Quantile::Mean)?.max(1) as f64;
        let times = self.times.entry(class.clone()).or_default();
        times.resize(times.len().max(at + 1), f64::NAN);
        times[at] = ns;
        Some(ns)
    }
}

fn lengthen(class: &mut ShapeClass, request: &RequestView<'_>) {
    let lengths = request.lengths();
    class.0.resize(class.0.len().max(lengths.len()), 0);
    class.0.iter_mut().zip(lengths).for_each(|(padded, length)| *padded = (*padded).max(*length));
}
