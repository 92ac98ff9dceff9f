//! A request as it comes to the state.

use std::sync::Arc;

use crate::{
    batching::Ns,
    executor::{Backlog, InferRequest, location::Whereabouts, record::Sink},
    model::unfold::Unfolded,
};

/// A request as it is submitted.
pub(in crate::executor) struct Asked {
    pub(in crate::executor) request: InferRequest,
    /// What it unfolds into; nothing where requests travel in batches.
    pub(in crate::executor) graph: Box<[Unfolded]>,
    /// Where its responses count while they wait for the client.
    pub(in crate::executor) backlog: Option<Arc<Backlog>>,
    pub(in crate::executor) sink: Sink,
    /// Where its sender finds it, if it may move to another device.
    pub(in crate::executor) whereabouts: Option<Arc<Whereabouts>>,
}

/// Times of a request that count from its submission, in the pool's time.
#[derive(Clone, Copy)]
pub(in crate::executor) struct Due {
    pub(in crate::executor) board_by: Option<Ns>,
    pub(in crate::executor) expiry: Option<Ns>,
}
