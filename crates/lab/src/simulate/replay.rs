//! Replays the speed of a device as it was at each moment of a recording, so that a simulation compares decisions and
//! queues rather than machines.

use paternoster_batching::Ns;

use super::{
    recorded::{RecordedError, RecordedTask, begins_after, its_name, length_of},
    surface::Surface,
    table::ModelTable,
};

/// Number of requests at the end of a recording from which its clock offset is determined.
const TOLD_BY: usize = 1_000;

/// How slow each lane was while a trace was played on a device, in the trace's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// By lane; each lane has at least one piece.
    lanes: Vec<Vec<Piece>>,
}

/// A period of time: that of a task, or of a gap between tasks, which counts as slow as the median task.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    from_ns: Ns,
    until_ns: Ns,
    /// Actual time divided by the table's time.
    slow: f64,
}

impl Replay {
    /// Derives the speed of `lanes` lanes from a timeline's tasks. `arrived_ns` are the recorded arrivals, ascending.
    /// `arrivals_ns` are the trace's arrivals at the core; both lists end with the same requests.
    ///
    /// # Errors
    /// If the tasks belong to other models or stages, or if a lane has none.
    pub fn of(
        models: &[&ModelTable],
        lanes: u16,
        tasks: &[RecordedTask<'_>],
        arrived_ns: &[Ns],
        arrivals_ns: &[Ns],
    ) -> Result<Self, RecordedError> {
        let late_ns = clock(arrived_ns, arrivals_ns);
        let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); usize::from(lanes)];
        for model in models {
            let surfaces: Vec<Surface> = model.latencies.stages.iter().map(|points| Surface::new(points)).collect();
            let named = its_name(&model.name, tasks)?;
            for (at, task) in tasks.iter().enumerate() {
                let last = at.checked_sub(1).map(|last| tasks[last]).filter(|last| last.lane == task.lane);
                let began_ns = last.map_or(task.from_ns, |last| begins_after(task, last.to_ns));
                let Some(lane) = pieces.get_mut(usize::from(task.lane)).filter(|_| task.model == named) else {
                    continue;
                };
                let Some(surface) = surfaces.get(usize::from(task.stage)) else {
                    return Err(RecordedError::stages(model, task.stage));
                };
                let here = |there_ns: Ns| Ns::try_from(i128::from(there_ns) - late_ns).unwrap_or(0);
                let slow = (task.to_ns - began_ns) as f64 / surface.ns(task.rows, length_of(task));
                lane.push(Piece { from_ns: here(began_ns), until_ns: here(task.to_ns), slow });
            }
        }
        for lane in &mut pieces {
            if lane.is_empty() {
                let model = models.first().map_or_else(String::new, |model| model.name.clone());
                return Err(RecordedError::TooFew { model, found: 0, expected: 1 });
            }
            *lane = without_gaps(std::mem::take(lane));
        }
        Ok(Self { lanes: pieces })
    }

    /// Returns the duration of a task that starts now and takes `table_ns` in the table. After the end of the
    /// recording, lanes stay as slow as at its end.
    pub(super) fn took_ns(&self, lane: usize, now: Ns, table_ns: f64) -> f64 {
        let pieces = &self.lanes[lane % self.lanes.len()];
        let (mut at, mut left_ns) = (now as f64, table_ns);
        let first = pieces.partition_point(|piece| piece.until_ns <= now).min(pieces.len() - 1);
        for piece in &pieces[first..pieces.len() - 1] {
            let lasts_ns = piece.until_ns as f64 - at;
            if left_ns * piece.slow <= lasts_ns {
                return at + left_ns * piece.slow - now as f64;
            }
            left_ns -= lasts_ns / piece.slow;
            at = piece.until_ns as f64;
        }
        at + left_ns * pieces[pieces.len() - 1].slow - now as f64
    }
}

/// Returns the pieces in order, with the gaps between them filled.
fn without_gaps(mut tasks: Vec<Piece>) -> Vec<Piece> {
    tasks.sort_by(|one, two| one.slow.total_cmp(&two.slow));
    let slow = tasks[tasks.len() / 2].slow;
    tasks.sort_by_key(|piece| piece.until_ns);
    let mut pieces = Vec::with_capacity(2 * tasks.len());
    let mut until_ns = 0;
    for task in tasks {
        if until_ns < task.from_ns {
            pieces.push(Piece { from_ns: until_ns, until_ns: task.from_ns, slow });
        }
        until_ns = task.until_ns;
        pieces.push(task);
    }
    pieces
}

/// Returns the recording's time at the trace's time 0: the median over the last requests.
fn clock(arrived_ns: &[Ns], arrivals_ns: &[Ns]) -> i128 {
    let pairs = arrived_ns.iter().rev().zip(arrivals_ns.iter().rev()).take(TOLD_BY);
    let mut late: Vec<i128> = pairs.map(|(&there, &here)| i128::from(there) - i128::from(here)).collect();
    late.sort_unstable();
    late.get(late.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paternoster_batching::{CostPoint, CostTable};

    /// A row takes 100 ns.
    fn table() -> ModelTable {
        let point = CostPoint { rows: 1, length: 1, took_ns: 100 };
        let latencies = CostTable { stages: vec![vec![point]] };
        ModelTable { name: "m".to_owned(), max_batch_rows: 4, latencies, steps: None, cells: None, scatter: Vec::new() }
    }

    fn task(lane: u16, from_ns: Ns, to_ns: Ns) -> RecordedTask<'static> {
        RecordedTask { model: "m", stage: 0, lane, rows: 1, lengths: &[], from_ns, to_ns }
    }

    #[test]
    fn a_lane_is_as_slow_as_it_was_then() {
        // In milliseconds. The recording started 1,000 before the trace, where requests arrived at 50 and 450.
        const MS: Ns = 1_000_000;
        let ran = |lane, from, to| task(lane, from * MS, to * MS);
        let tasks = [ran(0, 1_050, 1_150), ran(0, 1_450, 1_750), ran(1, 1_050, 1_250)];
        let arrived = [7, 1_050, 1_450].map(|at| at * MS);
        let replay = Replay::of(&[&table()], 2, &tasks, &arrived, &[50 * MS, 450 * MS]).expect("there is enough");
        // At first a nanosecond of the table takes a millisecond.
        let slow = |lane, at: Ns, ms: f64| replay.took_ns(lane, at * MS, ms) / MS as f64;
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6 * expected;
        assert!(near(slow(0, 50, 100.0), 100.0), "until 150 as it was then");
        assert!(near(slow(0, 450, 100.0), 300.0), "a third as fast until 750");
        assert!(near(slow(0, 100, 100.0), 200.0), "half of it so, half as between tasks");
        assert!(near(slow(0, 400, 100.0), 300.0), "between tasks as slow as the slower half");
        assert!(near(slow(0, 9_000, 100.0), 300.0), "at the end as at last");
        assert!(near(slow(1, 0, 100.0), 200.0), "the other lane");
    }

    #[test]
    fn the_time_between_tasks_that_follow_one_another_is_the_second_ones() {
        let tasks = [task(0, 0, 100_000), task(0, 150_000, 250_000)];
        let replay = Replay::of(&[&table()], 1, &tasks, &[0], &[0]).expect("there is enough");
        assert_eq!(replay.took_ns(0, 120_000, 10.0), 15_000.0);
    }

    #[test]
    fn a_recording_of_too_few_lanes_is_refused() {
        let refusal =
            Replay::of(&[&table()], 2, &[task(0, 0, 100)], &[0], &[0]).expect_err("the second lane is not there");
        assert_eq!(refusal.to_string(), "it has 0 tasks of 'm' on one of the lanes: expected at least 1");
    }
}
