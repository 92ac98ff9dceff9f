//! What a lane has to do: one job at a time, waited for without spinning.

use parking_lot::{Condvar, Mutex};

use super::lane::Job;

/// Holds what one lane has yet to do. The core gives a lane one task at a time, so there is at most one job.
#[derive(Default)]
pub(super) struct Mailbox {
    content: Mutex<Content>,
    arrived: Condvar,
}

#[derive(Default)]
struct Content {
    job: Option<Job>,
    stopped: bool,
}

impl Mailbox {
    /// Leaves a job for the lane.
    pub(super) fn put(&self, job: Job) {
        let mut content = self.content.lock();
        debug_assert!(content.job.is_none(), "a lane runs one task at a time");
        content.job = Some(job);
        drop(content);
        self.arrived.notify_one();
    }

    /// Tells the lane to end.
    pub(super) fn stop(&self) {
        self.content.lock().stopped = true;
        self.arrived.notify_one();
    }

    /// Waits for the next job; `None` once the lane is to end. A lane that spun for it would take the cores that the
    /// front end needs.
    pub(super) fn take(&self) -> Option<Job> {
        let mut content = self.content.lock();
        loop {
            if content.stopped {
                return None;
            }
            if let Some(job) = content.job.take() {
                return Some(job);
            }
            self.arrived.wait(&mut content);
        }
    }
}
