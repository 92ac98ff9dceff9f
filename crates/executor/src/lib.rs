//! The pool: one shard per device, and a router that chooses among them. It drives `batching`, carries out its actions,
//! and owns threads and batch memory. It must not know about protocols or papers.
//!
//! The thread that brings an event (a client's task, a lane, the timer) drives the core itself, under one lock per
//! shard. A step costs about a microsecond, while a hand-over to a scheduler thread would cost several
//! (`docs/decisions`). For the same reason a request that is alone, of a program that is known to run briefly, runs on
//! the submitting thread. Only the core and its records are touched under the lock; responses, drops and wake-ups
//! happen after it is released.
//!
//! A version that is cut into stages runs one task per stage (`stage_task`); its rows pass through the memory that
//! their batch leases at each boundary (`boundary`). A version whose requests unfold runs tasks of nodes (`cells`). The
//! parts of a response that stages produce are kept as pieces until the request ends. Responses that wait for their
//! clients are counted and limited by a `backlog`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod admission;
mod backend;
mod backlog;
mod cells;
mod clock;
mod cuda;
mod dispatch;
mod exits;
mod fault;
mod gather;
mod handle;
mod host;
mod indices;
mod job;
mod length_limits;
mod location;
mod pieces;
mod placement;
mod pool;
mod record;
mod request;
mod rows;
mod scatter;
mod short_runs;
#[cfg(test)]
mod sim;
mod stages;
mod state;
mod strings;
mod timer;
mod version;
mod watch;

pub use backlog::{Backlog, BacklogLimits, BacklogShare, Unread};
pub use cells::CellPrograms;
pub use cuda::{CapturedStages, Journal, JournalEntry, StageLaunch, check_cards};
pub use dispatch::{StreamOrder, Tickets, issue};
pub use handle::{ModelHandle, ResponseFuture, ResponseStream};
pub use host::warm_up::WarmUp;
pub use placement::{CardsOptions, DeviceKind, Placement, Site};
pub use pool::{BringUp, OnShortage, Pool, PoolOptions};
pub use request::{CardPorts, CardTensors, InferError, InferRequest, OutputTensor, Response};
pub use stages::StagePrograms;
pub use state::Responsiveness;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
