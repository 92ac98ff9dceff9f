//! How requests end, and the words that statistics, traces and the timeline have for it.

use std::fmt;

/// How and why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// Its outputs are complete.
    Completed,
    /// The engine failed it.
    Failed,
    /// It was rejected before it ran: the queue was full, its time in the queue was over, or it had no prospects.
    Rejected,
    /// It was rejected because of its content: a fault of the client.
    Invalid,
    /// There was no room for its response or for the state of its sequence.
    NoRoom,
    /// Its device, or the scheduler, failed.
    Lost,
    /// The client's deadline passed.
    Expired,
    /// The client cancelled it, or the server is shutting down.
    Cancelled,
    /// It moved to another device before it ran, where it arrived as another request of the timeline.
    Moved,
}

impl RequestEnd {
    /// Returns why it counts as failed; `None` if it did not fail.
    pub fn failure(self) -> Option<FailureReason> {
        match self {
            Self::Completed | Self::Moved => None,
            Self::Failed => Some(FailureReason::Backend),
            Self::Rejected | Self::NoRoom => Some(FailureReason::Rejected),
            Self::Invalid => Some(FailureReason::Invalid),
            Self::Lost => Some(FailureReason::Other),
            Self::Expired => Some(FailureReason::Expired),
            Self::Cancelled => Some(FailureReason::Canceled),
        }
    }

    /// Whether it never ran because the scheduler rejected it.
    pub(super) fn is_rejection(self) -> bool {
        matches!(self, Self::Rejected | Self::Invalid)
    }
}

/// Formats it as the timeline shows it.
impl fmt::Display for RequestEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Completed => "completed",
            Self::Failed | Self::NoRoom | Self::Lost => "failed",
            Self::Rejected | Self::Invalid => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Moved => "moved",
        })
    }
}

/// Why a request failed: the `reason` label of `nv_inference_request_failure`, but for [`Self::Invalid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// Queue full, queue timeout, or no room.
    Rejected,
    /// The client cancelled it.
    Canceled,
    /// The client's deadline passed. Counted as CANCELED in Triton's counter, and in a separate counter of ours.
    Expired,
    /// The engine failed it.
    Backend,
    /// Its client sent what the model cannot take. It is no failure of the model, and has a separate counter.
    Invalid,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// Returns its name as in Triton's counters; there, an expired deadline counts as CANCELED.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Canceled => "CANCELED",
            Self::Expired => "EXPIRED",
            Self::Backend => "BACKEND",
            Self::Invalid => "INVALID",
            Self::Other => "OTHER",
        }
    }
}

/// Failed requests by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Failures with reason REJECTED.
    pub rejected: u64,
    /// Failures with reason CANCELED, including expired ones.
    pub canceled: u64,
    /// Failures with reason BACKEND.
    pub backend: u64,
    /// Failures with reason OTHER.
    pub other: u64,
    /// Requests whose content was wrong, which are no failures.
    pub invalid: u64,
    /// Requests whose client's deadline passed; included in `canceled`.
    pub expired: u64,
}

impl FailureCounts {
    pub(super) fn add(&mut self, reason: FailureReason) {
        match reason {
            FailureReason::Rejected => self.rejected += 1,
            FailureReason::Canceled => self.canceled += 1,
            FailureReason::Expired => {
                self.canceled += 1;
                self.expired += 1;
            }
            FailureReason::Backend => self.backend += 1,
            FailureReason::Invalid => self.invalid += 1,
            FailureReason::Other => self.other += 1,
        }
    }
}
