//! A server in virtual time: tasks have durations given by a test and end on their own. Launches, the batch table and
//! the ends of requests read like the timelines in the papers' figures.
//!
//! Stages are letters from A on, requests numbers. At one instant, tasks end first, then wakes are processed, then the
//! test's events.

use std::collections::BTreeMap;

use paternoster_model::{CellId, Next, RowOutcome};

use super::{
    at,
    driver::{Driver, Due, drives},
    pool::arrival,
};
use crate::{
    Action, Arrival, CostPoint, CostTable, Counters, End, Event, Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy,
    Rejection, ReqId, StageKnobs, Task, table::batch::Part,
};

/// One time unit of the figures.
pub(super) const UNIT: Ns = 1_000;

/// A driver and its history.
#[derive(Debug)]
pub(super) struct Timeline {
    driver: Driver,
    takes_ns: fn(&Task) -> Ns,
    /// Number of further times that a request runs a stage.
    repeats: BTreeMap<(CellId, ReqId), u32>,
    /// Tasks in launch order, with the time.
    pub(super) launches: Vec<(Ns, Task)>,
    arrivals: BTreeMap<ReqId, Ns>,
}

drives!(Timeline);

/// `policy` over `stages` stages, each of which takes `latencies` (rows, ns); the policy knows these.
pub(super) fn staged(policy: Policy, stages: u16, max_batch_rows: u32, latencies: &[(u32, Ns)]) -> Knobs {
    let point = |&(rows, took_ns): &(u32, Ns)| CostPoint { rows, length: 1, took_ns };
    let points: Vec<CostPoint> = latencies.iter().map(point).collect();
    Knobs {
        max_batch_rows,
        max_in_flight: 8,
        stages: StageKnobs::chain(stages),
        latencies: Some(CostTable { stages: vec![points; usize::from(stages)] }),
        policy,
        ..Knobs::default()
    }
}

pub(super) fn rows_of(task: &Task) -> u32 {
    task.rows.iter().map(|span| span.count).sum()
}

impl Timeline {
    /// Creates models 0, 1, … with these knobs and no lanes yet; each task takes `takes_ns`.
    pub(super) fn new(models: impl IntoIterator<Item = Knobs>, takes_ns: fn(&Task) -> Ns) -> Self {
        let mut timeline = Self {
            driver: Driver::default(),
            takes_ns,
            repeats: BTreeMap::new(),
            launches: Vec::new(),
            arrivals: BTreeMap::new(),
        };
        for (model, knobs) in (0..).zip(models) {
            timeline.act(Event::ModelUp(ModelId(model), Box::new(knobs)));
        }
        timeline
    }

    /// Adds a lane at `at`; before that, the device is used by others.
    pub(super) fn lane_up(&mut self, at: Ns, lane: u16) {
        self.pass_to(at);
        self.act(Event::LaneUp(LaneId(lane), LaneKnobs::default()));
    }

    /// A request of one row arrives for model 0.
    pub(super) fn arrives(&mut self, at: Ns, req: u64) {
        self.sends(at, arrival(req));
    }

    pub(super) fn sends(&mut self, at: Ns, arrival: Arrival) {
        self.pass_to(at);
        self.arrivals.insert(arrival.req, at);
        self.act(Event::Arrived(arrival));
    }

    /// Makes a request run a stage `times` additional times.
    pub(super) fn repeats(&mut self, stage: u16, req: u64, times: u32) {
        self.repeats.insert((CellId(stage), ReqId(req)), times);
    }

    /// Advances time; everything due at `until` has happened then.
    pub(super) fn pass_to(&mut self, until: Ns) {
        while let Some(due) = self.driver.next(at(until), self.takes_ns) {
            match due {
                Due::End(task) => self.land(&task),
                Due::Wake => self.act(Event::Wake),
            }
        }
    }

    /// Advances time until every request has ended.
    pub(super) fn run_out(&mut self) {
        while self.driver.ends.len() < self.arrivals.len() {
            let ends = self.running.iter().map(|(launched, task)| *launched + (self.takes_ns)(task));
            let next = ends.chain(self.wake).min().expect("requests wait, and nothing will ever happen");
            self.pass_to(next.as_ns());
        }
    }

    fn land(&mut self, task: &Task) {
        let mut outcomes = Vec::new();
        for span in &task.rows {
            let repeats = self.repeats.get_mut(&(task.cell, span.req)).filter(|times| **times > 0);
            let next = match repeats {
                Some(times) => {
                    *times -= 1;
                    Next::Skip(task.cell)
                }
                None => Next::On,
            };
            outcomes.extend((0..span.count).map(|_| RowOutcome { next, emitted: false }));
        }
        self.act(Event::Completed { task: task.id, rows: &outcomes });
    }

    fn act(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            if let Action::Launch(task) = action {
                let on_lane = self.running.iter().filter(|(_, other)| other.lane == task.lane).count();
                assert_eq!(on_lane, 1, "a task is launched on a lane that is not idle");
                self.launches.push((self.driver.now.as_ns(), *task));
            }
        }
    }

    /// Returns the end of each request, with the time.
    pub(super) fn ended_at(&self) -> BTreeMap<ReqId, (Ns, End)> {
        let ends: BTreeMap<_, _> = self.driver.ends.iter().map(|&(req, at, end)| (req, (at.as_ns(), end))).collect();
        assert_eq!(ends.len(), self.driver.ends.len(), "a request ended twice");
        ends
    }

    /// Returns the batch table of model 0 at a time: the entries of each batch from the bottom of the stack to its top,
    /// as requests and the stage that they run next, or are running: `1:C 2,3:B`.
    pub(super) fn table_at(&mut self, at: Ns) -> String {
        self.pass_to(at);
        let group = self.core.groups.iter().map(|(_, group)| group).find(|group| group.version.model == ModelId(0));
        let mut parts: Vec<_> =
            group.into_iter().flat_map(|group| group.work.batches().expect("it runs batches").table.parts()).collect();
        parts.sort_unstable_by_key(|part| part.ix);
        parts.into_iter().map(render).collect::<Vec<_>>().join(" | ")
    }

    /// Returns the launched tasks, one line each: time, stage, requests.
    pub(super) fn launched(&self) -> Vec<String> {
        self.launches.iter().map(|(at, task)| format!("{} {}", units(*at), sub_batch(task))).collect()
    }

    /// Returns the ends of all requests by number.
    pub(super) fn ended(&self) -> Vec<String> {
        self.ended_at()
            .iter()
            .map(|(req, (at, end))| format!("{} {} at {}", req.0, name_end(*end), units(*at)))
            .collect()
    }

    /// Returns the time from arrival to end of each request by number.
    pub(super) fn latencies(&self) -> Vec<Ns> {
        self.ended_at().iter().map(|(req, (at, _))| at - self.arrivals[req]).collect()
    }

    /// Returns the rows of each task in launch order.
    pub(super) fn sizes(&self) -> Vec<u32> {
        self.launches.iter().map(|(_, task)| rows_of(task)).collect()
    }

    pub(super) fn counters(&self) -> Counters {
        self.core.counters()[0].1
    }
}

fn render(part: &Part) -> String {
    let entries = part.steps.iter().map(|step| entry(step.rows.iter().map(|span| span.rows.req), step.next));
    entries.collect::<Vec<_>>().join(" ")
}

fn sub_batch(task: &Task) -> String {
    entry(task.rows.iter().map(|span| span.req), task.cell)
}

fn entry(reqs: impl Iterator<Item = ReqId>, next: CellId) -> String {
    let mut reqs: Vec<u64> = reqs.map(|req| req.0).collect();
    reqs.sort_unstable();
    reqs.dedup();
    let reqs: Vec<String> = reqs.iter().map(u64::to_string).collect();
    let stage = char::from(b'A' + u8::try_from(next.0).expect("a figure has few stages"));
    format!("{}:{stage}", reqs.join(","))
}

fn units(at: Ns) -> f64 {
    at as f64 / UNIT as f64
}

fn name_end(end: End) -> &'static str {
    match end {
        End::Completed => "completed",
        End::Failed => "failed",
        End::Rejected(Rejection::Late) => "rejected: late",
        End::Rejected(Rejection::NoMemory) => "rejected: no memory",
        End::Rejected(_) => "rejected",
        End::Expired => "expired",
        End::Cancelled => "cancelled",
    }
}
