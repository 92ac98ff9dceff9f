//! The W3C trace context of a request: the header `traceparent`, version 00.

use std::time::Instant;

use http::HeaderMap;

/// The client's span that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Never all zeros.
    pub trace_id: [u8; 16],
    /// Never all zeros.
    pub span_id: [u8; 8],
    /// Whether the client records the trace.
    pub is_sampled: bool,
}

/// Trace data of a request before its message is read.
#[derive(Clone, Copy, Debug)]
pub struct TraceHead {
    /// Arrival time.
    pub came: Instant,
    /// The client's span, if the client sent one.
    pub parent: Option<Parent>,
}

/// The header in which a response names the span of its request, according to the drafts of W3C Trace Context.
pub const TRACE_RESPONSE: &str = "traceresponse";

/// Length of a header of version 00. Later versions may append to it after a dash.
const LENGTH: usize = 55;

/// Reads the header. A malformed or repeated header is ignored, as the recommendation requires: it breaks the trace but
/// never the request.
pub(super) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut given = headers.get_all("traceparent").iter();
    let header = given.next()?.as_bytes();
    if given.next().is_some() {
        return None;
    }
    parse(header)
}

fn parse(header: &[u8]) -> Option<Parent> {
    let (fields, rest) = header.split_at_checked(LENGTH)?;
    let [version] = hex(&fields[..2])?;
    let ends = rest.is_empty() || version > 0 && rest[0] == b'-';
    let dashes = [2, 35, 52].into_iter().all(|at| fields[at] == b'-');
    if version == 0xff || !ends || !dashes {
        return None;
    }
    let (trace_id, span_id, [flags]) = (hex(&fields[3..35])?, hex(&fields[36..52])?, hex(&fields[53..])?);
    let is_valid = trace_id != [0; 16] && span_id != [0; 8];
    is_valid.then_some(Parent { trace_id, span_id, is_sampled: flags & 1 == 1 })
}

/// Decodes lowercase hexadecimal digits, two per byte.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(text: &str) -> Option<Parent> {
        parse(text.as_bytes())
    }

    #[test]
    fn a_client_says_which_span_it_is_and_whether_it_is_recorded() {
        let parent = read(GOOD).expect("it is well formed");
        assert_eq!(parent.trace_id[..4], [0x4b, 0xf9, 0x2f, 0x35]);
        assert_eq!(parent.span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(parent.is_sampled);
        let unsampled = read(&GOOD.replace("-01", "-00")).expect("it is well formed");
        assert!(!unsampled.is_sampled);
        assert!(read(&GOOD.replace("-01", "-03")).is_some_and(|parent| parent.is_sampled), "other flags mean nothing");
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(read(&later), Some(parent), "a later version begins alike");
        assert_eq!(read(&format!("{later}-what-comes")), Some(parent), "and may go on");
    }

    #[test]
    fn a_malformed_header_is_none() {
        let zero_trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = GOOD.replace("00f067aa0ba902b7", &"0".repeat(16));
        let broken = [
            String::new(),
            "00".to_owned(),
            GOOD.to_uppercase(),
            GOOD.replacen("00", "ff", 1),
            GOOD.replacen("00", "zz", 1),
            format!("{GOOD}-more"),
            format!("{GOOD}0"),
            GOOD.replace('-', "_"),
            format!("{}é", &GOOD[..53]),
            zero_trace,
            zero_span,
        ];
        for header in broken {
            assert_eq!(read(&header), None, "'{header}'");
        }
    }

    #[test]
    fn a_header_that_is_given_twice_is_none() {
        let mut headers = HeaderMap::new();
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert!(parent(&headers).is_some());
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert_eq!(parent(&headers), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(header in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&header);
        }
    }
}
