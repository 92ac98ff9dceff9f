//! The client's deadline, from the `grpc-timeout` header. tonic never sees the header: it would answer CANCELLED.

use std::{
    future::ready,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::sleep_until;
use tonic::Status;
use tower::service_fn;

use super::{Calls, refused};
use crate::grpc::call::{CallRequest, Deadline, Kind, expired};

/// Ends calls at their deadlines. Once the executor has a request, it ends the request and counts it as expired; a
/// stream ends itself.
pub(in crate::grpc) fn end_at_deadline<B: Send + 'static>(
    mut inner: impl Calls<CallRequest<B>>,
) -> impl Calls<CallRequest<B>> {
    service_fn(move |mut request: CallRequest<B>| {
        let call = &mut request.call;
        call.deadline = match take_deadline(request.request.headers_mut()) {
            Ok(deadline) => deadline,
            Err(status) => return Either::Left(Either::Right(ready(refused(status)))),
        };
        let Some(deadline) = call.deadline.filter(|_| !call.is(Kind::StreamInfer) && !call.is(Kind::Reflection)) else {
            return Either::Left(Either::Left(inner.call(request)));
        };
        let handover = Arc::clone(&call.handover);
        let answer = inner.call(request);
        Either::Right(Box::pin(async move {
            let mut answer = pin!(answer);
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = sleep_until(deadline.into()) => {}
            }
            if handover.is_submitted() { answer.await } else { refused(expired()) }
        }))
    })
}

/// The header of a deadline.
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Takes the deadline of a request that has just arrived out of its headers.
///
/// # Errors
/// INTERNAL for a malformed header, as the gRPC specification requires.
fn take_deadline(headers: &mut HeaderMap) -> Result<Deadline, Status> {
    let Some(value) = headers.remove(GRPC_TIMEOUT) else { return Ok(None) };
    match parse(&value) {
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http::{Request, Response};
    use tokio::sync::Notify;
    use tonic::Code;
    use tower::Service;

    use super::*;
    use crate::grpc::{
        call::Call,
        layers::{Answer, ResponseBody},
    };

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

    fn request(timeout: &'static str) -> CallRequest<()> {
        let mut request = Request::new(());
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
        CallRequest { call: Call::example(), request }
    }

    fn status(response: &Response<ResponseBody>) -> Status {
        Status::from_header_map(response.headers()).expect("a status")
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_outlasts_its_deadline_is_given_up() {
        let mut layer = end_at_deadline(service_fn(|_: CallRequest<()>| pending::<Answer>()));
        let status = status(&layer.call(request("5m")).await.expect("infallible"));
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "Deadline Exceeded"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_the_executor_has_is_ended_by_it() {
        let executor = Arc::new(Notify::new());
        let ends = Arc::clone(&executor);
        let mut layer = end_at_deadline(service_fn(move |request: CallRequest<()>| {
            request.call.handover.set_submitted();
            let ends = Arc::clone(&ends);
            async move {
                ends.notified().await;
                refused(Status::unavailable("of the executor"))
            }
        }));
        let call = tokio::spawn(layer.call(request("5m")));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!call.is_finished());
        executor.notify_one();
        assert_eq!(status(&call.await.expect("no panic").expect("infallible")).code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn tonic_does_not_see_the_deadline_and_its_method_does() {
        let mut layer = end_at_deadline(service_fn(|request: CallRequest<()>| {
            assert!(request.request.headers().is_empty());
            assert!(request.call.deadline.is_some());
            ready(refused(Status::ok("")))
        }));
        assert_eq!(status(&layer.call(request("1H")).await.expect("infallible")).code(), Code::Ok);
        let malformed = layer.call(request("1h")).await.expect("infallible");
        assert_eq!(status(&malformed).code(), Code::Internal);
    }
}
