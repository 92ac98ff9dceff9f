//! Open-loop and closed-loop load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use paternoster_lab::{report::Latencies, workload::Arrivals};
use tokio::{runtime::Handle, task::JoinSet};

use crate::{Meter, Target, checked_requests::CheckedRequests};

/// Arrival process of requests, or of sequences of requests. Each request of a sequence is sent when the one before it
/// is answered, and not before its turn by [`Timing::interval`].
#[derive(Clone, Debug, PartialEq)]
pub enum LoadPattern {
    /// Open loop: requests are sent at the times of an arrival process, whether or not earlier ones are answered.
    /// Latency counts from the scheduled time, so that a late sender does not hide queueing (coordinated omission).
    Open(Arrivals),
    /// Closed loop: each client sends its next request when the previous one is answered. Latency counts from sending,
    /// or from the request's turn in its sequence if the previous answer came later than that.
    Closed {
        /// Number of clients, and so of requests in flight.
        concurrency: usize,
    },
}

impl LoadPattern {
    /// Multiplies the rate of an open loop by `factor`. Closed loops are returned unchanged.
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

/// Duration of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Initial time that is not counted: requests scheduled (open loop) or answered (closed loop) in it are ignored.
    /// Recorded arrivals count from the first.
    pub warm_up: Duration,
    /// Time that is counted, after the warm-up; `None` for recorded arrivals, which are counted to their end.
    pub measured: Option<Duration>,
    /// Time limit of a response: for each request in a closed loop, after the last request in an open loop. Requests
    /// without a response by then have failed.
    pub patience: Duration,
    /// Whether to keep the latency of each request.
    pub keeps_each: bool,
    /// Time between the requests of a sequence, as of a live stream. Zero: each follows the response before it.
    pub interval: Duration,
}

impl Timing {
    /// Waits until the request of a sequence with this number is due, if the sequence began at `first`. Returns the
    /// time from which its latency counts.
    async fn turn(&self, first: Instant, step: usize) -> Instant {
        if self.interval.is_zero() {
            return Instant::now();
        }
        let due = first + self.interval * u32::try_from(step).unwrap_or(u32::MAX);
        if due <= Instant::now() {
            return due;
        }
        tokio::time::sleep_until(due.into()).await;
        // The timer of the runtime is exact to a millisecond, which is not the server's.
        Instant::now()
    }

    /// Returns the initial time that is not counted, of recorded or of other arrivals.
    fn uncounted(&self, recorded: bool) -> Duration {
        if recorded { Duration::ZERO } else { self.warm_up }
    }
}

/// A correct answer to a counted request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// Scheduled send time, in seconds from the start of the counted time. Negative in a closed loop if the request was
    /// sent during the warm-up.
    pub sent_s: f64,
    /// Latency from `sent_s`.
    pub latency_ns: u64,
}

/// Results of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadFigures {
    /// Latencies of correct answers to counted requests.
    pub latencies: Latencies,
    /// Number of wrong answers, including those during the warm-up.
    pub wrong: u64,
    /// Number of requests without a response, including those during the warm-up.
    pub failed: u64,
    /// The first wrong answer or failure.
    pub first_fault: Option<String>,
    /// Seconds from the start of the counted time to its end, or to the last counted answer if that is later.
    pub seconds: f64,
    /// Energy in joules during the counted time; `None` if it is not measured.
    pub joules: Option<f64>,
    /// Latency of each request, in the order of the answers, if they are kept.
    pub each: Vec<Answered>,
}

impl LoadFigures {
    /// Returns correct answers per second.
    pub fn throughput(&self) -> f64 {
        self.latencies.count() as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns correct answers per second whose latency is within the objective.
    pub fn goodput(&self, objective_ns: u64) -> f64 {
        self.latencies.count_within(objective_ns) as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the energy in joules of a counted request; `None` if it is not measured or there was no request.
    pub fn joules_per_request(&self) -> Option<f64> {
        let requests = self.latencies.count();
        self.joules.filter(|_| requests > 0).map(|joules| joules / requests as f64)
    }

    /// Returns the number of wrong answers and failed requests.
    pub fn errors(&self) -> u64 {
        self.wrong + self.failed
    }

    /// Adds the figures of another run, except [`Self::joules`] and [`Self::each`].
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

/// Runs a load on a target and checks every response. The seed determines the send times of open loops.
pub async fn run(
    target: &Target,
    work: &Arc<CheckedRequests>,
    load: &LoadPattern,
    timing: Timing,
    seed: u64,
) -> LoadFigures {
    run_metered(target, work, load, timing, seed, None).await
}

/// As [`run`], with the energy that `meter` counts.
pub async fn run_metered(
    target: &Target,
    work: &Arc<CheckedRequests>,
    load: &LoadPattern,
    timing: Timing,
    seed: u64,
    meter: Option<&Meter>,
) -> LoadFigures {
    let start = Instant::now();
    let begin = start + timing.uncounted(matches!(load, LoadPattern::Open(Arrivals::At(_))));
    let before = meter.map(|meter| meter.at(begin));
    // A closed loop ends with requests whose answers are not counted.
    let ends = matches!(load, LoadPattern::Closed { .. }).then(|| begin + timing.measured.unwrap_or_default());
    let after = meter.zip(ends).map(|(meter, end)| meter.at(end));
    let mut figures = match load {
        LoadPattern::Open(arrivals) => open(target, work, arrivals, timing, seed, start).await,
        LoadPattern::Closed { concurrency } => closed(target, work, *concurrency, timing, start).await,
    };
    if let (Some(meter), Some(before)) = (meter, before) {
        let before = before.await.ok().flatten();
        let after = match after {
            Some(after) => after.await.ok().flatten(),
            None => meter.now(),
        };
        figures.joules = before.zip(after).map(|(before, after)| after - before);
    }
    figures
}

/// Figures during a run.
struct Tally {
    figures: Mutex<(LoadFigures, Instant)>,
    begin: Instant,
    keeps_each: bool,
}

impl Tally {
    fn new(begin: Instant, timing: Timing) -> Arc<Self> {
        Arc::new(Self { figures: Mutex::new((LoadFigures::default(), begin)), begin, keeps_each: timing.keeps_each })
    }

    /// Counts the outcome of a request. If `since` is given, the request is counted and its latency recorded.
    fn count(
        &self,
        work: &CheckedRequests,
        number: usize,
        answer: Result<super::ResponseTensors, String>,
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

    fn figures(&self, end: Instant) -> LoadFigures {
        let mut counted = self.figures.lock();
        let last = counted.1;
        let seconds = last.max(end).saturating_duration_since(self.begin).as_secs_f64();
        LoadFigures { seconds, ..std::mem::take(&mut counted.0) }
    }
}

/// Runs an open loop whose times count from `start`. If `start` is past, requests are sent late.
pub(super) async fn open(
    target: &Target,
    work: &Arc<CheckedRequests>,
    arrivals: &Arrivals,
    timing: Timing,
    seed: u64,
    start: Instant,
) -> LoadFigures {
    let recorded = matches!(arrivals, Arrivals::At(_));
    let warm_up = timing.uncounted(recorded);
    let measured = timing.measured.or((!recorded).then_some(Duration::ZERO));
    let until_ns = measured.map_or(u64::MAX, |measured| ns(warm_up + measured));
    let begin = start + warm_up;
    let tally = Tally::new(begin, timing);
    let times = arrivals.times(seed).take_while(move |at| *at < until_ns);
    let (target, work) = (target.clone(), Arc::clone(work));
    let pacer = Pacer { target, work, tally: Arc::clone(&tally), timing, start, begin };
    let runtime = Handle::current();
    // Uses a blocking thread, because it sleeps until the exact times, which a runtime's timer rounds to milliseconds.
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

/// Sends requests at their scheduled times.
struct Pacer {
    target: Target,
    work: Arc<CheckedRequests>,
    tally: Arc<Tally>,
    timing: Timing,
    start: Instant,
    begin: Instant,
}

impl Pacer {
    /// Sends all requests. Returns the requests that are not answered yet, and the scheduled time of the last one.
    #[expect(clippy::disallowed_methods, reason = "arrivals of an open loop come by the clock")]
    fn send(self, times: impl Iterator<Item = u64>, runtime: &Handle) -> (JoinSet<()>, Instant) {
        let mut in_flight = JoinSet::new();
        let mut due = self.start;
        for (arrival, at) in times.enumerate() {
            due = self.start + Duration::from_nanos(at);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let id = self.work.new_sequence();
            let first = {
                let _entered = runtime.enter();
                self.work.send(&self.target, id, self.work.number(arrival, 0))
            };
            let (target, work, tally) = (self.target.clone(), Arc::clone(&self.work), Arc::clone(&self.tally));
            let mut since = (due >= self.begin).then_some(due);
            let timing = self.timing;
            in_flight.spawn_on(
                async move {
                    let mut pending = first;
                    for step in 0..work.per_arrival() {
                        let number = work.number(arrival, step);
                        if step > 0 {
                            let turn = timing.turn(due, step).await;
                            since = since.map(|_| turn);
                            pending = work.send(&target, id, number);
                        }
                        let answer = pending.as_mut().await;
                        let failed = answer.is_err();
                        tally.count(&work, number, answer, Instant::now(), since);
                        if failed {
                            return;
                        }
                    }
                },
                runtime,
            );
            while in_flight.try_join_next().is_some() {}
        }
        (in_flight, due.max(self.begin))
    }
}

/// Runs a closed loop whose warm-up starts at `start`.
pub(super) async fn closed(
    target: &Target,
    work: &Arc<CheckedRequests>,
    concurrency: usize,
    timing: Timing,
    start: Instant,
) -> LoadFigures {
    let begin = start + timing.warm_up;
    let end = begin + timing.measured.unwrap_or_default();
    let tally = Tally::new(begin, timing);
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..concurrency {
        let (target, work, tally, next) = (target.clone(), Arc::clone(work), Arc::clone(&tally), Arc::clone(&next));
        clients.spawn(async move {
            let (mut arrival, mut id, mut step) = (0, 0, 0);
            // Streams do not begin together, so that their requests come evenly.
            let mut first = start + timing.interval.mul_f64(client as f64 / concurrency as f64);
            loop {
                let sent = timing.turn(first, step).await;
                // A turn that is long past is not counted any more either.
                if sent >= end || Instant::now() >= end {
                    if step > 0 {
                        // Ends the sequence, which would hold a slot of the server until it is idle for long.
                        let last = work.number(arrival, work.per_arrival() - 1);
                        drop(tokio::time::timeout(timing.patience, work.send(&target, id, last)).await);
                    }
                    return;
                }
                if step == 0 {
                    (arrival, id) = (next.fetch_add(1, Ordering::Relaxed), work.new_sequence());
                }
                let number = work.number(arrival, step);
                step = (step + 1) % work.per_arrival();
                if step == 0 {
                    first += timing.interval * u32::try_from(work.per_arrival()).unwrap_or(u32::MAX);
                }
                let answer = tokio::time::timeout(timing.patience, work.send(&target, id, number)).await;
                let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {:?}", timing.patience)));
                let answered = Instant::now();
                // Counts answers rather than sends: the requests sent within the window exclude those in flight at its
                // end, so their number would understate the throughput.
                let counts = (begin..=end).contains(&answered);
                let failed = answer.is_err();
                tally.count(&work, number, answer, answered, counts.then_some(sent));
                if failed {
                    // Rejections are immediate, so a client that continued would only collect rejections.
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
