//! The interface between the pool and a device. The pool and the core do not depend on the kind of device.
//! Implementations: `host` runs programs on the CPU, `cuda` on a card, `sim` in tests.

use std::{io, sync::Arc, time};

use paternoster_batching::{Instant, Knobs, LaneId, LaneKnobs, ModelId, SequenceNo, TaskId};
use paternoster_device::MemoryShortage;

use super::{
    job::Outputs,
    job::{Finished, Job},
    version::ServedVersion,
};

/// Why a device cannot hold a version.
#[derive(Debug)]
pub(super) struct CannotHold {
    pub(super) reason: String,
    /// The memory that it lacks, if that is why.
    pub(super) shortage: Option<MemoryShortage>,
}

impl From<String> for CannotHold {
    fn from(reason: String) -> Self {
        Self { reason, shortage: None }
    }
}

/// Executes tasks on one device.
///
/// - [Orders](Order) arrive in the order in which the core issued them. A lane is an in-order stream: a task starts
///   after the previous tasks of its lane, and after those on other lanes that it depends on
///   ([`Task::after`](paternoster_batching::Task::after)).
/// - A task that depends on the results of a failed task fails too, until the failure has been reported to the pool.
/// - A task has *completed* once the device has finished it: its lane is free, and the next task may be launched. Its
///   outputs are *taken* once the host has them, which may be later and never delays a launch. Both are reported in the
///   order of completion.
/// - All device memory that a version needs is reserved when it is loaded; otherwise the version is rejected.
pub(super) trait Backend: Send + Sync {
    /// Returns the number of lanes, which are numbered from 0.
    fn lanes(&self) -> u16;

    /// Returns how much work a lane accepts ahead of completion.
    fn lane_knobs(&self) -> LaneKnobs {
        LaneKnobs::default()
    }

    /// Reserves what a version needs, before it goes into service. Adds the device's properties to `knobs`.
    ///
    /// # Errors
    /// If the device lacks a resource; the text names it.
    fn load(&self, model: ModelId, version: &ServedVersion, knobs: &mut Knobs) -> Result<(), CannotHold>;

    /// Carries out orders, one after the other, until `next` returns `None`. Several threads may call it; each order is
    /// taken and carried out before the next one is taken.
    fn issue(&self, pool: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>);

    /// Whether a task that is alone in the pool should run on the submitting thread.
    fn runs_here(&self, job: &Job) -> bool {
        let _ = job;
        false
    }

    /// Runs a task for which [`Self::runs_here`] is true on the calling thread instead of its lane, which is idle and
    /// stays idle. The task has run when this returns, so nothing needs to wait for it.
    fn run_here(&self, pool: &Arc<dyn Reports>, job: Job) {
        let mut order = Some(Order::Run(job));
        self.issue(pool, &mut || order.take());
    }

    /// Releases a lane from a hung task, so that it can run other tasks.
    ///
    /// # Errors
    /// If that is impossible; the lane keeps waiting for the task.
    fn leave_behind(&self, lane: LaneId, task: TaskId) -> io::Result<()>;

    /// Stops the device, and returns whether everything that was running ended by `deadline`.
    fn stop(&self, deadline: time::Instant) -> bool;
}

/// An order to a device.
pub(super) enum Order {
    /// Run a task.
    Run(Job),
    /// No request of the version is left; the memory of its batches can be released.
    Rest(ModelId),
    /// A sequence of the version is over; its state can be released.
    SequenceOver(ModelId, SequenceNo),
    /// The version has been unloaded.
    Unload(ModelId),
}

/// The pool, as a backend sees it. Shards are identified by number.
pub(super) trait Reports: Send + Sync {
    /// Returns the time on the pool's clock.
    fn now(&self) -> Instant;

    /// Reports that a task starts on the calling thread, and returns the current time.
    fn begins(&self) -> Instant;

    /// Reports that a task has completed, and when it started, if it did.
    fn completed(self: Arc<Self>, shard: usize, began: Option<Instant>, job: &Job, finished: Finished);

    /// Reports that the host has the outputs of a task that completed without them, or that they are lost. Tasks on the
    /// CPU complete with their outputs.
    fn taken(self: Arc<Self>, shard: usize, job: &Job, outputs: Result<Outputs, String>);

    /// Reports that a shard's device and everything on it is lost.
    fn lost(self: Arc<Self>, shard: usize, reason: &str);
}
