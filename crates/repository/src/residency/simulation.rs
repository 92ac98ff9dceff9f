//! Simulates the rule with Zipf traffic in virtual time, beside plain least-recently-used and the offline optimum. The
//! figures of docs/benchmarks/on-demand.md are what these tests print with `--nocapture`.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use super::*;

const MODELS: usize = 300;
const BUDGET: usize = 40;
const CLIENTS: usize = 16;
const REQUESTS: usize = 10_000;
/// Loads that run side by side, as `--model-load-thread-count` has it by default.
const LOADERS: usize = 4;
const LOAD: Duration = Duration::from_millis(100);
const RUN: Duration = Duration::from_millis(2);
/// Time between two looks at whether a model may leave.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait of a request for its model.
const PATIENCE: Duration = Duration::from_secs(60);

/// What decides who leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decides {
    /// The rule; a request waits until there is room.
    Rule,
    /// The rule; a request for which there is no room is refused at once.
    RuleWithoutWaiting,
    /// The least recently used model leaves, however short a time it has stayed.
    Lru,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    answered: usize,
    refused: usize,
    loads: usize,
    /// Virtual time of the run.
    took: Duration,
    /// Longest wait of an answered request for its model.
    longest_wait: Duration,
}

impl Figures {
    /// Returns the share of answered requests that began no load, in percent.
    fn hit_rate(&self) -> f64 {
        100.0 - 100.0 * self.loads as f64 / self.answered as f64
    }

    fn rate(&self) -> f64 {
        self.answered as f64 / self.took.as_secs_f64()
    }
}

/// Draws a trace of models whose popularity follows Zipf's law with this exponent.
fn zipf(exponent: f64, seed: u64) -> Vec<usize> {
    let sums = (1..=MODELS).scan(0.0, |sum, rank| {
        *sum += (rank as f64).powf(-exponent);
        Some(*sum)
    });
    let sums: Vec<f64> = sums.collect();
    let mut state = seed;
    let mut draw = || {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let model = |_| {
        let drawn = draw() * sums[MODELS - 1];
        sums.partition_point(|sum| *sum <= drawn).min(MODELS - 1)
    };
    (0..REQUESTS).map(model).collect()
}

/// Returns the loads of the offline optimum (Belady 1966), which evicts the model whose next use is farthest away.
fn belady(trace: &[usize], budget: usize) -> usize {
    let mut next_use = vec![usize::MAX; trace.len()];
    let mut seen = BTreeMap::new();
    for (at, model) in trace.iter().enumerate().rev() {
        next_use[at] = seen.insert(model, at).unwrap_or(usize::MAX);
    }
    let (mut loaded, mut by_next_use, mut loads) = (BTreeMap::new(), BTreeSet::new(), 0);
    for (&model, next) in trace.iter().zip(next_use) {
        match loaded.insert(model, next) {
            Some(now) => drop(by_next_use.remove(&(now, model))),
            None => loads += 1,
        }
        by_next_use.insert((next, model));
        if loaded.len() > budget
            && let Some((_, farthest)) = by_next_use.pop_last()
        {
            loaded.remove(&farthest);
        }
    }
    loads
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answered {
        client: usize,
        model: usize,
    },
    Ask {
        client: usize,
    },
    Loaded {
        model: usize,
    },
    /// Something may have become free to leave.
    Look,
}

/// A model that is loaded or waited for.
#[derive(Default)]
struct State {
    resident: Option<Resident>,
    uses: Uses,
    /// Whether it takes no further requests, because it is to make room.
    is_draining: bool,
    running: usize,
    waiting: Vec<(usize, Duration)>,
}

/// Clients that send one request after the other, each for the model that `next` says.
struct Run<N> {
    decides: Decides,
    budget: usize,
    next: N,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    models: BTreeMap<usize, State>,
    /// Models that wait for room, and those with room that wait for a loader.
    without_room: VecDeque<(usize, Duration)>,
    queued: VecDeque<usize>,
    loading: usize,
    loaded: usize,
    /// When the next [`Event::Look`] is due; past once it was.
    next_look: Duration,
    figures: Figures,
}

impl<N: FnMut(usize) -> Option<usize>> Run<N> {
    /// Simulates clients that think for a while after each response.
    fn figures(decides: Decides, budget: usize, (clients, think): (usize, Duration), next: N) -> Figures {
        let mut run = Self {
            decides,
            budget,
            next,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            models: BTreeMap::new(),
            without_room: VecDeque::new(),
            queued: VecDeque::new(),
            loading: 0,
            loaded: 0,
            next_look: Duration::ZERO,
            figures: Figures::default(),
        };
        (0..clients).for_each(|client| run.ask(client));
        run.make_room();
        while let Some(Reverse((at, event))) = run.events.pop() {
            run.now = at;
            match event {
                Event::Answered { client, model } => {
                    run.models.entry(model).or_default().running -= 1;
                    run.figures.answered += 1;
                    run.events.push(Reverse((run.now + think, Event::Ask { client })));
                }
                Event::Ask { client } => run.ask(client),
                Event::Loaded { model } => {
                    run.loading -= 1;
                    run.loaded += 1;
                    run.serve(model);
                }
                Event::Look => {}
            }
            run.make_room();
            run.check();
        }
        Figures { took: run.now, ..run.figures }
    }

    /// Sends a client's next request.
    fn ask(&mut self, client: usize) {
        let Some(model) = (self.next)(client) else { return };
        let state = self.models.entry(model).or_default();
        if let Some(resident) = state.resident.as_mut().filter(|_| !state.is_draining) {
            resident.last_used = self.now;
            state.uses = state.uses.with_one(self.now);
            state.running += 1;
            self.events.push(Reverse((self.now + RUN, Event::Answered { client, model })));
            return;
        }
        state.waiting.push((client, self.now));
        if state.waiting.len() == 1 && !state.is_draining {
            self.without_room.push_back((model, self.now));
        }
    }

    /// Answers the requests that waited for a model.
    fn serve(&mut self, model: usize) {
        let state = self.models.entry(model).or_default();
        let waiting = std::mem::take(&mut state.waiting);
        state.resident = Some(Resident {
            name: model.to_string(),
            bytes: 1,
            loaded_at: self.now,
            load_took: LOAD,
            last_used: self.now,
            uses: Uses::default(),
            hold: None,
            needed_by: Vec::new(),
        });
        for (client, since) in waiting {
            state.running += 1;
            self.figures.longest_wait = self.figures.longest_wait.max(self.now - since);
            self.events.push(Reverse((self.now + RUN, Event::Answered { client, model })));
        }
    }

    fn residents(&self) -> Vec<Resident> {
        let loaded = self.models.values().filter_map(|state| {
            let resident = state.resident.as_ref()?.clone();
            // Plain LRU lets no model drain.
            let busy = if self.decides == Decides::Lru { Hold::Sequences(1) } else { Hold::Busy };
            let hold = (state.running > 0).then_some(busy);
            let (load_took, uses) = match self.decides {
                Decides::Lru => (Duration::ZERO, Uses::default()),
                Decides::Rule | Decides::RuleWithoutWaiting => (resident.load_took, state.uses),
            };
            Some(Resident { hold, load_took, uses, ..resident })
        });
        loaded.collect()
    }

    fn used(&self) -> usize {
        self.loaded + self.loading + self.queued.len()
    }

    fn make_room(&mut self) {
        while let Some((model, since)) = self.without_room.pop_front() {
            let uses = 1.0 + self.models[&model].uses.count_at(self.now);
            let wanted = Wanted { bytes: 1, uses, since, longest_wait: PATIENCE / 4 };
            match room(self.budget, self.used(), wanted, &self.residents(), self.now) {
                Room::Free => self.queued.push_back(model),
                Room::Unload(names) => {
                    let names: Vec<usize> = names.iter().map(|name| name.parse().expect("a number")).collect();
                    if names.iter().any(|name| self.models[name].running > 0) {
                        for name in names {
                            self.models.entry(name).or_default().is_draining = true;
                        }
                        // Looks again at the next answer.
                        self.without_room.push_front((model, since));
                        break;
                    }
                    for name in names {
                        let state = self.models.entry(name).or_default();
                        (state.resident, state.is_draining) = (None, false);
                        self.loaded -= 1;
                        if !state.waiting.is_empty() {
                            self.without_room.push_back((name, self.now));
                        }
                    }
                    self.queued.push_back(model);
                }
                Room::Never => panic!("every model fits"),
                Room::Wait { .. } if self.decides == Decides::RuleWithoutWaiting || self.now >= since + PATIENCE => {
                    for (client, _) in std::mem::take(&mut self.models.entry(model).or_default().waiting) {
                        self.figures.refused += 1;
                        // A client that is refused does something else for as long as a request takes.
                        self.refused(client);
                    }
                }
                Room::Wait { until } => {
                    let look = until.unwrap_or(self.now + LOOK).min(since + PATIENCE);
                    if self.next_look <= self.now || look < self.next_look {
                        self.next_look = look;
                        self.events.push(Reverse((look, Event::Look)));
                    }
                    self.without_room.push_front((model, since));
                    // The others want as much as this one.
                    break;
                }
            }
        }
        while self.loading < LOADERS
            && let Some(model) = self.queued.pop_front()
        {
            self.loading += 1;
            self.figures.loads += 1;
            self.events.push(Reverse((self.now + LOAD, Event::Loaded { model })));
        }
    }

    fn refused(&mut self, client: usize) {
        // Counted as a model that no other request is for, so that its end asks for the next.
        let idle = MODELS + client;
        self.models.entry(idle).or_default().running += 1;
        self.figures.answered -= 1;
        self.events.push(Reverse((self.now + RUN, Event::Answered { client, model: idle })));
    }

    fn check(&self) {
        let used = self.used();
        assert!(used <= self.budget, "{used} of {} are used", self.budget);
    }
}

fn simulated(decides: Decides, trace: &[usize]) -> Figures {
    let mut trace = trace.iter().copied();
    Run::figures(decides, BUDGET, (CLIENTS, Duration::ZERO), |_| trace.next())
}

/// Two clients, each of which asks for another model, where one has room. Both think longer than a request takes, so
/// that the other model could leave after each request.
fn two_that_evict_each_other(decides: Decides) -> Figures {
    let mut left = [500; 2];
    Run::figures(decides, 1, (2, 5 * RUN), |client| {
        left[client] -= 1;
        (left[client] >= 0).then_some(client)
    })
}

#[test]
fn the_rule_is_no_worse_than_lru_under_zipf_traffic_and_refuses_nothing() {
    the_rule_is_no_worse_than_lru(&[1.0]);
}

#[test]
#[ignore = "a sweep: make nightly"]
fn the_rule_is_no_worse_than_lru_whatever_the_exponent_and_refuses_nothing() {
    the_rule_is_no_worse_than_lru(&[0.8, 1.0, 1.2]);
}

fn the_rule_is_no_worse_than_lru(exponents: &[f64]) {
    println!("| exponent | | hit rate | loads | refused | requests/s | longest wait |");
    println!("|---|---|---|---|---|---|---|");
    for &exponent in exponents {
        let trace = zipf(exponent, 1);
        let lru = simulated(Decides::Lru, &trace);
        let rule = simulated(Decides::Rule, &trace);
        let without_waiting = simulated(Decides::RuleWithoutWaiting, &trace);
        for (name, figures) in [("the rule", rule), ("refusing at once", without_waiting), ("plain LRU", lru)] {
            println!(
                "| {exponent} | {name} | {:.1} % | {} | {} | {:.0} | {:.1} s |",
                figures.hit_rate(),
                figures.loads,
                figures.refused,
                figures.rate(),
                figures.longest_wait.as_secs_f64()
            );
        }
        let optimum = belady(&trace, BUDGET);
        let optimal = Figures { loads: optimum, answered: REQUESTS, ..Figures::default() };
        println!("| {exponent} | offline optimum | {:.1} % | {optimum} | | | |", optimal.hit_rate());

        assert_eq!((rule.answered, rule.refused), (REQUESTS, 0), "{exponent}: every request is answered");
        assert!(rule.hit_rate() > lru.hit_rate() - 2.0, "{exponent}: {rule:?} {lru:?}");
        assert!(rule.hit_rate() < optimal.hit_rate(), "{exponent}: nothing is better than the optimum");
        assert!(rule.longest_wait < PATIENCE, "{exponent}: {rule:?}");
    }
}

#[test]
fn two_models_that_evict_each_other_cost_a_tenth_of_the_time_at_most() {
    println!("| two models, room for one | loads | refused | requests/s | longest wait |");
    println!("|---|---|---|---|---|");
    let [rule, lru] = [Decides::Rule, Decides::Lru].map(two_that_evict_each_other);
    for (name, figures) in [("the rule", rule), ("plain LRU", lru)] {
        let Figures { loads, refused, longest_wait, .. } = figures;
        let wait = longest_wait.as_secs_f64();
        println!("| {name} | {loads} | {refused} | {:.0} | {wait:.1} s |", figures.rate());
    }
    assert_eq!((rule.answered, rule.refused), (1000, 0));
    let loading = LOAD * u32::try_from(rule.loads).expect("few");
    assert!(loading * STAY_FACTOR <= rule.took + LOAD * STAY_FACTOR, "{rule:?}");
    assert!(rule.loads <= lru.loads, "{rule:?} {lru:?}");
}

#[test]
fn a_model_that_always_has_requests_and_another_have_their_turns() {
    const FOR: Duration = Duration::from_secs(100);
    // Three clients that wait for nothing use one model, and one the other.
    let mut answered = [0; 2];
    let mut left = FOR.div_duration_f64(RUN) as i64;
    let figures = Run::figures(Decides::Rule, 1, (4, Duration::ZERO), |client| {
        let model = usize::from(client == 3);
        answered[model] += 1;
        left -= 1;
        (left > 0).then_some(model)
    });
    println!("room for one: {answered:?} requests of each, {} loads in {:?}", figures.loads, figures.took);
    let [busy, other] = answered;
    assert!(busy < 5 * other, "the three have three times as many requests in equal times: {answered:?}");
    assert!(figures.longest_wait < STAY_FACTOR * 2 * LOAD + 2 * LOAD, "{figures:?}");
}
