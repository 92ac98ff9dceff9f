//! BatchMonitor and BatchDispatcher (Efficient Adaptive Batching, section III and algorithm 1): the preferred batch
//! size follows the request rate, so that collecting a batch takes about as long as running one. Used by `adaptive`.
//!
//! The published algorithm starves a slow trickle of requests and oscillates when rate and throughput are equal. The
//! corrected version starts the search at 1, adds headroom to the rate, and bounds the wait of a partial batch.
//! [`AdaptiveKnobs::paper`] restores the published rules.

use smallvec::SmallVec;

use crate::{
    Instant, Ns, ShapeClass,
    cost::{Costs, Quantile},
    queue::Rate,
};

/// A partial batch waits this many times longer than the missing rows are expected to take.
const PATIENCE: f64 = 1.5;

/// A batch waits for its next row if the mean latency of both is at most this many times the latency without waiting.
const TOLERATED: f64 = 1.1;

/// If no size sustains the rate, choose the smallest size whose throughput is at least this share of the best.
pub(super) const NEARLY_BEST: f64 = 0.95;

/// Parameters of BatchMonitor and BatchDispatcher (Efficient Adaptive Batching, section III).
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveKnobs {
    /// The preferred batch size must sustain the measured rate times 1 + this. Without a margin the batch size is
    /// unstable under Poisson arrivals. Not used in `paper` mode.
    pub headroom: f64,
    /// Averaging time of the request rate. Also the time for which a smaller batch size must be asked for before it is
    /// adopted. Not used in `paper` mode.
    pub average_ns: Ns,
    /// Maximum time that the oldest request waits for its batch to fill.
    pub max_queue_delay_ns: Ns,
    /// Whether to use algorithm 1 as published: a window of one second, a search from 2 with a strict comparison, times
    /// by linear regression, and partial batches that are launched only at `max_queue_delay_ns`.
    pub paper: bool,
}

impl Default for AdaptiveKnobs {
    fn default() -> Self {
        Self { headroom: 0.15, average_ns: 30_000_000, max_queue_delay_ns: 100_000_000, paper: false }
    }
}

/// The inputs that determine the batch size of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    pub(crate) costs: &'a Costs,
    /// Padded lengths for which times are looked up.
    pub(crate) class: &'a ShapeClass,
    /// Largest batch in rows.
    pub(crate) max_rows: u32,
    /// Latency objective, from arrival to completion.
    pub(crate) objective_ns: Option<Ns>,
    /// Number of lanes that run batches in parallel.
    pub(crate) lanes: u32,
}

/// The waiting requests, as the dispatcher sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) rows: u32,
    /// Arrival time of the oldest request.
    pub(crate) oldest_arrival: Instant,
    /// Time that the oldest request can still wait and meet its target; `None` without a target.
    pub(crate) oldest_slack_ns: Option<Ns>,
    /// Whether another lane would be free for the next request if these were launched now.
    pub(crate) lane_is_left: bool,
}

/// The dispatcher's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// Launch a batch of this many rows.
    Go(u32),
    /// Launch nothing before this time or the next arrival; `Instant::NEVER` if nothing waits.
    Until(Instant),
}

/// A period in which smaller batch sizes were asked for: its start, and the largest of those sizes.
#[derive(Clone, Copy, Debug)]
struct LowRatePeriod {
    since: Instant,
    most: u32,
}

/// Measures the arrival rate and computes the preferred batch size.
#[derive(Clone, Debug)]
pub(crate) struct Monitor {
    knobs: AdaptiveKnobs,
    rate: Rate,
    latest_arrival: Instant,
    /// The rate at the latest arrival. It is kept because the current estimate falls while no request arrives, which
    /// would delay the expected rest of a batch.
    latest_rate: f64,
    preferred: u32,
    /// Whether the rate has changed since `preferred` was computed.
    is_due: bool,
    lull: Option<LowRatePeriod>,
}

impl Monitor {
    /// Creates a monitor that counts from `now` on. The preferred size is 1 until it is first computed.
    pub(crate) fn new(knobs: AdaptiveKnobs, now: Instant) -> Self {
        let rate = Rate::new((!knobs.paper).then_some(knobs.average_ns), now);
        Self { knobs, rate, latest_arrival: now, latest_rate: 0.0, preferred: 1, is_due: true, lull: None }
    }

    /// Records the arrival of `rows` rows.
    pub(crate) fn arrived(&mut self, now: Instant, rows: u32) {
        self.is_due |= self.rate.add(now, rows);
        self.latest_arrival = now;
        self.latest_rate = self.rate(now);
    }

    /// Returns λ in rows per nanosecond: an exponential average over measured time, in which each row counts for 1 /
    /// `average_ns`; in `paper` mode, the count of the last whole second.
    pub(crate) fn rate(&self, now: Instant) -> f64 {
        self.rate.at(now)
    }

    /// Returns the preferred batch size: the smallest B ≥ 1 with λ · (1 + headroom) ≤ B / T(B), or else the largest B.
    ///
    /// It rises at once, also if the queue already holds the next power of two. It falls after smaller sizes have been
    /// asked for during a whole `average_ns`. It does not exceed the largest B with (B − 1) / λ + T(B) ≤ objective,
    /// unless batches of that size are too slow for the rate or for what waits: such requests would be late, and those
    /// after them. While times are unknown, only the queue length raises it, and an objective keeps it at 1.
    pub(crate) fn preferred(&mut self, now: Instant, queued_rows: u32, demand: &Demand) -> u32 {
        self.is_due |= self.rate.roll(now);
        let (is_due, rate) = (std::mem::take(&mut self.is_due), self.rate(now));
        let max_rows = demand.max_rows.max(1);
        if self.knobs.paper {
            if is_due {
                let line = demand.costs.regression(demand.class);
                self.preferred = line.map_or(1, |(a, c)| paper_size(rate, a, c, max_rows));
            }
            return self.preferred.min(max_rows);
        }
        if is_due {
            self.follow(now, smallest_that_keeps_up(rate * (1.0 + self.knobs.headroom), demand));
        }
        // Rows that already wait need no estimate: a queue that fills the next size is enough.
        while self.preferred < max_rows {
            let next = self.preferred.saturating_add(1).next_power_of_two().min(max_rows);
            if queued_rows < next {
                break;
            }
            self.preferred = next;
            self.lull = None;
        }
        let within = largest_within_objective(rate, demand);
        if keeps_objective(within, rate, queued_rows, demand) {
            self.preferred.min(within)
        } else {
            self.preferred.min(max_rows)
        }
    }

    /// Adopts a size that the rate asks for: a larger one at once, a smaller one with hysteresis.
    fn follow(&mut self, now: Instant, wanted: u32) {
        if wanted >= self.preferred {
            self.preferred = wanted;
            self.lull = None;
            return;
        }
        let lull = self.lull.get_or_insert(LowRatePeriod { since: now, most: wanted });
        lull.most = lull.most.max(wanted);
        if now.since(lull.since) >= self.knobs.average_ns {
            self.preferred = lull.most;
            self.lull = None;
        }
    }

    /// BatchDispatcher: launches `preferred` rows as soon as they wait.
    ///
    /// A partial batch of n rows is launched at the earliest of these times: the oldest request's slack is used up; 1.5
    /// times the expected arrival time of the missing rows has passed since the latest arrival; the oldest request has
    /// waited `max_queue_delay_ns`. If a lane is idle, it is launched at once where (n + 1) / λ ≥ T(n) or T(n) is
    /// unknown, and as soon as the next row is not expected, or has not come, within the time by which waiting for it
    /// would increase the mean latency by a tenth. Clients that wait for their answers send nothing meanwhile.
    pub(crate) fn dispatch(
        &self,
        now: Instant,
        queue: &Queue,
        preferred: u32,
        lane_is_idle: bool,
        demand: &Demand,
    ) -> Dispatch {
        let rows = queue.rows;
        if rows == 0 {
            return Dispatch::Until(Instant::NEVER);
        }
        if rows >= preferred {
            return Dispatch::Go(preferred.max(1));
        }
        // The paper dispatches partial batches only by this limit; the other conditions below are corrections.
        let mut limit = queue.oldest_arrival + self.knobs.max_queue_delay_ns;
        if !self.knobs.paper {
            if lane_is_idle {
                let run_ns = demand.costs.whole(rows, demand.class, Quantile::Mean);
                let refill_ns = f64::from(rows + 1) / self.rate(now);
                let worth_ns = longest_worthwhile_wait(queue, demand);
                if refill_ns >= run_ns.unwrap_or(0) as f64 || 1.0 / self.latest_rate > worth_ns {
                    return Dispatch::Go(rows);
                }
                limit = limit.min(self.latest_arrival + worth_ns as Ns);
            }
            let rest_ns = PATIENCE * f64::from(preferred - rows) / self.latest_rate;
            limit = limit.min(self.latest_arrival + rest_ns as Ns);
            limit = limit.min(queue.oldest_slack_ns.map_or(Instant::NEVER, |slack_ns| now + slack_ns));
        }
        if limit <= now { Dispatch::Go(rows) } else { Dispatch::Until(limit) }
    }
}

/// Returns the longest time, in nanoseconds, for which the next row is worth waiting: the mean latency of that row and
/// the waiting rows is then [`TOLERATED`] times what it is if these are launched now. Negative if the row is worth no
/// wait, infinite while times are unknown.
fn longest_worthwhile_wait(queue: &Queue, demand: &Demand) -> f64 {
    let time = |rows| Some(demand.costs.whole(rows, demand.class, Quantile::Mean)? as f64);
    let (Some(now_ns), Some(next_ns), Some(both_ns)) = (time(queue.rows), time(1), time(queue.rows + 1)) else {
        return f64::INFINITY;
    };
    let rows = f64::from(queue.rows);
    // A row that comes after `wait` finds a lane after `until_next_end - wait` more, since batches on several lanes end
    // at different times, one after a part of a run on average. Solves, for `wait`:
    // rows · (wait + both) + both = TOLERATED · (rows · now + (until_next_end - wait) + next)
    let until_next_end_ns = if queue.lane_is_left { 0.0 } else { now_ns / f64::from(demand.lanes.max(1)) };
    let spare_ns = TOLERATED * (rows * now_ns + next_ns) - (rows + 1.0) * both_ns;
    let before_next_end = (spare_ns + TOLERATED * until_next_end_ns) / (rows + TOLERATED);
    if before_next_end <= until_next_end_ns { before_next_end } else { spare_ns / rows }
}

/// Equation 1, λ ≤ B / T(B) on each lane: returns the smallest such B. If there is none, returns the smallest B whose
/// throughput is nearly the best, since a larger one adds waiting time without saving device time. Returns 1 if times
/// are unknown.
pub(crate) fn smallest_that_keeps_up(rate: f64, demand: &Demand) -> u32 {
    let rate = rate / f64::from(demand.lanes.max(1));
    let throughputs = (1..=demand.max_rows.max(1)).map_while(|rows| demand.costs.throughput(rows, demand.class));
    let throughputs: SmallVec<[f64; 64]> = throughputs.collect();
    let best = throughputs.iter().copied().fold(0.0, f64::max);
    let enough = rate.min(NEARLY_BEST * best);
    throughputs.iter().position(|&throughput| throughput >= enough).map_or(1, |before| before as u32 + 1)
}

/// Returns the largest B with (B − 1) / λ + T(B) ≤ objective, at least 1.
pub(crate) fn largest_within_objective(rate: f64, demand: &Demand) -> u32 {
    let max_rows = demand.max_rows.max(1);
    let Some(objective_ns) = demand.objective_ns else { return max_rows };
    let is_within = |rows: u32| {
        let collect_ns = f64::from(rows - 1) / rate;
        let run_ns = demand.costs.whole(rows, demand.class, Quantile::Mean);
        run_ns.is_some_and(|run_ns| collect_ns + run_ns as f64 <= objective_ns as f64)
    };
    let (mut fits, mut too_large) = (1, max_rows + 1);
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        if is_within(middle) {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    fits
}

/// Returns whether batches of this size carry the rate, and run all that waits within the objective.
fn keeps_objective(rows: u32, rate: f64, queued_rows: u32, demand: &Demand) -> bool {
    let Some(objective_ns) = demand.objective_ns else { return true };
    let Some(throughput) = demand.costs.throughput(rows, demand.class) else { return true };
    let carried = throughput * f64::from(demand.lanes.max(1));
    rate <= carried && f64::from(queued_rows) <= carried * objective_ns as f64
}

/// Returns B* = λa / (1 − λc), the size at which collecting takes as long as running with T = a + c·B; `None` if λc ≥
/// 1, where no size keeps up.
pub(crate) fn balanced_size(rate: f64, a: f64, c: f64) -> Option<f64> {
    let idle_share = 1.0 - rate * c;
    (idle_share > 0.0).then(|| rate * a / idle_share)
}

/// Algorithm 1, lines 6 to 18: returns the first B from 2 on with λ < B / (a + c·B), or else the largest B.
pub(crate) fn paper_size(rate: f64, a: f64, c: f64, max_rows: u32) -> u32 {
    let size =
        balanced_size(rate, a, c).map_or(max_rows, |balanced| (balanced.max(0.0).floor() as u32).saturating_add(1));
    size.max(2).min(max_rows)
}
