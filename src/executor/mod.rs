//! The shared pool: a shard for each device, and a router that chooses among them. It drives `batching`, carries out
//! its actions, owns threads and batch memory. Knows neither protocols nor papers.
//!
//! The thread that brings an event (of a client's task, a lane, the timer) drives the core itself, under one lock: a
//! step costs about a microsecond, a hand-over to a scheduler thread costs several (`docs/decisions`). For the same
//! reason a request that is alone, of a program whose runs are known to be short, runs on the thread that brought it.
//! Nothing but the core and its records is touched under the lock; answers, drops and wake-ups happen after it.
//!
//! A version that is cut into stages runs as a task per stage (`stage_task`), whose rows pass through the memory that
//! their batch leases at each boundary (`boundary`). A version whose requests unfold runs tasks of nodes (`cells`).
//! What stages make of a request's reply is kept in pieces until its end. Replies that wait for their clients are
//! counted in a `backlog`, which bounds them.

mod admit;
mod answers;
mod backend;
mod backlog;
mod cells;
mod clock;
mod cuda;
mod dispatch;
mod fault;
mod handle;
mod hangs;
mod host;
mod indices;
mod job;
mod loaded;
mod location;
mod pieces;
mod placement;
mod pool;
mod ran;
mod record;
mod request;
mod scatter;
#[cfg(test)]
mod sim;
mod stages;
mod state;
mod timer;
mod watch;

pub use backlog::{Backlog, BacklogLimits, Held, Unread};
pub use cells::CellPrograms;
pub use cuda::{Journal, Noted, check_cards};
pub use dispatch::{Order, Tickets, issue};
pub use handle::{ModelHandle, ResponseFuture, ResponseStream};
pub use host::warm_up::WarmUp;
pub use placement::{CardsOptions, DeviceKind, Placement, Site};
pub use pool::{Pool, PoolOptions};
pub use request::{InferError, InferRequest, InputTensor, OutputTensor, Response};
pub use stages::StagePrograms;
pub use state::Responsiveness;
