//! Environment variables that Triton's test suites set. They are read only with `--allow-test-hooks`, so that a
//! variable set by accident cannot keep a production server from answering.

use std::{env, ffi::OsStr};

use tracing::warn;

/// Triton's variable: nothing runs until this many requests wait, in sequences those with a slot.
const HELD_SCHEDULERS: &str = "TRITONSERVER_DELAY_SCHEDULER";

/// Triton's variable: a scheduler that is held so needs this many requests of sequences without a slot, too.
const HELD_BACKLOGS: &str = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER";

/// A variable whose value is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{variable}: expected a number of requests, got '{got}'")]
pub(super) struct InvalidHook {
    variable: &'static str,
    got: String,
}

/// How many requests must wait before a scheduler runs anything; 0 for none.
pub(super) struct HeldSchedulers {
    /// For the first time, in a queue.
    pub(super) until_waiting: u32,
    /// In the backlog of sequences.
    pub(super) until_backlog: u32,
}

impl HeldSchedulers {
    /// Reads the variables. Logs a warning for each that is set but not allowed.
    ///
    /// # Errors
    /// Fails if a variable is allowed and not a number.
    pub(super) fn read(allowed: bool) -> Result<Self, InvalidHook> {
        let until_waiting = requests(HELD_SCHEDULERS, allowed)?;
        Ok(Self { until_waiting, until_backlog: requests(HELD_BACKLOGS, allowed)? })
    }
}

fn requests(variable: &'static str, allowed: bool) -> Result<u32, InvalidHook> {
    let Some(given) = env::var_os(variable) else { return Ok(0) };
    if !allowed {
        warn!(variable, "a variable for tests is ignored without --allow-test-hooks");
        return Ok(0);
    }
    let requests = number(variable, &given)?;
    warn!(variable, requests, "for tests: a batcher runs nothing before this many requests wait");
    Ok(requests)
}

fn number(variable: &'static str, given: &OsStr) -> Result<u32, InvalidHook> {
    let wrong = || InvalidHook { variable, got: given.to_string_lossy().into_owned() };
    given.to_str().and_then(|text| text.trim().parse().ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_holds_a_number_of_requests() {
        assert_eq!(number(HELD_SCHEDULERS, OsStr::new("12")), Ok(12));
        for wrong in ["", "-1", "many"] {
            let refused = number(HELD_BACKLOGS, OsStr::new(wrong)).map_err(|error| error.to_string());
            let expected =
                format!("TRITONSERVER_BACKLOG_DELAY_SCHEDULER: expected a number of requests, got '{wrong}'");
            assert_eq!(refused, Err(expected));
        }
    }
}
