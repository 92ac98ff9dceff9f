//! Counts hung tasks by stage of a version.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Tasks of one version that exceeded its time limit and occupy their lanes.
#[derive(Debug)]
pub(super) struct Hangs {
    by_stage: Box<[AtomicU32]>,
    limit: Duration,
}

impl Hangs {
    pub(super) fn new(stages: usize, limit: Duration) -> Self {
        Self { by_stage: (0..stages).map(|_| AtomicU32::new(0)).collect(), limit }
    }

    /// Records that a task of the stage exceeded the limit.
    pub(super) fn began(&self, stage: u16) {
        if let Some(hanging) = self.by_stage.get(usize::from(stage)) {
            hanging.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that one of them no longer occupies its lane.
    pub(super) fn ended(&self, stage: u16) {
        if let Some(hanging) = self.by_stage.get(usize::from(stage)) {
            hanging.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the fault of the version if one of its tasks hangs.
    pub(super) fn reason(&self) -> Option<String> {
        let stage = self.by_stage.iter().position(|hanging| hanging.load(Ordering::Relaxed) > 0)?;
        Some(self.reason_of(stage))
    }

    /// Returns the fault of a version of which a task of this stage hangs.
    pub(super) fn reason_of(&self, stage: usize) -> String {
        let task = if self.by_stage.len() > 1 { format!("a task of stage {stage}") } else { "a task".to_owned() };
        format!("{task} has not ended within {:?}", self.limit)
    }
}
