//! Fail-stop: a panic in the scheduler itself ends the pool.
//!
//! Such a panic leaves inconsistent state: a lane that is never freed, or requests that no list contains. None of it is
//! used again. Every request is answered, nothing is admitted any more, and the owner of the pool is notified that the
//! process must end. A program's panic is different: it only fails its task (`device::cpu`), whose memory is its own.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use tracing::error;

use super::{InferError, Pool, record::Record, state::Effects, version::VersionState};

/// The contents of a pool that ends: the requests in flight and the loaded versions. Must be dropped without holding
/// the pool's lock, because versions return to the pool.
pub(super) type Remains = (Vec<Record>, Vec<VersionState>);

impl Pool {
    /// Runs code that must not panic, without the pool's lock. Ends the pool and returns `None` if it panics.
    pub(super) fn guarded<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        catch_unwind(AssertUnwindSafe(act))
            .map_err(|panic| {
                self.fail(&*panic, Remains::default(), Effects::default());
            })
            .ok()
    }

    /// Ends the pool, and answers the remaining requests, including those of the shard that is already stopped.
    pub(super) fn fail(&self, panic: &(dyn Any + Send), stopped: Remains, after: Effects) {
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

    /// Stops all shards, and takes their contents.
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

    /// Returns once a panic has ended the pool. The process must end then.
    pub async fn failed(&self) {
        // Cannot fail: the sender is the pool, which is alive.
        let _ = self.responsiveness().wait_for(|known| known.failed).await;
    }

    /// Returns why a stopped pool takes no request.
    pub(super) fn refusal(&self) -> InferError {
        if self.has_failed() { InferError::SchedulerFailed } else { InferError::ShuttingDown }
    }
}

/// Answers one request. A panic here affects no other request; its channel closes, which ends the call of the client.
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
