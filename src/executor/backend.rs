//! What a device does for its shard of the pool, and what it tells the pool. The pool and the core do not know which
//! device it is. `host`: lanes of the CPU, which run programs.

use std::{io, sync::Arc, time::Instant};

use super::{
    job::{Finished, Job},
    loaded::Loaded,
    ran::Outputs,
};
use crate::batching::{Knobs, LaneId, LaneKnobs, ModelId, Ns, TaskId};

/// Carries tasks out on one device.
///
/// - [Orders](Order) come as the core gave them. A lane is an in-order stream: a task begins behind those that its
///   lane was given before, and behind those of other lanes that it must come after
///   ([`Task::after`](crate::batching::Task::after)).
/// - A task that needs what a failed one should have written fails too, until the pool has been told of the failed one.
/// - A task has *completed* once the device is done with it: its lane is free, and the next launch may go. Its outputs
///   are *taken* once the host has them, which may be later and is on no launch's way. Both are told in the order of
///   completion.
/// - All memory that a version needs on the device is reserved when it is loaded, or the version is refused.
pub(super) trait Backend: Send + Sync {
    /// Lanes, which are numbered from 0.
    fn lanes(&self) -> u16;

    /// How far ahead of its completions a lane takes tasks.
    fn lane_knobs(&self) -> LaneKnobs {
        LaneKnobs::default()
    }

    /// Reserves what a version needs, before it comes up. What the core has to know of the device is added to `knobs`.
    ///
    /// # Errors
    /// When the device has not enough; says of what.
    fn load(&self, model: ModelId, version: &Loaded, knobs: &mut Knobs) -> Result<(), String>;

    /// Carries out one order after the other, until there is no `next`. Several threads may call it; each order is
    /// taken and carried out before the next is taken.
    fn issue(&self, pool: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>);

    /// Whether a task that is alone in the pool had better run on the thread that brought it.
    fn runs_here(&self, job: &Job) -> bool {
        let _ = job;
        false
    }

    /// Runs a task for which [`Self::runs_here`] holds on the calling thread, in place of its lane, which is idle and
    /// stays so. It has run when this returns, so nothing can wait for it.
    fn run_here(&self, pool: &Arc<dyn Reports>, job: Job) {
        let mut order = Some(Order::Run(job));
        self.issue(pool, &mut || order.take());
    }

    /// Lets a lane go on without a task that does not end.
    ///
    /// # Errors
    /// When that cannot be; the lane waits on.
    fn leave_behind(&self, lane: LaneId, task: TaskId) -> io::Result<()>;

    /// Carries nothing out any more, and ends. Whether all that ran had ended by then.
    fn stop(&self, deadline: Instant) -> bool;
}

/// What a device is to do.
pub(super) enum Order {
    /// Run a task.
    Run(Job),
    /// No request of the version is left: what its batches kept is needed no longer.
    Rest(ModelId),
    /// The version has gone.
    Unload(ModelId),
}

/// The pool, as a backend sees it. Shards go by their numbers.
pub(super) trait Reports: Send + Sync {
    /// The time on the pool's clock.
    fn now(&self) -> Ns;

    /// A task begins on the calling thread; now.
    fn begins(&self) -> Ns;

    /// A task has completed; when it began, if it did.
    fn completed(self: Arc<Self>, shard: usize, began: Option<Ns>, job: &Job, finished: Finished);

    /// The host has the outputs of a task that completed without them, or they are lost. The CPU's tasks complete with
    /// theirs.
    fn taken(self: Arc<Self>, shard: usize, job: &Job, outputs: Result<Outputs, String>);

    /// A shard's device is gone, and with it all that it had.
    fn lost(self: Arc<Self>, shard: usize, reason: &str);
}
