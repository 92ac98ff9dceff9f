//! Lanes that take work ahead: which tasks they get, and when.

use paternoster_model::unfold::Unfolded;

use super::{
    at,
    cellular::{chain, core, request},
    driver::{Driver, drives},
    pool::arrival,
    timeline::staged,
};
use crate::{
    Action, Arrival, Core, CostPoint, CostTable, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy, Task,
    TaskId, WindowKnobs,
};

/// Duration of each task.
const TASK: Ns = 100;

/// A driver whose lanes run their tasks one after the other.
struct Server {
    driver: Driver,
    /// By lane: tasks and their end times.
    lanes: Vec<Vec<(Instant, TaskId)>>,
    /// Tasks with the number of tasks already on their lanes.
    launched: Vec<(Task, usize)>,
}

drives!(Server);

impl Server {
    fn new(core: Core, lanes: usize) -> Self {
        let driver = Driver { core, ..Driver::default() };
        Self { driver, lanes: vec![Vec::new(); lanes], launched: Vec::new() }
    }

    fn act(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            if let Action::Launch(task) = action {
                let lane = &mut self.lanes[usize::from(task.lane.0)];
                let begins = lane.last().map_or(self.driver.now, |(ends, _)| *ends);
                let ahead = lane.len();
                lane.push((begins + TASK, task.id));
                self.launched.push((*task, ahead));
            }
        }
    }

    fn sends(&mut self, arrival: Arrival) {
        self.act(Event::Arrived(arrival));
    }

    /// Completes the first task of a lane, whatever the time.
    fn ends(&mut self, lane: usize) {
        let (_, task) = self.lanes[lane].remove(0);
        self.act(Event::Completed { task, rows: &[] });
    }

    /// Advances time until all lanes are empty.
    fn run_out(&mut self) {
        loop {
            let lanes = self.lanes.iter().enumerate();
            let first = lanes.filter_map(|(at, lane)| Some((lane.first()?.0, at))).min();
            let Some((ends, lane)) = first else { return };
            if self.wake.is_some_and(|wake| wake < ends) {
                self.pass(ends);
                self.act(Event::Wake);
            } else {
                self.now = ends;
                self.ends(lane);
            }
        }
    }
}

/// Returns how many of the six tasks of a chain are launched while their lane still runs the previous one.
fn ahead_of_six(lanes: u16) -> usize {
    let takes = vec![CostPoint { rows: 1, length: 0, took_ns: TASK }];
    let knobs = Knobs { latencies: Some(CostTable { stages: vec![takes] }), ..chain(4, 9) };
    // A lane takes its next task when the previous one has half of its time left.
    let core = core(knobs, lanes, LaneKnobs { horizon_ns: TASK / 2, depth: 3 });
    let mut server = Server::new(core, usize::from(lanes));
    server.sends(request(0, vec![Unfolded::Steps(6)]));
    server.run_out();
    assert_eq!(server.launched.len(), 6);
    server.launched.iter().filter(|(_, ahead)| *ahead > 0).count()
}

#[test]
fn a_chain_that_is_pinned_to_a_lane_is_launched_ahead_whatever_other_lanes_there_are() {
    assert_eq!([1, 2, 3].map(ahead_of_six), [5, 5, 5]);
}

/// As long as nothing is known of a task, it takes the whole horizon.
#[test]
fn lanes_learn_how_long_tasks_take_whose_policy_never_asks() {
    let policy = Policy::Window(WindowKnobs::default());
    let knobs = Box::new(Knobs { max_in_flight: 8, policy, ..Knobs::default() });
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::ModelUp(ModelId(0), knobs));
    core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs { horizon_ns: 5 * TASK / 2, depth: 5 }));
    let mut server = Server::new(core, 1);
    (0..8).for_each(|req| server.sends(arrival(req)));
    assert_eq!(server.launched.len(), 1);
    server.run_out();
    let ahead: Vec<usize> = server.launched.iter().map(|(_, ahead)| *ahead).collect();
    assert_eq!(ahead.iter().max(), Some(&3), "within two tasks and a half: {ahead:?}");
}

#[test]
fn a_model_holds_a_lane_once_however_many_of_its_tasks_are_on_it() {
    let model = || staged(Policy::Window(WindowKnobs::default()), 1, 1, &[(1, TASK)]);
    let mut core = Core::new();
    (0..3).for_each(|id| drop(core.step(Instant::ZERO, Event::ModelUp(ModelId(id), Box::new(model())))));
    let lane = LaneKnobs { horizon_ns: 3 * TASK / 2, depth: 2 };
    (0..3).for_each(|id| drop(core.step(Instant::ZERO, Event::LaneUp(LaneId(id), lane))));
    let mut server = Server::new(core, 3);
    let of = |model, req| Arrival { model: ModelId(model), ..arrival(req) };
    // Model 0 has two tasks on lane 0, model 1 has one, and model 2 has the three others.
    [(0, 0), (1, 1), (2, 2), (0, 3), (2, 4), (2, 5)].iter().for_each(|&(model, req)| server.sends(of(model, req)));
    let lanes: Vec<u16> = server.launched.iter().map(|(task, _)| task.lane.0).collect();
    assert_eq!(lanes, [0, 1, 2, 0, 1, 2]);
    server.sends(of(0, 6));
    server.sends(of(1, 7));
    server.now = at(TASK);
    server.ends(1);
    let next = server.launched.get(6).map(|(task, _)| (task.model, task.lane));
    assert_eq!(next, Some((ModelId(0), LaneId(1))), "it has one lane of three, and was first");
}
