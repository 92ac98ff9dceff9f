//! Faults that the driver plants between the core and the device, one for each kind that the harness must find.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Stretched rows run at the base of the buffer (the published artefact's fault).
    RowOffsetZero,
    /// Waits for the writers of a task's inputs are omitted.
    NoWaitForWriter,
    /// Waits for the readers of rows that a task overwrites are omitted (the published artefact's fault).
    NoWaitForReader,
    /// Two rows of a task are written to each other's place.
    SwappedRows,
    /// Two rows of a reply get each other's content.
    SwappedReplies,
    /// Tasks read their first boundary from another pair's buffer.
    ForeignLease,
    /// Two leases of a boundary share one buffer, as if a credit had been returned twice.
    CreditTwice,
    /// The end of a task at the last stage is never reported, so its credits never return.
    LostCredit,
    /// The end of a task at the first stage is never reported, so tasks that wait for its buffer wait forever.
    LostCompletion,
    /// The end of a newcomers' task is never reported once all of them are cancelled, so older rows wait forever.
    NewcomersForgotten,
    /// A task's end is reported before it has ended.
    EarlyCompletion,
    /// Outcomes are reported for the wrong rows.
    ShiftedOutcomes,
    /// All rows of a failed task are reported as failed, whichever row caused it.
    StrangersFail,
    /// A request's end is lost.
    LostAnswer,
    /// A request ends twice.
    TwoAnswers,
}
