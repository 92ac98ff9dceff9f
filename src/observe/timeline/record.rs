//! What is recorded: the plain values that come in, and the records they become.

use std::fmt;

/// A task as it goes to its lane, without its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLaunch<'a> {
    /// Unique among all tasks of the recording.
    pub task: u64,
    /// The loaded version that it runs.
    pub model: u32,
    /// The stage that it runs, counted from 0.
    pub stage: u16,
    /// Where it runs.
    pub lane: u16,
    /// Number of its batch: what travels together, all parts of a split one included.
    pub batch: u64,
    /// Rows of the executed batch, padding included.
    pub bucket_rows: u32,
    /// Padded lengths, one a symbol of the model.
    pub lengths: &'a [u32],
}

/// Consecutive rows of one request in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRows {
    /// The request.
    pub req: u64,
    /// First row within the request.
    pub start: u32,
    /// Number of rows.
    pub count: u32,
    /// Place of the first of them in the batch.
    pub at: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// Its outputs were there.
    Completed,
    /// The engine failed it.
    Failed,
    /// It never ran.
    Rejected,
    /// The client's deadline passed.
    Expired,
    /// The client gave it up.
    Cancelled,
    /// It went to another device before it ran, where it arrived as another request.
    Moved,
}

impl fmt::Display for RequestEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Moved => "moved",
        })
    }
}

/// An entry of a recording. Times are in nanoseconds since the recorder's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request was admitted.
    Arrived {
        /// When.
        at_ns: u64,
        /// The request.
        req: u64,
        /// Its place in the order of arrival, counted from 1.
        number: u64,
        /// The loaded version that serves it.
        model: u32,
        /// Rows it brought.
        rows: u32,
    },
    /// A task went to its lane; its padded lengths and its rows follow. The fields are those of [`TaskLaunch`].
    #[allow(missing_docs)]
    Launched { at_ns: u64, task: u64, batch: u64, model: u32, bucket_rows: u32, stage: u16, lane: u16 },
    /// A padded length of the launch before it.
    Length(u32),
    /// Rows of the launch before it.
    Rows(TaskRows),
    /// A task ended.
    Completed {
        /// When.
        at_ns: u64,
        /// The task.
        task: u64,
        /// Whether the engine failed it.
        failed: bool,
    },
    /// A request ended.
    Ended {
        /// When.
        at_ns: u64,
        /// The request.
        req: u64,
        /// How.
        how: RequestEnd,
    },
}

impl Record {
    /// When it was recorded; none for what belongs to the launch before it.
    pub fn at_ns(&self) -> Option<u64> {
        match *self {
            Self::Arrived { at_ns, .. }
            | Self::Launched { at_ns, .. }
            | Self::Completed { at_ns, .. }
            | Self::Ended { at_ns, .. } => Some(at_ns),
            Self::Length(_) | Self::Rows(_) => None,
        }
    }
}
