//! The timer thread, which wakes the core at the time that it asked for.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// One alarm, set by the thread that carries out a `WakeAt` and awaited by the timer's thread.
#[derive(Default)]
pub(super) struct Timer {
    alarm: Mutex<Alarm>,
    changed: Condvar,
}

#[derive(Default)]
struct Alarm {
    at: Option<Instant>,
    stopped: bool,
}

impl Timer {
    /// Sets the alarm. An earlier alarm stays, because callers may be out of order and waking too early is harmless.
    pub(super) fn set(&self, at: Instant) {
        let mut alarm = self.alarm.lock();
        if alarm.at.is_none_or(|set| at < set) {
            alarm.at = Some(at);
            self.changed.notify_one();
        }
    }

    /// Returns the time of the alarm, for tests that control time.
    #[cfg(test)]
    pub(super) fn due(&self) -> Option<Instant> {
        self.alarm.lock().at
    }

    /// Triggers the alarm, for tests that control time.
    #[cfg(test)]
    pub(super) fn take(&self) {
        self.alarm.lock().at = None;
    }

    /// Ends [`Self::run`].
    pub(super) fn stop(&self) {
        self.alarm.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Calls `ring` at each alarm until stopped.
    pub(super) fn run(&self, mut ring: impl FnMut()) {
        let mut alarm = self.alarm.lock();
        while !alarm.stopped {
            match alarm.at {
                None => self.changed.wait(&mut alarm),
                Some(at) if Instant::now() < at => {
                    self.changed.wait_until(&mut alarm, at);
                }
                Some(_) => {
                    alarm.at = None;
                    parking_lot::MutexGuard::unlocked(&mut alarm, &mut ring);
                }
            }
        }
    }
}
