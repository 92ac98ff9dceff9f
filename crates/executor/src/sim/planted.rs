//! Faults that are planted between the pool and a device, one for each kind that the runs must find.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// Stretched rows run at the base of the buffer (the published artefact's fault).
    RowOffsetZero,
    /// Waits for the writers of a task's inputs are omitted.
    NoWaitForWriter,
    /// Waits for the readers of rows that a task overwrites are omitted (the published artefact's fault).
    NoWaitForReader,
    /// Two rows of a task are written to each other's place.
    SwappedRows,
    /// Two rows of a response get each other's content.
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
    /// Orders are carried out from the last to the first.
    Backwards,
    /// Nodes with odd numbers use the next slot.
    NextSlot,
    /// Rows of several steps run one more.
    StepTooMany,
    /// The last row of a task runs the first of its steps alone.
    StepsForgotten,
    /// Rows run as many steps as the longest row of their task.
    StepsOfOthers,
    /// Outputs are overwritten before the host has taken them.
    OutputsReused,
    /// Outputs are never delivered.
    NeverTaken,
    /// Tasks that depend on a failed task run as if it had succeeded.
    FailureUnnoticed,
    /// The memory of a version is not freed.
    NeverFreed,
    /// Outputs are reported out of order.
    TakenOutOfOrder,
}
