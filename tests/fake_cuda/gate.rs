//! A gate before the work of all streams, for tests that decide when work runs.

use parking_lot::{Condvar, Mutex};

/// Works that may still run; `OPEN` if there is no limit.
static LEFT: Mutex<u64> = Mutex::new(OPEN);
static CHANGED: Condvar = Condvar::new();

const OPEN: u64 = u64::MAX;

/// Waits until one more work may run. Called by the thread of a stream.
pub(crate) fn pass() {
    let mut left = LEFT.lock();
    CHANGED.wait_while(&mut left, |left| *left == 0);
    if *left != OPEN {
        *left -= 1;
    }
}

/// Stops streams before their next work.
pub(crate) fn close() {
    *LEFT.lock() = 0;
}

/// Lets so many more works run; `u64::MAX` opens the gate for good.
pub(crate) fn let_pass(works: u64) {
    let mut left = LEFT.lock();
    *left = left.saturating_add(works);
    CHANGED.notify_all();
}
