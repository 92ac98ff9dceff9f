//! The span of a request in the log: the lines that are written while it is read, run and answered name it.
//!
//! Its level is DEBUG, because so are the lines about single requests: clients cause them at will. Where debug lines
//! are not logged, opening a span is one load of the level.

use std::fmt;

use tracing::{Span, debug, debug_span, field::Empty};

use super::intake::Admitted;
use crate::observe::trace::Transport;

/// Longest text of a client that a span keeps, in bytes: a request's id may be as long as its message.
const MOST_TEXT_BYTES: usize = 128;

/// A span of a request of which nothing is known yet.
pub(super) fn open(transport: Transport) -> Span {
    let protocol = match transport {
        Transport::Grpc => "grpc",
        Transport::Http => "http",
    };
    debug_span!("infer", protocol, model = Empty, version = Empty, request_id = Empty, rows = Empty)
}

/// Notes what a request asks for, before it is known whether there is such a model.
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

/// Notes which version serves a request, and how large it is.
pub(super) fn admitted(span: &Span, admitted: &Admitted) {
    if span.is_disabled() {
        return;
    }
    let (spec, decoded) = (admitted.version.spec(), &admitted.decoded);
    span.record("model", &*spec.name).record("version", spec.version).record("rows", decoded.request.rows);
    if !decoded.reply.id.is_empty() {
        span.record("request_id", shortened(&decoded.reply.id));
    }
}

/// Logs that a request has no answer but a reason.
pub(super) fn refused(span: &Span, code: impl fmt::Debug, reason: &str) {
    debug!(parent: span, ?code, reason, "call refused");
}

/// The beginning of a text.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT_BYTES)]
}
