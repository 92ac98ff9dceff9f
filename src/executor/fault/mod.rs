//! Fail-stop: a panic of the scheduler's own ends the pool.
//!
//! What it leaves behind is half done: a lane that is never given back, requests that no list names. Nothing of it is
//! used again. Every request is answered, nothing is admitted any more, and the owner of the pool learns that the
//! process has to end. A program's panic is no such fault: it fails its task (`device::cpu`), whose memory is its own.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use tracing::error;

use super::{InferError, Pool, loaded::Version, record::Record, state::After};

/// What a pool that ends still has: the requests in flight and the loaded versions. To be dropped without the pool's
/// lock, since versions return to it.
pub(super) type Remains = (Vec<Record>, Vec<Version>);

impl Pool {
    /// Runs what must not panic, without the pool's lock; a panic ends the pool. `None` then.
    pub(super) fn guarded<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        catch_unwind(AssertUnwindSafe(act))
            .map_err(|panic| {
                self.fail(&*panic, Remains::default(), After::default());
            })
            .ok()
    }

    /// Ends the pool: answers what remains, also of the shard that is stopped already.
    pub(super) fn fail(&self, panic: &(dyn Any + Send), stopped: Remains, after: After) {
        error!(panic = message(panic), "the scheduler panicked, the server has to end");
        self.responsiveness.send_modify(|known| {
            known.changes += 1;
            known.failed = true;
        });
        let (mut records, mut versions) = stopped;
        let others = self.take_remains();
        records.extend(others.0);
        versions.extend(others.1);
        let now = self.now();
        for (record, end) in after.ended {
            answer(|| record.finish(end, now));
        }
        records.extend(after.recalled.into_iter().map(|recalled| recalled.record));
        for record in records {
            answer(|| record.refuse(InferError::SchedulerFailed, now));
        }
        drop(versions);
    }

    /// Stops all shards, and takes what they still have.
    pub(super) fn take_remains(&self) -> Remains {
        self.stopped.store(true, Ordering::Release);
        let (mut records, mut versions) = Remains::default();
        for shard in &self.shards {
            let own = shard.state.lock().stop();
            records.extend(own.0);
            versions.extend(own.1);
        }
        (records, versions)
    }

    /// Whether a panic has ended the pool.
    pub fn has_failed(&self) -> bool {
        self.responsiveness.borrow().failed
    }

    /// Returns once a panic has ended the pool. The process is to end then.
    pub async fn failed(&self) {
        // The pool, which sends, is there.
        let _ = self.responsiveness().wait_for(|known| known.failed).await;
    }

    /// Why a pool that is stopped takes no request.
    pub(super) fn refusal(&self) -> InferError {
        if self.has_failed() { InferError::SchedulerFailed } else { InferError::ShuttingDown }
    }
}

/// Answers one request. What panics there ends no other's answer, and the channel that closes by it is an answer.
fn answer(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        error!(panic = message(&*panic), "a request could not be answered");
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests;
