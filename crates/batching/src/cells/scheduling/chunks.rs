//! How many steps the rows of a task run.
//!
//! Each task takes a fixed time `F` that all `N` requests of the version wait for, so tasks of more steps spare them
//! some of it. But those who come while a task runs wait for its end, half of its time `T` each on average, and rows
//! that end within it wait for its end too, and still take their part of each step. So the rows are planned to their
//! ends, in tasks of the numbers of steps `k` that make the sum of these delays least:
//!
//! ```text
//! N · F  +  λ · T² / 2  +  Σ (k − own) · (step + (rows + N) · row)
//! ```
//!
//! where `λ` is the rate at which requests come while tasks run, and the sum is over the rows that have only `own`
//! steps left. The first of these tasks is run; the next one is planned when it has ended. For a lone request, `λ` is
//! that of less than one request in some time, so it runs all its steps at once unless they take long; beside many
//! others, the rows that end soon keep tasks short.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Cells, Place};
use crate::{
    ChunkKnobs, Instant, Ns,
    cells::queues::NodeRow,
    cost::{Quantile, StepTerms},
    graph::time_of,
    queue::Rate,
    version::StepContext,
};

/// Time in tasks over which requests that come are counted. It also bounds the tasks of a lone request: half of another
/// one may come in this time.
const AVERAGE_NS: Ns = 500_000_000;
const MIGHT_COME: f64 = 0.5;

/// Least fixed time of a task, in steps of one row. Where first runs are slow, the fit may find none; tasks of few
/// steps, which then seem to cost nothing, would show nothing else.
const LEAST_FIXED_STEPS: f64 = 0.5;

/// What is known of requests that come while tasks run.
#[derive(Debug)]
pub(in crate::cells) struct Chunks {
    rate: Rate,
    /// The clock of `rate`, which runs only while tasks do.
    clock: Instant,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { rate: Rate::new(Some(AVERAGE_NS), Instant::ZERO), clock: Instant::ZERO }
    }
}

impl Chunks {
    /// Counts the time of a task.
    pub(in crate::cells) fn ran(&mut self, took_ns: Ns) {
        self.clock += took_ns;
        self.rate.roll(self.clock);
    }

    /// Returns the requests that come in a nanosecond of a task.
    fn newcomers_per_ns(&self) -> f64 {
        self.rate.at(self.clock) + MIGHT_COME / AVERAGE_NS as f64
    }
}

/// What a choice of steps depends on, besides the rows.
struct Choice {
    terms: StepTerms,
    /// Rows of the task, with those of other versions.
    rows: f64,
    /// Requests that wait for the task: in it, aboard, and in the queue.
    all: f64,
    newcomers_per_ns: f64,
}

/// A number of steps that a plan may reach, and what of the rows ends before it or there.
struct Boundary {
    steps: f64,
    /// Rows of at most this number of steps, and the sum of their steps.
    ended: f64,
    made: f64,
}

impl Choice {
    fn run_ns(&self, steps: u32) -> f64 {
        self.terms.run_ns(self.rows, f64::from(steps))
    }

    /// Returns the best number of steps up to `most`, which some row has left. `left` are the steps of each row.
    fn best(&self, left: &[u32], most: u32) -> u32 {
        let boundaries = boundaries(left, most);
        // From the last boundary back: the least sum of delays from each on, and the next one on the way.
        let mut plan: SmallVec<[(f64, usize); MOST_BOUNDARIES]> = boundaries.iter().map(|_| (0.0, 0)).collect();
        for at in (0..boundaries.len() - 1).rev() {
            let delays_ns = (at + 1..boundaries.len()).map(|next| {
                let (from, to) = (&boundaries[at], &boundaries[next]);
                (self.delay_ns(from, to) + plan[next].0, next)
            });
            // Among equals the longest.
            plan[at] =
                delays_ns.min_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1))).unwrap_or((0.0, at));
        }
        boundaries[plan[0].1].steps as u32
    }

    /// Returns the sum of the delays that a task from one boundary to another causes.
    fn delay_ns(&self, from: &Boundary, to: &Boundary) -> f64 {
        let StepTerms { fixed_ns, step_ns, row_ns } = self.terms;
        let fixed_ns = fixed_ns.max(LEAST_FIXED_STEPS * (step_ns + row_ns));
        let (rows, all) = (self.rows - from.ended, self.all - from.ended);
        let run_ns = self.terms.run_ns(rows, to.steps - from.steps);
        // Rows that end exactly at the boundary are not late.
        let late = (to.ended - from.ended) * to.steps - (to.made - from.made);
        all * fixed_ns + self.newcomers_per_ns * run_ns * run_ns / 2.0 + late * (step_ns + (rows + all) * row_ns)
    }
}

/// Most numbers of steps that a plan considers.
const MOST_BOUNDARIES: usize = 32;

/// Returns the numbers of steps that a plan may reach, from 0 to `most`: those at which rows end, thinned if they are
/// many, and some between.
fn boundaries(left: &[u32], most: u32) -> SmallVec<[Boundary; MOST_BOUNDARIES]> {
    let mut own: SmallVec<[u32; 64]> = left.iter().map(|&left| left.min(most)).collect();
    own.sort_unstable();
    let octaves =
        (0..u32::BITS).flat_map(|octave| [1_u64 << octave, 3 << octave]).filter(|steps| *steps < u64::from(most));
    let mut between: SmallVec<[u32; 64]> = octaves.map(|steps| steps as u32).collect();
    between.sort_unstable();
    let thin = |steps: &[u32]| -> SmallVec<[u32; 16]> {
        steps.iter().copied().step_by(steps.len().div_ceil(MOST_BOUNDARIES / 2 - 1).max(1)).collect()
    };
    let mut ends: SmallVec<[u32; 64]> = own.clone();
    ends.dedup();
    let mut steps: SmallVec<[u32; MOST_BOUNDARIES]> =
        thin(&ends).into_iter().chain(thin(&between)).chain([0, most]).collect();
    steps.sort_unstable();
    steps.dedup();
    let (mut ended, mut made) = (0, 0_u64);
    let boundary = |steps: u32| {
        while let Some(&own) = own.get(ended).filter(|own| **own <= steps) {
            ended += 1;
            made += u64::from(own);
        }
        Boundary { steps: f64::from(steps), ended: ended as f64, made: made as f64 }
    };
    steps.into_iter().map(boundary).collect()
}

impl Cells {
    /// Notes a request that came.
    pub(crate) fn arrived(&mut self) {
        if !self.tasks.is_empty() {
            self.chunks.rate.add(self.chunks.clock, 1);
        }
    }

    /// Lets the rows of a task that has just been formed run several steps if their type can.
    pub(super) fn lengthen(
        &mut self,
        context: &mut StepContext<'_>,
        place: Place,
        cell: CellId,
        rows: &mut [NodeRow],
        brought: &[(CellId, u64)],
    ) {
        let Some(chunks) = self.knobs.cells[usize::from(cell.0)].chunks.filter(|_| !self.knobs.paper) else { return };
        let steps = match place.steps {
            Some(steps) => steps,
            None => {
                let brought = brought.iter().find(|(own, _)| *own == cell).map_or(0, |&(_, nodes)| nodes);
                let room = u64::from(self.most_rows(cell)).saturating_sub(rows.len() as u64);
                self.choose_steps(context, cell, chunks, rows, (brought.min(room) as u32, place.most_ns))
            }
        };
        self.cells.queues.lengthen(rows, steps);
        self.steps.ran(cell, steps);
    }

    /// Chooses how many steps the rows of a task run at most. `brought` is the number of rows that others will add,
    /// `most_ns` a limit on the task's time.
    fn choose_steps(
        &self,
        context: &mut StepContext<'_>,
        cell: CellId,
        chunks: ChunkKnobs,
        rows: &[NodeRow],
        (brought, most_ns): (u32, Option<Ns>),
    ) -> u32 {
        let left = self.cells.queues.steps_left(rows);
        let all_rows = left.len() as u32 + brought;
        // Rows of different numbers of steps could not share a run.
        let longest = if chunks.is_padded { left.iter().max() } else { left.iter().min() };
        let most = chunks.at_most(longest.copied().unwrap_or(1).min(chunks.most_row_steps / all_rows));
        // The first run of a type tells how long a step takes.
        let Some(terms) = context.version.costs.step_terms(cell).filter(|_| most > 1) else { return 1 };
        let choice = Choice {
            terms,
            rows: f64::from(all_rows),
            all: f64::from(self.cells.under_way) + context.version.pending.requests as f64,
            newcomers_per_ns: if self.knobs.merge_requests.is_some() { 0.0 } else { self.chunks.newcomers_per_ns() },
        };
        let mut steps = choice.best(&left, most);
        if steps > 1
            && let Some(most_ns) = self
                .longest_chunk_ns(context, cell, &choice, rows, &left)
                .into_iter()
                .chain(most_ns.map(|ns| ns as f64))
                .reduce(f64::min)
            && choice.run_ns(steps) > most_ns
        {
            let each_ns = choice.run_ns(2) - choice.run_ns(1);
            steps = (((most_ns - terms.fixed_ns) / each_ns.max(1.0)) as u32).clamp(1, steps);
        }
        chunks.at_most(steps)
    }

    /// Returns how long a task of several steps may take at most: `max_chunk_ms`, and under `lazy` the slack of those
    /// who wait for its end and of those who may come. Slack that is used up asks for nothing.
    fn longest_chunk_ns(
        &self,
        context: &mut StepContext<'_>,
        cell: CellId,
        choice: &Choice,
        rows: &[NodeRow],
        left: &[u32],
    ) -> Option<f64> {
        let knob_ns = self.knobs.max_chunk_ns.map(|ns| ns as f64);
        if self.knobs.lazy.is_none() {
            return knob_ns;
        }
        let (now, ledger) = (context.now, &*context.ledger);
        let version = &mut *context.version;
        let waiting_ns = version.tightest_waiting(now, ledger).map(|tightest| tightest.slack_ns as f64);
        let aboard_ns = self.first_targets().filter_map(|request_ix| {
            let needs_ns = time_of(&version.costs, &self.nodes_left(version, request_ix)?, |_| 1, Quantile::P99)?;
            let slack_ns = version.target(&ledger[request_ix]).checked_since(now + needs_ns)? as f64;
            match rows.iter().zip(left).find(|(row, _)| row.request() == request_ix) {
                // It waits only after its own last step.
                Some((_, &own)) => Some(choice.run_ns(own) + slack_ns),
                None => Some(slack_ns),
            }
        });
        let aboard_ns = aboard_ns.fold(None, |least: Option<f64>, ns| Some(least.map_or(ns, |least| least.min(ns))));
        let newcomers_ns = version.objective_ns.map(|objective_ns| {
            let alone_ns = choice.terms.run_ns(1.0, self.steps.average(cell));
            objective_ns as f64 - alone_ns
        });
        let bounds = [knob_ns, waiting_ns, aboard_ns, newcomers_ns.filter(|ns| *ns > 0.0)];
        bounds.into_iter().flatten().reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: StepTerms = StepTerms { fixed_ns: 6e4, step_ns: 2e4, row_ns: 5e3 };

    fn best(left: &[u32], others: u32, newcomers_per_s: f64) -> u32 {
        let rows = left.len() as f64;
        let newcomers_per_ns = (newcomers_per_s + 1.0) / 1e9;
        let choice = Choice { terms: TERMS, rows, all: rows + f64::from(others), newcomers_per_ns };
        choice.best(left, left.iter().copied().max().expect("there are rows"))
    }

    #[test]
    fn a_lone_request_runs_all_its_steps() {
        assert_eq!([1, 22, 100].map(|left| best(&[left], 0, 0.0)), [1, 22, 100]);
        let long = best(&[100_000], 0, 0.0);
        assert!((200..2_000).contains(&long), "{long} steps: others wait for some of them at most");
    }

    #[test]
    fn requests_of_equal_lengths_run_together_to_the_end() {
        assert_eq!(best(&[22; 8], 0, 0.0), 22);
        assert!(best(&[22; 8], 0, 5_000.0) < 22, "newcomers board earlier");
    }

    #[test]
    fn rows_that_end_soon_do_not_wait_for_those_that_do_not() {
        assert_eq!([1, 5, 15].map(|soon| best(&[soon, 22], 0, 0.0)), [1, 5, 15]);
        assert_eq!(best(&[21, 22], 0, 0.0), 22, "but a task for one step would cost more than it spares");
        let many: Vec<u32> = (1..=32).collect();
        assert!((2..6).contains(&best(&many, 0, 2_000.0)));
    }

    #[test]
    fn more_steps_are_run_where_more_wait_for_the_fixed_time() {
        assert!(best(&[2, 9, 22], 100, 0.0) >= best(&[2, 9, 22], 0, 0.0));
    }
}
