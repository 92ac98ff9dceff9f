//! The recorded values, and the records that they are stored as.

use crate::end::RequestEnd;

/// A launched task without its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLaunch<'a> {
    /// Unique among all tasks of the recording.
    pub task: u64,
    /// The loaded version that it runs.
    pub model: u32,
    /// The stage that it runs, counted from 0.
    pub stage: u16,
    /// The lane that it runs on.
    pub lane: u16,
    /// Number of its batch, shared by all parts of a split batch.
    pub batch: u64,
    /// Rows of the executed batch, padding included.
    pub bucket_rows: u32,
    /// Padded lengths, one per symbol of the model.
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
    /// Place of the first row in the batch.
    pub at: u32,
}

/// An entry of a recording. Times are in nanoseconds since the recorder's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request was admitted.
    Arrived {
        /// Time.
        at_ns: u64,
        /// The request.
        req: u64,
        /// Its position in arrival order, counted from 1.
        number: u64,
        /// The loaded version that serves it.
        model: u32,
        /// Number of rows.
        rows: u32,
    },
    /// A task was given to its lane; its padded lengths and rows follow. The fields are those of [`TaskLaunch`].
    #[allow(missing_docs)]
    Launched { at_ns: u64, task: u64, batch: u64, model: u32, bucket_rows: u32, stage: u16, lane: u16 },
    /// A padded length of the preceding launch.
    Length(u32),
    /// Rows of the preceding launch.
    Rows(TaskRows),
    /// A task ended.
    Completed {
        /// Time.
        at_ns: u64,
        /// The task.
        task: u64,
        /// Whether the engine failed it.
        failed: bool,
    },
    /// A request ended.
    Ended {
        /// Time.
        at_ns: u64,
        /// The request.
        req: u64,
        /// How it ended.
        how: RequestEnd,
    },
}

impl Record {
    /// Returns the time of the record; `None` for a record that belongs to the preceding launch.
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
