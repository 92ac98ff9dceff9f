//! The pipeline of a version: its stages, and where a row goes after one of them. One stage now; executor states and
//! leases of buffer pairs (DVABatch section 6) belong here once there are more.

use super::{CellId, Next};

/// The stages of one version.
#[derive(Debug)]
pub(super) struct Pipeline {
    stages: u16,
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onward {
    /// To this stage.
    To(CellId),
    /// It is done.
    Done,
    /// It failed.
    Failed,
}

impl Pipeline {
    /// A model that is one stage.
    pub(super) fn single() -> Self {
        Self { stages: 1 }
    }

    /// The stage at which new batches start.
    pub(super) fn entry(&self) -> CellId {
        CellId(0)
    }

    /// Where a row goes after `stage`. A row sent to a stage that does not exist failed: its engine answered nonsense.
    pub(super) fn onward(&self, stage: CellId, next: Next) -> Onward {
        let following = stage.0.saturating_add(1);
        match next {
            Next::On if following < self.stages => Onward::To(CellId(following)),
            Next::On | Next::Done => Onward::Done,
            Next::Skip(target) if target.0 < self.stages => Onward::To(target),
            Next::Skip(_) | Next::Failed => Onward::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_last_stage_a_row_is_done() {
        assert_eq!(Pipeline::single().onward(CellId(0), Next::On), Onward::Done);
    }

    #[test]
    fn a_row_may_run_its_stage_again() {
        assert_eq!(Pipeline::single().onward(CellId(0), Next::Skip(CellId(0))), Onward::To(CellId(0)));
    }

    #[test]
    fn a_row_sent_to_a_stage_that_does_not_exist_failed() {
        assert_eq!(Pipeline::single().onward(CellId(0), Next::Skip(CellId(1))), Onward::Failed);
    }
}
