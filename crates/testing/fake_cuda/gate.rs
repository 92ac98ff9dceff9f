//! A gate before each operation of a stream, for tests that decide when operations run.

use parking_lot::{Condvar, Mutex};

/// Number of operations that may still run; `OPEN` if there is no limit.
static LEFT: Mutex<u64> = Mutex::new(OPEN);
static CHANGED: Condvar = Condvar::new();

const OPEN: u64 = u64::MAX;

/// Waits until one more operation may run. Called by the thread of a stream.
pub(crate) fn pass() {
    let mut left = LEFT.lock();
    CHANGED.wait_while(&mut left, |left| *left == 0);
    if *left != OPEN {
        *left -= 1;
    }
}

/// Closes the gate: no further operation runs.
pub(crate) fn close() {
    *LEFT.lock() = 0;
}

/// Lets this number of further operations pass. `u64::MAX` opens the gate.
pub(crate) fn let_pass(operations: u64) {
    let mut left = LEFT.lock();
    *left = left.saturating_add(operations);
    CHANGED.notify_all();
}
