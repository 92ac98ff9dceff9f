//! Faults that the driver plants between the core and the device, one for each thing that the harness must find.

/// What goes wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Stretched rows run at the base of the buffer (the published artefact's fault).
    RowOffsetZero,
    /// Waits for those who wrote what a task reads are left out.
    NoWaitForWriter,
    /// Waits for those who read what a task overwrites are left out (the published artefact's fault).
    NoWaitForReader,
    /// Two rows of a task are written in each other's place.
    SwappedRows,
    /// Two rows of a reply are answered with each other's content.
    SwappedReplies,
    /// Tasks read their first boundary in the buffer of another pair.
    ForeignLease,
    /// Two leases of a boundary are one buffer, as if a credit had been returned twice.
    CreditTwice,
    /// The end of a task at the last stage is never told: its credits never return.
    LostCredit,
    /// The end of a task at the first stage is never told: what waits for its buffer waits for ever.
    LostCompletion,
    /// The end of a newcomers' task is never told once all of them are cancelled: older rows wait for ever.
    NewcomersForgotten,
    /// A task's end is told before it has ended.
    EarlyCompletion,
    /// Outcomes are told for the wrong rows.
    ShiftedOutcomes,
    /// The rows of a failed task are all told to have failed, whosever fault it was.
    StrangersFail,
    /// A request's end is lost.
    LostAnswer,
    /// A request ends twice.
    TwoAnswers,
}
