//! Requests of mixed lengths, with a constant number in flight, on a device with exactly known times. Compares `auto`
//! without known times with windows, and with groups that know the device's table. `auto` has to find out from its own
//! runs whether padding or single runs cost more.

use std::collections::BTreeMap;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, LogNormal};

use super::{pool::arrival, ride::latencies};
use crate::{
    Action, Core, DiversityKnobs, Event, InputDiversity, Knobs, LaneId, LaneKnobs, ModelId, Ns, OperatorDiversity,
    Policy, QueueingKnobs, ReqId, Task, WindowKnobs,
};

const MS: Ns = 1_000_000;
/// Requests answered before counting starts, and counted requests.
const WARM_UP: u64 = 200;
const COUNTED: u64 = 600;

/// Duration of a batch by rows and padded length.
type Times = fn(u32, u32) -> Ns;

/// Two cores: proportional to tokens, with a small fixed cost.
fn tokens(rows: u32, length: u32) -> Ns {
    MS / 20 + 112_000 * Ns::from(rows) * Ns::from(length)
}

/// A fixed cost equivalent to twenty tokens.
fn half_fixed(rows: u32, length: u32) -> Ns {
    MS + 60_000 * Ns::from(rows) * Ns::from(length)
}

/// A large device: up to 2,048 tokens take as long as one.
fn fills_late(rows: u32, length: u32) -> Ns {
    2 * MS * Ns::from(rows * length).max(2048) / 2048
}

/// Results of a run.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// Tokens of requests, without padding, per virtual second.
    rate: f64,
    /// Padded tokens divided by tokens.
    padding: f64,
    longest_ns: Ns,
}

/// A closed loop on some lanes.
struct Loop {
    core: Core,
    now: Ns,
    running: Vec<(Ns, Task)>,
    wake: Option<Ns>,
    /// Arrival times and lengths of the requests in flight.
    in_flight: BTreeMap<ReqId, (Ns, u32)>,
    took_ns: Times,
    answered: u64,
    counts_from: Option<Ns>,
    tokens: u64,
    padded: u64,
    longest_ns: Ns,
}

impl Loop {
    fn send(&mut self, req: u64, length: u32) {
        let mut request = arrival(req);
        request.lengths = [length].into_iter().collect();
        self.in_flight.insert(request.req, (self.now, length));
        self.step(Event::Arrived(request));
    }

    /// Processes the next due event; of tasks that end together, the one launched first.
    fn happen(&mut self) {
        let ends = self.running.iter().enumerate().map(|(at, (end, task))| (*end, task.id, at)).min();
        match (ends, self.wake) {
            (Some((end, task, at)), wake) if wake.is_none_or(|wake| end <= wake) => {
                self.now = end;
                self.running.swap_remove(at);
                self.step(Event::Completed { task, rows: &[] });
            }
            (_, Some(wake)) => {
                (self.now, self.wake) = (wake, None);
                self.step(Event::Wake);
            }
            (_, None) => panic!("requests wait and nothing is due"),
        }
    }

    fn step(&mut self, event: Event<'_>) {
        for action in self.core.step(self.now, event) {
            match action {
                Action::Launch(task) => {
                    let rows: u32 = task.rows.iter().map(|span| span.count).sum();
                    let length = task.bucket.class.0[0];
                    if self.counts_from.is_some() {
                        self.padded += u64::from(rows * length);
                        let own = task.rows.iter().map(|span| u64::from(self.in_flight[&span.req].1));
                        self.tokens += own.sum::<u64>();
                    }
                    self.running.push((self.now + (self.took_ns)(rows, length), task));
                }
                Action::Finish { req, .. } => {
                    let (arrived, _) = self.in_flight.remove(&req).expect("it is in flight");
                    self.answered += 1;
                    self.longest_ns = self.longest_ns.max(self.now - arrived);
                    if self.answered == WARM_UP {
                        self.counts_from = Some(self.now);
                    }
                }
                Action::WakeAt(at) => self.wake = Some(at),
                other => panic!("nothing else happens: {other:?}"),
            }
        }
    }
}

fn serve(knobs: Knobs, lanes: u16, in_flight: usize, lengths: impl IntoIterator<Item = u32>, took_ns: Times) -> Served {
    let mut lengths = lengths.into_iter();
    let mut played = Loop {
        core: Core::new(),
        now: 0,
        running: Vec::new(),
        wake: None,
        in_flight: BTreeMap::new(),
        took_ns,
        answered: 0,
        counts_from: None,
        tokens: 0,
        padded: 0,
        longest_ns: 0,
    };
    played.step(Event::ModelUp(ModelId(0), knobs));
    for lane in 0..lanes {
        played.step(Event::LaneUp(LaneId(lane), LaneKnobs::default()));
    }
    let mut sent = 0;
    while played.answered < WARM_UP + COUNTED {
        while played.in_flight.len() < in_flight {
            played.send(sent, lengths.next().expect("there is no end of them"));
            sent += 1;
        }
        played.happen();
    }
    let span_ns = played.now - played.counts_from.expect("it is warm");
    Served {
        rate: played.tokens as f64 / span_ns as f64 * 1e9,
        padding: played.padded as f64 / played.tokens as f64,
        longest_ns: played.longest_ns,
    }
}

/// Lengths of the sentences, and of the pairs of sentences, of GLUE.
fn glue(name: &str) -> impl Iterator<Item = u32> {
    let (mu, sigma, min, max) = if name == "glue-short" { (2.4, 0.6, 3.0, 128.0) } else { (4.0, 0.5, 12.0, 290.0) };
    let lengths = LogNormal::new(mu, sigma).expect("it has a positive deviation");
    let drawn = lengths.sample_iter(ChaCha8Rng::seed_from_u64(1));
    drawn.map(move |length: f64| length.round().clamp(min, max) as u32)
}

fn knobs(policy: Policy) -> Knobs {
    Knobs { max_batch_rows: 32, max_in_flight: 2, policy, ..Knobs::default() }
}

/// Batches of any waiting requests, padded to the longest.
fn any_length() -> Knobs {
    knobs(Policy::Window(WindowKnobs::default()))
}

fn exact_lengths() -> Knobs {
    let queueing = QueueingKnobs { bucket_width: 1, ..QueueingKnobs::default() };
    Knobs { queueing, ..any_length() }
}

/// `auto` without known times.
fn auto() -> Knobs {
    let input = Some(InputDiversity { by_runs: true, ..InputDiversity::default() });
    knobs(Policy::Diversity(DiversityKnobs { input, ..DiversityKnobs::default() }))
}

/// `auto` with a profile.
fn profiled(took_ns: Times) -> Knobs {
    let (input, operator) = (Some(InputDiversity::default()), Some(OperatorDiversity::default()));
    let policy = Policy::Diversity(DiversityKnobs { input, operator, load: None });
    let at = |_, rows, length| took_ns(rows, u32::try_from(length).expect("it is short"));
    Knobs { latencies: latencies(1, &[1, 2, 4, 8, 16, 32], &[8, 16, 32, 64, 128, 256], at), ..knobs(policy) }
}

/// Requests in flight, lanes and workloads.
const LOADS: [(usize, u16, &str); 6] = [
    (8, 1, "glue-short"),
    (8, 2, "glue-pair"),
    (32, 2, "glue-short"),
    (32, 1, "glue-pair"),
    (64, 1, "glue-short"),
    (64, 2, "glue-pair"),
];

#[test]
fn where_time_is_tokens_auto_serves_no_less_than_exact_lengths_do() {
    for (in_flight, lanes, workload) in LOADS {
        let rate = |knobs| serve(knobs, lanes, in_flight, glue(workload), tokens).rate;
        let ratio = rate(auto()) / rate(exact_lengths());
        assert!(ratio >= 0.98, "{workload}, {in_flight} in flight, {lanes} lanes: {ratio}");
    }
}

#[test]
fn where_runs_cost_too_auto_serves_more_than_exact_lengths_do() {
    for (in_flight, lanes, workload) in LOADS {
        let rate = |knobs| serve(knobs, lanes, in_flight, glue(workload), half_fixed).rate;
        let (auto, exact, profiled) = (rate(auto()), rate(exact_lengths()), rate(profiled(half_fixed)));
        let least = if in_flight > 8 { 1.05 } else { 1.0 };
        assert!(auto >= least * exact, "{workload}, {in_flight} in flight, {lanes} lanes: {auto} beside {exact}");
        assert!(auto >= 0.95 * profiled, "{workload}, {in_flight} in flight, {lanes} lanes: {auto} beside {profiled}");
    }
}

#[test]
fn where_batches_cost_nothing_auto_learns_to_share_them() {
    for (in_flight, lanes, workload) in LOADS {
        let rate = |knobs| serve(knobs, lanes, in_flight, glue(workload), fills_late).rate;
        let (auto, any) = (rate(auto()), rate(any_length()));
        assert!(auto >= 0.95 * any, "{workload}, {in_flight} in flight, {lanes} lanes: {auto} beside {any}");
    }
}

#[test]
fn a_window_runs_two_tokens_for_one_where_auto_hardly_pads() {
    let padding = |knobs| serve(knobs, 1, 32, glue("glue-pair"), tokens).padding;
    let (any, auto) = (padding(any_length()), padding(auto()));
    assert!(any > 2.0 && auto < 1.02, "{any} and {auto} tokens run for each");
}

#[test]
fn a_rare_length_waits_no_longer_than_those_before_it() {
    // One request in fifty is long, and no other has its length.
    let lengths = (0_u32..).map(|number| if number % 50 == 49 { 250 + number / 50 % 40 } else { 10 + number % 2 });
    let served = serve(auto(), 1, 32, lengths, tokens);
    // At worst, each request before it runs alone, including a long one.
    let bound_ns = 32 * tokens(1, 11) + 2 * tokens(1, 290) + tokens(32, 11);
    assert!(served.longest_ns <= bound_ns, "{} ns, expected at most {bound_ns}", served.longest_ns);
}
