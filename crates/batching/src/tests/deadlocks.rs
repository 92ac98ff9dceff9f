//! The three faults of DVABatch's release rule, taken literally (section 6.2, figures 11 and 12), in a small model of
//! the paper's executors; and the same scenarios through the core, where all requests finish.
//!
//! The rule: an executor that has run a batch with pair j leaves its input buffer invalid; once it is active again with
//! any legitimate pair, it makes the j-th input buffer of the executor before it available.

use std::collections::VecDeque;

use paternoster_model::CellId;

use super::ride::{Ride, chain, latencies};
use crate::{DiversityKnobs, Knobs, Lease, LoadDiversity, OperatorDiversity, Policy, WindowKnobs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    Available,
    Invalid,
    InReading,
    InWriting,
}

/// Rows of a batch in a batch queue, and their buffer pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    batch: u32,
    rows: &'static str,
    pair: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    Inactive,
    Active,
    Checking(Item),
    /// With the previous state of its output buffer.
    Working(Item, Buffer),
}

/// The paper's chain of stages.
struct Literal {
    /// Input buffers by stage and pair; the output of a stage is the input of the next.
    inputs: Vec<Vec<Buffer>>,
    queues: Vec<VecDeque<Item>>,
    executors: Vec<Executor>,
    /// By stage: the pair to make available for the previous executor once this one is active.
    owed: Vec<Option<usize>>,
    /// Whether the last stage makes its own input available, which the paper leaves open.
    tail_frees: bool,
    /// Rows that were overwritten before they were read.
    overwritten: Vec<&'static str>,
}

impl Literal {
    fn new(stages: usize, pairs: usize, tail_frees: bool) -> Self {
        Self {
            inputs: vec![vec![Buffer::Available; pairs]; stages],
            queues: vec![VecDeque::new(); stages],
            executors: vec![Executor::Active; stages],
            owed: vec![None; stages],
            tail_frees,
            overwritten: Vec::new(),
        }
    }

    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.executors.len()
    }

    /// Returns whether the input is available, and the output available or invalid.
    fn is_legitimate(&self, stage: usize, pair: usize) -> bool {
        let output = self.inputs.get(stage + 1).map(|buffers| buffers[pair]);
        let writable = output.is_none_or(|output| matches!(output, Buffer::Available | Buffer::Invalid));
        self.inputs[stage][pair] == Buffer::Available && writable
    }

    fn push(&mut self, stage: usize, batch: u32, rows: &'static str, pair: usize) {
        self.queues[stage].push_back(Item { batch, rows, pair });
        self.settle();
    }

    /// Lets executors become active and take items until nothing changes.
    fn settle(&mut self) {
        for _ in 0..2 * self.executors.len() {
            for stage in 0..self.executors.len() {
                self.wake_up(stage);
                self.take(stage);
            }
        }
    }

    // ## inactive => active
    fn wake_up(&mut self, stage: usize) {
        let has_pair = (0..self.inputs[stage].len()).any(|pair| self.is_legitimate(stage, pair));
        if self.executors[stage] == Executor::Inactive && (has_pair || self.is_last(stage)) {
            self.executors[stage] = Executor::Active;
        }
        if self.executors[stage] == Executor::Active
            && let Some(pair) = self.owed[stage].take()
            && stage > 0
        {
            self.inputs[stage - 1][pair] = Buffer::Available;
        }
    }

    // ## active => (checking | working), checking => working
    fn take(&mut self, stage: usize) {
        let item = match self.executors[stage] {
            Executor::Active => self.queues[stage].pop_front(),
            Executor::Checking(item) => Some(item),
            Executor::Inactive | Executor::Working(..) => None,
        };
        let Some(item) = item else { return };
        if !self.is_legitimate(stage, item.pair) {
            self.executors[stage] = Executor::Checking(item);
            return;
        }
        self.inputs[stage][item.pair] = Buffer::InReading;
        let mut before = Buffer::Available;
        if !self.is_last(stage) {
            before = std::mem::replace(&mut self.inputs[stage + 1][item.pair], Buffer::InWriting);
            let unread = self.unread(stage + 1).find(|unread| unread.pair == item.pair && unread.batch != item.batch);
            self.overwritten.extend(unread.map(|unread| unread.rows));
        }
        self.executors[stage] = Executor::Working(item, before);
    }

    /// Iterates over the items that have not been read at a stage.
    fn unread(&self, stage: usize) -> impl Iterator<Item = Item> {
        let checking = match self.executors[stage] {
            Executor::Checking(item) => Some(item),
            _ => None,
        };
        self.queues[stage].iter().copied().chain(checking).collect::<Vec<_>>().into_iter()
    }

    // ## working => (active | inactive); the caller pushes the item onward
    fn finish(&mut self, stage: usize) -> Item {
        let Executor::Working(item, before) = self.executors[stage] else {
            panic!("executor {stage} does not work: {:?}", self.executors[stage])
        };
        let frees = self.is_last(stage) && self.tail_frees;
        self.inputs[stage][item.pair] = if frees { Buffer::Available } else { Buffer::Invalid };
        if !self.is_last(stage) {
            self.inputs[stage + 1][item.pair] = before;
        }
        self.owed[stage] = Some(item.pair);
        self.executors[stage] = Executor::Inactive;
        self.settle();
        item
    }

    /// Finishes a stage and pushes the item into the next queue.
    fn pass(&mut self, stage: usize) {
        let Item { batch, rows, pair } = self.finish(stage);
        if !self.is_last(stage) {
            self.push(stage + 1, batch, rows, pair);
        }
    }

    /// Returns whether items are left but no executor is working, so that nothing will ever change.
    fn is_stuck(&self) -> bool {
        let works = self.executors.iter().any(|executor| matches!(executor, Executor::Working(..)));
        !works && (0..self.executors.len()).any(|stage| self.unread(stage).next().is_some())
    }
}

fn window() -> Policy {
    Policy::Window(WindowKnobs::default())
}

fn load() -> Policy {
    let load = Some(LoadDiversity { max_age_ns: Some(100_000), max_stage: None, paper: true });
    Policy::Diversity(DiversityKnobs { load, ..DiversityKnobs::default() })
}

#[test]
fn by_the_papers_rule_nobody_makes_the_input_of_the_last_stage_available_again() {
    let mut paper = Literal::new(2, 1, false);
    paper.push(0, 0, "a", 0);
    paper.pass(0);
    paper.pass(1);
    assert!(!paper.is_stuck(), "the first batch is through");
    paper.push(0, 1, "b", 0);
    paper.pass(0);
    assert_eq!(paper.executors[1], Executor::Checking(Item { batch: 1, rows: "b", pair: 0 }));
    assert_eq!(paper.inputs[1], [Buffer::Invalid]);
    assert!(paper.is_stuck(), "the second waits for ever");
}

#[test]
fn the_paper_s_rule_goes_on_where_the_last_stage_frees_its_input() {
    let mut paper = Literal::new(2, 1, true);
    for batch in 0..3 {
        paper.push(0, batch, "a", 0);
        paper.pass(0);
        paper.pass(1);
    }
    assert!(!paper.is_stuck() && paper.overwritten.is_empty());
}

#[test]
fn in_the_core_the_last_stage_frees_its_input_itself() {
    for pairs in 1..=3 {
        let mut ride = Ride::on(3, Knobs { buffer_pairs: pairs, ..chain(2, 1, window()) });
        ride.arrive("abcdefgh");
        ride.run_out();
        assert_eq!(ride.counters().completed, 8, "with {pairs} pairs");
        assert!(ride.is_idle(), "all leases are back");
    }
}

#[test]
fn by_the_papers_rule_stretched_rows_wait_for_the_stage_that_waits_for_them() {
    let mut paper = Literal::new(3, 1, true);
    paper.push(0, 0, "ab", 0);
    paper.pass(0);
    // Stretch while the second executor is working: the newcomers go into the first queue.
    paper.push(0, 0, "cd", 0);
    assert_eq!(paper.executors[0], Executor::Inactive);
    // It updates the status map, but pushes nothing until the newcomers have caught up.
    paper.finish(1);
    assert_eq!(paper.executors[1], Executor::Inactive, "only the third executor could make its input available");
    assert_eq!(paper.inputs[0], [Buffer::Invalid], "which only the second executor could make available");
    assert!(paper.is_stuck());
}

#[test]
fn in_the_core_stretched_rows_run_under_the_leases_of_their_batch() {
    for pairs in 1..=3 {
        let mut ride = Ride::on(2, Knobs { buffer_pairs: pairs, ..chain(3, 4, load()) });
        assert_eq!(ride.arrive("a"), "#0 stage 0: a");
        assert_eq!(ride.done(0), "#1 stage 1: a");
        assert_eq!(ride.arrive("b"), "#2 stage 0: b");
        assert_eq!(ride.done(1), "", "the older row waits");
        assert_eq!(ride.done(2), "#3 stage 1: b");
        assert_eq!(ride.done(3), "#4 stage 2: a b");
        assert_eq!(ride.done(4), "a completed; b completed");
        assert!(ride.is_idle(), "all leases are back");
    }
}

#[test]
fn by_the_papers_rule_the_first_part_of_a_split_releases_the_pair_under_the_second() {
    let mut paper = Literal::new(4, 2, true);
    paper.push(0, 0, "abcd", 0);
    paper.pass(0);
    // Split after the second stage: both parts are in pair 0.
    paper.finish(1);
    paper.push(2, 0, "ab", 0);
    paper.push(2, 0, "cd", 0);
    paper.pass(2);
    assert_eq!(paper.executors[2], Executor::Checking(Item { batch: 0, rows: "cd", pair: 0 }));
    assert!(paper.overwritten.is_empty());
    // The third executor has finished one part and releases pair 0, so the executors before it may use the pair for the
    // next batch.
    paper.push(0, 1, "ef", 0);
    paper.pass(0);
    assert_eq!(paper.overwritten, ["cd"], "before it was read");
}

#[test]
fn in_the_core_no_part_of_a_split_releases_the_pair_under_another() {
    let prefers_one = |stage, rows, _| if stage < 2 { 100 } else { 100 * u64::from(rows) };
    let operator = Some(OperatorDiversity { paper: true, ..OperatorDiversity::default() });
    for pairs in 1..=3 {
        let policy = Policy::Diversity(DiversityKnobs { operator: operator.clone(), ..DiversityKnobs::default() });
        let latencies = latencies(4, &[1, 2, 4], &[1], prefers_one);
        let mut ride = Ride::new(Knobs { buffer_pairs: pairs, latencies, ..chain(4, 4, policy) });
        ride.arrive("abcdefgh");
        ride.lanes_up(3);
        let (mut launched, mut seen, mut shared) = (0, 0, 0);
        let mut holds = None;
        while let Some((_, first)) = ride.running.first() {
            let first = first.id.0;
            for (_, task) in ride.running.iter().filter(|(_, task)| task.id.0 >= seen) {
                let rows: u32 = task.rows.iter().map(|span| span.count).sum();
                if (task.batch, task.cell) == (0, CellId(1)) {
                    holds = task.writes;
                } else if (task.batch, task.cell) == (0, CellId(2)) {
                    launched += rows;
                } else if task.batch != 0 && task.cell == CellId(1) && task.writes == holds {
                    assert_eq!(launched, 4, "#{} writes where parts have not been read", task.id.0);
                    shared += 1;
                }
            }
            seen = ride.running.iter().map(|(_, task)| task.id.0 + 1).max().unwrap_or(seen);
            ride.done(first);
        }
        assert!(holds.is_some_and(|lease: Lease| lease.boundary == 1) && ride.counters().splits > 1);
        assert_eq!(ride.counters().completed, 8, "with {pairs} pairs");
        assert!(pairs > 1 || shared > 0, "the second batch uses the pair in its turn");
        assert!(ride.is_idle(), "all leases are back");
    }
}
