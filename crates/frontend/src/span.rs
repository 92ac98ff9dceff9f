//! The log span of a request: log lines written while it is read, run and answered carry it.
//!
//! Its level is DEBUG, like the lines about single requests, because clients can cause them at will. If debug lines are
//! not logged, opening a span costs a single load of the level.

use std::fmt;

use paternoster_observe::trace::Transport;
use tracing::{Span, debug, debug_span, field::Empty};

use super::intake::Admitted;

/// Maximum length of a client's text in a span, in bytes; a request's id may be as long as its message.
const MOST_TEXT_BYTES: usize = 128;

/// Opens the span of a request whose message has not been read.
pub(super) fn open(transport: Transport) -> Span {
    let protocol = match transport {
        Transport::Grpc => "grpc",
        Transport::Http => "http",
    };
    debug_span!("infer", protocol, model = Empty, version = Empty, request_id = Empty, rows = Empty)
}

/// Records what a request asks for, before its model is resolved.
pub(super) fn asked(span: &Span, model: &str, version: &str, id: &str) {
    if span.is_disabled() {
        return;
    }
    span.record("model", shortened(model));
    for (field, text) in [("version", version), ("request_id", id)] {
        if !text.is_empty() {
            span.record(field, shortened(text));
        }
    }
}

/// Records which version serves a request, and its size.
pub(super) fn admitted(span: &Span, admitted: &Admitted) {
    if span.is_disabled() {
        return;
    }
    let Admitted { version, request, reply, .. } = admitted;
    let spec = version.spec();
    span.record("model", &*spec.name).record("version", spec.version).record("rows", request.rows);
    if !reply.id.is_empty() {
        span.record("request_id", shortened(&reply.id));
    }
}

/// Logs the error of a request.
pub(super) fn refused(span: &Span, code: impl fmt::Debug, reason: &str) {
    debug!(parent: span, ?code, reason, "call refused");
}

/// Returns the start of a text.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT_BYTES)]
}
