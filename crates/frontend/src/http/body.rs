//! Reads the body of a request, within the budget of bytes and with a minimum speed, and decompresses it.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING},
};
use http_body::Body as _;
use paternoster_observe::budget::{Budget, Exhausted, Reservation};
use tokio::time::{Instant, timeout_at};

use super::{Problem, head::elements};
use crate::intake::{Buffer, Encoding, Inflate, InflateError, Message, ROOM_PATIENCE, Workers, no_room};

/// Maximum pause between two pieces of a body.
const PAUSE_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum total time of a body, plus a second for every [`LEAST_BYTES_A_SECOND`] of it.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// Minimum speed of a body after [`BODY_PATIENCE`], so that a client cannot hold a connection and memory indefinitely
/// by sending a byte now and then.
const LEAST_BYTES_A_SECOND: u64 = 16 << 10;

/// Maximum number of non-empty chunks of a body, as in Triton.
const MOST_CHUNKS: usize = 65_536;

/// Pieces of at least this many bytes do not count as chunks. A long chunk comes in several pieces, and many long
/// chunks exceed every limit on bytes.
const CHUNK_BYTES: usize = 1 << 10;

/// How large a body may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// Names and settings.
    Small(usize),
    /// JSON (`--http-max-input-size`).
    Json(usize),
    /// JSON of texts (`--http-max-input-size`), which Triton does not have.
    Texts(usize),
    /// The data of a model's only input (`--http-max-input-size`).
    Raw(usize),
    /// JSON, checked separately, and binary data. As in Triton, only what is compressed has the limit of the flag.
    Binary { inflated: usize },
}

/// Maximum bytes of JSON and binary data, the same as of a gRPC message.
const MOST_BINARY_BYTES: usize = i32::MAX as usize;

/// How an operator admits larger bodies.
const HOW_TO_RAISE: &str = "Use --http-max-input-size to increase the limit.";

impl Limit {
    /// Maximum bytes of the body as it is sent.
    fn bytes(self) -> usize {
        match self {
            Self::Small(most) | Self::Json(most) | Self::Texts(most) | Self::Raw(most) => most,
            Self::Binary { .. } => MOST_BINARY_BYTES,
        }
    }

    /// Maximum bytes of a compressed body after decompression.
    fn inflated(self) -> usize {
        match self {
            Self::Binary { inflated } => inflated,
            _ => self.bytes(),
        }
    }

    /// Returns the refusal of a body of at least `bytes` bytes, with Triton's text and status where it has one.
    pub(super) fn exceeded(self, bytes: usize) -> Problem {
        match self {
            Self::Small(most) => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than the maximum: {bytes} bytes of at most {most}"),
            ),
            Self::Json(most) => Problem::invalid(format!(
                "request JSON size of {bytes} bytes exceeds the maximum allowed input size of {most} bytes. \
                 {HOW_TO_RAISE}"
            )),
            Self::Texts(most) => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than the maximum: {bytes} bytes of at most {most}. {HOW_TO_RAISE}"),
            ),
            Self::Raw(most) => Problem::invalid(format!(
                "Raw input has a byte_size ({bytes} bytes) that exceeds the maximum allowed value of {most} bytes. \
                 {HOW_TO_RAISE}"
            )),
            Self::Binary { .. } => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than the maximum: {bytes} bytes of at most {MOST_BINARY_BYTES}"),
            ),
        }
    }

    /// Returns the refusal of a body that becomes too large when it is decompressed.
    fn exceeded_inflated(self) -> Problem {
        let most = self.inflated();
        match self {
            Self::Small(_) | Self::Texts(_) => self.exceeded(most + 1),
            _ => Problem::invalid(format!(
                "Decompressed data size exceeds the maximum allowed value of {most} bytes. {HOW_TO_RAISE}"
            )),
        }
    }
}

/// Reads a body of at most `limit` bytes, both compressed and uncompressed. Its memory comes from a connection's share.
///
/// # Errors
/// 400 for a body over the limit, as in Triton, for too many chunks, or if the data does not match its encoding; 413 if
/// it is larger than a connection's share, 503 if memory is not available in time, 408 if the body does not arrive in
/// time, 415 for an unknown encoding.
pub(super) async fn read(
    body: Body,
    headers: &HeaderMap,
    limit: Limit,
    share: &Arc<Budget>,
    workers: &Arc<Workers>,
) -> Result<Message, Problem> {
    let encoding = encoding(headers)?;
    let (bytes, mut held) = gather(body, limit, Reservation::none(share)).await?;
    let Some(encoding) = encoding else { return Ok(Message { bytes, held }) };
    let mut inflate = Inflate::new(encoding, bytes, limit.inflated(), &held);
    let broken = |error| broken(&error, limit);
    match inflate.step_within(&mut held).map_err(broken)? {
        Some(bytes) => Ok(Message { bytes, held }),
        None => Box::new(inflate).finish(held, Arc::clone(workers)).await.map_err(broken),
    }
}

fn broken(error: &InflateError, limit: Limit) -> Problem {
    let status = match error {
        InflateError::Broken(_) => StatusCode::BAD_REQUEST,
        InflateError::TooLarge(_) => return limit.exceeded_inflated(),
        InflateError::NoMemory | InflateError::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
        InflateError::Work(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Problem::new(status, error.to_string())
}

/// Returns the compression of a body. There may be at most one.
fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Problem> {
    let mut codings = elements(headers, &CONTENT_ENCODING).filter(|coding| !coding.eq_ignore_ascii_case(b"identity"));
    let Some(declared) = codings.next() else { return Ok(None) };
    let expected = "expected gzip, deflate or identity";
    let refused = |message| Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    if let Some(second) = codings.next() {
        let [first, second] = [declared, second].map(String::from_utf8_lossy);
        let message = format!("Content-Encoding has both '{first}' and '{second}', {expected}, once");
        return Err(refused(message));
    }
    let unknown = || {
        let declared = String::from_utf8_lossy(declared);
        refused(format!("Content-Encoding '{declared}' is not supported, {expected}"))
    };
    coding(declared).map(Some).ok_or_else(unknown)
}

/// Returns the compression with this name (RFC 9110, section 8.4.1).
fn coding(name: &[u8]) -> Option<Encoding> {
    let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
    match () {
        () if is(b"gzip") || is(b"x-gzip") => Some(Encoding::Gzip),
        () if is(b"deflate") => Some(Encoding::Deflate),
        () => None,
    }
}

/// Returns the supported compression that a client prefers for the response.
pub(super) fn accepted(headers: &HeaderMap) -> Option<Encoding> {
    let weighed = elements(headers, &ACCEPT_ENCODING).filter_map(|one| {
        let one = str::from_utf8(one).ok()?;
        let (name, parameters) = one.split_once(';').unwrap_or((one, ""));
        let name = name.trim().as_bytes();
        let encoding = coding(name);
        if encoding.is_none() && !name.eq_ignore_ascii_case(b"identity") {
            return None;
        }
        let weight = parameters.trim().split_once('=').filter(|(key, _)| key.trim().eq_ignore_ascii_case("q"));
        let weight = match (parameters.trim(), weight) {
            ("", _) => Some(1.0),
            (_, weight) => weight.and_then(|(_, weight)| weight.trim().parse::<f32>().ok()),
        };
        weight.filter(|weight| *weight > 0.0).map(|weight| (weight, encoding))
    });
    // The first of equal weights.
    weighed.reduce(|best, other| if other.0 > best.0 { other } else { best }).and_then(|(_, encoding)| encoding)
}

async fn gather(mut body: Body, limit: Limit, mut held: Reservation) -> Result<(Bytes, Reservation), Problem> {
    let declared = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if let Some(bytes) = declared {
        if bytes > limit.bytes() {
            return Err(limit.exceeded(bytes));
        }
        if let Some(error) = held.refusal(bytes) {
            return Err(Problem::from(no_room(&error)));
        }
    }
    let mut pace = Pace { began: Instant::now(), received: 0 };
    let mut gathered = Buffer::new(declared.unwrap_or(limit.bytes()).min(held.largest()));
    let mut chunks = 0;
    while let Some(piece) = next(&mut body, &mut pace).await? {
        if declared.is_none() && (1..CHUNK_BYTES).contains(&piece.len()) {
            chunks += 1;
        }
        if chunks > MOST_CHUNKS {
            return Err(Problem::invalid(format!(
                "Chunked request body exceeds maximum of {MOST_CHUNKS} non-empty chunks. Send fewer or larger HTTP \
                 chunks."
            )));
        }
        let needed = gathered.len().saturating_add(piece.len());
        if needed > limit.bytes() {
            return Err(limit.exceeded(needed));
        }
        grow(&mut held, piece.len()).await?;
        if gathered.len() == 0 && (declared == Some(piece.len()) || body.is_end_stream()) {
            // A body in a single piece is not copied.
            return Ok((piece, held));
        }
        let memory = gathered.with_room(piece.len());
        memory.map_err(|_| unavailable(format!("no memory for a body of {needed} bytes")))?.extend_from_slice(&piece);
    }
    Ok((gathered.finish(), held))
}

/// Reserves memory, waiting for it if necessary. Meanwhile the body is not read, so TCP flow control stops the client.
///
/// # Errors
/// 413 if it is more than a connection's share, 503 if it is not available in time.
pub(super) async fn grow(held: &mut Reservation, more: usize) -> Result<(), Problem> {
    if more == 0 || held.try_grow(more) {
        return Ok(());
    }
    held.grow_within(more, ROOM_PATIENCE).await.map_err(|error| refused(held, more, &error))
}

/// Reserves memory that must be there now.
///
/// # Errors
/// 413 if it is more than a connection's share, 503 if it is not available.
pub(super) fn grow_now(held: &mut Reservation, more: usize) -> Result<(), Problem> {
    held.grow_now(more).map_err(|error| refused(held, more, &error))
}

fn refused(held: &Reservation, more: usize, error: &Exhausted) -> Problem {
    match no_room(error) {
        status if held.amount().saturating_add(more) <= held.largest() => unavailable(status.message()),
        status => Problem::from(status),
    }
}

fn unavailable(message: impl Into<String>) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// The speed of a body.
struct Pace {
    began: Instant,
    received: u64,
}

impl Pace {
    /// Returns when the next piece is due.
    fn due(&self) -> Instant {
        let whole = BODY_PATIENCE + Duration::from_secs(self.received / LEAST_BYTES_A_SECOND);
        (Instant::now() + PAUSE_PATIENCE).min(self.began + whole)
    }
}

async fn next(body: &mut Body, pace: &mut Pace) -> Result<Option<Bytes>, Problem> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let Ok(frame) = timeout_at(pace.due(), frame).await else {
            let message = format!("the body did not come in time: {} bytes are there", pace.received);
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, message));
        };
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|error| Problem::invalid(format!("cannot read the body: {error}")))?;
        // Trailers have no meaning here.
        if let Ok(piece) = frame.into_data() {
            pace.received += piece.len() as u64;
            return Ok(Some(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_compression_that_a_client_likes_best_is_taken() {
        let of = |listed| accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(listed))]));
        assert_eq!(of("gzip, deflate, br"), Some(Encoding::Gzip));
        assert_eq!(of("br;q=1.0, deflate;q=0.8, gzip;q=0.5"), Some(Encoding::Deflate));
        assert_eq!(of("gzip;q=0, deflate; q=0.1"), Some(Encoding::Deflate));
        for none in ["gzip;q=0", "identity, gzip;q=0.5", "br", "*", "gzip;q=x", ""] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(accepted(&HeaderMap::new()), None);
        assert_eq!(of("X-GZip;Q=0.5"), Some(Encoding::Gzip));
        let lines = ["br", "deflate;q=0.2", "GZIP"].map(|line| (ACCEPT_ENCODING, HeaderValue::from_static(line)));
        let mut headers = HeaderMap::new();
        for (name, line) in lines {
            headers.append(name, line);
        }
        assert_eq!(accepted(&headers), Some(Encoding::Gzip), "the lines are one list");
    }
}
