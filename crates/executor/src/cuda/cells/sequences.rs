//! Where tables hold what sequences keep from one request to the next.
//!
//! A sequence has a slot of its own from its first task until it is over, with two rows in each table whose state
//! outlives requests. A request begins with one of them, and its last step leaves the other, which counts once the
//! request has completed: if it does not, the state is what it was. The core limits how many sequences there are at
//! once, and as many slots are reserved when the version is loaded.
//!
//! The core runs the next request once the one before it has ended for its client. If that was cancelled, a task of it
//! may still be on the card. The first task of the next request therefore comes after all tasks of others that touch
//! the slot, whichever streams they are on.

use std::collections::HashMap;

use paternoster_batching::{ReqId, SequenceNo, TaskId};
use paternoster_model::unfold::{NodeType, Nodes, Segment};
use smallvec::SmallVec;

use crate::cells::CellPrograms;

/// Rows of a sequence in each table: the one that counts, and the one that the request at its turn leaves.
pub(super) const ROWS: u32 = 2;

/// Most slots of a version: tasks name rows by numbers of 31 bits.
const MOST: u32 = 1 << 29;

/// Whether what the last node of a segment leaves for the next request stays on the card. Which step is the last has to
/// be known before it runs.
pub(super) fn stays(segment: &Segment) -> bool {
    let has_last = matches!(segment.nodes, Nodes::Stage | Nodes::Chain { .. } | Nodes::Decode { until: None, .. });
    has_last && !segment.types.iter().any(NodeType::goes_over_rows)
}

/// Whether an output of a segment's first type stays on the card for the next request of the sequence.
pub(super) fn outlives(programs: &CellPrograms, segment: usize, output: usize) -> bool {
    let mut keeps = programs.keeps[segment].iter();
    stays(&programs.unfolding.segments[segment]) && keeps.any(|keep| keep.lives_on && keep.outputs[0] == output)
}

/// The slots of a version's sequences.
#[derive(Debug)]
pub(super) struct SequenceSlots {
    all: u32,
    /// The lowest that was never used.
    fresh: u32,
    freed: Vec<u32>,
    of: HashMap<SequenceNo, u32>,
    /// By slot: the tasks of the latest request that touched it, which come after those of earlier ones.
    tasks: HashMap<u32, (ReqId, SmallVec<[TaskId; 2]>)>,
    /// What the task that is being filled touches.
    filling: SmallVec<[(u32, ReqId); 8]>,
}

/// What a node has of its sequence on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfSequence {
    /// It has no sequence, or one without state there.
    Nothing,
    Slot(u32),
    /// All slots are held by others.
    NoSlot,
}

impl OfSequence {
    /// The slot, if it has one.
    pub(super) fn slot(self) -> Option<u32> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Nothing | Self::NoSlot => None,
        }
    }

    /// What fails its request.
    pub(super) fn fault(self) -> Option<String> {
        (self == Self::NoSlot).then(|| "the card has no slot for the state of its sequence".to_owned())
    }
}

impl SequenceSlots {
    /// Creates a number of free slots.
    ///
    /// # Errors
    /// When they are more than tasks can name.
    pub(super) fn new(all: u32) -> Result<Self, String> {
        if all > MOST {
            return Err(format!("at most {all} sequences hold state, expected at most {MOST} on cards"));
        }
        let (of, tasks) = (HashMap::new(), HashMap::new());
        Ok(Self { all, fresh: 0, freed: Vec::new(), of, tasks, filling: SmallVec::new() })
    }

    /// The slot of a sequence, which it has from now on; none where all are held.
    pub(super) fn open(&mut self, sequence: SequenceNo) -> Option<u32> {
        if let Some(&slot) = self.of.get(&sequence) {
            return Some(slot);
        }
        let slot = self.freed.pop().or_else(|| (self.fresh < self.all).then_some(self.fresh))?;
        self.fresh = self.fresh.max(slot + 1);
        self.of.insert(sequence, slot);
        Some(slot)
    }

    /// Frees the slot of a sequence that is over, if it has one.
    pub(super) fn over(&mut self, sequence: SequenceNo) {
        self.freed.extend(self.of.remove(&sequence));
    }

    /// A task is about to be filled.
    pub(super) fn begin_task(&mut self) {
        self.filling.clear();
    }

    /// The task that is being filled touches a slot for a request: the tasks of other requests that it comes after.
    pub(super) fn touch(&mut self, slot: u32, req: ReqId) -> &[TaskId] {
        self.filling.push((slot, req));
        self.tasks.get(&slot).filter(|(own, _)| *own != req).map_or(&[], |(_, tasks)| tasks)
    }

    /// The task that was filled has been issued.
    pub(super) fn issued(&mut self, task: TaskId) {
        for (slot, req) in self.filling.drain(..) {
            let (latest, tasks) = self.tasks.entry(slot).or_insert_with(|| (req, SmallVec::new()));
            if *latest != req {
                (*latest, *tasks) = (req, SmallVec::new());
            }
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(all: u32) -> SequenceSlots {
        SequenceSlots::new(all).expect("there are few")
    }

    #[test]
    fn a_sequence_holds_its_slot_until_it_is_over() {
        let mut slots = slots(2);
        let [one, two, three] = [1, 2, 3].map(SequenceNo);
        assert_eq!((slots.open(one), slots.open(two), slots.open(one)), (Some(0), Some(1), Some(0)));
        assert_eq!(slots.open(three), None);
        slots.over(three);
        assert_eq!(slots.open(three), None, "it had none to free");
        slots.over(one);
        slots.over(one);
        assert_eq!((slots.open(three), slots.open(one)), (Some(0), None));
        assert!(SequenceSlots::new(u32::MAX).is_err());
    }

    #[test]
    fn a_request_comes_after_the_tasks_of_others_that_were_issued() {
        let mut slots = slots(1);
        let [one, two, three] = [1, 2, 3].map(ReqId);
        let issue = |slots: &mut SequenceSlots, req, task| {
            slots.begin_task();
            let after = slots.touch(0, req).to_vec();
            slots.issued(TaskId(task));
            after
        };
        assert_eq!(issue(&mut slots, one, 10), []);
        assert_eq!(issue(&mut slots, one, 11), []);
        slots.begin_task();
        assert_eq!(slots.touch(0, two), [TaskId(10), TaskId(11)]);
        // This launch was refused, so the next task still comes after both.
        assert_eq!(issue(&mut slots, two, 13), [TaskId(10), TaskId(11)]);
        assert_eq!(issue(&mut slots, three, 14), [TaskId(13)], "which came after the others");
    }
}
