//! The lanes of a simulated device: tasks in launch order. Each starts when the previous task on its lane, and the
//! tasks on other lanes that it waits for, have ended.

use std::collections::VecDeque;

use paternoster_batching::{Instant, Task};

/// The tasks of a lane.
#[derive(Clone, Debug, Default)]
struct Lane {
    tasks: VecDeque<Task>,
    /// Whether the first task is running.
    is_running: bool,
    /// End of its last task; `None` before the first.
    rested: Option<Instant>,
}

/// The lanes of one device.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
}

impl Lanes {
    /// Creates idle lanes.
    pub(super) fn new(lanes: u16) -> Self {
        Self { lanes: vec![Lane::default(); usize::from(lanes)] }
    }

    /// Appends a task to its lane.
    pub(super) fn push(&mut self, task: Task) {
        self.lanes[usize::from(task.lane.0)].tasks.push_back(task);
    }

    /// Starts a task that waits for no other, on the first lane that has one. Also returns whether that lane was idle
    /// before.
    pub(super) fn begin(&mut self, now: Instant) -> Option<(&Task, bool)> {
        let at = self.lanes.iter().position(|lane| {
            let next = lane.tasks.front().filter(|_| !lane.is_running);
            next.is_some_and(|task| !self.is_held_up(task))
        })?;
        let lane = &mut self.lanes[at];
        lane.is_running = true;
        lane.tasks.front().map(|task| (task, lane.rested != Some(now)))
    }

    fn is_held_up(&self, task: &Task) -> bool {
        let mut there = self.lanes.iter().flat_map(|lane| &lane.tasks);
        !task.after.is_empty() && there.any(|other| task.after.contains(&other.id))
    }

    /// Ends the task that runs on a lane.
    pub(super) fn end(&mut self, lane: usize, now: Instant) -> Option<Task> {
        let lane = self.lanes.get_mut(lane).filter(|lane| lane.is_running)?;
        lane.is_running = false;
        lane.rested = Some(now);
        lane.tasks.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use paternoster_batching::{Bucket, LaneId, ModelId, ShapeClass, TaskId};
    use paternoster_model::CellId;
    use smallvec::SmallVec;

    use super::*;

    fn task(id: u64, lane: u16, after: &[u64]) -> Task {
        Task {
            id: TaskId(id),
            model: ModelId(0),
            cell: CellId(0),
            bucket: Bucket { rows: 1, class: ShapeClass::default() },
            lane: LaneId(lane),
            batch: 0,
            rows: Vec::new(),
            reads: SmallVec::new(),
            writes: None,
            after: after.iter().map(|id| TaskId(*id)).collect(),
        }
    }

    fn begun(lanes: &mut Lanes, now: Instant) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| lanes.begin(now).map(|(task, rested)| (task.id.0, rested))).collect()
    }

    #[test]
    fn tasks_of_a_lane_run_one_after_the_other_and_behind_those_they_wait_for() {
        let mut lanes = Lanes::new(2);
        [task(0, 0, &[]), task(1, 0, &[]), task(2, 1, &[1, 9])].into_iter().for_each(|task| lanes.push(task));
        assert_eq!(begun(&mut lanes, Instant::from_ns(5)), [(0, true)], "task 2 waits for task 1 on the other lane");
        assert_eq!(lanes.end(1, Instant::from_ns(7)), None);
        assert_eq!(lanes.end(0, Instant::from_ns(7)).map(|task| task.id), Some(TaskId(0)));
        assert_eq!(begun(&mut lanes, Instant::from_ns(7)), [(1, false)], "it follows at once");
        assert_eq!(lanes.end(0, Instant::from_ns(9)).map(|task| task.id), Some(TaskId(1)));
        assert_eq!(begun(&mut lanes, Instant::from_ns(9)), [(2, true)]);
    }
}
