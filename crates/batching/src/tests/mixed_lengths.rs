//! Requests of mixed lengths, with a constant number in flight, on a device with exactly known times. Compares `auto`
//! without known times with windows, and with groups that know the device's table. `auto` has to find out from its own
//! runs whether padding or single runs cost more.

use std::collections::BTreeMap;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, Exp, LogNormal};

use super::{
    driver::{Driver, Due, drives},
    pool::arrival,
    ride::latencies,
};
use crate::{
    Action, DiversityKnobs, Event, InputDiversity, Instant, Knobs, Ns, OperatorDiversity, Policy, PolicyKind,
    QueueingKnobs, ReqId, Task, WindowKnobs,
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

/// Length costs, and a batch little more than its longest row: not a function of tokens.
fn by_length(rows: u32, length: u32) -> Ns {
    10_000 * Ns::from(length) * Ns::from(9 + rows)
}

/// Results of a run.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// Tokens of requests, without padding, per virtual second.
    rate: f64,
    /// Padded tokens divided by tokens.
    padding: f64,
    /// Answered requests per virtual second.
    requests: f64,
    longest_ns: Ns,
    p99_ns: Ns,
}

/// Requests on some lanes.
struct Loop {
    driver: Driver,
    /// Arrival times and lengths of the requests in flight.
    in_flight: BTreeMap<ReqId, (Instant, u32)>,
    took_ns: Times,
    answered: u64,
    counts_from: Option<Instant>,
    tokens: u64,
    padded: u64,
    /// Latencies of counted requests.
    latencies_ns: Vec<Ns>,
}

drives!(Loop);

fn took_ns(times: Times, task: &Task) -> Ns {
    times(task.row_count(), task.bucket.class.0[0])
}

impl Loop {
    fn new(knobs: Knobs, lanes: u16, took_ns: Times) -> Self {
        Self {
            driver: Driver::long(knobs, lanes),
            in_flight: BTreeMap::new(),
            took_ns,
            answered: 0,
            counts_from: None,
            tokens: 0,
            padded: 0,
            latencies_ns: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.answered >= WARM_UP + COUNTED
    }

    fn served(mut self) -> Served {
        let span_ns = self.driver.now.since(self.counts_from.expect("it is warm"));
        self.latencies_ns.sort_unstable();
        let counted = self.latencies_ns.len();
        Served {
            rate: self.tokens as f64 / span_ns as f64 * 1e9,
            padding: self.padded as f64 / self.tokens as f64,
            requests: counted as f64 / span_ns as f64 * 1e9,
            longest_ns: self.latencies_ns[counted - 1],
            p99_ns: self.latencies_ns[counted * 99 / 100],
        }
    }

    fn send(&mut self, req: u64, length: u32) {
        let mut request = arrival(req);
        request.lengths = [length].into_iter().collect();
        self.in_flight.insert(request.req, (self.driver.now, length));
        self.step(Event::Arrived(request));
    }

    /// Processes what is due first, if it is by then. Returns whether there was anything.
    fn happen(&mut self, until: Instant) -> bool {
        let times = self.took_ns;
        match self.driver.next(until, |task| took_ns(times, task)) {
            Some(Due::End(task)) => self.step(Event::Completed { task: task.id, rows: &[] }),
            Some(Due::Wake) => self.step(Event::Wake),
            None => return false,
        }
        true
    }

    fn step(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            match action {
                Action::Launch(task) if self.counts_from.is_some() => {
                    self.padded += u64::from(task.row_count() * task.bucket.class.0[0]);
                    let own = task.rows.iter().map(|span| u64::from(self.in_flight[&span.req].1));
                    self.tokens += own.sum::<u64>();
                }
                Action::Finish { req, .. } => {
                    let (arrived, _) = self.in_flight.remove(&req).expect("it is in flight");
                    self.answered += 1;
                    if self.counts_from.is_some() {
                        self.latencies_ns.push(self.driver.now.since(arrived));
                    }
                    if self.answered == WARM_UP {
                        self.counts_from = Some(self.driver.now);
                    }
                }
                Action::Launch(_) | Action::WakeAt(_) => {}
                other => panic!("nothing else happens: {other:?}"),
            }
        }
    }
}

/// Keeps a number of requests in flight.
fn serve(knobs: Knobs, lanes: u16, in_flight: usize, lengths: impl IntoIterator<Item = u32>, took_ns: Times) -> Served {
    let mut lengths = (0..).zip(lengths);
    let mut played = Loop::new(knobs, lanes, took_ns);
    while !played.is_over() {
        while played.in_flight.len() < in_flight {
            let (req, length) = lengths.next().expect("there is no end of them");
            played.send(req, length);
        }
        assert!(played.happen(Instant::NEVER), "requests wait and nothing is due");
    }
    played.served()
}

/// Sends requests at random times, `rate` in a second on average, whatever is answered.
fn offer(knobs: Knobs, lanes: u16, rate: f64, lengths: impl IntoIterator<Item = u32>, took_ns: Times) -> Served {
    let gaps = Exp::new(rate / 1e9).expect("it is positive").sample_iter(ChaCha8Rng::seed_from_u64(2));
    let mut played = Loop::new(knobs, lanes, took_ns);
    let mut at = 0.0;
    for ((req, length), gap) in (0..).zip(lengths).zip(gaps) {
        at += gap;
        while played.happen(Instant::from_ns(at as Ns)) {}
        if played.is_over() {
            break;
        }
        played.send(req, length);
    }
    played.served()
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

/// A window with buckets of this width.
fn bucketed(width: u32) -> Knobs {
    let queueing = QueueingKnobs { bucket_width: Some(width), ..QueueingKnobs::default() };
    Knobs { queueing, ..auto() }
}

/// Batches of any waiting requests, padded to the longest.
fn any_length() -> Knobs {
    bucketed(0)
}

fn exact_lengths() -> Knobs {
    bucketed(1)
}

/// `auto` without a profile: a window without delay.
fn auto() -> Knobs {
    knobs(Policy::Window(WindowKnobs::default()))
}

/// Each policy that batches, as configured by its name alone.
fn each_policy() -> impl Iterator<Item = Policy> {
    let grouped = DiversityKnobs { input: Some(InputDiversity::default()), ..DiversityKnobs::default() };
    let by_name = PolicyKind::over_batches().filter(|policy| *policy != Policy::Serial);
    by_name.chain([Policy::Diversity(grouped)])
}

/// Adds a profile of the device.
fn measured(knobs: Knobs, took_ns: Times) -> Knobs {
    let at = |_, rows, length| took_ns(rows, u32::try_from(length).expect("it is short"));
    Knobs { latencies: latencies(1, &[1, 2, 4, 8, 16, 32], &[8, 16, 32, 64, 128, 256], at), ..knobs }
}

/// `auto` with a profile.
fn profiled(took_ns: Times) -> Knobs {
    let (input, operator) = (Some(InputDiversity::default()), Some(OperatorDiversity::default()));
    measured(knobs(Policy::Diversity(DiversityKnobs { input, operator, load: None })), took_ns)
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
fn where_time_is_not_tokens_a_profile_shows_which_lengths_gain() {
    for (in_flight, lanes, workload) in LOADS {
        let rate = |knobs| serve(measured(knobs, by_length), lanes, in_flight, glue(workload), by_length).rate;
        let (auto, exact, any) = (rate(auto()), rate(exact_lengths()), rate(any_length()));
        let best = exact.max(any);
        assert!(auto >= 1.05 * best, "{workload}, {in_flight} in flight, {lanes} lanes: {auto} beside {best}");
    }
}

/// How `adaptive` begins changes a single load's rate by some hundredths: the mean of all loads has the closer bound.
#[test]
fn under_every_policy_lengths_share_batches_as_under_auto() {
    for took_ns in [tokens, half_fixed, fills_late] {
        let rates = |of: &dyn Fn() -> Knobs| {
            LOADS.map(|(in_flight, lanes, workload)| serve(of(), lanes, in_flight, glue(workload), took_ns).rate)
        };
        let auto = rates(&auto);
        for policy in each_policy() {
            let ratios: Vec<f64> =
                rates(&|| knobs(policy.clone())).iter().zip(auto).map(|(rate, auto)| rate / auto).collect();
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            assert!(mean >= 0.95 && ratios.iter().all(|&ratio| ratio >= 0.9), "{policy:?}: {ratios:?}");
        }
    }
}

#[test]
fn under_every_policy_requests_of_an_open_loop_wait_no_longer_than_under_auto() {
    // Where batches cost nothing, `adaptive` waits to fill them.
    for took_ns in [tokens, half_fixed] {
        for (lanes, workload) in [(1, "glue-short"), (2, "glue-short"), (1, "glue-pair"), (2, "glue-pair")] {
            let peak = serve(auto(), lanes, 64, glue(workload), took_ns).requests;
            let p99_ns = |knobs| offer(knobs, lanes, 0.6 * peak, glue(workload), took_ns).p99_ns as f64;
            let auto = p99_ns(auto());
            for policy in each_policy() {
                let ratio = p99_ns(knobs(policy.clone())) / auto;
                assert!(ratio <= 1.1, "{policy:?}, {workload}, {lanes} lanes: {ratio}");
            }
        }
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
