//! Environment variables that test suites of Triton set. They are read only with `--allow-test-hooks`: who can set a
//! variable of a production server by accident must not stop it from answering.

use std::{env, ffi::OsStr};

use tracing::warn;

/// Nothing runs before this many requests wait: Triton's variable.
const HELD_SCHEDULERS: &str = "TRITONSERVER_DELAY_SCHEDULER";

/// A variable that is read and says nothing that can be done.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{variable}: expected a number of requests, got '{got}'")]
pub(super) struct InvalidHook {
    variable: &'static str,
    got: String,
}

/// How many requests must wait before a scheduler runs anything; 0: none. A variable that is not read is warned of.
///
/// # Errors
/// When the variable is read and holds no number.
pub(super) fn held_schedulers(allowed: bool) -> Result<u32, InvalidHook> {
    let Some(given) = env::var_os(HELD_SCHEDULERS) else { return Ok(0) };
    if !allowed {
        warn!("{HELD_SCHEDULERS} is set and not read: it needs --allow-test-hooks");
        return Ok(0);
    }
    let requests = number(&given)?;
    warn!(requests, "for tests: models with a batcher run nothing before so many requests wait");
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
