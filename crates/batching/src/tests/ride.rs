//! A driver for exact tests over stages: one model and its lanes. Each step returns the actions as text. The paper's
//! tables are views of the core (DVABatch figures 8, 10 and 11).
//!
//! Requests are letters, tasks `#0`, `#1`, … in launch order. A task takes [`TAKES_NS`] unless a test specifies
//! otherwise.

use paternoster_model::{CellId, Next, RowOutcome};

use super::{
    driver::{Driver, drives},
    pool::arrival,
};
use crate::{
    Action, Arrival, CostPoint, CostTable, Counters, Event, Instant, Knobs, LaneId, LaneKnobs, Lease, ModelId, Ns,
    Policy, ReqId, StageKnobs, Task, TaskId,
    table::batch::{Part, Step, StepState},
};

/// Duration of a task.
pub(super) const TAKES_NS: Ns = 100;

/// A driver of one model.
#[derive(Debug)]
pub(super) struct Ride {
    driver: Driver,
    /// The status map of the latest batch: for each stage, the rows of its completed tasks, dead rows included.
    status: (u64, Vec<u32>),
    stages: u16,
    pairs: u16,
}

drives!(Ride);

/// A chain of stages under a policy: batches of up to `max_rows`, two buffers per boundary.
pub(super) fn chain(stages: u16, max_rows: u32, policy: Policy) -> Knobs {
    let stages = StageKnobs::chain(stages);
    Knobs { max_batch_rows: max_rows, max_in_flight: 8, stages, policy, ..Knobs::default() }
}

/// Latencies of `stages` stages at these sizes and lengths.
pub(super) fn latencies(
    stages: u16,
    sizes: &[u32],
    lengths: &[u64],
    took_ns: impl Fn(u16, u32, u64) -> Ns,
) -> Option<CostTable> {
    let point = |stage, rows, length| CostPoint { rows, length, took_ns: took_ns(stage, rows, length) };
    let points = |stage| {
        let sizes = sizes.iter().flat_map(|&rows| lengths.iter().map(move |&length| point(stage, rows, length)));
        sizes.collect()
    };
    Some(CostTable { stages: (0..stages).map(points).collect() })
}

/// A chain of stages that each take [`TAKES_NS`] for any batch.
pub(super) fn flat(stages: u16, max_rows: u32, policy: Policy) -> Knobs {
    let latencies = latencies(stages, &[1, max_rows.max(2)], &[1, 8], |_, _, _| TAKES_NS);
    Knobs { latencies, ..chain(stages, max_rows, policy) }
}

pub(super) fn req(name: char) -> ReqId {
    ReqId(u64::from(u32::from(name) - u32::from('a')))
}

fn letter(req: ReqId) -> char {
    char::from(b'a' + u8::try_from(req.0).expect("a ride has few requests"))
}

impl Ride {
    /// Creates a model without lanes.
    pub(super) fn new(knobs: Knobs) -> Self {
        let (stages, pairs) = (knobs.stages.len() as u16, knobs.buffer_pairs);
        let mut ride = Self { driver: Driver::default(), status: (0, vec![0; usize::from(stages)]), stages, pairs };
        ride.act(Event::ModelUp(ModelId(0), Box::new(knobs)));
        ride
    }

    /// Creates a model on `lanes` lanes that take one task at a time.
    pub(super) fn on(lanes: u16, knobs: Knobs) -> Self {
        let mut ride = Self::new(knobs);
        ride.lanes_up(lanes);
        ride
    }

    /// Adds lanes 0, 1, … that take one task at a time. Returns what is launched.
    pub(super) fn lanes_up(&mut self, lanes: u16) -> String {
        let launched = (0..lanes).map(|lane| self.lane_up(lane, LaneKnobs::default()));
        launched.filter(|said| !said.is_empty()).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn lane_up(&mut self, lane: u16, knobs: LaneKnobs) -> String {
        self.act(Event::LaneUp(LaneId(lane), knobs))
    }

    /// Sends requests of one row, one after another.
    pub(super) fn arrive(&mut self, names: &str) -> String {
        let said: Vec<String> = names.chars().map(|name| self.arrive_with(name, |_| {})).collect();
        said.into_iter().filter(|said| !said.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Sends a request with options.
    pub(super) fn arrive_with(&mut self, name: char, wish: impl FnOnce(&mut Arrival)) -> String {
        let mut request = arrival(req(name).0);
        wish(&mut request);
        self.act(Event::Arrived(request))
    }

    pub(super) fn cancel(&mut self, name: char) -> String {
        self.act(Event::Cancelled(req(name)))
    }

    /// Completes a task [`TAKES_NS`] after its launch, or now if that is past; all its rows continue.
    pub(super) fn done(&mut self, task: u64) -> String {
        self.done_with(task, &[])
    }

    /// Completes a task now.
    pub(super) fn completes(&mut self, task: u64) {
        self.act(Event::Completed { task: TaskId(task), rows: &[] });
    }

    /// Completes a task with these outcomes, row by row.
    pub(super) fn done_with(&mut self, task: u64, rows: &[Next]) -> String {
        let rows: Vec<RowOutcome> = rows.iter().map(|&next| RowOutcome { next, emitted: false }).collect();
        let Task { cell, batch, .. } = *self.task(task);
        if batch != self.status.0 {
            self.status = (batch, vec![0; usize::from(self.stages)]);
        }
        self.status.1[usize::from(cell.0)] += self.task(task).row_count();
        self.land(task);
        self.act(Event::Completed { task: TaskId(task), rows: &rows })
    }

    pub(super) fn fails(&mut self, task: u64) -> String {
        self.land(task);
        self.act(Event::Failed { task: TaskId(task) })
    }

    fn land(&mut self, task: u64) {
        let launched =
            self.running.iter().find(|(_, running)| running.id == TaskId(task)).map(|&(launched, _)| launched);
        let ends = launched.unwrap_or_else(|| panic!("#{task} does not run")) + TAKES_NS;
        self.pass_to(self.now.max(ends));
    }

    /// Advances time, with every wake at its time. Returns the actions.
    pub(super) fn pass_to(&mut self, until: Instant) -> String {
        let mut said = Vec::new();
        while self.pass(until) {
            said.push(self.act(Event::Wake));
        }
        said.retain(|said| !said.is_empty());
        said.join("; ")
    }

    /// Completes running tasks, oldest first, until none is left.
    pub(super) fn run_out(&mut self) {
        for _ in 0..1_000 {
            let Some((_, task)) = self.running.first() else { return };
            self.done(task.id.0);
        }
        panic!("the ride does not come to its end");
    }

    /// Returns a running task.
    pub(super) fn task(&self, task: u64) -> &Task {
        let found = self.running.iter().map(|(_, running)| running).find(|running| running.id == TaskId(task));
        found.unwrap_or_else(|| panic!("#{task} does not run"))
    }

    /// Returns the buffers that a task reads and writes, as `boundary.pair`, and the tasks that it must not overtake.
    pub(super) fn buffers(&self, task: u64) -> String {
        let name = |lease: &Lease| format!("{}.{}", lease.boundary, lease.pair);
        let task = self.task(task);
        let mut said: Vec<String> = task.reads.iter().map(|lease| format!("reads {}", name(lease))).collect();
        said.extend(task.writes.iter().map(|lease| format!("writes {}", name(lease))));
        said.extend(task.after.iter().map(|other| format!("after #{}", other.0)));
        said.join(" ")
    }

    pub(super) fn act(&mut self, event: Event<'_>) -> String {
        self.driver.act(event).iter().filter_map(said).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn counters(&self) -> Counters {
        self.core.counters().first().map(|&(_, counters)| counters).unwrap_or_default()
    }

    // ## The paper's tables

    /// The batch table: row id, bs and status map of each row, that is, the queries that have completed each stage.
    pub(super) fn table(&self) -> String {
        let rows = self.parts().into_iter().map(|part| {
            let passed: Vec<String> = (0..self.stages).map(|stage| passed(part, stage).to_string()).collect();
            format!("batch {} bs {} passed {}", part.ix.number, part.row_count(), passed.join(" "))
        });
        rows.collect::<Vec<_>>().join("; ")
    }

    /// Returns the counts in the status map of the latest batch, including dead rows.
    pub(super) fn completed(&self) -> &[u32] {
        &self.status.1
    }

    /// The batch queues: `stage: {batch, start, num}` for each step that may be taken. A step that waits for newcomers
    /// is in no queue.
    pub(super) fn queues(&self) -> String {
        let parts = self.parts();
        let feet = parts.iter().filter_map(|part| Some((part, part.foot().filter(|foot| foot.is_queued())?)));
        feet.map(|(part, foot)| item(part, foot)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the items that executors are working on.
    pub(super) fn works_on(&self) -> String {
        let parts = self.parts();
        let steps = parts.iter().flat_map(|part| part.steps.iter().map(move |step| (part, step)));
        let running = steps.filter(|(_, step)| matches!(step.state, StepState::Running(_)));
        running.map(|(part, step)| item(part, step)).collect::<Vec<_>>().join(" ")
    }

    fn parts(&self) -> Vec<&Part> {
        let mut parts: Vec<&Part> = self
            .core
            .groups
            .iter()
            .flat_map(|(_, group)| group.work.batches().expect("it runs batches").table.parts())
            .collect();
        parts.sort_unstable_by_key(|part| part.ix);
        parts
    }

    /// Returns the state of each executor (figure 11).
    pub(super) fn executors(&self) -> String {
        let states = (0..self.stages).map(|stage| {
            let works = self.running.iter().any(|(_, task)| task.cell == CellId(stage));
            let parts = self.parts();
            let mut feet = parts.iter().filter_map(|part| part.foot());
            let has_item = feet.any(|foot| foot.is_queued() && foot.next == CellId(stage));
            match (works, has_item, self.has_legitimate_pair(stage)) {
                (true, ..) => "working",
                (_, true, false) => "checking",
                (_, _, true) => "active",
                (_, false, false) => "inactive",
            }
        });
        states.collect::<Vec<_>>().join(" ")
    }

    /// Returns whether the executor of a stage could take another batch; the last one always can.
    fn has_legitimate_pair(&self, stage: u16) -> bool {
        let (_, group) = self.core.groups.iter().next().expect("the model is up");
        let group = group.work.batches().expect("it runs batches");
        let has_input = || (0..self.pairs).any(|pair| self.buffer(Lease { boundary: stage - 1, pair }) == "available");
        group.stages.is_last(CellId(stage)) || group.stages.has_credit(CellId(stage)) && (stage == 0 || has_input())
    }

    /// Returns the state of each buffer, by boundary and pair.
    pub(super) fn buffer_states(&self) -> String {
        let boundary = |boundary| {
            let states = (0..self.pairs).map(|pair| self.buffer(Lease { boundary, pair }));
            states.collect::<Vec<_>>().join(" ")
        };
        (0..self.stages - 1).map(boundary).collect::<Vec<_>>().join(" | ")
    }

    fn buffer(&self, lease: Lease) -> &'static str {
        let (_, group) = self.core.groups.iter().next().expect("the model is up");
        let group = group.work.batches().expect("it runs batches");
        let tasks = || self.running.iter().map(|(_, task)| task);
        if tasks().any(|task| task.writes == Some(lease)) {
            "in-writing"
        } else if tasks().any(|task| task.reads.contains(&lease)) {
            "in-reading"
        } else if group.stages.is_free(lease) {
            "available"
        } else {
            "invalid"
        }
    }

    /// Returns whether no batch is left and every buffer is free.
    pub(super) fn is_idle(&self) -> bool {
        let (_, group) = self.core.groups.iter().next().expect("the model is up");
        let group = group.work.batches().expect("it runs batches");
        let free = |boundary| {
            let (free, all) = group.stages.credits(boundary);
            free == all
        };
        group.table.batches.is_empty() && (0..group.stages.boundaries()).all(free) && self.running.is_empty()
    }
}

fn said(action: &Action) -> Option<String> {
    match action {
        Action::Launch(task) => {
            let mut said = format!("#{} stage {}:", task.id.0, task.cell.0);
            for span in &task.rows {
                said += &format!(" {}", letter(span.req));
                if (span.start, span.count) != (0, 1) {
                    said += &format!("[{}..{}]", span.start, span.start + span.count);
                }
            }
            Some(said)
        }
        Action::Finish { req, end } => Some(format!("{} {end:?}", letter(*req)).to_lowercase()),
        _ => None,
    }
}

fn passed(part: &Part, stage: u16) -> u32 {
    part.steps.iter().filter(|step| step.next > CellId(stage)).map(Step::row_count).sum()
}

fn item(part: &Part, step: &Step) -> String {
    let start = step.rows.first().map_or(0, |span| span.rows.at);
    format!("{}: {{{}, {start}, {}}}", step.next.0, part.ix.number, step.row_count())
}
