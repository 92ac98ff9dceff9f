//! The progress line of `paternoster bench`, with an estimate of the time left.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use parking_lot::Mutex;

/// A progress line, shown if there is a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    estimate: Arc<Mutex<Estimate>>,
}

impl Progress {
    /// Starts the line for runs that are planned to take these times, in their order.
    pub(super) fn start(planned: impl Iterator<Item = Duration>) -> Self {
        let planned: Vec<Duration> = planned.collect();
        let bar = ProgressBar::new(planned.len() as u64);
        let estimate = Arc::new(Mutex::new(Estimate::new(planned, Instant::now())));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}/{len} {msg} {elapsed} (about {left} left)") {
            let shown = Arc::clone(&estimate);
            let left = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                let left = shown.lock().left(Instant::now());
                // What cannot be written is not shown.
                let _ = write!(out, "{:#}", HumanDuration(left));
            };
            bar.set_style(style.with_key("left", left));
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, estimate }
    }

    pub(super) fn show(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Records the end of a run.
    pub(super) fn ran(&self) {
        self.estimate.lock().ran(Instant::now());
        self.bar.inc(1);
    }

    pub(super) fn clear(self) {
        self.bar.finish_and_clear();
    }
}

/// Estimates the time that is left: runs have planned times, and so far they took longer by some factor.
#[derive(Debug)]
struct Estimate {
    planned: Vec<Duration>,
    done: usize,
    began: Instant,
    /// End of the last run.
    since: Instant,
}

impl Estimate {
    fn new(planned: Vec<Duration>, now: Instant) -> Self {
        Self { planned, done: 0, began: now, since: now }
    }

    fn ran(&mut self, now: Instant) {
        self.done = self.planned.len().min(self.done + 1);
        self.since = now;
    }

    fn left(&self, now: Instant) -> Duration {
        let (done, ahead) = self.planned.split_at(self.done);
        let planned: Duration = done.iter().sum();
        let took = self.since.saturating_duration_since(self.began);
        let factor = if planned.is_zero() { 1.0 } else { took.as_secs_f64() / planned.as_secs_f64() };
        let ahead = ahead.iter().sum::<Duration>().mul_f64(factor);
        ahead.saturating_sub(now.saturating_duration_since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_plan_and_what_runs_took() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut estimate = Estimate::new(vec![10 * second, 10 * second, 30 * second], start);
        assert_eq!(estimate.left(start), 50 * second, "before any run has ended");
        assert_eq!(estimate.left(start + 4 * second), 46 * second);
        estimate.ran(start + 12 * second);
        assert_eq!(estimate.left(start + 12 * second), 48 * second, "runs take a fifth longer than planned");
        estimate.ran(start + 24 * second);
        assert_eq!(estimate.left(start + 25 * second), 35 * second);
        estimate.ran(start + 60 * second);
        assert_eq!(estimate.left(start + 61 * second), Duration::ZERO);
    }
}
