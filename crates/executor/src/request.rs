//! Requests and responses of the pool, independent of any protocol.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster_device::cuda::ImportedSlice;
use paternoster_model::{Dims, InSequence, InputTensor};
use paternoster_observe::{Charge, RequestEnd, StepOf, budget::Exhausted, trace::RequestTrace};
use smallvec::SmallVec;

use super::{Backlog, Unread};

/// One admitted request, already checked against the model's specification.
#[derive(Clone, Debug)]
pub struct InferRequest {
    /// Number of rows: the batch dimension, or 1 for models without one.
    pub rows: u32,
    /// Inputs in the order of the specification; `None` for omitted optional inputs.
    pub inputs: Vec<Option<InputTensor>>,
    /// Triton's priority; 0 = the model's default.
    pub priority: u64,
    /// The request's own queue timeout; zero or `None`: the model's default.
    pub queue_timeout: Option<Duration>,
    /// The client's deadline.
    pub deadline: Option<Instant>,
    /// Time that is expected to be needed between its completion and its deadline, such as for later steps of a
    /// pipeline. Policies aim at a completion that leaves it; the request ends at its deadline all the same.
    pub needed_after: Duration,
    /// Its sequence, if the client named one; ignored by versions without sequences.
    pub sequence: Option<InSequence>,
    /// Its trace, if it is traced.
    pub trace: Option<Arc<RequestTrace>>,
    /// The request that it is a step of, if it is.
    pub step_of: Option<StepOf>,
    /// The account that what it builds is charged to: that of the client's request that it is derived from. `None` if
    /// it is the client's own.
    pub charge: Option<Charge>,
    /// The outputs that are wanted, by number; all if `None`. A pipeline leaves out steps that none of them needs, and
    /// answers without their elements.
    pub wanted_outputs: Option<SmallVec<[usize; 4]>>,
    /// Counts its responses while they wait to be taken; `None`: they are not counted. The steps of a pipeline are not,
    /// but for those whose responses are the pipeline's.
    pub backlog: Option<Arc<Backlog>>,
    /// How long the response cache was searched, which did not have its response; `None` if it was not searched.
    pub missed_ns: Option<u64>,
    /// Tensors in memory of a card, which the version reads and writes there ([`CardPorts`]).
    pub on_card: Option<Box<CardTensors>>,
}

impl InferRequest {
    /// Creates a request that asks for nothing but these inputs.
    pub fn new(rows: u32, inputs: Vec<Option<InputTensor>>) -> Self {
        let (priority, queue_timeout, deadline) = (0, None, None);
        Self {
            rows,
            inputs,
            priority,
            queue_timeout,
            deadline,
            needed_after: Duration::ZERO,
            sequence: None,
            trace: None,
            step_of: None,
            charge: None,
            wanted_outputs: None,
            backlog: None,
            missed_ns: None,
            on_card: None,
        }
    }

    /// Counts its responses in the backlog while they wait to be taken.
    #[must_use]
    pub fn counted_in(self, backlog: &Arc<Backlog>) -> Self {
        Self { backlog: Some(Arc::clone(backlog)), ..self }
    }
}

/// Tensors of a request that are in a card's memory, which its client shares. The request runs on that card.
#[derive(Clone, Debug)]
pub struct CardTensors {
    /// The card's number among those of the driver.
    pub card: u16,
    /// Inputs by number, each as long as its shape says: their [`InputTensor::data`] is empty.
    pub inputs: SmallVec<[(usize, ImportedSlice); 1]>,
    /// Where outputs go, by number, each as long as the request's rows of it. They have no elements in the response.
    pub outputs: SmallVec<[(usize, ImportedSlice); 1]>,
}

impl CardTensors {
    pub(super) fn input(&self, number: usize) -> Option<&ImportedSlice> {
        self.inputs.iter().find(|(own, _)| *own == number).map(|(_, slice)| slice)
    }

    pub(super) fn output(&self, number: usize) -> Option<&ImportedSlice> {
        self.outputs.iter().find(|(own, _)| *own == number).map(|(_, slice)| slice)
    }
}

/// Which tensors of its requests a version reads and writes where they lie in a card's memory.
#[derive(Clone, Debug, Default)]
pub struct CardPorts {
    /// The cards, by their numbers among those of the driver.
    pub cards: Box<[u16]>,
    /// By input. Others are read by the host before the request is admitted.
    pub inputs: Box<[bool]>,
    /// By output.
    pub outputs: Box<[bool]>,
}

/// One response in wire form, with outputs in the order of the specification.
#[derive(Clone, Debug)]
pub struct Response {
    /// All outputs of the model.
    pub outputs: Vec<OutputTensor>,
}

impl Response {
    /// Returns the bytes it takes to keep the response: its elements, their descriptions and the owners of their
    /// memory.
    pub fn kept_bytes(&self) -> usize {
        let outputs = self.outputs.iter().map(|output| size_of::<OutputTensor>() + OWNER_BYTES + output.data.len());
        size_of::<Self>() + outputs.sum::<usize>()
    }

    /// Copies its outputs, so that it no longer keeps the memory of their batch.
    pub fn detach(&mut self) {
        self.outputs.iter_mut().for_each(OutputTensor::detach);
    }
}

impl OutputTensor {
    /// Copies its elements, so that it no longer keeps the memory of their batch.
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

/// Overhead of an output apart from its elements and its description: the owner of its memory, alignment, and its entry
/// in a queue. A response of 64 bytes was measured to take 324 bytes in all.
const OWNER_BYTES: usize = 160;

/// Why a request has no (further) response.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum InferError {
    /// The queue has reached its maximum size.
    #[error("Exceeds maximum queue size")]
    QueueFull,
    /// It waited past its queue timeout.
    #[error("Request timeout expired")]
    QueueTimeout,
    /// It can no longer meet the model's latency objective.
    #[error("Request cannot meet the latency objective any more")]
    Late,
    /// It needs more state than the version has room for.
    #[error("the request needs more state than the model has room for")]
    NoMemory,
    /// There is no memory for what its sequence keeps. The sequence cannot go on.
    #[error("no memory for the state of the sequence (--max-sequence-state-bytes): {0}")]
    NoState(Exhausted),
    /// There is no memory for what it needs besides its inputs: what passes between the steps of a pipeline, or its
    /// state between cells.
    #[error("no memory for what the request needs while it runs (--max-pending-bytes): {0}")]
    NoRoom(Exhausted),
    /// Its inputs do not determine how it unfolds.
    #[error("{0}")]
    Invalid(String),
    /// A model that it needs is not served.
    #[error("{0}")]
    Unavailable(String),
    /// The client's deadline passed. The text is gRPC's own, which clients show if their own clock expires first.
    #[error("Deadline Exceeded")]
    Expired,
    /// The client cancelled it.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine failed it.
    #[error("{0}")]
    Engine(String),
    /// The pool is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The device that ran it, or every device of its model, is lost.
    #[error("the device that ran the request is lost")]
    DeviceLost,
    /// The pool has ended because of an internal fault.
    #[error("the server's scheduler has failed, and the server is ending")]
    SchedulerFailed,
    /// Its client leaves too many responses unread.
    #[error(transparent)]
    Unread(#[from] Unread),
    /// A step of a pipeline ended so.
    #[error("{place}: {error}")]
    InStep {
        /// Names the pipeline and the step.
        place: String,
        /// How the step ended.
        error: Box<Self>,
    },
}

impl InferError {
    /// Returns the error itself, without the steps of pipelines that it happened in.
    pub fn cause(&self) -> &Self {
        match self {
            Self::InStep { error, .. } => error.cause(),
            error => error,
        }
    }

    /// Returns how a request ends that gets this error.
    pub fn end(&self) -> RequestEnd {
        match self {
            Self::InStep { error, .. } => error.end(),
            Self::Engine(_) => RequestEnd::Failed,
            Self::QueueFull | Self::QueueTimeout | Self::Late | Self::NoMemory => RequestEnd::Rejected,
            Self::Invalid(_) => RequestEnd::Invalid,
            Self::NoRoom(_) | Self::NoState(_) | Self::Unread(_) => RequestEnd::NoRoom,
            Self::Unavailable(_) | Self::SchedulerFailed | Self::DeviceLost => RequestEnd::Lost,
            Self::Expired => RequestEnd::Expired,
            Self::Cancelled | Self::ShuttingDown => RequestEnd::Cancelled,
        }
    }

    /// Whether the request was rejected on arrival, before it waited or ran.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::InStep { error, .. } => error.is_refusal(),
            Self::QueueFull | Self::NoMemory | Self::Invalid(_) | Self::ShuttingDown => true,
            Self::QueueTimeout
            | Self::Late
            | Self::Expired
            | Self::Cancelled
            | Self::Engine(_)
            | Self::DeviceLost
            | Self::SchedulerFailed
            | Self::NoRoom(_)
            | Self::Unavailable(_)
            | Self::NoState(_)
            | Self::Unread(_) => false,
        }
    }
}
