//! A request as it is submitted to the state.

use std::sync::Arc;

use crate::{
    batching::Ns,
    executor::{Backlog, InferRequest, location::Whereabouts, record::Sink},
    model::unfold::Unfolded,
};

/// A request at submission.
pub(in crate::executor) struct Asked {
    pub(in crate::executor) request: InferRequest,
    /// The graph that it unfolds into; empty if requests run in batches.
    pub(in crate::executor) graph: Box<[Unfolded]>,
    /// The backlog that counts its waiting responses.
    pub(in crate::executor) backlog: Option<Arc<Backlog>>,
    pub(in crate::executor) sink: Sink,
    /// Where its submitter finds it, if it may move to another device.
    pub(in crate::executor) whereabouts: Option<Arc<Whereabouts>>,
}

/// Times of a request that count from its submission, in pool time.
#[derive(Clone, Copy)]
pub(in crate::executor) struct Due {
    pub(in crate::executor) board_by: Option<Ns>,
    pub(in crate::executor) expiry: Option<Ns>,
}
