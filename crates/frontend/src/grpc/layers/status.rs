//! What clients and the log see of a status.

use http::{HeaderMap, HeaderValue, Response};
use tonic::Status;
use tracing::debug;

use super::ResponseBody;

/// Logs the status of a call that has only a status, and encodes its message.
pub(in crate::grpc) fn log_and_encode(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    if let Some(status) = response.extensions_mut().remove::<Status>() {
        debug!(code = ?status.code(), reason = status.message(), "call refused");
        write_message(&status, response.headers_mut());
    }
    response
}

/// Returns the trailers of a response that ends with a status.
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    if status.add_header(&mut trailers).is_err() {
        // A message or detail that is not allowed in a header is omitted; the code always fits.
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from(status.code() as i32));
    }
    write_message(status, &mut trailers);
    trailers
}

/// Encodes the message in the trailers that tonic has written.
pub(super) fn encode_message(mut trailers: HeaderMap) -> HeaderMap {
    if trailers.contains_key(Status::GRPC_MESSAGE)
        && let Some(status) = Status::from_header_map(&trailers)
    {
        write_message(&status, &mut trailers);
    }
    trailers
}

fn write_message(status: &Status, headers: &mut HeaderMap) {
    if let Some(message) = headers.get_mut(Status::GRPC_MESSAGE)
        && let Ok(encoded) = HeaderValue::from_bytes(&percent_encoded(status.message()))
    {
        *message = encoded;
    }
}

/// Encodes a status message for its header by the gRPC specification: printable ASCII is unchanged, including spaces,
/// except for the percent sign. tonic encodes more than required, so clients that show the header verbatim would show
/// `%20`.
fn percent_encoded(message: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => encoded.push(byte),
            other => encoded.extend(format!("%{other:02X}").bytes()),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the headers of a response that has only a status.
    fn headers(text: &str) -> HeaderMap {
        log_and_encode(Status::not_found(text).into_http()).into_parts().0.headers
    }

    fn message(text: &str) -> String {
        let headers = headers(text);
        let header = headers.get(Status::GRPC_MESSAGE).expect("a message");
        header.to_str().expect("ASCII").to_owned()
    }

    #[test]
    fn a_status_message_is_encoded_as_the_specification_says_and_no_further() {
        assert_eq!(message("Deadline Exceeded"), "Deadline Exceeded");
        let printable: String = (b' '..=b'~').filter(|byte| *byte != b'%').map(char::from).collect();
        assert_eq!(message(&printable), printable);
        assert_eq!(message("100 % of 'é'\n"), "100 %25 of '%C3%A9'%0A");
    }

    #[test]
    fn an_encoded_message_is_read_back_as_it_was() {
        let text = "100 % of \"é\"\r\n\u{0} {[`]}";
        let read = Status::from_header_map(&headers(text)).expect("a status");
        assert_eq!((read.code(), read.message()), (tonic::Code::NotFound, text));
    }

    #[test]
    fn trailers_of_tonic_say_the_same_as_headers() {
        let text = "100 % of \"é\" {[`]}";
        let mut trailers = HeaderMap::new();
        Status::not_found(text).add_header(&mut trailers).expect("headers");
        assert_ne!(trailers[Status::GRPC_MESSAGE], message(text));
        let trailers = encode_message(trailers);
        assert_eq!(trailers[Status::GRPC_MESSAGE], message(text));
    }

    #[test]
    fn a_status_without_a_message_has_no_header_for_one() {
        assert!(headers("").get(Status::GRPC_MESSAGE).is_none());
    }
}
