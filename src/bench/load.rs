//! Open and closed loops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    bench::{Target, answers::Work},
    report::Latencies,
    workload::Arrivals,
};

/// How requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// At their own times, whether earlier ones are answered or not. A latency counts from the time at which a request
    /// was to be sent.
    Open(Arrivals),
    /// So many clients send their next request when the last one is answered. A latency counts from there.
    Closed {
        /// Requests in flight.
        concurrency: usize,
    },
}

impl Load {
    /// The same at so many times the rate; closed loops have none.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Open(arrivals) => match arrivals.mean_rate() {
                Some(rate) => Self::Open(arrivals.scaled(rate * factor)),
                None => Self::Open(arrivals),
            },
            closed @ Self::Closed { .. } => closed,
        }
    }
}

/// How long a load lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// What an open loop sends, and what a closed loop is answered, in the first of the time is not counted. Recorded
    /// arrivals count from the first.
    pub warm_up: Duration,
    /// What is sent, or answered, then is counted; `None` is for recorded arrivals: until they end.
    pub measured: Option<Duration>,
    /// How long a closed loop waits for an answer, and an open loop at the end for all; then a request has failed.
    pub patience: Duration,
    /// Whether the latency of each request is kept too.
    pub keeps_each: bool,
}

/// A right answer to a counted request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// When the request was to be sent, in seconds from the first counted time; in a closed loop it may have been
    /// before that.
    pub sent_s: f64,
    /// How long it took from there.
    pub latency_ns: u64,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Latencies of right answers to counted requests.
    pub latencies: Latencies,
    /// Answers that were not the right ones, counted from the very first request.
    pub wrong: u64,
    /// Requests without an answer, counted from the very first.
    pub failed: u64,
    /// What was wrong first.
    pub first_fault: Option<String>,
    /// From the first counted time to the end, or to the last counted answer if that was later.
    pub seconds: f64,
    /// Each of the latencies, in the order of the answers, where they are kept.
    pub each: Vec<Answered>,
}

impl Figures {
    /// Right answers per second.
    pub fn throughput(&self) -> f64 {
        self.latencies.count() as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Right answers per second that came within the objective.
    pub fn goodput(&self, objective_ns: u64) -> f64 {
        self.latencies.count_within(objective_ns) as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Wrong answers and failed requests.
    pub fn errors(&self) -> u64 {
        self.wrong + self.failed
    }

    /// Adds another run's, but for each single one.
    pub fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.seconds += other.seconds;
        if self.first_fault.is_none() {
            self.first_fault.clone_from(&other.first_fault);
        }
    }
}

/// Puts a load on a target and checks every answer. The seed fixes when open loops send.
pub async fn run(target: &Target, work: &Arc<Work>, load: &Load, timing: Timing, seed: u64) -> Figures {
    match load {
        Load::Open(arrivals) => open(target, work, arrivals, timing, seed, Instant::now()).await,
        Load::Closed { concurrency } => closed(target, work, *concurrency, timing, Instant::now()).await,
    }
}

/// Figures while they come in.
struct Tally {
    figures: Mutex<(Figures, Instant)>,
    begin: Instant,
    keeps_each: bool,
}

impl Tally {
    fn new(begin: Instant, timing: Timing) -> Arc<Self> {
        Arc::new(Self { figures: Mutex::new((Figures::default(), begin)), begin, keeps_each: timing.keeps_each })
    }

    /// Counts what became of a request: with `since`, also how long it took.
    fn count(
        &self,
        work: &Work,
        number: usize,
        answer: Result<super::Answer, String>,
        answered: Instant,
        since: Option<Instant>,
    ) {
        let answer = answer.map(|outputs| work.check(number, &outputs));
        let mut counted = self.figures.lock();
        let (figures, last) = &mut *counted;
        match answer {
            Ok(Ok(())) => {
                if let Some(since) = since {
                    let latency_ns = ns(answered.saturating_duration_since(since));
                    figures.latencies.record(latency_ns);
                    *last = answered.max(*last);
                    if self.keeps_each {
                        let (after, before) = (since.duration_since(self.begin), self.begin.duration_since(since));
                        figures.each.push(Answered { sent_s: after.as_secs_f64() - before.as_secs_f64(), latency_ns });
                    }
                }
            }
            Ok(Err(difference)) => {
                figures.wrong += 1;
                figures.first_fault.get_or_insert(format!("wrong answer: {difference}"));
            }
            Err(reason) => {
                figures.failed += 1;
                figures.first_fault.get_or_insert(format!("failed request: {reason}"));
            }
        }
    }

    fn figures(&self, end: Instant) -> Figures {
        let mut counted = self.figures.lock();
        let last = counted.1;
        let seconds = last.max(end).saturating_duration_since(self.begin).as_secs_f64();
        Figures { seconds, ..std::mem::take(&mut counted.0) }
    }
}

/// An open loop whose times count from `start`, which may be past: then it is late.
pub(super) async fn open(
    target: &Target,
    work: &Arc<Work>,
    arrivals: &Arrivals,
    timing: Timing,
    seed: u64,
    start: Instant,
) -> Figures {
    let recorded = matches!(arrivals, Arrivals::At(_));
    let warm_up = if recorded { Duration::ZERO } else { timing.warm_up };
    let measured = timing.measured.or((!recorded).then_some(Duration::ZERO));
    let until_ns = measured.map_or(u64::MAX, |measured| ns(warm_up + measured));
    let begin = start + warm_up;
    let tally = Tally::new(begin, timing);
    let times = arrivals.times(seed).take_while(move |at| *at < until_ns);
    let pacer = Pacer { target: target.clone(), work: Arc::clone(work), tally: Arc::clone(&tally), start, begin };
    let runtime = Handle::current();
    // A thread of its own, because it sleeps to the exact times, which a runtime's timer rounds to milliseconds.
    let paced = tokio::task::spawn_blocking(move || pacer.send(times, &runtime)).await;
    let (mut in_flight, last_due) = paced.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    let answered = async { while in_flight.join_next().await.is_some() {} };
    if tokio::time::timeout(timing.patience, answered).await.is_err() {
        let mut counted = tally.figures.lock();
        counted.0.failed += in_flight.len() as u64;
        let reason = format!("failed request: no answer within {:?} after the last was sent", timing.patience);
        counted.0.first_fault.get_or_insert(reason);
    }
    let end = timing.measured.filter(|_| !recorded).map_or(last_due, |measured| begin + measured);
    tally.figures(end)
}

/// Sends at the times that are due.
struct Pacer {
    target: Target,
    work: Arc<Work>,
    tally: Arc<Tally>,
    start: Instant,
    begin: Instant,
}

impl Pacer {
    /// Sends at all times; what is not answered yet, and when the last one was due.
    #[expect(clippy::disallowed_methods, reason = "arrivals of an open loop come by the clock")]
    fn send(self, times: impl Iterator<Item = u64>, runtime: &Handle) -> (JoinSet<()>, Instant) {
        let mut in_flight = JoinSet::new();
        let mut due = self.start;
        for (number, at) in times.enumerate() {
            due = self.start + Duration::from_nanos(at);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let answer = {
                let _entered = runtime.enter();
                self.target.send(self.work.sample(number))
            };
            let (work, tally) = (Arc::clone(&self.work), Arc::clone(&self.tally));
            let since = (due >= self.begin).then_some(due);
            in_flight.spawn_on(
                async move {
                    let answer = answer.await;
                    tally.count(&work, number, answer, Instant::now(), since);
                },
                runtime,
            );
            while in_flight.try_join_next().is_some() {}
        }
        (in_flight, due.max(self.begin))
    }
}

/// A closed loop whose warm-up counts from `start`.
pub(super) async fn closed(
    target: &Target,
    work: &Arc<Work>,
    concurrency: usize,
    timing: Timing,
    start: Instant,
) -> Figures {
    let begin = start + timing.warm_up;
    let end = begin + timing.measured.unwrap_or_default();
    let tally = Tally::new(begin, timing);
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let (target, work, tally, next) = (target.clone(), Arc::clone(work), Arc::clone(&tally), Arc::clone(&next));
        clients.spawn(async move {
            loop {
                let sent = Instant::now();
                if sent >= end {
                    return;
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                let answer = tokio::time::timeout(timing.patience, target.send(work.sample(number))).await;
                let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {:?}", timing.patience)));
                let answered = Instant::now();
                // Those sent then would be fewer than what is carried, by all that are in flight at its end.
                let counts = (begin..=end).contains(&answered);
                let failed = answer.is_err();
                tally.count(&work, number, answer, answered, counts.then_some(sent));
                if failed {
                    // Refusals come at once: a client that went on would do nothing but collect them.
                    return;
                }
            }
        });
    }
    while clients.join_next().await.is_some() {}
    tally.figures(end)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
