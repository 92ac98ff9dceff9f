//! Environment variables that Triton's test suites set. They are read only with `--allow-test-hooks`, so that a
//! variable set by accident cannot keep a production server from answering.

use std::{env, ffi::OsStr};

use tracing::warn;

/// Triton's variable: nothing runs until this many requests wait.
const HELD_SCHEDULERS: &str = "TRITONSERVER_DELAY_SCHEDULER";

/// A variable whose value is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{variable}: expected a number of requests, got '{got}'")]
pub(super) struct InvalidHook {
    variable: &'static str,
    got: String,
}

/// Returns how many requests must wait before a scheduler runs anything; 0 for none. Logs a warning if the variable is
/// set but not allowed.
///
/// # Errors
/// Fails if the variable is allowed and not a number.
pub(super) fn held_schedulers(allowed: bool) -> Result<u32, InvalidHook> {
    let Some(given) = env::var_os(HELD_SCHEDULERS) else { return Ok(0) };
    if !allowed {
        warn!(variable = HELD_SCHEDULERS, "a variable for tests is ignored without --allow-test-hooks");
        return Ok(0);
    }
    let requests = number(&given)?;
    warn!(requests, "for tests: a batcher runs nothing before this many requests wait");
    Ok(requests)
}

fn number(given: &OsStr) -> Result<u32, InvalidHook> {
    let wrong = || InvalidHook { variable: HELD_SCHEDULERS, got: given.to_string_lossy().into_owned() };
    given.to_str().and_then(|text| text.trim().parse().ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_holds_a_number_of_requests() {
        assert_eq!(number(OsStr::new("12")), Ok(12));
        for wrong in ["", "-1", "many"] {
            let refused = number(OsStr::new(wrong)).map_err(|error| error.to_string());
            assert_eq!(
                refused,
                Err(format!("TRITONSERVER_DELAY_SCHEDULER: expected a number of requests, got '{wrong}'"))
            );
        }
    }
}
