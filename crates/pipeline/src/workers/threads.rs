//! Threads with a lower priority than those that serve connections and run models. These need a processor often and
//! shortly, and would each time wait for work that takes long.

use std::sync::LazyLock;

use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinHandle, spawn_blocking},
};

/// How far the priority is lowered: the other threads count three times as much. Work that is nearly stopped would keep
/// what others wait for, such as a part of the allocator.
const NICENESS: i32 = 5;

/// Only its threads for blocking work are used.
static THREADS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let lower = || {
        // Where it is refused, the thread has the priority of the others.
        let _ = rustix::process::setpriority_process(None, NICENESS);
    };
    Builder::new_current_thread().thread_name("paternoster-work").on_thread_start(lower).build().ok()
});

/// Runs work that keeps a processor busy, such as that of built-in steps. Messages that are read and written are not:
/// models wait for them.
pub(crate) fn spawn_work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match &*THREADS {
        Some(threads) => threads.spawn_blocking(work),
        None => spawn_blocking(work),
    }
}
