//! The rate limiter.

mod cluster;
mod random;

use std::sync::Arc;

use paternoster_model::CellId;

use self::cluster::{Cluster, amount, demand, needs};
use super::cellular;
use crate::{
    Arrival, CellKind, CellKnobs, CellularKnobs, Core, CostPoint, CostTable, Event, Instant, Knobs, LaneId, LaneKnobs,
    ModelId, Ns, Policy, RateLimiter, ResourceDemand, SegmentKnobs, arbiter::Arbiter, tests::at,
};

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
    assert!(cluster.limiter.resources()[0].waited_ns >= 10, "the second waited for the first");
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
fn priorities_divide_the_chances_on_any_number_of_lanes_however_many_tasks_a_model_may_have() {
    for (lanes, max_in_flight, cores) in [(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (4, 8, 1), (2, 1, 2), (1, 8, 2)] {
        let mut cluster = Cluster::new(&["cpu", "cpu"][..cores], lanes, &[], |_| 100_000_000);
        // The second needs less, but not so little that it runs beside the first.
        let models = [(vec![demand("R", false, 4)], 1), (vec![demand("R", false, 2), demand("G", true, 2)], 2)];
        for (model, (resources, priority)) in (0..).zip(models) {
            cluster.up(model, Knobs { max_in_flight, ..needs(&resources, priority) }).expect("there are enough");
            (0..300).for_each(|_| (0..cores).for_each(|core| _ = cluster.send(core, model)));
        }
        while cluster.launches.len() < 240 {
            assert!(cluster.pass());
        }
        let of = |model: u32| cluster.launches.iter().filter(|launch| launch.2 == model).count();
        let (first, second) = (of(0), of(1));
        let place = format!("{lanes} lanes of {cores} cores, {max_in_flight} tasks in flight");
        assert!(first.abs_diff(160) <= 4, "{first} : {second} on {place}; expected 160 : 80");
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
    assert_eq!(cluster.run(), [0, 1, 1], "parts of the CPU share its unit, and the card has another");
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
fn a_group_without_a_lane_keeps_no_units_from_others() {
    let takes_ns = |model: ModelId| if model.0 == 9 { 55 } else { 10 };
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], takes_ns);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.up(9, needs(&[], 1)).expect("it needs none");
    cluster.send(1, 1);
    cluster.send(0, 0);
    (0..2).for_each(|_| _ = cluster.send(0, 9));
    (0..20).for_each(|_| _ = cluster.send(1, 1));
    for _ in 0..5 {
        assert_eq!(cluster.run(), [1, 9]);
        assert!(cluster.pass());
        assert_eq!(cluster.run(), [1, 9], "the unit is used at {:?}, while the first waits for a lane", cluster.now);
    }
    assert!(cluster.pass());
    assert_eq!(
        (cluster.now, cluster.run()),
        (at(55), vec![1]),
        "the lane is kept for the first, which waits for the unit"
    );
    assert!(cluster.pass());
    assert_eq!((cluster.now, cluster.run()), (at(60), vec![0]), "it has its place before those that came later");
    assert_eq!(cluster.limiter.resources()[0].waited_ns, 10 + 5, "time without a lane does not count");
    cluster.run_out();
}

#[test]
fn groups_without_a_lane_get_it_in_the_order_in_which_they_waited() {
    let takes_ns = |model: ModelId| if model.0 == 9 { 55 } else { 10 };
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], takes_ns);
    for model in 0..4 {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.up(9, needs(&[], 1)).expect("it needs none");
    for (core, model) in [(1, 3), (0, 0), (0, 1), (0, 2), (0, 9)] {
        cluster.send(core, model);
    }
    cluster.run_out();
    let launches: Vec<(Ns, u32)> = cluster.launches.iter().map(|&(at, _, model)| (at, model)).collect();
    assert_eq!(launches, [(0, 3), (0, 9), (55, 0), (65, 1), (75, 2)]);
}

#[test]
fn a_kept_lane_serves_its_group_and_leaves_others_half_of_the_time() {
    const MS: Ns = 1_000_000;
    let takes_ns = |model: ModelId| if model.0 == 1 { 10 * MS + MS / 2 } else { MS };
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], takes_ns);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.up(9, needs(&[], 1)).expect("it needs none");
    for (core, model) in [(1, 1), (0, 0), (0, 9)] {
        (0..500).for_each(|_| _ = cluster.send(core, model));
    }
    while cluster.now < at(400 * MS) {
        assert!(cluster.pass());
    }
    let count = |model: u32| cluster.launches.iter().filter(|launch| launch.2 == model).count();
    assert!(count(0) >= 5, "the model that keeps the lane ran {} times", count(0));
    assert!(count(9) >= 200, "the other has less than half of the time: {} of 400 ms", count(9));
}

#[test]
fn a_kept_lane_is_given_out_when_its_group_wants_none() {
    let takes_ns = |model: ModelId| if model.0 == 9 { 15 } else { 10 };
    let mut cluster = Cluster::new(&["cpu", "0"], 1, &[], takes_ns);
    for model in [0, 1] {
        cluster.up(model, needs(&[demand("R", true, 1)], 1)).expect("there is one unit");
    }
    cluster.up(9, needs(&[], 1)).expect("it needs none");
    (0..3).for_each(|_| _ = cluster.send(1, 1));
    let first = cluster.send(0, 0);
    (0..2).for_each(|_| _ = cluster.send(0, 9));
    (0..2).for_each(|_| assert!(cluster.pass()));
    assert_eq!((cluster.now, cluster.run()), (at(15), vec![1]), "the lane is kept");
    cluster.step(0, Event::Cancelled(first));
    assert_eq!(cluster.run(), [1, 9]);
    cluster.run_out();
}

#[test]
fn a_time_that_comes_while_a_group_lacks_units_does_not_call_it() {
    let mut arbiter = Arbiter::default();
    arbiter.weigh(0, 1, 1);
    arbiter.defer(0, at(5));
    arbiter.stall(0);
    arbiter.call_due(at(5));
    assert_eq!((arbiter.waits(0), arbiter.earliest(at(5))), ((false, None), None));
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
        let resources = cluster.limiter.resources().into_iter();
        resources.map(|resource| (resource.name.clone(), resource.units())).collect::<Vec<_>>()
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
    assert_eq!(cluster.limiter.resources(), [], "what is refused leaves nothing behind");
    // On the other device alone, there are units.
    let mut elsewhere = Cluster::new(&["cpu", "1"], 1, &[amount("R", 9, Some("1")), amount("S", 1, Some("7"))], |_| 10);
    assert_eq!(
        refused(&mut elsewhere, needs(&[demand("R", false, 4)], 1)),
        "resource 'R' is limited to 0 on device cpu (--rate-limit-resource), but a batch needs 4"
    );
    elsewhere.up(2, needs(&[demand("R", true, 9), demand("S", true, 1)], 1)).expect("global ones are of no device");
    elsewhere.up(3, needs(&[demand("T", false, 3)], 1)).expect("nothing limits what is not given");
    cluster.up(1, needs(&[demand("H", true, 1)], 1)).expect("nothing limits it");
    assert_eq!(
        refused(&mut cluster, needs(&[demand("H", false, 1)], 1)),
        "resource 'H' is per device here and global in model 'm1'; expected global or per device in all models"
    );
    let again = cluster.up(1, needs(&[demand("H", false, 1)], 1)).expect_err("its loaded version is in the way");
    assert_eq!(
        again,
        "resource 'H' is per device here and global in the loaded version of this model; expected global or per device \
         in all models: unload it first"
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
    assert_eq!(cluster.limiter.resources()[0].units(), 2, "units in use do not vanish");
    cluster.run_out();
    assert_eq!(cluster.limiter.resources()[0].units(), 1);
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
            limiter.register(model, "cells", &knobs.rate_limiter, &[0]).expect("nothing limits it");
            core.step(Instant::ZERO, Event::ModelUp(model, Box::new(knobs)));
        }
        for model in 0..2 {
            let steps = vec![paternoster_model::unfold::Unfolded::Steps(1)];
            let arrival = Arrival { model: ModelId(model), ..cellular::request(u64::from(model), steps) };
            core.step(Instant::ZERO, Event::Arrived(arrival));
        }
        let said = cellular::said(&core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default())));
        said.matches('.').count() == 2
    };
    let (one, two) = ([demand("R", false, 1)], [demand("R", false, 2)]);
    assert!(joins(&[], &[]) && joins(&one, &one) && joins(&one, &[]));
    assert!(!joins(&[], &one) && !joins(&one, &two) && !joins(&two, &one));
}
