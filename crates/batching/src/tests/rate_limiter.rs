//! The rate limiter: cores that share resources, in virtual time. After each step, units in use are compared with the
//! tasks that run.

use std::{collections::BTreeMap, sync::Arc};

use super::{cellular, pool::arrival};
use crate::{
    Action, Arrival, CellId, CellKind, CellKnobs, CellularKnobs, Core, CostPoint, CostTable, Event, Knobs, LaneId,
    LaneKnobs, ModelId, Ns, Policy, RateLimiter, RateLimiterKnobs, ReqId, ResourceAmount, ResourceDemand, SegmentKnobs,
    Task, WindowKnobs,
};

/// Cores that share a rate limiter, their tasks, and the time.
struct Cluster {
    limiter: Arc<RateLimiter>,
    devices: Vec<String>,
    cores: Vec<Core>,
    models: BTreeMap<ModelId, RateLimiterKnobs>,
    takes_ns: fn(ModelId) -> Ns,
    now: Ns,
    /// Tasks that run: the core, the end, and the task.
    running: Vec<(usize, Ns, Task)>,
    /// The models of all tasks in launch order, with the time and the core.
    launches: Vec<(Ns, usize, u32)>,
    alarms: Vec<Option<Ns>>,
    /// Requests that have not ended.
    open: Vec<(usize, ReqId)>,
    sent: u64,
}

impl Cluster {
    /// Creates a core for each device, with this number of lanes.
    fn new(devices: &[&str], lanes: u16, amounts: &[ResourceAmount], takes_ns: fn(ModelId) -> Ns) -> Self {
        let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
        let limiter = Arc::new(RateLimiter::new(amounts.to_vec(), devices.iter().cloned()));
        let cores = (0..devices.len()).map(|core| Core::limited(Arc::clone(&limiter), core)).collect();
        let alarms = vec![None; devices.len()];
        let (models, running, launches, open) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let mut cluster =
            Self { limiter, devices, cores, models, takes_ns, now: 0, running, launches, alarms, open, sent: 0 };
        for core in 0..cluster.cores.len() {
            (0..lanes).for_each(|lane| cluster.step(core, Event::LaneUp(LaneId(lane), LaneKnobs::default())));
        }
        cluster
    }

    /// Loads a model on all cores.
    fn up(&mut self, model: u32, knobs: Knobs) -> Result<(), String> {
        let (model, all): (_, Vec<usize>) = (ModelId(model), (0..self.cores.len()).collect());
        let freed = self.limiter.register(model, &knobs.rate_limiter, &all)?;
        self.models.insert(model, knobs.rate_limiter.clone());
        for core in all {
            self.step(core, Event::ModelUp(model, knobs.clone()));
        }
        freed.into_iter().for_each(|core| self.step(core, Event::UnitsFreed));
        Ok(())
    }

    fn send(&mut self, core: usize, model: u32) -> ReqId {
        let req = ReqId(self.sent);
        self.sent += 1;
        self.open.push((core, req));
        self.step(core, Event::Arrived(Arrival { model: ModelId(model), ..arrival(req.0) }));
        req
    }

    fn step(&mut self, core: usize, event: Event<'_>) {
        let mut freed = Vec::new();
        for action in self.cores[core].step(self.now, event) {
            match action {
                Action::Launch(task) => {
                    self.launches.push((self.now, core, task.model.0));
                    self.running.push((core, self.now + (self.takes_ns)(task.model), task));
                }
                Action::Finish { req, .. } => self.open.retain(|&(_, open)| open != req),
                Action::UnitsFreed { core: other } => {
                    assert_ne!(other, core, "a core looks at its own groups itself");
                    freed.push(other);
                }
                Action::WakeAt(at) => self.alarms[core] = Some(at),
                Action::Drained(_) => {}
                other => panic!("{other:?} is not expected"),
            }
        }
        freed.into_iter().for_each(|other| self.step(other, Event::UnitsFreed));
        self.check();
    }

    /// Checks the invariants, and that exactly the units of running tasks are in use.
    fn check(&self) {
        self.limiter.check().expect("the limiter's invariants hold");
        for resource in self.limiter.usage() {
            let holders = self.running.iter().filter_map(|(core, _, task)| {
                let demand = self.models[&task.model].resources.iter().find(|demand| demand.name == resource.name)?;
                let is_here = resource.device.as_ref().is_none_or(|device| *device == self.devices[*core]);
                is_here.then_some(demand.count)
            });
            let held: u32 = holders.sum();
            assert!(held <= resource.units, "tasks run with {held} of {resource:?}");
            assert_eq!(held, resource.in_use, "{resource:?}");
        }
        for core in &self.cores {
            core.check().expect("the core's invariants hold");
        }
    }

    /// Ends a running task.
    fn end(&mut self, at: usize, fails: bool) {
        let (core, _, task) = self.running.remove(at);
        let event = if fails { Event::Failed { task: task.id } } else { Event::Completed { task: task.id, rows: &[] } };
        self.step(core, event);
    }

    /// Advances time to the next end of a task, or alarm. Returns whether there is one.
    fn pass(&mut self) -> bool {
        let end = (0..self.running.len()).min_by_key(|&at| self.running[at].1);
        let alarm =
            (0..self.alarms.len()).filter(|&core| self.alarms[core].is_some()).min_by_key(|&core| self.alarms[core]);
        let ends = end.map(|at| self.running[at].1);
        match (end, alarm) {
            (Some(at), _) if alarm.is_none_or(|core| ends <= self.alarms[core]) => {
                self.now = self.now.max(self.running[at].1);
                self.end(at, false);
            }
            (_, Some(core)) => {
                self.now = self.now.max(self.alarms[core].take().unwrap_or_default());
                self.step(core, Event::Wake);
            }
            (_, None) => return false,
        }
        true
    }

    fn run_out(&mut self) {
        while self.pass() {}
        assert_eq!(self.open, [], "requests wait for nothing");
    }

    /// Returns the models that run now.
    fn run(&self) -> Vec<u32> {
        let mut models: Vec<u32> = self.running.iter().map(|(_, _, task)| task.model.0).collect();
        models.sort_unstable();
        models
    }

    fn in_use(&self, name: &str) -> Vec<u32> {
        let usage = self.limiter.usage().into_iter().filter(|resource| resource.name == name);
        usage.map(|resource| resource.in_use).collect()
    }
}

fn demand(name: &str, is_global: bool, count: u32) -> ResourceDemand {
    ResourceDemand { name: name.to_owned(), is_global, count }
}

fn amount(name: &str, count: u32, device: Option<&str>) -> ResourceAmount {
    ResourceAmount { name: name.to_owned(), count, device: device.map(str::to_owned) }
}

/// A model that runs requests one by one, up to eight at a time, and needs these resources.
fn needs(resources: &[ResourceDemand], priority: u32) -> Knobs {
    let rate_limiter = RateLimiterKnobs { resources: resources.to_vec(), priority };
    Knobs { max_in_flight: 8, rate_limiter, ..Knobs::default() }
}

#[test]
fn models_that_share_a_unit_take_turns_and_others_go_on() {
    let mut cluster = Cluster::new(&["cpu"], 3, &[], |_| 10);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.up(2, Knobs { max_in_flight: 8, ..Knobs::default() }).expect("it needs none");
    for model in [0, 1, 0, 1, 2, 2, 2] {
        cluster.send(0, model);
    }
    assert_eq!(cluster.run(), [0, 2, 2], "one has the unit, and the model without needs has the other lanes");
    cluster.run_out();
    let sharing: Vec<u32> = cluster.launches.iter().map(|launch| launch.2).filter(|&model| model < 2).collect();
    assert_eq!(sharing, [0, 1, 0, 1]);
    assert_eq!(cluster.in_use("R"), [0]);
    assert!(cluster.limiter.usage()[0].waited_ns >= 10, "the second waited for the first");
}

#[test]
fn a_model_that_needs_many_units_is_not_overtaken_by_those_that_need_few() {
    let mut cluster = Cluster::new(&["cpu"], 8, &[amount("R", 4, None)], |model| if model.0 == 9 { 10 } else { 7 });
    cluster.up(9, needs(&[demand("R", false, 4)], 1)).expect("there are four units");
    for model in 0..3 {
        cluster.up(model, needs(&[demand("R", false, 1)], 1)).expect("there are four units");
        (0..50).for_each(|_| _ = cluster.send(0, model));
    }
    assert_eq!(cluster.run().len(), 4, "all units are in use");
    // Every other round, a task of the others is under way when one of the large model is sent.
    for round in 0..5 {
        cluster.pass();
        cluster.send(0, 9);
        let before = cluster.launches.len();
        while !cluster.run().contains(&9) {
            assert!(cluster.pass(), "round {round}: it waits for nothing");
        }
        // The tags of the small models are at most one task behind.
        let overtaken = cluster.launches[before..].iter().filter(|launch| launch.2 != 9).count();
        assert!(overtaken <= 3, "round {round}: {overtaken} tasks overtook it");
    }
    cluster.run_out();
}

#[test]
fn units_beyond_those_that_are_kept_go_to_others() {
    let amounts = [amount("R", 4, None), amount("S", 2, None)];
    let mut cluster = Cluster::new(&["cpu"], 8, &amounts, |_| 10);
    cluster.up(0, needs(&[demand("R", false, 3)], 1)).expect("there are four units");
    cluster.up(1, needs(&[demand("R", false, 2), demand("S", false, 1)], 1)).expect("there are enough units");
    cluster.up(2, needs(&[demand("S", false, 1)], 1)).expect("there are two units");
    cluster.up(3, needs(&[demand("R", false, 1)], 1)).expect("there are four units");
    cluster.send(0, 0);
    cluster.send(0, 1);
    assert_eq!(cluster.run(), [0], "the second lacks a unit of R");
    (0..2).for_each(|_| _ = cluster.send(0, 2));
    assert_eq!(cluster.run(), [0, 2], "one unit of S is kept for the second");
    cluster.send(0, 3);
    assert_eq!(cluster.run(), [0, 2], "the last unit of R is kept for it too");
    cluster.run_out();
}

#[test]
fn priorities_divide_the_chances() {
    let mut cluster = Cluster::new(&["cpu"], 4, &[], |model| 5 + Ns::from(model.0) * 3);
    for (model, priority) in [(0, 0), (1, 2), (2, 4)] {
        cluster.up(model, needs(&[demand("R", false, 1)], priority)).expect("there is one unit");
        (0..200).for_each(|_| _ = cluster.send(0, model));
    }
    while cluster.launches.len() < 140 {
        assert!(cluster.pass());
    }
    let counts = [0, 1, 2].map(|model| cluster.launches.iter().filter(|launch| launch.2 == model).count());
    for (count, expected) in counts.into_iter().zip([80, 40, 20]) {
        assert!(count.abs_diff(expected) <= 2, "{counts:?} of 140 tasks; expected 80, 40 and 20");
    }
}

#[test]
fn chances_that_a_model_did_not_want_are_not_owed() {
    let mut cluster = Cluster::new(&["cpu"], 4, &[], |_| 10);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", false, 1)], 1)).expect("there is one unit");
    }
    (0..50).for_each(|_| _ = cluster.send(0, 0));
    while cluster.launches.len() < 30 {
        assert!(cluster.pass());
    }
    (0..20).for_each(|_| _ = cluster.send(0, 1));
    cluster.run_out();
    let next: Vec<u32> = cluster.launches[31..51].iter().map(|launch| launch.2).collect();
    assert!(next == [0, 1].repeat(10) || next == [1, 0].repeat(10), "they take turns from then on: {next:?}");
}

#[test]
fn global_resources_span_cores_and_others_are_of_a_device() {
    let mut cluster = Cluster::new(&["cpu", "cpu", "0"], 2, &[], |_| 10);
    cluster.up(0, needs(&[demand("G", true, 1)], 1)).expect("there is one unit");
    cluster.up(1, needs(&[demand("D", false, 1)], 1)).expect("there is one unit");
    (0..3).for_each(|core| _ = cluster.send(core, 0));
    assert_eq!(cluster.run(), [0], "all cores share the unit");
    (0..3).for_each(|core| _ = cluster.send(core, 1));
    assert_eq!(cluster.run(), [0, 1, 1], "parts of the CPU share its unit, and the card has its own");
    assert_eq!((cluster.in_use("G"), cluster.in_use("D")), (vec![1], vec![1, 1]));
    cluster.run_out();
    let cores: Vec<usize> = cluster.launches.iter().filter(|launch| launch.2 == 0).map(|launch| launch.1).collect();
    assert_eq!(cores, [0, 1, 2], "each core is woken in its turn");
}

#[test]
fn a_group_that_wants_no_units_any_more_keeps_none_from_others() {
    let mut cluster = Cluster::new(&["cpu", "0"], 4, &[amount("R", 2, None)], |_| 10);
    cluster.up(0, needs(&[demand("R", true, 1)], 1)).expect("there are two units");
    cluster.up(1, needs(&[demand("R", true, 2)], 1)).expect("there are two units");
    cluster.up(2, needs(&[demand("R", true, 1)], 1)).expect("there are two units");
    cluster.send(0, 0);
    let large = cluster.send(0, 1);
    cluster.send(1, 2);
    assert_eq!(cluster.run(), [0], "the free unit is kept for the second");
    cluster.step(0, Event::Cancelled(large));
    assert_eq!(cluster.run(), [0, 2], "the third runs at once, on another core");
    cluster.run_out();
}

#[test]
fn a_lost_lane_gives_back_the_units_of_its_task() {
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], |_| 10);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.send(0, 0);
    cluster.send(1, 1);
    assert_eq!(cluster.run(), [0]);
    cluster.running.clear();
    cluster.step(0, Event::LaneLost(LaneId(0)));
    assert_eq!(cluster.run(), [1]);
    // A core without lanes waits for lanes first, and keeps no units from others.
    cluster.send(0, 0);
    cluster.send(1, 1);
    assert!(cluster.pass());
    assert_eq!(cluster.run(), [1]);
    cluster.step(0, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    cluster.send(1, 1);
    cluster.run_out();
}

#[test]
fn a_core_that_loses_its_lanes_while_it_waits_keeps_no_units() {
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], |_| 10);
    cluster.up(0, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    let _ = cluster.send(0, 0);
    let _ = cluster.send(1, 0);
    let _ = cluster.send(0, 0);
    cluster.step(1, Event::LaneLost(LaneId(0)));
    assert!(cluster.pass());
    assert_eq!(cluster.running.iter().map(|(core, ..)| *core).collect::<Vec<_>>(), [0], "not kept for a lost lane");
    cluster.step(1, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    cluster.run_out();
}

#[test]
fn tasks_ahead_on_a_lane_hold_their_units_too() {
    let mut cluster = Cluster::new(&["0"], 0, &[amount("R", 3, None)], |_| 10);
    let ahead = LaneKnobs { horizon_ns: 1_000_000, depth: 4 };
    cluster.step(0, Event::LaneUp(LaneId(0), ahead));
    for (model, count) in [(0, 2), (1, 1)] {
        // A lane takes tasks ahead while it knows how long they take.
        let point = CostPoint { rows: 1, length: 1, took_ns: 10 };
        let latencies = Some(CostTable { stages: vec![vec![point]] });
        let knobs = Knobs { latencies, ..needs(&[demand("R", false, count)], 1) };
        cluster.up(model, knobs).expect("there are three units");
    }
    [0, 0, 1, 1].into_iter().for_each(|model| _ = cluster.send(0, model));
    assert_eq!(cluster.run(), [0, 1], "three units are in use, though the second task has not begun");
    cluster.run_out();
}

#[test]
fn there_are_as_many_units_as_the_most_demanding_model_needs_unless_they_are_given() {
    let units = |cluster: &Cluster| {
        let usage = cluster.limiter.usage().into_iter();
        usage.map(|resource| (resource.name, resource.units)).collect::<Vec<_>>()
    };
    let named = |name: &str, units: u32| (name.to_owned(), units);
    // Triton's example.
    let mut cluster = Cluster::new(&["cpu"], 1, &[], |_| 10);
    let per_device = |needs: &[(&str, u32)]| -> Vec<ResourceDemand> {
        needs.iter().map(|&(name, count)| demand(name, false, count)).collect()
    };
    cluster.up(0, needs(&per_device(&[("R1", 4), ("R2", 4)]), 1)).expect("nothing limits it");
    cluster.up(1, needs(&per_device(&[("R2", 5), ("R3", 10), ("R4", 5)]), 1)).expect("nothing limits it");
    cluster.up(2, needs(&per_device(&[("R1", 1), ("R3", 7), ("R4", 2)]), 1)).expect("nothing limits it");
    assert_eq!(units(&cluster), [named("R1", 4), named("R2", 5), named("R3", 10), named("R4", 5)]);
    cluster.step(0, Event::ModelDraining(ModelId(1)));
    assert_eq!(units(&cluster), [named("R1", 4), named("R2", 4), named("R3", 7), named("R4", 2)]);
    let amounts =
        [amount("R1", 10, None), amount("R2", 5, Some("0")), amount("R2", 8, Some("1")), amount("R3", 2, None)];
    let mut cluster = Cluster::new(&["0", "1"], 1, &amounts, |_| 10);
    let all = [demand("R1", false, 1), demand("R2", false, 1), demand("R3", true, 1)];
    cluster.up(0, needs(&all, 1)).expect("there are enough");
    let expected = [named("R1", 10), named("R1", 10), named("R2", 5), named("R2", 8), named("R3", 2)];
    assert_eq!(units(&cluster), expected);
}

#[test]
fn a_model_that_could_never_run_is_refused() {
    let amounts = [amount("R", 3, Some("0")), amount("R", 4, Some("1")), amount("G", 1, None)];
    let mut cluster = Cluster::new(&["0", "1"], 1, &amounts, |_| 10);
    let refused = |cluster: &mut Cluster, needs: Knobs| cluster.up(0, needs).expect_err("it could never run");
    assert_eq!(
        refused(&mut cluster, needs(&[demand("R", false, 4)], 1)),
        "resource 'R' is limited to 3 on device 0 (--rate-limit-resource), but a batch needs 4"
    );
    assert_eq!(
        refused(&mut cluster, needs(&[demand("H", true, 5), demand("G", true, 2)], 1)),
        "resource 'G' is limited to 1 (--rate-limit-resource), but a batch needs 2"
    );
    assert_eq!(cluster.limiter.usage(), [], "what is refused leaves nothing behind");
    cluster.up(1, needs(&[demand("H", true, 1)], 1)).expect("nothing limits it");
    assert_eq!(
        refused(&mut cluster, needs(&[demand("H", false, 1)], 1)),
        "resource 'H' is per device here and global in a loaded model; expected one"
    );
}

#[test]
fn a_model_that_brings_units_wakes_those_that_wait() {
    let mut cluster = Cluster::new(&["cpu", "0"], 2, &[], |_| 10);
    cluster.up(0, needs(&[demand("R", true, 1)], 1)).expect("nothing limits it");
    cluster.send(0, 0);
    cluster.send(1, 0);
    assert_eq!(cluster.run(), [0]);
    cluster.up(1, needs(&[demand("R", true, 2)], 1)).expect("nothing limits it");
    assert_eq!(cluster.run(), [0, 0], "there are two units now");
    cluster.step(0, Event::ModelDraining(ModelId(1)));
    cluster.step(1, Event::ModelDraining(ModelId(1)));
    assert_eq!(cluster.limiter.usage()[0].units, 2, "units in use do not vanish");
    cluster.run_out();
    assert_eq!(cluster.limiter.usage()[0].units, 1);
}

#[test]
fn cells_share_tasks_only_where_the_task_holds_what_they_need() {
    let joins = |leader: &[ResourceDemand], guest: &[ResourceDemand]| {
        let limiter = Arc::new(RateLimiter::new(Vec::new(), ["cpu".to_owned()]));
        let mut core = Core::limited(Arc::clone(&limiter), 0);
        let kind = Some(CellKind(7));
        let cell = CellKnobs { max_rows: 4, min_followup: 1, priority: 1, kind, buckets: Box::default(), chunks: None };
        for (model, resources) in (0..).map(ModelId).zip([leader, guest]) {
            let (cells, segments) = (vec![cell.clone()], vec![SegmentKnobs::Steps { cell: CellId(0) }]);
            let policy = Policy::Cellular(CellularKnobs { cells, segments, slots: 9, ..CellularKnobs::default() });
            let knobs = Knobs { policy, ..needs(resources, 1) };
            limiter.register(model, &knobs.rate_limiter, &[0]).expect("nothing limits it");
            core.step(0, Event::ModelUp(model, knobs));
        }
        for model in 0..2 {
            let steps = vec![paternoster_model::unfold::Unfolded::Steps(1)];
            let arrival = Arrival { model: ModelId(model), ..cellular::request(u64::from(model), steps) };
            core.step(0, Event::Arrived(arrival));
        }
        let said = cellular::said(&core.step(0, Event::LaneUp(LaneId(0), LaneKnobs::default())));
        said.matches('.').count() == 2
    };
    let (one, two) = ([demand("R", false, 1)], [demand("R", false, 2)]);
    assert!(joins(&[], &[]) && joins(&one, &one) && joins(&one, &[]));
    assert!(!joins(&[], &one) && !joins(&one, &two) && !joins(&two, &one));
}

/// A generator of random numbers (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// Plays random events, each followed by all checks, and lets everything finish. Returns how often a task waited.
fn play(seed: u64) -> u64 {
    let random = &mut Random(seed);
    let devices = &["cpu", "cpu", "0", "1"][..=random.below(4)];
    let lanes = 1 + random.below(3) as u16;
    let amounts = if random.below(2) == 0 { vec![] } else { vec![amount("a", 5, None), amount("g", 4, None)] };
    let mut cluster = Cluster::new(devices, lanes, &amounts, |model| 5 + 7 * Ns::from(model.0 % 5));
    let knobs: Vec<Knobs> = (0..5)
        .map(|_| {
            let mut resources = Vec::new();
            for (name, is_global) in [("a", false), ("b", false), ("g", true)] {
                let count = random.below(4) as u32;
                resources.extend((random.below(2) == 0).then(|| demand(name, is_global, count)));
            }
            let delay = Policy::Window(WindowKnobs { max_queue_delay_ns: 6, preferred_batch_sizes: vec![] });
            let policy = if random.below(2) == 0 { Policy::Serial } else { delay };
            let max_in_flight = 1 + random.below(4) as u32;
            Knobs { max_in_flight, max_batch_rows: 3, policy, ..needs(&resources, random.below(4) as u32) }
        })
        .collect();
    let mut loaded: BTreeMap<u32, Knobs> = BTreeMap::new();
    let (mut next_model, mut lost) = (0, Vec::new());
    for _ in 0..300 {
        let core = random.below(devices.len());
        match random.below(20) {
            0..8 if !loaded.is_empty() => {
                let model = *loaded.keys().nth(random.below(loaded.len())).expect("one is loaded");
                cluster.send(core, model);
            }
            8..12 if !cluster.running.is_empty() => {
                let (at, fails) = (random.below(cluster.running.len()), random.below(6) == 0);
                cluster.now += 1;
                cluster.end(at, fails);
            }
            12 | 13 if !cluster.open.is_empty() => {
                let (core, req) = cluster.open[random.below(cluster.open.len())];
                cluster.step(core, Event::Cancelled(req));
            }
            14 => {
                let lane = (core, LaneId(random.below(usize::from(lanes)) as u16));
                if !lost.contains(&lane) {
                    lost.push(lane);
                    cluster.running.retain(|(own, _, task)| (*own, task.lane) != lane);
                    cluster.step(core, Event::LaneLost(lane.1));
                }
            }
            15 if !lost.is_empty() => {
                let (core, lane) = lost.swap_remove(random.below(lost.len()));
                cluster.step(core, Event::LaneUp(lane, LaneKnobs::default()));
            }
            16 if loaded.len() > 1 => {
                let model = *loaded.keys().nth(random.below(loaded.len())).expect("one is loaded");
                loaded.remove(&model);
                (0..devices.len()).for_each(|core| cluster.step(core, Event::ModelDraining(ModelId(model))));
            }
            17 if loaded.len() < 5 => {
                let knobs = &knobs[random.below(5)];
                cluster.up(next_model, knobs.clone()).expect("a model needs at most three units");
                loaded.insert(next_model, knobs.clone());
                next_model += 1;
            }
            _ => _ = cluster.pass(),
        }
    }
    for (core, lane) in lost {
        cluster.step(core, Event::LaneUp(lane, LaneKnobs::default()));
    }
    cluster.run_out();
    let usage = cluster.limiter.usage();
    assert!(usage.iter().all(|resource| resource.in_use == 0), "{usage:?}");
    for model in loaded.into_keys() {
        (0..devices.len()).for_each(|core| cluster.step(core, Event::ModelDraining(ModelId(model))));
    }
    assert_eq!(cluster.limiter.usage(), [], "no model is left");
    usage.iter().map(|resource| u64::from(resource.waited_ns > 0)).sum()
}

#[test]
fn random_runs_hold_no_more_units_than_there_are_and_give_back_all() {
    let waited: u64 = (0..400).map(play).sum();
    assert!(waited > 200, "tasks waited for {waited} resources in 400 runs");
}
