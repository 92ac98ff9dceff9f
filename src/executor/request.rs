//! What goes into the pool and what comes out, free of any protocol.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::Unread;
use crate::{
    model::{Dims, InSequence},
    observe::trace::RequestTrace,
};

/// One admitted request, already checked against the model's specification.
#[derive(Clone, Debug)]
pub struct InferRequest {
    /// Rows: the batch dimension, or 1 for models without one.
    pub rows: u32,
    /// Inputs in the order of the specification; `None` for optional ones left out.
    pub inputs: Vec<Option<InputTensor>>,
    /// Triton's priority; 0 = the model's default.
    pub priority: u64,
    /// The request's own queue timeout; zero or absent: the model's default.
    pub queue_timeout: Option<Duration>,
    /// The client's deadline.
    pub deadline: Option<Instant>,
    /// Its sequence, if the client named one; of no account to versions without sequences.
    pub sequence: Option<InSequence>,
    /// What is recorded of it, where it is traced.
    pub trace: Option<Arc<RequestTrace>>,
}

/// One input of a request in wire form.
#[derive(Clone, Debug)]
pub struct InputTensor {
    /// Full shape, batch dimension included.
    pub shape: Dims,
    /// Raw little-endian elements; BYTES elements each preceded by a four-byte length. Its address may be unaligned.
    pub data: Bytes,
}

/// One response in wire form, outputs in the order of the specification.
#[derive(Clone, Debug)]
pub struct Response {
    /// All outputs of the model.
    pub outputs: Vec<OutputTensor>,
}

impl Response {
    /// What it takes to keep: its elements, what describes them, and what owns them.
    pub(super) fn kept_bytes(&self) -> usize {
        let outputs = self.outputs.iter().map(|output| size_of::<OutputTensor>() + OWNER_BYTES + output.data.len());
        size_of::<Self>() + outputs.sum::<usize>()
    }

    /// Copies its outputs, so that it no longer keeps the memory of the batch that they were made in.
    pub(super) fn detach(&mut self) {
        self.outputs.iter_mut().for_each(OutputTensor::detach);
    }
}

impl OutputTensor {
    /// Copies its elements, so that it no longer keeps the memory of the batch that they were made in.
    pub(super) fn detach(&mut self) {
        self.data = Bytes::copy_from_slice(&self.data);
    }
}

/// One output of a response in wire form; shares the batch's memory.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// Full shape, batch dimension included.
    pub shape: Dims,
    /// Raw little-endian elements; BYTES elements each preceded by a four-byte length.
    pub data: Bytes,
}

/// What an output takes besides its elements and its description: the owner of its memory, the memory's alignment, its
/// place in a queue. An answer of 64 bytes was seen to take 324 in all.
const OWNER_BYTES: usize = 160;

/// Why a request has no (further) response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum InferError {
    /// The queue holds its largest number of requests.
    #[error("Exceeds maximum queue size")]
    QueueFull,
    /// It waited past its queue timeout.
    #[error("Request timeout expired")]
    QueueTimeout,
    /// It could not have met the model's latency objective any more.
    #[error("Request cannot meet the latency objective any more")]
    Late,
    /// Its graph needs more state than the version has room for.
    #[error("the request needs more state than the model has room for")]
    NoMemory,
    /// Its inputs do not say how it unfolds.
    #[error("{0}")]
    Invalid(String),
    /// The client's deadline passed. The text is gRPC's own, which clients show where their clock is the first.
    #[error("Deadline Exceeded")]
    Expired,
    /// The client gave it up.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine failed it.
    #[error("{0}")]
    Engine(String),
    /// The pool is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The device that held it is gone, or all that its model is on.
    #[error("the device that ran the request is lost")]
    DeviceLost,
    /// The pool has ended by a fault of its own.
    #[error("the server's scheduler has failed, and the server is ending")]
    SchedulerFailed,
    /// Its client leaves too many replies unread.
    #[error(transparent)]
    Unread(#[from] Unread),
}

impl InferError {
    /// Whether the request was turned away as it came, before it waited or ran.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::QueueFull | Self::NoMemory | Self::Invalid(_) | Self::ShuttingDown => true,
            Self::QueueTimeout
            | Self::Late
            | Self::Expired
            | Self::Cancelled
            | Self::Engine(_)
            | Self::DeviceLost
            | Self::SchedulerFailed
            | Self::Unread(_) => false,
        }
    }
}
