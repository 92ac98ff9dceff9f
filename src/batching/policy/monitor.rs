//! BatchMonitor and BatchDispatcher (Efficient Adaptive Batching, section III and algorithm 1): the preferred batch
//! size follows the request rate, so that collecting a batch takes about as long as running one.
//!
//! Where the algorithm as published would starve a slow trickle or swing at equality, it is corrected: the search
//! starts at 1, the rate is taken with headroom, and a partial batch does not wait for ever. [`MonitorKnobs::paper`]
//! undoes that.

use smallvec::SmallVec;

use super::rate::Rate;
use crate::batching::{
    Ns, ShapeClass,
    cost::{Costs, Quantile},
};

/// A partial batch waits so many times as long as the rest of it is expected to take.
const PATIENCE: f64 = 1.5;

/// A batch waits for its next row while that makes the mean latency of both at most so many times what it is without.
const TOLERATED: f64 = 1.1;

/// Where no size keeps up with the rate, the smallest whose throughput is at least this share of the best.
const NEARLY_BEST: f64 = 0.95;

/// Parameters of the monitor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::batching) struct MonitorKnobs {
    /// Share by which the rate is raised before it is held against a throughput: equality is unstable under Poisson
    /// arrivals. Not used in `paper` mode.
    pub(in crate::batching) headroom: f64,
    /// Averaging time of the rate, and how long a smaller batch size must be asked for before it is taken. Not used in
    /// `paper` mode.
    pub(in crate::batching) average_ns: Ns,
    /// The longest that the oldest request waits for its batch to fill.
    pub(in crate::batching) cap_ns: Ns,
    /// Algorithm 1 as published: a window of one second, the search from 2 with a strict comparison, times by linear
    /// regression, and partial batches that go at `cap_ns` only.
    pub(in crate::batching) paper: bool,
}

/// What a group's requests ask of the batch size.
#[derive(Clone, Copy, Debug)]
pub(in crate::batching) struct Demand<'a> {
    pub(in crate::batching) costs: &'a Costs,
    /// Padded lengths for which times are looked up.
    pub(in crate::batching) class: &'a ShapeClass,
    /// Largest batch in rows.
    pub(in crate::batching) max_rows: u32,
    /// Time from arrival to completion that is aimed at.
    pub(in crate::batching) objective_ns: Option<Ns>,
    /// Lanes that run batches beside each other.
    pub(in crate::batching) lanes: u32,
}

/// The requests that wait, as the dispatcher sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::batching) struct Queue {
    pub(in crate::batching) rows: u32,
    /// Arrival of the oldest.
    pub(in crate::batching) oldest_arrival: Ns,
    /// How much longer the oldest can wait and still meet its target; none where it has no target.
    pub(in crate::batching) oldest_slack_ns: Option<Ns>,
    /// Whether a lane would be left for the request that comes next if these went now.
    pub(in crate::batching) lane_is_left: bool,
}

/// What the dispatcher does with the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::batching) enum Dispatch {
    /// A batch of so many rows goes.
    Go(u32),
    /// Nothing goes before this time or the next arrival; the end of time where nothing waits.
    Until(Ns),
}

/// Since when a smaller batch size has been asked for, and the largest of those asked for.
#[derive(Clone, Copy, Debug)]
struct Lull {
    since: Ns,
    most: u32,
}

/// Measures the rate of arrivals and publishes the preferred batch size.
#[derive(Clone, Debug)]
pub(in crate::batching) struct Monitor {
    knobs: MonitorKnobs,
    rate: Rate,
    latest_arrival: Ns,
    /// The rate as it was at the latest arrival: that none has come since does not make the rest of a batch later.
    latest_rate: f64,
    preferred: u32,
    /// The rate has changed since `preferred` was found.
    is_due: bool,
    lull: Option<Lull>,
}

impl Monitor {
    /// A monitor that begins to count at `now`, and prefers batches of one until it is asked.
    pub(in crate::batching) fn new(knobs: MonitorKnobs, now: Ns) -> Self {
        let rate = if knobs.paper { Rate::of_seconds(now) } else { Rate::averaged(knobs.average_ns, now) };
        Self { knobs, rate, latest_arrival: now, latest_rate: 0.0, preferred: 1, is_due: true, lull: None }
    }

    /// So many rows have arrived.
    pub(in crate::batching) fn arrived(&mut self, now: Ns, rows: u32) {
        self.is_due |= self.rate.add(now, rows);
        self.latest_arrival = now;
        self.latest_rate = self.rate(now);
    }

    /// λ in rows per nanosecond: an exponential average over measured time, in which each row counts for one
    /// `average_ns`-th; in `paper` mode the count of the last whole second.
    pub(in crate::batching) fn rate(&self, now: Ns) -> f64 {
        self.rate.at(now)
    }

    /// The preferred batch size: the smallest B ≥ 1 with λ · (1 + headroom) ≤ B / T(B), else the largest B.
    ///
    /// It rises at once, also when the queue already holds the next power of two, and falls when less has been asked
    /// for during a whole `average_ns`. It is never above the B with (B − 1) / λ + T(B) ≤ objective. While no time is
    /// known, only the queue raises it, and an objective holds it at 1.
    pub(in crate::batching) fn preferred(&mut self, now: Ns, queued_rows: u32, demand: &Demand) -> u32 {
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
        while self.preferred < max_rows {
            let next = self.preferred.saturating_add(1).next_power_of_two().min(max_rows);
            if queued_rows < next {
                break;
            }
            self.preferred = next;
            self.lull = None;
        }
        self.preferred.min(largest_within_objective(rate, demand))
    }

    /// Takes over a size that the rate asks for: a larger one at once, a smaller one with hysteresis.
    fn follow(&mut self, now: Ns, wanted: u32) {
        if wanted >= self.preferred {
            self.preferred = wanted;
            self.lull = None;
            return;
        }
        let lull = self.lull.get_or_insert(Lull { since: now, most: wanted });
        lull.most = lull.most.max(wanted);
        if now.saturating_sub(lull.since) >= self.knobs.average_ns {
            self.preferred = lull.most;
            self.lull = None;
        }
    }

    /// BatchDispatcher: `preferred` rows go as soon as they are there.
    ///
    /// A partial batch of n goes when the first of these has come: the oldest request's slack is used up; 1.5 times the
    /// time in which the missing rows were to be expected has passed since the latest arrival; the oldest request has
    /// waited `cap_ns`. It goes at once when a lane idles and (n + 1) / λ ≥ T(n), T(n) is not known, or to wait for the
    /// next row would make the mean latency longer by more than a tenth.
    pub(in crate::batching) fn dispatch(
        &self,
        now: Ns,
        queue: &Queue,
        preferred: u32,
        lane_is_idle: bool,
        demand: &Demand,
    ) -> Dispatch {
        let rows = queue.rows;
        if rows == 0 {
            return Dispatch::Until(Ns::MAX);
        }
        if rows >= preferred {
            return Dispatch::Go(preferred.max(1));
        }
        let mut limit = queue.oldest_arrival.saturating_add(self.knobs.cap_ns);
        if !self.knobs.paper {
            let run_ns = demand.costs.whole(rows, demand.class, Quantile::Mean);
            let refill_ns = f64::from(rows + 1) / self.rate(now);
            let at_once = || refill_ns >= run_ns.unwrap_or(0) as f64 || !self.is_worth_waiting(queue, demand);
            if lane_is_idle && at_once() {
                return Dispatch::Go(rows);
            }
            let rest_ns = PATIENCE * f64::from(preferred - rows) / self.latest_rate;
            limit = limit.min(self.latest_arrival.saturating_add(rest_ns as Ns));
            limit = limit.min(queue.oldest_slack_ns.map_or(Ns::MAX, |slack| now.saturating_add(slack)));
        }
        if limit <= now { Dispatch::Go(rows) } else { Dispatch::Until(limit) }
    }

    /// Whether the next row is worth waiting for, as far as the mean latency of that and of those that wait goes.
    fn is_worth_waiting(&self, queue: &Queue, demand: &Demand) -> bool {
        let time = |rows| Some(demand.costs.whole(rows, demand.class, Quantile::Mean)? as f64);
        let (Some(now_ns), Some(next_ns), Some(both_ns)) = (time(queue.rows), time(1), time(queue.rows + 1)) else {
            return true;
        };
        let (rows, gap_ns) = (f64::from(queue.rows), 1.0 / self.latest_rate);
        let next_waits_ns = if queue.lane_is_left { 0.0 } else { (now_ns - gap_ns).max(0.0) };
        let apart = rows * now_ns + next_waits_ns + next_ns;
        let together = rows * (gap_ns + both_ns) + both_ns;
        together <= TOLERATED * apart
    }
}

/// Equation 1, λ ≤ B / T(B) on each of the lanes: the smallest such B. Where there is none, the smallest B whose
/// throughput is nearly the best: a larger one makes requests wait and nothing cheaper. 1 where no time is known.
pub(in crate::batching) fn smallest_that_keeps_up(rate: f64, demand: &Demand) -> u32 {
    let rate = rate / f64::from(demand.lanes.max(1));
    let throughputs = (1..=demand.max_rows.max(1)).map_while(|rows| demand.costs.throughput(rows, demand.class));
    let throughputs: SmallVec<[f64; 64]> = throughputs.collect();
    let best = throughputs.iter().copied().fold(0.0, f64::max);
    let enough = rate.min(NEARLY_BEST * best);
    throughputs.iter().position(|&throughput| throughput >= enough).map_or(1, |before| before as u32 + 1)
}

/// The largest B with (B − 1) / λ + T(B) ≤ objective, at least 1.
pub(in crate::batching) fn largest_within_objective(rate: f64, demand: &Demand) -> u32 {
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

/// B* = λa / (1 − λc), the size at which collecting takes as long as running by T = a + c·B; none when λc ≥ 1, where no
/// size keeps up.
pub(in crate::batching) fn balanced_size(rate: f64, a: f64, c: f64) -> Option<f64> {
    let idle_share = 1.0 - rate * c;
    (idle_share > 0.0).then(|| rate * a / idle_share)
}

/// Algorithm 1, lines 6 to 18: the first B from 2 on with λ < B / (a + c·B), else the largest B.
pub(in crate::batching) fn paper_size(rate: f64, a: f64, c: f64, max_rows: u32) -> u32 {
    let size =
        balanced_size(rate, a, c).map_or(max_rows, |balanced| (balanced.max(0.0).floor() as u32).saturating_add(1));
    size.max(2).min(max_rows)
}
