//! The client's deadline, from the `grpc-timeout` header.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderValue};
use paternoster_executor::InferError;
use paternoster_wire::RequestError;
use tonic::Status;

/// Time at which the client stops waiting; `None`: it has no deadline.
pub(crate) type Deadline = Option<Instant>;

/// Reads the deadline of a request that has just arrived.
///
/// # Errors
/// INTERNAL for a malformed header, as the gRPC specification requires.
pub(crate) fn deadline(headers: &HeaderMap) -> Result<Deadline, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    match parse(value) {
        Some(timeout) => Ok(Instant::now().checked_add(timeout)),
        None => Err(Status::internal(format!("malformed grpc-timeout {value:?}"))),
    }
}

/// Parses at most eight digits and a unit.
fn parse(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0, |count: u64, digit| count * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Runs `work` until the deadline at most.
///
/// # Errors
/// DEADLINE_EXCEEDED if the deadline passes first; otherwise the error of `work`.
pub(crate) async fn before<T>(deadline: Deadline, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match deadline {
        None => work.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), work).await {
            Ok(result) => result,
            Err(_) => Err(expired()),
        },
    }
}

/// Returns the status of a call whose deadline passed, wherever that was detected.
pub(crate) fn expired() -> Status {
    RequestError::from_infer(&InferError::Expired, "").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(text: &'static str) -> Option<Duration> {
        parse(&HeaderValue::from_static(text))
    }

    #[test]
    fn every_unit_is_read() {
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("42S"), Some(Duration::from_secs(42)));
        assert_eq!(timeout("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(timeout("13u"), Some(Duration::from_micros(13)));
        assert_eq!(timeout("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn malformed_timeouts_are_refused() {
        for text in ["", "S", "1", "1s", "-1S", "+1S", "1 S", "123456789S"] {
            assert_eq!(timeout(text), None, "'{text}' is no timeout");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_outlasts_its_deadline_is_given_up() {
        let deadline = Some(tokio::time::Instant::now().into_std() + Duration::from_millis(5));
        let status = before::<()>(deadline, std::future::pending()).await.expect_err("the work never ends");
        assert_eq!((status.code(), status.message()), (tonic::Code::DeadlineExceeded, "Deadline Exceeded"));
    }
}
