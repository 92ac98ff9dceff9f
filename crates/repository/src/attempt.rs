//! One load of a model: what ends it early, how long its trial runs may take, and the memory that it holds.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use paternoster_device::MemoryShortage;
use paternoster_engine::StopSignal;
use paternoster_observe::budget::{Budget, Reservation};
use tokio_util::sync::CancellationToken;

use super::{LoadError, LoadErrorKind};

/// Time limits of trial runs: warm-up requests, the example request of a model of cells, and runs that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialLimits {
    /// Limit of one run; `None`: no limit.
    pub each: Option<Duration>,
    /// Limit of all runs of a load together; `None`: no limit.
    pub all: Option<Duration>,
}

/// Memory of a card that a load lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct CardLack {
    /// The card's number in the driver.
    pub(super) card: u16,
    pub(super) shortage: MemoryShortage,
    /// Whether the load waits until others may leave. It does not if it can be served without cards.
    pub(super) may_wait: bool,
}

/// A load that is queued or in progress. Everything that works on it asks whether it has been stopped, at each point
/// where it would wait or begin something long.
pub struct LoadAttempt {
    stopped: CancellationToken,
    /// Ends trial runs.
    runs: StopSignal,
    end: OnceLock<EarlyEnd>,
    /// When the first trial run began.
    trials_began: OnceLock<Instant>,
    /// Budget of what clients send. `None` if everything comes from the repository, which the operator fills.
    budget: Option<Arc<Budget>>,
    kept: Arc<KeptMemory>,
    /// Bytes that its programs keep, as measured in separate processes.
    measured_bytes: AtomicUsize,
    /// Whether others may leave a card for it.
    may_make_card_room: AtomicBool,
    /// What it lacked on a card when it was tried last.
    card_lack: Mutex<Option<CardLack>>,
}

/// What ended a load early.
#[derive(Debug)]
struct EarlyEnd {
    reason: String,
    /// Whether a time limit has passed, rather than that the model is not wanted any more.
    is_late: bool,
}

impl EarlyEnd {
    fn error(&self) -> LoadError {
        let kind = if self.is_late { LoadErrorKind::TimedOut } else { LoadErrorKind::Stopped };
        LoadError::new(kind, self.reason.clone())
    }
}

/// Memory that the versions of a load keep reserved, until the last of them is dropped.
#[derive(Debug, Default)]
pub(super) struct KeptMemory(Mutex<Vec<Reservation>>);

impl LoadAttempt {
    /// Creates the attempt of a model that comes from its repository alone.
    pub fn of_repository() -> Arc<Self> {
        Arc::new(Self::new(None))
    }

    /// Creates the attempt of a model, or a configuration, that a client sent.
    pub fn of_client(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self::new(Some(Arc::clone(budget))))
    }

    fn new(budget: Option<Arc<Budget>>) -> Self {
        Self {
            stopped: CancellationToken::new(),
            runs: StopSignal::default(),
            end: OnceLock::new(),
            trials_began: OnceLock::new(),
            budget,
            kept: Arc::default(),
            measured_bytes: AtomicUsize::new(0),
            may_make_card_room: AtomicBool::new(false),
            card_lack: Mutex::default(),
        }
    }

    /// Ends the load early, because the model is not wanted any more. The first reason is the one that is reported.
    pub fn stop(&self, reason: impl Into<String>) {
        self.end(EarlyEnd { reason: reason.into(), is_late: false });
    }

    /// Ends the load early, because a time limit has passed: that is the model's fault.
    pub(super) fn stop_late(&self, reason: String) {
        self.end(EarlyEnd { reason, is_late: true });
    }

    fn end(&self, end: EarlyEnd) {
        // Ignored if another reason was first.
        let _ = self.end.set(end);
        self.stopped.cancel();
        self.runs.raise();
    }

    /// Checks that the load may go on.
    ///
    /// # Errors
    /// Returns the reason if it was stopped.
    pub fn check(&self) -> Result<(), LoadError> {
        self.end.get().map_or(Ok(()), |end| Err(end.error()))
    }

    /// Returns why the model is not wanted any more, if that ended the load.
    pub(super) fn unwanted(&self) -> Option<&str> {
        self.end.get().filter(|end| !end.is_late).map(|end| end.reason.as_str())
    }

    /// Returns whether a client sent a part of the model.
    pub(super) fn is_of_client(&self) -> bool {
        self.budget.is_some()
    }

    /// Waits until the load is stopped, and returns why.
    pub(super) async fn stopped(&self) -> LoadError {
        self.stopped.cancelled().await;
        self.end.get().map_or_else(|| LoadError::new(LoadErrorKind::Stopped, ""), EarlyEnd::error)
    }

    /// Waits for `what`, unless the load is stopped first.
    ///
    /// # Errors
    /// Returns the reason if it was stopped.
    pub(super) async fn unless_stopped<T>(&self, what: impl Future<Output = T>) -> Result<T, LoadError> {
        tokio::select! {
            biased;
            stopped = self.stopped() => Err(stopped),
            done = what => Ok(done),
        }
    }

    /// Runs a trial on the calling thread. It ends early if the load is stopped or a limit has passed; a limit also
    /// stops the load.
    ///
    /// # Errors
    /// Returns the reason if the load was stopped or a limit has passed, or else the run's own error.
    pub(super) fn trial<T>(
        &self,
        limits: TrialLimits,
        run: impl FnOnce(&StopSignal) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.check()?;
        let began = self.trials_began.get_or_init(Instant::now);
        let left = limits.all.map(|all| (all.saturating_sub(began.elapsed()), over_all(all)));
        let own = limits.each.map(|each| (each, over(each)));
        let Some((limit, reason)) = left.into_iter().chain(own).min_by_key(|(limit, _)| *limit) else {
            let result = run(&self.runs);
            return self.check().and(result);
        };
        let (ended, has_ended) = channel::<()>();
        let result = thread::scope(|scope| {
            let watch = move || {
                if has_ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    self.stop_late(reason);
                }
            };
            let thread = thread::Builder::new().name("paternoster-trial".to_owned());
            let cannot = |error| LoadError::internal(format!("cannot start a thread: {error}"));
            thread.spawn_scoped(scope, watch).map_err(cannot)?;
            let result = run(&self.runs);
            drop(ended);
            result
        });
        // The engine's own error only says that the run was asked to stop.
        self.check().and(result)
    }

    /// Returns a reservation for what a client sent, still empty. `None` for models of the repository.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        self.budget.as_ref().map(Reservation::none)
    }

    /// Reserves memory for what a client sent; nothing for models of the repository.
    ///
    /// # Errors
    /// Returns the reason, with the flag that sets the limit, if there is no room.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Option<Reservation>, LoadError> {
        let mut reservation = self.reservation();
        if let Some(reservation) = &mut reservation {
            grow(reservation, bytes)?;
        }
        Ok(reservation)
    }

    /// Keeps reserved what the versions of this load hold as long as they live.
    pub(super) fn keep(&self, reservations: Vec<Reservation>) {
        self.kept.0.lock().extend(reservations);
    }

    /// Adds what a program keeps, as measured in a separate process.
    pub(super) fn add_measured(&self, bytes: usize) {
        self.measured_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns what the programs keep; `None` if it was not measured.
    pub(super) fn measured(&self) -> Option<usize> {
        Some(self.measured_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Says whether others may leave a card for the load.
    pub(super) fn allow_card_room(&self, is_allowed: bool) {
        self.may_make_card_room.store(is_allowed, Ordering::Relaxed);
    }

    /// Begins to try the load, for the first time or again.
    pub(super) fn begin_try(&self) {
        self.measured_bytes.store(0, Ordering::Relaxed);
        *self.card_lack.lock() = None;
    }

    /// Records that a card lacks memory. Returns whether the load ends, because others may leave the card for it.
    pub(super) fn lacks_on_card(&self, lack: CardLack) -> bool {
        let may_make_room = self.may_make_card_room.load(Ordering::Relaxed);
        if may_make_room {
            *self.card_lack.lock() = Some(lack);
        }
        may_make_room
    }

    /// Returns what it lacked on a card when it was tried last, if others may leave that.
    pub(super) fn card_lack(&self) -> Option<CardLack> {
        *self.card_lack.lock()
    }

    /// Returns what is kept.
    pub(super) fn kept(&self) -> Arc<KeptMemory> {
        Arc::clone(&self.kept)
    }
}

/// Reserves `more` bytes for what a client sent.
///
/// # Errors
/// Returns the reason, with the flag that sets the limit, if there is no room.
pub(super) fn grow(reservation: &mut Reservation, more: usize) -> Result<(), LoadError> {
    let refused = |full| format!("no memory for the model (--max-sent-model-bytes): {full}");
    reservation.grow_now(more).map_err(|full| LoadError::new(LoadErrorKind::Limit, refused(full)))
}

impl fmt::Debug for LoadAttempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LoadAttempt").field("end", &self.end.get()).finish_non_exhaustive()
    }
}

fn over(limit: Duration) -> String {
    format!("a trial run has not ended within {limit:?} (--task-time-limit-secs, or batching.task_time_limit_ms)")
}

fn over_all(limit: Duration) -> String {
    format!("its trial runs have not ended within {limit:?} (--warmup-time-limit-secs)")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// Runs until it is asked to stop.
    fn endless(signal: &StopSignal) -> Result<(), LoadError> {
        while !signal.is_raised() {
            thread::yield_now();
        }
        Err(LoadError::engine("the run was asked to stop"))
    }

    #[test]
    fn an_endless_trial_ends_by_its_own_limit_or_by_that_of_all() {
        let short = Some(Duration::from_millis(20));
        let attempt = LoadAttempt::of_repository();
        let reason = attempt.trial(TrialLimits { each: short, all: Some(LONG) }, endless).unwrap_err();
        assert_eq!(reason.kind(), LoadErrorKind::TimedOut);
        let text = reason.to_string();
        assert!(text.starts_with("a trial run has not ended within 20ms (--task-time-limit-secs"), "{text}");
        assert_eq!((attempt.check(), attempt.unwanted()), (Err(reason), None), "the load is over, and has failed");

        let attempt = LoadAttempt::of_repository();
        let first = attempt.trial(TrialLimits { each: None, all: Some(LONG) }, |_| Ok(Instant::now()));
        let first = first.expect("it is short");
        while first.elapsed() < Duration::from_millis(20) {
            thread::yield_now();
        }
        let reason = attempt.trial(TrialLimits { each: Some(LONG), all: short }, endless).unwrap_err();
        assert_eq!(reason.to_string(), "its trial runs have not ended within 20ms (--warmup-time-limit-secs)");
    }

    #[test]
    fn a_stopped_load_ends_its_trial_and_begins_no_other() {
        let attempt = LoadAttempt::of_repository();
        let none = TrialLimits::default();
        thread::scope(|scope| {
            let running = scope.spawn(|| attempt.trial(none, endless));
            attempt.stop("its client left");
            attempt.stop("later");
            let stopped = LoadError::new(LoadErrorKind::Stopped, "its client left");
            assert_eq!(running.join().unwrap(), Err(stopped));
        });
        assert_eq!(attempt.trial(none, |_| -> Result<(), LoadError> { panic!("it must not run") }), attempt.check());
    }

    #[tokio::test]
    async fn a_stopped_load_waits_for_nothing() {
        let attempt = LoadAttempt::of_repository();
        assert_eq!(attempt.unless_stopped(async { 1 }).await, Ok(1));
        attempt.stop("its client left");
        let stopped = LoadError::new(LoadErrorKind::Stopped, "its client left");
        assert_eq!(attempt.unless_stopped(std::future::pending::<()>()).await, Err(stopped));
    }

    #[test]
    fn only_what_a_client_sent_takes_from_the_budget() {
        let budget = Budget::of(10);
        assert!(LoadAttempt::of_repository().reserve(11).expect("it is the operator's").is_none());
        let attempt = LoadAttempt::of_client(&budget);
        let mut first = attempt.reserve(8).expect("there is room").expect("a client's");
        let refused = attempt.reserve(3).unwrap_err();
        assert_eq!(refused.kind(), LoadErrorKind::Limit, "other loads may have room");
        let reason = refused.to_string();
        assert!(reason.ends_with("(--max-sent-model-bytes): 3 more are wanted where 8 of 10 are held"), "{reason}");
        first.shrink_to(2);
        attempt.keep(vec![first]);
        let versions = [attempt.kept(), attempt.kept()];
        drop(attempt);
        assert_eq!((budget.used(), budget.refused()), (2, 1), "the versions have it");
        drop(versions);
        assert_eq!(budget.used(), 0);
    }
}
